"""From forms to surface core: A-normal form in one pass.

``(let [y (sin (* 2 x))] (+ y 1))``  =>  ``t = (* 2 x); y = (sin t); r = (+ y 1)``: one flat block, every operand an
atom, evaluation order kept. Names are resolved to ``Var`` where a form of the model binds them and stay ``Global``
otherwise; what a ``Global`` means is found when the model is specialised.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from ..core import Arm, Atom, Bind, Block, Call, Case, Const, Global, If, Lambda, Rec, Var, While
from ..errors import HyadError, ReadError, Source, Span
from .advice import option_hint
from .einsum import HEAD, function_text, parted
from .forms import Form, prelude_texts, read_forms, unparse
from .primitives import PRIMITIVES
from .values import PARTS, Closure, language

#: The names that a model cannot bind: they are syntax.
SPECIAL = frozenset(
    "fn model defmodel defdata let letrec if cond when do and or deriv cut . while for case match -> ->>".split()
)
#: Hy's own forms that a model has not: they would run Python.
_HY = frozenset(
    "defn defclass defmacro setv setx import require lfor sfor gfor dfor try with raise return yield assert del"
    " global nonlocal quote quasiquote unquote lambda unless in is is-not await py pys async break continue dotimes"
    " doseq if-not when-not".split()
)
#: What changes an element in Hy, where a model has `set-at!`.
_CHANGES = ("setv", "+=", "-=", "*=", "/=")
_FORMS_HINT = "models are built from let, letrec, if, cond, while, case, match, fn, tuples, lists, arrays and loops"
#: What a model has where Hy has one of its own forms.
_HY_HINTS = (
    ("setv setx global nonlocal", "`(let [x e] ...)` names a value; `(ref e)` holds one that `(set! r e)` changes"),
    ("dotimes doseq", "`(for [i (range n)] ...)`; `(ifold (fn [s i] ...) z n)` goes on from a value"),
    ("lfor gfor", "`(build n (fn [i] ...))` makes an array, `(ifold (fn [s i] ...) z n)` goes on from a value"),
    ("lambda defn", "`(fn [x] ...)` is a function; `(let [f (fn [x] ...)] ...)` names it"),
    ("import require", "import at the top of the module"),
    ("return yield", "the last form of a body is its value"),
    ("break continue", "`(while c ...)` ends where its condition says; in a `for`, `(when c ...)` is around the rest"),
    ("unless if-not when-not", "`(if c a b)` has a value both ways"),
    ("assert", "`(if c a b)` gives another value; sizes are checked where they are declared: `#^ (Vec n) v`"),
)
#: Options that stand at the end of a call.
_LAST = frozenset("axis ddof keepdims".split())
#: NumPy's functions whose second argument is not the axis, and what is called with an array and an axis instead.
_OF_ANOTHER = {"norm": "reduced", "diff": "differences"}
#: Reductions along several axes that are those along one after another.
_ONE_BY_ONE = frozenset("sum prod mean max min amax amin any all logsumexp".split())
#: Reductions whose second argument may be the axis, as NumPy's.
_OVER_AXIS = frozenset(
    "sum prod mean var std max min amax amin any all median nansum ptp logsumexp argmax argmin count-nonzero"
    " count_nonzero".split()
)
#: What takes a sequence of arrays, which NumPy's users write in brackets.
_OF_PARTS = frozenset("concatenate hstack vstack column-stack column_stack".split())
#: What an array is called that is read once more, for its rank.
KEPT = "(kept)"
NEW = "(new)"  # a new axis among subscripts
_BINDING = frozenset({"let", "letrec", "loop", "for"})  # with names and values by turns in their brackets
#: Methods of NumPy's arrays that are functions here, of the same arguments.
_METHODS = frozenset(
    "all any argmax argmin argsort clip copy cumprod cumsum dot flatten max mean min prod ravel repeat reshape round"
    " squeeze std sum swapaxes take trace transpose var".split()
)
_TAKES = {
    "fn": "[x] ...",
    "model": "[x] ...",
    "let": "[x 1] ...",
    "letrec": "[f (fn [x] ...)] ...",
    "if": "c a b",
    "while": "c e ...",
    "for": "[i (range n)] e ...",
    "case": "e (inl x) a (inr y) b",
    "match": "e (Leaf w) a ...",
    "deriv": "e x",
    "cut": "v start stop",
    ".": "record name",
    "->": "x f g",
    "->>": "x f g",
}


def deep(function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)``, again on a large stack if the ordinary one does not hold a deeply nested form.

    Python's cyclic collector rests meanwhile: it would find nothing, and walk through all records of a long model
    again and again, for a third of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return function(*args)
    except RecursionError:
        pass
    finally:
        if collects:
            gc.enable()
    return on_large_stack(function, *args)


def on_large_stack(function: Callable[..., Any], *args: Any) -> Any:
    outcome: list[Any] = []
    context = copy_context()

    def run() -> None:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(1_000_000)
        try:
            outcome.append((True, context.run(function, *args)))
        except BaseException as error:  # handed to the caller's thread
            outcome.append((False, error))
        finally:
            sys.setrecursionlimit(limit)

    size = threading.stack_size(1 << 29)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
    done, value = outcome[0]
    if done:
        return value
    if isinstance(value, RecursionError):
        raise HyadError("this model is nested too deeply", hint="name inner parts with `let`") from None
    raise value


def read_model(text: str, source: Source | None = None) -> Lambda:
    """The one ``(model ..)``, ``(fn ..)`` or ``(defmodel ..)`` form of ``text``.

    Raises ``ReadError`` with the form underlined.
    """
    source = source or Source(text)
    return only_model(read_forms(text, source), text, source)


def only_model(forms: list[Form], text: str, source: Source) -> Lambda:
    """The one model among the forms of a text."""
    if not forms:
        raise ReadError("there is no model in this text", Span(source, 0, len(text)), "write `(fn [x] ...)`")
    if len(forms) > 1:
        raise ReadError(
            f"expected one model, found {len(forms)} forms", forms[1].span, "use hyad.load for a file of models"
        )
    return form_to_lambda(forms[0])


@cache
def prelude(name: str) -> Closure | None:
    """A function of ``prelude.hy`` by name; ``sum/2`` is what ``sum`` is of two arguments."""
    text = prelude_texts().get(name) or function_text(name)
    if text is None:
        return None
    f = read_model(text, Source(text, "prelude.hy"))
    return Closure(replace(f, name=name.partition("/")[0]), None, language)


def form_to_lambda(form: Form) -> Lambda:
    """Surface core of one function form."""
    if form.head() not in ("fn", "model", "defmodel"):
        raise ReadError(
            "this is not a model", form.span, "write `(fn [x] ...)`, `(model [x] ...)` or `(defmodel f [x] ...)`"
        )
    not_as_in_python(form)
    return deep(lambda: _Reader().function(form))


def not_as_in_python(form: Form) -> None:
    """Raise the mistake of ``v[0]``, which Hy reads as two forms, `v` and an array of 0. What binds names may have no
    space before its bracket: ``(defmodel f[x] ...)``, ``(let [y[1 2]] ...)``."""
    todo = [(form, False)]
    while todo:
        x, bindings = todo.pop()
        if not x.is_list:
            continue
        head = x.head() if x.kind == "(" else None
        todo += [(part, head in _BINDING and k == 1) for k, part in enumerate(x.value)]
        first = next((k for k, part in enumerate(x.value) if part.kind == "["), 0) - 1 if head == "defmodel" else 0
        for k, (a, b) in enumerate(zip(x.value, x.value[1:])):
            binds = k % 2 == 0 if bindings else x.kind == "(" and k == first
            if a.kind == "sym" and b.kind == "[" and not binds and a.span and b.span and a.span.end == b.span.start:
                both = Span(a.span.source, a.span.start, b.span.end)
                raise ReadError(f"`{a.value}` and an array without a space between", both, f"`(get {a.value} i)`")


class _Reader:
    """One pass over a form. ``names`` holds the innermost binding of each name; ``binds`` is the open block."""

    def __init__(self) -> None:
        self.names: dict[str, Atom | Size] = {}
        self.binds: list[Bind] = []

    # -------------------------------------------------------------------------------- functions, blocks

    def function(self, form: Form, name: str | None = None) -> Lambda:
        items = form.value[1:]
        doc = None
        fast = bool(items) and items[0].kind == "key" and items[0].value == "fast-math"
        if fast:
            items = items[1:]
        if form.head() == "defmodel":
            if not items or items[0].kind != "sym":
                raise ReadError("a defmodel starts with its name", form.span, "`(defmodel f [x] ...)`")
            name = self.binder(items[0])
            items = items[1:]
        if not items or items[0].kind != "[":
            start = f"({form.head()} {name}" if form.head() == "defmodel" else f"({form.head()}"
            raise ReadError("the parameters of a function stand in brackets", form.span, f"`{start} [x y] ...)`")
        parameters, body = items[0], items[1:]
        if len(body) > 1 and body[0].kind == "str":
            doc, body = body[0].value, body[1:]
        if not body:
            raise ReadError("this function has no body", form.span, "give the expression that it returns")
        params: list[Var] = []
        annotations: list[Form | None] = []
        patterns: list[tuple[Form, Var]] = []
        for p in parameters.value:
            annotation = None
            if p.kind == "#^":
                annotation, p = p.value
            if p.kind in ("#(", "["):
                var = Var("p", None, p.span)
                patterns.append((p, var))
            else:
                var = Var(self.binder(p), None, p.span, given=True)
                if any(var.name == q.name and q.given for q in params):
                    raise ReadError(f"two parameters are called `{var.name}`", p.span, "rename one of them")
            params.append(var)
            annotations.append(annotation)
        taken = {v.name for v in params if v.given}
        for pattern, _ in patterns:
            self.distinct(pattern, taken)
        bound = [(v.name, v) for v in params if v.given]
        block = self.block(body, [*declared_sizes(params, annotations), *bound], patterns)
        return Lambda(tuple(params), block, tuple(annotations), name, form.span, doc, fast)

    def distinct(self, pattern: Form, taken: set[str]) -> None:
        """No name stands twice in a parameter list; ``_`` may, for what is not used."""
        for p in pattern.value:
            if p.kind in ("#(", "["):
                self.distinct(p, taken)
            elif p.kind == "sym" and p.value in taken and p.value != "_":
                raise ReadError(f"two parameters are called `{p.value}`", p.span, "rename one of them")
            else:
                taken.add(p.value if p.kind == "sym" else "")

    def binder(self, form: Form) -> str:
        """The name that a form binds."""
        if form.kind != "sym":
            hint = "names are symbols, such as `x` or `step-size`; parameters have no default values"
            if form.kind == "num":
                hint += ", and a `let` has names and values by turns: `(let [x 1  y 2] ...)`"
            raise ReadError("a name is expected here", form.span, hint)
        if form.value in SPECIAL:
            raise ReadError(
                f"`{form.value}` is reserved", form.span, "it is a form of the language: choose another name"
            )
        if form.value.startswith(("&", "#")) or form.value in ("/", "*"):
            raise ReadError(
                f"`{form.value}` in a parameter list", form.span, "models take a fixed number of positional arguments"
            )
        return form.value

    def block(self, body: list[Form], bound: list[tuple[str, Atom]], patterns=()) -> Block:
        """A region: its own bindings, in which ``bound`` names are visible."""
        outer, self.binds = self.binds, []
        undo = self.bind_names(bound)
        for pattern, var in patterns:
            undo += self.destructure(pattern, var)
        result = self.sequence(body)
        self.unbind(undo)
        block, self.binds = Block(tuple(self.binds), (result,), last(body)), outer
        return block

    def bind_names(self, bound: list[tuple[str, Atom]]) -> list[tuple[str, Atom | None]]:
        undo = []
        for name, atom in bound:
            undo.append((name, self.names.get(name)))
            self.names[name] = atom
        return undo

    def unbind(self, undo: list[tuple[str, Atom | None]]) -> None:
        for name, atom in reversed(undo):
            if atom is None:
                del self.names[name]
            else:
                self.names[name] = atom

    def destructure(self, pattern: Form, value: Atom) -> list[tuple[str, Atom | None]]:
        undo = []
        for i, p in enumerate(pattern.value):
            if p.kind in ("#(", "["):
                part = self.emit(Call(Global("get"), (value, Const(i))), p.span)
                undo += self.destructure(p, part)
            else:
                part = self.emit(Call(Global("get"), (value, Const(i))), p.span, self.binder(p))
                undo += self.bind_names([(p.value, part)])
        return undo

    def emit(self, op: Any, span: Span | None, name: str | None = None) -> Var:
        var = Var(name or "t", None, span, given=name is not None)
        self.binds.append(Bind((var,), op, span))
        return var

    # ------------------------------------------------------------------------------------- expressions

    def sequence(self, body: list[Form], name: str | None = None) -> Atom:
        if not body:
            return Const(None)
        for form in body[:-1]:
            self.expression(form)
        return self.expression(body[-1], name)

    def expression(self, form: Form, name: str | None = None) -> Atom:
        """The atom that a form's value is in; ``name`` is what a ``let`` calls it."""
        kind = form.kind
        if kind == "sym":
            return self.symbol(form)
        if kind == "num":
            if type(form.value) is int and not -(2**63) <= form.value < 2**63:
                raise ReadError("this integer does not fit into 64 bits", form.span, "write a real: `1e20`")
            return Const(form.value)
        if kind == "(":
            if not form.value:
                raise ReadError("an empty call", form.span, "`(f x)` calls f; nothing is written `None`")
            head = form.head() or method_of(form.value[0])
            if head is not None and head not in self.names:
                if head[0] == "." and len(head) > 1:
                    return self.method(head[1:], form, name)
                owner, _, method = head.rpartition(".")
                if method in _METHODS and owner.partition(".")[0] in self.names:  # (v.sum :axis 0) is (.sum v :axis 0)
                    owned = [form.value[0], Form("sym", owner, form.value[0].span), *form.value[1:]]
                    return self.method(method, replace(form, value=owned), name)
                if head == "loop" and form.value[1:2] and form.value[1].kind == "[":
                    return self.loop(form, name)
                if head == "get" and any(f.kind == "str" for f in form.value[2:]):
                    return self.member(form, name)
                if head == "get" and any(f.kind == "#(" or self.is_range(f) or is_newaxis(f) for f in form.value[2:]):
                    return self.parts(form, name)
                if head in ("set-at!", "update") and any(f.kind == "#(" or self.is_range(f) for f in form.value[2:-1]):
                    return self.expression(self.put(form), name)
                if head.rpartition(".")[2] == "einsum" and form.value[1:2] and form.value[1].kind == "str":
                    return self.einsum(form, name)
                special = _FORMS.get(head)
                if special is not None:
                    return special(self, form, name)
                if head in _CHANGES and len(form.value) == 3 and form.value[1].head() == "get":
                    raise self.element(form, head)
                if head in _HY:
                    hint = next((hint for names, hint in _HY_HINTS if head in names.split()), _FORMS_HINT)
                    raise ReadError(f"`{head}` is not a form of models", form.value[0].span, hint)
                if head in ("defmodel", "defdata"):
                    raise ReadError(
                        f"a {head} stands by itself, not inside a model",
                        form.value[0].span,
                        "name a function with let: `(let [f (fn [x] ...)] ...)`",
                    )
            return self.call(form, name)
        if kind == "[":
            return self.call_of("array", form.value, form, name)
        if kind == "#(":
            return self.call_of("tuple", form.value, form, name)
        if kind == "#^":
            raise ReadError("an annotation stands only before a parameter", form.span, "`(fn [#^ Real x] ...)`")
        what, hint = _KINDS[kind]
        raise ReadError(f"a model has no {what}", form.span, hint)

    def element(self, form: Form, head: str) -> HyadError:
        """What says how an element is changed: ``(+= (get v i) x)`` is ``(set-at! v i (+ (get v i) x))``."""
        place, value = form.value[1:]
        if head != "setv":
            value = Form("(", [Form("sym", head[:-1]), place, value])
        told = unparse(Form("(", [Form("sym", "set-at!"), *place.value[1:], value]))
        return ReadError(f"`{head}` is not a form of models", form.value[0].span, f"`{told}` changes an element")

    def symbol(self, form: Form) -> Atom:
        text = form.value
        atom = self.names.get(text)
        if type(atom) is Size:
            shape = self.emit(Call(Global("shape"), (atom.array,), (form.span,)), form.span)
            return self.emit(Call(Global("get"), (shape, Const(atom.axis)), (form.span,) * 2), form.span)
        if atom is not None:
            return atom
        if text in ("None", "nil"):
            return Const(None)
        if text in _FORMS or text in ("defmodel", "defdata"):
            takes = _TAKES.get(text, "...")
            raise ReadError(f"`{text}` is a form of the language, not a value", form.span, f"write `({text} {takes})`")
        if "." in text and not text.startswith(".") and not text.endswith(".") and "/" not in text:
            owner, *fields = text.split(".")
            if owner in self.names and type(self.names[owner]) is not Size:
                value = self.names[owner]
                for field in fields:
                    value = self.emit(Call(Global("."), (value, Const(field))), form.span)
                return value
        return Global(text, form.span)

    def call(self, form: Form, name: str | None) -> Atom:
        form = without_ddof(with_axis_named(form) if self.elsewhere(form) else form)
        if called(form) == "@" and len(form.value) > 5:  # more than four factors
            form = replace(form, value=[form.value[0], replace(form, value=form.value[:-1]), form.value[-1]])
        axes = several_axes(form)
        if axes:
            return self.call(axes, name)
        options, _ = options_of(form)
        if "keepdims" in options:
            return self.kept(form, name)
        how = _OF_ANOTHER.get(called(form) or "") if list(options) == ["axis"] and len(form.value) == 4 else None
        if how is not None and "." in form.value[0].value:
            function, array, _, axis = form.value
            return self.call_of(how, [*[function] * (how == "reduced"), array, axis], form, name)
        fn = form.value[0]
        sized = fn.kind == "sym" and type(self.names.get(fn.value)) is Size
        fn = Global(fn.value, fn.span) if sized else self.expression(fn)
        args: list[Atom] = []
        spans: list[Span | None] = []
        last: list[tuple[Atom, Span]] = []
        rest = form.value[1:]
        i = 0
        while i < len(rest):
            a = rest[i]
            if a.kind == "key":
                if a.value == "axis" and i + 2 == len(rest):  # an axis is the last argument of what takes one
                    if isinstance(fn, Global) and fn.name in ("max", "min"):  # of all elements, or of two numbers
                        fn = Global(f"a{fn.name}", fn.span)
                    i += 1
                    continue
                if a.value not in _OPTIONS:
                    raise self.unknown_option(form, a)
                if i + 1 >= len(rest):
                    raise ReadError(f"`:{a.value}` lacks its value", a.span, _OPTIONS[a.value])
                value = rest[i + 1]
                if a.value == "checkpoint":
                    if last:
                        raise ReadError("a second `:checkpoint`", a.span, "a loop has one")
                    last = [(Const(("checkpoint",)), a.span), (self.expression(value), value.span)]
                else:
                    args.append(Const(("wrt", _wrt(value))))
                    spans.append(value.span)
                i += 2
                continue
            if a.kind == "str":
                hint = option_hint(form.value[0].value, None) if self.elsewhere(form) else None
                raise ReadError("a model computes with numbers, not strings", a.span, hint or _STRING_HINT)
            if a.head() in ("for", "while") and a.head() not in self.names and self.elsewhere(form):
                if called(form) in PRIMITIVES or prelude(called(form)) is not None:  # type: ignore[arg-type]
                    raise ReadError(f"a `{a.head()}` has no value", a.span, _VALUES_HINT)
            if not i and a.kind == "[" and len(a.value) > 1 and called(form) in _OF_PARTS and self.elsewhere(form):
                head = Global(f"{PARTS}{form.value[0].value}", form.value[0].span)
                items = tuple(self.expression(x) for x in a.value)
                args.append(self.emit(Call(head, items, tuple(x.span for x in a.value)), a.span))
            else:
                args.append(self.expression(a))
            spans.append(a.span)
            i += 1
        args += [x for x, _ in last]
        spans += [span for _, span in last]
        return self.emit(Call(fn, tuple(args), tuple(spans)), form.span, name)

    def elsewhere(self, form: Form) -> bool:
        """Whether a call is of a function by a name that the model does not bind itself."""
        head = form.value[0]
        return head.kind == "sym" and head.value.partition(".")[0] not in self.names

    def unknown_option(self, form: Form, option: Form) -> ReadError:
        """The mistake of an option that a call does not take."""
        hint = option_hint(form.value[0].value, option.value) if self.elsewhere(form) else None
        hint = hint or f"other arguments are given by position; there are {_OPTIONS_HINT}"
        return ReadError(f"unknown option `:{option.value}`", option.span, hint)

    def kept(self, form: Form, name: str | None) -> Atom:
        """``(sum m :axis k :keepdims True)``: what is summed has an axis of size 1 where it had axis k."""
        options, plain = options_of(form)
        flag = options["keepdims"]
        if flag.kind != "num" or type(flag.value) is not bool:
            raise ReadError("`:keepdims` is True or False", flag.span, "`(sum m :axis 1 :keepdims True)`")
        all_of_it = Form("sym", "None", form.span)
        if "axis" not in options:
            options, form = (
                {**options, "axis": all_of_it},
                replace(form, value=[*form.value, Form("key", "axis", flag.span)]),
            )
        key = next(f for f in form.value if f.kind == "key" and f.value == "axis")
        less = [x for f in form.value if f.kind == "key" and f.value == "ddof" for x in (f, options["ddof"])]
        inner = replace(form, value=[*plain, key, options["axis"], *less])
        if not flag.value:
            return self.call(inner, name)
        if options["axis"].value in ("None", "nil") and len(plain) > 1:
            return self.all_kept(inner, name)
        axes = sorted_axes(options["axis"])
        atom = self.expression(inner)
        for axis in [options["axis"]] if axes is None else axes if axes[0].value >= 0 else reversed(axes):
            atom = self.emit(Call(Global("expand-dims"), (atom, self.expression(axis))), form.span, name)
        return atom

    def all_kept(self, form: Form, name: str | None) -> Atom:
        """``(sum m :axis None :keepdims True)``: an array of the rank of ``m``, of size 1 along each axis."""
        array = self.expression(form.value[1])
        self.names[KEPT] = array
        head, _, *rest = form.value
        atom = self.expression(replace(form, value=[head, Form("sym", KEPT, form.value[1].span), *rest]))
        del self.names[KEPT]
        return self.emit(Call(Global("in-brackets"), (atom, array), (form.span, form.value[1].span)), form.span, name)

    def call_of(self, builtin: str, items: list[Form], form: Form, name: str | None) -> Atom:
        args = tuple(self.expression(x) for x in items)
        return self.emit(Call(Global(builtin), args, tuple(x.span for x in items)), form.span, name)

    # ------------------------------------------------------------------------------------------- forms

    def fn(self, form: Form, name: str | None) -> Atom:
        function = self.function(form)
        return self.emit(function, form.span, name or function.name)

    def let(self, form: Form, name: str | None) -> Atom:
        undo: list[tuple[str, Atom | None]] = []
        while True:  # a let whose value is a let: no recursion
            if len(form.value) < 2 or form.value[1].kind != "[":
                raise ReadError("let takes its bindings in brackets", form.span, "`(let [x 1  y 2] (+ x y))`")
            bindings, body = form.value[1].value, form.value[2:]
            if len(bindings) % 2:
                raise ReadError(
                    "let needs a value for each name", bindings[-1].span, "names and values alternate: `[x 1  y 2]`"
                )
            if not body:
                raise ReadError("this let has no body", form.span, "give the expression that it returns")
            for target, value in zip(bindings[::2], bindings[1::2]):
                if target.kind == "#^":
                    target = target.value[1]
                if target.kind in ("#(", "["):
                    undo += self.destructure(target, self.expression(value))
                else:
                    undo += self.bind_names([(self.binder(target), self.expression(value, target.value))])
            for inner in body[:-1]:
                self.expression(inner)
            form = body[-1]
            if form.head() != "let" or "let" in self.names:
                break
        result = self.expression(form, name)
        self.unbind(undo)
        return result

    def loop(self, form: Form, name: str | None) -> Atom:
        """``(loop [i 0  s x] ... (recur (+ i 1) (* 2 s)))``: a function ``recur`` of these names, called with these
        values."""
        bindings, body = form.value[1].value, form.value[2:]
        if len(bindings) % 2 or not body:
            what = "loop takes names and their first values in brackets, then a body"
            raise ReadError(what, form.span, "`(loop [i 0  s x] (if (< i 3) (recur (+ i 1) (* 2 s)) s))`")
        undo: list[tuple[str, Atom | None]] = []
        starts = []
        for target, value in zip(bindings[::2], bindings[1::2]):
            if target.kind in ("#(", "["):
                starts.append(self.expression(value))
                undo += self.destructure(target, starts[-1])
            else:
                starts.append(self.expression(value, target.value))
                undo += self.bind_names([(self.binder(target), starts[-1])])
        again = Var("recur", None, form.span, given=True)
        undo += self.bind_names([("recur", again)])
        parameters = Form("[", bindings[::2], form.value[1].span)
        step = self.named_function(Form("(", [form.value[0], parameters, *body], form.span), "recur")
        self.unbind(undo)
        self.binds.append(Bind((again,), Rec((step,)), form.span))
        spans = tuple(value.span for value in bindings[1::2])
        return self.emit(Call(again, tuple(starts), spans), form.span, name)

    def thread(self, form: Form, name: str | None) -> Atom:
        """``(-> x (f a) g)`` is ``(g (f x a))``; ``->>`` puts what came before last."""
        head, *steps = form.value
        if not steps:
            raise ReadError(f"{head.value} takes a value and what is done with it", form.span, "`(-> x sin (* 2))`")
        value = steps[0]
        for step in steps[1:]:
            items = step.value if step.kind == "(" else [step]
            at = 1 if head.value == "->" else len(items)
            value = Form("(", [*items[:at], value, *items[at:]], step.span)
        return self.expression(value, name)

    def member(self, form: Form, name: str | None) -> Atom:
        """``(get p "a")``: a field of a record, as ``(. p a)``."""
        value, *subscripts = form.value[1:]
        atom = self.expression(value)
        for k, s in enumerate(subscripts):
            label = name if k == len(subscripts) - 1 else None
            if s.kind == "str":
                atom = self.emit(Call(Global("."), (atom, Const(s.value))), form.span, label)
            else:
                atom = self.emit(
                    Call(Global("get"), (atom, self.expression(s)), (value.span, s.span)), form.span, label
                )
        return atom

    def method(self, method: str, form: Form, name: str | None) -> Atom:
        """``(.sum v)``, a method of NumPy's arrays, is a call of the function."""
        head = Form("sym", {"max": "amax", "min": "amin", "flatten": "ravel"}.get(method, method), form.value[0].span)
        if method not in _METHODS:
            hint = f"functions take arrays: `(sum v)`, `(transpose m)`; a field is read by `(. record {method})`"
            raise ReadError(f"a model has no method `.{method}`", form.value[0].span or form.span, hint)
        items = form.value[1:]
        if method in ("reshape", "transpose") and len(items) > 2:  # the sizes or axes one by one
            items = [items[0], Form("[", items[1:], form.span)]
        return self.call(replace(form, value=[head, *items]), name)

    def einsum(self, form: Form, name: str | None) -> Atom:
        """``(einsum "ij,jk->ik" a b)``: a call of the function for these axes (``einsum.py``)."""
        text, *operands = form.value[1:]
        option = next((x for x in operands if x.kind == "key"), None)
        if option is not None:
            raise self.unknown_option(form, option)
        try:
            axes, _ = parted(text.value)
        except ValueError as error:
            raise ReadError(str(error), text.span, '`(einsum "ij,jk->ik" a b)`') from None
        if len(axes) != len(operands):
            given = f"{len(operands)} {'is' if len(operands) == 1 else 'are'} given"
            what = f"these are the axes of {len(axes)} operand{'s' * (len(axes) != 1)}, and {given}"
            raise ReadError(what, text.span, '`(einsum "ij,jk->ik" a b)`')
        function = Global(f'{HEAD}{text.value}"', form.value[0].span)
        args = tuple(self.expression(x) for x in operands)
        return self.emit(Call(function, args, tuple(x.span for x in operands)), form.span, name)

    def letrec(self, form: Form, name: str | None) -> Atom:
        """The functions see each other and every other name bound here; other values are computed in their order."""
        if len(form.value) < 3 or form.value[1].kind != "[" or len(form.value[1].value) % 2:
            raise ReadError(
                "letrec takes names and functions in brackets, then a body",
                form.span,
                "`(letrec [f (fn [x] ...)] ...)`",
            )
        pairs = list(zip(form.value[1].value[::2], form.value[1].value[1::2]))
        named: dict[str, Var] = {}
        for target, _ in pairs:
            var = Var(self.binder(target), None, target.span, given=True)
            if named.setdefault(var.name, var) is not var:
                raise ReadError(f"two functions are called `{var.name}`", target.span, "rename one of them")
        variables = list(named.values())
        undo = self.bind_names(list(named.items()))
        functions = [(v, e) for v, (_, e) in zip(variables, pairs) if under_lets(e).head() in ("fn", "model")]
        lambdas = tuple(self.named_function(e, v.name) for v, e in functions)
        if lambdas:
            self.binds.append(Bind(tuple(v for v, _ in functions), Rec(lambdas), form.span))
        made = {v for v, _ in functions}
        for var, (_, value) in zip(variables, pairs):
            if var not in made:  # the functions may speak of it: it keeps its variable
                pair = self.emit(Call(Global("tuple"), (self.expression(value, var.name),), (value.span,)), value.span)
                self.binds.append(Bind((var,), Call(Global("get"), (pair, Const(0))), value.span))
        result = self.sequence(form.value[2:], name)
        self.unbind(undo)
        return result

    def named_function(self, form: Form, name: str) -> Lambda:
        """A function of a ``letrec``; what lets around it bind is computed once, before all functions."""
        undo: list[tuple[str, Atom | None]] = []
        while form.head() == "let":
            bindings = form.value[1].value
            for target, value in zip(bindings[::2], bindings[1::2]):
                undo += self.bind_names([(self.binder(target), self.expression(value, target.value))])
            form = form.value[2]
        function = self.function(form, name)
        self.unbind(undo)
        return function

    def while_(self, form: Form, name: str | None) -> Atom:
        if len(form.value) < 2:
            raise ReadError("while takes a condition and a body", form.span, "`(while (> (deref r) 1.0) (set! r ...))`")
        body, snapshots = form.value[2:], None
        if body and body[0].kind == "key" and body[0].value == "checkpoint":
            if len(body) < 2:
                raise ReadError("`:checkpoint` lacks its value", body[0].span, "`(while c :checkpoint 10 e ...)`")
            snapshots, body = self.expression(body[1]), body[2:]
        if form.value[1].value is True:
            raise ReadError("this `while` never ends", form.value[1].span, "it ends where its condition is False")
        cond = self.block([form.value[1]], [])
        self.emit(While(cond, self.block(body, []), snapshots=snapshots), form.span, name)
        return Const(None)

    def for_(self, form: Form, name: str | None) -> Atom:
        """``(for [i (range n)  x v] e ...)``: an ``ifold`` or ``fold`` without a value, each inside the one before."""
        clauses = form.value[1] if len(form.value) > 2 else None
        if clauses is None or clauses.kind != "[" or not clauses.value or len(clauses.value) % 2:
            what = "for takes names and what they go through in brackets, then a body"
            raise ReadError(what, form.span, f"`(for {_TAKES['for']})`")
        target, source, *inner = clauses.value
        if target.kind == "key":
            raise ReadError("a model's `for` has no such clause", target.span, "`(when c ...)` stands in its body")
        body = form.value[2:]
        if inner:
            body = [replace(form, value=[form.value[0], replace(clauses, value=inner), *body])]
        head = source.head() if source.head() not in self.names else None
        if head in ("range", "arange") and 2 <= len(source.value) <= 4:
            self.count(target, source, body, form.span)
            return Const(None)
        if source.kind == "num":
            raise ReadError("a `for` goes through no number", source.span, f"`(range {source})`")
        sources, targets = [source], [target]
        if head == "zip" and target.is_list and len(source.value) > 1:
            sources, targets = source.value[1:], self.one_for_each(target, source)
        if head == "enumerate" and target.is_list and len(target.value) == 2 and 2 <= len(source.value) <= 3:
            self.enumerate(target.value, source, body, form.span)
            return Const(None)
        given = [Var("x", None, t.span) for t in targets]
        step = self.step_of(list(zip(targets, given)), given, body, form.span)
        arrays = tuple(self.expression(s) for s in sources)
        spans = (form.span, form.span, *(s.span for s in sources))
        self.emit(Call(Global("fold"), (step, Const(None), *arrays), spans), form.span)
        return Const(None)

    def count(self, target: Form, source: Form, body: list[Form], span: Span | None) -> None:
        """``(for [i (range start stop step)] ...)``."""
        *start, stop = (self.expression(a) for a in source.value[1:3])
        k = Var("i", None, target.span)

        def call(f: str, *args: Any) -> Atom:
            return self.emit(Call(Global(f), args, (source.span,) * len(args)), source.span)

        by: Atom = Const(1)
        if len(source.value) == 4:
            written = source.value[3]
            by = self.expression(written)
            if type(by) is Const and (type(by.value) is not int or by.value == 0):
                said = "0" if by.value == 0 else "not an integer"
                raise ReadError(f"the step of a range is {said}", written.span, "`(range 0 n 2)`")
            if type(by) is not Const:
                by = self.emit(Call(Global("range-step"), (by,), (written.span,)), written.span)
        width = by.value if type(by) is Const else None

        def index() -> Atom:
            at: Atom = k if width == 1 else call("*", by, k)
            return call("+", *start, at) if start else at

        n = stop
        if start and width is None:
            n = call("max", Const(0), call("-", call("//", call("-", *start, stop), by)))
        elif start:
            n = call("-", stop, *start) if width > 0 else call("-", *start, stop)
            if abs(width) > 1:
                n = call("//", call("+", n, Const(abs(width) - 1)), Const(abs(width)))
            n = call("max", Const(0), n)
        step = self.step_of([(target, index)], [k], body, span)
        self.emit(Call(Global("ifold"), (step, Const(None), n), (span, span, source.span)), span)

    def enumerate(self, targets: list[Form], source: Form, body: list[Form], span: Span | None) -> None:
        """``(for [#(i x) (enumerate v start)] ...)``."""
        array, *start = source.value[1:]
        names, arrays = [targets[1]], [array]
        if array.head() == "zip" and "zip" not in self.names and targets[1].is_list:
            names, arrays = self.one_for_each(targets[1], array), array.value[1:]
        known = [(self.expression(a), a.span) for a in arrays]
        first, k = [self.expression(a) for a in start], Var("i", None, targets[0].span)

        def index() -> Atom:
            return self.emit(Call(Global("+"), (*first, k), (source.span,) * 2), source.span) if first else k

        def element(atom: Atom, place: Span | None) -> Callable[[], Atom]:
            return lambda: self.emit(Call(Global("get"), (atom, k), (place, source.span)), source.span)

        elements = [(name, element(*a)) for name, a in zip(names, known)]
        step = self.step_of([(targets[0], index), *elements], [k], body, span)
        counts = [self.emit(Call(Global("len"), (atom,), (place,)), source.span) for atom, place in known]
        for n in counts[1:]:
            self.emit(Call(Global("require-equal"), (counts[0], n), (source.span,) * 2), source.span)
        self.emit(Call(Global("ifold"), (step, Const(None), counts[0]), (span, span, array.span)), span)

    def one_for_each(self, target: Form, source: Form) -> list[Form]:
        """The names for the arrays of a ``zip``."""
        if len(target.value) != len(source.value) - 1:
            what = f"{len(target.value)} names for {len(source.value) - 1} arrays"
            raise ReadError(what, target.span, "one for each")
        return target.value

    def step_of(self, targets: list[tuple[Form, Any]], given: list[Var], body: list[Form], span: Span | None) -> Atom:
        """The function of a ``for`` over what is ``given``, which the targets name or of which they name a function."""
        outer, self.binds = self.binds, []
        undo = []
        for target, value in targets:
            value = value if type(value) is Var else value()
            undo += (
                self.destructure(target, value) if target.is_list else self.bind_names([(self.binder(target), value)])
            )
        self.sequence(body)
        self.unbind(undo)
        block, self.binds = Block(tuple(self.binds), (Const(None),)), outer
        params = (Var("acc", None, span), *given)
        return self.emit(Lambda(params, block, (None,) * len(params), None, span), span)

    def case(self, form: Form, name: str | None) -> Atom:
        """``case`` takes sums apart, ``match`` the constructors of a ``defdata``; both read alike."""
        head, items = form.value[0].value, form.value[1:]
        example = f"`({head} {_TAKES[head]})`"
        if len(items) < 3 or len(items) % 2 == 0:
            raise ReadError(f"{head} takes a value, then patterns and results in turn", form.span, example)
        value = self.expression(items[0])
        arms = []
        for pattern, result in zip(items[1::2], items[2::2]):
            if arms and arms[-1].constructor is None:
                raise ReadError("nothing comes to this pattern", pattern.span, "the one before takes all that is left")
            arm = self.arm(pattern, result, example)
            for other in arms:
                if arm.constructor is not None and other.constructor.name == arm.constructor.name:
                    raise ReadError(
                        f"a second pattern for `{arm.constructor}`: nothing comes to it",
                        pattern.span,
                        "each constructor has one",
                        [("this is the first", other.span)],
                    )
            arms.append(arm)
        return self.emit(Case(value, tuple(arms), items[0].span), form.span, name)

    def arm(self, pattern: Form, result: Form, example: str) -> Arm:
        if pattern.kind == "sym" and pattern.value == "_":
            return Arm(None, (), self.block([result], []), pattern.span)
        if pattern.kind == "sym" and pattern.value in ("nil", "None"):
            return Arm(Global("nil", pattern.span), (), self.block([result], []), pattern.span)
        head = pattern.head()
        if head is None or head in SPECIAL:
            raise ReadError("a pattern is a constructor with names for its fields, or `_`", pattern.span, example)
        fields: list[Var] = []
        patterns: list[tuple[Form, Var]] = []
        for p in pattern.value[1:]:
            if p.kind == "#(":
                fields.append(Var("p", None, p.span))
                patterns.append((p, fields[-1]))
            elif p.kind != "sym":
                raise ReadError(
                    "a field of a pattern is a name", p.span, "patterns do not nest: match the field in turn"
                )
            else:
                fields.append(Var(self.binder(p), None, p.span, given=True))
        self.distinct(Form("[", pattern.value[1:], pattern.span), set())
        block = self.block([result], [(v.name, v) for v in fields if v.given], patterns)
        return Arm(Global(head, pattern.value[0].span), tuple(fields), block, pattern.span)

    def if_(self, form: Form, name: str | None) -> Atom:
        if len(form.value) != 4:
            hint = "`(if (< x 0) (- x) x)` chooses a value"
            if len(form.value) == 3:
                hint += "; `(when c ...)` does something under a condition"
            raise ReadError("if takes a condition and two branches", form.span, hint)
        cond = self.expression(form.value[1])
        return self.branch(cond, [form.value[2]], [form.value[3]], form, name)

    def branch(self, cond: Atom, then: list[Form], orelse: list[Form], form: Form, name: str | None) -> Atom:
        op = If(cond, self.block(then, []), self.block(orelse, []), form.value[1].span)
        return self.emit(op, form.span, name)

    def cond(self, form: Form, name: str | None) -> Atom:
        clauses = form.value[1:]
        if not clauses or len(clauses) % 2:
            raise ReadError(
                "cond takes conditions and values in turn", form.span, "`(cond (< x 0) -1  (> x 0) 1  True 0)`"
            )
        last = clauses[-2]
        if any(test.kind == "[" and len(test.value) == 2 for test in clauses[::2]):
            hint = "conditions and values stand in turn, without brackets: `(cond (< x 0) -1  True 1)`"
            raise ReadError("a condition of this cond is an array", form.span, hint)
        if not (last.kind == "num" and last.value is True or last.kind == "key" and last.value == "else"):
            raise ReadError("this cond may leave no value", form.span, "end it with `True value`")
        value: Form = clauses[-1]
        for test, result in zip(clauses[-4::-2], clauses[-3::-2]):
            value = Form("(", [Form("sym", "if", form.span), test, result, value], form.span)
        return self.expression(value, name)

    def when(self, form: Form, name: str | None) -> Atom:
        if len(form.value) < 3:
            raise ReadError("when takes a condition and a body", form.span, "`(when (> x 0) x)`")
        return self.branch(self.expression(form.value[1]), form.value[2:], [], form, name)

    def do(self, form: Form, name: str | None) -> Atom:
        return self.sequence(form.value[1:], name)

    def both(self, form: Form, name: str | None) -> Atom:
        """``and``/``or`` evaluate their operands from the left and stop early, as in Hy."""
        items = form.value[1:]
        stop = form.value[0].value == "or"
        if not items:
            return Const(not stop)
        value = items[-1]
        for test in reversed(items[:-1]):
            end = Form("num", stop, test.span)
            arms = [end, value] if stop else [value, end]
            value = Form("(", [Form("sym", "if", form.span), test, *arms], form.span)
        return self.expression(value, name)

    def deriv(self, form: Form, name: str | None) -> Atom:
        """dF~ Fig. 5: ``(deriv e x)`` is the pair of ``e`` and its derivative by the variable ``x`` it is free in."""
        if len(form.value) != 3 or form.value[2].kind != "sym":
            raise ReadError("deriv takes an expression and a variable", form.span, "`(deriv (* x x) x)`")
        variable = form.value[2]
        at = self.names.get(variable.value)
        if not isinstance(at, Var):
            raise ReadError(f"nothing here binds `{variable.value}`", variable.span, "differentiate by a variable")
        var = Var(variable.value, None, variable.span, given=True)
        body = self.block([form.value[1]], [(var.name, var)])
        inner = self.emit(Lambda((var,), body, (None,), None, form.span), form.span)
        return self.emit(Call(Global("value-and-deriv"), (inner, at), (form.span, variable.span)), form.span, name)

    def cut(self, form: Form, name: str | None) -> Atom:
        """``(cut v start stop step)``, Hy's form of Python's slices, is a call of ``slice`` with its bounds written
        out: ``None`` for an end, a negative literal counts from the end."""
        items = form.value[1:]
        if not 2 <= len(items) <= 4:
            raise ReadError("cut takes an array and bounds", form.span, "`(cut v stop)`, `(cut v start stop step)`")
        start, stop, *step = items[1:] if len(items) > 2 else (None, items[1])
        return self.part(self.expression(items[0]), items[0].span, [start, stop, *step], form.span, name)

    def part(
        self, array: Atom, place: Span | None, bounds: list[Form | None], around: Span | None, name: str | None = None
    ) -> Atom:
        """What lies between bounds: start, stop, and a step if there is one."""
        start, stop, *step = bounds
        back = bool(step) and step[0].kind == "num" and step[0].value < 0  # type: ignore[union-attr]

        def bound(f: Form | None, default: int | None) -> Atom:
            """An index: ``default`` where none is given, which None says is the length."""
            span = around if f is None else f.span
            if not_given(f):
                if default is not None:
                    return Const(default)
            elif f.kind != "num" or type(f.value) is not int or f.value >= 0:  # type: ignore[union-attr]
                return self.expression(f)  # type: ignore[arg-type]
            else:
                default = f.value  # type: ignore[union-attr]
            count = self.emit(Call(Global("len"), (array,), (place,)), span)
            return self.emit(Call(Global("+"), (count, Const(default)), (span, span)), span) if default else count

        first = bound(Form("num", -1, around), None) if back and not_given(start) else bound(start, 0)
        last = bound(stop, -1 if back else None)
        args = (array, first, last, *(self.expression(s) for s in step))  # type: ignore[arg-type]
        return self.emit(Call(Global("slice"), args, (place,) + (around,) * (len(args) - 1)), around, name)

    def is_range(self, form: Form) -> bool:
        """Whether a subscript is Python's ``slice``."""
        return form.head() == "slice" and "slice" not in self.names

    def parts(self, form: Form, name: str | None) -> Atom:
        """``(get m #((slice 0 2) j))``, or ``(get m (slice 0 2) j)``: NumPy's ``m[0:2, j]``, axis by axis. ``None`` is
        a new axis."""
        value, *written = form.value[1:]
        subscripts = [x for s in written for x in (s.value if s.kind == "#(" else [s])]
        if not subscripts:
            raise ReadError("get takes an array and subscripts", form.span, "`(get m i j)`")
        array = self.expression(value)
        known: list[Any] = []  # a number's atom and its place, a range's bounds, or NEW
        for s in subscripts:
            if is_newaxis(s):
                known.append(NEW)
                continue
            if not self.is_range(s):
                known.append((self.expression(s), s.span))
                continue
            bounds = s.value[1:]
            if not 1 <= len(bounds) <= 3:
                raise ReadError("slice takes one to three bounds here", s.span, "`(get v (slice start stop))`")
            known.append([None, *bounds] if len(bounds) == 1 else bounds)
        count = len(known)
        while known and type(known[-1]) is list and all(map(not_given, known[-1])):
            known.pop()  # all of an axis
        if len(known) == count or any(type(s) is not tuple for s in known):
            return self.along(array, value.span, known, form.span, name)
        part = self.along(array, value.span, known, form.span, None)  # the array, or a row: a slice is a copy of it
        return self.emit(Call(Global("copy"), (part,), (form.span,)), form.span, name)

    def along(self, array: Atom, place: Span | None, known: list[Any], span: Span | None, name: str | None) -> Atom:
        """What ``parts`` takes of an array: its rows first, then what it takes of each."""
        at = next((k for k, s in enumerate(known) if type(s) is not tuple), len(known))
        if at:
            atoms, places = zip(*known[:at])
            last = None if at < len(known) else name
            part = self.emit(Call(Global("get"), (array, *atoms), (place, *places)), span, last)
            if at == len(known):
                return part
            rest = [(self.one_index(*s), s[1]) if type(s) is tuple else s for s in known[at:]]
            if all(type(a) is Const for a in atoms):
                return self.along(part, place, rest, span, name)
            function = self.of_each(rest, span)  # of one part, or of each where indices are arrays
            return self.emit(
                Call(Global("of-parts"), (function, part, array, Const(at)), (span, span, place)), span, name
            )
        if not known:
            return array
        first, rest = known[0], known[1:]
        if first is NEW:
            part = self.along(array, place, rest, span, None)
            return self.emit(Call(Global("array"), (part,), (span,)), span, name)
        if not all(map(not_given, first)):
            array = self.part(array, place, first, span, None if rest else name)
        if not rest:
            return array
        return self.emit(Call(Global("map"), (self.of_each(rest, span), array), (span, place)), span, name)

    def of_each(self, known: list[Any], span: Span | None) -> Atom:
        """The function that takes this of a row."""
        row = Var("row", None, span)
        outer, self.binds = self.binds, []
        inner = self.along(row, span, known, span, None)
        block, self.binds = Block(tuple(self.binds), (inner,)), outer
        return self.emit(Lambda((row,), block, (None,), None, span), span)

    def one_index(self, atom: Atom, place: Span | None) -> Atom:
        """An index behind a slice that has an index before it."""
        return atom if type(atom) is Const else self.emit(Call(Global("one-index"), (atom,), (place,)), place)

    def put(self, form: Form) -> Form:
        """``(set-at! v (slice 1 3) x)``, NumPy's ``v[1:3] = x``, and ``(update v (slice 1 3) x)`` row by row: ``x`` is
        what stands there then, or a row or number of it."""
        head, array, *written, x = form.value
        subscripts = [s for w in written for s in (w.value if w.kind == "#(" else [w])]
        at = next((k for k, s in enumerate(subscripts) if self.is_range(s)), None)
        if at is None:
            return Form("(", [head, array, *subscripts, x], form.span)
        taken = symbols_in(form)

        def fresh(name: str) -> Form:
            while name in taken or name in self.names:
                name += "_"
            taken.add(name)
            return Form("sym", name, form.span)

        def call(function: str, *args: Form) -> Form:
            return Form("(", [Form("sym", function, form.span), *args], form.span)

        def number(value: int) -> Form:
            return Form("num", value, form.span)

        bounds = subscripts[at].value[1:]
        if not 1 <= len(bounds) <= 3:
            raise ReadError("slice takes one to three bounds here", subscripts[at].span, "`(slice start stop)`")
        start, _, *steps = [None, *bounds] if len(bounds) == 1 else bounds
        step = steps[0] if steps and not not_given(steps[0]) else number(1)
        part, first, by, rows, i = map(fresh, ("part", "first", "by", "rows", "i"))
        count = call("len", array if at == 0 else call("get", array, *subscripts[:at]))
        if not_given(start):
            back = step.kind == "num" and step.value < 0
            start = call("-", count, number(1)) if back else number(0)
        elif start.kind == "num" and start.value < 0:  # type: ignore[union-attr]
            start = call("+", count, start)  # type: ignore[arg-type]
        lets = [part, call("get", array, *subscripts), first, start, by, step, rows, call("put-there", x, part)]
        place = call("+", first, call("*", by, i))
        old = fresh("old") if head.value == "update" else array
        row = Form("(", [head, old, *subscripts[:at], place, *subscripts[at + 1 :], call("get", rows, i)], form.span)
        if head.value == "update":
            body = call("ifold", call("fn", Form("[", [old, i], form.span), row), array, call("len", part))
        else:
            body = call("for", Form("[", [i, call("range", call("len", part))], form.span), row)
        return call("let", Form("[", lets, form.span), body)

    def field(self, form: Form, name: str | None) -> Atom:
        if len(form.value) < 3 or any(f.kind != "sym" for f in form.value[2:]):
            raise ReadError("a field is read by name", form.span, "`(. record name)`")
        value = self.expression(form.value[1])
        for i, f in enumerate(form.value[2:]):
            last = i == len(form.value) - 3
            value = self.emit(Call(Global("."), (value, Const(f.value))), form.span, name if last else None)
        return value


