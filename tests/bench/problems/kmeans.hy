(defmodel squared-distance [u v]
  (fold (fn [s a b] (+ s (* (- a b) (- a b)))) 0.0 u v))

(defmodel kmeans [#^ (Mat k d) centres #^ (Mat n d) points]
  "The sum of the squared distances of the points to their nearest centres."
  (fold (fn [s p]
          (let [distances (map (fn [c] (squared-distance c p)) centres)]
            (+ s (fold min (get distances 0) distances))))
        0.0 points))

(defmodel kmeans-diagonal [#^ (Mat k d) centres #^ (Mat n d) points]
  "The diagonal of the Hessian by the centres, which has nothing else: the Hessian times ones."
  (hvp (fn [c] (kmeans c points)) centres (map (fn [c] (map (fn [a] 1.0) c)) centres)))
