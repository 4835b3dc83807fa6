"Bundle adjustment: cameras, points and lens refined together, with sparse Jacobians derived by hyad.

Markers say where a film camera saw some points. The model says where it should have: turn and move a point
into the camera's frame, divide by the depth, bend by the lens. hyad derives the Jacobian of all residuals, a
sparse matrix of which each marker's two rows know one camera, one point and the lens, and compiles it to C;
Levenberg-Marquardt steps, the points eliminated (Schur), do the rest.

    hyad run examples/bundle_adjustment.hy               a small made-up scene, in seconds
    hyad run examples/bundle_adjustment.hy -- FILE       a libmv problem: camera tracking of a film

The focal length and radial distortion k1 k2 are refined, or what --lens NAMES says; --help lists all. With
hyad[plot] installed it draws residuals, points and cameras before and after: into bundle.png, or where --plot
FILE says.

A libmv file is little-endian: a byte v, a byte P (markers in pixels) or N (normalised: the lens is taken out),
8 float32 of the lens (focal length, principal point x y, radial k1 k2 k3, tangential p1 p2), the cameras
(count; image, 9 float32 of rotation by columns, 3 of translation), the points (count; track, 3 float32) and the
markers (count; image, track, 2 float32); counts and numbers are int32."

(import argparse)
(import importlib.util)
(import pathlib [Path])
(import sys)
(import time)

(import hyad)
(import numpy :as np)
(import scipy.linalg [cho-factor cho-solve LinAlgError])
(import scipy.sparse [bsr-array diags-array])
(import scipy.spatial.transform [Rotation])
(require hyad.macros [defmodel])


;;; The model ---------------------------------------------------------------------------------------

(defmodel cross [a b]
  "the vector product"
  [(- (* (get a 1) (get b 2)) (* (get a 2) (get b 1)))
   (- (* (get a 2) (get b 0)) (* (get a 0) (get b 2)))
   (- (* (get a 0) (get b 1)) (* (get a 1) (get b 0)))])

(defmodel rotate [r v]
  "v turned about the axis r by the angle |r| (Rodrigues)"
  (let [square (dot r r)]
    (if (= square 0.0)
      (map + v (cross r v))
      (let [angle (sqrt square)
            axis (map (fn [a] (/ a angle)) r)
            c (cos angle)
            s (sin angle)
            along (* (- 1.0 c) (dot axis v))]
        (map (fn [v w a] (+ (* c v) (* s w) (* along a)))
             v (cross axis v) axis)))))

(defmodel bend [lens x y]
  "Brown's lens: radial and tangential distortion, in pixels."
  (let [[f px py k1 k2 k3 p1 p2] lens
        q (+ (* x x) (* y y))
        d (+ 1.0 (* q (+ k1 (* q (+ k2 (* q k3))))))]
    [(+ px (* f (+ (* d x) (* 2.0 p1 x y) (* p2 (+ q (* 2.0 x x))))))
     (+ py (* f (+ (* d y) (* 2.0 p2 x y) (* p1 (+ q (* 2.0 y y))))))]))

(defmodel project [lens camera point]
  "Where a camera (rotation 3, translation 3) sees a point."
  (let [[r1 r2 r3 t1 t2 t3] camera
        [x y z] (map + (rotate [r1 r2 r3] point) [t1 t2 t3])]
    (bend lens (/ x z) (/ y z))))

