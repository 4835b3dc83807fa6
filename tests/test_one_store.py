"""What is stored in an element and then added to it is stored once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import hyad
from hyad.core import Block, If, Loop, Prim, Program, all_binds, with_body
from hyad.passes.stores import assign, one_addition
from hyad.plain_python import python_callable
from hyad.program.dead import dead_code

SIZES = (1, 2, 3, 4, 9, 40)


def stores(program: Program) -> list[str]:
    found = [x.op.name for x in all_binds(program.body) if type(x.op) is Prim]
    return [name for name in found if name in ("update", "add-at")]


@pytest.mark.parametrize(
    "body, left",
    [
        ("(add-at (update a i x) i 2.0)", ["update"]),
        ("(add-at (update (update a i x) (+ i 1) 3.0) i x)", ["update", "update"]),
        ("(add-at (add-at (update a i x) i 2.0) i (sin x))", ["update"]),
        ("(add-at (update a i x) (+ i 1) 2.0)", ["update", "add-at"]),  # another element
        ("(add-at (update (update a i x) 0 3.0) i 2.0)", ["update", "update", "add-at"]),  # 0 may be i
        ("(add-at (add-at (add-at a i x) (+ i 1) 4.0) i 2.0)", ["add-at", "add-at", "add-at"]),  # the order stays
        ("(let [b (update a i x)] (+ (add-at b i 2.0) b))", ["update", "add-at"]),  # read between
    ],
)
def test_stores_of_one_element(body: str, left: list[str]) -> None:
    f = hyad.model(f"(fn [#^ (Vec n) a #^ Int i #^ Real x] {body})", namespace={})
    point = np.arange(5.0), 2, 0.3
    found, plain = (hyad.compile(f, args=point, without=w) for w in ((), "one-store"))
    assert stores(found.program) == left
    for other in (plain(*point), hyad.run(f, *point)):
        np.testing.assert_array_equal(found(*point), other)


def test_a_row_is_added_to_one_of_which_an_element_has_been_stored() -> None:
    f = hyad.model("(fn [#^ (Mat n m) a #^ Int i #^ Real x] (add-at (update a i 0 x) i (get a 0)))", namespace={})
    point = np.arange(6.0).reshape(2, 3), 1, 0.3
    np.testing.assert_array_equal(hyad.compile(f, args=point)(*point), hyad.run(f, *point))


# what backward code makes of `a[i][j] = g(a[i][j], a[k][j])`: cleared, and added to again
CLEARED = """(loop (- n 1) (fn [i a]
  (let [x (get a {at}) b (update a {at} (get (zeros-of n) i)) c (add-at b {other} (* 2.0 x))]
    (add-at c {at} {value}))) a)"""


@pytest.mark.parametrize(
    "at, other, value, left",
    [
        ("(+ i 1)", "0", "x", ["add-at"]),  # i + 1 is above 0
        ("(+ i 1)", "0", "(sin x)", ["add-at", "update"]),
        ("(+ i 1)", "i", "x", ["add-at"]),
        ("i", "0", "x", ["update", "add-at", "add-at"]),  # 0 may be i
        ("i", "(- n 2)", "x", ["update", "add-at", "add-at"]),
        ("i", "(- n 1)", "x", ["add-at"]),
    ],
)
def test_what_is_cleared_and_added_to_again(at: str, other: str, value: str, left: list[str]) -> None:
    text = CLEARED.format(at=at, other=other, value=value)
    f = hyad.model(f"(fn [#^ (Vec n) a] {text})", namespace={})
    found, plain = (hyad.compile(f, args=(np.ones(3),), without=w) for w in ((), ("one-store", "carry")))
    assert [s for s in stores(found.program)][-len(left) :] == left
    for n in (1, 2, 3, 7):
        a = np.linspace(0.3, 1.9, n)
        np.testing.assert_array_equal(found(a), plain(a))
        np.testing.assert_array_equal(found(a), hyad.run(f, a))


def test_a_hessian_with_a_band_stores_each_entry_once() -> None:
    """Neighbours are coupled: no branch is left in the loop over the rows, and nothing is added to what it stored."""
    text = "(fn [#^ (Vec n) x] (sum (build (- (len x) 1) (fn [i] (* (sin (get x i)) (exp (get x (+ i 1))))))))"
    f = hyad.hessian(hyad.model(text, namespace={}))
    made, plain = (hyad.compile(f, args=(np.ones(3),), without=w) for w in ((), ("one-store", "edges")))
    inside = [x.op for b in all_binds(made.program.body) if type(b.op) is Loop for x in all_binds(b.op.body)]
    assert not any(type(op) is If or type(op) is Prim and op.name == "add-at" for op in inside)
    assert [x.op.name for x in all_binds(made.program.body) if type(x.op) is Prim].count("exp") == 1  # its own slope
    for n in SIZES:
        x = np.linspace(0.2, 1.7, n)
        s, c, e = np.sin(x), np.cos(x), np.exp(x)
        expected = np.diag(np.append(-s[:-1] * e[1:], 0.0) + np.append(0.0, s[:-1] * e[1:]))
        expected += np.diag(c[:-1] * e[1:], 1) + np.diag(c[:-1] * e[1:], -1)
        np.testing.assert_allclose(made(x), expected, rtol=1e-13, atol=1e-14)
        np.testing.assert_allclose(made(x), plain(x), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("at", ["i", "(- (- n 1) i)"], ids=["up", "down"])
@pytest.mark.parametrize(
    "step, once",
    [
        ("#(c (+ s (get v i)))", True),
        ("#(c (+ s (get c 0)))", False),  # what was added is read before all is there
        ("#(c (+ s (get b 0)))", False),
        ("#(c (+ s (get c 0)) b)", False),  # .. and stacked
        ("#(c s c)", False),
    ],
)
def test_sums_that_are_seen_before_the_end_stay_sums(at: str, step: str, once: bool) -> None:
    """What is added to fresh zeros once is a store in memory that is not cleared, if nothing sees the zeros."""
    body = f"(let [n (len v)] (loop n (fn [i b s] (let [c (add-at b {at} (get v i))] {step})) (zeros-of n) 0.0))"
    f = hyad.model(f"(fn [#^ (Vec n) v] {body})", namespace={})
    v = np.array([0.3, 0.4, -0.7])
    found = hyad.compile(f, args=(v,))
    assert ("add-at" not in stores(found.program)) == once
    for got, wanted in zip(found(v), hyad.run(f, v), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-15)


def test_adjoints_where_dead_code_is_left() -> None:
    """States of an accumulator are stacked for nobody: they are results of the loop all the same."""
    text = "(fn [v] (ifold (fn [s i] (fold + 0.0 (build (len v) (fn [j] (* (get v 1) s))))) 0.5 3))"
    f, v = hyad.hessian(hyad.model(text, namespace={})), np.array([0.3, 0.4, -0.7])
    found = hyad.compile(f, args=(v,), without="dead-code")
    np.testing.assert_allclose(found(v), np.diag([0.0, 0.5 * 27 * 6 * 0.4, 0.0]), rtol=1e-12)


TWO = "(loop n (fn [j p q] #((add-at p i j (+ u (* 2.0 (get v j)))) (update q 0 0 s))) {})"


@pytest.mark.parametrize(
    "start, inner, end",
    [
        ("(zeros-of n n)", "(loop n (fn [j p] (add-at p i j (+ u (* 2.0 (get v j))))) a)", "#(c s)"),
        ("(zeros-of n n)", "(add-at (add-at a i 0 u) i 2 1.0)", "#(c s)"),
        ("(add-at (zeros-of n n) 0 0 5.0)", "(add-at (add-at a i 0 u) i 2 1.0)", "#(c s)"),  # no zeros
        ("(add-at (zeros-of n n) 0 0 5.0)", "(loop n (fn [j p] (add-at p i j (+ u (* 2.0 (get v j))))) a)", "#(c s)"),
        ("(zeros-of n n)", "(loop n (fn [j p] (add-at p j i (+ u (* 2.0 (get v j))))) a)", "#(c s)"),  # by columns
        ("(zeros-of n n)", "(add-at (add-at a i 0 u) 1 2 1.0)", "#(c s)"),  # one element again and again
        ("(zeros-of n n)", TWO.format("a a"), "#(c (+ s (get d 0 0)))"),
        ("(zeros-of n n)", TWO.format("z a"), "#(c (+ s (get d 0 0)))"),
    ],
)
def test_rows_that_are_added_to_zeros(start: str, inner: str, end: str) -> None:
    """They are stacked where nothing else is in the array, and nothing else sees it."""
    loop = f"(loop n (fn [i a s] (let [u (get v i) {'#(c d)' if ' q]' in inner else 'c'} {inner}] {end})) w 0.0)"
    f = hyad.model(f"(fn [#^ (Vec n) v] (let [n (len v) z (zeros-of n n) w {start}] {loop}))", namespace={})
    v = np.array([0.3, 0.4, -0.7])
    for program in (assign(dead_code(f.program())), f.optimised()):
        for got, wanted in zip(python_callable(program)(v), hyad.run(f, v), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-15)


#: Functions of a matrix, of which derivatives add to the same element in two places.
ADDED = {
    "two sums over each window": """(let [n (len a)  m (shape a 1)  total (ref 0.0)]
             (for [i (range (- n 2))  j (range (- m 2))]
               (let [s (ref 0.0)  q (ref 0.0)]
                 (for [k (range 3)  l (range 3)]
                   (let [x (get a (+ i k) (+ j l))]
                     (set! s (+ (deref s) x))
                     (set! q (+ (deref q) (* x x)))))
                 (set! total (+ (deref total) (/ (exp (deref s)) (+ 1.0 (deref q)))))))
             (deref total))""",
    "a row in each step": """(let [d (ref a)  n (len a)  m (shape a 1)]
             (for [k (range (min n m))]
               (let [e (deref d)]
                 (set! d (build [n m] (fn [i j] (min (get e i j) (+ (get e i k) (get e k j))))))))
             (sum (deref d)))""",
}


@pytest.mark.parametrize("name", ADDED)
def test_additions_of_a_derivative_to_one_element(name: str) -> None:
    f = hyad.model(f"(fn [#^ (Mat n m) a] {ADDED[name]})", namespace={})
    g = hyad.grad(f)
    rng = np.random.default_rng(2)
    for shape in ((6, 7), (5, 5), (3, 3)):
        a = rng.uniform(0.1, 0.9, shape)
        made, plain = (hyad.compile(g, args=(a,), without=w) for w in ((), "one-addition"))
        adds = [stores(h.program).count("add-at") for h in (made, plain)]
        assert adds[0] < adds[1]
        np.testing.assert_allclose(made(a), plain(a), rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(made(a), hyad.run(g, a), rtol=1e-13, atol=1e-15)
        hyad.check_grad(f, (a,))


def test_additions_of_the_model_keep_their_order() -> None:
    f = hyad.model("(fn [#^ (Vec n) a #^ Int i #^ Real x] (add-at (add-at a i x) i 2.0))", namespace={})
    point = np.arange(5.0), 2, 0.3
    assert stores(hyad.compile(f, args=point).program) == ["add-at", "add-at"]
    np.testing.assert_array_equal(f(*point), hyad.run(f, *point))


@pytest.mark.parametrize(
    ("body", "soft", "left"),
    [
        ("(add-at (add-at a i x) i 2.0)", (True, True), 1),
        ("(add-at (add-at a i x) i 2.0)", (True, False), 2),  # the one or the other is the model's
        ("(add-at (add-at a i x) i 2.0)", (False, True), 2),
        ("(add-at (add-at (add-at a i x) j 1.0) i 2.0)", (True, True, True), 2),
        ("(add-at (add-at (add-at a i x) j 1.0) i 2.0)", (True, False, True), 3),  # j may be i
        ("(add-at (update (add-at a i x) j 1.0) i 2.0)", (True, False, True), 2),
        ("(let [b (add-at a i x)] (+ (add-at b i 2.0) b))", (True, True), 2),  # read between
    ],
)
def test_which_additions_are_one(body: str, soft: tuple[bool, ...], left: int) -> None:
    """``soft``: which of the changes are a derivative's own, the innermost first."""
    f = hyad.model(f"(fn [#^ (Vec n) a #^ Int i #^ Int j #^ Real x] {body})", namespace={})
    program, own = dead_code(f.program(f.specs())), iter(soft)
    changes = [x for x in program.body.binds if type(x.op) is Prim and x.op.name in ("update", "add-at")]
    marked = {x: replace(x, soft=next(own)) for x in changes}
    binds = tuple(marked.get(x, x) for x in program.body.binds)
    made = dead_code(one_addition(with_body(program, Block(binds, program.body.results))))
    assert stores(made).count("add-at") == left
    for i, j in ((1, 3), (2, 2)):
        args = np.arange(5.0), i, j, 0.3
        np.testing.assert_allclose(python_callable(made)(*args), hyad.run(f, *args), rtol=1e-15)
