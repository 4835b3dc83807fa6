"""Sparse Jacobians and Hessians, as matrices of SciPy.

The pattern is found from the program (``sparsity``), for the shapes and the integers of a call, and for the reals that
subscripts are computed from; it is kept, and found again only when these change. What computes the numbers is compiled
once for a signature:

* where rows come from a loop whose iterations read few numbers each, that loop computes each iteration's dense block
  of the matrix, and no pass is wasted on a zero (``blocks``);
* else columns that no row has in common share a forward pass, rows that no column has in common a reverse pass
  (Curtis, Powell and Reid 1974), by greedy colouring. The few dense rows of a matrix of sparse ones, or its few dense
  columns, take the other mode (Coleman and Verma 1998); of a Hessian, dense rows are read from their columns.

Design decision: the colouring is our own. No library made for it is well kept and small, and it is twenty lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .core import BOOL, INT, REAL, Arr, Leaf, Node, Program, Var, free_vars, leaves
from .differentiate.blocks import Group, entries
from .differentiate.elements import elements
from .errors import DerivativeError, HyadError, ModelTypeError, border
from .frontend.annotations import has_reals, parameters
from .marshalling import signature_key, take_apart
from .model import Model, as_model, derived, model, note
from .passes.optimise import optimise
from .program.names import place_of
from .program.reader import deep
from .program.signature import Spec
from .stages import show

#: A reverse pass takes about so many times a forward pass.
REVERSE = 2


@border
def sparse_jacobian(f: Any, wrt: Any = None) -> SparseDerivative:
    """The Jacobian of a model as a function that gives a ``scipy.sparse.csr_array``.

    A row for each number of the result and a column for each number of the arguments ``wrt``, both in the order in
    which they lie in memory: several results, and several arguments, one after the other. ``wrt`` is a position, a
    name or a tuple of them; by default all arguments that hold reals, or integers where none does. So integers beside
    reals are taken for indices, counts or data, and have no columns, where ``jacobian`` takes those that are not
    declared ``Int`` as real: name them in ``wrt``, or give reals, for columns. Entries that are zero by chance are
    stored too: for the same shapes and integer arguments, the matrix always has the same entries, unless subscripts are
    computed from reals that are not in ``wrt``: then for the same of these.

    The pattern is found from the program, at the first call and whenever these change. Beside the matrix, of the same
    arguments, ``.pattern(..)`` gives its pattern, ``.how(..)`` says how it is computed, and ``.source(..)`` is the C
    that does.

    >>> f = hyad.model("(fn [x] (build (- (len x) 1) (fn [i] (* (get x i) (get x (+ i 1))))))")
    >>> hyad.sparse_jacobian(f)(np.array([1.0, 2.0, 3.0])).toarray()
    array([[2., 1., 0.],
           [0., 3., 2.]])
    """
    return SparseDerivative(as_model(f, "sparse-jacobian"), wrt, False)


@border
def sparse_hessian(f: Any, wrt: Any = None) -> SparseDerivative:
    """The Hessian of a model that gives a number as a function that gives a ``scipy.sparse.csr_array``, both halves of
    it; ``wrt`` and the rest as for ``sparse_jacobian``. Of a sum of terms that each read few numbers, as over springs
    or finite elements, the terms' own Hessians are added where they stand, unless few coloured passes do."""
    return SparseDerivative(as_model(f, "sparse-hessian"), wrt, True)


def scipy_sparse(name: str) -> Any:
    """SciPy's sparse matrices, imported when they are first asked for."""
    try:
        import scipy.sparse
    except ImportError:
        raise ModelTypeError(f"{name} gives a matrix of SciPy, which is not installed", None, "pip install scipy")
    return scipy.sparse


