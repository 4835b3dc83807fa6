"""The host's side of a ``CudaProgram`` as C++: a function ``NAME_call`` that takes the plan's steps on a stream.

It is what ``launches.execute`` does with a plan, in text that nvcc compiles beside the kernels: a launch is a call of
``hyad_start``, a copy or a clearing one of CUDA's runtime, loops and branches of the plan are loops and branches. The
caller gives all memory; a macro of the header says how much. The same text runs on a CPU through ``cuda_on_cpu.h``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .c import RESERVED
from .comments import commented, listed
from .cuda import header_of
from .expressions import ADD, AND, EQUAL, MUL, OR, ORDER, PRIMARY, WIDTH, wrapped
from .identifiers import WORD, Names
from .launches import (
    At,
    Choose,
    Clear,
    Copy,
    CudaProgram,
    Gemm,
    Launch,
    Memory,
    Repeat,
    Scalar,
    Size,
    Step,
    Swap,
    While,
    checked_there,
    names_of,
    powers,
)
from .thread import CUDA, HEAP, ROUNDS, STACK_LIMIT

SIGNS = {"+": (" + ", ADD), "-": (" - ", ADD), "*": ("*", MUL), "//": ("/", MUL), "%": (" % ", MUL)}
SIGNS |= {"and": (" && ", AND), "or": (" || ", OR)}
LENGTH = 24  # characters from which on a size that is needed several times has a name
ALIGNED = 256  # bytes at which every array of the workspace begins
START = """\
/* the kernel, started with the arguments that it takes */
template <class T> struct hyad_as { typedef T type; };
template <class... P>
static cudaError_t hyad_start(cudaStream_t stream, void (*kernel)(P...), long long blocks,
    unsigned block, typename hyad_as<P>::type... args)
{
    void *given[] = {(void *)&args...};
    const dim3 grid(blocks < 1 ? 1 : (unsigned)blocks);
    return cudaLaunchKernel(kernel, grid, dim3(block), given, 0, stream);
}
"""
#: Of a kernel that is given shared memory.
SIZED = """\
/* the same, with so many bytes of shared memory for each block */
template <class... P>
static cudaError_t hyad_start_sized(cudaStream_t stream, void (*kernel)(P...), long long blocks,
    unsigned block, long long shared, typename hyad_as<P>::type... args)
{
    void *given[] = {(void *)&args...};
    const dim3 grid(blocks < 1 ? 1 : (unsigned)blocks);
    return cudaLaunchKernel(kernel, grid, dim3(block), given, (size_t)shared, stream);
}
"""
#: Of sizes, by names of their own: models have functions of reals and of integers.
ARITHMETIC = {
    "hyad_least(": "static inline long long hyad_least(long long a, long long b) { return a < b ? a : b; }\n",
    "hyad_most(": "static inline long long hyad_most(long long a, long long b) { return a > b ? a : b; }\n",
    "hyad_power(": """\
/* the least power of two that is not below a, or b */
static inline long long hyad_power(long long a, long long b)
{
    long long n = 1;
    while (n < a && n < b)
        n *= 2;
    return n;
}
""",
    "hyad_floor(": """\
/* a/b, rounded down */
static inline long long hyad_floor(long long a, long long b)
{
    return a/b - (a % b != 0 && (a < 0) != (b < 0));
}
""",
}
READ = """\
/* a number of the device's, waited for */
template <class T, class N> static cudaError_t hyad_read(cudaStream_t stream, const T *from, N *to)
{
    T found;
    cudaError_t error = cudaMemcpyAsync(&found, from, sizeof found, cudaMemcpyDeviceToHost, stream);
    if (!error)
        error = cudaStreamSynchronize(stream);
    if (!error)
        *to = (N)found;
    return error;
}
"""


def print_host(program: CudaProgram, doc: str = "") -> tuple[str, str]:
    """The source with kernels and host code, and the header that declares the host's function; ``doc`` is the
    model's."""
    return _Host(program, doc).files()


