"""The power rule without a second power: x^(e - 1) beside x^e is a quotient."""

from __future__ import annotations

from ..core import INT, REAL, Atom, Block, Const, Prim, Program, Var, all_binds
from ..program.affine import affine_add, affine_in
from ..program.builder import Builder
from ..program.rebuild import Rebuild, rebuilt
from .running_powers import chosen_exponent

#: Between these, and negative, a power has all its digits, also as a ``float``.
LEAST, MOST = 1.2e-38, 3.4e38


def lesser_powers(program: Program) -> Program:
    """Divides a power by its base where the program has the power with the exponent less one beside it.

    ``(** x e)`` and ``(** x (- e 1.0))``  =>  ``p`` and, unless ``p`` is 0, infinite or so near to either that it has
    lost digits, ``(/ p x)``: a value and its derivative, or the derivatives with respect to both, cost one power.
    Design decision: one division more, as exact as a power and a division. After differentiation, which knows nothing
    of it, and not where powers go in vectors.
    """
    pass_ = LesserPowers(Builder(), program.body)
    return rebuilt(program, pass_) if any(pass_.takes(x.op) for x in all_binds(program.body)) else program


class LesserPowers(Rebuild):
    """``lesser_powers`` for a program whose numbers are made so; ``always``: for one that is not run, but asked what it
    costs, in which no power is as good as infinite."""

    def __init__(self, builder: Builder, body: Block, always: bool = False) -> None:
        super().__init__(builder)
        self.made = {x.vars[0]: x.op for x in all_binds(body) if type(x.op) is Prim}
        self.always = always
        self.powers: list[Prim] = []  # of the old blocks around
        self.quotients: dict[tuple[Atom, ...], Atom] = {}  # what powers have become

    def block(self, block: Block) -> tuple[Atom, ...]:
        before = self.powers
        self.powers = [*before, *(x.op for x in block.binds if self.takes(x.op))]  # type: ignore[misc]
        results = super().block(block)
        self.powers = before
        return results

    @staticmethod
    def takes(op: object) -> bool:
        """Whether it is a power that takes as much as a call."""
        if type(op) is not Prim or op.name != "**" or op.args[0].type != REAL:
            return False
        e = op.args[1]
        return type(e) is Var or e.type == REAL and not float(e.value).is_integer()  # type: ignore[union-attr]

    def prim(self, op: Prim, var: Var) -> Atom:
        if not self.takes(op):
            return super().prim(op, var)
        b, x = self.b, op.args[0]
        guard, e = chosen_exponent(op.args[1], self.made)
        made = self.lesser(x, e, var.name)
        if made is None:
            return super().prim(op, var)
        made = made if guard is None else b.select(self.atom(guard), self.atom(x), made)
        self.quotients[op.args] = made
        return made

    def lesser(self, x: Atom, e: Atom, hint: str) -> Atom | None:
        """The power with an exponent, from the one with the next; None where there is none."""
        nexts = (op.args[1] for op in self.powers if op.args[0] is x and self.follows(e, op.args[1]))
        other = next(nexts, None)
        if other is None:
            return None
        b, base = self.b, self.atom(x)
        b.fired("lesser-powers")
        p = self.quotients.get((x, other))
        if p is None or not any(p in scope.vars for scope in b.scopes):
            p = b.prim("**", base, self.atom(other))
        if self.always:
            return b.prim("/", p, base)
        size = b.prim("abs", p)
        cond = b.prim("and", b.prim(">=", size, Const(LEAST, REAL)), b.prim("<=", size, Const(MOST, REAL)))
        with b.branch_region(cond, True) as scope:
            quotient = scope, [b.prim("/", p, base)]
        with b.branch_region(cond, False) as scope:
            power = scope, [b.prim("**", base, self.atom(e))]
        return b.if_(cond, quotient, power, [hint])[0]

    def follows(self, e: Atom, other: Atom) -> bool:
        """Whether an exponent is another one less one."""
        if e.type != other.type:
            return False
        if type(e) is Const:
            return type(other) is Const and other.value - 1 == e.value
        if e.type == INT:
            return affine_add(affine_in(e, self.made), (1, {})) == affine_in(other, self.made)  # type: ignore[arg-type]
        op, before = self.made.get(e), self.made.get(other)  # type: ignore[call-overload]
        if op is not None and before is not None and op.name == before.name == "real":
            return self.follows(op.args[0], before.args[0])
        if op is None or op.name not in ("+", "-"):
            return False
        one = -1 if op.name == "+" else 1
        pairs = (op.args, op.args[::-1]) if op.name == "+" else (op.args,)
        return any(a is other and type(c) is Const and c.value == one for a, c in pairs)
