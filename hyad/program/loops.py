"""What the passes over loops ask of them: where arrays are read, what a result needs, trip counts, costs.

The passes themselves: ``fusion``, ``fission``, ``onehot``, ``copies``, ``stores``, ``jam``, ``nests``, ``lanes`` ..
(dF~ section 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..core import Arr, Atom, Bind, Block, Loop, Prim, Program, Var, all_binds, atoms_of, blocks_of, kinds_of, reads
from .dead import tidy
from .primitives import PRIMITIVES, price_of

CALL = 15  # in additions: what costs so much is a call of the C library
CHEAP = 3  # in additions: a body that costs no more is computed again rather than stored


@dataclass(frozen=True, slots=True)
class Use:
    """One reading of an array: the subscripts if it is a ``get``, and the loops around it, outermost first."""

    subscripts: tuple[Atom, ...] | None
    loops: tuple[Loop, ...]


def array_uses(block: Block) -> dict[Var, list[Use]]:
    """Every reading of every array in a block and the regions inside it."""
    found: dict[Var, list[Use]] = {}

    def walk(b: Block, loops: tuple[Loop, ...]) -> None:
        for bind in b.binds:
            op = bind.op
            if type(op) is Prim and op.name == "get":
                found.setdefault(op.args[0], []).append(Use(op.args[1:], loops))  # type: ignore[arg-type]
            else:
                for a in atoms_of(op):
                    if type(a) is Var and isinstance(a.type, Arr):
                        found.setdefault(a, []).append(Use(None, loops))
            inner = (*loops, op) if type(op) is Loop else loops
            for region in blocks_of(op):
                walk(region, inner)
        for r in b.results:
            if type(r) is Var and isinstance(r.type, Arr):
                found.setdefault(r, []).append(Use(None, loops))

    walk(block, ())
    return found


def slice_of(block: Block, results: Sequence[Atom]) -> Block:
    """The bindings of a block that some of its results need."""
    return tidy(Block(block.binds, tuple(results)))


def read_of(block: Block, array: Var) -> bool:
    """Whether an element is read of an array, or of what it has become, in a block or a region inside it."""
    versions: set[Atom] = {array}
    for x in all_binds(block):
        if type(x.op) is Prim and x.op.args and x.op.args[0] in versions:
            if x.op.name == "get":
                return True
            if x.op.name in ("update", "add-at"):
                versions.update(x.vars)
    return False


def closure(binds: Sequence[Bind], wanted: Iterable[Atom]) -> list[Bind]:
    """Those of some operations that give what is ``wanted``, and what these need."""
    found: list[Bind] = []
    needs = set(wanted)
    for bind in reversed(binds):
        if needs.intersection(bind.vars):
            found.append(bind)
            needs.update(reads(bind))
    return found[::-1]


def cost_of(block: Block) -> int:
    """What the scalar operations of a block cost, in additions."""
    return sum(price_of(b.op) for b in block.binds if type(b.op) is Prim and b.op.name in PRIMITIVES)


def calls_in(block: Block) -> list[Bind]:
    """The calls of the C library in a block and the regions inside it, and what costs as much."""
    return [b for b in all_binds(block) if type(b.op) is Prim and b.op.name in PRIMITIVES and price_of(b.op) >= CALL]


# ------------------------------------------------------------------------------------ sparse rows


def read_after_loops(block: Block) -> dict[Bind, set[Var]]:
    """For the loops of a block what is read after each, of what its accumulators start from."""
    if not any(type(x.op) is Loop for x in block.binds):
        return {}
    last = {v: k for k, x in enumerate(block.binds) for v in reads(x)}  # where each is read last
    last.update({r: len(block.binds) for r in block.results if type(r) is Var})
    return {
        x: {z for z in x.op.inits if type(z) is Var and last[z] > k}
        for k, x in enumerate(block.binds)
        if type(x.op) is Loop
    }


def loops_of(program: Program) -> list[Loop]:
    """All loops of a program."""
    return loops_in(program.body)


def loops_in(block: Block) -> list[Loop]:
    """All loops of a block and of the regions inside it, outer before inner."""
    if Loop not in kinds_of(block):
        return []
    found = []
    for bind in block.binds:
        if type(bind.op) is not Prim:
            if type(bind.op) is Loop:
                found.append(bind.op)
            for inner in blocks_of(bind.op):
                found += loops_in(inner)
    return found
