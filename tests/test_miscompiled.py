"""What gcc makes wrong vectors of: sums of rows that are read from their end, rows that are read under conditions, and
stores to a row and the one before it; and loops that fill several arrays, of which it makes several, in a wrong order.
Every compiled program adds, reads and stores what it says, in that order."""

import re

import numpy as np
import pytest

import hyad
import memoised
import oracle

MARK = "(*(const HYAD_ALONE double *)&"
SUMS = {
    "a row from its end": "(fold (fn [s p] (+ s (get p 2) (get p 1) (get p 0))) 0.0 m)",
    "two of a row": "(fold (fn [s p] (+ s (get p 1) (get p 0))) 0.0 m)",
    "the middle last": "(fold (fn [s p] (+ s (get p 0) (get p 2) (get p 1))) 0.0 m)",
    "the sum on the right": "(fold (fn [s p] (+ (get p 0) (+ (get p 1) (+ (get p 2) s)))) 0.0 m)",
    "products": "(fold (fn [s p] (+ s (* (get p 2) (get c 2)) (* (get p 1) (get c 1)) (* (get p 0) (get c 0)))) 0.0 m)",
    "products of rows": "(ifold (fn [s i] (+ s (* (get m i 1) (get w i 1)) (* (get m i 0) (get w i 0)))) 0.0 (len m))",
    "one of two": """(fold (fn [s p] (+ s (if (> (get p 2) 0) (get p 2) 0.0) (if (> (get p 1) 0) (get p 1) 0.0)
                         (if (> (get p 0) 0) (get p 0) 0.0))) 0.0 m)""",
    "places": "(ifold (fn [s i] (+ s (get v (+ (* 3 i) 2)) (get v (+ (* 3 i) 1)) (get v (* 3 i)))) 0.0 (len m))",
    "an inner loop": """(ifold (fn [s i] (ifold (fn [s k] (+ s (get v (- (+ (* 9 i) 8) k)))) s 9))
                               0.0 (// (len v) 9))""",
    "pairs": """(ifold (fn [s i]
                         (ifold (fn [s k] (let [at (+ (* 12 i) (* 2 k))] (+ s (get v (+ at 1)) (get v at)))) s 6))
                       0.0 (// (len v) 12))""",
    "a while": """(let [i (ref 0) s (ref 0.0)]
          (while (< (deref i) (- (len v) 2))
            (set! s (+ (deref s) (get v (+ (deref i) 2)) (get v (+ (deref i) 1)) (get v (deref i))))
            (set! i (+ (deref i) 3)))
          (deref s))""",
}
PLAIN = {
    "a row from its start": "(fold (fn [s p] (+ s (get p 0) (get p 1) (get p 2))) 0.0 m)",
    "neighbours": "(ifold (fn [s i] (+ s (get v (+ i 2)) (get v (+ i 1)) (get v i))) 0.0 (- (len v) 2))",
    "a sum of sums": "(fold (fn [s p] (+ s (+ (get p 2) (get p 1) (get p 0)))) 0.0 m)",
    "two arrays": "(ifold (fn [s i] (+ s (get m i 2) (get w i 0))) 0.0 (len m))",
    "backwards": "(ifold (fn [s i] (+ s (get m (- (len m) i 1) 2) (get m (- (len m) i 1) 1))) 0.0 (len m))",
}
SHAPES = "#^ (Mat n 3) m #^ (Mat n 3) w #^ (Vec 3) c #^ (Vec k) v"


@pytest.fixture(scope="module")
def models() -> dict[str, hyad.Model]:
    found = {k: hyad.model(f"(fn [{SHAPES}] {text})") for k, text in (SUMS | PLAIN).items()}
    for f in found.values():
        hyad.compile(f)
    return found


def point(n: int) -> tuple:
    rng = np.random.default_rng(n)
    return *rng.standard_normal((2, n, 3)), rng.standard_normal(3), rng.standard_normal(3 * n)


@pytest.mark.parametrize("name", SUMS | PLAIN)
def test_sums_are_what_they_say(name: str, models: dict[str, hyad.Model]) -> None:
    f = models[name]
    for n in (4, 17, 40):
        args = point(n)
        assert f(*args) == pytest.approx(hyad.run(f, *args), rel=1e-13, abs=1e-13)
    assert (MARK in hyad.show(f, "c")) == (name in SUMS)


