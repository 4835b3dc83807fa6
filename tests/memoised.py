"""``hyad.compile``, once for each model, signature and options: what tests call in loops over sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import hyad
from hyad.marshalling import signature_key


def compile(
    f: hyad.Model, target: str = "c", dtype: str = "f64", *, args: Sequence[Any] | None = None, **how: Any
) -> Callable[..., Any]:
    specs = None if args is None else tuple(map(signature_key, f.specs(args, rows=True)))
    key = target, dtype, specs, repr(sorted(how.items()))
    made = f.__dict__.setdefault("memoised", {})
    if key not in made:
        made[key] = hyad.compile(f, target, dtype, args=args, **how)
    return made[key]
