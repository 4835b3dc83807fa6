;; The vector and matrix functions of dF~ (Table 1, Fig. 4), defined in the language itself.

(defmodel vec-map [f v] "f of each element" (map f v))
(defmodel vec-add [u v] "the sum of two vectors" (map (fn [a b] (+ a b)) u v))
(defmodel vec-sub [u v] "the difference of two vectors" (map (fn [a b] (- a b)) u v))
(defmodel vec-mul [u v] "the product, element by element" (map (fn [a b] (* a b)) u v))
(defmodel vec-scale [s v] "a vector times a number" (map (fn [a] (* s a)) v))
(defmodel vec-sum [v] "the sum of the elements" (fold + 0.0 v))
(defmodel sum [v] "the sum of the elements" (fold + 0.0 v))
(defmodel dot [u v] "the inner product"
  (fold (fn [s a b] (+ s (* a b))) 0.0 u v))
(defmodel sq-norm [v] "the sum of the squares" (fold (fn [s a] (+ s (* a a))) 0.0 v))
(defmodel norm [v] "the Euclidean length; its derivative at the zero vector is 0"
  (let [s (sq-norm v)]
    (if (= s 0.0) 0.0 (sqrt s))))
(defmodel cross [u v] "the vector product in three dimensions"
  [(- (* (get u 1) (get v 2)) (* (get u 2) (get v 1)))
   (- (* (get u 2) (get v 0)) (* (get u 0) (get v 2)))
   (- (* (get u 0) (get v 1)) (* (get u 1) (get v 0)))])
(defmodel one-hot [n k] "n zeros with a one at k" (build n (fn [i] (if (= i k) 1.0 0.0))))
(defmodel zeros [n] "n zeros" (build n (fn [i] 0.0)))
(defmodel ones [n] "n ones" (build n (fn [i] 1.0)))
(defmodel eye [n] "the identity matrix" (build [n n] (fn [i j] (if (= i j) 1.0 0.0))))
(defmodel outer [u v] "the matrix of all products" (build [(len u) (len v)] (fn [i j] (* (get u i) (get v j)))))
(defmodel transpose [m] "rows and columns exchanged"
  (build [(get (shape m) 1) (get (shape m) 0)] (fn [i j] (get m j i))))
(defmodel mat-add [a b] "the sum of two matrices" (map vec-add a b))
(defmodel mat-sub [a b] "the difference of two matrices" (map vec-sub a b))
(defmodel mat-scale [s m] "a matrix times a number" (map (fn [row] (vec-scale s row)) m))
(defmodel mat-vec [m v] "a matrix times a column vector" (map (fn [row] (dot row v)) m))
(defmodel vec-mat [v m] "a row vector times a matrix"
  (do
    (require-equal (len v) (len m))
    (build (get (shape m) 1) (fn [j] (ifold (fn [s i] (+ s (* (get v i) (get m i j)))) 0.0 (len v))))))
(defmodel mat-mul [a b] "the product of two matrices"
  (do
    (require-equal (get (shape a) 1) (len b))
    (build [(len a) (get (shape b) 1)]
      (fn [i j] (ifold (fn [s k] (+ s (* (get a i k) (get b k j)))) 0.0 (len b))))))
(defmodel trace [m] "the sum of the diagonal"
  (do
    (require-equal (len m) (get (shape m) 1))
    (ifold (fn [s i] (+ s (get m i i))) 0.0 (len m))))

; ---------------------------------------------------------------- lists: nil, or a pair whose second is a list

(defmodel list-fold [f z l] "the fold of a list"
  (if (null? l) z (list-fold f (f z (car l)) (cdr l))))
(defmodel list-fold-2 [f z l m] "the fold of two lists"
  (if (null? l) z (list-fold-2 f (f z (car l) (car m)) (cdr l) (cdr m))))
(defmodel list-map [f l] "a function of each element of a list"
  (if (null? l) nil (cons (f (car l)) (list-map f (cdr l)))))
(defmodel list-map-2 [f l m] "a function of the elements of two lists"
  (if (null? l) nil (cons (f (car l) (car m)) (list-map-2 f (cdr l) (cdr m)))))
(defmodel list-map-3 [f l m n] "a function of the elements of three lists"
  (if (null? l) nil (cons (f (car l) (car m) (car n)) (list-map-3 f (cdr l) (cdr m) (cdr n)))))
(defmodel list-scan [f z l] "the accumulators of a fold of a list"
  (if (null? l) nil (let [y (f z (car l))] (cons y (list-scan f y (cdr l))))))
(defmodel list-len [l] "the number of elements of a list"
  (list-fold (fn [n x] (+ n 1)) 0 l))
