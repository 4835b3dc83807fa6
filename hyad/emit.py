"""``emit``: a model as files of C or CUDA that need neither hyad nor Python."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .compiling import own_math
from .errors import CompileError, ModelTypeError, border
from .model import as_model
from .program.journal import without

if TYPE_CHECKING:
    from pathlib import Path

SUFFIXES = {"c": ".c", "cuda": ".cu"}


@border
def emit(
    f: Any,
    path: str | os.PathLike = ".",
    *,
    target: str = "c",
    args: Sequence[Any] | None = None,
    dtype: str = "f64",
    line_directives: bool = False,
    threads: int = 1,
    blas: bool = False,
    math: str = "libm",
    grid: bool = False,
    deterministic: bool = False,
) -> tuple[Path, Path]:
    """Write a model, or a derived one, as a source file and the header that declares it; their paths.

    ``path`` is a folder (made if only itself is missing), where the function's name names the files, or a file such
    as ``"out/kernel.c"``, whose stem names files and function. The C compiles alone with ``cc -O3 -lm``, calls
    nothing but libm and allocates nothing: where it needs room, the caller gives it, and the header has a macro
    ``NAME_WORK(n)`` for its size. A model with data, recursion or a ``while`` that is remembered may need memory that
    cannot be measured before: it takes a ``hyad_arena``, which the header describes beside the types of the data.
    ``target`` is "c" or "cuda", ``dtype`` "f64" or "f32"; ``args`` are arguments whose signature is meant, where
    annotations do not say it. ``line_directives`` makes a debugger step through the model.
    ``math`` is "libm" or "vector", which brings exp, expm1, log, log1p, tanh, sin, cos and tan along, as functions that
    compilers make vectors of (see ``hyad.compile``).
    C for several ``threads`` runs on them where it is compiled with OpenMP (``-fopenmp``), and on one where it is not.
    With ``blas`` large products of matrices call ``cblas_dgemm`` where the C is compiled with ``-DHYAD_BLAS`` (and
    linked with ``-lopenblas``, say), and are loops where it is not.

    CUDA is a kernel over a batch, one thread for each element, with a function ``NAME_launch`` that starts it; with
    ``grid`` it is one call in parallel, as many kernels as that takes, and a function ``NAME_call`` that starts them
    one after another (``deterministic``: with results that are the same to the last bit from call to call). The pair
    compiles alone with nvcc, and the header says what the caller gives.

    Integers have 64 bits. Where a checked subscript or size depends on one that may not fit, the C checks that too;
    all others are meant to wrap: give a model that computes with such integers to a compiler with ``-fwrapv``.

    Both files are complete or neither is written. Raises ``CompileError``, and ``ModelTypeError`` for a value that
    there is not.
    """
    if target not in SUFFIXES:
        raise ModelTypeError(f"there is no target {target!r} to emit", None, 'targets are "c" and "cuda"')
    if dtype not in ("f64", "f32"):
        raise ModelTypeError(f"there is no dtype {dtype!r}", None, 'dtypes are "f64" and "f32"')
    model = as_model(f, "emit")
    from pathlib import Path

    if not isinstance(path, (str, os.PathLike)):
        raise CompileError(f"hyad.emit takes a path, not {type(path).__name__}", None, "a folder, or out/kernel.c")
    path = Path(path)
    named = path.suffix in (".c", ".h", ".cu") and not path.is_dir()
    if named and not re.fullmatch(r"[A-Za-z_]\w*", path.stem, re.ASCII):
        raise CompileError(f"`{path.stem}` cannot be the name of a C function", None, "use letters, digits and `_`")
    if type(threads) is not int or threads < 1 or threads > 1 and target != "c":
        raise ModelTypeError(f"threads is {threads!r}", None, "1 or more, for the target c")
    if blas and target != "c":
        raise ModelTypeError(f"the target {target!r} calls no BLAS", None, 'target "c" does')
    if grid and (target != "cuda" or line_directives):
        what = "line_directives" if target == "cuda" else f"the target {target!r}"
        raise ModelTypeError(f"grid does not go with {what}", None, 'it is for the target "cuda", without them')
    own_math(math, target)
    program = model.optimised(model.specs(args), target, blas or grid, threads, math, dtype=dtype)
    name = path.stem if named else None
    if target == "c":
        from hyad.codegen.c import print_c

        function = print_c(program, dtype=dtype, name=name, line_directives=line_directives, threads=threads, math=math)
        text, declared, called = function.source, function.header, function.name
    elif grid:
        from hyad.codegen.grid import print_grid
        from hyad.codegen.host import print_host

        with without(model.off):
            plan = print_grid(program, dtype=dtype, name=name, deterministic=deterministic)
        (text, declared), called = print_host(plan, program.doc or ""), plan.name
    else:
        from hyad.codegen.cuda import print_cuda

        with without(model.off):
            kernel = print_cuda(program, dtype=dtype, name=name, line_directives=line_directives)
        text, declared, called = kernel.source, kernel.header, kernel.name
    folder = path.parent if named else path
    prepare(folder, make=not named)
    source = folder / f"{path.stem if named else called}{SUFFIXES[target]}"
    header = source.with_suffix(".h")
    text = text.lstrip("\n")
    include = f'#include "{header.name}"\n'  # the compiler holds the two against each other
    if target == "c" and include not in text:
        text = include + text
    own(header, declared.lstrip("\n"))
    write({header: declared.lstrip("\n"), source: text})
    return source, header


def prepare(folder: Path, make: bool) -> None:
    """See that ``folder`` is one, and make it if it alone is missing."""
    try:
        if make and folder.parent.is_dir():
            folder.mkdir(exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None
    if not folder.is_dir():
        raise CompileError(f"there is no folder {folder}", None, f"make it: mkdir -p {folder}")


def own(header: Path, declared: str) -> None:
    """See that the header is not that of C for CUDA, nor the other way round: whoever includes it would get another."""
    try:
        with open(header, encoding="utf-8") as stream:
            there = stream.readline()
    except (OSError, UnicodeDecodeError):
        return
    guard = declared.partition("\n")[0]
    if there.startswith("#ifndef") and there.strip() != guard.strip():
        what = f"{header} is there for another target"
        raise CompileError(what, None, "emit into another folder, or under another name: `-o out/other.cu`")


def write(files: dict[Path, str]) -> None:
    """Write all files or none: each beside its place first, then all moved there."""
    waiting: list[tuple[str, Path]] = []
    try:
        for path, text in files.items():
            temporary = os.path.join(path.parent, f".{path.name}-{os.urandom(8).hex()}")
            with open(temporary, "x", encoding="utf-8", newline="\n") as stream:
                waiting.append((temporary, path))
                stream.write(text)
        for temporary, path in waiting:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
        while waiting:
            os.replace(*waiting[0])
            waiting.pop(0)
    except OSError as error:
        raise unwritable(next(iter(files)).parent, error) from None
    finally:
        for temporary, _ in waiting:
            try:
                os.unlink(temporary)
            except OSError:
                pass


def unwritable(folder: Path, error: OSError) -> CompileError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "free some space, or name another folder" if full else "name a folder that you may write to"
    return CompileError(f"cannot write to {folder}: {error.strerror}", None, hint)
