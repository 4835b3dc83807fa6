"Lantern section 4: reverse mode that writes its program while it runs.

A `NumR` here has forms for its value and its derivative: its operators write
the code that computes them. Continuations are captured while the program is
written and leave no trace but its shape, as in Fig. 10. Control flow that the
written program shall have takes IF, WHILE, LOOP, FUN and TREE instead of
Hy's own.

    (staged-grad (fn [x] (IF (> x 0.0) (fn [] (* -1.0 x x)) (fn [] (* x x)))))

is the form of a function: \"a computation graph\" that branches. It calls
`ref`, `deref`, `set!`, `add!` and, where it recurs, `letrec`."

(import
  collections [namedtuple]
  hy.models [Expression Symbol]
  hyad.macros.textbook-forms [head reset shift]
  hyad.macros.textbook-forward [SCHOOL]
  hyad.macros.textbook-numbers [Operators]
  hyad.macros.textbook-reverse [let-in])

(setv counters {})

(defn fresh [stem]
  "stem1, stem2, ...: names in the order in which the program is written."
  (setv (get counters stem) (+ 1 (.get counters stem 0)))
  (Symbol f"{stem}{(get counters stem)}"))

;; ------------------------------------------------------ 4.1: straight-line code

(defclass NumC [Operators]
  "Lantern 4.1: `class NumR(val x: Rep[Double], val d: Rep[Var[Double]])`.

  `x` is the form of the value and `d` the name of the cell for the
  derivative, None for a constant."
  (defn __init__ [self x [d None]]
    (setv self.x (hy.as-model x)  self.d d))

  (defn written [self value #* shares]
    "Writes v = value, d = ref 0, the rest of the program, and what each
    operand gets: d_operand += slope * !d."
    (shift (fn [k]
      (setv v (fresh "v")
            d (Symbol (+ "d" (cut v 1 None))))
      `(let [~v ~value  ~d (ref 0.0)]
         ~(k (NumC v d))
         ~@(gfor  [p slope] shares  :if p.d
             `(add! ~p.d ~(if (= slope '1) `(deref ~d) `(* ~slope (deref ~d)))))))))

  (defn __add__ [self that]
    (setv that (.lift self that))
    (.written self `(+ ~self.x ~that.x) #(self '1) #(that '1)))

  (defn __mul__ [self that]
    (setv that (.lift self that))
    (.written self `(* ~self.x ~that.x) #(self that.x) #(that self.x)))

  (defn of [self f df]
    "A function of school, by its name."
    (.written self `(~(Symbol f.__name__) ~self.x)
      #(self ((get SCHOOL f.__name__) self.x))))

  (defn __truediv__ [self that]
    (setv that (.lift self that))
    (.written self `(/ ~self.x ~that.x)
      #(self `(/ 1 ~that.x))
      #(that `(- (/ ~self.x (* ~that.x ~that.x))))))

  (defn __rtruediv__ [self that]
    (/ (.lift self that) self))

  (defn __pow__ [self n]
    (setv [n n-1] (map hy.as-model [n (- n 1)]))
    (.written self `(** ~self.x ~n) #(self `(* ~n (** ~self.x ~n-1)))))

  ;; comparisons write the form of a Rep[Boolean]
  (defn __lt__ [self that] `(< ~self.x ~(. (.lift self that) x)))
  (defn __le__ [self that] `(<= ~self.x ~(. (.lift self that) x)))
  (defn __gt__ [self that] `(> ~self.x ~(. (.lift self that) x)))
  (defn __ge__ [self that] `(>= ~self.x ~(. (.lift self that) x)))
  (defn __eq__ [self that] `(= ~self.x ~(. (.lift self that) x)))
  (defn __ne__ [self that] `(!= ~self.x ~(. (.lift self that) x)))
  (setv __hash__ object.__hash__))

(defn staged-grad [f #* given]
  "Lantern 4.1: the program of `def snippet(given .., in) = grad(f)(in)`."
  (.clear counters)
  `(fn [~@given in]
     (let [d0 (ref 0.0)]
       ~(reset (fn []
          (setv y (f (NumC 'in 'd0)))
          (if (getattr y "d" None) `(set! ~y.d 1.0) 'None)))
       (deref d0))))

;; -------------------------------------- 4.2 to 4.4: functions of the program

(defn fun [k #* others]
  "Lantern 4.2: a static function of a number, lifted to one of the program:
  of a value and a cell, and of `others`."
  (setv x (fresh "x")
        d (Symbol (+ "dx" (cut x 1 None)))
        body (k (NumC x d)))
  (if (and (isinstance body Expression) (not others) (= (cut body 1 None) `(~x ~d)))
      (get body 0)  ; λ(x, d). k(x, d) is k
      `(fn [~@others ~x ~d] ~body)))

(defn call [k y #* others]
  "The call of a function of the program; a constant gets a cell of its own."
  (if (isinstance y Operators)
      `(~k ~@others ~y.x ~(or y.d '(ref 0.0)))
      `(~k ~@others ~(hy.as-model y) (ref 0.0))))

(defn IF [c a b]
  "Lantern 4.2: a branch of the program. `a` and `b` are functions of nothing.

      shift { k => val k1 = fun(k); if (c) reset(k1(a)) else reset(k1(b)) }"
  (shift (fn [k]
    (setv f (fun k)
          k1 (if (isinstance f Symbol) f (fresh "k")))
    (let-in k1 f
      `(if ~c
           ~(reset (fn [] (call k1 (a))))
           ~(reset (fn [] (call k1 (b)))))))))

(defn WHILE [init c b]
  "Lantern 4.3: a loop of the program, a tail-recursive function.

      shift { k => def loop = fun { x =>
                     if (c(x)) reset(loop(b(x))) else reset(k(x)) }
                   loop(init) }"
  (shift (fn [k]
    (setv loop (fresh "loop"))
    `(letrec [~loop ~(fun (fn [x]
                `(if ~(c x)
                     ~(reset (fn [] (call loop (b x))))
                     ~(reset (fn [] (k x))))))]
       ~(call loop init)))))

(defn LOOP [init n b]
  "Lantern 4.3: the loop whose guard is a number of times; `(b i x)`."
  (shift (fn [k]
    (setv loop (fresh "loop")  i (fresh "i"))
    `(letrec [~loop ~(fun (fn [x]
                `(if (< ~i ~(hy.as-model n))
                     ~(reset (fn [] (call loop (b (NumC i) x) `(+ ~i 1))))
                     ~(reset (fn [] (k x)))))
                i)]
       ~(call loop init '0)))))

(defclass FUN []
  "Lantern 4.4: a function of the program that takes its continuation, and
  which may call itself. Its argument is a form, as a tree is, no number.

      (y) => shift { k => val f1 = fun((t, k1) => reset(k1(f(t))))
                          f1((y, fun(k))) }

  Every fun has a name, as in Fig. 14: there k, f1, k_l and k_r, in this order."
  (defn __init__ [self f]
    (setv self.f f  self.name None))

  (defn __call__ [self y]
    (shift (fn [k]
      (setv name (fresh "k"))
      (if self.name
          (let-in name (fun k) `(~self.name ~y ~name))
          (do
            (setv f1 (fresh "f")  t (fresh "t")  k1 (fresh "k")
                  self.name f1
                  rest (fun k)
                  body (reset (fn [] (call k1 (self.f t))))
                  self.name None)
            `(letrec [~name ~rest
                      ~f1 (fn [~t ~k1] ~body)]
               (~f1 ~y ~name))))))))

(setv Node (namedtuple "Node" ["left" "right" "value"]))

(defn TREE [init t b]
  "Lantern 4.4: a fold over a tree of the program, which is a `Node` or None.

      def f = FUN { tree => IF (tree.notEmpty) { b(f(tree.left), f(tree.right)) }
                               { init } };  f(t)

  `b` is given the tree's value, too: `(b l r v)`."
  (setv f (FUN (fn [tree]
    (IF `(is-not ~tree None)
        (fn []
          (setv l (f `(. ~tree left))
                r (f `(. ~tree right)))
          (b l r (NumC `(. ~tree value))))
        (fn [] init)))))
  (f t))
