"""Random array programs as NumPy's users write them, of sizes that only a call knows: 0, 1 and others.

``text(seed)`` is a model of ``PARAMS``. A form is drawn from ``FORMS``, by the kind of its value: R a number, B a truth
value, V and W vectors of n and of m, X of 3; M an n x m matrix, T m x n, S n x n, Y n x 3. In a form ``$a:V`` binds a
name, ``{V}`` is a form in which the names bound before are seen, ``<V>`` one in which they are not, ``{#n}`` an index
below n. Every element that is read is there, or the program says that it is not.
"""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np

PARAMS = {"x": "R", "v": "V", "w": "W", "p": "X", "a": "M", "s": "S", "y": "Y"}
SHAPES = {"V": "n", "W": "m", "X": "3", "M": "nm", "T": "mn", "S": "nn", "Y": "n3"}
SIZES = {"n": "(len v)", "m": "(len w)", "3": "3"}

NUMBERS = (
    "(sin {R})", "(tanh {R})", "(exp (tanh {R}))", "(square {R})", "(abs {R})", "(+ {R} {R})", "(- {R} {R})",
    "(* {R} {R})", "(/ {R} (+ 1.5 (square {R})))", "(max {R} {R})", "(let [$a:R <R>] {R})", "(let [$a:V <V>] {R})",
    "(let [$a:S <S>] {R})", "(if {B} {R} {R})", "(sum {V})", "(dot {V} {V})", "(norm {W})", "(sq-norm {M})",
    "(sum (* {S} {S}))", "(sum (amax {Y} 1))", "(trace (mat-mul {M} (transpose {M})))", "(prod (tanh {V}))",
    "(logsumexp (concat [0.5] {V}))", "(amax (concat [0.5] {W}))", "(sum {T})",
    "(ifold (fn [$s:R $i:In] (tanh (+ {R} {R}))) <R> (len v))", "(fold (fn [$s:R $e:R] (max {R} {R})) 0.5 <W>)",
    "(ifold (fn [$s:R $i:Im] (if {B} (+ {R} {R}) {R})) 0.0 (len w))", "(fold (fn [$s:R $r:X] (tanh {R})) 0.0 <Y>)",
    "(let [$u:V <V> $k:In (if (= (len $u) 0) 0 (argmax $u))] (if (= (len $u) 0) 0.25 {R}))",
    "(sum ((grad (fn [$a:V] {R})) <V>))", "(jvp (fn [$a:S] {R}) <S> s)", "(sum ((hessian (fn [$a:X] {R})) <X>))",
    "(real {#n})", "(get (concat {V} [0.25]) (argmin (concat {V} [0.25])))", "(dot (cut {V} 1 None) (cut {V} None -1))",
    "(ifold (fn [$s:R $i:In] (+ $s (ifold (fn [$t:R $j:In] (+ $t {R})) 0.0 (+ $i 1)))) 0.0 (len v))",
    "(ifold (fn [$s:R $i:In] (ifold (fn [$t:R $j:In] (* $t (cos {R}))) $s $i)) 1.0 (len v))",
    "(ifold (fn [$s:R $i:In] (+ $s (ifold (fn [$t:R $j:In] (if (= $i $j) $t (+ $t {R}))) 0.0 (len v)))) 0.0 (len v))",
    "(let [$q:Q (ifold (fn [#($b:M $u:V) $i:Im] #({M} {V})) #(<M> <V>) (len w))] (+ (sum (fst $q)) (norm (snd $q))))",
    "(let [$q:Q (ref <V>) $k:Q (ref 0)] (while (and (< (deref $k) 4) (< (sum (deref $q)) 9.0))"
    " (set! $q (let [$u:V (deref $q)] {V})) (set! $k (+ (deref $k) 1))) (sum (deref $q)))",
    "(fst (ifold (fn [#($s:R $t:R) $i:In] (if {B} #($t {R}) #({R} $s))) #(<R> 1.0) (len v)))",
    "(ifold (fn [$s:R $i:In] (tanh {R})) <R> (len v) :checkpoint 2)",
    "(fold (fn [$s:R $r:X] (sin (+ {R} {R}))) <R> <Y> :checkpoint 1)",
    "(sum (ifold (fn [$b:V $i:Im] (tanh {V})) <V> (len w) :checkpoint 1))",
    "(let [$q:Q (ref <R>) $k:Q (ref 0)] (while (< (deref $k) (len v)) :checkpoint 2"
    " (set! $q (let [$t:R (deref $q)] (tanh {R}))) (set! $k (+ (deref $k) 1))) (deref $q))",
    "(letrec [$f:Q (fn [$k:Q $u:V] (if (<= $k 0) {R} (+ {R} ($f (- $k 1) {V}))))] ($f 2 <V>))",
    "(letrec [$f:Q (fn [$k:Q $u:M] (if (<= $k 0) {R} ($f (// $k 2) {M})))] ($f (len w) <M>))",
    "(fold (fn [$s:R $e:R] {R}) <R> (list <R> <R> {#n}))", "(fold (fn [$s:R $u:V] (tanh {R})) <R> (list <V> v))",
    "(case (if {B} (inl <R>) (inr <V>)) (inr $u:Q) (norm $u) (inl $a:R) {R})",
    "(let [$b:V (copy <V>) $t:R (ifold (fn [$j:Q $k:Q] (do (set-at! $b $k (+ $j (get $b $k))) (tanh $j))) <R> (len v))]"
    " {R})",
    "(let [$b:V (copy <V>) $t:Q (ifold (fn [$s:R $i:In] (do (set-at! $b {#n} {R}) {R})) <R> (len v))]"
    " (* $t (norm $b)))",
    "(let [$f:Q (fn [$a:R] (fn [$e:R] {R}))] (+ (($f <R>) <R>) ((D ($f <R>)) <R>)))",
    "(norm (vjp (fn [$a:M] {V}) <M> v))", "(sum (hvp (fn [$a:V] {R}) <V> v))",
    "(snd (deriv {R} x))", "(sum (snd (let [$u:V <V>] (deriv {R} $u))))", "(trace ((jacobian (fn [$a:V] {V})) <V>))",
    "(logdet (+ (eye (len v)) (* 0.05 (tanh {S}))))", "(det (+ (eye (len v)) (* 0.05 (tanh {S}))))",
    "(real (// (- {#n} 3) 2))", "(real (% (- {#m} 3) 3))", "(* {R} (real (** (- {#n} 2) 3)))", "(** {R} 3)",
    "(** (tanh {R}) (+ {#n} 1))", "(std (concat {V} [0.5]))", "(median (concat {V} [0.5]))",
    "(interp {R} [-1.0 0.1 2.0] [0.5 {R} 1.5])", "(real (count-nonzero (> {V} 0.1)))",
    "(real (searchsorted (sort {V}) {R}))", "(sum (map (fn [$r:X $e:R] {R}) <Y> <V>))",
    "(ruled (fn [$a:Q] (* $a $a $a)) (fn [$b:Q $c:Q $d:Q] (* 3.0 $b $b $d))"
    " (fn [$e:Q $f:Q $g:Q] (* 3.0 $e $e $g)) {R})",
    "(let [$b:S (+ (eye (len v)) (* 0.05 (tanh <S>)))] (dot {V} (solve $b (solve (transpose $b) {V}))))",
    "(constant (fn [$a:R] {R}) <R>)", "(sum (ravel {M}))", "(norm (kron {V} {X}))",
    "(sum (convolve {X} (concat {V} [1.0])))",
    "(fold + 0.0 (map (fn [$p:Q] (* (fst $p) (snd $p))) (build (len v) (fn [$i:In] #({R} {R})))))",
    "(sum (ravel (softmax {M} 0)))", "(sum (var {Y} 1))",
    "(ifold (fn [$s:R $i:In] (let [$k:Q (ref 0) $q:Q (ref {R})] (while (< (deref $k) 2)"
    " (set! $q (let [$t:R (deref $q)] (tanh {R}))) (set! $k (+ (deref $k) 1))) (+ $s (deref $q)))) 0.0 (len v))",
    "(let [$b:V (copy <V>) $k:Q (ref 0)] (while (< (deref $k) (len v)) (set-at! $b (deref $k)"
    " (let [$i:In (deref $k)] {R})) (set! $k (+ (deref $k) 2))) (+ (sq-norm $b) <R>))",
    "(let [$b:M (copy <M>)] (ifold (fn [$z0:Q $i:In] (ifold (fn [$z1:Q $j:Im] (do (set-at! $b $i $j {R}) $z1)) $z0"
    " (len w))) 0 (len v)) (* (sum $b) <R>))",
    "(let [$q:Q (ifold (fn [#($s:R $b:V $u:W) $i:In] #({R} (update $b $i {R}) {W})) #(<R> <V> <W>) (len v))]"
    " (+ (get $q 0) (sum (get $q 1)) (norm (get $q 2))))",
    "(let [$q:Q (ifold (fn [#($a:V $b:V) $i:Im] #((update $b 0 {R}) $a)) #(<V> <V>) (if (> (len v) 0) (len w) 0))]"
    " (dot (fst $q) (snd $q)))",
    "(ifold (fn [$s:R $i:In] (+ $s (ifold (fn [$t:R $j:In] (+ $t {R})) (* $i $s) (- $i 2)))) <R> (len v))",
    '(einsum "ij,jk,k->" {S} {M} {W})', '(einsum "ij,ij->" {M} {M})', "(sum (cut {M} None None -2))",
    "(sum (* (cut (concat {V} {V}) None None 2) {V}))",
    "(loop [$i:Q 0 $s:R <R>] (if (< $i 3) (recur (+ $i 1) {R}) $s))",
    "(sum ((hessian (fn [$a:X] (ifold (fn [$s:R $i:In] (tanh (+ $s {R}))) 0.1 (len v) :checkpoint 2))) <X>))",
    "(let [$b:S (cholesky (+ (eye (len v)) (* 0.05 (tanh <S>))))]"
    " (+ (dot {V} (solve-cholesky $b {V})) (sum (log (diag $b)))))",
)  # fmt: skip
SUMS = ("(ifold (fn [$s:R $i:I%s] (+ $s {R})) 0.0 %s)", "(ifold (fn [$s:R $i:I%s] (* $s (cos {R}))) 1.0 %s)")
ALIKE = (  # of every kind of array
    "(sin %)", "(* 0.5 %)", "(+ % %)", "(* % %)", "(- % %)", "(* {R} %)", "(if {B} % %)", "(where (> % 0.1) % 0.0)",
    "(clip % -0.4 0.5)", "(flip %)", "(let [$a:R <R>] %)",
)  # fmt: skip
VECTORS = (
    "(map (fn [$a:R] {R}) <%>)", "(cumsum %)", "(roll % 1)", "(cut (concat % [0.5]) 1 None)", "(sort %)",
    "(scan (fn [$a:R $b:R] (tanh {R})) <R> <%>)",
)  # fmt: skip
OTHERS = {
    "V": ("(@ {M} {W})", "(sum {Y} 1)", "(diag {S})", "(mat-vec {S} {V})", "(map (fn [$r:X] {R}) <Y>)",
          "(ifold (fn [$b:V $i:In] (update {V} {#n} {R})) <V> (len v))", "(ifold (fn [$b:V $i:Im] {V}) <V> (len w))",
          "((grad (fn [$a:V] {R})) <V>)", "(vjp (fn [$a:W] {V}) <W> v)", "(jvp (fn [$a:V] {V}) <V> v)",
          "(scatter-add <V> (build (len w) (fn [$i:Im] {#n})) <W>)", "(gather {V} (argsort {V}))",
          "(scatter <V> (build (len w) (fn [$i:Im] {#n})) <W>)", "(map (fn [$r:W $e:R] {R}) <M> <V>)",
          "(build (len v) (fn [$i:In] (if (or (= $i 0) (>= $i (- (len v) 1))) {R} (get v (+ $i 1)))))",
          "(solve (+ (eye (len v)) (* 0.05 (tanh {S}))) {V})",
          "(solve-lower (+ (eye (len v)) (* 0.05 (tanh {S}))) {V})", "(norm {Y} 1)", "(amin {Y} :axis 1)",
          "(get (reshape {M} [(len w) (len v)]) {#m})", "(reshape (expand-dims {V} 1) [(len v)])", "(get {T} {#m})",
          "(let [$b:V (copy <V>)] (ifold (fn [$i0:Q $i:In] (do (set-at! $b {#n} {R}) $i0)) 0 (len v)) $b)",
          "(let [$b:S <S>] (build (len v) (fn [$i:In] (ifold (fn [$s:R $j:In] (+ $s (get $b $j $i))) 0.0 (+ $i 1)))))",
          "(map (fn [$i:In $e:R] {R}) (argsort <V>) <V>)",
          "(cut {V} None None -1)", '(einsum "ij,j->i" {M} {W})', "(cut (tile {V} 2) 0 (len v))", "(diag (triu {S}))"),
    "W": ("(vec-mat {V} {M})", "(sum {M} 0)", "(map (fn [$r:V] {R}) <T>)",
          "(gather {V} (build (len w) (fn [$i:Im] {#n})))", "(amax (concat {M} (expand-dims {W} 0)) 0)",
          "(fold (fn [$u:W $r:W] {W}) <W> <M>)", "(get {M} {#n})", "(take {V} (build (len w) (fn [$i:Im] {#n})))",
          '(einsum "ij,i->j" {M} {V})', "(get (take {M} (argsort {V}) 0) {#n})"),
    "X": ("(cross {X} {X})", "(sum {Y} 0)", "(fold (fn [$u:X $r:X] {X}) <X> <Y>)", "(get <Y> {#n})"),
    "M": ("(outer {V} {W})", "(mat-mul {S} {M})", "(+ {M} {W})",
          "(ifold (fn [$b:M $i:Im] (update {M} {#n} {#m} {R})) <M> (len w))", "((grad (fn [$a:M] {R})) <M>)",
          "(cumsum {M} 0)", "(ifold (fn [$b:M $i:Im] {M}) <M> (len w))",
          "(reshape {T} [(len v) (len w)])", "(roll {M} 1 0)", "(flip {M} 1)", "(sort {M} 0)",
          "(map (fn [$r:W] {W}) <M>)",
          "(scan (fn [$u:W $r:W] {W}) <W> <M>)", "(transpose (map (fn [$u:V] {V}) <T>))", "(- {M} (expand-dims {V} 1))",
          "((jacobian (fn [$a:W] {V})) <W>)", "(solve (+ (eye (len v)) (* 0.05 (tanh {S}))) {M})"),
    "T": ("(transpose {M})", "(* {T} {V})", "(build (len w) (fn [$i:Im] {V}))", "((jacobian (fn [$a:V] {W})) <V>)",
          "(vjp (fn [$a:T] {M}) <T> a)"),
    "S": ("(eye (len v))", "(mat-mul {M} {T})", "(tril {S})", "((jacobian (fn [$a:V] {V})) v)",
          "(- (expand-dims {V} 1) (expand-dims {V} 0))",
          "(cholesky (+ (eye (len v)) (* 0.05 (tanh {S}))))", "(inv (+ (eye (len v)) (* 0.05 (tanh {S}))))",
          "(diag {V})", "((hessian (fn [$a:V] {R})) <V>)", "(jvp (fn [$a:S] {S}) <S> s)"),
    "Y": ("(map (fn [$r:X] {X}) <Y>)", "(outer {V} {X})", "(softmax {Y} 1)", "(scan (fn [$u:X $r:X] {X}) <X> <Y>)",
          "(log-softmax {Y} 1)", "(stack [{V} {V} {V}] 1)"),
}  # fmt: skip
TESTS = (
    "(< {R} 0.1)", "(> {R} {R})", "(= {#n} {#n})", "(< {#n} {#m})", "(!= {#m} 1)", "(= (- {#n} {#n}) 1)",
    "(any (> {V} 0.5))", "(all (< {M} 1.5))", "(not {B})", "(and {B} {B})", "(or {B} {B})", "(= (% (- {#n} 3) 2) 0)",
)  # fmt: skip


