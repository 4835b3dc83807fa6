"""The derivative operators, from the two modes: grad, jacobian, hessian, jvp, vjp, hvp, D, deriv.

An operator is expanded where it is applied: the function is specialised to a block of its own on fresh variables
(``trace``), the block is differentiated, and the derivative's bindings go into the program at hand. What the function
closes over are free variables of the block, constants to this derivative and ordinary variables to any outer one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .activity import activity, differentiable
from .adjoints import fill, tangent_of, zero
from .annotations import arity_text, has_reals, not_real, parameters
from .arguments import number_among
from .boxing import box
from .core import (
    BOOL,
    INT,
    LEAF,
    ONE,
    REAL,
    ZERO,
    Arr,
    Atom,
    Block,
    Const,
    Data,
    Loop,
    Node,
    Prim,
    Tree,
    Var,
    While,
    all_binds,
    atoms_of,
    blocks_of,
    elem_of,
    free_vars,
    functions_of,
    integer,
    is_zero,
    rank_of,
    reads,
    type_of,
)
from .dead import tidy
from .errors import DerivativeError, ModelTypeError, NotCompiled
from .families import Again
from .forward import can_be_wide, jvp, wide_jvp
from .functions import inline_block
from .marks import has_snapshots
from .names import adjoint
from .optimise import expanded_size, split_block, unroll_block
from .primitives import Primitive
from .reverse import vjp
from .sink import sink_block
from .store_passing import set_cell
from .unfold import unfold_block
from .values import (
    AT_POINTS,
    FUNCTIONS,
    NIL,
    RANKS,
    TABLE_2,
    Cell,
    Closure,
    Derived,
    Part,
    Pointwise,
    TupleValue,
    Value,
    describe,
    flatten,
    holds_function,
    language,
    many_valued,
    miscounted,
    misplaced,
    unflatten,
    unlike,
)

if TYPE_CHECKING:
    from .specialise import Specialiser

NOTHING = flatten(NIL)[1]  # the structure of nil
#: Up to so many inputs (outputs) a Jacobian's directions are written out; beyond, they are a loop.
DIRECTIONS = 32
#: A Hessian by few inputs is a loop all the same if its gradient has loops and the tangents written out take more
#: operations than both of these, in all and for each entry: most entries are then full, and short loops do better.
WRITTEN_OUT, DENSE = 1000, 16
#: A gradient by so few numbers through a recurrence takes tangents along, and remembers nothing.
FEW = 2
#: A Jacobian by a vector of so many inputs has all its columns in one tangent, the directions its innermost loops, if
#: written out they would take so many times ``WRITTEN_OUT`` operations.
WIDE = 8


@dataclass(slots=True)
class Trace:
    """A function as a block: its parameters by argument, what they stand for, and its results' structure."""

    block: Block
    params: list[list[Var]]
    actuals: list[list[Atom]]
    trees: list[Tree]
    fixed: list[list[Atom | None]]  # for each leaf: the value that holds no number, None for one to differentiate by
    out: Tree

    @property
    def here(self) -> dict[Var, Atom]:
        return {p: a for ps, xs in zip(self.params, self.actuals) for p, a in zip(ps, xs)}

    @property
    def wrt(self) -> list[Var]:
        return [p for ps in self.params for p in ps]

    @property
    def points(self) -> list[Atom]:
        """What stands for ``wrt`` in the program at hand."""
        return [a for xs in self.actuals for a in xs]


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
        return jacobian(sp, Derived("jacobian", inner, derived.wrt, None, kind), args, symmetric=True)
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


# --------------------------------------------------------------------------------------------- tracing


def positions(sp: Specialiser, derived: Derived, count: int) -> list[int]:
    """Which arguments ``wrt`` names; by default all that are not declared ``Int`` or ``Bool``."""
    span = sp.b.span
    known = parameters(derived.function)
    if derived.wrt is None:
        if known is None:
            return list(range(count))
        return [k for k in range(count) if k >= len(known) or has_reals(known[k][1])]
    names = [p[0] for p in known] if known else []
    found = []
    for w in derived.wrt if isinstance(derived.wrt, (tuple, list)) else (derived.wrt,):
        at = names.index(w) if isinstance(w, str) and w in names else w
        if type(at) is not int or not -count <= at < count:
            have = ", ".join(names) or f"positions 0 to {count - 1}"
            raise DerivativeError(
                f"there is no parameter `{w}` to differentiate by", span, f"the parameters are {have}"
            )
        if at % count in found:
            which = names[at % count] if names else w
            raise DerivativeError(f"the parameter `{which}` stands twice in wrt", span, "name each once")
        if known and at % count < len(known) and not has_reals(known[at % count][1]):
            raise not_real(derived.said, *known[at % count])
        found.append(at % count)
    return found


