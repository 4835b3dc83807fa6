"""What the C printer hands over: C text, and how to call the function in it.

The printer (``c.py``) writes a ``CFunction``; the stub (``stub.py``), the loader (``build.py``) and ``emit`` read it.
The C types are ``double`` (``float`` for dtype "f32") for "real", ``long long`` for "int" and for dims, ``int`` for
"bool".

Order of the C parameters: the user's, scalars by value and arrays as ``const double *restrict v``; the named dims;
the results by pointer, scalars too; ``double *restrict work`` where there is a workspace. What comes back is the
result itself where ``returns_value``, else the number of the check that failed (0: none) where ``fallible``, else
``void``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CParam:
    """A parameter or a result: ``elem`` is "real", "int" or "bool"; ``dims`` is () for a scalar, else one entry per
    dim, an int where its size is static and the C name of a dim where it is known at run time. ``exact``: the Python
    entry leaves an integer for this real to its fallback, which has code for integers."""

    name: str
    elem: str = "real"
    dims: tuple[int | str, ...] = ()
    exact: bool = False

    @property
    def is_array(self) -> bool:
        return bool(self.dims)


@dataclass(frozen=True, slots=True)
class CFunction:
    """One compiled function.

    ``dims`` are the C names of the named dims in the order in which they are passed. ``workspace`` is None, or a C
    expression over the dims and the int params: the number of reals that ``work`` must have room for.
    ``work_static`` says that this expression is a number. ``checks[k-1]`` is what return value k means: kind
    ("bounds" or "shape"), message and span. ``source`` is a whole C file, ``header`` the one that declares it.
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

    @property
    def returns_value(self) -> bool:
        """Whether the one scalar result is what the C function returns, and no pointer is passed for it."""
        return len(self.results) == 1 and not (self.results[0].dims or self.fallible or self.workspace is not None)

    def ctype(self, elem: str) -> str:
        """The C type of an element."""
        return {"real": "double" if self.dtype == "f64" else "float", "int": "long long", "bool": "int"}[elem]

    @property
    def prototype(self) -> str:
        """The C declaration, without the semicolon."""
        parts = [
            f"const {self.ctype(p.elem)} *restrict {p.name}" if p.dims else f"{self.ctype(p.elem)} {p.name}"
            for p in self.params
        ]
        parts += [f"long long {d}" for d in self.dims]
        if self.returns_value:
            returned = self.ctype(self.results[0].elem)
        else:
            returned = "int" if self.fallible else "void"
            parts += [f"{self.ctype(r.elem)} *restrict {r.name}" for r in self.results]
        if self.workspace is not None:
            parts.append(f"{self.ctype('real')} *restrict work")
        return f"{returned} {self.name}({', '.join(parts) or 'void'})"
