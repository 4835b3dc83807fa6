"""``hyad.compile``, once for each model, signature and options: what tests call in loops over sizes, and again for each
of their parameters. Models of one text are one, where that reads no names of a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hyad
from hyad import memo
from hyad.marshalling import signature_key, take_apart
from hyad.program.journal import OFF

#: Of models that read no names: by text and options.
_made: dict[Any, dict[Any, Callable[..., Any]]] = {}


def _of(f: hyad.Model) -> dict[Any, Callable[..., Any]]:
    """What was made of a model."""
    try:
        text = memo.meaning(f.value)
    except KeyError:
        text = None
    if text is None or memo.scope_of(f.value).namespace:
        return f.__dict__.setdefault("memoised", {})
    return _made.setdefault((text, repr(sorted(f._options.items()))), {})


def forget() -> None:
    """Forget all, as when a pass has changed."""
    _made.clear()


def compile(
    f: hyad.Model | str, target: str = "c", dtype: str = "f64", *, args: Sequence[Any] | None = None, **how: Any
) -> Callable[..., Any]:
    if isinstance(f, str):
        f = hyad.model(f, namespace={})
    specs = None if args is None else tuple(map(signature_key, f.specs(args, rows=True)))
    key = target, dtype, specs, repr(sorted(how.items())), OFF.get()
    made = _of(f)
    if key not in made:
        made[key] = hyad.compile(f, target, dtype, args=args, **how)
    return made[key]


def results(f: hyad.Model, args: Sequence[Any], **how: Any) -> list[np.ndarray]:
    """The numbers and arrays that compiled code gives, whatever structure they are in, one after the other."""
    call, out = compile(f, args=args, **how), []
    take_apart(call.program.out, call(*args), out)
    return [np.asarray(a) for a in out]
