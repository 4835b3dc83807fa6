"""Logarithms of sums of exponentials, an exponential for each term (``hyad/passes/log_sums.py``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Block, Const, If, Loop, Prim, all_binds, blocks_of
from hyad.passes.fusion import branches, makes_sums
from hyad.passes.log_sums import LEAST

#: What is tried: a model, and by which of a matrix ``m``, rows ``b`` and a number ``c`` it is differentiated.
CHAIN = "(logsumexp (fold (fn [a e] {}) (get b 0) (slice b 1 (len b))))"
PROGRAMS = {
    "each state": CHAIN.format(
        "(build (len e) (fn [j] (+ (get e j) (logsumexp (build (len a) (fn [i] (+ (get a i) (get m i j))))))))"
    ),
    "whole matrices": CHAIN.format("(+ e (logsumexp (+ (expand-dims a 1) m) 0))"),
    "the logarithm as it is written": CHAIN.format(
        "(build (len e) (fn [j] (+ (get e j) (log (sum (build (len a) (fn [i] (exp (+ (get a i) (get m i j))))))))))"
    ),
    "the largest as it is written": CHAIN.format(
        """(build (len e) (fn [j]
             (let [x (build (len a) (fn [i] (- (get m i j) (- (get a i))))) top (amax x)]
               (+ (get e j) (log (ifold (fn [s i] (+ s (exp (- (get x i) top)))) 0.0 (len a))) top))))"""
    ),
    "the largest once more": CHAIN.format(
        """(build (len e) (fn [j]
             (let [x (build (len a) (fn [i] (+ (get m i j) (get a i)))) top (amax x)]
               (+ (get e j) (* 0.1 (- (log (sum (exp (- x top)))) top))))))"""
    ),
    "a logarithm that is read twice": CHAIN.format(
        """(build (len e) (fn [j]
             (let [x (build (len a) (fn [i] (+ (get m i j) (get a i)))) top (amax x) l (log (sum (exp (- x top))))]
               (+ (get e j) (* 0.1 (+ l top)) (* 0.2 l)))))"""
    ),
    "multiples": CHAIN.format(
        """(build (len e) (fn [j]
             (- (get e j) (* c (logsumexp (build (len a) (fn [i] (/ (- (* 2.0 (get m i j)) (get a i) 0.5) c))))))))"""
    ),
    "a table": """(let [a (zeros [(len b) (len m)])]
        (for [j (range (len m))] (set-at! a 0 j (get b 0 j)))
        (for [t (range 1 (len b))  j (range (len m))]
          (set-at! a t j (+ (get b t j) (logsumexp (build (len m) (fn [i] (+ (get a (- t 1) i) (get m i j))))))))
        (logsumexp (get a (- (len b) 1))))""",
    "back": """(logsumexp (ifold
        (fn [a t] (build (len m) (fn [i]
          (logsumexp (build (len m) (fn [j] (+ (get m i j) (get b (- (len b) t 1) j) (get a j))))))))
        (zeros [(len m)]) (len b)))""",
    "two ways": """(sum (fst (ifold
        (fn [#(f g) t] (let [f (build (len m) (fn [i] (- c (logsumexp (- g (get m i))))))]
                         #(f (build (len m) (fn [j]
                               (- c (logsumexp (build (len m) (fn [i] (- (get f i) (get m i j)))))))))))
        #((get b 0) (get b 1)) 4)))""",
    "three terms": """(sum (build [(len b) (len m) (len m)] (fn [t i j]
        (logsumexp (build (len m) (fn [k] (+ (get b t k) (get m i k) (get m k j))))))))""",
}
WRT = ("m", "b", "c")


def model(name: str) -> hyad.Model:
    return hyad.model(f"(fn [#^ (Mat k k) m #^ (Mat n k) b #^ Real c] {PROGRAMS[name]})", namespace={})


def point(k: int = 5, n: int = 4, scale: float = 1.0) -> tuple[Any, ...]:
    rng = np.random.default_rng(k + n)
    return scale * rng.uniform(-4, 0, (k, k)), scale * rng.uniform(-3, 1, (n, k)), 0.7


def deepest(block: Block, depth: int = 0) -> int:
    """In how many loops the innermost exponential is; where a sum that is too small is taken again, none counts."""
    found = 0
    for x in block.binds:
        op = x.op
        if type(op) is Prim and op.name == "exp":
            found = max(found, depth)
        inner = blocks_of(op)
        if type(op) is If and any(tested(y.op) and op.cond in y.vars for y in block.binds):
            inner = (op.then,)
        found = max([found, *(deepest(b, depth + (type(op) is Loop)) for b in inner)])
    return found


