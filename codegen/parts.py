"""A long body in parts: C compilers take time quadratic in the length of one straight piece of code.

``split`` cuts the lines of a body into parts, each to become a function of its own. What one part makes and another
reads lies in a struct, to which all parts have a pointer: ``const double x1 = ..`` becomes ``v->x1 = ..``, and
``x1`` is ``v->x1`` from there on. What is made after the last use of ``x1`` may have its memory: both are then in one
union, ``v->u1.x1``. A body that is not long stays as it is.

Design decision: what a part reads in ``for`` loops is a variable of that part, ``const double x1 = v->x1;``, or
``v->x1 = x1;`` where it is made. A C compiler has to think that a number that a loop stores may change a member, and
would read that again in each iteration. What several parts change stays in the struct.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from .identifiers import WORD
from .operands import Line

LONG = 16_000  # characters of code from which on a body is split
PART = 3_000  # that a part has at least

_KIND = r"(?:unsigned )?long long|hyad_strided<[a-z ]+>|(?!return\b|goto\b)[A-Za-z_]\w*"  # a number's, that of data
_DECLARED = re.compile(rf"(const )?({_KIND}) (\*?)(\w+)(\[\d+\])?(?: =|\[|;)")
_CHANGED = re.compile(r"(?<![\w.>])(\w+)(?:\.\w+)*(?: (?:[-+*/%&|^]|<<|>>)?= |\+\+|--)|&(\w+)")
_CHANGED_BY_ADDRESS = re.compile(r"&(\w+)")
_SEVERAL = re.compile(r"(double|float|long long|int) (\w+(?:, \w+)+);")


@dataclass(slots=True)
class Part:
    """Some statements, the words in their text, and whether a check stands among them."""

    lines: list[Line]
    words: set[str]
    fails: bool


@dataclass(slots=True)
class Parts:
    """``values`` is the struct's name in the parts, ``fields`` are its members by type, ``unions`` those of its unions,
    by the union's name; the last part stays in the function itself."""

    values: str
    fields: dict[str, list[str]]
    unions: dict[str, dict[str, list[str]]]
    parts: list[Part]


@dataclass(slots=True)
class _Statement:
    """A statement at the top of the body; what it declares by name: a type, or '' for an array."""

    lines: list[Line]
    words: set[str]
    declares: dict[str, str]


def split(lines: list[Line], params: Collection[str] = ()) -> Parts | None:
    """The parts of the body of a function of ``params``, or None where it is to stay whole."""
    if sum(len(line.text) for line in lines) < LONG:
        return None
    statements = list(_statements(lines))
    cuts = _cuts(statements)
    pieces = [statements[a:b] for a, b in zip(cuts, [*cuts[1:], None])]
    if len(pieces) < 3:
        return None
    home: dict[str, int] = {}  # the piece that declares a name; before that the name is an inner variable's
    types: dict[str, str] = {}
    handed: dict[str, str] = {}
    for k, piece in enumerate(pieces):
        for s in piece:
            handed.update((name, types[name]) for name in s.words if home.get(name, k) != k)
            home.update(dict.fromkeys(s.declares, k))
            types.update(s.declares)
    words = set().union(params, *(s.words for s in statements))
    values = next(name for name in ("v", "s", *(f"v{k}" for k in range(len(words)))) if name not in words)
    letter = next(u for u in ("u", "w", *(f"u{k}_" for k in range(len(words)))) if not _numbered(u, words))
    unions: dict[str, dict[str, list[str]]] = {}
    fields: dict[str, list[str]] = {}
    union_of: dict[str, str] = {}
    for slot in _shared(statements, handed):
        union = f"{letter}{len(unions) + 1}" if len(slot) > 1 else ""
        into = unions.setdefault(union, {}) if union else fields
        for name in slot:
            into.setdefault(types[name], []).append(name)
            union_of[name] = f"{union}." if union else ""
    changed = _changed(pieces, handed)
    own = {name for name in handed if all(k == home[name] for k, _ in changed.get(name, ()))}
    order = {name: k for k, name in enumerate(types)}
    known: set[str] = set()  # that have been declared by now
    parts = []
    for k, piece in enumerate(pieces):
        member = values + ("->" if k < len(pieces) - 1 else ".")
        found = set().union(*(s.words for s in piece))
        place = {name: f"{member}{union_of[name]}{name}" for name in found & handed.keys()}
        inside = set().union(*(s.words for s in piece if any("for (" in line.text for line in s.lines))) & own
        elsewhere = {name: at for name, at in place.items() if name not in inside}
        here: set[str] = set()  # variables of this part by now
        moved: list[Line] = []
        for j, s in enumerate(piece):
            wanted = (s.words & inside & known) - here
            for name in sorted(wanted, key=order.__getitem__):
                moved.append(Line(1, f"{_fixed(types[name])}{name} = {place[name]};"))
            mine = s.declares.keys() & inside
            here |= wanted | mine
            moved += _moved(s, elsewhere, known)
            known |= mine
            made = [name for name in mine if name not in changed]
            made += [
                name for name in s.words & inside & changed.keys() if home[name] == k and changed[name][-1][1] == j
            ]
            moved += [Line(1, f"{place[name]} = {name};") for name in sorted(made, key=order.__getitem__)]
        if any(member in line.text for line in moved):
            found.add(values)
        if moved or k == len(pieces) - 1:
            parts.append(Part(moved, found, "return" in found))
    return Parts(values, fields, unions, parts)