(defmodel residuals [#^ (Vec 8) lens  #^ (Mat cameras 6) poses  #^ (Mat points 3) places
                     #^ (Arr Int n) camera  #^ (Arr Int n) point  #^ (Mat n 2) markers]
  "For each marker, how far from it its camera should have seen its point."
  (build (len camera)
    (fn [i]
      (map - (project lens (get poses (get camera i)) (get places (get point i)))
             (get markers i)))))


;;; Problems ----------------------------------------------------------------------------------------

(setv LENS ["f" "px" "py" "k1" "k2" "k3" "p1" "p2"])

(defclass Problem []
  "What is refined: the numbers `free` of the `lens`, `poses` of cameras, `places` of points; and what is given: for
  each marker its `camera`, its `point` and where it is."

  (defn __init__ [self lens poses places camera point markers free]
    (setv self.lens lens  self.poses poses  self.places places
          self.camera camera  self.point point  self.markers markers  self.free free))

  (defn args [self]
    #(self.lens self.poses self.places self.camera self.point self.markers))

  (defn error [self]
    "The root of the mean squared distance between markers and model, in pixels."
    (float (np.sqrt (/ (np.sum (** (residuals #* (.args self)) 2)) (max 1 (len self.markers))))))

  (defn order [self]
    "Poses and places, the fewer numbers first: the others are the cheaper to eliminate."
    (if (< self.poses.size self.places.size) #("poses" "places") #("places" "poses")))

  (defn blocks [self]
    "How many unknowns come before those to eliminate, and how many of these are a block."
    (setv [few many] (lfor name (.order self) (getattr self name)))
    #((+ (len self.free) few.size) (get many.shape 1)))

  (defn columns [self]
    "The columns of the Jacobian that are refined: all but those of numbers of the lens that stay."
    (np.concatenate [self.free (np.arange 8 (+ 8 self.poses.size self.places.size))]))

  (defn moved [self step]
    "The problem after a step of all that is refined, in the order of the columns."
    (setv made (Problem (.copy self.lens) self.poses self.places self.camera self.point self.markers self.free)
          at (len self.free))
    (setv (get made.lens self.free) (+ (get self.lens self.free) (cut step at)))
    (for [name (.order self)]
      (setv old (getattr self name))
      (setattr made name (+ old (.reshape (cut step at (+ at old.size)) old.shape)))
      (+= at old.size))
    made))

(defn numbers [data kind count at]
  "So many records of a file, from a byte on."
  (when (> (+ at (* count (. (np.dtype kind) itemsize))) (len data))
    (raise (ValueError f"it ends too early, after {(len data)} bytes")))
  (np.frombuffer data kind count at))

(defn records [data at #* fields]
  "A count and so many records of a libmv file; and where they end."
  (setv kind (np.dtype (list fields))
        count (int (get (numbers data "<i4" 1 at) 0)))
  (when (< count 0)
    (raise (ValueError "a count is negative")))
  #((numbers data kind count (+ at 4)) (+ at 4 (* count kind.itemsize))))

(defn places-of [names wanted what]
  "For each name its place among `names`; raises ValueError for one that is not there."
  (setv order (np.argsort names :kind "stable")
        at (np.minimum (np.searchsorted names wanted :sorter order) (max 0 (- (len names) 1)))
        found (if (len names) (get order at) (np.zeros-like at)))
  (when (or (and (len wanted) (not (len names))) (np.any (!= (get names found) wanted)))
    (raise (ValueError f"a marker is of {what} that is not in the file")))
  (.astype found np.int64))

(defn read-libmv [path free]
  "The problem in a libmv file. Raises ValueError for another file."
  (setv data (.read-bytes (Path path)))
  (when (not-in (cut data 2) #(b"vP" b"vN"))
    (raise (ValueError "it does not start as a libmv problem does, with vP or vN")))
  (setv lens (.astype (numbers data "<f4" 8 2) float)
        [cameras at] (records data 34 #("image" "<i4") #("turn" "<f4" #(3 3)) #("move" "<f4" 3))
        [points at] (records data at #("track" "<i4") #("place" "<f4" 3))
        [markers at] (records data at #("image" "<i4") #("track" "<i4") #("seen" "<f4" 2))
        turn (.transpose (.astype (get cameras "turn") float) 0 2 1)    ; the file has columns
        poses (np.hstack [(if (len cameras) (.as-rotvec (Rotation.from-matrix turn)) (np.zeros #(0 3)))
                          (get cameras "move")])
        seen (.astype (get markers "seen") float)
        pixels (= (get data 1) (ord "P")))
  (when (not (len markers))
    (raise (ValueError "it has no markers")))
  (Problem (if pixels lens (np.array [(get lens 0) 0 0 0 0 0 0 0]))     ; normalised: a pinhole, in pixels
           poses (.astype (get points "place") float)
           (places-of (get cameras "image") (get markers "image") "an image")
           (places-of (get points "track") (get markers "track") "a track")
           (if pixels seen (* (get lens 0) seen))
           (if pixels free (cut free 0))))

(defn made-up [free [cameras 12] [points 120] [noise 0.3] [seed 1]]
  "A scene seen from an arc, with noise in its markers; the problem starts from a rough guess of it."
  (setv rng (np.random.default-rng seed)
        angles (np.linspace -0.5 0.5 cameras)
        poses (np.stack [(* 0 angles) angles (* 0 angles) (* -6 (np.sin angles)) (* 0 angles)
                         (- 6 (* 6 (np.cos angles)))] 1)
        places (+ (* (.uniform rng -1 1 #(points 3)) [3 2 1.5]) [0 0 6])
        [camera point] (.reshape (np.indices #(cameras points)) 2 -1)
        shown (< (.uniform rng :size (len camera)) 0.7)
        [camera point] [(get camera shown) (get point shown)]
        truth (Problem (np.array [900.0 640 360 -0.12 0.03 0 0.001 -0.001]) poses places camera point
                       (np.zeros #((len camera) 2)) free)
        markers (+ (residuals #* (.args truth)) (.normal rng 0 noise #((len camera) 2)))
        rough (fn [a by] (+ a (.normal rng 0 by a.shape))))
  (Problem (np.array [850.0 640 360 0 0 0 0 0]) (rough poses 0.01) (rough places 0.1) camera point markers free))


;;; Levenberg-Marquardt ------------------------------------------------------------------------------

(defn step-of [jacobian r size damping]
  "The step d with (J'J + damping diag(J'J)) d = -J'r, or None where that fails.

  The last unknowns, blocks of `size` (cameras, or points) of which no marker knows two, are eliminated: J'J has
  a block of its own for each, and small blocks are quickly inverted (Schur's complement)."
  (setv [n size] size
        A (cut jacobian.T n)  B (cut jacobian.T n None)
        scale (fn [M] (diags-array (* damping (np.maximum (.diagonal M) 1e-9))))
        [U W V] [(@ A A.T) (@ A B.T) (@ B B.T)]
        U (+ U (scale U))
        V (.tobsr (+ V (scale V)) :blocksize #(size size))
        [a b] [(@ A r) (@ B r)])
  (try
    (setv inverse (bsr-array #((np.linalg.inv V.data) V.indices V.indptr) :shape V.shape)
          WV (@ W inverse)
          first (cho-solve (cho-factor (.toarray (- U (@ WV W.T)))) (- (@ WV b) a)))
    (np.concatenate [first (- (@ inverse (+ b (@ W.T first))))])
    (except [LinAlgError] None)))

(defn refine [problem steps [tolerance 1e-6]]
  "Yields the problem and its error, first as it is and then after each step."
  (setv jacobian (hyad.sparse-jacobian residuals :wrt (+ #("lens") (.order problem)))
        columns (.columns problem)
        error (.error problem)
        damping 1e-3)
  (yield #(problem error))
  (for [_ (range steps)]
    (setv J (get (jacobian #* (.args problem)) #((slice None) columns))
          r (.ravel (residuals #* (.args problem)))
          before error
          harder 2)
    (while (and (= error before) (< damping 1e10))     ; until a step makes it better
      (setv step (step-of J r (.blocks problem) damping)
            tried (when (is-not step None) (.moved problem step))
            found (if tried (.error tried) np.inf))
      (if (< found error)
        (setv promised (- (@ r r) (np.sum (** (+ r (@ J step)) 2)))
              kept (/ (* (- (** error 2) (** found 2)) (len problem.markers)) promised)
              damping (max 1e-12 (* damping (max 0.1 (- 1 (** (- (* 2 kept) 1) 3)))))
              problem tried
              error found)
        (setv damping (* damping harder)  harder (* 2 harder))))
    (when (< error before)
      (yield #(problem error)))
    (when (<= (- before error) (* tolerance before))
      (return))))


;;; Showing ------------------------------------------------------------------------------------------

(defn bar [part [width 30]]
  (setv filled (round (* width (min 1 part))))
  (+ "[" (* "#" filled) (* "." (- width filled)) "]"))

(defn with-progress [steps total]
  "The steps one by one, with a bar on a terminal's standard error while the next is computed."
  (setv shown (.isatty sys.stderr))
  (for [[done step] (enumerate steps)]
    (when shown
      (print (+ "\r" (* " " 50) "\r") :end "" :file sys.stderr :flush True))
    (yield step)
    (when (and shown (< done total))
      (print (.format "\r{} step {} of {} or fewer" (bar (/ (+ done 1) total)) (+ done 1) total)
             :end "" :file sys.stderr :flush True)))
  (when shown
    (print (+ "\r" (* " " 50) "\r") :end "" :file sys.stderr :flush True)))

(defn centres [problem]
  "Where the cameras stand."
  (setv [turn move] (np.split problem.poses 2 1))
  (- (.apply (.inv (Rotation.from-rotvec turn)) move)))

(defn draw [before after path]
  "Residuals on the image, before and after, and the scene from above, into an image file."
  (import matplotlib)
  (.use matplotlib "agg")
  (import matplotlib [pyplot :as plt])
  (setv [figure axes] (plt.subplots 1 3 :figsize #(15 4.6) :layout "constrained"))
  (for [[axis problem title] (zip axes [before after] ["before" "after"])]
    (setv some (slice None None (+ 1 (// (len problem.markers) 3000)))    ; as many arrows can be told apart
          r (get (residuals #* (.args problem)) some)
          [x y] (. (get problem.markers some) T)
          reach (* 0.05 (max (np.ptp x) (np.ptp y))))
    (when (is problem before)    ; one scale, so that the two can be compared
      (setv magnified (/ reach (max 1e-12 (np.quantile (np.hypot #* r.T) 0.95)))))
    (.quiver axis x y #* (* magnified r.T) :angles "xy" :scale-units "xy" :scale 1 :width 0.002 :color "C3")
    (.set-aspect axis "equal")
    (.invert-yaxis axis)
    (.set-title axis (.format "{}: {:.3f} pixels, residuals x {:.3g}" title (.error problem) magnified)
                :fontsize 10))
  (setv axis (get axes 2))
  (for [[problem colour label] [#(before "0.6" "before") #(after "C0" "after")]]
    (setv [x _ z] problem.places.T  [cx _ cz] (. (centres problem) T))
    (.plot axis x z "." :color colour :markersize 3 :label f"points {label}")
    (.plot axis cx cz "-+" :color colour :markersize 5 :linewidth 0.8 :label f"cameras {label}"))
  (.set-aspect axis "equal" :adjustable "datalim")
  (.legend axis :fontsize 8)
  (.set-title axis "from above" :fontsize 10)
  (.savefig figure path :dpi 120)
  (.close plt figure))

(defn lens-line [problem]
  (.format "focal length {:.2f}, principal point {:.1f} {:.1f}, k {:.4g} {:.4g} {:.4g}, p {:.4g} {:.4g}"
           #* problem.lens))


;;; The command --------------------------------------------------------------------------------------

(defn options [argv]
  (setv parser (argparse.ArgumentParser :prog "hyad run examples/bundle_adjustment.hy --"
                 :description "Refine cameras, points and lens of a libmv problem with hyad's sparse Jacobians."))
  (.add-argument parser "file" :nargs "?" :type Path :metavar "FILE"
    :help "a libmv problem; without one a small scene is made up")
  (.add-argument parser "--steps" :type int :default 50 :metavar "N" :help "at most so many steps (50)")
  (.add-argument parser "--plot" :type Path :metavar "FILE"
    :help "draw before and after into FILE (with matplotlib installed, bundle.png by default)")
  (.add-argument parser "--lens" :default "f k1 k2" :metavar "NAMES"
    :help (.format "the numbers of the lens to refine, of {} (f k1 k2)" (.join " " LENS)))
  (setv chosen (.parse-args parser argv))
  (try
    (setv free (np.array (sorted (map LENS.index (set (.split chosen.lens)))) int))
    (except [ValueError]
      (.error parser (.format "--lens {!r}: the numbers of a lens are {}" chosen.lens (.join " " LENS)))))
  (try
    #(chosen (if chosen.file (read-libmv chosen.file free) (made-up free)))
    (except [error OSError]
      (.error parser f"cannot read {chosen.file}: {error.strerror}"))
    (except [error ValueError]
      (.error parser f"{chosen.file} is no libmv problem: {error}"))))

(defn main [[argv None]]
  "Refine, print the error after each step, draw; 0 if the error has become smaller."
  (setv [chosen problem] (options argv)
        began (time.perf-counter))
  (print (.format "{} markers of {} points in {} images; {}" (len problem.markers) (len problem.places)
                  (len problem.poses)
                  (if (len problem.free) (+ "lens: " (lens-line problem)) "the lens stays")))
  (setv first problem)
  (for [[n [found error]] (enumerate (with-progress (refine problem chosen.steps) chosen.steps))]
    (when (= n 0)
      (setv start error))
    (print (.format "step {:>3}  {:>14.6f} pixels" n error))
    (setv problem found))
  (when (= n chosen.steps)
    (print (.format "Stopped after {} steps: --steps takes more." n)))
  (when (len problem.free)
    (print (+ "lens: " (lens-line problem))))
  (print (.format "{:.4f} pixels before, {:.4f} after, in {:.1f} s." start error (- (time.perf-counter) began)))
  (setv plot (or chosen.plot (when (importlib.util.find-spec "matplotlib") (Path "bundle.png"))))
  (when plot
    (draw first problem plot)
    (print (.format "Before and after are drawn in {}." plot)))
  (if (<= error start) 0 1))

(when (= __name__ "__main__")
  (sys.exit (main)))
