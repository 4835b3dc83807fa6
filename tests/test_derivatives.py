"""One expectation, all modes: each model's value and derivatives, forward, reverse and nested, against the oracle.

A row of ``CASES`` is a model and the points that it is differentiated at. From it come the programs of ``PROGRAMS``;
each runs as plain Python, and all of them together as C in double and in single precision. What a difference
quotient cannot say (the conventions at kinks) stands in ``KINKS`` with the expected numbers written out.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import pytest

import batch
import hyad
import oracle
from hyad.compiling import TARGETS
from hyad.core import Loop, all_binds
from hyad.differentiate.masses import Masses
from hyad.emit import SUFFIXES
from hyad.plain_python import python_callable
from hyad.program.values import ENCODINGS
from hyad.stages import MAKERS

VEC3 = np.array([0.3, -0.7, 1.2])
VEC4 = np.array([0.9, 0.4, -0.6, 1.5])
POS3 = np.array([0.5, 1.7, 0.8])
MAT23 = np.array([[0.2, -0.5, 0.7], [1.1, 0.3, -0.4]])
MAT33 = np.array([[2.0, 0.3, -0.4], [0.1, 1.5, 0.6], [0.5, -0.2, 1.8]])
MAT32 = np.array([[0.4, 1.2], [-0.3, 0.8], [0.6, -0.9]])


@dataclasses.dataclass
class Spring:
    k: float
    rest: float
    at: np.ndarray


class Pair(NamedTuple):
    left: float
    right: np.ndarray


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and points to differentiate it at: each a tuple of arguments."""

    name: str
    text: str
    points: tuple[tuple[Any, ...], ...]
    rtol: float = 1e-10


def case(name: str, text: str, *points: Any, rtol: float = 1e-10) -> Case:
    return Case(name, text, tuple(p if type(p) is tuple else (p,) for p in points), rtol)


