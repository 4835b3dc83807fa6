"""Mistakes and what hyad says of them. Each row of the tables below is a mistake; the whole message, with file, line,
column, underline and hint, stands in ``golden/errors.txt`` (``--update-golden`` rewrites it: read the diff).

Every error is a class of ``hyad.errors`` and the natural Python one besides, says nothing of hyad's inside, brings no
chain of other errors along, and reaches the user with hyad's own frames cut off its traceback.

Two fuzzers stand at the end: broken texts of models, and wrong arguments to compiled ones.
"""

from __future__ import annotations

import dataclasses
import decimal
import errno
import os
import pickle
import random
import re
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hyad
from hyad.codegen import build
from hyad.core import INT, REAL, Arr, Node
from hyad.errors import (
    BoundsError,
    CompileError,
    DerivativeError,
    HyadError,
    ModelTypeError,
    NotCompiled,
    OutOfMemory,
    ReadError,
    UnboundError,
)
from hyad.frontend.annotations import parameters
from hyad.marshalling import spec_of
from hyad.plain_python import python_callable

GOLDEN = Path(__file__).parent / "golden" / "errors.txt"
V, W = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0])
M = np.arange(6.0).reshape(2, 3)


@dataclasses.dataclass
class Other:
    b: float


def python_function(x: float) -> float:
    return x


NAMES = {"python-function": None, "python_function": python_function, "np": np, "words": "some text", "empty": V[:0]}

# ------------------------------------------------------------------------- the text of a model, and its arguments

