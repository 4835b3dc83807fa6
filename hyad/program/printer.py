"""From core back to forms: the text reads again (``parse(print(p)) = p``) and evaluates as Hy.

Variables that share a name are told apart by a number; a name that the program gives to anything global is avoided.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..core import (
    REAL,
    Apply,
    Arm,
    Arr,
    Atom,
    Block,
    Call,
    Case,
    Check,
    Const,
    Constructor,
    Data,
    Function,
    Global,
    If,
    Lambda,
    Leaf,
    Loop,
    Make,
    Node,
    Prim,
    Program,
    Rec,
    Scalar,
    Tree,
    Type,
    Var,
    While,
    all_binds,
    atoms_of,
    functions_of,
    leaves,
    type_atoms,
)
from .forms import Form
from .names import part_name
from .primitives import PRIMITIVES
from .reader import SPECIAL, deep
from .values import PARTS

_SYMBOL = re.compile(r"[^\W\d][\w?*!-]*\Z")


def sym(name: str) -> Form:
    return Form("sym", name)


def call(head: str, *args: Form) -> Form:
    return Form("(", [sym(head), *args])


def member(record: Form, key: str) -> Form:
    """A field of a record by name; ``(get r "a b")`` where the name is no symbol."""
    return call(".", record, sym(key)) if _SYMBOL.match(key) else call("get", record, Form("str", key))


def print_lambda(function: Lambda, head: str = "fn") -> Form:
    """Surface core as a form."""
    return deep(lambda: _Printer(used_names(function.body)).function(function, head))


def print_program(program: Program) -> Form:
    """A typed program as a ``fn`` form over the user's arguments; the sizes it uses are bound first, then the recursive
    functions that it calls. ``declarations`` are to stand before it."""
    names = used_names(program.body)
    for f in functions_of(program.body):
        names |= used_names(f.body)  # type: ignore[arg-type]
    return deep(lambda: _Printer(names, constructor_names(program)).program(program))


def variable_names(program: Program) -> dict[Var, str]:
    """The variables' names as the printed program has them."""
    printer = _Printer(used_names(program.body))
    deep(printer.program, program)
    return printer.names


def declarations(program: Program) -> list[Form]:
    """The ``defdata`` forms of the types that the text of a program needs and its user did not define: functions that
    are chosen at run time, records and adjoints of reverse mode."""
    names = constructor_names(program)
    forms = []
    for data in own_types(program):
        label = names[data.constructors[0]].partition("-")[0]
        rows = [call(names[c], *(sym(f"x{k}") for k in range(len(c.fields)))) for c in data.constructors]
        forms.append(call("defdata", sym(label), *rows))
    return forms


def own_types(program: Program) -> list[Data]:
    """The data types that a program's own transformations made."""
    found: dict[Data, None] = {}
    for block in (program.body, *(f.body for f in functions_of(program.body))):
        for bind in all_binds(block):  # type: ignore[arg-type]
            op = bind.op
            made = [op.constructor] if isinstance(op, Make) else []
            made += [arm.constructor for arm in op.arms] if isinstance(op, Case) else []
            for c in made:
                if c.make in ("function", "continuation", "record"):
                    found[c.data] = None
    return list(found)


def constructor_names(program: Program) -> dict[Constructor, str]:
    """A name of its own for every constructor that the user did not define."""
    names: dict[Constructor, str] = {}
    for k, data in enumerate(own_types(program)):
        base = "".join(part.capitalize() for part in data.name.split("-") if part.isalnum()) or "Data"
        for j, c in enumerate(data.constructors):
            names[c] = f"{base}{k}-{c.name if c.name.isalnum() else 'case'}{j}"
    return names


def used_names(block: Block) -> set[str]:
    """The global names that a block's text will hold: no variable may be called so."""
    names = set(SPECIAL)
    for bind in all_binds(block):
        op = bind.op
        if isinstance(op, Prim):
            row = PRIMITIVES.get(op.name)
            names.add((row.surface or op.name) if row else op.name)
        elif isinstance(op, Loop):
            names |= {"build", "ifold", "loop"}
        elif isinstance(op, Check):
            names.add(CHECKS[op.relation])
        names.update(a.name for a in atoms_of(op) if isinstance(a, Global))
    return names | {"len", "shape", "get", "_"}


