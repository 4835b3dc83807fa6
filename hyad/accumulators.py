"""What an iteration of a loop does to an accumulator, for derivatives of loops: it adds, or looks for the largest."""

from __future__ import annotations

from .core import REAL, Atom, Block, Const, If, Loop, Prim, Var, count_uses, free_vars, most_uses, type_of
from .rebuild import Rebuild


def sum_like(block: Block, acc: Var, result: Atom) -> bool:
    """Whether an iteration only adds to an accumulator: ``acc' = acc + e`` with no other use of ``acc``. The
    adjoint of such an accumulator is the same in every iteration, and their order does not matter."""
    if most_uses(block, acc) > 1:
        return False
    definitions = {v: (bind, k) for bind in block.binds for k, v in enumerate(bind.vars)}
    while result is not acc:
        found = definitions.get(result) if type(result) is Var else None
        if found is None:
            return False
        bind, k = found
        op = bind.op
        if type(op) is Prim and op.name in ("+", "-", "add-at"):
            chain = op.args[:1] if op.name != "+" else op.args
            following = next((a for a in chain if a is acc or reaches(definitions, a, acc)), None)
        elif type(op) is Loop and k < len(op.accs) and sum_like(op.body, op.accs[k], op.body.results[k]):
            following = op.inits[k]
        elif type(op) is If:
            following = next((a for a in added_to(op, k) if a is acc or reaches(definitions, a, acc)), None)
        else:
            return False
        if following is None or most_uses(block, result) > 1 and type(result) is Var:
            return False
        result = following
    return True


def added_to(op: If, k: int) -> list[Var]:
    """What both branches of an ``if`` add to, or leave as it is, to give its result ``k``."""
    branches = [(block, block.results[k]) for block in (op.then, op.orelse)]
    both = [a for a in free_vars(op.then) if a in free_vars(op.orelse)]

    def adds(block: Block, a: Var, r: Atom) -> bool:
        return most_uses(block, a) == 1 if r is a else sum_like(block, a, r)

    return [a for a in both if all(adds(block, a, r) for block, r in branches)]


def extreme(block: Block, acc: Var, result: Atom) -> tuple[Prim, Atom] | None:
    """The operation of ``acc' = (max acc e)``, or ``min``, and its ``e``, where nothing else reads either."""
    if acc.type != REAL or count_uses(block, acc) != 1 or type(result) is not Var or count_uses(block, result) != 1:
        return None
    for bind in block.binds:
        if bind.vars == (result,):
            op = bind.op
            if type(op) is Prim and op.name in ("max", "min") and acc in op.args:
                return op, next(a for a in op.args if a is not acc)
            return None
    return None


def starts_with(pass_: Rebuild, op: Loop, e: Atom, start: Atom, count: Atom) -> bool:
    """Whether a search for the largest starts with what its first iteration looks at, an element of an array that
    it goes through: then there is a first iteration."""
    source = pass_.b.definitions.get(start) if type(start) is Var else None
    if source is None or source.name != "get":
        return False
    bind = next((bind for bind in op.body.binds if bind.vars == (e,)), None)
    look = bind.op if bind is not None else None
    if type(look) is not Prim or look.name != "get" or look.args[-1] is not op.index:
        return False
    base, *row = pass_.atoms(look.args[:-1])
    if op.index in look.args[:-1]:
        return False
    within = pass_.b.definitions.get(base) if type(base) is Var else None
    if within is not None and within.name == "get":  # a row, of which the builder knows whose it is
        base, *row = *within.args, *row
    array, *first, zero_ = source.args
    same = base is array and len(row) == len(first) and all(map(pass_.b.same_int, row, first))
    if not same or not (type(zero_) is Const and zero_.value == 0):
        return False
    return pass_.b.same_int(type_of(array).dims[len(row)], count)  # type: ignore[union-attr]


def reaches(definitions: dict, atom: Atom, acc: Var) -> bool:
    """Whether ``atom`` is ``acc`` with things added."""
    while type(atom) is Var and atom is not acc:
        found = definitions.get(atom)
        if found is None:
            return False
        bind, k = found
        op = bind.op
        if type(op) is Prim and op.name in ("+", "-", "add-at"):
            nexts = [a for a in (op.args if op.name == "+" else op.args[:1]) if a is acc]
            if nexts:
                return True
            nexts = [a for a in (op.args if op.name == "+" else op.args[:1]) if type(a) is Var and a in definitions]
            if len(nexts) != 1:
                return any(reaches(definitions, a, acc) for a in nexts)
            atom = nexts[0]
        elif type(op) is Loop and k < len(op.accs):
            atom = op.inits[k]
        elif type(op) is If:
            return any(a is acc or reaches(definitions, a, acc) for a in added_to(op, k))
        else:
            return False
    return atom is acc
