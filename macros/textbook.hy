"The textbook: the papers' figures, by their names, on bare s-expressions.

A rule stands here as it stands in the paper, its equation above it; what
hyad compiles with is the engine. Each figure is a function from forms to
forms and a macro that calls it, so that `hy.macroexpand` shows the figure's
right-hand side and evaluating the macro gives its value:

    (symdiff (* x x) x)  =>  (+ (* 1 x) (* x 1))

This file has the macros; the figures are in the files of SECTIONS, to be read
in that order.

\"Lantern\" is: Wang, Zheng, Decker, Wu, Essertel, Rompf, Demystifying
Differentiable Programming: Shift/Reset the Penultimate Backpropagator, ICFP
2019. Its primes are dots here, for `'` ends a symbol: y′ is ẏ, and ȳ where it
is an adjoint. \"Myia\" is: van Merriënboer, Breuleux, Bergeron, Lamblin,
Automatic differentiation in ML, NeurIPS 2018. \"dF~\" is: Shaikhha,
Fitzgibbon, Vytiniotis, Peyton Jones, Efficient Differentiable Programming in
a Functional Array-Processing Language, ICFP 2019.

`(require hyad.macros.textbook *)` gives the figures' macros. Those that are
words of the figures' language, or have a name that the engine has too, come
by name: `(require hyad.macros.textbook [case letrec deriv grad])`."

(import importlib [import-module])

;; The files, and what is for use outside of them: each is imported when
;; something of it is first asked for.
(setv SECTIONS {
  ;; the language (Lantern Fig. 3), A-normal form, shift and reset
  "textbook_forms" '[head text pairs tangent hat leaves size substitute
                     free-names anf fst snd Ref ref deref set! add! Sum inl inr
                     reset shift shift0]
  ;; what the figures' classes of numbers share
  "textbook_numbers" '[Operators value sin cos exp log sqrt]
  ;; Lantern 2: Figs. 1, 2, 4, 5; tags (2.5)
  "textbook_forward" '[d/dx without-lets tidy partial forward forward-lambda
                       NumF gradF NumT gradT]
  ;; Lantern 3: Figs. 7 to 11; the tape, Fig. 12; store passing, 3.6; Fig. 13
  "textbook_reverse" '[NumR0 gradR0 NumR gradR reverse-shift reverse-meta
                       reverse-cps NumB gradB NumS gradS NumRR gradRR]
  ;; Lantern 4: branches, loops, functions, trees; Fig. 14
  "textbook_staging" '[NumC staged-grad IF WHILE LOOP FUN TREE Node]
  ;; Myia 3.2 and Fig. 1: backpropagators
  "textbook_myia" '[J reverse-closures gadd unpack]
  ;; dF~: Figs. 4 to 8
  "textbook_smooth" '[build ifold length LIBRARY D DT G diff-form grad-form
                      mgrad-form expanded RULES optimise
                      relabelled]})

(setv HOME (dfor  [file names] (.items SECTIONS)  name names  (hy.mangle name) file)
      __all__ (list HOME))

(defn __getattr__ [name]
  (when (not-in name HOME)
    (raise (AttributeError f"the textbook has no `{(hy.unmangle name)}`"
                           :name name)))
  (getattr (import-module (+ "hyad.macros." (get HOME name))) name))

