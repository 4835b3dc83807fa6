"""A function as a block of its own on fresh variables: what is differentiated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core import (
    INT,
    Arr,
    Atom,
    Block,
    Data,
    Leaf,
    Node,
    Tree,
    Var,
    elem_of,
    type_of,
)
from ..errors import DerivativeError, ModelTypeError, NotCompiled
from ..frontend.annotations import has_reals, not_real, parameters
from ..frontend.families import Again
from ..frontend.store_passing import set_cell
from ..passes.counted import counted_block, recursion_counted
from ..passes.functions import inline_block, merged_block
from ..passes.fusion import alone_block, branched_block, diagonals_block, folded_block
from ..passes.guarded import guarded_block
from ..passes.induction import induction_block
from ..passes.log_sums import log_sums_block
from ..passes.monotone import monotone_block
from ..passes.one_changed import one_changed_block
from ..passes.optimise import expand_block, integer_tables_block, left_block, singles_block, unroll_block
from ..passes.periods import periods_block
from ..passes.prefixes import prefixes_block
from ..passes.privatise import privatise_block
from ..passes.recurring import recurring_block
from ..passes.running_powers import running_powers_block
from ..passes.scalar_replacement import scalar_replacement_block
from ..passes.shrinking import shrinking_block
from ..passes.spared import spared_block
from ..passes.unchanged import filled_block
from ..passes.unfold import unfold_block
from ..passes.views import views_block
from ..passes.windows import windows_block
from ..program.dead import tidy
from ..program.names import place_of
from ..program.values import (
    FUNCTIONS,
    NIL,
    Cell,
    Derived,
    Part,
    Pointwise,
    TupleValue,
    Value,
    describe,
    flatten,
    holds_function,
    unflatten,
)
from .activity import differentiable
from .forward import jvp

if TYPE_CHECKING:
    from ..passes.shrinking import shrinking_block
from ..frontend.specialise import Specialiser

NOTHING = flatten(NIL)[1]  # the structure of nil


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
        at = place_of(w, names)
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


def as_integers(name: str, a: Atom) -> str:
    """The declaration of a parameter that is like an integer, or an array of them."""
    t = type_of(a)
    return f"`#^ (Arr Int {' '.join('nmklpq'[: t.rank])}) {name}`" if isinstance(t, Arr) else f"`#^ Int {name}`"


def taken_as_reals(operator: str, integers: dict[str, str]) -> str:
    """The hint where arguments that hold integers are needed as such, and differentiated by."""
    them = "it" if len(integers) == 1 else "them"
    declared = " and ".join(text or f"the integers in `{name}` as `Int`" for name, text in integers.items())
    names = " and ".join(f"`{name}`" for name in integers)
    others = "" if operator in ("jvp", "vjp", "hvp") else ", or name the others with `:wrt`"
    return f"`{operator}` differentiates by {names} as well, and takes {them} as real: declare {declared}{others}"


def trace(
    sp: Specialiser,
    derived: Derived,
    args: Sequence[Value],
    at: Sequence[int],
    whole: Sequence[Value] | None = None,
    arrays: bool = False,
) -> Trace | Value:
    """Specialise the function to fresh real variables in the argument positions ``at``; where it gives functions, what
    the operator on them, applied to the ``whole`` of its arguments, gives instead. ``arrays``: results that are arrays
    of sizes that only a run knows are these arrays, and no data."""
    b, span, name = sp.b, sp.b.span, derived.said
    known = parameters(derived.function) or []
    args = [sp.now(a) for a in args]
    fresh = [sp.changeable(a) for a in args]
    params: list[list[Var]] = []
    actuals: list[list[Atom]] = []
    trees: list[Tree] = []
    fixed: list[list[Atom | None]] = []
    integers: dict[str, str] = {}  # arguments that hold some, which are reals here, and their declarations
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
        label = known[k][0] if k < len(known) else "x"
        if any(elem_of(a) == INT for a in atoms):
            integers[label] = as_integers(label, atoms[0]) if isinstance(tree, Leaf) else ""
        atoms = [sp.b.reals(a) for a in atoms]
        for a in atoms:
            if isinstance(type_of(a), Data):
                sp.facts.widen(type_of(a))
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
        try:
            value = sp.now(sp.call(derived.function, fresh, (None,) * len(fresh), None))
        except ModelTypeError as error:
            if integers and error.message.endswith(", not an integer"):
                error.hint = taken_as_reals(name, integers)
            raise
        if arrays:
            value = bare_arrays(sp, value)
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
            if not sp.facts.changed:
                block = counted_block(b, inline_block(b, recursion_counted(b, merged_block(b, block))))
                block = induction_block(b, shrinking_block(b, unfold_block(b, block)))
            block = one_changed_block(b, alone_block(b, monotone_block(b, log_sums_block(b, tidy(block)))))
            block = windows_block(b, tidy(block))
            block = unroll_block(b, running_powers_block(b, integer_tables_block(b, periods_block(b, block))))
            block = views_block(b, singles_block(b, tidy(block)))
            block = guarded_block(b, spared_block(b, block))
            block = scalar_replacement_block(b, privatise_block(b, block))
            block = folded_block(b, log_sums_block(b, filled_block(b, block)))
            block = expand_block(b, left_block(b, prefixes_block(b, tidy(block))))
            block = recurring_block(b, block)
        block = branched_block(b, diagonals_block(b, tidy(block)))
    b.span = span
    return Trace(block, params, actuals, trees, fixed, out)


def bare_arrays(sp: Specialiser, value: Value) -> Value:
    """A structure whose arrays in data are these arrays."""
    if isinstance(value, TupleValue):
        return TupleValue(tuple(bare_arrays(sp, v) for v in value.items), value.keys, value.make)
    return sp.with_arrays([value], lambda held: held[0], None)


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


def mirror(traced: Trace, atoms: Sequence[Atom]) -> Value:
    """Adjoints in the structure of the arguments: one argument's, or a tuple for several. What is no number stays."""
    it = iter(atoms)
    parts = []
    for tree, fixed in zip(traced.trees, traced.fixed):
        parts.append(unflatten(tree, iter([next(it) if x is None else x for x in fixed])))
    return parts[0] if len(parts) == 1 else TupleValue(tuple(parts))


def cells(t: Any) -> list[tuple[int, ...]]:
    """The index tuples of a statically shaped type, in memory order."""
    found: list[tuple[int, ...]] = [()]
    for d in t.dims if isinstance(t, Arr) else ():
        found = [(*c, i) for c in found for i in range(d.value)]
    return found
