(defmodel rosen [#^ (Vec n) x]
  "Rosenbrock's chained valley."
  (ifold (fn [sum i]
           (let [a (get x i)
                 b (get x (+ i 1))]
             (+ sum (* 100.0 (** (- b (* a a)) 2)) (** (- 1.0 a) 2))))
         0.0
         (- (len x) 1)))
