"""Loops on several threads, sums in parts, and matrices that are made a row at a time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import hyad
import memoised
import oracle
from hyad.codegen.build import SPINS
from hyad.core import Arr, Loop, Prim, all_binds
from hyad.errors import BoundsError, ModelTypeError
from hyad.passes.threads import GRAIN, in_parts, iteration
from hyad.plain_python import python_callable
from hyad.program.journal import without

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")

ROWS = """(fn [#^ (Mat n m) A #^ (Vec m) x]
  (fold + 0.0 (build (len A) (fn [i] (exp (- (fold + 0.0 (build (len x) (fn [j] (* (get A i j) (get x j)))))))))))"""
MAPPED = "(fn [v] (map (fn [e] (* e (exp (sin e)))) v))"
SUM = "(fn [v] (fold + 1.0 (map (fn [e] (* e (exp (sin e)))) v)))"
# each iteration needs a vector of its own, whose size is known at run time only
OWN = """(fn [#^ (Mat n m) A]
  (map (fn [row] (let [t (fold max (get row 0) row) e (map (fn [x] (exp (- x t))) row) s (fold + 0.0 e)]
                   (fold + s (map (fn [x] (* x (/ x s))) e)))) A))"""
STEPS = "(fn [v] (ifold (fn [u k] (map (fn [e] (sin (* e (exp e)))) u)) v 3))"
PRODUCT = "(fn [v] (fold * 1.0 (map (fn [e] (+ 1.0 (* 1e-9 (exp (sin e))))) v)))"

MATRIX = np.linspace(-0.02, 0.02, 1200 * 90).reshape(1200, 90)
VECTOR = np.linspace(-1.0, 1.0, 9000)
CASES = [
    pytest.param(lambda f: f, ROWS, (MATRIX, MATRIX[0]), True, id="sum of rows"),
    pytest.param(hyad.value_and_grad, ROWS, (MATRIX, MATRIX[0]), True, id="its gradient"),
    pytest.param(lambda f: f, MAPPED, (VECTOR,), True, id="map"),
    pytest.param(hyad.value_and_grad, SUM, (VECTOR,), True, id="gradient of a sum"),
    pytest.param(lambda f: f, OWN, (MATRIX,), True, id="memory of its own"),
    pytest.param(lambda f: f, STEPS, (VECTOR,), True, id="inner loop"),
    pytest.param(lambda f: f, PRODUCT, (VECTOR,), False, id="product"),
]


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("derive, text, args, parallel", CASES)
def test_threads_agree_with_one(derive, text, args, parallel, threads):
    f = derive(hyad.model(text))
    many = hyad.compile(f, args=args, threads=threads)
    assert ("#pragma omp parallel for" in many.source) is parallel
    got = many(*args)
    assert oracle.mismatch(got, f(*args), 1e-12) is None
    for _ in range(3):  # to the last bit, whichever thread was first
        assert oracle.mismatch(many(*args), got, 0.0, 0.0) is None


@pytest.mark.parametrize("derive, text, args, parallel", CASES)
def test_sums_in_parts_keep_their_values(derive, text, args, parallel):
    f = derive(hyad.model(text))
    short = tuple(a[:7] if a.ndim == 1 and len(args) == 1 else a[:7] if a.ndim == 2 else a for a in args)
    for given in (args, short):
        program = in_parts(f.optimised(f.specs(given)), 4)
        assert oracle.mismatch(python_callable(program)(*given), f(*given), 1e-12) is None


def test_emitted_c_compiles_with_and_without_openmp(tmp_path):
    f = hyad.value_and_grad(hyad.model(ROWS.replace("(fn", "(defmodel rows", 1)))
    source, _ = hyad.emit(f, tmp_path, threads=2)
    for flags in ([], ["-fopenmp"]):
        command = ["cc", "-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", *flags, "-c", str(source), "-o", os.devnull]
        subprocess.run(command, check=True)


@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": 1.5}, {"threads": 2, "target": "python"}])
def test_threads_that_there_are_not(options):
    with pytest.raises(ModelTypeError):
        hyad.compile(hyad.model(MAPPED), args=(VECTOR,), **options)


@pytest.mark.parametrize("n", [2, 40])
def test_the_work_of_loops_over_differences_and_remainders(n):
    """What a loop's length is multiplied by stands in brackets, and so does a length."""
    inner = "(ifold (fn [s j] (+ s (exp (* (get v i) j)))) 0.0 (% (len v) 7))"
    f, v = hyad.model(f"(fn [v] (build (- (len v) 1) (fn [i] {inner})))"), np.linspace(0.1, 0.9, n)
    many = hyad.compile(f, args=(v,), threads=2)
    assert re.search(r"if ?\(\(n - 1\)\*\(.*\*\(n % 7\)", many.source)
    np.testing.assert_array_equal(many(v), f(v))


# ------------------------------------------------------------------------------------------- rows


def once(source):
    """C text as it is without OpenMP: short loops for threads stand there once."""
    return re.sub(r"#ifdef _OPENMP\n.*?#endif\n", "", source, flags=re.DOTALL)


def cleared(program):
    """The matrices that start as zeros."""
    ops = [(b.op, b.vars[0].type) for b in all_binds(program.body) if type(b.op) is Prim and b.op.name == "zeros"]
    return [t for _, t in ops if isinstance(t, Arr) and t.rank == 2]


def test_an_adjoint_matrix_is_stored_row_by_row():
    program = hyad.grad(hyad.model(ROWS)).optimised()
    assert not cleared(program)
    assert not any(b.op.name == "add-at" and len(b.op.args) == 4 for b in all_binds(program.body) if type(b.op) is Prim)


@pytest.mark.parametrize(
    "entry, by_row",
    [
        ("(get A i j)", True),
        ("(if (> (get x j) 0.1) (get A i j) (* 2 (get A i j)))", True),
        ("(get A i (- m (+ 1 j)))", True),
        ("(get A i 0)", False),  # one element of each row: stores into one matrix of zeros
        ("(get A j i)", True),  # a column: the two loops change places
        ("(get A (- n (+ 1 j)) (- n (+ 1 i)))", False),  # another row
        ("(* (get A i j) (get A 0 j))", False),
        ("(get A (- n (+ 1 i)) j)", False),
    ],
)
def test_other_rows_are_left_alone(entry, by_row):
    text = f"""(fn [#^ (Mat n n) A #^ (Vec n) x]
      (let [n (len x) m n]
        (ifold (fn [s i] (+ s (exp (ifold (fn [t j] (+ t (* (get x j) {entry}))) 0.0 n)))) 0.0 n)))"""
    f = hyad.grad(hyad.model(text), wrt="A")
    assert (not cleared(f.optimised())) is by_row
    args = (np.linspace(-1, 1, 16).reshape(4, 4), np.array([0.3, -0.2, 0.7, 0.1]))
    assert oracle.mismatch(f(*args), hyad.run(f, *args), 1e-12) is None


def test_products_of_a_gradient_run_on_threads():
    """Both adjoints of a matrix product: rows of one, parts of the sum that the other is."""
    f = hyad.grad("(fn [#^ (Mat n k) a #^ (Mat k m) b] (sum (square (mat-mul a b))))", wrt=(0, 1))
    body = f.optimised(threads=2).body
    sums = [b.op for b in body.binds if type(b.op) is Loop and b.op.accs]
    assert not sums  # each is in parts


# ------------------------------------------------------------------------------- what pays, and how threads wait


def parts_of(model, sizes, threads=2):
    """In how many parts the sum of a model's program is taken at some sizes, and its value."""
    program = in_parts(model.optimised(model.specs(sizes)), threads)
    value = python_callable(program)(*sizes)
    return value, python_callable(model.optimised(model.specs(sizes)))(*sizes)


@pytest.mark.parametrize("n, m, same", [(3000, 2, True), (3000, 300, False)], ids=["short rows", "long rows"])
def test_sizes_decide_whether_threads_pay(n, m, same):
    """With few numbers in a row 3000 rows are no work for two threads: the sum is one part, to the last bit."""
    rng = np.random.default_rng(5)
    sizes = rng.normal(size=(n, m)) / m, rng.normal(size=m)
    parts, whole = parts_of(hyad.model(ROWS), sizes)
    assert (parts == whole) is same and parts == pytest.approx(whole, rel=1e-12)


def test_the_cost_of_an_iteration_is_a_polynomial_in_the_sizes():
    text = """(fn [#^ (Mat n d) x]
      (map (fn [r] (ifold (fn [s i] (+ s (ifold (fn [t j] (+ t (get r j))) 0.0 (+ i 1)))) 0.0 (len r))) x))"""
    with without({"growing-sums", "jam", "prefixes"}):
        triangle = hyad.model(text).optimised()
    costs = [iteration(b.op) for b in triangle.body.binds if type(b.op) is Loop]
    assert {c[at] for c in costs for at in c if [v.name for v in at] == ["d", "d"]} == {1.0}  # half of a load and a sum


def test_rows_of_their_own_are_not_taken_in_parts():
    """What each iteration adds to a row of its own is no sum: parts would clear and add up the matrix for nothing."""
    text = """(fn [#^ (Mat n m) a]
      (ifold (fn [s i] (+ s (square (get a i 0)) (* (get a i 1) (get a i 2)))) 0.0 (len a)))"""
    program = hyad.grad(text).optimised(threads=2)
    loops = [b.op for b in all_binds(program.body) if type(b.op) is Loop]
    assert loops and not any(loop.index.name == "part" for loop in loops)


SOFT = """(fn [#^ (Mat k d) c #^ (Mat n d) x]
  (fold (fn [s p] (+ s (log (fold (fn [t a] (+ t (exp (- a)))) 0.0
                                  (map (fn [m] (fold (fn [t a b] (+ t (square (- a b)))) 0.0 m p)) c))))) 0.0 x))"""


@pytest.mark.parametrize("wrt", [0, 1, (0, 1)])
def test_a_table_that_a_sum_and_a_row_need(wrt):
    """What stacks rows and sums becomes two loops: a loop that gives a sum and a table is in both."""
    rng = np.random.default_rng(7)
    args = rng.normal(size=(50, 6)), rng.normal(size=(4000, 6))
    g = hyad.grad(SOFT, wrt=wrt)
    assert oracle.mismatch(hyad.compile(g, threads=2)(*args), hyad.compile(g)(*args), 1e-11) is None


def test_threads_write_to_lines_of_their_own():
    """Between the parts of a sum, and the memory of two threads, lies a line of the cache."""
    g = hyad.grad(SOFT, wrt=0)
    source = hyad.compile(g, threads=2).source
    assert "(k + 8)*d" in source and re.search(r"\+ thread\*\(\S+ \+ 8\)", source)
    assert source.count("omp_get_thread_num();") == 1


GATHERED = "(fn [#^ (Arr Int n) at #^ (Vec m) x] (map (fn [i] (exp (sin (get x i)))) at))"


def test_checks_come_first():
    """A loop that may fail runs on one thread; the checks of what it reads are a loop of their own, and it is not."""
    f = hyad.compile(hyad.model(GATHERED), threads=2)
    assert "#pragma omp parallel for" in f.source
    at, x = np.arange(30_000) % 7, np.linspace(0, 1, 7)
    np.testing.assert_allclose(f(at, x), np.exp(np.sin(x[at])), rtol=1e-14)
    at[20_000] = 7
    with pytest.raises(BoundsError, match="get x i"):
        f(at, x)


def test_rows_are_added_four_at_a_time_in_each_part():
    f = hyad.grad("(fn [#^ (Mat n k) a #^ (Mat k m) b] (sum (square (mat-mul a b))))", wrt=1)
    assert "/4" in hyad.compile(f, threads=2).source
    assert "/4" not in hyad.compile(f, threads=2, without="jam-rows").source


@pytest.mark.parametrize("own", [None, "7"])
def test_waiting_threads_soon_sleep(own):
    """GNU's OpenMP says how it is set up when it is loaded; the environment stays as it was."""
    if "Free Software" not in subprocess.run(["cc", "--version"], capture_output=True, text=True).stdout:
        pytest.skip("needs GNU's OpenMP")
    typed = MAPPED.replace("[v]", "[#^ (Vec n) v]")
    code = f"import os, hyad; hyad.compile({typed!r}, threads=2); print(os.environ.get('GOMP_SPINCOUNT'))"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GOMP_", "OMP_"))}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE"} | ({"GOMP_SPINCOUNT": own} if own else {})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert f"GOMP_SPINCOUNT = '{own or SPINS}'" in done.stderr and done.stdout.strip() == str(own)


def test_a_table_for_threads_is_made_once():
    """What a gradient remembers and a sum in parts reads is one table; several sums add their parts in one loop."""
    text = "(fn [#^ (Vec n) v] (let [top (fold max (get v 0) v)] (log (fold (fn [s a] (+ s (exp (* a top)))) 0.0 v))))"
    f = hyad.compile(hyad.grad(text), threads=2)
    v = np.linspace(0.1, 1.0, 7)
    np.testing.assert_allclose(f(v), hyad.compile(hyad.grad(text))(v), rtol=1e-14)
    assert once(f.source).count("= exp(") == 1 and len(re.findall(r"\bt\d*\[i\] = t\d+;", f.source)) == 0
    sums = "(fn [#^ (Vec n) v] #((fold + 0.0 v) (fold (fn [s a] (+ s (* a a))) 0.0 v)))"
    g = hyad.compile(sums, threads=2)
    np.testing.assert_allclose(g(v), (v.sum(), (v * v).sum()), rtol=1e-14)
    assert once(g.source).count("part++") == 2


# ------------------------------------------------------------------------------------------- rows of their own

#: name -> (model, whether each iteration has rows of its own)
OWN_ROWS = {
    "row": ("(ifold (fn [a i] (ifold (fn [a j] (add-at a i j (exp (get x i)))) a (len (get a 0)))) a (len x))", True),
    "shifted": ("(ifold (fn [a i] (add-at a (+ 1 i) 0 (exp (get x i)))) a (- (len a) 1))", True),
    "branch": ("(ifold (fn [a i] (if (> (get x i) 0.0) (add-at a i 0 (exp (get x i))) a)) a (len x))", True),
    "read": ("(ifold (fn [a i] (update a i 0 (* 2.0 (exp (get a i 1))))) a (len x))", True),
    "twice": ("(ifold (fn [a i] (add-at (add-at a i 0 1.0) i 1 (exp (get x i)))) a (len x))", True),
    "next row": ("(ifold (fn [a i] (update a (+ 1 i) 0 (exp (get a i 0)))) a (- (len a) 1))", False),
    "two rows": ("(ifold (fn [a i] (update (update a i 0 2.0) (- (len x) (+ i 1)) 1 (get x i))) a (len x))", False),
    "one row": ("(ifold (fn [a i] (update a 0 0 (exp (get x i)))) a (len x))", False),
    "half the rows": ("(ifold (fn [a i] (update a (// i 2) 0 (exp (get x i)))) a (len x))", False),
}


@pytest.mark.parametrize("name", OWN_ROWS)
def test_iterations_that_have_rows_of_their_own(name):
    text, own = OWN_ROWS[name]
    f = hyad.model(f"(fn [#^ (Mat n 2) a #^ (Vec n) x] {text})")
    rng = np.random.default_rng(3)
    for n in (1, 2, 7, 40_000):
        args = rng.normal(size=(n, 2)), rng.normal(size=n)
        many = memoised.compile(f, args=args, threads=3)
        assert ("#pragma omp" in many.source) is own
        assert oracle.mismatch(many(*args), memoised.compile(f, args=args)(*args), 0.0, 0.0) is None


def test_a_triangle_on_threads():
    """How long a loop is may be what its iterations cost: the count is written where it is asked for."""
    f = hyad.model("(fn [#^ (Mat n n) a] (cholesky a))")
    a = np.random.default_rng(5).normal(size=(60, 60))
    a = a @ a.T + np.eye(60)
    many = hyad.compile(f, args=(a,), threads=2)
    assert "#pragma omp" in many.source
    assert oracle.mismatch(many(a), hyad.compile(f, args=(a,))(a), 0.0, 0.0) is None


LARGEST = """(fn [#^ (Mat n m) a]
  (let [rows (map (fn [r] (log (fold + 1.0 (map exp r)))) a)]
    (+ (fold max (get rows 0) rows) (fold + 0.0 rows))))"""


def test_what_a_loop_stacks_beside_a_largest_element():
    """The largest of some numbers is looked for on one thread; the numbers are made on all."""
    f = hyad.value_and_grad(hyad.model(LARGEST))
    a = np.random.default_rng(2).normal(size=(3000, 9))
    many = hyad.compile(f, args=(a,), threads=3)
    top = next(line for line in once(many.source).splitlines() if "= hyad_max_serial(" in line)
    assert "exp" not in top and "log" not in top
    assert oracle.mismatch(many(a), hyad.compile(f, args=(a,))(a), 1e-12) is None


def test_parts_of_rows_are_added_side_by_side():
    """A matrix of sums begins as its first part; the others are added a row at a time, with nothing cleared."""
    g = hyad.grad(SOFT, wrt=0)
    source = once(hyad.compile(g, threads=2).source)
    rows = source[source.rindex("for (long long part") :]
    assert "- 1; part++" in rows and rows.index("part++") < rows.index("+= c_part_bar[((part + 1)")


def test_two_threads_have_a_grain_each():
    """Half of a grain is done before a thread has woken: a sum of less than two grains is one sum, in its order."""
    f = hyad.model("(fn [v] (fold (fn [s a] (+ s a)) 0.0 v))")
    one, two = (hyad.compile(f, args=(VECTOR,), threads=threads) for threads in (1, 2))
    numbers = np.random.default_rng(5).normal(size=GRAIN)
    assert two(numbers[: GRAIN // 2]) == one(numbers[: GRAIN // 2])  # an iteration is three additions
    assert two(numbers) != one(numbers)
    halves = (one(numbers[: GRAIN // 2]), one(numbers[GRAIN // 2 :]))
    assert two(numbers) == halves[0] + halves[1]


def test_a_loop_that_is_too_short_costs_no_region():
    """OpenMP takes 300 ns to find that a loop runs on one thread: a short loop stands there for one thread as well."""
    text = "(fn [v] (ifold (fn [u k] (map (fn [e] (sin (* e (exp e)))) u)) v 3))"
    source = hyad.compile(hyad.model(text), args=(VECTOR,), threads=2).source
    assert re.search(r"if \(.* >= \d+\) \{.*\n#pragma omp parallel for num_threads\(2\)\n", source)
    assert re.search(r"\n +\} else.*\n#endif\n +for \(", source)


WHY = [
    ("(fn [#^ (Vec n) v] (map (fn [e] (exp e)) v))", "on threads, from"),
    ("(fn [#^ (Vec n) v] (fold (fn [s e] (+ s (exp e))) 0.0 v))", "on threads, in parts"),
    ("(fn [#^ (Vec n) v] (fold (fn [speed e] (sin (+ speed e))) 0.0 v))", "what the one before gives (speed)"),
    ("(fn [#^ (Vec n) v #^ (Vec m) x] (map (fn [e] (get x (int (exp e)))) v))", "a check in it may fail"),
]
HALVED = """(fn [#^ (Vec n) v]
  (map (fn [e] (let [x (ref e)] (do (while (> (deref x) 1.0) (set! x (* 0.999 (deref x)))) (deref x)))) v))"""


@pytest.mark.parametrize("text, why", WHY)
def test_explain_says_what_runs_on_threads(text, why):
    found = hyad.explain(hyad.model(text), threads=2)
    assert any(why in how for _, how in found.loops) and why in str(found).partition("on 2 threads:")[2]
    assert "threads" not in str(hyad.explain(hyad.model(text)))


def test_explain_says_that_parts_do_not_pay():
    """Rows that are far apart overlap, and parts of the matrix would be cleared and added up for a few additions.
    Where they are near each row takes what its neighbours would add, and needs no parts."""
    text = """(fn [#^ (Mat n m) u]
      (sum (build [(- (len u) {0}) (len (get u 0))] (fn [i j] (* (get u i j) (get u (+ i {0}) j))))))"""
    near, far = (hyad.explain(hyad.grad(text.format(k)), threads=2).loops for k in (1, 12))
    assert any("parts of its sums would save less" in how for _, how in far)
    assert [how for _, how in near] == ["on threads, where it is long enough"]


def test_a_while_of_its_own():
    """Each iteration goes round as often as it has to, so that what is done with its own takes others'."""
    f = hyad.model(HALVED)
    v = np.linspace(0.5, 900.0, 3001)
    many = hyad.compile(f, args=(v,), threads=3)
    assert "schedule(guided)" in many.source
    assert oracle.mismatch(many(v), hyad.compile(f, args=(v,))(v), 0.0, 0.0) is None


def test_a_while_that_remembers_its_rounds_has_one_thread():
    g = hyad.grad(f"(fn [#^ (Vec n) v] (sum ({HALVED.replace('0.999', '0.1 (deref x)')} v)))")
    v = np.linspace(0.5, 9.0, 301)
    assert any("remembers its rounds" in how for _, how in hyad.explain(g, threads=2).loops)
    assert oracle.mismatch(hyad.compile(g, threads=3)(v), hyad.compile(g)(v), 1e-12) is None


TRIANGLES = {
    "growing": "(ifold (fn [t j] (+ t (exp (* (get v i) (get v j))))) 0.0 (+ i 1))",
    "shrinking": "(ifold (fn [t j] (+ t (exp (* (get v i) (get v (- (len v) (+ j 1))))))) 0.0 (- (len v) i))",
    "square": "(ifold (fn [t j] (+ t (exp (* (get v i) (get v j))))) 0.0 (len v))",
}


@pytest.mark.parametrize("shape", TRIANGLES)
def test_parts_of_a_triangle_are_of_equal_work(shape):
    f = hyad.model(f"(fn [#^ (Vec n) v] (ifold (fn [s i] (+ s (log {TRIANGLES[shape]}))) 0.0 (len v)))")
    program = f.optimised(threads=3)
    found = [b.op for b in program.body.binds if type(b.op) is Loop and b.vars[0].name == "starts"]
    assert bool(found) is (shape != "square")
    for n in (0, 1, 2, 3, 7, 400):
        v = np.linspace(-1.0, 1.0, n)
        for derived in (f, hyad.grad(f)):
            one, many = memoised.compile(derived), memoised.compile(derived, threads=3)
            assert oracle.mismatch(many(v), one(v), 1e-12) is None
    if found:
        starts = next(b.vars[0] for b in program.body.binds if b.op is found[0])
        shown = replace(program, body=replace(program.body, results=(starts,)))
        at = list(python_callable(shown)(np.linspace(-1.0, 1.0, 3000)))
        work = {"growing": lambda i: (i + 1) / 3001, "shrinking": lambda i: (3000 - i) / 3001}[shape]
        sums = [sum(map(work, range(a, b))) for a, b in zip(at, at[1:])]
        assert at[0] == 0 and at[-1] == 3000 and max(sums) < 1.05 * min(sums)


def test_a_gradient_of_a_triangle_takes_no_arena():
    """How long a row of a part is follows from its index, which is one of those of the whole loop."""
    text = """(fn [#^ (Mat n d) a]
      (ifold (fn [s i]
        (+ s (log (ifold (fn [t j] (+ t (exp (ifold (fn [u k] (+ u (* (get a i k) (get a j k)))) 0.0 (len (get a 0))))))
                         0.0 (+ i 1)))))
        0.0 (len a)))"""
    g = hyad.grad(text)
    many = hyad.compile(g, threads=3)
    assert "#pragma omp" in many.source and "arena" not in many.source
    for n in (1, 2, 5, 90):
        a = np.random.default_rng(n).normal(size=(n, 3)) / 3
        assert oracle.mismatch(many(a), memoised.compile(g)(a), 1e-12) is None


def test_iterations_of_which_the_sizes_say_little() -> None:
    """The mean of what an iteration does is a constant less some sizes."""
    f = hyad.model("""(fn [x] (let [n (len x)
      b (build [n n] (fn [i j] (if (<= (abs (- i j)) 1) (* (get x i) (get x j)) 0.0)))] (sum (@ b b b))))""")
    x = np.linspace(0.1, 0.5, 6)
    for g in (f, hyad.grad(f)):
        one, two = (hyad.compile(g, args=(x,), threads=k)(x) for k in (1, 2))
        np.testing.assert_allclose(one, two, rtol=1e-13)
