"The textbook: the papers' figures, by their names, on bare s-expressions.

A rule stands here as it stands in the paper, its equation above it; what
hyad compiles with is the engine. Each figure is a function from forms to
forms and a macro that calls it, so that `hy.macroexpand` shows the figure's
right-hand side and evaluating the macro gives its value:

    (symdiff (* x x) x)  =>  (+ (* 1 x) (* x 1))

\"Lantern\" is: Wang, Zheng, Decker, Wu, Essertel, Rompf, Demystifying
Differentiable Programming: Shift/Reset the Penultimate Backpropagator, ICFP
2019. Its primes are dots here, for `'` ends a symbol: y′ is ẏ."

(import
  itertools [count]
  unicodedata [normalize])
(import
  hy.models [Expression List Symbol]
  hyad.errors [DerivativeError])

;; ------------------------------------------------------------------ forms

(defn head [e]
  "The operator of a call, as a string; None for numbers and names."
  (when (and (isinstance e Expression) e)
    (str (get e 0))))

(defn text [e]
  "`e` as it is written, without a quote."
  (cut (hy.repr e) 1 None))

(defn number? [e]
  (isinstance e #(int float)))

(defn pairs [bindings]
  "The names and the expressions of a `let`, two by two."
  (zip (cut bindings 0 None 2) (cut bindings 1 None 2)))

(defn tangent [y]
  "The name of y's tangent, the paper's y′: a dot over the first letter."
  (Symbol (normalize "NFKC" (+ (get y 0) "\u0307" (cut y 1 None)))))

(defn leaves [e]
  "Every number and name in `e`, operators included, left to right."
  (setv stack [e])
  (while stack
    (setv top (.pop stack))
    (if (isinstance top #(Expression List))
        (.extend stack (reversed top))
        (yield top))))

(defn size [e]
  "How many numbers and names `e` is written with: its nodes."
  (sum (gfor  _ (leaves e)  1)))

(defn substitute [e env]
  "`e` with its free names replaced as the dict `env` says."
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

;; -------------------------------------- Lantern 2.1: school differentiation

(setv SCHOOL {
  "sin"  (fn [u] `(cos ~u))
  "cos"  (fn [u] `(- (sin ~u)))
  "exp"  (fn [u] `(exp ~u))
  "log"  (fn [u] `(/ 1 ~u))
  "sqrt" (fn [u] `(/ 1 (* 2 (sqrt ~u))))})

(defn d/dx [e x [bound (frozenset)]]
  "Lantern Fig. 1: symbolic differentiation with lets, d/dx⟦e⟧.

  The sums and products of the figure may have any number of terms, a `let`
  any number of names: `(let [y e1  z e2] e3)` is one let inside the other.
  Below the figure's rules stand the others that schools teach. `bound` are
  the names that lets around `e` have bound; any other name but x is a
  constant. As in the paper, a let may bind neither x nor a name twice
  (`anf` renames them)."
  (defn d [e]
    (d/dx e x bound))
  (setv op (head e)
        es (if op (cut e 1 None) []))
  (cond
    ;; d/dx⟦c⟧ = 0
    (number? e) '0
    ;; d/dx⟦x⟧ = 1
    (= e x) '1
    ;; d/dx⟦y⟧ = y′  (y ≠ x)
    (in e bound) (tangent e)
    (isinstance e Symbol) '0
    ;; d/dx⟦e1 + e2⟧ = d/dx⟦e1⟧ + d/dx⟦e2⟧
    (= op "+") `(+ ~@(map d es))
    ;; d/dx⟦e1 * e2⟧ = d/dx⟦e1⟧ * e2 + e1 * d/dx⟦e2⟧
    (= op "*")
      `(+ ~@(lfor  [i ei] (enumerate es)
              `(* ~@(cut es i) ~(d ei) ~@(cut es (+ i 1) None))))
    ;; d/dx⟦let y = e1 in e2⟧ = let y = e1 in let y′ = d/dx⟦e1⟧ in d/dx⟦e2⟧
    (= op "let")
      (do
        (setv [bindings e2] es  both [])
        (for [[y e1] (pairs bindings)]
          (when (or (= y x) (in y bound))
            (raise (DerivativeError f"`{y}` is bound twice"
              :hint (+ "give every name of the expression one meaning, "
                       "or convert it with `anf`, which does"))))
          (.extend both [y e1 (tangent y) (d/dx e1 x bound)])
          (setv bound (| bound #{y})))
        `(let [~@both] ~(d/dx e2 x bound)))
    ;; d/dx⟦e1 - e2⟧ = d/dx⟦e1⟧ - d/dx⟦e2⟧
    (= op "-") `(- ~@(map d es))
    ;; d/dx⟦e1 / e2⟧ = (d/dx⟦e1⟧ * e2 - e1 * d/dx⟦e2⟧) / (e2 * e2)
    (and (= op "/") (= (len es) 2))
      (do
        (setv [e1 e2] es)
        `(/ (- (* ~(d e1) ~e2) (* ~e1 ~(d e2))) (* ~e2 ~e2)))
    ;; d/dx⟦e1 ** c⟧ = c * e1 ** (c - 1) * d/dx⟦e1⟧
    (and (= op "**") (number? (get es 1)))
      (do
        (setv [e1 c] es)
        `(* ~c (** ~e1 ~(hy.as-model (- c 1))) ~(d e1)))
    ;; d/dx⟦f(e1)⟧ = f′(e1) * d/dx⟦e1⟧
    (in op SCHOOL)
      (do
        (setv [e1] es)
        `(* ~((get SCHOOL op) e1) ~(d e1)))
    True
      (raise (DerivativeError f"school teaches no derivative of `{(text e)}`"
        :hint (+ "the table has + - * / let, ** with a number as exponent, "
                 "and " (.join " " SCHOOL))))))

(defn without-lets [e]
  "`e` with every let-bound name replaced by its expression.

  What is used twice is then written twice: this is where symbolic
  differentiation got its bad name (Lantern 2.1)."
  (cond
    (= (head e) "let")
      (do
        (setv [_ bindings body] e  env {})
        (for [[y e1] (pairs bindings)]
          (setv (get env y) (substitute (without-lets e1) env)))
        (substitute (without-lets body) env))
    (isinstance e Expression) (Expression (map without-lets e))
    True e))

(defn tidy [e]
  "`e` without the zeros and ones that the rules leave behind, as a pupil
  would write it: 0 + e = e, e - 0 = e, 0 - e = -e, 1 * e = e, 0 * e = 0."
  (when (not (isinstance e Expression))
    (return e))
  (setv op (head e))
  (when (= op "let")
    (setv [_ bindings body] e)
    (return `(let [~@(gfor  [y e1] (pairs bindings)  a [y (tidy e1)]  a)]
               ~(tidy body))))
  (setv es (lfor  a (cut e 1 None)  (tidy a)))
  (defn is? [c a]
    (and (number? a) (= (float a) c)))
  (defn but [c]
    (lfor  a es  :if (not (is? c a))  a))
  (defn joined [es unit]
    (match (len es)
      0 unit
      1 (get es 0)
      _ `(~(get e 0) ~@es)))
  (cond
    (= op "+") (joined (but 0) '0)
    (and (= op "*") (any (gfor  a es  (is? 0 a)))) '0
    (= op "*") (joined (but 1) '1)
    (and (= op "-") (= (len es) 2) (is? 0 (get es 1))) (get es 0)
    (and (= op "-") (is? 0 (get es 0)) (= (len es) 2))
      (if (number? (get es 1))
          (hy.as-model (- (get es 1)))
          `(- ~(get es 1)))
    (and (= op "-") (= (len es) 1) (is? 0 (get es 0))) '0
    True `(~(get e 0) ~@es)))

;; ------------------------------------ Lantern 2.1: administrative normal form

(defn free-names [e]
  "The names that `e` uses and does not bind, operators left out."
  (cond
    (isinstance e Symbol) #{e}
    (= (head e) "let")
      (do
        (setv [_ bindings body] e)
        (setv free #{}  bound #{})
        (for [[y e1] (pairs bindings)]
          (|= free (- (free-names e1) bound))
          (.add bound y))
        (| free (- (free-names body) bound)))
    (isinstance e Expression)
      (.union #{} #* (map free-names (cut e 1 None)))
    True #{}))

(defn anf [e #* reserved]
  "`e` in administrative normal form (Lantern 2.1): one let that binds every
  intermediate result, each one operation on names and numbers.

  Names that lets of `e` bind are kept where they have no other meaning and
  are not `reserved` (the x that one differentiates by); all others are y1,
  y2, ... A sum or product of n terms becomes n - 1 of two."
  (setv bindings []
        taken (| (free-names e) (set reserved))
        names (| taken (set (leaves e)))
        fresh (gfor  i (count 1)
                :setv y (Symbol f"y{i}")
                :if (not-in y names)
                y))
  (defn bind [form name]
    (setv y (if (or (is name None) (in name taken)) (next fresh) name))
    (.add taken y)
    (.extend bindings [y form])
    y)
  (defn atom [e env [name None]]
    "The number or name that stands for `e` after the bindings."
    (setv op (head e))
    (cond
      (isinstance e Symbol) (.get env e e)
      (number? e) e
      (= op "let")
        (do
          (setv [_ inner body] e  env (dict env))
          (for [[y e1] (pairs inner)]
            (setv (get env y) (atom e1 env y)))
          (atom body env name))
      (is op None)
        (raise (DerivativeError f"`{(text e)}` is no textbook expression"
          :hint "it knows numbers, names, let and calls"))
      True
        (do
          (setv parts (lfor  a (cut e 1 None)  (atom a env)))
          (while (and (in op ["+" "*"]) (> (len parts) 2))
            (setv [p1 p2 #* more] parts
                  parts [(bind `(~(get e 0) ~p1 ~p2) None) #* more]))
          (bind `(~(get e 0) ~@parts) name))))
  (setv result (atom e {}))
  (if bindings `(let [~@bindings] ~result) result))

;; ------------------------------------------ Lantern 2.1: forward-mode AD

(defn partial [e i]
  "d/dp⟦e⟧ for p the i-th operand of `e`, the other operands constant."
  (setv p (Symbol "□")
        operands (list (cut e 1 None))
        actual (get operands i)
        (get operands i) p)
  (substitute (tidy (d/dx `(~(get e 0) ~@operands) p)) {p actual}))

(defn forward [e x]
  "Lantern Fig. 2: forward-mode AD of a straight-line program.

      let yt = p1 ⊕ p2 in
      let y′t = d/dp1⟦p1 ⊕ p2⟧ * p′1 + d/dp2⟦p1 ⊕ p2⟧ * p′2 in ... y′n

  `e` is converted by `anf` first. x′ is bound to 1; the tangent of a
  constant is 0, and its term is left out."
  (setv e (anf e x)
        [bindings result] (if (= (head e) "let") (cut e 1 None) [[] e])
        active #{x}
        both [(tangent x) '1])
  (defn prime [p]
    (if (in p active) (tangent p) '0))
  (for [[y op] (pairs bindings)]
    (setv dy (tidy `(+ ~@(lfor  [i p] (enumerate (cut op 1 None))
                           :if (in p active)
                           `(* ~(partial op i) ~(prime p))))))
    (.extend both [y op])
    (when (not (number? dy))
      (.extend both [(tangent y) dy])
      (.add active y)))
  `(let [~@both] ~(prime result)))

;; ---------------------------------------------------------------- macros

(defmacro symdiff [e x]
  "The derivative of the expression `e` by x: the right-hand side of Fig. 1."
  (import hyad.macros.textbook [d/dx])
  (d/dx e x))

(defmacro symdiff-without-lets [e x]
  "The same without lets: each is replaced by what it binds, beforehand."
  (import hyad.macros.textbook [d/dx without-lets])
  (d/dx (without-lets e) x))

(defmacro to-anf [e]
  "`e` in administrative normal form."
  (import hyad.macros.textbook [anf])
  (anf e))

(defmacro symdiff-forward [e x]
  "Forward-mode AD of `e` by x: the right-hand side of Fig. 2."
  (import hyad.macros.textbook [forward])
  (forward e x))
