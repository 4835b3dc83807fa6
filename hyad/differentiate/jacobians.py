"""Jacobians and Hessians: the directions of either mode written out, or in loops, or side by side in one tangent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..core import (
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
    Prim,
    Var,
    all_binds,
    elem_of,
    integer,
    reads,
    type_of,
)
from ..errors import DerivativeError, NotCompiled
from ..passes.optimise import expanded_size, split_block
from ..program.accumulators import any_order, sum_like
from ..program.dead import tidy
from ..program.values import (
    FUNCTIONS,
    Derived,
    TupleValue,
    Value,
    describe,
    flatten,
    unflatten,
)
from .activity import activity
from .forward import can_be_wide, jvp, wide_jvp
from .reverse import vjp
from .tracing import Trace, cells, mirror, positions, trace

if TYPE_CHECKING:
    from ..frontend.specialise import Specialiser

#: Why a Jacobian of states goes forward (``recurrent``).
STATES = "each row would go through all states that the results are made of"
#: Up to so many inputs (outputs) a Jacobian's directions are written out; beyond, they are a loop.
DIRECTIONS = 32
#: A Hessian by few inputs is a loop all the same if its gradient has loops and the tangents written out take more
#: operations than both of these, in all and for each entry: most entries are then full, and short loops do better.
WRITTEN_OUT, DENSE = 1000, 16
#: The gradients of the numbers on the way are taken apart up to so many times the operations of what they are taken of.
PASSES_APART = 4
#: A Jacobian by a vector of so many inputs has all its columns in one tangent, the directions its innermost loops, if
#: written out they would take so many times ``WRITTEN_OUT`` operations.
WIDE = 8


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
    store = dict(sp.store)
    traced = factored(sp, derived, args, at) if loops else trace(sp, derived, args, at, arrays=True)
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
            hint = "name the other arguments: `:wrt x`, or `wrt=` from Python" if symmetric else None
            what = "the gradient has" if symmetric else "a result of this function is"
            raise DerivativeError(f"{what} {describe(r)}: it has no derivative", span, hint)
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
    elif not symmetric and "columns-of-states" not in b.off and recurrent(traced.block, traced.wrt, b.same_int):
        b.fired("columns-of-states")
        results, blocks = forward_wide(sp, traced)
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


def recurrent(block: Block, wrt: Sequence[Var], equal: Callable[[Atom, Atom], bool]) -> bool:
    """Whether a Jacobian by a vector goes through states, each of which is made of the one before, and would do so once
    more for each of its rows: its columns side by side are vectors then. Design decision: of a square Jacobian, or
    where each state gives a row; and where no array on the way has more axes than the vector, so that the tangents of
    each take as much room as the Jacobian."""
    if len(wrt) != 1 or len(block.results) != 1 or not can_be_wide(block):
        return False
    (p,), (result,) = wrt, block.results
    if not all(isinstance(t, Arr) and t.rank == 1 for t in (p.type, type_of(result))):
        return False
    active = activity(block, {p: 1})
    on_the_way = [x for x in all_binds(block) if any(v in active for v in x.vars)]
    arrays = [v.type for x in on_the_way for v in x.vars if v in active and isinstance(v.type, Arr)]
    states = [x.op for x in on_the_way if type(x.op) is Loop and goes_on(x.op, active)]
    rows = type_of(result).dims[0]
    square = equal(p.type.dims[0], rows)
    return all(t.rank == 1 for t in arrays) and any(square or equal(op.count, rows) for op in states)


def goes_on(op: Loop, active: dict[Var, int]) -> bool:
    """Whether a loop makes a number of the one before, and not by adding to it alone, or elements of a vector of others
    that it has changed."""
    states = [k for k, a in enumerate(op.accs) if a in active and elem_of(a) == REAL]
    states = [k for k in states if not sum_like(op.body, op.accs[k], op.body.results[k])]
    vectors = [op.accs[k] for k in states if isinstance(op.accs[k].type, Arr)]
    return len(vectors) < len(states) or bool(vectors) and not any_order(op, vectors)


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
        rows = parts.get(op.args[0]) if type(op) is Prim and op.name == "get" else None
        if rows is not None and type(op.args[1]) is Const and 0 <= op.args[1].value < len(rows):
            read = rows[op.args[1].value]
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
    loop serves all rows of a Hessian, where each row would run through the loop again. Not where such numbers are made
    of each other, step by step: their passes would then be much more code than the gradient's.
    """
    if not isinstance(p.type, Arr):
        return {}
    needed: dict[Var, Block] = {}
    active = activity(traced.block, {p: 1})
    for k, bind in enumerate(traced.block.binds):
        if type(bind.op) is Loop and bind.vars and all(v.type == REAL and v in active for v in bind.vars):
            needed.update((v, tidy(Block(traced.block.binds[: k + 1], (v,)))) for v in bind.vars)
    if sum(map(expanded_size, needed.values())) > PASSES_APART * expanded_size(traced.block):
        return {}
    return {v: vjp(b, block, traced.here, lambda results: [ONE], [p])[1][0] for v, block in needed.items()}


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
