"""Data between Python and C: the part of a stub that turns values of data types into cells, and cells into values.

``reader(fn)`` prints ``hyad_read``, which makes cells of a Python value, ``writer(fn)`` ``hyad_write``, which makes a
Python value of cells. Both work off a list of their own, so that depth is no matter, and both look at each cell once.
The classes of ``hyad.program.data`` keep their fields in slots; where those lie in an instance is found out on one when
the module is bound (``probe``), and from then on they are read and written there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from hyad.core import Leaf, Node, nodes
from hyad.errors import CompileError, NotCompiled
from hyad.program.data import Data
from hyad.program.values import nothing

from .cfunction import CConstructor, CData, CField, CFunction

# Cells of arguments. The newest chunk, which is the largest, is kept for the next call.
POOL = r"""
extern void *malloc(size_t), free(void *);
typedef struct hyad_chunk { struct hyad_chunk *before; size_t size; } hyad_chunk;
typedef struct { hyad_chunk *newest; char *next, *end; } hyad_pool;
static hyad_chunk *hyad_chunk_kept;

static void *hyad_pool_more(hyad_pool *pool, size_t size)
{
  size_t room = pool->newest ? 2*pool->newest->size : 1 << 13;
  hyad_chunk *c = hyad_chunk_kept;
  while (room < size) room *= 2;
  if (c && c->size >= size) hyad_chunk_kept = NULL;
  else {
    c = room < (size_t)-1/4 ? malloc(sizeof *c + room) : NULL;
    if (!c) return PyErr_NoMemory(), NULL;
    c->size = room;
  }
  c->before = pool->newest, pool->newest = c;
  pool->next = (char *)(c + 1) + size, pool->end = (char *)(c + 1) + c->size;
  return c + 1;
}

static inline void *hyad_cell(hyad_pool *pool, size_t size)
{
  char *p = pool->next;
  size = (size + 7)/8*8;
  if (size > (size_t)(pool->end - p)) return hyad_pool_more(pool, size);
  pool->next = p + size;
  return p;
}

static void hyad_pool_end(hyad_pool *pool)
{
  hyad_chunk *c = pool->newest;
  if (!c) return;
  for (hyad_chunk *b = c->before, *before; b; b = before) before = b->before, free(b);
  if (hyad_chunk_kept || c->size > 1 << 28) free(c);
  else hyad_chunk_kept = c;
}
"""

# The arena of calls, kept between them; and how much of the stack recursion may take.
ARENA = r"""
#include <pthread.h>
static hyad_arena hyad_kept;

static size_t hyad_stack(void)
{
  static pthread_t thread;
  static char *lowest;
  char here;
  if (!lowest || !pthread_equal(thread, pthread_self())) {
    thread = pthread_self();
    lowest = &here - (1 << 18);
#if defined(__APPLE__)
    lowest = (char *)pthread_get_stackaddr_np(thread) - pthread_get_stacksize_np(thread);
#elif defined(__linux__)
    extern int pthread_getattr_np(pthread_t, pthread_attr_t *);
    pthread_attr_t a;
    void *low;
    size_t size;
    if (!pthread_getattr_np(thread, &a)) {
      if (!pthread_attr_getstack(&a, &low, &size)) lowest = low;
      pthread_attr_destroy(&a);
    }
#endif
  }
  size_t left = &here > lowest ? (size_t)(&here - lowest) : 0;
  return left > 1 << 17 ? left - (1 << 16) : left/2 + 1; /* the rest is for signals and libm */
}

static void hyad_begin(hyad_arena *arena)
{
  static const hyad_arena none;
  *arena = hyad_kept;
  hyad_kept = none;
  arena->stack = hyad_stack();
}

