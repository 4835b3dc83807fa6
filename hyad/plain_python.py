"""Models without a compiler: a program as a Python function, with the checks of a compiled call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .core import BOOL, INT, REAL, Arr, Const, Program
from .errors import HyadError, ModelTypeError, border
from .marshalling import fits, put_together, signature_key, spec_of, take_apart, tree_spec

if TYPE_CHECKING:
    from .interpret.eager import Entry


def python_callable(program: Program, refuse: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """A program as a Python function of structured arguments, without a compiler.

    ``refuse(reason, args, kwargs)`` is called with arguments that do not fit, the reason being a sentence, and with
    the error of a check that failed.
    """
    from hyad.codegen.python import load_python

    flat = load_python(program)
    wanted = [tuple(map(signature_key, [tree_spec(t, it) for t in program.ins])) for it in [iter(program.params)]][0]

    def no(reason: Any, args: tuple, kwargs: dict) -> Any:
        if refuse is not None:
            return refuse(reason, args, kwargs)
        raise reason if isinstance(reason, HyadError) else ModelTypeError(f"{program.name}: {reason}", program.span)

    def run(*args: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out")
        try:
            fit = not kwargs.keys() - {"out"} and fits(wanted, tuple(map(signature_key, map(spec_of, args))))
        except ModelTypeError:
            fit = False
        if not fit:
            return no("the arguments do not fit its signature", args, kwargs)
        values: list[Any] = []
        for tree, a in zip(program.ins, args):
            take_apart(tree, a, values)
        arrays = [isinstance(p.type, Arr) and not hasattr(a, "_mask") for p, a in zip(program.params, values)]
        values = [np.asarray(a) if array else a for array, a in zip(arrays, values)]
        sizes: dict[Any, int] = {}
        for p, a in zip(program.params, values):
            reason = unfit(p, a, sizes)
            if reason:
                return no(f"argument {p.name} wants {reason}", args, kwargs)
        try:
            results = flat(*values)
        except HyadError as error:
            return no(error, args, kwargs)
        except OverflowError:
            return no(ModelTypeError("an integer of this call does not fit in 64 bits", program.span), args, kwargs)
        except ValueError as error:  # what NumPy says of a shape beyond all bounds
            if "too big" in str(error) or "Maximum allowed" in str(error):
                raise MemoryError from None
            raise
        if out is None:
            return put_together(program.out, iter(results))
        targets = out if isinstance(out, tuple) and len(results) > 1 else (out,)
        reason = unfit_out(targets, results)
        if reason:
            return no(reason, args, kwargs)
        for target, result in zip(targets, results):
            if target is not None:
                target[...] = result
        return put_together(program.out, iter([r if t is None else t for t, r in zip(targets, results)]))

    return border(run)


def run_to(entry: Entry, *args: Any, **kwargs: Any) -> Any:
    """Run a model; ``out=`` is filled as by compiled code."""
    result, out = entry(*args), kwargs.get("out")
    if out is None:
        return result
    results = result if isinstance(result, tuple) else (result,)
    targets = out if isinstance(out, tuple) and len(results) > 1 else (out,)
    reason = unfit_out(targets, results)
    if reason:
        raise ModelTypeError(f"{entry.name}: {reason}", entry.span)
    for target, found in zip(targets, results):
        if target is not None:
            target[...] = found
    filled = tuple(r if t is None else t for t, r in zip(targets, results))
    return filled if isinstance(result, tuple) else filled[0]


DTYPES = {REAL: "float64", INT: "int64", BOOL: "bool"}


def unfit(param: Any, value: Any, sizes: dict[Any, int]) -> str:
    """What a parameter of the plain-Python target wants and ``value`` is not, as the stub of compiled code says it;
    nothing where it fits. ``sizes`` collects the named dims."""
    t = param.type
    if not isinstance(t, Arr):
        if t == INT and not -(2**63) <= value < 2**63:
            return "an integer; this integer does not fit in 64 bits"
        return ""
    dims = [d.value if type(d) is Const else d.name for d in t.dims]
    wants = f"a {DTYPES[t.elem]} array of shape ({', '.join(map(str, dims))}{',' * (len(dims) == 1)}); "
    if value.dtype != DTYPES[t.elem]:
        return wants + "this has another dtype"
    if hasattr(value, "_mask"):
        return wants + "this is a masked array"
    for axis, (d, have) in enumerate(zip(t.dims, value.shape)):
        want = d.value if type(d) is Const else sizes.setdefault(d, have)
        if have != want:
            how = "must be" if type(d) is Const else f"where {d} is"
            return f"{wants}its dimension {axis + 1} is {have}, {how} {want}"
    return ""


def unfit_out(targets: tuple, results: Sequence[Any]) -> str:
    """What is wrong with ``out=``, for the plain-Python target."""
    if len(targets) != len(results):
        return f"out wants a tuple of {len(results)}, None where there is no array to fill; this is not such a tuple"
    for target, result in zip(targets, results):
        if target is None:
            continue
        if not isinstance(result, np.ndarray):
            return "out wants None for a scalar result; this is not None"
        wants = f"out wants a writeable {result.dtype} array of shape {result.shape}; "
        if not isinstance(target, np.ndarray):
            return wants + "this is not such an array"
        if target.dtype != result.dtype:
            return wants + "this has another dtype"
        if target.shape != result.shape:
            return wants + f"this has shape {target.shape}"
        if not target.flags.writeable:
            return wants + "this is read-only"
    return ""