def trace(
    sp: Specialiser, derived: Derived, args: Sequence[Value], at: Sequence[int], whole: Sequence[Value] | None = None
) -> Trace | Value:
    """Specialise the function to fresh real variables in the argument positions ``at``; where it gives functions, what
    the operator on them, applied to the ``whole`` of its arguments, gives instead."""
    b, span, name = sp.b, sp.b.span, derived.said
    known = parameters(derived.function) or []
    args = [sp.now(a) for a in args]
    fresh = [sp.changeable(a) for a in args]
    params: list[list[Var]] = []
    actuals: list[list[Atom]] = []
    trees: list[Tree] = []
    fixed: list[list[Atom | None]] = []
    for k in at:
        if isinstance(args[k], FUNCTIONS):
            raise DerivativeError(
                f"`{name}` cannot differentiate by a function", span, "give `:wrt` the other parameters"
            )
        atoms, tree = flatten(args[k], span)
        if holds_function(tree):
            raise DerivativeError(
                f"`{name}` cannot differentiate by a function", span, "give `:wrt` the other parameters"
            )
        atoms = [sp.b.reals(a) for a in atoms]
        for a in atoms:
            if isinstance(type_of(a), Data):
                sp.facts.widen(type_of(a))
        label = known[k][0] if k < len(known) else "x"
        variables = [Var(label, type_of(a), span, True) for a in atoms]
        moves = [differentiable(type_of(a)) for a in atoms]
        mine = unflatten(tree, iter([v if moving else a for a, v, moving in zip(atoms, variables, moves)]))
        fresh[k] = sp.changeable(mine)
        params.append([v for v, moving in zip(variables, moves) if moving])
        actuals.append([a for a, moving in zip(atoms, moves) if moving])
        trees.append(tree)
        fixed.append([None if moving else a for a, moving in zip(atoms, moves)])
    if not any(params) and not all(map(without_numbers, trees, fixed)):
        what = describe(args[at[0]]) if len(at) == 1 else "these arguments"
        raise DerivativeError(f"`{name}`: there is nothing to differentiate by in {what}", span)
    before = dict(sp.store)
    with b.region() as scope:
        value = sp.now(sp.call(derived.function, fresh, (None,) * len(fresh), None))
        pointwise = isinstance(value, FUNCTIONS) or sp.gives_function(value)
        atoms, out = ([], NOTHING) if pointwise else flatten(value, span)
    if sp.facts.stale:
        raise Again
    changed = [c for c, v in before.items() if sp.store[c] is not v]
    if changed and (pointwise or holds_function(out)):
        raise NotCompiled(
            "a function that gives functions sets a reference from outside of it, and is differentiated",
            span,
            "make the reference inside",
        )
    if pointwise:
        return Pointwise(derived, tuple(args))
    if holds_function(out):
        return by_parts(sp, derived, whole or args, value)
    with b.region(scope):
        atoms = [sp.b.reals(a) if elem_of(a) == INT else a for a in atoms]
        states = [flatten(sp.store[c], span) for c in changed]
    block = b.close(scope, [*atoms, *(x for held, _ in states for x in held)])
    if changed:
        here = {p: a for ps, xs in zip(params, actuals) for p, a in zip(ps, xs)}
        block = left_behind(sp, block, here, changed, [tree for _, tree in states], len(atoms))
    if not b.plain:
        if sp.unrolled:
            block = unroll_block(b, block if sp.facts.changed else unfold_block(b, inline_block(b, block)))
        block = sink_block(tidy(block))
    b.span = span
    return Trace(block, params, actuals, trees, fixed, out)


