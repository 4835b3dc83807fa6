"""Every notebook runs from its first cell to its last, and shows what it was committed with.

``--update-golden`` writes the outputs of this run into the notebooks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the notebook extra")
nbclient = pytest.importorskip("nbclient", reason="needs the notebook extra")
pytest.importorskip("ipykernel", reason="needs the notebook extra")

from hyad import kernel as hyad_kernel  # noqa: E402  (needs ipykernel)

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A place that Jupyter looks for kernels in, with hyad's kernel installed there."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    hyad_kernel.install(prefix=str(tmp_path))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "matplotlib"))
    monkeypatch.setenv("PYTHONPATH", path)


def run(notebook, **options):
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="hyad", coalesce_streams=True, **options)
    client.execute(cwd=str(ROOT / "notebooks"))
    return notebook


def cells(*sources: str):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def shown(notebook) -> list[list[str]]:
    """What every code cell shows, as text; a picture as its kind alone."""
    texts = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            printed = "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")
            values = [o.data.get("text/plain", "") for o in cell.outputs if "data" in o]
            pictures = [kind for o in cell.outputs if "data" in o for kind in o.data if kind.startswith("image/")]
            texts.append([printed, *values, *pictures])
    return texts


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_was_committed_with(path, kernels, request):
    committed = nbformat.read(path, as_version=4)
    for cell in committed.cells:
        if "matplotlib" in cell.source:
            pytest.importorskip("matplotlib", reason="needs the plot extra")
    fresh = run(nbformat.read(path, as_version=4))
    if request.config.getoption("--update-golden"):
        for cell in fresh.cells:
            cell.metadata.pop("execution", None)  # when each cell ran: a change in every commit
        nbformat.write(fresh, path)
        committed = fresh
    assert shown(fresh) == shown(committed)
    assert any("image/png" in cell for cell in shown(fresh)) == ("plt." in str(committed))


def test_the_kernel(kernels):
    notebook = run(
        cells(
            "(import math [sin])\n(setv x 2.0)\n(symdiff (* x x) x)",
            "'(let [y 1 z 2] (+ y z))",
            "%hymode off",
            "x + 1",
            "%%hy\n(defn f [a] (* a x))\n(f 3)",
            "f(4)",
        )
    )
    assert [cell[1:] for cell in shown(notebook)] == [
        ["4.0"],
        ["'(let [y 1\n       z 2]\n   (+ y z))"],
        [],
        ["3.0"],
        ["6.0"],
        ["8.0"],
    ]


def test_errors_in_cells(kernels):
    notebook = run(cells("(symdiff (gamma x) x)", "(foo", "(defn f [] (/ 1 0))\n(f)"), allow_errors=True)
    mistake, syntax, other = (cell.outputs[0] for cell in notebook.cells)
    assert mistake.ename == "DerivativeError"
    assert mistake.traceback[0] == "DerivativeError: school teaches no derivative of `(gamma x)`"
    assert syntax.ename == "PrematureEndOfInput"
    assert not any("Traceback" in line for line in syntax.traceback)
    assert other.ename == "ZeroDivisionError"
    assert "hyad" not in "".join(other.traceback)  # it starts in the user's own cell


def test_completion_inspection_and_unfinished_cells(kernels):
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="hyad")
    try:
        client.execute_interactive("(setv some-value 1)", timeout=60)
        ask = {"reply": True, "timeout": 60}
        found = client.complete("(+ some-", **ask)["content"]
        assert (found["matches"], found["cursor_start"], found["cursor_end"]) == (["some-value"], 3, 8)
        assert "symdiff" in client.complete("(symd", **ask)["content"]["matches"]
        described = client.inspect("(symdiff x x)", 4, **ask)["content"]
        assert "Fig. 1" in described["data"]["text/plain"]
        assert "Return the sum" in client.inspect("(sum [])", 2, **ask)["content"]["data"]["text/plain"]
        for code, status in [
            ("(+ 1", "incomplete"),
            ("(+ 1)", "complete"),
            (")", "invalid"),
            ("%hymode on", "complete"),
        ]:
            client.is_complete(code)
            assert client.get_shell_msg(timeout=60)["content"]["status"] == status
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_install_says_where(tmp_path, capsys):
    assert hyad_kernel.main(["install", "--prefix", str(tmp_path)]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "kernel.json").exists()
    with pytest.raises(SystemExit):
        hyad_kernel.main(["install"])


def test_the_magic_in_a_python_shell():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    assert "hyad.kernel" in sys.modules  # the kernel's own import leaves shells alone
    shell.run_line_magic("load_ext", "hyad.magic")
    assert shell.run_cell("1 + 1").result == 2
    assert shell.run_cell("%%hy\n(setv a-b 3)\n(* a-b 2)").result == 6
    assert shell.run_cell("a_b").result == 3
    assert shell.run_line_magic("hy", "(+ a-b 1)") == 4
    assert shell.run_cell("%%hy\n(defmacro twice [e] `(* 2 ~e))").result is None
    assert shell.run_cell("%%hy\n(twice a-b)").result == 6
    shell.run_line_magic("hymode", "on")
    assert shell.run_cell("(twice 5)").result == 10
    shell.run_line_magic("hymode", "off")
    assert shell.run_cell("a_b + 1").result == 4
