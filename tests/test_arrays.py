"""The array functions: each against NumPy at several sizes, and its derivatives in both modes against differences.

A row of ``ROWS`` is a form over the arguments ``a b c``, what NumPy calls the same, and the arguments for a size. From
each comes one program for all sizes: the value, the tangent along random directions and the adjoints of a random
cotangent. All are compiled together; the Python target and the run as it is read see one size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import hy
import numpy as np
import pytest
import scipy.linalg
import scipy.special

import batch
import hyad
from hyad.core import Arr, Prim, all_binds
from hyad.errors import BoundsError, HyadError
from hyad.plain_python import python_callable
from hyad.program.printer import print_lambda

SIZES = (0, 1, 3, 17)


class Row(NamedTuple):
    form: str
    numpy: Callable[..., Any]
    args: tuple[str, ...]  # a letter for each size: n, m = n + 1, "" for a number, and what stands in it
    least: int = 0


def vector(form: str, numpy: Callable[..., Any], least: int = 0) -> Row:
    return Row(form, numpy, ("n",), least)


def matrix(form: str, numpy: Callable[..., Any], least: int = 0) -> Row:
    return Row(form, numpy, ("nm",), least)


def along_axes(name: str, numpy: Callable[..., Any], least: int = 0) -> list[Row]:
    return [
        vector(f"({name} a)", numpy, least),
        matrix(f"({name} a)", numpy, least),
        *(
            Row(f"({name} a {axis})", lambda a, axis=axis: numpy(a, axis), ("nm" if axis < 2 else "nmm",), least)
            for axis in (0, 1, -1, 2)
        ),
    ]


def over_axis(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a vector, or of those along an axis."""
    return lambda a, axis=None: f(a.ravel()) if axis is None else np.apply_along_axis(f, axis, a)


