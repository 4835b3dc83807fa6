"""Layout: forms as Hy programmers write them.

``pformat`` takes a form, of hyad's own reader or of Hy's (``hy.models``), and gives text that reads back as an equal
form. ``let`` pairs stand below each other, bodies are indented by two, arguments line up, closers never stand alone.

How: the form becomes a tree of ``_Node``, each with the width of its one-line text; then one walk with an explicit
stack writes it out, breaking what does not fit. Every node is visited a bounded number of times and nothing recurses,
so 10,000 bindings and a depth of thousands are both fine.
"""

from __future__ import annotations

import re
from typing import Any

from .program.forms import Form, unparse

# The first n arguments stay on the head's line; what follows is a body, indented by two.
BODY_AFTER = {
    **dict.fromkeys(("do", "cond", "import", "require", "try"), 0),
    **dict.fromkeys(("fn", "model", "let", "letrec", "loop", "build", "when", "unless", "while", "for"), 1),
    **dict.fromkeys(("case", "match", "defdata", "with", "except"), 1),
    **dict.fromkeys(("defmodel", "defn", "defmacro", "defclass"), 2),
}
LET = frozenset(("let", "letrec", "loop"))  # the first argument holds name and value in turn
CLAUSES = frozenset(("cond", "case", "match"))  # the body holds test (or pattern) and value in turn
ASSIGN = frozenset(("setv", "setx"))  # the arguments hold name and value in turn
PREFIX = {"quote": "'", "quasiquote": "`", "unquote": "~", "unquote-splice": "~@", "unpack-iterable": "#* "}
PREFIX["unpack-mapping"] = "#** "
CLOSER = {"(": ")", "[": "]", "#(": ")", "{": "}", "#{": "}"}

LONG_HEAD = 14  # below a longer head, arguments are indented by two instead of lined up
WIDE = 1 << 30  # the width of what must not stand on one line
_DOTTED = re.compile(r"[A-Za-z_][\w?*!-]*\Z", re.ASCII)


class _Node:
    """``text`` of an atom, or ``open`` ``items`` ``close``; ``flat`` is the width on one line (``WIDE``: never)."""

    __slots__ = ("text", "open", "items", "close", "flat")

    def __init__(self, text: str | None = None, opener: str = "", items: Any = (), close: str = "") -> None:
        self.text, self.open, self.items, self.close, self.flat = text, opener, items, close, 0

    def head(self) -> str | None:
        """The symbol that a call starts with."""
        return self.items[0].text if self.open == "(" and self.items else None


def pformat(form: Any, width: int = 79) -> str:
    """``form`` laid out in lines of at most ``width`` columns where its depth allows that, without a final newline.

    ``form`` is a ``Form`` or a Hy model; Python values inside a model print as ``hy.repr`` has them.
    """
    return _write(_measured(form), width)


# -------------------------------------------------------------------------------------- reading forms


def _node(form: Any) -> _Node:
    """The node of one form; its items are still forms."""
    if isinstance(form, Form):
        if form.kind == "#^":
            return _Node(None, "#^ ", form.value)
        if form.head() == "." and len(form.value) > 2 and all(x.kind == "sym" for x in form.value):
            return _dotted([x.value for x in form.value[1:]]) or _Node(None, "(", form.value, ")")
        if form.kind == "str":
            return _string(form.value)
        return _Node(None, form.kind, form.value, CLOSER[form.kind]) if form.is_list else _Node(unparse(form))
    import hy
    from hy.models import Dict, Expression, Keyword, List, Set, String, Symbol, Tuple

    if isinstance(form, (Symbol, Keyword)):
        return _Node(str(form))
    if isinstance(form, Expression):
        name = str(form[0]) if form and isinstance(form[0], Symbol) else None
        if name in PREFIX and len(form) == 2:
            # `~@x` would read as a splice of x
            space = " " if name == "unquote" and isinstance(form[1], Symbol) and form[1].startswith("@") else ""
            return _Node(None, PREFIX[name] + space, form[1:])
        if name == "annotate" and len(form) == 3:
            return _Node(None, "#^ ", (form[2], form[1]))
        dotted = name == "." and len(form) > 2 and all(isinstance(x, Symbol) for x in form[1:])
        return dotted and _dotted(list(map(str, form[1:]))) or _Node(None, "(", form, ")")
    for kind, model in (("[", (List, list)), ("#{", (Set, set)), ("{", Dict)):
        if isinstance(form, model):
            return _Node(None, kind, form, CLOSER[kind])
    if isinstance(form, Tuple) or type(form) is tuple:
        return _Node(None, "#(", form, ")")
    if isinstance(form, (String, str)) and getattr(form, "brackets", None) is None:
        return _string(form)
    text = hy.repr(form)
    return _Node(text[1:] if text.startswith("'") else text)