MODELS: list[tuple[Any, ...]] = [
    (
        "gradient of a body that ends in a for",
        DerivativeError,
        "(fn [v] ((grad (fn [v] (let [s (ref 0.0)] (for [x v] (set! s (+ (deref s) x)))))) v))",
        np.ones(3),
    ),
    ("fold of the array first", ModelTypeError, "(fn [v] (fold (fn [s x] (+ s x)) v 0.0))", np.ones(3)),
    # names
    ("an unbound name", UnboundError, "(fn [x] (* x yy))", 1.0),
    ("a function that calls itself", UnboundError, "(fn [x] (let [f (fn [k] (if (> k 0) (f (- k 1)) x))] (f 3)))", 1.0),
    ("infinity as Python prints it", UnboundError, "(fn [x] (max -inf x))", 1.0),
    ("a misspelt primitive", UnboundError, "(fn [x]\n  (+ x\n     (sinn x)))", 1.0),
    ("a misspelt parameter", UnboundError, "(fn [stepsize] (* 2 step-size))", 1.0),
    ("a misspelt function of the language", UnboundError, "(fn [u v] (dott u v))", V, V),
    ("a misspelt function that takes an axis or none", UnboundError, "(fn [u] (norm2 u))", V),
    ("a member that a module has not", UnboundError, "(fn [x] (np.sinn x))", 1.0),
    (
        "a steps count that is differentiated by",
        ModelTypeError,
        "(fn [x n] ((grad (fn [x n] (ifold (fn [s i] (* s x)) 1.0 n))) x n))",
        2.0,
        3,
    ),
    ("a mask as a factor", ModelTypeError, "(fn [v] (* (> v 1) v))", V),
    ("a list of arrays of several sizes", ModelTypeError, "(fn [x] (sum [[x] [x x]]))", 1.0),
    ("an array of two sizes without brackets", ModelTypeError, "(fn [x] (build 3 2 (fn [i j] x)))", 1.0),
    ("an array of one size with two indices", ModelTypeError, "(fn [x] (build 3 (fn [i j] x)))", 1.0),
    ("a fold whose function is last", ModelTypeError, "(fn [v] (fold v 0.0 +))", V),
    ("a loop whose function is second", ModelTypeError, "(fn [x] (ifold x (fn [s i] (* s x)) 3))", 1.0),
    ("an index below zero that is no literal", BoundsError, "(fn [v i] (get v i))", V, -1),
    ("an index in brackets after a size", UnboundError, "(fn [u] (build (len u) [i] (* 2 (get u i))))", V),
    ("an index in brackets before a size", UnboundError, "(fn [u] (sum [i (len u)] (* 2 (get u i))))", V),
    ("an index without brackets", UnboundError, "(fn [u n] (build i n (* 2 (get u i))))", V, 3),
    ("a range of fractions", ModelTypeError, "(fn [x] (sum (* x (np.arange 0.0 1.0 0.1))))", 1.0),
    ("a size that nothing binds", UnboundError, "(fn [u] (build [nn nn] (fn [i j] (get u i))))", V),
    ("an infix product", UnboundError, "(fn [x] (+ 1 x*x))", 1.0),
    ("a complex literal", UnboundError, "(fn [x] (* x 1j))", 1.0),
    ("an attribute of what a form gives", UnboundError, "(fn [v] (sum (sin v).T))", V),
    ("Clojure's predicate", UnboundError, "(fn [x] (if (neg? x) 0 x))", 1.0),
    ("Clojure's Math", UnboundError, "(fn [x] (Math/sqrt x))", 1.0),
    ("recur without loop", UnboundError, "(fn [x] (recur x))", 1.0),
    ("printing", UnboundError, "(fn [x] (print x) x)", 1.0),
    ("a method that models have not", ReadError, "(fn [v] (.append v 1))", V),
    ("a loop without a body", ReadError, "(fn [x] (loop [y x]))", 1.0),
    ("an arrow without a value", ReadError, "(fn [x] (->))", 1.0),
    ("a loop over a number", ReadError, "(fn [x] (do (for [i 3] (set-at! x i 1.0)) x))", V),
    ("a loop over an integer", ModelTypeError, "(fn [x n] (do (for [i n] (set-at! x i 1.0)) x))", V, 3),
    ("Clojure's loop over a range", ReadError, "(fn [x] (dotimes [i 3] x))", 1.0),
    ("a cond of pairs", ReadError, "(fn [x] (cond [(> x 0) x] [True 0.0]))", 1.0),
    ("NumPy's random numbers", DerivativeError, "(fn [x] (+ x (np.random.normal)))", 1.0),
    ("NumPy's name for what a model writes", DerivativeError, "(fn [v] (np.tensordot v v))", V),
    ("NumPy's choice among several", DerivativeError, "(fn [v] (np.select [(> v 1)] [v] 0.0))", V),
    ("NumPy's method of a function", DerivativeError, "(fn [v] (np.subtract.outer v v))", V),
    ("NumPy's parts of an array", DerivativeError, "(fn [v] (np.split v 3))", V),
    ("Python's pair of quotient and remainder", UnboundError, "(fn [x] (divmod x 2.0))", 1.0),
    ("the order of NumPy's norm", ModelTypeError, "(fn [v] (np.linalg.norm v np.inf))", V),
    ("the order of NumPy's norm and an axis", ModelTypeError, "(fn [m] (np.linalg.norm m 1 :axis 0))", M),
    ("the order of a norm", BoundsError, "(fn [v] (norm v 1))", V),
    ("an infinite order of a norm", ModelTypeError, "(fn [v] (norm v np.inf))", V),
    ("a roll along two axes", ModelTypeError, "(fn [m] (np.roll m #(1 1) #(0 1)))", M),
    ("the covariance of a vector", BoundsError, "(fn [v] (np.cov v))", V),
    ("the mode of a convolution", ReadError, '(fn [v] (np.convolve v [1.0 1.0] "same"))'),
    ("the mode of a convolution as an option", ReadError, '(fn [v] (np.convolve v [1.0 1.0] :mode "valid"))'),
    ("the mode of a correlation", ReadError, '(fn [v] (np.correlate v [1.0 1.0] "full"))'),
    ("how an array is padded", ReadError, '(fn [v] (np.pad v 1 :mode "edge"))'),
    ("the axes of a grid", ReadError, '(fn [v] (np.meshgrid v v :indexing "ij"))'),
    ("the side of a search", ReadError, '(fn [v] (np.searchsorted v 1.0 :side "right"))'),
    ("the axes of a product", ReadError, "(fn [m] (np.tensordot m m :axes 1))"),
    ("an option of what there is not", ReadError, "(fn [m] (np.linalg.svd m :compute-uv False))"),
    ("an option of any function", ReadError, "(fn [m] (np.ravel m :out m))"),
    ("an option of a sum of products", ReadError, '(fn [v] (np.einsum "i,i" v v :optimize True))'),
    ("an option of a function that the model names", ReadError, "(fn [f v] (f v :mode 1))"),
    ("the sum of a loop", ReadError, "(fn [v] (sum (for [x v] (* x x))))"),
    ("the sum of what a loop gives", ModelTypeError, "(fn [v] (let [s (for [x v] (* x x))] (sum s)))", V),
    ("the sum of a list", ModelTypeError, "(fn [x] (sum (list x x)))", 1.0),
    ("a loop as a term", ReadError, "(fn [x] (+ x (while (> x 1.0) x)))"),
    ("a truth value as a real", ModelTypeError, "(fn [x] (real (> x 1)))", 2.0),
    ("a field that a dict has not", ModelTypeError, '(fn [p] (get p "b"))', {"a": 1.0}),
    ("a comparison of another language", UnboundError, "(fn [x] (if (== x 2.0) x 1.0))", 1.0),
    ("a function under NumPy's name", UnboundError, "(fn [x] (power x 2))", 1.0),
    ("a constant that is not imported", UnboundError, "(fn [x] (* 2 pi x))", 1.0),
    ("a Python function", DerivativeError, "(fn [x] (python-function x))", 1.0),
    ("a NumPy function that is no primitive", DerivativeError, "(fn [x] (np.unique x))", V),
    ("a Python module", DerivativeError, "(fn [x] (* x np))", 1.0),
    ("a Python string", DerivativeError, "(fn [x] (* x words))", 1.0),
    ("an empty constant array", ModelTypeError, "(fn [x] (* x (len empty)))", 1.0),
    ("a form as a value", ReadError, "(fn [x] (map let x))", V),
    ("a Hy form that models have not", ReadError, "(fn [x] (try x))", 1.0),
    ("an assignment", ReadError, "(fn [x] (setv y x) y)", 1.0),
    ("an assignment to an element", ReadError, "(fn [v] (setv (get v 0 1) (* 2.0 x)) v)", V),
    ("an element that is added to", ReadError, "(fn [v] (for [i (range 2)] (+= (get v i) (sin i))) v)", V),
    ("an element taken for a reference", ModelTypeError, "(fn [v] (set! (get v 0) 1.0) v)", V),
    ("a comprehension", ReadError, "(fn [v] (sum (lfor x v (* x x))))", V),
    ("an unbound name in a function that is not called", UnboundError, "(fn [x] (let [f (fn [t] (* t zz))] x))", 1.0),
    (
        "an unbound name inside letrec",
        UnboundError,
        "(fn [x n] (letrec [f (fn [k] (if (= k 0) x (* x (g (- k 1)))))] (f n)))",
        1.0,
        3,
    ),
    # arity
    (
        "a closure of another arity",
        ModelTypeError,
        "(fn [x] (let [mk (fn [a] (fn [b c] (+ a b c)))] ((mk x) 1.0)))",
        1.0,
    ),
    (
        "mutual recursion of another arity",
        ModelTypeError,
        "(fn [x n] (letrec [ev (fn [k] (if (= k 0) 1.0 (od (- k 1) x))) od (fn [k] (ev (- k 1)))] (ev n)))",
        1.0,
        3,
    ),
    ("too few arguments to a function", ModelTypeError, "(fn [x] (let [f (fn [a b] (+ a b))] (f x)))", 1.0),
    ("too many arguments to a primitive", ModelTypeError, "(fn [x] (sin x x))", 1.0),
    ("too few arguments to a primitive", ModelTypeError, "(fn [x] (atan2 x))", 1.0),
    ("too many arguments to len", ModelTypeError, "(fn [v] (len v v))", V),
    ("too few arguments to a function of the language", ModelTypeError, "(fn [u] (dot u))", V),
    ("sizes that are no array", ModelTypeError, "(fn [v] (zeros 3 4))", V),
    ("a mapped function of two parameters", ModelTypeError, "(fn [u] (map (fn [a b] a) u))", V),
    ("a folded function of one parameter", ModelTypeError, "(fn [u] (fold (fn [a] a) 0.0 u))", V),
    ("too few arguments from Python", ModelTypeError, "(fn [x y] (* x y))", 1.0),
    ("too many arguments from Python", ModelTypeError, "(defmodel twice [x] (* 2 x))", 1.0, 2.0),
    # types
    ("a tuple plus a number", ModelTypeError, "(fn [x] (+ #(x 1) 2))", 1.0),
    ("a function plus a number", ModelTypeError, "(fn [x] (+ sin x))", 1.0),
    ("None plus a number", ModelTypeError, "(fn [x] (+ None x))", 1.0),
    ("a truth value plus a number", ModelTypeError, "(fn [x] (+ x (< x 1)))", 1.0),
    ("a number as a condition", ModelTypeError, "(fn [x] (if x 1 2))", 1.0),
    ("an array as a condition", ModelTypeError, "(fn [x] (if (< x 2) 1 2))", V),
    ("not of a number", ModelTypeError, "(fn [x] (if (not x) 1 2))", 1.0),
    ("a real index", ModelTypeError, "(fn [v x] (get v (* 2 x)))", V, 1.0),
    ("many indices of a change", ModelTypeError, "(fn [v] (update v [0 1] 0.0))", V),
    ("truth values as indices", ModelTypeError, "(fn [v] (get v (> v 0)))", V),
    ("reals as indices", ModelTypeError, "(fn [v] (get v (* 2.0 v)))", V),
    ("an element as Python writes it", ReadError, "(fn [v] (+ 1 v[0]))"),
    ("a default value", ReadError, "(fn [x [n 3]] (* x n))"),
    ("an option of NumPy's", ReadError, "(fn [v] (zeros-like v :dtype int))"),
    ("a function that NumPy has", UnboundError, "(fn [v] (numpy.fft.fft v))", V),
    ("infinity with a sign", UnboundError, "(fn [v] (max (sum v) -np.inf))", V),
    ("an ellipsis", UnboundError, "(fn [v] (get v #(... 0)))", V),
    ("many indices beside a slice", ModelTypeError, "(fn [m] (get m #([0 1] (slice 0 1) [0 1])))", np.ones((2, 2, 2))),
    ("many indices that do not fit", ModelTypeError, "(fn [m] (get m [0 1] [0 1 0]))", np.eye(2)),
    ("a tuple of indices", ModelTypeError, "(fn [m] (let [at #(0 1)] (get m at)))", np.eye(2)),
    ("an attribute of an array", ModelTypeError, "(fn [m] (sum m.real))", np.eye(2)),
    ("a colon as an index", UnboundError, "(fn [m] (get m : 0))", np.eye(2)),
    ("a reference plus a number", ModelTypeError, "(fn [x] (let [r (ref x)] (+ r 1)))", 1.0),
    ("NaN as an index", ModelTypeError, "(fn [v i] (get v i))", V, float("nan")),
    ("a real size", ModelTypeError, "(fn [x] (build x (fn [i] 1.0)))", 2.0),
    ("a real size for a function of the language", ModelTypeError, "(fn [x] (zeros x))", 2.0),
    ("a call of a number", ModelTypeError, "(fn [x] (x 1))", 1.0),
    ("a call of an array", ModelTypeError, "(fn [v] (v 1))", V),
    ("a map over a number", ModelTypeError, "(fn [x] (map sin x))", 1.0),
    ("a sum of a number", ModelTypeError, "(fn [x] (sum x))", 1.0),
    ("a map of a number", ModelTypeError, "(fn [v] (map 1 v))", V),
    (
        "branches of a sum and a number",
        ModelTypeError,
        "(fn [x] (case (if (> x 0) (inl x) x) (inl a) a (inr b) b))",
        1.0,
    ),
    ("branches of a reference and a number", ModelTypeError, "(fn [x] (deref (if (> x 0) (ref x) x)))", 1.0),
    ("branches that differ in a part", ModelTypeError, "(fn [x] (fst (if (> x 0) #(#(x x) x) #(sin x))))", 1.0),
    (
        "branches of mutual recursion",
        ModelTypeError,
        "(fn [x n] (letrec [f (fn [k] (if (= k 0) x (g (- k 1)))) g (fn [k] (if (= k 0) [x] (f (- k 1))))] (f n)))",
        1.0,
        3,
    ),
    (
        "branches inside let",
        ModelTypeError,
        "(fn [x] (+ 1 (if (> x 0) (let [y (sin x)] y) (do (cos x) (let [z x] (> z 1))))))",
        1.0,
    ),
    (
        "a list in arithmetic",
        ModelTypeError,
        "(fn [x n] (letrec [ev (fn [k] (if (= k 0) nil (cons x (od (- k 1)))))\n"
        "                   od (fn [k] (if (= k 0) 0.0 (+ 1 (ev (- k 1)))))]\n  (ev n)))",
        1.0,
        3,
    ),
    (
        "an argument that grows",
        ModelTypeError,
        "(fn [x n] (letrec [f (fn [k a] (if (= k 0) 0.0 (f (- k 1) [a a])))] (f n x)))",
        1.0,
        3,
    ),
    ("the parts of a sum", ModelTypeError, "(fn [x] (car (inl x)))", 1.0),
    ("three operands, one of another kind", ModelTypeError, "(fn [x] (+ x 1 (> x 2) x))", 1.0),
    ("a chain of comparisons", ModelTypeError, "(fn [x] (if (< 0 x (> x 2)) 1 2))", 1.0),
    (
        "a reference of another kind in a branch",
        ModelTypeError,
        "(fn [x] (let [r (ref x)] (do (if (> x 0) (set! r #(x x)) (set! r x)) (deref r))))",
        1.0,
    ),
    (
        "callbacks of the wrong result",
        ModelTypeError,
        "(fn [x] (let [comp (fn [f g] (fn [y] (f (g y))))] ((comp sin (fn [t] (list t))) x)))",
        1.0,
    ),
    ("branches of different kinds", ModelTypeError, "(fn [x] (if (< x 0) x #(x x)))", 1.0),
    ("branches of different types", ModelTypeError, "(fn [x] (if (< x 0) x True))", 1.0),
    ("branches of different shapes", ModelTypeError, "(fn [x] (if (< x 0) [x x x] [x x]))", 1.0),
    ("when without a value", ModelTypeError, "(fn [x] (when (< x 0) x))", 1.0),
    ("an accumulator that changes its kind", ModelTypeError, "(fn [x] (ifold (fn [a i] #(a a)) x 3))", 1.0),
    ("an accumulator that changes its type", ModelTypeError, "(fn [x] (ifold (fn [a i] (< a 1)) x 3))", 1.0),
    ("an accumulator that changes its shape", ModelTypeError, "(fn [x] (ifold (fn [a i] [x x x]) [x x] 3))", 1.0),
    ("numbers mixed with arrays", ModelTypeError, "(fn [x] [x [x x]])", 1.0),
    ("numbers mixed with truth values", ModelTypeError, "(fn [x] [x True])", 1.0),
    ("an array without elements", ModelTypeError, "(fn [x] [])", 1.0),
    ("a field that a record has not", ModelTypeError, "(fn [r] (* r.mass r.speed))", {"mass": 1.0, "velocity": 2.0}),
    ("a record of another class", ModelTypeError, "(fn [r] (+ (. r a) (. r b)))", Other(1.0)),
    ("an annotation that is no type", ModelTypeError, "(fn [#^ Complex x] x)", 1.0),
    ("Python's name of a type", ModelTypeError, "(fn [#^ float x] x)", 1.0),
    ("Python's name of a type as a size", ModelTypeError, "(fn [#^ (Arr int n) k] (sum k))", np.array([1, 2])),
    ("a type as a size", ModelTypeError, "(fn [#^ (Arr n Real) v] (sum v))", V),
    ("an annotation without its sizes", ModelTypeError, "(fn [#^ Vec x] (sum x))", V),
    ("an update of the wrong kind", ModelTypeError, "(fn [v] (update v 1 v))", V),
    # shapes and indices that are known when it is compiled
    ("a sum of arrays of different lengths", ModelTypeError, "(fn [x] (+ [x x] [x x x]))", 1.0),
    ("a matrix with a vector of another length", ModelTypeError, "(fn [x] (+ [[x x] [x x]] [x x x]))", 1.0),
    ("a sum along an axis that there is not", BoundsError, "(fn [m] (sum m 2))", M),
    ("the largest along two axes", ModelTypeError, "(fn [m] (argmax m #(0 1)))", M),
    ("a sum along an axis twice", BoundsError, "(fn [m] (sum m #(0 0)))", M),
    ("a sum along an axis known at run time", ModelTypeError, "(fn [m n] (sum m n))", M, 1),
    (
        "a system of equations that does not fit",
        ModelTypeError,
        "(fn [#^ (Mat 2 2) m #^ (Vec 3) v] (solve m v))",
        np.eye(2),
        V,
    ),
    ("a matrix that is not square", ModelTypeError, "(fn [#^ (Mat 2 3) m] (inv m))", M),
    ("an array in a shape of another size", ModelTypeError, "(fn [#^ (Vec 3) v] (reshape v [2 2]))", V),
    ("the largest of nothing", BoundsError, "(fn [#^ (Vec 0) v] (amax v))", np.zeros(0)),
    ("a slice beyond the end", BoundsError, "(fn [#^ (Vec 3) v] (cut v 1 5))", V),
    ("jacob of a function that gives a number", DerivativeError, "(fn [v] ((jacob (fn [t] (dot t t))) v))", V),
    ("diff by a vector", DerivativeError, "(fn [v] ((diff (fn [t] (* 2 t))) v))", V),
    ("mgrad of a function of a vector", DerivativeError, "(fn [v] ((mgrad (fn [t] (dot t t))) v))", V),
    (
        "an adjoint that is a number, of a vector",
        DerivativeError,
        "(fn [v] (grad (fn [v] (sum (ruled (fn [x] (* x x)) (fn [x y dx] dx) (fn [x y ct] 1.0) v))) v))",
        V,
    ),
    (
        "an adjoint of another length",
        ModelTypeError,
        "(fn [v] (grad (fn [v] (sum (ruled (fn [x] (* x x)) (fn [x y dx] dx) (fn [x y ct] [1.0 2.0]) v))) v))",
        V,
    ),
    (
        "an adjoint of another rank",
        DerivativeError,
        "(fn [v] (grad (fn [v] (sum (* 2 (ruled (fn [x] (* x x)) (fn [x y dx] dx) (fn [x y ct] [ct ct]) v)))) v))",
        V,
    ),
    (
        "a tangent of another length",
        ModelTypeError,
        "(fn [v] (jvp (fn [v] (sin (ruled (fn [x] (* x x)) (fn [x y dx] [1.0 2.0]) (fn [x y ct] ct) v))) v v))",
        V,
    ),
    (
        "a tangent of truth values",
        DerivativeError,
        "(fn [v] (jvp (fn [v] (ruled (fn [x] (* x x)) (fn [x y dx] (> x 0)) (fn [x y ct] ct) v)) v v))",
        V,
    ),
    ("get of a reference", ModelTypeError, "(fn [v] (let [z (ref v)] (get z 0)))", V),
    ("a logarithm with its base", ModelTypeError, "(fn [x] (log x 2))", 1.0),
    ("ruled by rules that do not fit", ModelTypeError, "(fn [x] (ruled sin sin sin x))", 1.0),
    ("dot of different lengths", ModelTypeError, "(fn [x] (dot [x x] [x x x]))", 1.0),
    ("mat-vec of shapes that do not fit", ModelTypeError, "(fn [#^ (Mat 2 3) m #^ (Vec 2) v] (mat-vec m v))", M, W),
    ("mat-mul of shapes that do not fit", ModelTypeError, "(fn [#^ (Mat 2 3) m] (mat-mul m m))", M),
    ("axes that a vector has not", BoundsError, "(fn [v] (transpose v [1 0]))", V),
    ("rows of different lengths", ModelTypeError, "(fn [x] [[x x] [x]])", 1.0),
    ("an index that is out of range", BoundsError, "(fn [x] (get [x x] 5))", 1.0),
    ("a negative index that is out of range", BoundsError, "(fn [x] (get [x x] -3))", 1.0),
    ("too many indices", ModelTypeError, "(fn [v] (get v 0 0))", V),
    ("an index that a tuple has not", BoundsError, "(fn [x] (get #(x x) 2))", 1.0),
    ("a run-time index of a tuple", ModelTypeError, "(fn [x i] (get #(x x) i))", 1.0, 1),
    ("a negative size", ModelTypeError, "(fn [x] (build -3 (fn [i] x)))", 1.0),
    ("an integer literal beyond 64 bits", ReadError, "(fn [x] (+ x 99999999999999999999))", 1.0),
    # shapes and indices at run time
    ("dot of lengths that differ at run time", ModelTypeError, "(fn [u v]\n  (* 2 (dot u v)))", V, W),
    ("a sum of lengths that differ at run time", ModelTypeError, "(fn [u v] (+ u v))", V, W),
    ("a column with a row at run time", ModelTypeError, "(fn [u v] (+ u v))", V, V.reshape(3, 1)),
    ("mat-vec of shapes that do not fit at run time", ModelTypeError, "(fn [m v] (mat-vec m v))", M, W),
    ("mat-mul of shapes that do not fit at run time", ModelTypeError, "(fn [a b] (mat-mul a b))", M, M),
    ("trace of a matrix that is not square", ModelTypeError, "(fn [m] (trace m))", M),
    ("a map over lengths that differ", ModelTypeError, "(fn [p] (map * (fst p) (snd p)))", (V, W)),
    ("a run-time index that is out of range", BoundsError, "(fn [v i] (get v (+ i 1)))", V, 7),
    (
        "an index behind a comparison that overflows",
        BoundsError,
        "(fn [v k] (if (>= k 0) (if (< (* 2 k) (len v)) (get v k) 0.0) 0.0))",
        V,
        2**62,
    ),
    ("an index that wraps back into range", BoundsError, "(fn [v i] (get v (* i i)))", V, 2**32),
    ("an index that wraps in a loop", BoundsError, "(fn [v i] (get v (ifold (fn [a k] (* a i)) 1 2)))", V, 2**32),
    ("a size that wraps", BoundsError, "(fn [k] (fold + 0.0 (build (* k k) (fn [i] 1.0))))", 2**32),
    ("a sum of indices that wraps", BoundsError, "(fn [v i j] (update v (+ i j) 2.0))", V, -(2**63), -(2**63)),
    ("a negative run-time index", BoundsError, "(fn [v i] (get v i))", V, -1),
    ("an index whose arithmetic overflows", BoundsError, "(fn [v i] (get v (+ i 1)))", V, 2**63 - 1),
    ("a literal index beyond a run-time size", BoundsError, "(fn [v] (get v 5))", V),
    ("an element of an empty array", BoundsError, "(fn [v] (fold max (get v 0) v))", V[:0]),
    ("cross of short vectors", ModelTypeError, "(fn [v] (cross v v))", W),
    ("a negative run-time size", ModelTypeError, "(fn [n] (build n (fn [i] 1.0)))", -3),
    ("a size beyond the memory", OutOfMemory, "(fn [n] (build n (fn [i] 1.0)))", 2**62),
    # arguments
    ("an array shorter than declared", ModelTypeError, "(fn [#^ (Vec 3) u] (* 2 u))", W),
    ("arrays that are declared to be of one size", ModelTypeError, "(fn [#^ (Vec n) u #^ (Vec n) v] (+ u v))", V, W),
    ("an array of another rank than declared", ModelTypeError, "(fn [#^ (Vec 3) u] (* 2 u))", M),
    ("an array for a declared number", ModelTypeError, "(fn [#^ Real x] (* 2 x))", V),
    ("NaN for a declared integer", ModelTypeError, "(fn [#^ Int n] (* 2 n))", float("nan")),
    ("a truth value for a declared number", ModelTypeError, "(fn [#^ Real x] (* 2 x))", True),
    ("an inner call against its annotation", ModelTypeError, "(fn [x] ((fn [#^ (Vec n) v] (sum v)) x))", 1.0),
    ("an array of objects", ModelTypeError, "(fn [v] (sum v))", np.array([1, None], object)),
    ("an array of strings", ModelTypeError, "(fn [v] (sum v))", np.array(["a"])),
    ("a complex array", ModelTypeError, "(fn [v] (sum v))", np.array([1j])),
    ("an array of dates", ModelTypeError, "(fn [v] (sum v))", np.array(["2020-01-01"], "M8[D]")),
    ("a structured array", ModelTypeError, "(fn [v] (sum v))", np.zeros(2, [("a", float)])),
    ("a masked array", ModelTypeError, "(fn [v] (sum v))", np.ma.array([1.0, 2.0], mask=[0, 1])),
    ("single precision for double", ModelTypeError, "(fn [v] (sum v))", V.astype(np.float32)),
    ("short integers", ModelTypeError, "(fn [v] (get v 0))", np.array([1, 2], np.int32)),
    ("an array in Fortran's order", ModelTypeError, "(fn [m] (get m 0 0))", np.asfortranarray(M)),
    ("an array that runs backwards", ModelTypeError, "(fn [v] (sum v))", V[::-1]),
    ("an array of the other byte order", ModelTypeError, "(fn [v] (sum v))", V.astype(">f8")),
    ("an array in a record", ModelTypeError, "(fn [r] (sum (. r data)))", {"data": V.astype(np.float32)}),
    ("a list for an array", ModelTypeError, "(fn [v] (sum v))", [1.0, 2.0]),
    ("a list in a tuple", ModelTypeError, "(fn [p] (sum (snd p)))", (1.0, [1.0, 2.0])),
    ("a string for a number", ModelTypeError, "(fn [x] (* 2 x))", "1.0"),
    ("a complex number", ModelTypeError, "(fn [x] (* 2 x))", 1j),
    ("a decimal number", ModelTypeError, "(fn [x] (* 2 x))", decimal.Decimal(1)),
    ("a function for an argument", ModelTypeError, "(fn [f x] (f x))", python_function, 1.0),
    ("an integer beyond 64 bits", ModelTypeError, "(fn [n] (+ n 1))", 2**70),
    ("an integer beyond the reals", ModelTypeError, "(fn [#^ Real x] (+ x 1))", 10**400),
    ("a dict with keys that are no names", ModelTypeError, "(fn [r] (get r 0))", {1: 1.0}),
    # derivatives
    ("grad of an array", DerivativeError, "(fn [v] ((grad (fn [v] (* v v))) v))", V),
    ("grad of a truth value", DerivativeError, "(fn [x] ((grad (fn [t] (< t 1))) x))", 1.0),
    ("grad of a number", DerivativeError, "(fn [x] (grad x))", 1.0),
    ("D by an array", DerivativeError, "(fn [v] ((D sum) v))", V),
    ("wrt a name that is no parameter", DerivativeError, "(fn [x] ((grad (fn [a b] (* a b)) :wrt c) x x))", 1.0),
    ("wrt a position that is none", DerivativeError, "(fn [x] ((grad (fn [a b] (* a b)) :wrt 2) x x))", 1.0),
    ("wrt one parameter twice", DerivativeError, "(fn [x] ((grad (fn [a b] (* a b)) :wrt #(a 0)) x x))", 1.0),
    ("wrt a call", ReadError, "(fn [x] ((grad (fn [a b] (* a b)) :wrt (f x)) x x))", 1.0),
    ("wrt without a value", ReadError, "(fn [x] ((grad sin :wrt) x))", 1.0),
    ("wrt where nothing is differentiated", ModelTypeError, "(fn [x] (+ x :wrt x))", 1.0),
    ("differentiating by a function", DerivativeError, "(fn [x] ((grad (fn [f t] (f t))) sin x))", 1.0),
    ("differentiating by a truth value", DerivativeError, "(fn [x] ((grad (fn [b t] t) :wrt b) True x))", 1.0),
    ("jvp without a tangent", ModelTypeError, "(fn [x] (jvp sin x))", 1.0),
    ("vjp without a cotangent", ModelTypeError, "(fn [x] (vjp sin x))", 1.0),
    ("hvp without a vector", ModelTypeError, "(fn [x] (hvp sin x))", 1.0),
    ("a vector of another shape", ModelTypeError, "(fn [x] (hvp sin x [1.0]))", 1.0),
    ("a Hessian of a vector", DerivativeError, "(fn [v] ((hessian (fn [w] w)) v))", V),
    ("hvp of a vector", DerivativeError, "(fn [v] (hvp (fn [w] w) v v))", V),
    ("a derivative at too many points", ModelTypeError, "(fn [x] ((D sin) x x))", 1.0),
    ("a list compared", ModelTypeError, "(fn [l] (> l 0))", (1.0, (2.0, None))),
    ("fst of a number", ModelTypeError, "(fn [x] (fst x))", 1.0),
    ("car of an array", ModelTypeError, "(fn [v] (car v))", V),
    ("car of nothing", ModelTypeError, "(fn [x] (car))", 1.0),
    ("a tangent of another shape", ModelTypeError, "(fn [v] (jvp (fn [x] (map sin x)) v 1.0))", V),
    ("a cotangent of another shape", ModelTypeError, "(fn [v] (vjp (fn [x] (map sin x)) v 1.0))", V),
    ("car of a number", ModelTypeError, "(fn [x] (car x))", 1.0),
    ("cdr of nil", ModelTypeError, "(fn [x] (cdr (cdr (list x))))", 1.0),
    ("cons of one", ModelTypeError, "(fn [x] (cons x))", 1.0),
    ("deref of a number", ModelTypeError, "(fn [x] (deref x))", 1.0),
    ("set! of a number", ModelTypeError, "(fn [x] (do (set! x 2.0) x))", 1.0),
    (
        "a reference that changes its kind",
        ModelTypeError,
        "(fn [x] (let [r (ref x)] (while (< (deref r) 3.0) (set! r #(x x))) (deref r)))",
        1.0,
    ),
    ("a condition of while that is a number", ModelTypeError, "(fn [x] (let [r (ref x)] (while (deref r) 1) x))", 1.0),
    (
        "a while that never ends",
        ModelTypeError,
        "(fn [x] (let [k (ref 0) r (ref x)] (while (< (deref k) 3) (set! r (* 2 (deref r)))) (deref r)))",
        1.0,
    ),
    (
        "a while that never ends once entered",
        ModelTypeError,
        "(fn [x] (let [k (ref 0)] (while (< x 3) (set! k (+ (deref k) 1))) (* 2 x)))",
        1.0,
    ),
    ("set-at! of a number", ModelTypeError, "(fn [x] (do (set-at! x 0 1.0) x))", 1.0),
    ("a match that lacks a pattern", ModelTypeError, "(fn [x] (case (inl x) (inr y) y))", 1.0),
    (
        "a match that lacks a pattern for a run-time case",
        ModelTypeError,
        "(fn [x] (case (if (> x 0) (inl x) (inr x)) (inr y) y))",
        1.0,
    ),
    ("a pattern that is no constructor", ModelTypeError, "(fn [x] (match x (sin y) y))", 1.0),
    ("a pattern with too many fields", ModelTypeError, "(fn [x] (case (inl x) (inl y z) y))", 1.0),
    ("nil where a number is needed", ModelTypeError, "(fn [x] (+ 1 (when (> x 0) x)))", 1.0),
    (
        "a recursive function of another kind",
        ModelTypeError,
        "(fn [x] (letrec [f (fn [y] (if (> y 0) #(y y) (f (+ y 1))))] (+ 1 (f x))))",
        1.0,
    ),
    (
        "recursion without an end at run time",
        HyadError,
        "(fn [x] (letrec [f (fn [y] (if (> y 0) (f (- y 1)) (f y)))] (f x)))",
        1.0,
    ),
    ("recursion without an end", HyadError, "(fn [x] ((fn [f] (f f)) (fn [f] (f f))))", 1.0),
]

