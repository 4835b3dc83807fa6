"""Many compiled functions in one C file, whatever their arguments: numbers in, numbers out.

A ``Library`` takes typed programs in; ``compile`` makes one C file of dozens, with one run of the compiler. Beside each
printed function stands a caller, C as a user would write it: it makes the arguments, cells of data too, of an array of
numbers, calls the function, and writes the numbers of its results out in order. The printed functions were each a file
of their own; so that they can share one, every name in them gets the function's number.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hyad.codegen.apart import CHOOSING
from hyad.codegen.arena import ARENA_ARRAY, ARENA_BASE, ARENA_COPY, ARENA_FAIL, ARENA_GROW, ARENA_HEADER, ARENA_NAMES
from hyad.codegen.c import FUNCTION_RESERVED, print_c
from hyad.codegen.cfunction import CConstructor, CData, CFunction
from hyad.codegen.miscompiled import WHOLE_LOOPS
from hyad.core import Program
from hyad.marshalling import take_apart

COMPILER = [
    shutil.which("cc") or shutil.which("gcc") or "clang", "-O1", "-std=gnu99", "-fwrapv", "-ffp-contract=off",
    "-fno-math-errno", "-fno-trapping-math", "-Werror=implicit-function-declaration",
]  # fmt: skip
QUICK = ["tcc"] if shutil.which("tcc") else [COMPILER[0], "-O0", *COMPILER[2:]]  # takes less time, or none
ROOM = 256  # numbers that a result may have
# What a printed file does not name itself.
OUTSIDE = (
    FUNCTION_RESERVED
    | ARENA_NAMES
    | frozenset(
        "memcpy memset memmove memcmp offsetof size_t ptrdiff_t noinline define undef ifdef ifndef endif"
        " elif defined include error pragma _Pragma GCC ivdep LLONG_MAX LLONG_MIN SIZE_MAX DBL_MAX int64_t"
        " uint64_t HYAD_ARENA HYAD_STACK blocks spare next end chunk stack floor failed status before"
        " after size padding".split()
    )
)
SHARED = [
    part.strip("\n")
    for part in (ARENA_HEADER, ARENA_FAIL, ARENA_BASE, ARENA_ARRAY, ARENA_COPY, ARENA_GROW, CHOOSING, WHOLE_LOOPS)
]
_COMMENT = re.compile(r"/\*.*?\*/", re.S)
_INCLUDE = re.compile(r"^#include (<.*>|\".*\")\n", re.M)
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*|(?<=\.)[A-Za-z_]\w*")


class Failed(Exception):
    """A check of a compiled function failed: its kind and message."""


class Library:
    """Functions to be compiled together, each called by its number."""

    def __init__(self) -> None:
        self.functions: list[CFunction] = []
        self.texts: list[str] = []
        self.includes: dict[str, None] = dict.fromkeys(["<stdlib.h>", "<stddef.h>", "<string.h>", "<setjmp.h>"])
        self.calls: list[Any] = []

    def add(self, program: Program, args: Sequence[Any]) -> int:
        """Take a program in, to be called with arguments of the structure of ``args``."""
        fn = print_c(program, name="f")
        number = len(self.functions)
        text = fn.source.replace(f'#include "{fn.name}.h"', fn.header)
        for part in SHARED:
            text = text.replace(part, "")
        text = _COMMENT.sub(" ", text)
        self.includes.update((name, None) for name in _INCLUDE.findall(text))
        whole = _INCLUDE.sub("", text) + Caller(fn, program, args).text()
        self.functions.append(fn)
        self.texts.append(_NAME.sub(lambda m: own(m.group(), number), whole))
        return number

    def compile(self, command: Sequence[str] = tuple(COMPILER)) -> None:
        """Compile what was taken in; an AssertionError says what the compiler says."""
        with tempfile.TemporaryDirectory(prefix="hyad-together-") as folder:
            source, target = Path(folder, "f.c"), Path(folder, "f.so")
            head = [f"#include {name}" for name in self.includes]
            source.write_text("\n".join([*head, *SHARED, *self.texts]), encoding="utf-8")
            words = [*command, "-fPIC", "-shared", "-o", str(target), str(source), "-lm"]
            done = subprocess.run(words, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[:4000]
            library = ctypes.CDLL(str(target))
        self.calls = [library[f"from_numbers_{k}"] for k in range(len(self.functions))]

    def call(self, number: int, numbers: np.ndarray) -> np.ndarray:
        """The numbers of a function's results. Raises ``Failed``."""
        given = np.ascontiguousarray(numbers, np.float64)
        out, count = np.zeros(ROOM), ctypes.c_int(0)
        status = self.calls[number](
            ctypes.c_void_p(given.ctypes.data), ctypes.c_void_p(out.ctypes.data), ctypes.byref(count)
        )
        if status:
            checks = self.functions[number].checks
            raise Failed(*(checks[status - 1][:2] if status > 0 else ("memory", "out of memory")))
        assert count.value <= ROOM
        return out[: count.value].copy()


def own(name: str, number: int) -> str:
    return name if name in OUTSIDE or name.startswith("__") else f"{name}_{number}"


