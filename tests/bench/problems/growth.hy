(defmodel growth [#^ Real r #^ Real k #^ Real y0]
  "Logistic growth by Euler's steps, shorter where it is steep, to time 10."
  (let [y (ref y0)
        t (ref 0.0)]
    (while (< (deref t) 10.0)
      (let [slope (* r (deref y) (- 1.0 (/ (deref y) k)))
            h (/ 0.01 (+ 1.0 (abs slope)))]
        (set! y (+ (deref y) (* h slope)))
        (set! t (+ (deref t) h))))
    (deref y)))
