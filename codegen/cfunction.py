"""What the C printer hands over: C text, and how to call the function in it.

The printer (``c.py``) writes a ``CFunction``; the stub (``stub.py``), the loader (``build.py``) and ``emit`` read it.
The C types are ``double`` (``float`` for dtype "f32") for "real", ``long long`` for "int" and for dims, ``int`` for
"bool"; a data type has its own name.

Order of the C parameters: the user's, scalars by value and arrays as ``const double *restrict v``; the named dims;
the results by pointer, scalars too; ``double *restrict work`` where there is a workspace; ``hyad_arena *arena`` where
the call needs memory that cannot be measured before it. What comes back is the result itself where ``returns_value``,
else the number of the check that failed (0: none; ``OUT_OF_MEMORY``) where ``fallible``, else ``void``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OUT_OF_MEMORY = -1  # what a function with an arena returns where there is no more memory


@dataclass(frozen=True, slots=True)
class CParam:
    """A parameter or a result: ``elem`` is "real", "int", "bool" or the name of a data type; ``dims`` is () for a
    scalar, else one entry per dim, an int where its size is static and the C name of a dim where it is known at run
    time. ``exact``: the Python entry leaves an integer for this real to its fallback, which has code for integers, and
    so an array of which the last of several dims is open here and 2 to ``ROW``: there is code for that size."""

    name: str
    elem: str = "real"
    dims: tuple[int | str, ...] = ()
    exact: bool = False

    @property
    def is_array(self) -> bool:
        return bool(self.dims)


@dataclass(frozen=True, slots=True)
class CField:
    """A field of a cell; a dim that is no number is the name of an earlier field. ``size``: it is such a dim, which
    Python does not see."""

    name: str
    elem: str
    dims: tuple[int | str, ...] = ()
    size: bool = False


@dataclass(frozen=True, slots=True)
class CConstructor:
    """One way to make a value: ``null`` where it is the null pointer. ``kind`` says what it is in Python: "none",
    "tuple", "number", "truth", "array", "whole", "class" (``make``), or "inner" for what never gets there; ``parts``
    are the structures of its parts, as ``Constructor`` has them."""

    name: str
    fields: tuple[CField, ...]
    null: bool
    kind: str
    make: Any = None
    parts: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class CData:
    """A data type: ``name`` is a pointer to a constant ``struct cell``. ``public``: the header has it."""

    name: str
    constructors: tuple[CConstructor, ...]
    public: bool = True

    @property
    def cell(self) -> str:
        return f"{self.name}_cell"

    @property
    def tagged(self) -> bool:
        """Whether a cell says which constructor made it."""
        return sum(not c.null for c in self.constructors) > 1

    def tag(self, c: CConstructor) -> str:
        return f"{self.name}_{c.name}"

    def empty(self, c: CConstructor) -> str:
        """A constructor without fields, in C."""
        return "NULL" if c.null else f"&{self.tag(c)}_cell"

    def test(self, c: CConstructor, value: str) -> str:
        """Whether ``value`` was made by a constructor, a value that is none of those before."""
        if c.null:
            return f"{value} == NULL"
        return f"{value}->tag == {self.tag(c)}" if self.tagged else f"{value} != NULL"

    def member(self, c: CConstructor, value: str, field: str) -> str:
        return f"{value}->as.{c.name}.{field}" if self.tagged else f"{value}->{field}"


@dataclass(frozen=True, slots=True)
class CFunction:
    """One compiled function.

    ``dims`` are the C names of the named dims in the order in which they are passed. ``workspace`` is None, or a C
    expression over the dims and the int params: the number of reals that ``work`` must have room for.
    ``work_static`` says that this expression is a number. ``checks[k-1]`` is what return value k means: kind
    ("bounds" or "shape"), message and span. ``source`` is a whole C file, ``header`` the one that declares it.
    ``types`` are the data types that its arguments and results hold, ``arena`` says that it takes one; with ``keeps``
    what it gives lies in there, and with ``unsized`` arrays too. ``stack``: the bytes of the local arrays of all
    functions of the file.
    """

    name: str
    params: tuple[CParam, ...]
    results: tuple[CParam, ...]
    dims: tuple[str, ...] = ()
    fallible: bool = False
    workspace: str | None = None
    work_static: bool = False
    checks: tuple[tuple[str, str, Any], ...] = ()
    source: str = ""
    header: str = ""
    dtype: str = "f64"
    types: tuple[CData, ...] = ()
    arena: bool = False
    keeps: bool = False
    unsized: bool = False
    stack: int = 0

    @property
    def returns_value(self) -> bool:
        """Whether the one scalar result is what the C function returns, and no pointer is passed for it."""
        by_pointer = self.fallible or self.arena or self.workspace is not None
        return len(self.results) == 1 and not (self.results[0].dims or by_pointer)

    def ctype(self, elem: str) -> str:
        """The C type of an element."""
        real = "double" if self.dtype == "f64" else "float"
        return {"real": real, "int": "long long", "bool": "int", "unit": "int"}.get(elem, elem)

    @property
    def declared(self) -> dict[str, str]:
        """The declarations of the C parameters by their names."""
        found = {
            p.name: f"const {self.ctype(p.elem)} *restrict {p.name}" if p.dims else f"{self.ctype(p.elem)} {p.name}"
            for p in self.params
        }
        found.update((d, f"long long {d}") for d in self.dims)
        if not self.returns_value:
            found.update((r.name, f"{self.ctype(r.elem)} *restrict {r.name}") for r in self.results)
        if self.workspace is not None:
            found["work"] = f"{self.ctype('real')} *restrict work"
        return found

    @property
    def prototype(self) -> str:
        """The C declaration, without the semicolon."""
        returned = "int" if self.fallible else "void"
        if self.returns_value:
            returned = self.ctype(self.results[0].elem)
        if self.arena:
            parts = [*self.declared.values(), "hyad_arena *arena"]
        else:
            parts = list(self.declared.values())
        return f"{returned} {self.name}({', '.join(parts) or 'void'})"
