"Myia's backpropagators: van Merriënboer, Breuleux, Bergeron, Lamblin, Automatic
differentiation in ML: where we are and where we should be going, NeurIPS
2018, section 3.2 and Fig. 1; after Pearlmutter and Siskind 2008.

The transformation of a function f is §f, which returns, beside the value of
f, a closure đf, its backpropagator: from the derivative ∇f with respect to
the value it computes those with respect to all that f was computed from. No
tape: what the backward pass needs are the closures' free variables."

(import
  re
  functools [reduce]
  itertools [zip-longest]
  hy.models [Expression List Symbol Tuple]
  hyad.macros.textbook-forms [CELLS COMPARISONS OPERATIONS anf applies?
                              binders constant? element free-names head leaves
                              name? number? operation outside parameters
                              parts substitute]
  hyad.macros.textbook-forward [partial])

(defn ∇ [y]
  "The name of the derivative with respect to y."
  (Symbol (+ "∇" y)))

(defn đ [y]
  "The name of y's backpropagator."
  (Symbol (+ "đ" y)))

;; Derivatives have the shape of what they are derivatives of: numbers,
;; tuples, for a closure the tuple of those of its free variables. 0 is the
;; derivative of anything that played no part.

(defn gadd [a b]
  "The sum of two derivatives."
  (cond
    (isinstance a tuple)
      (if (isinstance b tuple)
          (tuple (gfor  [x y] (zip-longest a b :fillvalue 0)  (gadd x y)))
          a)
    (isinstance b tuple) b
    True (+ a b)))

