"The Jacobian of a bundle adjustment over a million observations, on the CPU or on a GPU.

An observation says where a camera saw a point. Its two residuals depend on the six numbers of the camera's pose and
the three of the point's place: its part of the sparse Jacobian is a dense 2 x 9 block, and all blocks are computed by
the one model below, which picks cameras and points from arrays. What a block is made of, the camera's model, is that
of bundle_adjustment.hy; hyad derives and compiles the rest, for several threads or for a GPU.

    hyad run examples/bundle_jacobian.hy                          100,000 observations on the CPU
    hyad run examples/bundle_jacobian.hy -- --gpu                 a million on a GPU (hyad[cuda])
    hyad run examples/bundle_jacobian.hy -- --threads 8 --observations 1000000"

(import argparse)
(import pathlib [Path])
(import sys)
(import time)

(import hyad)
(import numpy :as np)
(require hyad.macros [defmodel])

(setv project (. (hyad.load (/ (. (Path __file__) parent) "bundle_adjustment.hy")) project))


(defmodel blocks [#^ (Vec 8) lens  #^ (Mat cameras 6) poses  #^ (Mat points 3) places
                  #^ (Arr Int n) camera  #^ (Arr Int n) point]
  "For each observation the derivative of where it is seen, by the camera's pose and by the point's place."
  (build (len camera)
    (fn [i]
      (let [pose (get poses (get camera i))
            place (get places (get point i))]
        ((jacobian (fn [u] (project lens (build 6 (fn [k] (get u k))) (build 3 (fn [k] (get u (+ 6 k)))))))
         (build 9 (fn [k] (if (< k 6) (get pose k) (get place (- k 6))))))))))


(defn made-up [observations [cameras 1000]]
  "A lens, poses, places, and who saw what: points in front of cameras that look at them from all around."
  (setv rng (np.random.default-rng 1)
        points (max 1 (// observations 10))
        lens (np.array [1000.0 640.0 360.0 -0.05 0.01 0.0 0.0 0.0])
        poses (np.hstack [(.normal rng :scale 0.1 :size #(cameras 3)) (.normal rng :scale 0.5 :size #(cameras 3))])
        places (.normal rng :size #(points 3)))
  (+= (get poses #((slice None) 5)) 10.0)
  [lens poses places (.integers rng cameras :size observations) (.integers rng points :size observations)])

(defn check [args found]
  "The largest error of some blocks, against central differences of the projection, relative to the largest entry."
  (setv [lens poses places camera point] args
        worst 0.0)
  (for [i (np.linspace 0 (- (len camera) 1) 20 :dtype int)]
    (setv pose (get poses (get camera i))
          place (get places (get point i))
          u (np.concatenate [pose place])
          columns [])
    (for [k (range 9)]
      (setv step (np.zeros 9)
            (get step k) 1e-5
            [ahead behind] (lfor v [(+ u step) (- u step)] (project lens (get v (slice 6)) (get v (slice 6 9)))))
      (.append columns (/ (- ahead behind) 2e-5)))
    (setv wanted (np.stack columns 1)
          worst (max worst (/ (np.max (np.abs (- (get found i) wanted))) (np.max (np.abs wanted))))))
  worst)

(defn main [[arguments None]]
  (setv parser (argparse.ArgumentParser :prog "bundle_jacobian.hy" :description "A Jacobian over many observations."))
  (.add-argument parser "--observations" :type int :help "how many (100,000; on a GPU a million)")
  (.add-argument parser "--gpu" :action "store_true" :help "run on a GPU")
  (.add-argument parser "--threads" :type int :default 1 :help "of the CPU")
  (.add-argument parser "--repeat" :type int :default 5 :help "times that it is computed; the fastest counts")
  (setv given (.parse-args parser arguments)
        n (or given.observations (if given.gpu 1000000 100000)))
  (when (or (< n 1) (< given.threads 1) (< given.repeat 1))
    (.error parser "numbers of observations, threads and repetitions are at least 1"))
  (setv args (made-up n)
        f (if given.gpu
              (hyad.compile blocks "cuda" :args args)
              (hyad.compile blocks :args args :threads given.threads))
        here args
        done (fn [])
        seconds [])
  (when given.gpu                                            ; the arrays are sent once, the blocks stay there
    (import pycuda.autoprimaryctx)
    (import pycuda.driver [Context])
    (import pycuda.gpuarray [to-gpu])
    (setv here (list (map to-gpu args))
          done Context.synchronize))
  (f #* here)                                                ; compiles
  (done)
  (for [_ (range given.repeat)]
    (setv started (time.perf-counter)
          found (f #* here))
    (done)
    (.append seconds (- (time.perf-counter) started)))
  (setv found (if given.gpu (.get found) found)
        best (min seconds)
        error (check args found))
  (print f"{n} observations, blocks of 2 x 9, on {(if given.gpu "a GPU" "the CPU")}: {(* 1e3 best) :.2f} ms,"
         f"{(/ n best 1e6) :.0f} million blocks a second, {(/ found.nbytes best 1e9) :.1f} GB/s written")
  (print f"largest error against differences: {error :.1e}")
  (when (> error 1e-6)
    (sys.exit "the blocks are wrong")))

(when (= __name__ "__main__")
  (main))
