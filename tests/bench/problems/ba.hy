;; One observation of bundle adjustment: a camera sees a point.
;; p holds the camera (rotation 3, centre 3, focal length, principal point 2, radial distortion 2), the point 3
;; and the weight.

(defmodel plus [u v] "the sum of two vectors"
  (map (fn [a b] (+ a b)) u v))

(defmodel rotate [r v]
  "v turned about the axis r by the angle |r| (Rodrigues)"
  (let [tt (dot r r)]
    (if (= tt 0.0)
      (plus v (cross r v))
      (let [t (sqrt tt)
            axis (map (fn [a] (/ a t)) r)
            c (cos t)
            s (sin t)
            along (* (- 1.0 c) (dot axis v))]
        (map (fn [vi wi ai] (+ (* c vi) (* s wi) (* along ai)))
             v (cross axis v) axis)))))

(defmodel distort [k1 k2 x y]
  "radial distortion of a point of the image plane"
  (let [q (+ (* x x) (* y y))
        d (+ 1.0 (* k1 q) (* k2 q q))]
    [(* d x) (* d y)]))

(defmodel ba [#^ (Vec 15) p #^ (Vec 2) feature]
  "The weighted reprojection error."
  (let [r [(get p 0) (get p 1) (get p 2)]
        v [(- (get p 11) (get p 3)) (- (get p 12) (get p 4)) (- (get p 13) (get p 5))]
        at (rotate r v)
        seen (distort (get p 9) (get p 10) (/ (get at 0) (get at 2)) (/ (get at 1) (get at 2)))
        f (get p 6)
        w (get p 14)]
    [(* w (- (+ (* f (get seen 0)) (get p 7)) (get feature 0)))
     (* w (- (+ (* f (get seen 1)) (get p 8)) (get feature 1)))]))
