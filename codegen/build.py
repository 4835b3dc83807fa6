"""Compiles C and loads it: from a ``CFunction`` to a Python callable.

``load`` appends the stub to the C text, looks the pair up in the disk cache, compiles it where it is not there, imports
the shared object and binds the callable: CPython's own builtin function, with no Python code around it. What the stubs
of many functions have in common is an object file in the cache, which is linked to each, once a process has compiled
two of them: a quarter of what gcc does for a small model is done once.

The compiler is ``$HYAD_CC``, else ``$CC``, else ``cc``, ``gcc`` or ``clang`` on the path, else the ``ziglang`` wheel;
``$HYAD_CC_TIMEOUT`` is its time limit in seconds. The cache is ``$HYAD_CACHE``, else ``$XDG_CACHE_HOME/hyad``, else
``~/.cache/hyad``; a file there is named by the hash of all that went into it and ends in a checksum, so it is whole
or it is built again. ``$HYAD_CACHE_MB`` bounds it (512): whoever writes removes what was used longest ago.
``HYAD_TIERED=1`` lets tcc answer first, where it is installed, while the real compiler works in the background.

Design decision: importing this module starts no process and imports nothing that can wait, for a warm call has 20 ms.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from hyad.core import Tree
from hyad.errors import CompileError, ModelTypeError

from . import blas
from .cfunction import CFunction
from .stub import LOW_LEVEL, common, constants, low_level, needs_arrays, stub
from .stub_text import MODULE


class NoCompiler(CompileError):
    """This machine has no C compiler: the Python target still works."""


class HyadWarning(UserWarning):
    """Something works, but not as it was asked to."""


@dataclass(frozen=True, slots=True)
class Build:
    """How a function came to be loaded: ``seconds`` in the compiler (0.0 where the cache had it), the file, the
    command that made it."""

    hit: bool
    compile_seconds: float
    path: str
    command: tuple[str, ...]


last: Build | None = None  # of the last call of load

# Never -ffast-math, -Ofast or -funsafe-math-optimizations: linked with one of them, a shared object brings crtfastmath,
# which switches denormal numbers off in the whole process when it is loaded. Single flags do not.
# -fwrapv: an index whose arithmetic overflows must wrap, so that the check behind it sees it; undefined, it would take
# the check away.
EXACT = ("-fno-math-errno", "-fno-trapping-math", "-fwrapv")
FAST = (*EXACT, "-fassociative-math", "-fno-signed-zeros", "-freciprocal-math")
# glibc declares exp, log, sin, cos, tanh and the like for vectors (libmvec: at most 4 units in the last place off)
# where this macro is defined, which does nothing else to its headers; gcc then vectorises loops that call them.
VECTOR = "-D__FAST_MATH__"
NATIVE = "-march=native"
# A function that is called but not declared would be taken to return an int, a wrong value: it is an error instead.
SHARED = ("-std=gnu99", "-fPIC", "-shared", "-fvisibility=hidden", "-Werror=implicit-function-declaration")
COMMON = ("-O1", "-c", *(flag for flag in SHARED if flag != "-shared"))
LINK = ("-lm", *(("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()))


def load(
    fn: CFunction,
    *,
    ins: tuple[Tree, ...],
    out: Tree,
    fallback: Callable[[str | int, tuple, dict], Any],
    optimise: str = "exact",
) -> Callable[..., Any]:
    """The function as a Python callable.

    ``ins`` has one tree per Python argument, ``out`` is that of the result. Reals take floats and integers, arrays
    what offers a C-contiguous buffer of the right type; nothing is copied. ``out=`` takes the array to fill, or a
    tuple of one per leaf of the result, None for a scalar. Whatever does not fit is handed to ``fallback(reason, args,
    kwargs)``, the reason being a sentence ("out of memory" where the arrays do not fit), or the number of the check
    that failed, and its result is returned; the fallback must not call the same function with the same arguments again.
    ``optimise="fast"`` lets the C compiler reorder sums, divide by multiplying and take vector functions. CompileError
    where there is nothing to load.
    """
    global last
    if optimise not in ("exact", "fast"):
        raise ValueError(f"optimise is 'exact' or 'fast', not {optimise!r}")
    if sys.platform == "win32":
        raise NoCompiler("compiled C cannot be loaded on Windows", hint='use hyad.compile(f, target="python") or WSL')
    code = _tiered(fn, ins, out, optimise) if os.environ.get("HYAD_TIERED", "0") not in ("", "0") else None
    if code is None:
        parts = partial(_parts, fn, ins, out)
        code = _code(fn, _text(fn, ins, out), _jobs(fn, optimise), parts)
    last = code.build
    return _bind(code, fn, (fallback, _Record(fn, code), *constants(ins, out, fn, code.module)))


def address(function: Callable[..., Any]) -> int:
    """Where the C function of a loaded callable is, for ctypes, cffi or numba; ``CFunction.prototype`` is its type."""
    return _record(function).code.module.entry()[0]


def low_level_callable(function: Callable[..., Any], signature: str | None = None) -> Any:
    """A ``scipy.LowLevelCallable`` of a loaded real function of real scalars, or of one real vector.

    ``signature`` is one of ``stub.LOW_LEVEL``: without one ``double (double)`` for one argument, else ``double (int,
    double *)``, which ``scipy.integrate.quad`` and ``nquad`` take. A failed check, or another number of arguments,
    gives NaN. ModelTypeError where the function cannot be called that way.
    """
    from scipy import LowLevelCallable

    record = _record(function)
    offers = low_level(record.fn)
    if not offers:
        raise ModelTypeError(
            f"{record.fn.name} cannot be a LowLevelCallable",
            hint="such a function gives one real and takes real scalars, or one vector of reals",
        )
    wanted = LOW_LEVEL[offers[0]] if signature is None else signature
    if wanted not in [LOW_LEVEL[k] for k in offers]:
        raise ModelTypeError(
            f"{record.fn.name} has no signature {wanted!r}",
            hint="it has " + ", ".join(repr(LOW_LEVEL[k]) for k in offers),
        )
    return LowLevelCallable(record.code.module.low(LOW_LEVEL.index(wanted)))


def how(function: Callable[..., Any]) -> Build:
    """How a loaded callable was built; under ``HYAD_TIERED`` this changes when the better code has arrived."""
    return _record(function).code.build


# ------------------------------------------------------------------------------------------ what is loaded


@dataclass(slots=True)
class _Code:
    """An imported shared object; under HYAD_TIERED the better one takes its place."""

    module: Any
    build: Build


@dataclass(frozen=True, slots=True)
class _Record:
    fn: CFunction
    code: _Code


_codes: dict[str, _Code] = {}  # by key: nothing is loaded twice
_lock = threading.RLock()


def _record(function: Callable[..., Any]) -> _Record:
    state = getattr(function, "__self__", None)
    if not (isinstance(state, tuple) and len(state) > 1 and isinstance(state[1], _Record)):
        raise TypeError(f"{function!r} is not a function that was loaded from C")
    return state[1]


def _text(fn: CFunction, ins: tuple[Tree, ...], out: Tree, tier: bool = False) -> str:
    return f"{_source(fn)}\n{stub(fn, ins, out, tier)}"


def _parts(fn: CFunction, ins: tuple[Tree, ...], out: Tree) -> tuple[str, str]:
    """The same in two files: what is the function's own, and what all stubs of its kind have in common."""
    return f"{_source(fn)}\n{stub(fn, ins, out, apart=True)}", common(fn)


