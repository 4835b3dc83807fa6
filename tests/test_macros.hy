"`(require hyad.macros *)`: models from Hy, their text and place, what they close over, and the operators."

(import
  pathlib [Path]
  subprocess
  sys
  types [ModuleType]
  numpy :as np
  pytest
  hy.compiler [hy-compile]
  hy.reader [read-many]
  hyad
  hyad.errors [HyadError ReadError UnboundError]
  hyad.model [Model])
(require hyad.macros *)

(setv k 3.0)

(defmodel f [x y]
  "A prodüct."
  (* x   ; the comment stays
     (sin y)))

(defn run [source [filename "place.hy"]]
  "Evaluate a Hy source text as a file's; its module."
  (setv module (ModuleType "place"))
  (setv tree (hy-compile (read-many source :filename filename :skip-shebang True) module
                         :filename filename :source source))
  (exec (compile tree filename "exec") module.__dict__)
  module)

(setv HEAD "(require hyad.macros *)\n")

;; ----------------------------------------------------------------- defmodel

(defn test-defmodel-defines-a-model []
  (assert (isinstance f Model))
  (assert (= (f 2.0 0.0) 0.0))
  (assert (= f.name "f"))
  (assert (= f.doc "A prodüct.")))

(defn test-the-text-is-the-users-own []
  (assert (= f.source (.join "\n" ["(defmodel f [x y]" "  \"A prodüct.\"" "  (* x   ; the comment stays"
                                   "     (sin y)))"])))
  (assert (.endswith f.span.source.filename "test_macros.hy"))
  (assert (= f.span.line 19)))

