"""The encodings of reverse mode, through the public API: one derivative, whatever stands between forward and backward
code. (On typed core, against differences: ``test_recursion.py``.)"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hyad
import memoised
import neutral
import oracle
from hyad import memo
from hyad.codegen.data import types_in
from hyad.frontend.specialise import Specialiser
from hyad.model import derived
from hyad.program.journal import without
from hyad.program.values import ENCODINGS
from programs import NAMESPACE, Programs, arguments

OTHERS = [e for e in ENCODINGS if e != "record"]
COUNT = int(os.environ.get("HYAD_ENCODING_PROGRAMS", "100"))
FIRST = int(os.environ.get("HYAD_PROPERTY_SEED", "0"))
CHUNK = 20
REVERSE = ("grad", "vjp", "jacobian", "hessian", "hvp")
CASES = [
    pytest.param(c, id=c["id"])
    for c in (*neutral.cases("public.json"), *neutral.cases("more.json"))
    if any(word in neutral.model_text(c["program"]) for word in REVERSE)
]
POWER = "(fn [x #^ Int n] (letrec [p (fn [n] (if (= n 0) 1.0 (* x (sin (p (- n 1))))))] (p n)))"


@pytest.fixture
def default(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the encoding of the derivatives that name none: those inside models."""
    start = Specialiser.start

    def choose(encoding: str) -> None:
        def with_encoding(self: Specialiser) -> None:
            start(self)
            self.encoding = encoding

        monkeypatch.setattr(Specialiser, "start", with_encoding)

    return choose


@pytest.mark.some(6)
@pytest.mark.parametrize("target", ["python", "c"])
@pytest.mark.parametrize("encoding", OTHERS)
@pytest.mark.parametrize("c", CASES)
def test_known_values(c: dict[str, Any], encoding: str, target: str, default: Any) -> None:
    default(encoding)
    model = hyad.model(neutral.model_text(c["program"]), namespace={})
    for inputs, expected in zip(c["inputs"], c["expected"]):
        args = tuple(map(neutral.decode, inputs))
        try:
            got = memoised.compile(model, target=target, args=args)(*args)
        except hyad.NotCompiled:
            return  # which these are, test_public_cases knows
        found = oracle.mismatch(got, neutral.decode(expected), c["tolerance"]["rtol"], c["tolerance"]["atol"])
        assert found is None, f"{c.get('note')}: {found}"


def gradients(seed: int, target: str) -> list[np.ndarray] | None:
    """Value and gradient of a random program, in each encoding; None where it has no typed program."""
    text, (point, _, _) = Programs(seed).text(), arguments(seed)
    found = []
    for encoding in ENCODINGS:
        f = hyad.value_and_grad(hyad.model(text, namespace=NAMESPACE), encoding=encoding)
        try:
            found.append(np.array(oracle.numbers(hyad.compile(f, target=target, args=point)(*point))))
        except hyad.NotCompiled:
            return None
    return found


@pytest.mark.some(10)
@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_random_programs(first: int) -> None:
    """All in Python, two of each chunk in C (``HYAD_ENCODING_C=1``: all)."""
    failures, compiled = [], 0
    for seed in range(first, first + CHUNK):
        in_c = seed < first + 2 or "HYAD_ENCODING_C" in os.environ
        for target in ("python", "c") if in_c else ("python",):
            try:
                found = gradients(seed, target)
                compiled += found is not None
                ok = found is None or all(np.allclose(x, found[0], 1e-9, 1e-9, equal_nan=True) for x in found)
                wrong = "" if ok else f"{found}"
            except Exception as error:  # every program is tried
                wrong = f"{type(error).__name__}: {error}"
            if wrong:
                failures.append(f"seed {seed}, {target}: {Programs(seed).text()}\n  {wrong}")
    assert not failures, "\n".join(failures)
    assert compiled > CHUNK // 2


@pytest.mark.parametrize("encoding", OTHERS)
def test_every_operator_takes_an_encoding(encoding: str) -> None:
    f = hyad.model("(fn [x] (letrec [p (fn [n] (if (= n 0) 1.0 (* (get x 0) (+ (get x 1) (p (- n 1))))))] (p 4)))")
    x, v = np.array([0.7, 1.3]), np.array([0.2, -0.4])
    for operator in (hyad.grad, hyad.value_and_grad, hyad.jacobian, hyad.hessian):
        got, want = operator(f, encoding=encoding)(x), operator(f)(x)
        np.testing.assert_allclose(oracle.numbers(got), oracle.numbers(want), rtol=1e-12)
    np.testing.assert_allclose(hyad.vjp(f, x, 2.0, encoding=encoding), hyad.vjp(f, x, 2.0), rtol=1e-12)
    np.testing.assert_allclose(hyad.hvp(f, (x,), v, encoding), hyad.hvp(f, (x,), v), rtol=1e-12)


