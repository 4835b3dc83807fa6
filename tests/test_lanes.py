"""Iterations in lanes (``hyad/passes/lanes.py``): values and gradients at counts around eight, which loops go in lanes,
and which are left alone."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Loop, Var, all_binds
from hyad.passes.lanes import LANES
from hyad.passes.nests import Steps
from hyad.program.journal import without

NEAREST = """
(fn [#^ (Mat k d) centres #^ (Mat n d) points]
  (fold (fn [s p]
          (let [far (map (fn [c] (fold (fn [s a b] (+ s (* (- a b) (- a b)))) 0.0 c p)) centres)]
            (+ s (fold min (get far 0) far))))
        0.0 points))
"""
FORM = """
(fn [#^ (Arr Real k d d) q #^ (Mat n d) x #^ (Vec n) w]
  (ifold (fn [s i]
           (+ s (* (get w i)
                   (fold (fn [s a] (+ s (exp (- a)))) 0.0
                         (map (fn [m] (let [y (build (len m)
                                                (fn [r] (ifold (fn [t c] (+ t (* (get m r c) (get x i c)))) 0.5
                                                               (+ r 1))))]
                                        (fold (fn [t a] (+ t (* a a))) 0.0 y)))
                              q)))))
         1.0 (len x)))
"""
STATIC = """
(fn [#^ (Mat k 5) centres #^ (Mat n 5) points]
  (fold (fn [s p]
          (let [far (map (fn [c]
                           (let [v (map (fn [a b] (- a b)) c p)]
                             (ifold (fn [t r] (+ t (** (ifold (fn [u i] (+ u (* (get v i) (get c r)))) 0.0 (+ r 1)) 2)))
                                    0.0 5)))
                         centres)]
            (+ s (fold min (get far 0) far))))
        0.0 points))
"""
CENTRED = """
(fn [#^ (Mat k d) means #^ (Arr Real k d d) roots #^ (Mat n d) x]
  (fold (fn [s p]
          (+ s (log (fold (fn [t a] (+ t (exp (- a)))) 0.0
                          (map (fn [mean root]
                                 (let [v (map (fn [a b] (- a b)) p mean)
                                       y (build (len v)
                                           (fn [r] (ifold (fn [t c] (+ t (* (get root r c) (get v c)))) 0.0 LENGTH)))]
                                   (fold (fn [t a] (+ t (* a a))) 0.0 y)))
                               means roots)))))
        0.0 x))
"""


def in_lanes(f: object) -> int:
    """The loops over lanes of a model's program, those that transpose a matrix aside."""
    with without(["transposes"]):
        body = f.optimised(f.specs()).body
    return sum(type(b.op) is Loop and getattr(b.op.count, "value", 0) == LANES for b in all_binds(body))


def given(text: str, n: int, k: int = 3, d: int = 5) -> tuple:
    rng = np.random.default_rng(n)
    if text is not FORM:
        return rng.normal(size=(k, d)), rng.normal(size=(n, d))
    return 0.3 * rng.normal(size=(k, d, d)), rng.normal(size=(n, d)), rng.normal(size=n)


@pytest.fixture(scope="module")
def compiled() -> dict:
    return {}


@pytest.mark.some(3)
@pytest.mark.parametrize("text", [NEAREST, FORM, STATIC], ids=["nearest", "form", "static"])
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 17])
def test_every_sum_keeps_its_order(text: str, n: int) -> None:
    """To the last bit, in Python, where nothing contracts a product and a sum."""
    for make in (lambda f: f, lambda f: hyad.grad(f, wrt=0)):
        f = make(hyad.model(text, namespace={}))
        assert in_lanes(f)
        here = memoised.compile(f, "python")
        plain = memoised.compile(f, "python", without="lanes")
        args = given(text, n)
        np.testing.assert_array_equal(here(*args), plain(*args))


@pytest.mark.parametrize("text", [NEAREST, FORM, STATIC], ids=["nearest", "form", "static"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (8, 3, 2), (9, 1, 7), (40, 17, 3)])
def test_gradients_in_c(text: str, sizes: tuple, compiled: dict) -> None:
    f = compiled.setdefault((text, "model"), hyad.model(text))
    g = compiled.setdefault((text, "gradient"), hyad.grad(f, wrt=0))
    args = given(text, *sizes[:2], 5 if text is STATIC else sizes[2])
    direction = np.random.default_rng(1).normal(size=args[0].shape)
    h = 1e-6
    slope = (f(args[0] + h * direction, *args[1:]) - f(args[0] - h * direction, *args[1:])) / (2 * h)
    assert np.sum(g(*args) * direction) == pytest.approx(slope, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("length, rows", [("(+ r 1)", True), ("(len v)", False)], ids=["triangle", "square"])
def test_rows_that_the_lanes_of_a_tile_add_to(length: str, rows: bool) -> None:
    """To the last bit; where all of a row is added to, compilers and ``jam-rows`` do it."""
    f = hyad.grad(hyad.model(CENTRED.replace("LENGTH", length)), wrt=(0, 1))
    with without(["row-lanes"]):
        before = in_lanes(f)
    assert (in_lanes(f) > before) is rows
    here = hyad.compile(f, "python")
    others = [hyad.compile(f, "python", without=name) for name in ("row-lanes", "interchange", "lanes")]
    rng = np.random.default_rng(3)
    for n in (0, 1, 7, 8, 9, 17):
        args = rng.normal(size=(3, 5)), 0.3 * rng.normal(size=(3, 5, 5)), rng.normal(size=(n, 5))
        for other in others:
            for one, two in zip(here(*args), other(*args)):
                np.testing.assert_array_equal(one, two)


def test_a_tile_stays_with_a_matrix() -> None:
    """The loop over the matrices goes around that over the few points of a tile: each matrix is fetched once."""
    f = hyad.grad(hyad.model(CENTRED.replace("LENGTH", "(+ r 1)")), wrt=(0, 1))
    with without(["jam-rows", "row-lanes"]):  # which take the loop over the points apart
        program = f.optimised(f.specs())
    steps, loops = Steps(program.body), [b.op for b in all_binds(program.body) if type(b.op) is Loop]
    around = [x for x in loops for b in x.body.binds if b.op in loops and type(b.op.count) is Var and b.op.accs
              if steps.few(b.op.count)]  # fmt: skip
    assert around and all(x.count in program.dims for x in around)
    fired = hyad.explain(f).fired()
    assert "interchange" in fired and "row-lanes" in fired
    assert "row-lanes" not in hyad.explain(f, without="row-lanes").fired()


SMOOTHED = {
    "numbers": "(map (fn [y] (ifold (fn [s j] (+ s (/ 1.0 (+ 1.0 (square (- y (get x j))))))) 0.0 (len x))) x)",
    "rows": """(map (fn [y] (ifold (fn [s j] (let [d (- y (get x j)) w (/ 1.0 (+ 1.0 (* d d)))]
      [(+ (get s 0) w) (+ (get s 1) (* w d))])) [0.0 0.5] (len x))) x)""",
    "with a sum": """(let [r (ifold (fn [state i]
        (let [t (ifold (fn [s j] (+ s (/ 1.0 (+ 1.0 (square (- (get x i) (get x j))))))) 0.0 (len x))]
          #((+ (fst state) t) (update (snd state) i (* t t))))) #(0.0 (zeros (len x))) (len x))]
      (map (fn [t] (* t (fst r))) (snd r)))""",
}


@pytest.mark.parametrize("name", SMOOTHED)
def test_what_is_stacked_is_made_in_lanes(name: str) -> None:
    """The sums of eight elements or rows at once, to the last bit."""
    f = hyad.model(f"(fn [#^ (Vec n) x] {SMOOTHED[name]})")
    assert in_lanes(f)
    here, plain = hyad.compile(f, "python"), hyad.compile(f, "python", without="lanes")
    compiled = hyad.compile(f)
    for n in (0, 1, 7, 8, 9, 17):
        x = np.random.default_rng(2).normal(size=n)
        d = x[:, None] - x
        w = 1 / (1 + d * d)
        t = w.sum(1)
        made = {"numbers": t, "rows": np.stack([t, 0.5 + (w * d).sum(1)], 1), "with a sum": t * t * t.sum()}[name]
        np.testing.assert_array_equal(here(x), plain(x))
        np.testing.assert_allclose(compiled(x), made, rtol=1e-12)


def test_sums_of_neighbours_become_one_row() -> None:
    """The sums of a row of Cholesky's factor read elements that lie side by side as they are: loops change places."""
    f = hyad.model("(fn [#^ (Mat n n) a] (cholesky a))")
    assert "interchange" in hyad.explain(f).fired() and not in_lanes(f)
    a = np.random.default_rng(3).normal(size=(17, 17))
    a = a @ a.T + np.eye(17)
    np.testing.assert_allclose(hyad.compile(f)(a), np.linalg.cholesky(a), rtol=1e-11, atol=1e-13)


def test_ties_and_nan() -> None:
    """A search in lanes finds the first of equals, and NaN, as it does alone."""
    f = hyad.grad(hyad.model(NEAREST), wrt=0)
    centres, points = np.zeros((3, 2)), np.ones((9, 2))
    expected = np.zeros((3, 2))
    expected[0] = -2 * 9
    np.testing.assert_array_equal(f(centres, points), expected)
    points[4] = np.nan
    assert np.isnan(hyad.model(NEAREST)(centres, points))


def test_it_reads_as_written_by_hand() -> None:
    source = hyad.compile(hyad.grad(hyad.model(NEAREST), wrt=0)).source
    assert "double s[8] = {0};" in source and "HYAD_LANES" in source
    assert "lanes" not in hyad.compile(hyad.grad(hyad.model(NEAREST), wrt=0), without="lanes").source


@pytest.mark.parametrize(
    "text",
    [
        "(fn [#^ (Mat n d) x #^ (Vec d) w] (fold (fn [s r] (+ s (exp (dot r w)))) 0.0 x))",
        "(fn [#^ (Mat n d) x] (fold (fn [s r] (+ s (* s (fold (fn [t a] (+ t (* s a))) 0.0 r)))) 1.0 x))",
        "(fn [#^ (Mat 6 d) x #^ (Mat k d) c] (fold (fn [s r] (+ s (fold (fn [t w] (+ t (dot r w))) 0.0 c))) 0.0 x))",
        "(fn [#^ (Mat n n) x] (ifold (fn [s i] (+ s (ifold (fn [t c] (+ t (get x i c))) 0.0 i))) 0.0 (len x)))",
        "(fn [#^ (Vec n) x] (ifold (fn [s i] (+ s (exp (ifold (fn [t c] (+ t (* (get x i) (get x c)))) 0.0 (+ i 1)))))"
        " 0.0 (len x)))",
        "(fn [#^ (Arr Real n p q) x]"
        " (fold (fn [s m] (+ s (fold (fn [t r] (+ t (square (fold + 0.0 r)))) 0.0 m))) 0.0 x))",
        "(fn [#^ (Mat n d) x #^ (Vec d) w]"
        " (fold (fn [s r] (+ s (square (ifold (fn [t c] (+ t (exp (* s (get w c) (get r 0))))) 0.0 (len w))))) 0.0 x))",
        "(fn [#^ (Mat n d) x #^ (Vec d) w]"
        " (fold (fn [s r] (+ s (square (ifold (fn [t c] (+ t (exp (* (get w c) (get r 0))))) 0.0 (len w))))) 0.0 x))",
        "(fn [#^ (Arr Real n p q) x] (fold (fn [s m] (+ s (sum (sin m)))) 0.0 x))",
    ],
    ids=[
        "each read once",
        "carried",
        "few",
        "counts differ",
        "so do computed counts",
        "a nest that reads each once",
        "calls, carried",
        "calls",
        "a nest of calls",
    ],
)
def test_left_alone(text: str) -> None:
    assert in_lanes(hyad.model(text)) == 0


@pytest.mark.parametrize(
    ("element", "lanes"),
    [
        ("(square (max (get x (* 2 i) (* 2 j)) (get x (+ (* 2 i) 1) (* 2 j))))", 0),
        ("(let [y (get x (* 2 i) j)] " + "(+ 0.5 (* y " * 8 + "y" + "))" * 8 + ")", 2),
    ],
    ids=["little is done", "much is done"],
)
def test_rows_found_by_a_number_made_of_the_index(element: str, lanes: int) -> None:
    """Each lane's elements are read one by one."""
    text = f"(fn [#^ (Mat n m) x] (sum (build (// n 2) (fn [i] (sum (build (// m 2) (fn [j] {element})))))))"
    f = hyad.model(text, namespace={})
    assert in_lanes(f) == lanes
    for n, m in ((0, 4), (6, 5), (37, 8)):
        x = np.random.default_rng(n).normal(size=(n, m))
        assert hyad.compile(f, "python", args=(x,))(x) == hyad.compile(f, "python", args=(x,), without="lanes")(x)


def test_lanes_in_the_lanes_of_another_loop() -> None:
    """The inner loop's sums read an array that the lanes of the outer one have together."""
    text = """(fn [#^ (Mat n m) a]
      (ifold (fn [s i] (+ s (norm (build (shape a 1)
                                    (fn [r] (ifold (fn [t c] (+ t (get a i (// r 2)))) 0.0 (shape a 1)))))))
             0.0 (len a)))"""
    f = hyad.value_and_grad(hyad.model(text, namespace={}))
    args = np.random.default_rng(0).normal(size=(3, 2))
    made, plain = (hyad.compile(f, "python", args=(args,), without=w) for w in ("strands", ("strands", "lanes")))
    for n, m in ((3, 2), (9, 8), (17, 9), (0, 3), (2, 0)):
        a = np.random.default_rng(n).normal(size=(n, m))
        for got, wanted in zip(made(a), plain(a)):
            np.testing.assert_array_equal(got, wanted)


def test_on_threads() -> None:
    f = hyad.model(NEAREST)
    args = given(NEAREST, 20_001, 4, 3)
    two = hyad.compile(hyad.grad(f, wrt=0), args=args, threads=2)
    np.testing.assert_allclose(two(*args), hyad.grad(f, wrt=0)(*args), rtol=1e-12)
    assert "omp" in two.source


def test_tiles_start_lines_of_the_cache() -> None:
    """Whatever the sizes, what eight lanes write starts a multiple of eight reals behind the workspace's start."""
    f = hyad.compile(hyad.grad(hyad.model(CENTRED.replace("LENGTH", "(+ r 1)")), wrt=(0, 1)), threads=2)
    sizes = {"n": 13, "d": 3, "k": 5, "thread": 1}
    starts: dict[bool, list[int]] = {True: [], False: []}
    for found in re.finditer(r"double \*(\w+) = work(?: \+ )?([^;]*);", f.source):
        name, offset = found.groups()
        until = f.source.find(f"double *{name} = ", found.end())  # another one of that name
        in_lanes = re.search(rf"\b{name}\[[^]]*\blane\b", f.source[found.end() : until])
        starts[in_lanes is not None].append(eval(offset or "0", sizes))
    assert len(starts[True]) > 2 and not any(start % 8 for start in starts[True])
    assert any(start % 8 for start in starts[False])
    assert "multiple of 64 bytes" in f.header


STEPS = """
(fn [#^ (Mat n d) x0 #^ Int steps]
  (sum (square (ifold (fn [y k]
    (let [a (build [(len y) (len (get y 0))]
              (fn [i c] (sum (build (len y) (fn [j]
                (/ (- (get y j c) (get y i c)) (+ 1.0 (sq-norm (- (get y j) (get y i))))))))))]
      (+ y (* 0.01 a)))) x0 steps))))
"""


def test_of_a_history_one_step_is_laid_side_by_side() -> None:
    """Each reverse step reads one state of those that are remembered: the copies of a tile have no loop over them."""
    g = hyad.grad(hyad.model(STEPS), wrt=0)
    source = hyad.compile(g, args=(np.ones((9, 3)), 4)).source
    places = re.findall(r"\bside_by_side\[([^\]]*)\] = ", source)
    assert places and all(re.fullmatch(r"8\*\w+ \+ lane", at) for at in places), places
    for n, steps in ((1, 3), (7, 2), (9, 4), (17, 1), (9, 0)):
        x = np.random.default_rng(n).normal(size=(n, 3))
        np.testing.assert_allclose(
            memoised.compile(g, args=(x, steps))(x, steps),
            memoised.compile(g, "python", args=(x, steps))(x, steps),
            rtol=1e-12,
        )


@pytest.mark.parametrize(
    ("read", "places"),
    [
        ("(square (* (get x at i c) (get q j c)))", 1),
        ("(square (* (- (get x at i c) (get x to i c)) (get q j c)))", 2),
        ("(square (* (- (get x 0 i c) (get x 1 i c)) (get q j c)))", 1),
    ],
    ids=["one", "two", "first-ones"],
)
def test_of_what_stays_the_same_one_index_is_laid_side_by_side(read: str, places: int) -> None:
    text = f"""(fn [#^ (Arr Real k n d) x #^ (Mat m d) q #^ Int at #^ Int to]
      (sum (square (build n (fn [i] (sum (build (len q) (fn [j] (ifold (fn [s c] (+ s {read})) 0.0 d)))))))))"""
    f = hyad.model(text)
    rng = np.random.default_rng(0)
    x, q = rng.normal(size=(3, 11, 4)), rng.normal(size=(5, 4))
    made = hyad.compile(f, args=(x, q, 1, 2))
    assert len(re.findall(r"\bside_by_side\d*\[[^]]*\] = ", made.source)) == places
    np.testing.assert_allclose(made(x, q, 1, 2), hyad.compile(f, "python", args=(x, q, 1, 2))(x, q, 1, 2), rtol=1e-12)


def test_windows_of_long_rows_are_not_laid_side_by_side() -> None:
    """Each step of a recurrence with some memory reads a few of all steps: to copy all of them takes time quadratic in
    their number."""
    f = hyad.model(
        """(fn [#^ (Mat k d) w #^ (Mat t k) x]
          (let [f (zeros [(+ t 1) k])
                g (zeros [(+ t 1) k])]
            (for [u (range 1 (+ t 1))]
              (for [j (range k)]
                (set-at! f u j (logsumexp (build (min d u) (fn [a]
                                 (+ (get w j a) (get g (- u (+ a 1)) j) (* 2.0 (get w j a))))))))
              (for [j (range k)] (set-at! g u j (+ (get x (- u 1) j) (get f u j)))))
            (sum (get g -1))))""",
        namespace={},
    )
    assert "side_by_side" not in hyad.show(f, "c")
    g = hyad.grad(f, wrt=(0, 1))
    text = hyad.show(g, "c").split("int f_grad(")[-1]
    assert "side_by_side" not in text
    rng = np.random.default_rng(5)
    for k, d, t in ((1, 1, 1), (3, 2, 5), (9, 4, 3)):
        hyad.check_grad(f, (rng.normal(size=(k, d)), rng.normal(size=(t, k))))


def test_rows_are_not_laid_side_by_side_for_little() -> None:
    """A sum of four rows takes as long as to copy them: the largest of its elements is looked for one by one."""
    f = hyad.model(
        """(fn [#^ (Arr Real n m k) h #^ Real J #^ (Arr Real n m k) p]
          (sum (square (build [n m] (fn [i j]
            (softmax (+ (get h i j) (* J (+ (get p (% (+ i 1) n) j) (get p i (% (+ j 1) m)))))))))))""",
        namespace={},
    )
    assert "side_by_side" not in hyad.show(f, "c")


def test_columns_that_lie_side_by_side_are_not_copied() -> None:
    """Paths, each a column of the matrix that it reads: all of them at once, without a copy; their sum in its order."""
    f = hyad.model("""(fn [#^ (Mat t p) z v]
      (sum (build p (fn [i] (exp (fst (ifold (fn [#(x y) k] #((+ x (* 0.1 y (get z k i))) (sqrt (+ 1.0 (* x y)))))
        #(v 1.0) t))))))) """)
    for t, p in ((5, 19), (3, 16), (4, 3), (0, 9), (2, 0)):
        args = np.random.default_rng(2).normal(size=(t, p)), 0.3
        assert memoised.compile(f, args=args)(*args) == pytest.approx(hyad.run(f, *args), rel=1e-14)
    program = f.optimised(f.specs((np.ones((5, 19)), 0.3)))
    assert "interchange" in hyad.explain(f, args=(np.ones((5, 19)), 0.3)).fired()
    assert not any(x.vars and x.vars[0].name == "side_by_side" for x in all_binds(program.body))
