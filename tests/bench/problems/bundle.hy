;; Bundle adjustment: every observation of a problem, each a camera that sees a point. Rodrigues' rotation, projection,
;; radial distortion; the residual is w (projection - feature), and 1 - w^2 keeps the weights near 1.
;; A camera: rotation 3, centre 3, focal length, principal point 2, radial distortion 2.

(defmodel cross-plus [r v]
  (map (fn [a b] (+ a b)) v (cross r v)))

(defmodel rotate [r v]
  "v turned about the axis r by the angle |r| (Rodrigues)"
  (let [tt (dot r r)]
    (if (= tt 0.0)
      (cross-plus r v)
      (let [t (sqrt tt)
            axis (map (fn [a] (/ a t)) r)
            c (cos t)
            s (sin t)
            along (* (- 1.0 c) (dot axis v))]
        (map (fn [vi wi ai] (+ (* c vi) (* s wi) (* along ai)))
             v (cross axis v) axis)))))

(defmodel project [#^ (Vec 11) camera #^ (Vec 3) point]
  (let [r [(get camera 0) (get camera 1) (get camera 2)]
        v [(- (get point 0) (get camera 3)) (- (get point 1) (get camera 4)) (- (get point 2) (get camera 5))]
        at (rotate r v)
        x (/ (get at 0) (get at 2))
        y (/ (get at 1) (get at 2))
        q (+ (* x x) (* y y))
        d (+ 1.0 (* (get camera 9) q) (* (get camera 10) q q))
        f (get camera 6)]
    [(+ (* f d x) (get camera 7)) (+ (* f d y) (get camera 8))]))

(defmodel residual [camera point w feature]
  (map (fn [seen wanted] (* w (- seen wanted))) (project camera point) feature))

(defmodel bundle [#^ (Mat c 11) cameras #^ (Mat n 3) points #^ (Vec m) weights
                  #^ (Mat m 2) features #^ (Arr Int m) seen-by #^ (Arr Int m) point-of]
  "The residuals, and the weights'."
  #((build (len weights)
      (fn [o] (residual (get cameras (get seen-by o)) (get points (get point-of o)) (get weights o) (get features o))))
    (map (fn [w] (- 1.0 (* w w))) weights)))

(defmodel bundle-blocks [#^ (Mat c 11) cameras #^ (Mat n 3) points #^ (Vec m) weights
                         #^ (Mat m 2) features #^ (Arr Int m) seen-by #^ (Arr Int m) point-of]
  "The sparse Jacobian: for each observation its 2 x 15 block (by camera, point and weight), and the weights' diagonal."
  #((build (len weights)
      (fn [o]
        (let [camera (get cameras (get seen-by o))
              point (get points (get point-of o))]
          ((jacobian (fn [p]
                       (residual (build 11 (fn [j] (get p j))) (build 3 (fn [j] (get p (+ 11 j)))) (get p 14)
                                 (get features o))))
           (build 15 (fn [j] (cond (< j 11) (get camera j) (< j 14) (get point (- j 11)) True (get weights o))))))))
    (map (fn [w] ((grad (fn [w] (- 1.0 (* w w)))) w)) weights)))
