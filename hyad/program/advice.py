"""What an error says to who writes as in NumPy, SciPy, Python or another Lisp: how a model writes it.

A text that is a form stands for what is missing, and the tests compare what it computes with NumPy; any other text is
the whole hint.
"""

from __future__ import annotations

import re

from ..errors import HyadError

#: How a model writes what other languages and libraries have another name for.
ELSEWHERE = {
    "==": "(= a b)", "not=": "(!= a b)", "/=": "(!= a b)", "mod": "(% a b)", "ln": "(log x)",
    "fmod": "(- a (* b (trunc (/ a b))))",
    "add": "(+ a b)", "sub": "(- a b)", "mul": "(* a b)", "div": "(/ a b)", "inc": "(+ x 1)", "dec": "(- x 1)",
    "+=": "(set! r (+ (deref r) x))", "-=": "(set! r (- (deref r) x))", "*=": "(set! r (* (deref r) x))",
    "float": "(real i)", "sgn": "(sign x)", "^": "(** x 2)", "float64": "(real i)", "divmod": "#((// a b) (% a b))",
    "range": "(arange n)",
    "enumerate": "`(for [#(i x) (enumerate v)] ...)`, or `(fold f z v (arange (len v)))`",
    "empty": "(zeros n)", "empty-like": "(zeros-like a)",
    "reduce": "(fold f z xs)", "accumulate": "(scan f z xs)", "for": "(ifold (fn [s i] ...) z n)",
    "filter": "(where c a b)",
    "zip": "`(map f a b)`, `(fold f z a b)` and `(for [#(x y) (zip a b)] ...)` go through several at once",
    "first": "(get v 0)", "last": "(get v -1)", "nth": "(get v i)",
    "second": "(get v 1)", "rest": "(cut v 1 None)", "drop": "(cut v n None)", "reverse": "(flip v)",
    "reversed": "(flip v)", "sorted": "(sort v)", "flatten": "(ravel a)", "append": "(concat a b)",
    "conj": "(concat v [x])", "matvec": "(@ m v)", "vecdot": "(dot u v)",
    "einsum": '(einsum "ij,jk->ik" a b)', "tensordot": '(einsum "ij,jk->ik" a b)',
    "select": "(where c a (where d b e))", "piecewise": "(where c a (where d b e))",
    "trapz": "(trapezoid y)", "heaviside": "(where (< x 0) 0.0 (where (= x 0) h 1.0))", "arccos": "(acos x)",
    "arcsin": "(asin x)", "arctan": "(atan x)", ":": "(get (transpose m) j)", "newaxis": "(expand-dims v 1)",
    "average": "(mean v)", "reciprocal": "(/ 1 x)", "solve-triangular": "(solve-lower l b)",
    "cho-solve": "(solve-cholesky l b)", "lstsq": "(solve (@ (transpose a) a) (@ (transpose a) b))",
    "zero?": "(= x 0)", "pos?": "(> x 0)", "neg?": "(< x 0)", "even?": "(= (% n 2) 0)", "odd?": "(= (% n 2) 1)",
    "quot": "(// a b)", "rem": "(% a b)", "mapv": "(map f v)", "count": "(len v)", "assoc": "(update v i x)",
    "vector": "[a b]", "partial": "(fn [x] (f a x))", "comp": "(fn [x] (f (g x)))", "apply": "(fold f z xs)",
    "...": "(get m (slice None) 0)", ">>": "(// n 2)", "<<": "(* 2 n)",
    "&": "(logical-and c d)", "|": "(logical-or c d)", "logical-xor": "(!= c d)",
    "gradient": "(concat [(- (get v 1) (get v 0))] (/ (- (cut v 2 None) (cut v 0 -2)) 2) [(- (get v -1) (get v -2))])",
    "add.at": "(scatter-add v k x)", "bincount": "(scatter-add (zeros n) k w)",
    "subtract.outer": "(- (expand-dims u 1) v)", "add.outer": "(+ (expand-dims u 1) v)",
    "multiply.outer": "(outer u v)", "divide.outer": "(/ (expand-dims u 1) v)",
    "add.reduce": "(sum a 0)", "multiply.reduce": "(prod a 0)", "maximum.reduce": "(amax a 0)",
    "minimum.reduce": "(amin a 0)", "add.accumulate": "(cumsum a 0)", "multiply.accumulate": "(cumprod a 0)",
    "apply-along-axis": "(along f a axis)", "broadcast-to": "(+ a (zeros [n m]))",
    "sinc": "(where (= x 0) 1.0 (/ (sin (* np.pi x)) (* np.pi x)))", "nan-to-num": "(where (isnan x) 0.0 x)",
    "split": "`(reshape v [n -1])` has n equal parts as its rows; `(cut v start stop)` is a part",
    "array-split": "`(cut v start stop)` is a part", "hsplit": "`(get m #((slice None) (slice start stop)))` is a part",
    "vsplit": "`(cut m start stop)` is a part",
    "insert": "(concat (cut v 0 i) [x] (cut v i None))", "delete": "(concat (cut v 0 i) (cut v (+ i 1) None))",
    "logspace": "(** 10.0 (linspace a b n))", "geomspace": "(exp (linspace (log a) (log b) n))",
    "digitize": "(map (fn [x] (count-nonzero (<= bins x))) v)",
    "ndtr": "(* 0.5 (erfc (/ x (- (sqrt 2.0)))))", "log-ndtr": "(log (* 0.5 (erfc (/ x (- (sqrt 2.0))))))",
    "norm.cdf": "(* 0.5 (erfc (/ x (- (sqrt 2.0)))))", "norm.logcdf": "(log (* 0.5 (erfc (/ x (- (sqrt 2.0))))))",
    "norm.sf": "(* 0.5 (erfc (/ x (sqrt 2.0))))",
    "norm.pdf": "(/ (exp (* -0.5 x x)) (sqrt (* 2 np.pi)))",
    "norm.logpdf": "(- (* -0.5 x x) (* 0.5 (log (* 2 np.pi))))",
    "xlogy": "(where (= x 0) 0.0 (* x (log y)))", "xlog1py": "(where (= x 0) 0.0 (* x (log1p y)))",
    "laplacian": "(trace ((hessian f) x))", "divergence": "(trace ((jacobian f) x))",
    "betaln": "(- (+ (lgamma a) (lgamma b)) (lgamma (+ a b)))",
    "beta": "(exp (- (+ (lgamma a) (lgamma b)) (lgamma (+ a b))))", "logit": "(log (/ x (- 1 x)))",
}  # fmt: skip
#: What a model has nothing for, and what is done instead.
_INSTEAD = {
    "print println str format": "a model prints nothing: let it give what you want to see, `#(y x)`",
    "random normal uniform rand randn": "draw random numbers outside, and pass them as an argument",
    "eig eigh eigvals eigvalsh svd qr pinv": "there are solve, inv, det and cholesky; write others as a loop",
    "recur": "`(loop [i 0] ... (recur (+ i 1)))`",
    "sparse-jacobian sparse-hessian": "sparse derivatives are of a model, from outside; inside, `((jacobian f) x)` has "
    "all entries",
    "complex real-if-close imag": "models have real numbers: compute with both parts of a complex one",
}