def symbols_in(form: Form) -> set[Any]:
    inner = form.value if isinstance(form.value, list) else []
    return {form.value} if form.kind == "sym" else {s for f in inner for s in symbols_in(f)}


def not_given(bound: Form | None) -> bool:
    """Whether a bound of a slice is left out."""
    return bound is None or bound.kind == "sym" and bound.value in ("None", "nil")


def under_lets(form: Form) -> Form:
    """What a form is inside of the lets of plain names around it."""
    while form.head() == "let" and len(form.value) == 3 and form.value[1].kind == "[":
        bindings = form.value[1].value
        if len(bindings) % 2 or any(target.kind != "sym" for target in bindings[::2]):
            break
        form = form.value[2]
    return form


@dataclass(frozen=True, slots=True)
class Size:
    """What a size's name stands for: ``n`` in ``(fn [#^ (Mat 3 n) m] n)`` is ``(get (shape m) 1)``."""

    array: Var
    axis: int


def declared_sizes(params: list[Var], annotations: list[Form | None]) -> list[tuple[str, Size]]:
    """The names of sizes in annotations, each with the first place where it stands."""
    found: dict[str, Size] = {}
    for var, annotation in zip(params, annotations):
        if annotation is not None and annotation.head() in ("Vec", "Mat", "Arr"):
            dims = annotation.value[1:]
            if dims and annotation.head() == "Arr" and dims[0].value in ("Real", "Int", "Bool"):
                dims = dims[1:]
            for axis, d in enumerate(dims):
                if d.kind == "sym" and d.value not in ("None", "_"):
                    found.setdefault(d.value, Size(var, axis))
    return list(found.items())


