"Lantern section 3: reverse mode is a continuation that returns.

Every operation computes its value, lets the rest of the program run, and then
adds to the derivatives of what it was computed from. \"The rest of the
program\" is a continuation; the figures differ in who captures it. Figs. 9,
10 and 11 are functions from forms to forms, each with a macro; Figs. 7, 8, 12
and 13 and section 3.6 are classes of numbers.

Figs. 9 to 11 transform A-normal forms. Without, a rule such as D⟦! e⟧ =
λκ. D⟦e⟧(λy. @ κ (! y)) moves a read past a later write; and with it, the ŷ1
that the figures bind to D⟦e1⟧ has a name already: y1 is `(fst y1)` here, its
y′1 is `(snd y1)`."

(import
  itertools [count]
  hy.models [Expression Symbol Tuple]
  hyad.macros.textbook-forms [CELLS COMPARISONS OPERATIONS anf applies? binders
                              constant? element fresh-names hat head leaves number?
                              operation outside parameters parts reset
                              sequence shift shift0 substitute]
  hyad.macros.textbook-forward [partial rules]
  hyad.macros.textbook-numbers [Operators])

;; ------------------------------------------- Lantern 3.1: operator overloading

(defclass NumR0 [Operators]
  "Lantern Fig. 7: a number with its derivative, in continuation-passing style.

  `(+ a b)` and `(* a b)` are functions of the continuation k."
  (defn __init__ [self x [d 0.0]]
    (setv self.x x  self.d d))

  (defn __add__ [self that]
    (setv that (.lift self that))
    (fn [k]
      (setv y (NumR0 (+ self.x that.x)))
      (k y)
      (+= self.d y.d)
      (+= that.d y.d)))

  (defn __mul__ [self that]
    (setv that (.lift self that))
    (fn [k]
      (setv y (NumR0 (* self.x that.x)))
      (k y)
      (+= self.d (* that.x y.d))
      (+= that.d (* self.x y.d))))

  (defn of [self f df]
    (fn [k]
      (setv y (NumR0 (f self.x)))
      (k y)
      (+= self.d (* (df self.x) y.d)))))

