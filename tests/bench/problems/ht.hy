;; Hand tracking: the distances of measured points to a hand's mesh in a pose. A pose is a rotation of the whole hand
;; (axis times angle), a translation, and four angles for each finger: its first joint turns about two axes, the next two
;; about one. Bones 0 and 1 are wrist and palm, then come four for each finger, the last a tip that does not turn.
;; A rigid transform is 3 x 4: a rotation, and in the last column a translation.

(defmodel rotation [x y z]
  "Euler angles: about x, then y, then z."
  (let [cx (cos x) sx (sin x) cy (cos y) sy (sin y) cz (cos z) sz (sin z)]
    [[(* cy cz) (- (* sx sy cz) (* cx sz)) (+ (* cx sy cz) (* sx sz))]
     [(* cy sz) (+ (* sx sy sz) (* cx cz)) (- (* cx sy sz) (* sx cz))]
     [(- sy) (* sx cy) (* cx cy)]]))

(defmodel axis-rotation [r]
  "The matrix of a turn about the axis r by the angle |r| (Rodrigues)."
  (let [tt (dot r r)]
    (if (= tt 0.0)
      [[1.0 (- (get r 2)) (get r 1)]
       [(get r 2) 1.0 (- (get r 0))]
       [(- (get r 1)) (get r 0) 1.0]]
      (let [t (sqrt tt)
            x (/ (get r 0) t)
            y (/ (get r 1) t)
            z (/ (get r 2) t)
            c (cos t)
            s (sin t)
            d (- 1.0 c)]
        [[(+ c (* d x x)) (- (* d x y) (* s z)) (+ (* d x z) (* s y))]
         [(+ (* d x y) (* s z)) (+ c (* d y y)) (- (* d y z) (* s x))]
         [(- (* d x z) (* s y)) (+ (* d y z) (* s x)) (+ c (* d z z))]]))))

(defmodel joint [theta bone]
  "A bone's own rotation."
  (let [first (+ 6 (* 4 (// (- bone 2) 4)))
        j (% (- bone 2) 4)]
    (cond
      (or (< bone 2) (= j 3)) (rotation 0.0 0.0 0.0)
      (= j 0) (rotation (get theta first) (get theta (+ first 1)) 0.0)
      True (rotation (get theta (+ first 1 j)) 0.0 0.0))))

(defmodel turned [m r]
  "A rigid transform after a rotation."
  (build [3 4]
    (fn [i j]
      (if (= j 3)
        (get m i 3)
        (+ (* (get m i 0) (get r 0 j)) (* (get m i 1) (get r 1 j)) (* (get m i 2) (get r 2 j)))))))

(defmodel compose [a b]
  "One rigid transform after another."
  (build [3 4]
    (fn [i j]
      (+ (* (get a i 0) (get b 0 j)) (* (get a i 1) (get b 1 j)) (* (get a i 2) (get b 2 j))
         (if (= j 3) (get a i 3) 0.0)))))

(defmodel bones [theta parents relatives inverses]
  "What the pose does to what is fixed to each bone: a bone's place is relative to its parent's, which comes before it."
  (let [absolutes
          (ifold (fn [done b]
                   (let [own (turned (get relatives b) (joint theta b))
                         parent (get parents b)]
                     (update done b (if (< parent 0) own (compose (get done parent) own)))))
                 (build [(len relatives) 3 4] (fn [b i j] 0.0))
                 (len relatives))]
    (map compose absolutes inverses)))

(defmodel moved [row p]
  "One coordinate of a point after a rigid transform."
  (+ (* (get row 0) (get p 0)) (* (get row 1) (get p 1)) (* (get row 2) (get p 2)) (get row 3)))

(defmodel skinned [transforms weights base]
  "The vertices of the mesh follow the bones by their weights."
  (ifold (fn [skin b]
           (map (fn [q w p] (map (fn [qi row] (+ qi (* (get w b) (moved row p)))) q (get transforms b)))
                skin weights base))
         (map (fn [p] [0.0 0.0 0.0]) base)
         (len transforms)))

(defmodel placed [r theta p]
  "The whole hand's rotation and translation."
  (build 3
    (fn [i]
      (+ (* (get r i 0) (get p 0)) (* (get r i 1) (get p 1)) (* (get r i 2) (get p 2)) (get theta (+ 3 i))))))

(defmodel hand [theta parents relatives inverses weights base]
  "The mesh in a pose."
  (let [transforms (bones theta parents relatives inverses)
        r (axis-rotation [(get theta 0) (get theta 1) (get theta 2)])]
    (map (fn [q] (placed r theta q)) (skinned transforms weights base))))

(defmodel ht [#^ (Vec 26) theta #^ (Arr Int b) parents #^ (Arr Real b 3 4) relatives #^ (Arr Real b 3 4) inverses
              #^ (Mat v b) weights #^ (Mat v 3) base #^ (Mat c 3) points #^ (Arr Int c) nearest]
  "Each point minus the vertex that it belongs to."
  (let [vertices (hand theta parents relatives inverses weights base)]
    (map (fn [p k] (map - p (get vertices k))) points nearest)))

(defmodel on-triangle [a b c u]
  "The point of a triangle with barycentric coordinates u."
  (map (fn [a b c] (+ (* (get u 0) a) (* (get u 1) b) (* (- 1.0 (get u 0) (get u 1)) c))) a b c))

(defmodel ht-surface [#^ (Vec 26) theta #^ (Mat c 2) us #^ (Arr Int b) parents #^ (Arr Real b 3 4) relatives
                      #^ (Arr Real b 3 4) inverses #^ (Mat v b) weights #^ (Mat v 3) base #^ (Mat c 3) points
                      #^ (Arr Int c) nearest #^ (Arr Int f 3) faces]
  "Each point minus its place on a triangle of the mesh."
  (let [vertices (hand theta parents relatives inverses weights base)]
    (map (fn [p u k]
           (map - p (on-triangle (get vertices (get faces k 0)) (get vertices (get faces k 1))
                                 (get vertices (get faces k 2)) u)))
         points us nearest)))

(defmodel ht-surface-jacobian [#^ (Vec 26) theta #^ (Mat c 2) us #^ (Arr Int b) parents #^ (Arr Real b 3 4) relatives
                               #^ (Arr Real b 3 4) inverses #^ (Mat v b) weights #^ (Mat v 3) base
                               #^ (Mat c 3) points #^ (Arr Int c) nearest #^ (Arr Int f 3) faces]
  "The derivatives of each point's distance by the pose, and by its own two coordinates."
  (let [vertices (hand theta parents relatives inverses weights base)]
    #((jacobian (fn [theta]
                  (ht-surface theta us parents relatives inverses weights base points nearest faces))
                theta)
      (map (fn [p u k]
             (jacobian (fn [u]
                         (map - p (on-triangle (get vertices (get faces k 0)) (get vertices (get faces k 1))
                                               (get vertices (get faces k 2)) u)))
                       u))
           points us nearest))))
