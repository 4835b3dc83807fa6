"""The derivative operators as Python functions of models: ``hyad.grad(f)``, ``hyad.jvp(f, x, dx)`` ..."""

from __future__ import annotations

from typing import Any

from .errors import ModelTypeError, border
from .frontend.annotations import parameters
from .model import Model, as_model, derived, model


@border
def grad(f: Any, wrt: Any = None, encoding: str = "record") -> Model:
    """The gradient of a model that gives a number, in the structure of its argument (a tuple for several).

    ``wrt``: a parameter's position or name, or a tuple of them for a tuple of gradients. ``encoding``: what stands
    between the forward and the backward code where functions are called or a count is known at run time only. The
    derivative is the same, and so is straight-line code.

    * ``"record"``: the forward code remembers in a record what the backward code reads (a tape, defunctionalised:
      Lantern 3.5). The fastest, with the least memory.
    * ``"closure"``: the forward code gives a backpropagator, a function of the cotangent, beside its result
      (Pearlmutter & Siskind 2008; Myia).
    * ``"continuation"``: the forward code is handed the rest of the program as a function, runs it, and goes on
      backwards when that returns; nothing is remembered, the stack is the tape (Lantern Figs. 10 to 12).

    Raises ``ModelTypeError`` for an encoding that there is not.
    """
    return derived("grad", f, wrt, encoding)


@border
def value_and_grad(f: Any, wrt: Any = None, encoding: str = "record") -> Model:
    """The pair of value and gradient, computed together. ``wrt`` and ``encoding`` as for ``grad``."""
    return derived("value-and-grad", f, wrt, encoding)


@border
def jacobian(f: Any, wrt: Any = None, encoding: str = "record") -> Model:
    """The derivative of every result by every argument: an array [result dims ..., argument dims ...].

    ``wrt`` as for ``grad``, and ``encoding`` too, where reverse mode is what takes the fewest passes.
    """
    return derived("jacobian", f, wrt, encoding)


@border
def hessian(f: Any, wrt: Any = None, encoding: str = "record") -> Model:
    """The Jacobian of the gradient. ``wrt`` and ``encoding`` as for ``grad``."""
    return derived("hessian", f, wrt, encoding)


@border
def D(f: Any, wrt: Any = None) -> Model:
    """The derivative by one number, in the structure of the result."""
    return derived("D", f, wrt)


@border
def diff(f: Any, wrt: Any = None) -> Model:
    """The derivative of a model of a number that gives a number (dF~, Fig. 6 and Table 2)."""
    return derived("diff", f, wrt)


@border
def vdiff(f: Any, wrt: Any = None) -> Model:
    """The derivative of a model of a number that gives a vector: a vector (dF~, Table 2)."""
    return derived("vdiff", f, wrt)


@border
def mdiff(f: Any, wrt: Any = None) -> Model:
    """The derivative of a model of a number that gives a matrix: a matrix (dF~, Table 2)."""
    return derived("mdiff", f, wrt)


@border
def jacob(f: Any, wrt: Any = None) -> Model:
    """The Jacobian of a model of a vector that gives a vector: a matrix, a row for each result (dF~, Table 2)."""
    return derived("jacob", f, wrt)


@border
def mgrad(f: Any, wrt: Any = None) -> Model:
    """The gradient of a model of a matrix that gives a number: a matrix (dF~, Table 2)."""
    return derived("mgrad", f, wrt)


# ------------------------------------------------------------------------------------------ at a point


def product(operator: str, f: Any, first: Any, second: tuple, encoding: str = "record") -> Any:
    """An operator at a point, which a model makes once."""
    base = as_model(f, operator)
    cached = base.__dict__.setdefault("_products", {})
    points = first if isinstance(first, (tuple, list)) else (first,)
    known = parameters(base.value)
    if operator != "vjp" and encoding == "record" and known is not None and len(known) == len(points) == len(second):
        kept = tuple(k for k, v in enumerate(second) if v is None and known[k][1] is None)
        if kept and len(kept) < len(points):
            if (operator, encoding, kept) not in cached:
                cached[operator, encoding, kept] = held(operator, base, [name for name, *_ in known], kept)
            return cached[operator, encoding, kept](*points, *(v for k, v in enumerate(second) if k not in kept))
    if (operator, encoding) not in cached:
        cached[operator, encoding] = derived(operator, base, None, encoding)
    if operator != "vjp" and len(second) != len(points) and (known is None or len(known) == len(points)):
        what, one = ("tangent", "dx") if operator == "jvp" else ("vector", "vx")
        raise ModelTypeError(
            f"`{operator}` takes a {what} for each of {len(points)} arguments, not {len(second)}",
            base.span,
            f"`hyad.{operator}(f, (x, y), ({one}, {one[0]}y))`; 0 for what is declared `Int`",
        )
    return cached[operator, encoding](*points, *second)


def held(operator: str, base: Model, names: list[str], kept: tuple[int, ...]) -> Model:
    """A product with a derivative by all arguments but those ``kept``, which are what they are: integers, too."""
    moving = [name for k, name in enumerate(names) if k not in kept]
    every, moved = " ".join(names), " ".join(moving)
    prefix = "v-"
    while any(prefix + name in names for name in moving):
        prefix += "-"
    along = " ".join(prefix + name for name in moving)
    text = f"(fn [{every} {along}] ({operator} (fn [{moved}] (held-function {every})) {moved} {along}))"
    return model(text, namespace={"held_function": base})


@border
def jvp(f: Any, primals: Any, tangents: Any) -> Any:
    """The tangent of ``f`` at ``primals`` (a tuple of arguments) along ``tangents``: None for an argument that is not
    declared and not to move, as an array of integers.
    """
    return product("jvp", f, primals, tuple(tangents) if isinstance(tangents, (tuple, list)) else (tangents,))


@border
def vjp(f: Any, primals: Any, cotangent: Any, encoding: str = "record") -> Any:
    """The adjoints of ``primals`` for a cotangent of the result. ``encoding`` as for ``grad``."""
    return product("vjp", f, primals, (cotangent,), encoding)


@border
def hvp(f: Any, primals: Any, vectors: Any, encoding: str = "record") -> Any:
    """The Hessian at ``primals`` times ``vectors``, forward over reverse: None for an argument that is not declared and
    not to move, as an array of integers. ``encoding`` as for ``grad``."""
    moves = tuple(vectors) if isinstance(vectors, (tuple, list)) else (vectors,)
    return product("hvp", f, primals, moves, encoding)
