"dF~: forward mode on arrays, and rules that make it as fast as reverse mode.

Shaikhha, Fitzgibbon, Vytiniotis, Peyton Jones, Efficient Differentiable
Programming in a Functional Array-Processing Language, ICFP 2019: M~ (Fig. 4),
deriv (Fig. 5), the other operators (Fig. 6, Table 2), the rules of
differentiation (Fig. 7) and of optimisation (Fig. 8). The language is F~:

    e ::= (e e ..) | (fn [x ..] e) | x | n | (let [x e ..] e) | (if e e e)
        | (build n (fn [i] e)) | (ifold (fn [a i] e) z n) | (get v i)
        | (length v) | #(e e) | (fst e) | (snd e) | (+ e e) | (sin e) ..

To run it: `(import hyad.macros.textbook [build ifold length fst snd])`. An
array is a list there; its dual is a list of duals."

(import
  itertools [count]
  hy.models [Expression List Object Symbol Tuple]
  hyad.macros.textbook-forms [applies? binders head leaves marked name? number?
                              outside pairs])

;; ------------------------------------------------------------ F~ in Python

(defn build [n f] "The array of f(0), .., f(n - 1)." (lfor  i (range n)  (f i)))

(defn ifold [f z n]
  "z, then f(z, 0), then f(that, 1), ..: the last of n."
  (for [i (range n)]
    (setv z (f z i)))
  z)

(defn length [v] "The number of elements of an array." (len v))