def tested(op: Any) -> bool:
    return type(op) is Prim and op.name == "<=" and type(op.args[0]) is Const and op.args[0].value == LEAST


def close(f: hyad.Model, args: tuple, rtol: float = 1e-12, atol: float = 1e-13) -> None:
    for one, other in zip(memoised.results(f, args), memoised.results(f, args, without=["log-sums"])):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=atol)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_fewer_exponentials(name: str) -> None:
    f, args = model(name), point()
    loops = 4 if name == "three terms" else 3
    assert deepest(f.without(["log-sums"]).optimised(f.specs(args)).body) >= loops
    assert deepest(f.optimised(f.specs(args)).body) <= loops - 1
    assert "log-sums" in [step.name for step in hyad.explain(f, args=args).steps]
    g = hyad.grad(f, wrt=WRT)
    assert deepest(g.optimised(g.specs(args)).body) <= loops - 1


def test_sums_stay_apart_from_branches() -> None:
    """Several are taken at once: none is taken in the loop that asks whether they are large enough."""
    for made in (model("each state"), hyad.grad(model("each state"), wrt=WRT)):
        loops = [x.op for x in all_binds(made.optimised(made.specs()).body) if type(x.op) is Loop]
        asking = [op for op in loops if any(tested(x.op) for x in op.body.binds)]
        assert asking and all(map(branches, asking)) and not any(map(makes_sums, asking))


@pytest.mark.some(10)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("size", [(5, 4), (1, 2), (9, 3)])
def test_values_and_derivatives(name: str, size: tuple[int, int]) -> None:
    f, args = model(name), point(*size)
    close(f, args)
    np.testing.assert_allclose(hyad.compile(f)(*args), hyad.run(f, *args), rtol=1e-12)
    close(hyad.grad(f, wrt=WRT), args)
    hyad.check_grad(f, args, wrt=WRT)


@pytest.mark.some(10)
@pytest.mark.parametrize("name", PROGRAMS)
def test_second_derivatives(name: str) -> None:
    f, args = model(name), point(3, 3)
    close(hyad.hessian(f, wrt="c"), args, rtol=1e-9, atol=1e-10)
    close(hyad.hessian(f, wrt="b"), args, rtol=1e-9, atol=1e-10)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ["each state", "back", "two ways", "three terms"])
@pytest.mark.parametrize("scale", [30.0, 300.0, 3000.0])
def test_products_that_underflow_are_taken_again(name: str, scale: float) -> None:
    """The largest terms stand in different places: as written, no product of exponentials is far from 0."""
    m, b, c = point(6, 4, scale)
    np.fill_diagonal(m, 0.0)  # and a state that stays alone is reached from no other one
    close(model(name), (m, b, c), rtol=1e-13, atol=0.0)
    for one, other in zip(
        memoised.results(hyad.grad(model(name), wrt=WRT), (m, b, c)),
        memoised.results(hyad.grad(model(name), wrt=WRT), (m, b, c), without=["log-sums"]),
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-250)


@pytest.mark.some(3)
@pytest.mark.parametrize("name", ["each state", "whole matrices", "a table", "back"])
@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
@pytest.mark.parametrize("where", ["one", "a row", "a column", "all"])
def test_infinities(name: str, value: float, where: str) -> None:
    m, b, c = point()
    m[{"one": (1, 2), "a row": 1, "a column": np.s_[:, 2], "all": np.s_[:]}[where]] = value
    np.testing.assert_allclose(
        memoised.compile(model(name))(m, b, c), memoised.compile(model(name), without=["log-sums"])(m, b, c), rtol=1e-13
    )
    if np.isneginf(value) and where == "one":  # no path goes from one state to another
        close(hyad.grad(model(name), wrt=("m", "b")), (m, b, c))


def test_sums_out_of_range_have_logarithms() -> None:
    """As it is written, the sum is infinite, or 0."""
    f = model("the logarithm as it is written")
    for shift in (900.0, -900.0):
        m, b, c = point()
        b[0] += shift
        expected = hyad.compile(model("each state"), without=["log-sums"])(m, b, c)
        np.testing.assert_allclose(hyad.compile(f)(m, b, c), expected, rtol=1e-13)
        assert np.isinf(hyad.compile(f, without=["log-sums"])(m, b, c))


