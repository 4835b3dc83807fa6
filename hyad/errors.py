"""Errors that point at the user's own form.

A ``Span`` is a range of characters in a ``Source``; ``HyadError`` prints the line it starts on, underlined. Nothing
else in hyad formats an error.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar


@dataclass(eq=False, slots=True)
class Source:
    """A text that models were read from: its file, and where in that file the text starts."""

    text: str
    filename: str = "<model>"
    line: int = 1  # line of the first character, from 1
    column: int = 1  # column of the first character, from 1
    _starts: list[int] = field(default_factory=list, repr=False)

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column in the file, both from 1."""
        row = self._row(offset)
        column = offset - self._starts[row] + 1
        return self.line + row, column + (self.column - 1 if row == 0 else 0)

    def line_of(self, offset: int) -> tuple[str, int]:
        """The line of text that holds ``offset``, and the offset within it."""
        row = self._row(offset)
        start = self._starts[row]
        end = self.text.find("\n", start)
        return self.text[start : len(self.text) if end < 0 else end], offset - start

    def _row(self, offset: int) -> int:
        if not self._starts:
            self._starts.extend([0, *(i + 1 for i, c in enumerate(self.text) if c == "\n")])
        return bisect_right(self._starts, offset) - 1


@dataclass(frozen=True, eq=False, slots=True)
class Span:
    """The characters ``start:end`` of a source: where a form stands."""

    source: Source
    start: int
    end: int

    def __repr__(self) -> str:
        return f"Span({self.source.filename}:{':'.join(map(str, self.source.position(self.start)))})"

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    @property
    def line(self) -> int:
        return self.source.position(self.start)[0]

    def underlined(self) -> str:
        """The form's first line with a row of carets below it, headed by file, line and column."""
        line, column = self.source.position(self.start)
        text, at = self.source.line_of(self.start)
        width = max(1, min(self.end - self.start, len(text) - at))
        if len(text) > 200:  # a machine-written line: show the form's surroundings only
            left = max(0, at - 60)
            text, at = text[left : at + 120], at - left
            width = min(width, max(1, len(text) - at))
        return f"{self.source.filename}:{line}:{column}\n  {text}\n  {' ' * at}{'^' * width}"


class HyadError(Exception):
    """A user's mistake, or a limit of hyad, said in the words of the language.

    ``message`` says what is wrong, ``hint`` what to do, ``span`` where; ``notes`` are further places.
    """

    def __init__(self, message: str, span: Span | None = None, hint: str | None = None, notes=()):
        self.message, self.span, self.hint, self.notes = message, span, hint, tuple(notes)
        super().__init__(message)

    def __str__(self) -> str:
        parts = [self.message]
        if self.span is not None:
            parts.append(self.span.underlined())
        for text, span in self.notes:
            parts.append(f"{text}\n{span.underlined()}" if span is not None else text)
        if self.hint:
            parts.append(f"hint: {self.hint}")
        return "\n".join(parts)


BESIDE_SLICE = "take one after the other: `(get (get a i) (slice None) j)`"


def hint_for(place: str, what: str, kind: type | None = None) -> str | None:
    """What to do about a value that does not go where it is; ``what`` describes it. ``place`` is "condition", "index",
    "size", "field", "call" or "operand"; ``kind`` is what the elements of an array are, which is an index."""
    array = what.startswith("an array")
    if what == "a reference":
        return "`(deref r)` is what it holds"
    if place == "operand" and what == "None":
        return "a `for`, a `while`, a `set!` and a `when` whose condition is False have no value"
    if place == "operand" and what == "a list":
        return "`(list a b)` makes a Lisp list, which `map` and `fold` go through; an array is `[a b]`"
    if place == "condition":
        both = (
            "`(where c a b)` chooses element by element, `(logical-and c d)` joins two so; "
            "`(any c)` and `(all c)` are conditions"
        )
        return both if array else "a condition compares: `(< x 0)`"
    if place == "index" and array:
        by_kind = {
            bool: "`(where c a 0)` chooses by truth values, element by element, and keeps the shape",
            float: "`(int a)` makes indices of reals",
        }
        many = "`(scatter v i x)` and `(scatter-add v i x)` put elements at many indices; `(get v i)` alone takes them"
        return by_kind.get(kind, many)
    if place == "index" and what.startswith(("a tuple", "a pair")):
        return "`(get m i j)` takes one subscript for each axis"
    if place == "call":
        return "the head of a call is a function" + ("; `(get v i)` is an element" if array else "")
    if place == "field" and array:
        return "functions take arrays: `(transpose m)`, `(shape m)`, `(sum m)`"
    whole = place in ("index", "size") and what == "a number"
    return "`(int x)` makes one of a real, `(// a b)` is a whole quotient" if whole else None