_BANDED = (
    "with the diagonals l, d and u below, on and above the main one (of a symmetric matrix l is u), "
    "`(solve (+ (np.diag l -1) (np.diag d) (np.diag u 1)) b)`: the zeros beside them are neither made nor read"
)
#: How a model writes what takes a loop, or several forms.
ELSEWHERE |= {
    "expm": "`(let [e (eye (len a))] (ifold (fn [p i] (@ p p)) (fold (fn [t k] (+ e (/ (@ a t) (* 64.0 k)))) e "
    "(arange 18 0 -1)) 6))` squares 6 times a series of 18 terms, enough for a matrix whose norm is below 64",
    "solve-banded": _BANDED,
    "solveh-banded": _BANDED,
    "fromfunction": "`(build [n m] (fn [i j] ...))` makes an array by its indices",
    "vectorize": "functions of numbers go through arrays by `(map f v)`",
    "isclose": "(<= (abs (- a b)) (+ 1e-8 (* 1e-5 (abs b))))",
    "take-along-axis": "`(map (fn [row k] (get row k)) m ks)` takes one element of each row",
    "toeplitz": "`(build [(len c) (len c)] (fn [i j] (get c (abs (- i j)))))` has the first column c, "
    "`(build [(len c) (len r)] (fn [i j] (if (< i j) (get r (- j i)) (get c (- i j)))))` the first row r, too",
    "block": "(vstack [(hstack [a b]) (hstack [c d])])",
    "rot90": "(flip (transpose a) 0)",
    "tri": "(tril (ones [n m]))",
    "float-power": "(** x y)",
    "ediff1d": "(differences v)",
    "corrcoef": "`(let [c (cov a)  s (sqrt (diag c))] (/ c (outer s s)))`, of the rows of a",
    "polyfit": "`(let [v (vander x (+ deg 1))] (solve (@ (transpose v) v) (@ (transpose v) y)))`, the highest power "
    "first",
    "block-diag": "(vstack [(hstack [a (zeros [(len a) (shape b 1)])]) (hstack [(zeros [(len b) (shape a 1)]) b])])",
}