def left_behind(
    sp: Specialiser, block: Block, here: dict[Var, Atom], cells: Sequence[Cell], trees: Sequence[Tree], count: int
) -> Block:
    """The block of a function with its first ``count`` results, the others left in the references from outside that it
    sets: as after a plain call of it, what a derivative inside moves is nothing to those who read them later."""
    results, _ = jvp(sp.b, block, here, {})
    atoms = iter(results[count:])
    for c, tree in zip(cells, trees):
        set_cell(sp, c, unflatten(tree, atoms))
    return Block(block.binds, block.results[:count])


def without_numbers(tree: Tree, fixed: Sequence[Atom | None]) -> bool:
    """Whether an argument without numbers is data all the same, which its gradient mirrors: nil, a bare constructor."""
    data = any(isinstance(type_of(a), Data) for a in fixed if a is not None)
    return data or tree == NOTHING or isinstance(tree, Node) and tree.make is not None and not fixed


def by_parts(sp: Specialiser, derived: Derived, args: Sequence[Value], value: Value) -> Value:
    """The derivative of a function that gives functions among other things: each is differentiated pointwise."""
    if derived.operator not in ("D", "jvp"):
        raise DerivativeError(
            f"`{derived.said}` needs a function that gives numbers; this gives {describe(value)}", sp.b.span
        )

    def part(v: Value, path: tuple[int, ...]) -> Value:
        if isinstance(v, TupleValue):
            return TupleValue(tuple(part(x, (*path, k)) for k, x in enumerate(v.items)), v.keys, v.make)
        inner = Derived(derived.operator, Part(derived.function, path), derived.wrt)
        return Pointwise(inner, tuple(args)) if isinstance(v, FUNCTIONS) else sp.call(inner, args, (), None)

    return part(value, ())


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


def mirror(traced: Trace, atoms: Sequence[Atom]) -> Value:
    """Adjoints in the structure of the arguments: one argument's, or a tuple for several. What is no number stays."""
    it = iter(atoms)
    parts = []
    for tree, fixed in zip(traced.trees, traced.fixed):
        parts.append(unflatten(tree, iter([next(it) if x is None else x for x in fixed])))
    return parts[0] if len(parts) == 1 else TupleValue(tuple(parts))


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
    moves = [alike(sp, m, p) if k in at else m for k, (p, m) in enumerate(zip(points, moves))]
    traced = trace(sp, derived, points, at, args)
    if isinstance(traced, Pointwise):
        return Pointwise(derived, tuple(args))
    if not isinstance(traced, Trace):
        return traced
    tangents: dict[Var, dict[int, Atom]] = {}
    for k, ps in zip(at, traced.params):
        atoms = [sp.b.reals(a) for a in flatten(moves[k], span)[0]]
        message = f"a {'vector' if derived.said == 'hvp' else 'tangent'} must have the shape of its argument"
        same_shapes(sp, ps, atoms, unlike(message, describe(moves[k]), describe(points[k])))
        here = traced.here
        tangents.update({p: {0: tangent_of(b, here[p], a, message)} for p, a in zip(ps, atoms) if not is_zero(a)})
    results, dots = jvp(b, traced.block, traced.here, tangents)
    b.span = span
    return unflatten(traced.out, iter([moved(b, r, d) for r, d in zip(results, dots)]))


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
    """Whether a number is to be differentiated by few numbers, through a loop that changes its state in other ways than
    by adding to it."""
    block, size = traced.block, extent(traced.wrt)
    number = len(block.results) == 1 and type_of(block.results[0]) == REAL
    if not number or size is None or not 0 < size <= FEW or any(isinstance(elem_of(p), Data) for p in traced.wrt):
        return False
    if functions_of(block) or any(has_snapshots(x.op) for x in all_binds(block)):
        return False
    active = activity(block, {p: 1 for p in traced.wrt})
    return any(recurrent(x.op, active) for x in all_binds(block) if type(x.op) in (Loop, While))


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


# --------------------------------------------------------------------------------- jacobian and hessian


