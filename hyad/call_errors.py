"""What is wrong with a call: errors of compiled code, in the names that the user gave and with what was passed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import core
from .core import Arr, Program
from .errors import BoundsError, HyadError, ModelTypeError, Span
from .frontend.annotations import parameters
from .marshalling import spec_of
from .program.data import Data
from .program.names import mangled
from .program.signature import DataSpec, is_flat, is_list

if TYPE_CHECKING:
    from .model import Model


def check_error(check: tuple[str, str, Span | None], model: Model, args: tuple) -> HyadError:
    """The error of a check that failed when compiled code ran."""
    kind, message, span = check
    if kind == "depth":
        hint = "make the recursive call the last thing that is done (a loop), or raise the limit: ulimit -s"
        return said_at_call(HyadError(message, span, hint), model, args)
    error = BoundsError if kind == "bounds" else ModelTypeError
    return said_at_call(error(message, span), model, args)


def said_at_call(error: HyadError, model: Model, args: tuple) -> HyadError:
    """``error``, with the model's name and what it was called with: the shapes of arrays, and integers."""
    given, below = [], False
    for label, value, _ in flat_arguments(model, args):
        if isinstance(value, np.ndarray):
            given.append(f"`{label}` has shape {value.shape}")
        elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
            given.append(f"`{label}` is {value}")
            below |= value < 0
    message = f"{model.name}: {error.message}"
    hint = error.hint
    if hint is None and message.endswith("have different shapes"):
        if any(isinstance(a, np.ndarray) and 1 in a.shape for _, a, _ in flat_arguments(model, args)):
            hint = (
                "a row goes with all others where the program says it is one: by `(expand-dims v 1)` or `#^ (Mat n 1)`"
            )
    if hint is None and below and isinstance(error, BoundsError):
        hint = "an index is from 0 on; only a literal counts from the end: `(get v -1)`"
    more = [f"and {len(given) - 8} more"] if len(given) > 8 else []
    notes = [(f"in this call {', '.join(given[:8] + more)}", None)] if given else []
    return type(error)(message, error.span or model.span, hint, [*error.notes, *notes])


def flat_arguments(model: Model, args: Sequence[Any]) -> list[tuple[str, Any, Span | None]]:
    """The numbers and arrays in the arguments of a call: what a user calls each, its value, its parameter's place."""
    known = parameters(model.value)
    found: list[tuple[str, Any, Span | None]] = []

    def walk(label: str, value: Any, span: Span | None) -> None:
        if type(value) is tuple and len(value) == 2 and is_list(value) and isinstance(spec_of(value), DataSpec):
            parts = None
        elif isinstance(value, Data):
            parts = [(f"{label}.{k}", x) for k, x in zip(value.__match_args__, value)] if is_flat(value) else None
        elif isinstance(value, tuple) and not hasattr(value, "_fields"):
            parts = [(f"{label}[{k}]", x) for k, x in enumerate(value)]
        elif isinstance(value, dict):
            parts = [(f"{label}[{k!r}]", x) for k, x in value.items()]
        elif isinstance(value, tuple) or dataclasses.is_dataclass(value):
            fields = getattr(value, "_fields", None) or [f.name for f in dataclasses.fields(value)]
            parts = [(f"{label}.{f}", getattr(value, f)) for f in fields]
        else:
            parts = None
        if parts is None:
            found.append((label, value, span))
            return
        for inner, x in parts:
            walk(inner, x, span)

    for k, a in enumerate(args):
        label, _, span = known[k] if known and k < len(known) else (f"argument {k + 1}", None, None)
        walk(label, a, span)
    return found


def misfit(reason: str, model: Model, program: Program, args: tuple, kwargs: dict) -> ModelTypeError:
    """The error for an argument that code for its signature refused: in the user's names, with what it is."""
    span, hint, value, label = model.span, None, kwargs.get("out"), "out"
    if "by position" in reason:
        what = f"{model.name} gives no array that `out=` could be filled with"
        if any(isinstance(getattr(r, "type", None), Arr) for r in program.body.results):
            what = f"the size of the array that {model.name} gives is only known after the call: `out=` is not filled"
        return ModelTypeError(what, span, "leave it out")
    about = re.match(r"argument (\S+) wants", reason)
    if about is not None:
        which, flat = about[1], flat_arguments(model, args)
        position = next((k for k, p in enumerate(program.params) if mangled(p.name) == which or p.name == which), None)
        if which.isdigit() and 0 < int(which) <= len(args):
            known = parameters(model.value)
            label, value = f"argument {which}", args[int(which) - 1]
            if known:
                label, _, span = known[int(which) - 1]
        elif position is not None and position < len(flat):
            label, value, span = flat[position]
            if isinstance(program.params[position].type, core.Data):
                return unfit_data(model, label, span, args, program.params[position].type)
        reason = reason.replace(f"argument {which}", f"`{label}`", 1)
    if "masked" in reason:
        hint = f"fill it: {label}.filled(...)"
    elif "not aligned" in reason:
        hint = f"pass {label}.copy()"
    elif isinstance(value, (np.ndarray, np.generic)):
        dtype = re.search(r"(float64|float32|int64|bool) array", reason)
        reason = reason.replace("this has another dtype", f"this is {value.dtype}")
        if dtype and ("C-contiguous" in reason.partition(";")[2] or f"this is {value.dtype}" in reason):
            made = "numpy.ascontiguousarray" if about is not None else "numpy.empty"
            first = label if about is not None else "shape"
            hint = f"pass {made}({first}, dtype={dtype[1]!r})"
    return ModelTypeError(f"{model.name}: {reason}", span or model.span, hint)


def unfit_data(model: Model, label: str, span: Span | None, args: tuple, data: core.Data) -> ModelTypeError:
    """The error for data with a part that does not fit."""
    from hyad.codegen.values import misfit as part

    known = [p[0] for p in parameters(model.value) or ()]
    value = args[known.index(label)] if label in known else None
    return ModelTypeError(f"{model.name}: argument `{label}`: {part(value, data)}", span or model.span)
