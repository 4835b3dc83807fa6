"""What a GPU does for many at once as it does it for one: adjoints of batches, rows that are added, chosen elements.

Each text runs on the CPU, in both orders of the threads, in double and single precision, and equals C's.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import array_programs
import hyad
import memoised
from hyad import gpu
from hyad.codegen.grid import print_grid
from hyad.codegen.launches import Copy, CudaProgram, Gemm, Launch, Repeat, walk
from hyad.emulate import Emulator
from hyad.model import Model

pytestmark = pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")
CONV = "(ifold (fn [s p] (+ s (ifold (fn [t q] (+ t (* (get k p q) (get x n (+ i p) (+ j q))))) 0.0 3))) 0.0 3)"
CROSS = "(+ (get u i (+ j 1)) (get u (+ i 2) (+ j 1)) (get u (+ i 1) j) (get u (+ i 1) (+ j 2)))"
GATHERED, ATOMIC, ORDERED = "gathered", "atomic", "ordered"  # additions: sums, where data says, one after the other
#: By name: the parameters, the value, what it is differentiated by ("" for none), and how that adds to arrays.
PROGRAMS = {
    "rows that are added": ("#^ (Arr Int n) k #^ (Mat n m) x #^ (Mat 7 m) z", "(scatter-add z k x)", "", ATOMIC),
    "three columns": ("#^ (Arr Int n) k #^ (Mat n 3) x #^ (Mat 7 3) z", "(scatter-add z k x)", "", ATOMIC),
    "rows that are added twice": (
        "#^ (Mat n m) h #^ (Vec m) x",
        "(ifold (fn [h i] (let [r (map + (get h i) x)  h2 (update h i r)  q (map + (get h i) (get h2 0))]"
        " (update h2 0 q))) h (len h))",
        "",
        ORDERED,
    ),
    "rows and their number": (
        "#^ (Arr Int n) k #^ (Mat n m) x #^ (Mat 7 m) z",
        "#((scatter-add z k x) (scatter-add (zeros 7) k (ones (len k))))",
        "",
        ATOMIC,
    ),
    "means of groups": (
        "#^ (Mat n 3) x #^ (Mat 5 3) c",
        "(let [a (map (fn [p] (argmin (map (fn [q] (sq-norm (- p q))) c))) x)"
        " s (scatter-add (zeros [5 3]) a x)  count (scatter-add (zeros 5) a (ones (len x)))]"
        " (/ s (expand-dims (max count 1.0) 1)))",
        "",
        ATOMIC,
    ),
    "nearest points": (
        "#^ (Mat n 3) x #^ (Mat m 3) y",
        "(map (fn [p] (amin (map (fn [q] (sq-norm (- p q))) y))) x)",
        "x y",
        ATOMIC,
    ),
    "which is nearest": (
        "#^ (Mat n 3) x #^ (Mat m 3) y",
        "(map (fn [p] (argmin (map (fn [q] (sq-norm (- p q))) y))) x)",
        "",
        GATHERED,
    ),
    "rows that are read before they change": (
        "#^ (Arr Int n) k #^ (Mat 7 m) x",
        "(ifold (fn [w i] (let [r (map sin (get w (get k i)))  s (* 0.01 (sum r))]"
        " (update w (get k i) (map (fn [a] (+ (* 0.5 a) s)) r)))) x n)",
        "",
        ORDERED,
    ),
    "axes exchanged": ("#^ (Arr Real n m p) x", "(transpose x [0 2 1])", "x", GATHERED),
    "axes turned": ("#^ (Arr Real n m p) x", "(transpose x [2 0 1])", "x", GATHERED),
    "sums along an axis": ("#^ (Arr Real n m p) x", "(map (fn [u] (cumsum u 0)) x)", "x", GATHERED),
    "softmax along an axis": ("#^ (Arr Real n m p) x", "(map (fn [u] (softmax u 0)) x)", "x", GATHERED),
    "differences": ("#^ (Arr Real n m p) x", "(map (fn [u] (differences u 0)) x)", "x", GATHERED),
    "stencils": (
        "#^ (Arr Real n m p) x",
        f"(map (fn [u] (build [(- m 2) (- p 2)] (fn [i j] (* (get u (+ i 1) (+ j 1)) {CROSS})))) x)",
        "x",
        GATHERED,
    ),
    "images": (
        "#^ (Arr Real n m p) x #^ (Mat 3 3) k",
        f"(build [(len x) (- m 2) (- p 2)] (fn [n i j] {CONV}))",
        "x k",
        GATHERED,
    ),
    "signals": ("#^ (Mat n m) x #^ (Vec 4) k", "(map (fn [u] (convolve u k)) x)", "x k", GATHERED),
    "rows side by side": ("#^ (Mat n m) x #^ (Mat n p) y", "(concatenate #(x y) 1)", "x y", GATHERED),
    "elements that are chosen": (
        "#^ (Mat n m) x",
        "(sum (where (> x 0.0) (sqrt (abs x)) (* 0.1 x)) 1)",
        "x",
        GATHERED,
    ),
    "below the diagonal": (
        "#^ (Mat n n) x",
        "(softmax (where (tril (ones [n n])) x -1e9) 1)",
        "x",
        GATHERED,
    ),
}
SHAPES = ((1, 3, 3), (3, 4, 35), (40, 33, 5), (9, 9, 9))


def models(name: str) -> list[tuple[Model, bool]]:
    """The value, and the gradient of its sum with weights; whether it has weights."""
    head, body, wrt, _ = PROGRAMS[name]
    names = re.findall(r"\(Arr Real (\w+) (\w+) (\w+)\)", head)
    body = (
        f"(let [n (len x) m (shape x 1) p (shape x 2)] {body})" if names else body.replace("[n n]", "[(len x) (len x)]")
    )
    value = hyad.model(f"(defmodel f [{head}] {body})", namespace={})
    if not wrt:
        return [(value, False)]
    loss = hyad.model(f"(defmodel g [{head} w] (sum (* w {body})))", namespace={})
    return [(value, False), (hyad.grad(loss, wrt=tuple(wrt.split())), True)]


def arguments(name: str, shape: tuple[int, int, int]) -> tuple[Any, ...]:
    rng = np.random.default_rng(shape)
    sizes = dict(zip("nmp", shape))
    found: list[Any] = []
    for kind, dims in re.findall(r"\((Arr Int|Arr Real|Mat|Vec) ([\w ]+)\)", PROGRAMS[name][0]):
        dims = tuple(sizes.get(d) or int(d) for d in dims.split())
        found.append(rng.integers(0, 7, dims) if kind == "Arr Int" else rng.normal(size=dims))
    return tuple(found)


def plan(f: Model, args: tuple[Any, ...], name: str, **options: Any) -> CudaProgram:
    return print_grid(f.optimised(f.specs(args), "cuda", blas=True), name=name, **options)


def flat(value: Any) -> list[np.ndarray]:
    return [np.asarray(x) for x in (value if type(value) is tuple else (value,))]


@pytest.mark.some(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_computes_what_c_does(name: str) -> None:
    cases = []
    for f, weighted in models(name):
        calls = [arguments(name, shape) for shape in SHAPES]
        if weighted:
            value = memoised.compile(models(name)[0][0], args=calls[0])
            calls = [(*args, np.random.default_rng(0).normal(size=np.shape(value(*args)))) for args in calls]
        for dtype in ("f64", "f32"):
            for deterministic in (False, True):
                made = plan(f, calls[-1], f"p{len(cases)}", dtype=dtype, deterministic=deterministic)
                cases.append((f, calls, dtype, made))
    emulator = Emulator([made for *_, made in cases], gpu.cpu_compiler() or ())
    for f, calls, dtype, made in cases:
        compiled = memoised.compile(f, args=calls[0])
        for args in calls:
            wanted = flat(compiled(*args))
            for descending in (False, True):
                got = emulator.run(made, args, descending=descending)
                for one, other in zip(got, wanted, strict=True):
                    near = 1e-11 if dtype == "f64" else 2e-4
                    np.testing.assert_allclose(one, other, rtol=near, atol=near * np.max(np.abs(other), initial=1.0))


@pytest.mark.some(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_element_has_a_thread(name: str) -> None:
    """No thread goes through all elements of an array, or through those of one of many; few additions are atomic."""
    for f, weighted in models(name):
        args = arguments(name, SHAPES[-1])
        if weighted:
            args = (*args, np.ones(np.shape(hyad.run(models(name)[0][0], *args))))
        made = plan(f, args, "p")
        _, _, wrt, adds = PROGRAMS[name]
        assert adds is ORDERED or not any(note.startswith("one thread:") for _, note in made.notes)
        body = made.source[made.source.index('extern "C"') :]
        assert ("hyad_add(" in body) == (adds is ATOMIC and (weighted or not wrt))
        assert adds is ORDERED or not summed_in_memory(body)


def summed_in_memory(text: str) -> list[str]:
    """The lines that add to an element of memory in a loop that one thread takes."""
    found: list[str] = []
    loops: list[int] = []  # how far they are indented
    for line in text.split("\n"):
        inset = len(line) - len(line.lstrip())
        loops = [x for x in loops if line.strip() and x < inset]
        if loops and re.match(r"\s*\w+\[.*\] [+-]= ", line):
            found.append(line)
        if re.match(r"\s*for \(long long \w+ = 0; [^;]*; \w+\+\+\)", line):
            loops.append(inset)
    return found


def test_axes_that_are_exchanged_go_through_tiles() -> None:
    for name, tiles in (("axes exchanged", 1), ("sums along an axis", 2)):
        made = plan(models(name)[1][0], (np.ones((2, 3, 4)), np.ones((2, 4, 3) if tiles == 1 else (2, 3, 4))), "t")
        assert made.source.count("hyad_turn(") == 1 + tiles  # its definition, and each use


def test_what_is_the_same_in_each_row_is_read_where_it_is() -> None:
    """The adjoint of a sum over the first axis is no array of copies."""
    text = "(fn [#^ (Arr Real n m p) x #^ (Mat q r) w] (sum (* w (sum (exp x) 0))))"
    f = hyad.grad(hyad.model(text, namespace={}), wrt="x")
    args = np.random.default_rng(1).normal(size=(3, 4, 5)), np.random.default_rng(2).normal(size=(4, 5))
    made = plan(f, args, "p")
    assert not [m for m in made.memory if m.kind == "own" and m.elem == "real" and len(m.dims) == 3]
    (got,) = Emulator([made], gpu.cpu_compiler() or ()).run(made, args)
    np.testing.assert_allclose(got, args[1] * np.exp(args[0]), rtol=1e-13)


def test_a_choice_is_made_where_its_gradient_is_read() -> None:
    """Nothing is cleared before, and no array comes between."""
    f = models("elements that are chosen")[1][0]
    made = plan(f, (np.ones((3, 4)), np.ones(3)), "t")
    assert len(made.kernels) == 1
    assert not [m for m in made.memory if m.kind == "own" and m.elem == "real"]


NET = """(defmodel net [#^ (Arr Real t b i) x #^ (Mat i h) wx #^ (Mat h h) wh #^ (Mat b h) c]
  (sum (* c (fold (fn [s xt] (tanh (+ (@ xt wx) (@ s wh)))) (zeros [(shape x 1) (len wh)]) x))))"""


def test_weights_over_time() -> None:
    """Products are added where the adjoints of weights lie; states are made where they are remembered; no copies."""
    f = hyad.grad(hyad.model(NET, namespace={}), wrt=("wx", "wh"))
    rng = np.random.default_rng(1)

    def arguments(t: int) -> tuple[np.ndarray, ...]:
        return rng.normal(size=(t, 5, 4)), rng.normal(size=(4, 3)), rng.normal(size=(3, 3)), rng.normal(size=(5, 3))

    made = plan(f, arguments(3), "p")
    there, back = (s for s in made.steps if isinstance(s, Repeat))
    assert [type(s) for s in there.steps] == [Gemm, Gemm, Launch]
    assert [s.add for s in back.steps if isinstance(s, Gemm)] == [False, True, True]
    assert not any(isinstance(s, Copy) for s in back.steps)
    emulator = Emulator([made], gpu.cpu_compiler() or ())
    compiled = memoised.compile(f, args=arguments(3))
    for t in (0, 1, 2, 7):
        args = arguments(t)
        for descending in (False, True):
            for got, want in zip(emulator.run(made, args, descending=descending), compiled(*args), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-13)


def test_a_product_that_is_read_besides_is_not_added() -> None:
    """Nor one that is added to an array which is read later, or made of it."""
    rng = np.random.default_rng(2)
    for body in (
        "(let [p (@ a b)] #((+ w p) p))",
        "(let [p (@ a b) s (+ w p)] #(s (sin w)))",
        "(ifold (fn [w i] (+ w (@ w b))) w 3)",
        "(ifold (fn [w i] (let [s (+ w (@ a b))] (map (fn [r q] (map (fn [x y] (+ x (* 0.5 y))) r q)) s w))) w 3)",
    ):
        f = hyad.model(f"(fn [#^ (Mat n n) w #^ (Mat n n) a #^ (Mat n n) b] {body})", namespace={})
        args = tuple(rng.normal(size=(3, 6, 6)))
        made = plan(f, args, "p")
        for descending in (False, True):
            got = Emulator([made], gpu.cpu_compiler() or ()).run(made, args, descending=descending)
            for one, other in zip(got, flat(hyad.compile(f)(*args)), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


def test_a_kernel_reads_nothing_of_the_memory_that_it_makes_results_in() -> None:
    """Its pointers are restricted, and the compiler says so where two of them are one."""
    of = hyad.model(array_programs.nest(44009), namespace={})
    total = (
        "(+ (sin (get r 0)) (sum (square (get r 1))) (sum (sin (get r 2))) (sum (get r 3)) (sum (square (get r 4))))"
    )
    loss = f"(fn [{array_programs.DECLARED}] (let [r (of x v w p a s y)] (+ {total} (sum (sin (get r 5))))))"
    f = hyad.grad(hyad.model(loss, namespace={"of": of}))
    args = array_programs.arguments(44009, 13, 9)
    made = plan(f, args, "p")
    got = Emulator([made], gpu.cpu_compiler() or ()).run(made, args)
    for one, other in zip(got, flat(hyad.compile(f)(*args)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11 * np.max(np.abs(other)))


#: Models of two stacks of matrices whose gradient has products of such, the value's aside.
STACKED = {
    "sines": "(sum (sin (@ x y)))",
    "squares": "(sum (square (@ x y)))",
    "one by one": "(sum (map (fn [x y] (sum (square (@ x y)))) x y))",
    "transposed": "(sum (square (@ x (transpose y [0 2 1]))))",
}


@pytest.mark.some(2)
@pytest.mark.parametrize("name", STACKED)
def test_gradients_of_stacked_products_are_stacked_products(name: str) -> None:
    """Multiples are taken of the sums; no sum of products is taken in parts by single threads."""
    f = hyad.model(f"(fn [#^ (Arr Real b n n) x #^ (Arr Real b n n) y] {STACKED[name]})", namespace={})
    gradient = hyad.grad(f, wrt=("x", "y"))
    calls = [tuple(np.random.default_rng(b).normal(size=(2, b, n, n))) for b, n in ((1, 1), (3, 5), (2, 33))]
    made = [plan(gradient, calls[-1], f"p{k}", deterministic=bool(k)) for k in range(2)]
    compiled = memoised.compile(gradient)
    for program in made:
        assert sum(isinstance(s, Gemm) for s in program.steps) == 3
        for args in calls:
            for x, y in zip(Emulator([program], gpu.cpu_compiler() or ()).run(program, args), compiled(*args)):
                np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-11)


def test_a_product_in_three_loops_over_zeros_is_one() -> None:
    """As a newcomer writes it, with ``set-at!``, and its gradient's products."""
    text = """(let [c (zeros [n k])]
      (for [i (range n) j (range k) l (range m)] (set-at! c i j (+ (get c i j) (* (get a i l) (get b l j))))) {})"""
    head = "(fn [#^ (Mat n m) a #^ (Mat m k) b] "
    value, total = (hyad.model(head + text.format(out) + ")", namespace={}) for out in ("c", "(sum (square c))"))
    args = np.random.default_rng(1).normal(size=(5, 7)), np.random.default_rng(2).normal(size=(7, 40))
    for f, products in ((value, 1), (hyad.grad(total, wrt=("a", "b")), 3)):
        program = plan(f, args, "p")
        assert sum(isinstance(s, Gemm) for s in program.steps) == products
        got, wanted = Emulator([program], gpu.cpu_compiler() or ()).run(program, args), flat(hyad.compile(f)(*args))
        for x, y in zip(got, wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-11)


#: What is done for each of a few, of whom it is declared how many they are; how many steps are stacks of products.
FEW = {
    "heads": ("""(let [d (sqrt (real (shape q 2)))]
        (build 8 (fn [h] (@ (softmax (/ (@ (get q h) (transpose (get k h))) d) 1) (get v h)))))""", 2),
    "an ensemble": ("(mean (build 8 (fn [e] (tanh (@ (get q e) (get k e))))) 0)", 1),
    "of the same": ("(build 8 (fn [e] (sin (@ (get q e) (get k 0)))))", 1),
}  # fmt: skip


@pytest.mark.some(3)
@pytest.mark.parametrize("name", FEW)
def test_each_of_a_few_is_no_thread(name: str) -> None:
    """Their products are stacks of products, and each element has a thread, as where nobody knows how many."""
    body, steps = FEW[name]
    head = "#^ (Arr Real 8 n n) q #^ (Arr Real 8 n n) k #^ (Arr Real 8 n n) v"
    f = hyad.model(f"(defmodel f [{head}] {body})", namespace={})
    g = hyad.grad(hyad.model(f"(defmodel g [{head}] (sum (sin {body})))", namespace={}), wrt=("q", "k"))
    calls = [tuple(np.random.default_rng(n).normal(size=(3, 8, n, n))) for n in (1, 5, 33)]
    value, gradient = plan(f, calls[0], "f"), plan(g, calls[0], "g")
    assert sum(isinstance(s, Gemm) for s in value.steps) == steps
    assert sum(isinstance(s, Gemm) for s in gradient.steps) >= 3 * steps - 1
    for made in (value, gradient):
        assert not any("one thread:" in note for _, note in made.notes)
        assert not any(re.fullmatch("parallel: one thread for each element", note) for _, note in made.notes)
    emulator = Emulator([value, gradient], gpu.cpu_compiler() or ())
    for args in calls:
        for made, compiled in ((value, memoised.compile(f)), (gradient, memoised.compile(g))):
            for descending in (False, True):
                got = emulator.run(made, args, descending=descending)
                for one, other in zip(got, flat(compiled(*args)), strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11)


#: What is done with each matrix of a batch, and what the sum of it is differentiated by.
EACH = {
    "a layer": ("(tanh (@ (get x i) w))", "w"),
    "two layers": ("(@ (tanh (@ (get x i) w)) v)", "w v"),
    "two layers, a bias": ("(@ (tanh (map (fn [r] (+ r c)) (@ (get x i) w))) v)", "w v c"),
    "attention": ("""(let [a (get x i) q (@ a w) k (@ a v)] (@ (softmax (@ q (transpose k)) 1) (@ a w)))""", "w v"),
    "the inputs, too": ("(tanh (@ (get x i) w))", "x w"),
    "of a transpose": ("(tanh (@ (transpose (get x i)) w))", "w"),
    "a scale": ("(* (sum (get x i)) (tanh (@ (get x i) w)))", "w x"),
}


@pytest.mark.some(3)
@pytest.mark.parametrize("name", EACH)
def test_gradients_of_weights_by_a_batch(name: str) -> None:
    """All matrices at once: no iteration of the host for each. What is added up are products of all their rows."""
    body, wrt = EACH[name]
    head = "#^ (Arr Real b n n) x #^ (Mat n n) w #^ (Mat n n) v #^ (Vec n) c"
    f = hyad.model(f"(defmodel f [{head}] (sum (build b (fn [i] (sum (square {body}))))))", namespace={})
    g = hyad.grad(f, wrt=tuple(wrt.split()))
    calls = []
    for b, n in ((1, 1), (3, 5), (9, 33), (0, 4)):
        rng = np.random.default_rng(b)
        calls.append((rng.normal(size=(b, n, n)), *rng.normal(size=(2, n, n)) / n, rng.normal(size=n)))
    made = [plan(g, calls[0], f"p{k}", deterministic=bool(k)) for k in range(2)]
    compiled = memoised.compile(g)
    emulator = Emulator(made, gpu.cpu_compiler() or ())
    for program in made:
        assert not any(isinstance(s, Repeat) for s in walk(program.steps)), program.notes
        assert not any("one thread:" in note for _, note in program.notes)
        for args in calls:
            for descending in (False, True):
                got = emulator.run(program, args, descending=descending)
                for one, other in zip(got, flat(compiled(*args)), strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11 * np.max(np.abs(other), initial=1.0))


#: Sums of matrices, or vectors, over rows, which nobody reads meanwhile.
SUMMED = {
    "a covariance": "(fold (fn [s r] (+ s (outer r r))) (zeros [k k]) x)",
    "from the start": "(fold (fn [s r] (+ s (outer r r))) (outer v v) x)",
    "differences": "(let [mu (mean x 0)] (fold (fn [s r] (let [d (- r mu)] (+ s (outer d d)))) (zeros [k k]) x))",
    "a kernel": "(fold (fn [s r] (+ s (build [k k] (fn [i j] (exp (* (get r i) (get v j))))))) (zeros [k k]) x)",
    "weights": "(fold (fn [s r] (let [p (tanh (dot r v))] (+ s (* p (outer r r))))) (eye k) x)",
    "some": "(fold (fn [s r] (if (> (sum r) 0) (+ s (sin r)) s)) v x)",
    "two sums": "(fst (fold (fn [#(s t) r] #((+ s (* 2.0 r)) (+ t (sum r)))) #(v 0.0) x))",
    "what is read": "(fold (fn [s r] (+ s (* (get s 0) (sin r)))) v x)",
    "all of them": "(scan (fn [s r] (+ s (outer r (sin r)))) (zeros [k k]) x)",
}


@pytest.mark.some(4)
@pytest.mark.parametrize("name", SUMMED)
def test_sums_of_whole_arrays(name: str) -> None:
    f = hyad.model(f"(defmodel f [#^ (Mat m k) x #^ (Vec k) v] {SUMMED[name]})", namespace={})
    calls = [(np.random.default_rng(m).normal(size=(m, k)), np.ones(k)) for m, k in ((1, 1), (5, 3), (70, 33))]
    made = [plan(f, calls[0], f"p{k}", deterministic=bool(k)) for k in range(2)]
    emulator = Emulator(made, gpu.cpu_compiler() or ())
    for program in made:
        repeated = any(isinstance(s, Repeat) or "repeated" in str(program.notes) for s in walk(program.steps))
        assert repeated == (name in ("what is read", "all of them")), program.notes
        for args in calls:
            wanted = memoised.compile(f)(*args)
            for descending in (False, True):
                (got,) = emulator.run(program, args, descending=descending)
                np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-11 * np.max(np.abs(wanted)))


def test_sums_of_products_that_are_all_wanted() -> None:
    """A running sum is needed after each of them: its products stay where they are."""
    f = hyad.model(
        """(defmodel f [#^ (Arr Real b n d) x #^ (Arr Real b n h) y]
        (scan (fn [s i] (+ s (@ (transpose (tanh (get x i))) (get y i)))) (zeros [d h]) (arange b)))""",
        namespace={},
    )
    args = np.random.default_rng(1).normal(size=(6, 5, 4)), np.random.default_rng(2).normal(size=(6, 5, 3))
    made = plan(f, args, "p")
    assert any(isinstance(s, Repeat) for s in walk(made.steps))
    wanted = np.cumsum(np.tanh(args[0]).transpose(0, 2, 1) @ args[1], axis=0)
    for descending in (False, True):
        (got,) = Emulator([made], gpu.cpu_compiler() or ()).run(made, args, descending=descending)
        np.testing.assert_allclose(got.ravel()[-wanted.size :], wanted.ravel(), rtol=1e-12)
