"""What the specialiser knows beside the program that it makes: what references hold, types, the place that it is at.

What meets at a place is joined (``families``): values of one structure stay apart in registers, others become data.
What is not known yet (a recursive result's type, a family's constructors, what a loop sets) is found by specialising
again until nothing changes: types only grow, so that this ends. An array that ``set-at!`` changes is a ``Cell``, read
where it is used (``held``); where it must go on as a value, ``set-at!`` of it is refused from there (``copied``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..core import Arr, Atom, Data, Lambda, Var
from ..errors import Span
from ..program.builder import Builder
from ..program.values import Cell, Closure, Frame, Place, TupleValue, Value, is_array
from .branches import cases
from .families import Again, Bottom, Dead, Endless, Facts, Family, Instance, Recursion, Sizes, Target, target_of
from .store_passing import new_cell, touch
from .subscripts import get

RUNS = 200  # a model is specialised so often at most until all its types are known
NEWS = 1000  # and so many things are found out about them: fifty are many


class Flow:
    """The state of one specialisation, for the modules that take a ``Specialiser``."""

    b: Builder
    facts: Facts
    store: dict[Cell, Value]

    def start(self) -> None:
        """Before each run."""
        for instance in self.facts.instances.values():
            instance.function = None
        self.store = {}
        self.known: dict[Var, Value] = {}  # data whose constructor a branch has found
        self.tests: dict[Var, tuple[Var, frozenset[Any]]] = {}  # (null? l): true for these constructors
        self.frame = Frame(None, None, None)
        self.site: Any = None
        self.seen: dict[tuple, int] = {}
        self.passed: list[tuple] = []  # what ``seen`` has counted, the latest last
        self.branching = 0  # branches on run-time values around
        self.making: list[tuple[Closure, Instance, list[Any]]] = []  # the recursive functions being made
        self.open_loops: list[tuple[int, frozenset[Cell]]] = []
        self.active: dict[Lambda, list[int]] = {}
        self.walked = 0  # surface bindings so far
        self.entered: dict[Lambda, int] = {}  # how many when a function was entered, not from itself
        self.began: dict[Lambda, list[Arr]] = {}  # and the types of its arrays then
        self.spent: dict[Lambda, int] = {}  # how many all such calls of it took
        self.made: list[Instance] = []  # those with a function in this run, the latest last
        self.written: dict[tuple, tuple[Span | None, Span | None]] = {}  # a reference: where made, where last set
        self.shared: set[tuple] = set()  # arrays that other values hold a copy of, which should be the array itself
        self.holders: dict[tuple, Span | None] = {}  # where these were made
        self.copies: dict[tuple, set[Var]] = {}  # and these copies
        self.params_of: dict[Atom, tuple[Any, int]] = {}  # of recursive functions: arrays that ``set-at!`` may change

    # ---------------------------------------------------------------------------------------- places

    def frame_number(self, frame: Frame) -> int:
        """A number for the calls that are being inlined, the same in every run."""
        if frame.number is None:
            parent = self.frame_number(frame.parent) if frame.parent is not None else -1
            key = (parent, frame.site, frame.function)
            frame.number = self.facts.places.setdefault(key, len(self.facts.places))
        return frame.number

    def place(self, site: Any = None) -> int:
        """A number for this point of the program, the same in every run and for no other evaluation of it."""
        key = (self.frame_number(self.frame), site if site is not None else self.site)
        count = self.seen[key] = self.seen.get(key, 0) + 1
        self.passed.append(key)
        return self.facts.places.setdefault((*key, count), len(self.facts.places))

    def settled(self, part: Callable[[], Any]) -> Any:
        """What a part of the program gives: specialised again as long as that tells something new.

        Design decision: a loop's or a function's types are found where it stands. The whole is then specialised once
        more for all of them, and not once for each. What a part that is given up has emitted stays; nothing reads it.
        """
        facts, made, passed = self.facts, len(self.made), len(self.passed)
        state = dict(self.store), self.known, self.branching, list(self.open_loops), self.b.span
        shared, spent = set(self.shared), dict(self.spent)
        span = self.b.span
        while facts.news < NEWS:
            news = facts.news
            try:
                return part()
            except Recursion as found:
                if facts.news == news or self.active.get(found.function):
                    raise
            except (Again, Bottom):
                if facts.news == news:
                    raise
            for other in self.made[made:]:  # these may call what is made anew
                other.function = None
            for key in self.passed[passed:]:
                self.seen[key] -= 1
            del self.made[made:], self.passed[passed:]
            store, self.known, self.branching, open_loops, self.b.span = state
            self.store, self.open_loops, self.shared = dict(store), list(open_loops), set(shared)
            self.spent = dict(spent)
        raise Endless(span)

    # ------------------------------------------------------------------------------ targets, arrays held

    def target(self, value: Value, sizes: dict[Atom, str] | None = None) -> Target:
        """What is known of a value as it is now."""
        return target_of(self.held(value), {} if sizes is None else sizes, self.facts.find)

    def now(self, value: Value) -> Value:
        """A structure with its arrays as they are now."""
        if isinstance(value, TupleValue):
            return TupleValue(tuple(map(self.now, value.items)), value.keys, value.make)
        return self.held(value)

    def changeable(self, value: Value) -> Value:
        """An array that comes from outside, held where ``set-at!`` can change it."""
        if self.facts.mutates and type(value) is Var and isinstance(value.type, Arr):
            return new_cell(self, value, array=True)
        if self.facts.mutates and isinstance(value, TupleValue):
            return TupleValue(tuple(map(self.changeable, value.items)), value.keys, value.make)
        return value

    def held(self, value: Value) -> Value:
        """An array that is changed in place, as it is now."""
        while isinstance(value, Cell) and value.array:
            touch(self, value)
            value = self.store[value]
        if isinstance(value, Place) and not value.reference:
            return get(self, [self.held(value.array), *value.indices], (), None)
        return value

    def copied(self, value: Value) -> Value:
        """A structure with its arrays as they are now, for what should hold the arrays themselves: from here on they
        cannot be changed."""
        if isinstance(value, TupleValue):
            return TupleValue(tuple(map(self.copied, value.items)), value.keys, value.make)
        held = self.held(value)
        if is_array(value):
            key = value.key if isinstance(value, Cell) else value.array.key  # type: ignore[union-attr]
            self.shared.add(key)
            self.holders[key] = self.b.span
            self.copies.setdefault(key, set()).add(held)  # type: ignore[arg-type]
        return held

    def join(self, place: Any, a: Target, b: Target, sizes: Sizes | None = None, loop: bool = False) -> Target:
        """What holds of both; ``loop``: they meet at the start of a loop's iterations."""

        def family(sort: Any) -> Family:
            kind = sort[0] if isinstance(sort, tuple) and len(sort) == 2 and isinstance(sort[1], tuple) else sort
            return self.facts.family((place, sort), kind)

        self.facts.recursive_now = bool(self.making)
        return self.facts.join(a, b, family, sizes, loop)

    # ------------------------------------------------------------------------------------------ data

    def family_of(self, value: Value) -> Family | None:
        """The family of data that only a run knows the constructor of."""
        if isinstance(value, Var) and isinstance(value.type, Data) and value not in self.known:
            return self.facts.of_data[self.facts.find(value.type)]
        return None

    def look(self, value: Value) -> Value:
        """A value as far as it is known here: data whose constructor a branch has found is apart."""
        value = self.held(value)
        return self.known.get(value, value) if type(value) is Var else value

    def doubted(self, value: Value) -> None:
        """Raise the mistake of a branch that forgets its value, now that the value is used."""
        family = self.family_of(value)
        if family is None or family.doubt is None or family.sort != "list" or self.facts.changed:
            return
        if self.boxed_array(value):
            return
        if not any(m.make is tuple or m.make is None for m in family.members.values()):
            raise family.doubt

    def gives_function(self, value: Value) -> bool:
        """Whether data is a function that is only known at run time."""
        family = self.family_of(value)
        return family is not None and family.sort == "function"

    def impossible(self, message: str) -> Value:
        """Code that ends the call: the branch that it is in fails when it runs."""
        raise Dead(message, self.b.span)

    def boxed_array(self, value: Value) -> bool:
        """Whether a value is an array whose sizes only a run knows."""
        family = self.family_of(value)
        return family is not None and bool(family.members) and all(m.make == "array" for m in family.members.values())

    def with_arrays(self, args: Sequence[Value], then: Callable[[list[Value]], Value], var: Var | None) -> Value:
        """``then`` of arguments whose arrays are known with their sizes."""
        for k, a in enumerate(args):
            if self.boxed_array(a):
                return cases(self, a, lambda v: self.with_arrays([*args[:k], v, *args[k + 1 :]], then, var), var)  # type: ignore[arg-type]
        return then(list(args))