# ---------------------------------------------------------------------------------- texts that cannot be read

TEXTS: list[tuple[str, Any]] = [
    ("let with a bracket for each name", "(fn [x] (let [[y 1] [z 2]] (+ x y z)))"),
    ("break in a for", "(fn [v] (for [x v] (break)))"),
    ("a bracket that is never closed", "(fn [x]\n  (+ x 1)"),
    ("a bracket closed by the wrong one", "(fn [x (+ x 1))"),
    ("a bracket too many", "(fn [x] (+ x 1)))"),
    ("a string without an end", '(fn [x] "abc'),
    ("a string with a broken escape", r'(fn [x] "\x" x)'),
    ("a quote", "(fn [x] '(a b))"),
    ("a backquote", "(fn [x] `(a b))"),
    ("a comment form without its form", "(fn [x] x #_)"),
    ("an annotation without its name", "(fn [x #^ Real] x)"),
    ("an annotation of an expression", "(fn [x] #^ Real x)"),
    ("a set", "(fn [x] #{x})"),
    ("a dictionary", '(fn [x] {"a" x})'),
    ("a string in a model", '(fn [x] (+ x "a"))'),
    ("an unknown keyword", "(fn [x] (+ x :a))"),
    ("an empty call", "(fn [x] ())"),
    ("a reserved name as a parameter", "(fn [x if] x)"),
    ("a reserved name in let", "(fn [x] (let [while x] while))"),
    ("two parameters of one name", "(fn [x y x] x)"),
    ("two parameters of one name in a pattern", "(fn [x #(y x)] x)"),
    ("rest parameters", "(fn [#* xs] 1.0)"),
    ("keyword parameters", "(fn [x * y] x)"),
    ("a number as a parameter", "(fn [1] 1)"),
    ("let without brackets", "(fn [x] (let (y 1) y))"),
    ("let without a value", "(fn [x] (let [y] y))"),
    ("let without a body", "(fn [x] (let [y 1]))"),
    ("fn without parameters", "(fn x x)"),
    ("fn without a body", "(fn [x] ((fn [y]) x))"),
    ("cond without a value", "(fn [x] (cond (< x 1)))"),
    ("cond without a last case", "(fn [x] (cond (< x 1) 1))"),
    ("if with one branch", "(fn [x] (if (< x 1) x))"),
    ("when without a body", "(fn [x] (when (< x 1)))"),
    ("defmodel without a name", "(defmodel [x] x)"),
    ("defmodel inside a model", "(fn [x] (defmodel f [y] y))"),
    ("deriv without a variable", "(fn [x] (deriv (* x x)))"),
    ("deriv by a name that nothing binds", "(fn [x] (deriv (* x x) y))"),
    ("a field that is no name", "(fn [r] (. r 1))"),
    ("a Hy function that is no model", "(defn f [x] x)"),
    ("an axis kept and not", "(fn [m] (sum m :axis 0 :keepdims 1))"),
    ("two forms", "(fn [x] x)\n(fn [y] y)"),
    ("no form", "  ; nothing here\n"),
    ("bytes for a text", b"(fn [x] x)"),
    ("letrec without a value", "(fn [x] (letrec [f] (f x)))"),
    ("letrec with a name twice", "(fn [x] (letrec [f (fn [y] y) f (fn [y] 1)] (f x)))"),
    ("letrec without a body", "(fn [x] (letrec [f (fn [y] y)]))"),
    ("while without anything", "(fn [x] (while))"),
    ("while True", "(fn [x] (let [r (ref x)] (while True (set! r 1.0)) x))"),
    ("match without a pattern", "(fn [x] (match x))"),
    ("match with a pattern and no value", "(fn [x] (match x (Leaf w) 1 (Node a b)))"),
    ("a pattern twice", "(fn [s] (case s (inl a) a (inl b) b))"),
    ("a pattern that nothing comes to", "(fn [x] (match x _ 1 (Leaf w) 2))"),
    ("a pattern that is a name", "(fn [x] (match x y 1))"),
    ("a pattern inside a pattern", "(fn [x] (match x (Node (Leaf a) b) 1))"),
    ("a field twice in a pattern", "(fn [x] (match x (Node a a) 1))"),
    ("defdata inside a model", "(fn [x] (defdata T (A y)))"),
]  # fmt: skip

