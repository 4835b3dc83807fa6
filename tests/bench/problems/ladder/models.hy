;; dF~'s own experiments (Shaikhha et al. 2019, section 6): derivatives as forward mode gives them, a direction at a
;; time, for the rewrite rules to make fast. `dot`, `vec-add`, `max` are loops of the prelude.

(defmodel dot-gradient [#^ (Vec n) u  #^ (Vec n) v]
  "of u . v by u"
  (build (len u) (fn [i] (jvp (fn [w] (dot w v)) u (one-hot (len u) i)))))

(defmodel max-gradient [#^ (Vec n) u]
  "of the largest element"
  (build (len u) (fn [i] (jvp (fn [w] (fold max (get w 0) w)) u (one-hot (len u) i)))))

(defmodel add-jacobian [#^ (Vec n) u  #^ (Vec n) v]
  "of u + v by u: a row for each direction"
  (build (len u) (fn [i] (jvp (fn [w] (vec-add w v)) u (one-hot (len u) i)))))

(defmodel scale-jacobian [#^ Real s  #^ (Vec n) v]
  "of s v by s"
  (jvp (fn [t] (map (fn [x] (* t x)) v)) s 1.0))

;; The same in reverse mode, to compare with. Jacobians: a row for each element of the result.

(defmodel dot-gradient-reverse [#^ (Vec n) u  #^ (Vec n) v]
  "of u . v by u"
  ((grad (fn [w] (dot w v))) u))

(defmodel max-gradient-reverse [#^ (Vec n) u]
  "of the largest element"
  ((grad (fn [w] (fold max (get w 0) w))) u))

(defmodel add-jacobian-reverse [#^ (Vec n) u  #^ (Vec n) v]
  "of u + v by u"
  (build (len u) (fn [i] (vjp (fn [w] (vec-add w v)) u (one-hot (len u) i)))))

(defmodel scale-jacobian-reverse [#^ Real s  #^ (Vec n) v]
  "of s v by s"
  (build (len v) (fn [i] (vjp (fn [t] (map (fn [x] (* t x)) v)) s (one-hot (len v) i)))))

(defmodel nnmf-gradient [#^ (Mat m k) W  #^ (Mat k n) H  #^ (Mat m n) A]
  "of sum(log(W H) + A/(W H)) by H"
  (grad-of-h W H A))

(defmodel grad-of-h [#^ (Mat m k) W  #^ (Mat k n) H  #^ (Mat m n) A]
  ((grad (fn [G] (sum (map (fn [row seen] (map (fn [p a] (+ (log p) (/ a p))) row seen)) (mat-mul W G) A)))) H))

(defmodel project [#^ (Vec 11) c  #^ (Vec 3) p]
  "where a camera (rotation 3, centre 3, focal length, principal point 2, radial distortion 2) sees a point"
  (let [[r1 r2 r3 x y z f px py k1 k2] c
        square (+ (* r1 r1) (* r2 r2) (* r3 r3))
        angle (sqrt square)
        u (/ r1 angle)  v (/ r2 angle)  w (/ r3 angle)
        a (- (get p 0) x)  b (- (get p 1) y)  d (- (get p 2) z)
        co (cos angle)  si (sin angle)
        along (* (- 1.0 co) (+ (* u a) (* v b) (* w d)))
        sx (+ (* co a) (* si (- (* v d) (* w b))) (* along u))
        sy (+ (* co b) (* si (- (* w a) (* u d))) (* along v))
        sz (+ (* co d) (* si (- (* u b) (* v a))) (* along w))
        X (/ sx sz)  Y (/ sy sz)
        q (+ (* X X) (* Y Y))
        bend (+ 1.0 (* k1 q) (* k2 q q))]
    [(+ px (* f bend X)) (+ py (* f bend Y))]))

(defmodel project-jacobian [#^ (Vec 11) c  #^ (Mat n 3) points]
  "of all projections by the camera"
  (map (fn [p] (build 11 (fn [i] (jvp (fn [e] (project e p)) c (one-hot 11 i))))) points))
