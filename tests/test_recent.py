"""A program that has been optimised is not optimised again, and none that has changed is taken for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hyad
from hyad.core import LEAF, Node, Program
from hyad.passes import optimise as passes
from hyad.program import recent
from hyad.program.alike import same_programs

TEXT = "(fn [#^ (Vec n) v] (ifold (fn [s i] (+ s (* k (sin (get v i))))) 0.0 (len v)))"
V = np.linspace(0.1, 1.0, 5)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the programs that go through all passes."""
    found: list[str] = []
    plain = passes.optimise

    def watched(program: Program, *args, **kwargs) -> Program:
        found.append(program.name)
        return plain(program, *args, **kwargs)

    monkeypatch.setattr(passes, "optimise", watched)
    return found


def test_other_targets_and_the_cost_ask_for_no_other_program(runs: list[str]) -> None:
    f = hyad.model(TEXT, namespace={"k": 2.0})
    made = [hyad.compile(f, target=t) for t in ("python", "c")]
    assert len(runs) == 1 and made[0].program is made[1].program
    assert hyad.compile(hyad.grad(f), target="python").program is hyad.compile(hyad.grad(f), target="c").program
    assert len(runs) == 2
    hyad.cost(f, args=(V,))
    again = len(runs)
    hyad.compile(f, target="python", args=(V,))
    assert len(runs) == again
    assert [m(V) for m in made] == pytest.approx([2.0 * np.sum(np.sin(V))] * 2, rel=1e-15)


def test_what_is_switched_off_makes_another_one(runs: list[str]) -> None:
    f = hyad.model(TEXT, namespace={"k": 2.0})
    for k, without in enumerate(((), "fuse", "rules", ("fuse", "rules"))):
        hyad.compile(f, target="python", without=without)
        assert len(runs) == k + 1
    hyad.compile(f, target="python", without=("rules", "fuse"))
    assert len(runs) == 4
    hyad.compile(f, target="c", threads=2)
    assert len(runs) > 4


def test_what_a_model_reads_may_have_changed(runs: list[str]) -> None:
    around = {"k": 2.0, "v0": np.array([1.0, 2.0])}
    f = hyad.model(TEXT, namespace=around)
    g = hyad.model("(fn [x] (* x (sum v0)))", namespace=around)
    for k, x in ((3.0, 4.0), (-0.0, 7.0), (0.0, 8.0)):
        around["k"], around["v0"][1] = k, x
        assert hyad.compile(f, target="python")(V) == k * np.sum(np.sin(V))
        assert hyad.compile(g, target="python")(2.0) == 2.0 * (1.0 + x)


def test_a_primitive_may_have_changed() -> None:
    """What is known of it has been computed with the one before."""
    f = hyad.model("(fn [x] (dot (build 3 (fn [i] (recent-scale (real i)))) [x x x]))", namespace={})
    for k in (2.0, 5.0):
        hyad.defprim("recent-scale", ["x"], partials=[str(k)], python=lambda x, k=k: k * x, c=f"{k}*{{0}}")
        assert hyad.compile(f, target="python")(1.0) == hyad.compile(f)(1.0) == 3.0 * k


def test_the_names_of_a_program_are_its_own(runs: list[str]) -> None:
    texts = (
        "(defmodel f [#^ (Vec n) a] (sum a))",
        "(defmodel f [#^ (Vec n) b] (sum b))",
        "(defmodel g [#^ (Vec n) a] (sum a))",
    )
    programs = [hyad.compile(hyad.model(text), target="python").program for text in texts]
    assert [(p.name, p.params[0].name) for p in programs] == [("f", "a"), ("f", "b"), ("g", "a")]


def test_the_last_ones_are_remembered() -> None:
    recent.forget()
    models = [hyad.model(TEXT, namespace={"k": float(k)}) for k in range(recent.MOST + 1)]
    first = hyad.compile(models[0], target="python").program
    assert hyad.compile(models[0], target="python").program is first
    for f in models[1:]:
        hyad.compile(f, target="python")
    assert hyad.compile(models[0], target="python").program is not first
    recent.forget()


def test_whoever_asks_what_happens_is_told() -> None:
    f = hyad.model(TEXT, namespace={"k": 2.0})
    hyad.compile(f, target="python")
    assert (
        [s.name for s in hyad.explain(hyad.grad(f)).steps] == [s.name for s in hyad.explain(hyad.grad(f)).steps] != []
    )


def test_programs_that_are_called_otherwise_are_others() -> None:
    f = hyad.model(TEXT, namespace={"k": 2.0})
    one, other = f.program(), f.program()
    assert one is not other and same_programs(one, other)
    for change in (
        {"name": "g"},
        {"doc": "another"},
        {"names": ("s",)},
        {"out": Node((LEAF,))},
        {"ins": (Node((LEAF,)),)},
    ):
        assert not same_programs(one, replace(other, **change))