#: How a check is written.
CHECKS = {"in": "require-index", "==": "require-equal", "<=": "require-at-most", "<": "require-below"}


class _Printer:
    def __init__(self, taken: Iterable[str], constructors: dict[Constructor, str] | None = None) -> None:
        self.taken = set(taken)
        self.constructors = constructors or {}
        self.functions: dict[Function, str] = {}
        self.names: dict[Var, str] = {}
        self.numbers: dict[str, int] = {}

    def name(self, var: Var) -> Form:
        """The symbol of a variable, chosen at its binder."""
        found = self.names.get(var)
        if found is None:
            base = var.name
            found = base
            while found in self.taken:
                self.numbers[base] = number = self.numbers.get(base, 0) + 1
                found = f"{base}{'-' if base[-1].isdigit() else ''}{number}"
            self.taken.add(found)
            self.names[var] = found
        return sym(found)

    def atom(self, a: Atom) -> Form:
        if isinstance(a, Var):
            return self.name(a)
        if isinstance(a, Global):
            return sym(a.name)
        if a.value is None:
            return sym("None")
        return Form("num", a.value)

    def atoms(self, args: Sequence[Atom]) -> list[Form]:
        return [self.atom(a) for a in args]

    # ------------------------------------------------------------------------------------- functions

    def function(self, f: Lambda, head: str = "fn") -> Form:
        params = []
        for p, note in zip(f.params, f.annotations or (None,) * len(f.params)):
            params.append(self.name(p) if note is None else Form("#^", [note, self.name(p)]))
        items = [sym(head)]
        if head == "defmodel":
            items.append(sym(f.name or "f"))
        items.append(Form("[", params))
        if f.doc and head != "fn":
            items.append(Form("str", f.doc))
        return Form("(", [*items, self.body(f.body)])

    def program(self, p: Program) -> Form:
        params: list[Form] = []
        first: list[Form] = []
        start = 0
        for tree in p.ins:
            end = start + leaves(tree)
            params.append(self.parameter(tree, p.params[start:end], first))
            start = end
        first += self.sizes(p)
        functions = functions_of(p.body)
        self.functions = {f: self.name(Var(f.name)).value for f in functions}
        results = iter(p.body.results)
        if not functions:
            return Form("(", [sym("fn"), Form("[", params), self.body(p.body, first, self.structure(p.out, results))])
        bindings = [x for f in functions for x in (sym(self.functions[f]), self.recursive(f))]
        inner = call("letrec", Form("[", bindings), self.body(p.body, (), self.structure(p.out, results)))
        body = call("let", Form("[", first), inner) if first else inner
        return Form("(", [sym("fn"), Form("[", params), body])

    def recursive(self, f: Function) -> Form:
        return Form("(", [sym("fn"), Form("[", [self.name(p) for p in f.params]), self.body(f.body)])  # type: ignore[arg-type]

    def parameter(self, tree: Tree, variables: Sequence[Var], first: list[Form]) -> Form:
        """One argument; a structured one has a name of its own and is taken apart in ``first``."""
        if isinstance(tree, Leaf):
            name = self.name(variables[0])
        else:
            below = 0
            inner: Tree = tree
            while not isinstance(inner, Leaf) and inner.items:
                inner, below = inner.items[0], below + 1
            label = variables[0].name.rsplit("-", below)[0] if variables else "p"
            name = self.name(Var(label))
            self.take_apart(tree, name, variables, first)
        note = tree_form(tree, variables)
        return name if note is None else Form("#^", [note, name])

    def take_apart(self, tree: Node, whole: Form, variables: Sequence[Var], first: list[Form]) -> None:
        """Bind the parts of a tuple (``#(a b) p``) or record (``a (. p a)``)."""
        names: list[Form] = []
        inner: list[tuple[Node, Form, Sequence[Var]]] = []
        start = 0
        for t, key in zip(tree.items, tree.keys or range(len(tree.items))):
            part = variables[start : start + leaves(t)]
            start += len(part)
            names.append(self.name(part[0] if isinstance(t, Leaf) else Var(part_name(whole.value, key))))
            if isinstance(t, Node):
                inner.append((t, names[-1], part))
        if tree.keys is not None:
            for name, key in zip(names, tree.keys):
                first += [name, member(whole, key)]
        elif names:
            first += [Form("#(", names), whole]
        for t, name, part in inner:
            self.take_apart(t, name, part, first)

    def sizes(self, p: Program) -> list[Form]:
        """Each size by name, read from the first array that has it and required of the others."""
        bindings: list[Form] = []
        known: set[Atom] = set()
        for v in p.params:
            for axis, d in enumerate(v.type.dims if isinstance(v.type, Arr) else ()):
                if isinstance(d, Var):
                    size = call("get", call("shape", self.name(v)), Form("num", axis))
                    size = call("len", self.name(v)) if axis == 0 else size
                    bindings += (
                        [sym("_"), call("require-equal", self.name(d), size)] if d in known else [self.name(d), size]
                    )
                    known.add(d)
        return bindings

    def structure(self, tree: Tree, results) -> Form:
        if isinstance(tree, Leaf):
            return self.atom(next(results))
        if not tree.items and tree.make is not None:
            return sym("None")
        return Form("#(", [self.structure(t, results) for t in tree.items])

    # ---------------------------------------------------------------------------------------- blocks

    def body(self, block: Block, first: Sequence[Form] = (), result: Form | None = None) -> Form:
        for k, bind in enumerate(block.binds):
            if isinstance(bind.op, Rec):  # the rest of the block stands inside
                before, after = Block(block.binds[:k], ()), Block(block.binds[k + 1 :], block.results)
                outer = self.body(before, first, sym("_"))
                functions = [f for v, e in zip(bind.vars, bind.op.functions) for f in (self.name(v), self.function(e))]
                inner = call("letrec", Form("[", functions), self.body(after, (), result))
                if outer.kind == "sym":
                    return inner
                return Form("(", [*outer.value[:-1], inner])
        bindings = list(first)
        for bind in block.binds:
            value = self.op(bind.op, bind.vars)
            if not bind.vars:
                target = sym("_")
            elif len(bind.vars) == 1:
                target = self.name(bind.vars[0])
            else:
                target = Form("#(", [self.name(v) for v in bind.vars])
            bindings += [target, value]
        if result is None:
            rs = block.results
            result = self.atom(rs[0]) if len(rs) == 1 else Form("#(", self.atoms(rs))
        return Form("(", [sym("let"), Form("[", bindings), result]) if bindings else result

    def op(self, op, vars: Sequence[Var]) -> Form:
        if isinstance(op, Call):
            return self.surface_call(op)
        if isinstance(op, Lambda):
            return self.function(op)
        if isinstance(op, Apply):
            return call(self.functions[op.function], *self.atoms(op.args))
        if isinstance(op, Make):
            return self.made(op.constructor, self.atoms(op.args))
        if isinstance(op, While) and vars and vars[0].type is not None:
            accs = Form("[", [self.name(a) for a in op.accs])
            test, step = (Form("(", [sym("fn"), accs, self.body(b)]) for b in (op.cond, op.body))
            return call("iterate", test, step, *self.atoms(op.inits))
        if isinstance(op, While):
            kept = [] if op.snapshots is None else [Form("key", "checkpoint"), self.atom(op.snapshots)]
            return call("while", self.body(op.cond), *kept, self.body(op.body))
        if isinstance(op, Case):
            arms = [f for arm in op.arms for f in (self.pattern(arm), self.body(arm.block))]
            return call("match", self.atom(op.value), *arms)
        if isinstance(op, If):
            return call("if", self.atom(op.cond), self.body(op.then), self.body(op.orelse))
        if isinstance(op, Loop):
            return self.loop(op)
        if isinstance(op, Check):
            return call(CHECKS[op.relation], self.atom(op.a), self.atom(op.b))
        row = PRIMITIVES.get(op.name)
        if op.name == "array":
            return Form("[", self.atoms(op.args))
        if op.name == "zeros":
            t = vars[0].type
            return call("zeros-of", *self.atoms(op.args)) if t.elem == REAL else self.anything(t)
        if op.name == "undef":
            t = vars[0].type
            return self.anything(t)
        return call((row.surface or op.name) if row else op.name, *self.atoms(op.args))

    def pattern(self, arm: Arm) -> Form:
        if arm.constructor is None:
            return sym("_")
        if isinstance(arm.constructor, Constructor):
            return self.made(arm.constructor, [self.name(v) for v in arm.fields], pattern=True)
        if arm.constructor.name == "nil":
            return sym("nil")
        return call(arm.constructor.name, *map(self.name, arm.fields))

    def made(self, c: Constructor, fields: list[Form], pattern: bool = False) -> Form:
        """A constructor's value, or the pattern that takes it apart."""
        if c in self.constructors:
            return call(self.constructors[c], *fields)
        if c.parts and not (pattern and any(map(has_nil, c.parts))):  # sizes of arrays are told by the arrays
            arrays = {d for f in c.fields for d in type_atoms(f.type)}
            rest = iter([x for f, x in zip(c.fields, fields) if f not in arrays])
            fields = [self.structure_of(t, rest, pattern) for t in c.parts]
        if c.make is None:
            return sym("nil")
        if c.make in (float, bool, "array"):
            return call({float: "number", bool: "truth"}.get(c.make, "array-of"), *fields) if pattern else fields[-1]
        if c.make is tuple and len(fields) == 2:
            return call("cons", *fields)
        return call(c.name, *fields)

    def anything(self, t: Type) -> Form:
        """A value of a type, zeros where it has numbers: of what is never read, and an array of zeros."""
        if isinstance(t, Arr) and t.elem != REAL:
            inner = Arr(t.elem, t.dims[1:]) if t.rank > 1 else t.elem
            item = Form("(", [sym("fn"), Form("[", [sym("_")]), self.anything(inner)])
            return call("build", self.atom(t.dims[0]), item)
        if isinstance(t, Arr):
            return call("zeros-of", *self.atoms(t.dims))
        if not isinstance(t, Data):
            return Form("num", ZEROS[t.name])
        flat = [c for c in t.constructors if not any(isinstance(f.type, Data) for f in c.fields)]
        c = flat[0] if flat else t.constructors[0]
        if c in self.constructors:
            return call("undef", sym(self.constructors[c]))
        return self.made(c, [sym("nil") if isinstance(f.type, Data) else self.anything(f.type) for f in c.fields])

    def structure_of(self, tree: Tree, rest: Iterator[Form], pattern: bool) -> Form:
        """A structure of forms that stand for its leaves."""
        if isinstance(tree, Leaf):
            return next(rest)
        if not tree.items and tree.make is not None:
            return sym("nil")
        parts = [self.structure_of(t, rest, pattern) for t in tree.items]
        pair = tree.make is tuple and len(parts) == 2 and not pattern
        return call("cons", *parts) if pair else Form("#(", parts)

    def loop(self, op: Loop) -> Form:
        stacked = len(op.body.results) - len(op.accs)
        index, count = self.name(op.index), self.atom(op.count)
        if not op.accs and stacked == 1:
            return call("build", count, Form("(", [sym("fn"), Form("[", [index]), self.body(op.body)]))
        accs = [self.name(a) for a in op.accs]
        if len(op.accs) == 1 and not stacked:
            f = Form("(", [sym("fn"), Form("[", [*accs, index]), self.body(op.body)])
            return call("ifold", f, self.atom(op.inits[0]), count)
        f = Form("(", [sym("fn"), Form("[", [index, *accs]), self.body(op.body)])
        return call("loop", count, f, *self.atoms(op.inits))

    def surface_call(self, op: Call) -> Form:
        if isinstance(op.fn, Global):
            if op.fn.name == "array" or op.fn.name.startswith(PARTS):
                return Form("[", self.atoms(op.args))
            if op.fn.name == "tuple":
                return Form("#(", self.atoms(op.args))
            if op.fn.name == ".":
                return member(self.atom(op.args[0]), op.args[1].value)
        args: list[Form] = []
        for a in op.args:
            if isinstance(a, Const) and isinstance(a.value, tuple):
                args += [Form("key", a.value[0]), *map(wrt_form, a.value[1:])]
            else:
                args.append(self.atom(a))
        return Form("(", [self.atom(op.fn), *args])