ROWS = [
    # arithmetic with broadcasting
    Row("(+ a b)", lambda a, b: a + b, ("nm", "m")),
    Row("(* b a)", lambda a, b: b * a, ("nm", "m")),
    Row("(- (* 2 a) b)", lambda a, b: 2 * a - b, ("nnm", "nm")),
    Row("(/ b (+ 3 (* a a)))", lambda a, b: b / (3 + a * a), ("nm", "")),
    # dF~'s vectors and matrices
    Row("(outer a b)", np.outer, ("n", "m")),
    Row("(dot a b)", np.dot, ("n", "n")),
    vector("(norm a)", np.linalg.norm, 1),
    matrix("(norm a)", np.linalg.norm, 1),
    vector("(sq-norm a)", lambda a: a @ a),
    matrix("(transpose a)", np.transpose),
    Row("(mat-mul a b)", np.matmul, ("nm", "mn")),
    Row("(mat-vec a b)", np.matmul, ("nm", "m")),
    Row("(vec-mat b a)", lambda a, b: b @ a, ("nm", "n")),
    Row("(@ a b)", np.matmul, ("nnm", "nmn")),
    Row("(@ a b)", np.matmul, ("nnm", "m")),
    Row("(@ a b)", np.matmul, ("n", "mnm")),
    Row("(matmul a b)", np.matmul, ("nm", "nmm")),
    Row("(matmul a b)", np.dot, ("n", "n")),
    Row("(trace a)", np.trace, ("nn",)),
    vector("(diag a)", np.diag),
    Row("(diag a)", np.diag, ("nn",)),
    matrix("(tril a)", np.tril),
    matrix("(triu a)", np.triu),
    matrix("(matrix-map a vector-norm)", lambda a: np.linalg.norm(a, axis=1), 1),
    Row("(vector-map2 a b *)", np.multiply, ("n", "n")),
    Row("(vector-map (vector-zip a b) (fn [p] (* (fst p) (snd p))))", np.multiply, ("n", "n")),
    vector("(vector-slice a 1 2)", lambda a: a[1:3], 3),
    vector("(vector-to-matrix a)", lambda a: a[None, :]),
    Row("(matrix-add a (vector-out-prod b b))", lambda a, b: a + np.outer(b, b), ("nn", "n")),
    Row("(vector-s-mul a b)", np.multiply, ("n", "")),
    Row("(vector-cross a [1.0 2.0 3.0])", lambda a: np.cross(a, [1.0, 2, 3]), ("3",)),
    # making arrays
    Row("(full [2 (len a)] b)", lambda a, b: np.full((2, len(a)), b), ("n", "")),
    Row("(+ a (linspace 0.0 b (len a)))", lambda a, b: a + np.linspace(0, b, len(a)), ("n", ""), 2),
    vector("(* a (arange (len a)))", lambda a: a * np.arange(len(a))),
    vector("(+ a (arange 2 (+ 2 (len a))))", lambda a: a + np.arange(2, 2 + len(a))),
    # parts and other shapes
    vector("(slice a 0 (len a))", lambda a: a),
    vector("(slice a 1 3)", lambda a: a[1:3], 3),
    vector("(slice a 0 3 2)", lambda a: a[0:3:2], 3),
    vector("(slice a 2 0 -1)", lambda a: a[2:0:-1], 3),
    vector("(cut a 2)", lambda a: a[:2], 3),
    vector("(cut a 1 -1)", lambda a: a[1:-1], 2),
    vector("(cut a None None -1)", lambda a: a[::-1]),
    vector("(cut a -2 None)", lambda a: a[-2:], 2),
    Row("(concat a b)", lambda a, b: np.concatenate([a, b]), ("n", "m")),
    Row("(concat a b a)", lambda a, b: np.concatenate([a, b, a]), ("nm", "mm")),
    Row("(map concat a b)", lambda a, b: np.concatenate([a, b], 1), ("nm", "nn")),
    vector("(flip a)", np.flip),
    vector("(roll a 2)", lambda a: np.roll(a, 2)),
    Row("(ravel a)", np.ravel, ("nmm",)),
    matrix("(reshape a [(get (shape a) 1) (len a)])", lambda a: a.reshape(a.shape[::-1])),
    vector("(gather a [2 0 2])", lambda a: a[[2, 0, 2]], 3),
    matrix("(gather a [[1 0] [0 0]])", lambda a: a[[[1, 0], [0, 0]]], 3),
    vector("(get a [2 0 2])", lambda a: a[[2, 0, 2]], 3),
    matrix("(get a [[1 0] [0 0]])", lambda a: a[[[1, 0], [0, 0]]], 3),
    matrix("(get a #((arange (len a)) (arange (len a))))", np.diag),
    matrix("(get a (arange (len a)) -1)", lambda a: a[:, -1]),
    matrix("(get a -1 (flip (arange (len a))))", lambda a: a[-1, : len(a)][::-1], 1),
    matrix("(get a #((slice None) (arange (len a))))", lambda a: a[:, : len(a)]),
    matrix("(get a (expand-dims (arange (len a)) 1) [1 0 1])", lambda a: a[:, [1, 0, 1]], 1),
    Row("(get a 1 [0 2] [2 1])", lambda a: a[1, [0, 2], [2, 1]], ("nmm",), 2),
    Row("(get a #([1 0] 0 [2 1]))", lambda a: a[[1, 0], 0, [2, 1]], ("nmm",), 2),
    Row("(get a (arange (len a)) (arange (len a)))", lambda a: a[np.arange(len(a)), np.arange(len(a))], ("nmm",)),
    Row("(get a #((slice 1 None) [0 2] [2 1]))", lambda a: a[1:, [0, 2], [2, 1]], ("nmm",), 2),
    Row("(scatter a [2 0] b)", lambda a, b: scattered(a, b, np.put), ("n", "2"), 3),
    Row("(scatter-add a [2 2] b)", lambda a, b: scattered(a, b, None), ("n", "2"), 3),
    vector("(where (> a 0) (* a a) 1.0)", lambda a: np.where(a > 0, a * a, 1)),
    Row("(where (> a 0) a b)", lambda a, b: np.where(a > 0, a, b), ("nm", "m")),
    Row("(where (> b 0) a b)", lambda a, b: np.where(b > 0, a, b), ("nm", "m")),
    # reductions
    *along_axes("sum", np.sum),
    *along_axes("prod", np.prod),
    *along_axes("mean", np.mean, 1),
    *along_axes("var", np.var, 1),
    *along_axes("amax", np.max, 1),
    *along_axes("amin", np.min, 1),
    *along_axes("logsumexp", over_axis(scipy.special.logsumexp), 1),
    Row("(std a 0)", lambda a: np.std(a, 0), ("nm",), 3),
    matrix("(max a)", np.max, 1),
    vector("(min a)", np.min, 1),
    matrix("(norm a 1)", lambda a: np.linalg.norm(a, axis=1), 1),
    vector("(gather a (argsort-free a))".replace("(argsort-free a)", "[(argmax a) (argmin a)]"),
           lambda a: a[[a.argmax(), a.argmin()]], 1),
    vector("(softmax a)", scipy.special.softmax, 1),
    vector("(cumsum a)", np.cumsum),
    vector("(cumprod a)", np.cumprod),
    # linear algebra
    Row("(solve-lower a b)", lambda a, b: np.linalg.solve(np.tril(a), b), ("regular", "n")),
    Row("(solve-lower a b)", lambda a, b: np.linalg.solve(np.tril(a), b), ("regular", "nm")),
    Row("(solve-upper a b)", lambda a, b: np.linalg.solve(np.triu(a), b), ("regular", "n")),
    Row("(solve-upper a b)", lambda a, b: np.linalg.solve(np.triu(a), b), ("regular", "nm")),
    Row("(solve a b)", np.linalg.solve, ("regular", "n")),
    Row("(solve a b)", np.linalg.solve, ("regular", "nm")),
    Row("(inv a)", np.linalg.inv, ("regular",)),
    Row("(det a)", np.linalg.det, ("regular",)),
    Row("(logdet a)", lambda a: np.linalg.slogdet(a)[1], ("regular",)),
    Row("(cholesky a)", lambda a: np.linalg.cholesky(a), ("positive",)),
    Row("(solve-cholesky a b)", lambda a, b: scipy.linalg.cho_solve((a, True), b) if len(b) else b, ("regular", "n")),
    Row("(map det a)", np.linalg.det, ("regulars",)),
    Row("(inv a)", np.linalg.inv, ("regulars",)),
    Row("(det a)", np.linalg.det, ("regulars",)),
    Row("(snd (slogdet a))", lambda a: np.linalg.slogdet(a)[1], ("regular",)),
    Row("(matrix-power a 3)", lambda a: np.linalg.matrix_power(a, 3), ("nn",)),
    # an axis of size 1 goes with all rows of another
    Row("(- (expand-dims a 1) (expand-dims b 0))", lambda a, b: a[:, None] - b[None, :], ("n", "m")),
    Row("(* a (expand-dims (sum a 1) 1))", lambda a: a * a.sum(1, keepdims=True), ("nm",)),
    Row("(+ (expand-dims a -1) b)", lambda a, b: a[..., None] + b, ("nm", "mn")),
    Row("(* (reshape a [1 -1]) (reshape b [-1 1]))", lambda a, b: a[None] * b[:, None], ("n", "m")),
    Row("(max a (expand-dims b 1))", lambda a, b: np.maximum(a, b[:, None]), ("nm", "n")),
    Row("(+ [[b]] a)", lambda a, b: a + b, ("nm", "")),
    matrix("(squeeze (expand-dims a 1) 1)", lambda a: a),
    # axes
    Row("(transpose a)", np.transpose, ("nmn",)),
    vector("(transpose a)", np.transpose),
    Row("(transpose a [1 2 0])", lambda a: a.transpose(1, 2, 0), ("n2m",)),
    Row("(transpose a [2 0 1])", lambda a: a.transpose(2, 0, 1), ("n2m",)),
    Row("(swapaxes a 0 -1)", lambda a: a.swapaxes(0, -1), ("n2m",)),
    Row("(swapaxes a 2 1)", lambda a: a.swapaxes(2, 1), ("n2m",)),
    Row("(moveaxis a 0 2)", lambda a: np.moveaxis(a, 0, 2), ("n2m",)),
    Row("(moveaxis a -1 1)", lambda a: np.moveaxis(a, -1, 1), ("n2m",)),
    Row("(stack [a b])", lambda a, b: np.stack([a, b]), ("n", "n")),
    Row("(stack [a b] 1)", lambda a, b: np.stack([a, b], 1), ("nm", "nm")),
    Row("(stack [a b] -1)", lambda a, b: np.stack([a, b], -1), ("nm", "nm")),
    Row("(concatenate #(a b a))", lambda a, b: np.concatenate([a, b, a]), ("n", "m")),
    Row("(concatenate #(a b) 1)", lambda a, b: np.concatenate([a, b], 1), ("nm", "nn")),
    Row("(concatenate #(a b) -1)", lambda a, b: np.concatenate([a, b], -1), ("n2m", "n2n")),
    Row("(concatenate [[0.0] a [1.0 2.0] b])", lambda a, b: np.concatenate([[0.0], a, [1.0, 2.0], b]), ("n", "m")),
    Row("(concatenate [a b] :axis 1)", lambda a, b: np.concatenate([a, b], 1), ("nm", "nn")),
    Row("(hstack [a b])", lambda a, b: np.hstack([a, b]), ("nm", "nn")),
    Row("(vstack [a b])", lambda a, b: np.vstack([a, b]), ("nm", "m")),
    Row("(column-stack [a b])", lambda a, b: np.column_stack([a, b]), ("nm", "n")),
    Row("(* a (eye (len a) (shape a 1) 1))", lambda a: a * np.eye(*a.shape, 1), ("nm",)),
    Row("(* a (eye (len a) (shape a 1) -2))", lambda a: a * np.eye(*a.shape, -2), ("nm",)),
    matrix("(reshape a [-1])", np.ravel),
    matrix("(reshape a -1)", np.ravel),
    matrix("(reshape a [2 -1])", lambda a: a.reshape(2, -1)),
    *along_axes("flip", np.flip),
    *along_axes("cumsum", np.cumsum),
    *along_axes("cumprod", np.cumprod)[1::2],
    *along_axes("sort", lambda a, axis=-1: np.sort(a.ravel() if axis is None else a, axis))[::2],
    matrix("(sort a)", np.sort),
    matrix("(max a :axis 1)", lambda a: a.max(1)),
    *along_axes("softmax", scipy.special.softmax, 1)[::2],
    *along_axes("log-softmax", scipy.special.log_softmax, 1)[::3],
    *along_axes("median", np.median, 1)[1::2],
    matrix("(roll a 1)", lambda a: np.roll(a, 1)),
    matrix("(roll a -1 1)", lambda a: np.roll(a, -1, 1)),
    # more of what NumPy has
    Row("(clip a -0.5 b)", lambda a, b: np.clip(a, -0.5, b), ("nm", "")),
    vector("(gather a (argsort a))", np.sort),
    vector("(* a (argsort (argsort a)))", lambda a: a * a.argsort().argsort()),
    vector("(* a (count-nonzero (> a 0)))", lambda a: a * np.count_nonzero(a > 0)),
    Row("(take a [1 0 1])", lambda a: a.take([1, 0, 1]), ("nm",), 1),
    Row("(take a [1 0 1] 1)", lambda a: a.take([1, 0, 1], 1), ("nm",), 1),
    vector("(repeat a 2)", lambda a: np.repeat(a, 2)),
    vector("(tile a 3)", lambda a: np.tile(a, 3)),
    matrix("(repeat a 2)", lambda a: np.repeat(a, 2)),
    matrix("(repeat a 2 :axis 1)", lambda a: np.repeat(a, 2, 1)),
    matrix("(repeat a 3 0)", lambda a: np.repeat(a, 3, 0)),
    matrix("(tile a 2)", lambda a: np.tile(a, 2)),
    Row("(kron a b)", np.kron, ("n", "m"), 1),
    Row("(kron a b)", np.kron, ("n", "nm"), 1),
    Row("(kron a b)", np.kron, ("nm", "n"), 1),
    Row("(dot a b)", np.dot, ("nm", "nmm")),
    Row("(dot a b)", np.dot, ("n", "mnm")),
    Row("(inner a b)", np.inner, ("nm", "nm")),
    Row("(inner a b)", np.inner, ("nm", "m")),
    Row("(cross a b)", np.cross, ("n3", "n3")),
    Row("(cross a b)", np.cross, ("3", "n3")),
    Row("(diag a)", np.diag, ("nm",)),
    Row("(diag (transpose a))", lambda a: np.diag(a.T), ("nm",)),
    Row("(tril a)", np.tril, ("nnm",)),
    Row("(triu a 1)", lambda a: np.triu(a, 1), ("nnm",)),
    Row("(kron a b)", np.kron, ("nm", "mn"), 1),
    Row("(outer a b)", np.outer, ("nm", "n")),
    Row("(dot a b)", np.dot, ("nm", "m")),
    Row("(convolve a b)", np.convolve, ("n", "m"), 1),
    Row("(polyval a b)", np.polyval, ("n", "")),
    Row("(interp b [-2.0 -1.0 0.5 2.0] a)", lambda a, b: np.interp(b, [-2.0, -1, 0.5, 2], a), ("4", "n")),
    Row("(interp b [-2.0 -1.0 0.5 2.0] a)", lambda a, b: np.interp(b, [-2.0, -1, 0.5, 2], a), ("4", "")),
    vector("(diag a 1)", lambda a: np.diag(a, 1)),
    vector("(diag a -2)", lambda a: np.diag(a, -2)),
    Row("(diag a 1)", lambda a: np.diag(a, 1), ("nm",), 1),
    Row("(diag a -1)", lambda a: np.diag(a, -1), ("mn",), 1),
    matrix("(tril a -1)", lambda a: np.tril(a, -1)),
    matrix("(triu a 1)", lambda a: np.triu(a, 1)),
    matrix("(* a (eye (len a) (get (shape a) 1)))", lambda a: a * np.eye(*a.shape)),
    vector("(+ a (linspace 1.0 2.0 (len a)))", lambda a: a + np.linspace(1, 2, len(a))),
    Row("(* a (arange 1 8 3))", lambda a: a * np.arange(1, 8, 3), ("3",)),
    Row("(* a (arange 5 0 -2))", lambda a: a * np.arange(5, 0, -2), ("3",)),
    matrix("(+ (zeros-like a) (full-like a 2.0))", lambda a: np.full_like(a, 2)),
    Row("(hstack #(a b a))", lambda a, b: np.hstack([a, b, a]), ("n", "m")),
    Row("(hstack #(a b))", lambda a, b: np.hstack([a, b]), ("nm", "nn"), 1),
    Row("(vstack #(b a b))", lambda a, b: np.vstack([b, a, b]), ("nm", "m"), 1),
    Row("(column-stack #(b a b))", lambda a, b: np.column_stack([b, a, b]), ("nm", "n"), 1),
    vector("(pad a 2)", lambda a: np.pad(a, 2)),
    matrix("(pad a [1 2])", lambda a: np.pad(a, (1, 2)), 1),
    Row("(pad a #(#(0 0) #(1 0) #(2 1)))", lambda a: np.pad(a, ((0, 0), (1, 0), (2, 1))), ("nnm",), 1),
    matrix("(flipud a)", np.flipud),
    Row("(let [#(x y) (meshgrid a b)] (+ x (* y y)))", lambda a, b: a + b[:, None] ** 2, ("n", "m")),
    vector("(vander a 3)", lambda a: np.vander(a, 3)),
    vector("(differences a)", np.diff, 1),
    matrix("(differences a)", np.diff, 1),
    vector("(trapezoid a)", np.trapezoid),
    Row("(trapezoid a b)", np.trapezoid, ("n", "n"), 1),
    matrix("(trapezoid a)", np.trapezoid),
    Row("(trapezoid a b)", np.trapezoid, ("nm", "m")),
    Row("(trapezoid a b)", np.trapezoid, ("nm", "nm")),
    matrix("(cov a)", np.cov, 2),
    matrix("(ptp a)", np.ptp, 1),
    vector("(quantile a 0.3)", lambda a: np.quantile(a, 0.3), 1),
    vector("(quantile a [0.3 0.9])", lambda a: np.quantile(a, [0.3, 0.9]), 1),
    vector("(percentile a [25.0 75.0])", lambda a: np.percentile(a, [25.0, 75.0]), 1),
    matrix("(quantile a [0.3 0.9] 1)", lambda a: np.quantile(a, [0.3, 0.9], 1), 1),
    matrix("(quantile a 0.3 :axis 0)", lambda a: np.quantile(a, 0.3, 0), 1),
    matrix("(percentile a 75 1)", lambda a: np.percentile(a, 75, 1), 1),
    matrix("(ptp a :axis 0)", lambda a: np.ptp(a, 0), 1),
    matrix("(nansum a :axis 1 :keepdims True)", lambda a: np.nansum(a, 1, keepdims=True)),
    matrix("(percentile a 80)", lambda a: np.percentile(a, 80), 1),
    Row("(logaddexp a b)", np.logaddexp, ("nm", "nm")),
    Row("(logaddexp a b)", np.logaddexp, ("n", "")),
    Row("(vdot a b)", np.vdot, ("nm", "nm")),
    Row("(correlate b a)", lambda a, b: np.correlate(b, a), ("n", "m"), 1),
    vector("(nansum (where (> a 0) a (sqrt -1.0)))", lambda a: a[a > 0].sum()),
    vector("(where (isfinite a) (* a a) (where (isnan a) a 0.0))", lambda a: a * a),
    # several axes, and methods
    matrix("(mean a :axis #(0 1) :keepdims True)", lambda a: a.mean(keepdims=True), 1),
    matrix("(sum (sin a) :keepdims True)", lambda a: np.sin(a).sum(keepdims=True)),
    matrix("(amax a :axis None :keepdims True)", lambda a: a.max(keepdims=True), 1),
    matrix("(- a (var a :keepdims True :ddof 1))", lambda a: a - a.var(keepdims=True, ddof=1), 2),
    Row("(sum a :axis [0 2])", lambda a: a.sum((0, 2)), ("nmn",)),
    Row("(logsumexp a :axis #(-1 -3))", lambda a: scipy.special.logsumexp(a, (-1, -3)), ("nmn",), 1),
    matrix("(.reshape a -1 1)", lambda a: a.reshape(-1, 1)),
    Row("(.transpose a 1 2 0)", lambda a: a.transpose(1, 2, 0), ("nmm",)),
    # sums of products by the names of axes
    Row('(einsum "ij,jk->ik" a b)', np.matmul, ("nm", "mn")),
    Row('(einsum "ij,kj" a b)', lambda a, b: a @ b.T, ("nm", "nm")),
    Row('(einsum "bij,bjk->bik" a b)', np.matmul, ("nnm", "nmn")),
    Row('(einsum "i,ij,j->" a b a)', lambda a, b: a @ b @ a, ("n", "nn")),
    Row('(einsum "ij,k,ij->jk" a b a)', lambda a, b: np.outer((a * a).sum(0), b), ("nm", "n")),
    Row('(einsum "ii,k->ik" a b)', lambda a, b: np.outer(np.diag(a), b), ("nn", "m")),
    Row('(einsum "ii" a)', np.trace, ("nn",)),
    Row('(einsum ",ij->ji" b a)', lambda a, b: b * a.T, ("nm", "")),
]  # fmt: skip
ROWS += [
    Row("(var a :axis #(0 1))", np.var, ("nm",), 1),
    Row("(std a :axis #(2 0) :keepdims True)", lambda a: np.std(a, (2, 0), keepdims=True), ("nmm",), 2),
    Row("(std a :keepdims True :ddof 1 :axis #(-1 -2))", lambda a: np.std(a, (1, 2), None, None, 1, True), ("nmm",), 2),
    matrix("(mean a 1 :keepdims True)", lambda a: np.mean(a, 1, keepdims=True), 1),
    matrix("(- a (np.max a 1 :keepdims True))", lambda a: a - np.max(a, 1, keepdims=True), 1),
    matrix("(max a 0 :keepdims True)", lambda a: np.max(a, 0, keepdims=True), 1),
    matrix("(min a -1 :keepdims False)", lambda a: np.min(a, -1, keepdims=False), 1),
    matrix("(prod a 0 :keepdims True)", lambda a: np.prod(a, 0, keepdims=True)),
    matrix("(var a 1 :ddof 1)", lambda a: np.var(a, 1, ddof=1), 2),
    matrix("(std a 0 :keepdims True :ddof 1)", lambda a: np.std(a, 0, ddof=1, keepdims=True), 3),
    matrix("(a.mean 1 :keepdims True)", lambda a: a.mean(1, keepdims=True), 1),
    matrix("(.sum a 0 :keepdims True)", lambda a: a.sum(0, keepdims=True)),
    matrix("(sum a None :keepdims True)", lambda a: np.sum(a, None, keepdims=True)),
    matrix("(quantile a 0.3 1 :keepdims True)", lambda a: np.quantile(a, 0.3, 1, keepdims=True), 1),
    Row("(sum a #(0 2) :keepdims True)", lambda a: np.sum(a, (0, 2), keepdims=True), ("nmm",)),
    Row("(norm a :axis #(0 -1))", lambda a: np.linalg.norm(a, axis=(0, 2)), ("nmm",), 1),
    Row("(median a :axis #(1 0))", lambda a: np.median(a, (1, 0)), ("nmm",), 1),
    Row("(quantile a 0.3 :axis #(1 2))", lambda a: np.quantile(a, 0.3, (1, 2)), ("nmm",), 1),
    Row("(sum a #(0 1))", np.sum, ("nm",)),
    Row("(sum a [2 1])", lambda a: np.sum(a, (1, 2)), ("nmm",)),
    Row("(np.amax a :axis None)", np.max, ("nm",), 1),
    Row("(cumsum a :axis None)", np.cumsum, ("nm",)),
    Row("(sort a :axis None)", lambda a: np.sort(a, None), ("nm",)),
    Row("(np.linalg.norm a :axis 1)", lambda a: np.linalg.norm(a, axis=1), ("nm",), 1),
    Row("(np.linalg.norm a :axis #(0 2) :keepdims True)",
        lambda a: np.linalg.norm(a, axis=(0, 2), keepdims=True), ("nmm",), 1),
    Row("(np.diff a :axis 0)", lambda a: np.diff(a, axis=0), ("nm",), 1),
    Row("(differences a 0)", lambda a: np.diff(a, axis=0), ("nmm",), 1),
    Row("(np.diff a 2)", lambda a: np.diff(a, 2), ("nm",), 2),
    Row("(np.diff a 2 0)", lambda a: np.diff(a, 2, 0), ("nm",), 2),
    Row("(np.diff a 2 :axis 0)", lambda a: np.diff(a, 2, axis=0), ("nmm",), 2),
    Row("(var a :ddof 1)", lambda a: np.var(a, ddof=1), ("n",), 2),
    Row("(.std a :axis 0 :ddof 1)", lambda a: np.std(a, axis=0, ddof=1), ("nm",), 2),
    Row("(vander a)", np.vander, ("n",)),
    Row("(tile a [2 3])", lambda a: np.tile(a, (2, 3)), ("nm",)),
    Row("(tile a [2 1 2])", lambda a: np.tile(a, (2, 1, 2)), ("n",)),
    Row("(tile a [2])", lambda a: np.tile(a, 2), ("nm",)),
    Row("(np.stack #(a b))", lambda a, b: np.stack((a, b)), ("n", "n")),
    Row("(stack #(a b) :axis 1)", lambda a, b: np.stack((a, b), 1), ("nm", "nm")),
    Row("(let [p #(a b)] (sum (stack p)))", lambda a, b: np.sum(a + b), ("nm", "nm")),
    Row("(* a (sum (> a 0)))", lambda a: a * np.sum(a > 0), ("n",)),
    Row("(* a (mean (> a 0) :axis 0))", lambda a: a * np.mean(a > 0, axis=0), ("nm",), 1),
    Row("(where (tril (ones (shape a))) a b)", lambda a, b: np.where(np.tri(*a.shape), a, b), ("nm", "nm")),
]  # fmt: skip

