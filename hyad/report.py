"""What hyad did to a model, and what the result costs: ``hyad.explain`` and ``hyad.cost``.

Both give an object that prints as a table and holds the numbers. Counts are of ``counts.py``: of the program, at the
sizes of the arguments given (an array's dimension that nothing says is 100), and not timings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from .call_errors import misfit
from .core import INT, REAL, Arr, Leaf, Loop, Program, Var, all_binds, elem_of, functions_of, leaves, same, type_of
from .differentiate.checkpoint import repeated
from .differentiate.jacobians import STATES, direction, extent, recurrent
from .errors import HyadError, ModelTypeError, Span, border
from .frontend.annotations import parameters
from .marshalling import take_apart
from .model import Model, as_model
from .passes.optimise import named, optimise
from .passes.threads import spread
from .plain_python import unfit
from .program.counts import ASSUMED, Cost, Schedule
from .program.counts import cost as count
from .program.counts import dims as sizes_of
from .program.journal import Kept, keeping, recorded
from .program.journal import without as switched_off
from .program.reader import deep
from .program.values import Derived
from .stages import Stages
from .switches import chosen, purpose

# ---------------------------------------------------------------------------------------------- explain


@dataclass
class Step:
    """One step of the optimiser that changed the program: its name, what it is for, the counts before and after, the
    rules that fired in it (name, place), and the loops and arrays that it did away with (the text that they came from,
    how many)."""

    name: str
    about: str
    before: Cost
    after: Cost
    fired: list[tuple[str, Span | None]] = field(default_factory=list)
    gone: dict[str, int] = field(default_factory=dict)


@dataclass
class Explanation:
    """What the optimiser did to one program: ``steps`` in order. It prints as a table, with the places below. With
    ``threads``, ``loops`` has the place of each loop and how it runs on them, or why it does not; with the target
    "cuda" how each runs on a GPU."""

    name: str
    sizes: str
    steps: list[Step]
    without: tuple[str, ...] = ()
    threads: int = 1
    loops: list[tuple[str, str]] = field(default_factory=list)
    target: str = "c"

    def fired(self) -> dict[str, list[Span | None]]:
        """Every rule that fired, with the places of the forms."""
        found: dict[str, list[Span | None]] = {}
        for step in self.steps:
            for name, span in step.fired:
                found.setdefault(name, []).append(span)
        return found

    def __str__(self) -> str:
        first, last = self.steps[0].before, self.steps[-1].after
        head = [f"{self.name}{self.sizes}: {_ratio(first.work, last.work)}"]
        if self.without:
            head.append(f"switched off: {', '.join(self.without)}")
        rows = [("", *COLUMNS)]
        rows.append(("as differentiated", *(_number(getattr(first, c)) for c in COLUMNS)))
        for step in self.steps:
            rows.append((step.name, *(_change(step, c) for c in COLUMNS)))
        rows.append(("as compiled", *(_number(getattr(last, c)) for c in COLUMNS)))
        return "\n".join([*head, "", *_table(rows), *self._what()])

    __repr__ = __str__

    def _what(self) -> list[str]:
        """Below the table: what each step did, and where."""
        lines: list[str] = []
        for step in self.steps:
            lines += ["", f"{step.name}: {step.about}" if step.about else step.name]
            lines += [f"  gone{_times(n)}: {text}" for text, n in step.gone.items()]
            for name, n in Counter(name for name, _ in step.fired).most_common():
                places = Counter(_place(s) for fired, s in step.fired if fired == name and s is not None)
                shown = [f"{place}{_times(k)}" for place, k in places.most_common(3)]
                more = [f"and {len(places) - 3} more places"] if len(places) > 3 else []
                lines.append(f"  {name}{_times(n)}: {'; '.join(shown + more)}".rstrip(": "))
        if self.loops:
            lines += ["", "on a GPU:" if self.target == "cuda" else f"on {self.threads} threads:"]
            lines += [f"  {place}{_times(n)}: {how}" for (place, how), n in Counter(self.loops).items()]
        return lines


#: How many inputs a model has at most whose sparse Jacobian a card looks at unasked.
LOOKED_AT = 5_000

COLUMNS = ("bindings", "loops", "arrays", "operations", "transcendental", "loads", "stores")


@border
def explain(
    f: Any,
    *,
    args: Sequence[Any] | None = None,
    without: str | Iterable[str] = (),
    threads: int = 1,
    target: str = "c",
) -> Explanation:
    """What the optimiser did to a model or a derived one: which passes and rules fired, where, and what each saved.

    The signature is that of ``args``, else of the last call, else of the annotations. Counts are of the program at the
    sizes of ``args``; a dimension that nothing gives is 100. ``without`` names optimisations to leave out, for
    measuring and for doubt (``hyad.optimisations()`` lists them; ``hyad.compile`` takes the same). With ``threads`` it
    says of each loop how it runs on so many, or why on one. ``target`` is "c" or "cuda": the latter goes on to what is
    done for one call on a GPU, and says how each loop runs there. Raises the errors of ``hyad.errors``.

    >>> print(hyad.explain(hyad.grad("(fn [x] (* x (sin x)))")))    # doctest: +SKIP
    """
    if target not in ("c", "cuda"):
        raise HyadError(f"there is no target {target!r} to explain", None, 'targets are "c" and "cuda"')
    if type(threads) is not int or threads < 1:
        raise ModelTypeError(f"threads is {threads!r}", None, "a number of threads: 1 or more")
    if target == "cuda" and threads > 1:
        raise HyadError("the target 'cuda' has no threads", None, 'target "c" has')
    model, off = as_model(f, "explain"), chosen(without)
    specs = model.called_as(args)
    raw = model.program(specs, plain=True)
    _require_fit(model, raw, args)
    costs = [_counted(raw, args)]
    forms = [_forms(raw)]
    steps: list[Step] = []
    with switched_off(off), recorded() as fired:

        def watch(name: str, about: str, program: Program) -> None:
            costs.append(_counted(program, args))
            forms.append(_forms(program))
            if name == "dead-code" and len(steps) > 1:  # what the step before has left is its own to take away
                last = steps[-1]
                last.after, last.gone = costs[-1], dict(forms[-3] - forms[-1])
                last.fired += fired
                del costs[-2], forms[-2]
            else:
                steps.append(Step(name, about, *costs[-2:], list(fired), dict(forms[-2] - forms[-1])))
            fired.clear()

        program = model.program(specs)
        watch("building", "rules, sharing and hoisting, as each operation is made", program)

        def passed(p: Any, made: Program) -> None:
            watch(named(p), purpose(p), made)

        places: list[tuple[str, str]] = []
        if target == "cuda":
            places = _on_a_gpu(model.optimised(specs, "cuda", blas=True, watch=passed), watch, fired)
        else:
            deep(lambda: optimise(program, watch=passed))
        if threads > 1:
            loops = spread(model.optimised(specs, threads=threads))
            places = [("a loop" if b.span is None else f"loop of {_place(b.span)}", how) for b, how in loops]
    kept = [s for s in steps if s is steps[0] or s.fired or s.gone or _differs(s)]
    return Explanation(model.name, _sizes(raw, args), kept, off, threads, places, target)


def _on_a_gpu(program: Program, watch: Callable[[str, str, Program], None], fired: list) -> list[tuple[str, str]]:
    """Tell ``watch`` of what is done to a program for one call on a GPU: forms, and how they run."""
    from .codegen.grid import print_grid
    from .grid.gather import spread
    from .switches import ON_A_GPU

    apart = deep(lambda: spread(program, watch=lambda name, made: watch(name, ON_A_GPU[name], made)))
    with recorded() as again:
        notes = deep(lambda: print_grid(program)).notes
    fired += [(name, span) for name, span in again if name in ON_A_GPU]
    watch("kernels", "one call as launches and the steps of a host", apart)
    return [(_short(form), how) for form, how in notes]


def _differs(step: Step) -> bool:
    return any(getattr(step.before, c) != getattr(step.after, c) for c in COLUMNS)


def _forms(program: Program) -> Counter[str]:
    """The places of a program's loops."""
    bodies = [program.body, *(f.body for f in functions_of(program.body) if f.body is not None)]
    found = [b.span for body in bodies for b in all_binds(body) if type(b.op) is Loop]
    return Counter(f"loop of {_place(s)}" for s in found if s is not None)