def build(axes: str) -> str:
    """A form that makes an array of its elements."""
    names = " ".join(f"$i{k}:I{d}" for k, d in enumerate(axes))
    return f"(build [{' '.join(SIZES[d] for d in axes)}] (fn [{names}] {{R}}))"


FORMS: dict[str, list[str]] = {"B": [*TESTS], "R": [*NUMBERS, *(f % (d, SIZES[d]) for f in SUMS * 3 for d in "nm3")]}
for _kind, _axes in SHAPES.items():
    alike = [
        re.sub(r"(?<!<)%", f"{{{_kind}}}", f).replace("%", _kind) for f in (*ALIKE, *VECTORS[: 6 * (len(_axes) == 1)])
    ]
    FORMS[_kind] = [*alike, *OTHERS[_kind] * 2, *[build(_axes)] * 3]


class Drawing:
    """Draws one program."""

    def __init__(self, seed: int) -> None:
        self.random, self.fresh = random.Random(seed), 0

    def form(self, kind: str, env: dict[str, str], depth: int) -> str:
        if kind[0] == "#":
            return self.index(kind[1], env)
        names = [n for n, k in env.items() if k == kind]
        if depth <= 0 and kind == "B":
            return f"(< {self.form('R', env, 0)} 0.1)"
        if depth <= 0 and kind == "T" and not names:
            return f"(transpose {self.form('M', env, 0)})"
        if depth <= 0:
            arrays = [n for n, k in env.items() if k in SHAPES] if kind == "R" else []
            chosen = self.random.choice([*names, *names[-1:], *arrays])
            where = " ".join(self.index(d, env) for d in SHAPES[env[chosen]]) if chosen in arrays else ""
            return f"(get {chosen} {where})" if where else chosen
        template, inner = self.random.choice(FORMS[kind]), dict(env)

        def put(found: re.Match[str]) -> str:
            if found["name"] and not found["kind"]:
                return bound[found["name"]]
            if found["name"]:
                self.fresh += 1
                bound[found["name"]] = name = f"{found['name']}{self.fresh}"
                inner[name] = found["kind"]
                return name
            return self.form(found["inner"] or found["outer"], inner if found["inner"] else env, depth - 1)

        bound: dict[str, str] = {}
        return re.sub(r"\$(?P<name>[a-z]\d?)(:(?P<kind>\w+))?|{(?P<inner>[^}]+)}|<(?P<outer>[A-Z])>", put, template)

    def index(self, axis: str, env: dict[str, str]) -> str:
        size, choices = SIZES[axis], [f"(- {SIZES[axis]} 1)", f"(% 1 {SIZES[axis]})", f"(max 0 (- {SIZES[axis]} 2))"]
        for i in (n for n, k in env.items() if k == f"I{axis}"):
            choices += [i, i, i, f"(- {size} 1 {i})", f"(% (+ {i} 1) {size})", f"(max 0 (- {i} 1))", f"(// {i} 2)"]
        return self.random.choice(choices)