def has_nil(tree: Tree) -> bool:
    """Whether nil is a part of a structure."""
    return not isinstance(tree, Leaf) and (not tree.items or any(map(has_nil, tree.items)))


ZEROS = {"Real": 0.0, "Int": 0, "Bool": False}


def wrt_form(wrt) -> Form:
    if isinstance(wrt, tuple):
        return Form("#(", [wrt_form(w) for w in wrt])
    return sym(wrt) if isinstance(wrt, str) else Form("num", wrt)


def type_form(t: Type | None) -> Form | None:
    """The annotation of a parameter. A size that is a run-time number stays open: ``(Vec None)``, which evaluates."""
    if isinstance(t, Scalar):
        return sym(t.name)
    if isinstance(t, Arr):
        dims = [Form("num", d.value) if isinstance(d, Const) else sym("None") for d in t.dims]
        head = {1: "Vec", 2: "Mat"}.get(t.rank)
        return call(head, *dims) if head and t.elem == REAL else call("Arr", sym(t.elem.name), *dims)
    return None


def tree_form(tree: Tree, variables: Sequence[Var]) -> Form | None:
    """The annotation of an argument; None for records and nothing."""
    if isinstance(tree, Leaf):
        return type_form(variables[0].type)
    parts: list[Form] = []
    start = 0
    for t in tree.items:
        part = tree_form(t, variables[start : start + leaves(t)])
        if part is None:
            return None
        parts.append(part)
        start += leaves(t)
    return call("Tuple", *parts) if parts and tree.keys is None else None


