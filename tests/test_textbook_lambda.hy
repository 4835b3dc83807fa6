"Lantern sections 2.2 to 3.7 and Myia: the papers' examples; every figure
against every other, against slopes and against hyad's engine."

(import
  math
  threading
  pytest
  hypothesis [given settings])
(import
  textbook-programs [function programs run slope])
(import
  hyad
  hyad.errors [DerivativeError HyadError]
  hyad.layout [pformat]
  hyad.macros.textbook [D anf deref forward-lambda free-names fst gradB gradF
                        gradR gradR0 gradRR gradS gradT inl inr J leaves NumB
                        NumF NumR NumR0 NumS NumT ref reset reverse-closures
                        reverse-cps reverse-meta reverse-shift set! add! shift
                        shift0 sin cos exp snd text])
(require
  hyad.macros.textbook [case letrec grad-closures grad-cps grad-forward
                        grad-meta grad-shift symdiff])

(setv PURE {"4" forward-lambda  "Myia" reverse-closures}
      REVERSE {"9" reverse-shift  "10" reverse-meta  "11" reverse-cps}
      FIGURES {#** PURE #** REVERSE}
      NUMBERS {"5" gradF  "2.5" gradT  "8" gradR  "12" gradB  "3.6" gradS})

(defn close [x]
  (pytest.approx x :rel 1e-9 :abs 1e-9))

(setv EXAMPLE '(fn [x] (+ (* 2 x) (* x x x))))

;; -------------------------------------------------------- the running example

(defn test-the-running-example []
  "2 * x + x * x * x, and what its derivative is for all x: Figs. 5, 7, 8, 12."
  (for [x [-2.0 0.0 0.5 3.0]]
    (setv expected (close (+ 2 (* 3 x x))))
    (for [grad (.values NUMBERS)]
      (assert (= ((grad (run EXAMPLE)) x) expected)))
    (for [figure (.values FIGURES)]
      (assert (= ((run (figure EXAMPLE)) x) expected)))))

(defn test-fig-7-in-continuation-passing-style []
  (setv df (gradR0 (fn [x] (fn [k]
    ((* 2 x) (fn [y1] ((* x x) (fn [y2] ((* y2 x) (fn [y3]
      ((+ y1 y3) k)))))))))))
  (assert (= (df 3.0) 29.0)))

(defn test-fig-4-prints-pairs []
  (assert (= (forward-lambda '(fn [x] (* x x)))
             '(fn [x]
                (let [[y3 ẏ3] ((fn [x]
                                 (let [[y1 ẏ1] x
                                       [y2 ẏ2] x]
                                   #((* y1 y2) (+ (* y1 ẏ2) (* ẏ1 y2)))))
                               #(x 1))]
                  ẏ3)))))

(defn test-fig-9-prints-shift-and-reset []
  (assert (= (reverse-shift '(fn [x] (* x x)))
             '(fn [x]
                (let [x̂ #(x (ref 0.0))]
                  (reset (fn []
                    (let [ẑ ((fn [x]
                               (let [y1 (shift (fn [k1]
                                          (let [y1 #((* (fst x) (fst x)) (ref 0.0))]
                                            (k1 y1)
                                            (add! (snd x) (* (deref (snd y1)) (fst x)))
                                            (add! (snd x) (* (deref (snd y1)) (fst x))))))]
                                 y1))
                             x̂)]
                      (set! (snd ẑ) 1.0))))
                  (deref (snd x̂)))))))

(defn test-figs-10-and-11-print-nested-continuations []
  "Forwards down, backwards up: the boxes and triangles of Fig. 6."
  (setv nested '(fn [x]
    (let [x̂ #(x (ref 0.0))]
      ((fn [x k1]
         (let [y1 #((* 2 (fst x)) (ref 0.0))]
           (let [y2 #((* (fst x) (fst x)) (ref 0.0))]
             (let [y3 #((* (fst y2) (fst x)) (ref 0.0))]
               (let [y4 #((+ (fst y1) (fst y3)) (ref 0.0))]
                 (k1 y4)
                 (add! (snd y1) (deref (snd y4)))
                 (add! (snd y3) (deref (snd y4))))
               (add! (snd y2) (* (deref (snd y3)) (fst x)))
               (add! (snd x) (* (deref (snd y3)) (fst y2))))
             (add! (snd x) (* (deref (snd y2)) (fst x)))
             (add! (snd x) (* (deref (snd y2)) (fst x))))
           (add! (snd x) (* (deref (snd y1)) 2))))
       x̂
       (fn [ẑ] (set! (snd ẑ) 1.0)))
      (deref (snd x̂)))))
  (assert (= (reverse-meta EXAMPLE) nested))
  (assert (= (reverse-cps EXAMPLE) nested)))

(defn test-myias-example-prints-backpropagators []
  "f(x, y) = x ** 3 * y ** 4, Myia Fig. 1, \"after macro expansion\"."
  (setv f '(fn [x y] (let [a (** x 3)  b (** y 4)  c (* a b)] c)))
  (assert (= (J f)
             '(fn [x y]
                (let [[a đa] #((** x 3) (fn [∇a] #((* ∇a (* 3 (** x 2))))))
                      [b đb] #((** y 4) (fn [∇b] #((* ∇b (* 4 (** y 3))))))
                      [c đc] #((* a b) (fn [∇c] #((* ∇c b) (* ∇c a))))]
                  #(c (fn [∇c]
                        (let [[∇a ∇b] (đc ∇c)
                              [∇y] (đb ∇b)
                              [∇x] (đa ∇a)]
                          #(#() ∇x ∇y))))))))
  (assert (= ((run (reverse-closures f)) 2.0 3.0) #((* 3 4 81.0) (* 8 4 27.0)))))

(defn test-a-macro-shows-the-right-hand-side-and-has-its-value []
  (assert (= (hy.macroexpand '(grad-cps (fn [x] (* x x))))
             (reverse-cps '(fn [x] (* x x)))))
  (assert (= ((grad-forward (fn [x] (* x x))) 3.0) 6.0))
  (assert (= ((grad-shift (fn [x] (* x x))) 3.0) 6.0))
  (assert (= ((grad-meta (fn [x] (* x x))) 3.0) 6.0))
  (assert (= ((grad-cps (fn [x] (* x x))) 3.0) 6.0))
  (assert (= ((grad-closures (fn [x] (* x x))) 3.0) 6.0))
  (assert (= ((grad-cps (fn [x y] (* x (sin y)))) 3.0 0.0) #(0.0 3.0)))
  (setv f (grad-cps (fn [x] (letrec [power (fn [a n]
                                             (if (> n 0) (* a (power a (- n 1))) 1))]
                              (power x 5)))))
  (assert (= (f 2.0) 80.0)))

(defn test-the-expansions-hold-no-control-operator []
  "Only Fig. 9 has shift and reset in the target."
  (for [figure [reverse-meta reverse-cps reverse-closures forward-lambda]]
    (assert (not (& (set (leaves (figure EXAMPLE))) #{'shift 'reset 'shift0}))))
  (assert (in 'shift (leaves (reverse-shift EXAMPLE)))))

;; --------------------------------------------------------- the language's corners

(setv PROGRAMS [
  ;; closures: captured, returned, passed
  '(fn [x] (let [compose (fn [f g] (fn [a] (f (g a))))
                 h (compose (fn [u] (sin u)) (fn [z] (* x z)))]
             (h (h x))))
  '(fn [x] ((fn [y] (* x y)) (+ x 1)))
  '(fn [x] (let [twice (fn [f] (fn [a] (f (f a))))] (((twice twice) (fn [a] (* a a 0.9))) x)))
  ;; pairs and functions in them
  '(fn [x] (let [p #(x (* x x) 3)  q #(p (fn [t] (* t x)))]
             ((snd q) (* (get p 1) (fst (fst q))))))
  '(fn [x] (let [[a b] #((* x x) (sin x))] (* a b)))
  ;; branches and sums
  '(fn [x] (case (if (> x 0) (inl (* x x)) (inr 2)) (inl a) (+ a 1 x) (inr b) (* b x)))
  '(fn [x] (case (if (< x 0) (inl 1) (inr #(x 2))) (inl a) a (inr p) (* (fst p) (snd p) x)))
  '(fn [x] (if (not (> x 1)) (if (!= x 0.8) (* 3 x) x) 7))
  ;; recursion: in a tail, not in a tail, mutual, two calls
  '(fn [x] (letrec [f (fn [a n] (if (> n 0) (f (* a (sin (* x a))) (- n 1)) a))] (+ x (f x 2))))
  '(fn [x] (letrec [f (fn [n] (if (> n 0) (+ x (* x (f (- n 1)))) 1))] (f 5)))
  '(fn [x] (letrec [even (fn [n] (if (> n 0) (* x (odd (- n 1))) x))
                    odd (fn [n] (if (> n 0) (+ x (even (- n 1))) 1))]
             (+ (odd 2) (even 3))))
  '(fn [x] (letrec [tree (fn [n] (if (> n 0) (* (tree (- n 1)) (+ x (tree (- n 2)))) x))]
             (tree 4)))
  ;; results that do not depend on x, or are x
  '(fn [x] 3)
  '(fn [x] x)
  '(fn [x] (let [y (* 2 3)] y))
  '(fn [x] (+ a (* a x)))])

(setv IMPURE [
  ;; \"or (deref r) moves past a later write\"
  '(fn [x] (let [r (ref x)] (+ (deref r) (do (set! r (* x x x)) (deref r)))))
  '(fn [x] (let [r (ref x)] (* (deref r) (do (set! r 5) x))))
  '(fn [x] (let [r (ref x)  f (fn [a] (do (set! r (* a (deref r))) a))]
             (+ (f x) (f 2) (deref r))))
  '(fn [x] (let [r (ref 1)]
             (letrec [loop (fn [n] (if (> n 0) (do (set! r (* x (deref r))) (loop (- n 1))) 0))]
               (do (loop 4) (deref r)))))
  '(fn [x] (let [r (ref 0)  q r] (add! r x) (add! q (* x x)) (deref r)))
  '(fn [x] (let [p #((ref x) (fn [a] (ref a)))] (* (deref (fst p)) (deref ((snd p) (sin x))))))
  '(fn [x] (case (inl (ref x)) (inl r) (do (set! r (* x (deref r))) (deref r)) (inr y) 0))])

(defn [(pytest.mark.parametrize "f" PROGRAMS :ids text)] test-pure-programs [f]
  (setv expected (close (slope f 0.7 :a 1.3)))
  (for [[name figure] (.items FIGURES)]
    (assert (= ((run (figure f) :a 1.3) 0.7) expected) name))
  (for [[name grad] (.items NUMBERS)]
    (assert (= ((grad (function f :a 1.3)) 0.7) expected) name)))

(defn [(pytest.mark.parametrize "f" IMPURE :ids text)] test-programs-with-cells [f]
  (setv expected (close (slope f 0.7)))
  (for [figure [forward-lambda #* (.values REVERSE)]]
    (assert (= ((run (figure f)) 0.7) expected)))
  (for [grad (.values NUMBERS)]
    (assert (= ((grad (function f)) 0.7) expected))))

(defn test-several-parameters []
  (setv f '(fn [x y z] (+ (* x y) (sin (* y z)) (let [g (fn [a] (* a x))] (g z)))))
  (setv [x y z] [0.3 0.7 1.1])
  (setv expected [(+ y z)  (+ x (* z (math.cos (* y z))))  (+ (* y (math.cos (* y z))) x)])
  (for [figure (.values FIGURES)]
    (assert (= ((run (figure f)) x y z) (pytest.approx expected)))))

(defn test-names-of-the-user-are-safe []
  "Parameters and lets named as the figures name things, and names bound twice."
  (for [f ['(fn [y1] (let [y2 (* y1 y1)] (* y2 (let [y1 3] y1))))
           '(fn [k1] (let [f (fn [k1] (* k1 k1))] (f (* k1 2))))
           '(fn [y] (let [a (sin y)  y (* a y)] (+ y a)))
           '(fn [z] (let [∇z (* z z)  đz (sin ∇z)] (* ∇z đz)))
           '(fn [cell] (let [r (ref cell)] (add! r (* cell cell)) (deref r)))]]
    (setv expected (close (slope f 0.7)))
    (for [figure [forward-lambda #* (.values REVERSE)
                  #* (if (in 'ref (leaves f)) [] [reverse-closures])]]
      (assert (= ((run (figure f)) 0.7) expected)))))

;; ----------------------------------------- higher orders: figures on figures

(defn test-figures-compose []
  "What a figure gives back is in the language of every figure."
  (setv f '(fn [x] (* x (sin (* x x))))
        second (close ((gradT (gradT (run f))) 1.5)))
  (for [inner (.values FIGURES)  outer (.values FIGURES)]
    (setv first (inner f))
    (when (not (& (set (leaves first)) #{'shift 'reset}))
      (when (not (and (is outer reverse-closures) (in 'ref (leaves first))))
        (assert (= ((run (outer first)) 1.5) second))))))

(defn test-fig-13-reverse-over-reverse []
  (for [x [-1.0 0.0 2.5]]
    (assert (= ((gradR (gradRR (run EXAMPLE))) x) (close (* 6 x)))))
  (setv f (run '(fn [x] (/ (exp (sin x)) (+ 2 (* x x))))))
  (assert (= ((gradR (gradRR f)) 0.7) (close ((gradT (gradT f)) 0.7)))))

(defn test-forward-over-reverse []
  "3.7: \"nest forward-mode AD in reverse-mode AD\"."
  (setv f (run EXAMPLE))
  (assert (= ((gradT (gradR f)) 2.0) (close 12.0)))
  (assert (= ((gradT (gradB f)) 2.0) (close 12.0)))
  (assert (= ((gradT (gradT (gradT f))) 2.0) (close 6.0))))

(defn test-perturbation-confusion []
  "2.4: without tags the inner gradient is 2. 2.5: with tags it is 1."
  (setv confused (fn [x] (* x ((gradF (fn [y] (+ x y))) 1.0)))
        right (fn [x] (* x ((gradT (fn [y] (+ x y))) 1.0))))
  (assert (= ((gradF confused) 1.0) 2.0))
  (assert (= ((gradT right) 1.0) 1.0))
  (assert (= ((gradT (fn [x] (* x ((gradT (fn [y] (* x y))) x)))) 3.0) 6.0)))

;; --------------------------------------------------------- shift and reset

(defn test-shift-and-reset []
  (assert (= (reset (fn [] 3)) 3))
  (assert (= (reset (fn [] (+ 1 (shift (fn [k] (k (k-less 2))))))) 3))
  (assert (= (reset (fn [] (+ 1 (shift (fn [k] 10))))) 10))
  (assert (= (+ 1 (reset (fn [] (* 2 (shift (fn [k] (+ 5 (k 3)))))))) 12))
  ;; the body of a shift is inside the reset, that of a shift0 outside
  (assert (= (reset (fn [] (+ 1 (reset (fn [] (* 2 (shift (fn [k] (shift (fn [j] 7)))))))))) 8))
  (assert (= (reset (fn [] (+ 1 (reset (fn [] (* 2 (shift0 (fn [k] (shift0 (fn [j] 7)))))))))) 7))
  ;; several, in order
  (setv seen [])
  (reset (fn []
    (for [i (range 3)]
      (shift (fn [k [i i]] (.append seen i) (k None) (.append seen (- i)))))))
  (assert (= seen [0 1 2 -2 -1 0])))

(defn k-less [x] x)

(defn test-a-continuation-is-called-once []
  (with [(pytest.raises HyadError :match "returned already")]
    (reset (fn [] (+ 1 (shift (fn [k] (+ (k 1) (k 2)))))))))

(defn test-hundreds-of-operations-deep []
  (defn power [x]
    (setv y x)
    (for [_ (range 500)]
      (setv y (* y x)))
    y)
  (for [grad [gradR gradS gradF]]
    (assert (= ((grad power) 1.0) 501.0))))

(defn test-reset-passes-errors-on-and-leaves-no-thread []
  (setv before (threading.active-count))
  (with [(pytest.raises ZeroDivisionError)]
    (reset (fn [] (/ 1 0))))
  (with [(pytest.raises ZeroDivisionError)]
    (reset (fn [] (shift (fn [k] (k 1))) (/ 1 0))))
  (with [(pytest.raises ZeroDivisionError)]
    (reset (fn [] (shift (fn [k] (/ 1 0))))))
  (for [_ (range 20)]
    (reset (fn [] (shift (fn [k] None)))))
  (for [thread (threading.enumerate)]
    (when (!= thread (threading.current-thread))
      (.join thread 5)))
  (assert (= (threading.active-count) before))
  (with [(pytest.raises HyadError :match "needs a reset")]
    (shift (fn [k] (k 1)))))

;; ------------------------------------------------------------------ mistakes

(setv MISTAKES [
  #('(fn [x] (+ x (gamma x))) "(gamma x)")
  #('(fn [x] (while x x)) "(while x x)")
  #('(fn [x] (+ x [x])) "[x]")
  #('(fn [x] (sin x x)) "(sin x x)")
  #('(fn [x] (** x x)) "(** x x)")
  #('(fn [x] (let [x] x)) "(let [x] x)")
  #('(fn [x] (case x (inl a) a)) "(case x (inl a) a)")
  #('(fn [x] (let [sin x] sin)) "(let [sin x] sin)")
  #('(fn [x] (get #(x x) x)) "(get ")
  #('(fn [x] ((fn [f] (f x)) sin)) "sin")
  #('(fn [x [y 1]] x) "(fn [x [y 1]] x)")
  #('(* x x) "(* x x)")])

(defn [(pytest.mark.parametrize "f, part" MISTAKES)] test-what-a-figure-lacks-is-named [f part]
  (for [figure (.values FIGURES)]
    (with [info (pytest.raises DerivativeError :match "has no")]
      (figure f))
    (assert (in (+ "`" part) (str info.value)))))

(defn test-myia-is-pure []
  (with [(pytest.raises DerivativeError :match "Myia has no `\\(ref x\\)`")]
    (J '(fn [x] (deref (ref x))))))

(defn test-a-mistake-is-underlined []
  (setv source "(grad-cps (fn [x]\n  (+ x (gamma x))))")
  (with [info (pytest.raises hy.errors.HyMacroExpansionError)]
    (hy.compiler.hy-compile (hy.read-many source :filename "ring.hy")
      "hyad.macros.textbook" :filename "ring.hy" :source source))
  (assert (in (.join "\n" ["Fig. 11 has no `(gamma x)`"
                           "ring.hy:2:8"
                           "    (+ x (gamma x))))"
                           "         ^^^^^^^^^"])
              (str info.value))))

(defn test-what-hy-can-not-compile-is-an-error-of-the-macro []
  "Hy takes some 60 nested lets; Figs. 10 and 11 nest one for every operation."
  (setv long `(fn [x] (* ~@(* ['x] 80))))
  (for [macro ['grad-cps 'grad-meta]]
    (with [info (pytest.raises hy.errors.HyMacroExpansionError :match "80 lets in one another")]
      (hy.macroexpand `(~macro ~long)))
    (assert (in "grad-shift" (str info.value))))
  (assert (= ((run (hy.macroexpand `(grad-shift ~long))) 1.0) 80.0))
  (assert (= ((run (hy.macroexpand `(grad-closures ~long))) 1.0) 80.0)))

;; ----------------------------------------------------- generated programs

(defn [(settings :max-examples 15) (given (programs :cells False :recursion True))]
      test-every-figure-agrees-on-pure-programs [f]
  (setv expected (close (slope f 0.7)))
  (for [[name figure] (.items FIGURES)]
    (assert (= ((run (figure f)) 0.7) expected) name))
  (for [[name grad] (.items NUMBERS)]
    (assert (= ((grad (function f)) 0.7) expected) name)))

(defn [(settings :max-examples 20) (given (programs :cells True :recursion True))]
      test-every-figure-agrees-on-programs-with-cells [f]
  (setv expected (close (slope f 0.7)))
  (for [[name figure] [#("4" forward-lambda) #* (.items REVERSE)]]
    (assert (= ((run (figure f)) 0.7) expected) name))
  (for [[name grad] (.items NUMBERS)]
    (assert (= ((grad (function f)) 0.7) expected) name)))

(defn [(settings :max-examples 40) (given (programs :cells True :recursion True))]
      test-fig-10-gives-what-fig-11-gives [f]
  "\"Applying the same transformation to the meta-language\" changes nothing."
  (assert (= (reverse-meta f) (reverse-cps f))))

(defn [(settings :max-examples 15)
       (given (programs :cells False :recursion False :choices False))]
      test-the-engine-agrees [f]
  (setv [_ params body] f
        model (hyad.model (pformat `(model ~params ~body)))
        gradient (hyad.compile (hyad.grad model) :target "python"))
  (assert (= (gradient 0.7) (close ((run (reverse-cps f)) 0.7))))
  (assert (= (model 0.7) (close ((function f) 0.7)))))

(defn [(settings :max-examples 40) (given (programs :cells True :recursion True))]
      test-anf-keeps-the-value [f]
  (setv flat (anf f))
  (assert (= ((run flat) 0.7) (close ((function f) 0.7))))
  (assert (= (free-names flat) (free-names f)))
  (assert (= (anf flat) flat)))