def jacobian(sp: Specialiser, derived: Derived, args: list[Value], symmetric: bool = False) -> Value:
    """``((jacobian f) x ...)``: for each result and argument an array of the result's dims, then the argument's.

    ``value-and-deriv`` (dF~'s ``deriv``) gives the results beside it. Directions go forward or backward, whichever
    are fewer, written out where they are few and as a loop over unit vectors where they are many; forward through
    loops, where written out they would be long, all at once (``forward_wide``).
    """
    b, span = sp.b, sp.b.span
    at = positions(sp, derived, len(args))
    size = extent([a for k in at if not isinstance(args[k], FUNCTIONS) for a in flatten(sp.now(args[k]), span)[0]])
    loops = symmetric and (size is None or size > DIRECTIONS)
    rigid, sp.rigid = sp.rigid, True
    store = dict(sp.store)
    traced = factored(sp, derived, args, at) if loops else trace(sp, derived, args, at)
    sp.rigid = rigid
    short = symmetric and not loops and type(traced) is Trace
    if short and written_out(traced) > max(WRITTEN_OUT, DENSE * size * size):
        sp.store = store
        again = factored(sp, derived, args, at, unrolled=False)
        if any(type(bind.op) is Loop for bind in again.block.binds):
            traced, loops = again, True
    if not isinstance(traced, Trace):
        return traced
    if any(isinstance(elem_of(x), Data) for x in (*traced.wrt, *traced.block.results)):
        raise NotCompiled(
            f"a {'Hessian' if derived.said == 'hessian' else 'Jacobian'} has arrays, and no data, on both its sides",
            span,
            "use grad, jvp, vjp or hvp: they give data",
        )
    for r in traced.block.results:
        if elem_of(r) != REAL:
            raise DerivativeError(f"a result of this function is {describe(r)}: it has no derivative", span)
    inputs, outputs = extent(traced.wrt), extent(traced.block.results)
    if inputs == 0 or outputs == 0:
        results, blocks = empty_jacobian(sp, traced)
    elif loops:
        traced.block = split_block(b, traced.block)
        results, blocks = forward_loops(sp, traced)
    elif direction(inputs, outputs)[0] == "forward":
        vector = [a.type for a in traced.wrt] if not symmetric else []
        wide = len(vector) == 1 and isinstance(vector[0], Arr) and vector[0].rank == 1 and inputs >= WIDE
        wide = wide and any(type(bind.op) is Loop for bind in traced.block.binds) and can_be_wide(traced.block)
        many = wide and written_out(traced) > WIDE * WRITTEN_OUT
        results, blocks = forward_wide(sp, traced) if many else forward_unrolled(sp, traced, symmetric)
    elif outputs is not None and outputs <= DIRECTIONS:
        results, blocks = reverse_unrolled(sp, traced)
    else:
        results, blocks = reverse_loops(sp, traced)
    b.span = span
    count = len(traced.wrt)
    rows = [mirror(traced, blocks[k * count : (k + 1) * count]) for k in range(len(results))]
    made = unflatten(traced.out, iter(rows)) if traced.out != LEAF else rows[0]
    if derived.operator == "value-and-deriv":
        return TupleValue((unflatten(traced.out, iter(results)), made))
    return made


def direction(inputs: int | None, outputs: int | None) -> tuple[str, str]:
    """Which mode a Jacobian takes by the numbers of its inputs and outputs (None: not known), and why."""
    if inputs is not None and inputs <= DIRECTIONS:
        if outputs is None or inputs <= outputs:
            return "forward", "the inputs are no more than the results"
        if outputs > DIRECTIONS:
            return "forward", f"the inputs are at most {DIRECTIONS}: each has its own straight code"
    if outputs is not None and outputs <= DIRECTIONS:
        return "reverse", "the results are fewer than the inputs"
    return "reverse", "a loop over the results, each a reverse pass"


def factored(sp: Specialiser, derived: Derived, args: list[Value], at: list[int], unrolled: bool = True) -> Any:
    """The trace of a gradient whose sums are kept apart from their factors, for rows in a loop."""
    before = sp.factor, sp.unrolled
    sp.factor, sp.unrolled = True, unrolled
    try:
        return trace(sp, derived, args, at)
    finally:
        sp.factor, sp.unrolled = before


