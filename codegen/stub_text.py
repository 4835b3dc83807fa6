"""The C text that every CPython stub is made of: the stable ABI, arguments, results, the module.

``PRELUDE``, ``ARRAYS``, ``TREES`` and ``BIND`` are the same for all functions of a kind: ``defined`` makes a C file of
its own of them, to be compiled once, and ``declared`` what another file has to know of it.
"""

from __future__ import annotations

import re

MODULE = "hyad_code"

# What is off the fast path is compiled without optimisation: half of what gcc would spend on a small model goes there.
COLD = """
#pragma GCC push_options
#pragma GCC optimize("O0")
"""
HOT = """
#pragma GCC pop_options
"""

# The function that Python calls: calls of CPython from one end to the other, in which -O3 finds nothing more.
WARM = """
#pragma GCC push_options
#pragma GCC optimize("O1")
"""

# What every stub needs. ``offset`` is where an object keeps its type: at its end, whatever the build of CPython.
PRELUDE = r"""
/* ------------------------------------------------- the Python side: the stable ABI, without Python.h */
#include <stddef.h>
typedef ptrdiff_t Py_ssize_t;
typedef struct _object PyObject;
struct _typeobject;
typedef struct { const char *name; void *call; int flags; const char *doc; } PyMethodDef;
typedef struct { char head[%(basicsize)d]; void *init; Py_ssize_t index; PyObject *copy;
  const char *name, *doc; Py_ssize_t size; PyMethodDef *methods; void *slots, *traverse, *clear, *free; } PyModuleDef;
extern struct _typeobject PyFloat_Type, PyLong_Type, PyBool_Type, PyTuple_Type, PyDict_Type;
extern struct _object _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct;
extern PyObject *PyExc_Exception, *PyExc_MemoryError;
extern void Py_IncRef(PyObject *), Py_DecRef(PyObject *), PyErr_Clear(void);
extern double PyFloat_AsDouble(PyObject *), PyLong_AsDouble(PyObject *);
extern long long PyLong_AsLongLong(PyObject *);
extern void *PyLong_AsVoidPtr(PyObject *), *PyCapsule_GetPointer(PyObject *, const char *);
extern int PyType_IsSubtype(void *, void *), PyObject_IsTrue(PyObject *), PyErr_ExceptionMatches(PyObject *);
extern int PyArg_ParseTuple(PyObject *, const char *, ...), PyUnicode_CompareWithASCIIString(PyObject *, const char *);
extern int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *), PyDict_SetItem(PyObject *, PyObject *, PyObject *);
extern Py_ssize_t PyTuple_Size(PyObject *), PyDict_Size(PyObject *);
extern PyObject *PyFloat_FromDouble(double), *PyLong_FromLongLong(long long), *PyLong_FromVoidPtr(void *);
extern PyObject *PyBool_FromLong(long), *PyErr_Occurred(void), *PyErr_NoMemory(void), *PyNumber_Index(PyObject *);
extern PyObject *PyTuple_New(Py_ssize_t), *PyTuple_GetItem(PyObject *, Py_ssize_t), *PyDict_New(void);
extern PyObject *PyDict_GetItemWithError(PyObject *, PyObject *), *PyObject_GetAttr(PyObject *, PyObject *);
extern PyObject *PyUnicode_FromString(const char *), *PyUnicode_FromFormat(const char *, ...);
extern PyObject *PyUnicode_Concat(PyObject *, PyObject *), *Py_BuildValue(const char *, ...);
extern PyObject *PyObject_Call(PyObject *, PyObject *, PyObject *), *PyObject_CallFunctionObjArgs(PyObject *, ...);
extern PyObject *PyCapsule_New(void *, const char *, void *);
extern PyObject *PyCFunction_NewEx(PyMethodDef *, PyObject *, PyObject *), *PyModule_Create2(PyModuleDef *, int);
#define HYAD_TYPE(o) (*(void **)((char *)(o) + %(offset)d))
#define HYAD_IS(o, type) (HYAD_TYPE(o) == (void *)&type || PyType_IsSubtype(HYAD_TYPE(o), &type))

static PyObject *hyad_floating, *hyad_integer, *hyad_npbool; /* numpy.floating, numpy.integer, numpy.bool */

/* The readers of one argument give NULL, or say why it does not fit. */
static const char *hyad_real(PyObject *o, double *x)
{
  const char *no = "this is not a real number";
  if (HYAD_TYPE(o) == (void *)&PyBool_Type) return "this is a bool";
  if (HYAD_IS(o, PyFloat_Type) || PyType_IsSubtype(HYAD_TYPE(o), hyad_floating)) {
    *x = PyFloat_AsDouble(o);
    if (*x == -1.0 && PyErr_Occurred()) return PyErr_Clear(), no;
    return NULL;
  }
  if (!HYAD_IS(o, PyLong_Type) && !PyType_IsSubtype(HYAD_TYPE(o), hyad_integer)) return no;
  PyObject *i = PyNumber_Index(o);
  if (!i) return PyErr_Clear(), no;
  *x = PyLong_AsDouble(i);
  Py_DecRef(i);
  if (*x == -1.0 && PyErr_Occurred()) return PyErr_Clear(), "this integer is too large for a real";
  return NULL;
}

static const char *hyad_int(PyObject *o, long long *x)
{
  const char *no = "this is not an integer";
  if (HYAD_TYPE(o) == (void *)&PyBool_Type) return "this is a bool";
  if (!HYAD_IS(o, PyLong_Type) && !PyType_IsSubtype(HYAD_TYPE(o), hyad_integer)) return no;
  PyObject *i = PyNumber_Index(o);
  if (!i) return PyErr_Clear(), no;
  *x = PyLong_AsLongLong(i);
  Py_DecRef(i);
  if (*x == -1 && PyErr_Occurred()) return PyErr_Clear(), "this integer does not fit in 64 bits";
  return NULL;
}

static const char *hyad_bool(PyObject *o, int *x)
{
  if (o == &_Py_TrueStruct) return *x = 1, NULL;
  if (o == &_Py_FalseStruct) return *x = 0, NULL;
  if (HYAD_TYPE(o) != (void *)hyad_npbool) return "this is not a truth value";
  *x = PyObject_IsTrue(o);
  return NULL;
}

/* fallback(reason, args, kwargs); takes over the reference to reason. */
static PyObject *hyad_fallback(PyObject *self, PyObject *reason, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
  PyObject *result = NULL, *tuple = PyTuple_New(n), *dict = PyDict_New();
  if (!reason || !tuple || !dict) goto done;
  for (Py_ssize_t i = 0; i < n; i++) {
    Py_IncRef(args[i]);
    PyTuple_SetItem(tuple, i, args[i]);
  }
  for (Py_ssize_t i = 0, m = names ? PyTuple_Size(names) : 0; i < m; i++)
    if (PyDict_SetItem(dict, PyTuple_GetItem(names, i), args[n + i])) goto done;
  result = PyObject_CallFunctionObjArgs(PyTuple_GetItem(self, 0), reason, tuple, dict, NULL);
done:
  Py_DecRef(reason), Py_DecRef(tuple), Py_DecRef(dict);
  return result;
}

static void hyad_drop(int n, PyObject **items)
{
  for (int i = 0; i < n; i++) Py_DecRef(items[i]);
}

static PyObject *hyad_reason(const char *wants, const char *why, Py_ssize_t got, Py_ssize_t want)
{
  PyObject *left = PyUnicode_FromString(wants), *right = PyUnicode_FromFormat(why, got, want);
  PyObject *whole = left && right ? PyUnicode_Concat(left, right) : NULL;
  Py_DecRef(left), Py_DecRef(right);
  return whole;
}
"""
ARRAYS = r"""
/* Arrays. NumPy's PyArrayObject_fields, whose layout is part of NumPy's ABI, and the buffer protocol. */
typedef struct { void *buf; PyObject *obj; Py_ssize_t len, itemsize; int readonly, ndim; char *format;
  Py_ssize_t *shape, *strides, *suboffsets; void *internal; } Py_buffer;
typedef struct { char head[%(basicsize)d]; char *data; int ndim; Py_ssize_t *shape, *strides;
  PyObject *base, *dtype; int flags; } hyad_ndarray;
extern int PyObject_GetBuffer(PyObject *, Py_buffer *, int), PyBuffer_IsContiguous(const Py_buffer *, char);
extern int PyObject_HasAttrString(PyObject *, const char *);
extern void PyBuffer_Release(Py_buffer *), *PyMem_Malloc(size_t), PyMem_Free(void *);
enum { HYAD_REAL, HYAD_INT, HYAD_BOOL };
enum { HYAD_CONTIGUOUS = 0x1, HYAD_ALIGNED = 0x100, HYAD_WRITEABLE = 0x400 };
static const int hyad_itemsize[] = {sizeof(%(real)s), sizeof(long long), 1};
static void *hyad_array_type;                   /* numpy.ndarray; NULL where the layout is not the known one */
static PyObject *hyad_dtype[3], *hyad_empty;    /* by kind; numpy.empty */
static int hyad_typenum[3];
static PyObject *(*hyad_array_new)(void *, int, Py_ssize_t *, int, Py_ssize_t *, void *, int, int, PyObject *);

/* An array in use: its elements and shape, and what must be given back. */
typedef struct { void *data; Py_ssize_t *shape; int held; int *ints; Py_buffer view; } hyad_array;

static const char *hyad_view(PyObject *o, hyad_array *a, int kind, int rank, int out, Py_ssize_t *got)
{
  Py_buffer *v = &a->view;
  if (PyObject_GetBuffer(o, v, 0x0010 | 0x0008 | 0x0004)) { /* strides, shape, format */
    if (PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(PyExc_MemoryError)) PyErr_Clear();
    return "this is not such an array";
  }
  a->held = 1, a->data = v->buf, a->shape = v->shape;
  const char *f = v->format ? v->format : "B";
  const int one = 1;
  if (*f == '@' || *f == '=' || *f == (*(const char *)&one ? '<' : '>')) f++;
  int same = kind == HYAD_BOOL ? *f == '?' : kind == HYAD_INT ? *f == 'q' || *f == 'l' : *f == "%(format)s"[0];
  if (!same || f[1] || v->itemsize != hyad_itemsize[kind]) return "this has another dtype";
  *got = v->ndim;
  if (v->ndim != rank) return "this has rank %%zd";
  if (!PyBuffer_IsContiguous(v, 'C')) return "this is not C-contiguous";
  if ((size_t)v->buf %% v->itemsize) return "this is not aligned";
  if (out && v->readonly) return "this is read-only";
  if (PyObject_HasAttrString(o, "_mask")) return "this is a masked array";
  return NULL;
}

static Py_ssize_t hyad_count(const Py_ssize_t *shape, int rank)
{
  Py_ssize_t n = 1;
  for (int i = 0; i < rank; i++) n *= shape[i];
  return n;
}

static void hyad_give_back(hyad_array *a, int n)
{
  for (; n--; a++) {
    if (a->held) PyBuffer_Release(&a->view);
    if (a->ints) PyMem_Free(a->ints);
  }
}

/* C keeps truth values in ints, NumPy in bytes. */
static int hyad_to_ints(hyad_array *a, int rank)
{
  Py_ssize_t n = hyad_count(a->shape, rank);
  a->ints = (size_t)n < (size_t)-1 / 16 ? PyMem_Malloc(n * sizeof(int) + 1) : NULL;
  if (!a->ints) return PyErr_NoMemory(), -1;
  for (Py_ssize_t i = 0; i < n; i++) a->ints[i] = ((char *)a->data)[i] != 0;
  return 0;
}

static void hyad_from_ints(hyad_array *a, int rank)
{
  for (Py_ssize_t i = 0, n = hyad_count(a->shape, rank); i < n; i++) ((char *)a->data)[i] = a->ints[i] != 0;
}

static PyObject *hyad_new(hyad_array *a, int kind, int rank, Py_ssize_t *shape)
{
  PyObject *o;
  a->shape = shape;
  if (hyad_array_new) {
    o = hyad_array_new(hyad_array_type, rank, shape, hyad_typenum[kind], NULL, NULL, 0, 0, NULL);
    if (!o) return PyErr_NoMemory();
    a->data = ((hyad_ndarray *)o)->data;
    return o;
  }
  PyObject *dims = PyTuple_New(rank);
  for (int i = 0; dims && i < rank; i++) PyTuple_SetItem(dims, i, PyLong_FromLongLong(shape[i]));
  o = dims ? PyObject_CallFunctionObjArgs(hyad_empty, dims, hyad_dtype[kind], NULL) : NULL;
  Py_DecRef(dims);
  if (o && PyObject_GetBuffer(o, &a->view, 0)) Py_DecRef(o), o = NULL;
  else if (o) a->held = 1, a->data = a->view.buf;
  return o;
}

static const char *hyad_overlap(hyad_array *a, int rank, int kind, hyad_array *b, int brank, int bkind)
{
  char *a0 = a->data, *b0 = b->data;
  int apart = a0 + hyad_count(a->shape, rank) * hyad_itemsize[kind] <= b0
              || b0 + hyad_count(b->shape, brank) * hyad_itemsize[bkind] <= a0;
  return apart ? NULL : "this shares memory with an argument or another result";
}
"""
# The common case of reading an array, in line.
TAKE = r"""
static inline const char *hyad_take(PyObject *o, hyad_array *a, int kind, int rank, int out, Py_ssize_t *got)
{
  const int need = HYAD_CONTIGUOUS | HYAD_ALIGNED | (out ? HYAD_WRITEABLE : 0);
  const hyad_ndarray *v = (void *)o;
  if (HYAD_TYPE(o) == hyad_array_type && v->dtype == hyad_dtype[kind] && v->ndim == rank && (v->flags & need) == need) {
    a->data = v->data, a->shape = v->shape;
    return NULL;
  }
  return hyad_view(o, a, kind, rank, out, got);
}
"""
# Each helper takes over its items' references, and gives NULL where one of them is NULL.
TREES = r"""
static int hyad_whole(int n, PyObject **items)
{
  int whole = 1;
  for (int i = 0; i < n; i++) whole &= items[i] != NULL;
  return whole;
}

static PyObject *hyad_tuple(int n, PyObject **items)
{
  PyObject *t = hyad_whole(n, items) ? PyTuple_New(n) : NULL;
  if (!t) return hyad_drop(n, items), NULL;
  for (int i = 0; i < n; i++) PyTuple_SetItem(t, i, items[i]);
  return t;
}

static PyObject *hyad_dict(PyObject *self, int keys, int n, PyObject **items)
{
  PyObject *d = hyad_whole(n, items) ? PyDict_New() : NULL;
  for (int i = 0; d && i < n; i++)
    if (PyDict_SetItem(d, PyTuple_GetItem(self, keys + i), items[i])) Py_DecRef(d), d = NULL;
  hyad_drop(n, items);
  return d;
}

static PyObject *hyad_record(PyObject *self, int make, int n, PyObject **items)
{
  PyObject *fields = hyad_dict(self, make + 1, n, items), *none = PyTuple_New(0), *r = NULL;
  if (fields && none) r = PyObject_Call(PyTuple_GetItem(self, make), none, fields);
  Py_DecRef(fields), Py_DecRef(none);
  return r;
}

/* A new reference to a field, or NULL without an exception. */
static PyObject *hyad_item(PyObject *dict, PyObject *key)
{
  PyObject *o = PyDict_GetItemWithError(dict, key);
  if (!o) PyErr_Clear();
  Py_IncRef(o);
  return o;
}

static PyObject *hyad_field(PyObject *record, PyObject *key)
{
  PyObject *o = PyObject_GetAttr(record, key);
  if (!o && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
  return o;
}
"""
# Between calls the workspace is kept; it only grows, and starts a line of the cache. The GIL, held from here to the end
# of the C call, guards it.
WORKSPACE = r"""
extern void *malloc(size_t), free(void *);
static void *hyad_memory;
static %(real)s *hyad_work;
static size_t hyad_work_size;

static int hyad_make_room(double wanted, long long size)
{
  if (!(wanted < 1e18) || size > (long long)((size_t)-1 / 32)) return PyErr_NoMemory(), -1;
  if (size < 1) size = 1;
  if ((size_t)size <= hyad_work_size) return 0;
  free(hyad_memory);
  hyad_work_size = 0;
  hyad_memory = malloc(size * sizeof *hyad_work + 63);
  if (!hyad_memory) return PyErr_NoMemory(), -1;
  hyad_work = (%(real)s *)((char *)hyad_memory + (64 - (size_t)hyad_memory %% 64) %% 64);
  hyad_work_size = size;
  return 0;
}
"""
# Arguments of bind after the state: numpy.floating, .integer, .bool; and for arrays ndarray, .empty, three dtypes,
# their numbers, the capsule of NumPy's C API or None, and an array of shape (3, 4) to try the layout on.
BIND_ARRAYS = r"""
  PyObject *floating, *integer, *npbool, *type, *empty, *t0, *t1, *t2, *capsule, *probe;
  int n0, n1, n2;
  if (!PyArg_ParseTuple(args, "OOOOOOOOOiiiOO", state, &floating, &integer, &npbool, &type, &empty, &t0, &t1, &t2,
                        &n0, &n1, &n2, &capsule, &probe)) return -1;
  if (hyad_empty) return 0;
  Py_IncRef(type), Py_IncRef(empty), Py_IncRef(t0), Py_IncRef(t1), Py_IncRef(t2), Py_IncRef(capsule);
  hyad_dtype[0] = t0, hyad_dtype[1] = t1, hyad_dtype[2] = t2;
  hyad_typenum[0] = n0, hyad_typenum[1] = n1, hyad_typenum[2] = n2;
  const hyad_ndarray *a = (void *)probe;
  Py_buffer v;
  if (PyObject_GetBuffer(probe, &v, 0x0010 | 0x0008)) return -1;
  const int need = HYAD_CONTIGUOUS | HYAD_ALIGNED | HYAD_WRITEABLE;
  void **api = capsule == &_Py_NoneStruct ? NULL : PyCapsule_GetPointer(capsule, NULL);
  PyErr_Clear();
  unsigned abi = api ? ((unsigned (*)(void))api[0])() : 0; /* PyArray_GetNDArrayCVersion: 1.x or 2.x */
  if ((abi == 0x01000009 || abi == 0x02000000) && HYAD_TYPE(probe) == (void *)type && a->data == v.buf && a->ndim == 2
      && a->shape[0] == 3 && a->shape[1] == 4 && a->dtype == t0 && (a->flags & need) == need) {
    hyad_array_type = type;
    *(void **)&hyad_array_new = api[93]; /* PyArray_New */
  }
  PyBuffer_Release(&v);
  hyad_empty = empty;
"""
BIND_SCALARS = r"""
  PyObject *floating, *integer, *npbool;
  if (!PyArg_ParseTuple(args, "OOOO", state, &floating, &integer, &npbool)) return -1;
"""
BIND = r"""
static int hyad_bind_types(PyObject *args, PyObject **state)
{%(bind)s
  if (hyad_floating) return 0;
  Py_IncRef(floating), Py_IncRef(integer), Py_IncRef(npbool);
  hyad_floating = floating, hyad_integer = integer, hyad_npbool = npbool;
  return 0;
}
"""
MODULE_TEXT = r"""
static PyMethodDef hyad_def = {"%(name)s", (void *)hyad_call, 0x0082 /* METH_FASTCALL | METH_KEYWORDS */, %(doc)s};

static PyObject *hyad_bind(PyObject *self, PyObject *args)
{
  PyObject *state;
  return hyad_bind_types(args, &state) ? NULL : PyCFunction_NewEx(&hyad_def, state, NULL);
}

static PyObject *hyad_entry(PyObject *self, PyObject *none)
{
  return Py_BuildValue("NN", PyLong_FromVoidPtr((void *)hyad_f), PyLong_FromVoidPtr((void *)hyad_call));
}
%(extra)s
static PyMethodDef hyad_methods[] = {
  {"bind", (void *)hyad_bind, 0x0001},
  {"entry", (void *)hyad_entry, 0x0004},
%(methods)s  {0}};
static PyModuleDef hyad_module = {{0}, 0, 0, 0, "%(module)s", 0, -1, hyad_methods};
__attribute__((visibility("default"))) PyObject *PyInit_%(module)s(void)
{
  return PyModule_Create2(&hyad_module, 3);
}
"""
TIER = r"""
/* Compiled again, better: from then on calls go there. */
static PyObject *hyad_redirect(PyObject *self, PyObject *address)
{
  *(void **)&hyad_next = PyLong_AsVoidPtr(address);
  Py_IncRef(&_Py_NoneStruct);
  return &_Py_NoneStruct;
}
"""

_FUNCTION = re.compile(r"^static ([^\n]*)\n\{\n.*?^\}\n", re.MULTILINE | re.DOTALL)
_VARIABLE = re.compile(r"^static (?!const)(?=[^\n]*;)", re.MULTILINE)


def defined(text: str) -> str:
    """Common text whose functions and variables other files can use."""
    return re.sub(r"^static (?!const int)", "", text, flags=re.MULTILINE)


def declared(text: str) -> str:
    """What a file has to know of the functions and variables of common text."""
    return _VARIABLE.sub("extern ", _FUNCTION.sub(r"extern \1;\n", text))
