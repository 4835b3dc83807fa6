"""The derivative operators, from the two modes: grad, jacobian, hessian, jvp, vjp, hvp, D, deriv.

An operator is expanded where it is applied: the function is specialised to a block of its own on fresh variables
(``trace``), the block is differentiated, and the derivative's bindings go into the program at hand. What the function
closes over are free variables of the block, constants to this derivative and ordinary variables to any outer one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core import (
    BOOL,
    LEAF,
    ONE,
    REAL,
    ZERO,
    Apply,
    Arr,
    Atom,
    Block,
    Const,
    Data,
    Function,
    Loop,
    Prim,
    Var,
    While,
    all_binds,
    atoms_of,
    blocks_of,
    elem_of,
    free_vars,
    functions_of,
    is_zero,
    rank_of,
    type_of,
)
from ..errors import DerivativeError, ModelTypeError
from ..frontend.annotations import arity_text, parameters
from ..frontend.arguments import number_among
from ..frontend.boxing import box
from ..frontend.families import Again
from ..program.marks import has_snapshots
from ..program.names import adjoint
from ..program.reader import prelude
from ..program.values import (
    AT_POINTS,
    FUNCTIONS,
    NIL,
    RANKS,
    TABLE_2,
    Closure,
    Derived,
    Pointwise,
    TupleValue,
    Value,
    describe,
    flatten,
    many_valued,
    miscounted,
    misplaced,
    unflatten,
    unlike,
)
from .activity import activity, differentiable
from .adjoints import fill, tangent_of, zero
from .forward import jvp
from .jacobians import assemble, extent, jacobian, unit
from .reverse import vjp
from .tracing import Trace, cells, mirror, positions, trace

if TYPE_CHECKING:
    from ..frontend.specialise import Specialiser

#: A gradient by so few numbers through a recurrence takes tangents along, and remembers nothing.
FEW = 2
#: The same, where the state is a few numbers and not an array.
FEW_OF_NUMBERS = 4
SUMS = frozenset({"+", "-", "neg", "get", "array", "update", "add-at"})  # what a loop that only sums is made of


def apply_operator(sp: Specialiser, derived: Derived, args: list[Value], spans: Sequence[Any]) -> Value:
    """``((grad f) x ...)`` and its kin, at values or variables of the program at hand."""
    if derived.encoding is not None and derived.encoding != sp.encoding:
        before, sp.encoding = sp.encoding, derived.encoding
        try:
            return apply_operator(sp, derived, args, spans)
        finally:
            sp.encoding = before
    kind = derived.operator
    check_arity(sp, derived, len(args))
    if kind in TABLE_2:
        return table_2(sp, derived, args, spans)
    if kind in ("hvp", "hessian"):
        inner = Derived("grad", derived.function, derived.wrt, None, kind)
        if kind == "hvp":
            return apply_operator(sp, Derived("jvp", inner, derived.wrt, None, kind), args, spans)
        made = jacobian(sp, Derived("jacobian", inner, derived.wrt, None, kind), args, symmetric=True)
        if len(args) == 1 and derived.wrt is None and type(made) is Var and rank_of(made) == 2:
            times: Any = prelude("times-hessian")  # a product with it needs no matrix
            note = TupleValue((derived.function, args[0]))
            sp.notes[(times.function, sp.b.key(made))] = sp.b.scopes[-1], note
        return made
    if kind in ("jacobian", "value-and-deriv"):
        return jacobian(sp, derived, args)
    if kind == "jvp":
        return forward_product(sp, derived, args)
    if kind == "vjp":
        *points, cotangent = args or [NIL]
        return reverse_product(sp, derived, points, cotangent)
    if kind == "D":
        return derivative(sp, derived, args)
    return gradient(sp, derived, args, with_value=kind == "value-and-grad")


def check_arity(sp: Specialiser, derived: Derived, count: int) -> None:
    """Raise the mistake of an operator that is given another number of values than it takes for its function."""
    f, point = derived.function, AT_POINTS.get(derived.said) if derived.operator in AT_POINTS else None
    known = parameters(f)
    if known is None or isinstance(f, Closure) and f.is_library:  # the prelude's: for several counts
        takes = None
        good = point is None or count and (derived.said == "vjp" or count % 2 == 0)
    else:
        takes = len(known)
        good = count == (takes if point is None else point[0](takes))
    if good:
        return
    if point is not None:
        error = miscounted(derived.said, takes, count)
    else:
        name = getattr(f, "name", None)
        own = isinstance(f, Closure) and f.function.span is not None
        notes = [("it is defined here", f.function.span)] if own else []
        error = ModelTypeError(arity_text(name, takes or 0, count), None, None, notes)
    error.span = sp.b.span
    raise error


def table_2(sp: Specialiser, derived: Derived, args: list[Value], spans: Sequence[Any]) -> Value:
    """``((jacob f) v)`` and its kin, the operators of dF~'s Table 2: by the rank of an argument and of the result."""
    operator, by, of = TABLE_2[derived.operator]
    inner = Derived(operator, derived.function, derived.wrt, derived.encoding)
    at = [args[k] for k in positions(sp, derived, len(args))]
    ranks = [rank_of(x) if isinstance(x, (Const, Var)) and x is not NIL else None for x in at]
    if ranks == [by]:
        value = apply_operator(sp, inner, args, spans)
        if isinstance(value, FUNCTIONS):
            return value
        rank = rank_of(value) if isinstance(value, (Const, Var)) and value is not NIL else None
        found = of if operator == "grad" or rank is None else rank - by
        if rank is not None and found == of:
            return value
        here = f"it gives {RANKS[found] if rank is not None and found < 3 else describe(value)}"
    else:
        found, here = of, f"it is {describe(at[0])}" if len(at) == 1 else f"there are {len(at)} arguments"
    error = misplaced(derived.operator, here, ranks[0] if len(ranks) == 1 else None, found)
    error.span = spans[0] if spans and spans[0] and ranks != [by] else sp.b.span
    raise error


