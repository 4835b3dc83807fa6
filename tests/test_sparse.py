"""Sparse Jacobians and Hessians: the numbers of the dense ones, and no more entries than there need be."""

from __future__ import annotations

import os

import numpy as np
import pytest
import scipy.sparse

import hyad

RNG = np.random.default_rng(7)


def dense(parts: object, rows: int) -> np.ndarray:
    """Blocks of a dense Jacobian by one argument, or several, as one matrix."""
    blocks = parts if isinstance(parts, tuple) else (parts,)
    return np.concatenate([np.reshape(b, (rows, np.size(b) // max(rows, 1))) for b in blocks], 1)


def agree(text: str, args: tuple, wrt: object = 0, entries: int | None = None, passes: str | None = None) -> None:
    """The sparse Jacobian is the dense one; it stores ``entries`` numbers and is computed as ``passes`` says."""
    f = hyad.model(text)
    sparse = hyad.sparse_jacobian(f, wrt)
    found = sparse(*args)
    assert isinstance(found, scipy.sparse.csr_array) and found.has_canonical_format
    rows = np.size(hyad.run(f, *args))
    assert found.shape[0] == rows
    wanted = dense(hyad.run(hyad.jacobian(f, wrt), *args), rows)
    np.testing.assert_allclose(found.toarray(), wanted, rtol=1e-12, atol=1e-12)
    if entries is not None:
        assert found.nnz == entries
    if passes is not None:
        assert sparse.how(*args) == passes


JACOBIANS = {
    "diagonal": ("(fn [x] (map (fn [a] (* a (sin a))) x))", 9, 9),
    "banded": ("(fn [x] (build (- (len x) 1) (fn [i] (* (get x i) (get x (+ i 1))))))", 9, 16),
    "tridiagonal with ends": (
        "(fn [x] (let [n (len x)] (build n (fn [i] (+ (* 2 (get x i))"
        " (if (= i 0) 0.0 (exp (get x (- i 1)))) (if (= i (- n 1)) 0.0 (sin (get x (+ i 1)))))))))",
        9,
        25,
    ),
    "two steps": (
        "(fn [x] (let [y (map (fn [a] (* a a)) x)] (build (- (len x) 2) (fn [i] (* (get y i) (get y (+ i 2)))))))",
        9,
        14,
    ),
    "a dense row": ("(fn [x] [(fold (fn [s a] (+ s (* a a))) 0.0 x) (get x 0) (get x 3)])", 9, 11),
    "all": ("(fn [x] (let [s (fold + 0.0 x)] (map (fn [a] (* a s)) x)))", 6, 36),
    "running sums": ("(fn [x] (scan (fn [s a] (+ s (* a a))) 0.0 x))", 6, None),
    "strided": ("(fn [x] (build (// (len x) 2) (fn [i] (* (get x (* 2 i)) (get x (+ 1 (* 2 i)))))))", 9, 8),
    "branches by value": ("(fn [x] (map (fn [a] (if (> a 0.0) (* a a) (sin a))) x))", 9, 9),
    "a chosen element": ("(fn [x] (build (len x) (fn [i] (get x (int (abs (* 3 (sin (get x i)))))))))", 9, 81),
    "heat": (
        "(fn [x] (ifold (fn [u t] (build (len u) (fn [i] (if (or (= i 0) (= i (- (len u) 1))) (get u i)"
        " (+ (get u i) (* 0.1 (get u (- i 1)) (get u (+ i 1)))))))) x 2))",
        12,
        None,
    ),
    "triangular": (
        "(fn [x] (build (len x) (fn [i] (ifold (fn [s k] (+ s (* (get x k) (get x i)))) 0.0 (+ i 1)))))",
        7,
        28,
    ),
    "set in place": (
        "(fn [x] (ifold (fn [v i] (update v (+ i 1) (* (get x i) (get x (+ i 1))))) (build (len x) (fn [i] 0.0))"
        " (- (len x) 1)))",
        9,
        16,
    ),
    "differences": ("(fn [x] (fst (ifold (fn [p i] #((update (fst p) i (- (get x i) (snd p))) (get x i)))"
        " #((build (len x) (fn [i] 0.0)) 1.0) (len x))))", 7, 13),
    "a number": ("(fn [x] (* (get x 0) (get x 2)))", 5, 2),
    "constant": ("(fn [x] (build (len x) (fn [i] 1.0)))", 5, 0),
    "floor": ("(fn [x] (map (fn [a] (+ a (floor a))) x))", 5, 5),
    "while": ("(fn [x] (let [r (ref 0.0) i (ref 0)] (while (< (deref i) 3) (set! r (+ (deref r) (get x (deref i))))"
        " (set! i (+ (deref i) 1))) [(deref r) (get x 4)]))", 6, None),
}  # fmt: skip


@pytest.fixture(params=["blocks", "passes"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to compute the numbers, where there are two."""
    if request.param == "passes":
        monkeypatch.setattr("hyad.sparse.entries", lambda program, wrt: None)


@pytest.mark.parametrize("name", JACOBIANS)
def test_jacobian(name: str, way: None) -> None:
    text, n, entries = JACOBIANS[name]
    agree(text, (RNG.uniform(-1, 1, n),), entries=entries)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few(n: int, way: None) -> None:
    for text in (JACOBIANS["diagonal"][0], "(fn [x] (build (len x) (fn [i] (* (get x 0) (get x i)))))"):
        agree(text, (RNG.uniform(-1, 1, n),))


HESSIANS = {
    "separable": ("(fn [x] (fold + 0.0 (map (fn [a] (* a a (sin a))) x)))", 8, 8),
    "rosenbrock": (
        "(fn [x] (ifold (fn [s i] (+ s (* 100 (** (- (get x (+ i 1)) (** (get x i) 2)) 2)) (** (- 1 (get x i)) 2)))"
        " 0.0 (- (len x) 1)))",
        9,
        25,
    ),
    "arrow": ("(fn [x] (ifold (fn [s i] (+ s (* (get x 0) (exp (get x i))))) 0.0 (len x)))", 9, 25),
    "squared sum": ("(fn [x] (** (fold + 0.0 x) 2))", 6, 36),
    "product": ("(fn [x] (fold * 1.0 x))", 5, None),
    "linear": ("(fn [x] (fold + 0.0 x))", 5, 0),
    "through an array": (
        "(fn [x] (let [y (map sin x)] (ifold (fn [s i] (+ s (* (get y i) (get y (+ i 2))))) 0.0 (- (len x) 2))))",
        9,
        None,
    ),
    "of a part": ("(fn [x] (* (get x 1) (get x 2)))", 6, 2),
    "grid": (
        "(fn [x] (ifold (fn [s i] (ifold (fn [s j] (+ s (** (- (get x (+ (* 4 i) j)) (get x (+ (* 4 i) j 1))) 4)"
        " (** (- (get x (+ (* 4 i) j)) (get x (+ (* 4 (+ i 1)) j))) 4))) s 3)) 0.0 3))",
        16,
        None,
    ),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_hessian(name: str) -> None:
    text, n, entries = HESSIANS[name]
    x, f = RNG.uniform(-1, 1, n), hyad.model(text)
    found = hyad.sparse_hessian(f)(x)
    assert isinstance(found, scipy.sparse.csr_array)
    np.testing.assert_allclose(found.toarray(), hyad.run(hyad.hessian(f), x), rtol=1e-11, atol=1e-12)
    assert entries is None or found.nnz == entries


# ------------------------------------------------------------------------------------ random programs


class Random:
    """A model of a vector x, a matrix y [_, 2] and integers p, drawn at random: loops over loops, arrays of arrays'
    elements, subscripts by integers, branches on both."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.arrays = ["x"]

    def one(self, *choices: str) -> str:
        return choices[self.rng.integers(len(choices))]

    def index(self, i: str) -> str:
        shift = self.rng.integers(4)
        return self.one(i, f"(% (+ {i} {shift}) n)", f"(get p {i})", f"(- n (+ {i} 1))", f"(// {i} 2)", f"{shift}")

    def real(self, i: str, depth: int) -> str:
        kind = self.rng.integers(9 if depth else 3)
        if kind < 2:
            return f"(get {self.one(*self.arrays)} {self.index(i)})"
        if kind == 2:
            return self.one(f"(get y {self.index(i)} {self.rng.integers(2)})", "0.5", f"(real {i})")
        if kind == 3:
            return f"({self.one('sin', 'exp', 'neg', 'floor')} {self.real(i, depth - 1)})".replace("neg", "-")
        if kind == 4:
            test = self.one(f"(< {i} 2)", f"(= (% {i} 2) 0)", f"(> {self.real(i, 0)} 0.1)")
            return f"(if {test} {self.real(i, depth - 1)} {self.real(i, depth - 1)})"
        if kind == 5:
            k, count = i + "k", self.one("2", f"(% {i} 3)", "n")
            return f"(ifold (fn [s {k}] ({self.one('+', '*')} s {self.real(k, depth - 1)})) {self.real(i, 0)} {count})"
        return f"({self.one('+', '*', '-')} {self.real(i, depth - 1)} {self.real(i, depth - 1)})"

    def array(self, depth: int) -> str:
        kind = self.rng.integers(6)
        if kind == 0:
            return f"(scan (fn [s a] (+ (* 0.5 s) a)) 0.0 {self.one(*self.arrays)})"
        if kind == 1:
            body = self.real("i", depth)
            return f"(ifold (fn [v i] (update v {self.index('i')} {body})) {self.one(*self.arrays)} n)"
        if kind == 2:
            return f"(ifold (fn [v t] (build n (fn [i] (+ (get v {self.index('i')}) {self.real('i', 0)})))) x 2)"
        return f"(build n (fn [i] {self.real('i', depth)}))"

    def text(self, scalar: bool) -> str:
        lets = []
        for name in ("u", "v")[: self.rng.integers(3)]:
            lets.append(f"{name} {self.array(2)}")
            self.arrays.append(name)
        body = f"(fold (fn [s a] (+ s (* a (sin a)))) 0.0 {self.array(2)})" if scalar else self.array(2)
        return f"(fn [x #^ (Mat m 2) y p] (let [n (len x) {' '.join(lets)}] {body}))"


COUNT, FIRST = int(os.environ.get("HYAD_SPARSE_PROGRAMS", 8)), int(os.environ.get("HYAD_SPARSE_SEED", 0))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_programs(seed: int) -> None:
    made = Random(seed)
    text = made.text(scalar=seed % 2 == 1)
    n = 4 + seed % 3
    args = made.rng.uniform(0.2, 1, n), made.rng.uniform(0.2, 1, (n, 2)), made.rng.integers(0, n, n)
    f = hyad.model(text)
    agree(text, args, ("x", "y"))
    if seed % 2:
        found = hyad.sparse_hessian(f, "x")(*args).toarray()
        wanted = hyad.run(hyad.hessian(f, "x"), *args)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9 * (1 + abs(wanted).max()), err_msg=text)