def several_axes(form: Form) -> Form | None:
    """``(sum m :axis #(0 1))`` is ``(sum (sum m :axis 1) :axis 0)``, and so with ``:keepdims``; else None."""
    if len(form.value) not in (4, 6) or form.value[2].kind != "key" or form.value[2].value != "axis":
        return None
    function, array, key, several, *kept = form.value
    axes = sorted_axes(several) if called(form) in _ONE_BY_ONE else None
    if axes is None:
        return None
    for axis in axes if axes[0].value < 0 else reversed(axes):  # those that are left keep their numbers
        array = Form("(", [function, array, key, axis, *kept], form.span)
    return array


def sorted_axes(several: Form) -> list[Form] | None:
    """The axes of ``#(0 1)`` in order; None for what is not several different ones, counted from the same end."""
    if several.kind not in ("#(", "[") or any(type(f.value) is not int for f in several.value):
        return None
    axes = sorted(several.value, key=lambda f: f.value)
    numbers = [f.value for f in axes]
    mixed = not numbers or len(set(numbers)) < len(numbers) or numbers[0] < 0 <= numbers[-1]
    return None if mixed else axes


def is_newaxis(form: Form) -> bool:
    """Whether a subscript is `None`, NumPy's new axis."""
    return form.kind == "sym" and form.value in ("None", "np.newaxis", "numpy.newaxis")