@pytest.mark.parametrize("encoding", OTHERS)
def test_an_encoding_is_a_model_of_its_own(encoding: str) -> None:
    """Text, stages, code and caches: the two derivatives of one model are not mixed up."""
    f = hyad.model(POWER)
    one, two = hyad.grad(f), hyad.grad(f, encoding=encoding)
    assert one(1.1, 4) == pytest.approx(two(1.1, 4), rel=1e-13)
    for name in ("typed", "optimised", "python", "c"):
        texts = {str(hyad.show(g, name, args=(1.1, 4))) for g in (one, two)}
        assert len(texts) == 2, name
    want = hyad.grad(one)(1.1, 4)
    for outer, inner in ((encoding, encoding), (encoding, "record"), ("record", encoding)):
        assert hyad.grad(hyad.grad(f, encoding=inner), encoding=outer)(1.1, 4) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("encoding", OTHERS)
def test_emitted(encoding: str, tmp_path: Path) -> None:
    c, header = hyad.emit(hyad.grad(POWER, encoding=encoding), tmp_path, args=(1.1, 4))
    assert c.read_text(encoding="utf-8") == str(hyad.show(hyad.grad(POWER, encoding=encoding), "c", args=(1.1, 4)))
    assert "f_grad(" in header.read_text(encoding="utf-8")


def test_the_cache_keeps_the_encodings_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo, "BUILTIN", frozenset(memo.PRIMITIVES))  # whatever other tests have added
    f = hyad.model(POWER, namespace={})
    paths = {memo.path_of(derived("grad", f, None, e).value, f.specs((1.1, 4)), {}) for e in ENCODINGS}
    assert len(paths) == len(ENCODINGS) and None not in paths


def made_of(f: hyad.Model, *args: Any) -> set[str]:
    """What the data of a model's program are: ``record`` for the records of functions, ``function`` for closures."""
    with without(["few-inputs"]):  # by one number: else forwards
        return {data.name.rpartition("-")[2] for data in types_in(f.optimised(f.specs(args)))}


@pytest.mark.parametrize("encoding", OTHERS)
def test_inner_derivatives_take_the_encoding_of_the_outer_one(encoding: str) -> None:
    f = hyad.model("(fn [x #^ Int n] (* x ((grad (fn [x] (letrec [p (fn [n] (if (= n 0) 1.0 (* x (sin (p (- n 1))))))]"
                   " (p n)))) (sin x))))")  # fmt: skip
    assert "function" not in made_of(hyad.grad(f), 1.1, 4)
    assert "record" not in made_of(hyad.grad(f, encoding=encoding), 1.1, 4)
    inner = made_of(hyad.grad(hyad.grad(POWER, encoding=encoding)), 1.1, 4)
    assert "record" in inner and inner & {"function", "continuation"}


def test_an_unknown_encoding() -> None:
    for make in (hyad.grad, hyad.value_and_grad, hyad.jacobian, hyad.hessian):
        with pytest.raises(hyad.ModelTypeError, match="there is no encoding 'tape'") as error:
            make("(fn [x] x)", encoding="tape")
        assert '"record"' in error.value.hint and '"closure"' in error.value.hint
    with pytest.raises(hyad.ModelTypeError, match="there is no encoding None"):
        hyad.vjp("(fn [x] x)", (1.0,), 1.0, encoding=None)


# ------------------------------------------------------------------------------------- straight lines

STRAIGHT = [
    ("(fn [x y] (* (** x 3) (** y 4)))", (1.1, 0.7)),
    ("(fn [x y] (let [t (sin (* x y))] (/ (exp t) (+ t x))))", (1.1, 0.7)),
    ("(fn [x] (let [f (fn [a b] (* a (cos b)))] (f (f x x) (f 2.0 x))))", (1.1,)),
    ("(fn [v] (+ (* (get v 0) (get v 1)) (exp (get v 2))))", (np.array([0.3, 0.7, -0.2]),)),
    ("(fn [p] (let [#(a b) p] (* a (sqrt b))))", ((0.3, 0.7),)),
]