# ----------------------------------------------------------------------------------------- calls from Python


def square() -> hyad.Model:
    return hyad.model("(defmodel square [v] (map (fn [x] (* x x)) v))", namespace={})


def read_only() -> np.ndarray:
    made = np.empty(3)
    made.setflags(write=False)
    return made


def plain(text: str, *args: Any) -> Callable[..., Any]:
    """A model that was compiled to Python for the signature of ``args``."""
    return hyad.compile(hyad.model(text, namespace={}), target="python", args=args or None)


XY = "(fn [x y] (* x y))"
SUM = "(fn [v] (sum (* v v)))"
AT = np.array([0, 2])
PICKED = "(fn [v at] (sum (map (fn [i] (get v i)) at)))"
PAIRED = "(fn [v p] (* (fst p) (get v (snd p))))"
CALLS: list[tuple[str, type[HyadError], Callable[[], Any]]] = [
    ("a function as a result", NotCompiled, lambda: hyad.compile("(fn [x] #(x (fn [y] (* x y))))", args=(1.0,))),
    (
        "an array of tuples as a result",
        NotCompiled,
        lambda: hyad.compile("(fn [x] (build 3 (fn [i] #(x i))))", args=(1.0,)),
    ),
    ("a model that is not in a module pickled", ModelTypeError, lambda: pickle.dumps(square())),
    ("out of another shape", ModelTypeError, lambda: square()(V, out=np.empty(2))),
    ("out of another dtype", ModelTypeError, lambda: square()(V, out=np.empty(3, np.float32))),
    ("out that is read-only", ModelTypeError, lambda: square()(V, out=read_only())),
    ("out that is a list", ModelTypeError, lambda: square()(V, out=[1.0, 2.0, 3.0])),
    ("out that is an argument", ModelTypeError, lambda: square()(V, out=V)),
    ("out for a number", ModelTypeError, lambda: hyad.model("(fn [x] x)")(1.0, out=np.empty(1))),
    ("out for a tuple", ModelTypeError, lambda: hyad.model("(fn [v] #(v (sum v)))")(V, out=np.empty(3))),
    ("an unknown keyword", ModelTypeError, lambda: square()(V, dtype="f4")),
    ("an unknown target", ModelTypeError, lambda: hyad.compile(square(), target="fortran")),
    ("an unknown dtype", ModelTypeError, lambda: hyad.compile(square(), dtype="f16")),
    ("unknown flags", ModelTypeError, lambda: hyad.compile(square(), flags="wild")),
    ("args that are no tuple", ModelTypeError, lambda: hyad.compile(square(), args=V)),
    ("double precision for single", ModelTypeError, lambda: hyad.compile(square(), dtype="f32", args=(V,))(V)),
    (
        "a record without a field",
        ModelTypeError,
        lambda: hyad.compile("(fn [r] (+ r.a r.b))", args=(RECORD,))({"a": 1}),
    ),
    ("grad of a Python function", ModelTypeError, lambda: hyad.grad(python_function)),
    ("grad of a broken text", ReadError, lambda: hyad.grad("(fn [x] (* x x)")),
    ("grad of a vector from Python", DerivativeError, lambda: hyad.grad(square())(V)),
    ("grad wrt a name that is none", DerivativeError, lambda: hyad.grad(XY, wrt="z")(1.0, 2.0)),
    ("grad wrt a position that is none", DerivativeError, lambda: hyad.grad(XY, wrt=5)(1.0, 2.0)),
    ("grad wrt a truth value", DerivativeError, lambda: hyad.grad(XY, wrt=True)(1.0, 2.0)),
    ("grad of a function of integers", DerivativeError, lambda: hyad.grad("(fn [#^ Int n] (* n n))")(2)),
    ("grad with too few arguments", ModelTypeError, lambda: hyad.grad(XY)(1.0)),
    ("D of a vector from Python", DerivativeError, lambda: hyad.D(square())(V)),
    ("jacobian of a truth value", DerivativeError, lambda: hyad.jacobian("(fn [x] (< x 1))")(1.0)),
    ("jvp by undeclared integers", ModelTypeError, lambda: hyad.jvp(PICKED, (V, AT), (V, AT))),
    ("vjp by undeclared integers", ModelTypeError, lambda: hyad.vjp(PICKED, (V, AT), 1.0)),
    ("grad by undeclared integers", ModelTypeError, lambda: hyad.grad(PICKED)(V, AT)),
    ("hvp by a pair with an integer", ModelTypeError, lambda: hyad.hvp(PAIRED, (V, (1.0, 2)), (V, (1.0, 0)))),
    ("hvp with too few vectors", ModelTypeError, lambda: hyad.hvp(XY, (1.0, 2.0), 1.0)),
    ("stages of an array that is not declared", ModelTypeError, lambda: list(hyad.stages(SUM))),
    ("how many stages an array that is not declared has", ModelTypeError, lambda: len(hyad.stages(SUM))),
    ("stages shown of an array that is not declared", ModelTypeError, lambda: repr(hyad.stages(SUM))),
    ("jvp with too few tangents", ModelTypeError, lambda: hyad.jvp(XY, (1.0, 2.0), (1.0,))),
    ("a tangent of another length", ModelTypeError, lambda: hyad.jvp(square(), (V,), (W,))),
    ("a cotangent of another length", ModelTypeError, lambda: hyad.vjp(square(), (V,), W)),
    ("a stage that is none", HyadError, lambda: hyad.show(square(), "assembler")),
    ("stages of a number", ModelTypeError, lambda: hyad.stages(3)),
    ("a type error in a stage", UnboundError, lambda: hyad.show("(fn [x] (* x yy))", "typed")),
    ("nested too deeply", HyadError, lambda: hyad.model(f"(fn [x] {'#(' * 5000}x{')' * 5000})")(1.0)),
    ("emit for an unknown target", ModelTypeError, lambda: hyad.emit(square(), target="fortran")),
    ("check-grad of an unbound name", UnboundError, lambda: hyad.check_grad("(fn [x] (* x yy))", (1.0,))),
    # the same mistakes, made with the plain-Python target
    ("Python: out of another shape", ModelTypeError, lambda: plain("(fn [v] (* v v))", V)(V, out=np.empty(2))),
    ("Python: out that is a list", ModelTypeError, lambda: plain("(fn [v] (* v v))", V)(V, out=[1.0])),
    ("Python: single precision", ModelTypeError, lambda: plain("(fn [v] (* v v))", V)(V.astype(np.float32))),
    ("Python: a list", ModelTypeError, lambda: plain("(fn [v] (* v v))", V)([1.0])),
    ("Python: too few arguments", ModelTypeError, lambda: plain("(fn [v] (* v v))", V)()),
    ("Python: an unknown keyword", ModelTypeError, lambda: plain("(fn [v] (* v v))", V)(V, dtype="f4")),
    ("Python: another declared length", ModelTypeError, lambda: plain("(fn [#^ (Vec 3) v] (* v v))")(W)),
    ("Python: lengths that differ", ModelTypeError, lambda: plain("(fn [u v] (+ u v))", V, V)(V, W)),
    ("Python: an index out of range", BoundsError, lambda: plain("(fn [v i] (get v i))", V, 1)(V, 3)),
    ("Python: an integer beyond 64 bits", ModelTypeError, lambda: plain("(fn [n] (+ n 1))", 1)(2**64)),
    ("Python: a size beyond the memory", OutOfMemory, lambda: plain("(fn [n] (zeros n))", 1)(2**62)),
]
RECORD = {"a": 1.0, "b": 2.0}

