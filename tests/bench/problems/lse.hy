(defmodel lse [#^ (Vec n) x]
  "The logarithm of the sum of exponentials, shifted by the largest so that none overflows."
  (let [top (fold max (get x 0) x)]
    (+ top (log (fold (fn [s a] (+ s (exp (- a top)))) 0.0 x)))))