def called(form: Form) -> str | None:
    """What a call calls, without the module: ``sum`` of ``(np.sum v)``."""
    head = form.value[0]
    return head.value.rpartition(".")[2] if head.kind == "sym" else None


def options_of(form: Form) -> tuple[dict[str, Form], list[Form]]:
    """``:axis``, ``:ddof`` and ``:keepdims`` at the end of a call, in any order, and what stands before."""
    rest, found = list(form.value), {}
    while len(rest) >= 4 and rest[-2].kind == "key" and rest[-2].value in _LAST and rest[-2].value not in found:
        found[rest[-2].value] = rest[-1]
        rest = rest[:-2]
    return found, rest


def with_axis_named(form: Form) -> Form:
    """``(mean m k :keepdims True)`` is ``(mean m :axis k :keepdims True)``, and so with ``:ddof``."""
    options, plain = options_of(form)
    name = called(form)
    if "axis" in options or not ("keepdims" in options or "ddof" in options and name in ("var", "std")):
        return form
    count = 3 if name in _OVER_AXIS else 4 if name in ("quantile", "percentile") else 0
    if len(plain) != count or any(f.kind == "key" for f in plain):
        return form
    axis = plain[-1]
    return replace(form, value=[*plain[:-1], Form("key", "axis", axis.span), axis, *form.value[count:]])