# --------------------------------------------------------------------------------- equality of programs


def alpha_equal(a: Lambda | Program, b: Lambda | Program) -> bool:
    """Whether two functions are the same but for the identity of their variables (names of ``given`` ones count)."""
    pairs: dict[Var, Var] = {}

    def atom(x: Atom, y: Atom) -> bool:
        if isinstance(x, Var):
            return isinstance(y, Var) and pairs.get(x) is y
        if isinstance(x, Global):
            return isinstance(y, Global) and x.name == y.name
        if not isinstance(y, Const) or type(x.value) is not type(y.value):
            return False
        return repr(x.value) == repr(y.value)

    def bind_vars(xs: Sequence[Var], ys: Sequence[Var]) -> bool:
        if len(xs) != len(ys):
            return False
        for x, y in zip(xs, ys):
            pairs[x] = y
            if (x.type is None) != (y.type is None) or isinstance(x.type, Scalar) and x.type != y.type:
                return False
        return True

    def block(x: Block, y: Block) -> bool:
        if len(x.binds) != len(y.binds) or len(x.results) != len(y.results):
            return False
        return all(map(one, x.binds, y.binds)) and all(map(atom, x.results, y.results))

    def one(x, y) -> bool:
        p, q = x.op, y.op
        if type(p) is not type(q):
            return False
        if isinstance(p, Prim) and p.name != q.name or isinstance(p, Check) and p.relation != q.relation:
            return False
        left, right = atoms_of(p), atoms_of(q)
        if len(left) != len(right) or not all(map(atom, left, right)):
            return False
        if isinstance(p, If):
            if not (block(p.then, q.then) and block(p.orelse, q.orelse)):
                return False
        elif isinstance(p, Loop):
            if not (bind_vars([p.index, *p.accs], [q.index, *q.accs]) and block(p.body, q.body)):
                return False
        elif isinstance(p, Lambda) and not function(p, q):
            return False
        elif isinstance(p, Rec):
            return bind_vars(x.vars, y.vars) and all(map(function, p.functions, q.functions))
        elif isinstance(p, While):
            return block(p.cond, q.cond) and block(p.body, q.body) and bind_vars(x.vars, y.vars)
        elif isinstance(p, Case):
            if len(p.arms) != len(q.arms) or not all(map(arm, p.arms, q.arms)):
                return False
        return bind_vars(x.vars, y.vars)

    def function(x: Lambda, y: Lambda) -> bool:
        return bind_vars(x.params, y.params) and block(x.body, y.body)

    def arm(x: Arm, y: Arm) -> bool:
        return bind_vars(x.fields, y.fields) and block(x.block, y.block)

    if isinstance(a, Program):
        dims = bind_vars(a.dims, b.dims)
        if not dims or sum(map(leaves, a.ins)) != sum(map(leaves, b.ins)):
            return False
    return bind_vars(a.params, b.params) and block(a.body, b.body)
