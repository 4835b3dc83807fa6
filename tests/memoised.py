"""``hyad.compile``, once for each model, signature and options: what tests call in loops over sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hyad
from hyad.marshalling import signature_key, take_apart


def compile(
    f: hyad.Model, target: str = "c", dtype: str = "f64", *, args: Sequence[Any] | None = None, **how: Any
) -> Callable[..., Any]:
    specs = None if args is None else tuple(map(signature_key, f.specs(args, rows=True)))
    key = target, dtype, specs, repr(sorted(how.items()))
    made = f.__dict__.setdefault("memoised", {})
    if key not in made:
        made[key] = hyad.compile(f, target, dtype, args=args, **how)
    return made[key]


def results(f: hyad.Model, args: Sequence[Any], **how: Any) -> list[np.ndarray]:
    """The numbers and arrays that compiled code gives, whatever structure they are in, one after the other."""
    call, out = compile(f, args=args, **how), []
    take_apart(call.program.out, call(*args), out)
    return [np.asarray(a) for a in out]
