"The macros of hyad: `(require hyad.macros *)`.

Each is thin: it quotes what stands in it and calls a function of `hyad`. A
model is handed over as the text that the user wrote, with its file, line and
column, so that every later error underlines the user's own form.

    (defmodel f [x y] (* x (sin y)))
    ((grad f) 2.0 0.0)                  => #(0.0 2.0)
    ((D (fn [t] (* t t))) 3.0)          => 6.0
    (deriv (* x x) x)                   => #(9.0 6.0), where x is 3.0"

(import
  keyword [iskeyword]
  hy
  hy.models [Expression Keyword List Symbol]
  hyad
  hyad.core [Global all-binds atoms-of blocks-of]
  hyad.errors [HyadError ReadError Source Span]
  hyad.program.forms [from-hy read-forms]
  hyad.layout [pformat]
  hyad.model [data-rows]
  hyad.program.reader [form-to-lambda])

;; ---------------------------------------------------------------- quoting

(defn written [compiler form]
  "The characters of the source that `form` was read from; None where there
  are none: a macro made it, or there is no source."
  (setv source (getattr compiler "source" None))
  (when (and source (hasattr form "_start_line") (hasattr form "_end_line"))
    (setv lines (.split source "\n")
          [first last] [(- form.start-line 1) form.end-line]
          cut-lines (cut lines first last))
    (when (and cut-lines (= (len cut-lines) (- last first)))
      (setv (get cut-lines -1) (cut (get cut-lines -1) form.end-column)
            (get cut-lines 0) (cut (get cut-lines 0) (- form.start-column 1) None)
            text (.join "\n" cut-lines))
      (when (says? text form) text))))

(defn says? [text form]
  "Whether `text` is `form`. What a macro made stands where the macro was called."
  (try
    (setv read (read-forms text))
    (and (= (len read) 1) (= (pformat (get read 0) 10000) (pformat form 10000)))
    (except [ReadError]  ; the user's mistake, to be shown in the user's text
      (.startswith text (+ "(" (head-text form))))))

(defn placed [compiler form]
  "The text of `form`, and its file, line and column."
  [(or (written compiler form) (pformat form 10000))
   (or (getattr compiler "filename" None) "<hy>")
   form.start-line
   form.start-column])