(defn test-text-is-cut-right-wherever-it-stands []
  (setv m (run (+ "#!/usr/bin/env hy\n" HEAD "(setv λ \"ẋ(\")  (defmodel g [é] (* é 2.0)) (setv z 1)\n")))
  (assert (= m.g.source "(defmodel g [é] (* é 2.0))"))
  (assert (= (.position m.g.span.source 0) #(3 16)))
  (setv m (run (+ HEAD "(defn outer []\n\t(do\n\t  (model [v]\n\t\t(get v 0))))\n(setv g (outer))")))
  (assert (= m.g.source "(model [v]\n\t\t(get v 0))"))
  (assert (= (m.g (np.array [4.0])) 4.0))
  (setv m (run (+ HEAD "(defmodel a [x] x) (defmodel b [x] (* 2 x))")))
  (assert (= [m.a.source m.b.source] ["(defmodel a [x] x)" "(defmodel b [x] (* 2 x))"])))

(defn test-a-model-in-a-file-sums-products-by-the-names-of-their-axes []
  (for [name ["einsum" "np.einsum"]]
    (setv m (run (+ HEAD f"(import numpy :as np)\n(defmodel g [x y] ({name} \"ij,j->i\" x y))")))
    (assert (= (list (m.g (np.array [[1.0 2.0] [3.0 4.0]]) (np.array [1.0 1.0]))) [3.0 7.0]))))

(defn test-a-form-that-a-macro-made-has-the-text-it-prints-as []
  (setv m (run (+ HEAD "(defmacro twice [name e] `(defmodel ~name [x] (+ ~e ~e)))\n\n(twice g (* x 2.5))")))
  (assert (= m.g.source "(defmodel g [x] (+ (* x 2.5) (* x 2.5)))"))
  (assert (= (m.g 1.0) 5.0))
  (assert (= m.g.span.line 4)))

(defn test-without-a-source []
  (setv g (hy.eval (hy.read "(do (require hyad.macros *) (model [x] (* x (cos x))))")))
  (assert (= g.source "(model [x] (* x (cos x)))"))
  (assert (= (g 0.0) 0.0)))

(defn test-macros-under-another-name []
  (setv m (run "(require hyad.macros :as h)\n(h.defmodel g [x] (* x (foo x)))\n(setv d (h.grad g))"))
  (assert (= m.g.source "(defmodel g [x] (* x (foo x)))"))
  (with [e (pytest.raises UnboundError)] (m.g 1.0))
  (assert (in "place.hy:2:25" (str e.value))))

(defn test-annotations []
  (defmodel norm2 [#^ (Vec 3) v] (dot v v))
  (assert (= (norm2 (np.array [1.0 2.0 3.0])) 14.0))
  (with [(pytest.raises hyad.ModelTypeError)] (norm2 (np.ones 4))))

;; ---------------------------------------------------------------- closures

(defn test-models-see-what-surrounds-them []
  (defn outer [a]
    (setv b 2.0)
    (model [x] (* a b k x)))
  (assert (= ((outer 5.0) 1.0) 30.0))
  (setv c 7.0)
  (defmodel g [x] (* c (f x 0.5)))
  (assert (= (g 1.0) (* 7.0 (np.sin 0.5)))))

(defn test-models-see-the-names-of-a-let []
  (let [a 2.0  b-c 3.0  f? 4.0]
    (defmodel g [x] (* a b-c f? x))
    (let [a 5.0]
      (assert (= ((model [x] (* a x)) 1.0) 5.0)))
    (assert (= (g 1.0) 24.0))))

(defn test-models-see-the-names-of-a-let-of-a-module []
  (setv m (run (+ HEAD "(let [c 7.0] (defmodel g [x] (* c x)))")))
  (assert (= (m.g 1.0) 7.0)))

(defn test-a-name-of-the-language-that-a-function-binds-is-the-functions []
  (defn outer [gamma] (model [x] (* gamma x)))
  (assert (= ((outer 3.0) 2.0) 6.0)))

(defn test-modules-values-by-dotted-names []
  (setv m (run (+ HEAD "(import math)\n(defmodel circle [r] (* math.pi r r))")))
  (assert (= (m.circle 1.0) np.pi)))

(defn test-an-expansion-does-nothing-but-call-define []
  (setv form (hy.macroexpand-1 '(model [x] (* x k undefined))))
  (assert (= (str (get form 1)) "(model [x] (* x k undefined))"))
  (assert (= (hy.repr (get form -1)) "'(fn [] [k undefined])")))

;; ------------------------------------------------------------------ errors

(defn fails-at [source kind place underlined]
  "A definition fails at that place, underlining that text of the user."
  (with [e (pytest.raises kind)] (run source))
  (setv text (str e.value))
  (assert (in place text))
  (setv [line carets] (cut (.splitlines text) 2 4))
  (assert (= (cut line (.index carets "^") (len carets)) underlined)))

(defn test-mistakes-underline-the-users-form []
  (fails-at (+ HEAD "\n  (defmodel f [x x] x)") ReadError "place.hy:3:18" "x")
  (fails-at (+ HEAD "(defmodel f [x]\n  (let [y] x))") ReadError "place.hy:3:9" "y")
  (fails-at (+ HEAD "(setv é 1) (defmodel f [x] (if x))") ReadError "place.hy:2:28" "(if x)")
  (fails-at (+ HEAD "(defmodel f [x]\n  (* x 'y))") ReadError "place.hy:3:8" "'")
  (fails-at (+ HEAD "(defmodel f x)") ReadError "place.hy:2:1" "(defmodel f x)")
  (fails-at (+ HEAD "(defmodel f [x] (* x (foo x)))\n(f 1.0)") UnboundError "place.hy:2:23" "foo")
  None)

(defn test-an-option-that-does-not-exist-is-a-mistake []
  (with [e (pytest.raises Exception)] (run (+ HEAD "(grad f :by x)")))
  (assert (in "grad takes a model and `:wrt`" (str e.value))))

;; --------------------------------------------------------------- operators

(defn test-operators []
  (assert (= ((grad f) 2.0 0.0) #(0.0 2.0)))
  (assert (= ((grad f :wrt y) 2.0 0.0) 2.0 ((grad f :wrt "y") 2.0 0.0) ((grad f :wrt 1) 2.0 0.0)))
  (assert (= ((grad f :wrt #(y x)) 2.0 0.0) #(2.0 0.0) ((grad f :wrt [y x]) 2.0 0.0)))
  (assert (= ((value-and-grad f :wrt x) 2.0 0.5) #(((. f) 2.0 0.5) (np.sin 0.5))))
  (assert (= ((hessian f :wrt x) 2.0 0.0) 0.0))
  (assert (= ((D (fn [t] (* t t))) 3.0) 6.0))
  (assert (= (.tolist ((jacobian (fn [v] (map square v))) (np.array [1.0 2.0]))) [[2.0 0.0] [0.0 4.0]])))

(defn test-products []
  (assert (= (jvp f 2.0 0.0 1.0 3.0) 6.0))
  (assert (= (vjp f 2.0 0.0 2.0) #(0.0 4.0)))
  (assert (= (hvp f 2.0 0.0 1.0 0.0) #(0.0 1.0)))
  (with [e (pytest.raises hyad.ModelTypeError)] (jvp f 2.0 0.0 1.0))
  (assert (in "a vector for each" (str e.value))))

(defn test-deriv []
  (setv x 3.0)
  (assert (= (deriv (* x x k) x) #(27.0 18.0)))
  (let [y 2.0] (assert (= (deriv (* x y) y) #(6.0 3.0)))))

(defn test-deriv-by-arrays-with-free-variables []
  (setv v (np.arange 5000.0)  w (np.ones 5000)  m (np.eye 2)  [value slope] (deriv (* k (dot v w)) v))
  (assert (= value (* k (.sum v))))
  (np.testing.assert-array-equal slope (* k w))
  (setv [value slope] (deriv (mat-vec m (cut v 1 3)) m))
  (np.testing.assert-array-equal value [1.0 2.0])
  (np.testing.assert-array-equal (get slope 0) [[1.0 2.0] [0.0 0.0]])
  (defn along [x c] (deriv (* c (sin x)) x))
  (along 1.0 2.0)
  (setv programs (len (. (hy.I.sys.modules.get "hyad.model") _sites)))  ; one for all values
  (assert (= (along 0.0 5.0) #(0.0 5.0)))
  (assert (= programs (len (. (hy.I.sys.modules.get "hyad.model") _sites))))
  (defmodel free [x a] (deriv (* a (dot x x)) a))
  (assert (= (free w 2.0) #(10000.0 5000.0))))

(defn test-the-operators-of-table-2 []
  (assert (= ((diff (fn [t] (sin t))) 0.0) 1.0))
  (assert (= (list ((vdiff (fn [t] [t (* t t)])) 3.0)) [1.0 6.0]))
  (np.testing.assert-array-equal ((mdiff (fn [t] [[t 1.0] [(* t t) t]])) 3.0) [[1.0 0.0] [6.0 1.0]])
  (np.testing.assert-array-equal ((jacob (fn [v] (* v v))) (np.array [1.0 2.0])) [[2.0 0.0] [0.0 4.0]])
  (np.testing.assert-array-equal ((mgrad (fn [m] (trace m))) (np.ones [2 2])) (np.eye 2))
  (assert (= ((diff (fn [a x] (* a x x)) :wrt x) 2.0 3.0) 12.0))
  (with [(pytest.raises hyad.DerivativeError)] ((jacob (fn [v] (sum v))) (np.ones 2))))

(defn test-operators-nest []
  (assert (= ((D (D (fn [t] (* t t t)))) 2.0) 12.0)))

;; ----------------------------------------------------------------- defprim

(defprim soft-sign [x] "x/(1 + |x|)"
  :partials [(/ 1 (square (+ 1 (abs x))))]
  :python (fn [x] (/ x (+ 1 (abs x))))
  :c "softsign({0})"
  :support "static inline double softsign(double x) { return x/(1 + fabs(x)); }")

(defn test-defprim []
  (assert (= soft-sign.doc "x/(1 + |x|)"))
  (assert (= (soft-sign 1.0) 0.5))
  (defmodel g [x] (* 2 (soft-sign x)))
  (assert (= (g 1.0) 1.0))
  (assert (= ((grad g) 1.0) 0.5)))

(defn test-defprim-takes-a-reason-instead-of-partials []
  (defprim step-up [x] :partials "a step has no derivative" :python np.ceil :c "ceil({0})")
  (assert (= step-up.partials "a step has no derivative")))

;; ------------------------------------------------------------------ import

(defn test-importing-hyad-imports-no-hy-file []
  (setv program "import sys, hyad\nprint([m for m in sys.modules.values() if str(getattr(m, '__file__', '')).endswith('.hy')])"
        done (subprocess.run [sys.executable "-c" program] :capture-output True :text True
                             :cwd (. (Path __file__) parent parent)))
  (assert (= done.stdout "[]\n") done.stderr))