class SparseDerivative:
    """What ``sparse_jacobian`` and ``sparse_hessian`` give: called with the model's arguments, it gives the matrix."""

    def __init__(self, base: Model, wrt: Any, symmetric: bool) -> None:
        self.base, self.symmetric = base, symmetric
        self.wrt = tuple(wrt) if isinstance(wrt, list) else wrt
        self.name = f"{base.name}-{'hessian' if symmetric else 'jacobian'}"
        self.__name__ = self.name
        self.__doc__ = f"The sparse {'Hessian' if symmetric else 'Jacobian'} of {base.name}."
        self._signatures: dict[Any, tuple[Signature, Model, int]] = {}  # of which model, and how old that was
        scipy_sparse(f"hyad.sparse_{'hessian' if symmetric else 'jacobian'}")

    def __repr__(self) -> str:
        return f"<sparse {'Hessian' if self.symmetric else 'Jacobian'} of {self.base.name}>"

    @border
    def __call__(self, *args: Any) -> Any:
        return self._plan(args)[1].matrix(args)

    @border
    def pattern(self, *args: Any) -> Any:
        """The matrix of truth values that says which entries there are."""
        found = self._plan(args)[1].pattern
        return scipy_sparse(self.name).csr_array((np.ones(found.nnz, bool), found.indices, found.indptr), found.shape)

    @border
    def how(self, *args: Any) -> str:
        """How the numbers are computed: in blocks, or by how many passes."""
        return self._plan(args)[1].how

    @border
    def plan(self, *args: Any) -> Plan:
        """What ``how`` says in words."""
        return self._plan(args)[1]

    @border
    def source(self, *args: Any) -> str:
        """The C that computes the numbers."""
        return self._plan(args)[1].source(args)

    def _plan(self, args: tuple) -> tuple[Signature, Plan]:
        known = parameters(self.base.value)
        if known is not None and len(known) != len(args):
            names = " ".join(p[0] for p in known)
            raise ModelTypeError(
                f"{self.name} takes {len(known)} argument{'s' * (len(known) != 1)} [{names}], not {len(args)}",
                self.base.span,
            )
        specs = self.base.called_as(args)
        at = self._positions(specs, known)
        key = (at, *map(signature_key, specs))
        made, base, forgotten = self._signatures.get(key, (None, self.base, 0))
        if made is None or base.forgotten != forgotten:
            specs = [as_reals(s) if k in at else s for k, s in enumerate(specs)]
            base = self.base
            if self.symmetric:
                base = derived("grad", base, at[0] if len(at) == 1 else at)
            try:
                made = Signature(self, base, specs, at)
            except DerivativeError as error:
                if self.symmetric and error.message.startswith("`grad` needs"):
                    error.message = error.message.replace("`grad`", "`sparse_hessian`", 1)
                    error.hint = "use sparse_jacobian"
                raise
            self._signatures[key] = made, base, base.forgotten
        return made, made.plan(args)

    def _positions(self, specs: Sequence[Spec], known: Any) -> tuple[int, ...]:
        """Which arguments to differentiate by."""
        if self.wrt is None:
            at = [k for k in range(len(specs)) if not known or has_reals(known[k][1])]
            reals = [k for k in at if reals_in(specs[k])] or [k for k in at if reals_in(as_reals(specs[k]))]
            if not reals:
                raise DerivativeError(f"{self.name}: no argument of this call holds reals", self.base.span)
            return tuple(reals)
        names = [p[0] for p in known] if known else []
        found = []
        for w in self.wrt if isinstance(self.wrt, tuple) else (self.wrt,):
            k = place_of(w, names)
            if type(k) is not int or not -len(specs) <= k < len(specs):
                raise DerivativeError(
                    f"{self.name}: there is no parameter `{w}` to differentiate by",
                    self.base.span,
                    f"the parameters are {', '.join(names) or f'positions 0 to {len(specs) - 1}'}",
                )
            found.append(k % len(specs))
        if len(set(found)) < len(found):
            raise DerivativeError(f"{self.name}: a parameter stands twice in wrt", self.base.span, "name each once")
        return tuple(found)


def as_reals(spec: Spec) -> Spec:
    """The type of an argument that is differentiated: its integers are reals."""
    if isinstance(spec, Node):
        return replace(spec, items=tuple(map(as_reals, spec.items)))
    if isinstance(spec, Arr):
        return Arr(REAL, spec.dims) if spec.elem == INT else spec
    return REAL if spec is INT else spec


