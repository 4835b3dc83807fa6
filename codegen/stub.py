"""The CPython side of a compiled function, as C text that needs no Python.h.

``stub(fn, ins, out)`` prints C to be compiled behind ``fn.source`` in one file: a ``METH_FASTCALL`` function that
takes the Python arguments apart, calls the C function and makes the Python result, and a module around it. Only names
of CPython's stable ABI are declared, so the same text serves every CPython from 3.10 on, and a machine without
Python's headers. NumPy arrays are read where NumPy's own C API says their fields are; that is verified on an array when
the module is bound (``hyad_bind``), and everything else that offers the buffer protocol goes through that.

The module's functions: ``bind(state, numpy)`` makes the callable, ``state`` being ``(fallback, record, *constants(ins,
out))``, which is the callable's ``__self__``; ``entry()`` gives the addresses of the C function and of the callable's
code; ``low(k)`` a capsule of the C function under signature ``LOW_LEVEL[k]``.

``common(fn)`` prints what all stubs of functions of a kind have in common as a C file of its own, for those that are
printed without it.

An argument that does not fit never raises here: the stub gives all it holds back and returns
``fallback(reason, args, kwargs)``; the reason is a sentence, or the number of the check that failed.
"""

from __future__ import annotations

import keyword
import re
import sys
from typing import Any

from hyad.core import ROW, Leaf, Node, Tree, leaves

from . import stub_data
from .cfunction import CFunction, CParam
from .stub_text import (
    ARRAYS,
    BIND,
    BIND_ARRAYS,
    BIND_SCALARS,
    COLD,
    HOT,
    MODULE,
    MODULE_TEXT,
    PRELUDE,
    TAKE,
    TIER,
    TREES,
    WARM,
    WORKSPACE,
    declared,
    defined,
)

LOW_LEVEL = (
    "double (double)",
    "double (double, void *)",
    "double (int, double *)",
    "double (int, double *, void *)",
    "int (double *, intptr_t, double *, void *)",
)


_CAST = re.compile(r"\(\s*(?:size_t|ptrdiff_t|double|(?:unsigned\s+)?(?:long\s+long|long|int))\s*\)")


def is_none(tree: Tree) -> bool:
    """Whether a structure is ``None``: no items, and something that makes it."""
    return not isinstance(tree, Leaf) and not tree.items and tree.keys is None and tree.make is not None


def constants(ins: tuple[Tree, ...], out: Tree, fn: CFunction, module: Any) -> tuple[object, ...]:
    """The field names and record makers that the stub finds in its state, in the order in which it counts them; then
    the classes of data (``stub_data``), in whose instances ``module`` looks where their fields are."""
    found: list[object] = []

    def walk(tree: Tree) -> None:
        if isinstance(tree, Node):
            if tree.keys is not None:
                found.extend([tree.make, *tree.keys])
            for item in tree.items:
                walk(item)

    for tree in (*ins, out):
        walk(tree)
    return (*found, *(stub_data.constants(fn.types, module) if fn.types else ()))


def low_level(fn: CFunction) -> tuple[int, ...]:
    """Which of ``LOW_LEVEL`` the function offers: those of a real function of real scalars, or of one real vector."""
    real = len(fn.results) == 1 and fn.results[0] == CParam(fn.results[0].name) and fn.workspace is None
    if real and fn.params and all(p.elem == "real" and not p.dims for p in fn.params):
        return (0, 1, 2, 3, 4) if len(fn.params) == 1 else (2, 3, 4)
    vector = real and fn.dtype == "f64" and len(fn.params) == 1
    if vector and fn.params[0].elem == "real" and len(fn.params[0].dims) == 1:
        return (2, 3, 4)
    return ()


def needs_arrays(fn: CFunction) -> bool:
    """Whether ``bind`` takes NumPy's array type and the rest of it too."""
    return any(p.dims for p in (*fn.params, *fn.results)) or stub_data.has_arrays(fn.types)


def stub(fn: CFunction, ins: tuple[Tree, ...], out: Tree, tier: bool = False, apart: bool = False) -> str:
    """The C text that follows ``fn.source``. ``tier`` adds ``redirect(address)``, which sends all calls elsewhere.
    ``apart``: without ``common(fn)``, which is linked to it.

    ValueError where the trees or the dims do not fit the function: the caller's mistake, not a user's.
    """
    return _Stub(fn, ins, out, tier).text(apart)


