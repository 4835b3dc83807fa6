"""The C of a whole suite of programs, called from Python, under the address, leak and undefined behaviour sanitizers.

A Python of its own runs the public cases with their libraries loaded first; a C compiler's command is wrapped so that
it does without them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import test_public_cases

HERE = Path(__file__).parent
#: What Python and its extensions never free is not what is looked for.
LEAKS = "leak:libpython\nleak:python3\nleak:numpy\nleak:_multiarray\nleak:_umath\n"
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined"
LEAK = "void *kept; int leak(void) { kept = __builtin_malloc(1000); kept = 0; return 0; }"
#: gcc's runtimes before 14 take the words before some blocks of thread-local memory for their place and length and read
#: there at exit: https://github.com/google/sanitizers/issues/1322
OPTIONS = "detect_leaks=1:use_sigaltstack=0:detect_stack_use_after_return=0:intercept_tls_get_addr=0"
OVERRUN = "int leak(void) { int *p = __builtin_malloc(40), x; x = p[10]; __builtin_free(p); return x; }"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """What a Python under the sanitizers is started with."""
    gcc = shutil.which("gcc")
    if gcc is None or sys.platform != "linux":
        pytest.skip("gcc on Linux is what brings these sanitizers")
    libraries = []
    for name in ("libasan.so", "libubsan.so"):
        found = subprocess.run([gcc, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        if not os.path.isabs(found):
            pytest.skip(f"gcc comes without {name}")
        libraries.append(found)
    folder = tmp_path_factory.mktemp("sanitizers")
    (folder / "leaks.txt").write_text(LEAKS)
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": OPTIONS,
        "LSAN_OPTIONS": f"suppressions={folder / 'leaks.txt'}:print_suppressions=0",
        "HYAD_CC": f"env -u LD_PRELOAD {gcc} {FLAGS}",
        "HYAD_CACHE": str(folder / "cache"),
        "PYTHONPATH": str(HERE.parent),
    }


@pytest.mark.parametrize("fault, word", [(LEAK, "LeakSanitizer"), (OVERRUN, "heap-buffer-overflow")])
def test_faults_are_found(environment, fault, word, tmp_path):
    (tmp_path / "fault.c").write_text(fault)
    plain = {k: v for k, v in environment.items() if k != "LD_PRELOAD"}
    command = ["gcc", "-g", "-shared", "-fPIC", *FLAGS.split(), "fault.c", "-o", "fault.so"]
    subprocess.run(command, cwd=tmp_path, env=plain, check=True)
    script = f"import ctypes; ctypes.CDLL({str(tmp_path / 'fault.so')!r}).leak()"
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert ran.returncode and word in ran.stderr, ran.stderr


def test_thread_local_memory_is_no_fault(environment, tmp_path):
    """Many blocks of it, so that some lie where the runtime of old misread them."""
    (tmp_path / "local.c").write_text("int *local(void) { static __thread int here; return &here; }")
    subprocess.run(["gcc", "-shared", "-fPIC", "local.c", "-o", "0.so"], cwd=tmp_path, check=True)
    for k in range(1, 400):
        shutil.copy(tmp_path / "0.so", tmp_path / f"{k}.so")
    script = "import ctypes, sys\nfor k in range(400):\n    ctypes.CDLL(f'{sys.argv[1]}/{k}.so').local()"
    ran = subprocess.run([sys.executable, "-c", script, tmp_path], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_the_public_cases_have_no_fault(environment, pytestconfig):
    """Every sixth of them, all with ``--all``."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    runs = test_public_cases.runs(test_public_cases.CASES)[:: 1 if pytestconfig.getoption("--all") else 6]
    command += [f"{HERE / 'test_public_cases.py'}::test_compiled[{run.id}-c]" for run in runs]
    ran = subprocess.run(command, cwd=HERE.parent, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert " passed" in ran.stdout


@pytest.mark.some(14)
@pytest.mark.parametrize(
    "name", ["advice", "one_hot", "unswitch", "trees", "power_tables", "induction", "nothing_there"]
)
def test_elements_at_edges_are_there(environment, name):
    """Programs that choose elements, put numbers to their places and read them again."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ran = subprocess.run(
        [*command, str(HERE / f"test_{name}.py")], cwd=HERE.parent, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    assert " passed" in ran.stdout