def written_out(traced: Trace) -> int:
    """About how many operations the tangents along all unit vectors take where each is written out: for each
    operation of the block, the inputs that it depends on, element by element."""
    bits: dict[Atom, int] = {}  # a set of inputs is an integer, one bit for each
    parts: dict[Atom, list[int]] = {}  # of an array, by its first subscript
    first = 0
    for p in traced.wrt:
        count = extent([p]) or 0
        rows = p.type.dims[0].value if isinstance(p.type, Arr) else 1
        each = count // rows if rows else 0
        parts[p] = [(1 << each) - 1 << first + k * each for k in range(rows)]
        bits[p] = (1 << count) - 1 << first
        first += count
    total = 0
    for bind in traced.block.binds:
        op, read = bind.op, 0
        for v in reads(bind):
            read |= bits.get(v, 0)
        if type(op) is Prim and op.name == "get" and op.args[0] in parts and type(op.args[1]) is Const:
            read = parts[op.args[0]][op.args[1].value]
        elif type(op) is Prim and op.name == "array":
            parts[bind.vars[0]] = [bits.get(a, 0) if type(a) is Var else 0 for a in op.args]
        else:
            total += expanded_size(Block((bind,), ())) * bin(read).count("1")
        bits.update(dict.fromkeys(bind.vars, read))
    return total


def extent(atoms: Sequence[Atom]) -> int | None:
    """How many numbers some values hold, if that is known."""
    total = 0
    for a in atoms:
        t = type_of(a)
        size = 1
        for d in t.dims if isinstance(t, Arr) else ():
            if type(d) is not Const:
                return None
            size *= d.value
        total += size
    return total


def cells(t: Any) -> list[tuple[int, ...]]:
    """The index tuples of a statically shaped type, in memory order."""
    found: list[tuple[int, ...]] = [()]
    for d in t.dims if isinstance(t, Arr) else ():
        found = [(*c, i) for c in found for i in range(d.value)]
    return found


def unit(b: Any, t: Any, cell: tuple[int, ...]) -> Atom:
    """The unit tangent of one cell of a statically shaped type."""
    if not isinstance(t, Arr):
        return ONE
    inner = t.item()
    zero = nested_zero(b, inner)
    return b.array([unit(b, inner, cell[1:]) if i == cell[0] else zero for i in range(t.dims[0].value)])


def nested_zero(b: Any, t: Any) -> Atom:
    return b.array([nested_zero(b, t.item())] * t.dims[0].value) if isinstance(t, Arr) else b.zeros(t)


def assemble(b: Any, t: Any, values: list[Atom]) -> Atom:
    """The array of a static shape that holds ``values`` in memory order."""
    if not isinstance(t, Arr):
        return values[0]
    step = len(values) // t.dims[0].value
    return b.array([assemble(b, t.item(), values[k * step : (k + 1) * step]) for k in range(t.dims[0].value)])


def per_element(b: Any, result: Atom, columns: list[Atom], t: Any) -> Atom:
    """From one tangent of ``result`` for each cell of the input type ``t``: the array [result dims..., t dims...]."""
    if not isinstance(t, Arr):
        return columns[0]
    rt = type_of(result)
    if not isinstance(rt, Arr):
        return assemble(b, t, columns)
    if type(rt.dims[0]) is Const and rt.dims[0].value <= DIRECTIONS:
        return b.array(
            [
                per_element(b, b.get(result, integer(i)), [b.get(c, integer(i)) for c in columns], t)
                for i in range(rt.dims[0].value)
            ]
        )
    return b.build(
        rt.dims[0], lambda i: per_element(b, b.get(result, i), [b.get(c, i) for c in columns], t), "jacobian"
    )


def forward_unrolled(sp: Specialiser, traced: Trace, symmetric: bool) -> tuple[Sequence[Atom], list[Atom]]:
    b = sp.b
    tangents: dict[Var, dict[int, Atom]] = {}
    direction = 0
    spans: dict[Var, range] = {}
    for p in traced.wrt:
        every = cells(p.type)
        tangents[p] = {direction + k: unit(b, p.type, c) for k, c in enumerate(every)}
        spans[p] = range(direction, direction + len(every))
        direction += len(every)
    results, dots = jvp(b, traced.block, traced.here, tangents)
    made = []
    for r, dot in zip(results, dots):
        for p in traced.wrt:
            columns = [dot[d] if d in dot else b.zeros(type_of(r)) for d in spans[p]]
            made.append(per_element(b, r, columns, p.type))
    if symmetric and len(made) == 1:
        made = [mirrored(b, made[0])]
    return results, made