def _dotted(names: list[str]) -> _Node | None:
    """``(. x a b)`` as Hy reads ``x.a.b``, and ``(. None a)`` as ``.a``, a method."""
    if not all(map(_DOTTED.match, names)):
        return None
    return _Node(".".join(names if names[0] != "None" else ["", *names[1:]]))


def _string(text: str) -> _Node:
    """A string. The lines of prose, a docstring mostly, stay lines."""
    lines = text.split("\n") if "\n" in text.strip("\n") else [text]
    return _Node('"' + "\n".join(map(_escaped, lines)) + '"')


def _escaped(line: str) -> str:
    """One line of a string literal, its quotes left out. (The first `"` makes ``repr`` choose single quotes.)"""
    escaped = repr('"' + line)[2:-1].replace('"', '\\"')
    return re.sub(r"\\(.)", lambda found: "'" if found[1] == "'" else found[0], escaped)


def _measured(form: Any) -> _Node:
    """The tree of a form with every ``flat`` width filled in."""
    root = _node(form)
    nodes = [root]
    for node in nodes:  # grows while it is walked: parents stand before their children
        if node.text is None:
            node.items = [_node(item) for item in node.items]
            nodes.extend(node.items)
    for node in reversed(nodes):
        if node.text is not None:
            node.flat = WIDE if "\n" in node.text else len(node.text)
        else:
            inner = sum(item.flat for item in node.items) + max(0, len(node.items) - 1)
            inner += (len(node.items) - 1) // 2 if node.open == "{" and node.items else 0
            node.flat = WIDE if inner >= WIDE or _must_break(node) else len(node.open) + inner + len(node.close)
    return root


def _must_break(node: _Node) -> bool:
    """A ``let`` of several names never stands on one line: its names are to be found at a glance."""
    return node.head() in LET and len(node.items) > 2 and node.items[1].open == "[" and len(node.items[1].items) > 2


# ------------------------------------------------------------------------------------------- writing


def _write(root: _Node, width: int) -> str:
    """The one walk. The stack holds what is still to be written, topmost first: text, ``(column,)`` for a new line
    there, or ``(node, trailing)`` where ``trailing`` closers must fit behind the node."""
    out: list[str] = []
    column = 0
    deepest = max(8, width - 24)  # past it, lines stop moving right: a depth of thousands stays readable and linear
    stack: list[Any] = [(root, 0)]
    while stack:
        todo = stack.pop()
        if isinstance(todo, str):
            out.append(todo)
            cut = todo.rfind("\n")
            column = column + len(todo) if cut < 0 else len(todo) - cut - 1
        elif len(todo) == 1:
            column = min(todo[0], deepest)
            out.append("\n" + " " * column)
        else:
            node, trailing = todo
            if node.text is not None:
                stack.append(node.text)
            elif column + node.flat + trailing <= width:
                stack.extend(reversed(_on_one_line(node)))
            else:
                stack.extend(reversed(_broken(node, column, trailing, width)))
    return "".join(out)


def _on_one_line(node: _Node) -> list[Any]:
    """The pieces of a form that fits where it stands."""
    parts: list[str] = []
    stack: list[Any] = [node]
    while stack:
        top = stack.pop()
        if isinstance(top, str):
            parts.append(top)
        elif top.text is not None:
            parts.append(top.text)
        else:
            parts.append(top.open)
            stack.append(top.close)
            for i in range(len(top.items) - 1, -1, -1):
                stack.append(top.items[i])
                if i:
                    stack.append("  " if top.open == "{" and i % 2 == 0 else " ")
    return ["".join(parts)]