def without_ddof(form: Form) -> Form:
    """``(var m :axis k :ddof 1)`` is ``(var m k 1)``, and without an axis ``(var m None 1)``."""
    options, plain = options_of(form)
    if "ddof" not in options or "keepdims" in options or called(form) not in ("var", "std"):
        return form
    axis = options.get("axis", Form("sym", "None", form.span))
    return replace(form, value=[*plain, axis, options["ddof"]])


def method_of(head: Form) -> str | None:
    """``.sum`` of ``(. None sum)``, as Hy has it when a macro made the form."""
    items = head.value if head.head() == "." else []
    return f".{items[2].value}" if len(items) == 3 and items[1].value == "None" and items[2].kind == "sym" else None


def last(body: list[Form]) -> Span | None:
    """Where the form stands that gives the value of a body: inside of what only binds names or runs others before."""
    while body and body[-1].head() in ("let", "letrec", "do") and len(body[-1].value) > 1:
        body = body[-1].value[1:]
    return body[-1].span if body else None


def _wrt(form: Form) -> Any:
    """What stands behind ``:wrt``: a position, a name, or a tuple of them."""
    if form.kind in ("#(", "["):
        return tuple(_wrt(x) for x in form.value)
    if form.kind in ("sym", "num", "str"):
        return form.value
    raise ReadError("wrt is a parameter's name or position, or a tuple of them", form.span, "`(grad f :wrt #(x 1))`")