class _Host:
    def __init__(self, program: CudaProgram, doc: str) -> None:
        self.program, self.doc = program, doc
        names = Names((RESERVED | CUDA) - {"work"})
        names.taken.update(m.name for m in program.memory)
        names.taken.update([*(p.name for p in program.params), *program.known, *program.kernels])
        self.indices = names.taken  # those of loops are the plan's
        self.names, self.named = names, dict[Size, str]()
        self.work, self.stream, self.error, self.at, self.failed, self.cond, self.kept = (
            names.fresh(n) for n in ("work", "stream", "error", "at", "failed", "cond", "kept")
        )
        self.own = [m for m in program.memory if m.kind == "own"]
        self.watched = checked_there(program)
        self.reads = self.watched
        self.own = [m for m in self.own if m.name != program.status or self.watched]

    def files(self) -> tuple[str, str]:
        body = list(self.body())
        words = set(WORD.findall("\n".join(line.partition("//")[0] for line in body)))
        names = [declared.rpartition(" ")[2].lstrip("*") for declared in [*self.params(), self.stream]]
        body[1:1] = [f"    (void){name};" for name in names if name not in words]
        helpers = [START] + [READ] * self.reads + [STACK_LIMIT] * (self.program.stack is not None)
        helpers += [SIZED] if any("hyad_start_sized(" in line for line in body) else []
        helpers += [helper for name, helper in ARITHMETIC.items() if any(name in line for line in body)]
        program = self.program
        declared = wrapped(f'extern "C" {self.head()}', WIDTH)
        host = [
            "#ifndef __CUDACC_RTC__ /* NVRTC compiles no host code */",
            *helpers,
            *declared,
            "{",
            *body,
            "}",
            "#endif",
        ]
        source = "\n".join([f'#include "{program.name}.h"', "", program.source.strip("\n"), "", *host, ""])
        return source, self.header()

    # ------------------------------------------------------------------------------------- the head

    def ctype(self, elem: str) -> str:
        return self.program.ctype(elem)

    def params(self) -> list[str]:
        program = self.program
        out = [
            f"const {self.ctype(p.elem)} *{p.name}" if p.dims else f"{self.ctype(p.elem)} {p.name}"
            for p in program.params
        ]
        out += [f"long long {d}" for d in program.dims]
        out += [f"{self.ctype(r.elem)} *{r.name}" for r in program.results]
        out += [f"long long {name}" for name in (program.heap, program.rounds) if name is not None]
        out += [f"void *{self.work}"] * bool(self.own)
        return out + [f"long long *{self.failed}"] * bool(program.checks)

    def head(self) -> str:
        return f"cudaError_t {self.program.name}_call({', '.join([*self.params(), f'cudaStream_t {self.stream}'])})"

    # ------------------------------------------------------------------------------------- the body

    def body(self) -> Iterator[str]:
        program, error = self.program, self.error
        yield f"    cudaError_t {error} = cudaSuccess;"
        if self.own:
            yield f"    char *{self.at} = (char *){self.work};"
        for k, m in enumerate(self.own):
            ctype = self.ctype(m.elem)
            yield f"    {ctype} *{m.name} = ({ctype} *){self.at};"
            if k + 1 < len(self.own):
                yield from self.lines(f"{self.at} += {self.bytes(m)};", 1)
        if program.checks:
            yield f"    *{self.failed} = 0;"
        if program.stack is not None:
            yield f"    long long {program.stack} = 0;"
            yield f"    {error} = hyad_stack(&{program.stack});"
        if self.watched:
            yield from self.step(Clear(At(program.status), 2), 1)
        yield from self.steps(program.steps, 1)
        if self.watched:
            yield f"    if (!{error})"
            yield f"        {error} = hyad_read({self.stream}, {program.status}, {self.failed});"
        yield f"    return {error};"

    def steps(self, steps: Sequence[Step], depth: int) -> Iterator[str]:
        outer = dict(self.named)
        for size in self.shared(steps):
            text = self.text(size)
            if len(text) > LENGTH:
                name = self.names.fresh("size")
                yield from self.lines(f"const long long {name} = {text};", depth)
                self.named[size] = name
        for step in steps:
            yield from self.step(step, depth)
        self.named = outer

    def shared(self, steps: Sequence[Step]) -> list[Size]:
        """The sizes that launches side by side need several times, inner ones first."""
        found: dict[Size, int] = {}

        def visit(size: Size) -> None:
            if isinstance(size, tuple) and size not in self.named:
                if size not in found:
                    found[size] = 0
                    for part in size[1:]:
                        visit(part)
                    found[size] = found.pop(size)  # behind its parts
                found[size] += 1

        for step in steps:
            if isinstance(step, Launch):
                for a in (step.blocks, step.shared, *step.args):
                    if not isinstance(a, (At, Scalar)):
                        visit(a)
        return [size for size, times in found.items() if times > 1]

    def step(self, step: Step, depth: int) -> Iterator[str]:
        stream, error = self.stream, self.error
        if isinstance(step, Launch):
            args = "".join(f", {self.argument(a)}" for a in step.args)
            form = f"  // {commented(step.form, 60)}" if step.form else ""
            name, block = "hyad_start", str(step.block)
            if step.shared != 0:
                name, block = "hyad_start_sized", f"{step.block}, {self.text(step.shared)}"
            call = f"{name}({stream}, {step.kernel}, {self.text(step.blocks)}, {block}{args})"
            yield from self.guarded(call, depth, form)
        elif isinstance(step, Clear):
            yield from self.guarded(
                f"cudaMemsetAsync({self.place(step.to)}, 0, {self.size(step.to, step.length)}, {stream})", depth
            )
        elif isinstance(step, Copy):
            size = self.size(step.to, step.length)
            copy = f"{self.place(step.to)}, {self.place(step.source)}, {size}, cudaMemcpyDeviceToDevice"
            yield from self.guarded(f"cudaMemcpyAsync({copy}, {stream})", depth)
        elif isinstance(step, Swap):
            ctype = self.ctype(self.memory(step.a).elem)
            yield from self.lines(
                f"{{ {ctype} *{self.kept} = {step.a}; {step.a} = {step.b}; {step.b} = {self.kept}; }}", depth
            )
        elif isinstance(step, Repeat):
            k = step.index
            yield from self.lines(
                f"for (long long {k} = 0; !{error} && {k} < {self.text(step.count, ORDER + 1)}; {k}++) {{", depth
            )
            yield from self.steps(step.steps, depth + 1)
            yield from self.lines("}", depth)
        elif isinstance(step, Choose):
            yield from self.choose(step, depth)
        elif isinstance(step, While):
            self.reads = True
            if step.index:
                yield from self.lines(f"long long {step.index} = 0;", depth)
            yield from self.lines(f"for (long long {self.cond} = 1; !{error};) {{", depth)
            yield from self.steps(step.before, depth + 1)
            yield from self.guarded(f"hyad_read({stream}, {self.place(step.cond)}, &{self.cond})", depth + 1)
            yield from self.lines(f"if ({error} || !{self.cond})", depth + 1)
            yield from self.lines("break;", depth + 2)
            if checked_there(self.program, [step]):
                yield from self.guarded(f"hyad_read({stream}, {self.program.status}, {self.failed})", depth + 1)
                yield from self.lines(f"if ({error} || *{self.failed})", depth + 1)
                yield from self.lines("break;", depth + 2)
            if step.number:
                yield from self.fails(f"{step.index} >= {self.text(step.most, ORDER + 1)}", step.number, depth + 1)
            yield from self.steps(step.steps, depth + 1)
            if step.index:
                yield from self.lines(f"{step.index}++;", depth + 1)
            yield from self.lines("}", depth)
        elif isinstance(step, Gemm):
            yield from self.step(step.launch, depth)
        else:
            yield from self.fails(f"!{error} && !{self.text(step.holds, PRIMARY)}", step.number, depth)

    def fails(self, cond: str, number: int, depth: int) -> Iterator[str]:
        """A check of the host's."""
        yield from self.lines(f"if ({cond}) {{", depth)
        yield from self.lines(f"*{self.failed} = {number};", depth + 1)
        yield from self.lines(f"return {self.error};", depth + 1)
        yield from self.lines("}", depth)

    def choose(self, step: Choose, depth: int) -> Iterator[str]:
        inner = depth
        if isinstance(step.cond, At):
            self.reads = True
            inner += 1
            yield from self.lines("{", depth)
            yield from self.lines(f"long long {self.cond} = 0;", inner)
            yield from self.guarded(f"hyad_read({self.stream}, {self.place(step.cond)}, &{self.cond})", inner)
            yield from self.lines(f"if ({self.cond}) {{", inner)
        else:
            yield from self.lines(f"if ({self.text(step.cond)}) {{", inner)
        yield from self.steps(step.then, inner + 1)
        if step.orelse:
            yield from self.lines("} else {", inner)
            yield from self.steps(step.orelse, inner + 1)
        yield from self.lines("}", inner)
        if inner > depth:
            yield from self.lines("}", depth)

    def guarded(self, call: str, depth: int, comment: str = "") -> Iterator[str]:
        yield from self.lines(f"if (!{self.error}){comment}", depth)
        yield from self.lines(f"{self.error} = {call};", depth + 1)

    def lines(self, line: str, depth: int) -> Iterator[str]:
        indent = "    " * depth
        if line.startswith("if") and "  //" in line:
            yield indent + line
            return
        for part in wrapped(line, WIDTH - len(indent)):
            yield indent + part

    # ---------------------------------------------------------------------------------- expressions

    def memory(self, name: str) -> Memory:
        return next(m for m in self.program.memory if m.name == name)

    def argument(self, a: At | Scalar | Size) -> str:
        if isinstance(a, At):
            return self.place(a)
        return a.name if isinstance(a, Scalar) else self.text(a)

    def place(self, at: At) -> str:
        return at.array if at.offset == 0 else f"{at.array} + {self.text(at.offset, ADD)}"

    def text(self, size: Size, level: int = 0, macro: bool = False) -> str:
        """A size as C that binds at least as tightly as ``level``; in a ``macro`` without functions."""
        if isinstance(size, int):
            return str(size) if size >= 0 else f"({size})"
        if isinstance(size, str):
            return f"(long long)({size})" if macro else size
        if size in self.named and not macro:
            return self.named[size]
        operator, a, b = size
        if operator == "max" and b == 0 and self.natural(a):
            return self.text(a, level, macro)
        if operator == "power" and not macro:
            return f"hyad_power({self.text(a)}, {b})"
        if operator == "power":
            return f"({' + '.join(['1', *(f'{n}*({n} < {self.text(a, ORDER + 1, macro)})' for n in powers(b))])})"
        if operator in ("min", "max") or operator in ("//", "%") and not (self.natural(a) and self.natural(b)):
            if operator in ("min", "max") and macro:
                left, right = (self.text(x, ADD, macro) for x in (a, b))
                return f"({left} {'<' if operator == 'min' else '>'} {right} ? {left} : {right})"
            if macro:
                left, right = (self.text(x, MUL + 1, macro) for x in (a, b))
                quotient = f"({left}/{right} - ({left} % {right} != 0 && ({left} < 0) != ({right} < 0)))"
                return quotient if operator == "//" else f"({left} - {right}*{quotient})"
            left, right = self.text(a), self.text(b)
            if operator in ("min", "max"):
                return f"hyad_{'least' if operator == 'min' else 'most'}({left}, {right})"
            quotient = f"hyad_floor({left}, {right})"
            if operator == "//":
                return quotient
            return self.text(("-", a, f"{self.text(b, MUL)}*{quotient}"), level)
        sign, own = SIGNS.get(operator, (f" {operator} ", ORDER if "<" in operator else EQUAL))
        first = self.alone(b)  # what is printed of b first
        while isinstance(first, tuple) and first[0] == "*" and first not in self.named:
            first = self.alone(first[1])
        divided = isinstance(first, tuple) and first[0] in ("//", "%") and first not in self.named
        again = operator == "+" or operator == "*" and not divided
        inner = ORDER + 1 if own == EQUAL else own  # a < b == c is right, and warned of
        out = f"{self.text(a, inner, macro)}{sign}{self.text(b, inner if again else inner + 1, macro)}"
        return f"({out})" if own < level else out

    def alone(self, size: Size) -> Size:
        """A size without the 0 that it is never less than."""
        while isinstance(size, tuple) and size[0] == "max" and size[2] == 0 and self.natural(size[1]):
            size = size[1]
        return size

    def natural(self, size: Size) -> bool:
        """Whether a size cannot be negative."""
        if isinstance(size, tuple):
            operator, a, b = size
            if operator == "max":
                return self.natural(a) or self.natural(b)
            if operator == "power":
                return True
            if operator in ("+", "*", "//", "%", "min"):
                return self.natural(a) and self.natural(b)
            return operator != "-"
        return (
            size >= 0 if isinstance(size, int) else size in (*self.program.dims, self.program.heap, self.program.rounds)
        )

    def size(self, at: At, length: Size) -> str:
        """Bytes of so many elements, none where the number is negative."""
        return f"{self.text(('max', length, 0), MUL)}*sizeof({self.ctype(self.memory(at.array).elem)})"

    def bytes(self, m: Memory, macro: bool = False) -> str:
        """The bytes of an array in the workspace, up to where the next one begins."""
        width = 4 if m.elem == "bool" or m.elem == "real" and self.program.dtype == "f32" else 8
        if isinstance(m.length, int):
            return str(-(-max(m.length, 1) * width // ALIGNED) * ALIGNED)
        return f"({self.text(('max', m.length, 0), MUL, macro)}*{width} + {ALIGNED - 1})/{ALIGNED}*{ALIGNED}"

    # ------------------------------------------------------------------------------------ the header

    def header(self) -> str:
        program = self.program
        doc = commented(self.doc.strip(), 400)
        out = [f"/* {program.name}, one call, run in parallel" + (f": {doc}" if doc else "")]
        out.append(" * All pointers are to the device's memory unless said otherwise; arrays are row-major.")
        out += [f" *   {p.name}: {described(p.elem, [*map(self.text, p.dims)])}" for p in program.params]
        out += [f" *   {d}: a size" for d in program.dims]
        out += [f" *   {r.name}: {described(r.elem, [*map(self.text, r.dims)])}, the result" for r in program.results]
        if program.heap is not None:
            number = next(k for k, check in enumerate(program.checks, 1) if check[0] == "memory")
            out.append(f" *   {program.heap}: how many reals of memory a thread has to take as it needs them, an even")
            out.append(f" *     number: {HEAP}, say, and more where that was not enough, of which check {number} tells")
        if program.rounds is not None:
            told = [str(k) for k, check in enumerate(program.checks, 1) if check[0] == "rounds"]
            out.append(
                f" *   {program.rounds}: how many rounds of a `while` there is room for: {ROUNDS}, say, and more"
            )
            out.append(f" *     where that was not enough, of which check {' or '.join(told)} tells")
        macro = []
        if self.own:
            sizes = [self.bytes(m, macro=True) for m in self.own]
            used = {n for m in self.own for n in names_of(m.length)}
            names = [n for n in program.known if n in used]
            call = f"{program.name.upper()}_BYTES" + (f"({', '.join(names)})" if names else "")
            macro = [f"#define {call} ( \\", *(f"    {size} + \\" for size in sizes[:-1]), f"    {sizes[-1]})"]
            out.append(
                f" *   {self.work}: {call} bytes of memory to write to, aligned to {ALIGNED} bytes as cudaMalloc's is"
            )
        if program.checks:
            out.append(
                f" *   {self.failed}: a number of the host's: 0, or that of a check that failed, after which the"
            )
            out.append(" *     results mean nothing; the function waits for the device to know:")
            out += listed(program.checks, " *     ")
        return header_of(program.name, out, macro, self.head())


def described(elem: str, dims: Sequence[str]) -> str:
    """What a parameter or result is, in words."""
    one = {"real": "a real", "int": "an integer", "bool": "a truth value, 0 or 1"}[elem]
    many = {"real": "reals", "int": "integers", "bool": "truth values, 0 or 1"}[elem]
    return f"{' x '.join(dims)} {many}" if dims else one
