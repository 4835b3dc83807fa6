;; Functions that are only defined, or only differentiable, on one side of a guard.

(defmodel guarded-sqrt [x]
  (if (> x 0.0) (sqrt x) 0.0))

(defmodel guarded-log [x]
  (if (> x 0.0) (* x (log x)) 0.0))

(defmodel guarded-power [x]
  (if (> x 0.0) (** x 2.5) (* 3.0 x)))

(defmodel guarded-quotient [x]
  (if (= x 0.0) (- 1.0 (/ (* x x) 6.0)) (/ (sin x) x)))

(defmodel guarded-norm [x]
  "the length of the vector (x, 2 x)"
  (let [v [x (* 2.0 x)]]
    (if (> (dot v v) 0.0) (norm v) 0.0)))

(defmodel guarded-huber [x]
  "quadratic near zero, linear beyond"
  (let [v [x (* 2.0 x)]
        s (dot v v)]
    (if (> s 1.0) (- (* 2.0 (sqrt s)) 1.0) s)))
