"""The command `hyad`, run as a person does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import batch
import hyad
from hyad.cli import literal, main, text_of
from hyad.codegen import blas
from hyad.errors import ReadError

ROOT = Path(__file__).resolve().parent.parent

RING = """\
(require hyad.macros [defmodel])

(defmodel area [r R]
  "The area of a ring."
  (* 3.0 (- (* R R) (* r r))))
"""
MODELS = """\
(require hyad.macros *)
(import hyad  sys)
(setv scale 2.0)
(defmodel weigh [v p] (let [#(a w) p] (* scale a (dot v w))))
(defmodel pick [#^ (Arr Int n) v i] (get v i))
(defmodel below [x] (< x 0.0))
(defmodel count-up [n] (build n (fn [i] (real i))))
(setv steep (hyad.grad weigh :wrt "v"))
(defmodel either [#^ (Arr Bool n) b] (fold (fn [k x] (if x (+ k 1) k)) 0 b))
(defn twice [x] (* 2 x))
(defn main [argv] (print "main" argv) (len argv))
"""
BROKEN = "(require hyad.macros [defmodel])\n(defmodel f [x]\n  (let [y 1 z] (* x y)))\n"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("ring.hy", RING), ("models.hy", MODELS), ("broken.hy", BROKEN)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def said(capsys: pytest.CaptureFixture, *argv: str, status: int = 0) -> str:
    """What the command prints where it should: standard output, or standard error if it fails."""
    assert main(argv) == status
    out, err = capsys.readouterr()
    assert (err if status in (1, 2) and err else out) or status == 3
    assert "Traceback" not in err
    return out if not err else err


@pytest.mark.parametrize(
    ("argv", "printed"),
    [
        ("ring.hy area 1.0 2.0", "9.0"),
        ("ring.hy area -1 -2e0", "9.0"),
        ("models.hy weigh|[1 2]|#(0.5 [1 0])", "1.0"),
        ("models.hy weigh|[1, 2]|(0.5, [1, 0])", "1.0"),
        ("models.hy steep|[1 2]|#(0.5 [1 0])", "[1.0 0.0]"),
        ("models.hy pick|[10 20 30]|1", "20"),
        ("models.hy below -Inf", "True"),
        ("models.hy below -inf", "True"),
        ("models.hy count-up 3", "[0.0 1.0 2.0]"),
        ("models.hy either [false,1]", "1"),
        ("models.hy twice 1.5", "3.0"),
        ("models.hy twice|[1 2]", "[2.0 4.0]"),
    ],
)
def test_run_calls_a_model(capsys, argv: str, printed: str) -> None:
    words = argv.split("|") if "|" in argv else argv.split()
    words = [*words[0].split(), *words[1:]]
    assert said(capsys, "run", *words).strip() == printed


def test_run_calls_main_with_what_stands_behind_two_dashes(capsys) -> None:
    assert said(capsys, "run", "models.hy", "--", "--all", "-x", status=2).strip() == "main ['--all', '-x']"
    assert said(capsys, "run", "models.hy").strip() == "main []"


def test_the_only_model_need_not_be_named(capsys) -> None:
    assert said(capsys, "show", "ring.hy").startswith("(fn [r R]\n  (let [t (* R R)")


@pytest.mark.parametrize(
    ("options", "pattern"),
    [
        ([], r"\(fn \[r R\]"),
        (["--stage", "source"], r"\(defmodel area"),
        (["--stage", "c"], r"double area\(double r, double R\)"),
        (["--grad"], r"-6\.0"),
        (["--grad", "--stage", "optimised"], r"\(\* -6\.0 r\)|\(\* r -6\.0\)|-6\.0"),
        (["--grad", "--wrt", "R", "--stage", "c"], r"double area_grad\("),
        (["--hessian", "--wrt", "r,R", "--stage", "typed"], r"#\^ Real R"),
        (["--stage", "typed", "1", "2.0"], r"#\^ Int r"),
        (["--grad", "--stage", "simplified", "--log"], r"\d+ kept, \d+ refused; operations, weighted: \d+ -> \d+"),
    ],
)
def test_show(capsys, options: list[str], pattern: str) -> None:
    assert re.search(pattern, said(capsys, "show", "ring.hy", "area", *options))


def test_emit_writes_a_pair_and_says_where(capsys, files: Path) -> None:
    out = said(capsys, "emit", "ring.hy", "area", "--grad", "--target", "c", "-o", "out")
    assert out.split() == ["out/area_grad.c", "out/area_grad.h"]
    assert "area_grad" in (files / "out" / "area_grad.h").read_text()
    out = said(capsys, "emit", "ring.hy", "--dtype", "f32", "-o", "ring_area.c")
    assert "float ring_area(float r, float R)" in (files / "ring_area.c").read_text()


def test_a_header_is_not_written_over_by_another_target_s(capsys, files: Path) -> None:
    for target in ("c", "c", "cuda"):
        status = main(["emit", "ring.hy", "area", "--grad", "--target", target, "-o", "both"])
        assert status == (target == "cuda")
    assert "both/area_grad.h is there for another target" in capsys.readouterr().err
    assert not (files / "both" / "area_grad.cu").exists()
    assert "cuda" not in (files / "both" / "area_grad.h").read_text()


TREE = """(defdata Tree (Leaf word) (Node label left right))
(defmodel score [#^ Tree t w]
  (match t (Leaf x) (* w x) (Node _ a b) (tanh (+ (score a w) (* w (score b w))))))"""


@pytest.mark.parametrize("label, fits", [("1.0", True), ("1", False)])
def test_headers_of_one_tree(capsys, files: Path, label: str, fits: bool) -> None:
    """A value's and its gradient's are for the same cells, or the compiler says why they are not."""
    (files / "tree.hy").write_text(TREE)
    for more in ([], ["--grad"]):
        assert main(["emit", "tree.hy", "score", f"(Node {label} (Leaf 2.0) (Leaf 3.0))", "0.5", *more, "-o", "t"]) == 0
    (files / "both.c").write_text('#include "t/score.h"\n#include "t/score_grad.h"\n')
    done = subprocess.run([batch.CC, "-fsyntax-only", "both.c"], cwd=files, capture_output=True, text=True)
    assert (done.returncode == 0) == fits, done.stderr
    assert ("another header has a type of this name" in done.stderr) != fits


def test_a_script_is_run(capsys, files: Path) -> None:
    """What computes and prints by itself needs no `main`, whatever models are in it."""
    one, two = "(defmodel f [x] (* x x))", "(defmodel g [x] (+ x x))"
    for name, models in (("none", ""), ("one", one), ("two", one + two)):
        text = f"(require hyad.macros [defmodel])\n{models}\n(print (+ 1 2))"
        (files / f"{name}.hy").write_text(text)
        assert said(capsys, "run", f"{name}.hy").split() == ["3"]
    macro = (
        "(require hyad.macros [defmodel])\n(defmacro twice [e] `(+ ~e ~e))\n(defmodel f [x] (* x x))\n(print (twice 3))"
    )
    (files / "macro.hy").write_text(macro)
    assert said(capsys, "run", "macro.hy").split() == ["6"]
    (files / "macro.hy").write_text(macro.replace("(* x x)", "(twice x)") + "(f 2.0)")
    assert main(["run", "macro.hy"]) and "a model expands no macros of your own" in capsys.readouterr().err
    (files / "constant.hy").write_text("(require hyad.macros [defmodel])\n(setv k 2.0)\n(defmodel c [] (* k k))")
    assert said(capsys, "run", "constant.hy") == "4.0\n"


def test_products_by_a_blas(capsys, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "(require hyad.macros *)\n(defmodel twice [#^ (Mat n n) a] (mat-mul a a))\n(defn main [] (print 1))\n"
    (files / "net.hy").write_text(text)
    said(capsys, "emit", "net.hy", "twice", "--blas", "-o", "out")
    assert "#ifdef HYAD_BLAS" in (files / "out" / "twice.c").read_text()
    said(capsys, "emit", "net.hy", "twice", "-o", "out")
    assert "HYAD_BLAS" not in (files / "out" / "twice.c").read_text()
    asked = []
    monkeypatch.setattr(blas, "library", lambda: asked.append(1) or ((), ()))
    assert said(capsys, "run", "net.hy", "twice", "[[1 2] [3 4]]", "--blas").strip() == "[[7.0 10.0] [15.0 22.0]]"
    assert asked
    monkeypatch.setattr(blas, "library", lambda: None)
    assert main(["run", "net.hy", "twice", "[[1 2] [3 4]]", "--blas"]) == 1
    assert "no BLAS" in capsys.readouterr().err
    assert main(["run", "net.hy", "main", "--blas"]) == 1
    assert "`main` is a function" in capsys.readouterr().err


def test_what_emit_takes_in_python_the_command_takes_too(capsys, files: Path) -> None:
    (files / "add.hy").write_text(
        "(defmodel picked [#^ (Vec n) v #^ (Arr Int m) at] (sum (map (fn [i] (exp (get v i))) at)))"
    )
    said(capsys, "emit", "add.hy", "picked", "--grad", "--threads", "2", "--math", "vector", "-o", "c")
    source = (files / "c" / "picked_grad.c").read_text()
    assert "#pragma omp" in source and "hyad_exp" in source
    texts = {}
    for how in ((), ("--deterministic",)):
        said(capsys, "emit", "add.hy", "picked", "--grad", "--target", "cuda", "--grid", *how, "-o", "cuda")
        texts[how] = (files / "cuda" / "picked_grad.cu").read_text()
    assert "hyad_add(double" in texts[()] and "hyad_add(double" not in texts[("--deterministic",)]
    assert "on 2 threads:" in said(capsys, "explain", "add.hy", "picked", "--threads", "2")
    assert "threads" not in said(capsys, "explain", "add.hy", "picked")
    assert "on a GPU:" in said(capsys, "explain", "add.hy", "picked", "--target", "cuda")
    assert main(["emit", "add.hy", "picked", "--target", "cuda", "--threads", "2"]) == 1
    assert "1 or more, for the target c" in capsys.readouterr().err


def test_check(capsys) -> None:
    assert "2 derivatives agree" in said(capsys, "check", "ring.hy", "area")
    assert "1 derivative agrees" in said(capsys, "check", "ring.hy", "area", "1", "2", "--wrt", "R")
    hyad.defprim("nearly-exp", ["x"], partials=["(* 1.001 y)"], python=np.exp, c="exp({0})")
    Path("wrong.hy").write_text("(require hyad.macros *)\n(defmodel wrong [x] (nearly-exp x))\n")
    assert main(["check", "wrong.hy", "wrong"]) == 1
    assert "1 of 1 derivatives disagree" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("run missing.hy area 1", "ReadError: cannot read missing.hy: No such file or directory"),
        ("run ring.hy circle 1", "there is no model `circle` in ring.hy\nhint: its models are: area"),
        ("run ring.hy area 1", "area takes 2 arguments [r R], not 1"),
        ("run ring.hy area 1 [1", "this `[` is never closed\n<argument>:1:1"),
        ("run ring.hy area 1 x", "this is no value\n<argument>:1:1"),
        ("run ring.hy area 1 [[1]1]", "this is no array of numbers"),
        ("run models.hy pick [1,0.5] 1", "this is no 64-bit integer\n<argument>:1:4\n  [1 0.5]\n     ^^^\n"),
        ("run models.hy pick [1e30] 0", "this is no 64-bit integer\n<argument>:1:2"),
        ("run models.hy pick [inf] 0", "this is no 64-bit integer\n<argument>:1:2"),
        ("run models.hy either [true,2]", "this is no truth value\n<argument>:1:7"),
        ("run models.hy weigh [1,null] #(2,[3,4])", "this is no number\n<argument>:1:4"),
        ("show models.hy", "models.hy has 6 models\nhint: say which: weigh"),
        ("show ring.hy area --stage assembler", "there is no stage 'assembler'"),
        ("show ring.hy area --log", "the stage 'anf' has no log\nhint: SymPy makes simplified, sympy and latex"),
        ("show ring.hy area --wrt r", "--wrt says by what to differentiate"),
        ("show ring.hy area --grad --wrt q --stage c", "there is no parameter `q` to differentiate by"),
        ("show broken.hy f", "ReadError: let needs a value for each name\nbroken.hy:3:13\n"),
        ("emit ring.hy area -o missing/deeper", "CompileError: there is no folder missing/deeper"),
        ("check models.hy below", "DerivativeError"),
        ("check ring.hy area 1 2 3", "area takes 2 arguments [r R], not 3"),
        ("check ring.hy area --tol -1", "tol is -1.0\nhint: the relative error allowed is positive"),
        ("show models.hy weigh --stage c", "what is not declared is taken as a number"),
    ],
)
def test_mistakes_are_messages_and_status_1(capsys, argv: str, message: str) -> None:
    assert main(argv.split()) == 1
    out, err = capsys.readouterr()
    assert message in err and "Traceback" not in err and not out


FILES = {
    "open.hy": (b"(require hyad.macros *)\n(setv k 3\n(defmodel f [x] x)\n", "this `(` is never closed\nopen.hy:2:1"),
    "text.hy": (b'(setv s "no end)\n(defmodel f [x] x)\n', "this string has no end\ntext.hy:1:9"),
    "wrong.hy": (b"(require hyad.macros *)\n(setv k 3)\n(if)\n", "Hy cannot read this: parse error"),
    "mark.hy": (b"\xef\xbb\xbf(require hyad.macros *)\n(setv k 3)\n", "starts with a byte order mark"),
    "own.hy": (b"(require hyad.macros *)\n(setv k (nowhere 3))\n", "NameError: name 'nowhere' is not defined"),
    "bare.hy": (b"(defmodel f [x] x)\n(print 1)\n", "hint: the file needs `(require hyad.macros [defmodel])`"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_loaded(capsys, name: str) -> None:
    """Never a frame of hyad's own: of an error that the file's own code raises, what leads to it from there on."""
    Path(name).write_bytes(FILES[name][0])
    assert main(["run", name, "f", "1"]) == 1
    out, err = capsys.readouterr()
    assert FILES[name][1] in err and not out
    assert "cli.py" not in err and "importlib" not in err and err.count("  File ") == err.count("Traceback")


def test_a_file_with_a_byte_order_mark() -> None:
    Path("mark.hy").write_bytes(b"\xef\xbb\xbf(defmodel f [x] (* x x))\n")
    assert hyad.load("mark.hy").f(3.0) == 9.0


@pytest.mark.parametrize(
    "argv",
    [
        "frobnicate",
        "run",
        "show ring.hy --no-such",
        "emit ring.hy --target z80",
        "check",
        "show ring.hy --grad --D",
        "show ring.hy --grad --wrt r,",
    ],
)
def test_a_wrong_command_line_is_status_2(capsys, argv: str) -> None:
    assert main(argv.split()) == 2
    assert "usage: hyad" in capsys.readouterr().err


def test_help_teaches(capsys) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "(defmodel area [r R]" in out and "hyad emit ring.hy area --grad" in out
    for command in ("run", "show", "emit", "check"):
        assert main([command, "--help"]) == 0
        assert f"hyad {command} ring.hy area" in capsys.readouterr().out
    assert main([]) == 2


def test_the_examples_of_the_help_run(capsys, files: Path) -> None:
    from hyad import cli

    ran = 0
    for line in re.findall(
        r"^  hyad (\w+ ring\.hy .*?)(?:   .*)?$", cli.EXAMPLES + cli.SHOW + cli.EMIT + cli.CHECK, re.M
    ):
        if "cuda" not in line and not line.startswith("repl"):
            (files / "out").mkdir(exist_ok=True)
            assert main(line.split()) == 0, (line, capsys.readouterr())
            ran += 1
    assert ran > 8
    capsys.readouterr()


def command(*argv: str, **options) -> subprocess.CompletedProcess:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-m", "hyad", *argv], capture_output=True, text=True, env=env, **options)


def test_python_m_hyad() -> None:
    assert command("--version").stdout == f"hyad {hyad.__version__}\n"
    done = command("run", "ring.hy", "area", "x", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("ReadError: this is no value")
    done = command("repl", input="(defmodel f [x] (* x x))\n((grad f) 3.0)\n")
    assert done.stdout.strip().endswith("6.0") and done.returncode == 0


@pytest.mark.skipif(shutil.which("head") is None, reason="no head")
def test_a_closed_pipe_is_no_error() -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    line = f"{sys.executable} -m hyad run models.hy count-up 20000 | head -c 10"
    done = subprocess.run(line, shell=True, env=env, capture_output=True, text=True)
    assert done.stdout == "[0.0 1.0 2" and done.stderr == ""


def test_an_error_that_is_none_of_hyads_keeps_its_traceback() -> None:
    Path("own.hy").write_text("(defn main [] (/ 1 0))\n")
    done = command("run", "own.hy")
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr and "own.hy" in done.stderr


@pytest.mark.parametrize(
    "text", ["1.5", "-2", "[1.0 2.0]", "#(1 [2.0 3.0])", "None", "True", '{"a" 1.0  "b" [2.0]}', "[[1.0] [2.0]]"]
)
def test_results_are_arguments_again(text: str) -> None:
    assert text_of(literal(text)) == text


def test_json_is_read_too() -> None:
    assert literal("[1, 2]").tolist() == [1.0, 2.0]
    assert literal('{"a": 1, "b": [2, 3]}')["b"].tolist() == [2.0, 3.0]
    assert literal("null") is None and literal("true") is True
    with pytest.raises(ReadError):
        literal("1 2")


def test_data_are_arguments() -> None:
    Path("trees.hy").write_text(
        "(require hyad.macros [defmodel defdata])\n(defdata Tree (Leaf word) (Node label left right))\n"
        "(defmodel score [t w] (match t (Leaf x) (* w x) (Node _ a b) (tanh (+ (score a w) (* w (score b w))))))\n"
        "(defmodel total [l] (fold + 0.0 l))\n"
    )
    tree = "(Node 1 (Leaf 2.0) (Leaf 3.0))"
    assert command("run", "trees.hy", "total", "(list 1.0 2.0)").stdout == "3.0\n"
    assert command("run", "trees.hy", "score", tree, "0.5").stdout == "0.9413755384972874\n"
    checked = command("check", "trees.hy", "score", tree, "0.5").stdout
    assert checked.startswith("score: 3 derivatives agree") and "score by t (1)" in checked
    assert command("emit", "trees.hy", "score", tree, "0.5", "--grad", "-o", "out").returncode == 0
    assert "struct Tree_cell" in Path("out/score_grad.h").read_text()
    wrong = command("run", "trees.hy", "score", "(Node 1 (Leaf 2.0))", "0.5").stderr
    assert "`Node` takes 3 fields [label left right], not 2" in wrong