IDS = [f"{k} {row.form} {' '.join(row.args)}" for k, row in enumerate(ROWS)]
TWICE = [k for k, row in enumerate(ROWS) if row.args[0] in ("regular", "positive", "regulars")] + [
    k
    for k, row in enumerate(ROWS)
    if row.form in ("(var a)", "(norm a)", "(prod a)", "(logsumexp a)", "(where (> a 0) (* a a) 1.0)")
]


def scattered(a: np.ndarray, b: np.ndarray, put: Any) -> np.ndarray:
    made = a.copy()
    if put is None:
        np.add.at(made, [2, 2], b)
    else:
        put(made, [2, 0], b)
    return made


def arguments(row: Row, n: int) -> list[Any]:
    """The same for each row and size."""
    rng = np.random.default_rng([n, *map(ord, row.form)])
    made: list[Any] = []
    for kind in row.args:
        if kind in ("regular", "positive", "regulars"):
            dims = (2, n, n) if kind == "regulars" else (n, n)
            a = rng.normal(size=dims) + 3 * np.sqrt(n) * np.eye(n)[rng.permutation(n)]
            if kind == "positive":
                a = a @ a.T / max(1, n)
            if "lower" in row.form or "upper" in row.form or "cholesky" in row.form and kind == "regular":
                a = rng.normal(size=dims) / max(1, n) + 2 * np.eye(n)
            made.append(a)
        else:
            dims = tuple({"n": n, "m": n + 1}.get(d) or (int(d) if d.isdigit() else n) for d in kind)
            made.append(rng.normal(size=dims) if dims or kind else float(rng.normal()))
            if re.search("sort|median|quantile|percentile", row.form):  # further apart than the steps of differences
                made[-1] = 0.01 * rng.permutation(made[-1].size).reshape(dims) - 0.5
    return made