def _broken(node: _Node, column: int, trailing: int, width: int) -> list[Any]:
    """The pieces of a form that is too wide, which starts in ``column``."""
    items, inside = node.items, column + len(node.open)
    room = _Room(trailing + len(node.close), width)
    head = node.head()
    if not node.close:  # a prefix, or an annotation and what it annotates
        body = room.spread(items, inside, one_line=True)
    elif node.open == "{":
        body = room.paired(items, inside)
    elif head is None or len(items) == 1:
        body = room.filled(items, inside) if _plain(items) else room.spread(items, inside)
    elif head in BODY_AFTER:
        body = _special(head, items, inside, room)
    elif head in ASSIGN:
        body = [head + " ", *room.paired(items[1:], inside + len(head) + 1)]
    elif len(head) > LONG_HEAD or inside + len(head) + 1 + _narrowest(items[1:]) > width:
        body = [head, (inside + 1,), *room.grouped(items[1:], inside + 1)]
    else:
        lined_up = inside + len(head) + 1
        arguments = items[1:]
        body = [head + " ", *(room.filled if _plain(arguments) else room.grouped)(arguments, lined_up)]
    return [node.open, *body, node.close]


def _special(head: str, items: list[_Node], inside: int, room: _Room) -> list[Any]:
    """``let``, ``fn``, ``cond`` and their like: some arguments beside the head, the rest a body below it."""
    beside, body = items[1 : 1 + BODY_AFTER[head]], items[1 + BODY_AFTER[head] :]
    written: list[Any] = [head]
    at = inside + len(head)
    for i, item in enumerate(beside):
        last = not body and i == len(beside) - 1
        written.append(" ")
        if head in LET and item.open == "[" and len(item.items) > 1:
            closers = _Room((room.trailing if last else 0) + 1, room.width)
            written += ["[", *closers.paired(item.items, at + 2), "]"]
        else:
            written.append((item, room.trailing if last else 0))
        at += 1 + (item.flat if item.flat < WIDE else 0)
    if body:
        written.append((inside + 1,))
        written += (room.clauses if head in CLAUSES else room.grouped)(body, inside + 1)
    return written


class _Room:
    """Ways to write a row of items whose last is followed by ``trailing`` closers."""

    __slots__ = ("trailing", "width")

    def __init__(self, trailing: int, width: int) -> None:
        self.trailing, self.width = trailing, width

    def spread(self, items: list[_Node], at: int, one_line: bool = False) -> list[Any]:
        """One item a line, all in column ``at``; or one after the other, each broken as it must be."""
        written: list[Any] = []
        for i, item in enumerate(items):
            if i:
                written.append(" " if one_line else (at,))
            written.append((item, self.trailing if i == len(items) - 1 else 0))
        return written

    def grouped(self, items: list[_Node], at: int) -> list[Any]:
        """As ``spread``, but a keyword keeps its value beside it."""
        written: list[Any] = []
        after_keyword = False
        for i, item in enumerate(items):
            if i:
                written.append(" " if after_keyword else (at,))
            written.append((item, self.trailing if i == len(items) - 1 else 0))
            keyword = item.text is not None and item.text.startswith(":") and len(item.text) > 1
            after_keyword = keyword and not after_keyword
        return written

    def paired(self, items: list[_Node], at: int) -> list[Any]:
        """Two items a line: a name and its value."""
        written: list[Any] = []
        for i, item in enumerate(items):
            if i:
                written.append(" " if i % 2 else (at,))
            written.append((item, self.trailing if i == len(items) - 1 else 0))
        return written

    def clauses(self, items: list[_Node], at: int) -> list[Any]:
        """A test and its value on one line if they fit, else the value below its test, two columns in."""
        written: list[Any] = []
        for i, item in enumerate(items):
            trailing = self.trailing if i == len(items) - 1 else 0
            if i % 2:
                fits = at + items[i - 1].flat + 1 + item.flat + trailing <= self.width
                written.append(" " if fits else (at + 2,))
            elif i:
                written.append((at,))
            written.append((item, trailing))
        return written

    def filled(self, items: list[_Node], at: int) -> list[Any]:
        """Atoms, as many a line as fit."""
        written: list[Any] = []
        column = at
        for i, item in enumerate(items):
            trailing = self.trailing if i == len(items) - 1 else 0
            if i and column + 1 + item.flat + trailing > self.width:
                written.append((at,))
                column = at
            elif i:
                written.append(" ")
                column += 1
            written.append((item, trailing))
            column += item.flat
        return written


def _plain(items: list[_Node]) -> bool:
    """More than a few items, all of them short atoms: data, or a long sum."""
    return len(items) > 4 and all(item.text is not None and item.flat < 30 for item in items)


def _narrowest(items: list[_Node]) -> int:
    """The columns that the arguments of a call ask for at least: its widest atom."""
    return max((item.flat for item in items if item.text is not None and item.flat < WIDE), default=0)
