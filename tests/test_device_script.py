"""What ``tests/device/run.sh`` runs on a GPU, here against the stand-in for pycuda: that it runs at all."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import standin
from hyad import device, gpu

FOLDER = Path(__file__).resolve().parent / "device"
needs_cpu = pytest.mark.skipif(gpu.cpu_compiler() is None, reason="no C++ compiler")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    made = standin.install(monkeypatch, standin.Driver())
    made.Device(0).make_context()
    yield made
    made.Context.pop()
    device.driver.cache_clear()
    for name in ("checks", "bench", "peers_gpu"):
        sys.modules.pop(name, None)


@needs_cpu
def test_the_checks(driver: standin.Driver, capsys: pytest.CaptureFixture) -> None:
    checks = importlib.import_module("checks")
    names = ["single_precision", "streams_of_pycuda", "contexts", "failed_checks", "out_of_memory", "with_compute"]
    names += ["rows_by_an_index", "memory_of_threads", "additions", "transposed"]
    assert checks.main(names) == 0, capsys.readouterr()
    shown = capsys.readouterr().out
    assert shown.count(" ok (") + shown.count("left out") == len(names) and shown.endswith("0 failed\n")
    assert checks.main(["failed_checks", "--seconds", "-1"]) == 0
    assert "failed checks" in (shown := capsys.readouterr().out) and "left out: no time" in shown
    checks.check_failed_checks = lambda: checks.same([1.0], [2.0])
    assert checks.main(["failed_checks"]) == 1 and "FAILED" in capsys.readouterr().out


@pytest.mark.long
@needs_cpu
def test_the_benchmark(
    driver: standin.Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    bench = importlib.import_module("bench")
    few = [case for case in bench.cases() if case.name.startswith(("elementwise", "bundle"))]
    monkeypatch.setattr(bench, "cases", lambda: few)
    monkeypatch.setattr(bench.timed, "__defaults__", (0.0, 1))
    assert bench.main(["--quick", "--output", str(tmp_path / "table.md")]) == 0
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert sum(line.startswith("| ") for line in lines) == 1 + len(few) and "a stand-in" in lines[2]
    row, few[0].peers = bench.Row("x", 64), {"A": lambda args: args[0].sum, "B": lambda args: args[1], "C": None}
    bench.compare(row, few[0], float("inf"))
    assert row.peers["A"] > 0 and row.note == " B: IndexError. C: TypeError."
    bench.compare(row, few[0], 0.0)
    assert row.note.endswith(" A: no time. B: no time. C: no time.")
    few[0].derivative = bench.energy
    few[0].part = lambda args: ["what does not fit"]
    monkeypatch.setattr(bench, "cases", lambda: few[:1])
    assert bench.main(["--quick"]) == 1 and "failed:" in capsys.readouterr().out
    assert bench.main(["--quick", "--seconds", "-1"]) == 0 and "left out: no time" in capsys.readouterr().out


CUDA_H = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include", "cuda.h")
PUT_OFF = """
import ctypes
cuda, place, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_ulonglong(), ctypes.c_void_p()
assert cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(8)) == 3 and cuda.cuInit(0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(8)) == 201
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(handle), 0) == 0 and cuda.cuCtxPushCurrent_v2(handle) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(8)) == 0
sent, got, eight = ctypes.c_longlong(1), ctypes.c_longlong(), ctypes.c_size_t(8)
assert cuda.cuMemcpyHtoDAsync_v2(place, ctypes.byref(sent), ctypes.c_size_t(9), None) == 1
assert cuda.cuMemcpyHtoDAsync_v2(place, ctypes.byref(sent), eight, None) == 0
sent.value = 2  # before anything waits for the copy
assert cuda.cuMemcpyDtoH_v2(ctypes.byref(got), place, eight) == 0
print(got.value)
"""


@needs_cpu
@pytest.mark.skipif(not CUDA_H.exists(), reason="no cuda.h")
def test_the_stand_in_for_the_driver() -> None:
    """What CUDA may put off it puts off."""
    command = [FOLDER / "without_gpu.sh", sys.executable, "-c", PUT_OFF]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there may be a GPU")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    """Whether nothing shows one, or what shows one is all that there is."""
    done = subprocess.run([FOLDER / "run.sh"], capture_output=True, text=True)
    assert done.returncode == 2 and "no NVIDIA GPU" in done.stderr and not done.stdout
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: none'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable}
    command = [FOLDER / "run.sh", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2 and "no GPU can be used here: " in done.stderr and "failed" not in done.stdout