def _place(span: Span) -> str:
    line, column = span.source.position(span.start)
    return f"{_short(span.text)} at {line}:{column}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 48 else text[:45] + "..."


# ------------------------------------------------------------------------------------------------- cost


@dataclass
class Card:
    """What a model and its derivatives cost. ``columns`` maps a program's name to its counts; ``memory`` has, for each,
    bytes of local arrays (``stack``; of each function once), of the workspace, whether it takes an ``arena``, the bytes
    that it takes of it (``taken``, for one of what) and whether arrays too (``unsized``), and bytes of C ``source``;
    ``why`` says which mode the derivative takes."""

    name: str
    sizes: str
    columns: dict[str, Cost]
    memory: dict[str, dict[str, Any]]
    why: list[str]

    def __str__(self) -> str:
        rows = [("", *self.columns)]
        for row in ("operations", "transcendental", "work", "loads", "stores", "bindings", "loops", "arrays", "cells"):
            values = [getattr(c, row) for c in self.columns.values()]
            if any(values) or row == "operations":
                rows.append((_LABELS.get(row, row), *map(_number, values)))
        for row in ("stack", "workspace", "arena", "source"):
            values = [m[row] for m in self.memory.values()]
            if row == "arena":
                values = [_from_arena(m)[0] for m in self.memory.values()] if any(values) else []
            if any(values):
                rows.append(("bytes of C" if row == "source" else f"bytes of {row}", *map(_number, values)))
        first = next(iter(self.columns.values()))
        if len(self.columns) > 1 and first.work:
            rows.append(("work / value's", *(f"{c.work / first.work:.2f}" for c in self.columns.values())))
        unknown = sorted(set().union(*(c.unknown for c in self.columns.values())))
        notes = [f"counted once each: {', '.join(unknown)}"] if unknown else []
        for name, memory in self.memory.items():
            more = _from_arena(memory)[1]
            notes += [f"arena of {name}: {', '.join(more)}"] * bool(more)
        below = [*self.why, *notes]
        return "\n".join([f"{self.name}{self.sizes}", "", *_table(rows), *([""] if below else []), *below])

    __repr__ = __str__