def text(seed: int) -> str:
    drawing = Drawing(seed)
    return f"(fn [{' '.join(PARAMS)}] {drawing.form('R', PARAMS, 2 + seed % 3)})"


def arguments(seed: int, n: int, m: int) -> tuple[Any, ...]:
    rng, sizes = np.random.default_rng([seed, n, m]), {"n": n, "m": m, "3": 3}
    dims = [tuple(sizes[d] for d in SHAPES.get(k, "")) for k in PARAMS.values()]
    return tuple(np.round(rng.normal(size=d), 3) if d else float(rng.normal()) for d in dims)


#: What nests add, of numbers and of loops over n, m and 3 by i, j and k; more than one axis each way round.
TERMS = {
    "": ["x", "(sin x)", "0.7"],
    "n": ["(get v i)", "(cos (get v i))", "(get s i i)"],
    "m": ["(get w j)", "(sin (get w j))"],
    "3": ["(get p k)"],
    "nm": ["(get a i j)", "(- (get v i) (get w j))", "(* (get v i) (get w j))"],
    "n3": ["(get y i k)", "(- (get y i k) (get p k))"],
}
SUBSCRIPT = {"n": "i", "m": "j", "3": "k"}
DECLARED = "#^ Real x #^ (Vec n) v #^ (Vec m) w #^ (Vec 3) p #^ (Mat n m) a #^ (Mat n n) s #^ (Mat n 3) y"