def reals_in(spec: Spec) -> bool:
    """Whether an argument holds a real."""
    if isinstance(spec, Node):
        return any(map(reals_in, spec.items))
    return (spec.elem if isinstance(spec, Arr) else spec) is REAL


# ------------------------------------------------------------------------------------------ one signature


class Signature:
    """A sparse derivative for one signature: the model ``base`` whose Jacobian it is, its typed program, the compiled
    passes, and the plans for the shapes and integers seen last."""

    KEPT = 4

    def __init__(self, owner: SparseDerivative, base: Model, specs: Sequence[Spec], at: tuple[int, ...]) -> None:
        self.owner, self.base, self.specs, self.at = owner, base, list(specs), at
        for k in at:
            if not plain(specs[k]):
                known = parameters(base.value)
                name = known[k][0] if known else str(k)
                raise ModelTypeError(
                    f"{owner.name}: `{name}` is no number, array or tuple of them", base.span, "give its parts"
                )
        try:
            self.program: Program = base.program(self.specs)
        except ModelTypeError as error:
            if owner.wrt is not None and error.message.endswith(", not an integer"):
                error.hint = "the parameters in wrt are taken as real: leave out what is an index or a size"
            raise
        for r in self.program.body.results:
            elem = r.type.elem if isinstance(r.type, Arr) else r.type
            if elem not in (REAL, INT):
                raise DerivativeError(f"{owner.name}: a result is {elem}: it has no derivative", base.span)
        first = np.cumsum([0, *map(leaves, self.program.ins)])
        self.flat = [j for k in at for j in range(first[k], first[k + 1])]
        self.plans: list[tuple[list[Any], Plan]] = []
        self._passes: dict[str, Model] = {}
        made = deep(entries, self.program, [self.program.params[k] for k in self.flat])
        self.entries = self.places = None
        if made is not None:
            self.entries, self.places, self.groups = self.loaded(made[0]), self.loaded(made[1]), made[2]
        self.added: ElementPrograms | None = None
        if made is None and owner.symmetric:
            primal = owner.base.program(self.specs)
            moving = [primal.params[k] for k in self.flat]
            found = deep(elements, primal, moving)
            if found is not None:
                self.added = ElementPrograms(self.loaded(found[0]), self.loaded(found[1]), found[2], moving)
        places = self.places if self.added is None else self.added.places
        self.finds: set[int] = set()  # the parameters that subscripts are computed from
        if places is not None:
            read = free_vars(places.program.body)
            self.finds = {k for k, p in enumerate(places.program.params) if p in read}

    def loaded(self, program: Program) -> Callable[..., Any]:
        """A program of the same arguments, compiled."""
        own = Model(self.base.value, self.owner.name, self.base.span)
        found = own.compile_program(optimise(program))
        own._compiled[tuple(map(signature_key, self.specs))] = found
        return found

    def values(self, args: Sequence[Any]) -> list[Any]:
        """The numbers and arrays of a call."""
        found: list[Any] = []
        for tree, a in zip(self.program.ins, args):
            take_apart(tree, a, found)
        return found

    def plan(self, args: tuple) -> Plan:
        """The plan for the shapes and integers of a call."""
        values = self.values(args)
        moving = set(self.flat)
        key = []
        for k, (p, v) in enumerate(zip(self.program.params, values)):
            elem = p.type.elem if isinstance(p.type, Arr) else p.type
            counts = k not in moving and (elem in (INT, BOOL) or k in self.finds)
            key.append(np.asarray(v) if counts else np.shape(v))
        for n, (known, plan) in enumerate(self.plans):
            if all(map(same, known, key)):
                if n:
                    self.plans.insert(0, self.plans.pop(n))
                return plan
        made = self.made(args, values, self.shapes(args))
        self.plans.insert(0, ([np.array(k) if isinstance(k, np.ndarray) else k for k in key], made))
        del self.plans[self.KEPT :]
        return made

    def shapes(self, args: tuple) -> list[tuple[int, ...]]:
        """The shapes of the results, of a Hessian those of the gradient. The model runs once per plan, so that it says
        itself what does not fit."""
        results = parts_of(self.owner.base(*self.real(args)))
        if self.owner.symmetric:
            values = self.values(args)
            results = [values[k] for k in self.flat]
        return [np.shape(x) for x in results]

    def real(self, args: Sequence[Any]) -> list[Any]:
        """The arguments with reals where it is differentiated by them."""
        return [floats(a) if k in self.at else a for k, a in enumerate(args)]

    def made(self, args: tuple, values: list[Any], shapes: list[tuple[int, ...]]) -> Plan:
        from .differentiate.sparsity import ITERATIONS, Unfollowed, pattern

        if self.entries is not None:
            return Blocks(self, args, values, shapes)
        try:
            long: list[Any] = []
            found = pattern(self.program, values, self.flat, long)
            if long:
                reads = "each iteration of this loop reads what others have made, and there are more than"
                message = f"the pattern of `{self.owner.name}` may be larger than it is: {reads} {ITERATIONS}"
                hint = "an iteration that reads only elements that no other one changes can be followed"
                note(str(HyadError(message, long[0], hint)))
        except Unfollowed:  # anything may depend on anything
            columns = sum(int(np.prod(np.shape(values[k]))) for k in self.flat)
            rows = columns if self.owner.symmetric else sum(int(np.prod(s)) for s in shapes)
            found = scipy_sparse(self.owner.name).csr_array(np.ones((rows, columns), bool))
        made = Passes(self, found, values, shapes)
        if self.added is not None and sum(made.counts) > self.added.passes:
            return Elements(self, args, values)
        return made

    # ------------------------------------------------------------------------------------- compiled passes

    def forward(self) -> Model:
        """The tangents of the results along seeds: stacked, as many as there are seeds."""
        return self.passes("jvp", [self.specs[k] for k in self.at], [self.program.out])

    def reverse(self) -> Model:
        """The adjoints of the arguments for seeds of the results."""
        return self.passes("vjp", [self.program.out], [self.specs[k] for k in self.at])

    def passes(self, product: str, seeded: Sequence[Spec], made: Sequence[Spec]) -> Model:
        """A model of the arguments and of a stack of seeds for each part of the structures ``seeded``; it gives a stack
        for each part of the structures ``made``."""
        if product not in self._passes:
            names = [f"x{k}" for k in range(len(self.specs))]
            points = [names[k] for k in self.at]
            seeds: list[str] = []
            moves = [written(tree, seeds) for tree in seeded]
            one = f"({product} (fn [{' '.join(points)}] (f {' '.join(names)})) {' '.join(points)} {' '.join(moves)})"
            whole = Node(tuple(made)) if len(made) > 1 else made[0]
            stacks = [f"(build (len {seeds[0]}) (fn [k] (let [pass {one}] {path})))" for path in parts(whole, "pass")]
            body = stacks[0] if len(stacks) == 1 else f"#({' '.join(stacks)})"
            self._passes[product] = model(f"(fn [{' '.join([*names, *seeds])}] {body})", namespace={"f": self.base})
        return self._passes[product]