_NORMS = (
    "of a vector, `(sum (abs v))` is the norm of order 1 and `(max (abs v))` that of order np.inf; of a matrix, "
    "`(max (sum (abs m) 0))` and `(max (sum (abs m) 1))`"
)
_FULL = "`(let [k (// (- (len v) 1) 2)] (cut {0} k (+ k (len u))))`"
_ROW_BY_ROW = "arrays lie row by row; `(transpose a)` first goes through them column by column"
_BY_POSITION = "the diagonal is given by position: `({0} a 1)`"
_QUANTILE = "what stands between two elements is on the line between them: leave it out"
#: What takes the place of an option of NumPy's: of one function, or ("") of any.
_OPTIONS = {
    "": {
        "dtype": "types are inferred; `(real a)` and `(int a)` are of another one",
        "out": "functions give new arrays: leave it out; `(set-at! v i x)` changes one in place",
        "copy": "`array` makes a copy: leave it out",
        "order": _ROW_BY_ROW,
    },
    "convolve": {
        "mode": f"`convolve` gives the full mode; of a shorter v, {_FULL.format('(convolve u v)')} is the mode same, "
        "`(cut (convolve u v) (- (len v) 1) (len u))` the mode valid"
    },
    "correlate": {
        "mode": "`correlate` gives the mode valid; `(convolve u (flip v))` is the mode full, and of a shorter v, "
        f"{_FULL.format('(convolve u (flip v))')} the mode same"
    },
    "pad": {
        "mode": "`pad` puts zeros; `(get v (clip (arange (- n) (+ (len v) n)) 0 (- (len v) 1)))` is the mode edge, "
        "`(get v (% (arange (- n) (+ (len v) n)) (len v)))` the mode wrap",
        "constant-values": "(where (pad (ones-like a) n) (pad a n) c)",
    },
    "meshgrid": {"indexing": '`(let [#(b a) (meshgrid y x)] #(a b))` is `:indexing "ij"`'},
    "searchsorted": {
        "side": '`(count-nonzero (<= v x))` is `:side "right"`, `(map (fn [x] (count-nonzero (<= v x))) a)` of each'
    },
    "tensordot": {"axes": '`(einsum "ij,jk->ik" a b)` names the axes'},
    "transpose": {"axes": "the axes are given by position: `(transpose a [1 0])`"},
    "sort": {"kind": "sorting is stable: leave it out"},
    "argsort": {"kind": "sorting is stable: leave it out"},
    "median": {"method": _QUANTILE},
    "quantile": {"method": _QUANTILE},
    "percentile": {"method": _QUANTILE},
    "clip": dict.fromkeys(("min", "max", "a-min", "a-max"), "`(clip a low high)`; a bound that is none is None"),
    "linspace": {"endpoint": "(cut (linspace a b (+ n 1)) 0 -1)"},
    "cov": {
        "rowvar": "(cov (transpose m))",
        **dict.fromkeys(("bias", "ddof"), "`(* (cov m) (/ (- n 1) n))` divides by n, the number of observations"),
    },
    "sum": {"where": "(sum (where c a 0.0))"},
    "mean": {"where": "(/ (sum (where c a 0.0)) (count-nonzero c))", "weights": "(/ (dot w v) (sum w))"},
    "average": {"weights": "(/ (dot w v) (sum w))"},
    "norm": {"ord": _NORMS},
    "vander": {"increasing": "(fliplr (vander v))"},
    "eye": {"k": "the diagonal is given by position: `(eye n n 1)`"},
    **{f: {"k": _BY_POSITION.format(f)} for f in ("diag", "tril", "triu")},
    "interp": {
        "left": "(if (< x (get xs 0)) left (interp x xs ys))",
        "right": "(if (> x (get xs -1)) right (interp x xs ys))",
    },
    "cholesky": {"upper": "(transpose (cholesky a))"},
    "diff": {
        "n": "how often is given by position: `(np.diff a 2)`",
        "prepend": "(np.diff (concat [x] v))",
        "append": "(np.diff (concat v [x]))",
    },
    "einsum": {"optimize": "several arrays are combined from left to right: leave it out"},
}  # fmt: skip
#: The options whose values are strings, which NumPy takes by position as well.
_SAID_BY_STRINGS = ("mode", "side", "ord", "indexing", "kind", "method", "order")

