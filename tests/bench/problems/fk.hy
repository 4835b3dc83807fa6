;; Forward kinematics of the UR5 arm, by its Denavit-Hartenberg table.

(defmodel blend [c u s v] "c u + s v"
  (map (fn [a b] (+ (* c a) (* s b))) u v))

(defmodel slide [p d v] "the point at a distance d from p along v"
  (map (fn [a b] (+ a (* d b))) p v))

(defmodel :fast-math fk [#^ (Vec 6) q]
  "The tool's rotation, row by row, and its position, from the six joint angles."
  (let [c1 (cos (get q 0))  s1 (sin (get q 0))
        c2 (cos (get q 1))  s2 (sin (get q 1))
        c3 (cos (get q 2))  s3 (sin (get q 2))
        c4 (cos (get q 3))  s4 (sin (get q 3))
        c5 (cos (get q 4))  s5 (sin (get q 4))
        c6 (cos (get q 5))  s6 (sin (get q 5))
        ;; joint 1: the base, twisted by 90 degrees
        x1 [c1 s1 0.0]
        y1 [0.0 0.0 1.0]
        z1 [s1 (- c1) 0.0]
        p1 [0.0 0.0 0.089159]
        ;; joints 2, 3 and 4: parallel axes; the last is twisted by 90 degrees
        x2 (blend c2 x1 s2 y1)
        y2 (blend c2 y1 (- s2) x1)
        p2 (slide p1 -0.425 x2)
        x3 (blend c3 x2 s3 y2)
        y3 (blend c3 y2 (- s3) x2)
        p3 (slide p2 -0.39225 x3)
        x4 (blend c4 x3 s4 y3)
        z4 (blend s4 x3 (- c4) y3)
        p4 (slide p3 0.10915 z1)
        ;; joint 5: twisted by -90 degrees
        x5 (blend c5 x4 s5 z1)
        z5 (blend c5 z1 (- s5) x4)
        p5 (slide p4 0.09465 z4)
        ;; joint 6: the tool
        x6 (blend c6 x5 (- s6) z4)
        y6 (blend (- s6) x5 (- c6) z4)
        p6 (slide p5 0.0823 z5)]
    [(get x6 0) (get y6 0) (get z5 0)
     (get x6 1) (get y6 1) (get z5 1)
     (get x6 2) (get y6 2) (get z5 2)
     (get p6 0) (get p6 1) (get p6 2)]))
