(defmodel expr30 [#^ Real x #^ Real y #^ Real z #^ Real w]
  "A straight-line model of thirty operations."
  (let [a (* x y)
        b (+ a z)
        c (sin b)
        d (* c w)
        e (exp (- (* 0.5 d)))
        f (/ a (+ 1.0 (* z z)))
        g (sqrt (+ (* x x) (* y y)))
        h (log (+ g e))
        i (- f h)
        k (cos (- x w))
        m (tanh (+ (* i c) (* k e)))
        n (/ m (+ g 2.0))
        p (- (* n b) (* d w))]
    (+ (* p p) h)))