#: How a function of the library is called, where its parameters alone do not say it.
USAGE = {
    "np.linalg.norm": _NORMS,
    "slice": "`(slice v start stop)` is a part of v; one of several axes is written where it is a subscript: "
    "`(get m (slice None) 0)`",
}
#: How what goes through arrays and indices is called.
_CALLS = {
    "build": "one size, `(build n (fn [i] ...))`, or several in brackets, an index of each: "
    "`(build [n m] (fn [i j] ...))`",
    "map": "the function stands first: `(map f xs)`",
    "fold": "the function stands first, then what it starts with: `(fold + 0.0 xs)`",
    "ifold": "the function stands first, then what it starts with: `(ifold (fn [s i] ...) z n)`",
    "scan": "the function stands first, then what it starts with: `(scan + 0.0 xs)`",
    "log": "to another base: `(/ (log x) (log b))`, or `log2`, `log10`",
}
#: Errors inside functions of the library that say nothing to their callers: function, error, what is said instead.
_INSIDE = (
    (
        "roll",
        r"axis (that )?is (an integer; this is )?a (pair|tuple)",
        "`roll` moves along one axis",
        "one after the other: `(roll (roll a 1 :axis 0) 1 :axis 1)`",
    ),
    (
        "cov",
        "has no axis 1",
        "`cov` takes a matrix, with a row for each variable",
        "the variance of a vector is `(var v :ddof 1)`",
    ),
    *(
        (name, "has no axis 1", f"`{name}` takes a matrix", "`(expand-dims v 1)` is a vector as a column")
        for name in "det logdet slogdet inv solve cholesky matrix-power trace".split()
    ),
    *(
        (name, "of a number", f"`{name}` multiplies vectors and matrices", "`*` multiplies by a number")
        for name in ("@", "matmul", "@/3", "@/4")
    ),
    ("arange", "does not hold|is not less", "a step of `arange` is 0", None),
    ("slice", "does not hold|is not less", "a step of `slice` is 0", None),
    ("range-step", "does not hold|is not less", "the step of a range is 0", None),
    ("convolve", "does not hold|is not less", "`convolve` of an array without elements", None),
    ("quantile", "outside|q-from", "`quantile` takes parts from 0 to 1, of an array with elements", None),
    ("percentile", "outside|q-from", "`percentile` takes parts from 0 to 100, of an array with elements", None),
    ("interp", "size", "the points of `interp` have as many xs as ys", None),
    ("pad", "does not hold|is more than", "`pad` takes no negative widths", "a slice leaves elements out"),
    ("norm", "axis", "the second argument of `norm` is an axis, and there is no such axis here", _NORMS),
)


def as_hint(text: str) -> str:
    """An entry of these tables as a hint."""
    return f"`{text}` is how a model writes it" if text[0] in "(#[" else text


def instead(name: str) -> str | None:
    """How a model writes what another language or library calls ``name``, or what is done where it has nothing for
    it."""
    *most, bare = (part.replace("_", "-") for part in re.split(r"[./](?=.)", name))
    two = ".".join((*most[-1:], bare))
    known = ELSEWHERE.get(two) or ELSEWHERE.get(bare) or ELSEWHERE.get(name)
    if known is not None:
        return as_hint(known)
    return next((hint for names, hint in _INSTEAD.items() if bare in names.split()), None)


def option_hint(function: str, option: str | None) -> str | None:
    """What takes the place of an option, or (None) of a string, in a call of ``function``."""
    bare = function.rpartition(".")[2].replace("_", "-")
    own, any_one = _OPTIONS.get(bare, {}), _OPTIONS[""]
    wanted = _SAID_BY_STRINGS if option is None else (option,)
    found = next((own[o] for o in wanted if o in own), None)
    if found is None and option is not None:
        found = any_one.get(option)
    if found is not None:
        return as_hint(found)
    return instead(function)


def call_hint(function: str | None) -> str | None:
    """How a function is called that many call otherwise."""
    return _CALLS.get(function or "")


def _inside(name: str, message: str) -> tuple[str, str | None] | None:
    """What to say in place of a message of a function of the library, and the hint."""
    rows = (row for row in _INSIDE if row[0] == name and re.search(row[1], message))
    return next(((said, hint) for _, _, said, hint in rows), None)


def said_of(name: str, message: str) -> str:
    """What a check in a function of the library says, so that it says something to who called it."""
    row = _inside(name, message)
    return row[0] if row is not None else message


def said_inside(error: HyadError, name: str, doc: str | None) -> None:
    """An error inside a function of the library, so that it says something to who called it."""
    row = _inside(name, error.message)
    if row is not None:
        error.message, error.hint = row
        return
    if error.message.startswith("`rank` works on "):  # what functions of arrays ask first
        error.message = error.message.replace("rank", name, 1)
    if doc and f"`{name}`" not in error.message:
        error.notes += ((f"this is inside `{name}`, {doc}", None),)