def alike(sp: Specialiser, move: Value, point: Value) -> Value:
    """A tangent as data of the type of what it moves."""
    if isinstance(point, TupleValue) and isinstance(move, TupleValue) and len(point.items) == len(move.items):
        return TupleValue(tuple(alike(sp, m, p) for m, p in zip(move.items, point.items)), move.keys, move.make)
    if isinstance(point, Var) and sp.facts.find(point.type) in sp.facts.of_data:
        move = box(sp, move, sp.facts.of_data[sp.facts.find(point.type)])
        sp.facts.widen(point.type)
        if move.type is not point.type:
            raise Again
    return move


# ------------------------------------------------------------------------------------ the two products


def forward_product(sp: Specialiser, derived: Derived, args: list[Value]) -> Value:
    """``(jvp f x ... dx ...)``: the tangent of the result."""
    b, span = sp.b, sp.b.span
    half = len(args) // 2
    points, moves = args[:half], args[half:]
    at = positions(sp, Derived("jvp", derived.function), half)
    if derived.wrt is not None:
        at = [k for k in at if k in positions(sp, derived, half)]
    points, moves = list(map(sp.now, points)), list(map(sp.now, moves))
    at = [k for k in at if not truth(flatten(points[k], span)[0])]
    moves = [alike(sp, m, p) if k in at else m for k, (p, m) in enumerate(zip(points, moves))]
    traced = trace(sp, derived, points, at, args)
    if isinstance(traced, Pointwise):
        return Pointwise(derived, tuple(args))
    if not isinstance(traced, Trace):
        return traced
    tangents: dict[Var, dict[int, Atom]] = {}
    for k, ps in zip(at, traced.params):
        atoms, point = flatten(moves[k], span)[0], flatten(points[k], span)[0]
        if len(atoms) == len(point):  # what stands for a truth value moves nothing
            atoms = [a for a, x in zip(atoms, point) if elem_of(x) != BOOL]
        atoms = [sp.b.reals(a) for a in atoms]
        message = f"a {'vector' if derived.said == 'hvp' else 'tangent'} must have the shape of its argument"
        same_shapes(sp, ps, atoms, unlike(message, describe(moves[k]), describe(points[k])))
        here = traced.here
        tangents.update({p: {0: tangent_of(b, here[p], a, message)} for p, a in zip(ps, atoms) if not is_zero(a)})
    results, dots = jvp(b, traced.block, traced.here, tangents)
    b.span = span
    return unflatten(traced.out, iter([moved(b, r, d) for r, d in zip(results, dots)]))


def truth(atoms: Sequence[Atom]) -> bool:
    """Whether an argument is truth values, which nothing moves."""
    return bool(atoms) and all(elem_of(a) == BOOL for a in atoms)


def moved(b: Any, result: Atom, dots: dict[int, Atom]) -> Atom:
    """The tangent of a result in its shape."""
    if isinstance(elem_of(result), Data):
        return fill(b, result, dots[0] if 0 in dots else zero(b, result)) if differentiable(type_of(result)) else result
    return dots[0] if 0 in dots else b.zeros(real_type(result))


