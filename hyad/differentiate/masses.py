"""Sums of exponentials of which all may underflow, as of a row of a table of log-probabilities that is all -inf.

The logarithm is -inf there, its slope infinite, and what moves it, or is moved by it, 0 if it has no weight in what
comes after it: a state that a hidden Markov model cannot be in. ``left_out`` and ``resting`` give 0 for the product.
"""

from __future__ import annotations

from ..core import ZERO, Atom, Block, Const, If, Loop, Prim, Var, While, all_binds

#: What is 0 if its operands are.
KEPT = frozenset("+ * array get stop".split())


class Masses:
    """``logarithms``: those of what is made of exponentials by sums and products alone, in arrays or loops too; not
    those in a branch that was taken because that is more than 0."""

    def __init__(self, block: Block) -> None:
        self.logarithms: set[Var] = set()
        self.made = {x.vars[0]: x.op for x in all_binds(block) if type(x.op) is Prim}
        if {"log", "exp"} <= {op.name for op in self.made.values()}:
            self.walk(block, {ZERO})

    def walk(self, block: Block, masses: set[Atom]) -> None:
        """Add to ``masses`` what is made of them, and of exponentials."""
        for x in block.binds:
            op = x.op
            if type(op) is Prim:
                parts = op.args[:1] if op.name in ("get", "stop") else op.args
                if op.name == "exp" or op.name in KEPT and masses.issuperset(parts):
                    masses.update(x.vars)
                elif op.name == "log" and op.args[0] in masses:
                    self.logarithms.update(x.vars)
            elif type(op) is Loop or type(op) is While:
                self.loop(x.vars, op, masses)
            elif type(op) is If:
                then, orelse = masses - {self.more_than_0(op.cond)}, set(masses)
                self.walk(op.then, then)
                self.walk(op.orelse, orelse)
                both = zip(x.vars, op.then.results, op.orelse.results)
                masses.update(v for v, a, b in both if a in then and b in orelse)

    def loop(self, made: tuple[Var, ...], op: Loop | While, masses: set[Atom]) -> None:
        """What a loop starts with 0 and makes of exponentials again in each iteration is a sum of them."""
        sums = [k for k, z in enumerate(op.inits) if z in masses]
        before = set(self.logarithms)
        while True:
            inside = masses | {op.accs[k] for k in sums}
            self.logarithms = set(before)
            self.walk(op.body, inside)
            left = [k for k in sums if op.body.results[k] in inside]
            if left == sums:
                break
            sums = left
        masses |= inside
        stacked = range(len(op.accs), len(op.body.results)) if type(op) is Loop else ()
        masses.update(made[k] for k in (*sums, *stacked) if op.body.results[k] in inside)

    def more_than_0(self, cond: Atom) -> Atom | None:
        """What a condition says to be at least a positive number."""
        op = self.made.get(cond)  # type: ignore[call-overload]
        if op is None or op.name not in ("<=", "<") or type(op.args[0]) is not Const or not op.args[0].value > 0:
            return None
        marked = self.made.get(op.args[1])
        return marked.args[0] if marked is not None and marked.name == "stop" else op.args[1]
