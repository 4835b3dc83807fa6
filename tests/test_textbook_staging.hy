"Lantern section 4: the paper's programs, printed as the paper prints them."

(import
  math
  pytest
  hypothesis [given settings])
(import
  textbook-programs [programs function run slope])
(import
  hyad.macros.textbook [FUN gradR IF LOOP Node NumC staged-grad TREE WHILE
                        exp leaves reset sin])

(defn close [x]
  (pytest.approx x :rel 1e-9 :abs 1e-12))

(defn numbers [program]
  "The program as Hy evaluates it, on Python's functions."
  (run program #** {"sin" math.sin  "cos" math.cos  "exp" math.exp}))

(defn test-straight-line-code []
  "4.1: d0 = ref 0; v1 = in * in; d1 = ref 0; d1 := 1.0; d0 += !d1 * in, twice."
  (setv program (staged-grad (fn [x] (* x x))))
  (assert (= program
             '(fn [in]
                (let [d0 (ref 0.0)]
                  (let [v1 (* in in)  d1 (ref 0.0)]
                    (set! d1 1.0)
                    (add! d0 (* in (deref d1)))
                    (add! d0 (* in (deref d1))))
                  (deref d0)))))
  (assert (= ((numbers program) 3.0) 6.0)))

(defn test-if []
  "4.2, its branches the other way round in the second program."
  (setv program (staged-grad (fn [x] (IF (> x 0.0)
                                         (fn [] (* -1.0 x x))
                                         (fn [] (* x x))))))
  (assert (= program
             '(fn [in]
                (let [d0 (ref 0.0)]
                  (let [k1 (fn [x1 dx1] (set! dx1 1.0))]
                    (if (> in 0.0)
                        (let [v1 (* in -1.0)  d1 (ref 0.0)]
                          (let [v2 (* v1 in)  d2 (ref 0.0)]
                            (k1 v2 d2)
                            (add! d1 (* in (deref d2)))
                            (add! d0 (* v1 (deref d2))))
                          (add! d0 (* -1.0 (deref d1))))
                        (let [v3 (* in in)  d3 (ref 0.0)]
                          (k1 v3 d3)
                          (add! d0 (* in (deref d3)))
                          (add! d0 (* in (deref d3))))))
                  (deref d0)))))
  (for [x [-3.0 0.0 2.0]]
    (assert (= ((numbers program) x) (close (* -2 (abs x)))))))

(defn test-the-rest-of-a-branch-is-written-once []
  (setv program (staged-grad (fn [x]
    (setv y (IF (> x 1.0) (fn [] (* x 2.0)) (fn [] 3.0)))
    (sin (* y x)))))
  (assert (= (.count (list (leaves program)) 'sin) 1))
  (assert (= ((numbers program) 2.0) (close (* 8 (math.cos 8)))))
  (assert (= ((numbers program) 0.5) (close (* 3 (math.cos 1.5))))))

(defn test-while []
  "4.3: halve until no more than 1."
  (setv program (staged-grad (fn [x] (WHILE x (fn [t] (> t 1.0)) (fn [t] (* t 0.5))))))
  (assert (= program
             '(fn [in]
                (let [d0 (ref 0.0)]
                  (letrec [loop1 (fn [x1 dx1]
                                   (if (> x1 1.0)
                                       (let [v1 (* x1 0.5)  d1 (ref 0.0)]
                                         (loop1 v1 d1)
                                         (add! dx1 (* 0.5 (deref d1))))
                                       (set! dx1 1.0)))]
                    (loop1 in d0))
                  (deref d0)))))
  (for [[x slope] [[0.5 1.0] [1.5 0.5] [100.0 0.0078125]]]
    (assert (= ((numbers program) x) slope))))

(defn test-loop []
  (setv program (staged-grad (fn [x] (+ x (LOOP x 3 (fn [i t] (* t (sin x) (+ i 1)))))))
        f '(fn [x] (+ x (* x (sin x) 1 (sin x) 2 (sin x) 3))))
  (assert (= ((numbers program) 0.7) (close (slope f 0.7)))))

(setv tree (Node (Node None None 2.0) (Node None (Node None None 3.0) 0.5) 5.0))

(defn product [x]
  (TREE x 'tree (fn [l r v] (* l r v))))

(defn test-tree []
  "4.4 and Fig. 14: the product of a tree's values, an x for every empty one."
  (setv program (staged-grad product 'tree))
  (assert (= program
             '(fn [tree in]
                (let [d0 (ref 0.0)]
                  (letrec [k1 (fn [x1 dx1] (set! dx1 1.0))
                           f1 (fn [t1 k2]
                                (if (is-not t1 None)
                                    (let [k3 (fn [x3 dx3]
                                               (let [k4 (fn [x4 dx4]
                                                          (let [v1 (* x3 x4)  d1 (ref 0.0)]
                                                            (let [v2 (* v1 (. t1 value))  d2 (ref 0.0)]
                                                              (k2 v2 d2)
                                                              (add! d1 (* (. t1 value) (deref d2))))
                                                            (add! dx3 (* x4 (deref d1)))
                                                            (add! dx4 (* x3 (deref d1)))))]
                                                 (f1 (. t1 right) k4)))]
                                      (f1 (. t1 left) k3))
                                    (k2 in d0)))]
                    (f1 tree k1))
                  (deref d0)))))
  ;; 15 x^5
  (assert (= ((numbers program) tree 1.1) (close (* 15 5 (** 1.1 4)))))
  (assert (= ((numbers program) None 1.1) 1.0)))

(defn test-a-function-is-called-from-several-places []
  "Each call stands where the function's name is known."
  (setv program (staged-grad (fn [x]
          (setv f (FUN (fn [t] (IF `(is-not ~t None) (fn [] (* x (f `(. ~t left)))) (fn [] x)))))
          (IF (> x 1.0)
              (fn [] (f 'tree))
              (fn [] (+ (f 'tree) (f '(. tree right))))))
        'tree))
  (assert (= ((numbers program) tree 2.0) (close (* 3 4.0))))
  (assert (= ((numbers program) tree 0.5) (close (+ (* 3 0.25) 1.0)))))

(defn test-results-that-do-not-depend-on-x []
  (assert (= ((numbers (staged-grad (fn [x] 3.0))) 1.1) 0.0))
  (assert (= ((numbers (staged-grad (fn [x] x))) 1.1) 1.0))
  (assert (= ((numbers (staged-grad (fn [x] (IF (> x 0.0) (fn [] 2.0) (fn [] x))))) 1.1) 0.0)))

(defn test-the-quotient-and-functions []
  (setv f '(fn [x] (/ (exp (sin x)) (- (** x 3) (/ 2 x)))))
  (assert (= ((numbers (staged-grad (function f))) 0.7) (close (slope f 0.7)))))

(defn [(settings :max-examples 30) (given (programs :cells True :recursion False))]
      test-staged-programs-without-branches-agree [f]
  "What has no branch on a number can be staged as it is."
  (setv words (set (leaves f)))
  (when (not (& words #{'if 'case}))
    (assert (= ((numbers (staged-grad (function f))) 0.7) (close (slope f 0.7))))))