@pytest.mark.parametrize("target", ["c", "python"])
@pytest.mark.parametrize(("text", "args"), STRAIGHT)
def test_straight_lines_are_the_same_code(text: str, args: tuple, target: str) -> None:
    found, *others = (str(hyad.show(hyad.value_and_grad(text, encoding=e), target, args=args)) for e in ENCODINGS)
    assert others == [found] * 2
    assert not any(word in found for word in ("cell", "arena", "continu", "record", "closure", "tag", "struct"))


# ------------------------------------------------------------------------------------- continuations in C


def c_of(f: hyad.Model, *args: Any) -> str:
    return str(hyad.show(f, "c", args=args))


def test_continuations_are_on_the_stack() -> None:
    """As in Lantern's Fig. 14: a local struct whose address is handed down; in the arena are adjoints alone."""
    source = c_of(hyad.grad(POWER, encoding="continuation"), 1.1, 4)
    assert re.search(r"const struct p_continuation_cell k1 = \{x, k\};", source)
    assert re.search(r"p_cps\(arena, n - 1, x, &k1\)", source)
    assert "new_p_continuation" not in source


def test_what_remembers_a_continuation_has_it_in_the_arena() -> None:
    """The records of a second derivative live longer than the call that made what they hold."""
    for outer in OTHERS[::-1]:
        f = hyad.grad(hyad.grad(POWER, encoding="continuation"), encoding=outer)
        assert f(1.1, 6) == pytest.approx(hyad.grad(hyad.grad(POWER))(1.1, 6), rel=1e-12)
    f = hyad.grad(hyad.grad(POWER, encoding="continuation"))
    assert "new_p_continuation" in c_of(f, 1.1, 4)
    assert f(1.1, 6) == pytest.approx(hyad.grad(hyad.grad(POWER))(1.1, 6), rel=1e-12)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "text",
    [
        "(letrec [f (fn [k] (* x (if (= k 0) 1.0 (f (- k 1)))))] (f n))",
        "(letrec [f (fn [k] (let [r (if (= k 0) x (f (- k 1)))] (* x (+ 1.0 r))))] (f n))",
        "(letrec [f (fn [k] (let [r (if (= k 0) x (if (> x 9.0) (f (- k 2)) (f (- k 1))))] (sin (* x r))))] (f n))",
        "(letrec [f (fn [k] (sin (if (< k 2) (if (= k 0) x (f (- k 1))) (* x (f (- k 1))))))] (f n))",
        "((ifold (fn [old i] (fn [t] (sin (+ (old t) x)))) (fn [t] t) n) 0.3)",
        "(letrec [f (fn [k y] (if (= k 0) (* x y) (f (- k 1) (sin (* x y)))))] (f n 1.0))",
    ],
)
def test_code_after_a_branch_that_ends_with_a_call(text: str) -> None:
    """A call at the end of a branch is none at the end of the function, unless the branch is."""
    f = hyad.model(f"(fn [x #^ Int n] {text})", namespace={})
    for n in (0, 1, 3, 6):
        wanted = hyad.run(f, 0.5, n), *[hyad.value_and_grad(f, wrt=0)(0.5, n)[1]]
        for encoding in ("closure", "continuation"):
            got = hyad.value_and_grad(f, wrt=0, encoding=encoding)(0.5, n)
            assert got == pytest.approx(wanted, rel=1e-13)
    assert hyad.check_grad(f, (0.5, 4))


WHILE = """(fn [x #^ Int n] (let [s (ref x) i (ref 0.0)]
  (while (< (deref i) n) (set! s (* 0.5 (+ (deref s) (sin (* x (deref s)))))) (set! i (+ (deref i) 1))) (deref s)))"""


def test_a_while_is_a_recursive_function() -> None:
    record, continued = (hyad.grad(WHILE, encoding=e) for e in ("record", "continuation"))
    assert continued(0.9, 100) == pytest.approx(record(0.9, 100), rel=1e-12)
    back = hyad.compile(record, args=(0.9, 3), without="few-inputs").cfunction.source  # by one number: else forwards
    assert "hyad_grow(" in back and "hyad_grow(" not in c_of(continued, 0.9, 3)
    assert "go_cps(" in c_of(continued, 0.9, 3)


@pytest.mark.parametrize("target", ["c", "python"])
def test_deep_recursion_is_an_error(target: str) -> None:
    """The stack is the tape: it is as deep as there are calls, and its end is said."""
    f = hyad.compile(hyad.grad(POWER, encoding="continuation"), target=target, args=(0.9, 3))
    assert f(0.9, 2000) == pytest.approx(hyad.grad(POWER)(0.9, 2000), rel=1e-12)
    with pytest.raises(hyad.HyadError, match="recursion is too deep"):
        f(0.9, 10_000_000 if target == "c" else 3_000_000)
