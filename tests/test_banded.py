"""Matrices that have few diagonals by the way they are made: which are known to, and what is made of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import hyad
import oracle
from hyad import gpu
from hyad.codegen.grid import print_grid
from hyad.emulate import Emulator

HEAD = "(fn [#^ (Mat n n) g #^ (Vec n) x #^ (Vec n) y r] "
#: By name: the matrix, and how many diagonals there may be below the main one and above.
BANDED = {
    "a cond": ("(build [n n] (fn [i j] (cond (= i j) (+ 4 (get x i)) (= (abs (- i j)) 1) (* r (get y j)) True 0.0)))",
               (1, 1)),
    "one side": ("(build [n n] (fn [i j] (cond (= i j) 3.0 (= (- i j) 1) (get y j) True 0.0)))", (1, 0)),
    "np": ("(+ (* (+ 4 r) (np.eye n)) (* 0.5 r (+ (np.eye n n 1) (np.eye n n -1))))", (1, 1)),
    "np.diag": ("(+ (np.diag (+ 3 x)) (np.diag (cut y 0 -1) 1) (np.diag (cut x 1 None) -1))", (1, 1)),
    "at most": ("(build [n n] (fn [i j] (if (<= (abs (- i j)) 2) (+ (if (= i j) 5 0) (sin (* j (get y i)))) 0.0)))",
                (2, 2)),
    "less, more": ("(build [n n] (fn [i j] (if (and (< (- j i) 3) (> 2 (- i j))) (+ (if (= i j) 4 0) (get x j)) 0)))",
                   (1, 2)),
    "or": ("(build [n n] (fn [i j] (if (or (= j i) (= j (+ i 2))) (+ 3 (get x i)) 0.0)))", (0, 2)),
    "not": ("(build [n n] (fn [i j] (if (or (> i (+ j 1)) (not (<= j i))) 0.0 (+ 3 (* (get x i) (get y j))))))",
            (1, 0)),
    "a condition by a branch": (
        "(build [n n] (fn [i j] (if (if (< i j) (= j (+ i 1)) (= i j)) (+ 2 (get x i)) 0.0)))",
        (0, 1),
    ),
    "a condition for nothing": (
        "(build [n n] (fn [i j] (if (if (<= (abs (- i j)) 1) (< (get x i) 9.0) False) (+ j (if (= i j) 3 0)) 0.0)))",
        (1, 1),
    ),
    "the other arm": ("(build [n n] (fn [i j] (if (!= i j) 0.0 (+ 2 (exp (get x i))))))", (0, 0)),
    "a mask": ("(* (+ (eye n) (eye n n 1)) (+ 4 (outer x y)))", (0, 1)),
    "sums of several": (
        """(build [n n] (fn [i j] (+ (ifold (fn [s k] (+ s (if (= j (+ i k)) 2.0 0.0))) 0.0 2)
             (ifold (fn [s k] (+ s (if (= i (+ j k)) (get x j) 0.0))) 0.0 3)
             (ifold (fn [s k] (+ s (if (= j (+ i k)) 2.0 0.0))) 0.0 4))))""",
        (2, 3),
    ),
    "a transpose": ("(transpose (+ (* 3 (eye n)) (* (eye n n 2) (exp y))))", (2, 0)),
    "a product": ("(let [d (np.diff (eye n) :axis 0)] (+ (eye n) (* (square r) (@ d.T d))))", (1, 1)),
    "a product of products": ("(let [d (+ (eye n) (* 0.2 (eye n n 1)))] (@ (@ d d) d))", (0, 3)),
    "triangles": ("(+ (* 4 (eye n)) (triu (tril g 1) -1))", (1, 1)),
    "zeros and ones": ("(map (fn [row k] (map (fn [e s] (* e (+ 2 (* 0.1 s)))) row x)) (eye n) y)", (0, 0)),
    "in place": ("""(let [a (np.zeros [n n])]
        (for [e (range n)]
          (set-at! a e e (+ (get a e e) 2.5 (get x e)))
          (when (< e (- n 1))
            (set-at! a e (+ e 1) (- (get y e)))
            (set-at! a (+ e 1) e (- (get a (+ e 1) e) (get x e)))))
        (set-at! a 0 0 1.0)
        a)""", (1, 1)),
    "elements of four": ("""(let [a (* 4 (eye n))]
        (for [e (range (- n 1))] (for [p (range 2)] (for [q (range 2)]
          (set-at! a (+ e p) (+ e q) (+ (get a (+ e p) (+ e q)) (* (get x e) (if (= p q) 1.0 -1.0)))))))
        (when (> n 1) (set-at! a -1 -1 3.0))
        a)""", (1, 1)),
    "in a while": ("""(let [a (* 2 (eye n))  i (ref 1)]
        (while (< (deref i) n) (set-at! a (deref i) (- (deref i) 1) 0.5) (set! i (+ (deref i) 1))) a)""", (1, 0)),
    "by a branch": ("(if (> r 0) (* 2 (eye n)) (+ (* 3 (eye n)) (eye n n 1)))", (0, 1)),
    "one of a stack": ("(get [(* 2 (eye n)) (+ (* 3 (eye n)) (* r (eye n n -1)))] 1)", (1, 0)),
    "wide": ("(build [n n] (fn [i j] (if (<= (abs (- i j)) 6) (+ (if (= i j) 9 0) (cos (+ (* i r) j))) 0.0)))", (6, 6)),
}  # fmt: skip
FULL = {
    "an argument": "g",
    "a triangle": "(tril g)",
    "sums of other lengths": """(build [n n] (fn [i j] (+
        (ifold (fn [s k] (+ s (if (= j (+ i k)) 1.0 0.0))) 0.0 3)
        (ifold (fn [s k] (+ s (if (= j (+ i k)) 1.0 0.0))) 0.0 n))))""",
    "a ring": "(build [n n] (fn [i j] (if (or (= i j) (= i (% (+ j 1) n))) 2.0 0.0)))",
    "beside the diagonal": "(build [n n] (fn [i j] (if (>= (abs (- i j)) 1) 1.0 0.0)))",
    "the other condition": "(build [n n] (fn [i j] (if (= (abs (- i j)) 1) 0.0 1.0)))",
    "not on a diagonal": "(build [n n] (fn [i j] (if (< (+ i j) 3) 1.0 0.0)))",
    "by a product of subscripts": "(build [n n] (fn [i j] (if (and (<= (* i j) i) (<= i (+ j 1))) 2.0 0.0)))",
    "by a number that may be negative": "(build [n n] (fn [i j] (if (<= i (+ j (floor (* 2 r)))) 2.0 0.0)))",
    "a quotient by zeros": "(/ 1.0 (+ (eye n) (eye n n 1)))",
    "an exponential": "(exp (eye n))",
    "a number added": "(+ 1 (eye n))",
    "by numbers": "(build [n n] (fn [i j] (if (< (get x i) (get x j)) 1.0 0.0)))",
    "rows exchanged": "(let [a (* 2 (eye n)) row (copy (get a 0))] (set-at! a 0 (get a -1)) (set-at! a -1 row) a)",
    "one element anywhere": "(let [a (* 2 (eye n))] (set-at! a 0 (- n 1) 1.0) a)",
    "moved in each iteration": """(ifold (fn [a k] (build [n n] (fn [i j] (if (> j 0) (get a i (- j 1)) 0.0))))
        (eye n) 3)""",
    "two states, exchanged": """(fst (ifold (fn [s k] (let [#(a b) s] #((update b 0 0 1.0) a))) #((eye n) g) 2))""",
    "a product of it": "(@ g (eye n) g)",
    "an inverse": "(inv (+ (* 4 (eye n)) (eye n n 1)))",
    "a product over states": "(ifold (fn [p k] (@ p (+ (eye n) (eye n n 1)))) (eye n) 3)",
}
ASK = "(let [w (band-of {})] (if (null? w) -1.0 (real (+ (* 100 (fst w)) (snd w)))))"


def given(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    rng = np.random.default_rng(n + 1)
    return rng.uniform(-1, 1, size=(n, n)), rng.uniform(-1, 1, size=n), rng.uniform(-1, 1, size=n), 0.7


@pytest.mark.some(4)
@pytest.mark.parametrize("name", [*BANDED, *FULL])
def test_what_is_known_of_a_matrix(name: str) -> None:
    """And what is said to be zero is."""
    text, wanted = BANDED.get(name) or (FULL[name], None)
    f = hyad.model(f"{HEAD} {ASK.format(text)})", namespace={})
    assert f(*given(5)) == (-1 if wanted is None else 100 * wanted[0] + wanted[1])
    assert hyad.run(f, *given(5)) == -1  # a matrix that is there does not say how it was made
    if wanted is not None:
        made = hyad.model(f"{HEAD} {text})", namespace={})(*given(9))
        i, j = np.nonzero(made)
        assert max(i - j) <= wanted[0] and max(j - i) <= wanted[1]
    small = hyad.model(f"{HEAD} {ASK.format(text)})".replace("n n", "4 4").replace("Vec n", "Vec 4"), namespace={})
    if name == "wide":
        assert small(*given(4)) == -1  # most diagonals of so small a matrix


SYSTEMS = [
    "(+ (sum (sin (solve m x))) (sum (@ (solve m g) y)))",
    "(+ (@ x (inv m) y) (sum (sin (solve (transpose m) y))))",
]
OTHERS = [
    "(+ (sum (sin (+ (@ m x) (@ x m) (@ (@ m g) y)))) (logdet m))",
    "(+ (sum (sin (+ (@ (@ g m) y) (@ (@ m m) y)))) (det (* 0.4 m)))",
]


@pytest.mark.some(36)
@pytest.mark.parametrize("use", [*SYSTEMS, *OTHERS])
@pytest.mark.parametrize("name", BANDED)
def test_the_same_as_of_any_other_matrix(name: str, use: str) -> None:
    """Values and derivatives, forward and backward, are those of the program that knows nothing of diagonals."""
    f = hyad.model(f"{HEAD} (let [m {BANDED[name][0]}] {use}))", namespace={})
    by = ("g", "x", "y", "r")
    programs = [
        [hyad.compile(h, without=off) for h in (f, hyad.grad(f, wrt=by), hyad.jacobian(f, wrt=("x", "r")))]
        for off in ((), ("banded", "diagonals", "bands"))
    ]
    for n in (1, 2, 3, 4, 8, 17):
        args = given(n)
        (value, grad, forward), (plain, plain_grad, plain_forward) = [[p(*args) for p in row] for row in programs]
        assert value == pytest.approx(plain, rel=1e-10)
        scale = max(np.max(np.abs(p)) for p in plain_grad) + 1e-3
        for got, wanted in zip((*grad, *forward), (*plain_grad, *plain_forward)):
            np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-10 * scale)


@pytest.mark.some(6)
@pytest.mark.parametrize("use", [*SYSTEMS, *OTHERS])
def test_second_derivatives(use: str) -> None:
    f = hyad.model(f"(fn [g x y r] (let [n (len x) m {BANDED['a cond'][0]}] {use}))", namespace={})
    args = given(4)
    hessian = hyad.hessian(f, wrt="y")(*args)
    g = hyad.grad(f, wrt="y")
    for k, e in enumerate(np.eye(4)):
        up, down = (g(args[0], args[1], args[2] + s * e, args[3]) for s in (1e-5, -1e-5))
        np.testing.assert_allclose(hessian[k], (up - down) / 2e-5, rtol=1e-6, atol=1e-7)
    assert oracle.mismatch(g(*args), hyad.run(g, *args), 1e-10) is None


TRIANGLES = {  # whether zeros are known above the diagonal, and below it
    "(cholesky (+ (@ g g.T) (eye n)))": (1, 0),
    "(transpose (cholesky (+ (@ g g.T) (eye n))))": (0, 1),
    "(get (cholesky [(+ (@ g g.T) (eye n)) (+ (@ g g.T) (* 2 (eye n)))]) 1)": (1, 0),
    "(+ (eye n) (tril g))": (1, 0),
    "(+ (* 3 (eye n)) (* y (triu g 1)))": (0, 1),
    "(@ (tril (exp g)) (tril (exp g)))": (1, 0),
    "(inv (tril (exp g)))": (1, 0),
    "(build [n n] (fn [i j] (if (> i j) (get g i j) (if (= i j) 2.0 0.0))))": (1, 0),
    "(+ (tril g) (triu g))": (0, 0),
    "(update (tril g) 0 (- n 1) 1.0)": (0, 0),
    "(+ (tril g 1) (* 3 (eye n)))": (0, 0),
}


@pytest.mark.some(12)
@pytest.mark.parametrize("text", TRIANGLES)
@pytest.mark.parametrize(
    "use",
    [
        "(+ (sum (sin (solve m y))) (sum (@ (inv m) (inv m))))",
        "(+ (@ y (inv m) y) (sum (sin (solve m.T y))))",
    ],
)
def test_systems_of_triangles(text: str, use: str) -> None:
    """Substitution gives what elimination does, and so do the derivatives."""
    head = "(fn [#^ (Mat n n) g #^ (Vec n) y] "
    ask = "#((if (lower-triangular? m) 1 0) (if (upper-triangular? m) 1 0))"
    known = hyad.model(f"{head} (let [m {text}] {ask}))", namespace={})
    f = hyad.model(f"{head} (let [m {text}] {use}))", namespace={})
    h = hyad.grad(f, wrt=("g", "y"))
    own, plain = (hyad.compile(h, without=off) for off in ((), "banded"))
    assert ("fabs(" in re.sub(r"static inline.*", "", own.source)) == (TRIANGLES[text] == (0, 0))
    for n in (1, 2, 5):
        g, _, y, _ = given(n)
        assert known(g, y) == TRIANGLES[text]
        if TRIANGLES[text] != (0, 0) or n == 5:
            assert f(g, y) == pytest.approx(hyad.run(f, g, y), rel=1e-9)
            for got, wanted in zip(own(g, y), plain(g, y)):
                np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-9 * np.abs(wanted).max())


def test_a_diagonal_by_an_argument() -> None:
    """An integer of the user's may be negative, unless it is a size: it does not say on which side a diagonal is."""
    text = "(+ (eye n) (build [n n] (fn [i j] (if (= j (+ i {})) 2.0 0.0))))"
    f = hyad.model(f"(fn [#^ (Vec n) x #^ Int k] (solve {text.format('k')} x))", namespace={})
    x = given(5)[1]
    for k in (1, -1, 2):
        np.testing.assert_allclose(f(x, k), np.linalg.solve(np.eye(5) + 2 * np.eye(5, k=k), x), rtol=1e-12)
    place = "(let [a (eye n)] (set-at! a (+ 2 k) 2 5.0) (solve a x))"
    f = hyad.model(f"(fn [#^ (Vec n) x #^ Int k] {place})", namespace={})
    for k in (1, -1):
        a = np.eye(5)
        a[2 + k, 2] = 5
        np.testing.assert_allclose(f(x, k), np.linalg.solve(a, x), rtol=1e-12)
    ask = f"(let [m {text.format('m')}] (if (upper-triangular? m) 1 0))"
    assert hyad.model(f"(fn [#^ (Vec n) x #^ (Vec m) y] {ask})", namespace={})(x, x[:2]) == 1


def test_rows_are_exchanged() -> None:
    """A matrix with zeros, or next to nothing, on its diagonal is solved as any other."""
    text = "(+ (np.diag d) (np.diag u 1) (np.diag v 1) (np.diag (cut l 1 None) -2) (np.diag l -1))"
    f = hyad.model(f"(fn [d u v l b] (solve {text} b))", namespace={})
    turned = hyad.model(f"(fn [d u v l b] (solve (transpose {text}) b))", namespace={})
    det = hyad.model(f"(fn [d u v l b] #((det {text}) (logdet {text})))", namespace={})
    dense = hyad.model(f"(fn [d u v l b] {text})", namespace={})
    rng = np.random.default_rng(4)
    for n in (2, 3, 4, 7, 30):
        for pivot in (0.0, 1e-12, 1.0):
            args = (pivot * rng.normal(size=n), *(rng.normal(size=n - 1) for _ in range(3)), rng.normal(size=n))
            a = dense(*args)
            if np.linalg.cond(a) < 1e6:
                np.testing.assert_allclose(f(*args), np.linalg.solve(a, args[-1]), rtol=1e-9)
                np.testing.assert_allclose(turned(*args), np.linalg.solve(a.T, args[-1]), rtol=1e-9)
                np.testing.assert_allclose(det(*args), (np.linalg.det(a), np.linalg.slogdet(a)[1]), rtol=1e-9)


def test_singular_matrices() -> None:
    text = "(fn [#^ (Vec n) d] (let [m (+ (np.diag d) (eye n n 1))] #((det m) (logdet m) (solve m d))))"
    f = hyad.model(text, namespace={})
    for d in ([0.0, 1.0, 2.0], [1.0, 2.0, 0.0], [1.0, 0.0, 2.0, 3.0]):
        det, logdet, x = f(np.array(d))
        assert det == 0 and logdet == -np.inf and not np.isfinite(x).all()
    assert f(np.zeros(0))[:2] == (1.0, 0.0)
    for text in ("(det (diag d))", "(logdet (diag d))"):  # as of any other matrix
        by_d = hyad.grad(hyad.model(f"(fn [#^ (Vec n) d] {text})", namespace={}))(np.array([0.0, 2.0, 3.0]))
        assert np.isnan(by_d[0]) or np.isinf(by_d[0])


def squares(source: str) -> list[str]:
    """What has n^2 numbers."""
    return re.findall(r"\bn\*n\b", source)


MODELS = {
    "heat": """(fn [#^ (Vec n) u r #^ Int steps]
        (let [a (build [n n] (fn [i j] (cond (= i j) (+ 1 r) (= (abs (- i j)) 1) (* -0.5 r) True 0.0)))
              b (build [n n] (fn [i j] (cond (= i j) (- 1 r) (= (abs (- i j)) 1) (* 0.5 r) True 0.0)))]
          (sum (square (ifold (fn [u k] (solve a (@ b u))) u steps)))))""",
    "heat, np": """(fn [#^ (Vec n) u r #^ Int steps]
        (let [d (* 0.5 r (+ (np.eye n n 1) (np.eye n n -1) (* -2 (np.eye n))))]
          (sum (square (ifold (fn [u k] (solve (- (np.eye n) d) (@ (+ (np.eye n) d) u))) u steps)))))""",
    "smoother": """(fn [#^ (Vec n) u r #^ Int steps]
        (let [d (np.diff (np.eye n) 2 :axis 0)]
          (sum (square (- u (solve (+ (np.eye n) (* (exp r) (@ d.T d))) u))))))""",
    "beam": """(fn [#^ (Vec n) u r #^ Int steps]
        (let [a (np.zeros [n n])]
          (for [e (range (- n 1))]
            (let [k (exp (* r (get u e)))]
              (set-at! a e e (+ (get a e e) k))
              (set-at! a (+ e 1) (+ e 1) (+ (get a (+ e 1) (+ e 1)) k))
              (set-at! a e (+ e 1) (- (get a e (+ e 1)) k))
              (set-at! a (+ e 1) e (- (get a (+ e 1) e) k))))
          (set-at! a 0 0 (+ 1.0 (get a 0 0)))
          (sum (sin (solve a u)))))""",
    "likelihood": """(fn [#^ (Vec n) u r #^ Int steps]
        (let [p (+ (* (+ 1.5 (square r)) (eye n)) (* r (+ (eye n n 1) (eye n n -1))))]
          (- (dot u (@ p u)) (logdet p))))""",
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", MODELS)
def test_no_matrix_is_made(name: str) -> None:
    """Neither by the program nor by its derivatives, whose memory grows with the rows."""
    f = hyad.model(MODELS[name], namespace={})
    args = (np.linspace(0.1, 1, 6), 0.3, 3)
    for h in (f, hyad.grad(f, wrt="r"), hyad.grad(f, wrt=("u", "r"))):
        assert squares(hyad.compile(h, args=args).source) == []
    assert squares(hyad.compile(f, args=args, without=["banded", "diagonals", "bands"]).source)
    if name != "beam":  # of which no element has a choice
        assert squares(hyad.compile(hyad.grad(f, wrt=("u", "r")), args=args, without="diagonals").source)
    assert hyad.check_grad(f, args, wrt=("u", "r"))
    assert hyad.run(f, *args) == pytest.approx(f(*args), rel=1e-12)


def test_zeros_with_few_diagonals() -> None:
    """Without a solution of a system, too; but not where a row is read, or an element anywhere."""
    fill = """(let [a (np.zeros [n n])]
        (for [i (range 1 n)] (set-at! a i (- i 1) (get x i)) (set-at! a i i (* 2 (get x i)))) {})"""
    rest = {
        "few": "(build n (fn [i] (if (> i 0) (* (get a i i) (get a i (- i 1))) 0.0)))",
        "a row": "(get a 1)",
        "anywhere": "(build n (fn [i] (get a i 0)))",
        "the array": "a",
    }
    x = np.linspace(1, 2, 7)
    a = np.diag(2 * x) + np.diag(x[1:], -1)
    a[0, 0] = 0
    wanted = {"few": np.append(0, 2 * x[1:] ** 2), "a row": a[1], "anywhere": a[:, 0], "the array": a}
    for name, text in rest.items():
        f = hyad.compile(hyad.model(f"(fn [#^ (Vec n) x] {fill.format(text)})", namespace={}))
        np.testing.assert_array_equal(f(x), wanted[name])
        assert bool(squares(f.source)) == (name != "few")


def test_diagonals_that_are_read_alone() -> None:
    """Elements of a matrix are computed where they are read, unless that repeats work."""
    made = "(build [n n] (fn [i j] (if (= i j) (exp (get x i)) (sin (* (get x i) (get x j))))))"
    texts = {
        "once": (f"(let [m {made}] (build (- n 1) (fn [i] (+ (get m i i) (get m i (+ i 1))))))", False),
        "again and again": (f"(let [m {made}] (build n (fn [k] (ifold (fn [s i] (* s k (get m i i))) 1.0 n))))",
                            True),
        "the same twice": (f"(let [m {made}] (build (- n 1) (fn [i] (+ (get m i i) (get m (+ i 1) (+ i 1))))))", True),
        "another place": (f"(let [m {made}] (build n (fn [i] (+ (get m i i) (get m 0 i)))))", True),
    }  # fmt: skip
    x = np.linspace(0, 1, 8)
    for text, matrix in texts.values():
        f = hyad.model(f"(fn [#^ (Vec n) x] {text})", namespace={})
        compiled = hyad.compile(f)
        np.testing.assert_allclose(compiled(x), hyad.run(f, x), rtol=1e-13)
        assert ("diagonals" in {step.name for step in hyad.explain(f).steps}) == (not matrix), text


def test_on_a_gpu() -> None:
    """The kernels' text, run on the CPU."""
    f = hyad.model(MODELS["heat"], namespace={})
    args = (np.linspace(0.1, 1, 9), 0.3, 3)
    for k, h in enumerate((f, hyad.grad(f, wrt=("u", "r")))):
        program = print_grid(h.optimised(h.specs(args), "cuda", blas=True), name=f"banded_{k}")
        emulator = Emulator([program], gpu.cpu_compiler() or ())
        for descending in (False, True):
            got = emulator.run(program, args, descending=descending)
            for x, wanted in zip(got, h(*args) if k else [f(*args)]):
                np.testing.assert_allclose(x, wanted, rtol=1e-12)
