"""What ``emit`` writes is C on its own: compiled without hyad, called from a main.c written by hand."""

from __future__ import annotations

import io
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import hyad
from hyad.emit import write
from hyad.errors import CompileError, ModelTypeError

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
STRICT = ["-Wall", "-Wextra", "-Werror", "-std=c99", "-pedantic", "-O2"]
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler")

RING = '(defmodel area [r R] "The area of a ring." (* 3.0 (- (* R R) (* r r))))'
CHAIN = """
(defmodel chain [#^ (Vec n) v]
  (let [w (map (fn [x] (* x (sin x))) v)]
    (fold (fn [s a b] (+ s (* a b))) 0.0 w (build (len v) (fn [i] (get w (- (- (len v) 1) i)))))))
"""


def compiled(folder: Path, main: str, *sources: Path) -> str:
    """What the program prints."""
    (folder / "main.c").write_text(main)
    command = [CC, *STRICT, "main.c", *map(str, sources), "-lm", "-o", "main"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return subprocess.run([str(folder / "main")], capture_output=True, text=True, check=True).stdout


@needs_cc
def test_a_gradient_is_called_from_c(tmp_path: Path) -> None:
    source, header = hyad.emit(hyad.grad(hyad.model(RING)), tmp_path)
    assert (source.name, header.name) == ("area_grad.c", "area_grad.h")
    main = """
    #include <stdio.h>
    #include "area_grad.h"
    int main(void) { double r, R; area_grad(1.0, 2.0, &r, &R); printf("%g %g\\n", r, R); return 0; }
    """
    assert compiled(tmp_path, main, source) == "-6 12\n"


DECAY = """
(defmodel decay [#^ (Vec n) x #^ Real h #^ Int steps]
  (let [rate (exp (- h))
        u (ifold (fn [u k] (map (fn [v] (if (> v 1.0) (* rate v) (- v (* h v v)))) u)) x steps)
        energy (dot u u)]
    (+ energy (* rate rate))))
"""


@pytest.mark.parametrize("text", [RING, CHAIN, DECAY], ids=["ring", "chain", "decay"])
@pytest.mark.parametrize("operator", [hyad.grad, hyad.value_and_grad, hyad.hessian, None])
def test_lines_say_their_form(text: str, operator: Callable | None, tmp_path: Path) -> None:
    """In full, in outline, or by the name that the model binds to it, which stands behind its form further up; where
    the line above says the same, it is not said again."""
    f = hyad.model(text)
    source, _ = hyad.emit(f if operator is None else operator(f), tmp_path)
    body = source.read_text().split("\n{\n")[-1].split("\n}")[0].split("\n")
    bare = re.compile(r"\s*(\}.*|(double|long long|int) [\w, ]+;|return 0;|\(void\)\w+;|HYAD_\w+)")
    lines = [line for line in body if not bare.fullmatch(line)]
    assert "  // " in lines[0]
    lines = [line for line in lines if "  // " in line]
    for k, line in enumerate(lines):
        comment = line.partition("  // ")[2]
        assert text.count(comment) > 1 or k == 0 or not lines[k - 1].endswith(f"  // {comment}"), line
        if comment == "from the model":  # quoted above the function
            continue
        if comment.startswith("from "):
            name = comment.removeprefix("from ")
            form = re.search(rf"\b{name} (\(.*)", text.replace("\n", " "))
            assert any(form[1].startswith(before.partition("  // ")[2].removesuffix("...")) for before in lines[:k])
        else:
            assert comment.startswith(("(", "[")), line


def test_the_derivative_of_a_deep_model_is_short(tmp_path: Path) -> None:
    """A hundred lets, each with its form as a comment on every line, forwards and backwards."""
    lets = " ".join(f"x{k} (* 3.0 x{k - 1} (- 1.0 x{k - 1}))" for k in range(1, 101))
    source, _ = hyad.emit(hyad.grad(hyad.model(f"(defmodel logistic [x0] (let [{lets}] x100))")), tmp_path)
    assert source.stat().st_size <= 20_000


@needs_cc
def test_the_caller_gives_the_workspace_and_nothing_is_allocated(tmp_path: Path) -> None:
    f = hyad.model(CHAIN)
    source, header = hyad.emit(hyad.value_and_grad(f), tmp_path / "chain_vg.c")
    assert "CHAIN_VG_WORK(n)" in header.read_text()
    main = """
    #include <stdio.h>
    #include "chain_vg.h"
    int main(void) {
      double v[4] = {0.5, -1.0, 2.0, 0.25}, value, grad[4], work[CHAIN_VG_WORK(4)];
      chain_vg(v, 4, &value, grad, work);
      printf("%.15g", value);
      for (int i = 0; i < 4; i++) printf(" %.15g", grad[i]);
      return 0;
    }
    """
    import numpy as np

    value, grad = hyad.value_and_grad(f)(np.array([0.5, -1.0, 2.0, 0.25]))
    found = [float(x) for x in compiled(tmp_path, main, source).split()]
    np.testing.assert_allclose(found, [value, *grad], rtol=1e-13)
    assert not any(word in source.read_text() for word in ("malloc", "calloc", "realloc", "alloca"))
    subprocess.run([CC, *STRICT, "-c", source.name], cwd=tmp_path, check=True)
    nm = shutil.which("nm")
    if nm:
        undefined = subprocess.run([nm, "-u", "chain_vg.o"], cwd=tmp_path, capture_output=True, text=True).stdout
        assert "sin" in undefined and "alloc" not in undefined and "free" not in undefined


@needs_cc
def test_single_precision(tmp_path: Path) -> None:
    source, _ = hyad.emit(hyad.model(RING), tmp_path, dtype="f32")
    main = (
        '#include <stdio.h>\n#include "area.h"\nint main(void) { printf("%g", (double)area(1.0f, 2.0f)); return 0; }\n'
    )
    assert "float area(float r, float R)" in source.read_text()
    assert compiled(tmp_path, main, source) == "9"


@needs_cc
@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_square_roots_in_loops_set_no_errno(tmp_path: Path, dtype: str) -> None:
    """With no flag that says so: else a compiler calls the library for what is less than 0, and makes no vectors."""
    f = hyad.model("(fn [#^ (Vec n) v] (map (fn [x] (/ 1.0 (sqrt (+ 0.01 x)))) v))")
    source, _ = hyad.emit(f, tmp_path / "roots.c", dtype=dtype)
    done = subprocess.run([CC, *STRICT, "-O3", "-c", source.name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    nm = shutil.which("nm")
    if nm and platform.machine() in ("x86_64", "aarch64"):
        assert "sqrt" not in subprocess.run([nm, "-u", "roots.o"], cwd=tmp_path, capture_output=True, text=True).stdout
    once, _ = hyad.emit(hyad.model("(fn [x] (sqrt x))"), tmp_path / "once.c", args=(1.0,), dtype=dtype)
    assert "__attribute__" not in once.read_text()


def test_a_path_names_files_and_function_and_a_folder_is_made(tmp_path: Path) -> None:
    source, header = hyad.emit(hyad.model(RING), tmp_path / "out")
    assert source == tmp_path / "out" / "area.c" and header == tmp_path / "out" / "area.h"
    source, header = hyad.emit(hyad.model(RING), str(tmp_path / "out" / "ring_area.c"))
    assert source.name == "ring_area.c" and "double ring_area(double r, double R);" in header.read_text()
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["area.c", "area.h", "ring_area.c", "ring_area.h"]


def test_the_signature_is_that_of_args(tmp_path: Path) -> None:
    import numpy as np

    _, header = hyad.emit(hyad.model("(defmodel total [v] (fold + 0.0 v))"), tmp_path, args=(np.ones(3),))
    assert "double total(const double *restrict v, long long n);" in header.read_text()


POOLED = """(defmodel pooled [#^ (Mat n m) x #^ Int k]
  (let [part (fn [x] (build [(// (len x) k) (// (shape x 1) k)] (fn [i j] (get x (* k i) (* k j)))))
        small (if (> k 3) (part x) (part (* x x)))]
    (sum (* small (build (shape small) (fn [i j] (sin (get small i j))))))))"""


@needs_cc
def test_the_source_includes_its_header_and_no_warning_is_left(tmp_path: Path) -> None:
    """The compiler holds definition and prototype against each other, and sizes are of their type."""
    models = [(CHAIN, hyad.value_and_grad), (DECAY, hyad.grad), (RING, hyad.hessian), (POOLED, hyad.grad)]
    for k, (text, operator) in enumerate(models):
        source, header = hyad.emit(operator(hyad.model(text)), tmp_path / f"model{k}.c")
        assert source.read_text().startswith(f'#include "{header.name}"\n')
        more = ["-Wconversion", "-Wshadow", "-Wmissing-prototypes", "-Wfloat-conversion"]
        done = subprocess.run(
            [CC, *STRICT, *more, "-c", source, "-o", tmp_path / "model.o"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_results_are_written_without_a_name_between(tmp_path: Path) -> None:
    source, _ = hyad.emit(hyad.grad("(defmodel energy [l w] (* 0.5 (** (* l w) 2)))"), tmp_path)
    lines = [line.partition("  //")[0].strip() for line in source.read_text().partition("{\n")[2].splitlines()]
    assert lines[:3] == ["const double t = l*w;", "*l_bar = t*w;", "*w_bar = t*l;"]


def test_what_was_chosen_by_a_condition_is_not_chosen_again(tmp_path: Path) -> None:
    source, _ = hyad.emit(hyad.grad("(defmodel softplus [x] (if (> x 30) x (log1p (exp x))))"), tmp_path)
    assert len(re.findall(r"^ *(?:} else )?if \(", source.read_text(), re.M)) == 1


def test_the_time_to_print_grows_with_the_model() -> None:
    """Each line quotes a form, and a nested form of a deep model is as long as the model."""
    from hyad.codegen.comments import LONG, outline, shorten

    text = "(sin (* 1.1 " * 5000 + "x" + "))" * 5000
    assert len(outline(text, 32)) <= LONG and shorten(text, 40) == "(sin (* 1.1 (sin (* 1.1 (sin (* 1.1 (..."


def test_line_directives(tmp_path: Path) -> None:
    f = hyad.model(CHAIN, filename="chain.hy")
    source, _ = hyad.emit(f, tmp_path, line_directives=True)
    assert '#line 3 "chain.hy"' in source.read_text()
    source, _ = hyad.emit(f, tmp_path)
    assert "#line" not in source.read_text()


@pytest.mark.parametrize(
    ("path", "error", "hint"),
    [
        ("missing/deeper", "there is no folder .*missing/deeper", "mkdir -p"),
        ("missing/area.c", "there is no folder .*missing", "mkdir -p"),
        ("file/area.c", "there is no folder", "mkdir -p"),
        ("not-a-name.c", "`not-a-name` cannot be the name of a C function", "letters"),
    ],
)
def test_paths_that_cannot_be_written(tmp_path: Path, path: str, error: str, hint: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CompileError, match=error) as raised:
        hyad.emit(hyad.model(RING), tmp_path / path)
    assert hint in raised.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(CompileError, match="cannot write to .*: Permission denied"):
            hyad.emit(hyad.model(RING), tmp_path)
    finally:
        tmp_path.chmod(0o700)
    assert list(tmp_path.iterdir()) == []


def test_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the second file is written: the first one is not there either, nor any other."""
    import builtins

    real = builtins.open
    opened = []

    class Full(io.TextIOWrapper):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    def full(path, *args, **kwargs):
        stream = real(path, *args, **kwargs)
        opened.append(path)
        return stream if len(opened) < 2 else Full(stream.detach())

    monkeypatch.setattr(builtins, "open", full)
    with pytest.raises(CompileError, match="No space left on device") as error:
        write({tmp_path / "a.h": "one", tmp_path / "a.c": "two"})
    monkeypatch.undo()
    assert "free some space" in error.value.hint
    assert list(tmp_path.iterdir()) == []


def test_an_old_pair_stays_where_a_new_one_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "area.h").write_text("old")
    (tmp_path / "area.c").mkdir()
    with pytest.raises(CompileError, match="cannot write to"):
        hyad.emit(hyad.model(RING), tmp_path)
    assert (tmp_path / "area.h").read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["area.c", "area.h"]


def test_unknown_targets_and_types(tmp_path: Path) -> None:
    with pytest.raises(ModelTypeError, match="no target 'fortran'"):
        hyad.emit(hyad.model(RING), tmp_path, target="fortran")
    with pytest.raises(ModelTypeError, match="no dtype 'f16'"):
        hyad.emit(hyad.model(RING), tmp_path, dtype="f16")
    with pytest.raises(CompileError, match="takes a path, not NoneType"):
        hyad.emit(hyad.model(RING), None)
    assert list(tmp_path.iterdir()) == []


def test_cuda(tmp_path: Path) -> None:
    source, header = hyad.emit(hyad.grad(hyad.model(RING)), tmp_path, target="cuda", dtype="f32")
    assert (source.name, header.name) == ("area_grad.cu", "area_grad.h")
    assert "__global__ void area_grad_batch(" in source.read_text() and "const float *" in source.read_text()