(defn gradR0 [f]
  "Lantern Fig. 7, grad: `f` takes a number and gives a function of k.

      (gradR0 (fn [x] (fn [k]
        ((* 2 x) (fn [y1] ((* x x) (fn [y2] ((* y2 x) (fn [y3]
          ((+ y1 y3) k)))))))))"
  (fn [x]
    (setv z (NumR0 x))
    ((f z) (fn [r] (setv r.d 1.0)))
    z.d))

;; --------------------------------------------- Lantern 3.2: control operators

(defclass NumR [Operators]
  "Lantern Fig. 8: the same, each operator capturing its continuation itself."
  (defn __init__ [self x [d 0.0]]
    (setv self.x x  self.d d))

  (defn __add__ [self that]
    (setv that (.lift self that))
    (shift (fn [k]
      (setv y (NumR (+ self.x that.x)))
      (k y)
      (+= self.d y.d)
      (+= that.d y.d))))

  (defn __mul__ [self that]
    (setv that (.lift self that))
    (shift (fn [k]
      (setv y (NumR (* self.x that.x)))
      (k y)
      (+= self.d (* that.x y.d))
      (+= that.d (* self.x y.d)))))

  (defn of [self f df]
    (shift (fn [k]
      (setv y (NumR (f self.x)))
      (k y)
      (+= self.d (* (df self.x) y.d))))))

(defn gradR [f]
  "Lantern Fig. 8, grad: `f` is written as any function is."
  (fn [x]
    (setv z (NumR x))
    (reset (fn [] (setv (. (.lift z (f z)) d) 1.0)))
    z.d))

;; ------------------------------------- Lantern 3.3: rules for lambda calculus

(defn backwards [e dy bound figure]
  "Of p1 ⊕ p2: the operation on values, and for what follows the call of the
  continuation, Fig. 6: p′i += d/dpi⟦p1 ⊕ p2⟧ * !y′, `dy` being y′."
  (operation e figure)
  (setv values (dfor  p (cut e 1 None)  :if (in p bound)  p `(fst ~p)))
  #((substitute e values)
    (lfor  [i p] (enumerate (cut e 1 None))
      :if (in p bound)
      (do
        (setv factor (substitute (partial e i) values))
        `(add! (snd ~p) ~(if (= factor '1) `(deref ~dy) `(* (deref ~dy) ~factor)))))))

(defn compared [e bound]
  "A truth value, of the numbers alone: it has no derivative."
  (if (= (head e) "not")
      e
      (substitute e (dfor  p (cut e 1 None)  :if (in p bound)  p `(fst ~p)))))

(defn gradient [f D figure]
  "Transform(f) of Figs. 9 to 11: x̂ = (x, ref 0) for every parameter x, then
  what `D` makes of f for these, which sets the result's derivative to 1; then
  the derivatives of the parameters."
  (when (!= (head f) "fn")
    (raise (outside f figure "it transforms a function, `(fn [x ..] e)`")))
  (setv f (anf f)
        bound (binders f)
        taken (set (leaves f))
        xs (parameters f)
        hats (lfor  x xs  (hat x))
        slopes (lfor  x hats  `(deref (snd ~x))))
  `(fn [~@xs]
     (let [~@(gfor  [x̂ x] (zip hats xs)  part [x̂ `#(~x (ref 0.0))]  part)]
       ~(D f hats bound taken)
       ~(if (= (len xs) 1) (get slopes 0) `#(~@slopes)))))

(defn reverse-shift [f]
  "Lantern Fig. 9: reverse mode with shift and reset in the target language.

      Transform(f) = λx. let x̂ = (x, ref 0) in
                     ⟨ let ẑ = @ D⟦f⟧ x̂ in z′ := 1.0 ⟩; ! x′

  But for numbers and arithmetic the rules are those of interpretation."
  (gradient f
    (fn [f hats bound taken]
      (setv fresh (fresh-names "k" taken))
      (defn D [e [y 'ŷ]]
        (setv op (head e))
        (cond
          ;; D⟦c⟧ = c if c ∉ ℝ,  (c, ref 0) if c ∈ ℝ
          (constant? e) e
          (number? e) `#(~e (ref 0.0))
          ;; D⟦y⟧ = y
          (in e bound) e
          (isinstance e Symbol) `#(~e (ref 0.0))
          ;; D⟦e1 + e2⟧ = let ŷ1 = D⟦e1⟧ in let ŷ2 = D⟦e2⟧ in
          ;;   shift k in let ŷ = (y1 + y2, ref 0) in @ k ŷ; y′1 += !y′; y′2 += !y′
          ;; D⟦e1 * e2⟧ = let ŷ1 = D⟦e1⟧ in let ŷ2 = D⟦e2⟧ in
          ;;   shift k in let ŷ = (y1 * y2, ref 0) in @ k ŷ;
          ;;              y′1 += !y′ * y2; y′2 += !y′ * y1
          (in op OPERATIONS)
            (do
              (setv k (next fresh)
                    [value sums] (backwards e `(snd ~y) bound "Fig. 9"))
              `(shift (fn [~k]
                 (let [~y #(~value (ref 0.0))]
                   (~k ~y)
                   ~@sums))))
          (in op COMPARISONS) (compared e bound)
          (= op "let")
            (do
              (setv [bindings body] (parts e))
              `(let [~@(gfor  [y e1] bindings  part [y (D e1 y)]  part)]
                 ~(D body)))
          True (rules e D bound "Fig. 9")))
      `(reset (fn []
         (let [ẑ (~(D f) ~@hats)]
           (set! (snd ẑ) 1.0)))))
    "Fig. 9"))

;; The rules of Figs. 10 and 11, which both end in CPS without shift or reset,
;; agree in what they build. κ is the static continuation, from forms to forms.

(defn then [κ m]
  "@ κ m, for κ a name in the target or a function of the metalanguage."
  (if (isinstance κ Symbol) `(~κ ~m) (κ m)))

(defn reified [κ a]
  "λa. @ κ a, which is κ where κ is a name: the figure's wavy λ."
  (setv body (then κ a))
  (if (and (isinstance body Expression) (= (len body) 2) (= (get body 1) a)
           (isinstance (get body 0) Symbol) (!= (get body 0) a)
           (not-in (str (get body 0)) CELLS))
      (get body 0)
      `(fn [~a] ~body)))

(defn let-in [y e rest]
  "let y = e in rest: joined with the lets that follow at once, and nothing
  where `e` is `y` (the wavy let, which only renames)."
  (cond
    (= e y) rest
    (= (head rest) "let")
      (do
        (setv [_ bindings #* body] rest)
        `(let [~y ~e ~@bindings] ~@body))
    True `(let [~y ~e] ~rest)))

(defn reverse-meta [f]
  "Lantern Fig. 10: reverse mode with shift and reset in the metalanguage.

      Transform(f) = λx. let x̂ = (x, ref 0) in
                     @ (@ D⟦f⟧ x̂) (λz. let ẑ = z in z′ := 1.0); ! x′

  D runs now, so these are hyad's own `shift` and `reset`; what it gives has
  neither, and is in continuation-passing style."
  (gradient f
    (fn [f hats bound taken]
      (setv ks (fresh-names "k" taken)  as (fresh-names "a" taken))
      (defn D [e [y None]]
        (setv op (head e))
        (cond
          (constant? e) e
          (number? e) `#(~e (ref 0.0))
          (in e bound) e
          (isinstance e Symbol) `#(~e (ref 0.0))
          ;; D⟦e1 * e2⟧ = shift k in let ŷ1 = D⟦e1⟧ in let ŷ2 = D⟦e2⟧ in
          ;;              let ŷ = (y1 * y2, ref 0) in @ k ŷ; y′1 += ..; y′2 += ..
          (in op OPERATIONS)
            (shift (fn [k]
              (setv ŷ (or y (next as))
                    [value sums] (backwards e `(snd ~ŷ) bound "Fig. 10"))
              `(let [~ŷ #(~value (ref 0.0))]
                 ~(k ŷ)
                 ~@sums)))
          (in op COMPARISONS) (compared e bound)
          ;; D⟦λy. e⟧ = λy. λk. ⟨ @ k D⟦e⟧ ⟩
          (= op "fn")
            (do
              (setv k (next ks))
              `(fn [~@(parameters e) ~k] ~(reset (fn [] (tail k (get e 2))))))
          ;; D⟦let y = e1 in e2⟧ = shift k in let y = D⟦e1⟧ in ⟨ @ k D⟦e2⟧ ⟩
          (= op "let")
            (shift (fn [k]
              (setv [[[y e1] #* more] e2] (parts e)
                    more (gfor  b more  part b  part)
                    e2 (if (> (len (get e 1)) 2) `(let [~@more] ~e2) e2)
                    form (D e1 y)
                    rest (reset (fn [] (k (D e2)))))
              (let-in y form rest)))
          ;; D⟦case e of y1 ⇒ e1 or y2 ⇒ e2⟧ = shift k in let k1 = λa. @ k a in
          ;;   case D⟦e⟧ of y1 ⇒ ⟨ @ k1 D⟦e1⟧ ⟩ or y2 ⇒ ⟨ @ k1 D⟦e2⟧ ⟩
          (= op "case")
            (shift (fn [k]
              (setv [v [[y1 e1] [y2 e2]]] (parts e))
              (joined k y (fn [k1]
                `(case ~(D v)
                   (inl ~y1) ~(reset (fn [] (tail k1 e1)))
                   (inr ~y2) ~(reset (fn [] (tail k1 e2))))))))
          (= op "if")
            (shift (fn [k]
              (setv [_ c e1 e2] e)
              (joined k y (fn [k1]
                `(if ~(D c)
                     ~(reset (fn [] (tail k1 e1)))
                     ~(reset (fn [] (tail k1 e2))))))))
          ;; D⟦letrec f = λx. e1 in e2⟧ = shift k in
          ;;   letrec f = λx. λk1. ⟨ @ k1 D⟦e1⟧ ⟩ in ⟨ @ k D⟦e2⟧ ⟩   (4.3)
          (= op "letrec")
            (shift (fn [k]
              (setv [fs e2] (parts e))
              `(letrec [~@(gfor  [f e1] fs  part [f (D e1)]  part)]
                 ~(reset (fn [] (k (D e2)))))))
          ;; D⟦@ e1 e2⟧ = shift k in @ (@ D⟦e1⟧ D⟦e2⟧) (λa. @ k a)
          (applies? e bound)
            (shift (fn [k]
              `(~@(map D e) ~(reified k (or y (next as))))))
          True (rules e D bound "Fig. 10")))
      (defn tail [k e]
        "@ k D⟦e⟧ for a name k of the target."
        `(~k ~(D e)))
      (defn joined [k y branches]
        "The branches, with k emitted once."
        (setv k1 (reified k (or y (next as))))
        (if (isinstance k1 Symbol)
            (branches k1)
            (do
              (setv name (next ks))
              (let-in name k1 (branches name)))))
      (reset (fn [] `(~(D f) ~@hats (fn [ẑ] (set! (snd ẑ) 1.0))))))
    "Fig. 10"))

(defn reverse-cps [f]
  "Lantern Fig. 11: reverse mode in pure CPS, no shift or reset anywhere.

      Transform(f) = λx. let x̂ = (x, ref 0) in
                     @ D⟦f⟧(λm. @ (@ m x̂) (λz. let ẑ = z in z′ := 1.0)); ! x′

  The same again as Fig. 10, its metalanguage in CPS as well: D takes a κ,
  the static continuation, which says what becomes of the transformed form.
  `y` is the name that a let gives to the value."
  (gradient f
    (fn [f hats bound taken]
      (setv ks (fresh-names "k" taken)  as (fresh-names "a" taken))
      (defn D [e κ [y None]]
        (setv op (head e))
        (cond
          ;; D⟦c⟧ = λκ. @ κ c if c ∉ ℝ,  λκ. @ κ (c, ref 0) if c ∈ ℝ
          (constant? e) (then κ e)
          (number? e) (then κ `#(~e (ref 0.0)))
          ;; D⟦y⟧ = λκ. @ κ y
          (in e bound) (then κ e)
          (isinstance e Symbol) (then κ `#(~e (ref 0.0)))
          ;; D⟦e1 * e2⟧ = λκ. @ D⟦e1⟧(λp1. @ D⟦e2⟧(λp2.
          ;;   let ŷ1 = p1 in let ŷ2 = p2 in let ŷ = (y1 * y2, ref 0) in
          ;;   @ κ ŷ; y′1 += !y′ * y2; y′2 += !y′ * y1))
          (in op OPERATIONS)
            (do
              (setv ŷ (or y (next as))
                    [value sums] (backwards e `(snd ~ŷ) bound "Fig. 11"))
              `(let [~ŷ #(~value (ref 0.0))]
                 ~(then κ ŷ)
                 ~@sums))
          (in op COMPARISONS) (then κ (compared e bound))
          ;; D⟦λy. e⟧ = λκ. @ κ (λy. λk. @ D⟦e⟧(λm. @ k m))
          (= op "fn")
            (do
              (setv k (next ks))
              (then κ `(fn [~@(parameters e) ~k] ~(D (get e 2) k))))
          ;; D⟦let y = e1 in e2⟧ = λκ. @ D⟦e1⟧(λy1. let y = y1 in @ D⟦e2⟧ κ)
          (= op "let")
            (do
              (setv [[[y1 e1] #* more] e2] (parts e)
                    more (gfor  b more  part b  part)
                    e2 (if (> (len (get e 1)) 2) `(let [~@more] ~e2) e2))
              (D e1
                 (fn [m] (let-in y1 m (D e2 κ)))
                 y1))
          ;; D⟦case e of y1 ⇒ e1 or y2 ⇒ e2⟧ = λκ. let k = λa. @ κ a in
          ;;   @ D⟦e⟧(λv. case v of y1 ⇒ @ D⟦e1⟧(λm. @ k m)
          ;;                     or y2 ⇒ @ D⟦e2⟧(λn. @ k n))
          (= op "case")
            (do
              (setv [v [[y1 e1] [y2 e2]]] (parts e))
              (joined κ y (fn [k]
                (D v (fn [m] `(case ~m (inl ~y1) ~(D e1 k) (inr ~y2) ~(D e2 k)))))))
          (= op "if")
            (do
              (setv [_ c e1 e2] e)
              (joined κ y (fn [k]
                (D c (fn [m] `(if ~m ~(D e1 k) ~(D e2 k)))))))
          (= op "letrec")
            (do
              (setv [fs e2] (parts e))
              `(letrec [~@(gfor  [f e1] fs  part [f (D e1 (fn [m] m))]  part)]
                 ~(D e2 κ)))
          ;; D⟦@ e1 e2⟧ = λκ. @ D⟦e1⟧(λm. @ D⟦e2⟧(λn. @ (@ m n) (λa. @ κ a)))
          (applies? e bound)
            (each e (fn [es] `(~@es ~(reified κ (or y (next as))))))
          ;; D⟦fst e⟧ = λκ. @ D⟦e⟧(λy. @ κ (fst y)), and so for snd, ref, ! ..
          (in op CELLS)
            (each (cut e 1 None) (fn [es] (then κ `(~(get e 0) ~@es))))
          (= op "get")
            (do
              (setv [e1 i] (element e "Fig. 11"))
              (D e1 (fn [m] (then κ `(get ~m ~i)))))
          ;; D⟦(e1, e2)⟧ = λκ. @ D⟦e1⟧(λy1. @ D⟦e2⟧(λy2. @ κ (y1, y2)))
          (isinstance e Tuple) (each e (fn [es] (then κ (Tuple es))))
          True (raise (outside e "Fig. 11"))))
      (defn each [es κ]
        "κ of all of D⟦es⟧, the first of them first."
        (if es
            (D (get es 0)
               (fn [m] (each (cut es 1 None) (fn [ms] (κ [m #* ms])))))
            (κ [])))
      (defn joined [κ y branches]
        "The branches with κ emitted once, under a name where it has none."
        (setv k (reified κ (or y (next as))))
        (if (isinstance k Symbol)
            (branches k)
            (do
              (setv name (next ks))
              (let-in name k (branches name)))))
      (D f (fn [m] `(~m ~@hats (fn [ẑ] (set! (snd ẑ) 1.0))))))
    "Fig. 11"))

;; ---------------------------------------------- Lantern 3.5: tape-based approaches

(setv tape (fn []))

(defn and-then [f g]
  "Scala's `f andThen g`: first f, then g."
  (fn [] (f) (g)))

(defclass NumB [Operators]
  "Lantern Fig. 12: the refunctionalised tape.

  No continuation: what would follow its return is put on a tape, a function
  that is called in the end. Each addition goes before those recorded so far,
  so that the tape plays backwards. These are functions composed of functions:
  Python's recursion limit bounds the tape's length."
  (defn __init__ [self x [d 0.0]]
    (setv self.x x  self.d d))

  (defn gets [self slope y]
    "Put `self.d += slope * y.d` on the tape."
    (global tape)
    (defn add []
      (+= self.d (* slope y.d)))
    (setv tape (and-then add tape)))

  (defn __add__ [self that]
    (setv that (.lift self that)
          y (NumB (+ self.x that.x)))
    (.gets self 1.0 y)
    (.gets that 1.0 y)
    y)

  (defn __mul__ [self that]
    (setv that (.lift self that)
          y (NumB (* self.x that.x)))
    (.gets self that.x y)
    (.gets that self.x y)
    y)

  (defn of [self f df]
    (setv y (NumB (f self.x)))
    (.gets self (df self.x) y)
    y))

(defn gradB [f]
  "Lantern Fig. 12, grad. The tape starts empty."
  (fn [x]
    (global tape)
    (setv tape (fn [])
          z (NumB x))
    (setv (. (.lift z (f z)) d) 1.0)
    (tape)
    z.d))

;; ----------------------------------------- Lantern 3.6: purely functional

(setv ids (count 1))

(defclass NumS [Operators]
  "Lantern 3.6: store passing. Nothing is assigned: a number has an id, and a
  continuation returns the derivatives of everything before it, by id."
  (defn __init__ [self x]
    (setv self.x x  self.id (next ids)))

  (defn __add__ [self that]
    (setv that (.lift self that))
    (shift (fn [k]
      (setv y (NumS (+ self.x that.x))
            store (k y)
            d (.get store y.id 0.0))
      (plus (plus store self d) that d))))

  (defn __mul__ [self that]
    (setv that (.lift self that))
    (shift (fn [k]
      (setv y (NumS (* self.x that.x))
            store (k y)
            d (.get store y.id 0.0))
      (plus (plus store self (* that.x d)) that (* self.x d)))))

  (defn of [self f df]
    (shift (fn [k]
      (setv y (NumS (f self.x))
            store (k y))
      (plus store self (* (df self.x) (.get store y.id 0.0)))))))

(defn plus [store y d]
  "The store in which y's derivative is `d` more."
  {#** store  y.id (+ (.get store y.id 0.0) d)})

(defn gradS [f]
  "Lantern 3.6: the gradient out of the store that the program returns."
  (fn [x]
    (setv z (NumS x))
    (.get (reset (fn [] {(. (.lift z (f z)) id) 1.0})) z.id 0.0)))

;; -------------------------------------- Lantern 3.7: higher-order gradients

(defclass NumRR [Operators]
  "Lantern Fig. 13: reverse over reverse. Value and derivative are `NumR`s, so
  that all that this class computes is differentiated again.

  The figure's shift2 captures up to the next reset but one, built from shifts
  within shifts, for Scala has one level of them. It is `shift0` here: its
  body runs outside of the inner reset, where the shifts of `NumR` reach the
  outer one."
  (defn __init__ [self x [d None]]
    (setv self.x (if (isinstance x NumR) x (NumR x))
          self.d (or d (NumR 0.0))))

  (defn __add__ [self that]
    (setv that (.lift self that))
    (shift0 (fn [k]
      (setv y (NumRR (+ self.x that.x)))
      (k y)
      (setv self.d (+ self.d y.d))
      (setv that.d (+ that.d y.d)))))

  (defn __mul__ [self that]
    (setv that (.lift self that))
    (shift0 (fn [k]
      (setv y (NumRR (* self.x that.x)))
      (k y)
      (setv self.d (+ self.d (* y.d that.x)))
      (setv that.d (+ that.d (* y.d self.x))))))

  (defn of [self f df]
    (shift0 (fn [k]
      (setv y (NumRR (f self.x)))
      (k y)
      (setv self.d (+ self.d (* y.d (df self.x))))))))

(defn gradRR [f]
  "Lantern Fig. 13: the derivative, itself to be differentiated by `gradR`:
  `(gradR (gradRR f))` is the second derivative."
  (fn [x]
    (setv z (NumRR x))
    (reset (fn [] (setv (. (.lift z (f z)) d) (NumR 1.0))))
    z.d))
