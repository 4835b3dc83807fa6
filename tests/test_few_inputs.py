"""A gradient by few numbers through recursion or a loop with a state takes tangents along, and remembers nothing."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
from hyad.core import Apply, Arr, Loop, While, all_binds

YS = np.linspace(0.2, 1.9, 9)

#: Programs of two numbers and a vector, and whether the derivative goes forward.
PROGRAMS = {
    "a state": ("(fold (fn [s y] (+ (* a (sin s)) (* b y))) 0.5 ys)", True),
    "two states": ("(fst (fold (fn [#(s t) y] #((+ s (* t y)) (* a (cos (+ t b))))) #(0.0 1.0) ys))", True),
    "an array": ("(sum (ifold (fn [v t] (build 5 (fn [i] (* a (sin (+ b (get v i))))))) [a b 1.0 2.0 3.0] 40))", True),
    "a while": ("(let [x (ref a)] (while (< (deref x) 30.0) (set! x (+ (* (deref x) b) 1.0))) (* a (deref x)))", True),
    "in a branch": ("(if (> a 0.0) (fold (fn [s y] (* s (sin (* a (+ b y))))) 1.0 ys) b)", True),
    "a sum": ("(fold (fn [s y] (+ s (exp (* a (- y b))))) 0.0 ys)", False),
    "sums in sums": ("(fold (fn [s y] (fold (fn [s z] (+ s (exp (* a (- y (* b z)))))) s ys)) 0.0 ys)", False),
    "stores": ("(sum (ifold (fn [v i] (update v i (sin (* a (get ys i))))) (copy ys) 9))", False),
    "no loop": ("(* a (sin (* a b)))", False),
    "checkpoints": ("(fold (fn [s y] (+ (* a (sin s)) (* b y))) 0.5 ys :checkpoint 3)", False),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("operator", [hyad.grad, hyad.value_and_grad])
def test_gradients_by_two_numbers(name: str, operator) -> None:
    """The same numbers as backwards; and no array of states where the gradient goes forward."""
    text, forward = PROGRAMS[name]
    model = hyad.model(f"(fn [#^ Real a #^ Real b #^ (Vec n) ys] {text})", namespace={})
    f = operator(model, wrt=("a", "b"))
    args = (1.2, 1.3, YS)
    here, back = (hyad.compile(f, args=args, target="python", without=w) for w in ((), "few-inputs"))
    assert (str(here.program) != str(back.program)) == forward
    for a, b in ((1.2, 1.3), (0.7, 1.9), (-0.4, 2.5)):
        if name == "a while" and a < 0:
            continue
        found, expected = (g(a, b, YS) for g in (here, back))
        if operator is hyad.value_and_grad:
            assert found[0] == expected[0]
            found, expected = found[1], expected[1]
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


def test_it_remembers_nothing() -> None:
    text, _ = PROGRAMS["a state"]
    model = hyad.model(f"(fn [#^ Real a #^ Real b #^ (Vec n) ys] {text})", namespace={})
    f = hyad.grad(model, wrt=("a", "b"))
    loops = [x for x in all_binds(f.optimised(f.specs((1.0, 1.0, YS))).body) if type(x.op) is Loop]
    assert len(loops) == 1 and not any(isinstance(v.type, Arr) for v in loops[0].vars)


#: Programs of five numbers, a vector and an integer; by how many of the numbers at most the gradient goes forward.
MANY = {
    "a state": ("(fold (fn [s y] (+ (* a (sin s)) (* b c y) (* d e))) 0.5 ys)", 4),
    "a short array": ("(get (fold (fn [s y] [(* a e (get s 1)) (sin (* b c d y (get s 0)))]) [0.5 a] ys) 0)", 4),
    "a while": ("(let [x (ref a)] (while (< (deref x) 9.0) (set! x (+ (* (deref x) b c) d e))) (* a (deref x)))", 4),
    "jumps": ("(letrec [f (fn [s n] (if (= n 0) (* a s) (f (+ (* b (sin s)) c d e) (- n 1))))] (f 0.3 k))", 4),
    "a stack": ("(letrec [f (fn [n] (if (= n 0) a (+ b (* c (sin (+ d (* e (f (- n 1)))))))))] (f k))", 4),
    "rows": ("(sum (map (fn [z] (exp (- (fold (fn [s y] (* a (sin (+ s (* b c d e y z))))) z ys)))) ys))", 4),
    "a tree": ("(letrec [f (fn [n] (if (< n 2) a (+ (* b c (f (- n 1))) (* d e (f (- n 2))))))] (f k))", 2),
    "an array": ("(sum (ifold (fn [v t] (build 9 (fn [i] (* a b c (sin (+ d e (get v i))))))) ys 40))", 2),
    "work beside it": ("(* (fold (fn [s y] (* a (sin s))) b ys) (sum (map (fn [y] (exp (* c d e y))) ys)))", 2),
    "a stack of arrays": ("""(letrec [f (fn [v n]
        (if (= n 0) (sum v) (sin (* e (f (map (fn [y] (* a b c d y y)) v) (- n 1))))))] (f ys k))""", 2),
}  # fmt: skip


@pytest.mark.some(6)
@pytest.mark.parametrize("name", MANY)
def test_how_many_numbers(name: str) -> None:
    text, most = MANY[name]
    model = hyad.model(
        f"(fn [#^ Real a #^ Real b #^ Real c #^ Real d #^ Real e #^ (Vec n) ys #^ Int k] {text})", namespace={}
    )
    args = (1.2, 1.1, 0.9, 0.8, 0.7, YS, 7)
    for wrt in ("ab", "abcd", "abcde"):
        f = hyad.grad(model, wrt=tuple(wrt))
        here, back = (hyad.compile(f, args=args, target="python", without=w) for w in ((), "few-inputs"))
        assert (str(here.program) != str(back.program)) == (len(wrt) <= most)
        np.testing.assert_allclose(f(*args), back(*args), rtol=1e-11, atol=1e-13)


def test_recursion_by_few_numbers_has_no_records() -> None:
    f = hyad.grad("(fn [x #^ Int n] (letrec [p (fn [n] (if (= n 0) 1.0 (* x (sin (p (- n 1))))))] (p n)))", wrt="x")
    assert "record" not in str(hyad.show(f, "c", args=(0.9, 3)))
    assert "record" in hyad.compile(f, args=(0.9, 3), without="few-inputs").cfunction.source
    np.testing.assert_allclose(f(0.9, 6), hyad.run(f, 0.9, 6), rtol=1e-12)


def test_a_vector_of_two_and_products_with_a_cotangent() -> None:
    model = hyad.model(
        "(fn [#^ (Vec 2) p] (ifold (fn [s i] (+ (* (get p 0) (sin s)) (get p 1))) 0.3 50))", namespace={}
    )
    p = np.array([0.9, 0.4])
    expected = hyad.compile(hyad.grad(model), args=(p,), without="few-inputs")(p)
    np.testing.assert_allclose(hyad.compile(hyad.grad(model), args=(p,))(p), expected, rtol=1e-12)
    np.testing.assert_allclose(hyad.vjp(model, (p,), 2.5), 2.5 * expected, rtol=1e-12)
    np.testing.assert_allclose(hyad.hvp(model, p, np.array([1.0, 0.0])), hyad.hessian(model)(p)[0], rtol=1e-10)


def test_other_encodings_stay_what_they_are() -> None:
    """Who asks for an encoding of reverse mode gets it."""
    model = hyad.model("(fn [#^ Real a] (ifold (fn [s i] (* a (sin s))) 0.3 50))", namespace={})
    for encoding in ("closure", "continuation"):
        f = hyad.grad(model, encoding=encoding)
        np.testing.assert_allclose(f(1.1), hyad.grad(model)(1.1), rtol=1e-12)


def test_a_gradient_in_a_gradient_needs_no_arena(tmp_path) -> None:
    """A function that is called like one that calls itself, and does not, is written out before it is differentiated:
    the loops of what was called are loops of the caller's."""
    text = """
(defmodel slope [f x] (vjp f x 1.0))
(defmodel steps [g w] (let [x (ref w) v (ref 1.0)]
  (while (< (deref x) 3.0)
    (set! v (+ (deref v) (* 0.1 (g (fn [z] (* w (sin z) z)) (deref x)))))
    (set! x (+ (deref x) (* 0.1 (* (deref v) (deref v))))))
  (deref v)))
(defmodel nested [#^ Real w] (slope (fn [w] (steps slope w)) w))
"""
    path = tmp_path / "models.hy"
    path.write_text(text)
    module = hyad.load(path)
    f = module.nested
    program = f.optimised(f.specs((0.5,)))
    assert not any(type(x.op) is Apply for x in all_binds(program.body))
    (loop,) = (x for x in all_binds(program.body) if type(x.op) is While)
    assert len(loop.vars) == len(loop.op.accs) + 1  # nothing is stacked
    h = 1e-6
    value = hyad.model("(fn [#^ Real w] (steps slope w))", namespace=vars(module))
    np.testing.assert_allclose(f(0.5), (value(0.5 + h) - value(0.5 - h)) / (2 * h), rtol=1e-7)


def test_tangents_share_the_state() -> None:
    """The state that two tangents go along with is one, also where loops in it make it anew."""
    step = "(build 40 (fn [i] (if (< (+ i t) 39) (* a (sin (+ (get v i) (* b (get v (+ i 1)))))) 0.0)))"
    text = f"(fn [#^ Real a #^ Real b] (get (ifold (fn [v t] {step}) (build 40 (fn [i] (* a (real i)))) 39) 0))"
    f = hyad.grad(hyad.model(text, namespace={}), wrt=("a", "b"))
    program = f.optimised(f.specs((0.9, 0.1)))
    loops = [x.op for x in all_binds(program.body) if type(x.op) is Loop and x.op.accs]
    (steps,) = (loop for loop in loops if any(type(x.op) is Loop for x in loop.body.binds))
    assert len(steps.accs) == 3
    sines = [x for x in all_binds(steps.body) if getattr(x.op, "name", "") == "sin"]
    assert len(sines) == 1
    expected = hyad.compile(f, args=(0.9, 0.1), target="python", without=("few-inputs", "share", "split"))(0.9, 0.1)
    np.testing.assert_allclose(f(0.9, 0.1), expected, rtol=1e-12)