def common(fn: CFunction) -> str:
    """A C file of what the stubs of all functions have in common that take arrays, of reals like those of ``fn``, or
    that take none."""
    return defined(_common(fn))


def _common(fn: CFunction) -> str:
    arrays = needs_arrays(fn)
    parts = [_fill(PRELUDE, fn), _fill(ARRAYS, fn) if arrays else "", TREES]
    return "".join([*parts, BIND % {"bind": BIND_ARRAYS if arrays else BIND_SCALARS}])


class _Stub:
    """Prints one stub: the state is what several parts of the text must agree on."""

    def __init__(self, fn: CFunction, ins: tuple[Tree, ...], out: Tree, tier: bool):
        if sum(map(leaves, ins)) != len(fn.params) or leaves(out) != len(fn.results):
            raise ValueError(f"{fn.name}: the trees have not as many leaves as there are parameters and results")
        self.fn, self.ins, self.out, self.tier = fn, ins, out, tier
        self.arrays = needs_arrays(fn)
        self.slots = sum(1 for p in (*fn.params, *fn.results) if p.dims)  # hyad_arrays, "a" in the C text
        self.wants: list[str] = []  # what each place that can refuse an argument wants
        self.sizes: list[str] = []  # the C functions that compute sizes
        self.lines: list[str] = []  # of the body of hyad_call
        self.kept = 0  # fields of dicts and records, held during the call
        self.nodes = 0
        self.constant = 2  # the state's next constant; before them stand the fallback and the record
        records = sum(_fields(tree) for tree in (*ins, out))
        self.data = stub_data.Converter(fn, self.constant + records) if fn.types else None

    # -- reading arguments

    def refuse(self, wants: str) -> str:
        """The end of a test that an argument failed, ``why`` being set."""
        if wants not in self.wants:
            self.wants.append(wants)
        return f"{{ at = {self.wants.index(wants)}; goto misfit; }}"

    def wanted(self, p: CParam, out: bool = False) -> str:
        dtype = {"real": "float64" if self.fn.dtype == "f64" else "float32", "int": "int64", "bool": "bool"}.get(p.elem)
        if self.data and p.elem in self.data.number:
            noun = f"a value of {p.elem}"
        elif not p.dims:
            noun = {"real": "a real number", "int": "an integer", "bool": "a truth value"}[p.elem]
        else:
            shape = f"({', '.join(map(str, p.dims))}{',' if len(p.dims) == 1 else ''})"
            noun = f"a {'writeable ' if out else ''}C-contiguous {dtype} array of shape {shape}"
        return f"{'out' if out else 'argument ' + p.name} wants {noun}; "

    def read_tree(self, tree: Tree, expr: str, argument: int, params: list[tuple[int, CParam]]) -> None:
        if isinstance(tree, Leaf):
            self.read_leaf(expr, *params.pop(0))
            return
        node, n = f"t{self.nodes}", len(tree.items)
        self.nodes += 1
        self.lines.append(f"PyObject *{node} = {expr};")
        if is_none(tree):
            refuse = self.refuse(f"argument {argument} wants None; ")
            self.lines.append(f'if ({node} != &_Py_NoneStruct) {{ why = "this is not None"; {refuse} }}')
            return
        if tree.keys is None:
            refuse = self.refuse(f"argument {argument} wants a tuple of {n}; ")
            self.lines += [
                f'if (!HYAD_IS({node}, PyTuple_Type)) {{ why = "this is not a tuple"; {refuse} }}',
                f'if ((got = PyTuple_Size({node})) != {n}) {{ why = "this has %zd items"; {refuse} }}',
            ]
            for i, item in enumerate(tree.items):
                self.read_tree(item, f"PyTuple_GetItem({node}, {i})", argument, params)
            return
        make, self.constant = self.constant, self.constant + 1 + n
        if tree.make is None:
            refuse = self.refuse(f"argument {argument} wants a dict with the keys {', '.join(tree.keys)}; ")
            get = "hyad_item"
            self.lines += [
                f'if (!HYAD_IS({node}, PyDict_Type)) {{ why = "this is not a dict"; {refuse} }}',
                f'if ((got = PyDict_Size({node})) != {n}) {{ why = "this has %zd keys"; {refuse} }}',
            ]
        else:
            kind = getattr(tree.make, "__name__", "record")
            refuse = self.refuse(f"argument {argument} wants a {kind} with the fields {', '.join(tree.keys)}; ")
            get = "hyad_field"
            if isinstance(tree.make, type):
                self.lines.append(
                    f"if (HYAD_TYPE({node}) != (void *)PyTuple_GetItem(self, {make})) "
                    f'{{ why = "this is of another type"; {refuse} }}'
                )
        for i, item in enumerate(tree.items):
            field = f"keep[{self.kept}]"
            self.kept += 1
            self.lines.append(
                f"if (!({field} = {get}({node}, PyTuple_GetItem(self, {make + 1 + i})))) "
                f'{{ why = "this lacks one of them"; {refuse} }}'
            )
            self.read_tree(item, field, argument, params)

    def read_leaf(self, expr: str, i: int, p: CParam) -> None:
        refuse = self.refuse(self.wanted(p))
        if p.dims:
            a, kind = self.param[i], f"HYAD_{p.elem.upper()}"
            self.lines.append(f"if ((why = hyad_take({expr}, &{a}, {kind}, {len(p.dims)}, 0, &got))) {refuse}")
            for axis, dim in enumerate(p.dims):
                if isinstance(dim, str) and dim not in self.known:
                    self.known[dim] = f"d{len(self.known)}"
                    self.lines.append(f"const long long {self.known[dim]} = {a}.shape[{axis}];")
                else:
                    self.same_size(a, axis, dim, refuse)
            if p.exact and len(p.dims) > 1 and isinstance(p.dims[-1], str):
                size = f"{a}.shape[{len(p.dims) - 1}]"
                self.lines.append(f'if ({size} > 1 && {size} <= {ROW}) {{ why = "its rows are short"; {refuse} }}')
            if p.elem == "bool":
                self.lines.append(f"if (hyad_to_ints(&{a}, {len(p.dims)})) goto fail;")
            return
        o, x = f"o{i}", f"x{i}"
        self.lines.append(f"PyObject *const {o} = {expr};")
        if self.data and p.elem in self.data.number:
            self.lines += [
                f"const void *p{i};",
                f"if (hyad_read(self, &pool, {o}, {self.data.number[p.elem]}, &p{i})) {{",
                "if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError)) goto fail;",
                f'PyErr_Clear(), why = "a part does not fit"; {refuse} }}',
                f"{p.elem} {x} = p{i};",
            ]
        elif p.elem == "bool":
            self.lines.append(f"int {x}; if ((why = hyad_bool({o}, &{x}))) {refuse}")
        elif p.elem == "int":
            self.lines.append(f"long long {x}; if ((why = hyad_int({o}, &{x}))) {refuse}")
        else:  # an exact float is the common case
            integer = f"HYAD_IS({o}, PyLong_Type) || PyType_IsSubtype(HYAD_TYPE({o}), hyad_integer)"
            other = f'else if ({integer}) {{ why = "this is an integer"; {refuse} }} ' if p.exact else ""
            self.lines.append(
                f"double {x}; if (HYAD_TYPE({o}) == (void *)&PyFloat_Type) {x} = PyFloat_AsDouble({o}); {other}"
                f"else if ((why = hyad_real({o}, &{x}))) {refuse}"
            )

    def same_size(self, a: str, axis: int, dim: int | str, refuse: str) -> None:
        want = str(dim) if isinstance(dim, int) else self.known[dim]
        name = "must be" if isinstance(dim, int) else f"where {dim} is"
        self.lines.append(
            f"if ((got = {a}.shape[{axis}]) != (want = {want})) "
            f'{{ why = "its dimension {axis + 1} is %zd, {name} %zd"; {refuse} }}'
        )

    # -- sizes: C expressions over the dims and the integer parameters

    def size(self, expr: int | str) -> tuple[str, str]:
        """C text of a size, and of the same in doubles, which tell whether it overflows."""
        if isinstance(expr, int) or expr in self.known:
            value = str(expr) if isinstance(expr, int) else self.known[expr]
            return value, "0.0"
        integers = {p.name: f"x{i}" for i, p in enumerate(self.fn.params) if p.elem == "int" and not p.dims}
        given = {**self.known, **integers}
        if expr in given:
            return given[expr], "0.0"
        used = [n for n in given if re.search(rf"\b{re.escape(n)}\b", expr)]
        loose = _CAST.sub("", expr)
        if not re.fullmatch(r"(?:[\w\s+\-*/()?:=!,.]|<(?!<)|>(?!>))*", loose):
            raise ValueError(f"{self.fn.name}: the size {expr} has operators whose overflow cannot be watched")
        name = f"hyad_size{len(self.sizes)}"
        of = {t: ", ".join(f"{t} {n}" for n in used) or "void" for t in ("long long", "double")}
        self.sizes.append(
            f"static long long {name}({of['long long']}) {{ return {expr}; }}\n"
            f"static double {name}_wide({of['double']}) {{ return {loose}; }}\n"
        )
        args = ", ".join(given[n] for n in used)
        return f"{name}({args})", f"{name}_wide({args})"

    # -- results

    def make_results(self) -> None:
        several = len(self.fn.results) > 1
        if several and self.takes_out:
            refuse = self.refuse(f"out wants a tuple of {len(self.fn.results)}, None where there is no array to fill; ")
            self.lines += [
                f'if (out && !HYAD_IS(out, PyTuple_Type)) {{ why = "this is not a tuple"; {refuse} }}',
                f"if (out && (got = PyTuple_Size(out)) != {len(self.fn.results)}) "
                f'{{ why = "this has %zd items"; {refuse} }}',
            ]
        for j, r in enumerate(self.fn.results):
            given = f"PyTuple_GetItem(out, {j})" if several else "out"
            if not r.dims:
                self.lines.append(f"{self.fn.ctype(r.elem)} s{j} = 0;")
                if self.takes_out:
                    refuse = self.refuse("out wants None for a scalar result; ")
                    test = f"out && {given} != &_Py_NoneStruct"
                    self.lines.append(f'if ({test}) {{ why = "this is not None"; {refuse} }}')
                continue
            rank, kind, a = len(r.dims), f"HYAD_{r.elem.upper()}", self.result[j]
            refuse = self.refuse(self.wanted(r, out=True))
            sizes = [self.size(d) for d in r.dims]
            for _, wide in sizes:
                if wide != "0.0":
                    self.lines.append(f"if (!({wide} < 1e18)) {{ PyErr_NoMemory(); goto fail; }}")
            self.lines.append(f"Py_ssize_t shape{j}[] = {{{', '.join(value for value, _ in sizes)}}};")
            for axis, dim in enumerate(r.dims):
                if isinstance(dim, str) and dim not in self.known:
                    negative = self.refuse(f"the result's size {dim} must not be negative; ")
                    self.lines.append(f'if ((got = shape{j}[{axis}]) < 0) {{ why = "it is %zd"; {negative} }}')
            self.lines += [
                f"if (out && {given} != &_Py_NoneStruct) {{",
                f"if ((why = hyad_take({given}, &{a}, {kind}, {rank}, 1, &got))) {refuse}",
            ]
            for axis in range(rank):
                self.lines.append(
                    f"if ((got = {a}.shape[{axis}]) != (want = shape{j}[{axis}])) "
                    f'{{ why = "its dimension {axis + 1} is %zd, must be %zd"; {refuse} }}'
                )
            others = [(self.param[i], self.fn.params[i]) for i in self.param]
            others += [(self.result[i], self.fn.results[i]) for i in self.result if i < j]
            for b, other in others:
                self.lines.append(
                    f"if ((why = hyad_overlap(&{a}, {rank}, {kind}, &{b}, {len(other.dims)}, "
                    f"HYAD_{other.elem.upper()}))) {refuse}"
                )
            self.lines += [
                f"Py_IncRef({self.object[j]} = {given});",
                f"}} else if (!({self.object[j]} = hyad_new(&{a}, {kind}, {rank}, shape{j}))) goto fail;",
            ]
            if r.elem == "bool":
                self.lines.append(f"if (hyad_to_ints(&{a}, {rank})) goto fail;")

    def call(self) -> None:
        fn = self.fn
        args = [
            f"{self.param[i]}.{'ints' if p.elem == 'bool' else 'data'}" if p.dims else f"x{i}"
            for i, p in enumerate(fn.params)
        ]
        args += [self.known[d] for d in fn.dims]
        if fn.workspace is not None:
            value, wide = self.size(int(fn.workspace) if fn.workspace.strip().isdigit() else fn.workspace)
            if wide == "0.0":
                wide = f"(double){value}"
            self.lines.append(f"if (hyad_make_room({wide}, {f'{wide} < 1e18 ? {value} : 0'})) goto fail;")
        if fn.returns_value:
            self.lines.append(f"s0 = hyad_f({', '.join(args)});")
            return
        for j, r in enumerate(fn.results):
            field = "ints" if r.elem == "bool" else "data"
            args.append(f"{self.result[j]}.{field}" if r.dims else f"&s{j}")
        if fn.workspace is not None:
            args.append("hyad_work")
        if fn.arena:
            self.lines.append("hyad_begin(&arena);")
            args.append("&arena")
        call = f"hyad_f({', '.join(args)});"
        self.lines.append(f"if ((failed = {call[:-1]})) goto check;" if fn.fallible else call)
        for j, r in enumerate(fn.results):
            if r.dims and r.elem == "bool":
                self.lines.append(f"hyad_from_ints(&{self.result[j]}, {len(r.dims)});")

    def build(self, tree: Tree, results: list[tuple[int, CParam]]) -> str:
        """A C expression that makes the Python result."""
        if isinstance(tree, Leaf):
            j, r = results.pop(0)
            if r.dims:
                return self.object[j]
            if self.data and r.elem in self.data.number:
                return f"hyad_write(self, s{j}, {self.data.number[r.elem]})"
            make = {"real": "PyFloat_FromDouble", "int": "PyLong_FromLongLong", "bool": "PyBool_FromLong"}[r.elem]
            return f"{make}(s{j}{' != 0' if r.elem == 'bool' else ''})"
        if is_none(tree):
            return "(Py_IncRef(&_Py_NoneStruct), &_Py_NoneStruct)"
        n, make = len(tree.items), self.constant
        if tree.keys is not None:
            self.constant += 1 + n
        parts = [self.build(item, results) for item in tree.items]
        items = f"(PyObject *[]){{{', '.join(parts)}}}" if parts else "NULL"
        if tree.keys is None:
            return f"hyad_tuple({n}, {items})"
        return (
            f"hyad_dict(self, {make + 1}, {n}, {items})"
            if tree.make is None
            else (f"hyad_record(self, {make}, {n}, {items})")
        )

    # -- the whole

    def text(self, apart: bool) -> str:
        fn = self.fn
        self.known: dict[str, str] = {}  # named dim -> C variable
        inputs = [i for i, p in enumerate(fn.params) if p.dims]
        outputs = [j for j, r in enumerate(fn.results) if r.dims]
        self.param = {i: f"a[{s}]" for s, i in enumerate(inputs)}  # a parameter's hyad_array
        self.result = {j: f"a[{len(inputs) + s}]" for s, j in enumerate(outputs)}  # a result's
        self.object = {j: f"r[{s}]" for s, j in enumerate(outputs)}  # a result's Python object
        self.takes_out = bool(outputs)
        params = list(enumerate(fn.params))
        for k, tree in enumerate(self.ins):
            self.read_tree(tree, f"args[{k}]", k + 1, params)
        missing = [d for d in fn.dims if d not in self.known]
        if missing:
            raise ValueError(f"{fn.name}: no array parameter has the dim {missing[0]}")
        self.make_results()
        self.call()
        result = self.build(self.out, list(enumerate(fn.results)))
        return "".join(
            [
                COLD,
                declared(_common(fn)) if apart else _common(fn),
                _fill(WORKSPACE, fn) if fn.workspace is not None else "",
                self.data.prelude() if self.data else stub_data.ARENA if fn.arena else "",
                _fill(stub_data.PROBE, fn) if self.data else "",
                HOT,
                self.data.reader() + self.data.writer() if self.data else "",
                f"\n{fn.prototype};\nstatic {_pointer(fn)} = {fn.name};\n",  # not below: it is as hot as can be
                "static PyObject *(*hyad_next)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);\n" * self.tier,
                WARM,
                TAKE if self.arrays else "",
                "".join(self.sizes),
                self.function(result),
                HOT,
                COLD,
                self.module(),
                HOT,
            ]
        )

    def function(self, result: str) -> str:
        """The function that Python calls."""
        n = len(self.ins)
        count = self.refuse(f"{self.fn.name} takes {n} argument{'s' * (n != 1)}; ")
        keywords = self.refuse(f"{self.fn.name} takes its arguments by position{', and out=' * self.takes_out}; ")
        head = ["PyObject *result = NULL;", "const char *why;", "Py_ssize_t got = 0, want = 0;", "int at;"]
        release = []
        if self.slots:
            head.append(f"hyad_array a[{self.slots}];")
            head += [f"a[{s}].held = 0, a[{s}].ints = NULL;" for s in range(self.slots)]
            release.append(f"hyad_give_back(a, {self.slots});")
        if self.kept:
            head.append(f"PyObject *keep[{self.kept}] = {{0}};")
            release.append(f"hyad_drop({self.kept}, keep);")
        if self.data:
            head.append("hyad_pool pool = {0};")
            release.append("hyad_pool_end(&pool);")
        if self.fn.arena:
            head.append("hyad_arena arena = {0};")
            release.append("hyad_end(&arena);")
        drop = []
        if self.takes_out:
            head += ["PyObject *out = NULL;", f"PyObject *r[{len(self.object)}] = {{0}};"]
            drop = [f"hyad_drop({len(self.object)}, r);"]
        if self.fn.fallible:
            head.append("int failed = 0;")
        if self.tier:
            head.append("if (hyad_next) return hyad_next(self, args, n, names);")
        if self.takes_out:
            head += [
                "if (names) {",
                'if (PyTuple_Size(names) != 1 || PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "out")) '
                f'{{ why = "there are others"; {keywords} }}',
                "if ((out = args[n]) == &_Py_NoneStruct) out = NULL;",
                "}",
            ]
        else:
            head.append(f'if (names) {{ why = "there are keyword arguments"; {keywords} }}')
        head.append(f'if ((got = n) != {n}) {{ why = "there are %zd"; {count} }}')
        # One block, so that no jump to a label enters the scope of what it declares.
        body = ["{", *self.lines, f"result = {result};", *release, "return result;", "}"]
        tail = ["misfit:", *release, *drop, "if (PyErr_Occurred()) return NULL;"]
        tail.append("return hyad_fallback(self, hyad_reason(hyad_wants[at], why, got, want), args, n, names);")
        if any("goto fail;" in line for line in self.lines):
            tail += ["fail:", *release, *drop, "if (!PyErr_ExceptionMatches(PyExc_MemoryError)) return NULL;"]
            tail.append("PyErr_Clear();")
            tail.append('return hyad_fallback(self, hyad_reason("", "out of memory", 0, 0), args, n, names);')
        if self.fn.fallible:
            tail += ["check:", *release, *drop]
            if self.fn.arena:
                memory = 'hyad_reason("", "out of memory", 0, 0)'
                tail.append(f"if (failed < 0) return hyad_fallback(self, {memory}, args, n, names);")
            tail.append("return hyad_fallback(self, PyLong_FromLongLong(failed), args, n, names);")
        wants = "\n".join(f"  {_quote(w)}," for w in self.wants)
        lines = "\n".join("  " + line for line in [*head, *body, *tail])
        return (
            f"\nstatic const char *const hyad_wants[] = {{\n{wants}\n}};\n\n"
            "static PyObject *hyad_call(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)\n"
            f"{{\n{lines}\n}}\n"
        )

    def module(self) -> str:
        fn = self.fn
        extra, methods = TIER * self.tier, '  {"redirect", (void *)hyad_redirect, 0x0008},\n' * self.tier
        if self.data:
            methods += '  {"probe", (void *)hyad_probe, 0x0001},\n'
        if low_level(fn):
            extra += self.low()
            methods += '  {"low", (void *)hyad_low, 0x0008},\n'
        names = [p.name for p in fn.params] if all(isinstance(t, Leaf) for t in self.ins) else []
        if any(keyword.iskeyword(name) or not name.isascii() for name in names):  # inspect.signature could not read it
            names = []
        names = names or [f"argument{k + 1}" for k in range(len(self.ins))]
        signature = ", ".join([*names, *["/"] * bool(names), *["*, out=None"] * self.takes_out])
        return MODULE_TEXT % {
            "name": fn.name,
            "doc": _quote(f"{fn.name}({signature})\n--\n\n"),
            "extra": extra,
            "methods": methods,
            "module": MODULE,
        }

    def low(self) -> str:
        """The function under each of the signatures that SciPy's LowLevelCallable knows; a failed check, or another
        number of arguments, gives NaN, for such a function cannot raise."""
        fn, count = self.fn, len(self.fn.params)
        if fn.params[0].dims:
            dim = fn.params[0].dims[0]
            count = dim if isinstance(dim, int) else None
            args = ["x", *(["n"] if fn.dims else [])]
        else:
            args = [f"x[{i}]" for i in range(count)]
        if fn.arena:
            call = f"hyad_f({', '.join([*args, '&y', '&arena'])})"
            body = "hyad_arena arena = {0}; arena.stack = hyad_stack(); "
            body += f"{fn.ctype('real')} y = 0; const int failed = {call}; hyad_free(&arena); "
            body += "return failed ? 0.0/0.0 : y;"
        elif fn.returns_value:
            body = f"return hyad_f({', '.join(args)});"
        else:
            call = f"hyad_f({', '.join([*args, '&y'])})"
            body = f"{fn.ctype('real')} y = 0; "
            body += f"return {call} ? 0.0/0.0 : y;" if fn.fallible else f"{call}; return y;"
        wrong = f"if (n != {count}) return 0.0/0.0; " if count is not None else ""
        scalar = fn.params[0].dims == () and count == 1
        return (
            f"\nstatic double hyad_low2(int n, double *x) {{ {wrong}{body} }}\n"
            "static double hyad_low3(int n, double *x, void *data) { return hyad_low2(n, x); }\n"
            "static int hyad_low4(double *x, ptrdiff_t n, double *y, void *data)\n"
            f"{{ {f'if (n != {count}) return 0; ' if count is not None else ''}*y = hyad_low2(n, x); return 1; }}\n"
            + (
                "static double hyad_low0(double x) { return hyad_low2(1, &x); }\n"
                "static double hyad_low1(double x, void *data) { return hyad_low2(1, &x); }\n" * scalar
            )
            + "static PyObject *hyad_low(PyObject *self, PyObject *k)\n{\n"
            f"  static void *const to[] = {{{'hyad_low0, hyad_low1' if scalar else 'NULL, NULL'}, "
            "hyad_low2, hyad_low3, hyad_low4};\n"
            f"  static const char *const as[] = {{{', '.join(map(_quote, LOW_LEVEL))}}};\n"
            "  const long long i = PyLong_AsLongLong(k);\n"
            "  return PyCapsule_New(to[i], as[i], NULL);\n}\n"
        )


def _fields(tree: Tree) -> int:
    """How many constants a structure has in the state."""
    if isinstance(tree, Leaf):
        return 0
    return sum(map(_fields, tree.items)) + (1 + len(tree.keys) if tree.keys is not None else 0)


def _fill(template: str, fn: CFunction) -> str:
    size = object.__basicsize__
    real = fn.ctype("real")
    offset = size - (8 if sys.maxsize > 2**32 else 4)
    return template % {"basicsize": size, "offset": offset, "real": real, "format": "d" if real == "double" else "f"}


def _pointer(fn: CFunction) -> str:
    """The declarator of a constant pointer to the function, so that the stub's own names may shadow it."""
    left, right = fn.prototype.split(f" {fn.name}(", 1)
    return f"{left} (*const hyad_f)({right}"


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