class Caller:
    """Prints ``int from_numbers(const double *in, double *out, int *count)`` for one function."""

    def __init__(self, fn: CFunction, program: Program, args: Sequence[Any]) -> None:
        self.fn, self.program, self.args = fn, program, args
        self.types = {t.name: t for t in fn.types}
        self.lines: list[str] = []
        self.read = 0  # numbers of ``in``
        self.cells = 0

    def text(self) -> str:
        fn = self.fn
        leaves: list[Any] = []
        for tree, a in zip(self.program.ins, self.args):
            take_apart(tree, a, leaves)
        given = [self.argument(p.elem, p.dims, x) for p, x in zip(fn.params, leaves)]
        sizes: dict[str, int] = {}
        for p, x in zip(fn.params, leaves):
            if p.dims:
                sizes.update((d, size) for d, size in zip(p.dims, np.shape(x)) if isinstance(d, str))
        given += [str(sizes[d]) for d in fn.dims]
        lines = [*self.lines, "int status = 0;"]
        lines += [f"const long long {d} = {size}; (void){d};" for d, size in sizes.items()]
        kinds = [fn.ctype(r.elem) for r in fn.results]
        if not fn.returns_value:
            for k, (r, kind) in enumerate(zip(fn.results, kinds)):
                size = "*".join(f"({d})" for d in r.dims)
                lines.append(f"{kind} r{k}[{size} + 1];" if r.dims else f"{kind} r{k};")
                given.append(f"r{k}" if r.dims else f"&r{k}")
        if fn.workspace is not None:
            lines.append(f"double *room = malloc(sizeof(double)*((size_t)({fn.workspace}) + 1));")
            given.append("room")
        if fn.arena:
            lines.append("hyad_arena memory = {0};")
            given.append("&memory")
        call = f"{fn.name}({', '.join(given)});"
        how = f"{kinds[0]} r0 = " if fn.returns_value else "status = " if fn.fallible or fn.arena else ""
        lines += [how + call, "double *at = out;", "if (!status) {"]
        for k, r in enumerate(fn.results):
            lines.append(self.written(r.elem, r.dims, f"r{k}"))
        lines += ["}", "*count = (int)(at - out);"]
        lines += ["free(room);"] if fn.workspace is not None else []
        lines += ["hyad_free(&memory);"] if fn.arena else []
        head = "int from_numbers(const double *in, double *out, int *count)"
        return "\n".join([*self.writers(), head, "{", "(void)in;", *lines, "return status;", "}", ""])

    # ------------------------------------------------------------------------------------- arguments

    def argument(self, elem: str, dims: tuple, value: Any) -> str:
        """A leaf of the arguments, made of the next numbers."""
        if elem in self.types:
            return self.cell(self.types[elem], value)
        assert elem == "real", elem
        at = self.read
        self.read += np.size(value)
        return f"in + {at}" if dims else f"in[{at}]"

    def cell(self, t: CData, value: Any) -> str:
        c = next(c for c in t.constructors if made_by(c, value))
        parts = [] if c.kind == "none" else [value] if c.kind == "number" else list(value)
        if c.parts:
            whole, parts = parts, []
            for tree, part in zip(c.parts, whole):
                take_apart(tree, part, parts)
        if c.null:
            return "NULL"
        fields = [self.argument(f.elem, f.dims, x) for f, x in zip(c.fields, parts)]
        assert len(fields) == len(parts) == len(c.fields)
        name = f"c{self.cells}"
        self.cells += 1
        names = [f".as.{c.name}.{f.name}" if t.tagged else f".{f.name}" for f in c.fields]
        values = [f".tag = {t.tag(c)}"] * t.tagged + [f"{n} = {x}" for n, x in zip(names, fields)]
        self.lines.append(f"const struct {t.cell} {name} = {{{', '.join(values)}}};")
        return f"&{name}"

    # --------------------------------------------------------------------------------------- results

    def written(self, elem: str, dims: Iterable[Any], value: str) -> str:
        """A statement that writes the numbers of a value."""
        dims = tuple(dims)
        if dims:
            size = "*".join(f"({d})" for d in dims)
            return f"for (long long j = 0; j < {size}; j++) {self.written(elem, (), f'{value}[j]')}"
        if elem in self.types:
            return f"at = put_{elem}({value}, at);"
        return f"*at++ = {value};" if elem != "unit" else ";"

    def writers(self) -> list[str]:
        """A function for each type of data that the results hold."""
        found: dict[str, CData] = {}
        todo = [r.elem for r in self.fn.results]
        while todo:
            name = todo.pop()
            if name in self.types and name not in found:
                found[name] = self.types[name]
                todo += [f.elem for c in found[name].constructors for f in c.fields]
        out = [f"static double *put_{name}({name}, double *);" for name in found]
        for name, t in found.items():
            out += [f"static double *put_{name}({name} cell, double *at)", "{", "(void)cell;"]
            for c in t.constructors:
                lines = []
                for f in c.fields:
                    dims = [d if isinstance(d, int) else t.member(c, "cell", d) for d in f.dims]
                    if not f.size:
                        lines.append(self.written(f.elem, dims, t.member(c, "cell", f.name)))
                out.append(f"if ({t.test(c, 'cell')}) {{ {' '.join(lines)} return at; }}")
            out += ["return at;", "}"]
        return out


def made_by(c: CConstructor, value: Any) -> bool:
    """Whether a constructor is the one that makes a Python value."""
    kinds = {"none": value is None, "number": isinstance(value, float), "tuple": type(value) is tuple}
    return type(value) is c.make if c.kind == "class" else kinds.get(c.kind, False)