def same(known: Any, new: Any) -> bool:
    if isinstance(known, np.ndarray) and isinstance(new, np.ndarray):
        return known.shape == new.shape and np.array_equal(known, new)
    return type(known) is type(new) and known == new


def floats(value: Any) -> Any:
    if isinstance(value, tuple):
        return type(value)(*map(floats, value)) if hasattr(value, "_fields") else tuple(map(floats, value))
    return np.ascontiguousarray(value, float) if np.ndim(value) else float(value)


def plain(spec: Spec) -> bool:
    """Whether an argument is a number, an array or a tuple of such, which a model can write down."""
    if isinstance(spec, Node):
        return spec.keys is None and spec.make is None and all(map(plain, spec.items))
    return isinstance(spec, (Arr, Leaf)) or spec in (REAL, INT, BOOL)


def written(tree: Spec, seeds: list[str]) -> str:
    """The seed of pass ``k`` for a value of a structure; ``seeds`` collects the names of the parts."""
    if isinstance(tree, Node):
        return "#(" + " ".join([written(t, seeds) for t in tree.items]) + ")"
    seeds.append(f"seeds{len(seeds)}")
    return f"(get {seeds[-1]} k)"


def parts(tree: Spec, path: str) -> list[str]:
    """How the parts of a value of a structure are written."""
    if not isinstance(tree, Node):
        return [path]
    if tree.keys is not None:
        return [p for key, t in zip(tree.keys, tree.items) for p in parts(t, f"(. {path} {key})")]
    return [p for k, t in enumerate(tree.items) for p in parts(t, f"(get {path} {k})")]


