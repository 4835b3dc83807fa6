"The textbook's language: Lantern Fig. 3, as bare s-expressions and in Python.

    e ::= c | x | (+ e e) | (* e e) | (fn [x ..] e) | (e e ..)
        | (let [x e ..] e) | #(e e ..) | (fst e) | (snd e) | (get e 0)
        | (ref e) | (deref r) | (set! r e) | (inl e) | (inr e)
        | (case e (inl x) e (inr y) e)

and, as the figure derives them, (if b e e), (letrec [f (fn ..) ..] e) and
(do e ..); `(let [[x y] e] ..)`, and `(add! r e)` for its `r += e`;
comparisons; beside + and * the operations of school. What the figures give
back is written in the same language, so that a figure can be applied to
another's result. To run it:

    (import hyad.macros.textbook [fst snd ref deref set! add! inl inr])
    (require hyad.macros.textbook [case letrec])"

(import
  itertools [count]
  queue [SimpleQueue]
  threading
  unicodedata [normalize])
(import
  hy.models [Expression List Symbol Tuple]
  hyad.errors [DerivativeError HyadError Source Span])

;; ------------------------------------------------------------------ forms

(defn head [e]
  "The operator of a call, as a string; None for what is no call of a name."
  (when (and (isinstance e Expression) e (isinstance (get e 0) Symbol))
    (str (get e 0))))

(defn text [e]
  "`e` as it is written, without a quote."
  (setv written (hy.repr e))
  (if (.startswith written "'") (cut written 1 None) written))