def directions(row: Row, args: Sequence[Any], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng([seed, len(row.form)])
    return [rng.normal(size=np.shape(a)) if np.ndim(a) else float(rng.normal()) for a in args]


def text_of(row: Row) -> str:
    """A program: the value, its tangent, and the adjoints for a cotangent."""
    names = "abc"[: len(row.args)]
    params = " ".join(names)
    moves = " ".join(f"d{x}" for x in names)
    f = f"(fn [{params}] {row.form})"
    return f"(fn [{params} {moves} ct] (let [f {f}] #((f {params}) (jvp f {params} {moves}) (vjp f {params} ct))))"


def twice_of(row: Row) -> str:
    """A program: the tangent of the adjoints."""
    names = "abc"[: len(row.args)]
    params, moves = " ".join(names), " ".join(f"d{x}" for x in names)
    f = f"(fn [{params}] (vjp (fn [{params}] {row.form}) {params} ct))"
    return f"(fn [{params} {moves} ct] (jvp {f} {params} {moves}))"


def given(row: Row, n: int) -> tuple[list[Any], list[Any], Any]:
    args = arguments(row, n)
    y = np.asarray(row.numpy(*args), float)
    ct = np.random.default_rng(n + 7).normal(size=y.shape)
    return args, directions(row, args), ct if y.ndim else float(ct)


def slope(f: Callable[..., Any], args: Sequence[Any], moves: Sequence[Any], step: float = 1e-4) -> Any:
    """The derivative of ``f`` along ``moves``, by differences of fourth order."""

    def at(h: float) -> Any:
        return np.asarray(f(*(a + h * d for a, d in zip(args, moves))), float)

    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)


def product(xs: Any, ys: Any) -> float:
    xs, ys = (x if isinstance(x, tuple) else (x,) for x in (xs, ys))
    return float(sum(np.sum(np.asarray(x) * np.asarray(y)) for x, y in zip(xs, ys)))


@pytest.fixture(scope="module")
def compiled(chosen: Callable[[str, str], list[int]]) -> dict[tuple[int, bool], Callable[..., Any]]:
    """Each row's program as C; and, for some, that of the second derivatives."""
    made = batch.Batch(flags=[*batch.FLAGS[1:], "-O0"])
    found = {}
    for k in sorted({*chosen("test_compiled_values_and_derivatives", "k"), *chosen("test_second_derivatives", "k")}):
        row = ROWS[k]
        args, moves, ct = given(row, max(row.least, 3))
        found[k, False] = made.add(batch.program_of(text_of(row), (*args, *moves, ct)))
        if k in TWICE:
            found[k, True] = made.add(batch.program_of(twice_of(row), (*args, *moves, ct)))
    made.compile()
    return found


def expect(row: Row, n: int, got: Any, args: list[Any], moves: list[Any], ct: Any) -> None:
    value, tangent, adjoints = got
    expected = np.asarray(row.numpy(*args), float)
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-11)
    assert np.shape(value) == expected.shape
    np.testing.assert_allclose(tangent, slope(row.numpy, args, moves), rtol=1e-6, atol=1e-7)
    bars = adjoints if isinstance(adjoints, tuple) else (adjoints,)
    assert [np.shape(x) for x in bars] == [np.shape(a) for a in args]
    assert product(adjoints, tuple(moves)) == pytest.approx(product(tangent, ct), rel=1e-8, abs=1e-9)


@pytest.mark.some(10)
@pytest.mark.parametrize("k", range(len(ROWS)), ids=IDS)
def test_compiled_values_and_derivatives(k: int, compiled: Any) -> None:
    row = ROWS[k]
    for n in SIZES:
        if n >= row.least:
            args, moves, ct = given(row, n)
            y = row.numpy(*args)
            like = (y, y, tuple(args) if len(args) > 1 else args[0])
            expect(row, n, compiled[k, False](*args, *moves, ct, like=like), args, moves, ct)


@pytest.mark.parametrize("k", TWICE, ids=[IDS[k] for k in TWICE])
def test_second_derivatives(k: int, compiled: Any) -> None:
    row = ROWS[k]
    for n in SIZES[1:]:
        if n >= row.least:
            args, moves, ct = given(row, n)
            y = row.numpy(*args)
            like = tuple(args) if len(args) > 1 else args[0]

            def adjoints(*at: Any) -> Any:
                got = compiled[k, False](*at, *moves, ct, like=(y, y, like))[2]  # noqa: B023
                return np.concatenate([np.ravel(x) for x in (got if isinstance(got, tuple) else (got,))])

            got = compiled[k, True](*args, *moves, ct, like=like)
            flat = np.concatenate([np.ravel(x) for x in (got if isinstance(got, tuple) else (got,))])
            np.testing.assert_allclose(flat, slope(adjoints, args, moves), rtol=2e-5, atol=2e-6)


@pytest.mark.some(10)
@pytest.mark.parametrize("k", range(len(ROWS)), ids=IDS)
def test_python_target_and_run(k: int) -> None:
    row = ROWS[k]
    args, moves, ct = given(row, max(row.least, 2))
    program, model = batch.program_of(text_of(row), (*args, *moves, ct)), hyad.model(text_of(row), namespace={})
    expect(row, 2, python_callable(program)(*args, *moves, ct), args, moves, ct)
    expect(row, 2, hyad.run(model, *args, *moves, ct), args, moves, ct)


@pytest.mark.parametrize(
    "f, args", [("(solve a b)", "ab"), ("(inv a)", "a"), ("(logdet a)", "a"), ("(cholesky a)", "a")]
)
def test_a_rule_costs_no_second_factorisation_and_no_history(f: str, args: str) -> None:
    """The steps of the algorithm are neither remembered nor gone through again."""
    values = (np.eye(3), np.ones(3))[: len(args)]
    loss = f"(fn [{' '.join(args)}] (sum (square {f})))" if f != "(logdet a)" else f"(fn [a] {f})"
    counts = []
    for made in (hyad.model(loss, namespace={}), hyad.grad(hyad.model(loss, namespace={}), wrt="a")):
        program = made.optimised(made.specs(values))
        binds = list(all_binds(program.body))
        counts.append(sum(type(b.op) is Prim and b.op.name in ("abs", "sqrt") for b in binds))
        assert all(v.type.rank <= 2 for b in binds for v in b.vars if isinstance(v.type, Arr))
        assert not any(type(b.op) is Prim and (b.op.name == "stop" or b.op.name.startswith("rule-")) for b in binds)
    assert 0 < counts[1] <= counts[0]


def test_a_rule_of_ones_own() -> None:
    """Its derivatives are what the rules say, and their derivatives."""
    text = "(fn [x k] (ruled (fn [x k] (* k x x)) (fn [x k y dx] (* 10 x dx)) (fn [x k y ct] (* 10 x ct)) x k))"
    f = hyad.model(text, namespace={})
    assert f(3.0, 2.0) == 18.0
    assert hyad.grad(f)(3.0, 2.0) == (30.0, 0.0)  # by the first argument alone: there is one tangent
    assert hyad.jvp(f, (3.0, 2.0), (1.0, 5.0)) == 30.0
    assert hyad.hessian(f)(3.0, 2.0)[0][0] == 10.0
    in_a_loop = hyad.model(f"(fn [v] (let [f {text}] (sum (map (fn [x] (f x 2.0)) v))))", namespace={})
    np.testing.assert_array_equal(hyad.grad(in_a_loop)(np.array([1.0, 2.0])), [10.0, 20.0])
    constant = hyad.model("(fn [x] (* x (constant (fn [t] (* t t)) x)))", namespace={})
    assert (constant(3.0), hyad.grad(constant)(3.0)) == (27.0, 9.0)


def test_rules_in_a_recursion() -> None:
    """One that becomes a loop before it is differentiated, and one that does not."""
    for step in ("(go (- k 1) (solve (+ a (eye 2)) u))", "(+ (sin (get u 0)) (go (- k 1) (solve (+ a (eye 2)) u)))"):
        text = f"(fn [a v] (letrec [go (fn [k u] (if (<= k 0) (sum u) {step}))] (go (int (get v 0)) v)))"
        f, args = hyad.model(text, namespace={}), (np.array([[2.0, 1.0], [0.5, 3.0]]), np.array([3.0, 0.5]))
        by_a = hyad.grad(f, wrt="a")
        for k in np.ndindex(2, 2):
            move = np.zeros((2, 2))
            move[k] = 1e-6
            slope = (f(args[0] + move, args[1]) - f(args[0] - move, args[1])) / 2e-6
            assert by_a(*args)[k] == pytest.approx(slope, rel=1e-6)