CASES = [
    # scalars
    case("product", "(fn [x y] (* x (sin y)))", (2.0, 0.7)),
    case("shared let", "(fn [x] (let [y (* x x)  z (* y y)] (+ (* z y) (sin z))))", 0.8),
    case("quotient", "(fn [x y] (/ (+ x (* y y)) (- y (exp x))))", (0.3, 2.5)),
    case("same variable twice", "(fn [x] (let [f (fn [a b] (* a (exp b)))] (f x x)))", 0.6),
    case("unused argument", "(fn [x y] (* x x))", (1.5, 2.5)),
    case("unused array argument", "(fn [x v] (* x x))", (1.5, VEC3)),
    case("a constant", "(fn [x] 3.0)", 1.5),
    case("the argument itself", "(fn [x] x)", 1.5),
    case("powers", "(fn [x n] (+ (** x 3) (** x 0.5) (** x -2) (** 2.0 x) (** x n)))", (1.3, 2.4)),
    case("powers of negatives", "(fn [x] (+ (** x 3) (** x 2) (** x -1) (** x 4.0)))", -1.3),
    case("integer powers at zero", "(fn [x] (+ (** x 1) (** x 2) (** x 3) (** x 0)))", 0.0),
    case("n-ary", "(fn [a b c] (+ (* a b c) (- a b c) (/ a b c) (- a) (/ b)))", (1.2, 0.7, -1.6)),
    case("min and max", "(fn [a b c] (* (max a b c) (min a b c)))", (1.2, 0.7, -1.6), (-1.0, 2.0, 0.1)),
    case("floors", "(fn [x] (+ (* x (floor x)) (% x 1.0) (// x 2.0) (% (- x) 0.75)))", 2.3),
    case(
        "special functions",
        "(fn [x] (+ (erf x) (lgamma x) (gamma x) (digamma x) (log1p x) (expm1 x) (cbrt x)))",
        1.4,
        rtol=1e-9,
    ),
    case("hyperbolic", "(fn [x] (+ (sinh x) (cosh x) (tanh x) (asinh x) (atanh (/ x 3)) (acosh (+ 2 x))))", 0.6),
    case("inverse trigonometry", "(fn [x y] (+ (asin x) (acos (* x y)) (atan y) (atan2 x y) (hypot x y)))", (0.4, 0.9)),
    case(
        "smooth steps", "(fn [x y] (+ (sigmoid (* x y)) (softplus (- x y)) (relu x) (abs y) (square y)))", (0.4, -0.9)
    ),
    case("logistic map", "(fn [x] (let [a (* 3.7 x (- 1 x)) b (* 3.7 a (- 1 a)) c (* 3.7 b (- 1 b))] c))", 0.2),
    # branches
    case("branch", "(fn [x y] (if (< x y) (* x y y) (+ (sin x) y)))", (1.0, 2.0), (2.0, 1.0)),
    case(
        "nested branches",
        "(fn [x] (cond (< x -1) (* x x)  (< x 0) (exp x)  (and (> x 1) (< x 2)) (sin x)  True (* 2 x)))",
        -2.0,
        -0.5,
        1.5,
        3.0,
    ),
    case(
        "branch giving a tuple",
        "(fn [x y] (let [#(a b) (if (> x y) #((* x y) (sin x)) #(y (* x x)))] (* a b)))",
        (1.0, 2.0),
        (2.0, 1.0),
    ),
    case("branch giving an array", "(fn [v] (let [w (if (> (get v 0) 0) (map sin v) v)] (dot w v)))", VEC3, -VEC3),
    case(
        "branch with costly values",
        "(fn [x y] (let [s (if (> x 0) (let [e (exp (* x y)) l (log x)] (* e l (sin e))) (cos y))] (* s s)))",
        (1.3, 0.4),
        (-1.3, 0.4),
    ),
    case(
        "a value used in and after a branch",
        "(fn [x] (let [e (exp x) y (if (> x 0) (* e e) (+ e x))] (* y e)))",
        0.4,
        -0.4,
    ),
    case("branch on a literal", "(fn [x] (if True (* x x) (log (- x))))", 1.1),
    case("integer and real branches", "(fn [x] (* x (if (> x 0) 1 x)))", 0.5, -0.5),
    case("function chosen by a branch", "(fn [x] ((if (> x 0) sin (fn [t] (* t t))) (* 2 x)))", 0.5, -0.5),
    # guards
    case("guarded sqrt", "(fn [x] (if (> x 0) (sqrt x) (* 3 x)))", 2.0, -2.0),
    case("guarded log", "(fn [x] (if (<= x 0) 0.0 (* x (log x))))", 2.0, -1.0),
    case("guarded division", "(fn [x y] (if (= y 0) x (/ x y)))", (2.0, 3.0)),
    case("guarded norm", "(fn [v] (let [s (sq-norm v)] (if (> s 0) (/ 1 (sqrt s)) 0.0)))", VEC3),
    # arrays
    case("dot", "(fn [u v] (dot u v))", (VEC3, POS3)),
    case("static vector", "(fn [#^ (Vec 3) v] (* (get v 0) (sin (get v 1)) (get v -1)))", VEC3),
    case("elements and the whole", "(fn [v] (* (get v 0) (fold + 0.0 (map * v v)) (get v 2)))", VEC3),
    case("sum of squares", "(fn [v] (fold (fn [s x] (+ s (* x x x))) 0.0 v))", VEC4),
    case("products by fold", "(fn [v] (fold * 1.0 v))", VEC4),
    case("product with a zero", "(fn [v] (fold * 1.0 v))", np.array([0.5, 0.0, 2.0])),
    case(
        "logsumexp",
        "(fn [v] (let [m (fold max (get v 0) v)] (+ m (log (fold + 0.0 (map (fn [x] (exp (- x m))) v))))))",
        VEC4,
    ),
    case("softmax", "(fn [v] (let [e (map exp v)  s (fold + 0.0 e)] (map (fn [x] (/ x s)) e)))", VEC3),
    case(
        "built then reduced",
        "(fn [v] (let [w (build (len v) (fn [i] (* (get v i) (real (+ i 1)))))] (fold + 0.0 (map sin w))))",
        VEC4,
    ),
    case(
        "neighbours",
        "(fn [v] (ifold (fn [s i] (+ s (** (- (get v (+ i 1)) (* (get v i) (get v i))) 2))) 0.0 (- (len v) 1)))",
        VEC4,
    ),
    case("reversed", "(fn [v] (build (len v) (fn [i] (* (get v i) (get v (- (len v) 1 i))))))", VEC4),
    case("vector arithmetic", "(fn [u v s] (* s (+ (* u v) (sin u) 1.0)))", (VEC3, POS3, 0.7)),
    case("map over several", "(fn [u v] (map (fn [a b] (* a a b)) u v))", (VEC3, POS3)),
    case("array of arrays", "(fn [x y] [[x (* x y)] [(sin y) 1.0]])", (0.4, 1.3)),
    case("array literal of integers and reals", "(fn [x] (dot [1 x 2] [x x 1]))", 0.7),
    case("scalar to vector", "(fn [x] (build 4 (fn [i] (** x i))))", 1.3),
    case("an array returned with a scalar", "(fn [v] #(v (dot v v)))", VEC3),
    case("update", "(fn [v x] (let [w (update v 1 (* x (get v 1)))] (dot w w)))", (VEC3, 0.4)),
    case("update then read both", "(fn [v] (let [w (update v 0 (sin (get v 1)))] (dot v w)))", VEC3),
    case(
        "update at a run-time index",
        "(fn [v x] (ifold (fn [w i] (update w i (* x (get w i)))) v (len v)))",
        (VEC3, 0.4),
    ),
    case("row of a matrix", "(fn [m] (dot (get m 0) (get m 1)))", MAT23),
    case("matrix times vector", "(fn [m v] (mat-vec m v))", (MAT23, VEC3)),
    case("matrix product", "(fn [a b] (mat-mul a b))", (MAT23, MAT32)),
    case("quadratic form", "(fn [m v] (dot v (mat-vec m v)))", (MAT33, VEC3)),
    case("trace of a product with a transpose", "(fn [a] (trace (mat-mul a (transpose a))))", MAT23),
    case("outer and trace", "(fn [u v] (trace (outer u v)))", (VEC3, POS3)),
    case("cross", "(fn [u v] (cross u v))", (VEC3, POS3)),
    case("determinant", "(fn [m] (dot (get m 0) (cross (get m 1) (get m 2))))", MAT33),
    case("norm", "(fn [v] (norm v))", VEC3),
    case(
        "build in two dimensions",
        "(fn [u v] (build [(len u) (len v)] (fn [i j] (exp (* (get u i) (get v j))))))",
        (VEC3, np.array([0.5, -0.2])),
    ),
    case(
        "three dimensions",
        "(fn [v] (let [t (build [2 3 2] (fn [i j k] (* (get v j) (real (+ i k)))))] (ifold (fn [s i] (+ s (* "
        "(get t 1 i 0) (get t 0 i 1) (get t 1 i 1)))) 0.0 3)))",
        VEC3,
    ),
    case(
        "array of tuples",
        "(fn [v] (let [p (map (fn [x] #((sin x) (* x x))) v)] (fold (fn [s q] (+ s (* (fst q) (snd q)))) 0.0 p)))",
        VEC3,
    ),
    case("scan", "(fn [v] (scan (fn [a x] (+ (* a 0.5) (* x x))) 0.0 v))", VEC4),
    case(
        "zeros, ones, one-hot, eye",
        "(fn [v] (+ (dot (one-hot 3 1) v) (dot (ones 3) v) (dot (zeros 3) v) (dot v (mat-vec (eye 3) v))))",
        VEC3,
    ),
    # loops
    case("horner", "(fn [c x] (fold (fn [acc a] (+ a (* acc x))) 0.0 c))", (VEC4, 0.7)),
    case("recurrence with a transcendental body", "(fn [x] (ifold (fn [a i] (sin (+ a (* x x)))) x 5))", 0.6),
    case("logistic loop", "(fn [x r] (ifold (fn [a i] (* r a (- 1 a))) x 6))", (0.3, 3.1), rtol=1e-9),
    case("loop reading the index", "(fn [x] (ifold (fn [a i] (+ (* a x) (/ x (real (+ i 1))))) 1.0 5))", 0.6),
    case(
        "several accumulators",
        "(fn [x y] (let [#(a b) (ifold (fn [#(a b) i] #((+ a (* b x)) (sin (* a y)))) #(x y) 4)] (+ a (* b b))))",
        (0.3, 0.8),
    ),
    case(
        "an accumulator that only sums beside one that does not",
        "(fn [x v] (let [#(s p) (fold (fn [#(s p) e] #((+ s (* p e)) (* p (cos (* e x))))) #(0.0 1.0) v)] (* s p)))",
        (0.4, VEC4),
    ),
    case(
        "an integer accumulator beside a real one",
        "(fn [x] (let [#(k a) (ifold (fn [#(k a) i] #((+ k 2) (+ (* a x) (real k)))) #(1 x) 4)] (* a (real k))))",
        0.6,
    ),
    case("an accumulator that widens", "(fn [x] (ifold (fn [s i] (+ s (* x x))) 0 3))", 0.6),
    case(
        "accumulators exchanged",
        "(fn [x y] (let [#(a b) (ifold (fn [#(a b) i] #(b (* a b))) #(x y) 5)] (- a b)))",
        (0.9, 1.2),
    ),
    case("array accumulator", "(fn [v] (ifold (fn [w i] (map (fn [a] (sin (* a (get v i)))) w)) v (len v)))", VEC3),
    case(
        "array and scalar accumulators",
        "(fn [v x] (let [#(w s) (ifold (fn [#(w s) i] #((map (fn [a] (* a s)) w) (+ s (get w i)))) #(v x) "
        "(len v))] (* s (dot w w))))",
        (VEC3, 0.5),
    ),
    case("fibonacci", "(fn [x] (fst (ifold (fn [#(a b) i] #(b (+ a b))) #(x (* x x)) 7)))", 0.3),
    case(
        "prefix products in place",
        "(fn [v] (ifold (fn [w i] (update w (+ i 1) (* (get w i) (get w (+ i 1))))) v (- (len v) 1)))",
        VEC4,
    ),
    case("matrix power", "(fn [m] (ifold (fn [p i] (mat-mul p m)) (eye 2) 3))", MAT33[:2, :2]),
    case(
        "nested loops",
        "(fn [x v] (ifold (fn [s i] (ifold (fn [t j] (+ t (* x (sin (* t (get v j)))))) (+ s (get v i)) (+ i "
        "1))) x (len v)))",
        (0.4, VEC3),
    ),
    case(
        "nested sums",
        "(fn [u v] (ifold (fn [s i] (ifold (fn [t j] (+ t (exp (* (get u i) (get v j))))) s (len v))) 0.0 (len u)))",
        (VEC3, POS3),
    ),
    case("branch inside a loop", "(fn [v] (fold (fn [s x] (if (> x 0) (+ s (* x x)) (* s (exp x)))) 1.0 v))", VEC4),
    case(
        "branch on the index",
        "(fn [v] (ifold (fn [s i] (if (= (% i 2) 0) (+ s (sin (get v i))) (* s (get v i)))) 1.0 (len v)))",
        VEC4,
    ),
    case("branch on the accumulator", "(fn [x] (ifold (fn [a i] (if (> a 1) (* 0.5 a) (+ (* a x) 0.8))) x 7))", 0.7),
    case(
        "loop inside a branch",
        "(fn [x v] (if (> x 0) (fold (fn [s e] (+ (* s x) (sin e))) x v) (* x (get v 0))))",
        (0.5, VEC3),
        (-0.5, VEC3),
    ),
    case(
        "branch whose arms touch different arrays",
        "(fn [u v x] (* x (if (> x 0) (dot u u) (get v 1))))",
        (VEC3, POS3, 0.5),
        (VEC3, POS3, -0.5),
    ),
    case(
        "loop in a branch in a loop",
        "(fn [v] (ifold (fn [s i] (if (> (get v i) 0) (ifold (fn [t j] (* t (cos (get v j)))) s i) (- s (get "
        "v i)))) 1.0 (len v)))",
        VEC4,
    ),
    case(
        "trip count that falls with the outer index",
        "(fn [v] (ifold (fn [s i] (ifold (fn [t j] (* t (cos (get v j)))) s (- (len v) i))) 1.0 (len v)))",
        VEC3,
    ),
    case(
        "trip count from a remainder",
        "(fn [v] (ifold (fn [s i] (+ s (ifold (fn [t j] (* t (cos (get v j)))) 1.0 (% (* 2 i) 3)))) 1.0 (len v)))",
        VEC3,
    ),
    case(
        "trip count from a branch",
        "(fn [v x] (ifold (fn [s i] (* s x (cos (get v i)))) 1.0 (if (> x 0) 2 3)))",
        (VEC3, 0.5),
        (VEC3, -0.5),
    ),
    case("zero iterations", "(fn [x v] (ifold (fn [s i] (* s (sin s) (get v i))) (* x x) 0))", (0.6, VEC3)),
    case(
        "zero iterations at run time",
        "(fn [x v] (fold (fn [s e] (* s (sin s) e)) (* x x) v))",
        (0.6, np.zeros(0)),
        (0.6, VEC3),
    ),
    case(
        "loop count from an argument",
        "(fn [x #^ Int n] (ifold (fn [a i] (* a (sin (+ a x)))) x n))",
        (0.6, 3),
        (0.6, 0),
    ),
    case("loop whose result is not used", "(fn [x v] (let [w (fold (fn [s e] (* s e)) x v)] (* x x)))", (0.6, VEC3)),
    case("loop that ignores its accumulator", "(fn [v] (ifold (fn [s i] (sin (get v i))) 0.0 (len v)))", VEC3),
    case(
        "explicit Euler",
        "(fn [x0 v0 k] (let [#(x v) (ifold (fn [#(x v) i] #((+ x (* 0.1 v)) (- v (* 0.1 k (sin x))))) #(x0 "
        "v0) 8)] (+ (* x x) v)))",
        (0.5, -0.2, 1.4),
    ),
    case(
        "build in a loop",
        "(fn [v] (ifold (fn [s i] (+ s (fold + 0.0 (build (+ i 1) (fn [j] (* (get v j) (get v i) s)))))) 1.0 (len v)))",
        VEC3,
    ),
    case("sums of sums", "(fn [v] (let [s (fold + 0.0 v)] (fold (fn [t x] (+ t (* s x x))) s v)))", VEC3),
    case("sum that starts active", "(fn [x v] (fold (fn [s e] (+ s (* x e))) (* x x) v))", (0.4, VEC3)),
    case("difference accumulated", "(fn [x v] (fold (fn [s e] (- s (* x e))) x v))", (0.4, VEC3)),
    case("difference turned round", "(fn [x v] (fold (fn [s e] (- (* x e) s)) x v))", (0.4, VEC3)),
    case("doubled accumulator", "(fn [x v] (fold (fn [s e] (+ s s (* x e))) x v))", (0.4, VEC3)),
    case(
        "histogram",
        "(fn [v] (let [h (ifold (fn [h i] (update h (% i 2) (+ (get h (% i 2)) (* (get v i) (get v i))))) "
        "(zeros 2) (len v))] (* (get h 0) (get h 1))))",
        VEC4,
    ),
    # structured arguments
    case("tuple argument", "(fn [p] (* (fst p) (sin (snd p))))", ((0.4, 1.3),)),
    case("nested tuples", "(fn [#(a #(v b))] (* a (dot v v) (exp b)))", ((0.4, (VEC3, 0.2)),)),
    case("dict", "(fn [p] (* p.a (dot p.v p.v)))", {"a": 0.4, "v": VEC3}),
    case(
        "dataclass",
        "(fn [s] (ifold (fn [e i] (+ e (* 0.5 s.k (** (- (get s.at i) s.rest) 2)))) 0.0 (len s.at)))",
        Spring(1.3, 0.2, VEC3),
    ),
    case("named tuple", "(fn [p x] (* x (. p left) (norm (. p right))))", (Pair(0.4, VEC3), 0.6)),
    case("structured result", "(fn [x v] #((* x x) #((map sin v) (* x (get v 0)))))", (0.4, VEC3)),
    case("map over a tuple", "(fn [p] (fold + 0.0 (map (fn [x] (* x x)) p)))", ((0.4, 1.3, 0.5),)),
    # functions
    case("closure over an active variable", "(fn [x y] (let [f (fn [t] (* t x))  x 2.0] (f (f (+ x y)))))", (0.4, 1.3)),
    case(
        "function as an argument", "(fn [x] (let [twice (fn [f a] (f (f a)))] (twice (fn [t] (sin (* t x))) x)))", 0.6
    ),
    case(
        "functions in a tuple",
        "(fn [x y] (let [t #((fn [] (* x y)) (fn [a] (+ x a)))] (* ((get t 0)) ((get t 1) y))))",
        (0.6, 1.1),
    ),
    case(
        "compose and curry",
        "(fn [x] (let [compose (fn [f g] (fn [a] (f (g a))))  add (fn [a] (fn [b] (+ a b)))] ((compose sin "
        "(compose exp (add x))) x)))",
        0.3,
    ),
    case("shadowed names", "(fn [x] (let [x (* x x)  f (fn [x] (+ x 1))  x (f x)] (* x (let [x (sin x)] x))))", 0.7),
    case("operator as a value", "(fn [v] (fold * 1.0 (map exp v)))", VEC3),
    # derivatives inside models
    case("derivative inside", "(fn [x] (* x ((D (fn [t] (* t t x))) x)))", 0.7),
    case("perturbation confusion", "(fn [x] ((D (fn [y] (* x ((D (fn [z] (+ x (* z y z)))) y)))) x))", 0.7),
    case(
        "gradient inside a loop",
        "(fn [x v] (ifold (fn [s i] (- s (* 0.1 ((D (fn [t] (* (sin t) (get v i)))) s)))) x (len v)))",
        (0.4, VEC3),
    ),
    case(
        "gradient inside build",
        "(fn [v] (build (len v) (fn [i] ((D (fn [t] (* t t (get v i) (sin t)))) (get v i)))))",
        VEC3,
    ),
    case(
        "gradient descent",
        "(fn [v] (let [f (fn [w] (+ (dot w w) (* (get w 0) (get w 1))))] (ifold (fn [w i] (map (fn [a g] (- "
        "a (* 0.1 g))) w ((grad f) w))) v 3)))",
        VEC3,
    ),
    case(
        "gradient of a loop, inside a loop",
        "(fn [x] (ifold (fn [a i] (+ a (* 0.1 ((D (fn [t] (ifold (fn [u j] (sin (* u t))) t 3))) a)))) x 2))",
        0.8,
    ),
    case("jacobian inside", "(fn [v] (trace ((jacobian (fn [w] (map (fn [a] (* a a (get w 0))) w))) v)))", VEC3),
    case(
        "hessian inside",
        "(fn [v] (trace ((hessian (fn [w] (* (get w 0) (exp (get w 1)) (dot w w)))) v)))",
        VEC3,
        rtol=1e-9,
    ),
    case(
        "newton by its own derivative",
        "(fn [a] (let [f (fn [x] (- (* x x) a))] (ifold (fn [x i] (- x (/ (f x) ((D f) x)))) 1.0 4)))",
        2.0,
    ),
    case("vjp inside", "(fn [v] (vjp (fn [w] (map (fn [a] (* a a a)) w)) v v))", VEC3),
    case("value-and-grad inside", "(fn [x] (let [#(a b) ((value-and-grad (fn [t] (* t (exp t)))) x)] (* a b)))", 0.4),
    case("deriv", "(fn [x] (let [#(a b) (deriv (* x x (sin x)) x)] (* a b)))", 0.4),
    case(
        "derivative of a branch",
        "(fn [x y] (* y ((D (fn [t] (if (> t y) (* t t t) (sin (* t y))))) x)))",
        (1.0, 0.5),
        (0.2, 0.5),
    ),
    # integers in differentiated positions
    case("integer arguments", "(fn [x n] (* x x n))", (3, 2), (3, 2.0)),
    case("integer arrays", "(fn [v] (dot v (map sin v)))", np.array([1, 2, 3])),
]


