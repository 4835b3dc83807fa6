;; y_0' = x_0, y_i' = x_i y_(i-1) from y = 0, to t = 2 in s steps of the classical Runge-Kutta method.

(defmodel slope [x y]
  (build (len x) (fn [i] (if (= i 0) (get x 0) (* (get x i) (get y (- i 1)))))))

(defmodel along [y h k]
  "y + h k"
  (map (fn [a b] (+ a (* h b))) y k))

(defmodel ode [#^ (Vec n) x #^ Int s]
  "The last component of y at the end."
  (let [h (/ 2.0 (real s))
        end (ifold (fn [y step]
                     (let [k1 (slope x y)
                           k2 (slope x (along y (* 0.5 h) k1))
                           k3 (slope x (along y (* 0.5 h) k2))
                           k4 (slope x (along y h k3))]
                       (map (fn [y a b c d] (+ y (* (/ h 6.0) (+ a (* 2.0 b) (* 2.0 c) d)))) y k1 k2 k3 k4)))
                   (zeros (len x)) s)]
    (get end (- (len x) 1))))