def reverse_product(sp: Specialiser, derived: Derived, points: list[Value], cotangent: Value) -> Value:
    """``(vjp f x ... ct)``: the adjoints of the arguments."""
    b, span = sp.b, sp.b.span
    at = positions(sp, derived, len(points))
    traced = trace(sp, derived, points, at)
    if not isinstance(traced, Trace):
        raise DerivativeError("vjp of a function that returns a function", span, "apply its result first")
    cotangent = alike(sp, sp.now(cotangent), unflatten(traced.out, iter(traced.block.results)))
    cts = [sp.b.reals(a) for a in flatten(cotangent, span)[0]]
    message = "the cotangent must have the shape of the result"
    what = describe(unflatten(traced.out, iter(traced.block.results)))
    error = unlike(message, describe(cotangent), what)

    def seeds(results: Sequence[Atom]) -> list[Any]:
        b.span = span
        same_shapes(sp, results, cts, error)  # of the results as they are here: the block's sizes are its own
        return [tangent_of(b, r, ct, message) if differentiable(type_of(r)) else None for r, ct in zip(results, cts)]

    _, bars = adjoints(sp, traced, seeds)
    b.span = span
    return mirror(traced, [fill(b, x, bar) for x, bar in zip(traced.points, bars)])


def adjoints(sp: Specialiser, traced: Trace, seeds: Any) -> tuple[Sequence[Atom], list[Any]]:
    """The results of a function and the adjoints of its arguments, backwards; or from tangents, where these are few and
    going back would have to remember the states of a loop."""
    b, block = sp.b, traced.block
    if sp.encoding != "record" or sp.factor or "few-inputs" in b.off or not goes_forward(traced):
        return vjp(b, block, traced.here, seeds, traced.wrt, sp.factor, sp.encoding)
    b.fired("few-inputs")
    every = {p: cells(p.type) for p in traced.wrt}
    units = [(p, c) for p in traced.wrt for c in every[p]]
    tangents: dict[Var, dict[int, Atom]] = {p: {} for p in traced.wrt}
    for k, (p, c) in enumerate(units):
        tangents[p][k] = unit(b, p.type, c)
    results, (dots,) = jvp(b, block, traced.here, tangents)
    (seed,) = seeds(results)
    moves = iter([b.prim("*", seed, dots[k]) if k in dots else ZERO for k in range(len(units))])
    return results, [assemble(b, p.type, [next(moves) for _ in every[p]]) for p in traced.wrt]


def goes_forward(traced: Trace) -> bool:
    """Whether a number is to be differentiated by few numbers, through recursion or a loop that changes its state in
    other ways than by adding to it.

    Design decision: tangents of a state of few numbers cost next to nothing, since each step waits for the one before.
    Those of arrays, of trees of calls and of what is computed beside the state cost as much as there are of them.
    """
    block, size = traced.block, extent(traced.wrt)
    number = len(block.results) == 1 and type_of(block.results[0]) == REAL
    if not number or not size or size > FEW_OF_NUMBERS or any(isinstance(elem_of(p), Data) for p in traced.wrt):
        return False
    loops = [x for x in all_binds(block) if type(x.op) in (Loop, While)]
    if any(has_snapshots(x.op) for x in loops):
        return False
    active = activity(block, {p: 1 for p in traced.wrt})
    states = {x.vars: x.op for x in loops if recurrent(x.op, active)}
    functions = functions_of(block)
    if not states and not functions:
        return False
    trees = any(sum(type(x.op) is Apply for x in all_binds(f.body)) > 1 for f in functions)  # type: ignore[arg-type]
    carried = [a for op in states.values() for a in op.accs if a in active] + moving_parameters(block, active)
    beside = [x.op.body for x in loops if not any(y.vars in states for y in [x, *all_binds(x.op.body)])]
    work = any(
        type(y.op) is Prim and y.op.name not in SUMS and y.vars[0] in active for x in beside for y in all_binds(x)
    )
    return size <= (FEW if trees or work or not all(map(few_numbers, carried)) else FEW_OF_NUMBERS)


def moving_parameters(block: Block, active: Mapping[Var, int]) -> list[Var]:
    """Which parameters of functions have tangents in some call."""
    found: dict[Function, set[Var]] = {}
    todo = [(block, active)]
    while todo:
        block, active = todo.pop()
        for x in all_binds(block):
            if type(x.op) is Apply:
                f, known = x.op.function, found.setdefault(x.op.function, set())
                moving = {p for p, a in zip(f.params, x.op.args) if a in active}
                if not moving <= known:
                    known |= moving
                    todo.append((f.body, activity(f.body, dict.fromkeys(known, 1))))  # type: ignore[arg-type]
    return [p for known in found.values() for p in known]