def test_systems_of_equations_in_a_loop_and_a_branch() -> None:
    text = "(fn [s b] (sum (map (fn [a] (if (> (get a 0 0) 0) (sum (solve a b)) (det a))) s)))"
    s = np.stack([np.array([[2.0, 1], [0, 3]]), np.array([[-2.0, 1], [1, 3]])])
    b = np.array([1.0, 2.0])
    f = hyad.model(text, namespace={})

    def numpy(s: np.ndarray, b: np.ndarray) -> float:
        return sum(np.linalg.solve(a, b).sum() if a[0, 0] > 0 else np.linalg.det(a) for a in s)

    assert f(s, b) == pytest.approx(numpy(s, b))
    ds, db = np.arange(8.0).reshape(2, 2, 2), np.array([0.5, -1.0])
    bars = hyad.grad(f)(s, b)
    assert product(bars, (ds, db)) == pytest.approx(float(slope(numpy, (s, b), (ds, db))), rel=1e-7)
    assert product(hyad.run(hyad.grad(f), s, b), (ds, db)) == pytest.approx(product(bars, (ds, db)), rel=1e-10)


NUMPYS = ["(np.sum a)", "(np.sum a 0)", "(np.max a 1)", "(np.mean a)", "(np.linalg.inv a)", "(np.linalg.solve a b)",
          "(np.dot a b)", "(np.where (> a 0) a 1.0)", "(np.linalg.cholesky (@ a (np.transpose a)))", "(np.argmin a 0)",
          "(np.maximum b 0.5)", "(np.trace a)", "(np.reshape a [4 1])", "(np.cumsum b)", "(np.clip a 0 1)",
          "(np.flip a)", "(np.transpose [a a])", "(np.outer a b)", "(np.roll a 1)", "(np.sort a 0)",
          "(np.concatenate #(a a) 1)", "(np.linalg.norm a)", "(np.sum a :axis 0)", "(np.stack [a a] :axis -1)",
          "(np.mean a 0 :keepdims True)", "(np.concatenate [[0.0] b [0.0]])", "(np.eye 3 4 -1)",
          "(np.hstack [b [1.0]])", "(np.vstack [a b])", "(np.var a 1 :ddof 1)", "(np.amin a 1 :keepdims True)",
          "(np.linspace 1.0 1.0 1)", "(np.array [[1.0 2.0] b])", "(np.asarray b)", "(np.copy a)", "(np.ndim a)",
          "(np.shape b)", "(np.radians b)", "(np.rad2deg a)", "(np.floor-divide a 0.7)", "(np.greater-equal a 0.5)",
          "(np.not-equal b 1.0)", "(np.logical-and (> a 0) (< a 3))", "(np.logical-or (> a 0) (> b 0.5))",
          "(np.logical-not (> a 0))", "(np.diagonal a)", "(@ a a.T)", "(get a.shape 0)", "(* a.ndim a.size)",
          "(. (@ a a) T)", "(.sum a)", "(.sum a :axis 0)", "(.max a 1)", "(.mean a)", "(.dot a b)",
          "(.reshape a #(4 1))", "(.transpose a)", "(a.sum :axis 0)", "(a.T.max 1)", "(a.reshape 4 1)", "(.flatten a)",
          "(* np.pi b)", "(np.maximum b (- np.inf))", "(np.squeeze (get a (slice 1 2)))", "(- (get b None) np.e)",
          "(get b np.newaxis (slice None))",
          "(np.any (- a 3) 0)", "(np.all b)", "(np.clip a 0 None)", "(np.clip b None 0.5)",
          "(cond (> (get b 0) 2) 1.0 :else 2.0)"]  # fmt: skip


@pytest.mark.some(4)
@pytest.mark.parametrize("form", NUMPYS)
def test_numpys_functions_are_the_language_s(form: str) -> None:
    """Where a model names a function of NumPy that the language has, that is what is meant."""
    a, b = np.array([[2.0, -1.0], [0.5, 3.0]]), np.array([1.0, 0.25])
    f = hyad.model(f"(fn [a b] {form})", namespace={"np": np})
    wanted = eval_hy(form, a, b)
    np.testing.assert_allclose(f(a, b), wanted, rtol=1e-14)
    np.testing.assert_allclose(hyad.run(f, a, b), wanted, rtol=1e-14)


def test_zeros_of_eye_and_diag_cost_nothing() -> None:
    """As LANGUAGE.md says; literals are numbers, unless they are multiplied as a matrix."""
    literal = "[[1.0 0.0 dt 0.0] [0.0 1.0 0.0 dt] [0.0 0.0 1.0 0.0] [0.0 0.0 0.0 1.0]]"
    v = np.array([1.0, 2.0, np.inf, 3.0])
    for text in ("(+ (eye 4) (* dt (diag (ones 2) 2)))", "(+ (eye 4) (* dt (eye 4 4 2)))", literal):
        f = hyad.model(f"(fn [dt #^ (Vec 4) v] (@ {text} v))", namespace={})
        program = f.optimised(f.specs((0.5, v)))
        assert sum(type(b.op) is Prim and b.op.name == "*" for b in all_binds(program.body)) == 2
        np.testing.assert_array_equal(f(0.5, v), [np.inf, 3.5, np.inf, 3.0])
    by_element = hyad.model(f"(fn [dt #^ (Vec 4) v] (get (* {literal} v) 1))", namespace={})
    np.testing.assert_array_equal(by_element(0.5, v), [0.0, 2.0, np.nan, 1.5])


def test_brackets_are_an_array_to_a_function_of_the_user_s_own() -> None:
    rows = hyad.model("(fn [m] (sum m :axis 1))", namespace={})
    f = hyad.model("(fn [a b] (hstack [a b]))", namespace={"hstack": rows})
    a, b = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    for made in (f(a, b), hyad.run(f, a, b)):
        np.testing.assert_array_equal(made, [3.0, 7.0])
    assert "[a b]" in str(print_lambda(f.value.function))


@pytest.mark.some(4)
@pytest.mark.parametrize("form", [t for t in NUMPYS if "np." in t] + [
    "(maximum a 0.5)", "(minimum b a)", "(where (logical-and (> a 0) (< a 3)) a 0.0)", "(fold maximum 0.0 b)",
    "(where (logical-or (> a 2) (logical-not (> b 0.5))) a b)",
])  # fmt: skip
def test_numpys_functions_without_its_module(form: str) -> None:
    """As where a model is a text; what is bound to the name comes first."""
    a, b = np.array([[2.0, -1.0], [0.5, 3.0]]), np.array([1.0, 0.25])
    f = hyad.model(f"(fn [a b] {form})", namespace={})
    bare = {
        "maximum": np.maximum, "minimum": np.minimum, "logical_and": np.logical_and, "logical_or": np.logical_or,
        "logical_not": np.logical_not, "where": np.where, "fold": lambda f, z, v: f.reduce(v, initial=z),
    }  # fmt: skip
    wanted = hy.eval(hy.read(form), {**bare, "np": np, "a": a, "b": b})
    np.testing.assert_allclose(f(a, b), wanted, rtol=1e-14)
    np.testing.assert_allclose(hyad.run(f, a, b), wanted, rtol=1e-14)
    mine = hyad.model("(fn [a b] (maximum a b))", namespace={"maximum": hyad.model("(fn [a b] (- a b))")})
    assert mine(3.0, 1.0) == hyad.run(mine, 3.0, 1.0) == 2.0


def test_numpys_gradient_without_its_module() -> None:
    a, b = np.array([2.0, -1.0]), np.array([1.0, 0.25])
    f = hyad.model("(fn [a b] (sum (* a (maximum a b))))", namespace={})
    np.testing.assert_allclose(hyad.grad(f, wrt=(0, 1))(a, b), ([4.0, 0.25], [0.0, -1.0]))


def eval_hy(form: str, a: np.ndarray, b: np.ndarray) -> Any:
    return hy.eval(hy.read(form), {"np": np, "a": a, "b": b})


PAPER = {
    "(vector-range 3)": np.arange(3),
    "(vector-fill 2 4.0)": np.full(2, 4.0),
    "(vector-zeros 2)": np.zeros(2),
    "(vector-ones 2)": np.ones(2),
    "(vector-hot 3 1)": np.eye(3)[1],
    "(vector-map v sin)": np.sin([1.0, 2.0, 4.0]),
    "(vector-add v v)": np.array([2.0, 4.0, 8.0]),
    "(vector-sub v v)": np.zeros(3),
    "(vector-e-mul v v)": np.array([1.0, 4.0, 16.0]),
    "(vector-sum v)": 7.0,
    "(vector-dot v v)": 21.0,
    "(vector-slice v 1 2)": np.array([2.0, 4.0]),
    "(matrix-rows m)": 2,
    "(matrix-cols m)": 3,
    "(matrix-fill 1 2 5.0)": np.full((1, 2), 5.0),
    "(matrix-zeros 1 2)": np.zeros((1, 2)),
    "(matrix-ones 1 2)": np.ones((1, 2)),
    "(matrix-eye 2)": np.eye(2),
    "(matrix-hot 2 2 0 1)": np.array([[0.0, 1.0], [0.0, 0.0]]),
    "(matrix-map2 m m vector-add)": 2 * np.arange(6.0).reshape(2, 3),
    "(map (fn [row] (fold (fn [s p] (+ s (* (fst p) (snd p)))) 0.0 row)) (matrix-zip m m))": np.array([5.0, 50.0]),
    "(matrix-sub m m)": np.zeros((2, 3)),
    "(matrix-transpose m)": np.arange(6.0).reshape(2, 3).T,
    "(matrix-mul m (matrix-transpose m))": np.array([[5.0, 14.0], [14.0, 50.0]]),
    "(matrix-mult m (matrix-transpose m))": np.array([[5.0, 14.0], [14.0, 50.0]]),
    "(matrix-trace (matrix-eye 3))": 3.0,
    "(length v)": 3,
    "(snd (pair 1.0 2.0))": 2.0,
}