#: The options of calls, and how they are written.
_OPTIONS = {"wrt": "`(grad f :wrt x)`", "checkpoint": "`(ifold f z n :checkpoint 10)`"}
_OPTIONS_HINT = ", ".join(_OPTIONS.values()) + " and, at the end, `(sum m :axis 0)`"

_STRING_HINT = 'a docstring stands before the body; `(get p "a")` reads a field of a record'

_VALUES_HINT = (
    "`(map (fn [x] ...) v)` has a value for each element, `(build n (fn [i] ...))` for each index; "
    "`(ifold (fn [s i] ...) z n)` goes on from a value"
)

_KINDS = {
    "str": ("strings", 'a docstring stands before the body: `(fn [x] "doc" ...)`'),
    "key": ("keywords", f"there are {_OPTIONS_HINT}"),
    "{": ("dictionaries", "a record is an argument; give results as a tuple: `#(a b)`"),
}

_FORMS = {
    "fn": _Reader.fn,
    "model": _Reader.fn,
    "let": _Reader.let,
    "if": _Reader.if_,
    "cond": _Reader.cond,
    "when": _Reader.when,
    "->": _Reader.thread,
    "->>": _Reader.thread,
    "do": _Reader.do,
    "and": _Reader.both,
    "or": _Reader.both,
    "deriv": _Reader.deriv,
    "cut": _Reader.cut,
    ".": _Reader.field,
    "letrec": _Reader.letrec,
    "while": _Reader.while_,
    "for": _Reader.for_,
    "case": _Reader.case,
    "match": _Reader.case,
}
