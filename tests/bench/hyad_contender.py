"""hyad as a contender, through its public functions only.

``derivative_of`` gives what the other generators give, C text and the call to make; everything from the model's
file to the loaded function is timed. The order of the C parameters comes from the ``CFunction`` record of the
compiled function, nothing is parsed.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout, installed or not

import hyad  # noqa: E402
from hyad.codegen.build import openmp_settings  # noqa: E402, F401
from measure import Contender  # noqa: E402
from suite import GRADIENT, HESSIAN, JACOBIAN, VALUE_AND_GRADIENT, Problem  # noqa: E402

OPERATORS = {
    JACOBIAN: hyad.jacobian,
    HESSIAN: hyad.hessian,
    GRADIENT: hyad.grad,
    VALUE_AND_GRADIENT: hyad.value_and_grad,
}


def derivative_of(problem: Problem, n: int, fixed: bool, math: str = "libm") -> Contender:
    """The derivative of ``problem``'s model; ``fixed`` writes the size into its annotations as a number.

    ``own_compile`` is the C compiler's share of the time that ``hyad.compile`` takes, into an empty cache.
    """
    text = problem.model.read_text()
    if fixed:
        text = text.replace("(Vec n)", f"(Vec {n})").replace("(Mat n n)", f"(Mat {n} {n})")
    active = tuple(i.name for i in problem.inputs if i.active)
    with empty_cache() as folder:
        path = folder / "models.hy"
        path.write_text(text)
        start, before = time.perf_counter(), compiler_seconds()
        model = getattr(hyad.load(path), problem.name)
        derivative = OPERATORS[problem.kind](model, wrt=active if len(active) > 1 else active[0])
        f = hyad.compile(derivative, target="c", math=math).cfunction
        spent = time.perf_counter() - start
        compiler = min(spent, compiler_seconds() - before)
    declaration, call, work = how_to_call(f, problem, n)
    return Contender(
        "hyad" + ", vector math" * (math == "vector") + ", n fixed" * fixed,
        f.source,
        declaration,
        call,
        spent - compiler,
        work=work,
        header=(f"{f.name}.h", f.header),
        own_compile=compiler,
    )


def compiler_seconds() -> float:
    """CPU seconds of the processes that this one started and waited for."""
    spent = os.times()
    return spent.children_user + spent.children_system


@contextmanager
def empty_cache() -> Iterator[Path]:
    """A folder of its own that is also hyad's cache of compiled code; it goes when the block ends."""
    before = os.environ.get("HYAD_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYAD_CACHE"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["HYAD_CACHE"]
            else:
                os.environ["HYAD_CACHE"] = before


def how_to_call(f: Any, problem: Problem, n: int, point: dict[str, Any] | None = None) -> tuple[str, str, int]:
    """The C declaration, the call with ``{NAME}`` for the inputs, and the reals of workspace. ``point`` has the values
    of inputs that are sizes. What takes an arena is declared by its header, and takes the caller's ``arena``."""
    sizes: dict[str, int] = {}
    arguments = []
    for param, given in zip(f.params, problem.inputs):
        sizes.update((d, size) for d, size in zip(param.dims, given.shape(n)) if isinstance(d, str))
        if param.elem == "int" and not param.dims and point:
            sizes[param.name] = point[given.name]
        integers = "(const long long *)(const void *)" if param.elem == "int" and param.dims else ""
        arguments.append(integers + "{" + given.name + "}")
    arguments += [str(sizes[d]) for d in f.dims]
    work = 0
    if f.returns_value:
        before = "{out}[0] = "
    else:
        before, at = ("status |= " if f.fallible else ""), 0
        for result in f.results:
            arguments.append(f"{{out}} + {at}")
            at += prod(sizes.get(d, d) for d in result.dims)
    if f.workspace is not None:
        arguments.append("{work}")
        room = re.sub(r"\((\w+) > 0 \? \1 : 0\)", r"max(\1, 0)", f.workspace)
        work = int(eval(room, {"__builtins__": {}, "max": max}, dict(sizes)))  # beside that, + and * over the sizes
    if f.arena:
        arguments.append("&arena")
    return f.header if f.arena else f"{f.prototype};", f"{before}{f.name}({', '.join(arguments)})", work
