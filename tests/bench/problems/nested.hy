;; Optimisation over derivatives: gradient descent on what is itself found with derivatives. Both gradients, the outer
;; and the inner, may be forward (f) or reverse (r): saddle-fr is forward outside and reverse inside.

(defmodel forward [f x]
  (build (len x) (fn [i] (jvp f x (one-hot (len x) i)))))

(defmodel backward [f x]
  (vjp f x 1.0))

(defmodel distance [u v]
  (sqrt (fold (fn [s a b] (+ s (* (- a b) (- a b)))) 0.0 u v)))

(defmodel length [v]
  (sqrt (fold (fn [s a] (+ s (* a a))) 0.0 v)))

(defmodel argmin [gradient f start]
  "Gradient descent with a step that doubles after ten good steps and halves after a bad one."
  (let [x (ref start)
        fx (ref (f start))
        gx (ref (gradient f start))
        eta (ref 1e-5)
        good (ref 0)
        going (ref True)]
    (while (and (deref going) (> (length (deref gx)) 1e-5))
      (if (= (deref good) 10)
        (do
          (set! eta (* 2.0 (deref eta)))
          (set! good 0))
        (let [next (map (fn [a g] (- a (* (deref eta) g))) (deref x) (deref gx))]
          (if (<= (distance (deref x) next) 1e-5)
            (set! going False)
            (let [fnext (f next)]
              (if (< fnext (deref fx))
                (do
                  (set! x next)
                  (set! fx fnext)
                  (set! gx (gradient f next))
                  (set! good (+ (deref good) 1)))
                (do
                  (set! eta (/ (deref eta) 2.0))
                  (set! good 0))))))))
    (deref x)))

(defmodel argmax [gradient f start]
  (argmin gradient (fn [x] (- (f x))) start))

(defmodel saddle [outer inner start]
  "The saddle point of (x1^2 + y1^2) - (x2^2 + y2^2): a minimum over (x1 y1) of the maximum over (x2 y2)."
  (let [f (fn [u v] (- (fold (fn [s a] (+ s (* a a))) 0.0 u) (fold (fn [s a] (+ s (* a a))) 0.0 v)))
        u (argmin outer (fn [u] (let [g (fn [v] (f u v))] (g (argmax inner g start)))) start)
        v (argmax inner (fn [v] (f u v)) start)]
    [(get u 0) (get u 1) (get v 0) (get v 1)]))

(defmodel potential [w x]
  "Of two charges at (10, 10 - w) and (10, 0)."
  (+ (/ 1.0 (distance x [10.0 (- 10.0 w)]))
     (/ 1.0 (distance x [10.0 0.0]))))

(defmodel particle-lands [inner w]
  "The squared place where a particle among the charges falls through the x axis, by Euler's method."
  (let [dt 0.1
        x (ref [0.0 8.0])
        v (ref [0.75 0.0])
        next (ref [0.0 8.0])]
    (set! next (map (fn [a b] (+ a (* dt b))) (deref x) (deref v)))
    (while (> (get (deref next) 1) 0.0)
      (let [a (inner (fn [x] (potential w x)) (deref x))]
        (set! v (map (fn [v a] (- v (* dt a))) (deref v) a))
        (set! x (deref next))
        (set! next (map (fn [a b] (+ a (* dt b))) (deref x) (deref v)))))
    (let [left (/ (- (get (deref x) 1)) (get (deref v) 1))]
      (** (+ (get (deref x) 0) (* left (get (deref v) 0))) 2))))

(defmodel particle [outer inner start]
  "The w that makes the particle land at x = 0."
  (get (argmin outer (fn [w] (particle-lands inner (get w 0))) [start]) 0))

(defmodel saddle-ff [#^ (Vec 2) start] (saddle forward forward start))
(defmodel saddle-fr [#^ (Vec 2) start] (saddle forward backward start))
(defmodel saddle-rf [#^ (Vec 2) start] (saddle backward forward start))
(defmodel saddle-rr [#^ (Vec 2) start] (saddle backward backward start))
(defmodel particle-ff [#^ Real w] (particle forward forward w))
(defmodel particle-fr [#^ Real w] (particle forward backward w))
(defmodel particle-rf [#^ Real w] (particle backward forward w))
(defmodel particle-rr [#^ Real w] (particle backward backward w))