@pytest.mark.parametrize("always", [True, False])
def test_sums_of_rows_that_are_cleared_from_the_last_one_on(always: bool) -> None:
    """From the last to the first, where what is added is stored to as well; also under a condition that holds."""
    added = "(+ (deref s) (get t p))"
    added = added if always else f"(if (or c (= k 0)) {added} (deref s))"
    f = hyad.model(
        f"""(fn [#^ (Vec n) v #^ Int m] (let [t (copy v)  s (ref 0.0)  h (// n 2)  c (= m 0)]
          (for [k (range h)]
            (let [p (* 2 (- h k 1))]
              (set! s (+ (deref s) (get t (+ p 1))))
              (set-at! t (+ p 1) 0.0)
              (set! s {added})
              (set-at! t p 0.0)))
          #((deref s) (sum t))))""",
        namespace={},
    )
    assert MARK in hyad.compile(f).source
    for n in (2, 7, 8, 16, 33):
        for m in (0, 1):
            args = np.arange(1.0, n + 1), m
            assert hyad.compile(f)(*args) == hyad.run(f, *args)


def test_gradients_of_blocks() -> None:
    """Iterations by turns, backwards: the condition of one of them is known in gcc, where it is not here."""
    blocks = "(build [n n] (fn [i j] (cond (or (= i 0) (= j 0)) x (= (// i 2) (// j 2)) (get v i) True 0.0)))"
    g = hyad.grad(hyad.model(f"(fn [#^ Real x #^ (Vec n) v] (sum (square {blocks})))", namespace={}), wrt=0)
    for off in ((), ("sink",), ("periods",)):
        made = hyad.compile(g, without=off)
        for n in (3, 7, 8, 9, 17):
            assert made(0.7, np.ones(n)) == pytest.approx(1.4 * (2 * n - 1), rel=1e-12)


def test_gradients_of_sums_by_rows() -> None:
    """What reverse mode adds comes last to first."""
    step = """(fn [#^ (Mat n 3) pos #^ (Mat n 3) vel dt]
      (let [pull (map (fn [p] (fold + (zeros 3) (map (fn [q] (sin (- q p))) pos))) pos)
            v (+ vel (* (* 0.5 dt) pull))]
        (sum (square (+ pos (* dt v))))))"""
    f = hyad.model(step)
    rng = np.random.default_rng(0)
    for n in (4, 9):
        assert hyad.check_grad(f, (*rng.standard_normal((2, n, 3)), 0.1))


CHOICES = {
    "where": ("(where (> h 0.0) y 0.0)", False),
    "other way round": ("(where (> h 0.0) 0.0 (* 2.0 y))", False),
    "the larger's gradient": ("((grad (fn [h] (sum (square (- y (maximum 0.0 h)))))) h)", False),
    "if": ("(build [n k] (fn [i j] (if (> (get h i j) 0.0) (* 2.0 (get y i j)) 0.0)))", False),
    "a branch": ("(build [n k] (fn [i j] (if (> (get h i j) 0.0) (exp (sin (get y i j))) 0.0)))", False),
    "a branch in a branch": (
        "(build [n k] (fn [i j] (if (> (get h i j) 0.0) (if (> (get h i j) 1.0) (get y i j) 1.0) 0.0)))", False
    ),
    "a step on": (
        "(build [n k] (fn [i j] (if (and (< (+ i 1) n) (> (get h i j) 0.0)) (get y (+ i 1) j) 0.0)))", True
    ),
}  # fmt: skip


@pytest.mark.some(6)
@pytest.mark.parametrize("k", [2, 3, 5, 8])
@pytest.mark.parametrize("name", CHOICES)
def test_rows_under_conditions(name: str, k: int) -> None:
    """What is read before a choice is no branch; of what a branch reads something is read alone."""
    text, alone = CHOICES[name]
    f = hyad.model(f"(fn [#^ (Mat n {k}) h #^ (Mat n {k}) y] {text.replace('k', str(k))})", namespace={})
    rng = np.random.default_rng(k)
    for n in (4, 23):
        args = tuple(rng.standard_normal((2, n, k)))
        for dtype, rel in (("f64", 1e-13), ("f32", 1e-5)):
            kind = {"f64": np.float64, "f32": np.float32}[dtype]
            found = memoised.compile(f, dtype=dtype)(*(a.astype(kind) for a in args))
            np.testing.assert_allclose(found, hyad.run(f, *args), rel, rel)
    assert (MARK in hyad.show(f, "c")) == alone