static void hyad_end(hyad_arena *arena)
{
  size_t total = 0;
  while (arena->blocks) {
    hyad_block *b = arena->blocks;
    arena->blocks = b->before, b->before = arena->spare, arena->spare = b;
  }
  for (hyad_block *b = arena->spare; b; b = b->before) total += b->size;
  arena->next = arena->end = NULL;
  if (hyad_kept.spare || total > 1 << 28) hyad_free(arena);
  else if (arena->spare) hyad_kept = *arena;
}
"""

READ_HEAD = r"""
extern void *realloc(void *, size_t);
extern char *PyBytes_AsString(PyObject *);
#define HYAD_AT(o, offset) (*(PyObject **)((char *)(o) + (offset)))
typedef struct { const void **to; PyObject *o; int type; } hyad_todo;
"""

WRITE_HEAD = r"""
extern int PyGC_Disable(void), PyGC_Enable(void);
extern PyObject *PyType_GenericAlloc(void *, Py_ssize_t), *PyExc_TypeError;
extern void PyErr_SetString(PyObject *, const char *);
typedef struct { const void *cell; PyObject *owner; Py_ssize_t at; int type; } hyad_made;
"""

PROBE = r"""
/* probe(size, instance, field ...): where in the instance each field lies. */
static PyObject *hyad_probe(PyObject *self, PyObject *args)
{
  const Py_ssize_t n = PyTuple_Size(args) - 2, size = PyLong_AsLongLong(PyTuple_GetItem(args, 0));
  PyObject *o = PyTuple_GetItem(args, 1), *result = PyTuple_New(n);
  for (Py_ssize_t i = 0; result && i < n; i++) {
    Py_ssize_t at = %(basicsize)d;
    while (at + (Py_ssize_t)sizeof o <= size && *(PyObject **)((char *)o + at) != PyTuple_GetItem(args, i + 2))
      at += sizeof o;
    PyTuple_SetItem(result, i, PyLong_FromLongLong(at + (Py_ssize_t)sizeof o <= size ? at : -1));
  }
  return result;
}
"""

# An array in a cell is NumPy's own memory where that fits, else a copy of what ``fit_array`` makes of it.
READ_ARRAY = r"""
static const void *hyad_field_array(PyObject *self, int helper, hyad_pool *pool, PyObject *o, int kind, int rank,
                                    long long *shape)
{
  const int need = HYAD_CONTIGUOUS | HYAD_ALIGNED;
  const hyad_ndarray *v = (void *)o;
  hyad_array a = {0};
  Py_ssize_t got;
  const void *data = NULL;
  PyObject *made = NULL;
  if (kind != HYAD_BOOL && HYAD_TYPE(o) == hyad_array_type && v->dtype == hyad_dtype[kind] && v->ndim == rank
      && (v->flags & need) == need) {
    for (int i = 0; i < rank; i++) shape[i] = v->shape[i];
    return v->data ? v->data : (void *)o;
  }
  made = PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, helper), o, hyad_dtype[kind], NULL);
  if (!made || hyad_view(made, &a, kind, rank, 0, &got)) goto done;
  const Py_ssize_t n = hyad_count(a.shape, rank);
  void *to = hyad_cell(pool, n*(kind == HYAD_BOOL ? sizeof(int) : (size_t)hyad_itemsize[kind]) + 8);
  if (!to) goto done;
  for (int i = 0; i < rank; i++) shape[i] = a.shape[i];
  if (kind == HYAD_BOOL) for (Py_ssize_t i = 0; i < n; i++) ((int *)to)[i] = ((char *)a.data)[i] != 0;
  else for (Py_ssize_t i = 0, m = n*hyad_itemsize[kind]; i < m; i++) ((char *)to)[i] = ((char *)a.data)[i];
  data = to;
