(defmodel kepler [#^ Real m #^ Real e]
  "Kepler's equation E - e sin E = m by Newton's method, until a step is short."
  (let [x (ref m)
        step (ref 1.0)]
    (while (> (abs (deref step)) 1e-10)
      (set! step (/ (- (deref x) (* e (sin (deref x))) m) (- 1.0 (* e (cos (deref x))))))
      (set! x (- (deref x) (deref step))))
    (deref x)))
