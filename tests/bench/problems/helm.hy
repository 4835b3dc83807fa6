(defmodel helm [#^ (Vec n) x #^ (Mat n n) a #^ (Vec n) b]
  "Helmholtz energy of a mixture with composition x, attraction a and covolumes b; R T = 1."
  (let [bx (dot b x)
        xax (dot x (map (fn [row] (dot row x)) a))
        r2 (sqrt 2.0)
        ideal (fold (fn [sum xi] (+ sum (* xi (log (/ xi (- 1.0 bx)))))) 0.0 x)
        ratio (/ (+ 1.0 (* (+ 1.0 r2) bx))
                 (+ 1.0 (* (- 1.0 r2) bx)))]
    (- ideal (* (/ xax (* (sqrt 8.0) bx)) (log ratio)))))