def test_the_papers_names() -> None:
    f = hyad.model(f"(fn [v m] #({' '.join(PAPER)}))", namespace={})
    args = (np.array([1.0, 2.0, 4.0]), np.arange(6.0).reshape(2, 3))
    program = f.optimised(f.specs(args))
    for results in (python_callable(program)(*args), hyad.run(f, *args)):
        for form, got, wanted in zip(PAPER, results, PAPER.values()):
            np.testing.assert_allclose(got, wanted, rtol=1e-14, err_msg=form)


NESTED = {
    "(sum (vec-map (fn [x] (sum (vec-map (fn [y] (* x y)) v))) v))": 49.0,
    "(sum (along (fn [c] (sum (along (fn [r] (sum r)) m 1))) m 0))": 45.0,
    "(sum (vec-map (fn [x] (if (> x 3) (sum (vec-map (fn [y] (* x y)) v)) x)) v))": 31.0,
}


@pytest.mark.parametrize("form, wanted", NESTED.items())
def test_a_function_inside_its_own_functions(form: str, wanted: float) -> None:
    f = hyad.model(f"(fn [v m] {form})", namespace={})
    args = (np.array([1.0, 2.0, 4.0]), np.arange(6.0).reshape(2, 3))
    program = f.optimised(f.specs(args))
    assert python_callable(program)(*args) == hyad.run(f, *args) == wanted


SATURATED = {
    "((grad std) [2.0 2.0])": [0.0, 0.0],
    "((grad logsumexp) [1000.0 1000.0])": [0.5, 0.5],
    "((grad logsumexp) [-1e300 0.0])": [0.0, 1.0],
    "(logsumexp (* -1e308 [10.0 10.0]))": -np.inf,
    "(log-softmax [1e200 1e200 0.0])": [-np.log(2), -np.log(2), -1e200],
    "(log-softmax [1e12 1e12])": [-np.log(2), -np.log(2)],
    "((grad (fn [q] (get (softmax q) 0))) [1000.0 -1000.0])": [0.0, 0.0],
    "((grad (fn [q] (sum (where (> q 0) (log q) 0.0)))) [0.0 1.0])": [0.0, 1.0],
    "((grad prod) [0.0 2.0 3.0])": [6.0, 0.0, 0.0],
    "((grad (fn [q] (sum (sort q)))) [1.0 1.0])": [1.0, 1.0],
    "(sort [2.0 (log -1.0) 1.0 (log -1.0) 0.5])": [0.5, 1.0, 2.0, np.nan, np.nan],
    "(argsort [2.0 (log -1.0) 1.0 (log -1.0) 0.5])": [4, 2, 0, 1, 3],
    "(median [2.0 (log -1.0) 1.0])": np.nan,
    "(quantile [2.0 (log -1.0) 1.0] 0.1)": np.nan,
    "(percentile [2.0 1.0 (log -1.0)] 0)": np.nan,
    "(searchsorted [1.0 2.0 2.0] (log -1.0))": 3,
    "(searchsorted [1.0 2.0 (log -1.0) (log -1.0)] (log -1.0))": 2,
    "(searchsorted [1.0 2.0 (log -1.0) (log -1.0)] 5.0)": 2,
    "(argmax [2.0 (log -1.0) 3.0 (log -1.0)])": 1,
    "(argmin [[2.0 1.0] [(log -1.0) 0.5]])": 2,
    "(argmax (map (fn [x] (> x 1.0)) [0.0 2.0 3.0]))": 1,
}


@pytest.mark.parametrize("form, wanted", SATURATED.items())
def test_at_the_edge(form: str, wanted: Any) -> None:
    """Equal elements, exponentials beyond all numbers, logarithms of nothing."""
    f = hyad.model(f"(fn [] {form})", namespace={})
    np.testing.assert_allclose(python_callable(f.optimised(f.specs(())))(), wanted)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(hyad.run(f), wanted)


@pytest.mark.parametrize("form", ["(sum (sum m 0))", "(sum (where (> m 2.5) m 0.0))", "(sum (flip (get m 1) 0))"])
def test_functions_of_rows_beside_an_array_that_is_changed(form: str) -> None:
    """Functions of the language that call themselves for the rows of a matrix do so where a model changes an array, of
    whatever rank that is."""
    text = f"(fn [v m] (let [w (copy v)] (ifold (fn [s i] (do (set-at! w i {form}) s)) 0 (len v)) (* x (sum w))))"
    f = hyad.model(text.replace("[v m]", "[x v m]"), namespace={})
    args = (0.5, np.ones(2), np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    wanted = hyad.run(f, *args)
    for target in ("c", "python"):
        assert hyad.compile(f, target, args=args)(*args) == wanted
    np.testing.assert_allclose(hyad.grad(f, wrt="m")(*args), hyad.run(hyad.grad(f, wrt="m"), *args))


@pytest.mark.parametrize("target", ["c", "python"])
def test_a_slice_that_would_end_before_it_begins_is_empty(target: str) -> None:
    """As Python's: of empty vectors, and from beyond the end; what reaches beyond the end is an error as before."""
    text = "(fn [#^ (Vec n) v] #((cut v 1 None) (cut v None -1) (cut v 3 None) (slice v 2 0) (slice v 4 2 2)))"
    f = hyad.compile(hyad.model(text, namespace={}), target)
    for n in (0, 1, 2, 5):
        v = np.arange(n) + 0.5
        expected = (v[1:], v[:-1], v[3:], v[2:0], v[4:2:2])
        for found in (f(v), hyad.run(text, v)):
            for got, want in zip(found, expected):
                np.testing.assert_array_equal(np.reshape(got, want.shape), want)
    with pytest.raises(BoundsError):
        hyad.compile(hyad.model("(fn [#^ (Vec n) v] (cut v 3))", namespace={}), target)(np.zeros(2))


#: Subscripts of a model, and NumPy's.
PARTS = {
    "#((slice 0 2) 1)": np.s_[0:2, 1],
    "#((slice None) 1)": np.s_[:, 1],
    "#((slice None) (slice 1 3))": np.s_[:, 1:3],
    "(slice None) (slice 1 None) 0": np.s_[:, 1:, 0],
    "1 (slice None None -1) (slice None None 2)": np.s_[1, ::-1, ::2],
    "#(-1 (slice None -1) (slice 2))": np.s_[-1, :-1, :2],
    "(slice 1 3) #(0 (slice 1 1))": np.s_[1:3, 0, 1:1],
    "#((slice None) (slice None))": np.s_[:, :],
    "#(1 2)": np.s_[1, 2],
    "(slice (- (len m) 2) (len m)) (slice None) 1": np.s_[-2:, :, 1],
    "None": np.s_[None],
    "#((slice None) None)": np.s_[:, None],
    "#(None 1 (slice None) None)": np.s_[None, 1, :, None],
    "(slice 1 3) None (slice None None -1) None 1": np.s_[1:3, None, ::-1, None, 1],
    "#([2 0] (slice 1 3))": np.s_[[2, 0], 1:3],
    "[0 0 2] (slice None None -1) (slice 1 None)": np.s_[[0, 0, 2], ::-1, 1:],
    "#([[0 1] [2 0]] (slice 1 2) 1)": np.s_[[[0, 1], [2, 0]], 1:2, 1],
    "#([1 2] [3 0] (slice 0 1))": np.s_[[1, 2], [3, 0], 0:1],
    "#(1 [3 0] (slice 0 1))": np.s_[1, [3, 0], 0:1],
    "#((slice 0 2) [3 0 0] (slice 1 2))": np.s_[0:2, [3, 0, 0], 1:2],
    "#([1 2] None (slice 1 3))": np.s_[[1, 2], None, 1:3],
    "#((slice None) None [1 2])": np.s_[:, None, [1, 2]],
}


@pytest.mark.some(6)
@pytest.mark.parametrize("subscripts", PARTS)
def test_parts_of_several_axes_are_numpys(subscripts: str) -> None:
    m = np.random.default_rng(3).normal(size=(3, 4, 2))
    wanted = m[PARTS[subscripts]]
    model = hyad.model(f"(fn [#^ (Arr Real n k l) m] (get m {subscripts}))", namespace={})
    for target in ("c", "python"):
        np.testing.assert_array_equal(hyad.compile(model, target)(m), wanted)
    np.testing.assert_array_equal(np.reshape(hyad.run(model, m), wanted.shape), wanted)
    squares = hyad.model(f"(fn [#^ (Arr Real n k l) m] (sum (square (get m {subscripts}))))", namespace={})
    slopes = np.zeros_like(m)
    np.add.at(slopes, PARTS[subscripts], 2 * wanted)
    for gradient in (hyad.compile(hyad.grad(squares))(m), hyad.run(hyad.grad(squares), m)):
        np.testing.assert_array_equal(gradient, slopes)


def test_parts_that_are_none() -> None:
    for text in ("(get m (slice) 1)", "(get m (slice 0 1 1 1))"):
        with pytest.raises(HyadError, match="slice takes one to three bounds here"):
            hyad.model(f"(fn [m] {text})", namespace={})
    with pytest.raises(HyadError, match="get takes an array and subscripts"):
        hyad.model("(fn [m] (get m #()))", namespace={})
    with pytest.raises(BoundsError):
        hyad.model("(fn [#^ (Mat n k) m] (get m (slice None) 2))", namespace={})(np.ones((3, 2)))
    for text in ("(get m [0 1] (slice 0 1) [0 1])", "(get m 0 (slice None) [0 1])"):  # NumPy would move the axes
        for call in (hyad.model(f"(fn [m] {text})"), lambda m, text=text: hyad.run(hyad.model(f"(fn [m] {text})"), m)):
            with pytest.raises(HyadError, match=r"with an index and a slice before it(?s:.)*\(get \(get a i\)"):
                call(np.ones((2, 2, 2)))
    own = hyad.model("(fn [v] (let [slice (fn [a b] (- b a))] (get v (slice 1 2))))", namespace={})
    assert own(np.array([3.0, 4.0])) == 4.0


def test_derivatives_of_differences_of_few_elements() -> None:
    model = hyad.model("(fn [#^ (Vec n) v] (sum (square (- (cut v 1 None) (cut v None -1)))))", namespace={})
    value, gradient, rows = hyad.compile(model), hyad.compile(hyad.grad(model)), hyad.compile(hyad.hessian(model))
    for source in (value.source, gradient.source, rows.source):
        assert "return 1" not in source  # no subscript is looked at
    for n in (0, 1, 2, 6):
        v = np.random.default_rng(n).normal(size=n)
        steps = np.eye(n)[1:] - np.eye(n)[:-1] if n else np.zeros((0, 0))
        np.testing.assert_allclose(value(v), np.sum(np.diff(v) ** 2), rtol=1e-14)
        np.testing.assert_allclose(gradient(v), 2 * steps.T @ (steps @ v), atol=1e-14)
        np.testing.assert_allclose(rows(v), 2 * steps.T @ steps, atol=1e-14)


def test_differences_along_the_first_axis_are_those_of_rows() -> None:
    """No column is made, and none turned round."""
    model = hyad.model("(fn [#^ (Mat n m) a] (np.diff a :axis 0))", namespace={"np": np})
    a = np.random.default_rng(1).normal(size=(5, 3))
    made = hyad.compile(model)
    np.testing.assert_array_equal(made(a), np.diff(a, axis=0))
    np.testing.assert_array_equal(hyad.run(model, a), np.diff(a, axis=0))
    assert "work" not in made.source and made.source.count("for (") == 2


@pytest.mark.parametrize("sizes", [(7, 3), (3, 7), (1, 4), (4, 1), (5, 5)])
def test_a_convolution_takes_the_products_alone(sizes: tuple[int, int]) -> None:
    """As many steps as there are products of two elements, in loops without a condition."""
    model = hyad.model("(fn [#^ (Vec n) u #^ (Vec k) v] (np.convolve u v))", namespace={"np": np})
    u, v = (np.random.default_rng(2).normal(size=n) for n in sizes)
    made = hyad.compile(model)
    for got in (made(u, v), hyad.run(model, u, v)):
        np.testing.assert_allclose(got, np.convolve(u, v), rtol=1e-14, atol=1e-15)
    assert hyad.check_grad(hyad.model("(fn [#^ (Vec n) u #^ (Vec k) v] (sum (sin (convolve u v))))"), (u, v))
    assert made.source.count("for (") == 2 and "?" not in made.source.split("int f(")[1]


def test_halves_are_in_range() -> None:
    """No subscript is looked at where a quotient bounds it: maxima of squares of four."""
    text = """(fn [#^ (Mat n m) a]
                (build [(// (len a) 2) (// (shape a 1) 2)]
                  (fn [i j]
                    (let [i2 (* 2 i)  j2 (* 2 j)]
                      (max (get a i2 j2) (get a i2 (+ j2 1)) (get a (+ i2 1) j2) (get a (+ i2 1) (+ j2 1)))))))"""
    f = hyad.compile(hyad.model(text, namespace={}))
    assert "return 1" not in f.source
    a = np.random.default_rng(1).normal(size=(7, 4))
    np.testing.assert_array_equal(f(a), a[:6].reshape(3, 2, 2, 2).max((1, 3)))


def test_the_larger_and_the_smaller_index_where_it_is_known_which() -> None:
    text = """(fn [#^ (Vec n) v #^ Int k]
                (build [(len v) (len v)]
                  (fn [i j]
                    (if (< i j)
                      (+ (* 100 (get v (min i j))) (* 10 (get v (max j i))) (real (min (len v) (+ i k))))
                      (- (get v (min j i)) (get v (max i j)))))))"""
    v, k = np.array([3.0, 5.0, 8.0, 7.0]), 2
    upper = np.triu(np.ones((4, 4)), 1)
    expected = upper * (100 * v[:, None] + 10 * v + np.minimum(4, np.arange(4) + k)[:, None])
    expected += (1 - upper) * (v - v[:, None])
    np.testing.assert_array_equal(hyad.compile(hyad.model(text, namespace={}))(v, k), expected)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ('(einsum "ij,jk->iz" v v)', "no operand has the axis z"),
        ('(einsum "ij->ii" v)', "the result has an axis twice"),
        ('(einsum "i,i" v)', "these are the axes of 2 operands, and 1 is given"),
        ('(einsum "i...->i" v)', "axes are letters"),
        ('(einsum "ij,j" v v)', "must be equal"),
    ],
)
def test_sums_by_the_names_of_axes_that_do_not_fit(form: str, said: str) -> None:
    with pytest.raises(HyadError, match=re.escape(said)):
        hyad.model(f"(fn [v] {form})")(np.ones(3))