# ------------------------------------------------------------------------------------------- the programs


def names(prefix: str, count: int) -> str:
    return " ".join(f"{prefix}{k}" for k in range(count))


def together(prefix: str, count: int) -> str:
    return f"{prefix}0" if count == 1 else f"#({names(prefix, count)})"


def programs(n: int, scalar: bool) -> dict[str, str]:
    """Expressions in ``f``, the arguments ``x0 ..``, directions ``d0 ..`` and the cotangent ``ct``."""
    x, d, ds = names("x", n), names("d", n), together("d", n)
    made = {
        "value": f"(f {x})",
        "jvp": f"(jvp f {x} {d})",
        "vjp": f"(vjp f {x} ct)",
        "jacobian": f"((jacobian f) {x})",
        "forward over forward": f"(jvp (fn [{x}] (jvp f {x} {d})) {x} {d})",
        "reverse over forward": f"(vjp (fn [{x}] (jvp f {x} {d})) {x} ct)",
        "forward over reverse": f"(jvp (fn [{x}] (vjp f {x} ct)) {x} {d})",
        "reverse over reverse": f"(vjp (fn [{x}] (vjp f {x} ct)) {x} {ds})",
    }
    if scalar:
        made |= {
            "grad": f"((grad f) {x})",
            "value-and-grad": f"((value-and-grad f) {x})",
            "hessian": f"((hessian f) {x})",
            "hvp": f"(hvp f {x} {d})",
        }
    return made


def like(value: Any, seed: int) -> Any:
    """Reals in the structure of ``value``, never 0."""
    draw = np.random.default_rng(seed)

    def walk(v: Any) -> Any:
        if isinstance(v, np.ndarray):
            return draw.uniform(0.3, 1.2, v.shape) * draw.choice([-1, 1], v.shape)
        if isinstance(v, oracle.Record):
            return {k: walk(x) for k, x in zip(v.fields, v.values)}
        if isinstance(v, dict):
            return {k: walk(x) for k, x in v.items()}
        if isinstance(v, tuple) and hasattr(v, "_fields"):
            return type(v)(*map(walk, v))
        if dataclasses.is_dataclass(v):
            return type(v)(**{f.name: walk(getattr(v, f.name)) for f in dataclasses.fields(v)})
        if isinstance(v, tuple):
            return tuple(map(walk, v))
        if isinstance(v, list):
            shape = oracle.structure(v)
            return draw.uniform(0.3, 1.2, shape) * draw.choice([-1, 1], shape)
        return float(draw.uniform(0.3, 1.2))

    return walk(value)


def expectation(expected: dict[str, Any], key: str, text: str, points: Any) -> Any:
    """The oracle's value of a program. Second derivatives are symmetric: the four ways to them share one."""
    shared = {"forward over reverse": "reverse over forward", "reverse over reverse": "reverse over forward"}
    source = shared.get(key, key)
    if source not in expected:
        expected[source] = oracle.evaluate(text, *points)
    return expected[source]


_ids = [(c, k) for c in CASES for k in range(len(c.points))]


def annotations(text: str) -> list[str]:
    """The parameters' annotations, so that ``#^ Int`` is one in the programs around the model too."""
    from hyad.program.forms import read_forms

    (form,) = read_forms(text)
    return [f"#^ {p.value[0]} " if p.kind == "#^" and p.value[0].value == "Int" else "" for p in form.value[1].value]


def whole(c: Case, key: str, n: int, scalar: bool) -> str:
    """The program ``key`` of a case as a model of arguments, directions and cotangent."""
    notes = annotations(c.text)
    if any(notes):  # an Int parameter has no direction: the model is differentiated with it held fixed
        held = [k for k, note in enumerate(notes) if note]
        free = [k for k in range(n) if k not in held]
        assert free == list(range(len(free))), "Int parameters come last"
        own = " ".join(f"x{k}" if k in held else f"y{k}" for k in range(n))
        inner = f"(fn [{names('y', len(free))}] ({c.text} {own}))"
        body = programs(len(free), scalar)[key]
        params = " ".join(f"{note}x{k}" for k, note in enumerate(notes))
        return f"(fn [{params} {names('d', n)} ct] (let [f {inner}] {body}))"
    return f"(fn [{names('x', n)} {names('d', n)} ct] (let [f {c.text}] {programs(n, scalar)[key]}))"


def everything(c: Case, point: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, str]]:
    """The arguments, directions and cotangent of a case at a point, and its programs."""
    value = oracle.evaluate(c.text, *point)
    scalar = oracle.structure(value) == ()
    args = (*point, *(like(p, 7 + k) for k, p in enumerate(point)), like(value, 3))
    keys = programs(1, scalar)
    return args, {key: whole(c, key, len(point), scalar) for key in keys}


@pytest.mark.some(6)
@pytest.mark.parametrize("c, at", _ids, ids=[f"{c.name} {k}".rstrip(" 0") for c, k in _ids])
def test_all_modes_agree_with_the_oracle(c: Case, at: int) -> None:
    args, texts = everything(c, c.points[at])
    expected: dict[str, Any] = {}
    wrong = []
    for key, text in texts.items():
        truth = expectation(expected, key, text, args)
        try:
            got = hyad.compile(hyad.model(text, namespace={}), target="python", args=args)(*args)
        except Exception as error:  # every program is tried, so that one failure does not hide another
            wrong.append(f"{key}: {type(error).__name__}: {error}")
            continue
        found = oracle.mismatch(got, truth, c.rtol)
        if found:
            wrong.append(f"{key}: {found}")
    assert not wrong, "\n".join([c.text, *wrong])


# ------------------------------------------------------------------------------------------------- in C

#: What is compiled of each case at one point (at two with ``--all``): forward, reverse, both nested. (Every program of
#: every case makes 1,600.)
IN_C = {"f64": ("jvp", "vjp", "jacobian", "reverse over reverse", "hessian"), "f32": ("value", "vjp")}


@pytest.mark.some(3)
@pytest.mark.skipif(batch.CC is None, reason="no C compiler")
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("dtype, rtol, atol", [("f64", 1e-9, 1e-11), ("f32", 2e-2, 2e-3)])
def test_compiled_code_gives_what_plain_python_gives(
    dtype: str, rtol: float, atol: float, part: int, pytestconfig: pytest.Config
) -> None:
    together = batch.Batch(dtype, batch.FLAGS if part == 0 else [*batch.FLAGS[1:], "-O0"])
    runs, wrong = [], []
    for c in CASES[part::4]:
        for point in c.points[: 2 if pytestconfig.getoption("--all") else 1]:
            args, texts = everything(c, point)
            for key in [k for k in IN_C[dtype] if k in texts]:
                try:
                    program = batch.program_of(texts[key], args)
                    truth = python_callable(program)(*args)
                    runs.append((c, key, args, truth, together.add(program)))
                except Exception as error:  # every program is tried, so that one failure does not hide another
                    wrong.append(f"{c.text}: {key}: {type(error).__name__}: {error}")
    together.compile(1)
    for c, key, args, truth, call in runs:
        found = oracle.mismatch(call(*args, like=truth), truth, rtol, atol)
        if found:
            wrong.append(f"{c.text}: {key}: {found}")
    assert runs and not wrong, f"{len(wrong)} of {len(runs)}\n" + "\n".join(wrong)


# ---------------------------------------------------------------------------- conventions and guards