def _source(fn: CFunction) -> str:
    return fn.source.replace(f'#include "{fn.name}.h"', fn.header)


def _bind(code: _Code, fn: CFunction, state: tuple) -> Callable[..., Any]:
    import numpy as np

    types: tuple = (np.floating, np.integer, np.bool_)
    if needs_arrays(fn):
        dtypes = [np.dtype(t) for t in (np.float64 if fn.dtype == "f64" else np.float32, np.int64, np.bool_)]
        probe = np.zeros((3, 4), dtypes[0])
        types += (np.ndarray, np.empty, *dtypes, *(d.num for d in dtypes), _numpy_capsule(), probe)
    return code.module.bind(state, *types)


def _numpy_capsule() -> Any:
    """NumPy's C API; None where it is not where NumPy 1 and 2 have it (arrays are then made by ``numpy.empty``)."""
    for core in ("numpy._core", "numpy.core"):
        umath = sys.modules.get(f"{core}._multiarray_umath")
        if umath is not None:
            return getattr(umath, "_ARRAY_API", None)
    return None


#: How often a thread that waits looks whether it may go on before it sleeps: for 20 us. GNU's OpenMP looks for 5 ms,
#: which on a busy machine it takes from the thread that it waits for: calls were 50 times slower than on one thread.
SPINS = "1000"