# ------------------------------------------------------------------------------- files, the disk, the compiler

FILES: list[tuple[str, type[HyadError], str, bytes | None, Callable[[Path], Any]]] = [
    ("a file that is not there", ReadError, "none.hy", None, hyad.load),
    ("a folder for a file", ReadError, ".", None, hyad.load),
    ("a binary file", ReadError, "binary.hy", b"\xff\xfe(defmodel", hyad.load),
    ("a file of zeros", ReadError, "zeros.hy", bytes(8), hyad.load),
    ("an empty file", ReadError, "empty.hy", b"", hyad.load),
    ("a file that is no Hy file", ReadError, "data.csv", b"1, 2, 3", hyad.load),
    ("an unclosed bracket in a file", ReadError, "a.hy", b"; models\n(defmodel f [x]\n  (* x x)\n", hyad.load),
    ("a parameter twice in a file", ReadError, "a.hy", b"(setv z 1)\n(require hyad.macros *)\n"
     b"(defmodel f [x\n             x] z)\n", hyad.load),
    ("an unbound name in a file", UnboundError, "a.hy", b"(defmodel f [x]\n  (* x y))\n\n(defmodel g [x] (f x))\n",
     lambda path: hyad.load(path).g(1.0)),
    ("recursion that never ends", HyadError, "a.hy", b"(defmodel f [x] (if (< x 0) (f x) (f (- x 1))))",
     lambda path: hyad.load(path).f(1.0)),
    ("a shape in another model of a file", ModelTypeError, "a.hy",
     b"(defmodel inner [u v]\n  (dot u v))\n(defmodel f [u v] (* 2 (inner u v)))",
     lambda path: hyad.load(path).f(V, W)),
    ("emit into a folder that is not there", CompileError, "no/such/file.c", None,
     lambda path: hyad.emit("(fn [x] x)", path)),
    ("a number for a path", ReadError, "", None, lambda path: hyad.load(3)),
]  # fmt: skip


# ------------------------------------------------------------------------------------------------ the checks


