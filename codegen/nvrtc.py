"""CUDA text to PTX or to machine code for a GPU, without needing one.

The compiler is NVRTC, a library that answers in about a tenth of a second: that of the ``nvidia-cuda-nvrtc`` wheel,
else the system's. Where there is none it is ``nvcc``, found on the path. Kernels only: host code in the text stands
behind ``#ifndef __CUDACC_RTC__``. ``compiled`` keeps what was compiled in the cache of compiled code.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
from functools import cache
from hashlib import blake2b
from typing import Any

from hyad.errors import CompileError

FAST = "--Ofast-compile=max"


class NoCudaCompiler(CompileError):
    """This machine has neither NVRTC nor nvcc."""


def compiled(source: str, arch: str, name: str = "kernel") -> bytes:
    """``compile_device``, or what it gave before: kept on disk by text, architecture and compiler."""
    from .build import keep, kept

    key = blake2b("\0".join((source, arch, compiler())).encode("utf-8", "backslashreplace"), digest_size=16)
    image = kept(f"{key.hexdigest()}.cubin")
    if image is None:
        image = compile_device(source, arch, name)
        keep(f"{key.hexdigest()}.cubin", image)
    return image


def compiler() -> str:
    """Which compiler compiles, and in which version: what it makes depends on that."""
    library = nvrtc()
    if library is not None:
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"NVRTC {major.value}.{minor.value} {_stamp(library._name)}"
    command = nvcc()
    return f"nvcc {_stamp(command)}" if command is not None else ""


def _stamp(path: str) -> str:
    """A file's place, size and time; a library that the loader found by its bare name has none."""
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError:
        return path
    return f"{real} {status.st_size} {status.st_mtime_ns}"


def compile_device(source: str, arch: str = "compute_80", name: str = "kernel", fast: bool = False) -> bytes:
    """CUDA text compiled for ``arch``: PTX for a virtual one ("compute_80"), a cubin for a real one ("sm_90").
    ``fast``: with little optimisation, in a tenth of the time, to see whether it compiles (CUDA 13).

    NoCudaCompiler where there is no compiler; CompileError with the compiler's own message where it refuses the text.
    """
    if not re.fullmatch(r"(compute|sm)_\d+[a-z]?", arch):
        raise CompileError(f"{arch!r} is no CUDA architecture", hint='write "compute_80" for PTX, "sm_90" for a cubin')
    options = [FAST] if fast else []
    library = nvrtc()
    if library is not None:
        return _with_nvrtc(library, source, arch, name, options)
    command = nvcc()
    if command is None:
        raise NoCudaCompiler(
            "no CUDA compiler was found (looked for the nvidia-cuda-nvrtc wheel, libnvrtc and nvcc)",
            hint="pip install nvidia-cuda-nvrtc, or put the CUDA toolkit's nvcc on the path",
        )
    return _with_nvcc(command, source, arch, name, options)


@cache
def nvcc() -> str | None:
    """The path of nvcc, if it is there: on the path, or in the toolkit's folder."""
    import shutil

    return shutil.which("nvcc") or next(filter(None, (shutil.which(f"{t}/bin/nvcc") for t in _toolkits())), None)


@cache
def nvrtc() -> Any:
    """The NVRTC library, or None."""
    library = loaded("nvrtc", "cuda_nvrtc", "libnvrtc-builtins.so*")
    if library is not None:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def loaded(name: str, folder: str, needed: str) -> Any:
    """The first of ``libraries`` that can be loaded, or None. It opens the ``needed`` one beside it by its bare name,
    which the loader finds only if that is loaded already."""
    for path in libraries(name, folder):
        for part in sorted(glob.glob(os.path.join(os.path.dirname(path), needed))):
            load_library(part, ctypes.RTLD_GLOBAL)
        library = load_library(path)
        if library is not None:
            return library
    return None


def libraries(name: str, folder: str) -> list[str]:
    """Where one of CUDA's libraries may be: in wheels (those of CUDA 12 have a ``folder`` each), in the toolkit's
    folder, on the loader's path."""
    from ctypes.util import find_library
    from importlib.util import find_spec

    found = []
    wheels = find_spec("nvidia")
    for place in (wheels.submodule_search_locations or ()) if wheels is not None else ():
        for inside in ("cu*", folder):
            found += sorted(glob.glob(os.path.join(place, inside, "lib", f"lib{name}.so.*")), reverse=True)
    for toolkit in _toolkits():
        found += sorted(glob.glob(os.path.join(toolkit, "lib64", f"lib{name}.so*")), reverse=True)
    system = find_library(name)
    return [*found, *([system] if system else [])]


def _toolkits() -> list[str]:
    """The folders that CUDA's toolkit may be in."""
    return [*filter(None, map(os.environ.get, ("CUDA_HOME", "CUDA_PATH"))), "/usr/local/cuda"]


def load_library(path: str, mode: int = ctypes.DEFAULT_MODE) -> Any:
    try:
        return ctypes.CDLL(path, mode=mode)
    except OSError:
        return None


def _with_nvrtc(library: Any, source: str, arch: str, name: str, more: list[str]) -> bytes:
    def check(status: int) -> None:
        if status:
            raise CompileError(f"NVRTC failed: {library.nvrtcGetErrorString(status).decode()}")

    def text(what: str) -> bytes:
        size = ctypes.c_size_t()
        check(getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        check(getattr(library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    options = [option.encode() for option in (f"--gpu-architecture={arch}", "--std=c++17", *more)]
    program = ctypes.c_void_p()
    check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None))
    try:
        status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        if status:
            raise _refused("NVRTC", arch, text("ProgramLog").rstrip(b"\0").decode("utf-8", "replace"))
        return text("PTX").rstrip(b"\0") if arch.startswith("compute") else text("CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _with_nvcc(command: str, source: str, arch: str, name: str, more: list[str]) -> bytes:
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(prefix="hyad-") as folder:
        path, target = os.path.join(folder, f"{name}.cu"), os.path.join(folder, "code")
        with open(path, "w", encoding="utf-8") as f:
            f.write(source)
        kind = "-ptx" if arch.startswith("compute") else "-cubin"
        arguments = [command, kind, f"-arch={arch}", "-std=c++17", *more, "-o", target, path]
        done = subprocess.run(arguments, capture_output=True, text=True, env={**os.environ, "TMPDIR": folder})
        if done.returncode:
            raise _refused("nvcc", arch, (done.stderr or done.stdout).replace(folder + os.sep, ""))
        with open(target, "rb") as f:
            return f.read()


def _refused(compiler: str, arch: str, message: str) -> CompileError:
    if re.search(r"gpu[- ]architecture", message):
        return CompileError(
            f"this {compiler} does not know the architecture {arch}",
            hint="install another CUDA's: 13 knows GPUs from sm_75 on, 12 from sm_50 on, none those made later",
        )
    lines = message.strip().splitlines() or ["(no message)"]
    if len(lines) > 20:
        lines = [*lines[:20], f"... {len(lines) - 20} more lines"]
    return CompileError(
        f"{compiler} failed:\n  " + "\n  ".join(lines),
        hint="if this is hyad's own text, it is a bug: please report it with the model",
    )