def parts_of(value: Any) -> list[np.ndarray]:
    """The arrays in a result, in order."""
    if isinstance(value, tuple):
        return [x for v in value for x in parts_of(v)]
    if isinstance(value, dict):
        return [x for v in value.values() for x in parts_of(v)]
    return [value]


# ------------------------------------------------------------------------------------------ plans


class Plan:
    """How the matrix is computed for some shapes and integers, and why so; ``pattern`` is a csr_array."""

    pattern: Any
    how: str
    why: str

    def matrix(self, args: tuple) -> Any:
        """The derivative at ``args``."""
        found = self.pattern
        kind = type(found)
        return kind((self.numbers(args), found.indices.copy(), found.indptr.copy()), shape=found.shape)

    def numbers(self, args: tuple) -> np.ndarray:
        """The entries, in the order of the pattern's."""
        raise NotImplementedError

    def source(self, args: tuple) -> str:
        """The C of ``numbers``."""
        raise NotImplementedError

    def programs(self, args: tuple) -> list[tuple[Program, Sequence[Any]]]:
        """The programs that compute the numbers, with their arguments."""
        raise NotImplementedError


def short(pattern: Any) -> Any:
    """A pattern with indices of 32 bits, if they fit: what SciPy's solvers take, and half as much to copy."""
    if max(*pattern.shape, pattern.nnz) < 2**31:
        pattern.indices, pattern.indptr = pattern.indices.astype(np.int32), pattern.indptr.astype(np.int32)
    return pattern


class Blocks(Plan):
    """The dense block of each iteration of a row loop (``blocks``)."""

    why = "each iteration of a loop over rows reads few numbers"

    def __init__(self, signature: Signature, args: tuple, values: Sequence[Any], shapes: Sequence[tuple]) -> None:
        from scipy.sparse import csr_array

        self.signature = signature
        sizes = [int(np.prod(np.shape(values[k]))) for k in signature.flat]
        first = dict(zip([signature.program.params[k] for k in signature.flat], starts(sizes)))
        tops = starts([int(np.prod(s)) for s in shapes])
        rows, columns = [], []
        self.shapes: list[tuple[int, int]] = []  # of the entries that each group gives, and where they go
        self.ranges: list[slice] = []
        for group, at in zip(signature.groups, parts_of(signature.places(*signature.real(args)))):
            element, column = np.array(group.kept).T
            slot, within = np.array(group.columns).T
            self.shapes.append((len(at), len(group.kept)))
            begin = self.ranges[-1].stop if self.ranges else 0
            self.ranges.append(slice(begin, begin + len(at) * len(group.kept)))
            base = np.array([first[v] for v in group.sources])[slot] + within
            columns.append((at[:, slot[column]] + base[column]).ravel())
            rows.append((tops[group.result] + np.arange(len(at))[:, None] * group.cells + element).ravel())
        i, j = np.concatenate(rows), np.concatenate(columns)
        self.take = self.ends = None
        if not np.all((i[1:] > i[:-1]) | (i[1:] == i[:-1]) & (j[1:] > j[:-1])):
            self.take = np.lexsort((j, i))
            i, j = i[self.take], j[self.take]
            new = np.append(True, (i[1:] != i[:-1]) | (j[1:] != j[:-1]))
            if not new.all():  # one number read through two slots
                self.ends = np.flatnonzero(new)
                i, j = i[new], j[new]
        shape = (sum(int(np.prod(s)) for s in shapes), sum(sizes))
        ends = np.concatenate([[0], np.cumsum(np.bincount(i, minlength=shape[0]))])
        self.pattern = short(csr_array((np.ones(len(j), bool), j, ends), shape=shape))
        sizes = sorted({(len({o for o, _ in g.kept}), len({c for _, c in g.kept})) for g in signature.groups})
        self.how = "blocks of " + " and ".join(f"{a} x {b}" for a, b in sizes)

    def numbers(self, args: tuple) -> np.ndarray:
        s = self.signature
        found = np.empty(self.ranges[-1].stop)
        parts = tuple(found[r].reshape(shape) for r, shape in zip(self.ranges, self.shapes))
        s.entries(*s.real(args), out=parts if len(parts) > 1 else parts[0])
        if self.take is not None:
            found = found.take(self.take)
        return found if self.ends is None or not len(found) else np.add.reduceat(found, self.ends)

    def source(self, args: tuple) -> str:
        from hyad.codegen.c import print_c

        return print_c(self.signature.entries.program).source

    def programs(self, args: tuple) -> list[tuple[Program, Sequence[Any]]]:
        return [(self.signature.entries.program, self.signature.real(args))]


