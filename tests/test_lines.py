"""Recurrences along rows that change in place, eight rows at once (``hyad/passes/eights.py``); and what all of them
share, which is done once (``hyad/passes/fission.py``)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import hyad
import memoised
from hyad.core import Block, Loop, Prim, all_binds, blocks_of
from hyad.program.journal import without

OFF = ("eights", "whole-eights")

#: In place, along each row ``d`` of a matrix: what is done with ``x``, a copy.
ALONG = {
    "sums": "(for [j (range 1 m)] (set-at! x j (+ (get x j) (* r (get x (- j 1))))))",
    "quotients": "(for [j (range 1 m)] (set-at! x j (/ (get x j) (+ 2.0 (* r (get x (- j 1)))))))",
    "backwards": "(for [k (range (- m 1))] (let [j (- m 2 k)] (set-at! x j (- (get x j) (* r (get x (+ j 1)))))))",
    "two before": "(for [j (range 2 m)] (set-at! x j (- (get x j) (* (* r (get x (- j 1))) (get x (- j 2))))))",
    "there and back": """(for [j (range 1 m)] (set-at! x j (+ (get x j) (* r (get x (- j 1))))))
      (for [k (range (- m 1))] (let [j (- m 2 k)] (set-at! x j (- (get x j) (* (sin r) (get x (+ j 1)))))))""",
    "one first": """(set-at! x 0 (* 3.0 (get x 0)))
      (for [j (range 1 m)] (set-at! x j (+ (get x j) (* r (get x (- j 1))))))""",
    "every second": """(for [k (range (// (- m 1) 2))]
      (let [j (* 2 k)] (set-at! x (+ j 2) (* (get x j) (get x (+ j 2))))))""",
    "filtered": "(for [j (range 1 m)] (set-at! x j (- (* r (get x j)) (* (get x (- j 1)) (get x (- j 1))))))",
}

#: Where the rows come from.
FROM = {
    "a matrix": "(get a i)",
    "a product": "(* 0.5 (get a i))",
    "neighbours": """(build m (fn [j] (+ (get a i j) (* r (+ (if (> i 0) (get a (- i 1) j) 0.0)
                                                             (if (< i (- n 1)) (get a (+ i 1) j) 0.0))))))""",
    "columns": "(build m (fn [j] (get b j i)))",
}


def text(along: str, start: str) -> str:
    return f"""(fn [#^ (Mat n m) a #^ (Mat m n) b #^ Real r]
      (build n (fn [i] (let [d {FROM[start]} x (copy d)] {ALONG[along]} x))))"""


def summed(along: str, start: str) -> str:
    return f"(fn [#^ (Mat n m) a #^ (Mat m n) b #^ Real r] (sum (sin ({text(along, start)} a b r))))"


@cache
def model(along: str, start: str, make: object = text) -> hyad.Model:
    return hyad.model(make(along, start))  # type: ignore[operator]


def given(n: int, m: int) -> tuple:
    rng = np.random.default_rng(10 * n + m)
    return rng.uniform(0.3, 1, (n, m)), rng.uniform(0.3, 1, (m, n)), 0.4


@pytest.mark.some(10)
@pytest.mark.parametrize("start", FROM)
@pytest.mark.parametrize("along", ALONG)
def test_values_to_the_last_bit(along: str, start: str) -> None:
    """In Python, where nothing contracts a product and a sum."""
    f = model(along, start)
    assert "eights" in hyad.explain(f).fired()
    here, plain = memoised.compile(f, "python"), memoised.compile(f, "python", without=OFF)
    for n in (0, 1, 7, 8, 17):
        for m in (0, 1, 2, 3, 6)[along == "one first" :]:
            args = given(n, m)
            np.testing.assert_array_equal(here(*args), plain(*args))


@pytest.mark.some(10)
@pytest.mark.parametrize("start", FROM)
@pytest.mark.parametrize("along", ALONG)
def test_gradients(along: str, start: str) -> None:
    """In C, against differences and the same without; ``value_and_grad`` gives the value of ``f``."""
    f = model(along, start, summed)
    g = hyad.value_and_grad(f)
    assert start != "a matrix" or "eights" in hyad.explain(hyad.grad(f, wrt=0)).fired()
    here, plain = memoised.compile(g), memoised.compile(g, without=OFF)
    for n, m in ((3, 0), (0, 3), (1, 1), (8, 2), (9, 1), (19, 5))[along == "one first" :]:
        args = given(n, m)
        (value, bars), (other, wanted) = here(*args), plain(*args)
        assert value == pytest.approx(other, rel=1e-12)
        for x, y in zip(bars, wanted):
            np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-12)
        rng, h = np.random.default_rng(1), 1e-6
        steps = [rng.normal(size=np.shape(x)) for x in args]
        ends = [here(*(x + s * d for x, d in zip(args, steps)))[0] for s in (h, -h)]
        slope = sum(np.sum(x * d) for x, d in zip(bars, steps))
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-5, abs=1e-7)


def last_ones(along: str, start: str) -> str:
    return f"""(fn [#^ (Mat n m) a #^ (Mat m n) b #^ Real r]
      (build n (fn [i] (let [d {FROM[start]} x (copy d)] {ALONG[along]} (fold (fn [p y] (+ y (* p y))) r x)))))"""


@pytest.mark.parametrize("start", ["neighbours", "columns"])
@pytest.mark.parametrize("along", ["quotients", "there and back"])
def test_rows_that_nobody_keeps(along: str, start: str) -> None:
    """There is room for eight of them and for one, however many there are."""
    f = model(along, start, last_ones)
    assert "eights" in hyad.explain(f).fired()
    here, plain = memoised.compile(f, "python"), memoised.compile(f, "python", without=OFF)
    for n, m in ((0, 2), (3, 4), (8, 1), (19, 5)):
        np.testing.assert_array_equal(here(*given(n, m)), plain(*given(n, m)))
    assert "n" not in str(memoised.compile(f).cfunction.workspace)


THOMAS = """(fn [#^ Real r #^ (Vec n) d]
  (let [c (zeros n) x (copy d)]
    (set-at! c 0 (/ (- r) (+ 1.0 (* 2.0 r))))
    (set-at! x 0 (/ (get d 0) (+ 1.0 (* 2.0 r))))
    (for [i (range 1 n)]
      (let [m (+ 1.0 (* 2.0 r) (* r (get c (- i 1))))]
        (set-at! c i (/ (- r) m))
        (set-at! x i (/ (+ (get x i) (* r (get x (- i 1)))) m))))
    (for [k (range (- n 1))]
      (let [i (- n 2 k)] (set-at! x i (- (get x i) (* (get c i) (get x (+ i 1)))))))
    x))"""
#: The same with the first step in the loop, as states that go on.
THOMAS_IN_ONE = """(fn [#^ Real r #^ (Vec n) d]
  (let [#(c x) (ifold (fn [#(c x) i]
                        (let [b (+ 1.0 (* 2.0 r))
                              m (if (= i 0) b (+ b (* r (get c (- i 1)))))
                              e (if (= i 0) (get d 0) (+ (get d i) (* r (get x (- i 1)))))]
                          #((update c i (/ (- r) m)) (update x i (/ e m)))))
                 #((zeros n) (zeros n)) n)]
    (ifold (fn [y k] (let [i (- n 2 k)] (update y i (- (get x i) (* (get c i) (get y (+ i 1))))))) x (- n 1))))"""
SYSTEMS = f"(fn [#^ (Mat l n) d #^ Real r] (build l (fn [i] ({THOMAS} r (get d i)))))"
IN_ONE = SYSTEMS.replace(THOMAS, THOMAS_IN_ONE)


def energy(systems: str) -> str:
    return f"(fn [#^ (Mat l n) d #^ Real r] (sum (square ({systems} d r))))"


def quotients(f: hyad.Model, args: tuple) -> list[int]:
    """In how many loops each quotient of a program is."""
    found = []

    def look(block: Block, depth: int) -> None:
        for x in block.binds:
            found.extend([depth] * (type(x.op) is Prim and x.op.name == "/"))
            for inner in blocks_of(x.op):
                look(inner, depth + (type(x.op) is Loop))

    look(f.optimised(f.specs(args)).body, 0)
    return found


@pytest.mark.some(3)
@pytest.mark.parametrize("systems", [SYSTEMS, IN_ONE], ids=["first apart", "in one"])
@pytest.mark.parametrize("l, n", [(1, 1), (1, 2), (3, 4), (8, 9), (21, 6)])
def test_systems_of_one_matrix(l: int, n: int, systems: str) -> None:  # noqa: E741
    """Against a dense solve, and its derivative: with ``y`` the solution of a system, that by ``d`` is the solution of
    the transposed one for ``2 y``."""
    d, r = np.random.default_rng(n).normal(size=(l, n)), 0.3
    matrix = (1 + 2 * r) * np.eye(n) - r * np.eye(n, k=1) - r * np.eye(n, k=-1)
    y = np.linalg.solve(matrix, d.T).T
    f = hyad.model(systems)
    np.testing.assert_allclose(memoised.compile(f)(d, r), y, rtol=1e-12, atol=1e-14)
    value, (d_bar, r_bar) = memoised.compile(hyad.value_and_grad(hyad.model(energy(systems))))(d, r)
    bar = np.linalg.solve(matrix.T, 2 * y.T).T
    slope = -np.sum(bar * (y @ (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1))))
    assert value == pytest.approx(np.sum(y * y), rel=1e-12)
    np.testing.assert_allclose(d_bar, bar, rtol=1e-11, atol=1e-13)
    assert r_bar == pytest.approx(slope, rel=1e-11)


@pytest.mark.parametrize("systems", [SYSTEMS, IN_ONE], ids=["first apart", "in one"])
def test_a_matrix_is_eliminated_once(systems: str) -> None:
    """Its part of each step leaves the loop over the right sides, before differentiation too: there no more is divided
    for each of them than what is divided of them. So it is where a branch tells the first step from the others: and
    what a gradient remembers beside a state is not a state of its own."""
    args = (np.zeros((9, 5)), 0.3)
    once = 1 if systems is SYSTEMS else 2  # in the loop of the first step and in that of the others
    for f in (hyad.model(systems), hyad.grad(hyad.model(energy(systems)), wrt=1)):
        with without(OFF):
            assert quotients(f, args).count(2) == once
        with without((*OFF, "fission")):
            assert quotients(f, args).count(2) > once


@pytest.mark.parametrize("systems", [SYSTEMS, IN_ONE], ids=["first apart", "in one"])
def test_adjoints_of_systems_go_back_eight_at_once(systems: str) -> None:
    """The step that is the first one is the last one back."""
    assert "eights" in hyad.explain(hyad.grad(hyad.model(energy(systems)))).fired()


def test_what_a_gradient_remembers_is_no_state_of_its_own() -> None:
    """What a branch gives beside a state, by the condition that makes this: the recurrence was done twice."""
    args = (np.zeros((9, 5)), 0.3)
    with without(OFF):
        assert quotients(hyad.grad(hyad.model(energy(IN_ONE))), args).count(2) == 2


def test_lines_of_a_grid_that_go_down_its_columns() -> None:
    """The stencil's rows are made before them, though they are cheap: eight recurrences go at once then."""
    grid = """(build [l n] (fn [i j] (+ (get d j i) (* r (+ (if (> i 0) (get d j (- i 1)) 0.0)
                                                             (if (< i (- l 1)) (get d j (+ i 1)) 0.0))))))"""
    f = hyad.model(f"(fn [#^ (Mat n l) d #^ Real r] (map (fn [row] ({THOMAS_IN_ONE} r row)) {grid}))")
    assert "eights" in hyad.explain(f).fired()
    for n, l in ((1, 1), (3, 4), (5, 19)):  # noqa: E741
        d = np.random.default_rng(n).normal(size=(n, l))
        wide = np.pad(d.T, ((1, 1), (0, 0)))
        matrix = 1.6 * np.eye(n) - 0.3 * np.eye(n, k=1) - 0.3 * np.eye(n, k=-1)
        wanted = np.linalg.solve(matrix, (d.T + 0.3 * (wide[:-2] + wide[2:])).T).T
        np.testing.assert_allclose(memoised.compile(f)(d, 0.3), wanted, rtol=1e-12, atol=1e-14)


def test_a_system_of_a_row_that_changes_stays() -> None:
    """A matrix that is another one for each right side."""
    other = SYSTEMS.replace(") r (get d i)", ") (* r (get d i 0)) (get d i)")
    d = np.random.default_rng(0).uniform(0.1, 1, (11, 4))
    got = memoised.compile(hyad.model(other))(d, 0.3)
    for row, x in zip(d, got):
        s = 0.3 * row[0]
        matrix = (1 + 2 * s) * np.eye(4) - s * np.eye(4, k=1) - s * np.eye(4, k=-1)
        np.testing.assert_allclose(x, np.linalg.solve(matrix, row), rtol=1e-12)


WEIGHTED = """(fn [#^ Real r #^ Real w #^ (Vec n) d]
  (let [c (zeros n) x (copy d)]
    (set-at! c 0 (- r))
    (for [i (range 1 n)]
      (let [m (+ 2.0 (* r (get c (- i 1))))]
        (set-at! c i (/ (- r) m))
        (set-at! x i (/ (+ (get x i) (get x (- i 1))) (* m w)))))
    (+ (sum x) (sum c))))"""


def test_what_a_line_makes_of_it_is_not_handed_on() -> None:
    """A number of each line times one of the matrix stays with the line; the matrix's leaves."""
    f = hyad.model(
        f"(fn [#^ (Mat l n) d #^ (Vec l) w #^ Real r] (build l (fn [i] ({WEIGHTED} r (get w i) (get d i)))))"
    )
    rng = np.random.default_rng(3)
    args = rng.normal(size=(9, 5)), rng.uniform(1, 2, 9), 0.3
    np.testing.assert_allclose(memoised.compile(f)(*args), hyad.run(f, *args), rtol=1e-13)
    with without(OFF):
        assert sorted(quotients(f, args)) == [1, 2]


def test_the_first_of_no_elements_is_not_stored() -> None:
    """A recurrence that begins with it stays in the loop which says that it is there."""
    f = hyad.model("""(fn [#^ (Vec n) a #^ Real r]
      (build n (fn [i]
        (let [c (zeros n)]
          (set-at! c 0 r)
          (for [j (range 1 n)] (set-at! c j (/ r (+ 2.0 (get c (- j 1))))))
          (* (get c (- n 1)) (get a i))))))""")
    for target in ("python", "c"):
        call = memoised.compile(f, target)
        assert call(np.zeros(0), 0.3).shape == (0,)
        np.testing.assert_allclose(call(np.ones(2), 0.3), np.full(2, 0.3 / 2.3), rtol=1e-15)


def test_what_is_stored_first_may_not_be_there() -> None:
    """What begins a recurrence leaves a loop only where it is known to be there if the loop does not run."""
    begins = "(for [j (range 2 m)] (set-at! c j (/ r (+ 2.0 (get c (- j 1)))))) (* (get c (- m 1)) (get a i k))"
    f = hyad.model(f"""(fn [#^ (Mat n l) a #^ Real r #^ Int m #^ Int k]
      (build n (fn [i] (let [c (zeros m)] (set-at! c k r) {begins}))))""")
    a, wanted = np.ones((3, 2)), [0.3]
    for _ in range(3):
        wanted.append(0.3 / (2.0 + wanted[-1]))
    np.testing.assert_allclose(memoised.compile(f)(a, 0.3, 5, 1), np.full(3, wanted[-1]), rtol=1e-15)
    with pytest.raises(hyad.BoundsError):
        memoised.compile(f)(a, 0.3, 1, 1)


def test_rows_are_turned_once() -> None:
    """No element of a row is read across rows within the recurrence: what is in lanes lies side by side."""
    f = model("there and back", "neighbours")
    program = f.optimised(f.specs(given(16, 6)))
    lanes = [x.op for x in all_binds(program.body) if type(x.op) is Loop and x.op.index.name == "lane"]
    steps = [loop for loop in lanes if all(type(x.op) is Prim for x in loop.body.binds)]
    looks = [(loop, x.op.args) for loop in steps for x in loop.body.binds if x.op.name == "get"]
    assert len(steps) > 1 and all(at[-1] is loop.index for loop, at in looks if loop.index in at)
    assert sum(loop not in steps for loop in lanes) == 2  # into the lanes, and out of them


SMOOTHER = """(fn [#^ (Vec t) y #^ Real q #^ Real r]
  (let [F [[1.0 0.5] [0.0 1.0]] xs (zeros [t 2]) ps (zeros [t 2 2])
        x (ref [0.0 0.0]) p (ref [[2.0 0.0] [0.0 2.0]]) e (ref 0.0)]
    (for [i (range t)]
      (let [a (@ F (deref x))
            b (+ (@ F (deref p) (transpose F)) [[q 0.0] [0.0 q]])
            k [(/ (get b 0 0) (+ (get b 0 0) r)) (/ (get b 1 0) (+ (get b 0 0) r))]]
        (set! x (+ a (* k (- (get y i) (get a 0)))))
        (set! p (- b (outer k (get b 0))))
        (set-at! xs i (deref x))
        (set-at! ps i (deref p))))
    (for [i (range (- t 2) -1 -1)]
      (set-at! xs i (+ (get xs i) (@ (get ps i) (- (get xs (+ i 1)) (@ F (get xs i)))))))
    (for [i (range t)] (set! e (+ (deref e) (square (- (get xs i 0) (get y i))))))
    (deref e)))"""
SMOOTHERS = f"(fn [#^ (Mat s t) y #^ Real q #^ Real r] (fold (fn [e row] (+ e ({SMOOTHER} row q r))) 0.0 y))"


def test_gains_are_those_of_all_series() -> None:
    """A state of an array that is written down, as the first covariance is, leaves the loop over series, too: all
    quotients are gains, and made once."""
    f, g = hyad.model(SMOOTHERS), hyad.grad(hyad.model(SMOOTHERS), wrt=(0, 1, 2))
    rng = np.random.default_rng(5)
    for s, t in ((1, 1), (3, 4), (9, 7)):
        args = rng.normal(size=(s, t)), 0.1, 0.7
        assert memoised.compile(f)(*args) == pytest.approx(hyad.run(f, *args), rel=1e-13)
        for x, z in zip(memoised.compile(g)(*args), memoised.compile(g, without="fission")(*args)):
            np.testing.assert_allclose(x, z, rtol=1e-11, atol=1e-13)
    assert max(quotients(f, args)) == 1
    with without(("fission",)):
        assert max(quotients(f, args)) == 2


def test_a_branch_by_what_no_row_changes_is_taken_once() -> None:
    """The norm of each column's vector, which is 0 for 0, with the sum that tells it: once, not for each pair."""
    f = hyad.model("""(fn [#^ (Mat n k) a #^ (Mat m k) b]
      (build [n m] (fn [i j] (/ (dot (get a i) (get b j)) (* (norm (get a i)) (norm (get b j)))))))""")
    with without((*OFF, "jam", "lanes", "whole-eights", "transposes", "roots")):
        loops = []

        def look(block: Block, depth: int) -> None:
            for x in block.binds:
                if type(x.op) is Loop:
                    loops.append((depth, len(x.op.accs)))
                    look(x.op.body, depth + 1)

        look(f.optimised(f.specs()).body, 0)
    assert [accs for depth, accs in loops if depth == 2] == [1]
    a, b = np.random.default_rng(0).normal(size=(5, 4)), np.random.default_rng(1).normal(size=(3, 4))
    wanted = a @ b.T / np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
    np.testing.assert_allclose(f(a, b), wanted, rtol=1e-13)
    hyad.check_grad(f, (a, b))


def test_what_two_branches_of_one_condition_need() -> None:
    """A coefficient that the first step has otherwise is in a table, and what is made of it in a branch by the same
    condition: that read it where the branch made it again."""
    f = hyad.model("""(fn [#^ (Mat l n) m #^ Real c]
      (sum (map (fn [row]
        (let [#(p q) (ifold (fn [#(p q) i]
                              (let [s (if (= i 0) (sin 1.3) (/ (cos 1.3) (+ 2.0 (square (+ 0.5 c)))))
                                    e (if (= i 0) (- 0.5 1.3) (get row i))]
                                #((update p i (/ c (+ 2.0 (square s)))) (update q i (/ e (+ 1.5 (square s)))))))
                       #((zeros n) (zeros n)) n)]
          (sum (sin (ifold (fn [x k] (let [i (- n 2 k)]
                             (update x i (- (get q i) (* (get p i) (get x (+ i 1)))))))
                      q (- n 1))))))
        m)))""")
    m = np.random.default_rng(1).uniform(0.1, 1, (9, 5))
    hyad.check_grad(f, (m, 0.7))
    for h in (f, hyad.grad(f)):
        one, other = (memoised.results(h, (m, 0.7), without=off) for off in ((), ["expand"]))
        for x, y in zip(one, other):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)