(defn expansion [compiler figure #* args]
  "The figure's right-hand side for these forms. A mistake underlines its form."
  (import hyad.macros.textbook-forms [shown])
  (shown compiler (__getattr__ (hy.mangle figure)) #* args))

;; ------------------------------------------------------------ the language

(defmacro case [e left e1 right e2]
  "`(case e (inl x) e1 (inr y) e2)`: e1 or e2, with what was injected."
  (setv v (hy.gensym "v"))
  `(let [~v ~e]
     (if (= (. ~v side) "inl")
         (let [~(get left 1) (. ~v value)] ~e1)
         (let [~(get right 1) (. ~v value)] ~e2))))

(defmacro letrec [bindings #* body]
  "`(letrec [f (fn ..) g (fn ..)] e)`: functions that may call each other."
  `(let [~@(gfor  f (cut bindings 0 None 2)  a [f None]  a)]
     (setv ~@bindings)
     ~@body))

;; --------------------------------------------------------------- Lantern 2

(defmacro symdiff [_hy_compiler e x]
  "The derivative of the expression `e` by x: the right-hand side of Fig. 1."
  (expansion _hy_compiler "d/dx" e x))

(defmacro symdiff-without-lets [_hy_compiler e x]
  "The same without lets: each is replaced by what it binds, beforehand."
  (expansion _hy_compiler "d/dx" (expansion _hy_compiler "without-lets" e) x))

(defmacro to-anf [_hy_compiler e]
  "`e` in administrative normal form."
  (expansion _hy_compiler "anf" e))

(defmacro symdiff-forward [_hy_compiler e x]
  "Forward-mode AD of `e` by x: the right-hand side of Fig. 2."
  (expansion _hy_compiler "forward" e x))

(defmacro grad-forward [_hy_compiler f]
  "The gradient of `(fn [x ..] e)` in forward mode: Fig. 4."
  (expansion _hy_compiler "forward-lambda" f))

;; --------------------------------------------------------------- Lantern 3

(defmacro grad-shift [_hy_compiler f]
  "The gradient of `(fn [x ..] e)` by shift and reset in the target: Fig. 9."
  (expansion _hy_compiler "reverse-shift" f))

(defmacro grad-meta [_hy_compiler f]
  "The gradient of `(fn [x ..] e)` in CPS, by shift and reset at expansion: Fig. 10."
  (expansion _hy_compiler "reverse-meta" f))

(defmacro grad-cps [_hy_compiler f]
  "The gradient of `(fn [x ..] e)` in pure CPS: Fig. 11."
  (expansion _hy_compiler "reverse-cps" f))

;; -------------------------------------------------------------------- Myia

(defmacro grad-closures [_hy_compiler f]
  "The gradient of `(fn [x ..] e)` by backpropagators: Myia, 3.2."
  (expansion _hy_compiler "reverse-closures" f))

;; --------------------------------------------------------------------- dF~

(defmacro deriv [_hy_compiler e x #* types]
  "dF~ Fig. 5: the value of `e` with its derivative by x. Names that are no
  numbers have their types behind: `(deriv (vector-dot u v) u [#^ Vector u
  #^ Vector v])`."
  (expansion _hy_compiler "expanded" `(deriv ~e ~x ~@types)))

(defmacro diff [_hy_compiler f]
  "dF~ Fig. 6: the derivative of a function from a number to a number."
  (expansion _hy_compiler "diff-form" f))

(defmacro vdiff [_hy_compiler f]
  "dF~ Table 2: the derivative of a function from a number to a vector."
  (expansion _hy_compiler "diff-form" f))

(defmacro mdiff [_hy_compiler f]
  "dF~ Table 2: the derivative of a function from a number to a matrix."
  (expansion _hy_compiler "diff-form" f))

(defmacro grad [_hy_compiler f]
  "dF~ Fig. 6: the gradient of a function from a vector to a number."
  (expansion _hy_compiler "grad-form" f))

(defmacro mgrad [_hy_compiler f]
  "dF~ Table 2: the gradient of a function from a matrix to a number."
  (expansion _hy_compiler "mgrad-form" f))

(defmacro jacob [_hy_compiler f]
  "dF~ Fig. 6: the Jacobian of a function from vectors to vectors, transposed."
  (expansion _hy_compiler "grad-form" f))

(defmacro optimised [_hy_compiler e]
  "An expression of F~ by the rules of dF~ Fig. 8."
  (expansion _hy_compiler "optimise" e))

(export :macros [symdiff symdiff-without-lets to-anf symdiff-forward
                 grad-forward grad-shift grad-meta grad-cps grad-closures
                 diff vdiff mdiff mgrad jacob optimised])
