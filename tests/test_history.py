"""States that lie where they are remembered, and rows that are made where they are stored: the same to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
import memoised

RNG = np.random.default_rng(5)

#: Programs of a matrix u, a number p and a count; whether their gradient has a state that lies where it is remembered.
STATES = {
    "heat": (
        """(let [n (len u) m (get (shape u) 1)]
             (sum (square (ifold (fn [u t] (build [n m] (fn [i j]
               (if (or (= i 0) (= i (- n 1))) (get u i j)
                   (+ (get u i j) (* p (sin (- (get u (- i 1) j) (get u (+ i 1) j)))))))) ) u count))))""", True,
    ),
    "two that need each other": (
        """(let [#(x v) (ifold (fn [s t] (let [#(x v) s  v (+ v (* p (sin x)))] #((+ x (* p v v)) v)))
                              #(u (* 2.0 u)) count)]
             (sum (* x v)))""", True,
    ),
    "a product": (
        """(let [h (ifold (fn [h t] (build (len h) (fn [r] (tanh (* p (sum (* (get u r) h))))))) (get u 0) count)]
             (sum (square h)))""", True,
    ),
    "told by its value": ("(sum (ifold (fn [u t] (exp (* p (- 0.5 (@ u u))))) u count))", True),
    "told by its value, and what it began with": (
        "(sum (ifold (fn [u t] (let [w (tanh (* p u))] (* w u))) (tanh u) count))", True,
    ),
    "by cases": (
        """(sum (ifold (fn [u t] (if (> (get u 0 0) 0.0) (* p (square u)) (- (* u u) 0.5))) u count))""", True,
    ),
    "one element changes": (
        """(sum (ifold (fn [u t] (update u 0 0 (* p (sin (get u 0 0)) (get u 1 0)))) u count))""", False,
    ),
    "elements change": (
        "(sum (ifold (fn [u t] (update u (% t (len u)) 0 (sin (* p (sum (square u)))))) u count))", False,
    ),
    "a number": ("(ifold (fn [s t] (* p (sin (+ s (get u 0 0))))) 1.0 count)", False),
}  # fmt: skip


def fired(f: hyad.Model, *args: object) -> bool:
    return any(step.name == "history" for step in hyad.explain(f, args=args).steps)


@pytest.mark.some(10)
@pytest.mark.parametrize("name", STATES)
def test_gradients_are_as_without(name: str) -> None:
    text, wanted = STATES[name]
    f = hyad.model(f"(fn [#^ Real p #^ (Mat n n) u #^ Int count] {text})", namespace={})
    g, u = hyad.value_and_grad(f, wrt=("p", "u")), RNG.uniform(-1, 1, (6, 6))
    assert fired(g, 0.3, u, 4) == wanted
    made = [hyad.compile(g, args=(0.3, u, 4), target=t, without=w) for t in ("c", "python") for w in ((), "history")]
    threads = hyad.compile(g, args=(0.3, u, 4), threads=2)
    for n, count in ((6, 4), (6, 1), (3, 0), (3, -2), (2, 9)):
        args = (0.3, RNG.uniform(-1, 1, (n, n)), count)
        results = [h(*args) for h in made]
        for (value, (by_p, by_u)), (plain, (p_plain, u_plain)) in zip(results[::2], results[1::2]):
            assert (value, by_p) == (plain, p_plain)
            np.testing.assert_array_equal(by_u, u_plain)
        np.testing.assert_allclose(threads(*args)[1][1], results[0][1][1], rtol=1e-12, atol=1e-14)
    assert hyad.check_grad(f, (0.3, u, 4), wrt=("p", "u"))


def test_a_state_is_made_where_it_is_remembered() -> None:
    """No copy of it, and no second array that changes places with the first."""
    f = hyad.model(f"(fn [#^ Real p #^ (Mat n n) u #^ Int count] {STATES['heat'][0]})", namespace={})
    text = hyad.show(hyad.grad(f, wrt="u"), "c")
    there, back = text[text.index("restrict work") :].split("2.0*", 1)
    assert there.count("memcpy(") == 1 and "swap" not in there and "swap" in back
    assert there.count("HYAD_APART\n") == 2


def test_what_a_state_becomes_is_not_stored_twice() -> None:
    """The slope of ``tanh`` is told by its value, which is the next state."""
    g = hyad.grad(hyad.model("(fn [#^ (Mat n n) a v #^ Int t] (sum (ifold (fn [h i] (tanh (@ a h))) v t)))"), wrt="a")
    for n, t in ((5, 4), (3, 1), (2, 0), (1, 7)):
        args = RNG.uniform(-1, 1, (n, n)), RNG.uniform(-1, 1, n), t
        for x, y in zip(memoised.results(g, args), memoised.results(g, args, without=["history"])):
            np.testing.assert_allclose(x, y, rtol=1e-12)
    room = next(line for line in hyad.show(g, "c", args=args).splitlines() if "room for" in line)
    assert "room for n*n + n*(t > 0 ? t : 0) + 3*n reals" in room  # the matrix transposed, states, vectors


def test_a_state_that_one_of_two_loops_makes_is_made_where_it_is_remembered() -> None:
    """A loop that checks in each iteration, and one that need not, for when all is known before."""
    text = """(fn [u k] (let [n (len u) m (len (get u 0))]
      (sum (square (ifold (fn [u t] (build [n m] (fn [i j]
        (if (or (= i 0) (= j 0) (= i (- n 1)) (= j (- m 1))) (get u i j)
            (+ (get u i j) (* 0.1 (get k i j) (+ (get u (- i 1) j) (get u (+ i 1) j) (get u i (- j 1)))))))))
        u 5)))))"""
    f = hyad.model(text, namespace={})
    g, (u, k) = hyad.grad(f, wrt=("u", "k")), RNG.normal(size=(2, 6, 7))
    there, _ = hyad.compile(g, args=(u, k)).cfunction.source.split("2.0*", 1)
    assert there[there.index("restrict work)") :].count("memcpy(") == 1 and "return 2;" in there
    assert hyad.check_grad(f, (u, k), wrt=("u", "k"))
    with pytest.raises(hyad.HyadError, match="outside axis 0"):
        g(u, k[:3])


def test_states_that_are_read_whole_stay() -> None:
    """A stack that is itself a result has as many rows as there are iterations."""
    text = """(fn [#^ Real p #^ (Vec n) u #^ Int count]
      (let [#(last all) (ifold (fn [s t] (let [#(u all) s] #((map sin (* p u)) (update all t u))))
                               #(u (zeros [count (len u)])) count)]
        #(last all)))"""
    f = hyad.model(text, namespace={})
    u = RNG.normal(size=5)
    for count in (0, 1, 3):
        wanted, rows = u, []
        for _ in range(count):
            rows.append(wanted)
            wanted = np.sin(0.7 * wanted)
        last, all_ = memoised.compile(f)(0.7, u, count)
        np.testing.assert_allclose(last, wanted, rtol=1e-14)
        np.testing.assert_allclose(all_, np.reshape(rows, (count, 5)), rtol=1e-14)


#: What is stored in row k of w, which is 4 x 4, and whether it is made there.
ROWS = {
    "from the row before": (
        "(ifold (fn [w i] (update w (+ i 1) (build 4 (fn [j] (* 2.0 (get w i j)))))) w 3)", True,
    ),
    "from elsewhere": ("(ifold (fn [w i] (update w i (build 4 (fn [j] (* (real i) (get v j)))))) w 4)", True),
    "a row whose number is a sum": (
        """(ifold (fn [w i] (let [r (- 3 i)  x (map (fn [e] (sin (+ e (real r)))) v)]
             (update w r (ifold (fn [s j] (update s j (+ (get s (- 3 j)) 1.0))) x 4)))) w 4)""", True,
    ),
    "a row that may not be there": ("(update w k (build 4 (fn [j] (* 2.0 (get v j)))))", False),
    "a row that is there if another one is": (
        """(let [h (min k 3)
                 x (ifold (fn [s j] (update s j (+ (get s (- 3 j)) (real h)))) (build 4 (fn [j] (sin (get v j)))) 4)
                 s (get v k)]
             (+ s (update w h x)))""", False,
    ),
    "made before a branch": (
        """(let [x (ifold (fn [s j] (update s j (+ (get s (- 3 j)) 1.0))) (build 4 (fn [j] (sin (get v j)))) 4)]
             (if (> (get v 0) 0.0) (update w 1 x) w))""", False,
    ),
    "the row itself, backwards": (
        "(ifold (fn [w i] (update w i (build 4 (fn [j] (* 2.0 (get w i (- 3 j))))))) w 4)", False,
    ),
    "from a row that may be it": (
        "(ifold (fn [w i] (update w i (build 4 (fn [j] (* 2.0 (get w r (- 3 j))))))) w 4)", False,
    ),
    "sums of its own": (
        """(update w 2 (ifold (fn [s j] (update s j (+ (get s (- 3 j)) (get v j))))
                              (build 4 (fn [j] (sin (get v j)))) 4))""", True,
    ),
    "twice": (
        """(let [x (build 4 (fn [j] (sin (get v j))))]
             (update (update w 1 x) 0 (build 4 (fn [j] (get x (- 3 j))))))""", True,
    ),
    "and what it was": (
        """(let [x (build 4 (fn [j] (sin (get v j))))  y (get w k)]
             (+ (update w k x) (build [4 4] (fn [i j] (get y j)))))""", False,
    ),
    "that is read when it is changed": (
        """(let [x (build 4 (fn [j] (sin (get v j))))  w (update w k x)  w (update w k v)]
             (+ w (build [4 4] (fn [i j] (get x j)))))""", None,
    ),
    "at a place that is known later": (
        "(let [x (build 4 (fn [j] (sin (get v j))))  at (int (sum x))] (update w (max 0 (min at 3)) x))", False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_made_where_they_are_stored(name: str) -> None:
    text, wanted = ROWS[name]
    start = "(build [4 4] (fn [i j] (+ (get a i j) 1.0)))"
    f = hyad.model(f"(fn [#^ (Mat 4 4) a #^ (Vec 4) v #^ Int k #^ Int r] (let [w {start}] {text}))", namespace={})
    everything = [x for x in hyad.optimisations() if x != "history"]
    for k, r in ((1, 1), (3, 0), (2, 2)):
        args = (RNG.normal(size=(4, 4)), RNG.normal(size=4), k, r)
        truth = hyad.run(f, *args)
        for without in ((), everything):
            np.testing.assert_allclose(memoised.compile(f, without=without)(*args), truth, rtol=1e-14)
    if wanted is not None:
        assert ("memcpy" not in hyad.compile(f, without=everything).source) == wanted
