;; Programs as a newcomer writes them, from the definition, without a thought of speed.

(defmodel attention [#^ (Mat n d) q  #^ (Mat n d) k  #^ (Mat n d) v]
  "the sum of the squares of softmax(q k' / sqrt d) v"
  (let [scores (/ (matmul q (transpose k)) (sqrt (real (len (get q 0)))))
        weights (map softmax scores)]
    (sum (square (matmul weights v)))))

(defmodel kalman [#^ Real q  #^ Real r  #^ (Vec n) ys]
  "the log likelihood of noisy positions of something that moves on; q, r: the noise of its motion, of what is seen"
  (let [F [[1.0 1.0] [0.0 1.0]]
        Q [[(* 0.25 q) (* 0.5 q)] [(* 0.5 q) q]]]
    (fst
      (fold
        (fn [state y]
          (let [#(total #(x P)) state
                x (mat-vec F x)
                P (mat-add (mat-mul (mat-mul F P) (transpose F)) Q)
                s (+ (get P 0 0) r)
                e (- y (get x 0))
                gain (build 2 (fn [i] (/ (get P i 0) s)))]
            #((- total (* 0.5 (+ (log s) (/ (* e e) s))))
              #((vec-add x (vec-scale e gain))
                (mat-sub P (outer gain (get P 0)))))))
        #(0.0 #([0.0 0.0] [[1.0 0.0] [0.0 1.0]]))
        ys))))

(defmodel n-body [#^ (Mat n 3) x  #^ (Vec n) m]
  "the potential energy of n masses, each pair twice"
  (ifold
    (fn [total i]
      (+ total
        (ifold
          (fn [s j] (- s (/ (* (get m i) (get m j)) (sqrt (+ 0.01 (sq-norm (vec-sub (get x i) (get x j))))))))
          0.0 (len m))))
    0.0 (len m)))

(defmodel lennard-jones [#^ (Mat n 3) x]
  "the energy of n atoms, each pair once"
  (sum
    (build [(len x) (len x)]
      (fn [i j]
        (if (< i j)
          (let [r2 (sq-norm (- (get x i) (get x j)))
                s6 (/ 1.0 (* r2 r2 r2))]
            (* 4.0 (- (* s6 s6) s6)))
          0.0)))))

(defmodel heat [#^ (Mat n m) u]
  "the sum of the squares after ten explicit steps of the heat equation; the border keeps its temperature"
  (let [n (len u)  m (len (get u 0))]
    (sum
      (square
        (ifold
          (fn [u t]
            (build [n m]
              (fn [i j]
                (if (or (= i 0) (= j 0) (= i (- n 1)) (= j (- m 1)))
                  (get u i j)
                  (+ (get u i j)
                    (* 0.1
                      (- (+ (get u (- i 1) j) (get u (+ i 1) j) (get u i (- j 1)) (get u i (+ j 1)))
                        (* 4.0 (get u i j)))))))))
          u 10)))))

(defmodel binomial [#^ Real spot  #^ Real sigma  #^ (Vec n) strikes]
  "American puts at several strikes, on a tree of 64 steps over a year at 5 %"
  (let [steps 64
        dt (/ 1.0 steps)
        up (exp (* sigma (sqrt dt)))
        p (/ (- (exp (* 0.05 dt)) (/ 1.0 up)) (- up (/ 1.0 up)))
        discount (exp (* -0.05 dt))
        price (fn [k i] (* spot (** up (real (- (* 2 i) k)))))]
    (sum
      (map
        (fn [strike]
          (get
            (ifold
              (fn [v t]
                (let [k (- steps (+ t 1))]
                  (build (+ steps 1)
                    (fn [i]
                      (if (<= i k)
                        (max (- strike (price k i)) (* discount (+ (* p (get v (+ i 1))) (* (- 1.0 p) (get v i)))))
                        0.0)))))
              (build (+ steps 1) (fn [i] (max 0.0 (- strike (price steps i)))))
              steps)
            0))
        strikes))))

(defmodel normal [x] "the normal distribution" (* 0.5 (+ 1.0 (erf (/ x (sqrt 2.0))))))
(defmodel black-scholes [#^ (Vec n) spot  #^ (Vec n) sigma  #^ (Vec n) strike  #^ (Vec n) years]
  "the value of n European calls at 5 %"
  (sum
    (map
      (fn [s v k t]
        (let [spread (* v (sqrt t))
              d1 (/ (+ (log (/ s k)) (* (+ 0.05 (* 0.5 v v)) t)) spread)
              d2 (- d1 spread)]
          (- (* s (normal d1)) (* k (exp (* -0.05 t)) (normal d2)))))
      spot sigma strike years)))

(defmodel hmm [#^ (Mat k k) steps  #^ (Mat n k) seen]
  "the log likelihood of a hidden Markov model by the forward algorithm; steps, seen: logarithms of what is likely"
  (logsumexp
    (fold
      (fn [alpha e]
        (build (len e) (fn [j] (+ (get e j) (logsumexp (build (len alpha) (fn [i] (+ (get alpha i) (get steps i j)))))))))
      (get seen 0)
      (slice seen 1 (len seen)))))
