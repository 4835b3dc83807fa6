(defmodel llsq [#^ (Vec m) x #^ Int n]
  "Half the squared error of the polynomial with coefficients x as the sign of t, at n places t from -1 to 1."
  (* 0.5
     (ifold (fn [s i]
              (let [t (- (/ (* 2.0 (real i)) (real (max 1 (- n 1)))) 1.0)
                    value (fst (fold (fn [sum-power a]
                                       (let [sum (fst sum-power)
                                             power (snd sum-power)]
                                         #((+ sum (* a power)) (* power t))))
                                     #(0.0 1.0) x))]
                (+ s (** (- (sign t) value) 2))))
            0.0 n)))