ROOTS = "(fn [v] (fold (fn [s x] (+ s (if (> x 0) (sqrt x) 0.0))) 0.0 v))"
KINKS = [
    # kinks: the conventions of DESIGN section 7
    ("abs", 0.0, {"D": 0.0}),
    ("relu", 0.0, {"D": 0.0}),
    ("sign", 0.0, {"D": 0.0}),
    ("sqrt", 0.0, {"D": math.inf}),
    ("cbrt", 0.0, {"D": math.inf}),
    ("(fn [t] (max t (* 2 t)))", 0.0, {"D": 1.0}),
    ("(fn [t] (min t (* 2 t)))", 0.0, {"D": 1.0}),
    ("(fn [t] (max (* 2 t) t))", 0.0, {"D": 2.0}),
    ("(fn [t] (max t t))", 1.0, {"D": 1.0}),
    ("(fn [t] (hypot t (* 2 t)))", 0.0, {"D": 0.0}),
    ("floor", 2.0, {"D": 0.0}),
    ("(fn [t] (// t 1.0))", 2.0, {"D": 0.0}),
    ("norm", np.zeros(3), {"grad": np.zeros(3), "hessian": np.zeros((3, 3))}),
    ("(fn [#^ (Vec 3) v] (norm v))", np.zeros(3), {"grad": np.zeros(3), "hessian": np.zeros((3, 3))}),
    # powers at and below zero
    ("(fn [t] (** t 0))", 0.0, {"D": 0.0, "DD": 0.0}),
    ("(fn [t] (** t 1))", 0.0, {"D": 1.0, "DD": 0.0}),
    ("(fn [t] (** t 2))", 0.0, {"D": 0.0, "DD": 2.0, "DDD": 0.0}),
    ("(fn [t] (** t 3))", 0.0, {"D": 0.0, "DD": 0.0, "DDD": 6.0, "DDDD": 0.0}),
    ("(fn [t] (** t 3))", -2.0, {"D": 12.0, "DD": -12.0, "DDD": 6.0, "DDDD": 0.0}),
    ("(fn [t] (** t 2.0))", -3.0, {"D": -6.0, "DD": 2.0}),
    ("(fn [t] (** t -1))", -2.0, {"D": -0.25, "DD": -0.25}),
    ("(fn [t] (** t 1.5))", 0.0, {"D": 0.0}),
    *[
        (f"(fn [t] (ifold (fn [s i] (* s t)) 1.0 {n}))", 0.0, {"D": float(n == 1), "DD": 2.0 * (n == 2)})
        for n in range(4)
    ],
    *[
        (
            f"(fn [t] (let [n (int (+ {n} (* 0 t)))] (** t n)))",
            0.0,
            {"D": float(n == 1), "DD": 2.0 * (n == 2), "DDD": 6.0 * (n == 3)},
        )
        for n in range(4)
    ],
    *[(f"(fn [t] (** t (+ {n} (* 0 t))))", 0.0, {"D": float(n == 1)}) for n in (1, 2, 3)],
    (
        "(fn [v] (fold * 1.0 v))",
        np.array([0.0, 0.0, 3.0]),
        {"grad": np.zeros(3), "hessian": np.array([[0, 3.0, 0], [3.0, 0, 0], [0, 0, 0]])},
    ),
    (
        "(fn [v] (fold * 1.0 v))",
        np.array([0.0, 2.0, 3.0]),
        {"grad": np.array([6.0, 0, 0]), "hessian": np.array([[0, 3.0, 2], [3.0, 0, 0], [2, 0, 0]])},
    ),
    # guards, on and beyond: the branch not taken contributes nothing, to the second derivative too
    ("(fn [t] (if (> t 0) (sqrt t) 0.0))", 0.0, {"D": 0.0, "DD": 0.0}),
    ("(fn [t] (if (> t 0) (sqrt t) 0.0))", -1.0, {"D": 0.0, "DD": 0.0}),
    ("(fn [t] (if (> t 0) (* t (log t)) 0.0))", 0.0, {"D": 0.0, "DD": 0.0}),
    ("(fn [t] (if (> t 0) (* t (log t)) t))", -1.0, {"D": 1.0, "DD": 0.0}),
    ("(fn [t] (if (= t 0) 1.0 (/ (sin t) t)))", 0.0, {"D": 0.0, "DD": 0.0}),
    ("(fn [t] (if (< (abs t) 1) (acos t) 0.0))", 2.0, {"D": 0.0, "DD": 0.0}),
    ("(fn [t] (if (>= t 0) (** t 0.5) (* 2 t)))", -4.0, {"D": 2.0, "DD": 0.0}),
    ("(fn [t] (if (!= t 1) (/ (- (* t t) 1) (- t 1)) 2.0))", 1.0, {"D": 0.0, "DD": 0.0}),
    ("(fn [t] (let [s (if (> t 0) (sqrt t) 0.0)] (* s s)))", 0.0, {"D": 0.0, "DD": 0.0}),
    (
        "(fn [t] (if (> t 0) (let [r (sqrt t)  s (log r)] (* r s)) (sin t)))",
        -1.0,
        {"D": math.cos(-1), "DD": -math.sin(-1)},
    ),
    ("(fn [t] (cond (> t 0) (log t)  (= t 0) 0.0  True (sqrt (- t))))", 0.0, {"D": 0.0, "DD": 0.0}),
    ("(fn [t] (if (> t 0) (atan2 t (sqrt t)) 0.0))", 0.0, {"D": 0.0, "DD": 0.0}),
    ("(fn [t] (ifold (fn [s i] (if (> s 0) (sqrt s) (- s t))) t 3))", 0.0, {"D": -2.0, "DD": 0.0}),
    (
        "(fn [v] (let [s (sq-norm v)] (if (> s 0) (/ (get v 0) (sqrt s)) 0.0)))",
        np.zeros(2),
        {"grad": np.zeros(2), "hessian": np.zeros((2, 2))},
    ),
    (
        "(fn [v] (if (= (get v 1) 0) 0.0 (/ (get v 0) (get v 1))))",
        np.array([2.0, 0.0]),
        {"grad": np.zeros(2), "hessian": np.zeros((2, 2))},
    ),
    (ROOTS, np.array([4.0, 0.0, -1.0]), {"grad": np.array([0.25, 0, 0]), "hessian": np.diag([-1 / 32, 0, 0])}),
    (
        "(fn [v] (sum (map (fn [x] (if (> x 0) (* x (log x)) 0.0)) v)))",
        np.array([2.0, 0.0, -1.0]),
        {"grad": np.array([1 + math.log(2), 0, 0]), "hessian": np.diag([0.5, 0, 0])},
    ),
    # guard after the let: what only the untaken branch reads contributes nothing either
    ("(fn [t] (let [r (sqrt t)] (if (> t 0) r 0.0)))", 0.0, {"D": 0.0, "DD": 0.0}),
    ("(fn [t] (let [r (log t)  s (* r r)] (if (> t 0) (* t s) t)))", -1.0, {"D": 1.0, "DD": 0.0}),
]

#: The ways to each derivative that must agree.
WAYS = {
    "D": [
        "((D f) x)",
        "((grad f) x)",
        "(jvp f x 1.0)",
        "(vjp f x 1.0)",
        "((jacobian f) x)",
        "(snd ((value-and-grad f) x))",
    ],
    "DD": [f"(({a} ({b} f)) x)" for a in ("D", "grad") for b in ("D", "grad")] + ["((hessian f) x)", "(hvp f x 1.0)"],
    "DDD": ["((D (D (D f))) x)", "((grad (grad (grad f))) x)", "((D (grad (D f))) x)", "((hessian (D f)) x)"],
    "DDDD": ["((D (D (D (D f)))) x)", "((grad (grad (D (grad f)))) x)"],
    "grad": [
        "((grad f) x)",
        "((jacobian f) x)",
        "(vjp f x 1.0)",
        "(build (len x) (fn [i] (jvp f x (one-hot (len x) i))))",
    ],
    "hessian": [
        "((hessian f) x)",
        "((jacobian (grad f)) x)",
        "((jacobian (jacobian f)) x)",
        "(build (len x) (fn [i] (hvp f x (one-hot (len x) i))))",
        "(build (len x) (fn [i] ((grad (fn [z] (get ((grad f) z) i))) x)))",
        "(build (len x) (fn [i] ((grad (fn [z] (jvp f z (one-hot (len x) i)))) x)))",
    ],
}


@pytest.mark.some(4)
@pytest.mark.parametrize("f, x, expected", KINKS, ids=[f"{k} {row[0]} at {row[1]}" for k, row in enumerate(KINKS)])
def test_kinks_and_guards(f: str, x: Any, expected: dict[str, Any]) -> None:
    wrong = []
    for key, value in expected.items():
        for way in WAYS[key]:
            text = f"(fn [x] (let [f {f}] {way}))"
            got = hyad.compile(hyad.model(text, namespace={}), target="python", args=(x,))(x)
            found = oracle.mismatch(got, value)
            if found:
                wrong.append(f"{way}: {found}")
    assert not wrong, "\n".join([f, *wrong])


@pytest.mark.parametrize("f, expected", [("max", (1.0, 0.0)), ("min", (1.0, 0.0)), ("hypot", None)])
def test_ties(f: str, expected: Any) -> None:
    at = 0.0 if expected is None else 1.0
    for operator in ("grad", "jacobian"):
        assert hyad.model(f"(fn [x y] (({operator} {f}) x y))", namespace={})(at, at) == (expected or (0.0, 0.0))


# ------------------------------------------------------------------------------------- higher orders


def test_the_sixth_derivative_of_tanh() -> None:
    for inner in ("D", "grad"):
        for outer in ("D", "grad"):
            text = f"(fn [x] (({outer} ({inner} ({outer} ({inner} ({outer} ({inner} tanh)))))) x))"
            got = hyad.compile(hyad.model(text, namespace={}), target="python", args=(0.3,))(0.3)
            assert oracle.mismatch(got, oracle.evaluate(text, 0.3), 1e-11) is None


def test_operators_compose_from_python() -> None:
    f = hyad.model("(fn [x] (tanh x))", namespace={})
    derivative, text = f, "(fn [x] (tanh x))"
    for _ in range(4):
        derivative, text = hyad.D(derivative), f"(D {text})"
        assert math.isclose(derivative(0.4), float(oracle.evaluate(f"(fn [x] ({text} x))", 0.4)), rel_tol=1e-11)


CONFUSION = [
    "((D (fn [x] (* x ((D (fn [y] (+ x y))) 1.0)))) x)",
    "((D (fn [x] (* x ((D (fn [y] (* x y y))) x)))) x)",
    "((grad (fn [x] (* x ((grad (fn [y] (* x y y))) x)))) x)",
    "((D (fn [x] (* x ((grad (fn [y] (* x y y))) 2.0)))) x)",
    "((grad (fn [x] (* x ((D (fn [y] (* x (sin (* x y))))) x)))) x)",
    "((D (fn [x] ((D (fn [y] ((D (fn [z] (* x y z z (exp (* x y))))) y))) x))) x)",
    "((D (fn [x] ((D (fn [x] ((D (fn [x] (* x x x x))) x))) x))) x)",
    "(((D (fn [a] (fn [b] (* a b b)))) x) 3.0)",
    "(((D (D (fn [a] (fn [b] (* a a b (sin a)))))) x) x)",
    "((D (fn [a] (((D (fn [b] (fn [c] (* a b b c)))) a) a))) x)",
    "(let [f (fn [a] (fn [g] (fn [b] (g (+ a b)))))  h ((D f) x)] ((h (h exp)) 1.0))",
    "((D (fn [a] (let [f (fn [t] (* a t t))] (+ ((D f) a) ((D f) 2.0) (f a))))) x)",
    "((D (fn [a] (ifold (fn [s i] (+ (* s a) ((D (fn [t] (* t t s a))) s))) a 2))) x)",
    "((grad (fn [a] (ifold (fn [s i] (+ (* 0.5 s a) ((grad (fn [t] (* t t s a))) s))) a 2))) x)",
    "((D (fn [a] (sum (build 3 (fn [i] ((D (fn [t] (* t a (real i) (sin t)))) a)))))) x)",
    "((D (fn [a] (jvp (fn [t] (* a t t)) a a))) x)",
    "((jvp (fn [a] (fn [b] (* a a b))) x 1.0) x)",
    "((grad (fn [a] (vjp (fn [t] #((* a t) (* t t))) a #(a 1.0)))) x)",
    "((D (fn [a] (if (> ((D (fn [t] (* t t a))) a) 1) (* a a) ((D (fn [t] (* t t t a))) a)))) x)",
]


@pytest.mark.parametrize("expression", CONFUSION)
def test_no_perturbation_confusion(expression: str) -> None:
    text = f"(fn [x] {expression})"
    for x in (0.7, 1.3):
        got = hyad.compile(hyad.model(text, namespace={}), target="python", args=(x,))(x)
        found = oracle.mismatch(got, oracle.evaluate(text, x))
        assert found is None, found


# ---------------------------------------------------------------------------- the operators from Python


def test_structures_are_mirrored() -> None:
    energy = hyad.model(
        "(fn [s] (ifold (fn [e i] (+ e (* 0.5 s.k (** (- (get s.at i) s.rest) 2)))) 0.0 (len s.at)))", namespace={}
    )
    got = hyad.grad(energy)(Spring(1.3, 0.2, VEC3))
    assert (
        type(got) is Spring
        and np.allclose(got.at, 1.3 * (VEC3 - 0.2))
        and math.isclose(got.k, 0.5 * ((VEC3 - 0.2) ** 2).sum())
    )
    f = hyad.model("(fn [p] (* p.a (dot p.v p.v)))", namespace={})
    got = hyad.grad(f)({"a": 2.0, "v": VEC3})
    assert set(got) == {"a", "v"} and np.allclose(got["v"], 4 * VEC3)
    g = hyad.model("(fn [p] (* (. p left) (norm (. p right))))", namespace={})
    assert type(hyad.grad(g)(Pair(2.0, VEC3))) is Pair


def test_a_truth_value_in_a_structure_passes_through() -> None:
    f = hyad.model("(fn [p] (if (snd p) (* (fst p) (fst p)) (fst p)))", namespace={})
    assert hyad.grad(f)((2.0, True)) == (4.0, True)
    assert hyad.grad(f)((2.0, False)) == (1.0, False)