def test_single_conditions_are_left() -> None:
    """One element of each row, and neighbours, are read as they were."""
    one = "(fn [#^ (Mat n 3) h #^ (Mat n 3) y] (map (fn [a b] (if (> (get a 0) 0.0) (get b 0) 0.0)) h y))"
    assert "? y[3*i]" in hyad.show(hyad.model(one), "c")
    source = hyad.show(hyad.model("(fn [#^ (Mat n m) h #^ (Mat n m) y] (where (> h 0.0) y 0.0))"), "c")
    assert "? y[" in source and MARK not in source


SINKS = 'optimize("no-tree-sink")'
#: Sums of what is read under conditions of rows of k: gcc before 14 reads elements under other elements' masks.
UNDER_CONDITIONS = {
    "a product": "(@ (transpose x) (where (> t 0.0) h 0.0))",
    "rows": "(ifold (fn [s i] (+ s (where (> (get t i) 0.0) (* (get h i) (get x i 0)) 0.0))) (zeros k) n)",
    "rows from their end": "(ifold (fn [s i] (+ s (where (> (get t i) 0.0) (flip (get h i)) 0.0))) (zeros k) n)",
    "twice": """(ifold (fn [s i] (+ s (let [c (> (get t i) 0.0) y (get h i)]
                                       (+ (where c (* y (get x i 1)) 0.0) (where c (* y y) 1.0))))) (zeros k) n)""",
    "and computed": """(ifold (fn [s i] (+ s (let [c (> (get t i) 0.0) y (* 3.0 (get h i))]
                                               (+ (where c (* y (get x i 1)) 0.0) (where c (* y y) 1.0)))))
                              (zeros k) n)""",
    "branches": """(ifold (fn [s i] (+ s (map (fn [c y] (if (> c 0.0) (* y (get x i 1)) 0.0)) (get t i) (get h i))))
                          (zeros k) n)""",
}


@pytest.mark.some(10)
@pytest.mark.parametrize("k", [2, 3, 4, 8])
@pytest.mark.parametrize("name", UNDER_CONDITIONS)
def test_sums_under_conditions(name: str, k: int) -> None:
    """What is read first stays there."""
    text = re.sub(r"\bk\b", str(k), UNDER_CONDITIONS[name])
    f = hyad.model(f"(fn [#^ (Mat n {k}) h #^ (Mat n {k}) t #^ (Mat n {k}) x] {text})", namespace={})
    for dtype, kind, rel in (("f64", np.float64, 1e-13), ("f32", np.float32, 1e-5)):
        made = memoised.compile(f, dtype=dtype)
        assert SINKS in made.source
        for n in (8, 9, 23):
            args = tuple(np.random.default_rng(n).standard_normal((3, n, k)).astype(kind))
            np.testing.assert_allclose(made(*args), hyad.run(f, *args), rel, 8 * rel)


def test_gradients_of_rectified_rows() -> None:
    """By a matrix, of rows that are gathered."""
    text = "(fn [W #^ (Mat n 2) x #^ (Arr Int e) at] (sum (square (get (relu (@ x W)) at))))"
    g = hyad.grad(hyad.model(text, namespace={}), wrt="W")
    for k in (2, 3, 4):
        rng = np.random.default_rng(k)
        args = rng.standard_normal((2, k)), rng.standard_normal((9, 2)), rng.integers(0, 9, 6)
        np.testing.assert_allclose(hyad.compile(g, args=args)(*args), hyad.run(g, *args), 1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "(map (fn [a b] (if (> (get a 0) (get a 1)) (get b 0) 0.0)) h x)",  # one of a row
        "(map (fn [a] (maximum (* 2.0 (get a 0)) (get a 1))) h)",  # also compared
        "(map (fn [a] (+ (where (> (get a 0) (get a 1)) (get a 0) 0.0) (where (> (get a 1) 1.0) (get a 1) 0.0))) h)",
        """((grad (fn [v] (let [top (fold max (get v 0) v)]
                            (+ top (log (fold (fn [s a] (+ s (exp (- a top)))) 0.0 v)))))) (get x 0))""",  # in lanes
        "(map (fn [a b] (if (> (get a 0) 0.0) (dot b b) 0.0)) (cut h 0 n) (transpose x))",  # made by a loop
    ],
)
def test_what_is_wanted_anyway_is_read_anywhere(text: str) -> None:
    source = hyad.show(hyad.model(f"(fn [#^ (Mat n 2) h #^ (Mat k n) x] {text})", namespace={}), "c")
    assert SINKS not in source


