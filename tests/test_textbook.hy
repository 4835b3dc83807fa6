"Lantern section 2: the paper's examples, values against slopes, sizes."

(import
  math [sin cos exp log sqrt]
  pytest
  hypothesis [given settings strategies :as st])
(import
  hyad.errors [DerivativeError]
  hyad.macros.textbook [d/dx anf forward leaves partial size substitute
                        tangent tidy without-lets])
(require
  hyad.macros.textbook [symdiff symdiff-without-lets symdiff-forward to-anf])

(setv FUNCTIONS {"sin" sin  "cos" cos  "exp" exp  "log" log  "sqrt" sqrt})

(defn value [e #** point]
  (float (hy.eval e (| FUNCTIONS point))))

(defn slope [e x #** others]
  "The derivative by x, as the central difference of fourth order says."
  (setv h 1e-3)
  (defn f [x]
    (value e :x x #** others))
  (/ (+ (- (f (- x (* 2 h))) (f (+ x (* 2 h))))
        (* 8 (- (f (+ x h)) (f (- x h)))))
     (* 12 h)))

(defn logistic [d]
  "d steps of y := r y (1 - y), from x."
  (setv names ['x #* (lfor  i (range d)  (hy.models.Symbol f"z{i}"))])
  `(let [~@(gfor  i (range d)
                  part [(get names (+ i 1))
                        `(* r ~(get names i) (- 1 ~(get names i)))]
                  part)]
     ~(get names -1)))

;; ------------------------------------------------------ the figures' rules

(defn test-fig-1-rules []
  (assert (= (d/dx '3 'x) '0))
  (assert (= (d/dx 'x 'x) '1))
  (assert (= (d/dx 'y 'x) '0))
  (assert (= (d/dx '(+ x 2) 'x) '(+ 1 0)))
  (assert (= (d/dx '(* x x) 'x) '(+ (* 1 x) (* x 1))))
  (assert (= (d/dx '(let [y (* x x)] (* y x)) 'x)
             '(let [y (* x x)
                    ẏ (+ (* 1 x) (* x 1))]
                (+ (* ẏ x) (* y 1))))))

(defn test-a-product-of-n-becomes-n-products []
  (assert (= (d/dx '(* x x x) 'x)
             '(+ (* 1 x x) (* x 1 x) (* x x 1)))))

(defn test-the-papers-example []
  "2 * x + x * x * x, Lantern page 5; its y is our y4."
  (setv e '(+ (* 2 x) (* x x x)))
  (assert (= (anf e)
             '(let [y1 (* 2 x)
                    y2 (* x x)
                    y3 (* y2 x)
                    y4 (+ y1 y3)]
                y4)))
  (assert (= (forward e 'x)
             '(let [ẋ 1
                    y1 (* 2 x)  ẏ1 (* 2 ẋ)
                    y2 (* x x)  ẏ2 (+ (* x ẋ) (* x ẋ))
                    y3 (* y2 x)  ẏ3 (+ (* x ẏ2) (* y2 ẋ))
                    y4 (+ y1 y3)  ẏ4 (+ ẏ1 ẏ3)]
                ẏ4)))
  (for [f [d/dx forward (fn [e x] (tidy (d/dx (anf e x) x)))]]
    (assert (= (value (f e 'x) :x 3.0) (+ 2 (* 3 3 3))))))

(defn test-a-macro-shows-the-right-hand-side-and-has-its-value []
  (assert (= (hy.macroexpand '(symdiff (* x x) x))
             (d/dx '(* x x) 'x)))
  (setv x 3.0)
  (assert (= (symdiff (* x x x) x) 27.0))
  (assert (= (symdiff-without-lets (let [y (* x x)] (* y y)) x) 108.0))
  (assert (= (symdiff-forward (let [y (* x x)] (* y y)) x) 108.0))
  (assert (= (to-anf (+ (* 2 x) (* x x x))) 33.0)))

(defn test-partials-of-one-operation []
  (assert (= (partial '(* x x) 0) 'x))
  (assert (= (partial '(- 1 y) 1) '-1))
  (assert (= (partial '(sin y) 0) '(cos y))))

(defn test-tangent-names []
  (assert (= (tangent 'x) 'ẋ))
  (assert (= (tangent 'y12) 'ẏ12)))

(defn test-tidy-knows-zeros-and-ones-only []
  (assert (= (tidy '(+ (* 0 x) (* 2 1))) '2))
  (assert (= (tidy '(- (* 1 x) 0)) 'x))
  (assert (= (tidy '(- 0 x)) '(- x)))
  (assert (= (tidy '(- 0 0)) '0))
  (assert (= (tidy '(+)) '0))
  (assert (= (tidy '(- x x)) '(- x x)))
  (assert (= (tidy '(/ x 1)) '(/ x 1))))

;; ----------------------------------------------------- scope and mistakes

(defn test-substitution-respects-lets []
  (assert (= (without-lets '(let [y (+ x 1)  z (* y y)] (+ z y)))
             '(+ (* (+ x 1) (+ x 1)) (+ x 1))))
  (assert (= (without-lets '(let [y x] (+ (let [y 2] y) y))) '(+ 2 x)))
  (assert (= (substitute '(let [y (* y 2)] y) {'y '7})
             '(let [y (* 7 2)] y))))

(defn test-anf-gives-every-name-one-meaning []
  (setv e '(+ (let [y (* x 2)] (* y y)) (let [y (* x 3)] y) y))
  (setv flat (anf e)
        names (cut (get flat 1) 0 None 2))
  (assert (= (len (set names)) (len names)))
  (assert (not-in 'y names))
  (assert (= (value flat :x 5.0 :y 1000.0) 1115.0))
  (assert (= (value (anf '(let [x (* x x)] (+ x 1))) :x 3.0) 10.0))
  (assert (= (anf '(let [x 2] (sin x))) '(let [y1 (sin 2)] y1)))
  (assert (= (anf '(let [x (sin a)] (sin x)) 'x)
             '(let [y1 (sin a)  y2 (sin y1)] y2)))
  (assert (= (anf flat) flat))
  (assert (= (anf 'x) 'x)))

(defn test-anf-leaves-names-of-the-user-alone []
  (setv flat (anf '(+ (* x y1) (* y2 y2))))
  (assert (= (value flat :x 2.0 :y1 3.0 :y2 5.0) 31.0)))

(defn test-a-let-may-not-bind-x-or-a-name-twice []
  (for [e ['(let [x 2] (* x x)) '(let [y x  y (* y y)] y)]]
    (with [info (pytest.raises DerivativeError :match "bound twice")]
      (d/dx e 'x))
    (assert (in "anf" info.value.hint))))

(defn test-what-school-does-not-teach-is-an-error []
  (for [e ['(gamma x) '(** x x) '[x x] '(/ x x x)]]
    (with [(pytest.raises DerivativeError :match "school teaches")]
      (d/dx e 'x)))
  (with [(pytest.raises DerivativeError :match "the textbook's language has no")]
    (anf '[x x])))

;; ------------------------------------------------------------------ values

(setv SAMPLES [
  '(/ (+ x 1) (* x x))
  '(** (+ x 2) 3)
  '(** x -1)
  '(* (sin x) (cos (* 2 x)))
  '(exp (- (* x x)))
  '(log (+ 1 (* x x)))
  '(- (sqrt x) x 1)
  '(let [u (sin x)  v (* u u)] (/ v (+ 1 u)))
  '(* (let [u (* x x)] (+ u 1)) (let [v (exp x)] v))
  '(+ a (* a x) (* a a))])

(defn [(pytest.mark.parametrize "e" SAMPLES)] test-derivatives-are-slopes [e]
  (setv expected (pytest.approx (slope e 0.7 :a 1.3) :rel 1e-8))
  (for [f [d/dx
           forward
           (fn [e x] (tidy (d/dx e x)))
           (fn [e x] (d/dx (anf e x) x))
           (fn [e x] (d/dx (without-lets e) x))]]
    (assert (= (value (f e 'x) :x 0.7 :a 1.3) expected))))

(setv expressions
  (st.recursive
    (st.sampled-from ['x 'a '2 '0.5])
    (fn [inner]
      (| (st.builds (fn [op a b] `(~op ~a ~b))
                    (st.sampled-from ['+ '* '-]) inner inner)
         (st.builds (fn [op a] `(~op ~a)) (st.sampled-from ['sin 'cos]) inner)
         (st.builds (fn [y e body] `(let [~y ~e] ~body))
                    (st.sampled-from ['u 'v 'x]) inner inner)))
    :max-leaves 8))

(defn [(settings :max-examples 50) (given expressions)]
      test-every-way-gives-the-same-derivative [e]
  (setv flat (anf e 'x))
  (assert (= (value e :x 0.3 :a 0.9)
             (pytest.approx (value flat :x 0.3 :a 0.9))))
  (setv expected (pytest.approx (value (d/dx flat 'x) :x 0.3 :a 0.9)))
  (assert (= (value (forward e 'x) :x 0.3 :a 0.9) expected))
  (assert (= (value (tidy (d/dx flat 'x)) :x 0.3 :a 0.9) expected))
  (assert (= (value (d/dx (without-lets e) 'x) :x 0.3 :a 0.9) expected)))

;; ------------------------------------------------------------------- sizes

(defn test-size-counts-numbers-and-names []
  (assert (= (list (leaves '(+ 1 (let [y x] y)))) ['+ '1 'let 'y 'x 'y]))
  (assert (= (size '(+ 1 (let [y x] y))) 6))
  (assert (= (size 'x) 1)))

(defn test-without-lets-the-derivative-explodes []
  "It more than doubles with every step of the logistic map."
  (for [f [d/dx  (fn [e x] (tidy (d/dx e x)))]]
    (setv sizes (lfor  d (range 2 9)  (size (f (without-lets (logistic d)) 'x))))
    (for [[smaller larger] (zip sizes (cut sizes 1 None))]
      (assert (> larger (* 2 smaller))))))

(defn test-with-lets-it-grows-by-the-same-amount-every-step []
  (for [f [d/dx  (fn [e x] (d/dx (anf e x) x))  forward]]
    (setv sizes (lfor  d [10 20 30 300]  (size (f (logistic d) 'x))))
    (setv [a b c far] sizes)
    (assert (= (- c b) (- b a)))
    (assert (= (- far c) (* 27 (- b a))))))

(defn test-forward-mode-adds-one-binding-to-each []
  "\"just acquires an additional let binding for each existing binding\""
  (setv e (logistic 50)
        primal (get (anf e) 1)
        both (get (forward e 'x) 1))
  ;; and one more, x′ = 1
  (assert (= (len both) (+ 2 (* 2 (len primal))))))