@pytest.mark.parametrize("off", [0, 3])
def test_nothing_is_read_before_it_is_checked(off: int) -> None:
    f = hyad.model(
        """(fn [#^ (Mat k l) m #^ (Vec k) a #^ Int off #^ Int n] (sum (ifold (fn [a t]
          (build (len a) (fn [j] (logsumexp (build (len a) (fn [i] (+ (get a i) (get m i (+ j off))))))))) a n)))""",
        namespace={},
    )
    m, b, _ = point(4)
    for target in ("python", "c"):
        call = hyad.compile(f, target)
        assert call(m, b[0], off, 0) == pytest.approx(b[0].sum())
        if off:
            with pytest.raises(hyad.errors.BoundsError):
                call(m, b[0], off, 2)
        else:
            assert call(m, b[0], off, 2) == pytest.approx(hyad.run(f, m, b[0], off, 2), rel=1e-14)
    assert "log-sums" in [step.name for step in hyad.explain(f, args=(m, b[0], 0, 2)).steps]


@pytest.mark.some(2)
@pytest.mark.parametrize("step", ["(+ x x)", "(- (* 0.5 x) x)", "(+ x (* c x))"])
def test_long_exponents_take_no_longer(step: str) -> None:
    """Each of fifty sums is of the one before, twice."""
    sums = " ".join(f"x (* 0.4 {step})" for _ in range(50))
    f = hyad.model(
        f"""(fn [#^ (Mat k k) m #^ (Mat n k) b #^ Real c] (sum (build [n k] (fn [t j]
          (logsumexp (build k (fn [i] (let [x (+ (get b t i) (get m i j)) {sums}] x))))))))""",
        namespace={},
    )
    close(f, point())
    close(hyad.grad(f, wrt=WRT), point())


LEFT = {
    "one loop": "(sum (build (len b) (fn [t] (logsumexp (build (len m) (fn [i] (+ (get b t i) (get m 0 i))))))))",
    "a term of both loops": """(sum (build [(len b) (len m)] (fn [t j]
        (logsumexp (build (len m) (fn [i] (* (get b t i) (get m i j))))))))""",
    "no array": CHAIN.format(
        """(build (len e) (fn [j] (+ (get e j)
             (logsumexp (build (len a) (fn [i] (- (get a i) (square (- (get m 0 i) (get m 1 j))))))))))"""
    ),
    "a state of the inner loop": """(sum (ifold (fn [a t] (fst (ifold
        (fn [#(a s) j] #((update a j (logsumexp (build (len m) (fn [i] (+ (get a i) (get m i j)))))) s))
        #(a 0.0) (len m)))) (get b 0) 3))""",
    "another start": """(sum (build [(len b) (len m)] (fn [t j]
        (log (ifold (fn [s i] (+ s (exp (+ (get b t i) (get m i j))))) 1.0 (len m))))))""",
    "no sum": """(sum (build [(len b) (len m)] (fn [t j]
        (log (ifold (fn [s i] (+ (* 0.5 s) (exp (+ (get b t i) (get m i j))))) 0.0 (len m))))))""",
    "no exponential": """(sum (build [(len b) (len m)] (fn [t j]
        (log (sum (build (len m) (fn [i] (+ 1.0 (exp (+ (get b t i) (get m i j))))))))))) """,
}


@pytest.mark.parametrize("name", LEFT)
def test_what_saves_nothing_is_left(name: str) -> None:
    f = hyad.model(f"(fn [#^ (Mat k k) m #^ (Mat n k) b] {LEFT[name]})", namespace={})
    assert "log-sums" not in [step.name for step in hyad.explain(f, args=point()[:2]).steps]
    close(f, point()[:2])


@pytest.mark.parametrize("name", ["each state", "back", "two ways"])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_floats(name: str, scale: float) -> None:
    """Their range is less: a sum that they do not hold is taken again, and no state is reached by -inf."""
    m, b, c = point(6, 4, scale)
    np.fill_diagonal(m, 0.0)
    m[:, 2] = -np.inf
    f = model(name)
    made = hyad.compile(f, dtype="f32")(m.astype(np.float32), b.astype(np.float32), np.float32(c))
    np.testing.assert_allclose(made, memoised.compile(f)(m, b, c), rtol=1e-4)
