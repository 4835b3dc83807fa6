"""The optimisations by name: what each does, and which a user switches off."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .errors import HyadError
from .passes.optimise import PIPELINE, WITH_VECTORS, named
from .program.rewrite import rules

#: The optimisations that are the builder's own, made as a program is built.
BUILT = {
    "rules": "Applies the rewrite rules of rules.hy, all of them.",
    "sharing": "Computes common subexpressions once.",
    "hoisting": "Moves loop-invariant code in front of the loop.",
    "kept-rows": "Stores a row that an inner loop reads again and again, where fusion would recompute its elements.",
    "banded": "Leaves out the zeros, in products and systems, of matrices made with few diagonals or as triangles.",
    "ranges": "Computes what is read of a range of integers from the subscript.",
    "last-states": "Reads the last of the states that a loop stacks as the one that it ends with.",
    "known-zeros": "Leaves out the known zeros of small matrices in products.",
    "recursion": "Makes recursion on known integers a function, where inlining it would make the program too long.",
    "rolling": "Turns long recursion of known course into loops over tables of its operands.",
    "remembering": "Stores for reverse mode what is dearer to recompute than to load.",
    "any-order": "Runs the backward loop in the forward order where each iteration changes elements of its own.",
    "spared": "Copies a row that a loop reads and, by a condition, does not change: reverse mode remembers it once.",
    "guarded": "Takes loops that change an array out of a branch: reverse mode remembers elements, not the array.",
    "views": "Reads parts of arrays, as slices are, where they lie: adjoints of elements, and none of the part.",
    "few-inputs": "Takes a gradient by few numbers through recursion or a loop with a state in forward mode.",
    "columns-of-states": "Takes the columns of a Jacobian of states, each made of the one before, side by side (CPU).",
    "trips": "Runs inner loops that are as long as an integer of each iteration says once, to the largest (CPU).",
    "checkpoint": "Stores n states of a loop with ``:checkpoint n`` for reverse mode, and recomputes the others.",
}

#: Those that are done for one call on a GPU alone, in their order.
ON_A_GPU = {
    "folded": "Computes the elements of a row that one loop folds where it does so, and stores no row.",
    "courses": "Moves a loop over time that does the same with each element of its states into one kernel.",
    "elsewhere": "Copies a row that a loop reads of the array that it changes, so that its iterations are independent.",
    "branch-inside": "Moves a branch around a loop into the loop, so that each element has a thread.",
    "elements": "Adds a row where data says by a thread for each element, so that neighbours add neighbours.",
    "teams": "Gives each row of a matrix to a team of threads, which makes few passes over it.",
    "stencils": "Turns what a loop adds to neighbouring elements into a sum by each element's thread (a gather).",
    "apart": "Splits a loop around loops over arrays into nests with a thread for each element (loop fission).",
    "sums-first": "Adds up what is multiplied by the same numbers in all iterations, and multiplies the sums.",
    "turned": "Adds to the elements of a matrix row by row where a loop does so column by column.",
    "gather": "Turns atomic additions to known elements into sums, each taken by one thread.",
    "rectangles": "Makes a triangle of iterations a rectangle, in which half of the threads are idle.",
    "batches": "Takes what a loop over a batch adds up or stacks of products as products of the whole batch.",
    "beside": "Moves loops over vectors of one length next to each other, so that they can share a kernel.",
    "vectors": "Fuses loops over vectors of one length into few kernels: one block where the vectors are short.",
    "from-nothing": "Starts a reduction that continues another one at its identity (0 for a sum), and combines both.",
    "online": "Takes the largest element and the sum of exponentials relative to it in one pass (online softmax).",
    "long-rows": "Shares each of few long rows among several blocks, with a kernel or two for each pass.",
    "few-places": "Gives each long reduction to a team of threads where there are too few reductions to fill the GPU.",
    "copies": "Adds up in a block's shared memory what it adds to few elements, and adds the sums to these at its end.",
    "staging": "Moves the short rows of neighbouring threads together, through shared memory (coalescing).",
    "tiles": "Reads matrices with their subscripts the other way round by tiles, through shared memory (coalescing).",
    "striding": "Interleaves the local arrays of a warp's threads, element by element (coalescing).",
    "directions": "Shares the directions of a derivative, which one thread would take in turn, among a warp.",
    "thread-order": "Assigns neighbouring threads to the loop of a nest along which they read the least memory.",
    "ahead": "Loads what a thread needs for its next four elements before it computes the first (prefetching).",
    "persistent": "Runs host loops, and small launches side by side, as one kernel of one block.",
}


def optimisations(by_rule: bool = False) -> dict[str, str]:
    """The optimisations that can be switched off, with a line on what each does: what the builder does by itself, then
    the passes in the order of their first run; ``by_rule`` the rules of rules.hy one by one, too."""
    found = {**BUILT, **{name: f"On a GPU: {about}" for name, about in ON_A_GPU.items()}}
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