def test_wrt() -> None:
    f = hyad.model("(fn [a b v] (* a b b (dot v v)))", namespace={})
    a, b, square = 2.0, 3.0, float(VEC3 @ VEC3)
    args, da, db, dv = (a, b, VEC3), b * b * square, 2 * a * b * square, 2 * a * b * b * VEC3
    for wrt, expected in [
        (0, da),
        ("b", db),
        (-1, dv),
        (("a",), da),
        (("b", "a"), (db, da)),
        ((0, 2), (da, dv)),
        (None, (da, db, dv)),
    ]:
        assert oracle.mismatch(hyad.grad(f, wrt=wrt)(*args), expected) is None
    assert oracle.mismatch(hyad.hessian(f, wrt="b")(*args), 2 * a * square) is None
    assert oracle.mismatch(hyad.jacobian(f, wrt="v")(*args), dv) is None
    value, gradient = hyad.value_and_grad(f, wrt="a")(*args)
    assert math.isclose(value, a * b * b * square) and math.isclose(gradient, da)
    for bad in ("c", 3, -4):
        with pytest.raises(hyad.DerivativeError):
            hyad.grad(f, wrt=bad)(*args)
    inside = "(fn [a b v] ((grad (fn [a b v] (* a b b (dot v v))) :wrt {}) a b v))"
    for wrt, expected in [("b", db), ("0", da), ("#(v a)", (dv, da)), ("-2", db)]:
        assert oracle.mismatch(hyad.model(inside.format(wrt), namespace={})(*args), expected) is None


def test_wrt_takes_a_name_as_python_has_it() -> None:
    """``step_size`` is ``step-size``, where no parameter is called so itself."""
    f, at = hyad.model("(fn [logit-p n?] (* n? logit-p logit-p))"), (2.0, 3.0)
    mangled = "hyx_nXquestion_markX"
    for g in (hyad.grad(f, wrt="logit_p"), hyad.jacobian(f, wrt="logit_p"), hyad.D(f, wrt="logit_p")):
        assert g(*at) == hyad.run(g, *at) == 12.0
    both = hyad.grad(f, wrt=(mangled, "logit_p"))
    assert both(*at) == hyad.run(both, *at) == (4.0, 12.0)
    assert hyad.hessian(f, wrt="logit_p")(*at) == 6.0 and hyad.check_grad(f, at, wrt=["logit_p", mangled]).ok
    springs = "(fn [at-rest k] (* k at-rest))"
    assert (hyad.sparse_jacobian(springs, wrt="at_rest")(VEC3, 2.0).toarray() == 2 * np.eye(3)).all()
    g = hyad.grad("(fn [a-b a_b] (* a-b a-b a_b))", wrt="a_b")
    assert g(2.0, 3.0) == hyad.run(g, 2.0, 3.0) == 4.0
    for wrong in (hyad.grad(f, wrt="logit__p"), hyad.grad(f, wrt=("logit_p", "logit-p"))):
        for call in (wrong, lambda *given: hyad.run(wrong, *given)):  # noqa: B023
            with pytest.raises(hyad.errors.DerivativeError, match="no parameter `logit__p`|`logit-p` stands twice"):
                call(*at)


def test_a_cotangent_of_a_size_that_the_model_computes() -> None:
    f = hyad.model("(fn [x] (build (- (len x) 1) (fn [i] (* (get x i) (get x (+ i 1))))))")
    np.testing.assert_allclose(hyad.vjp(f, np.arange(1.0, 5), np.ones(3)), [2, 4, 6, 3])
    with pytest.raises(hyad.ModelTypeError, match="the cotangent must have the shape of the result"):
        hyad.vjp(f, np.arange(1.0, 5), np.ones(4))


def test_products_from_python() -> None:
    f = hyad.model("(fn [u v] (map (fn [a b] (* a a b)) u v))", namespace={})
    u, v, du, dv, ct = VEC3, POS3, POS3, VEC3, np.array([1.0, 2.0, 3.0])
    assert np.allclose(hyad.jvp(f, (u, v), (du, dv)), 2 * u * v * du + u * u * dv)
    got = hyad.vjp(f, (u, v), ct)
    assert np.allclose(got[0], 2 * u * v * ct) and np.allclose(got[1], u * u * ct)
    g = hyad.model("(fn [u] (fold (fn [s a] (+ s (* a a a))) 0.0 u))", namespace={})
    assert np.allclose(hyad.hvp(g, (u,), (du,)), 6 * u * du)


def test_a_model_calls_models() -> None:
    inner = hyad.model("(fn [x] (* x (sin x)))", namespace={})
    outer = hyad.model("(fn [x y] (+ (inner y) (* y ((D inner) x))))", namespace={"inner": inner})
    x, y = 0.4, 1.3
    got = hyad.grad(outer)(x, y)
    assert math.isclose(got[0], y * (2 * math.cos(x) - x * math.sin(x)))
    assert math.isclose(got[1], math.sin(y) + y * math.cos(y) + math.sin(x) + x * math.cos(x))
    derivative = hyad.grad(inner)
    again = hyad.model("(fn [x] (derivative (* 2 x)))", namespace={"derivative": derivative})
    assert math.isclose(hyad.grad(again)(x), 2 * (2 * math.cos(2 * x) - 2 * x * math.sin(2 * x)))


SEARCHES = [
    "(fn [v] (fold max (get v 0) v))",
    "(fn [v] (fold min 0.5 (map (fn [x] (* x x)) v)))",
    "(fn [v] (ifold (fn [m i] (max (* (get v i) (get v i)) m)) 0.1 (len v)))",
    "(fn [v] (ifold (fn [m i] (min m (* (get v 0) (sin (get v i))))) (get v 1) (len v)))",
    "(fn [v] (fst (ifold (fn [p i] #((max (fst p) (* (snd p) (get v i))) (+ (snd p) (get v i)))) #(0.0 1.0) (len v))))",
]


@pytest.mark.parametrize("text", SEARCHES)
@pytest.mark.parametrize("v", [[0.3, 2.0, 1.0, 2.0], [-3.0, -0.1], [0.0, 0.0, 0.0]])
def test_the_largest_moves_as_what_it_was_found_at(text: str, v: list[float]) -> None:
    """Forward mode of a search is a look at one place; reverse mode and define by run agree, at ties as well."""
    f, x = hyad.model(text), np.array(v)
    rows = np.array([hyad.jvp(f, (x,), (e,)) for e in np.eye(len(x))])
    np.testing.assert_array_equal(rows, hyad.grad(f)(x))
    np.testing.assert_array_equal(rows, hyad.run(hyad.grad(f), x))


def test_the_gradient_of_the_largest_by_forward_mode_is_one_search() -> None:
    f = hyad.model("""(fn [#^ (Vec n) u]
      (build (len u) (fn [i] (jvp (fn [w] (fold max (get w 0) w)) u (one-hot (len u) i)))))""")
    one_by_one = hyad.compile(f, target="python", without="searches")  # the search in lanes has loops in it
    loops = [bind.op for bind in all_binds(one_by_one.program.body) if type(bind.op) is Loop]
    assert len(loops) == 1 and not any(type(b.op) is Loop for loop in loops for b in all_binds(loop.body))
    np.testing.assert_array_equal(f(np.array([1.0, 3.0, 3.0])), [0.0, 1.0, 0.0])


COLUMNS = [
    """(fn [#^ (Vec 12) p #^ (Vec n) t]
      (map (fn [ti]
             (let [k (if (> ti 0.5) 3 0)
                   s (ifold (fn [s i] (+ s (* (exp (* -0.1 (get p i) ti)) (get p (% (+ i k) 12))))) 0.0 12)]
               (if (> ti 0.2) (* s (sin (get p k))) (/ (get p 1) (get p 2)))))
           t))""",
    """(fn [#^ (Vec 12) p #^ (Vec n) t]
      (let [x (build [(len t) 3] (fn [i j] (- (get t i) (* 0.3 (real j)))))
            rows (build (len t) (fn [i] (map (fn [a] (* a (get p (% i 12)) (exp (get p 3)))) (get x i))))
            top (map (fn [r] (fold max (get r 0) (map (fn [a b] (- (* a b) (tanh (get p 5)))) r r))) rows)
            swept (ifold (fn [v i] (update v i (+ (get v i) (* (get p (% i 12)) (sin (get p 7)))))) top (len t))]
        (map (fn [a b] (if (< a 1.0) (* a b) (+ (/ a (+ 2.0 b)) (get p 11)))) swept top)))""",
]