@dataclass(frozen=True, slots=True)
class ElementPrograms:
    """The compiled programs of a Hessian's numbers and of where elements stand, the blocks of the elements, and the
    parameters that it is differentiated by."""

    numbers: Callable[..., Any]
    places: Callable[..., Any]
    groups: list[Group]
    moving: list[Var]

    @property
    def passes(self) -> int:
        """So many passes cost no more than the blocks of all elements."""
        return 2 * max(g.cells for g in self.groups) + 1


class Elements(Plan):
    """The dense Hessian of each term of a sum, added to where it stands (``elements``)."""

    why = "the function is a sum of terms that each read few numbers"

    def __init__(self, signature: Signature, args: tuple, values: Sequence[Any]) -> None:
        from scipy.sparse import csr_array

        added = signature.added
        assert added is not None
        self.signature, self.added = signature, added
        sizes = [int(np.prod(np.shape(values[k]))) for k in signature.flat]
        first, total = dict(zip(added.moving, starts(sizes))), sum(sizes)
        keys = []
        for group, at in zip(added.groups, parts_of(added.places(*signature.real(args)))):
            slot, within = np.array(group.columns).T
            base = np.array([first[v] for v in group.sources])[slot] + within
            place = at[:, slot] + base
            row, column = np.array(group.kept).T
            keys.append(place[:, row] * total + place[:, column])
        found, inverse = np.unique(np.concatenate([k.ravel() for k in keys]), return_inverse=True)
        ends = np.cumsum([k.size for k in keys])[:-1]
        self.where = [w.reshape(k.shape) for w, k in zip(np.split(inverse.astype(np.int64), ends), keys)]
        rows, columns = np.divmod(found, max(total, 1))
        ends = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=total))])
        self.pattern = short(csr_array((np.ones(len(found), bool), columns, ends), shape=(total, total)))
        sizes = sorted({g.cells for g in self.added.groups})
        self.how = "element Hessians of " + " and ".join(f"{n} x {n}" for n in sizes)

    def numbers(self, args: tuple) -> np.ndarray:
        return self.added.numbers(*self.signature.real(args), *self.where, self.pattern.nnz)

    def source(self, args: tuple) -> str:
        from hyad.codegen.c import print_c

        return print_c(self.added.numbers.program).source

    def programs(self, args: tuple) -> list[tuple[Program, Sequence[Any]]]:
        given = [*self.signature.real(args), *self.where, self.pattern.nnz]
        return [(self.added.numbers.program, given)]


def starts(sizes: Sequence[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)])[:-1].astype(np.int64)