(defn number? [e]
  (and (isinstance e #(int float)) (not (isinstance e bool))))

(setv CONSTANTS (set (map Symbol ["True" "False" "None"])))

(defn constant? [e]
  "Whether `e` is a constant that is no number."
  (if (isinstance e Symbol)
      (in e CONSTANTS)
      (isinstance e #(str bytes hy.models.Keyword))))

(defn name? [e]
  (and (isinstance e Symbol) (not-in e CONSTANTS)))

(defn pairs [bindings]
  "The names and the expressions of a `let`, two by two."
  (zip (cut bindings 0 None 2) (cut bindings 1 None 2)))

(defn marked [y mark]
  "The name y with a mark over its first letter."
  (Symbol (normalize "NFKC" (+ (get y 0) mark (cut y 1 None)))))

(defn tangent [y]
  "The name of y's tangent, the paper's y′: a dot over the first letter."
  (marked y "\u0307"))

(defn hat [y]
  "The paper's ŷ: y together with its derivative."
  (marked y "\u0302"))

(defn leaves [e]
  "Every number and name in `e`, operators included, left to right."
  (setv stack [e])
  (while stack
    (setv top (.pop stack))
    (if (isinstance top #(Expression List Tuple))
        (.extend stack (reversed top))
        (yield top))))

(defn size [e]
  "How many numbers and names `e` is written with: its nodes."
  (sum (gfor  _ (leaves e)  1)))

(defn substitute [e env]
  "`e`, numbers, calls and lets, with its free names replaced as `env` says."
  (cond
    (isinstance e Symbol) (.get env e e)
    (= (head e) "let")
      (do
        (setv [_ bindings body] e  kept []  env (dict env))
        (for [[y e1] (pairs bindings)]
          (.extend kept [y (substitute e1 env)])
          (.pop env y None))
        `(let [~@kept] ~(substitute body env)))
    (isinstance e Expression)
      (Expression [(get e 0) #* (gfor  a (cut e 1 None)  (substitute a env))])
    True e))

(defn fresh-names [stem taken]
  "stem1, stem2, ..., those left out that are `taken` by then."
  (gfor  i (count 1)
    :setv y (Symbol f"{stem}{i}")
    :if (not-in y taken)
    y))

;; --------------------------------------------------------------- mistakes

(defn about [e error]
  "The error, marked with the form to underline."
  (setv error.form e)
  error)

(defn placed [form e]
  "`form`, which stands for `e` of the user's text."
  (if (isinstance form hy.models.Sequence)
      (.replace form e :recursive False)
      form))

(defn outside [e language [hint None]]
  "The error for a form that a figure's language does not have."
  (setv e (getattr e "written" e))
  (about e (DerivativeError f"{language} has no `{(text e)}`" :hint hint)))

(defn operation [e language]
  "`e`, an operation of school with operands as it should have."
  (setv op (head e)  n (- (len e) 1))
  (cond
    (and (= op "**") (not (and (= n 2) (number? (get e 2)))))
      (raise (outside e language "an exponent is a number that is written out"))
    (not (cond
           (in op ["+" "*"]) (>= n 2)
           (= op "-") (>= n 1)
           (in op ["/" "**"]) (= n 2)
           True (= n 1)))
      (raise (outside e language f"`{op}` takes another number of operands")))
  e)

(defn span-of [compiler e]
  "Where a form stands in the source that is being compiled, if anywhere."
  (setv source (getattr compiler "source" None))
  (when (and source (hasattr e "_start_line") (hasattr e "_end_line"))
    (setv starts [0])
    (for [line (.splitlines source :keepends True)]
      (.append starts (+ (get starts -1) (len line))))
    (when (< e.end-line (len starts))
      (Span (Source source (or (getattr compiler "filename" None) "<hy>"))
            (+ (get starts (- e.start-line 1)) (- e.start-column 1))
            (+ (get starts (- e.end-line 1)) e.end-column)))))

(setv DEEPEST 50)  ; Hy compiles some 60 lets in one another, ever more slowly

(defn nesting [form]
  "How many lets stand in one another in `form`, at most."
  (setv deepest 0  stack [#(form 0)])
  (while stack
    (setv [top depth] (.pop stack))
    (when (isinstance top #(Expression List Tuple))
      (+= depth (= (head top) "let"))
      (setv deepest (max deepest depth))
      (.extend stack (gfor  a top  #(a depth)))))
  deepest)

(defn shown [compiler figure #* args]
  "What a macro expands to: the figure's right-hand side for these forms. A
  mistake underlines the form that it is about, and so does a right-hand side
  that is nested more deeply than Hy compiles."
  (try
    (setv form (figure #* args)
          depth (nesting form))
    (when (> depth DEEPEST)
      (raise (about (get args 0) (DerivativeError
        f"the figure gives {depth} lets in one another; Hy compiles {DEEPEST}"
        :hint (+ "write a loop with letrec, or take a figure that does not "
                 "nest: `grad-shift`, `grad-closures`")))))
    form
    (except [error HyadError]
      (setv form (getattr error "form" None))
      (when (and (is error.span None) (is-not form None))
        (setv error.span (span-of compiler form)))
      (raise error))))

;; ------------------------------------------------- Fig. 3 in Python's terms

(defn fst [p] "The first of a pair." (get p 0))

(defn snd [p] "The second of a pair." (get p 1))

(defclass Ref []
  "A mutable cell, by identity."
  (setv __slots__ #("value"))
  (defn __init__ [self value]
    (setv self.value value))
  (defn __repr__ [self]
    f"(ref {(hy.repr self.value)})"))

(defn ref [e] "A new cell that holds `e`." (Ref e))

(defn deref [r] "The paper's ! r." r.value)

(defn set! [r e] "The paper's r := e." (setv r.value e))

(defn add! [r e] "The paper's r += e." (setv r.value (+ r.value e)))

(defclass Sum []
  "A value of a sum: its side, inl or inr, and what was injected."
  (setv __slots__ #("side" "value"))
  (defn __init__ [self side value]
    (setv self.side side  self.value value))
  (defn __eq__ [self that]
    (and (isinstance that Sum) (= self.side that.side)
         (= self.value that.value)))
  (defn __repr__ [self]
    f"({self.side} {(hy.repr self.value)})"))

(defn inl [e] "`e` as a value of the left side of a sum." (Sum "inl" e))

(defn inr [e] "`e` as a value of the right side of a sum." (Sum "inr" e))

;; shift and reset of Fig. 3. A reset runs its body in a thread of its own,
;; which a shift puts to sleep: calling the continuation wakes it. So a
;; continuation can be called once ("Threads yield continuations", Kumar,
;; Bruggeman, Dybvig 1998), which is all that reverse mode asks for.

(setv running (threading.local))

(defclass Abandoned [BaseException]
  "Unwinds a body whose continuation nobody can call any more.")

(defclass Reset []
  (defn __init__ [self body]
    (setv self.said (SimpleQueue)  self.told (SimpleQueue))
    (.start (threading.Thread :target self.run :args [body] :daemon True)))

  (defn run [self body]
    (setv running.reset self)
    (try
      (.put self.said #("value" (body)))
      (except [error BaseException]
        (.put self.said #("error" error)))))

  (defn answer [self]
    "What the reset is worth, once its body has returned, or has shifted: the
    value of the shift's body, given the rest."
    (setv [kind it] (.get self.said))
    (cond
      (= kind "value") it
      (= kind "error") (raise it)
      True
        (do
          (setv calls (count 1))
          (it (fn [v]
                (when (> (next calls) 1)
                  (raise (HyadError "this continuation has returned already" None
                           "Python's threads allow one call of it")))
                (.put self.told #("value" v))
                (.answer self))))))

  (defn shift [self body]
    (.put self.said #("shift" body))
    (setv [kind it] (.get self.told))
    (when (= kind "abandon")
      (raise (Abandoned)))
    it))

(defn reset [body]
  "⟨ body() ⟩: what a shift inside captures reaches up to here."
  (setv delimiter (Reset body))
  (try
    (.answer delimiter)
    (finally (.put delimiter.told #("abandon" None)))))

(defn shift0 [body]
  "`body(k)` in place of the nearest reset around, where k is the rest up to
  it. `body` runs outside of that reset: its own shifts reach the next one."
  (setv delimiter (getattr running "reset" None))
  (when (is delimiter None)
    (raise (HyadError "a shift needs a reset around it" None
                      "`(reset (fn [] ..))` around the whole computation")))
  (.shift delimiter body))

(defn shift [body]
  "shift k in body(k): as `shift0`, inside a reset of its own."
  (shift0 (fn [k] (reset (fn [] (body k))))))

;; -------------------------------------- Lantern 2.1: administrative normal form

(setv OPERATIONS (frozenset ["+" "-" "*" "/" "**" "sin" "cos" "exp" "log" "sqrt"])
      COMPARISONS (frozenset ["<" "<=" ">" ">=" "=" "!=" "not"])
      CELLS (frozenset ["fst" "snd" "ref" "deref" "set!" "inl" "inr"])
      CONTROL (frozenset ["fn" "if" "case" "letrec"])
      KNOWN (| OPERATIONS COMPARISONS CELLS #{"add!" "get"}))

(defn free [x language]
  "x, a name that nothing binds: a constant number."
  (when (in (str x) KNOWN)
    (raise (outside x (+ language ", where a value is asked for,")
             f"write the function out: `(fn [u] ({x} u))`")))
  x)

(defn element [e language]
  "The tuple and the index of `(get e i)`."
  (when (not (and (= (len e) 3) (isinstance (get e 2) int)))
    (raise (outside e language "an index is a number that is written out")))
  #((get e 1) (get e 2)))

(defn sequence [es]
  "The body of a `fn`, a `let` or a `do`: one expression."
  (if (= (len es) 1) (get es 0) `(do ~@es)))

(defn names? [xs]
  "Whether these can be bound: names, and none of the language's own."
  (all (gfor  x xs  (and (name? x) (not-in (str x) KNOWN)))))

(defn targets [y]
  "The names that a let binds at once: y, or those of a pattern `[x y]`."
  (if (isinstance y List) (list y) [y]))

(defn parameters [e]
  "The names that `(fn [x ..] ..)` binds."
  (when (not (and (> (len e) 2) (isinstance (get e 1) List)
                  (names? (get e 1))))
    (raise (outside e "the textbook's language"
             "a function is `(fn [x ..] e)`, its parameters plain names")))
  (list (get e 1)))

(defn parts [e]
  "The bindings of a `let` or `letrec`, two by two, and its body; the scrutinee
  of a `case`, and for each side its name and its expression."
  (setv sides [])
  (cond
    (in (head e) ["let" "letrec"])
      (when (and (> (len e) 2) (isinstance (get e 1) List)
                 (not (% (len (get e 1)) 2))
                 (names? (gfor  y (cut (get e 1) 0 None 2)
                           x (if (= (head e) "let") (targets y) [y])
                           x)))
        (return #((list (pairs (get e 1))) (sequence (cut e 2 None)))))
    (= (len e) 6)
      (for [[tag p e1] (zip ["inl" "inr"] (cut e 2 None 2) (cut e 3 None 2))]
        (when (and (= (head p) tag) (= (len p) 2) (names? [(get p 1)]))
          (.append sides #((get p 1) e1)))))
  (when (= (len sides) 2)
    (return #((get e 1) sides)))
  (raise (outside e "the textbook's language"
           (+ "it is `(let [x e ..] e)`, `(letrec [f (fn ..) ..] e)`, "
              "`(case e (inl x) e (inr y) e)`"))))

(defn binders [e]
  "Every name that something in `e` binds."
  (setv bound #{}  stack [e])
  (while stack
    (setv top (.pop stack)  op (head top))
    (when (isinstance top #(Expression Tuple List))
      (.extend stack top))
    (cond
      (= op "fn") (.update bound (parameters top))
      (in op ["let" "letrec"])
        (.update bound (gfor  [y _] (get (parts top) 0)  x (targets y)  x))
      (= op "case") (.update bound (gfor  [y _] (get (parts top) 1)  y))))
  bound)

(defn applies? [e bound]
  "Whether `e` calls a function: one that is written out or `bound`."
  (and (isinstance e Expression) (bool e)
       (or (isinstance (get e 0) Expression) (in (get e 0) bound))))

(defn free-names [e]
  "The names that `e` uses and does not bind, known operators left out."
  (setv op (head e))
  (cond
    (name? e) #{e}
    (in op ["let" "letrec"])
      (do
        (setv [bindings body] (parts e)
              free #{}
              bound (if (= op "letrec") (set (gfor  [f _] bindings  f)) #{}))
        (for [[y e1] bindings]
          (|= free (- (free-names e1) bound))
          (.update bound (targets y)))
        (| free (- (free-names body) bound)))
    (= op "fn")
      (- (free-names (sequence (cut e 2 None))) (set (parameters e)))
    (= op "case")
      (do
        (setv [v [[y1 e1] [y2 e2]]] (parts e))
        (| (free-names v) (- (free-names e1) #{y1}) (- (free-names e2) #{y2})))
    (isinstance e #(Expression Tuple))
      (.union #{} #* (map free-names
                          (if (in op (| KNOWN #{"if" "do"})) (cut e 1 None) e)))
    True #{}))

(defn added [e]
  "What `(add! r e)` is short for, the paper's r += e."
  (when (!= (len e) 3)
    (raise (outside e "the textbook's language" "it is `(add! r e)`")))
  (setv [_ r e1] e
        c (Symbol "cell"))
  (while (in c (leaves e))
    (setv c (Symbol (+ c "s"))))
  `(let [~c ~r] (set! ~c (+ (deref ~c) ~e1))))

(defn anf [e #* reserved]
  "`e` in administrative normal form (Lantern 2.1): one let that binds every
  intermediate result, each one operation on names and numbers. Bodies of
  functions and branches have lets of their own.

  Names that `e` binds are kept where they have no other meaning and are not
  `reserved` (the x that one differentiates by); all others are y1, y2, ...:
  every name then has one meaning, Barendregt's convention. A sum or product
  of n terms becomes n - 1 of two."
  (setv taken (| (free-names e) (set reserved))
        names (| taken (set (leaves e)))
        fresh (fresh-names "y" names))
  (defn fit [name]
    "`name`, or a new one where it has a meaning already."
    (setv y (if (or (is name None) (in name taken)) (next fresh) name))
    (.add taken y)
    y)
  (defn bind [form name out]
    (setv y (fit name))
    (.extend out [y form])
    y)
  (defn rest [e]
    "What a `do` is short for: a let of names that nobody uses."
    (setv es (cut e 1 None)  bindings [])
    (for [e1 (cut es 0 -1)]
      (.extend bindings [(next fresh) e1]))
    `(let [~@bindings] ~(get es -1)))
  (defn define [y e env out]
    "`env` after `(let [y e] ..)`. A pattern takes a tuple apart."
    (if (isinstance y List)
        (do
          (setv tuple (atom e env out))
          {#** env
           #** (dfor  [i x] (enumerate y)
                 :setv i (hy.as-model i)
                 x (bind `(get ~tuple ~i) x out))})
        {#** env  y (atom e env out y)}))
  (defn atom [e env out [name None]]
    "The number or name that stands for `e` after the bindings in `out`."
    (setv op (head e))
    (cond
      (isinstance e Symbol) (.get env e (free e "the textbook's language"))
      (or (number? e) (constant? e)) e
      (= op "let")
        (do
          (setv [inner body] (parts e))
          (for [[y e1] inner]
            (setv env (define y e1 env out)))
          (atom body env out name))
      (= op "do") (atom (rest e) env out name)
      (= op "add!") (atom (added e) env out name)
      True (bind (placed (simple e env out) e) name out)))
  (defn block [e env]
    "`e` with a let of its own. What is no arithmetic may stay last in it."
    (setv out [])
    (defn last [e env]
      (setv op (head e))
      (cond
        (= op "let")
          (do
            (setv [inner body] (parts e))
            (for [[y e1] inner]
              (setv env (define y e1 env out)))
            (last body env))
        (= op "do") (last (rest e) env)
        (or (in op (| CONTROL CELLS #{"get"})) (isinstance e Tuple) (applies? e env))
          (placed (simple e env out) e)
        True (atom e env out)))
    (setv result (last e env))
    (if out `(let [~@out] ~result) result))
  (defn simple [e env out]
    "`e` with atoms for operands."
    (setv op (head e))
    (cond
      (= op "fn")
        (do
          (setv xs (parameters e)
                ys (lfor  x xs  (fit x))
                env {#** env #** (dict (zip xs ys))})
          `(fn [~@ys] ~(block (sequence (cut e 2 None)) env)))
      (and (= op "if") (= (len e) 4))
        (do
          (setv c (atom (get e 1) env out))
          `(if ~c ~@(gfor  branch (cut e 2 None)  (block branch env))))
      (= op "case")
        (do
          (setv [v sides] (parts e)
                form `(case ~(atom v env out)))
          (for [[tag [x e1]] (zip ['inl 'inr] sides)]
            (setv y (fit x)
                  form `(~@form (~tag ~y) ~(block e1 {#** env x y}))))
          form)
      (= op "letrec")
        (do
          (setv [bindings body] (parts e)
                env {#** env #** (dfor  [f _] bindings  f (fit f))})
          `(letrec [~@(gfor  [f e1] bindings
                        part [(get env f) (simple e1 env out)]
                        part)]
             ~(block body env)))
      (isinstance e Tuple)
        (Tuple (lfor  a e  (atom a env out)))
      (not (and (isinstance e Expression) e))
        (raise (outside e "the textbook's language"
                 "it knows numbers, names, let, fn, if, case, pairs and calls"))
      True
        (do
          (setv f (get e 0)
                f (if (and (in op KNOWN) (not-in f env)) f (atom f env out))
                operands (lfor  a (cut e 1 None)  (atom a env out)))
          (while (and (in op ["+" "*"]) (> (len operands) 2))
            (setv [p1 p2 #* more] operands
                  operands [(bind `(~f ~p1 ~p2) None out) #* more]))
          `(~f ~@operands))))
  (block e {}))