#: What stores to a row and then to one before it in an iteration: gcc 11 and 12 store wrong numbers (``overtaken``).
STORES = {
    "element by element": "(+ i 1) 2 a 0  i 2 b 0  (+ i 1) 1 a 1  i 1 b 1  (+ i 1) 0 b 2  i 0 a 2",
    "from the start": "(+ i 1) 0 a 0  i 0 b 0  (+ i 1) 1 a 1  i 1 b 1  (+ i 1) 2 b 2  i 2 a 2",
    "two rows on": "(+ i 2) 2 a 0  i 2 b 0  (+ i 2) 1 a 1  i 1 b 1  (+ i 2) 0 a 2  i 0 b 2",
}
LOW_FIRST = {
    "the row before first": "i 2 b 0  (+ i 1) 2 a 0  i 1 b 1  (+ i 1) 1 a 1  i 0 a 2  (+ i 1) 0 b 2",
    "one row": "i 2 a 0  i 1 b 1  i 0 a 2",
}


def storing(places: str, adding: bool) -> str:
    items = re.findall(r"\([^)]*\)|\S+", places)
    done = ""
    for row, k, name, c in zip(*(items[j::4] for j in range(4))):
        value = f"(* (get {name} i {c}) (get m i {k}))"
        done += f"(set-at! w {row} {k} {f'(+ (get w {row} {k}) {value})' if adding else value})"
    return f"""(fn [#^ (Mat n 3) m #^ (Mat n 3) a #^ (Mat n 3) b]
                 (let [w (* 0.5 m)] (for [i (range (- n 2))] {done}) w))"""


@pytest.mark.parametrize("adding", [True, False])
@pytest.mark.parametrize("name", STORES | LOW_FIRST)
def test_stores_come_in_their_order(name: str, adding: bool) -> None:
    f = hyad.model(storing((STORES | LOW_FIRST)[name], adding))
    for n in (2, 3, 17, 40):
        args = tuple(np.random.default_rng(n).standard_normal((3, n, 3)))
        np.testing.assert_allclose(f(*args), np.reshape(hyad.run(f, *args), (n, 3)), rtol=1e-13, atol=1e-13)
    assert ("*(HYAD_IN_ORDER double *)&" in hyad.show(f, "c")) == (name in STORES)


@pytest.mark.parametrize("width", [2, 3])
def test_adjoints_of_neighbours_come_in_their_order(width: int) -> None:
    """By loops over the coordinates as well, which gcc writes out."""
    f = hyad.model(f"""(fn [#^ (Mat n {width}) x]
      (let [w (* 1.0 x)]
        (for [i (range (- n 1))  k (range {width})]
          (set-at! w (+ i 1) k (+ (get w (+ i 1) k) (get x i k)))
          (set-at! w i k (* (get w i k) (get x i k))))
        (sum (map (fn [r] (dot r r)) w))))""")
    for n in (1, 2, 17, 40):
        x = np.random.default_rng(n).standard_normal((n, width)) / 2
        assert f(x) == pytest.approx(hyad.run(f, x), rel=1e-12)
        np.testing.assert_allclose(hyad.grad(f)(x), hyad.run(hyad.grad(f), x), rtol=1e-11, atol=1e-12)


#: Alignments of two sequences, three tables by how each ends. gcc 12.2 makes three loops of the inner one, the first of
#: which reads what the last one stores.
GAPS = """(fn [#^ (Mat n m) S o e]
  (let [M (full [(+ n 1) (+ m 1)] -1e4)  X (full [(+ n 1) (+ m 1)] -1e4)  Y (full [(+ n 1) (+ m 1)] -1e4)]
    (set-at! M 0 0 0.0)
    (for [i (range (+ n 1))  j (range (+ m 1))]
      (when (and (> i 0) (> j 0))
        (set-at! M i j (+ (get S (- i 1) (- j 1))
                          (logsumexp [(get M (- i 1) (- j 1)) (get X (- i 1) (- j 1)) (get Y (- i 1) (- j 1))]))))
      (when (> i 0) (set-at! X i j (logaddexp (- (get M (- i 1) j) o) (- (get X (- i 1) j) e))))
      (when (> j 0) (set-at! Y i j (logaddexp (- (get M i (- j 1)) o) (- (get Y i (- j 1)) e)))))
    (logsumexp [(get M n m) (get X n m) (get Y n m)])))"""