(setv ARITHMETIC (frozenset ["+" "-" "*" "/" "**" "sin" "cos" "tan" "log" "exp"])
      LOGIC (frozenset ["=" "!=" "<" "<=" ">" ">=" "and" "or" "not"])
      ARITY {"+" 2 "*" 2 "/" 2 "**" 2 "not" 1 "build" 2 "ifold" 3 "get" 2
             "length" 1 "fst" 1 "snd" 1 "if" 3 "let" 2 "fn" 2
             "sin" 1 "cos" 1 "tan" 1 "log" 1 "exp" 1}
      WORDS (| ARITHMETIC LOGIC (set ARITY) #{"True" "False"}))

;; -------------------------------------------------------------- Fig. 4: M~
;;
;; vectorOutProd transposes its first vector: the figure transposes the second,
;; which makes a dot product of it. sqrt is ** 0.5, for Fig. 7 has a rule for that.

(setv LIBRARY (dict (pairs '[
  vector-range   (fn [n] (build n (fn [i] i)))
  vector-fill    (fn [n e] (build n (fn [i] e)))
  vector-zeros   (fn [n] (build n (fn [i] 0)))
  vector-hot     (fn [n i] (build n (fn [j] (if (= i j) 1 0))))
  vector-map     (fn [v f] (build (length v) (fn [i] (f (get v i)))))
  vector-map2    (fn [v1 v2 f]
                   (build (length v1) (fn [i] (f (get v1 i) (get v2 i)))))
  vector-zip     (fn [v1 v2] (vector-map2 v1 v2 (fn [a b] #(a b))))
  vector-add     (fn [v1 v2] (vector-map2 v1 v2 +))
  vector-e-mul   (fn [v1 v2] (vector-map2 v1 v2 *))
  vector-s-mul   (fn [v s] (vector-map v (fn [a] (* a s))))
  vector-sum     (fn [v] (ifold (fn [s i] (+ s (get v i))) 0 (length v)))
  vector-dot     (fn [v1 v2] (vector-sum (vector-e-mul v1 v2)))
  vector-norm    (fn [v] (** (vector-dot v v) 0.5))
  vector-slice   (fn [v s e] (build (+ (- e s) 1) (fn [i] (get v (+ i s)))))
  vector-to-matrix (fn [v] (build 1 (fn [i] v)))
  vector-out-prod  (fn [v1 v2]
                     (let [m1 (vector-to-matrix v1)
                           m2 (vector-to-matrix v2)
                           m1t (matrix-transpose m1)]
                       (matrix-mul m1t m2)))
  matrix-rows    (fn [m] (length m))
  matrix-cols    (fn [m] (length (get m 0)))
  matrix-zeros   (fn [r c] (build r (fn [i] (vector-fill c 0))))
  matrix-ones    (fn [r c] (build r (fn [i] (vector-fill c 1))))
  matrix-eye     (fn [n] (build n (fn [i] (vector-hot n i))))
  matrix-hot     (fn [n m r c]
                   (build n (fn [i]
                     (build m (fn [j] (if (and (= i r) (= j c)) 1 0))))))
  matrix-map     (fn [m f] (build (length m) (fn [i] (f (get m i)))))
  matrix-map2    (fn [m1 m2 f]
                   (build (length m1) (fn [i] (f (get m1 i) (get m2 i)))))
  matrix-zip     (fn [m1 m2] (matrix-map2 m1 m2 vector-zip))
  matrix-add     (fn [m1 m2] (matrix-map2 m1 m2 vector-add))
  matrix-transpose (fn [m]
                     (build (matrix-cols m) (fn [i]
                       (build (matrix-rows m) (fn [j] (get (get m j) i))))))
  matrix-mul     (fn [m1 m2]
                   (let [m2t (matrix-transpose m2)]
                     (build (matrix-rows m1) (fn [i]
                       (build (matrix-cols m2) (fn [j]
                         (vector-dot (get m1 i) (get m2t j))))))))
  matrix-trace   (fn [m] (ifold (fn [s i] (+ s (get (get m i) i))) 0 (length m)))])))

;; -------------------------------------------------- names and their meaning

(setv numbers (count 1))

(defn renamed [e [env None]]
  "`e` with new names for all that it binds, and M~'s functions written out:
  every name then has one meaning. An `env` says what becomes of free names."
  (setv env (or env {})
        op (head e))
  (defn new [x]
    (setv stem (.rstrip x "0123456789"))
    (Symbol f"{(or stem "t")}{(next numbers)}"))
  (setv form (cond
    (in e env) (get env e)
    ;; an operation as a value
    (and (isinstance e Symbol) (in (str e) #{"+" "*" "-" "/" "fst" "snd" "sin"
                                             "cos" "tan" "log" "exp"}))
      (renamed (if (= (.get ARITY (str e) 2) 1) `(fn [a] (~e a)) `(fn [a b] (~e a b))))
    (and (isinstance e Symbol) (in e LIBRARY)) (renamed (get LIBRARY e))
    (= op "fn")
      (do
        (setv [_ xs body] e
              news (lfor  x xs  (new x)))
        `(fn [~@news] ~(renamed body {#** env #** (dict (zip xs news))})))
    (= op "let")
      (do
        (setv [_ bindings body] e  both [])
        (for [[x e1] (pairs bindings)]
          (setv e1 (renamed e1 env)
                y (new x)
                env {#** env  x y})
          (.extend both [y e1]))
        `(let [~@both] ~(renamed body env)))
    (and (isinstance e Expression) e)
      (Expression (gfor  [i a] (enumerate e)
                    (if (or i (not-in (str a) WORDS)) (renamed a env) a)))
    (isinstance e #(Tuple List)) ((type e) (gfor  a e  (renamed a env)))
    True e))
  (when (and (isinstance e Expression) (isinstance form Expression))
    (.replace form e :recursive False)
    (setv form.written (getattr e "written" e)))  ; what an error shows
  form)

(defn occurrences [x e]
  (sum (gfor  y (leaves e)  (= y x))))

(defn fvs [e]
  "The names that are free in `e`, in order, operations left out."
  (setv bound #{}  found [])
  (for [y (leaves (renamed e))]
    (when (and (name? y) (not-in y found))
      (.append found y)))
  (lfor  y (dict.fromkeys (leaves e))
    :if (and (name? y) (in y found) (not-in (str y) WORDS))
    y))

;; ----------------------------------------------------- Fig. 7: differentiation

(defn arrow [y]
  "The paper's y with an arrow: a value together with its derivative."
  (marked y "\u20d7"))

(defn D [e]
  "dF~ Fig. 7: D⟦e⟧, the value of `e` with its derivative. A number becomes a
  pair, an array an array of pairs, a function a function of such. M~'s
  functions are written out first. P⟦e⟧ is fst D⟦e⟧ and E⟦e⟧ is snd D⟦e⟧; an
  argument that is no variable is bound to one before it is used twice."
  (setv e (renamed e))
  (relabelled (dual e (binders e))))

(defn dual [e bound]
  (setv op (head e)
        n (.get ARITY op)
        d (fn [e] (dual e bound)))
  (when (and op (!= (- (len e) 1) (or n (- (len e) 1)))
             (not (and (in op ["+" "*"]) (> (len e) 3))))
    (raise (outside e "F~" f"`{op}` takes {n}")))
  (defn scalar [f #* es]
    "(P⟦e⟧, E⟦e⟧) by f, from the P and E of its arguments."
    (setv lets []  parts [])
    (for [e1 es]
      (setv y (if (name? e1) (arrow e1) (Symbol f"t{(next numbers)}")))
      (when (not (name? e1))
        (.extend lets [y (d e1)]))
      (.extend parts [`(fst ~y) `(snd ~y)]))
    (setv pair (Tuple (f #* parts)))
    (if lets `(let [~@lets] ~pair) pair))
  (cond
    ;; a constant
    (number? e) `#(~e 0)
    (in e (map Symbol ["True" "False"])) `#(~e 0)
    ;; (D-Var) D⟦y⟧ = ⃗y
    (isinstance e Symbol) (arrow e)
    ;; (D-Abs) D⟦fun x -> e⟧ = fun ⃗x -> D⟦e⟧
    (= op "fn") `(fn [~@(map arrow (get e 1))] ~(d (get e 2)))
    ;; (D-Let) D⟦let x = e1 in e2⟧ = let ⃗x = D⟦e1⟧ in D⟦e2⟧
    (= op "let")
      `(let [~@(gfor  [x e1] (pairs (get e 1))  part [(arrow x) (d e1)]  part)]
         ~(d (get e 2)))
    ;; (D-If) D⟦if e1 then e2 else e3⟧ = if (fst D⟦e1⟧) then D⟦e2⟧ else D⟦e3⟧
    (= op "if")
      (do
        (setv [_ e1 e2 e3] e)
        `(if (fst ~(d e1)) ~(d e2) ~(d e3)))
    ;; (D-Build) D⟦build e0 e1⟧ = build (fst D⟦e0⟧) (fun i -> (D⟦e1⟧) (i, 0))
    (= op "build")
      (do
        (setv [_ e0 e1] e  i (Symbol f"i{(next numbers)}"))
        `(build (fst ~(d e0)) (fn [~i] (~(d e1) #(~i 0)))))
    ;; (D-IFold) D⟦ifold e0 e1 e2⟧ =
    ;;   ifold (fun x i -> (D⟦e0⟧) x (i, 0)) D⟦e1⟧ (fst D⟦e2⟧)
    (= op "ifold")
      (do
        (setv [_ e0 e1 e2] e
              x (Symbol f"x{(next numbers)}")  i (Symbol f"i{(next numbers)}"))
        `(ifold (fn [~x ~i] (~(d e0) ~x #(~i 0))) ~(d e1) (fst ~(d e2))))
    ;; (D-Get) D⟦e0[e1]⟧ = (D⟦e0⟧)[fst D⟦e1⟧]
    (= op "get") `(get ~(d (get e 1)) (fst ~(d (get e 2))))
    ;; (D-Length) D⟦length e0⟧ = (length D⟦e0⟧, 0)
    (= op "length") `#((length ~(d (get e 1))) 0)
    ;; (D-Pair, D-Fst, D-Snd)
    (isinstance e Tuple) (Tuple (map d e))
    (in op ["fst" "snd"]) `(~(get e 0) ~(d (get e 1)))
    ;; (D-Add) E⟦e1 + e2⟧ = E⟦e1⟧ + E⟦e2⟧
    (= op "+")
      (scalar (fn [p1 d1 p2 d2] [`(+ ~p1 ~p2) `(+ ~d1 ~d2)]) #* (binary e))
    (and (= op "-") (= (len e) 3))
      (scalar (fn [p1 d1 p2 d2] [`(- ~p1 ~p2) `(- ~d1 ~d2)]) #* (cut e 1 None))
    ;; (D-Mult) E⟦e1 * e2⟧ = E⟦e1⟧ * P⟦e2⟧ + P⟦e1⟧ * E⟦e2⟧
    (= op "*")
      (scalar (fn [p1 d1 p2 d2] [`(* ~p1 ~p2) `(+ (* ~d1 ~p2) (* ~p1 ~d2))])
              #* (binary e))
    ;; (D-Div) E⟦e1 / e2⟧ = (E⟦e1⟧ * P⟦e2⟧ - P⟦e1⟧ * E⟦e2⟧) / (P⟦e2⟧ ** 2)
    (= op "/")
      (scalar (fn [p1 d1 p2 d2]
                [`(/ ~p1 ~p2) `(/ (- (* ~d1 ~p2) (* ~p1 ~d2)) (** ~p2 2))])
              #* (cut e 1 None))
    ;; (D-Neg) E⟦-e1⟧ = -E⟦e1⟧
    (= op "-") (scalar (fn [p1 d1] [`(- ~p1) `(- ~d1)]) (get e 1))
    ;; (D-Pow), which is NaN where e1 <= 0: an exponent that is written out has
    ;; the rule of school
    (and (= op "**") (number? (get e 2)))
      (do
        (setv [_ e1 n] e)
        (scalar (fn [p1 d1]
                  [`(** ~p1 ~n) `(* (* ~n (** ~p1 ~(hy.as-model (- n 1)))) ~d1)])
                e1))
    ;; E⟦e1 ** e2⟧ = (P⟦e2⟧ * E⟦e1⟧ / P⟦e1⟧ + log(P⟦e1⟧) * E⟦e2⟧) * (P⟦e1⟧ ** P⟦e2⟧)
    (= op "**")
      (scalar (fn [p1 d1 p2 d2]
                [`(** ~p1 ~p2)
                 `(* (+ (/ (* ~p2 ~d1) ~p1) (* (log ~p1) ~d2)) (** ~p1 ~p2))])
              #* (cut e 1 None))
    ;; (D-Sin, D-Cos, D-Tan, D-Log, D-Exp)
    (= op "sin") (scalar (fn [p d] [`(sin ~p) `(* ~d (cos ~p))]) (get e 1))
    (= op "cos") (scalar (fn [p d] [`(cos ~p) `(* (- ~d) (sin ~p))]) (get e 1))
    (= op "tan") (scalar (fn [p d] [`(tan ~p) `(/ ~d (** (cos ~p) 2))]) (get e 1))
    (= op "log") (scalar (fn [p d] [`(log ~p) `(/ ~d ~p)]) (get e 1))
    (= op "exp") (scalar (fn [p d] [`(exp ~p) `(* ~d (exp ~p))]) (get e 1))
    ;; a truth value, of values alone
    (in op LOGIC)
      `#((~(get e 0) ~@(gfor  a (cut e 1 None)  `(fst ~(d a)))) 0)
    ;; (D-App) D⟦e0 e1⟧ = (D⟦e0⟧) (D⟦e1⟧)
    (applies? e bound) (Expression (map d e))
    True (raise (outside e "F~"))))

(defn DT [T]
  "dF~ Fig. 7, the rules of types: D_T⟦T⟧ is the type of D⟦e⟧ for an `e` of
  type T. A type is `Num`, `(Array T)`, `(* T T)` or `(=> T .. T)`."
  (setv op (head T))
  (cond
    ;; (DT-Exp) D_T⟦Num⟧ = Num × Num
    (and (isinstance T Symbol) (in (str T) ["Num" "Double" "Index"])) `(* ~T ~T)
    ;; (DT-Fun) D_T⟦T1 ⇒ T2⟧ = D_T⟦T1⟧ ⇒ D_T⟦T2⟧
    ;; (DT-Arr) D_T⟦Array<M>⟧ = Array<D_T⟦M⟧>
    ;; (DT-Pair) D_T⟦M1 × M2⟧ = D_T⟦M1⟧ × D_T⟦M2⟧
    (in op ["=>" "Array" "*"])
      `(~(get T 0) ~@(gfor  t (cut T 1 None)  (DT t)))
    True (raise (outside T "F~" "its types are Num, (Array T), (* T T), (=> T .. T)"))))

(defn binary [e]
  "The two terms of a sum or product; of more, the first ones as one."
  (setv [op #* es] e)
  (while (> (len es) 2)
    (setv es [`(~op ~(get es 0) ~(get es 1)) #* (cut es 2 None)]))
  es)

;; --------------------------------------------- Figs. 5 and 6: the operators

(defn G [e x [ranks {}]]
  "dF~ Fig. 5: what `(deriv e x)` is short for. `ranks` says which of the free
  names, x too, are arrays: 1 for a vector, 2 for a matrix. (The figure gives
  the constants the rank of x; here each has its own.)"
  (setv e (expanded e)
        vs (fvs e)
        f (D `(fn [~@vs] ~e))
        rank (.get ranks x 0))
  (when (not-in x vs)
    (raise (outside x "the expression" "deriv differentiates by a name in it")))
  (defn A [v hot]
    "The dual encoding of v: with zeros, but of x with a one."
    (do
      (match (.get ranks v 0)
        0 `#(~v ~(if (= v x) '1 '0))
        1 `(vector-zip ~v ~(if (= v x) hot `(vector-zeros (length ~v))))
        _ `(matrix-zip ~v ~(if (= v x) hot
                             `(matrix-zeros (matrix-rows ~v) (matrix-cols ~v)))))))
  (defn at [hot]
    `(~f ~@(gfor  v vs  (A v hot))))
  (setv r (Symbol f"r{(next numbers)}")  c (Symbol f"c{(next numbers)}"))
  (relabelled (renamed
    (match rank
      0 (at None)
      1 `(build (length ~x) (fn [~r] ~(at `(vector-hot (length ~x) ~r))))
      _ `(build (matrix-rows ~x) (fn [~r]
           (build (matrix-cols ~x) (fn [~c]
             ~(at `(matrix-hot (matrix-rows ~x) (matrix-cols ~x) ~r ~c))))))))))

(defn diff-form [f]
  "dF~ Fig. 6: fun f x -> D⟦f⟧ (x, 1); vdiff and mdiff are the same."
  (relabelled (renamed `(fn [x] (~(D f) #(x 1))))))

(defn grad-form [f]
  "dF~ Fig. 6: fun f v -> build (length v) (fun i ->
    D⟦f⟧ (vectorZip v (vectorHot (length v) i))); jacob is the same."
  (relabelled (renamed
    `(fn [v] (build (length v) (fn [i]
       (~(D f) (vector-zip v (vector-hot (length v) i)))))))))

(defn mgrad-form [f]
  "dF~ Table 2: the same for a matrix."
  (relabelled (renamed
    `(fn [m] (build (matrix-rows m) (fn [r]
       (build (matrix-cols m) (fn [c]
         (~(D f) (matrix-zip m (matrix-hot (matrix-rows m) (matrix-cols m)
                                           r c)))))))))))

(defn ranked [types]
  "`[#^ Vector v  #^ Matrix m]` as a dict of ranks."
  (setv ranks {"Double" 0  "Vector" 1  "Matrix" 2})
  (for [t types]
    (when (not (and (= (head t) "annotate") (in (str (get t 2)) ranks)))
      (raise (outside t "deriv's list of types"
               "it is `[#^ Vector v  #^ Matrix m ..]`"))))
  (dfor  t types  (get t 1) (get ranks (str (get t 2)))))

(defn expanded [e]
  "`e` with the operators in it written out, innermost first."
  (when (not (isinstance e #(Expression Tuple List)))
    (return e))
  (setv e (.replace ((type e) (map expanded e)) e :recursive False)
        [op #* es] (or e [None]))
  (match (head e)
    "deriv" (G (get es 0) (get es 1) (ranked (if (= (len es) 3) (get es 2) [])))
    (| "diff" "vdiff" "mdiff") (diff-form #* es)
    (| "grad" "jacob") (grad-form #* es)
    "mgrad" (mgrad-form #* es)
    _ e))

;; -------------------------------------------------------- Fig. 8: optimisation
;;
;; (name pattern => template :when guard). Any name that is no word of F~ stands
;; for an expression, `#* es` for any number of them. A template may replace:
;; (subst e x e0) is the figure's e[x ↦ e0], for an expression x as well.
;; Guards are named in GUARDS: the figure's conditions, and those that its
;; section 5.3 leaves to heuristics. if-out-if and if-out-ifold are the figure's
;; f(if e0 then e1 else e2) where f is a conditional or a loop around it.

(setv RULES '[
  ;; (a) λ-calculus rules
  (beta-0          ((fn [] e0))                  => e0)
  (beta            ((fn [x #* xs] e0) e1 #* es)  => ((fn [#* xs] (let [x e1] e0)) #* es))
  (let-one         (let [x e0 y e1 #* es] e2)    => (let [x e0] (let [y e1 #* es] e2)))
  (let-dead        (let [x e0] e1)               => e1                :when (absent x e1))
  (let-inline      (let [x e0] e1)               => (subst e1 x e0)   :when (worth x e0 e1))
  (let-let         (let [x (let [y e0] e1)] e2)  => (let [y e0] (let [x e1] e2)))
  (let-same        (let [x e0] (let [y e0] e1))  => (let [x e0] (let [y x] e1)))
  (let-swap        (let [x e0] (let [y e1] e2))  => (let [y e1] (let [x e0] e2)) :when (never))
  (let-out         (f #* es (let [x e0] e1) #* rest) =>
                     (let [x e0] (f #* es e1 #* rest))       :when (strict f))
  ;; (b) ring-structure rules
  (add-zero        (+ e 0)                       => e)
  (zero-add        (+ 0 e)                       => e)
  (mul-one         (* e 1)                       => e)
  (one-mul         (* 1 e)                       => e)
  (mul-zero        (* e 0)                       => 0)
  (zero-mul        (* 0 e)                       => 0)
  (add-neg         (+ e (- e))                   => 0)
  (sub-self        (- e e)                       => 0)
  (sub-zero        (- e 0)                       => e)
  (distribute      (+ (* e0 e1) (* e0 e2))       => (* e0 (+ e1 e2)))
  ;; (c) loop fusion rules
  (get-build       (get (build e0 e1) e2)        => (e1 e2))
  (length-build    (length (build e0 e1))        => e0)
  ;; (d) conditional rules
  (if-true         (if True e1 e2)               => e1)
  (if-false        (if False e1 e2)              => e2)
  (if-same         (if e0 e1 e1)                 => e1)
  (if-known        (if e0 e1 e2)                 =>
                     (if e0 (subst e1 e0 True) (subst e2 e0 False)) :when (tested e0 e1 e2))
  (if-out          (f #* es (if e0 e1 e2) #* rest) =>
                     (if e0 (f #* es e1 #* rest) (f #* es e2 #* rest)) :when (simpler f e1 e2))
  (if-out-if       (if (if e0 e1 False) e2 e3)   => (if e0 (if e1 e2 e3) e3))
  (if-out-ifold    (ifold (fn [a i] (if e0 e1 e2)) z n) =>
                     (if e0 (ifold (fn [a i] e1) z n) (ifold (fn [a i] e2) z n))
                                                             :when (outer e0 a i))
  (and             (and e0 e1)                   => (if e0 e1 False))
  ;; (e) loop normalisation rules
  (ifold-0         (ifold f z 0)                 => z)
  (ifold-n         (ifold f z n)                 =>
                     (ifold (fn [a i] (f a (+ i 1))) (f z 0) (pred n)) :when (written n))
  (ifold-idle      (ifold (fn [a i] a) z n)      => z)
  (ifold-once      (ifold (fn [a i] (if (= i e0) e1 a)) z n) =>
                     (let [a z] (let [i e0] e1))             :when (outer e0 a i))
  (ifold-once-flip (ifold (fn [a i] (if (= e0 i) e1 a)) z n) =>
                     (let [a z] (let [i e0] e1))             :when (outer e0 a i))
  ;; (f) tuple normalisation rules
  (fst-pair        (fst #(e0 e1))                => e0)
  (snd-pair        (snd #(e0 e1))                => e1)
  ;; (g) loop fission rule
  (fission         (ifold (fn [a i] #(e0 e1)) #(z0 z1) n) =>
                     #((ifold (fn [a i] (subst e0 (fst a) a)) z0 n)
                       (ifold (fn [a i] (subst e1 (snd a) a)) z1 n)) :when (apart a e0 e1))])

(defn cheap? [e]
  "Whether `e` costs next to nothing, or nothing before it is applied."
  (or (isinstance e #(Symbol Tuple)) (number? e)
      (in (head e) ["fn" "build" "length"])
      (and (in (head e) ["get" "fst" "snd" "=" "and"])
           (all (map cheap? (cut e 1 None))))
      (and (= (head e) "if") (all (map cheap? (cut e 1 None))))))

(defn in-loop? [x e]
  "Whether x occurs in `e` inside of a function, which may be called often."
  (cond
    (= (head e) "fn") (> (occurrences x e) 0)
    (isinstance e #(Expression Tuple List)) (any (gfor  a e  (in-loop? x a)))
    True False))

(setv GUARDS {
  "never"   (fn [] False)
  "absent"  (fn [x e] (= (occurrences x e) 0))
  "worth"   (fn [x e0 e1]
              (or (cheap? e0)
                  (and (= (occurrences x e1) 1) (not (in-loop? x e1)))))
  "strict"  (fn [f] (in (str f) (| ARITHMETIC LOGIC
                                   #{"get" "length" "fst" "snd"})))
  "simpler" (fn [f e1 e2]
              (or (in (str f) ["fst" "snd"])
                  (and (in (str f) ["+" "*"])
                       (any (gfor  e [e1 e2]  (number? e))))))
  "tested"  (fn [e0 e1 e2]
              (and (isinstance e0 Expression) (or (within? e0 e1) (within? e0 e2))))
  "written" (fn [n] (and (number? n) (<= 1 n 4)))
  "outer"   (fn [e0 a i] (not (or (occurrences a e0) (occurrences i e0))))
  "apart"   (fn [a e0 e1]
              (and (= (occurrences a (replaced e0 `(fst ~a) '0)) 0)
                   (= (occurrences a (replaced e1 `(snd ~a) '0)) 0)))})

(defn within? [e0 e]
  (or (= e e0)
      (and (isinstance e #(Expression Tuple List))
           (any (gfor  a e  (within? e0 a))))))

(defn replaced [e old new]
  "e[old ↦ new]: every copy of `new` with names of its own."
  (cond
    (= e old) (renamed new)
    (isinstance e #(Expression Tuple List))
      ((type e) (gfor  a e  (replaced a old new)))
    True e))

(defn matches [pattern e found]
  "What the names of the pattern stand for if it is `e`, given `found`; None if
  it can't be."
  (cond
    (and (name? pattern) (not-in (str pattern) WORDS))
      (if (in pattern found)
          (when (= (get found pattern) e) found)
          {#** found  pattern e})
    (isinstance pattern #(Expression Tuple List))
      (when (is (type pattern) (type e))
        (matches-all (list pattern) (list e) found))
    (and (number? pattern) (number? e)) (when (= (float pattern) (float e)) found)
    True (when (= pattern e) found)))

(defn matches-all [patterns es found]
  (cond
    (not patterns) (when (not es) found)
    (= (head (get patterns 0)) "unpack-iterable")
      (for [n (range (+ 1 (len es)))]
        (setv more (matches-all (cut patterns 1 None) (cut es n None)
                                {#** found  (get patterns 0 1) (cut es n)}))
        (when (is-not more None)
          (return more)))
    es
      (do
        (setv more (matches (get patterns 0) (get es 0) found))
        (when (is-not more None)
          (matches-all (cut patterns 1 None) (cut es 1 None) more)))))

(defn instance [template found]
  "The template with its names replaced by what they stand for. Names of its
  own are new, and so are those that a second copy of a part binds."
  (setv own {}  copied #{})
  (defn part [x]
    (setv copy (in x copied))
    (.add copied x)
    (cond
      (or (not copy) (isinstance (get found x) Symbol)) (get found x)
      (isinstance (get found x) list) (list (map renamed (get found x)))
      True (renamed (get found x))))
  (defn fill [t]
    (setv op (head t))
    (cond
      (= op "subst") (replaced #* (gfor  a (cut t 1 None)  (fill a)))
      (= op "pred") (hy.as-model (- (get found (get t 1)) 1))
      (isinstance t #(Expression Tuple List))
        ((type t)
          (gfor  a t
                 b (if (= (head a) "unpack-iterable") (part (get a 1)) [(fill a)])
                 b))
      (in t found) (part t)
      (and (name? t) (not-in (str t) WORDS))
        (.setdefault own t (Symbol f"{t}{(next numbers)}"))
      True t))
  (fill template))

(defn apply-rule [rule e]
  "`e` rewritten by the rule at its root, or None."
  (setv [name pattern _ template #* guard] rule
        found (matches pattern e {}))
  (when (and (is-not found None)
             (or (not guard)
                 ((get GUARDS (head (get guard 1)))
                   #* (gfor  a (cut (get guard 1) 1 None)  (get found a)))))
    (instance template found)))

(defn optimise [e [rules RULES] [log None]]
  "dF~ Fig. 8: `e` rewritten until no rule applies any more, parts first. The
  names of the rules go to the list `log`."
  (setv e (normal (renamed (expanded e)) (candidates rules) log {}))
  (relabelled e))

(defn candidates [rules]
  "The rules with their names and the word that each one's pattern starts with."
  (lfor  r rules
    :setv op (head (get r 1))
    #((str (get r 0)) (if (in op WORDS) op None) r)))

(defn normal [e rules log done]
  "`e` with every rule applied that applies; `done` holds what is known to have
  none left, by identity."
  (while (not-in (id e) done)
    (when (isinstance e #(Expression Tuple List))
      (setv e ((type e) (gfor  a e  (normal a rules log done)))))
    (for [[name op rule] rules]
      (setv new (when (in op [None (head e)]) (apply-rule rule e)))
      (when (is-not new None)
        (when (is-not log None) (.append log name))
        (setv e new)
        (break))
      (else (setv (get done (id e)) e))))
  e)

(defn relabelled [e]
  "`e` with the numbers of names counted anew: what is shown does not depend on
  what came before."
  (setv names {}  free (set (fvs e)))
  (defn label [y]
    (when (and (name? y) (not-in (str y) WORDS) (not-in y free) (not-in y names))
      (setv stem (or (.rstrip y "0123456789") "t")
            i (next (gfor  i (count 0)
                      :if (not-in (Symbol (if i f"{stem}{i}" stem))
                                  (| free (set (.values names))))
                      i)))
      (setv (get names y) (Symbol (if i f"{stem}{i}" stem)))))
  (for [y (leaves e)]
    (label y))
  (replaced-names e names))

(defn replaced-names [e names]
  (cond
    (isinstance e Symbol) (.get names e e)
    (isinstance e #(Expression Tuple List))
      ((type e) (gfor  a e  (replaced-names a names)))
    True e))