def few_numbers(v: Var) -> bool:
    """Whether a tangent of a variable is few numbers."""
    size = extent([v])
    return elem_of(v) == REAL and size is not None and size <= FEW_OF_NUMBERS


def recurrent(op: Loop | While, active: Mapping[Var, int]) -> bool:
    """Whether a loop's body reads an active accumulator for more than adding to it, or storing in it."""
    sums = {a for a in op.accs if a in active}
    for x in op.body.binds:
        read = sums.intersection(atoms_of(x.op)) | {v for r in blocks_of(x.op) for v in free_vars(r) if v in sums}
        if not read:
            continue
        if type(x.op) is Prim and (x.op.name in ("-", "update", "add-at") and x.op.args[0] in sums or x.op.name == "+"):
            if sum(a in sums for a in x.op.args) > 1:
                return True
            sums.add(x.vars[0])
        elif type(x.op) is Loop and not any(v in sums for r in blocks_of(x.op) for v in free_vars(r)):
            sums.update(v for v, z in zip(x.vars, x.op.inits) if z in sums)  # that loop is looked at by itself
        else:
            return True
    return False


def same_shapes(sp: Specialiser, wanted: Sequence[Atom], atoms: Sequence[Atom], error: ModelTypeError) -> None:
    b = sp.b
    message = error.message.partition(":")[0]
    good = len(wanted) == len(atoms)
    for w, a in zip(wanted, atoms):
        tw, ta = type_of(w), type_of(a)
        dims_w, dims_a = (t.dims if isinstance(t, Arr) else () for t in (tw, ta))
        good = good and len(dims_w) == len(dims_a)
        good = good and all(b.require_equal(x, y, message) for x, y in zip(dims_w, dims_a))
        good = good and (elem_of(w) == elem_of(a) or not any(isinstance(elem_of(x), Data) for x in (w, a)))
    if not good:
        error.span = b.span
        raise error


def real_type(atom: Atom) -> Any:
    t = type_of(atom)
    return Arr(REAL, t.dims) if isinstance(t, Arr) else REAL


# --------------------------------------------------------------------------------- D, grad, value-and-grad


def derivative(sp: Specialiser, derived: Derived, args: list[Value]) -> Value:
    """``((D f) x)``: the derivative by one number, in the structure of the result."""
    b, span = sp.b, sp.b.span
    at = positions(sp, derived, len(args))
    args = [number_among(sp, a) if k in at else a for k, a in enumerate(args)]
    scalar = len(at) == 1 and isinstance(args[at[0]], (Const, Var)) and args[at[0]] is not NIL
    if not scalar or isinstance(type_of(args[at[0]]), (Arr, Data)):
        what = describe(args[at[0]]) if len(at) == 1 else f"{len(at)} arguments"
        raise DerivativeError(f"`D` differentiates by one number, not by {what}", span, "use grad or jacobian")
    traced = trace(sp, derived, args, at)
    if not isinstance(traced, Trace):
        return traced
    results, dots = jvp(b, traced.block, traced.here, {traced.wrt[0]: {0: ONE}})
    b.span = span
    return unflatten(traced.out, iter([r if elem_of(r) == BOOL else moved(b, r, d) for r, d in zip(results, dots)]))


def gradient(sp: Specialiser, derived: Derived, args: list[Value], with_value: bool) -> Value:
    """``((grad f) x ...)``: the adjoints for cotangent 1, in the structure of the arguments."""
    b, span, name = sp.b, sp.b.span, derived.said
    at = positions(sp, derived, len(args))
    if not at:
        raise DerivativeError(f"`{name}`: there is no real parameter to differentiate by", span)
    traced = trace(sp, derived, args, at)
    if not isinstance(traced, Trace):
        return traced
    if traced.out != LEAF or type_of(traced.block.results[0]) != REAL:
        shape = describe(unflatten(traced.out, iter(traced.block.results)))
        error = many_valued(name, shape, traced.out == LEAF and elem_of(traced.block.results[0]) == BOOL)
        error.span = span
        raise error
    results, bars = adjoints(sp, traced, lambda results: [ONE])
    b.span = span
    sp.result_names = ("value",) * with_value + tuple(adjoint(v.name) for v in traced.wrt)
    grads = mirror(traced, [fill(b, x, bar) for x, bar in zip(traced.points, bars)])
    return TupleValue((results[0], grads)) if with_value else grads