WHOLE = '#pragma GCC optimize("no-tree-loop-distribution")'
BACK = "(map (fn [i] (get a (- n i 1))) (arange n))"
FILLING = {
    "two tables": ("a (scan + 0.0 v)  b (scan * 1.0 v)", "(dot (flip a) b)", True),
    "a table and a result": ("a (scan + 0.0 v)  b (map exp v)", "#(b (dot a (flip a)))", False),
    "a table of another": (f"a (scan + 0.0 v)  b (scan * 1.0 {BACK})", "(dot (flip a) b)", False),
    "two results of two tables": (
        f"a (scan + 0.0 v)  b (scan * 1.0 {BACK})", "#((* (flip a) b) (* a (flip b)))", False
    ),
}  # fmt: skip


@pytest.mark.parametrize("flags", ["exact", "fast"])
@pytest.mark.parametrize("derived", [False, True])
def test_loops_that_fill_several_tables_stay_whole(flags: str, derived: bool) -> None:
    f = hyad.model(GAPS)
    g = hyad.value_and_grad(f, wrt=(0, 1, 2)) if derived else f
    for shape in ((3, 4), (2, 7), (5, 1)):
        args = (np.random.default_rng(3).standard_normal(shape), 0.7, 0.2)
        found, wanted = memoised.compile(g, args=args, flags=flags)(*args), hyad.run(g, *args)
        assert oracle.mismatch(found, wanted, 1e-11) is None


def test_rows_that_are_read_and_cleared_stay_whole() -> None:
    """Of two adjoints, where gcc's search for patterns takes loops apart as well."""
    changed = "(set-at! t i (slice (max 0 (- i 1)) (+ i 1)) (* (get t 1 1) (cut v (max 0 (- i 1)) (+ i 1))))"
    f = hyad.model(
        f"""(fn [#^ (Vec n) v #^ (Mat n n) s #^ (Vec n) dv]
          (hvp (fn [v] (let [t (copy s)] (for [i (range n)] {changed}) (sum t))) v dv))""",
        namespace={},
    )
    made = hyad.compile(f)
    assert "no-tree-loop-distribute-patterns" in made.source
    for n in (3, 4, 9):
        rng = np.random.default_rng(n)
        args = rng.standard_normal(n), rng.standard_normal((n, n)), rng.standard_normal(n)
        np.testing.assert_allclose(made(*args), hyad.run(f, *args), 1e-12, 1e-13)


@pytest.mark.parametrize("name", FILLING)
def test_what_is_left_to_gcc(name: str) -> None:
    """A loop that stores to one array, and one that stores to none that another could overlap."""
    tables, result, whole = FILLING[name]
    f = hyad.model(f"(fn [#^ (Vec n) v] (let [{tables}] {result}))")
    assert (WHOLE in hyad.show(f, "c")) == whole
    v = np.linspace(0.5, 1.5, 5)
    assert oracle.mismatch(f(v), hyad.run(f, v), 1e-13) is None


def test_options_stand_before_all_functions() -> None:
    """gcc takes no function into one that has been given other options: what a loop calls would stay a call."""
    f = hyad.model(
        """(fn [#^ (Vec n) v #^ Real p]
          (get (ifold (fn [u k] (maximum (* 0.1 u) (* p (concat (cut u 1 None) [0.0])))) v n) 0))""",
        namespace={},
    )
    source = hyad.compile(hyad.grad(f, wrt=("v", "p")), args=(np.ones(3), 0.5)).source
    lines = source.splitlines()
    options = [k for k, line in enumerate(lines) if line.startswith("#pragma GCC optimize")]
    assert any(WHOLE in lines[k] for k in options)
    assert max(options) < next(k for k, line in enumerate(lines) if line.startswith("static inline"))