def test_a_product_by_the_names_of_axes_is_the_product_of_matrices() -> None:
    """The same C but for its comments: what makes products quick finds it."""
    args = (np.ones((5, 6)), np.ones((6, 4)))
    texts = []
    for product in ('(einsum "ik,kj->ij" a b)', "(mat-mul a b)"):
        f = hyad.model(f"(fn [#^ (Mat n m) a #^ (Mat m k) b] (sum (square {product})))")
        source = hyad.compile(hyad.grad(f, wrt=(0, 1)), args=args).source
        texts.append([line.partition("//")[0].rstrip() for line in source.partition("row-major")[2].splitlines()])
    assert texts[0] == texts[1] and sum("for (" in line for line in texts[0]) > 2


def test_what_is_correlated_with_is_the_shorter() -> None:
    """One element more than the other has, it gave nothing."""
    f = hyad.model("(fn [u v] (correlate u v))", namespace={})
    np.testing.assert_array_equal(f(np.ones(3), np.ones(3)), [3.0])
    for call in (f, lambda *args: hyad.run(f, *args)):
        with pytest.raises(BoundsError, match="in `correlate`|index -1"):
            call(np.ones(2), np.ones(3))


@pytest.mark.some(6)
@pytest.mark.parametrize("k", [-3, -1, 0, 2])
def test_a_negative_power_of_a_matrix_is_one_of_its_inverse(k: int) -> None:
    """It was the identity: a loop with a count below 1 gives its start."""
    m = np.array([[2.0, 1.0], [0.5, 3.0]])
    for text in (f"(fn [m k] (matrix-power m {k}))", "(fn [m #^ Int k] (matrix-power m k))"):
        f = hyad.model(text, namespace={})
        np.testing.assert_allclose(f(m, k), np.linalg.matrix_power(m, k), rtol=1e-14)
        np.testing.assert_allclose(hyad.run(f, m, k), np.linalg.matrix_power(m, k), rtol=1e-14)
        hyad.check_grad(f, (m, k))


def test_a_vector_product_is_of_three_numbers() -> None:
    """A fourth was not read."""
    f = hyad.model("(fn [u v] (cross u v))", namespace={})
    for call in (f, lambda *args: hyad.run(f, *args)):
        with pytest.raises(HyadError):
            call(np.ones(4), np.ones(4))


def test_places_in_order_for_many_numbers() -> None:
    f, v, x = hyad.model("(fn [v x] (searchsorted v x))", namespace={}), np.arange(4.0), np.array([-1, 0.5, 2, 9])
    for call in (f, lambda *args: hyad.run(f, *args)):
        np.testing.assert_array_equal(call(v, x), np.searchsorted(v, x))


def test_what_scipy_means_by_a_name_is_not_what_numpy_does() -> None:
    """`scipy.linalg.cholesky` gives the upper triangle, `scipy.signal.correlate` the places beyond the ends, too."""
    import scipy.signal

    for text in ("(fn [m] (scipy.linalg.cholesky m))", "(fn [m] (scipy.signal.correlate (get m 0) (get m 1)))"):
        with pytest.raises(HyadError, match="is a Python function"):
            hyad.compile(hyad.model(text, namespace={"scipy": scipy}), args=(np.eye(2),))


def test_rows_are_moved_as_rows() -> None:
    """Along the first axis whole rows move: nothing is transposed, and so nothing is stored on the way."""
    m = np.arange(12.0).reshape(3, 4)
    f = hyad.model("(fn [a] (+ a (roll a 1 0) (roll a -1 0) (flip a 0)))", namespace={})
    compiled = hyad.compile(f, args=[m])
    np.testing.assert_array_equal(compiled(m), m + np.roll(m, 1, 0) + np.roll(m, -1, 0) + np.flip(m, 0))
    assert "work" not in compiled.source
    cube = np.arange(24.0).reshape(2, 3, 4)
    for text, wanted in [
        ("(pad a [1 2])", np.pad(cube, [1, 2])),
        ("(repeat a 2 0)", np.repeat(cube, 2, 0)),
        ("(roll a 2 -2)", np.roll(cube, 2, -2)),
        ("(flip a 1)", np.flip(cube, 1)),
    ]:
        f = hyad.model(f"(fn [a] {text})", namespace={})
        np.testing.assert_array_equal(hyad.run(f, cube), wanted)
        np.testing.assert_array_equal(hyad.compile(f, args=[cube])(cube), wanted)
        assert hyad.check_grad(hyad.model(f"(fn [a] (let [b {text}] (sum (* b (square b)))))", namespace={}), [cube])


