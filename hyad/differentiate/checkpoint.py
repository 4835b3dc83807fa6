"""Checkpointing: the states of a loop, last to first, from few of them that are kept (Griewank & Walther 2000).

What an iteration starts from is computed again from the last state kept before it, and states on the way are kept as
long as there is room. Which ones is binomial: with ``n`` states kept and no step taken more than ``r`` times, a loop
may have C(n + r, n) steps, and no choice takes fewer steps in all.

Design decision: the schedule is a typed program, an explicit stack of states and of the iterations that they stand
before, so that every count may be one that only a run knows, and the derivative can be differentiated and printed like
any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb

from ..core import Arr, Atom, integer, type_of
from ..program.builder import Builder

#: From a state, the iteration that it stands before, and how many steps to take: the state after these.
Advance = Callable[[Sequence[Atom], Atom, Atom], Sequence[Atom]]


@dataclass(frozen=True, slots=True)
class Stack:
    """Kept states: ``states`` has an array for each accumulator, ``places`` the iterations that they stand before, and
    ``top`` says which is the latest. There is room for those kept and, above them, for the one at hand."""

    states: tuple[Atom, ...]
    places: Atom
    top: Atom

    @classmethod
    def of(cls, atoms: Sequence[Atom]) -> Stack:
        *states, places, top = atoms
        return cls(tuple(states), places, top)

    @property
    def atoms(self) -> tuple[Atom, ...]:
        return (*self.states, self.places, self.top)

    def state(self, b: Builder, names: Sequence[str]) -> list[Atom]:
        return [b.get(s, self.top, hint=name, given=True) for s, name in zip(self.states, names)]

    def place(self, b: Builder) -> Atom:
        return b.get(self.places, self.top)

    def below(self, b: Builder) -> Stack:
        """Without the latest state."""
        return Stack(self.states, self.places, b.prim("-", self.top, integer(1)))


def begun(b: Builder, inits: Sequence[Atom], names: Sequence[str], snapshots: Atom) -> Stack:
    """A stack that holds what a loop starts with."""
    room = b.prim("+", snapshots, integer(1), hint="room")
    zero = integer(0)

    def first(x: Atom, name: str) -> Atom:
        t = type_of(x)
        whole = Arr(t.elem, (room, *t.dims)) if isinstance(t, Arr) else Arr(t, (room,))
        return b.update(b.undef(whole), (zero,), x, name)

    return Stack(tuple(first(z, f"{name}-kept") for z, name in zip(inits, names)), first(zero, "places"), zero)


def descended(b: Builder, stack: Stack, names: Sequence[str], snapshots: Atom, target: Atom, advance: Advance) -> Stack:
    """The stack with the state before iteration ``target`` on top: from the latest state on, and what there is room
    for is kept on the way."""

    def short(*atoms: Atom) -> Atom:
        return b.prim("<", Stack.of(atoms).place(b), target)

    def further(*atoms: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
        stack = Stack.of(atoms)
        at = stack.place(b)
        left = b.prim("+", b.prim("-", target, at), integer(1))
        steps = first_steps(b, left, b.prim("-", snapshots, stack.top))
        after = advance(stack.state(b, names), at, steps)
        above = b.prim("+", stack.top, integer(1))
        states = [b.update(s, (above,), x) for s, x in zip(stack.states, after)]
        return [*states, b.update(stack.places, (above,), b.prim("+", at, steps)), above], ()

    hints = [*(f"{name}-kept" for name in names), "places", "top"]
    return Stack.of(b.while_(stack.atoms, short, further, hints, hints)[: len(hints)])


def first_steps(b: Builder, left: Atom, room: Atom) -> Atom:
    """How many of the ``left`` steps (two at least) to take before the next state is kept, where there is ``room`` for
    that many, the one at hand among them.

    r is the least for which C(room + r, room) >= left. What comes before the next state is to take r - 1 rounds and may
    be C(room + r - 1, room) steps, what comes after has room for one state less, and r rounds.
    """
    one = integer(1)

    def short(rounds: Atom, before: Atom, reach: Atom) -> Atom:
        return b.prim("<", reach, left)

    def further(rounds: Atom, before: Atom, reach: Atom) -> tuple[Sequence[Atom], Sequence[Atom]]:
        rounds = b.prim("+", rounds, one)
        return [rounds, reach, b.prim("//", b.prim("*", reach, b.prim("+", room, rounds)), rounds)], ()

    names = ["rounds", "before", "reach"]
    rounds, before, *_ = b.while_([integer(0), one, one], short, further, names, names)
    after = b.prim("//", b.prim("*", before, room), b.prim("-", b.prim("+", room, rounds), one))
    return b.prim("min", before, b.prim("-", left, after), hint="steps")


def repeated(steps: int, snapshots: int) -> int:
    """How many steps of a loop the schedule takes to reach each of its states, last to first: the least that there is.
    Each step is differentiated once besides."""
    if steps < 2:
        return 0
    rounds = 0
    while comb(snapshots + rounds, snapshots) < steps:
        rounds += 1
    return rounds * steps - comb(snapshots + rounds, snapshots + 1)
