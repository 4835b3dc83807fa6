"""The largest of many values and where it is (``hyad/passes/searches.py``): to the last bit what looking at one after
the other gives, at lengths around the lanes and the parts, among ties, zeros of both signs, infinities and
kinds of NaN."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
from hyad.core import Loop, all_binds
from hyad.passes.lanes import LANES
from hyad.passes.searches import LEAST, LEAST_PLACED, PART
from hyad.program.journal import without

#: NaN with payloads of their own, one negative.
NANS = np.array([0x7FF8000000000001, 0x7FF8000000000123, 0xFFF8000000000042], np.uint64).view(float)

ALPHABETS = (
    [0.0, -0.0],
    [0.0, -0.0, -1.0],
    [1.0, 2.0, 2.0],
    [-np.inf, -1.0, np.inf],
    [-np.inf],
    [*NANS[:2], 1.0, 3.0, -0.0, 0.0, -2.0, np.inf],
    [*NANS],
)

#: Around the lanes, and around the parts that are gone through once more.
LENGTHS = (1, 2, 3, LANES, *range(LEAST - 1, LEAST + 10), *range(LEAST_PLACED - 1, LEAST_PLACED + 9), PART - 1)
LENGTHS += (PART, PART + 1, PART + LANES, 2 * PART + 13, 4 * PART)

MODELS = {
    "largest": "(amax x)",
    "least": "(amin x)",
    "where": "[(argmax x) (argmin x)]",
    "both": "[(fold max (get x 0) x) (fold (fn [s a] (min s (* 2.0 a))) 5.0 x)]",
    "from a start": "[(fold max 0.0 x) (fold min -1.5 x)]",
    "best": "(ifold (fn [#(at best) i] (if (> (get x i) best) #(i (get x i)) #(at best))) #(-1 -1.5) (len x))",
    "payload": """(fst (ifold (fn [#(found best) i]
                        (let [d (abs (get x i))] (if (< d best) #((+ 0.5 (* 2.0 (get x i))) d) #(found best))))
                      #(7.0 (get x (// (len x) 2))) (len x)))""",
    "rows": "(map amax [x (map (fn [a] (* -1.0 a)) x)])",
}


def model(text: str, kind: str = "(Vec n)") -> hyad.Model:
    return hyad.model(f"(fn [#^ {kind} x] {text})", namespace={})


def vectors(rng: np.random.Generator, n: int) -> list[np.ndarray]:
    """Vectors of letters, numbers in no order and in each, and one NaN."""
    made = [rng.choice(letters, n) for letters in ALPHABETS for _ in range(2)]
    x = rng.normal(size=n)
    one = x.copy()
    one[rng.integers(n)] = NANS[1]
    least = np.full(n, -3.0)
    least[rng.integers(n)] = rng.choice([0.0, -0.0])
    return [*made, x, np.sort(x), np.sort(x)[::-1].copy(), one, least]


def same(got: object, expected: object) -> bool:
    if isinstance(got, tuple):
        return all(map(same, got, expected))  # type: ignore[arg-type]
    return np.asarray(got).tobytes() == np.asarray(expected).tobytes()


@pytest.mark.parametrize("name", MODELS)
def test_to_the_last_bit(name: str) -> None:
    f = model(MODELS[name])
    assert "searches" in hyad.explain(f).fired()
    fast, plain = hyad.compile(f), hyad.compile(f, without="searches")
    rng = np.random.default_rng(5)
    for n in LENGTHS:
        for x in vectors(rng, n):
            assert same(fast(x), plain(x)), (n, x)


@pytest.mark.parametrize("text", ["(amax x)", "(+ (fold min -1.5 x) (sum (map amax [x x])))"])
def test_derivatives_to_the_last_bit(text: str) -> None:
    f = model(text)
    rng = np.random.default_rng(6)
    forwards = hyad.model("(fn [#^ (Vec n) x #^ (Vec n) dx] (jvp f x dx))", namespace={"f": f})
    for derivative in (hyad.value_and_grad(f), forwards):
        fast, plain = hyad.compile(derivative), hyad.compile(derivative, without="searches")
        assert "searches" in hyad.explain(derivative).fired()
        for n in LENGTHS[2::3]:
            for x in vectors(rng, n):
                more = (rng.normal(size=n),) if derivative is forwards else ()
                assert same(fast(x, *more), plain(x, *more)), (n, x)


def test_of_single_precision_and_integers() -> None:
    rng = np.random.default_rng(7)
    text = "#((amax x) (argmax x) (amin x) (argmin x))"
    fast, plain = (hyad.compile(model(text), dtype="f32", without=w) for w in ((), "searches"))
    whole, one_by_one = (hyad.compile(model(text, "(Arr Int n)"), without=w) for w in ((), "searches"))
    assert "lane" in fast.source and "lane" in whole.source
    low, high = -(2**63), 2**63 - 1
    for n in LENGTHS:
        for x in vectors(rng, n):
            assert same(fast(x.astype(np.float32)), plain(x.astype(np.float32))), (n, x)
        for letters in ([low], [high], [low, high], range(-3, 4)):
            k = rng.choice(np.array(letters), n)
            assert same(whole(k), one_by_one(k)), (n, k)


@pytest.mark.parametrize("target", ["c", "python"])
@pytest.mark.parametrize("width", [3, 4, 70])
def test_rows_as_numpy_has_them(width: int, target: str) -> None:
    rng = np.random.default_rng(8)
    f = hyad.compile(
        hyad.model(f"(fn [#^ (Mat n {width}) a] #((argmax a 1) (argmin a 1) (amax a 1)))", namespace={}), target
    )
    g = hyad.compile(hyad.model("(fn [#^ (Mat n m) a] #((argmax a 1) (argmin a 1) (amax a 1)))", namespace={}), target)
    for letters in ([0.0, 1.0], [np.nan, 1.0, 2.0], [np.nan], [-np.inf, np.nan, 0.0], [3.0, 3.5, -2.0, 8.0]):
        a = rng.choice(letters, (12, width))
        for found in (f(a), g(a)):
            for got, want in zip(found, (a.argmax(1), a.argmin(1), a.max(1))):
                np.testing.assert_array_equal(got, want)


def test_in_lanes_on_two_threads() -> None:
    """What is looked for in each row, by threads that share the rows."""
    f = hyad.model("(fn [#^ (Mat n m) a] #((map argmax a) (sum (map amax a))))", namespace={})
    a = np.random.default_rng(9).normal(size=(300, 333))
    where, total = hyad.compile(f, threads=2)(a)
    np.testing.assert_array_equal(where, a.argmax(1))
    np.testing.assert_allclose(total, a.max(1).sum(), rtol=1e-14)


@pytest.mark.parametrize(
    "text",
    [
        "(fold (fn [s a] (max s (cosh a))) 0.0 x)",  # the calls cost more than waiting for one another
        "(fold (fn [s a] (max s (- a s))) 0.0 x)",
        "(fold (fn [s a] (max a (* 2.0 s))) 0.0 x)",
        "(fold max 0.0 (build (len x) (fn [i] (ifold (fn [s j] (+ s (* (get x i) (get x j)))) 0.0 (len x)))))",
        f"(ifold (fn [s i] (max s (get x i))) 0.0 {LEAST - 1})",
        "(ifold (fn [#(at best) i] (if (>= (get x i) best) #(i (get x i)) #(at best))) #(0 0.0) (len x))",  # the last
        "(fst (ifold (fn [#(at s) i] (let [v (* s (get x i))] (if (> v s) #(i v) #(at s)))) #(0 1.0) (len x)))",
        # a value that is rounded may not be found again
        """(fst (ifold (fn [#(at s) i]
                        (let [a (get x i)  v (if (> a 0.0) a (* 3.0 a))] (if (> v s) #(i v) #(at s))))
                      #(0 -9.0) (len x)))""",
        "(fst (ifold (fn [#(at s) i] (let [v (square (get x i))] (if (> v s) #(i v) #(at s)))) #(0 1.0) (len x)))",
    ],
)
def test_what_is_not_looked_for_in_lanes(text: str) -> None:
    f = model(text)
    with without(["lanes"]):
        program = f.optimised(f.specs())
    assert not any(type(b.op) is Loop and getattr(b.op.count, "value", 0) == LANES for b in all_binds(program.body))


#: What a loop keeps or replaces, by a condition of its own.
PICKS = {
    "largest": "(ifold (fn [m i] (let [y (* (get w i) (sin (get x i)))] (if (> y m) y m))) -1e30 (len x))",
    "least": "(ifold (fn [m i] (let [y (* (get w i) (sin (get x i)))] (if (< m y) m y))) (get x 0) (len x))",
    "last of equals": "(ifold (fn [m i] (let [y (* (get w i) (floor (get x i)))] (if (>= y m) y m))) 0.0 (len x))",
    "last above": "(ifold (fn [m i] (if (> (get x i) 0.5) (* (get w i) (get x i)) m)) (get w 0) (len x))",
    "nearest and its weight": """(let [#(near weight) (ifold (fn [#(m k) i]
        (let [y (square (- (get x i) 0.3))  v (* (get w i) y)] (if (< y m) #(y v) #(m k)))) #(1e30 0.0) (len x))]
      (+ (* near weight) weight))""",
    "of rows": """(sum (build (len w) (fn [j]
      (ifold (fn [m i] (let [y (* (get w j) (sin (+ (get x i) (get w j))))] (if (> y m) y m))) -1e30 (len x)))))""",
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", PICKS)
def test_what_a_condition_picks_is_differentiated_at_its_place(name: str) -> None:
    """In both modes; no state is remembered, but where a branch computes what it gives."""
    f = hyad.model(f"(fn [#^ (Vec n) w  #^ (Vec n) x] {PICKS[name]})", namespace={})
    g = hyad.grad(f, wrt=(0, 1))
    typed = " ".join(f"#^ (Vec n) {name}" for name in "wxuv")
    forward = hyad.compile(hyad.model(f"(fn [{typed}] (jvp (fn [w x] {PICKS[name]}) w x u v))", namespace={}))
    rng = np.random.default_rng(3)
    for n in (1, 2, 9, 20):
        w, x = rng.normal(size=n), rng.uniform(-2.0, 2.0, n)
        assert hyad.check_grad(f, (w, x), wrt=(0, 1))
        moves = rng.normal(size=(2, n))
        tangent = forward(w, x, *moves)
        assert sum(float(a @ m) for a, m in zip(g(w, x), moves)) == pytest.approx(tangent, rel=1e-12)
    loops = [x.op for x in all_binds(g.optimised(g.specs()).body) if type(x.op) is Loop]
    remembers = any(r in op.accs for op in loops for r in op.body.results[len(op.accs) :])
    assert remembers == (name == "nearest and its weight")


def test_where_nothing_is_greater_than_nan() -> None:
    """A comparison with NaN does not hold: what the loop starts from stays, and has the derivative."""
    f = hyad.model("(fn [#^ (Vec n) x  z] (ifold (fn [m i] (if (> (get x i) m) (get x i) m)) z (len x)))", namespace={})
    g = hyad.grad(f, wrt=(0, 1))
    for x, z, at in (([np.nan, 1.0, np.nan], 0.0, 1), ([2.0, 1.0], np.nan, None), ([1.0, 1.0, -1.0], 0.5, 0)):
        x_bar, z_bar = g(np.array(x), z)
        want = np.zeros(len(x))
        if at is not None:
            want[at] = 1.0
        np.testing.assert_array_equal(x_bar, want)
        assert z_bar == (at is None)
