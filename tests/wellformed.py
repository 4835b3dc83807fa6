"""The checker: is a typed program well formed? Scopes, types, arities; raises ``AssertionError`` saying where not."""

from __future__ import annotations

from typing import Any

from hyad.core import BOOL, INT, REAL, Arr, Atom, Block, Check, Const, If, Loop, Prim, Program, Scalar, Var, leaves
from hyad.primitives import PRIMITIVES


def check(program: Program) -> None:
    """Raise unless every variable is bound once, before its use and in scope, and every operation is well typed."""
    bound: set[Var] = set()
    visible: set[Var] = set()

    def bind(v: Var) -> None:
        assert v not in bound, f"{v} is bound twice"
        assert v.type is not None, f"{v} has no type"
        bound.add(v)
        visible.add(v)

    def use(a: Atom) -> Any:
        if isinstance(a, Var):
            assert a in visible, f"{a} is used out of its scope"
        else:
            assert isinstance(a, Const), f"{a} is no atom of typed core"
        return a.type

    def kind(t: Any) -> Any:
        """A type without its sizes: two arrays may have sizes known to be equal under other names."""
        return (t.elem, t.rank) if isinstance(t, Arr) else t

    def dims_of(t: Any) -> None:
        for d in t.dims if isinstance(t, Arr) else ():
            assert use(d) == INT, f"the size {d} is no integer"

    def same(a: Any, b: Any, what: str) -> None:
        assert kind(a) == kind(b), f"{what}: {a} and {b}"
        if isinstance(a, Arr):
            for x, y in zip(a.dims, b.dims):
                assert not (isinstance(x, Const) and isinstance(y, Const)) or x.value == y.value, f"{what}: {a}, {b}"

    def prim(op: Prim, v: Var) -> None:
        types = [use(a) for a in op.args]
        name = op.name
        row = PRIMITIVES.get(name)
        if row is not None:
            assert all(isinstance(t, Scalar) for t in types), f"{name} of {types}"
            typed = row.result(tuple(types))
            assert typed is not None and typed[1] == v.type, f"{name} of {types} is not {v.type}"
        elif name == "get":
            a, *subs = types
            assert isinstance(a, Arr) and subs and len(subs) <= a.rank and set(subs) == {INT}, f"get of {types}"
            same(a.item(len(subs)), v.type, "get")
        elif name == "array":
            assert types and v.type.dims[0].value == len(types)
            for t in types:
                same(v.type.item(), t, "array")
        elif name in ("update", "add-at"):
            a, *subs, x = types
            assert subs and set(subs) == {INT}
            same(a.item(len(subs)), x, name)
            same(a, v.type, name)
        elif name == "select":
            assert types[0] == BOOL and types[1] == types[2] == v.type, f"select of {types}"
        else:
            assert name in ("zeros", "undef"), f"no operation {name}"

    def results(block: Block, types: list[Any], what: str) -> None:
        assert len(block.results) == len(types), f"{what}: {len(block.results)} results for {len(types)}"
        for r, t in zip(block.results, types):
            same(use(r), t, what)

    def block(b: Block, types: list[Any] | None, what: str) -> None:
        inside: list[Var] = []
        for one in b.binds:
            op = one.op
            if isinstance(op, Prim):
                assert len(one.vars) == 1
                prim(op, one.vars[0])
            elif isinstance(op, Check):
                assert not one.vars and use(op.a) == INT and use(op.b) == INT
            elif isinstance(op, If):
                assert use(op.cond) == BOOL
                for inner in (op.then, op.orelse):
                    block(inner, [v.type for v in one.vars], "if")
            elif isinstance(op, Loop):
                assert use(op.count) == INT and len(op.inits) == len(op.accs)
                for acc, z in zip(op.accs, op.inits):
                    same(acc.type, use(z), "the start of an accumulator")
                    dims_of(acc.type)
                own = [op.index, *op.accs]
                for v in own:
                    bind(v)
                stacked = []
                for v in one.vars[len(op.accs) :]:
                    assert isinstance(v.type, Arr)
                    same(Arr(v.type.elem, v.type.dims[:1]), Arr(v.type.elem, (op.count,)), "a stacked array")
                    stacked.append(v.type.item())
                block(op.body, [*(a.type for a in op.accs), *stacked], "loop")
                visible.difference_update(own)
                for v, acc in zip(one.vars, op.accs):
                    same(v.type, acc.type, "a final accumulator")
            else:
                raise AssertionError(f"{type(op).__name__} in typed core")
            for v in one.vars:
                dims_of(v.type)
                bind(v)
                inside.append(v)
        if types is not None:
            results(b, types, what)
        else:
            for r in b.results:
                use(r)
        visible.difference_update(inside)

    for d in program.dims:
        assert d.type == INT
        bind(d)
    for p in program.params:
        dims_of(p.type)
        bind(p)
    assert sum(map(leaves, program.ins)) == len(program.params)
    assert leaves(program.out) == len(program.body.results)
    block(program.body, None, "program")
    assert all(t in (REAL, INT, BOOL) or isinstance(t, Arr) for t in (r.type for r in program.body.results))
