"""A `while` that counts is the counted loop: before it is differentiated, and where it is not."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
from hyad.core import Loop, While, all_binds

V = np.array([0.3, -0.7, 1.1, 0.4, 0.9])


def kinds(f: hyad.Model, *args) -> set[type]:
    program = f.optimised(f.specs(args))
    return {type(b.op) for b in all_binds(program.body)} & {Loop, While}


def running(condition: str, step: str, start: str = "0", at: str = "(deref i)") -> str:
    """What comes to the sum of the sines of elements, each of them times what was there before, and the counter."""
    return f"""(fn [#^ (Vec n) v #^ Int k]
      (let [i (ref {start})  s (ref 1.0)]
        (while {condition}
          (set! s (+ (deref s) (sin (* (deref s) (get v {at})))))
          (set! i {step}))
        [(deref s) (real (deref i))]))"""


def expected(v: np.ndarray, indices: range, end: int) -> np.ndarray:
    s = 1.0
    for i in indices:
        s = s + np.sin(s * v[i])
    return np.array([s, end])


UP, DOWN = "(+ (deref i) 1)", "(- (deref i) 1)"
#: A loop, the indices at which it reads v of n elements, where k is given, and what the counter is after it.
COUNTING = {
    "to a size": (running("(< (deref i) n)", UP), lambda n, k: (range(n), n)),
    "the size first": (running("(> n (deref i))", "(+ 1 (deref i))"), lambda n, k: (range(n), n)),
    "to the last": (running("(<= (deref i) (- n 1))", UP), lambda n, k: (range(n), n)),
    "to an integer": (running("(< (deref i) k)", UP), lambda n, k: (range(k), max(k, 0))),
    "from one": (running("(< (deref i) n)", UP, "1"), lambda n, k: (range(1, n), max(n, 1))),
    "until it is a size": (running("(!= (deref i) n)", UP), lambda n, k: (range(n), n)),
    "until it is one, in other words": (running("(not (= n (deref i)))", UP), lambda n, k: (range(n), n)),
    "down": (running("(> (deref i) 0)", DOWN, "n", "(- (deref i) 1)"), lambda n, k: (range(n - 1, -1, -1), 0)),
    "down to zero": (
        running("(>= (deref i) 0)", "(+ -1 (deref i))", "(- n 1)"), lambda n, k: (range(n - 1, -1, -1), -1),
    ),
    "down until it is zero": (
        running("(!= 0 (deref i))", DOWN, "n", "(- (deref i) 1)"), lambda n, k: (range(n - 1, -1, -1), 0),
    ),
    "recursion that counts": (
        """(fn [#^ (Vec n) v #^ Int k]
          (loop [i 0  s 1.0]
            (if (= i (len v)) [s (real i)] (recur (+ i 1) (+ s (sin (* s (get v i))))))))""",
        lambda n, k: (range(n), n),
    ),
}  # fmt: skip


@pytest.mark.some(6)
@pytest.mark.parametrize("name", COUNTING)
def test_what_counts_is_counted(name: str) -> None:
    text, course = COUNTING[name]
    f = hyad.model(text, namespace={})
    total = hyad.model("(fn [v k] (get (f v k) 0))", namespace={"f": f})
    gradient = hyad.grad(total, wrt=0)
    compiled = hyad.compile(f)
    assert kinds(f, V, 3) == {Loop} and kinds(gradient, V, 3) == {Loop}
    assert "counted" in [step.name for step in hyad.explain(f, args=(V, 3)).steps]
    back = hyad.compile(gradient, args=(V, 3))
    assert not back.cfunction.arena
    apart = hyad.compile(gradient, args=(V, 3), without="counted")
    for n in range(len(V) + 1):
        for k in {-1, 0, n}:
            indices, end = course(n, k)
            np.testing.assert_allclose(compiled(V[:n], k), expected(V, indices, end), rtol=1e-15)
            found = back(V[:n], k)
            np.testing.assert_allclose(found, apart(V[:n], k), rtol=1e-14)
            for j in range(n):
                moved = V[:n].astype(complex)
                moved[j] += 1e-30j
                assert found[j] == pytest.approx(np.imag(expected_complex(moved, indices)) / 1e-30, rel=1e-13)


def expected_complex(v: np.ndarray, indices: range) -> complex:
    s = 1.0 + 0j
    for i in indices:
        s = s + np.sin(s * v[i])
    return s


#: Until an integer is 0, which fails where it begins below that: by an index, and by sizes.
UNTIL = {
    "reads": "(loop [i k  s 1.0] (if (= i 0) s (recur (- i 1) (+ s (sin (* s (get v (- i 1))))))))",
    "makes": """(loop [i k  s 1.0]
      (if (= i 0) s (recur (- i 1) (+ s (sin (* s (sum (build i (fn [j] (* 0.1 (get v j)))))))))))""",
    "makes twice as many": """(loop [i k  s 1.0]
      (if (= i 0) s
        (recur (- i 1) (+ s (sin (* s (sum (build (- (* 2 i) 1) (fn [j] (* 0.1 (real j) (get v (- i 1))))))))))))""",
}


@pytest.mark.parametrize("name", UNTIL)
def test_a_check_in_the_loop_fails_before_it(name: str) -> None:
    """A counter that begins beyond its end never comes to it: its first iteration fails, and so does the loop."""
    f = hyad.model(f"(defmodel f [#^ (Vec n) v #^ Int k] {UNTIL[name]})", namespace={})
    gradient = hyad.grad(f, wrt="v")
    assert kinds(f, V, 3) == {Loop} and kinds(gradient, V, 3) == {Loop}
    made, apart = hyad.compile(f), hyad.compile(f, without="counted")
    back = hyad.compile(gradient, args=(V, 3))
    assert not back.cfunction.arena
    for k in range(len(V) + 1):
        assert made(V, k) == pytest.approx(hyad.run(f, V, k), rel=1e-15)
        np.testing.assert_allclose(back(V, k), hyad.run(gradient, V, k), rtol=1e-13)
    for k in (-1, -7):
        with pytest.raises(hyad.HyadError) as now:
            made(V, k)
        with pytest.raises(hyad.HyadError) as before:
            apart(V, k)
        assert type(now.value) is type(before.value) and now.value.span == before.value.span


@pytest.mark.parametrize(
    "text",
    [
        running("(< (deref i) n)", "(+ (deref i) 2)"),  # by two
        running("(< (deref i) n)", "(if (> (deref s) 3.0) n (+ (deref i) 1))"),  # not always by one
        running("(and (< (deref i) n) (< (deref s) 9.0))", UP),  # another end as well
        running("(< (deref i) (- n (deref i)))", UP),  # an end that moves
        running("(< (deref s) 2.0)", UP, "0", "(% (deref i) n)"),  # what is no integer
        running("(!= (deref i) k)", UP),  # k may be behind it
        running("(<= (deref i) k)", UP),  # one more than k may wrap
        running("(< (deref i) n)", UP, "k"),  # their difference may
        running("(< (deref i) n)", DOWN, "(- n 1)"),  # the wrong way
    ],
)
def test_what_does_not_count_for_certain_is_left(text: str) -> None:
    f = hyad.model(text, namespace={})
    assert While in kinds(f, V, 3)
    assert "counted" not in [step.name for step in hyad.explain(f, args=(V, 3)).steps]


def test_one_loop_in_another_remembers_a_row_at_a_time() -> None:
    """What an inner loop remembers is this iteration's own, and needs no list of lists."""
    text = """(fn [#^ (Mat n m) a]
      (let [i (ref 0)  total (ref 0.0)]
        (while (< (deref i) n)
          (let [j (ref 0)  s (ref 1.0)]
            (while (< (deref j) m)
              (set! s (sin (* (deref s) (get a (deref i) (deref j)))))
              (set! j (+ (deref j) 1)))
            (set! total (+ (deref total) (deref s))))
          (set! i (+ (deref i) 1)))
        (deref total)))"""
    gradient = hyad.compile(hyad.grad(hyad.model(text)))
    assert not gradient.cfunction.arena
    assert "n*m" not in str(gradient.cfunction.workspace).replace(" ", "")
    a = np.outer(V, V[:3])
    found = gradient(a)
    for at in np.ndindex(a.shape):
        moved = a.astype(complex)
        moved[at] += 1e-30j
        s = np.ones(len(V), complex)
        for j in range(3):
            s = np.sin(s * moved[:, j])
        assert found[at] == pytest.approx(np.imag(s.sum()) / 1e-30, rel=1e-13)