class Passes(Plan):
    """Columns with no row in common in one forward pass, rows with no column in common in one reverse pass."""

    why = "columns without a row in common share a forward pass, rows without a column in common a reverse one"

    def __init__(self, signature: Signature, pattern: Any, values: Sequence[Any], shapes: Sequence[tuple]) -> None:
        pattern.sort_indices()
        self.signature, self.pattern = signature, short(pattern)
        if signature.owner.symmetric:
            found = symmetric_colours(pattern)
        else:
            found = colours(pattern, plain(signature.program.out))
        up, back = found.counts
        modes = [f"{n} {mode} pass{'es' * (n != 1)}" for n, mode in ((up, "forward"), (back, "reverse")) if n]
        self.how = " and ".join(modes) or "no pass: the matrix is empty"
        self.counts, self.take = found.counts, found.take
        self.up = seeds(found.forward, up, [np.shape(values[k]) for k in signature.flat])
        self.back = seeds(found.reverse, back, shapes)

    def numbers(self, args: tuple) -> np.ndarray:
        s, (up, back) = self.signature, self.counts
        args = s.real(args)
        found = []
        if up:
            found.append(side_by_side(s.forward()(*args, *self.up), up))
        if back:
            found.append(side_by_side(s.reverse()(*args, *self.back), back))
        if not found:
            return np.zeros(0)
        return (found[0] if len(found) == 1 else np.concatenate(found)).take(self.take)

    def source(self, args: tuple) -> str:
        s, (up, back) = self.signature, self.counts
        self.numbers(args)  # so that the models know what they are called with
        return "\n".join(show(model, "c") for model in [s.forward()] * (up > 0) + [s.reverse()] * (back > 0))

    def programs(self, args: tuple) -> list[tuple[Program, Sequence[Any]]]:
        s, (up, back) = self.signature, self.counts
        passes = [(s.forward(), self.up)] * (up > 0) + [(s.reverse(), self.back)] * (back > 0)
        given = [(model, [*s.real(args), *seeds]) for model, seeds in passes]
        return [(model.optimised(model.called_as(values)), values) for model, values in given]


