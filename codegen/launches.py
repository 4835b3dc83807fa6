"""One call of a model on a GPU as a plan of launches: plain data that the CUDA printer makes.

A ``CudaProgram`` has the text of some kernels and the ``steps`` that a host takes, in their order: launches, copies,
loops around them. Whoever runs it takes the steps: a runtime (``steps.py``), a printer of host code, or a test on
the CPU. Nothing here knows of a model, and nothing needs a GPU.

*Sizes* are ``Size``s: integers that the host knows. A number, a name, or ``(operator, a, b)`` of two more; ``("power",
a, b)`` is the least power of two that is not below ``a``, but at most ``b``, itself one. The names are those of the
program's ``dims`` and of its Int parameters, and of the indices of the ``Repeat``s around a step. ``value`` computes
one, ``text`` writes it in C.

*Memory* is a set of named arrays (``Memory``): the parameters, the results, and what the program needs besides. Scalars
between kernels are arrays of one element; so is a scalar result. Parameters are only read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

Size = Union[int, str, "tuple[str, Size, Size]"]

BLOCK = 128  # threads of a block, where nothing else is said
FOLDING = 256  # threads of a block that folds
WAVES = 2112  # blocks that fill a large GPU: 16 for each of 132 multiprocessors; a kernel's loop takes the rest


# --------------------------------------------------------------------------------------------------- sizes

_COMPARED = {"==": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__"}


def value(size: Size, known: Mapping[str, int]) -> int:
    """The integer that a size is; ``//`` and ``%`` round as Python's. A comparison gives 1 or 0."""
    if isinstance(size, int):
        return size
    if isinstance(size, str):
        return int(known[size])
    operator, *rest = size
    a, b = (value(x, known) for x in rest)
    if operator == "+":
        return a + b
    if operator == "-":
        return a - b
    if operator == "*":
        return a * b
    if operator == "//":
        return a // b
    if operator == "%":
        return a % b
    if operator == "min":
        return min(a, b)
    if operator == "max":
        return max(a, b)
    if operator == "and":
        return int(bool(a) and bool(b))
    if operator == "or":
        return int(bool(a) or bool(b))
    if operator == "power":
        return min(b, 1 << max(a - 1, 0).bit_length())
    return int(getattr(a, _COMPARED[operator])(b))


def text(size: Size) -> str:
    """A size as C, in parentheses where it needs them; ``long long`` throughout."""
    if isinstance(size, int):
        return str(size) if size >= 0 else f"({size})"
    if isinstance(size, str):
        return size
    operator, a, b = size
    left, right = text(a), text(b)
    if operator in ("min", "max"):
        return f"({left} {'<' if operator == 'min' else '>'} {right} ? {left} : {right})"
    if operator == "power":
        return f"({' + '.join(['1', *(f'{n}*({n} < {left})' for n in powers(b))])})"
    if operator in ("//", "%"):
        sign = "/" if operator == "//" else "%"
        if positive(b) and not negative(a):
            return f"({left}{sign}{right})"
        down = "< 0" if positive(b) else f"!= 0 && ({left} < 0) != ({right} < 0)"
        quotient = f"({left}/{right} - ({left} % {right} {down}))"
        return quotient if operator == "//" else f"({left} - {quotient}*{right})"
    return f"({left} {({'and': '&&', 'or': '||'}).get(operator, operator)} {right})"


def powers(most: int) -> list[int]:
    """What the sizes of ("power", a, most) are made of, beside 1: n where n < a."""
    return [1 << k for k in range(most.bit_length() - 1)]


def negative(size: Size) -> bool:
    """Whether a size might be negative, as far as its form tells: a difference or a name might."""
    if isinstance(size, int):
        return size < 0
    if isinstance(size, str) or size[0] == "-":
        return True
    operator, a, b = size
    if operator == "max":
        return negative(a) and negative(b)
    if operator == "//":
        return negative(a) or not positive(b)
    if operator == "%":
        return not positive(b)
    return operator in ("+", "*", "min") and (negative(a) or negative(b))