def forward_wide(sp: Specialiser, traced: Trace) -> tuple[Sequence[Atom], list[Atom]]:
    """The Jacobian by one vector, all its columns at once."""
    b, (p,) = sp.b, traced.wrt
    (size,) = p.type.dims  # type: ignore[union-attr]

    def unit(i: Atom) -> Atom:
        def element(d: Atom):
            return (), (b.select(b.prim("=", i, d), ONE, ZERO),)

        return b.loop(size, (), element, ("dx",), "d", soft=True)[0]

    return wide_jvp(b, traced.block, traced.here, {p: b.build(size, unit)}, size)


def empty_jacobian(sp: Specialiser, traced: Trace) -> tuple[Sequence[Atom], list[Atom]]:
    """The Jacobian where there is nothing to differentiate, or to differentiate by."""
    b = sp.b
    results, _ = jvp(b, traced.block, traced.here, {})
    dims = [[t.dims if isinstance(t := type_of(a), Arr) else () for a in atoms] for atoms in (results, traced.wrt)]
    return results, [b.zeros(Arr(REAL, (*r, *p)) if r or p else REAL) for r in dims[0] for p in dims[1]]


def mirrored(b: Any, matrix: Atom) -> Atom:
    """A symmetric matrix of known size from its upper triangle: half the work."""
    t = type_of(matrix)
    if not isinstance(t, Arr) or t.rank != 2 or type(t.dims[0]) is not Const:
        return matrix
    n = t.dims[0].value
    return b.array(
        [b.array([b.get(matrix, integer(min(i, j)), integer(max(i, j))) for j in range(n)]) for i in range(n)]
    )


def reverse_unrolled(sp: Specialiser, traced: Trace) -> tuple[Sequence[Atom], list[Atom]]:
    b = sp.b
    made: list[Atom] = []
    results: Sequence[Atom] = ()
    for k, r in enumerate(traced.block.results):
        rows: list[list[Atom]] = []
        for cell in cells(type_of(r)):

            def seeds(emitted: Sequence[Atom], k: int = k, r: Atom = r, cell: tuple[int, ...] = cell) -> list[Any]:
                return [unit(b, type_of(r), cell) if j == k else None for j in range(len(emitted))]

            results, bars = vjp(b, traced.block, traced.here, seeds, traced.wrt, encoding=sp.encoding)
            rows.append(bars)
        for j in range(len(traced.wrt)):
            made.append(assemble(b, type_of(r), [row[j] for row in rows]))
    return results, made


def forward_loops(sp: Specialiser, traced: Trace) -> tuple[Sequence[Atom], list[Atom]]:
    """The Jacobian of a gradient, one tangent for each unit vector of each argument, in a loop.

    The block [p, q] of a Hessian is the tangent of the gradient by q along the unit vectors of p: symmetry makes rows
    of what forward mode gives, columns.
    """
    b = sp.b
    results, _ = jvp(b, traced.block, traced.here, {})
    made: list[Atom] = []
    for p in traced.wrt:
        gradients = scalar_gradients(b, traced, p)
        for q in range(len(traced.wrt)):

            def row(indices: list[Atom], p: Var = p, q: int = q, gradients: dict = gradients) -> Atom:
                known = {v: b.get(g, *indices) for v, g in gradients.items()}
                r, dots = jvp(b, traced.block, traced.here, {p: {0: unit_at(b, p.type, indices)}}, known)
                return dots[q].get(0, b.zeros(type_of(r[q])))

            made.append(over(b, p.type, row, []))
    return results, made


def scalar_gradients(b: Any, traced: Trace, p: Var) -> dict[Var, Atom]:
    """For each number that a loop of the block computes from the array ``p``, its gradient by ``p``.

    Its tangent along the unit vector of an element is that element of the gradient: so one backward pass over the
    loop serves all rows of a Hessian, where each row would run through the loop again.
    """
    if not isinstance(p.type, Arr):
        return {}
    found: dict[Var, Atom] = {}
    active = activity(traced.block, {p: 1})
    for k, bind in enumerate(traced.block.binds):
        if type(bind.op) is not Loop or not bind.vars or any(v.type != REAL or v not in active for v in bind.vars):
            continue
        for v in bind.vars:
            needed = tidy(Block(traced.block.binds[: k + 1], (v,)))
            found[v] = vjp(b, needed, traced.here, lambda results: [ONE], [p])[1][0]
    return found


