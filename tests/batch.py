"""Many programs compiled at once: one C file for each, one compiler process for dozens, called through ``ctypes``.

A wrapper of one signature stands behind each printed function, so that nothing here depends on the extension stub.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import hyad
from hyad.codegen.c import print_c
from hyad.codegen.cfunction import CFunction
from hyad.core import Program
from hyad.marshalling import put_together, signature_key, take_apart

CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
FLAGS = ["-O1", "-std=c99", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-ffp-contract=off"]
DTYPES = {"f64": {"real": np.float64}, "f32": {"real": np.float32}}
WIDTHS = {"int": np.int64, "bool": np.int32}


class Failed(Exception):
    """A check of the compiled function failed; its kind and message."""


_programs: dict[tuple, Program] = {}


def program_of(text: str, args: Sequence[Any]) -> Program:
    """The optimised program of a model's text for the signature of ``args``; made once for each."""
    model = hyad.model(text, namespace={})
    specs = model.specs(args)
    key = text, *map(signature_key, specs)
    if key not in _programs:
        _programs[key] = model.optimised(specs)
    return _programs[key]


def wrapper(fn: CFunction) -> str:
    """C: ``int call_f(void **in, const long long *dims, void **out)``, its workspace or arena on the heap."""
    lines = [f"int call_{fn.name}(void **in, const long long *dims, void **out)", "{"]
    args = []
    for k, p in enumerate(fn.params):
        kind = fn.ctype(p.elem)
        if p.dims:
            args.append(f"in[{k}]")
        else:
            lines.append(f"  {kind} {p.name} = *({kind} *)in[{k}]; (void){p.name};")
            args.append(p.name)
    for k, d in enumerate(fn.dims):
        lines.append(f"  long long {d} = dims[{k}]; (void){d};")
        args.append(d)
    real = fn.ctype("real")
    if fn.workspace is not None:
        lines.append(f"  {real} *work_ = malloc(sizeof({real})*((size_t)({fn.workspace}) + 1));")
    if fn.arena:
        lines.append("  hyad_arena arena_ = {0};")
    if fn.returns_value:
        lines.append(f"  *({fn.ctype(fn.results[0].elem)} *)out[0] = {fn.name}({', '.join(args)});")
        lines.append("  int status = 0;")
    else:
        args += [f"out[{k}]" for k in range(len(fn.results))] + (["work_"] if fn.workspace is not None else [])
        args += ["&arena_"] if fn.arena else []
        result = "int status = " if fn.fallible else ""
        lines.append(f"  {result}{fn.name}({', '.join(args)});")
        if not fn.fallible:
            lines.append("  int status = 0;")
    if fn.workspace is not None:
        lines.append("  free(work_);")
    if fn.arena:
        lines.append("  hyad_free(&arena_);")
    lines += ["  (void)in; (void)dims; (void)out;", "  return status;", "}"]
    return "\n".join([f"int call_{fn.name}(void **, const long long *, void **);", *lines, ""])


class Batch:
    """Programs to be compiled together. ``add`` gives a callable that works after ``compile``."""

    def __init__(self, dtype: str = "f64", flags: Sequence[str] = FLAGS) -> None:
        self.dtype, self.flags = dtype, list(flags)
        self.functions: list[CFunction] = []
        self.printed: dict[int, CFunction] = {}  # by the identity of a program
        self.programs: list[Program] = []  # which therefore stay
        self.libraries: dict[str, ctypes.CDLL] = {}

    def add(self, program: Program) -> Callable[..., Any]:
        """Take a program in; what is returned takes the model's arguments and ``like=``, a value with the result's
        structure and shapes, and returns the result."""
        fn = self.printed.get(id(program))
        if fn is None:
            fn = self.printed[id(program)] = print_c(program, dtype=self.dtype, name=f"f{len(self.functions)}")
            self.functions.append(fn)
            self.programs.append(program)

        def call(*args: Any, like: Any) -> Any:
            return self.call(fn, program, args, like)

        return call

    def compile(self, workers: int = 2) -> None:
        folder = tempfile.mkdtemp(prefix="hyad-batch-")
        try:
            groups = [self.functions[k::workers] for k in range(workers)]
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(lambda k: self.build(Path(folder), k, groups[k]), range(workers)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def build(self, folder: Path, number: int, functions: list[CFunction]) -> None:
        if not functions:
            return
        paths = []
        for fn in functions:
            if f'#include "{fn.name}.h"' in fn.source:
                (folder / f"{fn.name}.h").write_text(fn.header, encoding="utf-8")
            path = folder / f"{fn.name}.c"
            path.write_text(f"#include <stdlib.h>\n{fn.source}\n{wrapper(fn)}", encoding="utf-8")
            paths.append(str(path))
        target = folder / f"batch{number}.so"
        done = subprocess.run([CC, *self.flags, "-o", str(target), *paths, "-lm"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        library = ctypes.CDLL(str(target))
        for fn in functions:
            self.libraries[fn.name] = library

    def call(self, fn: CFunction, program: Program, args: Sequence[Any], like: Any) -> Any:
        types = {**DTYPES[self.dtype], **WIDTHS}
        flat: list[Any] = []
        for tree, a in zip(program.ins, args):
            take_apart(tree, a, flat)
        arrays = [np.ascontiguousarray(x, types[p.elem]) for p, x in zip(fn.params, flat)]
        sizes: dict[str, int] = {}
        for p, x in zip(fn.params, arrays):
            for d, size in zip(p.dims, x.shape):
                if isinstance(d, str):
                    sizes.setdefault(d, size)
        expected: list[Any] = []
        take_apart(program.out, like, expected)
        results = [np.zeros(np.shape(x), types[r.elem]) for r, x in zip(fn.results, expected)]
        entry = self.libraries[fn.name][f"call_{fn.name}"]
        pointers = (ctypes.c_void_p * (len(arrays) + 1))(*(x.ctypes.data for x in arrays))
        outs = (ctypes.c_void_p * (len(results) + 1))(*(x.ctypes.data for x in results))
        dims = (ctypes.c_longlong * (len(fn.dims) + 1))(*(sizes[d] for d in fn.dims))
        status = entry(pointers, dims, outs)
        if status:
            raise Failed(*fn.checks[status - 1][:2])
        return put_together(program.out, iter(x if x.ndim else x.item() for x in results))