def positive(size: Size) -> bool:
    """Whether a size is 1 or more, as far as its form tells."""
    if not isinstance(size, tuple):
        return isinstance(size, int) and size > 0
    operator, a, b = size
    if operator == "max":
        return positive(a) or positive(b)
    if operator == "+":
        return positive(a) and not negative(b) or positive(b) and not negative(a)
    return operator == "power" or operator in ("*", "min") and positive(a) and positive(b)


def names_of(size: Size) -> Iterator[str]:
    """The names that a size is made of."""
    if isinstance(size, str):
        yield size
    elif isinstance(size, tuple):
        yield from names_of(size[1])
        yield from names_of(size[2])


def total(sizes: Sequence[Size]) -> Size:
    """The product of sizes, the numbers together."""
    number, out = 1, None
    for s in sizes:
        if isinstance(s, int):
            number *= s
        else:
            out = s if out is None else ("*", out, s)
    if out is None or number == 0:
        return number
    return out if number == 1 else ("*", out, number)


def ceiling(size: Size, by: int) -> Size:
    """``size/by``, rounded up."""
    return -(-size // by) if isinstance(size, int) else ("//", ("+", size, by - 1), by)


# -------------------------------------------------------------------------------------------------- memory


@dataclass(frozen=True, slots=True)
class Memory:
    """An array in device memory. ``elem`` is "real", "int", "bool" (an ``int`` in CUDA) or "word" (``unsigned long
    long``); ``dims`` are its sizes, () for one element. ``kind`` is "param", "result" or "own": memory of the call,
    whose content is undefined before."""

    name: str
    elem: str
    dims: tuple[Size, ...]
    kind: str = "own"

    @property
    def length(self) -> Size:
        """How many elements."""
        return total(self.dims)


@dataclass(frozen=True, slots=True)
class At:
    """A place in an array: ``offset`` elements behind its start."""

    array: str
    offset: Size = 0


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar parameter of the model, given to a kernel by value: ``elem`` is "real" or "bool" ("int" ones are
    sizes)."""

    name: str
    elem: str


Argument = Union[At, Scalar, int, str, tuple]  # a pointer, a scalar by value, or a Size as ``long long``


# --------------------------------------------------------------------------------------------------- steps


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a kernel with ``blocks`` blocks of ``block`` threads, one dim each. ``blocks`` is at least 1 where it is
    run. ``args`` are in the order of the kernel's parameters. ``free``: any number of blocks will do, so a runtime may
    choose another one that suits the device; else results or memory depend on it. ``form`` is the model's form that it
    computes. ``shared``: the bytes of shared memory that a block is given, besides what the kernel declares."""

    kernel: str
    blocks: Size
    block: int
    args: tuple[Argument, ...]
    free: bool = False
    form: str = ""
    shared: Size = 0


@dataclass(frozen=True, slots=True)
class Clear:
    """Fill ``length`` elements with zeros."""

    to: At
    length: Size


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy ``length`` elements from one array to another (or within one, where the two parts are apart)."""

    to: At
    source: At
    length: Size


@dataclass(frozen=True, slots=True)
class Swap:
    """Two arrays of equal size, both the program's own, exchange their memory: each name is the other's from here."""

    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """Take ``steps`` ``count`` times (not at all where it is negative), ``index`` counting from 0."""

    count: Size
    index: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Choose:
    """Take ``then`` or ``orelse``. ``cond`` is a Size, true where it is not 0, or the ``At`` of a "bool" or "int" in
    device memory, which the host waits for."""

    cond: Size | At
    then: tuple[Step, ...]
    orelse: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class While:
    """Take ``before``; while the "bool" ``cond`` in device memory is not 0, take ``steps`` and ``before`` again. Where
    there is an ``index`` it counts how often ``steps`` are taken, and is a size from there on; where that would be more
    often than ``most`` the call ends with check ``number``. When a check has failed in a kernel it is done: kernels do
    nothing from there on, so that ``cond`` would stay as it is."""

    before: tuple[Step, ...]
    cond: At
    steps: tuple[Step, ...]
    index: str = ""
    most: Size = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Gemm:
    """``c = a b`` (``c += a b`` with ``add``): row-major matrices, c of m x n, k the inner size; a is stored k x m
    where ``ta``, b is stored n x k where ``tb``. The rows of each lie ``lda``, ``ldb``, ``ldc`` elements apart. There
    are ``many`` such products, of matrices that lie ``apart`` elements from one to the next, a's, b's and c's. For
    cuBLAS, or for the program's own kernel, which is started as ``launch`` says."""

    m: Size
    n: Size
    k: Size
    a: At
    lda: Size
    ta: bool
    b: At
    ldb: Size
    tb: bool
    c: At
    ldc: Size
    add: bool
    launch: Launch
    many: Size = 1
    apart: tuple[Size, Size, Size] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Require:
    """A check that the host makes: the call ends with check ``number`` unless ``holds`` is not 0."""

    holds: Size
    number: int


Step = Union[Launch, Clear, Copy, Swap, Repeat, Choose, While, Gemm, Require]


# ------------------------------------------------------------------------------------------------- programs


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of the model: ``elem`` is "real", "int" or "bool"; ``dims`` () for a scalar."""

    name: str
    elem: str
    dims: tuple[Size, ...] = ()


@dataclass(frozen=True, slots=True)
class CudaProgram:
    """One call of a model, run in parallel.

    ``params`` are the model's flat ones and ``results`` its flat results (``Memory`` of kind "result"); the name of a
    size in ``dims`` or of an Int parameter stands for its value in every Size. ``memory`` has all arrays: parameters,
    results, own ones. ``status`` is None or the name of an own array of two words, to be zero at the start: when the
    steps are done the first is the number of a check that failed, 0 if none did; ``checks[number - 1]`` is its kind,
    message and form. After a check has failed the results are undefined. ``source`` is the CUDA text with all kernels,
    ``kernels`` their names. ``notes`` says in words what runs how: (the form's text, what became of it).

    ``heap``, ``stack`` and ``rounds`` are names of more sizes, where there are such: how many reals of memory, an even
    number, each thread has to take as it needs them; how many bytes of the stack; how many rounds of a ``While`` of the
    host there is room for. Where the check that failed is of the kind "memory" or "rounds" the steps may be taken again
    with more (``more``).
    """

    name: str
    params: tuple[Param, ...]
    results: tuple[Memory, ...]
    dims: tuple[str, ...]
    memory: tuple[Memory, ...]
    steps: tuple[Step, ...]
    kernels: tuple[str, ...]
    source: str
    status: str | None = None
    checks: tuple[tuple[str, str, Any], ...] = ()
    dtype: str = "f64"
    deterministic: bool = False
    notes: tuple[tuple[str, str], ...] = ()
    heap: str | None = None
    stack: str | None = None
    rounds: str | None = None

    @property
    def known(self) -> list[str]:
        """The names that sizes are made of, but for the indices of loops."""
        ints = [p.name for p in self.params if p.elem == "int" and not p.dims]
        return [*self.dims, *ints, *(n for n in (self.heap, self.stack, self.rounds) if n is not None)]

    def more(self, number: int) -> str | None:
        """The size of which there is to be more where a check has failed; None where that does not help."""
        kind = self.checks[number - 1][0] if number else ""
        return {"memory": self.heap, "rounds": self.rounds}.get(kind)

    def ctype(self, elem: str) -> str:
        """The CUDA type of an element."""
        real = "double" if self.dtype == "f64" else "float"
        return {"real": real, "int": "long long", "bool": "int", "word": "unsigned long long"}[elem]


def walk(steps: Sequence[Step]) -> Iterator[Step]:
    """All steps, inner ones too."""
    for step in steps:
        yield step
        if isinstance(step, Repeat):
            yield from walk(step.steps)
        elif isinstance(step, Choose):
            yield from walk(step.then)
            yield from walk(step.orelse)
        elif isinstance(step, While):
            yield from walk(step.before)
            yield from walk(step.steps)
        elif isinstance(step, Gemm):
            yield step.launch


def checked_there(program: CudaProgram, steps: Sequence[Step] | None = None) -> bool:
    """Whether a kernel of the program, or of some of its steps, may note that a check failed: else the host knows
    without waiting."""
    found = walk(program.steps if steps is None else steps)
    return any(isinstance(s, Launch) and At(program.status or "") in s.args for s in found)
