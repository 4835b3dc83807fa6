;; Functions that are only defined, or only differentiable, on one side of a guard.

(defmodel guarded-sqrt [x]
  (if (> x 0.0) (sqrt x) 0.0))

(defmodel guarded-log [x]
  (if (> x 0.0) (* x (log x)) 0.0))

(defmodel guarded-power [x]
  (if (> x 0.0) (** x 2.5) (* 3.0 x)))

(defmodel guarded-quotient [x]
  (if (= x 0.0) (- 1.0 (/ (* x x) 6.0)) (/ (sin x) x)))

(defmodel guarded-norm [x y]
  (let [s (+ (* x x) (* y y))]
    (if (> s 0.0) (sqrt s) 0.0)))

(defmodel guarded-huber [x y]
  (let [s (+ (* x x) (* y y))]
    (if (> s 1.0) (- (* 2.0 (sqrt s)) 1.0) s)))
