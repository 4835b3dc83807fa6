"""``hyad.compile``: a model as a callable of one target. ``hyad.run``: a model define by run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from .core import INT, Arr, Var, integer
from .errors import CompileError, DerivativeError, HyadError, ModelTypeError, at_border, border
from .frontend.annotations import has_reals, parameters
from .model import Model, as_model
from .program.signature import Spec
from .program.values import Derived

TARGETS = ("c", "cuda", "python")


@border
def compile(
    f: Any,
    target: str = "c",
    dtype: str = "f64",
    *,
    args: Sequence[Any] | None = None,
    flags: str = "exact",
    without: str | Iterable[str] = (),
    threads: int = 1,
    blas: bool = False,
    math: str = "libm",
    deterministic: bool = False,
) -> Callable[..., Any]:
    """A model compiled for one target, at once where its signature is known.

    The signature is that of ``args``, else of the annotations, else of the last call; a parameter without any is a
    real, and where it cannot be one the first call says what it is. Rows of two to four numbers in ``args`` are of
    that size, where none is declared. What comes back is the C entry itself, with ``source``, ``header``,
    ``cfunction``, ``program`` and ``address`` beside it; called with arguments of another signature it compiles that
    too. It is pickled as its model, with options and signature, and made again where it is loaded, its C from the
    cache.

    * ``target``: ``"c"``, ``"cuda"`` or ``"python"``.
    * ``dtype``: ``"f64"``, or ``"f32"`` for single precision.
    * ``flags``: ``"exact"``, or ``"fast"``, which lets the C compiler reorder sums, and take exp, log, sin, cos, tan
      and the like of several numbers at once (4 units in the last place off at most).
    * ``math``: ``"libm"``, or ``"vector"``, which changes nothing but exp, expm1, log, log1p, tanh, sin, cos and tan,
      and what is made of them: functions of hyad's own, which C compilers make vectors of without leave to reorder
      anything (exp, log, sin and cos are at most 1 unit in the last place off, the others 3). They are called in
      innermost loops whose arguments do not wait for the iteration before, and where several stand side by side; one
      at a time the C library's are quicker, and are called as before, also for a sine, cosine or tangent beyond 2^23.
    * ``without``: names of optimisations to leave out (``hyad.optimisations()``).
    * ``threads``: C code runs independent loops on so many (OpenMP) where their sizes make it worth while, sums in as
      many parts: results are the same to the last bit for the same number of threads. These wait for 20 us before they
      sleep, or as ``$GOMP_SPINCOUNT`` or ``$OMP_WAIT_POLICY`` say. A process that has called such a function has
      threads, and is not to be forked: with ``multiprocessing``, take the start method "spawn" or "forkserver".
    * ``blas``: large products of matrices are a BLAS's, that of the wheel ``scipy-openblas32``
      (``pip install hyad[blas]``) or the system's.
    * ``deterministic``: a GPU gives the same bits in every call, where adding in any order would be faster; code for a
      CPU always does.

    ``flags``, ``math``, ``threads`` and ``blas`` are for the target "c".

    With the target "cuda" what comes back is a ``hyad.gpu.CudaModel``: it runs on a GPU through pycuda, over a batch
    where an argument has one dim more than its parameter, else one call in parallel.
    """
    if target not in TARGETS:
        raise ModelTypeError(f"there is no target {target!r}", None, f"targets are {', '.join(TARGETS)}")
    if dtype not in ("f64", "f32"):
        raise ModelTypeError(f"there is no dtype {dtype!r}", None, 'dtypes are "f64" and "f32"')
    if flags not in ("exact", "fast"):
        raise ModelTypeError(f"there are no flags {flags!r}", None, 'flags are "exact" and "fast"')
    if blas and target != "c":
        raise ModelTypeError(f"the target {target!r} calls no BLAS", None, 'target "c" does')
    base = as_model(f, "compile")
    options: dict[str, Any] = dict(target=target, dtype=dtype, flags=flags)
    if type(threads) is not int or threads < 1:
        raise ModelTypeError(f"threads is {threads!r}", None, "a number of threads: 1 or more")
    if threads > 1:
        if target != "c":
            raise ModelTypeError(f"the target {target!r} has no threads", None, 'target "c" has')
        options["threads"] = threads
    if target == "cuda" and flags != "exact":
        raise ModelTypeError("the target 'cuda' has no flags", None, 'target "c" has')
    if blas:
        from hyad.codegen import blas as products

        if products.library() is None:
            raise CompileError("there is no BLAS here", None, "pip install hyad[blas], or the system's OpenBLAS")
        options["blas"] = True
    if math != "libm":
        options["math"] = own_math(math, target)
    if without or base.off:
        from .switches import chosen

        options["without"] = (*base.off, *chosen(without))
    own = base.with_options(options)
    if target == "cuda":
        from .gpu import compile_cuda

        return compile_cuda(own, dtype, args, deterministic)
    try:
        return compiled(base, options, own.specs(args, rows=True))
    except (ModelTypeError, DerivativeError) as error:
        if args is not None or own._last is not None or all(p[1] is not None for p in parameters(base.value) or ()):
            raise
        return Later(base, own, options, error)


class Later:
    """A model whose signature is not known before its first call, which compiles it. What its code has beside it, it
    has from then on."""

    def __init__(self, base: Model, own: Model, options: dict[str, Any], reason: HyadError) -> None:
        self.model, self.target, self.dtype = base, options["target"], options["dtype"]
        self._own, self._options, self._reason = own, options, reason

    @border
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._own(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("source", "header", "cfunction", "program", "address", "entry") and not self._own._compiled:
            raise at_border(self._reason)
        return getattr(self._own._call, name)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple]:
        return partial(compile, **self._options), (self.model,)

    def __repr__(self) -> str:
        return f"<{self.model.name}, compiled at its first call>"


def compiled(base: Model, options: dict[str, Any], specs: Sequence[Spec]) -> Callable[..., Any]:
    """``compile`` for a signature. What comes back is pickled as these three, and loaded by this function."""
    own = base.with_options(options)
    found = own.made(specs, partial(own.compile_for, **options))
    own.adopt(specs, found)
    found.model = base  # type: ignore[attr-defined]
    # pickle asks the object for this, and no class of its own stands between a call and the C entry
    found.__reduce_ex__ = lambda protocol: (compiled, (base, options, tuple(specs)))  # type: ignore[method-assign]
    return found


def own_math(math: str, target: str) -> str:
    """``math``, where it is one that the target has."""
    if math not in ("libm", "vector"):
        raise ModelTypeError(f"there is no math {math!r}", None, 'math is "libm" or "vector"')
    if math == "vector" and target != "c":
        raise ModelTypeError('math "vector" is for the target "c"', None, "leave it out")
    return math


@border
def low_level_callable(f: Any, signature: str | None = None) -> Any:
    """A ``scipy.LowLevelCallable`` of a model of reals, or of one vector of reals, that gives a real: what
    ``scipy.integrate.quad`` and ``nquad`` call without Python. ``signature`` picks one of SciPy's C signatures.

    Raises ``ModelTypeError`` where the model cannot be called so.
    """
    from hyad.codegen import build

    compiled = f if hasattr(f, "entry") else compile(f)
    return build.low_level_callable(compiled.entry, signature)


@border
def run(f: Any, *args: Any) -> Any:
    """A model called define by run: evaluated as it is read, and differentiated on the way by dual numbers and tapes.

    The whole language runs, whether it compiles or not: recursion, closures in data, derivatives whose order is known
    at run time. Arguments and results are a compiled call's; functions may be arguments, and a function that comes back
    is called like any other. Arrays are copied on entry, so that ``set-at!`` does not reach the caller's. Raises the
    errors of ``hyad.errors``.

    >>> hyad.run("(fn [x] (letrec [f (fn [n] (if (= n 0) 1 (* x (f (- n 1)))))] (f 10)))", 2.0)
    1024.0
    """
    model = as_model(f, "run")
    try:
        return model.running()(*args)
    except ModelTypeError as error:
        derived = model.value
        if isinstance(derived, Derived) and derived.wrt is None and error.message.endswith(", not an integer"):
            from .differentiate.tracing import as_integers, taken_as_reals  # a warm start needs neither

            given = [(k[0], a) for k, a in zip(parameters(derived.function) or (), args) if has_reals(k[1])]
            integers = {name: as_integers(name, t) for name, a in given if (t := integers_of(a)) is not None}
            if integers:
                error.hint = taken_as_reals(derived.said, integers)
        raise


def integers_of(value: Any) -> Any:
    """The type of an integer, or of an array of them; None of anything else."""
    a = np.asarray(value) if isinstance(value, (int, list, np.ndarray, np.integer)) else None
    if a is None or isinstance(value, bool) or a.dtype.kind != "i":
        return None
    return Var("", Arr(INT, tuple(map(integer, a.shape))) if a.ndim else INT)