done:
  hyad_give_back(&a, 1);
  Py_DecRef(made);
  return data;
}
"""

WRITE_ARRAY = r"""
static PyObject *hyad_array_of(const void *data, int kind, int rank, Py_ssize_t *shape)
{
  hyad_array a = {0};
  PyObject *o = hyad_new(&a, kind, rank, shape);
  if (!o) return NULL;
  const Py_ssize_t n = hyad_count(shape, rank);
  if (kind == HYAD_BOOL) for (Py_ssize_t i = 0; i < n; i++) ((char *)a.data)[i] = ((const int *)data)[i] != 0;
  else for (Py_ssize_t i = 0, m = n*hyad_itemsize[kind]; i < m; i++) ((char *)a.data)[i] = ((const char *)data)[i];
  hyad_give_back(&a, 1);
  return o;
}
"""


def fit_array(value: Any, dtype: Any) -> Any:
    """An array in a field as C reads it; None where it is none, or of other numbers."""
    import numpy as np

    a = np.asarray(value) if isinstance(value, np.ndarray) or hasattr(value, "__array__") else None
    if a is None or not np.can_cast(a.dtype, dtype, "same_kind") or (dtype.kind == "f" and a.dtype.kind == "b"):
        return None
    return np.ascontiguousarray(a, dtype)


def classes(types: Sequence[CData]) -> list[type]:
    """The classes of data, in the order in which a stub counts them."""
    found: dict[type, None] = {}
    for t in types:
        for c in t.constructors:
            if c.kind == "class":
                found[c.make] = None
            found.update(
                (n.make, None) for n in nodes(c.parts) if isinstance(n.make, type) and issubclass(n.make, Data)
            )
    return list(found)


def keys(types: Sequence[CData]) -> list[str]:
    """The keys of dicts in data."""
    every = [n for t in types for c in t.constructors for n in nodes(c.parts)]
    return list(dict.fromkeys(k for n in every if n.make is None for k in n.keys or ()))


def _plain(tree: Any) -> bool:
    """Whether a part is nothing but tuples, dicts and None."""
    return isinstance(tree, Leaf) or (tree.make is None or tree.make is nothing) and all(map(_plain, tree.items))


_FUNCTION = '"a function inside data cannot be given to Python: call it in the model"'


def has_arrays(types: Sequence[CData]) -> bool:
    return any(f.dims for t in types for c in t.constructors for f in c.fields)


def visible(c: CConstructor) -> list[CField]:
    """The fields that a Python value has: sizes are those of its arrays."""
    return [f for f in c.fields if not f.size]


def constants(types: Sequence[CData], module: Any) -> tuple[object, ...]:
    """What the stub finds in its state: ``fit_array``, then for each class itself and where its fields lie."""
    found: list[object] = [fit_array]
    for made in classes(types):
        names = made.__match_args__
        marks = [object() for _ in names]
        at = module.probe(made.__basicsize__, made(*marks), *marks)
        if -1 in at:
            raise CompileError(f"the fields of {made.__name__} are not slots", None, "make the class by `defdata`")
        found += [made, struct.pack(f"{len(at)}q", *at)]
    return (*found, *keys(types))


class Converter:
    """Prints both functions for the data types of a C function; ``first`` is where ``constants`` stand in the state."""

    def __init__(self, fn: CFunction, first: int):
        self.fn, self.first = fn, first
        self.number = {t.name: k for k, t in enumerate(fn.types)}
        self.classes, self.keys = classes(fn.types), keys(fn.types)
        self.temporary = 0
        self.refuse_functions()

    def refuse_functions(self) -> None:
        """A result that holds functions has no value in Python."""
        of = {t.name: t for t in self.fn.types}
        todo, seen = [r.elem for r in self.fn.results], set()
        while todo:
            name = todo.pop()
            if name in seen or name not in of:
                continue
            seen.add(name)
            for c in of[name].constructors:
                if c.kind == "inner" or any(n.make == "function" for n in nodes(c.parts)):
                    raise NotCompiled("a function inside data cannot be given to Python", None, "call it in the model")
                todo += [f.elem for f in c.fields]

    def prelude(self) -> str:
        arrays = READ_ARRAY + WRITE_ARRAY if has_arrays(self.fn.types) else ""
        return POOL + (ARENA if self.fn.arena else "") + READ_HEAD + WRITE_HEAD + arrays

    def state(self) -> list[str]:
        """The classes, and where their fields lie, as local variables."""
        out = []
        for k, _ in enumerate(self.classes):
            at = self.first + 1 + 2 * k
            out.append(f"void *const class{k} = PyTuple_GetItem(self, {at});")
            out.append(f"const long long *const at{k} = (void *)PyBytes_AsString(PyTuple_GetItem(self, {at + 1}));")
        return out

    def member(self, t: CData, c: CConstructor, f: CField) -> str:
        return t.member(c, "cell", f.name)

    # ------------------------------------------------------------------------------- from Python

    def reader(self) -> str:
        """0, or -1 where a value does not fit or, with an exception, there is no memory."""
        lines = [
            "static int hyad_read(PyObject *self, hyad_pool *pool, PyObject *o, int type, const void **to)",
            "{",
            *("  " + line for line in self.state()),
            "  hyad_todo *todo = NULL;",
            "  size_t waiting = 0, room = 0;",
            *(["  double number;"] if any(c.kind == "number" for t in self.fn.types for c in t.constructors) else []),
            "  int status = -1;",
            "  for (;;) {",
            "    if (room - waiting < 16) {",
            "      hyad_todo *more = realloc(todo, (room = 2*room + 64)*sizeof *todo);",
            "      if (!more) { PyErr_NoMemory(); goto done; }",
            "      todo = more;",
            "    }",
            "    switch (type) {",
        ]
        for t in self.fn.types:
            lines.append(f"    case {self.number[t.name]}:")
            for c in sorted(t.constructors, key=lambda c: c.kind in ("number", "array")):  # what is nothing else
                lines += ["      " + line for line in self.read_constructor(t, c)]
            lines.append("      goto done;")
        lines += [
            "    }",
            "  next:",
            "    if (!waiting) break;",
            "    waiting--, o = todo[waiting].o, to = todo[waiting].to, type = todo[waiting].type;",
            "  }",
            "  status = 0;",
            "done:",
            "  free(todo);",
            "  return status;",
            "}",
        ]
        return "\n" + "\n".join(line if line.endswith(":") else line for line in lines) + "\n"

    def read_constructor(self, t: CData, c: CConstructor) -> list[str]:
        fields = visible(c)
        if c.kind in ("inner", "whole") or any(not _plain(t) for t in c.parts):
            return []  # no argument has such parts: they are data themselves
        shape: list[str] = []
        if c.kind == "none":
            test, parts = "o == &_Py_NoneStruct", []
        elif c.kind == "tuple":
            n = len(c.parts or fields)
            test = f"HYAD_TYPE(o) == (void *)&PyTuple_Type && PyTuple_Size(o) == {n}"
            parts = [f"PyTuple_GetItem(o, {k})" for k in range(n)]
        elif c.kind == "truth":
            test, parts = "HYAD_TYPE(o) == (void *)&PyBool_Type || HYAD_TYPE(o) == (void *)hyad_npbool", ["o"]
        elif c.kind == "number":
            test, parts = "!hyad_real(o, &number)", ["o"]
        elif c.kind == "array":
            test, parts = "1", ["o"]
        else:
            k, n = self.classes.index(c.make), len(c.parts or fields)
            test, parts = f"HYAD_TYPE(o) == class{k}", [f"HYAD_AT(o, at{k}[{i}])" for i in range(n)]
        if c.parts:
            parts = [leaf for tree, part in zip(c.parts, parts) for leaf in self.read_part(tree, part, shape)]
        out = [f"if ({test}) {{", *("  " + line for line in shape)]
        if not c.fields:
            if c.null:
                return [*out, "  *to = NULL;", "  goto next;", "}"]
            tag = f"{{.tag = {t.tag(c)}}}" if t.tagged else "{0}"
            return [*out, f"  static const struct {t.cell} empty = {tag};", "  *to = &empty;", "  goto next;", "}"]
        size = f"sizeof(struct {t.cell})"
        if t.tagged and sum(1 for d in t.constructors if d.fields) > 1:
            size = f"offsetof(struct {t.cell}, as) + sizeof cell->as.{c.name}"
        out += [f"  struct {t.cell} *cell = hyad_cell(pool, {size});", "  if (!cell) goto done;"]
        if t.tagged:
            out.append(f"  cell->tag = {t.tag(c)};")
        out.append("  *to = cell;")
        data: list[tuple[str, str, int]] = []
        known: set[str] = set()
        for f, part in zip(fields, parts):
            place = self.member(t, c, f)
            if f.dims:
                out += ["  " + line for line in self.read_array(t, c, f, place, part, known)]
            elif f.elem in self.number:
                data.append((part, f"(const void **)&{place}", self.number[f.elem]))
            else:
                out += ["  " + line for line in self.read_scalar(f, place, part)]
        for k, (part, place, number) in enumerate(data):
            last = k == len(data) - 1
            out.append(f"  PyObject *const f{k} = {part};")
            if not last:
                out.append(f"  todo[waiting].o = f{k}, todo[waiting].to = {place}, todo[waiting++].type = {number};")
            else:
                out += [f"  o = f{k}, to = {place}, type = {number};", "  continue;"]
        return [*out, *([] if data else ["  goto next;"]), "}"]

    def read_part(self, tree: Any, part: str, out: list[str]) -> list[str]:
        """The leaves of a structured part; what is tested on the way goes to ``out``."""
        if isinstance(tree, Leaf):
            return [part]
        if tree.make is nothing:
            out.append(f"if ({part} != &_Py_NoneStruct) goto done;")
            return []
        name = f"q{self.temporary}"
        self.temporary += 1
        n = len(tree.items)
        out.append(f"PyObject *const {name} = {part};")
        kind = "Tuple" if tree.keys is None else "Dict"
        out.append(f"if (HYAD_TYPE({name}) != (void *)&Py{kind}_Type || Py{kind}_Size({name}) != {n}) goto done;")
        leaves: list[str] = []
        for k, t in enumerate(tree.items):
            item = f"PyTuple_GetItem({name}, {k})"
            if tree.keys is not None:
                item, key = f"{name}_{k}", f"PyTuple_GetItem(self, {self.key(tree.keys[k])})"
                out.append(f"PyObject *const {item} = PyDict_GetItemWithError({name}, {key});")
                out.append(f"if (!{item}) goto done;")
            leaves += self.read_part(t, item, out)
        return leaves

    def key(self, name: str) -> int:
        """Where a key of dicts stands in the state."""
        return self.first + 1 + 2 * len(self.classes) + self.keys.index(name)

    def read_scalar(self, f: CField, place: str, part: str) -> list[str]:
        if f.elem == "unit":
            return [f"{place} = 0;"]
        if f.elem == "real":
            return [
                f"{{ PyObject *const f = {part};",
                "  double x;",
                "  if (HYAD_TYPE(f) == (void *)&PyFloat_Type) x = PyFloat_AsDouble(f);",
                "  else if (hyad_real(f, &x)) goto done;",
                f"  {place} = x; }}",
            ]
        return [f"{{ PyObject *const f = {part}; if (hyad_{f.elem}(f, &{place})) goto done; }}"]

    def read_array(self, t: CData, c: CConstructor, f: CField, place: str, part: str, known: set[str]) -> list[str]:
        rank, kind = len(f.dims), f"HYAD_{f.elem.upper()}"
        out = [f"{{ long long shape[{rank}];"]
        call = f"hyad_field_array(self, {self.first}, pool, {part}, {kind}, {rank}, shape)"
        out.append(f"  if (!({place} = {call})) goto done;")
        for axis, d in enumerate(f.dims):
            if isinstance(d, str) and d not in known:
                known.add(d)
                out.append(f"  {t.member(c, 'cell', d)} = shape[{axis}];")
            else:
                want = str(d) if isinstance(d, int) else t.member(c, "cell", d)
                out.append(f"  if (shape[{axis}] != {want}) goto done;")
        return [*out, "}"]

    # --------------------------------------------------------------------------------- to Python

    def writer(self) -> str:
        """A new reference, or NULL with an exception. An object is made before its parts, which fill it later."""
        lines = [
            "static PyObject *hyad_write(PyObject *self, const void *from, int type)",
            "{",
            *("  " + line for line in self.state()),
            "  hyad_made *todo = NULL;",
            "  size_t waiting = 0, room = 0;",
            "  PyObject *root = NULL, *owner = NULL, *o;",
            "  Py_ssize_t at = 0;",
            "  const int collects = PyGC_Disable(); /* nothing of what is made here is garbage */",
            "  for (;;) {",
            "    if (room - waiting < 16) {",
            "      hyad_made *more = realloc(todo, (room = 2*room + 64)*sizeof *todo);",
            "      if (!more) { PyErr_NoMemory(); goto failed; }",
            "      todo = more;",
            "    }",
            "    switch (type) {",
        ]
        for t in self.fn.types:
            lines.append(f"    case {self.number[t.name]}: {{")
            lines.append(f"      const {t.name} cell = from;")
            order = sorted(t.constructors, key=lambda c: not c.null)
            for k, c in enumerate(order):
                head = f"if ({t.test(c, 'cell')}) " if k < len(order) - 1 else ""
                lines += [f"      {head}{{", *("        " + line for line in self.write_constructor(t, c)), "      }"]
            lines.append("    }")
        lines += [
            "    }",
            "  next:",
            "    if (!waiting) break;",
            "    waiting--, from = todo[waiting].cell, owner = todo[waiting].owner;",
            "    at = todo[waiting].at, type = todo[waiting].type;",
            "  }",
            "  goto done;",
            "failed:",
            "  Py_DecRef(root), root = NULL;",
            "done:",
            "  free(todo);",
            "  if (collects) PyGC_Enable();",
            "  return root;",
            "}",
        ]
        return "\n" + "\n".join(lines) + "\n"

    def write_constructor(self, t: CData, c: CConstructor) -> list[str]:
        fields = visible(c)
        place = [
            "if (!owner) root = o;",
            "else if (HYAD_TYPE(owner) == (void *)&PyTuple_Type) PyTuple_SetItem(owner, at, o);",
            *(
                [
                    "else if (HYAD_TYPE(owner) == (void *)&PyDict_Type) {",
                    "  if (PyDict_SetItem(owner, PyTuple_GetItem(self, at), o)) goto failed;",
                    "  Py_DecRef(o);",
                    "}",
                ]
                if self.keys
                else []
            ),
            "else HYAD_AT(owner, at) = o;",
        ]
        if c.kind == "none":
            return ["Py_IncRef(o = &_Py_NoneStruct);", *place, "goto next;"]
        if c.kind == "inner" or any(n.make == "function" for n in nodes(c.parts)):
            return [f"PyErr_SetString(PyExc_TypeError, {_FUNCTION});", "goto failed;"]
        if c.kind in ("number", "truth", "array"):
            return [f"if (!(o = {self.value(t, c, fields[0])})) goto failed;", *place, "goto next;"]
        trees = c.parts or tuple(Leaf() for _ in fields)
        kind = {"tuple": "tuple", "whole": "whole"}.get(c.kind, c.make)
        top = trees[0] if kind == "whole" else Node(trees, None, None if kind == "tuple" else kind)
        out: list[str] = []
        data: list[tuple[str, str, str, int]] = []
        left = iter(fields)
        self.write_part(t, c, top, left, None, out, data, place)
        for k, (cell, owner, slot, number) in enumerate(data):
            if k < len(data) - 1:
                out.append(
                    f"todo[waiting].cell = {cell}, todo[waiting].owner = {owner}, todo[waiting].at = {slot}, "
                    f"todo[waiting++].type = {number};"
                )
            else:
                out += [f"from = {cell}, at = {slot}, owner = {owner}, type = {number};", "continue;"]
        return [*out, *([] if data else ["goto next;"])]

    def write_part(
        self,
        t: CData,
        c: CConstructor,
        tree: Any,
        left: Iterator[CField],
        where: tuple[str, str, str] | None,
        out: list[str],
        data: list[tuple[str, str, str, int]],
        place: Sequence[str] = (),
    ) -> None:
        """Makes a part and puts it ``where``: (the kind of its owner, the owner, the slot); data in it waits."""

        def put(value: str) -> None:
            assert where is not None
            kind, owner, slot = where
            if kind == "tuple":
                out.append(f"PyTuple_SetItem({owner}, {slot}, {value});")
            elif kind == "dict":
                out.append(f"if (PyDict_SetItem({owner}, PyTuple_GetItem(self, {slot}), {value})) goto failed;")
                out.append(f"Py_DecRef({value});")
            else:
                out.append(f"HYAD_AT({owner}, {slot}) = {value};")

        name = f"q{self.temporary}"
        self.temporary += 1
        if isinstance(tree, Leaf):
            assert where is not None
            f = next(left)
            if f.elem in self.number and not f.dims:
                data.append((self.member(t, c, f), where[1], where[2], self.number[f.elem]))
                return
            out += [f"PyObject *const {name} = {self.value(t, c, f)};", f"if (!{name}) goto failed;"]
            put(name)
            return
        n, how = len(tree.items), tree.make
        if how is nothing:
            out += [f"PyObject *const {name} = &_Py_NoneStruct;", f"Py_IncRef({name});"]
            put(name)
            return
        if tree.keys is not None and how is None:
            make, kind = "PyDict_New()", "dict"
            slots = [str(self.key(name)) for name in tree.keys]
        elif how is None:
            make, kind, slots = f"PyTuple_New({n})", "tuple", [str(k) for k in range(n)]
        elif how in self.classes:
            k = self.classes.index(how)
            make, kind, slots = f"PyType_GenericAlloc(class{k}, 0)", "class", [f"at{k}[{i}]" for i in range(n)]
        else:
            raise NotCompiled(
                f"a {how.__name__} inside data cannot be given to Python", None, "use a dict, or a type of `defdata`"
            )
        out += [f"PyObject *const {name} = {make};", f"if (!{name}) goto failed;"]
        if where is None:
            out += [f"o = {name};", *place]
        else:
            put(name)
        for item, slot in zip(tree.items, slots):
            self.write_part(t, c, item, left, (kind, name, slot), out, data)

    def value(self, t: CData, c: CConstructor, f: CField) -> str:
        place = self.member(t, c, f)
        if f.dims:
            shape = ", ".join(str(d) if isinstance(d, int) else t.member(c, "cell", d) for d in f.dims)
            kind = f"HYAD_{f.elem.upper()}"
            return f"hyad_array_of({place}, {kind}, {len(f.dims)}, (Py_ssize_t[]){{{shape}}})"
        make = {"real": "PyFloat_FromDouble", "int": "PyLong_FromLongLong", "bool": "PyBool_FromLong"}
        if f.elem == "unit":
            return "(Py_IncRef(&_Py_NoneStruct), &_Py_NoneStruct)"
        return f"{make[f.elem]}({place})"