def sections() -> dict[str, str]:
    """The golden messages by the name of their mistake."""
    text = GOLDEN.read_text(encoding="utf-8") if GOLDEN.exists() else ""
    parts = re.split(r"^=== (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.strip("\n") for part in parts[2::2])))


NEW: dict[str, str] = {}


@pytest.fixture(scope="module")
def messages(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The golden messages; with ``--update-golden`` those of this run, written at its end."""
    yield sections()
    if request.config.getoption("--update-golden"):
        every = {name: text for name, text in {**sections(), **NEW}.items() if name in NAMED}
        ordered = [f"=== {name}\n{every[name]}\n" for name in NAMED if name in every]
        GOLDEN.write_text("\n".join(ordered), encoding="utf-8")


@pytest.fixture
def says(request: pytest.FixtureRequest, messages: dict[str, str], tmp_path: Path) -> Callable[..., HyadError]:
    """``says(name, kind, mistake)``: the mistake raises ``kind``, and says what the golden file has under ``name``."""

    def check(name: str, kind: type[HyadError], mistake: Callable[[], Any]) -> HyadError:
        with pytest.raises(HyadError) as caught:
            mistake()
        error = caught.value
        assert type(error) is kind or kind is CompileError and isinstance(error, kind)
        assert error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
        frames = [f.filename for f in traceback.extract_tb(error.__traceback__)]
        assert sum(f"{os.sep}hyad{os.sep}" in f or f"{os.sep}codegen{os.sep}" in f for f in frames) <= 2, frames
        text = str(error)
        assert "prelude.hy" not in text and "Traceback" not in text and "/hyad/" not in text.replace(str(tmp_path), "")
        cache = os.environ["HYAD_CACHE"]
        for path, short in ((cache, "CACHE"), (str(tmp_path), "DIR")):
            text = text.replace(path, short)
        text = re.sub(r"failed-[0-9a-f]+", "failed-HASH", text)
        text = re.sub(r"command: .*", "command: ...", text)
        NEW[name] = f"{kind.__name__}: {text}".rstrip()
        if not request.config.getoption("--update-golden"):
            assert NEW[name] == messages[name]
        return error

    return check


@pytest.mark.parametrize("row", MODELS, ids=lambda row: row[0])
def test_a_model(row: tuple[Any, ...], says: Callable[..., HyadError]) -> None:
    name, kind, text, *args = row
    error = says(name, kind, lambda: hyad.model(text, namespace=NAMES)(*args))
    assert error.span is not None or kind is OutOfMemory


@pytest.mark.parametrize("name, text", TEXTS, ids=[name for name, _ in TEXTS])
def test_a_text(name: str, text: Any, says: Callable[..., HyadError]) -> None:
    assert says(name, ReadError, lambda: hyad.model(text)).span is not None or not isinstance(text, str)


@pytest.mark.parametrize("name, kind, mistake", CALLS, ids=[row[0] for row in CALLS])
def test_a_call(name: str, kind: type[HyadError], mistake: Callable[[], Any], says: Callable[..., HyadError]) -> None:
    says(f"{name} (call)", kind, mistake)


@pytest.mark.parametrize("name, kind, file, data, mistake", FILES, ids=[row[0] for row in FILES])
def test_a_file(
    name: str,
    kind: type[HyadError],
    file: str,
    data: bytes | None,
    mistake: Callable[[Path], Any],
    says: Callable[..., HyadError],
    tmp_path: Path,
) -> None:
    path = tmp_path / file
    if data is not None:
        path.write_bytes(data)
    says(name, kind, lambda: mistake(path))


def test_a_file_without_permission(says: Callable[..., HyadError], tmp_path: Path, monkeypatch: Any) -> None:
    def forbidden(*_: Any, **__: Any) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", forbidden)  # the superuser may read everything
    says("a file without permission", ReadError, lambda: hyad.load(tmp_path / "secret.hy"))


def test_a_hy_file_that_hy_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "a.hy"
    path.write_text("(setv x 1)\n(setv y (+ x\n")
    with pytest.raises(ReadError) as caught:
        hyad.load(path)
    assert f"{path}:" in str(caught.value) and caught.value.span is not None


# ------------------------------------------------------------------------------------------- the machine


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: Any) -> Path:
    """An empty cache, and nothing in memory."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("HYAD_CACHE", str(cache))
    for name in ("_codes", "_refused_native"):
        monkeypatch.setattr(build, name, type(getattr(build, name))())
    monkeypatch.setattr(build, "_private", None)
    return cache


def script(tmp_path: Path, text: str) -> str:
    """A compiler."""
    path = tmp_path / "cc"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def double() -> hyad.Model:
    return hyad.model("(defmodel double [x] (* 2.0 x))", namespace={})


MACHINE = {
    "a compiler that fails": "echo 'error: this compiler is broken' >&2; exit 1",
    "a compiler that says nothing": "exit 1",
    "a compiler that makes nothing": "exit 0",
    "a disk that is full": "echo 'ld: cannot write: No space left on device' >&2; exit 1",
}


@pytest.mark.parametrize("name", MACHINE)
def test_a_compiler(name: str, says: Callable[..., HyadError], fresh: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HYAD_CC", script(tmp_path, MACHINE[name]))
    says(name, CompileError, lambda: double()(1.0))
    assert not list(fresh.glob("build-*")) and not list(fresh.glob("*.so"))


def test_hyad_cc_false(says: Callable[..., HyadError], fresh: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HYAD_CC", "false")
    says("HYAD_CC=false", CompileError, lambda: double()(1.0))


def test_a_compiler_that_is_not_there(says: Callable[..., HyadError], fresh: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HYAD_CC", "no-such-compiler")
    says("a compiler that is not there", CompileError, lambda: double()(1.0))


def test_no_compiler(says: Callable[..., HyadError], fresh: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Calls are answered by plain Python, with a note at the user's line; asking for C is an error."""
    monkeypatch.delenv("HYAD_CC", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="no C compiler was found.*double runs as plain Python") as caught:
        assert double()(1.5) == 3.0
    assert [w.filename for w in caught] == [__file__]
    says("no compiler", CompileError, lambda: hyad.compile(double(), target="c"))


def test_an_unwritable_cache(fresh: Path, monkeypatch: Any) -> None:
    """One warning, and everything works."""
    fresh.write_text("a file, not a folder")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert double()(1.5) == 3.0
        assert hyad.model("(fn [x] (* 3.0 x))", namespace={})(1.0) == 3.0
    assert [str(w.message).replace(str(fresh), "CACHE") for w in caught] == [
        "compiled code cannot be kept in CACHE (File exists); it goes to a temporary folder and is compiled again next "
        "time. Set HYAD_CACHE to a folder that can be written"
    ]


def test_a_full_disk(says: Callable[..., HyadError], fresh: Path, monkeypatch: Any) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    says("a disk that is full at the end", CompileError, lambda: double()(1.0))
    assert not list(fresh.iterdir())


SINGLE = ["a file without permission", "HYAD_CC=false", "a compiler that is not there", "no compiler",
          "a disk that is full at the end"]  # fmt: skip
NAMED = [row[0] for row in MODELS] + [name for name, _ in TEXTS] + [f"{row[0]} (call)" for row in CALLS]
NAMED += [row[0] for row in FILES] + [*MACHINE, *SINGLE]


def test_each_message_has_its_mistake() -> None:
    assert len(set(NAMED)) == len(NAMED) and list(sections()) == NAMED


# --------------------------------------------------------------------------------------- how errors reach users


def test_natural_classes() -> None:
    """Python's own class catches them too."""
    for mine, natural in (
        (ModelTypeError, TypeError),
        (UnboundError, NameError),
        (BoundsError, IndexError),
        (DerivativeError, TypeError),
        (CompileError, RuntimeError),
        (OutOfMemory, MemoryError),
    ):
        assert issubclass(mine, natural) and issubclass(mine, HyadError)


def test_traceback_ends_at_the_users_line(monkeypatch: Any) -> None:
    def frames() -> list[str]:
        with pytest.raises(UnboundError) as caught:
            hyad.model("(fn [x] (* x yy))")(1.0)
        return [f.name for f in traceback.extract_tb(caught.value.__traceback__)]

    assert frames() == ["frames", "__call__"]
    monkeypatch.setenv("HYAD_DEBUG", "1")
    assert len(frames()) > 5


def test_an_error_of_the_users_own_code_keeps_its_traceback() -> None:
    @dataclasses.dataclass
    class Checked:
        a: float

        def __post_init__(self) -> None:
            if self.a > 5.0:
                raise ValueError("too large")

    f = hyad.grad("(fn [r] (** (. r a) 3.0))")
    assert f(Checked(1.0)) == Checked(3.0)
    with pytest.raises(ValueError, match="too large") as caught:
        f(Checked(2.0))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "__post_init__"


def test_a_prelude_function_is_named_by_the_users_call() -> None:
    """Also in the comments of the C text."""
    f = hyad.model("(fn [u v] (+ 1.0 (dot u v)))", namespace={})
    source = hyad.compile(f, args=(V, V)).source
    assert "(dot u v)" in source and "(fold" not in source


def test_the_users_function_inside_a_prelude_function_is_blamed_itself() -> None:
    with pytest.raises(ModelTypeError) as caught:
        hyad.model("(fn [v] (vec-map (fn [x] (+ x #(1 2))) v))")(V)
    assert caught.value.span.text == "#(1 2)" and "vec-map" not in caught.value.message


# ------------------------------------------------------------------------------------------------- fuzzing

VALID = [
    "(fn [x y] (* x (sin (+ y 1.0))))",
    "(fn [x] (let [a (* x x)  b (+ a 1)] (if (< b 2) (- a b) (exp b))))",
    "(fn [x] (cond (< x 0) -1  (and (> x 1) (not (= x 2))) 1  True (do x 0)))",
    "(fn [u v] (fold (fn [s a b] (+ s (* a b))) 0.0 u v))",
    '(defmodel f [#^ (Vec n) v #^ Real k] "doc" (build (len v) (fn [i] (* k (get v i)))))',
    "(fn [m v] (mat-vec m (vec-add v [1.0 2.0 3.0])))",
    "(fn [x] ((grad (fn [a b] (* a (tanh b))) :wrt b) x (cos x)))",
    "(fn [x] (get (hessian (fn [v] (* (get v 0) (get v 1)))) 0))",
    "(fn [v] (ifold (fn [s i] (update s i (* 2 (get s i)))) v (len v)))",
    "(fn [p] (let [#(a b) p] #(b [a b] (deriv (* a a) a))))",
    "(fn [x] (jvp (fn [t] (** t 3)) x 1.0))",
    "(fn [r] (+ (. r a) (max (. r b) 1 2)))",
    "(fn [x] (map (fn [f] (f x)) #(sin cos exp)))",
    "(fn [n x] (get (shape (build [3 n] (fn [i j] (* x i)))) 1))",
    "(fn [x] (vjp (fn [a] #(a (* a a))) x #(1.0 2.0)))",
    "(fn [x] (when (> x 0) ((D (fn [t] (sqrt t))) x)))",
]
TOKEN = re.compile(r'#\^|#\(|"[^"]*"|[()\[\]]|:?[^\s()\[\]"]+')
VEC, MAT = Arr(REAL, (None,)), Arr(REAL, (None, None))
SPECS = [REAL, REAL, REAL, INT, VEC, VEC, MAT, Node((REAL, VEC)), Node((REAL, REAL), ("a", "b"))]


def part(rng: random.Random, tokens: list[str]) -> slice:
    """A form somewhere in a text; where the text is broken, a token."""
    start = rng.randrange(len(tokens))
    depth = 0
    for end in range(start, len(tokens)):
        depth += (tokens[end][-1] in "([") - (tokens[end] in ")]")
        if depth <= 0:
            return slice(start, end + 1)
    return slice(start, start + 1)


def mutated(rng: random.Random, text: str) -> str:
    """A text with a few forms or tokens left out, doubled, or replaced by others."""
    tokens = TOKEN.findall(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        here, other = part(rng, tokens), TOKEN.findall(rng.choice(VALID))
        if rng.random() < 0.2:  # one bracket, mostly: a text that cannot be read
            here = slice(here.start, here.start + 1)
        what = rng.randrange(4)
        tokens[here] = [] if what == 0 else tokens[here] * 2 if what == 1 else other[part(rng, other)]
        if not tokens:
            break
    return " ".join(tokens)


@pytest.mark.parametrize("seed", range(4))
def test_broken_texts(seed: int) -> None:
    """Each is a model, or an error with a place; never another exception, never without an end."""
    rng = random.Random(seed)
    outcomes = {"model": 0, "error": 0}

    def too_long(*_: Any) -> None:
        raise AssertionError(f"no answer in 20 s: {text}")

    previous = signal.signal(signal.SIGALRM, too_long)
    try:
        for _ in range(300):
            text = mutated(rng, rng.choice(VALID))
            signal.alarm(20)
            try:
                f = hyad.model(text, namespace={})
                f.optimised([rng.choice(SPECS) if spec is None else spec for _, spec, _ in parameters(f.value)])
                outcomes["model"] += 1
            except HyadError as error:
                assert error.span is not None and str(error), text
                outcomes["error"] += 1
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    assert min(outcomes.values()) > 5


REALS, INTS, TRUTHS = [1.5, -2.0, float("nan"), 3, np.float64(2.5)], [0, 1, 2, -1, np.int64(1)], [True, False]
LARGE = [*INTS, 3037000500]  # whose square overflows
VECS, PAIRS = [V, W, V[:0], np.zeros(3)], [(1.0, V), (2, W)]
CALLED = [
    ("(fn [#^ Real x #^ Real y] (* x (sin y)))", [REALS, REALS]),
    ("(fn [#^ (Vec n) u #^ (Vec m) v] (dot u v))", [VECS, VECS]),
    ("(fn [#^ (Vec n) v #^ Int i #^ Int j] (get v (- (* i j) j)))", [VECS, LARGE, LARGE]),
    ("(fn [#^ (Tuple Real (Vec n)) p #^ Bool b] (if b (fst p) (sum (snd p))))", [PAIRS, TRUTHS]),
    ("(fn [#^ Int n #^ Real x] (build n (fn [i] (* i x))))", [INTS, REALS]),
    ("(fn [#^ (Mat 2 m) a #^ (Vec m) v] (mat-vec a v))", [[M, M + 1.0], VECS]),
]
BAD = [
    *REALS, *INTS, *TRUTHS, *VECS, *PAIRS, M, None, "x", 2**62, -(2**63), 2**63, 10**400, V.astype("f4"),
    V[::-1], np.asfortranarray(M), [1.0], (),
    (1.0,), (1.0, "x"), {"a": 1.0}, len, object(), 1j, np.array(1.0), np.zeros((2, 0)), np.zeros((0, 3)),
    np.zeros((1, 1, 1)), np.array(["a"]), np.array([None]), memoryview(V), bytearray(8), np.ma.array(V), range(3),
]  # fmt: skip


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) or isinstance(b, tuple):
        return isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b) and all(map(same, a, b))
    return np.shape(a) == np.shape(b) and bool(np.allclose(a, b, equal_nan=True))


@pytest.mark.parametrize("text, pools", CALLED, ids=[text for text, _ in CALLED])
def test_wrong_arguments(text: str, pools: list[list[Any]]) -> None:
    """A compiled model gives what plain Python gives, or an error: whatever it is called with."""
    rng = random.Random(text)
    f = hyad.model(text, namespace={})
    outcomes = {"result": 0, "error": 0}
    programs: dict[str, Any] = {}
    for _ in range(400):
        args = [rng.choice(pool if rng.random() < 0.7 else BAD) for pool in pools]
        if rng.random() < 0.05:
            args = args[1:] if rng.random() < 0.5 else [*args, rng.choice(BAD)]
        try:
            result = f(*args)
            outcomes["result"] += 1
        except HyadError as error:
            assert str(error)
            outcomes["error"] += 1
            continue
        specs = [spec_of(a) for a in args]
        if repr(specs) not in programs:
            programs[repr(specs)] = python_callable(f.program(specs, plain=True))
        assert same(result, programs[repr(specs)](*args)), args
    assert min(outcomes.values()) > 40


WRAPPING = [name for name, *_ in MODELS if "wraps" in name]


@pytest.mark.parametrize("name", WRAPPING)
def test_what_wraps_is_the_same_error_in_both_targets(name: str) -> None:
    text, *args = next(row[2:] for row in MODELS if row[0] == name)
    said = []
    for target in ("c", "python"):
        with pytest.raises(BoundsError) as error:
            hyad.compile(hyad.model(text), target=target, args=args)(*args)
        said.append(str(error.value))
    assert said[0] == said[1] and "does not fit in 64 bits" in said[0]


def test_an_array_without_dims_is_a_number() -> None:
    f = hyad.model("(fn [x y] (* x (sin y)))")
    assert f(np.array(2.0), 0.5) == f(2.0, np.array(0.5)) == f(2.0, 0.5)
    assert hyad.compile(f, target="python")(np.array(2.0), 0.5) == f(2.0, 0.5)


def test_the_name_of_a_form_is_no_models() -> None:
    for text in ("(defmodel if [x] x)", "(defmodel let [x] x)"):
        with pytest.raises(ReadError, match="is reserved"):
            hyad.model(text)


def test_other_integers_wrap_in_both_targets() -> None:
    f = hyad.model("(fn [#^ Int k] #((* k k) (real (+ k (* k k))) (ifold (fn [s i] (* s k)) 1 3)))")
    for k in (5, 2**40 + 1, -(2**63)):
        found = [hyad.compile(f, target=target)(k) for target in ("c", "python")]
        assert found[0] == found[1] and found[0][0] == (k * k + 2**63) % 2**64 - 2**63


@pytest.mark.parametrize("body", ["(abs k)", "(// k j)", "(// k -1)", "(- (abs k) 1)", "(// (abs k) 2)", "(% k j)"])
def test_the_lowest_integer_has_no_negative_in_either_target(body: str) -> None:
    f = hyad.model(f"(fn [#^ Int k #^ Int j] {body})")
    for k, j in ((-(2**63), -1), (-(2**63), 1), (-(2**63) + 1, -1), (-7, 2), (7, -2)):
        found = [hyad.compile(f, target=target)(k, j) for target in ("c", "python")]
        assert found[0] == found[1]
        if k > -(2**63):
            assert found[0] == hyad.run(f, k, j)


def test_what_is_not_declared_is_said_to_be_taken_as_a_number() -> None:
    f = hyad.model("(fn [x #^ Int k] (sum (map sin x)))")
    text = (lambda f: hyad.compile(f).source, lambda f: hyad.compile(hyad.grad(f)).source, lambda f: hyad.show(f, "c"))
    for ask in (*text, hyad.cost, hyad.low_level_callable, lambda f: hyad.compile(f, "cuda")):
        with pytest.raises(ModelTypeError, match=r"taken as a number, `x` here: declare it, as"):
            ask(f)
    with pytest.raises(ModelTypeError) as error:
        f(1.0, 2)
    assert "declare" not in str(error.value)


def test_a_tangent_of_another_type_is_named_by_its_parameter() -> None:
    """Not by the name that the derivative has for it, which nobody wrote."""
    f = hyad.model("(fn [x #^ Int h] (* x h))")
    for derive, role in ((hyad.jvp, "tangent"), (hyad.hvp, "vector")):
        with pytest.raises(ModelTypeError) as error:
            derive(f, (2.0, 3), (1.0, 0.5))
        assert f"the {role} for `h` is Real, but `h` is declared Int" in str(error.value)
        assert "0 for an integer" in str(error.value)
    with pytest.raises(ModelTypeError, match="`h` is declared Int but the argument is Real"):
        hyad.jvp(f, (2.0, 3.5), (1.0, 0))
    assert hyad.jvp(f, (2.0, 3), (1.0, 0)) == 3.0


def test_arrays_that_are_declared_integers_are_not_differentiated_by() -> None:
    f = hyad.model("(fn [#^ (Arr Int n) at v] (sum (map (fn [i] (* (get v i) (get v i))) at)))")
    at, v = np.array([0, 2, 2]), np.array([1.0, 2.0, 3.0])
    assert hyad.grad(f)(at, v).tolist() == hyad.run(hyad.grad(f), at, v).tolist() == [2.0, 0.0, 12.0]
    assert hyad.jvp(f, (at, v), (at, v)) == 2 * f(at, v)
    assert hyad.sparse_hessian(f)(at, v).toarray().tolist() == [[2, 0, 0], [0, 0, 0], [0, 0, 4]]
    for derive in (hyad.grad(f, wrt="at"), hyad.grad(f, wrt=(1, 0))):
        for call in (derive, lambda *args, g=derive: hyad.run(g, *args)):
            with pytest.raises(DerivativeError, match=r"by `at`, which is declared \(Arr Int n\)"):
                call(at, v)


def test_a_masked_array_in_plain_python() -> None:
    """As in C: what is masked would be summed."""
    f = hyad.compile(hyad.model("(fn [#^ (Vec n) v] (sum v))", namespace={}), "python")
    with pytest.raises(ModelTypeError, match="masked array") as found:
        f(np.ma.array([1.0, 2.0], mask=[False, True]))
    assert "v.filled" in str(found.value)


MACROS = [
    ("(grad)", ReadError, "grad takes a model and `:wrt`", "(grad)"),
    ("(jacobian f :by x)", ReadError, "jacobian takes a model and `:wrt`", "(jacobian f :by x)"),
    ("(jvp)", ReadError, "jvp takes a model, a point and a vector", "(jvp)"),
    ("(jvp f 1.0)", ModelTypeError, "jvp takes the arguments, then a vector for each", "(jvp f 1.0)"),
    ("(vjp f)", ModelTypeError, "vjp takes a point and a vector", "(vjp f)"),
    ("(deriv (* y y))", ReadError, "deriv takes an expression and a variable in it", "(deriv (* y y))"),
    ("(deriv (* y y) 3)", ReadError, "deriv takes an expression and a variable in it", "(deriv (* y y) 3)"),
    ("(deriv (* y y) z)", UnboundError, "nothing binds `z`, to differentiate by", "z"),
    ("(deriv (* y (sinn y)) y)", UnboundError, "nothing binds `sinn`", "sinn"),
    ("(deriv (get y 0) y)", ModelTypeError, "get of a number", "y"),
    ("(defdata T)", ModelTypeError, "the data type `T` has no constructor", "(defdata T)"),
    ("(defdata)", ReadError, "a defdata starts with its name", "(defdata)"),
    ("(defdata T A)", ReadError, "a constructor stands in brackets", "A"),
    ("(defdata T (A 1))", ReadError, "a constructor is a name with the names of its fields", "(A 1)"),
    ("(defdata T (A x x))", ModelTypeError, "two fields of `A` have one name", "(defdata T (A x x))"),
    ("(defprim)", ReadError, "a defprim is a name and its parameters", "(defprim)"),
    ("(defprim q [x])", ReadError, "a defprim has a value for each option, and :python and :c", "(defprim q [x])"),
    ("(defprim q [x] :C 1)", ReadError, "a defprim has no option :C", "(defprim q [x] :C 1)"),
    ('(defprim q [x] :python abs :c "{0}")', DerivativeError, "neither a list of partial", None),
]


@pytest.mark.parametrize(("form", "error", "message", "under"), MACROS, ids=[m[0] for m in MACROS])
def test_a_mistake_in_a_macro_underlines_the_users_form(
    form: str, error: type, message: str, under: str | None, tmp_path: Path
) -> None:
    """Those of Hy's own, about a function of hyad's, had no place; ``deriv`` by an unbound name gave None."""
    path = tmp_path / "mistake.hy"
    path.write_text(f"(require hyad.macros *)\n(defmodel f [x] (* x x))\n(setv y 3.0  v [1.0])\n  {form}\n", "utf-8")
    with pytest.raises(error, match=message) as caught:
        hyad.load(path)
    line, column = caught.value.span.source.position(caught.value.span.start)
    assert caught.value.span.text == (under or form) and line == 4
    assert column == 3 + (form.index(under, 6) if under and under != form else 0) and caught.value.hint


@pytest.mark.parametrize(
    "call",
    [
        lambda: hyad.defdata("T", "Leaf"),
        lambda: hyad.defdata("T", ["A", 1]),
        lambda: hyad.defdata(3, ["A", "x"]),
        lambda: hyad.lisp(3),
        lambda: hyad.compile("(fn [x] x)", without=3),
    ],
)
def test_what_is_given_in_python_instead_of_names_is_said(call) -> None:
    with pytest.raises(HyadError) as caught:
        call()
    assert caught.value.hint


def test_a_record_without_fields_has_none() -> None:
    for call in (hyad.model("(fn [p] (. p a))"), lambda p: hyad.run("(fn [p] (. p a))", p)):
        with pytest.raises(ModelTypeError, match="a record without fields has no field `a`"):
            call({})


@pytest.mark.parametrize("threads", [0, "2", 1.5])
def test_a_number_of_threads(threads: Any) -> None:
    for ask in (hyad.compile, hyad.explain):
        with pytest.raises(ModelTypeError, match=f"threads is {threads!r}"):
            ask("(fn [x] x)", threads=threads)


@pytest.mark.parametrize(
    "name",
    [
        "a mask as a factor",
        "a truth value as a real",
        "the order of NumPy's norm",
        "the order of NumPy's norm and an axis",
        "the order of a norm",
        "an infinite order of a norm",
        "a roll along two axes",
        "the sum of what a loop gives",
        "the sum of a list",
        "an array of two sizes without brackets",
        "a loop whose function is second",
        "None plus a number",
        "the covariance of a vector",
        "Python's pair of quotient and remainder",
    ],
)
def test_define_by_run_says_the_same(name: str) -> None:
    """The message, the place and the hint; those that a text alone is wrong by are one error in any case."""
    _, kind, text, *args = next(row for row in MODELS if row[0] == name)
    said = []
    for call in (hyad.model(text, namespace=NAMES), lambda *given: hyad.run(hyad.model(text, namespace=NAMES), *given)):
        with pytest.raises(kind) as caught:
            call(*args)
        error = caught.value
        said.append((error.message, error.span.underlined(), error.hint))
    assert said[0] == said[1] and said[0][2]


def test_a_build_with_another_number_of_indices_than_sizes_says_how_it_is_called() -> None:
    for text in ("(fn [x] (build 3 (fn [i j] x)))", "(fn [x] (build [3 2] (fn [i] x)))"):
        f = hyad.model(text, namespace={})
        for call in (f, lambda x: hyad.run(f, x)):  # noqa: B023
            with pytest.raises(ModelTypeError, match="this function takes") as caught:
                call(1.0)
            assert "`(build [n m] (fn [i j] ...))`" in (caught.value.hint or "")


def test_the_numbers_of_arguments_that_a_function_of_the_language_takes() -> None:
    for text, message in (
        ("(@ m)", "`@` takes 2, 3 or 4 arguments, not 1"),
        ("(expand-dims m)", "takes 2 arguments, not 1"),
    ):
        f = hyad.model(f"(fn [m] {text})")
        for call in (f, lambda m: hyad.run(f, m)):  # noqa: B023
            with pytest.raises(ModelTypeError, match=message) as caught:
                call(np.eye(2))
            assert caught.value.hint in ("`(@ a b)`", "`(expand-dims a axis)`")
    five = hyad.model("(fn [m] (@ m m m m m))")
    assert (five(2 * np.eye(2)) == 32 * np.eye(2)).all() and (hyad.run(five, 2 * np.eye(2)) == 32 * np.eye(2)).all()


@pytest.mark.parametrize("text", ["(fn [v k] (get v k))", "(fn [v k] (sum (map (fn [i] (get v i)) k)))"])
def test_define_by_run_says_what_to_declare_of_indices(text: str) -> None:
    g = hyad.grad(hyad.model(text))
    k = 2 if "map" not in text else np.array([0, 2])
    with pytest.raises(ModelTypeError) as compiled:
        g(np.ones(3), k)
    with pytest.raises(ModelTypeError) as run:
        hyad.run(g, np.ones(3), k)
    assert compiled.value.hint == run.value.hint and "declare `#^" in (run.value.hint or "")


def test_what_holds_an_array_that_is_changed_is_pointed_at() -> None:
    """The branch that gives a row of it, or another one: there a copy is wanted."""
    text = """(fn [#^ (Mat n 2) y q]
      (let [x (zeros [n 2])]
        (for [t (range n)]
          (let [x0 (if (= t 0) (zeros 2) {})]
            (set-at! x t 0 (+ (* q (get x0 0)) (get y t 0)))))
        (sum x)))"""
    args = np.ones((3, 2)), 0.5
    with pytest.raises(hyad.NotCompiled) as caught:
        hyad.compile(hyad.model(text.format("(get x (- t 1))"), namespace={}), args=args)
    ((said, span),) = caught.value.notes
    assert said == "that value is made here:" and "(if (= t 0)" in span.underlined() and "(copy v)" in caught.value.hint
    f = hyad.model(text.format("(copy (get x (- t 1)))"), namespace={})
    assert hyad.compile(f, args=args)(*args) == hyad.run(f, *args) == 4.25


@pytest.mark.parametrize("way", [lambda f, v: hyad.compile(f, args=(v,))(v), hyad.run], ids=["compiled", "run"])
@pytest.mark.parametrize(
    "text, message",
    [
        ("(@ v 2.0)", "`@` multiplies vectors and matrices"),
        ("(@ v v v)", "`@` multiplies vectors and matrices"),
        ("(det v)", "`det` takes a matrix"),
        ("(solve v v)", "`solve` takes a matrix"),
        ("(matrix-power v 2)", "`matrix-power` takes a matrix"),
        ("(cholesky v)", "`cholesky` takes a matrix"),
        ("(arange 0 5 0)", "`arange`"),
        ("(pad v -1)", "`pad`"),
    ],
)
def test_what_functions_of_arrays_do_not_take(text: str, message: str, way: Callable[..., Any]) -> None:
    """Python's own errors, or what the functions do with it inside, say nothing to who called them."""
    with pytest.raises(HyadError) as error:
        way(hyad.model(f"(fn [v] {text})"), np.array([0.5, -2.0, 1.0]))
    assert message in str(error.value) and text in str(error.value)


def test_integers_of_what_is_none() -> None:
    for text in ("(int np.inf)", "(int (/ 0.0 0.0))", "(int (- np.inf))"):
        f = hyad.model(f"(fn [x] (+ x (real {text})))")
        assert hyad.compile(f)(0.0) == hyad.run(f, 0.0) == -(2.0**63)


def test_nothing_moves_truth_values_and_integers() -> None:
    f = hyad.model("(fn [x c] (if c (* x x) x))")
    g = hyad.model("(fn [x m] (sum (where m (* x x) 0.0)))")
    h = hyad.model("(fn [x #^ (Arr Int n) k #^ Bool c #^ Int m] (if c (* x x (sum (map real k)) m) x))")
    x = np.ones((3, 2))
    for zero in (False, 0, 0.0):
        assert hyad.jvp(f, (3.0, True), (1.0, zero)) == 6.0
        assert hyad.run(hyad.model("(fn [x c] (jvp (fn [x c] (if c (* x x) x)) x c 1.0 0))"), 3.0, True) == 6.0
        assert hyad.hvp(f, (3.0, True), (1.0, zero))[0] == 2.0
    for zeros in (0, np.zeros((3, 2), bool), np.zeros((3, 2))):
        assert hyad.jvp(g, (x, x > 0), (x, zeros)) == 12.0
    for move in ((1.0, 0, 0, 0), (1.0, np.zeros(3, int), False, 0)):
        assert hyad.jvp(h, (2.0, np.arange(3), True, 2), move) == 24.0
