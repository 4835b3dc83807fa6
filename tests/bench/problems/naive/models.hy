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

(defmodel obstacles [#^ (Mat n 2) points  #^ (Mat m 3) discs]
  "how deep points are in discs, each a centre and a radius"
  (sum (map (fn [p]
              (sum (map (fn [disc]
                          (let [depth (- (get disc 2) (norm (- p (get disc (slice 0 2)))))]
                            (if (> depth 0.0) (* depth depth) 0.0)))
                        discs)))
            points)))

(defmodel bumps [#^ (Mat n 2) points  #^ (Mat m 3) bumps]
  "the squares of what bumps add up to at points, each bump a centre and a height"
  (sum (map (fn [p]
              (** (sum (map (fn [bump] (/ (get bump 2) (+ 1.0 (sq-norm (- p (get bump (slice 0 2))))))) bumps)) 2))
            points)))

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

(defmodel charges [#^ (Mat n 2) x  #^ (Vec n) q]
  "the energy of n charges in a plane, each pair twice, none with itself"
  (* 0.5 (sum (build [(len q) (len q)]
                (fn [i j] (if (= i j) 0.0 (/ (* (get q i) (get q j)) (norm (- (get x i) (get x j))))))))))

(defmodel forces [#^ (Mat n 2) x  #^ (Vec n) m]
  "the sum of the squares of the pulls on n masses in a plane"
  (sum
    (square
      (build (len m)
        (fn [i]
          (sum
            (build (len m)
              (fn [j]
                (if (!= j i)
                  (let [d (- (get x j) (get x i))]
                    (/ (* (get m j) d) (** (norm d) 3)))
                  [0.0 0.0])))
            :axis 0))))))

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

(defmodel wave [#^ (Mat n m) u #^ Real c]
  "the sum of the squares after ten steps of the wave equation, from rest; the border does not move after the start"
  (let [n (len u)  m (len (get u 0))]
    (sum
      (square
        (get
          (ifold
            (fn [#(u before) t]
              #((build [n m]
                  (fn [i j]
                    (if (or (= i 0) (= j 0) (= i (- n 1)) (= j (- m 1)))
                      0.0
                      (+ (- (* 2.0 (get u i j)) (get before i j))
                        (* c
                          (- (+ (get u (- i 1) j) (get u (+ i 1) j) (get u i (- j 1)) (get u i (+ j 1)))
                            (* 4.0 (get u i j))))))))
                u))
            #(u u) 10)
          0)))))

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

(defmodel pull [x m a]
  "what masses m at x do to one at a"
  (ifold
    (fn [f j]
      (let [d (vec-sub (get x j) a)
            r2 (+ 0.01 (sq-norm d))]
        (vec-add f (vec-scale (/ (get m j) (* r2 (sqrt r2))) d))))
    [0.0 0.0 0.0] (len m)))

(defmodel leapfrog [#^ (Mat n 3) x  #^ (Mat n 3) v  #^ (Vec n) m]
  "the sum of the squares of the places after ten leapfrog steps of n masses"
  (let [dt 0.05]
    (sum
      (square
        (fst
          (ifold
            (fn [state t]
              (let [#(x v) state
                    x (+ x (* 0.5 dt v))
                    v (+ v (* dt (map (fn [a] (pull x m a)) x)))]
                #((+ x (* 0.5 dt v)) v)))
            #(x v) 10))))))

(defmodel laplacian [u]
  "of a grid that goes on at the other side"
  (let [n (len u)  m (len (get u 0))]
    (build [n m]
      (fn [i j]
        (- (+ (get u (% (- i 1) n) j) (get u (% (+ i 1) n) j) (get u i (% (- j 1) m)) (get u i (% (+ j 1) m)))
          (* 4.0 (get u i j)))))))

(defmodel gray-scott [#^ (Mat n m) u  #^ (Mat n m) v]
  "the sum of the squares of v after ten steps of two substances that diffuse and react, on a ring of rings"
  (sum
    (square
      (snd
        (ifold
          (fn [state t]
            (let [#(u v) state
                  uvv (* u v v)]
              #((+ u (- (* 0.16 (laplacian u)) uvv) (* 0.035 (- 1.0 u)))
                (+ v (* 0.08 (laplacian v)) (- uvv (* 0.095 v))))))
          #(u v) 10)))))

(defmodel thomas [#^ (Vec n) a  #^ (Vec n) b  #^ (Vec n) c  #^ (Vec n) d]
  "the sum of the squares of what solves a tridiagonal system; a, b, c: below, on and above the diagonal"
  (let [n (len b)
        #(c d)
        (ifold
          (fn [state k]
            (let [#(c d) state
                  i (+ k 1)
                  pivot (- (get b i) (* (get a i) (get c (- i 1))))]
              #((update c i (/ (get c i) pivot))
                (update d i (/ (- (get d i) (* (get a i) (get d (- i 1)))) pivot)))))
          #((update c 0 (/ (get c 0) (get b 0))) (update d 0 (/ (get d 0) (get b 0))))
          (- n 1))]
    (sum
      (square
        (ifold
          (fn [x k]
            (let [i (- n 2 k)]
              (update x i (- (get x i) (* (get c i) (get x (+ i 1)))))))
          d (- n 1))))))

(defmodel convolution [#^ (Mat n m) x  #^ (Arr Real k 3 3) w]
  "the sum of the squares of a layer: k filters of 3 x 3, the largest of each 2 x 2 that they give"
  (let [k (len w)
        h (- (len x) 2)
        l (- (len (get x 0)) 2)
        filtered
        (build [k h l]
          (fn [f i j]
            (ifold (fn [s p] (ifold (fn [s q] (+ s (* (get w f p q) (get x (+ i p) (+ j q))))) s 3)) 0.0 3)))
        pooled
        (build [k (// h 2) (// l 2)]
          (fn [f i j]
            (let [at (fn [p q] (get filtered f (+ (* 2 i) p) (+ (* 2 j) q)))]
              (max (at 0 0) (at 0 1) (at 1 0) (at 1 1)))))]
    (sum (square pooled))))

(defmodel kernel [length scale noise x] "the covariances of what is seen at the rows of x: squared exponential, noise"
  (+ (build [(len x) (len x)]
       (fn [i j] (* scale scale (exp (/ (sq-norm (- (get x i) (get x j))) (* -2.0 length length))))))
    (* noise noise (eye (len x)))))

(defmodel gaussian-process [#^ Real length #^ Real scale #^ Real noise #^ (Mat n 3) x #^ (Vec n) y]
  "the log marginal likelihood of y, seen at the rows of x, but for a constant"
  (let [L (cholesky (kernel length scale noise x))
        a (solve-lower L y)]
    (- (* -0.5 (dot a a)) (sum (log (diag L))))))

(defmodel gaussian-process-inverse [#^ Real length #^ Real scale #^ Real noise #^ (Mat n 3) x #^ (Vec n) y]
  "the same as the textbook's formula has it"
  (let [K (kernel length scale noise x)]
    (* -0.5 (+ (dot y (@ (inv K) y)) (logdet K)))))

(defmodel viterbi [#^ (Mat k k) steps  #^ (Mat n k) seen]
  "the score of the best path of states; steps, seen: logarithms of what is likely"
  (max
    (fold
      (fn [best e]
        (build (len e) (fn [j] (+ (get e j) (max (build (len best) (fn [i] (+ (get best i) (get steps i j)))))))))
      (get seen 0)
      (slice seen 1 (len seen)))))

(defmodel crf [#^ (Mat k k) steps  #^ (Mat n k) scores  #^ (Vec n) tags]
  "minus the log likelihood of tags in a chain; the weights of the paths are scaled in each step"
  (let [k (len steps)
        tag (fn [t] (int (get tags t)))
        path (ifold (fn [s t] (+ s (get scores t (tag t)) (if (> t 0) (get steps (tag (- t 1)) (tag t)) 0.0)))
               0.0 (len tags))
        #(paths _)
        (fold
          (fn [#(total weights) e]
            (let [after (build k
                    (fn [j] (* (exp (get e j)) (sum (build k (fn [i] (* (get weights i) (exp (get steps i j)))))))))
                  scale (sum after)]
              #((+ total (log scale)) (/ after scale))))
          #((logsumexp (get scores 0)) (softmax (get scores 0)))
          (slice scores 1 (len scores)))]
    (- paths path)))

(defmodel causal [#^ (Mat n d) q  #^ (Mat n d) k  #^ (Mat n d) v]
  "attention to what came before: the sum of the squares"
  (sum
    (build (len q)
      (fn [i]
        (let [scores (build (+ i 1) (fn [j] (/ (dot (get q i) (get k j)) (sqrt (real (len (get q 0)))))))
              weights (softmax scores)
              out (build (len (get v 0)) (fn [c] (sum (build (+ i 1) (fn [j] (* (get weights j) (get v j c)))))))]
          (sum (square out)))))))

(defmodel masked [#^ (Mat n d) q  #^ (Mat n d) k  #^ (Mat n d) v]
  "the same, what comes later masked"
  (let [n (len q)
        scores (/ (matmul q (transpose k)) (sqrt (real (len (get q 0)))))
        mask (build [n n] (fn [i j] (if (<= j i) (get scores i j) -1e9)))]
    (sum (square (matmul (softmax mask 1) v)))))

(defmodel soft-dtw [#^ (Vec n) x  #^ (Vec m) y]
  "what it costs to warp one series to another, the least of three being soft: a table that is filled in place"
  (let [n (len x)
        m (len y)
        least (fn [a b c] (- (logsumexp [(- a) (- b) (- c)])))
        table (full [(+ n 1) (+ m 1)] 1e10)]
    (set-at! table 0 0 0.0)
    (ifold
      (fn [_ i]
        (ifold
          (fn [_ j]
            (set-at! table (+ i 1) (+ j 1)
              (+ (square (- (get x i) (get y j)))
                (least (get table i j) (get table i (+ j 1)) (get table (+ i 1) j))))
            0)
          0 m))
      0 n)
    (get table n m)))

(defmodel alignment [#^ (Mat n m) alike  #^ Real gap]
  "the score of the best alignment of two sequences, row by row; gap: the price of what is left out"
  (let [m (len (get alike 0))
        last
        (fold
          (fn [above row]
            (let [first (- (get above 0) gap)]
              (concat [first]
                (scan
                  (fn [left j]
                    (max (+ (get above j) (get row j)) (- (get above (+ j 1)) gap) (- left gap)))
                  first (arange m)))))
          (build (+ m 1) (fn [j] (- (* gap j))))
          alike)]
    (get last m)))

(defmodel log-density [x mean covariance] "of a normal distribution, but for a constant"
  (let [e (- x mean)]
    (* -0.5 (+ (dot e (solve covariance e)) (logdet covariance)))))

(defmodel normal-rows [#^ (Vec d) mean #^ (Mat d d) a #^ (Mat n d) x]
  "the log likelihood of independent rows with the covariance 1 + a a'"
  (sum (map (fn [row] (log-density row mean (+ (eye (len mean)) (@ a (transpose a))))) x)))

(defmodel viterbi-table [#^ (Mat k k) steps  #^ (Mat n k) seen]
  "the score of the best path of states, of the best paths to each state a table that is filled in place"
  (let [n (len seen)
        k (len steps)
        best (zeros [n k])]
    (ifold (fn [_ j] (set-at! best 0 j (get seen 0 j)) 0) 0 k)
    (ifold
      (fn [_ t]
        (ifold
          (fn [_ j]
            (set-at! best (+ t 1) j
              (+ (get seen (+ t 1) j) (max (build k (fn [i] (+ (get best t i) (get steps i j)))))))
            0)
          0 k))
      0 (- n 1))
    (max (get best (- n 1)))))

(defmodel asian [#^ Real spot #^ (Vec m) sigma #^ (Mat n m) z]
  "an option on the mean of a price, at 100: the mean over n paths of m steps; sigma: the volatility in each step"
  (/ (sum
       (map
         (fn [row]
           (let [path (scan * spot (map (fn [v e] (+ 1.0002 (* v e))) sigma row))]
             (max 0.0 (- (/ (sum path) (real (len row))) 100.0))))
         z))
    (real (len z))))

(defmodel heston [s0 v0 kappa theta xi rho #^ (Mat n m) z1 #^ (Mat n m) z2]
  "a call at 100 where the variance moves too, by Euler's steps over a year: the mean over n paths of m steps"
  (let [dt (/ 1.0 m)
        pay (ref 0.0)]
    (for [p (range n)]
      (let [x (ref (log s0))
            v (ref v0)]
        (for [t (range m)]
          (let [vp (max (deref v) 0.0)
                e1 (get z1 p t)
                e2 (+ (* rho e1) (* (sqrt (- 1 (* rho rho))) (get z2 p t)))]
            (set! x (+ (deref x) (* -0.5 vp dt) (* (sqrt (* vp dt)) e1)))
            (set! v (+ (deref v) (* kappa (- theta vp) dt) (* xi (sqrt (* vp dt)) e2)))))
        (set! pay (+ (deref pay) (max 0.0 (- (exp (deref x)) 100.0))))))
    (/ (deref pay) n)))

(defmodel clusters [#^ (Mat k d) centres #^ (Mat n d) x]
  "the sum of the squares of what is between n points and their nearest centres, by broadcasting, as in NumPy"
  (sum (np.min (np.sum (** (- (expand-dims x 1) (expand-dims centres 0)) 2) :axis 2) :axis 1)))

(defmodel batch-norm [#^ (Mat n d) x #^ (Vec d) gamma #^ (Vec d) beta]
  "the sum of the squares of a batch whose columns are normalised, scaled and moved"
  (let [normal (/ (- x (np.mean x :axis 0)) (np.sqrt (+ (np.var x :axis 0) 1e-5)))]
    (np.sum (np.square (+ (* gamma normal) beta)))))

(defmodel cox [#^ (Vec d) b #^ (Mat n d) x #^ (Vec n) event]
  "the partial likelihood of Cox's model of survival, n rows by their times: who is at risk comes later"
  (let [eta (@ x b)]
    (sum (build n (fn [i] (* (get event i) (- (get eta i) (log (sum (exp (slice eta i n)))))))))))

(defmodel diffusion [u k]
  "the sum of the squares after ten steps of diffusion with a conductivity; the border keeps its temperature"
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
                    (* 0.1 (get k i j)
                      (- (+ (get u (- i 1) j) (get u (+ i 1) j) (get u i (- j 1)) (get u i (+ j 1)))
                        (* 4.0 (get u i j)))))))))
          u 10)))))

(defmodel jacobi [u f]
  "the sum of the squares after ten of Jacobi's sweeps for Poisson's equation, n x n"
  (let [n (len u)
        u (ref u)]
    (for [s (range 10)]
      (let [old (deref u)]
        (set! u
          (build [n n]
            (fn [i j]
              (if (or (= i 0) (= j 0) (= i (- n 1)) (= j (- n 1)))
                (get old i j)
                (* 0.25 (+ (get old (- i 1) j) (get old (+ i 1) j) (get old i (- j 1)) (get old i (+ j 1)) (get f i j)))))))))
    (sum (square (deref u)))))

(defmodel thomas-in-place [a b c d]
  "the sum of the squares of what solves a tridiagonal system, in place; a, b, c: below, on and above the diagonal"
  (let [n (len b)
        b (+ b 0.0)
        d (+ d 0.0)
        x (zeros n)]
    (for [i (range 1 n)]
      (let [w (/ (get a i) (get b (- i 1)))]
        (set-at! b i (- (get b i) (* w (get c (- i 1)))))
        (set-at! d i (- (get d i) (* w (get d (- i 1)))))))
    (set-at! x (- n 1) (/ (get d (- n 1)) (get b (- n 1))))
    (for [i (range (- n 2) -1 -1)]
      (set-at! x i (/ (- (get d i) (* (get c i) (get x (+ i 1)))) (get b i))))
    (sum (square x))))

(defmodel spectrum [#^ (Vec n) x]
  "the sum of the logarithms of 1 + the power at each frequency, by the definition"
  (sum
    (build n
      (fn [k]
        (let [angle (fn [t] (/ (* -2.0 np.pi k t) n))
              re (sum (build n (fn [t] (* (get x t) (cos (angle t))))))
              im (sum (build n (fn [t] (* (get x t) (sin (angle t))))))]
          (log (+ 1.0 (* re re) (* im im))))))))

(defmodel bilateral [image space range_ target]
  "how far an image through a bilateral filter is from a target; 5 x 5, what lies outside is left out"
  (let [n (len image)
        m (len (get image 0))
        filtered
        (build [n m]
          (fn [i j]
            (let [total (ref 0.0)
                  weights (ref 0.0)]
              (for [di (range -2 3)
                    dj (range -2 3)]
                (let [y (+ i di)
                      x (+ j dj)]
                  (when (and (>= y 0) (< y n) (>= x 0) (< x m))
                    (let [e (- (get image y x) (get image i j))
                          w (exp (- (/ (- (+ (* di di) (* dj dj))) (* 2.0 space space)) (/ (* e e) (* 2.0 range_ range_))))]
                      (set! total (+ (deref total) (* w (get image y x))))
                      (set! weights (+ (deref weights) w))))))
              (/ (deref total) (deref weights)))))]
    (sum (square (- filtered target)))))

(defmodel blur [#^ (Mat n m) image #^ Real sigma #^ (Mat n m) target]
  "how far an image, blurred by a Gaussian of radius 4, is from a target; the border goes on as it is"
  (let [weight (build 9 (fn [k] (exp (/ (- (square (- k 4))) (* 2.0 sigma sigma)))))
        kernel (/ weight (sum weight))
        across (build [n m]
                 (fn [i j] (sum (build 9 (fn [k] (* (get kernel k) (get image i (max 0 (min (- m 1) (+ j k -4))))))))))
        down (build [n m]
               (fn [i j] (sum (build 9 (fn [k] (* (get kernel k) (get across (max 0 (min (- n 1) (+ i k -4))) j)))))))]
    (sum (square (- down target)))))

(defmodel shallow-water [#^ (Mat n m) h  #^ (Mat n m) p  #^ (Mat n m) q]
  "the energy after ten Lax-Friedrichs steps of the shallow water equations on a torus; p, q: momenta"
  (let [r 0.05
        g 9.81
        step (fn [u f k]
               (- (* 0.25 (+ (np.roll u 1 :axis 0) (np.roll u -1 :axis 0) (np.roll u 1 :axis 1) (np.roll u -1 :axis 1)))
                 (* 0.5 r (- (np.roll f -1 :axis 0) (np.roll f 1 :axis 0)))
                 (* 0.5 r (- (np.roll k -1 :axis 1) (np.roll k 1 :axis 1)))))
        #(h p q)
        (ifold
          (fn [#(h p q) t]
            (let [pressure (* 0.5 g h h)
                  pq (/ (* p q) h)]
              #((step h p q)
                (step p (+ (/ (* p p) h) pressure) pq)
                (step q pq (+ (/ (* q q) h) pressure)))))
          #(h p q) 10)]
    (* 0.5 (sum (+ (/ (+ (* p p) (* q q)) h) (* g h h))))))

(defmodel kpss [#^ (Vec n) x]
  "the KPSS statistic with 20 lags: prefix sums of a series without its mean, over its autocorrelations"
  (let [e (- x (mean x))
        s (cumsum e)
        gamma (fn [k] (/ (sum (* (slice e k n) (slice e 0 (- n k)))) n))
        variance (+ (gamma 0) (* 2.0 (sum (build 20 (fn [k] (* (- 1.0 (/ (+ k 1) 21.0)) (gamma (+ k 1))))))))]
    (/ (sum (square s)) (* n n variance))))

(defmodel garch [mu omega alpha beta r]
  "the log likelihood of returns whose variance follows their squares, GARCH(1, 1), but for a constant"
  (let [h (ref (/ omega (- 1.0 alpha beta)))
        sum (ref 0.0)]
    (for [x r]
      (let [e (- x mu)]
        (set! sum (- (deref sum) (* 0.5 (+ (log (deref h)) (/ (* e e) (deref h))))))
        (set! h (+ omega (* alpha e e) (* beta (deref h))))))
    (deref sum)))

(defmodel libor [#^ (Vec n) rates  #^ (Vec n) vol  #^ (Mat paths steps) z]
  "a swaption in a LIBOR market model: each step moves the forward rates that are still to come"
  (let [delta 0.25
        pay (ref 0.0)]
    (for [p (range paths)]
      (let [l (copy rates)]
        (for [t (range steps)]
          (let [dw (* (sqrt delta) (get z p t))
                v (ref 0.0)]
            (for [i (range (+ t 1) n)]
              (let [s (get vol (- i t 1))
                    c (* delta s)]
                (set! v (+ (deref v) (/ (* c (get l i)) (+ 1.0 (* delta (get l i))))))
                (set-at! l i (* (get l i) (exp (+ (* c (deref v)) (* s (- dw (* 0.5 c)))))))))))
        (let [bond (ref 1.0)
              swap (ref 0.0)]
          (for [i (range steps n)]
            (set! bond (/ (deref bond) (+ 1.0 (* delta (get l i)))))
            (set! swap (+ (deref swap) (* delta (deref bond)))))
          (set! pay (+ (deref pay) (max 0.0 (- 1.0 (deref bond) (* 0.05 (deref swap)))))))))
    (/ (deref pay) paths)))

(defmodel trilinear [#^ (Arr Real a b c) grid x y z]
  "an element between eight elements of a grid"
  (let [i (int (floor x)) j (int (floor y)) k (int (floor z))
        u (- x i) v (- y j) w (- z k)
        mix (fn [t p q] (+ (* (- 1.0 t) p) (* t q)))]
    (mix u
      (mix v (mix w (get grid i j k) (get grid i j (+ k 1))) (mix w (get grid i (+ j 1) k) (get grid i (+ j 1) (+ k 1))))
      (mix v
        (mix w (get grid (+ i 1) j k) (get grid (+ i 1) j (+ k 1)))
        (mix w (get grid (+ i 1) (+ j 1) k) (get grid (+ i 1) (+ j 1) (+ k 1)))))))

(defmodel rays [#^ (Arr Real a b c) density  #^ (Mat n 2) at  #^ (Vec n) seen]
  "what rays through a cloud see, 32 steps each, against what was seen: light gets brighter with depth"
  (let [dt 0.3
        colour (fn [ray]
                 (fst
                   (ifold
                     (fn [#(light through) s]
                       (let [z (* dt (+ s 0.5))
                             sigma (trilinear density (+ (get ray 0) (* 0.05 z)) (get ray 1) z)
                             alpha (- 1.0 (exp (* (- sigma) dt)))]
                         #((+ light (* through alpha (+ 0.1 (* 0.1 z)))) (* through (- 1.0 alpha)))))
                     #(0.0 1.0) 32)))]
    (sum (square (- (map colour at) seen)))))

(defmodel warp [#^ (Mat h w) a  #^ (Mat h w) b  #^ (Arr Real h w 2) flow]
  "an image, warped by an offset for each pixel, against another, where neighbours' offsets are to be alike"
  (let [cost (ref 0.0)]
    (for [i (range h)  j (range w)]
      (let [y (clip (+ i (get flow i j 1)) 0.0 (- h 1.001))
            x (clip (+ j (get flow i j 0)) 0.0 (- w 1.001))
            k (int (floor y)) l (int (floor x))
            v (- y k) u (- x l)
            s (+ (* (- 1 v) (+ (* (- 1 u) (get b k l)) (* u (get b k (+ l 1)))))
                (* v (+ (* (- 1 u) (get b (+ k 1) l)) (* u (get b (+ k 1) (+ l 1))))))]
        (set! cost (+ (deref cost) (sqrt (+ 1e-6 (square (- s (get a i j)))))))
        (when (< i (- h 1))
          (set! cost (+ (deref cost) (* 0.5 (sq-norm (- (get flow (+ i 1) j) (get flow i j)))))))
        (when (< j (- w 1))
          (set! cost (+ (deref cost) (* 0.5 (sq-norm (- (get flow i (+ j 1)) (get flow i j)))))))))
    (deref cost)))

(defmodel crank-nicolson [#^ (Vec n) u r]
  "ten implicit steps of the heat equation, by whole matrices"
  (let [d (* 0.5 r (+ (np.eye n n 1) (np.eye n n -1) (* -2 (np.eye n))))
        a (- (np.eye n) d)
        b (+ (np.eye n) d)]
    (sum (square (ifold (fn [u k] (np.linalg.solve a (@ b u))) u 10)))))

(defmodel whittaker [#^ (Vec n) y lam]
  "how far numbers are from the smooth line through them"
  (let [d (np.diff (np.eye n) 2 :axis 0)]
    (sum (square (- y (np.linalg.solve (+ (np.eye n) (* lam (@ d.T d))) y))))))

(defmodel bar [#^ (Vec n) f #^ (Vec n) k]
  "how far a bar that is held at one end stretches: a stiffness for each element, a force on each node"
  (let [a (np.zeros [n n])]
    (for [e (range (- n 1))  p (range 2)  q (range 2)]
      (set-at! a (+ e p) (+ e q) (+ (get a (+ e p) (+ e q)) (if (= p q) (get k e) (- (get k e))))))
    (set-at! a 0 0 1.0)
    (set-at! a 0 1 0.0)
    (sum (square (np.linalg.solve a f)))))

(defmodel tracking [q r dt #^ (Mat n 2) ys]
  "the log likelihood of positions in the plane under a model of constant velocity, by whole matrices"
  (let [F [[1.0 0.0 dt 0.0] [0.0 1.0 0.0 dt] [0.0 0.0 1.0 0.0] [0.0 0.0 0.0 1.0]]
        H [[1.0 0.0 0.0 0.0] [0.0 1.0 0.0 0.0]]
        Q (* q (np.eye 4))
        R (* r (np.eye 2))
        x (ref (np.zeros 4))
        P (ref (np.eye 4))
        total (ref 0.0)]
    (for [y ys]
      (let [x1 (@ F (deref x))
            P1 (+ (@ F (deref P) F.T) Q)
            e (- y (@ H x1))
            S (+ (@ H P1 H.T) R)
            K (@ P1 H.T (np.linalg.inv S))]
        (set! x (+ x1 (@ K e)))
        (set! P (@ (- (np.eye 4) (@ K H)) P1))
        (set! total (- (deref total) (* 0.5 (+ (log (np.linalg.det S)) (@ e (np.linalg.inv S) e)))))))
    (deref total)))

(defmodel barrier [spot sigma #^ (Mat n m) z]
  "a call at 100 that ends below 85, by whole arrays: n paths of a year in m steps, and their mirror images"
  (let [dt (/ 1.0 m)
        pay (fn [z]
              (let [steps (+ (* (- 0.03 (* 0.5 sigma sigma)) dt) (* sigma (np.sqrt dt) z))
                    s (* spot (np.exp (np.cumsum steps :axis 1)))]
                (np.where (> (np.min s :axis 1) 85.0) (np.maximum 0.0 (- (get s #((slice None) -1)) 100.0)) 0.0)))]
    (* (exp -0.03) 0.5 (np.mean (+ (pay z) (pay (- z)))))))

(defmodel sinkhorn [#^ (Mat n 2) x  #^ (Mat n 2) y]
  "what it costs to move n points to n others, smoothed by 1/2: 20 turns in logarithms"
  (let [cost (build [n n] (fn [i j] (sq-norm (- (get x i) (get y j)))))
        m (* -2.0 cost)
        #(f g) (ifold
                 (fn [#(f g) t]
                   (let [f (build n (fn [i] (- (- (log n)) (logsumexp (+ (get m i) g)))))
                         g (build n (fn [j] (- (- (log n)) (logsumexp (build n (fn [i] (+ (get m i j) (get f i))))))))]
                     #(f g)))
                 #((zeros n) (zeros n)) 20)]
    (sum (build [n n] (fn [i j] (* (get cost i j) (exp (+ (get f i) (get g j) (get m i j)))))))))

(defmodel swaps [#^ (Vec 6) h  r  rec  #^ (Vec n) spread  #^ (Vec n) quarters]
  "how far n swaps on a default are from their price, by the hazard rates of six spans of time"
  (let [knots [4 8 12 20 28 40]
        total (ref 0.0)]
    (for [i (range n)]
      (let [H (ref 0.0)
            alive (ref 1.0)
            paid (ref 0.0)
            annuity (ref 0.0)]
        (for [t (range 1 (+ (int (get quarters i)) 1))]
          (let [k (ref 0)]
            (for [j (range 5)] (when (> t (get knots j)) (set! k (+ j 1))))
            (set! H (+ (deref H) (* 0.25 (get h (deref k)))))
            (let [s (exp (- (deref H)))
                  d (exp (* (- r) 0.25 t))]
              (set! paid (+ (deref paid) (* d (- (deref alive) s))))
              (set! annuity (+ (deref annuity) (* 0.125 d (+ (deref alive) s))))
              (set! alive s))))
        (set! total (+ (deref total) (** (- (* (- 1.0 rec) (deref paid)) (* (get spread i) (deref annuity))) 2)))))
    (deref total)))

(defmodel phases [x q k w]
  "the part of an Ewald sum that waves have"
  (let [phase (@ x k.T)
        re (@ q (np.cos phase))
        im (@ q (np.sin phase))]
    (np.sum (* w (+ (np.square re) (np.square im))))))

(defmodel line-solved [r b]
  "(1 + 2 r) x_i - r (x_i-1 + x_i+1) = b_i"
  (let [n (len b)
        diag (+ 1.0 (* 2.0 r))
        #(cs ds) (ifold (fn [#(c d) i]
                          (let [m (if (= i 0) diag (+ diag (* r (get c (- i 1)))))
                                e (if (= i 0) (get b 0) (+ (get b i) (* r (get d (- i 1)))))]
                            #((update c i (/ (- r) m)) (update d i (/ e m)))))
                   #((zeros n) (zeros n)) n)]
    (ifold (fn [x k] (let [i (- n 2 k)] (update x i (- (get ds i) (* (get cs i) (get x (+ i 1)))))))
      ds (- n 1))))
(defmodel half-step [#^ (Mat n m) u  r]
  "explicit down the columns, implicit along the rows; zero outside"
  (map (fn [row] (line-solved r row))
    (build [n m]
      (fn [i j]
        (+ (* (- 1.0 (* 2.0 r)) (get u i j))
           (* r (+ (if (> i 0) (get u (- i 1) j) 0.0) (if (< i (- n 1)) (get u (+ i 1) j) 0.0))))))))
(defmodel lines [#^ (Mat n n) u  r]
  "three steps of heat, each implicit along the rows, then along the columns"
  (sum (square (ifold (fn [u t] (transpose (half-step (transpose (half-step u r)) r))) u 3))))

(defmodel ssim [#^ (Mat n n) x  #^ (Mat n n) y]
  "how alike two images are: the mean structural similarity of all windows of 5 x 5"
  (let [m (- n 4)
        window (fn [f] (build [m m] (fn [i j] (/ (sum (build [5 5] (fn [k l] (f (+ i k) (+ j l))))) 25.0))))
        mx (window (fn [i j] (get x i j)))
        my (window (fn [i j] (get y i j)))
        xx (window (fn [i j] (square (get x i j))))
        yy (window (fn [i j] (square (get y i j))))
        xy (window (fn [i j] (* (get x i j) (get y i j))))]
    (mean (build [m m]
      (fn [i j]
        (let [a (get mx i j)
              b (get my i j)
              structure (* 2.0 (- (get xy i j) (* a b)))
              spread (+ (- (get xx i j) (* a a)) (- (get yy i j) (* b b)))]
          (/ (* (+ (* 2.0 a b) 1e-4) (+ structure 9e-4)) (* (+ (* a a) (* b b) 1e-4) (+ spread 9e-4)))))))))

(defmodel conjugate [#^ (Mat n n) A  #^ (Vec n) b]
  "the squared length of what ten steps of conjugate gradients solve A + 3 for"
  (let [#(x r p rr)
        (ifold
          (fn [#(x r p rr) k]
            (let [q (+ (@ A p) (* 3.0 p))
                  alpha (/ rr (dot p q))
                  next (- r (* alpha q))
                  new (dot next next)]
              #((+ x (* alpha p)) next (+ next (* (/ new rr) p)) new)))
          #((zeros n) b b (dot b b))
          10)]
    (dot x x)))

(defmodel brackets [#^ (Vec n) d]
  "the least work of a product of matrices, d(i) x d(i + 1) each: of all ways to set brackets"
  (let [m (- n 1)
        spans (ifold
                (fn [t s]
                  (build [m m]
                    (fn [i j]
                      (if (= j (+ i s 1))
                        (amin (build (+ s 1)
                                (fn [k]
                                  (+ (get t i (+ i k)) (get t (+ i k 1) j)
                                    (* (get d i) (get d (+ i k 1)) (get d (+ j 1)))))))
                        (get t i j)))))
                (zeros [m m])
                (- m 1))]
    (get spans 0 (- m 1))))