def _changed(pieces: list[list[_Statement]], handed: Collection[str]) -> dict[str, list[tuple[int, int]]]:
    """Which of the names that are handed on change after their declaration, in which statements of which pieces."""
    found: dict[str, list[tuple[int, int]]] = {}
    known: set[str] = set()  # before its declaration a name is an inner variable's
    for k, piece in enumerate(pieces):
        for j, s in enumerate(piece):
            known |= s.declares.keys()
            for name in _changes(s).intersection(handed, known):
                found.setdefault(name, []).append((k, j))
    return found


def _changes(s: _Statement) -> set[str]:
    """What a statement changes, but for what it declares, or may change by its address."""
    first, *rest = s.lines
    text = "\n".join(line.text for line in (rest if len(s.declares) == 1 else s.lines))
    found = {name for match in _CHANGED.finditer(text) for name in match.groups() if name}
    return found if len(s.declares) != 1 else found.union(_CHANGED_BY_ADDRESS.findall(first.text))


def _fixed(kind: str) -> str:
    """How a variable of a type begins that does not change."""
    return kind if "*" in kind else f"const {kind} "


def _numbered(letter: str, words: set[str]) -> bool:
    return any(word[len(letter) :].isdigit() for word in words if word.startswith(letter))


def _shared(statements: list[_Statement], handed: dict[str, str]) -> list[list[str]]:
    """The names that are handed on by the memory that they share: a name has that of one whose last use comes before
    its declaration.
    Numbers of one type, or pointers.
    """
    last: dict[str, int] = {}
    for k, s in enumerate(statements):
        last.update((name, k) for name in s.words if name in handed)
    slots: list[list[str]] = []
    free: dict[str, list[list[str]]] = {}
    used: dict[int, list[list[str]]] = {}
    kind = {name: "*" if "*" in of else of for name, of in handed.items()}
    for k, s in enumerate(statements):
        for name in s.declares:
            if name in handed:
                left = free.get(kind[name])
                slot = left.pop() if left else []
                if not slot:
                    slots.append(slot)
                slot.append(name)
                used.setdefault(last[name], []).append(slot)
        for slot in used.pop(k, []):
            free.setdefault(kind[slot[-1]], []).append(slot)
    return slots


def _statements(lines: list[Line]) -> Iterator[_Statement]:
    """The statements at the top of a body, each with all of its lines."""
    start = depth = 0
    for k, line in enumerate(lines):
        depth += line.text.endswith("{") - line.text.startswith("}")
        if depth == 0 and line.text.endswith((";", "}")):
            taken = lines[start : k + 1]
            words = set(WORD.findall(line.text if k == start else "\n".join(t.text for t in taken)))
            yield _Statement(taken, words, _declared(taken))
            start = k + 1
    assert start == len(lines), lines[start:]


def _declared(lines: list[Line]) -> dict[str, str]:
    text = lines[0].text
    whole = " ".join(line.text.strip() for line in lines) if text.endswith(",") else text
    several = _SEVERAL.fullmatch(whole)
    if several:
        return dict.fromkeys(several[2].split(", "), several[1])
    one = _DECLARED.match(text)
    if one is None:
        return {}
    const, kind, star, name, array = one.groups()
    return {name: "" if array else f"{const if star and const else ''}{kind}{' *' if star else ''}"}


def _cuts(statements: list[_Statement]) -> list[int]:
    """Where the pieces begin: long enough, and no array has its declaration before a cut and a use behind it."""
    last: dict[str, int] = {}
    for k, s in enumerate(statements):
        last.update(dict.fromkeys(s.words, k))
    cuts, length, open_until = [0], 0, 0
    for k, s in enumerate(statements):
        if length >= PART and k > open_until and not s.lines[0].text.startswith("return"):
            cuts.append(k)
            length = 0
        length += sum(len(line.text) for line in s.lines)
        open_until = max([open_until, *(last[name] for name, kind in s.declares.items() if not kind)])
    return cuts


def _moved(s: _Statement, place: dict[str, str], known: set[str]) -> Iterator[Line]:
    """A statement's lines with what is handed on in the struct."""
    mine = s.declares.keys() & place.keys()
    lines = s.lines
    if mine and len(s.declares) > 1:  # double a, b;
        kept = [name for name in s.declares if name not in mine]
        kind = next(iter(s.declares.values()))
        lines = [Line(lines[0].depth, f"{kind} {', '.join(kept)};", lines[0].span)] if kept else []
    elif mine:
        (name,) = mine
        _, equals, value = lines[0].text.partition(" = ")
        lines = [Line(lines[0].depth, f"{name} = {value}", lines[0].span), *lines[1:]] if equals else []
    known |= mine
    if known.isdisjoint(s.words):
        yield from lines
        return
    for line in lines:
        text = WORD.sub(lambda m: place[m[0]] if m[0] in known and m[0] in place else m[0], line.text)
        yield Line(line.depth, text, line.span)
