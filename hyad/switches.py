"""The optimisations by name: what each does, and which a user switches off."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import HyadError
from .passes.optimise import PIPELINE, WITH_VECTORS, named
from .program.rewrite import rules

#: The optimisations that are the builder's own, made as a program is built.
BUILT = {
    "rules": "the rules of rules.hy, all of them",
    "sharing": "what is computed twice is computed once",
    "hoisting": "what an iteration does not change is computed before the loop",
    "kept-rows": "a row of numbers made of several each, which a loop inside another reads, is made before, once",
    "recursion": "recursion on known integers that is long, written out, is a function of the program",
    "rolling": "recursion whose course is known, and long, is written out as loops over tables",
    "remembering": "what is dearer to compute again than to remember is remembered for reverse mode",
    "any-order": "a loop whose iterations each change a place of their own goes forwards in reverse mode, too",
    "few-inputs": "a gradient by one or two numbers, through a loop with a state, takes tangents along",
    "checkpoint": "a loop with :checkpoint n keeps n of its states for reverse mode, and computes the others again",
}

#: Those that are done for one call on a GPU alone, in their order.
ON_A_GPU = {
    "courses": "a loop over time that does the same with each element of its states is inside, in one kernel",
    "elsewhere": "a row that a loop reads of the array it changes, and does not change, is copied before it",
    "branch-inside": "a branch that has a loop is inside that loop, so that each element has a thread",
    "teams": "a team of threads has each row of a matrix, in few passes over it",
    "stencils": "what a loop adds to neighbouring elements is a sum that each element's thread takes",
    "apart": "a loop with loops over arrays in it is several, each a nest with a thread for each place",
    "gather": "what many threads would add to one element is a sum that one thread takes",
    "rectangles": "a triangle of iterations is a rectangle, half of whose threads are idle",
    "beside": "loops over vectors of one length stand side by side",
    "vectors": "what is done with vectors of one length is few passes, one kernel where they are short",
    "from-nothing": "a fold that would start with what another one gives starts with nothing, and waits for none",
    "online": "sums of exponentials below the largest of some numbers are taken as that is looked for",
    "long-rows": "few long rows have several blocks each, a kernel or two for each pass over them",
    "few-places": "where a device has room for more threads than there are places with long folds, each has a team",
    "staging": "short rows of neighbouring threads are moved together, through shared memory",
    "striding": "arrays of a thread in memory lie between those of its neighbours, element by element",
    "directions": "a warp takes the directions of a derivative that one thread would take step by step",
    "thread-order": "neighbouring threads have neighbouring iterations of that loop of a nest by which they read least",
    "ahead": "a thread reads what its next four places need before it computes the first",
    "persistent": "loops of the host and launches side by side with little work are kernels of one block",
}


def optimisations(by_rule: bool = False) -> dict[str, str]:
    """The optimisations that can be switched off, with a line on what each does: what the builder does by itself, then
    the passes in the order of their first run; ``by_rule`` the rules of rules.hy one by one, too."""
    found = {**BUILT, **{name: f"on a GPU, {about}" for name, about in ON_A_GPU.items()}}
    for p in (*PIPELINE, *WITH_VECTORS):
        found.setdefault(named(p), purpose(p))
    for rows in rules().values() if by_rule else ():
        found.update((rule.name, f"{rule.pattern} => {rule.template}") for rule in rows)
    return found


def chosen(names: str | Iterable[str]) -> tuple[str, ...]:
    """The names of optimisations as they were given, one or several; raises ``HyadError`` for one that is none."""
    if not isinstance(names, Iterable):
        raise HyadError(
            f"without is {names!r}, not a name or several", None, 'without="fuse", or without=["fuse", "jam"]'
        )
    asked = (names,) if isinstance(names, str) else tuple(names)
    known = optimisations(by_rule=True)
    for name in asked:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(str(name), known, 3)
            all_of_them = f"there are {', '.join(optimisations())}, and the rules"
            hint = f"did you mean {' or '.join(near)}?" if near else all_of_them
            raise HyadError(f"there is no optimisation {name!r}", None, hint)
    return asked


def purpose(p: Any) -> str:
    """What a pass is for: its docstring, up to the first blank line."""
    return " ".join((p.__doc__ or "").split("\n\n")[0].split())
