"""A state of which each element is made of itself and of those after it is changed where it lies."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
from hyad.core import INT, REAL, Arr, Bind, Block, Loop, Prim, Var
from hyad.passes.renew import written_over

N = 40  # a loop of so many is not written out
V = np.linspace(0.5, 1.0, N)

#: The next state, whether it may be written over the one before, and what it is in NumPy.
STEPS = {
    "a triangle": (
        "(build n (fn [i] (if (< (+ i t) 39) (+ (get v i) (* 0.3 (get v (+ i 1)))) 0.0)))", True,
        lambda v, t: np.where(np.arange(N) + t < 39, v + 0.3 * np.append(v[1:], 0.0), 0.0),
    ),
    "a triangle, the rest as it was": (
        "(build n (fn [i] (if (< (+ i t) 39) (+ (get v i) (* 0.3 (get v (+ i 1)))) (get v i))))", False,
        lambda v, t: np.where(np.arange(N) + t < 39, v + 0.3 * np.append(v[1:], 0.0), v),
    ),
    "the one before": (
        "(build n (fn [i] (if (and (> i 0) (< i 39)) (+ (get v i) (* 0.3 (get v (- i 1)))) 0.0)))", False,
        lambda v, t: np.where((np.arange(N) > 0) & (np.arange(N) < 39), v + 0.3 * np.append(0.0, v[:-1]), 0.0),
    ),
    "the last one, read before": (
        "(build n (fn [i] (if (< (+ i t) 39) (* (get v i) (get v 39)) 1.5)))", True,
        lambda v, t: np.where(np.arange(N) + t < 39, v * v[39], 1.5),
    ),
    "backwards": (
        "(build n (fn [i] (if (< (+ i t) 39) (get v (- 39 i)) 1.5)))", False,
        lambda v, t: np.where(np.arange(N) + t < 39, v[::-1], 1.5),
    ),
}  # fmt: skip
LOOP = "(fn [#^ (Vec 40) v] (let [n (len v)] (ifold (fn [v t] {step}) v 39)))"


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("target", ["c", "python"])
def test_states(name: str, target: str) -> None:
    step, over, numpy = STEPS[name]
    model = hyad.model(LOOP.format(step=step), namespace={})
    expected = V.copy()
    for t in range(39):
        expected = numpy(expected, t)
    made, plain = (hyad.compile(model, args=(V,), target=target, without=w) for w in ((), "renew"))
    np.testing.assert_allclose(made(V), expected, rtol=1e-14)
    np.testing.assert_array_equal(made(V), plain(V))
    np.testing.assert_array_equal(V, np.linspace(0.5, 1.0, N))
    if target == "c":
        assert (made.cfunction.source != plain.cfunction.source) == over


def test_no_state_is_copied() -> None:
    """The tree of an option: one array, which shrinks."""
    text = (
        "(fn [#^ (Vec q) w] (map (fn [x] (get (ifold (fn [v t] (build 40 (fn [i] (if (< (+ i t) 39)"
        " (max (* x (real i)) (+ (get v i) (* 0.3 (get v (+ i 1))))) 0.0))))"
        " (build 40 (fn [i] (* x (real i)))) 39) 0)) w))"
    )
    model = hyad.model(text, namespace={})
    source = hyad.compile(model, args=(V,)).cfunction.source
    assert "memcpy" not in source and "memcpy" in hyad.compile(model, args=(V,), without="renew").cfunction.source
    np.testing.assert_array_equal(model(V), hyad.compile(model, args=(V,), without="renew")(V))


@pytest.mark.parametrize(
    "step",
    [
        "(+ (* p (get v (+ i 1))) (* (- 1.0 p) (get v i)))",
        "(max (get pay i) (+ (* p (get v (+ i 1))) (* (- 1.0 p) (get v i))))",
        "(if (< (get pay i) 0.5) (+ (* p (get v (+ i 1))) (* (- 1.0 p) (get v i))) 0.0)",
    ],
)
def test_tangents_are_read_before_what_they_belong_to_is_written(step: str) -> None:
    """Two tangents of a state, each made of it and of itself: all that an iteration reads comes first."""
    f = hyad.model(
        f"""(fn [s p] (let [pay (build 40 (fn [i] (sin (* s (real i)))))]
          (get (ifold (fn [v t] (build 40 (fn [i] (if (< (+ i t) 39) {step} 0.0)))) pay 39) 0)))""",
        namespace={},
    )
    args = 1.3, 0.45
    made, plain = (hyad.compile(hyad.grad(f), args=args, without=w) for w in ((), "renew"))
    assert "memcpy" not in made.source.partition("for (long long t")[2]
    np.testing.assert_array_equal(made(*args), plain(*args))
    assert hyad.check_grad(f, args)


def test_what_is_remembered_is_the_state_before() -> None:
    """Reverse mode stacks the states: each as it was."""
    step, _, numpy = STEPS["a triangle"]
    text = LOOP.format(step=step.replace("(* 0.3 (get", "(* 0.3 (get v i) (get"))
    f = hyad.grad(hyad.model(f"(fn [v] (sum ({text} v)))", namespace={}))
    made, plain = (hyad.compile(f, args=(V,), without=w) for w in ((), "renew"))
    small = V / 50  # so that the states stay finite
    for v in (V, small):
        np.testing.assert_array_equal(made(v), plain(v))
    assert hyad.check_grad(hyad.model(f"(fn [v] (sum ({text} v)))", namespace={}), [small])


def test_two_states_that_read_each_other() -> None:
    text = """(fn [#^ (Vec 40) v #^ (Vec 40) w] (let [#(a b) (ifold (fn [s t] (let [#(a b) s]
      #((build 40 (fn [i] (if (< (+ i t) 39) (+ (get a i) (get b (+ i 1))) 0.5)))
        (build 40 (fn [i] (if (< (+ i t) 39) (* 0.3 (+ (get b i) (get a (+ i 1)))) 0.0)))))) #(v w) 39)]
      (+ (sum a) (* 2.0 (sum b)))))"""
    model = hyad.model(text, namespace={})
    a, b, i = V.copy(), V[::-1].copy(), np.arange(N)
    for t in range(39):
        a, b = (
            np.where(i + t < 39, a + np.append(b[1:], 0.0), 0.5),
            np.where(i + t < 39, 0.3 * (b + np.append(a[1:], 0.0)), 0.0),
        )
    for target in ("c", "python"):
        made = hyad.compile(model, args=(V, V), target=target)
        np.testing.assert_allclose(made(V, V[::-1].copy()), a.sum() + 2.0 * b.sum(), rtol=1e-13)


#: A step changes one row of the state; the gradient takes the row's adjoint and puts zeros in its place.
BY_ROWS = """(fn [#^ (Mat n m) w #^ (Mat n m) h #^ Int t]
  (sum (ifold (fn [h k] (ifold (fn [h i]
         (update h i (map (fn [a b] (* b (tanh (* a b)))) (get w i) (get h i)))) h (len w))) h t)))"""


def test_a_row_that_is_read_once_more_is_put_aside() -> None:
    w, h = np.linspace(-1.0, 1.0, 12).reshape(4, 3), np.cos(np.arange(12.0)).reshape(4, 3)
    f = hyad.grad(BY_ROWS, wrt=("w", "h"))
    made, whole = (hyad.compile(f, args=(w, h, 3), without=off) for off in ((), "put-aside"))
    for got, wanted in zip(made(w, h, 3), whole(w, h, 3)):
        np.testing.assert_allclose(got, wanted, rtol=1e-14)
    assert hyad.check_grad(BY_ROWS, (w, h, 3))
    matrices = [g.source.count("(size_t)(n*m)*sizeof(double)") for g in (made, whole)]
    assert matrices[0] < matrices[1] and "swap" not in made.source and "swap" in whole.source


@pytest.mark.some(3)
@pytest.mark.parametrize("target", ["c", "python"])
@pytest.mark.parametrize(
    "change",
    [
        "(update u (slice 1 None) W)",
        "(do (set-at! u (slice 1 -1) W) u)",
        "(update u #((slice None) (slice 1 None)) W)",
    ],
)
def test_a_row_that_is_remembered_is_put_aside(change: str, target: str) -> None:
    """The adjoint of the rows that a slice has set: each row is read, and cleared. The matrix is not copied for it."""
    part = re.search(r"(#\(.*\)|\(slice.*?\)) W", change)[1]
    text = f"""(fn [#^ (Mat n m) v]
      (let [u (map (fn [r] (* r r)) v)]
        (sum (square {change.replace("W", f"(* 0.5 (sin (get u {part})))")}))))"""
    u = np.random.default_rng(2).normal(size=(5, 3))
    f = hyad.grad(text)
    made, whole = (hyad.compile(f, args=(u,), target=target, without=off) for off in ((), "put-aside"))
    np.testing.assert_allclose(made(u), whole(u), rtol=1e-14)
    assert hyad.check_grad(text, (u,))
    if target == "c":
        assert "swap" not in made.source and ("swap" in whole.source) == ("#" not in change)


#: A filter and a smoother, tables of states and of their covariances, of two numbers or of as many as there are.
SMOOTHER = """(fn [{F} q #^ (Vec n) ys]
  (let [n (len ys)  d (len F)
        #(xf Pf) (ifold (fn [#(xs Ps) t]
                   (let [x (@ F (get xs t))
                         P (+ (@ F (get Ps t) (transpose F)) (* q (eye d)))
                         K (/ (get P 0) (+ (get P 0 0) 1.0))]
                     #((update xs (+ t 1) (+ x (* K (- (get ys t) (get x 0)))))
                       (update Ps (+ t 1) (- P (outer K (get P 0)))))))
                 #((zeros [(+ n 1) d]) (update (zeros [(+ n 1) d d]) 0 (eye d))) n)]
    (snd (ifold (fn [#(x total) k]
                  (let [t (- n 1 k)  P (get Pf t)
                        x (+ (get xf t) (@ P (- x (@ F (get xf t)))))]
                    #(x (+ total (sq-norm x)))))
                #((get xf n) 0.0) n))))"""


@pytest.mark.some(6)
@pytest.mark.parametrize("declared", ["#^ (Mat 2 2) F", "#^ (Mat d d) F"])
@pytest.mark.parametrize("target", ["c", "python"])
def test_a_matrix_that_is_read_once_more_is_put_aside(declared: str, target: str) -> None:
    """The adjoint of a table of matrices is not copied for each of its rows."""
    text = SMOOTHER.format(F=declared)
    args = np.array([[0.9, 0.3], [-0.2, 0.8]]), 0.4, np.sin(np.arange(7.0))
    f = hyad.grad(text, wrt=(0, 1))
    made, whole = (hyad.compile(f, args=args, target=target, without=off) for off in ((), "put-aside"))
    for n in (0, 1, 2, 7):
        for got, wanted in zip(made(*args[:2], args[2][:n]), whole(*args[:2], args[2][:n])):
            np.testing.assert_allclose(got, wanted, rtol=1e-13)
    assert hyad.check_grad(text, args, wrt=(0, 1))
    if target == "c":
        tables = re.compile(r"memcpy.*\(size_t\)\((4\*n \+ 4|\(n \+ 1\)\*d\*d)\)")
        assert not tables.search(made.source) and tables.search(whole.source)


def test_a_row_that_is_read_later_is_not_in_the_table_that_a_loop_changes() -> None:
    """Built there, it would have the whole table copied for the loop: the unit matrix, which the gradient reads."""
    args = np.array([[0.9, 0.3], [-0.2, 0.8]]), 0.4, np.sin(np.arange(7.0))
    made = hyad.compile(hyad.grad(SMOOTHER.format(F="#^ (Mat d d) F"), wrt=(0, 1)), args=args)
    assert not re.search(r"memcpy\(.*\(n \+ 1\)", made.source)


#: What is read of an array after an element has been doubled.
READ_AFTER = {
    "an element": "(get v i)",
    "another element": "(get v (% (+ i 1) (len v)))",
    "in a branch": "(if (> (get new 0) 1.5) (get v 0) 0.0)",
    "where the change says": "(get v (max 0 (min (- (len v) 1) (int (get new i)))))",
    "where a check says": "(get v at)",
}


@pytest.mark.parametrize("name", READ_AFTER)
@pytest.mark.parametrize("target", ["c", "python"])
def test_numbers_are_read_before_a_change(name: str, target: str) -> None:
    text = f"""(fn [#^ (Vec n) v #^ Int k]
      (ifold (fn [#(v s) i] (let [at (* k (int s))  new (update v i (* 2.0 (get v i)))]
                              #(new (+ s (* (sum new) {READ_AFTER[name]})))))
             #(v 0.0) (len v)))"""
    made, plain = (hyad.compile(text, target=target, without=off) for off in ((), "put-aside"))
    for n in (0, 1, 4):
        v = np.cos(np.arange(1.0 * n))
        for got, wanted in zip(made(v, 0), plain(v, 0)):
            np.testing.assert_array_equal(got, wanted)
        np.testing.assert_array_equal(v, np.cos(np.arange(1.0 * n)))
    if name == "where a check says":
        with pytest.raises(hyad.HyadError):
            made(v, 1000)


def test_a_number_that_is_read_later_leaves_no_copy() -> None:
    text = """(fn [#^ (Vec n) v] (ifold (fn [#(v s) i]
      (let [new (update v (% (* 7 i) (len v)) s)] #(new (+ (* 0.5 s) (get v i)))))  #(v 0.0) (len v)))"""
    made, plain = (hyad.compile(text, without=off) for off in ((), "put-aside"))
    v = np.cos(np.arange(9.0))
    for got, wanted in zip(made(v), plain(v)):
        np.testing.assert_array_equal(got, wanted)
    assert "swap" not in made.source and "swap" in plain.source


@pytest.mark.parametrize("row", ["i", "(% (+ i 1) (len h))", "(% (* 7 i) (len h))"])
@pytest.mark.parametrize("target", ["c", "python"])
def test_rows_that_a_loop_reads_after_a_change(row: str, target: str) -> None:
    text = f"""(fn [#^ (Mat n m) h] (ifold (fn [#(h s) i]
      (let [new (update h i (map (fn [a] (* 2.0 a)) (get h i)))]
        #(new (+ s (ifold (fn [t j] (+ t (* (get new 0 j) (get h {row} j)))) 0.0 (len (get h 0)))))))
      #(h 0.0) (len h)))"""
    made, plain = (hyad.compile(text, target=target, without=off) for off in ((), "put-aside"))
    for n in (1, 2, 5):
        h = np.cos(np.arange(3.0 * n)).reshape(n, 3)
        for got, wanted in zip(made(h), plain(h)):
            np.testing.assert_array_equal(got, wanted)


def test_an_array_of_which_other_rows_are_read_stays_as_it_was() -> None:
    """The row of the next iteration, the row before it was changed, and the whole array, after the change."""
    text = """(fn [#^ (Mat n m) h]
  (ifold (fn [h i]
    (let [new (update h i (map (fn [a] (* 2.0 a)) (get h i)))
          old (fold + 0.0 (get h (% (+ i {}) (len h))))]
      (map (fn [row] (map (fn [a] (+ a old)) row)) new))) h (len h)))"""
    h = np.arange(12.0).reshape(4, 3)
    for shift in (0, 1):
        wanted = h.copy()
        for i in range(4):
            old = wanted[(i + shift) % 4].sum()
            wanted[i] *= 2
            wanted = wanted + old
        for target in ("c", "python"):
            np.testing.assert_allclose(hyad.compile(text.format(shift), target=target)(h), wanted, rtol=1e-14)


def test_a_state_that_is_made_of_another_array_changes_places_with_it() -> None:
    """What is made behind a first element reads nothing of the old state, but the loop before does: each number is
    stored where it is to be, and none is copied over the old ones."""
    text = """(fn [#^ (Mat n m) a]
      (fold
        (fn [above row]
          (concat [(- (get above 0) 0.5)]
            (scan (fn [left j] (max (+ (get above j) (get row j)) (- (get above (+ j 1)) 0.5) (- left 0.5)))
              (- (get above 0) 0.5) (arange (len row)))))
        (build (+ (len (get a 0)) 1) (fn [j] (* -0.5 j))) a))"""
    f = hyad.model(text, namespace={})
    made, plain = hyad.compile(f), hyad.compile(f, without="renew")
    for shape in ((4, 3), (3, 3), (1, 1), (5, 1)):
        a = np.random.default_rng(2).normal(size=shape)
        np.testing.assert_array_equal(made(a), plain(a))
        np.testing.assert_allclose(made(a), hyad.run(f, a), rtol=1e-14)
    assert "double *swap" in made.source


def test_what_reads_the_new_state_stays_behind_what_writes_it() -> None:
    n, i = Var("n", INT), Var("i", INT)
    old, start, before, after = (Var(name, Arr(REAL, (n,))) for name in ("old", "start", "before", "after"))
    x, y = Var("x", REAL), Var("y", REAL)
    body = (
        Bind((x,), Prim("get", (old, i))),
        Bind((after,), Prim("update", (before, i, x))),
        Bind((y,), Prim("get", (after, i))),
    )
    made = written_over(Loop(n, i, (start,), (before,), Block(body, (after, y))), old, 0)
    assert made is not None and made.inits == (old,)
    assert [bind.vars[0] for bind in made.body.binds] == [x, after, y]


#: What changes a part of u in place, as in NumPy, and whether no copy is made of it: a is as large.
SLICES = {
    "a part": ("(set-at! u (slice 1 -1) (slice 1 None) (* 0.5 (get u (slice 1 -1) (slice 1 None))))", True),
    "by another array": (
        """(set-at! u #((slice None) (slice 0 -1))
             (- (get u #((slice None) (slice 0 -1))) (* 0.5 (- (get a #((slice None) (slice 1 None))) 1.0))))""",
        True,
    ),
    "rows": ("(set-at! u (slice 0 -1) (+ (get u (slice 0 -1)) (* 0.5 (get a (slice 1 None)))))", True),
    "two in turn": (
        """(set-at! u (slice 1 None) (+ (get u (slice 1 None)) (* 0.5 (get w (slice 0 -1)))))
           (set-at! w (slice 0 -1) (- (get w (slice 0 -1)) (* 0.3 (get u (slice 1 None)))))""",
        True,
    ),
    "every other row": ("(set-at! u (slice None None 2) (* 0.5 (get u (slice None None 2))))", True),
    "neighbours": ("(set-at! u (slice 1 None) (* 0.5 (+ (get u (slice 1 None)) (get u (slice 0 -1)))))", False),
    "the other way round": ("(set-at! u (slice 0 -1) (* 0.5 (get (np.flip u 0) (slice 0 -1))))", False),
    "read later": (
        """(let [b (+ u 0.0)]
             (set-at! u (slice 1 None) (* 0.5 (get u (slice 1 None))))
             (set-at! w (slice 1 None) (+ (get w (slice 1 None)) (get b (slice 0 -1)))))""",
        None,
    ),
    "a column by the one before": (
        """(for [c (range 1 (len (get u 0)))]
             (set-at! u #((slice None) c)
               (- (get u #((slice None) c)) (* 0.1 (get u #((slice None) (- c 1)))))))""",
        True,
    ),
    "all columns after one": (
        """(for [j (range (len (get u 0)))  c (range (+ j 1) (len (get u 0)))]
             (set-at! u #((slice None) c)
               (- (get u #((slice None) c)) (* 0.1 (get a 0 j) (get u #((slice None) j))))))""",
        True,
    ),
    "a column by the next one": (
        """(for [c (range (- (len (get u 0)) 1))]
             (set-at! u #((slice 1 None) c) (* 0.5 (get u #((slice 1 None) (+ c 1))))))""",
        True,
    ),
    "a column by itself, moved": (
        "(for [c (range (len (get u 0)))] (set-at! u #((slice 1 None) c) (* 0.5 (get u #((slice 0 -1) c)))))",
        False,
    ),
    "a column by one that may be it": (
        """(for [c (range (len (get u 0)))]
             (set-at! u #((slice 1 None) c) (* 0.5 (get u #((slice 0 -1) (// c 2))))))""",
        False,
    ),
    "one element of each row": ("(set-at! u (slice 0 None) 1 (* 0.5 (get u (slice 0 None) 1)))", None),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", SLICES)
def test_slices_are_changed_where_they_lie(name: str) -> None:
    """Each element is read before it is changed: no copy of the array, in each step of time."""
    change, in_place = SLICES[name]
    f = hyad.model(
        f"""(fn [#^ (Mat n m) a #^ Int t]
          (let [u (copy a)  w (* 0.5 a)]
            (for [k (range t)] {change})
            (+ (sum (square u)) (sum (* u w)))))""",
        namespace={},
    )
    rng = np.random.default_rng(6)
    for n, m, t in ((5, 6, 3), (2, 2, 4), (9, 17, 2), (3, 3, 0)):
        args = rng.uniform(-1, 1, (n, m)), t
        assert hyad.compile(f, args=args)(*args) == pytest.approx(hyad.run(f, *args), rel=1e-13)
        one, other = (hyad.compile(f, args=args, target="python", without=w)(*args) for w in ((), "renew"))
        assert one == other
    assert hyad.check_grad(f, (rng.uniform(-1, 1, (5, 6)), 3), wrt="a")
    text = hyad.show(f, "c", args=args)
    body = text[text.index("k < t") :] if "k < t" in text else text[text.index("< t; ") :]
    if in_place is not None:
        assert ("memcpy" not in body and "swap" not in body) == in_place
    if in_place:  # its gradient remembers what it was, and changes it where it lies as well
        text = hyad.show(hyad.grad(f, wrt="a"), "c", args=args)
        assert "swap" not in text[text.index("restrict work)") :]


#: How a system is solved from its last row up, and whether that needs a copy of what it starts from.
BACKWARDS = {
    "itself": ("(- (get d i) (* c (get x (+ i 1))))", False),
    "and the last, which stays": ("(- (get d i) (* c (+ (get x (+ i 1)) (get x (- n 1)))))", False),
    "one that has been changed": ("(- (get d i) (* c (get d (+ i 1)) (get x (+ i 1))))", True),
}


@pytest.mark.parametrize("name", BACKWARDS)
def test_an_array_that_is_read_as_it_was_and_as_it_is(name: str) -> None:
    """Where it is read as it was an element is not changed yet: several rows are solved side by side without a copy."""
    value, copied = BACKWARDS[name]
    f = hyad.model(
        f"""(fn [#^ (Mat m n) u c]
          (let [back (fn [row]
                       (let [d (scan (fn [s e] (+ e (* c s))) 0.0 row)]
                         (ifold (fn [x k] (let [i (- n 2 k)] (update x i {value}))) d (- n 1))))]
            (sum (square (map back u)))))""",
        namespace={},
    )
    rng = np.random.default_rng(7)
    for m, n in ((8, 5), (17, 9), (3, 1), (9, 2)):
        u = rng.uniform(-1, 1, (m, n))
        g = hyad.compile(f, args=(u, 0.3))
        assert g(u, 0.3) == pytest.approx(hyad.run(f, u, 0.3), rel=1e-13)
        assert g(u, 0.3) == pytest.approx(hyad.compile(f, args=(u, 0.3), without="renew")(u, 0.3), rel=1e-13)
    assert hyad.check_grad(f, (rng.uniform(-1, 1, (9, 4)), 0.3))
    side_by_side = g.source.split("HYAD_LANES")[1:]
    assert len(side_by_side) > 2 and any("memcpy" in part for part in side_by_side[1:3]) == copied