def reverse_loops(sp: Specialiser, traced: Trace) -> tuple[Sequence[Atom], list[Atom]]:
    """One adjoint for each unit vector of each result, in a loop: the rows."""
    b = sp.b
    results, _ = jvp(b, traced.block, traced.here, {})
    made: list[Atom] = []
    for k, result in enumerate(results):
        for j in range(len(traced.wrt)):

            def row(indices: list[Atom], j: int = j, k: int = k) -> Atom:
                def seeds(emitted: Sequence[Atom]) -> list[Any]:
                    return [unit_at(b, type_of(e), indices) if n == k else None for n, e in enumerate(emitted)]

                return vjp(b, traced.block, traced.here, seeds, traced.wrt, encoding=sp.encoding)[1][j]

            made.append(over(b, type_of(result), row, []))
    return results, made


def unit_at(b: Any, t: Any, indices: Sequence[Atom]) -> Atom:
    """The unit vector at run-time indices: a one-hot array."""
    return b.update(b.zeros(t), indices, ONE) if isinstance(t, Arr) else ONE


def over(b: Any, t: Any, row: Any, indices: list[Atom]) -> Atom:
    """``row`` at every index of a type, stacked."""
    rank = t.rank if isinstance(t, Arr) else 0
    if len(indices) == rank:
        return row(indices)
    (rows,) = b.loop(
        t.dims[len(indices)],
        (),
        lambda i: ((), (over(b, t, row, [*indices, i]),)),
        index_name="jklm"[len(indices) % 4],
        soft=True,
    )
    return rows


# ------------------------------------------------------------------------- a user's own rules (defprim)


def apply_rule(b: Any, row: Primitive, kind: str, given: Sequence[Atom], wanted: int) -> list[Atom]:
    """What the model of a row's own ``jvp`` or ``vjp`` gives for ``given``: ``wanted`` numbers."""
    from .reader import read_model
    from .specialise import Specialiser

    rule = row.vjp if kind == "vjp" else row.jvp
    function = rule.hyad_value() if hasattr(rule, "hyad_value") else Closure(read_model(rule), None, language)
    sp = Specialiser()
    sp.b = b
    span = b.span
    takes = parameters(function)
    if takes is not None and len(takes) != len(given):
        after = {"jvp": "then the tangent of each", "vjp": "then the result and its cotangent"}[kind]
        raise DerivativeError(
            f"the {kind} of `{row.name}` takes {len(takes)} arguments, not {len(given)}",
            span,
            f"it takes those of `{row.name}`, {after}",
        )
    with b.as_written():
        atoms, _ = flatten(sp.call(function, given, (None,) * len(given), None), span)
    b.span = span
    if len(atoms) != wanted or any(type_of(a) not in (REAL, INT) for a in atoms):
        raise DerivativeError(f"the {kind} of `{row.name}` gives {len(atoms)} values, not {wanted} numbers", span)
    return [b.to_real(a) for a in atoms]


def custom_tangents(
    b: Any, row: Primitive, args: Sequence[Atom], y: Atom, dots: Sequence[dict[int, Atom]]
) -> dict[int, Atom]:
    """The tangents, by direction, of a primitive with a rule of its own. A ``vjp`` alone serves as well: the result
    is one number, so that its adjoints for cotangent 1 are the partials."""
    found: dict[int, Atom] = {}
    partials = apply_rule(b, row, "vjp", [*args, y, ONE], len(args)) if row.jvp is None else []
    for d in sorted({d for dot in dots for d in dot}):
        if row.jvp is not None:
            found[d] = apply_rule(b, row, "jvp", [*args, *(dot.get(d, ZERO) for dot in dots)], 1)[0]
        else:
            found[d] = b.sum([b.prim("*", partials[k], dot[d]) for k, dot in enumerate(dots) if d in dot])
    return found


def custom_adjoints(b: Any, row: Primitive, args: Sequence[Atom], y: Atom, y_bar: Atom) -> list[Atom]:
    """The adjoints of the operands of a primitive with a rule of its own; a ``jvp`` is asked for each unit tangent."""
    if row.vjp is not None:
        return apply_rule(b, row, "vjp", [*args, y, y_bar], len(args))
    units = [[ONE if j == k else ZERO for j in range(len(args))] for k in range(len(args))]
    return [b.prim("*", y_bar, apply_rule(b, row, "jvp", [*args, *unit], 1)[0]) for unit in units]