class Nest:
    """Draws loops that add products to numbers and elements, by ``set-at!`` and by ``build``, as users write them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.terms = {axes: list(terms) for axes, terms in TERMS.items()}

    def some(self, among: str, least: int = 0) -> str:
        """Some of these axes, in any order."""
        return "".join(self.random.sample(among, self.random.randint(least, len(among))))

    def within(self, axes: str) -> list[str]:
        return [t for d, terms in self.terms.items() if set(d) <= set(axes) for t in terms]

    def term(self, axes: str) -> str:
        known, widest = self.within(axes), [t for d, ts in self.terms.items() if set(d) == set(axes) for t in ts]
        chosen = self.random.sample(known, self.random.randint(1, min(3, len(known))))
        chosen = [*chosen, self.random.choice(widest)] if widest else chosen
        product = chosen[0] if len(chosen) == 1 else f"({self.random.choice('***+')} {' '.join(chosen)})"
        if axes and self.random.random() < 0.15:
            return f"(if (> {self.random.choice(known)} 0.1) {product} 0.0)"
        return product

    def sum(self, axes: str, over: str) -> str:
        """A number: a sum over some axes inside others, in one number or in one for each."""
        if not over:
            return self.term(axes)
        name = SUBSCRIPT[over[0]]
        if len(over) > 1 and self.random.random() < 0.5:
            term = f"(+ q {self.term(axes + over)})"
            for d in reversed(over):
                term = f"(ifold (fn [q {SUBSCRIPT[d]}] {term}) q {SIZES[d]})"
            return f"(let [q 0.0] {term})"
        inner = self.sum(axes + over[0], over[1:])
        return f"(ifold (fn [q {name}] (+ q {inner})) {self.random.choice(['0.0', 'x'])} {SIZES[over[0]]})"

    def array(self, k: int) -> str:
        """``r1 (build ..)``: an array of sums, which later terms read."""
        axes = self.some("nm3", 1)[:2]
        over = self.some("".join(d for d in "nm3" if d not in axes))
        names = " ".join(SUBSCRIPT[d] for d in axes)
        text = f"(build [{' '.join(SIZES[d] for d in axes)}] (fn [{names}] {self.sum(axes, over)}))"
        self.terms.setdefault(axes, []).append(f"(get r{k} {names})")
        return f"r{k} {text}"

    def addition(self, axes: str) -> str:
        """A statement: one more term of a number, of an element, or of one that each iteration adds to."""
        name = self.random.choice([f for f in ("", "n", "m", "3", "nm", "n3") if set(f) <= set(axes)])
        if not name:
            return f"(set! t (+ (deref t) {self.term(axes)}))"
        where = " ".join(SUBSCRIPT[d] for d in name)
        return f"(set-at! b{name} {where} ({self.random.choice('+++-')} (get b{name} {where}) {self.term(axes)}))"

    def block(self, axes: str, depth: int) -> str:
        made = []
        for _ in range(self.random.choice([1, 1, 2])):
            left = [d for d in SIZES if d not in axes]
            if left and depth and self.random.random() < 0.8:
                d = self.random.choice(left)
                made.append(f"(for [{SUBSCRIPT[d]} (range {SIZES[d]})] {self.block(axes + d, depth - 1)})")
            else:
                made.append(self.addition(axes))
        return " ".join(made)


def nest(seed: int) -> str:
    """A model of ``PARAMS`` that makes sums in many orders, and gives all of them."""
    drawing = Nest(seed)
    arrays = [drawing.array(k) for k in range(seed % 4)]
    sums = "t (ref 0.1) bn (* 0.3 v) bm (copy w) b3 (* 0.7 p) bnm (copy a) bn3 (* 0.1 y)"
    body = drawing.block("", 3) if seed % 4 < 3 else ""
    given = " ".join(f"r{k}" for k in range(len(arrays)))
    whole = f"(let [{' '.join(arrays)} {sums}] {body} #((deref t) bn bm b3 bnm bn3 {given}))"
    return f"(fn [{DECLARED}] {whole})"