(defn unpack [a n]
  "A derivative of n parts as its parts."
  (setv a (if (isinstance a tuple) a #()))
  (+ a (* #(0) (- n (len a)))))

(defn J [f]
  "§f for `(fn [x ..] e)`, a function that is written out:

      (§f x ..) => #(value đf),  (đf ∇f) => #(#(∇free ..) ∇x ..)

  where the first tuple belongs to f's free variables: \"the backpropagator of
  the function that built the closure is responsible for unpacking these\".
  The language is pure: cells are outside of it."
  (when (!= (head f) "fn")
    (raise (outside f "Myia" "it transforms a function, `(fn [x ..] e)`")))
  (setv marks (gfor  x (leaves f)
                :if (and (name? x) (re.match "[∇đ]|.*-[0-9]+$" x))
                x)
        f (anf f #* marks)
        bound (binders f)
        numbers #{})
  (function f [] bound numbers))

(defn function [f group bound numbers [free None]]
  "§f. The functions of a letrec, `group`, have their free variables together."
  (setv xs (parameters f)
        free (if (is free None) (captured f group bound) free))
  `(fn [~@xs] ~(block (get f 2) free group xs bound numbers)))

(defn captured [f group bound]
  "The variables that a closure captures, in order."
  (setv names (if (= (head f) "fn")
                  (free-names f)
                  (.union #{} #* (gfor  [_ g] f  (free-names g)))))
  (sorted (- (& names bound) (set group))))

(defn block [e free group xs bound numbers [closures [[] []]]]
  "`e`, in A-normal form, with its backpropagator: `#(value (fn [∇y] #(#(∇free
  ..) ∇x ..)))`. Every binding that counts has its backpropagator called, in
  reverse order. `group` are the functions that share this one's closure,
  `closures` the names that a letrec around `e` binds, and what these capture."
  (setv [bindings y] (if (= (head e) "let") (parts e) [[] e])
        bindings (list bindings))
  (when (not (or (name? y) (number? y) (constant? y)))
    (setv name (Symbol "y"))
    (while (or (in name bound) (in name (leaves e)))
      (setv name (Symbol (+ name "_"))))
    (setv bound (| bound #{name}))
    (.append bindings #(name y))
    (setv y name))
  (setv forward []  backward []  sums {})
  (defn part [p]
    "A new name for what one use of p adds to ∇p."
    (when (in p bound)
      (setv uses (.setdefault sums p []))
      (.append uses (Symbol f"{(∇ p)}-{(+ 1 (len uses))}"))
      (get uses -1)))
  (setv seed (∇ (if (in y bound) y (Symbol "y"))))
  (defn total [p]
    "∇p: the sum over the uses of p that came before."
    (setv uses (.get sums p []))
    (cond
      (not uses) None
      (= (len uses) 1) (get uses 0)
      True
        (do
          (setv dp (get uses 0))
          (for [u (cut uses 1 None)]
            (setv dp `(~(if (in p numbers) '+ 'gadd) ~dp ~u)))
          (.extend backward [(∇ p) dp])
          (∇ p))))
  (setv steps (lfor  [p e1] bindings  #(p e1 (step p e1 bound numbers))))
  (for [[p e1 [value _]] steps]
    (.extend forward [(get value 0) (get value 1)]))
  (when (in y bound)
    (setv (get sums y) [seed]))
  (for [[p e1 [_ pull]] (reversed steps)]
    (setv dp (total p))
    (when (and dp pull)
      (.extend backward (or (pull dp part) []))))
  (defn shares [group]
    "∇ of closures that capture the same: one sum."
    (reduce (fn [a b] `(gadd ~a ~b))
            (lfor  g group  :setv dg (total g)  :if dg  dg)))
  (setv [made captures] closures)
  (when (and captures (any (gfor  g made  (in g sums))))
    (.extend backward (or (unpacked (shares made) captures part) [])))
  (defn out [p]
    (or (total p) '0))
  (setv own `#(~@(map out free))
        own (if (any (gfor  g group  (in g sums)))
                `(gadd ~own ~(shares group))
                own)
        result `#(~own ~@(map out xs)))
  ;; a single use needs no number
  (setv single (dfor  [p uses] (.items sums)
                 :if (= (len uses) 1)
                 (get uses 0) (∇ p))
        pull `(fn [~seed] ~(if backward `(let [~@backward] ~result) result))
        result `#(~y ~(renamed pull single)))
  (if forward `(let [~@forward] ~result) result))

(defn renamed [e names]
  "`e` with names replaced wherever they stand."
  (cond
    (isinstance e Symbol) (.get names e e)
    (isinstance e #(Expression List Tuple))
      ((type e) (gfor  a e  (renamed a names)))
    True e))

(defn unpacked [dy items part]
  "The binding that gives each of `items` its share of ∇ of what holds them."
  (setv shares (lfor  p items  (or (part p) '_)))
  (when (any (gfor  p shares  (!= p '_)))
    [(List shares) `(unpack ~dy ~(hy.as-model (len items)))]))

(defn step [y e bound numbers]
  "For `y e` of a let: the forward binding, and a function from ∇y (and a namer
  of shares) to backward bindings; None where nothing comes back."
  (setv op (head e))
  (defn call [form uses]
    "A call that gives y and đy: đy gives what each of `uses` gets, in order."
    #([(List [y (đ y)]) form]
      (fn [dy part]
        [(List (gfor  p uses  (or (part p) '_))) `(~(đ y) ~dy)])))
  (cond
    ;; a primitive, whose backpropagator is known
    (in op OPERATIONS)
      (do
        (operation e "Myia")
        (setv ps (lfor  p (cut e 1 None)  :if (in p bound)  p)
              slopes (lfor  [i p] (enumerate (cut e 1 None))
                       :if (in p bound)
                       (do
                         (setv slope (partial e i))
                         (if (= slope '1) (∇ y) `(* ~(∇ y) ~slope)))))
        (.update numbers ps [y])
        (call `#(~e (fn [~(∇ y)] #(~@slopes))) ps))
    (in op COMPARISONS) #([y e] None)
    ;; a call: the function's own derivative comes back as well
    (applies? e bound) (call e e)
    ;; a closure, and the unpacking of ∇closure
    (= op "fn")
      (do
        (setv free (captured e [] bound))
        #([y (function e [] bound numbers)]
          (when free (fn [dy part] (unpacked dy free part)))))
    (isinstance e Tuple)
      #([y e] (fn [dy part] (unpacked dy e part)))
    (in op ["fst" "snd" "get"])
      (do
        (setv [p i] (if (= op "get") (element e "Myia") [(get e 1) (= op "snd")]))
        #([y e]
          (fn [dy part]
            [(part p) `#(~@(* ['0] i) ~dy)])))
    (in op ["inl" "inr"])
      #([y e] (fn [dy part] (when (in (get e 1) bound) [(part (get e 1)) dy])))
    ;; branches are closures that are called at once
    (in op ["if" "case"])
      (do
        (setv free (captured [#(None e)] [] bound)
              free (lfor  p free  :if (!= p (get e 1))  p))
        (defn branch [e xs]
          (block e free [] xs bound numbers))
        (if (= op "if")
            (do
              (setv [_ c e1 e2] e)
              #([(List [y (đ y)]) `(if ~c ~(branch e1 []) ~(branch e2 []))]
                (when free
                  (fn [dy part]
                    [(List [(List (map part free))]) `(~(đ y) ~dy)]))))
            (do
              (setv [v [[y1 e1] [y2 e2]]] (parts e)
                    free (sorted (| (set free)
                                    (& bound #{v}
                                       (| (- (free-names e1) #{y1})
                                          (- (free-names e2) #{y2}))))))
              #([(List [y (đ y)])
                 `(case ~v
                    (inl ~y1) ~(branch e1 [y1])
                    (inr ~y2) ~(branch e2 [y2]))]
                (fn [dy part]
                  [(List [(List (map part free)) (or (part v) '_)])
                   `(~(đ y) ~dy)])))))
    ;; functions that capture each other share their free variables
    (= op "letrec")
      (do
        (setv [fs body] (parts e)
              fs (list fs)
              group (lfor  [f _] fs  f)
              captures (captured fs group bound)
              free (sorted (| (set captures)
                              (- (& bound (free-names body)) (set group)))))
        #([(List [y (đ y)])
           `(letrec [~@(gfor  [f g] fs
                         a [f (function g group bound numbers captures)]
                         a)]
              ~(block body free [] [] bound numbers [group captures]))]
          (when free
            (fn [dy part]
              [(List [(List (map part free))]) `(~(đ y) ~dy)]))))
    True
      (raise (outside e "Myia" (when (in op CELLS)
               "its language is pure: what is set would have to be remembered")))))

(defn reverse-closures [f]
  "Myia Fig. 1, (6) and (7): §f is called, and its backpropagator with 1.

      (fn [x ..] (let [[y đ] (§f x ..)  [_ ∇x ..] (đ 1.0)] ∇x))"
  (setv g (J f)
        xs (parameters g)
        slopes (lfor  x xs  (∇ x))
        y (Symbol "y"))
  (while (in y xs)
    (setv y (Symbol (+ y "_"))))
  `(fn [~@xs]
     (let [[~y ~(đ y)] (~g ~@xs)
           ~(List ['_ #* slopes]) (~(đ y) 1.0)]
       ~(if (= (len xs) 1) (get slopes 0) `#(~@slopes)))))
