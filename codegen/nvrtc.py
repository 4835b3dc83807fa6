"""CUDA text to PTX or to machine code for a GPU, without needing one.

The compiler is NVRTC, a library that answers in about a tenth of a second: that of the ``nvidia-cuda-nvrtc`` wheel,
else the system's. Where there is none it is ``nvcc``, found on the path. Kernels only: host code in the text stands
behind ``#ifndef __CUDACC_RTC__``.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
from functools import cache
from typing import Any

from hyad.errors import CompileError


class NoCudaCompiler(CompileError):
    """This machine has neither NVRTC nor nvcc."""


def compile_device(source: str, arch: str = "compute_80", name: str = "kernel") -> bytes:
    """CUDA text compiled for ``arch``: PTX for a virtual one ("compute_80"), a cubin for a real one ("sm_90").

    NoCudaCompiler where there is no compiler; CompileError with the compiler's own message where it refuses the text.
    """
    if not re.fullmatch(r"(compute|sm)_\d+[a-z]?", arch):
        raise CompileError(f"{arch!r} is no CUDA architecture", hint='write "compute_80" for PTX, "sm_90" for a cubin')
    library = nvrtc()
    if library is not None:
        return _with_nvrtc(library, source, arch, name)
    command = nvcc()
    if command is None:
        raise NoCudaCompiler(
            "no CUDA compiler was found (looked for the nvidia-cuda-nvrtc wheel, libnvrtc and nvcc)",
            hint="pip install nvidia-cuda-nvrtc, or put the CUDA toolkit's nvcc on the path",
        )
    return _with_nvcc(command, source, arch, name)


@cache
def nvcc() -> str | None:
    """The path of nvcc, if it is there."""
    import shutil

    return shutil.which("nvcc")


@cache
def nvrtc() -> Any:
    """The NVRTC library, or None."""
    for path in _libraries():
        # NVRTC opens its builtins by their bare name, which the loader finds only if they are loaded already
        for builtins in sorted(glob.glob(os.path.join(os.path.dirname(path), "libnvrtc-builtins.so*"))):
            _load(builtins, ctypes.RTLD_GLOBAL)
        library = _load(path)
        if library is not None:
            library.nvrtcGetErrorString.restype = ctypes.c_char_p
            return library
    return None


def _libraries() -> list[str]:
    """Where NVRTC may be: in wheels, in the toolkit's folder, on the loader's path."""
    from ctypes.util import find_library
    from importlib.util import find_spec

    found = []
    wheels = find_spec("nvidia")
    for folder in (wheels.submodule_search_locations or ()) if wheels is not None else ():
        for inside in ("cu*", "cuda_nvrtc"):
            found += sorted(glob.glob(os.path.join(folder, inside, "lib", "libnvrtc.so.*")), reverse=True)
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            found += sorted(glob.glob(os.path.join(os.environ[variable], "lib64", "libnvrtc.so*")), reverse=True)
    system = find_library("nvrtc")
    return [*found, *([system] if system else [])]


def _load(path: str, mode: int = ctypes.DEFAULT_MODE) -> Any:
    try:
        return ctypes.CDLL(path, mode=mode)
    except OSError:
        return None


def _with_nvrtc(library: Any, source: str, arch: str, name: str) -> bytes:
    def check(status: int) -> None:
        if status:
            raise CompileError(f"NVRTC failed: {library.nvrtcGetErrorString(status).decode()}")

    def text(what: str) -> bytes:
        size = ctypes.c_size_t()
        check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        check(getattr(library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
    program = ctypes.c_void_p()
    check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None))
    try:
        status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if status:
            raise _refused("NVRTC", text("ProgramLog").rstrip(b"\0").decode("utf-8", "replace"))
        return text("PTX").rstrip(b"\0") if arch.startswith("compute") else text("CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _with_nvcc(command: str, source: str, arch: str, name: str) -> bytes:
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(prefix="hyad-") as folder:
        path, target = os.path.join(folder, f"{name}.cu"), os.path.join(folder, "code")
        with open(path, "w", encoding="utf-8") as f:
            f.write(source)
        kind = "-ptx" if arch.startswith("compute") else "-cubin"
        arguments = [command, kind, f"-arch={arch}", "-std=c++17", "-o", target, path]
        done = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, "TMPDIR": folder})
        if done.returncode:
            raise _refused("nvcc", (done.stderr or done.stdout).replace(folder + os.sep, ""))
        with open(target, "rb") as f:
            return f.read()


def _refused(compiler: str, message: str) -> CompileError:
    lines = message.strip().splitlines() or ["(no message)"]
    if len(lines) > 20:
        lines = [*lines[:20], f"... {len(lines) - 20} more lines"]
    return CompileError(
        f"{compiler} failed:\n  " + "\n  ".join(lines),
        hint="if this is hyad's own text, it is a bug: please report it with the model",
    )