def test_rows_found_by_an_index_are_read_where_they_are_used() -> None:
    """Scores of a matrix factorisation: no row is copied, all indices are checked first."""
    f = hyad.model(
        """(fn [U V #^ (Arr Int n) I #^ (Arr Int n) J r]
          (sum (square (- (sum (* (gather U I) (gather V J)) 1) r))))""",
        namespace={},
    )
    rng = np.random.default_rng(5)
    U, V, r = rng.normal(size=(7, 3)), rng.normal(size=(5, 3)), rng.normal(size=21)
    at, to = rng.integers(0, 7, 21), rng.integers(0, 5, 21)
    compiled = hyad.compile(f, args=(U, V, at, to, r))
    assert "work" not in compiled.source and "lane" not in compiled.source
    np.testing.assert_allclose(compiled(U, V, at, to, r), np.sum((np.sum(U[at] * V[to], 1) - r) ** 2), rtol=1e-13)
    assert hyad.check_grad(f, (U, V, at, to, r))
    for which, bad in ((2, 7), (2, -1), (3, 5)):
        args = [U, V, at.copy(), to.copy(), r]
        args[which][20] = bad
        with pytest.raises(hyad.HyadError, match="outside axis 0"):
            compiled(*args)


WRONG = {
    "(quantile a 1.5)": "parts from 0 to 1",
    "(quantile a (get a 0))": "parts from 0 to 1",
    "(percentile a -1.0)": "parts from 0 to 1",
    "(var [a a] :axis #(0 0))": "no axis 2",
    "(sum [a a] #(0 5))": "no axis 5",
    "(var [a a] :axis #(1 -1))": "no axis 2",
    "(norm a :ddof 1)": "unknown option `:ddof`",
    "(sum (stack #(a 1.0)))": "mixes numbers and arrays",
}


@pytest.mark.some(3)
@pytest.mark.parametrize("form", WRONG)
def test_what_numpy_does_not_take_either(form: str) -> None:
    for call in (lambda m, a: m(a), hyad.run):
        with pytest.raises(HyadError, match=WRONG[form]):
            call(hyad.model(f"(fn [a] {form})", namespace={}), np.array([-3.0, 1.0, 2.0]))


def test_parts_of_few_rows_have_their_size() -> None:
    """Also define by run, where no row is left."""
    text = "(fn [m] #((get m (slice 1 None)) (get m (slice 3 3)) (map square (get m (slice 1 None)))))"
    for found in (hyad.model(text, namespace={})(np.ones((1, 5))), hyad.run(text, np.ones((1, 5)))):
        assert [np.shape(x) for x in found] == [(0, 5)] * 3


def test_axes_of_size_one_are_left_out_where_the_program_says_which_they_are() -> None:
    m = np.arange(6.0).reshape(2, 3)
    for text, wanted in {
        "(squeeze m)": m,
        "(squeeze (get m (slice i (+ i 1))))": m[1],
        "(squeeze (sum m :axis 1 :keepdims True))": m.sum(1),
        "(.squeeze (get m #((slice 1 2) (slice 0 1))))": m[1, 0],
        "(squeeze (expand-dims (zeros [0 3]) 1))": np.zeros((0, 3)),
        "(squeeze i)": 1,
    }.items():
        f = hyad.model(f"(fn [m #^ Int i] {text})", namespace={})
        for got in (f(m, 1), hyad.run(f, m, 1)):
            assert np.array_equal(got, wanted) and np.shape(got) == np.shape(wanted), text
    f = hyad.model("(fn [m] (squeeze m))", namespace={})
    for one in (m[:1], np.ones((3, 1))):
        with pytest.raises(HyadError, match=r"`squeeze` names no axis(?s:.)*in this call `m` has shape"):
            f(one)
        assert np.array_equal(hyad.run(f, one), np.squeeze(one))


@pytest.mark.parametrize(
    "text",
    [
        "(fn [v] (get v [-1]))",
        "(fn [v] (get v (- 0 1)))",
        "(fn [v] (let [n (len v)] (get v (- n (+ n 1)))))",
        "(fn [v] (loop [i 0 s 0.0] (if (< i 2) (recur (+ i 1) (+ s (get v (- i 1)))) s)))",
        "(fn [v] (let [f (fn [i] (get v (- i 1)))] (+ (f 0) (f 1))))",
        "(fn [v] (fold (fn [s i] (+ s (get v (- i (+ i 2))))) 0.0 (arange 3)))",
        "(fn [v] (sum (map (fn [r] (get r (- (len r) 4))) [v v])))",
        "(fn [v] (take v [-1] 0))",
        "(fn [v] (update v (- 1 2) 5.0))",
        "(fn [v] (let [w (copy v)] (set-at! w (- 0 1) 5.0) w))",
        "(fn [v] (get #(1.0 2.0) (- 0 1)))",
    ],
)
def test_only_negative_literals_count_from_the_end(text: str) -> None:
    """Not what is computed, also where that is known before the model runs."""
    f, v = hyad.model(text, namespace={}), np.array([1.0, 2.0, 3.0])
    for call in (f, lambda v: hyad.run(f, v)):
        with pytest.raises(BoundsError, match="outside|no element"):
            call(v)


@pytest.mark.parametrize(
    "text, numpy",
    [
        ("(roll v [1 2])", lambda v, t: np.roll(v, [1, 2])),
        ("(roll t [1 2 4])", lambda v, t: np.roll(t, [1, 2, 4])),
        ("(roll t [1 2] :axis 1)", lambda v, t: np.roll(t, 3, axis=1)),
        ("(mean t :axis #(0 -1) :keepdims True)", lambda v, t: t.mean((0, -1), keepdims=True)),
        ("(std t :axis #(-1 1) :keepdims True)", lambda v, t: t.std((-1, 1), keepdims=True)),
        ("(expand-dims v #(0 2))", lambda v, t: np.expand_dims(v, (0, 2))),
        ("(expand-dims v #(-1 0))", lambda v, t: np.expand_dims(v, (-1, 0))),
        ("(median (* 1e308 [1.0 1.0 0.1]))", lambda v, t: 1e308),
    ],
)
def test_as_in_numpy(text: str, numpy) -> None:
    f = hyad.model(f"(fn [v t] {text})", namespace={})
    v, t = np.array([1.0, 5.0, 2.0, 4.0]), np.arange(24.0).reshape(2, 3, 4)
    for call in (f, lambda v, t: hyad.run(f, v, t)):
        np.testing.assert_allclose(call(v, t), numpy(v, t), rtol=1e-14)


@pytest.mark.parametrize(
    "text, message",
    [
        ("(interp 0.5 v (cut v 0 2))", "as many xs as ys"),
        ("(convolve v (cut v 0 0))", "`convolve` of an array without elements"),
        ("(quantile v (get v 1))", "parts from 0 to 1"),
        ("(sum (real (arange 5 0 (- (len v) 4))))", "a step of `arange` is 0"),
        ("(sum (pad v (- 3 (len v))))", "no negative widths"),
        ("(sum (cut v None None 0))", "a step of `slice` is 0"),
        ("(sum (cut v 0 None (- (len v) 4)))", "a step of `slice` is 0"),
    ],
)
def test_what_a_function_does_not_take(text: str, message: str) -> None:
    """It is said of the function, compiled or not."""
    f, v = hyad.model(f"(fn [v] {text})", namespace={}), np.array([1.0, 5.0, 2.0, 4.0])
    for call in (f, lambda v: hyad.run(f, v)):
        with pytest.raises(HyadError, match=message):
            call(v)


@pytest.mark.parametrize("part", ["(slice None)", "(slice None) (slice None)", "0 (slice None)", "(slice 0 2)"])
def test_a_slice_is_a_copy(part: str) -> None:
    """Also one of all of an axis: of an array that is changed in place it stays as it was."""
    f = hyad.model(f"(fn [m] (let [u (copy m)  r (get u {part})] (set-at! u 0 9.0) (sum r)))", namespace={})
    m = np.arange(6.0).reshape(2, 3)
    wanted = m[0].sum() if part.startswith("0") else m.sum()
    assert f(m) == hyad.run(f, m) == wanted


@pytest.mark.parametrize(
    "ends", ["(* h w) (* (+ h 1) w)", "(* w h) (* w (+ 1 h))", "(* h w) (+ (* h w) w)", "(* (- h 1) w) (* h w)"]
)
def test_parts_of_equal_length(ends: str) -> None:
    """The heads of attention, as slices whose ends are multiples of their length."""
    first = "(range 1 (+ k 1))" if "- h" in ends else "(range k)"
    f = hyad.model(
        f"""(fn [#^ (Mat n d) q #^ Int k] (let [w (// d k) s (ref 0.0)]
          (for [h {first}]
            (let [part (get q (slice None) (slice {ends}))] (set! s (+ (deref s) (* h (sum (square part)))))))
          (+ (deref s) (sum (build k (fn [h] (get q (slice None) (slice (* h w) (* (+ h 1) w)))))))))""",
        namespace={},
    )
    q = np.sin(np.arange(24.0)).reshape(3, 8)
    for k in (1, 2, 4):
        parts = np.split(q, k, axis=1)
        want = sum((h + ("- h" in ends)) * (part**2).sum() for h, part in enumerate(parts)) + q.sum()
        assert f(q, k) == pytest.approx(want, rel=1e-13)
    assert hyad.check_grad(f, (q, 2), wrt=0)
    with pytest.raises(hyad.HyadError, match="made where these are"):
        hyad.model("(fn [#^ (Vec n) x] (sum (map sum (build 4 (fn [i] (slice x 0 i))))))", namespace={})(np.ones(5))