@contextmanager
def openmp_settings() -> Iterator[None]:
    """Inside, GNU's OpenMP is loaded with threads that soon sleep, unless the user's environment says how they wait. It
    reads its settings when it is loaded, so the environment is left as it was."""
    own = not any(name in os.environ for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"))
    if own:
        os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        yield
    finally:
        if own:
            os.environ.pop("GOMP_SPINCOUNT", None)


def _import(path: str, job: _Job) -> Any:
    from importlib.machinery import ExtensionFileLoader, ModuleSpec

    loader = ExtensionFileLoader(MODULE, path)
    with _lock, openmp_settings() if "-fopenmp" in job.flags else nullcontext():
        module = loader.create_module(ModuleSpec(MODULE, loader, origin=path))
        sys.modules.pop(MODULE, None)  # CPython enters it; all of them have one name
    return module


# ------------------------------------------------------------------------------------------ the compiler


def compiler() -> tuple[str, ...]:
    """The command of the C compiler, with no flags of ours. NoCompiler where there is none, CompileError where an
    environment variable names one that cannot be run."""
    for variable in ("HYAD_CC", "CC"):
        words = _words(os.environ.get(variable, ""), variable)
        if words:
            if found := _which(words[0]):
                return (os.path.abspath(found), *words[1:])
            what = "is not executable" if os.path.exists(words[0]) else "was not found"
            raise CompileError(
                f"the C compiler {words[0]!r}, which ${variable} names, {what}",
                hint=f"unset {variable} to use cc, gcc or clang, or set it to a C compiler",
            )
    for name in ("cc", "gcc", "clang"):
        if found := _which(name):
            return (os.path.abspath(found),)
    from importlib.util import find_spec

    zig = find_spec("ziglang")
    if zig is not None and zig.submodule_search_locations:
        found = _which(os.path.join(zig.submodule_search_locations[0], "zig"))
        if found:
            return (found, "cc")
    raise NoCompiler(
        "no C compiler was found (looked for $HYAD_CC, $CC, cc, gcc, clang and the ziglang wheel)",
        hint='install gcc or clang, or `pip install "hyad[zig]"`; hyad.compile(f, target="python") needs none',
    )


def _which(name: str) -> str | None:
    """The executable file of a name or path. (``shutil``, for its one function, costs a first call 5 ms.)"""
    folders = [""] if os.path.dirname(name) else os.environ.get("PATH", os.defpath).split(os.pathsep)
    for folder in folders:
        path = os.path.join(folder, name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def _words(text: str, variable: str) -> list[str]:
    if not text:
        return []
    import shlex

    try:
        return shlex.split(text)
    except ValueError as e:
        raise CompileError(f"${variable} cannot be read: {text!r} ({e})") from None


# The longest function, in characters, that is optimised, and the longest sources that are, fully and at all. gcc takes
# time quadratic in straight-line code, at -O1 as at -O3, which is why the printer cuts it into parts (``parts.py``):
# 215 kB in parts take 0.6 s at -O1, 1.1 s at -O3 and 0.3 s at -O0, 5 s in one function. -O0 runs a third as fast.
HUGE, LONG, LONGEST = 100_000, 300_000, 1_000_000


def _flags(fn: CFunction, optimise: str, cc: tuple[str, ...]) -> tuple[str, ...]:
    length = len(fn.source)
    level = "-O3" if length <= LONG else "-O1"
    zig = os.path.basename(cc[0]) == "zig"  # whose -O0 adds run-time checks
    if not zig and (length > LONGEST or max(map(len, fn.source.split("\n}"))) > HUGE):
        level = "-O0"
    vector = (VECTOR,) if optimise == "fast" and has_libmvec() else ()
    openmp = ("-fopenmp",) if "#pragma omp" in fn.source else ()
    found = blas.library() if blas.SWITCH in fn.source else None
    return (level, *(FAST if optimise == "fast" else EXACT), *vector, *openmp, *(found[0] if found else ()), *SHARED)


@cache
def has_libmvec() -> bool:
    """Whether the C library has vector versions of mathematical functions."""
    try:
        return os.uname().machine == "x86_64" and (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, OSError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class _Job:
    """A compiler with its flags."""

    cc: tuple[str, ...]
    flags: tuple[str, ...]

    def command(self, source: str, target: str, *objects: str) -> tuple[str, ...]:
        vector = ("-lmvec",) if VECTOR in self.flags else ()
        return (*self.cc, *self.flags, "-o", target, source, *objects, *vector, *self.linked(), *LINK)

    def linked(self) -> tuple[str, ...]:
        """What links a BLAS."""
        found = blas.library() if f"-D{blas.SWITCH}" in self.flags else None
        return found[1] if found else ()

    def key(self, text: str) -> str:
        """The hash of all that the shared object depends on."""
        import hashlib

        parts = [text, *self.flags, *self.linked(), *LINK, sys.implementation.cache_tag or "", sys.platform, _machine()]
        for word in self.cc:
            parts.append(word)
            if os.path.isabs(word) and os.path.exists(word):
                real = os.path.realpath(word)
                status = os.stat(real)
                parts.append(f"{real} {status.st_size} {status.st_mtime_ns}")
        return hashlib.blake2b("\0".join(parts).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


_refused_native: set[tuple[str, ...]] = set()  # compilers that do not know -march=native


def _jobs(fn: CFunction, optimise: str) -> list[_Job]:
    """What to try in turn: -march=native is not known to every compiler on every machine."""
    cc = compiler()
    flags = _flags(fn, optimise, cc)
    plain = _Job(cc, flags)
    return [plain] if cc in _refused_native else [_Job(cc, (*flags, NATIVE)), plain]


_machine_name = ""


def _machine() -> str:
    """The machine's CPU, for code made by -march=native runs on no other."""
    global _machine_name
    if not _machine_name:
        uname = os.uname()
        names = [uname.machine, uname.version if sys.platform == "darwin" else ""]
        try:
            with open("/proc/cpuinfo", "rb", buffering=0) as f:  # one read: the kernel formats each CPU's entry anew
                first = f.read(8192).split(b"\n\n")[0].decode("ascii", "replace")
            wanted = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
            names += [line for line in first.splitlines() if line.startswith(wanted)]
        except OSError:
            pass
        _machine_name = "\n".join(names)
    return _machine_name


# ------------------------------------------------------------------------------------------ the cache

_SEAL = b"hyad-sum"  # then the 16 bytes of the checksum; the loader ignores what follows an object's own bytes
_private: str | None = None  # the folder that stands in for a cache that cannot be written
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def cache_folder() -> str:
    """Where compiled code is kept; it need not exist yet."""
    given = os.environ.get("HYAD_CACHE")
    if given:
        return os.path.abspath(os.path.expanduser(given))
    base = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(base if os.path.isabs(base) else os.path.expanduser("~/.cache"), "hyad")


def _folders() -> list[str]:
    return [cache_folder(), *([_private] if _private else [])]


def _sum(data: bytes) -> bytes:
    import hashlib

    return _SEAL + hashlib.blake2b(data, digest_size=16).digest()


def _contents(path: str) -> bytes | None:
    """What a cached file holds, if it is there and whole: mapping a damaged one could kill the process."""
    try:
        with open(path, "rb") as f:
            data = f.read()
    except OSError:
        return None
    length = len(_SEAL) + 16
    return data[:-length] if len(data) > length and data[-length:] == _sum(data[:-length]) else None


def kept(name: str) -> bytes | None:
    """What ``keep`` put into the cache under this name, if it is still there and whole."""
    for folder in _folders():
        path = os.path.join(folder, name)
        data = _contents(path)
        if data is not None:
            used(path)
            return data
    return None


def _put(workplace: str, name: str, data: bytes) -> str:
    """Puts a file into the cache that a workplace is in, and gives its path."""
    waiting, path = os.path.join(workplace, name), os.path.join(os.path.dirname(workplace), name)
    with open(waiting, "wb") as f:
        f.write(data + _sum(data))
    os.replace(waiting, path)
    return path


def keep(name: str, data: bytes) -> None:
    """Put a file into the cache, whole or not at all: what cannot be kept is made again next time."""
    import shutil
    import warnings

    workplace = None
    try:
        workplace = _workplace()
        path = _put(workplace, name, data)
        _evict(os.path.dirname(path), path)
    except OSError as e:
        warnings.warn(f"compiled code is not kept: {e.strerror or e}", HyadWarning, stacklevel=2)
    finally:
        if workplace:
            shutil.rmtree(workplace, ignore_errors=True)


def used(path: str) -> None:
    """Note that a cached file is of use, at most once an hour: its time of change is that of its last use."""
    try:
        if os.stat(path).st_mtime < time.time() - 3600:
            os.utime(path)
    except OSError:
        pass


_room: dict[tuple[str, float], float] = {}  # by folder and limit: how many bytes it takes before it is looked at again


def _evict(folder: str, kept: str) -> None:
    """Bring the cache under its limit: the files that were used longest ago go, and what killed processes left.

    Several processes may do this at once, and while others read: a file that is gone is built again, and one that is
    loaded stays in memory. The folder is looked at when this process first adds to it, and again when it has added a
    sixteenth of the limit, or filled what was left: others add to it as well.
    """
    import shutil

    text = os.environ.get("HYAD_CACHE_MB", "512")
    try:
        limit = float(text) * 1e6
    except ValueError:
        raise CompileError(f"$HYAD_CACHE_MB is a number of megabytes, not {text!r}") from None
    found: list[tuple[float, int, str]] = []
    try:
        own = os.stat(kept).st_size
        room = _room.get((folder, limit), 0.0) - own
        if room >= 0:
            _room[folder, limit] = room
            return
        with os.scandir(folder) as files:
            for f in files:
                status = f.stat(follow_symlinks=False)
                if f.name.startswith("build-") and status.st_mtime < time.time() - 86400:
                    shutil.rmtree(f.path, ignore_errors=True)
                elif f.name.endswith((".so", ".o", ".model", ".c", ".cubin")) and f.path != kept:
                    found.append((status.st_mtime, status.st_size, f.path))
    except OSError:
        return
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= limit:
            break
        try:
            os.unlink(path)
        except OSError:
            pass
        total -= size
    _room[folder, limit] = min(limit - total - own, limit / 16)


def _workplace() -> str:
    """A new folder inside the cache, to build in: what is in it becomes part of the cache by one rename, or goes.

    Where the cache cannot be written a private folder stands in for it until the process ends, with a warning.
    """
    import tempfile

    folder = cache_folder()
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return tempfile.mkdtemp(prefix="build-", dir=folder)
    except OSError as e:
        if e.errno in _FULL:
            raise
        return tempfile.mkdtemp(prefix="build-", dir=_private_folder(folder, e))


def _private_folder(instead_of: str, reason: OSError) -> str:
    global _private
    if _private is None or not os.path.isdir(_private):
        import atexit
        import shutil
        import tempfile
        import warnings

        _private = tempfile.mkdtemp(prefix="hyad-")
        owner, folder = os.getpid(), _private
        atexit.register(lambda: os.getpid() == owner and shutil.rmtree(folder, ignore_errors=True))
        warnings.warn(
            f"compiled code cannot be kept in {instead_of} ({reason.strerror}); it goes to a temporary folder "
            "and is compiled again next time. Set HYAD_CACHE to a folder that can be written",
            HyadWarning,
            stacklevel=2,
        )
    return _private


def _disk_full(folder: str) -> CompileError:
    return CompileError(
        f"no space left in {folder} for compiled code",
        hint="free some space there, or set HYAD_CACHE to a folder on another disk",
    )


# ------------------------------------------------------------------------------------------ compiling


def _code(fn: CFunction, text: str, jobs: list[_Job], parts: Callable[[], tuple[str, str]] | None = None) -> _Code:
    """The code that the first of ``jobs`` makes of ``text``: from memory, from the disk, or compiled now, in two
    ``parts`` where it has them, and the second has been compiled for another function."""
    code = _find(text, jobs)
    if code is None and parts is not None:
        code = _compile(fn, text, jobs, *parts())
    return code or _compile(fn, text, jobs)


def _find(text: str, jobs: list[_Job]) -> _Code | None:
    for job in jobs:
        key = job.key(text)
        with _lock:
            if key in _codes:
                return _codes[key]
        for folder in _folders():
            path = os.path.join(folder, key + ".so")
            if _contents(path) is not None:
                try:
                    module = _import(path, job)
                except ImportError:  # made for a Python or a C library that has changed since: build it again
                    continue
                used(path)
                return _enter(key, module, Build(True, 0.0, path, job.command("", path)))
    return None


def _enter(key: str, module: Any, build: Build) -> _Code:
    with _lock:
        return _codes.setdefault(key, _Code(module, build))


_wanted: set[str] = set()  # the object files that something has been compiled without


def _common(text: str, cc: tuple[str, ...], workplace: str) -> str | None:
    """An object file of ``text``, in a folder where something is built of it; None where that cannot be compiled, or
    has not been wanted before by this process: what is compiled only once takes less time in one piece."""
    job = _Job(cc, COMMON)
    name, path = job.key(text) + ".o", os.path.join(workplace, "common.o")
    data = kept(name)
    if data is not None:
        with open(path, "wb") as f:
            f.write(data)
        return path
    if name not in _wanted:
        _wanted.add(name)
        return None
    source = os.path.join(workplace, "common.c")
    with open(source, "w", encoding="utf-8") as f:
        f.write(text)
    status, _ = _run((*cc, *COMMON, "-o", path, source), workplace)
    if status != 0 or not os.path.exists(path):
        return None
    with open(path, "rb") as f:
        _put(workplace, name, f.read())
    return path


def _compile(fn: CFunction, text: str, jobs: list[_Job], own: str | None = None, shared: str = "") -> _Code | None:
    """Compiles ``text``, or its two parts; None where these cannot be: ``text`` then says why."""
    import shutil

    workplace = None
    try:
        workplace = _workplace()
        source, target = os.path.join(workplace, fn.name + ".c"), os.path.join(workplace, "code.so")
        objects = [] if own is None else [_common(shared, jobs[0].cc, workplace)]
        if None in objects:
            return None
        with open(source, "w", encoding="utf-8", errors="backslashreplace") as f:
            f.write(text if own is None else own)
        for job in jobs:
            command = job.command(source, target, *objects)
            started = time.perf_counter()
            status, message = _run(command, workplace)
            seconds = time.perf_counter() - started
            if status == 0 and os.path.exists(target):
                break
            if NATIVE in job.flags and job is not jobs[-1] and ("march" in message or "native" in message):
                _refused_native.add(job.cc)
                continue
            if objects:
                return None
            raise _failure(command, status, message, source, os.path.dirname(workplace), job.key(text))
        with open(target, "r+b") as f:
            f.write(_sum(f.read()))
        key = job.key(text)
        path = os.path.join(os.path.dirname(workplace), key + ".so")
        os.replace(target, path)
        _evict(os.path.dirname(path), path)
    except OSError as e:
        folder = os.path.dirname(workplace) if workplace else cache_folder()
        if e.errno in _FULL:
            raise _disk_full(folder) from e
        raise CompileError(
            f"compiled code cannot be written to {folder}: {e.strerror or e}",
            hint="set HYAD_CACHE to a folder that can be written",
        ) from e
    finally:
        if workplace:
            shutil.rmtree(workplace, ignore_errors=True)
    try:
        module = _import(path, job)
    except ImportError as e:
        raise CompileError(
            f"the compiled code in {path} cannot be loaded: {e}",
            hint="set HYAD_CACHE to a folder from which code may be run, if this one is mounted noexec",
        ) from e
    return _enter(key, module, Build(False, seconds, path, command))


_running: set[Any] = set()  # the compilers at work
_stopping = False  # the interpreter is about to end


def _run(command: tuple[str, ...], workplace: str) -> tuple[int, str]:
    """Runs a compiler to its end: exit status and message. A CompileError where it does not start or end."""
    import signal
    import subprocess

    seconds = os.environ.get("HYAD_CC_TIMEOUT", "300")
    # Its own temporary files go to the workplace too, and with it; English messages are what _failure knows.
    environment = {**os.environ, "TMPDIR": workplace, "LC_ALL": "C.UTF-8"}
    try:
        limit = float(seconds)
    except ValueError:
        raise CompileError(f"$HYAD_CC_TIMEOUT is a number of seconds, not {seconds!r}") from None
    try:
        with _lock:
            if _stopping:
                raise CompileError("the interpreter is ending")
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd=workplace,
                env=environment,
                start_new_session=True,
            )
            _running.add(child)
    except OSError as e:
        if e.errno in _FULL:
            raise
        raise CompileError(
            f"the C compiler {command[0]} cannot be run: {e.strerror or e}",
            hint="set HYAD_CC to a C compiler that works",
        ) from e
    try:
        message = child.communicate(timeout=limit)[1]
        return child.returncode, message.decode("utf-8", "replace")
    except BaseException as e:
        _kill(child, signal.SIGKILL)
        child.communicate()
        if isinstance(e, subprocess.TimeoutExpired):
            raise CompileError(
                f"the C compiler took longer than {limit:g} s: {' '.join(command)}",
                hint="give it more time in HYAD_CC_TIMEOUT (seconds)",
            ) from None
        raise
    finally:
        _running.discard(child)


def _kill(child: Any, signal_number: int) -> None:
    """A compiler and the processes that it started: they are a session of their own."""
    try:
        os.killpg(child.pid, signal_number)
    except OSError:
        child.kill()


def _failure(command: tuple[str, ...], status: int, message: str, source: str, folder: str, key: str) -> CompileError:
    """What to say of a compiler that failed; the source is kept for reading."""
    if "No space left on device" in message or "Disk quota exceeded" in message or "File size limit" in message:
        return _disk_full(folder)
    kept = os.path.join(folder, f"failed-{key[:12]}.c")
    os.replace(source, kept)
    lines = message.replace(source, kept).strip().splitlines() or [f"(no message; exit status {status})"]
    if len(lines) > 20:
        lines = [*lines[:20], f"... {len(lines) - 20} more lines"]
    ran = " ".join(kept if word == source else word for word in command)
    return CompileError(
        "the C compiler failed:\n  " + "\n  ".join(lines) + f"\ncommand: {ran}\nsource: {kept}",
        hint="if this C is hyad's own, it is a bug: please report it with that file; otherwise check HYAD_CC and CC",
    )


# ------------------------------------------------------------------------------------------ two tiers

_threads: list[threading.Thread] = []


def _tiered(fn: CFunction, ins: tuple[Tree, ...], out: Tree, optimise: str) -> _Code | None:
    """Code from tcc, at once, whose calls go to the real compiler's as soon as that is there. None without tcc."""
    tcc = _which("tcc")
    text, jobs = _text(fn, ins, out), _jobs(fn, optimise)
    if tcc is None or jobs[0].cc[0] == tcc:
        return None
    best = _find(text, jobs)
    if best is not None:
        return best
    first_text, job = _text(fn, ins, out, tier=True), _Job((tcc,), SHARED)
    key = job.key(first_text)
    with _lock:
        if key in _codes:
            return _codes[key]
    try:
        code = _code(fn, first_text, [job])
    except CompileError:  # tcc knows less C than its betters
        return None
    _start(lambda: _swap(code, fn, text, jobs, constants(ins, out, fn, code.module)), fn.name)
    return code


def _swap(code: _Code, fn: CFunction, text: str, jobs: list[_Job], fields: tuple) -> None:
    better = _code(fn, text, jobs)
    _bind(better, fn, (None, None, *fields))  # tells the module NumPy's types
    code.module.redirect(better.module.entry()[1])
    code.module, code.build = better.module, better.build


def _start(work: Callable[[], None], name: str) -> None:
    """Runs ``work`` in the background; an error becomes a warning, and the interpreter's end stops it."""
    import atexit
    import warnings

    def run() -> None:
        try:
            work()
        except Exception as e:
            if not _stopping:
                warnings.warn(f"{name} stays as tcc compiled it: {e}", HyadWarning, stacklevel=1)

    thread = threading.Thread(target=run, name=f"hyad-compile-{name}", daemon=True)
    with _lock:
        if not _threads:
            atexit.register(_stop)
        _threads[:] = [t for t in _threads if t.is_alive()]
        _threads.append(thread)
    thread.start()


def _stop() -> None:
    """At exit: kill the compilers at work and let their threads clean up."""
    global _stopping
    import signal

    with _lock:
        _stopping = True
        for child in list(_running):
            _kill(child, signal.SIGKILL)
    wait(10.0)


def wait(timeout: float | None = None) -> None:
    """Waits until nothing is compiled in the background any more."""
    for thread in list(_threads):
        thread.join(timeout)
