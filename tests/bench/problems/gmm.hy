;; The log posterior of a Gaussian mixture: n points x, k components of weight exp(alpha), mean mu and a square root Q of
;; their inverse covariance. Q is lower triangular: its parameters are the logarithms of its diagonal, then what stands
;; below, column by column.

(defmodel log-sum-exp [v]
  (let [top (fold max (get v 0) v)]
    (+ top (log (fold (fn [s a] (+ s (exp (- a top)))) 0.0 v)))))

(defmodel entry [d params r c]
  "The entry of Q in row r and column c."
  (cond
    (= r c) (exp (get params r))
    (> r c) (get params (+ d (- (// (* c (- (* 2 d) (+ c 1))) 2) (+ c 1)) r))
    True 0.0))

(defmodel squared-length [y]
  (fold (fn [s a] (+ s (* a a))) 0.0 y))

(defmodel lower-times [q v]
  "A lower triangular matrix times a vector."
  (build (len v) (fn [r] (ifold (fn [s c] (+ s (* (get q r c) (get v c)))) 0.0 (+ r 1)))))

(defmodel log-gamma-of-dimension [a d]
  "The logarithm of the multivariate gamma function."
  (+ (* 0.25 (real (* d (- d 1))) (log 3.141592653589793))
     (ifold (fn [s j] (+ s (lgamma (- a (* 0.5 (real j)))))) 0.0 d)))

(defmodel log-wishart [params gamma m d]
  "The log of the Wishart prior of one Q, up to its normalising constant."
  (let [diagonal (ifold (fn [s r] (+ s (** (exp (get params r)) 2))) 0.0 d)
        below (ifold (fn [s j] (+ s (** (get params (+ d j)) 2))) 0.0 (- (len params) d))
        logs (ifold (fn [s r] (+ s (get params r))) 0.0 d)]
    (- (* 0.5 gamma gamma (+ diagonal below)) (* m logs))))

(defmodel gmm [#^ (Vec k) alphas #^ (Mat k d) means #^ (Mat k p) icf #^ (Mat n d) x #^ Real gamma #^ Real m]
  (let [k (len alphas)
        n (len x)
        d (get (shape x) 1)
        freedom (+ (real d) m 1.0)
        roots (map (fn [params] (build [d d] (fn [r c] (entry d params r c)))) icf)
        logs (map (fn [params] (ifold (fn [s r] (+ s (get params r))) 0.0 d)) icf)
        likelihood
          (fold (fn [s xi]
                  (+ s (log-sum-exp
                         (map (fn [alpha mu q log-det]
                                (let [y (lower-times q (map (fn [a b] (- a b)) xi mu))]
                                  (+ alpha log-det (* -0.5 (squared-length y)))))
                              alphas means roots logs))))
                0.0 x)
        prior (fold (fn [s params] (+ s (log-wishart params gamma m d))) 0.0 icf)
        constant (- (* freedom (real d) (- (log gamma) (* 0.5 (log 2.0))))
                    (log-gamma-of-dimension (* 0.5 freedom) d))]
    (+ (- (* -0.5 (real (* n d)) (log 6.283185307179586))
          (* (real n) (log-sum-exp alphas)))
       likelihood
       (- prior (* (real k) constant)))))
