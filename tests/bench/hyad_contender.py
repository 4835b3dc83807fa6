"""hyad as a contender, through its public functions only.

``derivative_of`` gives what the other generators give, C text and the call to make; everything between the model's
file and that text is timed. The order of the C parameters comes from the ``CFunction`` record, nothing is parsed.
"""

from __future__ import annotations

import sys
import time
from math import prod
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the checkout, installed or not

import hyad  # noqa: E402

from measure import Contender  # noqa: E402
from problems import GRADIENT, HESSIAN, JACOBIAN, VALUE_AND_GRADIENT, Problem  # noqa: E402

OPERATORS = {
    JACOBIAN: hyad.jacobian,
    HESSIAN: hyad.hessian,
    GRADIENT: hyad.grad,
    VALUE_AND_GRADIENT: hyad.value_and_grad,
}


def c_function(f: Any) -> Any:
    """The ``CFunction`` of a model whose parameters are annotated: C text, and how to call it."""
    return hyad.compile(f, target="c").cfunction


def derivative_of(problem: Problem, n: int, fixed: bool) -> Contender:
    """The derivative of ``problem``'s model; ``fixed`` writes the size into its annotations as a number."""
    text = problem.model.read_text()
    if fixed:
        text = text.replace("(Vec n)", f"(Vec {n})").replace("(Mat n n)", f"(Mat {n} {n})")
    active = tuple(i.name for i in problem.inputs if i.active)
    start = time.perf_counter()
    model = hyad.model(text) if text.count("(defmodel") == 1 else getattr(hyad.load(written(text)), problem.name)
    f = c_function(OPERATORS[problem.kind](model, wrt=active if len(active) > 1 else active[0]))
    prepare = time.perf_counter() - start
    declaration, call, work = how_to_call(f, problem, n)
    name = "hyad, n fixed" if fixed else "hyad"
    return Contender(name, f.source, declaration, call, prepare, work=work, header=(f"{f.name}.h", f.header))


def written(text: str) -> Path:
    """A file of models with this text."""
    import tempfile

    path = Path(tempfile.mkdtemp()) / "models.hy"
    path.write_text(text)
    return path


def how_to_call(f: Any, problem: Problem, n: int) -> tuple[str, str, int]:
    """The C declaration, the call with ``{NAME}`` for the inputs, and the reals of workspace."""
    sizes: dict[str, int] = {}
    for param, given in zip(f.params, problem.inputs):
        sizes.update((d, size) for d, size in zip(param.dims, given.shape(n)) if isinstance(d, str))
    arguments = ["{" + given.name + "}" for given in problem.inputs] + [str(sizes[d]) for d in f.dims]
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
        work = int(eval(f.workspace, {"__builtins__": {}}, dict(sizes)))  # a C expression of + and * over the dims
    return f"{f.prototype};", f"{before}{f.name}({', '.join(arguments)})", work