def seeds(colour: np.ndarray, count: int, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """For values of some ``shapes``, the sum of the unit vectors of each colour."""
    matrix = np.zeros((count, len(colour)))
    chosen = np.flatnonzero(colour >= 0)
    matrix[colour[chosen], chosen] = 1.0
    ends = np.cumsum([int(np.prod(s)) for s in shapes])
    return [np.ascontiguousarray(m).reshape(count, *s) for m, s in zip(np.split(matrix, ends[:-1], 1), shapes)]


def side_by_side(result: Any, count: int) -> np.ndarray:
    """The results of ``count`` passes, those of each pass together."""
    parts = [np.reshape(x, (count, -1)) for x in parts_of(result)]
    return (parts[0] if len(parts) == 1 else np.concatenate(parts, 1)).ravel()


# ---------------------------------------------------------------------------------------- colouring


@dataclass(frozen=True, slots=True, eq=False)
class Colours:
    """A colour for each column that is computed forwards and for each row that is computed backwards, -1 for others.
    ``take`` says where each entry stands: in the results of the forward passes, of each pass all rows, and behind them
    in those of the reverse passes, of each all columns."""

    forward: np.ndarray
    reverse: np.ndarray
    take: np.ndarray

    @property
    def counts(self) -> tuple[int, int]:
        """How many passes there are of each mode."""
        return int(self.forward.max(initial=-1)) + 1, int(self.reverse.max(initial=-1)) + 1

    @property
    def cost(self) -> int:
        """The time of it all, in forward passes."""
        up, back = self.counts
        return up + REVERSE * back


def colours(pattern: Any, reversible: bool = True) -> Colours:
    """The colours for few passes.

    All entries go forwards, or backwards, or the densest rows go backwards, or the densest columns forwards. The
    fullest row that goes forwards, and the fullest column that goes backwards, say how many passes each takes at
    least: the cheapest by that estimate is coloured first, another one only if it could do better.
    """
    i, j = coordinates(pattern)
    rows, columns = np.bincount(i, minlength=pattern.shape[0]), np.bincount(j, minlength=pattern.shape[1])
    ways = [(float(rows.max(initial=0)), np.zeros(len(i), bool))]  # what it costs at least, which go backwards
    if reversible:
        least, dense = split(rows, 1, REVERSE)
        other, full = split(columns, REVERSE, 1)
        ways += [(least, dense[i]), (other, ~full[j]), (REVERSE * float(columns.max(initial=0)), np.ones(len(i), bool))]
    best, cost = None, np.inf
    for least, back in sorted(ways, key=lambda way: way[0]):
        if least < cost:
            forward, reverse = greedy(part(pattern, ~back)), greedy(part(pattern, back).T.tocsr())
            before = len(rows) * (int(forward.max(initial=-1)) + 1)
            take = np.where(back, before + reverse[i] * len(columns) + j, forward[j] * len(rows) + i)
            found = Colours(forward, reverse, take)
            if found.cost < cost:
                best, cost = found, found.cost
    return best  # type: ignore[return-value]


def symmetric_colours(pattern: Any) -> Colours:
    """The same for a symmetric matrix, forwards alone: the densest columns have a colour of their own, and their rows,
    which are read from there, need not be told apart in other columns' passes."""
    i, j = coordinates(pattern)
    _, dense = split(np.diff(pattern.indptr), 1, 1)
    colour = greedy(part(pattern, ~dense[i]), ~dense)
    colour[dense] = colour.max(initial=-1) + 1 + np.arange(dense.sum())
    row, column = np.where(dense[i], j, i), np.where(dense[i], i, j)
    return Colours(colour, np.full(len(colour), -1), colour[column] * len(colour) + row)


def coordinates(pattern: Any) -> tuple[np.ndarray, np.ndarray]:
    """The rows and columns of the entries."""
    return np.repeat(np.arange(pattern.shape[0]), np.diff(pattern.indptr)), pattern.indices.astype(np.int64)


def part(pattern: Any, kept: np.ndarray) -> Any:
    """A pattern with some of its entries."""
    i, j = coordinates(pattern)
    ends = np.concatenate([[0], np.cumsum(np.bincount(i[kept], minlength=pattern.shape[0]))])
    return type(pattern)((np.ones(len(j[kept]), bool), j[kept], ends), shape=pattern.shape)


def split(counts: np.ndarray, sparse: float, dense: float) -> tuple[float, np.ndarray]:
    """Which of some rows to take out as dense, at the cost ``dense`` each, where the fullest of the others costs
    ``sparse`` for each entry; and the cost of it all."""
    order = np.argsort(-counts, kind="stable")
    fullest = np.append(counts[order], 0)
    cost = fullest * sparse + np.arange(len(fullest)) * dense
    k = int(np.argmin(cost))
    out = np.zeros(len(counts), bool)
    out[order[:k]] = True
    return float(cost[k]), out


def greedy(pattern: Any, wanted: np.ndarray | None = None) -> np.ndarray:
    """A colour for each column (-1 for an empty or unwanted one), such that no row has two columns of one colour: the
    fullest neighbourhoods first, each column the first colour that none of its neighbours has."""
    filled = np.bincount(pattern.indices, minlength=pattern.shape[1]) > 0
    if wanted is not None:
        filled &= wanted
    colour = np.full(pattern.shape[1], -1)
    todo = np.flatnonzero(filled)
    if not len(todo):
        return colour
    i, j = coordinates(pattern)
    fullest = int(np.bincount(i[filled[j]]).max())
    if fullest >= len(todo) or len(todo) > 1000 and 2 * fullest > len(todo):  # each needs its own, or nearly each
        colour[todo] = np.arange(len(todo))
        return colour
    near = (pattern.T @ pattern).tocsr()
    used, seen = 0, np.full(len(colour) + 1, -1)
    for j in todo[np.argsort(-np.diff(near.indptr)[todo], kind="stable")]:
        seen[colour[near.indices[near.indptr[j] : near.indptr[j + 1]]]] = j  # the last cell is for no colour yet
        colour[j] = first = int(np.argmin(seen[: used + 1] == j))
        used = max(used, first + 1)
    return colour
