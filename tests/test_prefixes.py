"""Loops that take one step more in each iteration of another are done once: the same to the last bit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import hyad
from hyad.core import Loop, Program, all_binds, kinds_of

RNG = np.random.default_rng(11)

#: Programs of v, w, a matrix m, numbers p and k, and n, the length of v; whether they are done in one loop.
PROGRAMS = {
    "running sums": ("(build n (fn [i] (exp (sum (slice v 0 (+ i 1))))))", True),
    "of what was before": ("(build n (fn [i] (* p (ifold (fn [s j] (+ s (* (get v j) (get w j)))) 1.0 i))))", True),
    "running maxima": ("(build n (fn [i] (- (max (slice v 0 (+ i 1))) (get v i))))", True),
    "means and squares": (
        """(build n (fn [i] (let [u (slice v 0 (+ i 1))  mean (/ (sum u) (real (+ i 1)))]
             (- (/ (sum (* u u)) (real (+ i 1))) (* mean mean)))))""", True,
    ),
    "a recurrence": ("(build n (fn [i] (ifold (fn [s j] (tanh (+ (* p s) (get v j)))) 0.5 (+ i 1))))", True),
    "a sum of sums": (
        "(ifold (fn [t i] (+ t (log (ifold (fn [s j] (+ s (exp (get v j)))) 0.0 (+ i 1))))) 0.0 n)", True,
    ),
    "an array and its sum": (
        """(build n (fn [i] (let [u (map sin (slice v 0 (+ i 1)))]
             (ifold (fn [s j] (+ s (* (get u j) (get w j)))) (get u 0) (+ i 1)))))""", True,
    ),
    "rows of a matrix": (
        "(build (len m) (fn [r] (sum (build n (fn [i] (square (sum (slice (get m r) 0 (+ i 1)))))))))", True,
    ),
    "loops inside": (
        """(build n (fn [i] (ifold (fn [s j] (+ s (if (> (get v j) 0.0) (sum (map (fn [x] (sin (* x (get v j)))) w))
                                             p)))
                                   0.0 (+ i 1))))""", True,
    ),
    "loops inside as far": (
        "(build n (fn [i] (ifold (fn [s j] (+ s (* (get v j) (sum (slice w 0 i))))) 0.0 (+ i 1))))", True,
    ),
    "arrays": (
        "(build n (fn [i] (sum (ifold (fn [u j] (map (fn [x] (sin (* x (get v j)))) u)) w (+ i 1)))))", False,
    ),
    "a part that is sorted": ("(build n (fn [i] (get (sort (map sin (slice v 0 (+ i 1)))) (// i 2))))", True),
    "a part that changes": (
        """(build n (fn [i] (sum (ifold (fn [u j] (update u j (+ (get u j) (get u 0))))
                                        (map sin (slice v 0 (+ i 1))) (+ i 1)))))""", False,
    ),
    "what may fail": ("(build n (fn [i] (ifold (fn [s j] (+ s (get v (* k j)))) 0.0 (+ i 1))))", True),
    "after what may fail": (
        "(build n (fn [i] (* (get v (* k i)) (ifold (fn [s j] (+ s (sin (get v j)))) 0.0 (+ i 1)))))", False,
    ),
    "with the index": ("(build n (fn [i] (ifold (fn [s j] (+ s (* (real i) (get v j)))) 0.0 (+ i 1))))", False),
    "of what changes": (
        "(ifold (fn [t i] (+ t (ifold (fn [s j] (+ s (* t (get v j)))) 0.0 (+ i 1)))) 0.1 n)", False,
    ),
    "from what changes": ("(ifold (fn [t i] (ifold (fn [s j] (* 0.5 (+ s (get v j)))) t (+ i 1))) 0.1 n)", False),
    "to the last": ("(build n (fn [i] (exp (sum (slice v i n)))))", False),
    "twice as far": ("(build n (fn [i] (ifold (fn [s j] (+ s (sin (* p (real j))))) 0.0 (* 2 i))))", True),
    "further by two": ("(build n (fn [i] (ifold (fn [s j] (+ s (sin (* p (real j))))) 0.0 (+ i 2))))", True),
    "less and less": ("(build n (fn [i] (ifold (fn [s j] (+ s (exp (* p (get v j))))) 0.0 (- n i))))", True),
    "as far as data says, and cheap": (
        "(build n (fn [i] (ifold (fn [s j] (+ (* p s) (real j))) 0.0 (int (* 4 (get w i))))))", False,
    ),
    "as far as an array says": (
        """(build n (fn [i] (* (get v i) (ifold (fn [s j] (+ (* p s) (exp (* p (real (- 0 j)))))) 0.5
                                                (int (* 4 (- (get w i) 0.2)))))))""", True,
    ),
    "two states as far": (
        """(ifold (fn [t i] (let [#(a b) (ifold (fn [#(a b) j] #((+ a (* b p)) (* b (cos (+ p a))))) #(0.0 1.0)
                                           (% (* 7 i) 5))]
                             (+ t (* a (get v i)) b))) 0.0 n)""", True,
    ),
    "as far as the state says": (
        "(ifold (fn [t i] (+ t (ifold (fn [s j] (+ s (sin (* p (real j))))) 0.0 (int (abs t))))) 3.0 n)", False,
    ),
}  # fmt: skip


NESTED = ("rows of a matrix", "loops inside", "loops inside as far", "a part that is sorted")


def model(name: str, total: bool = False) -> hyad.Model:
    """A program, or the sum of what it gives."""
    text = PROGRAMS[name][0]
    text = f"(let [n (len v)] {f'(sum {text})' if total and not text.startswith('(ifold') else text})"
    return hyad.model(f"(fn [#^ (Vec n) v #^ (Vec n) w #^ (Mat r n) m #^ Real p #^ Int k] {text})", namespace={})


def arguments(n: int) -> tuple:
    return RNG.normal(size=n), RNG.normal(size=n), RNG.normal(size=(2, n)), 0.7, 1


def flat(x: Any) -> np.ndarray:
    return np.concatenate([flat(y) for y in x]) if isinstance(x, tuple) else np.ravel(x)


def depth(source: str) -> int:
    """How many loops stand inside one another, those that are vectors aside."""
    lines = [line for line in source.splitlines() if re.match(r" +for ", line) and "lane" not in line]
    return max((len(line) - len(line.lstrip())) // 4 for line in lines)


@pytest.mark.some(10)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str) -> None:
    """In C a product and a sum may be one instruction or two, as its compiler likes."""
    f, g = model(name), hyad.grad(model(name, total=True), wrt=("v", "w", "m", "p"))
    args = arguments(5)
    assert any(step.name == "prefixes" for step in hyad.explain(f, args=args).steps) == PROGRAMS[name][1]
    exact, plain = (hyad.compile(f, "python", args=args, without=w) for w in ((), "prefixes"))
    values = [plain, *(hyad.compile(f, args=args, without=w) for w in ((), "prefixes"))]
    gradients = [hyad.compile(g, t, args=args, without=w) for t in ("c", "python") for w in ((), "prefixes")]
    for n in (0, 1, 2, 3, 20):
        args = arguments(n)
        np.testing.assert_array_equal(exact(*args), plain(*args))
        for made in (values, gradients):
            first, *others = (flat(h(*args)) for h in made)
            for other in others:
                np.testing.assert_allclose(first, other, rtol=1e-10, atol=1e-12)
    assert hyad.check_grad(f, arguments(4), wrt=("v", "w", "m", "p"))


@pytest.mark.parametrize("name", [k for k, (_, wanted) in PROGRAMS.items() if wanted and k not in NESTED])
def test_no_loop_is_inside_another(name: str) -> None:
    """Neither in the value nor in its gradient."""
    g = hyad.grad(model(name, total=True), wrt=("v", "w", "m", "p"))
    assert depth(hyad.compile(model(name)).source) == 1
    assert depth(hyad.show(g, "c")) == 1


def test_nothing_is_read_of_an_empty_array() -> None:
    """Python says so where C would not."""
    f = hyad.compile(model("running maxima"), "python")
    assert f(*arguments(0)).shape == (0,)


ANNUITIES = """(fn [#^ (Arr Int n) terms #^ (Vec n) coupons #^ (Vec m) rates]
  (let [total (ref 0.0)]
    (for [i (range n)]
      (let [d (ref 1.0)  a (ref 0.0)]
        (for [t (range (get terms i))]
          (set! d (* (deref d) (exp (- (get rates t)))))
          (set! a (+ (deref a) (deref d))))
        (set! total (+ (deref total) (square (- (* (get coupons i) (deref a)) (deref d)))))))
    (deref total)))"""


def test_payments_until_a_date() -> None:
    """As many exponentials as the longest term has payments; no term is too long, and none too short."""
    f = hyad.model(ANNUITIES)
    g = hyad.grad(f, wrt=("coupons", "rates"))
    terms, coupons, rates = np.array([3, 0, 7, 7, -2, 1]), RNG.uniform(0.1, 1, 6), RNG.uniform(0, 0.1, 7)
    for h in (f, g):
        assert depth(hyad.show(h, "c").split("{", 1)[1]) < depth(
            hyad.show(h.without(["prefixes"]), "c").split("{", 1)[1]
        )
    one, other = (flat(hyad.compile(h)(terms, coupons, rates)) for h in (g, g.without(["prefixes"])))
    np.testing.assert_allclose(one, other, rtol=1e-13)
    hyad.check_grad(f, (terms, coupons, rates), wrt=("coupons", "rates"))
    for h in (f, g):
        for made in (h, h.without(["prefixes"])):
            for target in ("c", "python"):
                with pytest.raises(hyad.BoundsError, match="index `t` is outside axis 0"):
                    hyad.compile(made, target)(np.array([1, 8]), coupons[:2], rates)
    assert hyad.compile(f)(np.zeros(0, int), np.zeros(0), np.zeros(0)) == 0.0


def test_no_iteration_takes_as_many_steps_as_there_might_be() -> None:
    """What the first and the last iteration would say is not the size of a table where there is none."""
    f = hyad.model("""(fn [#^ (Vec n) v #^ Real p #^ Int k]
      (sum (build n (fn [i] (* (get v i) (ifold (fn [s j] (+ s (exp (* p (real j))))) 0.0 (- k i)))))))""")
    assert "prefixes" in {step.name for step in hyad.explain(f).steps}
    assert hyad.compile(f)(np.zeros(0), 0.5, 10**13) == 0.0
    assert hyad.compile(f)(np.ones(2), 0.5, 3) == pytest.approx(2 + 2 * np.exp(0.5) + np.exp(1.0), rel=1e-14)


@pytest.mark.parametrize(
    ("text", "k"),
    [
        ("(build n (fn [i] (+ (get u (* k i)) (ifold (fn [s j] (+ s (sin (get v (* k j))))) 0.0 (+ i 1)))))", 2),
        (
            """(ifold (fn [y i] (let [steps (get t i)  x (get u (int y))]
                 (+ y x (ifold (fn [s j] (+ s (sin (* p (get v (* k j)))))) 0.0 steps)))) 9.0 n)""", 2,
        ),
    ],
)  # fmt: skip
def test_the_first_thing_that_fails_is_the_one_that_is_told(text: str, k: int) -> None:
    """Something before an inner loop fails in a later iteration, and the loop would too: it is not done before it."""
    f = hyad.model(f"(fn [#^ (Vec a) u #^ (Vec b) v #^ (Arr Int n) t #^ Real p #^ Int k] (let [n (len t)] {text}))")
    for off in ((), "prefixes"):
        with pytest.raises(hyad.BoundsError, match=r"index `(\(\* k i\)|\(int y\))` is outside"):
            hyad.compile(f, without=off)(np.ones(4), np.ones(3), np.array([1, 2, 3]), 0.3, k)


def test_no_kernel_makes_a_table_of_a_size_that_the_host_does_not_know() -> None:
    f = hyad.model(ANNUITIES)
    here, gpu, off = f.optimised(f.specs()), f.optimised(f.specs(), "cuda"), f.without(["trips"]).optimised(f.specs())

    def nested(program: Program) -> bool:
        return any(type(x.op) is Loop and Loop in kinds_of(x.op.body) for x in all_binds(program.body))

    assert not nested(here) and nested(gpu) and nested(off)