(defn refuse [compiler kind message hint]
  "Raise what is wrong with the form that is expanded, and underline it."
  (setv [text #* place] (placed compiler compiler.this))
  (raise (kind message (Span (Source text #* place) 0 (len text)) hint)))

(defn at-place [text filename line column f #* args #** options]
  "What `f` gives; what is wrong with it underlines the form `text`."
  (try
    (f #* args #** options)
    (except [error HyadError]
      (setv error.span (or error.span (Span (Source text filename line column) 0 (len text))))
      (raise error))))

(defn head-text [form]
  "How the head of a form is written: `defmodel`, or `h.defmodel`."
  (pformat (get form 0)))

(defn free-names [text]
  "The names in the text of a model that nothing in it binds and Python can."
  (try
    (setv f (form-to-lambda (get (read-forms text) 0)))
    (except [HyadError] (return [])))  ; `define` says what is wrong
  (setv atoms (list f.body.results))
  (for [bind (all-binds f.body)]
    (.extend atoms (atoms-of bind.op))
    (for [block (blocks-of bind.op)]
      (.extend atoms block.results)))
  (setv names (dfor a atoms :if (isinstance a Global) (get (.partition a.name ".") 0) True))
  (lfor name names
    :if (and name (or (.isalpha (get name 0)) (= (get name 0) "_")) (not-in " " name)  ; einsum's have one
             (.isidentifier (hy.mangle name)) (not (iskeyword (hy.mangle name))))
    name))

(defn model-call [compiler head form]
  "The form that makes a model of `form`, which starts with `head`:

      (hyad.define TEXT FILE LINE COLUMN (fn [] [NAME ...]))

  The function is never called: it closes over the variables that the model
  names, which may be those of a function around it."
  (setv text (written compiler form)
        column form.start-column)
  (if text
      (when (not (.startswith text (+ "(" head)))  ; (h.defmodel ..)
        (setv name (head-text form)
              column (+ column (- (len name) (len head)))
              text (+ "(" head (cut text (+ 1 (len name)) None))))
      (setv text (pformat (Expression [(Symbol head) #* (cut form 1 None)]))))
  `(hy.I.hyad.define
     ~text
     ~(or (getattr compiler "filename" None) "<hy>")
     ~form.start-line
     ~column
     (fn [] [~@(map Symbol (free-names text))])))

(defn as-model [compiler f]
  "An operator's argument: a function that is written out is a model."
  (if (and (isinstance f Expression) f (= (get f 0) (Symbol "fn")))
      (model-call compiler "fn" f)
      f))

(defn as-wrt [wrt]
  "`:wrt x` names the parameter x, as in a model; so does `:wrt \"x\"`."
  (cond
    (isinstance wrt Symbol) (str wrt)
    (isinstance wrt #(List hy.models.Tuple)) `#(~@(map as-wrt wrt))
    True wrt))

(defn operator-call [compiler name f options]
  "`(hyad.grad f)`, with `:wrt` quoted."
  (setv wrt [])
  (when (or (is f None) (and options (or (!= (len options) 2) (!= (get options 0) (Keyword "wrt")))))
    (refuse compiler ReadError f"{name} takes a model and `:wrt`" f"`({name} f)` or `({name} f :wrt x)`"))
  (when options
    (setv wrt [(as-wrt (get options 1))]))
  `((. hy.I.hyad ~(Symbol name)) ~(as-model compiler f) ~@wrt))

(defn product-call [compiler operator args]
  "`(jvp f x ... dx ...)` and its kin, which a model writes flat."
  (when (not args)
    (refuse compiler ReadError f"{operator} takes a model, a point and a vector" (get PRODUCTS operator)))
  `(hy.I.hyad/macros.at-place ~@(placed compiler compiler.this)
     hy.I.hyad/macros.product ~operator ~(as-model compiler (get args 0)) ~@(cut args 1 None)))

(setv PRODUCTS {"jvp" "`(jvp f x dx)`"  "vjp" "`(vjp f x ct)`"  "hvp" "`(hvp f x v)`"})

(defn product [operator f #* args]
  "What `(jvp f x ... dx ...)` and its kin expand to."
  (when (or (not args) (and (!= operator "vjp") (% (len args) 2)))
    (setv wrong (if args "the arguments, then a vector for each" "a point and a vector"))
    (raise (hyad.ModelTypeError f"{operator} takes {wrong}" None (get PRODUCTS operator))))
  (setv at (if (= operator "vjp") (- (len args) 1) (// (len args) 2))
        [points vectors] [(cut args at) (cut args at None)])
  (if (= operator "vjp")
      (hyad.vjp f points (get vectors 0))
      ((getattr hyad operator) f points vectors)))

;; ----------------------------------------------------------------- models

(defmacro defmodel [_hy_compiler #* rest]
  "Define a model.

      (defmodel ring [r R] \"its area\" (* 3.14 (- (* R R) (* r r))))
      (defmodel energy [#^ (Vec n) v] (fold + 0.0 (map square v)))

  Annotations are optional. A model sees other models and the numbers, arrays
  and tuples of the module and function that it stands in, as they were when it
  was compiled. `(defmodel :fast-math f [x] ..)` lets rules apply that may lose
  a NaN or an infinity, as 0*x => 0."
  (setv name (next (gfor r rest :if (isinstance r hy.models.Symbol) r) 'f))
  `(setv ~name ~(model-call _hy_compiler "defmodel" _hy_compiler.this)))

(defmacro model [_hy_compiler #* rest]
  "A model without a name: `(model [x] (* x x))`."
  (model-call _hy_compiler "model" _hy_compiler.this))

(defmacro defprim [_hy_compiler [name None] [params None] #* rest]
  "Add a primitive to the language, and define it here.

      (defprim softsign [x] \"x/(1 + |x|)\"
        :partials [(/ 1 (square (+ 1 (abs x))))]
        :python (fn [x] (/ x (+ 1 (abs x))))
        :c \"softsign({0})\"
        :support \"static inline double softsign(double x) { return x/(1 + fabs(x)); }\")

  `:partials` are forms in the parameters and `y`, the result, or a string:
  why there are none. `:jvp` and `:vjp` may be `(fn ..)` forms: models. Every
  other option is as `hyad.defprim` has it."
  (when (or (not (isinstance name Symbol)) (not (isinstance params List)))
    (refuse _hy_compiler ReadError "a defprim is a name and its parameters" "`(defprim softsign [x] ...)`"))
  (setv options (list rest)  doc [])
  (when (and options (isinstance (get options 0) hy.models.String))
    (setv doc [:doc (.pop options 0)]))
  (setv known #("partials" "python" "c" "cuda" "sympy" "support" "doc" "types" "jvp" "vjp" "domain" "cost")
        given (lfor o (cut options None None 2) (when (isinstance o Keyword) o.name)))
  (setv unpacks (Symbol "unpack-mapping")
        unpacked (any (gfor o options (and (isinstance o Expression) (bool o) (= (get o 0) unpacks)))))
  (for [#(option o) (zip given (cut options None None 2))]
    (when (not (or unpacked (in option known)))
      (refuse _hy_compiler ReadError f"a defprim has no option {(pformat o)}"
        f"its options are :{(.join " :" known)}")))
  (when (not (or unpacked (and (% (+ 1 (len options)) 2) (in "python" given) (in "c" given))))
    (refuse _hy_compiler ReadError "a defprim has a value for each option, and :python and :c"
      "`:python (fn [x] ...)`, and `:c \"f({0})\"` or a sentence: why there is none"))
  (for [i (range 1 (len options) 2)]
    (setv option (. (get options (- i 1)) name)  value (get options i))
    (setv (get options i)
      (cond
        (and (= option "partials") (isinstance value List))
          `[~@(lfor p value (if (isinstance p hy.models.String) p (pformat p 10000)))]
        (in option #("jvp" "vjp")) (as-model _hy_compiler value)
        True value)))
  `(setv ~name (hy.I.hyad/macros.at-place ~@(placed _hy_compiler _hy_compiler.this)
                 hy.I.hyad.defprim ~(str name) [~@(map str params)] ~@doc ~@options)))

(defmacro defdata [_hy_compiler [name None] #* constructors]
  "Define a data type by its constructors, and the names of their fields.

      (defdata Tree (Leaf word) (Node label left right))
      (match t (Leaf w) w (Node _ a b) (+ (f a) (f b)))   ; in a model"
  (setv [text #* place] (placed _hy_compiler _hy_compiler.this))
  (data-rows (get (read-forms text (Source text #* place)) 0))
  (setv heads (lfor c constructors (get c 0)))
  `(setv ~name (hy.I.hyad/macros.at-place ~text ~@place
                 hy.I.hyad.defdata ~(str name) ~@(lfor c constructors `[~@(map str c)]) :module __name__)
         [~@heads] (. ~name constructors)))

;; -------------------------------------------------------------- operators

(defmacro grad [_hy_compiler [f None] #* options]
  "The gradient of a model that gives a number: `((grad f) x y)`, `(grad f :wrt x)`."
  (operator-call _hy_compiler "grad" f options))

(defmacro value-and-grad [_hy_compiler [f None] #* options]
  "The pair of value and gradient, computed together."
  (operator-call _hy_compiler "value-and-grad" f options))

(defmacro jacobian [_hy_compiler [f None] #* options]
  "The derivative of every result by every argument."
  (operator-call _hy_compiler "jacobian" f options))

(defmacro hessian [_hy_compiler [f None] #* options]
  "The Jacobian of the gradient."
  (operator-call _hy_compiler "hessian" f options))

(defmacro D [_hy_compiler [f None] #* options]
  "The derivative by one number: `((D f) x)`."
  (operator-call _hy_compiler "D" f options))

(defmacro diff [_hy_compiler [f None] #* options]
  "The derivative of a model of a number that gives a number: `((diff sin) x)`
  (dF~, Table 2, as the next four)."
  (operator-call _hy_compiler "diff" f options))

(defmacro vdiff [_hy_compiler [f None] #* options]
  "The derivative of a model of a number that gives a vector."
  (operator-call _hy_compiler "vdiff" f options))

(defmacro mdiff [_hy_compiler [f None] #* options]
  "The derivative of a model of a number that gives a matrix."
  (operator-call _hy_compiler "mdiff" f options))

(defmacro jacob [_hy_compiler [f None] #* options]
  "The Jacobian of a model of a vector that gives a vector."
  (operator-call _hy_compiler "jacob" f options))

(defmacro mgrad [_hy_compiler [f None] #* options]
  "The gradient of a model of a matrix that gives a number."
  (operator-call _hy_compiler "mgrad" f options))

(defmacro jvp [_hy_compiler #* args]
  "The tangent at a point: `(jvp f x y dx dy)`."
  (product-call _hy_compiler "jvp" args))

(defmacro vjp [_hy_compiler #* args]
  "The adjoints at a point for a cotangent of the result: `(vjp f x y ct)`."
  (product-call _hy_compiler "vjp" args))

(defmacro hvp [_hy_compiler #* args]
  "The Hessian at a point times a vector: `(hvp f x y v-x v-y)`."
  (product-call _hy_compiler "hvp" args))

(defmacro deriv [_hy_compiler #* rest]
  "The value of an expression and its derivative by a variable, a number or an
  array, where that has a value: `(deriv (* x x) x)` is `#(9.0 6.0)` where x is
  3.0 (dF~, Fig. 5). The other variables in it have the values that they have."
  (when (or (!= (len rest) 2) (not (isinstance (get rest 1) Symbol)))
    (refuse _hy_compiler ReadError "deriv takes an expression and a variable in it" "`(deriv (* x x) x)`"))
  (setv [e x] rest
        names (free-names f"(model [{x}] {(pformat e)})"))
  `(hy.I.hyad/model.deriv-here
     ~@(placed _hy_compiler _hy_compiler.this)
     [~@(map str names)]
     (fn [] [~x ~@(map Symbol names)])))
