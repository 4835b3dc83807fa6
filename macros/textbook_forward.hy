"Lantern section 2: forward mode is symbolic differentiation.

Figs. 1, 2 and 4 are functions from forms to forms, each with a macro; Fig. 5
and section 2.5 are classes of numbers."

(import
  itertools [count]
  hy.models [Expression List Symbol Tuple]
  hyad.errors [DerivativeError]
  hyad.macros.textbook-forms [CELLS COMPARISONS OPERATIONS about added anf
                              applies? binders constant? element
                              free fresh-names head leaves number? operation
                              outside pairs parameters parts sequence
                              substitute tangent text]
  hyad.macros.textbook-numbers [Operators])

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
            (raise (about e (DerivativeError f"`{y}` is bound twice"
              :hint (+ "give every name of the expression one meaning, "
                       "or convert it with `anf`, which does")))))
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
      (raise (about e
        (DerivativeError f"school teaches no derivative of `{(text e)}`"
          :hint (+ "the table has + - * / let, ** with a number as exponent, "
                   "and " (.join " " SCHOOL)))))))

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

;; --------------------------------------------- Lantern 2.2: lambda calculus

(defn rules [e inner bound figure]
  "The rules that only pass on to the parts of an expression, as interpreting
  the language does; they are the same in Figs. 4 and 9. `inner` transforms a
  part; `bound` are the names that can be called; `figure` is named where `e`
  is no expression of the language."
  (setv op (head e))
  (cond
    (= op "let")
      (do
        (setv [bindings body] (parts e))
        `(let [~@(gfor  [y e1] bindings  part [y (inner e1)]  part)]
           ~(inner body)))
    (= op "letrec")
      (do
        (setv [bindings body] (parts e))
        `(letrec [~@(gfor  [f e1] bindings  part [f (inner e1)]  part)]
           ~(inner body)))
    (= op "case")
      (do
        (setv [v [[y1 e1] [y2 e2]]] (parts e))
        `(case ~(inner v) (inl ~y1) ~(inner e1) (inr ~y2) ~(inner e2)))
    (= op "fn")
      `(fn [~@(parameters e)] ~(inner (sequence (cut e 2 None))))
    (in op CELLS)
      `(~(get e 0) ~@(map inner (cut e 1 None)))
    (= op "get")
      (do
        (setv [e1 i] (element e figure))
        `(get ~(inner e1) ~i))
    (in op ["if" "do"])
      (Expression [(get e 0) #* (map inner (cut e 1 None))])
    (isinstance e Tuple) (Tuple (map inner e))
    (applies? e bound) (Expression (map inner e))
    True (raise (outside e figure))))

(defn binary [e]
  "A sum or product of n terms as n - 1 of two, the first terms innermost."
  (setv [op e1 e2 #* more] e)
  (for [e3 more]
    (setv e1 `(~op ~e1 ~e2)  e2 e3))
  `(~op ~e1 ~e2))

(defn forward-lambda [f]
  "Lantern Fig. 4: forward mode for the lambda calculus.

      Transform(f) = λx. let ŷ = @ D⟦f⟧ (x, 1) in y′

  A number becomes the pair of itself and its tangent; all else stays as it
  is, functions, pairs, cells and sums included. A function of n parameters
  runs n times, once for each tangent of 1. A name that nothing binds is a
  constant number.

  The figure needs no A-normal form. Hy does where cells are set: it runs the
  statements of an argument before the arguments to its left."
  (when (!= (head f) "fn")
    (raise (outside f "Fig. 4" "it transforms a function, `(fn [x ..] e)`")))
  (when (& (set (leaves f)) #{'set! 'add!})
    (setv f (anf f)))
  (setv xs (parameters f)
        bound (binders f)
        fresh (fresh-names "y" (set (leaves f))))
  (defn D [e]
    (setv op (head e))
    (cond
      ;; D⟦c⟧ = c if c ∉ ℝ,  (c, 0) if c ∈ ℝ
      (constant? e) e
      (number? e) `#(~e 0)
      ;; D⟦y⟧ = y
      (in e bound) e
      (isinstance e Symbol) `#(~(free e "Fig. 4") 0)
      ;; D⟦e1 + e2⟧ = let ŷ1 = D⟦e1⟧ in let ŷ2 = D⟦e2⟧ in
      ;;              (y1 + y2, y′1 + y′2)
      ;; D⟦e1 * e2⟧ = let ŷ1 = D⟦e1⟧ in let ŷ2 = D⟦e2⟧ in
      ;;              (y1 * y2, y1 * y′2 + y′1 * y2)
      (and (in op ["+" "*"]) (> (len e) 3)) (D (binary e))
      (in op OPERATIONS)
        (do
          (setv es (cut (operation e "Fig. 4") 1 (if (= op "**") 2 None))
                ys (lfor  _ es  (next fresh))
                y `(~(get e 0) ~@ys ~@(cut e (+ 1 (len es)) None))
                dy (if (= op "*")
                       (do
                         (setv [y1 y2] ys)
                         `(+ (* ~y1 ~(tangent y2)) (* ~(tangent y1) ~y2)))
                       (tidy `(+ ~@(lfor  [i yi] (enumerate ys)
                                    `(* ~(partial y i) ~(tangent yi)))))))
          `(let [~@(gfor  [yi ei] (zip ys es)
                     part [(List [yi (tangent yi)]) (D ei)]
                     part)]
             #(~y ~dy)))
      (= op "add!")
        (do
          (setv form (added e))
          (.add bound (get form 1 0))
          (D form))
      ;; a truth value, of the numbers alone
      (in op COMPARISONS)
        (Expression [(get e 0)
                     #* (gfor  a (cut e 1 None)
                          (if (= op "not") (D a) `(fst ~(D a))))])
      ;; the others, the same as interpretation
      True (rules e D bound "Fig. 4")))
  (setv g (D f))
  (defn at [x]
    `#(~@(gfor  z xs  `#(~z ~(if (= z x) '1 '0)))))
  (setv y (next fresh)
        slopes (lfor  x xs
                 `(let [[~y ~(tangent y)] (~g ~@(at x))] ~(tangent y))))
  `(fn [~@xs]
     ~(if (= (len xs) 1) (get slopes 0) `#(~@slopes))))

;; ------------------------------------------- Lantern 2.3: operator overloading

(defclass NumF [Operators]
  "Lantern Fig. 5: a number with its tangent."
  (defn __init__ [self x [d 0.0]]
    (setv self.x x  self.d d))

  (defn __add__ [self that]
    (setv that (.lift self that))
    (NumF (+ self.x that.x) (+ self.d that.d)))

  (defn __mul__ [self that]
    (setv that (.lift self that))
    (NumF (* self.x that.x)
          (+ (* self.d that.x) (* that.d self.x))))

  (defn of [self f df]
    (NumF (f self.x) (* (df self.x) self.d))))

(defn gradF [f]
  "Lantern Fig. 5, grad: the derivative of a function of one number."
  (fn [x]
    (setv y (f (NumF x 1.0)))
    (. (.lift (NumF 0.0) y) d)))

;; -------------------------- Lantern 2.4, 2.5: nested gradients, told by their tags

(setv tags (count 1))

(defclass NumT [Operators]
  "Lantern 2.5: a number with its tangent, both perhaps such numbers again, and
  the tag of the `gradT` that it belongs to. What has another tag, or none, is
  a constant to it: without tags, the tangents of different gradients mix
  (perturbation confusion, 2.4)."
  (defn __init__ [self x d tag]
    (setv self.x x  self.d d  self.tag tag))

  (defn with-tag [self tag]
    (if (= self.tag tag) self (NumT self 0.0 tag)))

  (defn both [self that]
    "Both as numbers of the inner of their gradients: that has the later tag."
    (when (not (isinstance that NumT))
      (setv that (NumT that 0.0 self.tag)))
    (setv tag (max self.tag that.tag))
    #((.with-tag self tag) (.with-tag that tag) tag))

  (defn __add__ [self that]
    (setv [a b tag] (.both self that))
    (NumT (+ a.x b.x) (+ a.d b.d) tag))

  (defn __mul__ [self that]
    (setv [a b tag] (.both self that))
    (NumT (* a.x b.x) (+ (* a.d b.x) (* b.d a.x)) tag))

  (defn of [self f df]
    (NumT (f self.x) (* (df self.x) self.d) self.tag)))

(defn gradT [f]
  "Lantern 2.5, grad: first class, nests as deep as one likes."
  (fn [x]
    (setv tag (next tags)
          y (f (NumT x 1.0 tag)))
    (if (and (isinstance y NumT) (= y.tag tag)) y.d 0.0)))
