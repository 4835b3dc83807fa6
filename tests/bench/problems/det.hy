(defmodel minor [a j]
  "The matrix without its first row and its column j."
  (build [(- (len a) 1) (- (len a) 1)]
    (fn [r c] (get a (+ r 1) (if (< c j) c (+ c 1))))))

(defmodel det [a]
  "The determinant, by expansion along the first row."
  (if (= (len a) 1)
    (get a 0 0)
    (ifold (fn [s j]
             (let [term (* (get a 0 j) (det (minor a j)))]
               (if (= (% j 2) 0) (+ s term) (- s term))))
           0.0 (len a))))

(defmodel determinant [#^ (Mat n n) a]
  (det a))