def _from_arena(memory: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The bytes that a program takes of its arena: how many are known, and what it takes for each round or call."""
    if not memory["arena"]:
        return "0", []
    more = [f"{_number(n)} bytes {unit}" for unit, n in sorted(memory["taken"].items()) if unit]
    more += ["arrays of computed size"] * memory["unsized"]
    known = _number(memory["taken"].get("", 0))
    return (f"{known} + below" if known != "0" else "below") if more else known if known != "0" else "takes one", more


_LABELS = {"transcendental": "  transcendental", "work": "work, in additions"}


@border
def cost(f: Any, *, args: Sequence[Any] | None = None, without: str | Iterable[str] = ()) -> Card:
    """A cost card: what a model and its derivatives (or a derived model and its base) cost, counted from the programs
    that are compiled: operations, transcendental calls, loads and stores, loops, memory, bytes of C; and which mode
    the derivative takes, and why. Of a model that gives an array, and of a Jacobian or Hessian at ``args``, also how
    many entries of the Jacobian or Hessian can be other than zero, how ``sparse_jacobian`` or ``sparse_hessian``
    computes them, why so, and what that costs (column ``sparse``). Where a model's parameters are reals and arrays of
    reals, it needs no ``args`` for that.

    Bytes of an arena are counted for one round of a ``while`` and for one call of a recursive function: how many there
    are depends on the data.

    ``args`` and ``without`` as for ``explain``. Raises the errors of ``hyad.errors``.
    """
    model, off = as_model(f, "cost"), chosen(without)
    specs = model.called_as(args)
    base, given = model, None if args is None else list(args)
    if isinstance(model.value, Derived):
        base = Model(model.value.function, model.name)
        known = parameters(base.value)
        if known is not None:
            specs, given = specs[: len(known)], None if given is None else given[: len(known)]
    with switched_off(off), keeping() as kept:
        made = Stages(base, specs)
        typed = made.program("optimised")
        _require_fit(base, typed, given)
        costs: dict[str, Cost] = {}
        memory: dict[str, dict[str, Any]] = {}

        def count_in(name: str, program: Program, given: Sequence[Any] | None, before: int = 0) -> None:
            known = _known(program, given)
            own = costs.setdefault(name, Cost())
            own.add(count(program, known, _again(kept[before:] or kept, program, given)))
            memory[name] = _together(memory.get(name), _memory(program, known))
            memory[name]["taken"] = own.taken

        count_in("value", typed, given)
        names = [name for name in ("forward", "reverse") if made.has(name)]
        for name in names:
            before = len(kept)
            program = made.program(name)
            count_in(name, program, None if given is None else given * (2 if name == "forward" else 1), before)
        forward, before = set[str](), len(kept)
        if base is not model:
            with recorded() as fired:
                program = model.optimised(model.called_as(args))
            forward = {name for name, _ in fired}.intersection(("few-inputs", "columns-of-states"))
            count_in(model.value.operator, program, args, before)
        why = _directions(made, model, typed, forward) if names else []
    why += _schedules(kept, typed, given)
    derivative = model.value if isinstance(model.value, Derived) else None
    if derivative is None and names and _many(typed.params) and _many(typed.body.results):
        derivative, args = Derived("jacobian", base.value), args if args is not None else _supposed(typed)
        numbers = sum(np.size(a) for tree, arg in zip(typed.ins, args or ()) for a in _flat(tree, arg))
        if numbers > LOOKED_AT:
            derivative = None
            why.append(f"sparse: not looked at for more than {_number(LOOKED_AT)} inputs; ask for that of the Jacobian")
    if args is not None and derivative is not None and derivative.operator in ("jacobian", "hessian"):
        told, programs = _sparse(base, derivative, args)
        why += told
        for program, values in programs:
            count_in("sparse", program, values)
    return Card(model.name, _sizes(typed, given), costs, memory, why)


def _directions(made: Stages, model: Model, typed: Program, forward: set[str]) -> list[str]:
    """How many directions the derivative of a model has, and which way it goes; ``forward``: whether gradients go
    forward in it (``few-inputs``), or Jacobians do (``columns-of-states``)."""
    operator = model.value.operator if isinstance(model.value, Derived) else None
    wrt = made.wrt()
    active = range(len(typed.ins)) if wrt is None else wrt
    params = _leaves_of(typed)
    inputs = extent([p for k in active for p in params[k] if elem_of(p) in (REAL, INT)])
    outputs = extent(typed.body.results)
    said = [f"{'any number of' if n is None else n} {what}{'s' * (n != 1)}" for n, what in
            ((inputs, "input"), (outputs, "result"))]  # fmt: skip
    if operator in ("grad", "value-and-grad", "vjp"):
        if "few-inputs" in forward:
            costs = "backwards, the states of loops and calls are remembered"
            return [f"forward, beside the value: {said[0]}, {said[1]}; {costs}"]
        return [f"reverse, at once: {said[0]}, {said[1]}"]
    if operator == "jacobian":
        mode, reason = ("forward", STATES) if "columns-of-states" in forward else direction(inputs, outputs)
        return [f"{mode}: {said[0]}, {said[1]}; {reason}"]
    if operator in ("hessian", "hvp"):
        return [f"forward over reverse: {said[0]}"]
    passes = [f"{said[0]}, {said[1]}: a gradient or an adjoint is one reverse pass, a tangent one forward pass"]
    if _many(typed.body.results):
        mode, reason = direction(inputs, outputs)
        reals = [p for k in active for p in params[k] if elem_of(p) == REAL]
        if mode == "reverse" and recurrent(typed.body, reals, same):
            mode, reason = "forward", STATES
        passes.append(f"a Jacobian is {mode}: {reason}")
    return passes


def _numbers(kept: Sequence[Kept], program: Program, args: Sequence[Any] | None) -> list[tuple[int | None, int | None]]:
    """Of the loops with ``:checkpoint``, how many steps they have and how many states they keep, where it is known."""
    known = {v.name: value for v, value in _known(program, args).items()}
    assumed = {**{d.name: float(ASSUMED) for d in program.dims}, **known}

    def number(affine: Any) -> int | None:
        if affine is None or any(v.name not in assumed for v in affine[1]):
            return None
        return int(affine[0] + sum(times * assumed[v.name] for v, times in affine[1].items()))

    found = []
    for loop in kept:
        steps, states = number(loop.steps), number(loop.snapshots)
        found.append((steps, states if steps is None or states is None else min(states, steps)))
    return found


def _again(kept: Sequence[Kept], program: Program, args: Sequence[Any] | None) -> dict[Span, Schedule]:
    """How the loops with ``:checkpoint`` run again, by their places: each state is kept once, in a round of its own.
    The loop itself is a round and, at the end, a step; each iteration backwards is counted as a round."""
    firsts: dict[tuple[Span, int, int], bool] = {}
    for loop, (steps, states) in zip(kept, _numbers(kept, program, args)):
        if loop.span is not None and steps is not None and states is not None and steps > 0:
            firsts[loop.span, steps, states] = loop.first  # what was derived last stands in the program
    totals: dict[Span, tuple[int, int, int]] = {}
    for (span, steps, states), first in firsts.items():
        rounds, counted, taken = totals.get(span, (0, 0, 0))
        totals[span] = (rounds + steps - 1, counted + steps + first, taken + repeated(steps, states))
    return {span: Schedule(r / n, taken / max(1, r)) for span, (r, n, taken) in totals.items()}


def _schedules(kept: Sequence[Kept], program: Program, args: Sequence[Any] | None) -> list[str]:
    """What the loops with ``:checkpoint`` keep, and how many steps they take."""
    lines: dict[str, None] = {}
    for loop, (steps, states) in zip(kept, _numbers(kept, program, args)):
        where = _place(loop.span) if loop.span is not None else "a loop"
        some = "few" if states is None else _number(states)
        if steps is None or states is None:
            lines[f"{where} keeps {some} of its states: how often a step is taken depends on their number"] = None
        else:
            taken = repeated(steps, states) + (min(steps, 1) if loop.first else steps)
            lines[
                f"{where} keeps {some} of its {_number(steps)} states: "
                f"{_number(taken)} steps in all to reach each of them, last to first"
            ] = None
    return list(lines)


def _sparse(
    base: Model, derivative: Derived, args: Sequence[Any]
) -> tuple[list[str], list[tuple[Program, Sequence[Any]]]]:
    """How many entries of a Jacobian or Hessian can be other than zero, how they are computed as a sparse one and why
    so; and the programs that do, with their arguments."""
    if find_spec("scipy") is None:
        return [], []
    from .sparse import SparseDerivative

    sparse = SparseDerivative(base, derivative.wrt, derivative.operator == "hessian")
    try:
        found, plan = sparse.pattern(*args), sparse.plan(*args)
    except HyadError as error:
        return [f"sparse: no ({error.message})"], []
    told = f"sparse: {found.nnz} of {found.shape[0]} x {found.shape[1]} entries, {plan.how}; {plan.why}"
    return [told], plan.programs(tuple(args))


def _many(atoms: Sequence[Any]) -> bool:
    """Whether there is an array of reals among some parameters or results."""
    return any(isinstance(t := type_of(a), Arr) and t.elem == REAL for a in atoms)


def _supposed(program: Program) -> list[Any] | None:
    """Arguments of the sizes that are supposed, where they say all that a pattern depends on: arrays of reals, and
    reals."""
    if any(type(t) is not Leaf for t in program.ins) or any(elem_of(p) != REAL for p in program.params):
        return None
    sizes = sizes_of(program)
    return [
        np.ones([int(sizes.get(d, ASSUMED)) if type(d) is Var else d.value for d in p.type.dims])
        if isinstance(p.type, Arr)
        else 1.0
        for p in program.params
    ]


def _leaves_of(program: Program) -> list[list[Var]]:
    """The parameters of a program by the argument that they are a part of."""
    params = iter(program.params)
    return [[next(params) for _ in range(leaves(tree))] for tree in program.ins]


# -------------------------------------------------------------------------------------------- the counts


def _known(program: Program, args: Sequence[Any] | None) -> dict[Var, float]:
    """The sizes and integers that arguments give to a program's parameters."""
    values: dict[Var, float] = {}
    flat = [x for tree, a in zip(program.ins, args or ()) for x in _flat(tree, a)]
    for p, value in zip(program.params, flat):
        if isinstance(p.type, Arr):
            for d, n in zip(p.type.dims, np.shape(value)):
                if type(d) is Var:
                    values[d] = float(n)
        elif p.type == INT:
            values[p] = float(value)
    return values


def _flat(tree: Any, value: Any) -> list[Any]:
    """The numbers and arrays of an argument."""
    take_apart(tree, value, flat := [])
    return flat


def _require_fit(model: Model, program: Program, args: Sequence[Any] | None) -> None:
    """Raise the error of a call whose arrays have other sizes than the model declares."""
    flat: list[Any] = []
    for tree, a in zip(program.ins, args or ()):
        take_apart(tree, a, flat)
    sizes: dict[Any, int] = {}
    for p, value in zip(program.params, flat):
        reason = unfit(p, value, sizes)
        if reason:
            raise misfit(f"argument {p.name} wants {reason}", model, program, tuple(args or ()), {})


def _counted(program: Program, args: Sequence[Any] | None) -> Cost:
    return count(program, _known(program, args))


def _sizes(program: Program, args: Sequence[Any] | None) -> str:
    """`` at n = 20``: the sizes that were given, or supposed."""
    known = _known(program, args)
    parts = [f"{d.name} = {int(known.get(d, ASSUMED))}" for d in program.dims]
    parts += [f"{p.name} = {int(known[p])}" for p in program.params if p.type == INT and p in known]
    return f" at {', '.join(parts)}" if parts else ""


def _memory(program: Program, sizes: Mapping[Var, float] | None = None) -> dict[str, Any]:
    """Bytes of a program's compiled form: local arrays, workspace, source; whether it takes an arena."""
    from hyad.codegen.c import print_c

    known = sizes or {}
    printed = print_c(program)
    work = printed.workspace
    if work:
        names = dict(zip(printed.dims, map(int, sizes_of(program, known).values())))
        names.update((c.name, int(known[p])) for c, p in zip(printed.params, program.params) if p in known)
        text = re.sub(r"\((\w+) > 0 \? \1 : 0\)", r"max(0, \1)", work.replace("/", "//"))
        try:
            work = 8 * int(eval(text, {"__builtins__": {"max": max}}, names))
        except (NameError, SyntaxError, ArithmeticError):  # it hangs on an integer that is not given
            work = f"8*({work})"
    return {
        "stack": printed.stack,
        "workspace": work or 0,
        "arena": printed.arena,
        "unsized": printed.unsized,
        "source": len(printed.source),
    }


def _together(one: dict[str, Any] | None, other: dict[str, Any]) -> dict[str, Any]:
    """The memory of two programs of which one runs after the other."""
    if one is None:
        return other
    text = next((m["workspace"] for m in (one, other) if isinstance(m["workspace"], str)), None)
    return {
        "stack": max(one["stack"], other["stack"]),
        "workspace": max(one["workspace"], other["workspace"]) if text is None else text,
        "arena": one["arena"] or other["arena"],
        "unsized": one["unsized"] or other["unsized"],
        "source": one["source"] + other["source"],
    }


# --------------------------------------------------------------------------------------------- their text


def _number(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}".replace(",", " ") if value else "0"


def _change(step: Step, column: str) -> str:
    change = getattr(step.after, column) - getattr(step.before, column)
    return f"{change:+,.0f}".replace(",", " ") if round(change) else ""


def _ratio(first: float, last: float) -> str:
    return f"{_number(first)} to {_number(last)} additions' worth of work" + (
        f", {first / last:.2f} times less" if last and first > last else ""
    )


def _times(n: int) -> str:
    return f" x{n}" if n > 1 else ""


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]).rstrip()
            for row in rows]  # fmt: skip