@pytest.mark.parametrize("text", COLUMNS, ids=["sums", "arrays"])
def test_many_columns_at_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Jacobian by many inputs through loops is one pass, whose tangents have all columns: sums, branches, arrays
    written in place, searches, rows of matrices."""
    monkeypatch.setattr("hyad.differentiate.jacobians.WRITTEN_OUT", 0)
    monkeypatch.delattr("hyad.differentiate.jacobians.forward_unrolled")
    f = hyad.model(text)
    p, t = np.linspace(0.5, 1.5, 12), np.array([0.1, 0.3, 0.6, 0.9, -0.4])
    steps = [hyad.jvp(f, (p, t), (unit, 0 * t)) for unit in np.eye(12)]
    np.testing.assert_allclose(hyad.jacobian(f, wrt=0)(p, t), np.stack(steps, axis=1), rtol=1e-12, atol=1e-14)


ROOTS, SIGNS = np.array([0.0, 4.0, -1.0]), np.array([[0.0, 4.0, -1.0, 1.0], [-1.0, 9.0, 0.0, 2.0]])


@pytest.mark.some(10)
@pytest.mark.parametrize("a", [ROOTS, SIGNS, SIGNS[:, :2].copy()], ids=["vector", "matrix", "pairs"])
@pytest.mark.parametrize(
    "left",
    ["(sqrt a)", "(/ 1 a)", "(* (sqrt a) (log a))", "(exp (/ 1000 a))"],
)
def test_what_where_leaves_out_has_no_derivative(left: str, a: np.ndarray) -> None:
    """An adjoint 0 times the infinite slope of what was left out was NaN in reverse mode."""
    for text in (f"(sum (where (> a 0) {left} 0.0))", f"(sum (exp (* 0.1 (where (<= a 0) a {left}))))"):
        f = hyad.model(f"(fn [a] {text})")
        with np.errstate(all="ignore"):
            expected = hyad.run(hyad.grad(f), a)
        for off in ((), tuple(hyad.optimisations())):
            np.testing.assert_allclose(hyad.compile(hyad.grad(f), args=[a], without=off)(a), expected, rtol=1e-13)
            np.testing.assert_allclose(
                hyad.compile(hyad.value_and_grad(f), args=[a], without=off)(a)[1], expected, rtol=1e-13
            )
        masked = hyad.compile(hyad.value_and_grad(f), args=[a], without="masked-sums")(a)[0]
        assert masked == hyad.value_and_grad(f)(a)[0]


#: Arrays and numbers that several conditions read, and others beside them: no branch can hold what made them.
LEFT_OUT = {
    "two conditions": "(let [s (sqrt v)] (sum (+ (where (> v 0) s 0.0) (where (> v 0.5) s 1.0))))",
    "the same twice": "(let [s (sqrt v) c (> v 0)] (sum (+ (where c s 0.0) (where c (* 2 s) 1.0))))",
    "a shared where": "(let [s (log v) w (where (> v 0) s 0.0)] (+ (sum w) (dot w w) (sum (where (> v 1) s 0.0))))",
    "nested": "(let [s (sqrt v)] (sum (where (> v 0) (where (> v 2) s (* 2 s)) 0.0)))",
    "its own condition": "(let [s (sqrt v)] (sum (where (> s 0) s 0.0)))",
    "broadcast": "(let [s (sqrt v)] (sum (where (> (min (expand-dims v 1) v) 0) s 0.0)))",
    "of numpy": "(let [l (np.log v)] (+ (np.sum (np.where (> v 0) (* v l) 0.0)) (np.sum (np.where (> v 0) l 0.0))))",
    "quotients": "(let [r (/ 1 v)] (+ (sum (where (> v 0) r 0.0)) (sum (where (> v 0) (* r r) 0.0))))",
    "powers": "(let [r (** v 0.5)] (+ (sum (where (> v 0) r 0.0)) (sum (where (> v 1) (* r r) 0.0))))",
    "an exponent": "(let [r (** v v)] (+ (sum (where (> v 0) r 0.0)) (sum (where (> v 1) (* r r) 0.0))))",
    "norm": "(let [n (norm (- v v))] (sum (where (> n 0) (/ v n) v)))",
    "norm and zero": "(let [n (norm (* v 0.0))] (sum (where (> n 0) (/ v n) 0.0)))",
    "acos": "(let [a (acos (/ v 4))] (+ (sum (where (< v 4) a 0.0)) (sum (where (< v 3) (* v a) 0.0))))",
    "a logarithm's own": "(let [s (log v)] (sum (where (> s -1) s 0.0)))",
    "clip of logarithms": "(+ (sum (clip (log v) 0 1)) (sum (sin (max (log2 v) 0.5))))",
    "clip of cube roots": "(sum (clip (cbrt v) 0.1 1.5))",
    "clip at 1": "(+ (sum (clip (atanh (/ v 9)) 0 1)) (sum (max -2 (log1p (/ v -9)))) (sum (sin (min 2 (lgamma v)))))",
    "numbers": "(let [x (get v 0) s (sqrt x)] (+ (if (> x 0) s 0.0) (if (> x 1) (* 3 s) 1.0)))",
    "a number's own": "(let [s (sqrt (get v 0))] (if (> s 0) s 0.0))",
    "max": "(let [s (sqrt v)] (+ (sum (max 0.5 s)) (sum (max 1.5 s))))",
    "amax": "(let [s (sqrt v)] (+ (max s) (sum (where (> v 1) s 0.0))))",
    "rows": "(let [r (map (fn [x] (sqrt (sum x))) (outer v v))] (+ (sum (where (> v 0) r 0.0)) (sum (max r 2.0))))",
    "overflow": "(let [e (exp (* 400 v))] (+ (sum (where (< v 1) e 0.0)) (sum (where (< v 0.5) (* e e) 0.0))))",
    "missing": "(let [w (/ v v)] (sum (where (isnan w) v (* w w))))",
    "running sums": "(let [s (cumsum (sqrt v))] (sum (where (> v 10) s v)))",
    "a loop": "(let [s (sqrt v)] (ifold (fn [a i] (if (> (get v i) 0) (+ a (get s i) (* a (get s i))) a)) 0.0 4))",
    "a while": """(let [s (sqrt v) r (ref 0.0) i (ref 0)]
                    (while (< (deref i) 4)
                      (when (> (get v (deref i)) 0) (set! r (+ (deref r) (sin (get s (deref i))))))
                      (set! i (+ 1 (deref i))))
                    (+ (deref r) (sum (where (> v 1) s 0.0))))""",
}
ZERO_FIRST = np.array([0.0, 4.0, 1.0, 9.0])


@pytest.mark.some(12)
@pytest.mark.parametrize("body", LEFT_OUT.values(), ids=LEFT_OUT)
def test_what_several_conditions_leave_out_has_no_derivative(body: str) -> None:
    f, v = hyad.model(f"(fn [v] {body})"), ZERO_FIRST
    with np.errstate(all="ignore"):
        expected = hyad.run(hyad.grad(f), v)
        forward = [hyad.model(f"(fn [v t] (jvp (fn [v] {body}) v t))")(v, t) for t in np.eye(4)]
        assert np.isfinite(expected).all()
        np.testing.assert_allclose(forward, expected, rtol=1e-13)
        for off in ((), tuple(hyad.optimisations())):
            np.testing.assert_allclose(hyad.compile(hyad.grad(f), args=[v], without=off)(v), expected, rtol=1e-13)
        python = hyad.compile(hyad.grad(f), args=[v], target="python")
        np.testing.assert_allclose(python(v), expected, rtol=1e-13)
        hessian, inside = hyad.hessian(f)(v), hyad.hessian(f)(v + 0.01)
        assert np.isfinite(hessian).all()
        forwards = hyad.model(f"(fn [v t] (jvp (fn [v] (jvp (fn [v] {body}) v t)) v t))")
        np.testing.assert_allclose([forwards(v + 0.01, t) for t in np.eye(4)], np.diag(inside), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_functions_leave_out_has_no_derivative(encoding: str) -> None:
    """In a recursive function, in every encoding of reverse mode."""
    f = hyad.model(
        """(defmodel walk [x #^ Int n]
             (if (= n 0)
               x
               (let [s (sqrt (abs x))  y (walk (* 0.5 x) (- n 1))]
                 (+ y (if (> x 0) s 0.0) (if (> x 1) (* s y) 0.0)))))"""
    )
    found = [hyad.grad(f, wrt="x", encoding=encoding)(x, 30) for x in (0.0, 1.7)]
    np.testing.assert_allclose(found, [hyad.run(hyad.grad(f, wrt="x"), x, 30) for x in (0.0, 1.7)], rtol=1e-13)


def test_second_derivatives_at_an_adjoint_that_is_zero() -> None:
    """It is 0 there because the function is flat, not because nothing took it: it has a derivative itself."""
    f = hyad.model("(fn [x] (let [s (/ (sin x) (+ 1 x))] (+ (if (< x 5) (* s s) 0.0) (if (< x 6) (* s s) 0.0))))")
    g = hyad.model("(fn [v] (let [s (log v)] (+ (sum (where (> v 0) (* s s) 0.0)) (sum (max (* s s) 0.0)))))")
    np.testing.assert_allclose(hyad.D(hyad.grad(f))(0.0), 4.0, rtol=1e-14)
    np.testing.assert_allclose(hyad.hessian(g)(np.ones(2)), 4 * np.eye(2), rtol=1e-14, atol=0)
    summed = hyad.model("(fn [v] (sum ((grad (fn [v] (let [s (log v)] (sum (where (> v 0) (* s s) (* 2 s)))))) v)))")
    np.testing.assert_allclose(hyad.grad(summed)(np.ones(2)), 2.0)


#: States of which each is asked about anew: what was compared in the iteration before tells nothing of them.
FLOW = """(fn [#^ (Vec n) v]
  (let [flow (fn [a b] (let [l (min a b)] (+ (max (* a b) (* a a)) (if (>= l 0.5) (/ a (+ l 1)) b))))
        u (fold (fn [q t] (build n (fn [i] {go}))) v (arange 3))]
    (dot u u)))"""


def test_answers_that_a_loop_remembers_are_kept_in_mind() -> None:
    """A quotient that is infinite is left out because of what the iteration before has found out."""
    f = hyad.model(
        """(fn [x y] (let [s (fold (fn [s t]
             (let [#(q p zero far) s r (/ y q)]
               #((- q 1.0) (+ (if zero p r) (if far p (* r r))) (= (- q 1.0) 0.0) (< (- q 1.0) 0.5))))
             #(x 0.0 False False) (arange 4))] (get s 1)))"""
    )
    for x, y, value, slopes in ((2.0, 3.0, 21.0, (-45.0, 13.0)), (2.5, 3.0, 36.0, (-168.0, 24.0))):
        assert f(x, y) == value
        np.testing.assert_allclose(hyad.grad(f, wrt=(0, 1))(x, y), slopes, rtol=1e-13)


def test_adjoints_that_all_is_asked_of_need_no_care() -> None:
    for text in (
        "(fn [v] (sum (/ (sqrt v) (+ 1 (log v)))))",
        "(fn [v] (sum (where (> v 0) (sqrt v) 0.0)))",
        "(fn [v] (let [s (/ (sum v) (len v))] (sum (where (> v s) (* v s) 0.0))))",
        "(fn [v] (let [s (tanh v)] (sum (+ (where (> v 0) (* v s) 0.0) (where (> v 1) (sin s) 0.0)))))",
        "(fn [v] (let [q (/ (get v 0) (get v 1))] (if (> q 1) (* q q) q)))",  # nor does who does not ask
        "(fn [v] (let [u (exp (get v 0)) d (/ 1 u) s (* (get v 1) d)] (+ (max 0.0 (- s 1)) (if (> s 2) (* s d) s))))",
        # what a condition lets through is finite, and so is the state of the next iteration
        FLOW.format(go="(* 0.1 (flow (get q (max 0 (- i 1))) (get q i)))"),
    ):
        assert "pass_on" not in hyad.show(hyad.grad(text), "c", args=[ZERO_FIRST]), text


#: Programs of a number and a vector in which a tangent may be 0 at an infinite slope, and where.
RESTING = {
    "max": ("(sqrt (max x 0.0))", -1.0),
    "a product": ("(let [q (max x 0.0)] (+ (sqrt (* 2.0 q)) (* q q)))", -1.0),
    "a branch": ("(sqrt (if (> x 0) x 0.0))", -1.0),
    "both sides": ("(+ x (acos (max -1.0 (min 1.0 x))))", 1.5),
    "asin of a branch": ("(asin (if (< x 1) (* 0.5 x) 1.0))", 1.5),
    "a power": ("(** (max x 0.0) 0.3)", -1.0),
    "a power of an array": ("(sum (** (np.maximum (* x v) 0.0) 0.3))", 1.0),
    "a state": ("(fold (fn [s e] (+ s (* x 0.1) (* e (sqrt (* 0.1 (max s 0.0)))))) -1.0 v)", 1.0),
    "a state that is not moved yet": ("(fold (fn [s e] (+ (* s s) (* x x) (sqrt s))) 0.0 v)", 1.3),
    "a while": ("""(let [s (ref -1.0)]
                     (while (< (deref s) 1.0) (set! s (+ (deref s) (* 0.3 x) (sqrt (* 0.7 (max 0.0 (deref s)))))))
                     (deref s))""", 1.0),
    "a state that is given": ("(fold (fn [s e] (+ (* s s) (* x x) (sqrt s))) (max 0.0 (get v 1)) v)", 1.3),
    "recursion": ("""(letrec [f (fn [s n] (if (= n 0) s (f (+ s (* 0.3 x) (sqrt (max 0.0 s))) (- n 1))))]
                       (f -1.0 6))""", 1.0),
    "calls": ("(letrec [f (fn [s n] (if (= n 0) s (f (+ (* x x) (sqrt s)) (- n 1))))] (f 0.0 (int (dot v v))))", 1.3),
    "calls of calls": ("""(letrec [f (fn [s n] (if (= n 0) s (sin (* x (f (+ (* x x) (sqrt s)) (- n 1))))))]
                            (f 0.0 (int (dot v v))))""", 0.9),
    "an element": ("(let [u (update (* 0.0 v) 0 x)] (sum (map (fn [e] (if (> e 0) (sqrt e) 0.0)) u)))", 1.0),
}  # fmt: skip


@pytest.mark.some(10)
@pytest.mark.parametrize("text, x", RESTING.values(), ids=RESTING)
def test_what_nothing_moves_has_no_tangent(text: str, x: float) -> None:
    """A tangent 0 times the infinite slope of what a branch or a loop holds at a constant was NaN in forward mode."""
    f = hyad.model(f"(fn [x #^ (Vec n) v] {text})")
    v = np.array([0.5, -0.4, 2.0])
    h = 1e-6
    slope = (f(x + h, v) - f(x - h, v)) / (2 * h)
    assert np.isfinite(slope)
    forward = hyad.model(f"(fn [x v] ((D (fn [x] {text})) x))")
    for off in ((), "few-inputs", tuple(hyad.optimisations())):
        for g in (hyad.grad(f, wrt="x"), hyad.jacobian(f, wrt="x"), forward):
            found = hyad.compile(g, args=(x, v), without=off)(x, v)
            np.testing.assert_allclose(found, slope, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(hyad.run(hyad.grad(f, wrt="x"), x, v), slope, rtol=1e-6, atol=1e-9)
    second = (hyad.grad(f, wrt="x")(x + h, v) - hyad.grad(f, wrt="x")(x - h, v)) / (2 * h)
    np.testing.assert_allclose(hyad.hessian(f, wrt="x")(x, v), second, rtol=1e-6, atol=1e-6)


def test_many_tangents_of_which_some_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """In loops over the directions, too."""
    f = hyad.model("(fn [v w] (ifold (fn [s i] (+ (* 0.5 s) (* (get w i) (sqrt (max 0.0 (get v i)))))) 0.0 (len v)))")
    v, w = np.array([-1.0, 4.0, -2.0, 9.0, 1.0]), np.arange(1.0, 6.0)
    expected = hyad.grad(f, wrt="v")(v, w)
    np.testing.assert_allclose(expected, [0.0, 2 / 4 / 8, 0.0, 4 / 6 / 2, 5 / 2], rtol=1e-14)
    np.testing.assert_allclose([hyad.jvp(f, (v, w), (t, 0 * w)) for t in np.eye(5)], expected, rtol=1e-14)
    body = "(map (fn [a] (ifold (fn [s i] (+ (* a s) (sqrt (max 0.0 (get v i))))) 0.0 (len v))) w)"
    g = hyad.model(f"(fn [#^ (Vec 9) v w] {body})")
    v, w = np.array([-1.0, 4.0, -2.0, 9.0, 1.0, -3.0, 0.25, 16.0, -0.5]), np.linspace(0.1, 0.9, 9)
    backwards = [hyad.vjp(g, (v, w), t)[0] for t in np.eye(9)]
    monkeypatch.setattr("hyad.differentiate.jacobians.WRITTEN_OUT", 0)
    monkeypatch.delattr("hyad.differentiate.jacobians.forward_unrolled")
    for off in ((), tuple(hyad.optimisations())):
        found = hyad.compile(hyad.jacobian(g, wrt="v"), args=(v, w), without=off)(v, w)
        np.testing.assert_allclose(found, backwards, rtol=1e-13)


def test_tangents_that_move_need_no_care() -> None:
    for text in (
        "(fn [x] (+ (sqrt x) (sqrt (* x (exp x)))))",
        "(fn [x] (log (if (> x 0) x 1.0)))",
        "(fn [x] (sqrt (max x 1e-8)))",
        "(fn [x] (acos (max x 0.5)))",
        "(fn [x] (ifold (fn [s i] (sqrt (+ s (* x i)))) x 9))",
        "(fn [x] (ifold (fn [s i] (sqrt (+ s (* x i)))) 2.0 9))",
    ):
        assert "pass_on" not in hyad.show(hyad.jacobian(text), "c", args=[1.5]), text


#: The likelihood of three steps of a hidden Markov model that starts in the first state and goes from one to the next.
WEIGHTLESS = {
    "builds": """(logsumexp (ifold (fn [a s] (build 3 (fn [j]
                   (+ (* (t 2) j s) (logsumexp (build 3 (fn [i] (+ (get a i) (get m i j))))))))) start 3))""",
    "an axis": """(logsumexp (ifold (fn [a s]
                    (+ (* (t 2) s (np.arange 3)) (logsumexp (+ (expand-dims a 1) m) 0))) start 3))""",
    "pairs": """(fold np.logaddexp -Inf (ifold (fn [a s] (build 3 (fn [j]
                  (+ (* (t 2) j s) (ifold (fn [z i] (logaddexp z (+ (get a i) (get m i j)))) -Inf 3))))) start 3))""",
    "as written": """(log (sum (exp (ifold (fn [a s] (build 3 (fn [j]
                     (+ (* (t 2) j s) (log (sum (exp (build 3 (fn [i] (+ (get a i) (get m i j))))))))))) start 3))))""",
}  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.parametrize("text", WEIGHTLESS.values(), ids=WEIGHTLESS)
def test_states_without_weight_have_no_derivative(text: str) -> None:
    """The logarithm of a sum of exponentials that are all 0 has an infinite slope, its own adjoint and tangent are 0:
    together that was NaN."""
    m = "[[(log (t 0)) (log (- 1 (t 0))) -Inf] [-Inf (log (t 1)) (log (- 1 (t 1)))] [-Inf -Inf 0.0]]"
    f = hyad.model(f"(fn [#^ (Vec 3) theta] (let [t (fn [k] (get theta k))  m {m}  start [0.0 -Inf -Inf]] {text}))")
    plain = hyad.model("""(fn [#^ (Vec 3) theta]
      (let [t (fn [k] (get theta k))
            m [[(t 0) 0.0 0.0] [(- 1 (t 0)) (t 1) 0.0] [0.0 (- 1 (t 1)) 1.0]]
            step (fn [p s] (build 3 (fn [j] (* (exp (* (t 2) j s)) (dot (get m j) p)))))]
        (log (sum (ifold step [1.0 0.0 0.0] 3)))))""")
    theta = np.array([0.3, 0.6, 0.2])
    slopes = hyad.grad(plain)(theta)
    for off in ((), ("log-sums",), tuple(hyad.optimisations())):
        np.testing.assert_allclose(hyad.compile(hyad.grad(f), args=(theta,), without=off)(theta), slopes, rtol=1e-13)
        forward = hyad.compile(hyad.jacobian(f), args=(theta,), without=off)
        np.testing.assert_allclose(forward(theta), slopes, rtol=1e-13)
    np.testing.assert_allclose([hyad.jvp(f, (theta,), (e,)) for e in np.eye(3)], slopes, rtol=1e-13)
    np.testing.assert_allclose(hyad.run(hyad.grad(f), theta), slopes, rtol=1e-13)


def test_rows_without_weight_count_nothing() -> None:
    """A row of -inf in what is left out, or in a mixture with no weight; alone it has no slope that could be told."""
    rows, w = np.array([[1.0, 2.0, -np.inf], [-np.inf] * 3, [0.5, 0.0, 1.0]]), np.array([1.0, -np.inf, 0.5])
    masked = hyad.model("(fn [#^ (Mat n k) x #^ (Vec n) w] (sum (where (> w -Inf) (* w (logsumexp x 1)) 0.0)))")
    mixed = hyad.model("(fn [#^ (Mat n k) x #^ (Vec n) w] (logsumexp (+ w (map logsumexp x))))")
    for f in (masked, mixed):
        kept = hyad.grad(f, wrt="x")(rows[::2].copy(), w[::2].copy())
        for off in ((), tuple(hyad.optimisations())):
            found = hyad.compile(hyad.grad(f, wrt="x"), args=(rows, w), without=off)(rows, w)
            np.testing.assert_allclose(found, [kept[0], np.zeros(3), kept[1]], rtol=1e-14)
    alone = hyad.grad("(fn [v] (logsumexp v))")
    assert np.isnan(alone(np.full(3, -np.inf))).all() and np.isnan(hyad.run(alone, np.full(3, -np.inf))).all()


SUMS_OF_LOGARITHMS = [
    "(fold logaddexp -Inf v)",
    "(let [s (ref -Inf)] (for [a v] (set! s (logaddexp (deref s) a))) (deref s))",
    "(loop [i 0 s -Inf] (if (< i (len v)) (recur (+ i 1) (logaddexp s (get v i))) s))",
    "(get (scan logaddexp -Inf v) -1)",
    "(letrec [h (fn [i] (if (< i (len v)) (logaddexp (get v i) (h (+ i 1))) -Inf))] (h 0))",
    "(letrec [h (fn [s i] (if (< i (len v)) (h (log (+ (exp s) (exp (get v i)))) (+ i 1)) s))] (h -Inf 0))",
    "(fold (fn [s a] (log (+ (exp s) (exp a)))) -Inf v)",
    "(letrec [h (fn [i] (if (< i (len v)) (log (+ (exp (get v i)) (exp (h (+ i 1))))) -Inf))] (h 0))",
]


@pytest.mark.some(3)
@pytest.mark.parametrize("text", SUMS_OF_LOGARITHMS)
def test_sums_of_logarithms_of_which_the_first_are_none(text: str) -> None:
    """All in turn in a loop or in recursion: what the last iteration hands on is certain, what others do is not."""
    f = hyad.model(f"(fn [#^ (Vec n) v] {text})")
    for v in (np.array([-np.inf, -np.inf, 2.0, -np.inf, 1.0]), np.array([1.0, 2.0, -np.inf, -np.inf])):
        slopes = np.exp(v - 2.0) / (1 + np.exp(-1.0))
        for off in ((), tuple(hyad.optimisations())):
            np.testing.assert_allclose(hyad.compile(hyad.grad(f), args=(v,), without=off)(v), slopes, rtol=1e-14)
        for encoding in ENCODINGS:
            np.testing.assert_allclose(hyad.grad(f, encoding=encoding)(v), slopes, rtol=1e-14)
        np.testing.assert_allclose(hyad.run(hyad.grad(f), v), slopes, rtol=1e-14)
        np.testing.assert_allclose([hyad.jvp(f, (v,), (e,)) for e in np.eye(len(v))], slopes, rtol=1e-14)


def test_logaddexp_is_accurate() -> None:
    """As NumPy's, also where one of both has next to no weight; its slopes add up to 1, at infinities too."""
    f = hyad.model("(fn [a b] (logaddexp a b))")
    inf = np.inf
    points = [(-40.0, 0.0), (0.0, -40.0), (1.0, 1.0), (1e3, 999.0), (-inf, -inf), (-inf, 1.0), (inf, 1.0), (inf, -inf)]
    for a, b in points:
        for g in (hyad.compile(f), hyad.compile(f, "python"), lambda a, b: hyad.run(f, a, b)):
            np.testing.assert_allclose(g(a, b), np.logaddexp(a, b), rtol=1e-15)
        slopes = hyad.grad(f)(a, b)
        assert sum(slopes) == pytest.approx(1, rel=1e-15)
        assert a == b or slopes == pytest.approx((1 / (1 + np.exp(b - a)), 1 / (1 + np.exp(a - b))), rel=1e-14)
        assert hyad.run(hyad.grad(f), a, b) == pytest.approx(slopes, rel=1e-15)
    assert hyad.grad(f)(-inf, -inf) == (0.5, 0.5)
    np.testing.assert_allclose(hyad.hessian(f)(1.0, 1.0), [[0.25, -0.25], [-0.25, 0.25]], rtol=1e-15)
    for a, b in ((700.0, 1.0), (0.0, 40.0)):  # the product of both slopes, of which one is 1 but for rounding
        curvature = np.exp(-abs(a - b)) / (1 + np.exp(-abs(a - b))) ** 2
        wanted = [[curvature, -curvature], [-curvature, curvature]]
        np.testing.assert_allclose(hyad.hessian(f)(a, b), wanted, rtol=1e-13)
        np.testing.assert_allclose(hyad.run(hyad.hessian(f), a, b), wanted, rtol=1e-13)
    for a, b in ((np.nan, 1.0), (1.0, np.nan)):
        assert np.isnan(f(a, b)) and np.isnan(hyad.run(f, a, b)) and np.isnan(hyad.grad(f)(a, b)).all()


def test_logaddexp_and_its_slopes_are_of_one_exponential() -> None:
    """Each is a function of the same exponential of the same arguments, which a compiler calls once."""
    text = hyad.compile(hyad.value_and_grad(hyad.model("(fn [a b] (logaddexp a b))"))).source
    assert text.count("exp(-fabs(a - b))") == text.count("exp(-") == 3


def test_logarithms_with_weight_need_no_care() -> None:
    for text in (
        "(fn [#^ (Vec n) v] (logsumexp v))",
        "(fn [#^ (Vec n) v] (log (sum (exp v))))",
        "(fn [#^ (Mat n k) m] (sum (map logsumexp m)))",
        "(fn [#^ (Mat n k) m] (sum (map (fn [r] (log (+ 1.0 (sum (exp r))))) m)))",
        "(fn [#^ (Mat n k) m] (exp (sum (map (fn [r] (log (+ 1.0 (sum (exp r))))) m))))",
    ):
        for made in (hyad.grad(text), hyad.grad(text).without(["log-sums"])):
            assert "pass_on" not in hyad.show(made, "c"), text


#: How many logarithms are of what is 0 only where all exponentials in it underflow, and are taken where they may.
OF_EXPONENTIALS = {
    "(log (sum (map exp v)))": 1,
    "(log (ifold (fn [s i] (+ s (* (exp (get v i)) (exp (get w i))))) 0.0 n))": 1,
    "(log (ifold (fn [s i] (+ s (* (get w i) (exp (get v i))))) 0.0 n))": 0,
    "(log (ifold (fn [s i] (+ s (- (exp (get v i)) 0.5))) 0.0 n))": 0,
    "(log (ifold (fn [s i] (+ s (exp (get v i)))) 1.0 n))": 0,
    # each accumulator that is none takes another one with it
    """(let [#(a b) (ifold (fn [#(a b) i] #((+ a (- (exp (get v i)) 0.5)) (+ b a (exp (get v i))))) #(0.0 0.0) n)]
         (log b))""": 0,
    "(get (ifold (fn [#(a t) i] #((+ a (exp (get v i))) (+ t (log a)))) #(0.0 0.0) n) 1)": 1,
    "(get (ifold (fn [#(a t) i] #((+ a (- (exp (get v i)) 0.5)) (+ t (log a)))) #(0.0 0.0) n) 1)": 0,
    "(let [s (sum (map exp v))] (if (< 1e-300 s) (log s) -9.0))": 0,
    "(let [s (sum (map exp v))] (if (< s 1e-300) (log s) -9.0))": 1,
    "(log (if (> c 0.0) (exp c) (sum (map exp v))))": 1,
    "(log (if (> c 0.0) (exp c) c))": 0,
}


@pytest.mark.parametrize(("text", "count"), OF_EXPONENTIALS.items())
def test_which_logarithms_are_of_sums_of_exponentials(text: str, count: int) -> None:
    f = hyad.model(f"(fn [#^ (Vec n) v #^ (Vec n) w #^ Real c] (let [n (len v)] {text}))", namespace={})
    assert len(Masses(f.program(f.specs()).body).logarithms) == count


def test_an_array_that_two_conditions_read_is_made_once() -> None:
    text = "(fn [#^ (Vec n) v] (let [a (exp v)] (+ (sum (where (> v 0) a 0.0)) (prod (where (> v 1) a 1.0)))))"
    assert hyad.show(hyad.grad(text), "c").count("exp(") == 1


def test_masked_sums_are_the_same_to_the_last_bit() -> None:
    f = hyad.model("(fn [#^ (Vec n) v] (sum (map (fn [a] (if (> a 0) (sqrt a) 0.0)) v)))")
    v = np.random.default_rng(0).normal(size=1000)
    for flags in ("exact", "fast"):
        found = [hyad.compile(f, flags=flags, args=[v], without=off) for off in ((), "masked-sums")]
        assert ("-0.0" in found[0].source, "-0.0" in found[1].source) == (True, False)
        if flags == "exact":
            assert found[0](v) == found[1](v)
    for nothing in (-v * v, np.array([-0.0]), np.zeros(0)):
        assert math.copysign(1.0, found[0](nothing)) == 1.0
    below = (
        "(fn [#^ (Vec n) v] (fold (fn [s a] (+ s (if (> a 0) a 0.0))) -0.0 v))"  # here adding 0.0 makes a difference
    )
    assert math.copysign(1.0, hyad.model(below)(np.array([-1.0]))) == 1.0


def test_docstrings_list_every_value_that_is_taken() -> None:
    """``grad`` left out an encoding."""
    taken = {
        hyad.grad: ENCODINGS,
        hyad.compile: (*TARGETS, "f64", "f32", "exact", "fast", "libm", "vector"),
        hyad.emit: (*SUFFIXES, "f64", "f32", "libm", "vector"),
        hyad.explain: SUFFIXES,
        hyad.show: MAKERS,
    }
    for function, values in taken.items():
        missing = [v for v in values if f'"{v}"' not in (function.__doc__ or "")]
        assert not missing, (function.__name__, missing)


def test_operators_by_the_names_they_have_in_python() -> None:
    """``hyad.grad`` inside a model is ``grad``; what is none of the language is an error that says so."""
    for text, want in (
        ("((hyad.grad (fn [y] (* y y y))) x)", 12.0),
        ("(hyad.jvp (fn [y] (* y y)) x 1.0)", 4.0),
        ("(snd ((hyad.value_and_grad (fn [y] (* y y))) x))", 4.0),
        ("(hyad.hvp (fn [y] (* y y y)) x 1.0)", 12.0),
    ):
        f = hyad.model(f"(fn [x] {text})", namespace={"hyad": hyad})
        assert hyad.compile(f, args=(1.0,))(2.0) == want == hyad.run(f, 2.0)
    for text, hint in (
        ("((value_and_grad (fn [y] (* y y))) x)", "did you mean `value-and-grad`?"),
        ("((sparse-jacobian (fn [y] (* y y))) x)", "sparse derivatives are of a model, from outside"),
        ("(laplacian (fn [y] (* y y)) x)", "`(trace ((hessian f) x))` is how a model writes it"),
    ):
        with pytest.raises(hyad.HyadError) as error:
            hyad.compile(hyad.model(f"(fn [x] {text})", namespace={}), args=(1.0,))
        assert (error.value.hint or "").startswith(hint)
    with pytest.raises(hyad.HyadError, match="`sparse_hessian` needs a function that gives a number"):
        hyad.sparse_hessian(hyad.model("(fn [v] (* v v))", namespace={}))(np.ones(3))


@pytest.mark.some(2)
@pytest.mark.parametrize("product", ["(@ h v)", "(@ v h)", "(mat-vec h v)"])
def test_a_product_with_a_hessian_makes_none(product: str) -> None:
    """It takes the time of ``hvp``; the Hessian is there for what else reads it."""
    text = "(fn [#^ (Vec n) x #^ (Vec n) v #^ (Mat n n) a] (let [f (fn [x] (sum (exp (@ a x)))) {}))"
    f = hyad.model(text.format(f"h ((hessian f) x)] {product}"), namespace={})
    one = hyad.model(text.format("] (hvp f x v)"), namespace={})
    both = hyad.model(text.format(f"h ((hessian f) x)] (+ {product} (get h 0))"), namespace={})
    rng = np.random.default_rng(5)
    x, v, a = rng.normal(size=6), rng.normal(size=6), 0.5 * rng.normal(size=(6, 6))
    made = hyad.compile(f)
    np.testing.assert_allclose(made(x, v, a), hyad.run(one, x, v, a), rtol=1e-12)
    np.testing.assert_allclose(made(x, v, a), hyad.run(f, x, v, a), rtol=1e-12)
    np.testing.assert_allclose(hyad.compile(both)(x, v, a), hyad.run(both, x, v, a), rtol=1e-12)
    assert len(made.source) < 1.2 * len(hyad.compile(one).source) < len(hyad.compile(both).source)
    other = hyad.model(text.replace("(Vec n) v", "(Vec m) v").format(f"h ((hessian f) x)] {product}"), namespace={})
    with pytest.raises(hyad.HyadError, match="do not fit"):
        hyad.compile(other)(x, v[:3], a)
    gradient = hyad.grad(hyad.model(text.format(f"h ((hessian f) x)] (dot v {product})"), namespace={}), wrt=(0, 1))
    for got, want in zip(hyad.compile(gradient)(x, v, a), hyad.run(gradient, x, v, a)):
        np.testing.assert_allclose(got, want, rtol=1e-11)


def test_a_truth_value_among_the_parts_of_an_argument_has_no_tangent() -> None:
    f = hyad.model('(fn [p] (if (get p "flag") (* (get p "a") (get p "a")) 0.0))', namespace={})
    p = {"a": 2.0, "flag": True}
    assert hyad.check_grad(f, [p])
    for tangent in ({"a": 1.0, "flag": True}, {"a": 1.0, "flag": 0.0}):
        assert hyad.jvp(f, p, tangent) == 4.0 and hyad.hvp(f, p, tangent)["a"] == 2.0
    with pytest.raises(hyad.HyadError, match="shape of its argument"):
        hyad.jvp(f, p, {"a": 1.0, "b": 2.0, "flag": True})


def test_what_to_do_about_arguments_that_are_no_reals_is_said() -> None:
    x, k = np.arange(4.0), np.array([0, 2])
    for operator in (hyad.grad, hyad.jacobian, hyad.hessian, hyad.value_and_grad):
        with pytest.raises(hyad.HyadError, match="not an integer") as caught:
            operator(hyad.model("(fn [x k] (sum (get x k)))", namespace={}))(x, k)
        assert "(Arr Int n) k" in (caught.value.hint or "")
    with pytest.raises(hyad.HyadError, match="the gradient has a truth value") as caught:
        hyad.hessian(hyad.model("(fn [a c] (if c (* a a) 0.0))", namespace={}))(2.0, True)
    assert "wrt" in (caught.value.hint or "")


def test_products_by_some_arguments_alone() -> None:
    """None for one that is not declared: integers in a model that says nothing of its arguments stay what they are."""
    f = hyad.model("(fn [x k w] (sum (map (fn [i] (* w (** (get x i) 3))) k)))", namespace={})
    x, k, dx = np.array([1.0, 2.0, 0.5]), np.array([2, 0, 2]), np.array([0.1, 0.2, 0.3])
    slopes = 3 * 1.5 * (x**2)[k]
    assert hyad.jvp(f, (x, k, 1.5), (dx, None, None)) == pytest.approx(np.sum(slopes * dx[k]))
    assert hyad.jvp(f, (x, k, 1.5), (dx, None, 2.0)) == pytest.approx(np.sum(slopes * dx[k]) + 2 * np.sum(x[k] ** 3))
    by_x = np.zeros(3)
    np.add.at(by_x, k, 6 * 1.5 * (x * dx)[k])
    np.testing.assert_allclose(hyad.hvp(f, (x, k, 1.5), (dx, None, None)), by_x)
    with pytest.raises(hyad.ModelTypeError, match="not an integer"):
        hyad.jvp(f, (x, k, 1.5), (dx, 0.0, 0.0))
    names = hyad.model("(fn [x v-x] (sum (* x v-x)))", namespace={})
    assert hyad.jvp(names, (x, x), (dx, None)) == pytest.approx(np.sum(x * dx))
    with pytest.raises(hyad.ModelTypeError, match="a tangent must have the shape of its argument"):
        hyad.jvp(names, (x, x), (None, None))
