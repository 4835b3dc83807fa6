"""Typed core to C99 that a person would have written.

``print_c(program)`` gives a ``CFunction``: one C function, the header that declares it, and how to call it. Where
arrays live is decided in ``lower.py``; the body is written in ``statements.py``, of operands (``operands.py``) and
their expressions (``expressions.py``); here a function and its header are made of it. What makes the text readable:

* a variable that the user named has a line of its own; other scalars that are used once are written into their use,
  if nothing that they read changes in between (``pending``);
* parentheses only where C's precedence asks for them;
* accumulators are plain locals, updated in place; the value of an ``if`` is assigned in its branches;
* each line carries the form of the model that it came from.

``CPrinter`` is made to be overridden: the CUDA printer replaces the function's head, declarations and literals.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

from hyad.core import (
    INT,
    Apply,
    Arr,
    Atom,
    Bind,
    Block,
    Case,
    Check,
    Const,
    Constructor,
    Data,
    Loop,
    Make,
    Node,
    Program,
    Tree,
    Var,
    all_binds,
    functions_of,
    kinds_of,
)
from hyad.errors import CompileError, Span
from hyad.passes.threads import LINE, grows
from hyad.program.reader import deep

from .apart import CHOOSING
from .cfunction import OUT_OF_MEMORY, CFunction, CParam
from .comments import LONG, Comments, commented, folded, headline, listed, outline, shorten
from .data import DataPrinter, structured
from .expressions import PRIMARY, WIDTH, Expr, wrapped
from .identifiers import WORD, Names
from .lower import is_array, type_of
from .miscompiled import READ_FIRST, WHOLE_LOOPS, WHOLE_PATTERNS
from .operands import Line
from .parts import Parts, split

KEYWORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long register"
    " restrict return short signed sizeof static struct switch typedef union unsigned void volatile while bool true"
    " false asm typeof class new delete this template namespace operator private public protected virtual"
    " alignas alignof and and_eq bitand bitor catch char16_t char32_t compl concept consteval constexpr constinit"
    " const_cast decltype dynamic_cast explicit export friend mutable noexcept not not_eq nullptr or or_eq"
    " reinterpret_cast requires static_assert static_cast thread_local throw try typeid typename using wchar_t xor"
    " xor_eq linux unix i386".split()  # of C, and of C++, which reads the headers; macros of GCC
)
LIBRARY = frozenset(
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma"
    " fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf"
    " nan nearbyint nextafter nexttoward pow remainder remquo rint round scalbln scalbn signbit sin sinh sqrt tan"
    " tanh tgamma trunc isnan isinf isfinite isnormal fpclassify INFINITY NAN HUGE_VAL NULL memcpy memset memmove"
    " memcmp strlen work size_t ptrdiff_t errno M_E M_LOG2E M_LOG10E M_LN2 M_LN10 M_PI M_PI_2 M_PI_4 M_1_PI M_2_PI"
    " M_2_SQRTPI M_SQRT2 M_SQRT1_2 HUGE HUGE_VALL MAXFLOAT FP_NAN FP_INFINITE FP_ZERO FP_SUBNORMAL FP_NORMAL"
    " FP_ILOGB0 FP_ILOGBNAN MATH_ERRNO MATH_ERREXCEPT math_errhandling RAND_MAX EXIT_SUCCESS EXIT_FAILURE MB_CUR_MAX"
    " FD_SETSIZE NFDBITS BYTE_ORDER BIG_ENDIAN LITTLE_ENDIAN PDP_ENDIAN WNOHANG WUNTRACED WSTOPPED WEXITED WCONTINUED"
    " WNOWAIT".split()
)
RESERVED = KEYWORDS | LIBRARY | frozenset(f"{name}f" for name in LIBRARY)
FUNCTION_RESERVED = RESERVED | frozenset(
    "main abs labs llabs div exit abort malloc calloc realloc free printf puts rand srand system time clock gamma"
    " signal index y0 y1 yn j0 j1 jn read write open close send select link round pause sleep raise remove"
    " rename signgam qsort bsearch getenv atof atoi strtod scanf drem significand gammaf pow10 exp10 sincos _init"
    " _fini".split()
)


def print_c(
    program: Program,
    *,
    dtype: str = "f64",
    name: str | None = None,
    line_directives: bool = False,
    threads: int = 1,
    math: str = "libm",
) -> CFunction:
    """A typed program as C.

    ``dtype`` is "f64" or "f32"; ``name`` the C function's, else the model's; ``line_directives`` puts ``#line`` before
    the statements, so that a debugger steps through the model; ``math`` "vector" calls the
    functions of ``vector.py``; independent loops run on ``threads`` threads (OpenMP),
    those of programs with data or recursion, or with a ``while`` that is remembered, aside. An array among the results
    whose size is not known before the call is a cell that holds it beside its sizes. Raises CompileError where a
    primitive has no C form.
    """
    options = dict(dtype=dtype, name=name, line_directives=line_directives, math=math)
    return deep(lambda: _function(program, threads, **options))


def _function(program: Program, threads: int, **options: Any) -> CFunction:
    from .functions import UnitPrinter

    def printer() -> CPrinter:
        if structured(program) and not (threads > 1 and only_rounds(program)):
            return UnitPrinter(program, **options)
        made = CPrinter(program, threads=threads, **options)
        return UnitPrinter(program, **options) if made.plan.unsized else made

    first = printer()
    unsized = [k for k, r in enumerate(program.body.results) if not first.measured(type_of(r))]
    if not unsized:
        return first.function()
    program = boxed(program, unsized)
    return printer().function()


def only_rounds(program: Program) -> bool:
    """Whether a program has no data and no functions, and no ``while`` that stacks something: then threads may share
    its loops."""
    data = any(isinstance(t, Data) for p in program.params for t in (p.type, getattr(p.type, "elem", None)))
    return not data and not any(isinstance(x.op, (Apply, Case, Make)) or grows(x.op) for x in all_binds(program.body))


def boxed(program: Program, which: Iterable[int]) -> Program:
    """Put results that are arrays into cells: for each a data type of one constructor, its sizes and the array.

    Design decision: the caller cannot make room for an array whose size only the call finds, and a cell of the arena
    brings its sizes along; Python makes an array of one as it does of an array inside data.
    """
    results, binds = list(program.body.results), list(program.body.binds)
    types: dict[tuple, Data] = {}
    for k in which:
        r = results[k]
        t = type_of(r)
        key = (t.elem, *(d.value if isinstance(d, Const) else None for d in t.dims))
        if key not in types:
            data = types[key] = Data({1: "vector", 2: "matrix"}.get(t.rank, "array"))
            sizes = [Var(n, INT, None, True) for n in "nmklpqrs"[: t.rank]]
            dims = tuple(d if isinstance(d, Const) else n for d, n in zip(t.dims, sizes))
            fields = (*(d for d in dims if isinstance(d, Var)), Var("items", Arr(t.elem, dims), None, True))
            data.constructors = (Constructor(data.name, data, fields, "array"),)
        (constructor,) = types[key].constructors
        cell = Var(getattr(r, "name", "result"), types[key], getattr(r, "span", None))
        args = (*(d for d in t.dims if isinstance(d, Var)), r)
        binds.append(Bind((cell,), Make(constructor, args), program.span))
        results[k] = cell
    return replace(program, body=Block(tuple(binds), tuple(results)))


class CPrinter(DataPrinter):
    """Prints one program. ``function()`` is the whole; the small methods below it are what another target overrides."""

    arena = False  # whether calls take memory that is not measured before

    def __init__(
        self,
        program: Program,
        *,
        dtype: str = "f64",
        name: str | None = None,
        line_directives: bool = False,
        threads: int = 1,
        math: str = "libm",
    ):
        self.threads, self.math = threads, math
        super().__init__(program, dtype=dtype, reserved=self.reserved())
        self.line_directives = line_directives
        self.name = Names(FUNCTION_RESERVED).fresh(name or self.program.name or "model")
        self.names.taken.add(self.name)

    # ------------------------------------------------------------------ what a target overrides

    def reserved(self) -> Iterable[str]:
        return RESERVED

    def prototype(self, fn: CFunction) -> str:
        return fn.prototype

    def part_head(self, head: str) -> str:
        """The head of a part of a long body: a function that is to be compiled alone."""
        return f"APART {head}"

    def before_parts(self) -> list[str]:
        found = ["#ifdef __GNUC__", "#define APART static __attribute__((noinline))"]
        return [*found, "#else", "#define APART static", "#endif"]

    def includes(self, text: str) -> list[str]:
        found = []
        functions = set(re.findall(r"\b([a-z]\w*)\(|\b(INFINITY|NAN)\b", text))
        called = {a or b for a, b in functions}
        if any(c in LIBRARY or c.removesuffix("f") in LIBRARY for c in called if not c.startswith("mem")):
            found.append("#include <math.h>")
        if called & {"sqrt", "sqrtf"} and self.loops():
            found += roots(called)
        if called & {"memcpy", "memset", "memmove"}:
            found.append("#include <string.h>")
        if "omp_get_thread_num" in called:
            found += ["#ifdef _OPENMP", "#include <omp.h>", "#else", "#define omp_get_thread_num() 0", "#endif"]
        return found

    def loops(self) -> bool:
        """Whether there are counted loops, which compilers may make vectors of."""
        body = self.program.body
        return any(Loop in kinds_of(b) for b in [body, *(f.body for f in functions_of(body))] if b is not None)

    def kind(self, t: Any) -> str:
        """The ``elem`` of a scalar parameter or result."""
        return _ELEM.get(t.name, "int")

    def extras(self) -> dict[str, Any]:
        """What else the function has to say of itself."""
        return {}

    def preamble(self) -> list[str]:
        """What stands before the function."""
        return []

    def entry(self, fn: CFunction) -> list[str]:
        """What stands after it."""
        return []

    def declarations(self, fn: CFunction) -> list[str]:
        """What stands in the header before the function."""
        return []

    # ------------------------------------------------------------------------------- the whole

    def function(self) -> CFunction:
        program = self.program
        params = tuple(self.param(p) for p in program.params)
        dims = []
        for d in program.dims:
            if d not in self.value:
                dims.append(self.names.fresh(d.name))
                self.value[d] = Expr(dims[-1])
        params = tuple(CParam(c.name, c.elem, self.dims(p)) for c, p in zip(params, program.params))
        results = self.result_params()
        has_work = bool(self.plan.pools)
        fallible = self.arena or any(isinstance(b.op, Check) for b in all_binds(program.body))
        work, extras = "" if has_work else None, self.extras()
        frame = CFunction(self.name, params, results, tuple(dims), fallible, work, dtype=self.dtype, **extras)
        self.offsets, total = self.layout()
        self.top(frame)
        lines = self.shown(self.lines)
        fn = CFunction(
            self.name,
            params,
            results,
            tuple(dims),
            fallible,
            total if has_work else None,
            has_work and total.isdigit(),
            tuple(self.checks),
            dtype=self.dtype,
            stack=self.stack,
            **extras,
        )
        return replace(fn, source=self.source(fn, without_unread(lines)), header=self.header(fn))

    def param(self, p: Var) -> CParam:
        name = self.names.fresh(p.name)
        if isinstance(p.type, Arr):
            self.buffer_name[self.plan.place[p].buffer] = name
            return CParam(name, _ELEM[p.type.elem.name], ())
        self.value[p] = Expr(name)
        return CParam(name, self.kind(p.type))

    def dims(self, p: Var) -> tuple[int | str, ...]:
        return tuple(self.extent(d, p.span) for d in p.type.dims) if isinstance(p.type, Arr) else ()

    def measured(self, t: Any) -> bool:
        """Whether the size of a result is known before the call."""
        dims = t.dims if isinstance(t, Arr) else ()
        return all(isinstance(d, Const) or d in self.plan.sizes.exact for d in dims)

    def extent(self, d: Atom, span: Span | None) -> int | str:
        """A dim of a parameter or a result: a number, or C over the dims and the Int parameters."""
        if isinstance(d, Const):
            return int(d.value)
        size = {(d,): 1} if d in self.plan.sizes.dims else self.plan.sizes.exact.get(d)
        if size is None:
            raise CompileError(
                "the size of this result is not known before the call",
                span,
                'make its size a number, a dim of an argument, or an Int argument, or use target="c"',
            )
        expr = self.polynomial(size, clamp=False)
        return int(expr.text) if expr.text.isdigit() else expr.at(PRIMARY)

    def result_params(self) -> tuple[CParam, ...]:
        out = []
        body = self.program.body
        labels = list(self.program.names or _labels(self.program.out))
        for k, r in enumerate(body.results):
            t = type_of(r)
            wanted = "out" if len(body.results) == 1 else f"out{k}"
            if len(body.results) > 1:
                if k < len(labels) and labels[k]:
                    wanted = labels[k]
                elif isinstance(r, Var) and (r.given or not r.name.isascii()) and r not in self.program.params:
                    wanted = r.name
            name = self.names.fresh(wanted)
            if isinstance(t, Arr):
                self.buffer_name[self.plan.results[k]] = name
                dims = tuple(self.extent(d, getattr(r, "span", None)) for d in t.dims)
                out.append(CParam(name, _ELEM[t.elem.name], dims))
            else:
                out.append(CParam(name, self.kind(t)))
        return tuple(out)

    def layout(self) -> tuple[dict[Any, tuple[dict, dict]], str]:
        """For each pool of the workspace its offset and the size of its pieces, and the total size as C.

        Design decision: first come the pools whose pieces are whole lines of the cache, tiles above all: if the
        workspace starts a line, each of their vectors lies in one line. That made gmm's gradient 5 to 7 percent faster.
        """
        sizes = {}
        for key, count in self.plan.pools.items():
            elem, terms, *own = key
            size = {k: (2 if elem == "Int" and self.dtype == "f32" else 1) * c for k, c in terms}
            many = self.of_a_thread(key, size) if own else {k: c * count for k, c in size.items()}
            sizes[key] = size, {k: c * self.threads for k, c in many.items()} if own else many

        def order(key: Any) -> tuple[bool, bool, bool]:
            return not whole_lines(key), key[0] != "Int", len(key[1]) != 1 or key[1][0][0] != ()

        offset: dict = {}
        offsets = {}
        for key in sorted(sizes, key=order):
            size, room = sizes[key]
            offsets[key] = (dict(offset), size)
            for k, c in room.items():
                offset[k] = offset.get(k, 0) + c
        return offsets, self.polynomial(offset).text

    def top(self, frame: CFunction) -> None:
        body = self.program.body
        if not frame.returns_value:
            self.handed_out.update(r for r in body.results if type(r) is Var)
        self.statements(body, {})
        exprs = []
        for k, r in enumerate(body.results):
            if not is_array(r):
                exprs.append((frame.results[k], self.operand(r), self.made.get(r) or self.program.span))
        self.flush_all()
        self.move(body)
        for result, expr, span in exprs:
            if frame.returns_value:
                self.emit(f"return {expr.text};", span)
            else:
                self.emit(f"*{result.name} = {expr.text};", span)
        if frame.fallible:
            self.lines.append(Line(self.depth, "return 0;"))

    # --------------------------------------------------------------------------------- the text

    def shown(self, lines: list[Line]) -> list[Line]:
        """Lines without those of views that nothing follows."""
        return [line for line in lines if line.view is None or line.view in self.followed]

    def source(self, fn: CFunction, lines: list[Line]) -> str:
        """The C file: what is included, the functions that primitives call, the parts of a long body, the function."""
        comments = Comments(self.program, self.line_directives)
        tables, before = [f"    {t}" for t in self.tables], self.preamble()
        split_up = None if self.arena else split(lines, fn.declared)
        if split_up is not None:
            pieces, lines = self.parts(fn, split_up, comments)
            tables, before = [], [*before, *self.tables, *pieces]
        text = comments.text(lines)
        words = set(WORD.findall("\n".join(line.text for line in lines)))
        unused = [p.name for p in fn.params if p.name not in words] + [d for d in fn.dims if d not in words]
        unused += [r.name for r in fn.results if not fn.returns_value and r.name not in words]
        silence = [f"    (void){name};" for name in unused]
        after = self.entry(fn)
        called = words.union(*(WORD.findall(text) for text in (*before, *after)))
        needed = list(self.support) if self.arena else called_of(self.support, called)
        # gcc takes no function into one that has other options
        first = (CHOOSING, READ_FIRST, WHOLE_LOOPS, WHOLE_PATTERNS)
        support = "\n".join(sorted(needed, key=lambda text: text not in first))
        above = re.sub(r"/\*.*?\*/|//[^\n]*", "", "\n".join([support, *before]))
        heads = self.includes("\n".join([above, *(line.text for line in lines), *tables]))
        parts = ["\n".join(heads) + "\n"] if heads else []
        if support:
            parts.append(support)
        if before:
            parts.append("\n".join([*before, ""]))
        body = [*wrapped(self.prototype(fn), WIDTH), "{", *tables, *silence, *text, "}", ""]
        parts.append("\n".join([*body, *self.banner(fn), *after, ""] if after else [*self.banner(fn), *body]))
        return "\n".join(parts)

    def parts(self, fn: CFunction, found: Parts, comments: Comments) -> tuple[list[str], list[Line]]:
        """The functions that are the parts of a long body, and what is left of it."""
        struct = f"struct {fn.name}_values"
        out = [f"/* what the parts of {fn.name} hand on, and the parts: a compiler takes long over long functions */"]
        out += [f"{struct} {{"]
        for kind, names in found.fields.items():
            for name in names if kind.endswith("*") else [", ".join(names)]:
                out += [f"    {t}" for t in wrapped(f"{kind} {name};".replace("* ", "*"), WIDTH - 4)]
        for union, members in found.unions.items():
            inside = "; ".join(
                f"{kind} {name}".replace("* ", "*")
                for kind, names in members.items()
                for name in (names if kind.endswith("*") else [", ".join(names)])
            )
            out += [f"    {t}" for t in wrapped(f"union {{ {inside}; }} {union};", WIDTH - 4)]
        out += ["};", *self.before_parts(), ""]
        rest = [Line(1, f"{struct} {found.values};")]
        for k, part in enumerate(found.parts[:-1], 1):
            name = f"{fn.name}_part{k}"
            passed = [p for p in fn.declared if p in part.words]
            declared = [f"{struct} *{found.values}", *(fn.declared[p] for p in passed)]
            head = self.part_head(f"{'int' if part.fails else 'void'} {name}({', '.join(declared)})")
            silence = [] if found.values in part.words else [f"    (void){found.values};"]
            end = ["    return 0;"] if part.fails else []
            out += [*wrapped(head, WIDTH), "{", *silence, *comments.text(part.lines), *end, "}", ""]
            call = f"{name}({', '.join([f'&{found.values}', *passed])});"
            if part.fails:
                rest += [Line(1, f"const int {name}_failed = {call}")]
                rest += [Line(1, f"if ({name}_failed) return {name}_failed;")]
            else:
                rest += [Line(1, call)]
        return out, [*rest, *found.parts[-1].lines]

    def banner(self, fn: CFunction) -> list[str]:
        """What the function computes and what its parameters mean."""
        program = self.program
        doc = (program.doc or "").strip().split("\n")[0]
        span = program.span
        lines = [f"{fn.name}: {doc}" if doc else fn.name]
        if span is not None and doc:
            lines.append(headline(span.text, 90))
        elif span is not None:
            lines[0] += f" = {shorten(outline(span.text, 90), 90)}"
        shapes = [f"{p.name}[{']['.join(map(_bare, p.dims))}]" for p in (*fn.params, *fn.results) if p.dims]
        if shapes:
            lines.append("arrays, row-major: " + ", ".join(shapes))
        if fn.workspace is not None:
            lines.append(f"work: room for {fn.workspace} reals")
        if fn.arena:
            lines.append(f"returns 0, the number of the check that failed, or {OUT_OF_MEMORY}: out of memory")
        elif fn.fallible:
            lines.append("returns 0, or the number of the check that failed")
        lines = [row for text in lines for row in folded(commented(text, LONG), WIDTH - 6)]
        if len(lines) == 1:
            return [f"/* {lines[0]} */"]
        return [f"/* {lines[0]}", *(f" * {t}" for t in lines[1:-1]), f" * {lines[-1]} */"]

    def header(self, fn: CFunction) -> str:
        guard = f"{fn.name.upper()}_H"
        out = [f"#ifndef {guard}", f"#define {guard}", "", *self.declarations(fn)]
        out += ["#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
        doc = commented((self.program.doc or "").strip(), 400)
        out.append(f"/* {fn.name}" + (f": {doc}" if doc else ""))
        for p in fn.params:
            out.append(f" *   {p.name}: {self.described(p)}")
        for d in fn.dims:
            out.append(f" *   {d}: a size")
        for r in fn.results:
            where = "what comes back" if fn.returns_value else r.name
            out.append(f" *   {where}: {self.described(r)}, the result" + ("" if len(fn.results) == 1 else "'s part"))
        if fn.workspace is not None:
            macro = f"{fn.name.upper()}_WORK"
            aligned = ", aligned for a long long" if any(k[0] == "Int" for k in self.plan.pools) else ""
            arguments = [n for n in self.macro_arguments(fn)]
            call = f"{macro}({', '.join(arguments)})" if arguments else macro
            if any(map(whole_lines, self.plan.pools)):
                aligned += "; fastest where it starts at a multiple of 64 bytes"
            out.append(f" *   work: room for {call} elements that the function writes to{aligned}")
        if fn.arena:
            out.append(" *   arena: memory of the call" + ("; what it gives lives there" if fn.keeps else ""))
        if fn.fallible:
            out.append(" * Returns 0, or, with the results not written to the end:")
            out += listed(fn.checks, " *   ")
            if fn.arena:
                out.append(f" *   {OUT_OF_MEMORY}: out of memory")
        out[-1] += " */"
        if fn.workspace is not None:
            body = fn.workspace
            for n in arguments:
                body = re.sub(rf"\b{n}\b", f"({n})", body)
            out.append(f"#define {call} " + (body if re.fullmatch(r"\(\w+\)|\d+", body) else f"({body})"))
        out += ["#ifdef __cplusplus", "#define restrict", "#endif"] if "restrict" in fn.prototype else []
        out += wrapped(fn.prototype + ";", WIDTH)
        out += ["#ifdef __cplusplus", "#undef restrict", "#endif"] if "restrict" in fn.prototype else []
        out += ["", "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */", ""]
        return "\n".join(out)

    def macro_arguments(self, fn: CFunction) -> list[str]:
        """The sizes that the workspace depends on, in the order of the C parameters."""
        words = set(WORD.findall(fn.workspace or ""))
        return [n for n in (*(p.name for p in fn.params), *fn.dims) if n in words]

    def described(self, p: CParam) -> str:
        kind = {"real": "real", "int": "integer", "bool": "truth value"}.get(p.elem, p.elem)
        if not p.dims:
            return f"a {kind}" if kind != "integer" else "an integer"
        return f"{' x '.join(map(_bare if len(p.dims) == 1 else str, p.dims))} {kind}s" + (
            ", row-major" if len(p.dims) > 1 else ""
        )


def roots(called: set[str]) -> list[str]:
    """Declarations that say of square roots that they set no ``errno``. Without ``-fno-math-errno`` gcc takes them one
    by one, and the loop around them with them."""
    head = "#if defined(__GNUC__) && !defined(__cplusplus) /* square roots in vectors: errno is not set */"
    kinds = {"sqrt": "double", "sqrtf": "float"}
    return [head, *(f"__attribute__((const)) {t} {f}({t});" for f, t in kinds.items() if f in called), "#endif"]


_ELEM = {"Real": "real", "Int": "int", "Bool": "bool"}


def whole_lines(pool: tuple) -> bool:
    """Whether the pieces of a pool of the workspace are whole lines of the cache, whatever the sizes."""
    return all(c % LINE == 0 for _, c in pool[1])


def _labels(tree: Tree, path: str = "") -> Iterable[str]:
    """A name for each leaf of a result made of records; '' where there is none."""
    if not isinstance(tree, Node):
        yield path
        return
    for k, item in enumerate(tree.items):
        if tree.keys is not None:
            key = tree.keys[k]
            yield from _labels(item, f"{path}_{key}" if path else str(key))
        else:
            yield from _labels(item, f"{path}_{k}" if path else "")


def _bare(extent: int | str) -> str:
    """A size without the parentheses that make it an operand."""
    text = str(extent)
    return text[1:-1] if text.startswith("(") else text


_MADE = re.compile(r"\bstatic (?:__device__ )?(?:inline )?[\w ]+?[ *](\w+)\(|#define (\w+)|__shared__ \w+ (\w+)\[")
_INTEGER = re.compile(r"const long long (\w+) = (?!.*(?:atomic|__))")


def called_of(support: Iterable[str], called: set[str]) -> list[str]:
    """Those texts of functions that some text with the words ``called`` needs: a subscript may not have been divided
    after all. Callees come first. What makes nothing that has a name stays."""
    needed, called = [], set(called)
    for function in reversed(list(support)):
        made = [name for found in _MADE.findall(function) for name in found if name]
        if not made or not called.isdisjoint(made):
            needed.append(function)
            called.update(WORD.findall(function))
    return needed[::-1]


def without_unread(lines: list[Line], anywhere: bool = False) -> list[Line]:
    """Lines without the integers that nothing in their block reads: sizes of arrays of which only the places count.
    ``anywhere``: nothing in any block."""
    gone: set[int] = set()
    words = Counter(word for line in lines for word in WORD.findall(line.text)) if anywhere else Counter()
    for k in range(len(lines) - 1, -1, -1):
        found = _INTEGER.match(lines[k].text)
        if found is None:
            continue
        if words[found[1]] == 1 if anywhere else not read_after(found[1], lines, k, gone):
            gone.add(k)
            words.subtract(WORD.findall(lines[k].text))
    return [line for k, line in enumerate(lines) if k not in gone] if gone else lines


def read_after(name: str, lines: list[Line], k: int, gone: Container[int]) -> bool:
    """Whether what the line ``k`` declares is read before its block ends."""
    word = re.compile(rf"\b{name}\b")
    for j in range(k + 1, len(lines)):
        if lines[j].depth < lines[k].depth and not lines[j].text.startswith("#"):
            return False
        if j not in gone and word.search(lines[j].text):
            return True
    return False