def truth_hint(name: str, kinds: str) -> str | None:
    """What to do about a primitive that does not work on such ``kinds``, a truth value among them."""
    if "a truth value" not in kinds or name in ("<", "<=", ">", ">=", "=", "!="):
        return None
    if name in ("and", "or", "not"):
        return "`(!= x 0)` is a truth value"
    made = "`(where c 1.0 0.0)` makes a number of a truth value"
    if name not in ("+", "*", "-", "/"):
        return made
    return f"`(where c x 0.0)` is x where c holds, {made}, `(count-nonzero c)` counts them"


class ReadError(HyadError):
    """The text is not a well-formed s-expression or not a form of the language."""


class ModelTypeError(HyadError, TypeError):
    """Types, shapes or arities do not fit."""


class UnboundError(HyadError, NameError):
    """A name that nothing binds."""


class BoundsError(HyadError, IndexError):
    """An index outside its array."""


class DerivativeError(HyadError, TypeError):
    """Something that has no derivative was differentiated."""


class CompileError(HyadError, RuntimeError):
    """The C compiler, the disk or the machine failed."""


class NoCForm(CompileError):
    """A user's primitive has no C text: the Python target still works."""


class NotCompiled(HyadError):
    """A model has no typed program for these arguments: the message says why, the span where. Called, the model is
    run as it is read (define by run); ``hyad.compile`` raises this."""


class OutOfMemory(HyadError, MemoryError):
    """The arrays that a call asks for do not fit into memory, the machine's or the GPU's."""


class DeviceError(HyadError, RuntimeError):
    """A GPU, or its driver, failed while a model ran on it."""


def mistake(error: BaseException | None) -> HyadError | None:
    """The user's mistake behind an error: itself, or what Hy wrapped because a macro raised it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, HyadError):
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def require_hint(error: BaseException) -> str | None:
    """What a Hy file lacks that calls one of hyad's macros as a function: the macro is not required."""
    if isinstance(error, NameError) and error.name in ("defmodel", "defdata", "defprim"):
        return f"the file needs `(require hyad.macros [{error.name}])`"
    return None


BORDER = (HyadError, MemoryError, RecursionError)  # what ``at_border`` is for
F = TypeVar("F", bound=Callable[..., Any])


def at_border(error: BaseException) -> BaseException:
    """An error as it leaves hyad: without hyad's own frames, and without what was caught on the way, which tell a
    user nothing. ``HYAD_DEBUG=1`` keeps all of it."""
    if isinstance(error, RecursionError):
        error = HyadError("this model is nested too deeply", None, "name inner parts with `let`")
    elif isinstance(error, MemoryError) and not isinstance(error, HyadError):
        error = OutOfMemory("the arrays of this call do not fit into memory", None, "check the sizes that it is given")
    if os.environ.get("HYAD_DEBUG", "0") in ("", "0"):
        error.__traceback__ = error.__cause__ = error.__context__ = None  # which would keep a failed call's arrays, too
        error.__suppress_context__ = True
    return error


def border(function: F) -> F:
    """A function of the public interface: a ``HyadError`` leaves it with two frames, the user's and this one."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BORDER as error:
            raise at_border(error)

    return call  # type: ignore[return-value]
