"NIST's nonlinear regression problems, fitted with Jacobians derived by hyad and compiled to C.

Each problem is one expression: the expected response, in the parameters b1, b2, .. and the predictors, as
NIST prints it. hyad derives the Jacobian of the residuals and compiles it, scipy's Levenberg-Marquardt
solver fits the parameters from both of NIST's starting points, and the table counts the digits that agree
with the certified values.

    hyad run examples/nist.hy                         four problems, and one model stage by stage
    hyad run examples/nist.hy -- --all --data DIR     all 27, from NIST's .dat files in DIR

With hyad[plot] installed it draws the fits as well: into nist.png, or where --plot FILE says.

Data: National Institute of Standards and Technology, Statistical Reference Datasets,
https://www.itl.nist.gov/div898/strd/nls/nls_main.shtml; each file in examples/nist/ names its source."

(import argparse)
(import collections [Counter])
(import importlib.util)
(import itertools [zip-longest])
(import math [pi])
(import pathlib [Path])
(import re)
(import sys)
(import time)
(import unicodedata [combining])

(import hyad)
(import hyad.codegen [build])
(import numpy :as np)
(import scipy.optimize [least-squares])
(require hyad.macros [defmodel])


;;; The problems ------------------------------------------------------------------------------------

(setv PROBLEMS {})

(defmacro defproblem [name params expression]
  "Define the model `name` of one observation and, in PROBLEMS, it and the residuals of all observations.

  (defproblem line [b1 b2 x] (+ b1 (* b2 x))) defines
  (defmodel line [b1 b2 x] (+ b1 (* b2 x))) and
  (defmodel line-residuals [#^ (Vec 2) b x y] (map (fn [x y] (- (line (get b 0) (get b 1) x) y)) x y))."
  (setv bs (lfor p params :if (.startswith p "b") p)
        xs (lfor p params :if (.startswith p "x") p)
        n (len bs)
        residuals (hy.models.Symbol (+ name "-residuals")))
  `(do
     (defmodel ~name ~params ~expression)
     (defmodel ~residuals [#^ (Vec ~n) b ~@xs y]
       (map (fn [~@xs y] (- (~name ~@(lfor i (range n) `(get b ~i)) ~@xs) y)) ~@xs y))
     (setv (get PROBLEMS ~(str name)) #(~name ~residuals))))

(defproblem misra1a [b1 b2 x] (* b1 (- 1 (exp (* (- b2) x)))))
(defproblem misra1b [b1 b2 x] (* b1 (- 1 (** (+ 1 (/ (* b2 x) 2)) -2))))
(defproblem misra1c [b1 b2 x] (* b1 (- 1 (** (+ 1 (* 2 b2 x)) -0.5))))
(defproblem misra1d [b1 b2 x] (/ (* b1 b2 x) (+ 1 (* b2 x))))
(defproblem boxbod [b1 b2 x] (* b1 (- 1 (exp (* (- b2) x)))))
(defproblem danwood [b1 b2 x] (* b1 (** x b2)))
(defproblem chwirut1 [b1 b2 b3 x] (/ (exp (* (- b1) x)) (+ b2 (* b3 x))))
(defproblem chwirut2 [b1 b2 b3 x] (/ (exp (* (- b1) x)) (+ b2 (* b3 x))))
(defproblem bennett5 [b1 b2 b3 x] (* b1 (** (+ b2 x) (/ -1 b3))))
(defproblem eckerle4 [b1 b2 b3 x] (* (/ b1 b2) (exp (* -0.5 (** (/ (- x b3) b2) 2)))))
(defproblem mgh10 [b1 b2 b3 x] (* b1 (exp (/ b2 (+ x b3)))))
(defproblem rat42 [b1 b2 b3 x] (/ b1 (+ 1 (exp (- b2 (* b3 x))))))
(defproblem rat43 [b1 b2 b3 b4 x] (/ b1 (** (+ 1 (exp (- b2 (* b3 x)))) (/ 1 b4))))
(defproblem mgh09 [b1 b2 b3 b4 x] (/ (* b1 (+ (** x 2) (* x b2))) (+ (** x 2) (* x b3) b4)))
(defproblem roszman1 [b1 b2 b3 b4 x] (- b1 (* b2 x) (/ (atan (/ b3 (- x b4))) pi)))
(defproblem mgh17 [b1 b2 b3 b4 b5 x] (+ b1 (* b2 (exp (* (- x) b4))) (* b3 (exp (* (- x) b5)))))

(defproblem nelson [b1 b2 b3 x1 x2] (- b1 (* b2 x1 (exp (* (- b3) x2)))))   ; of log(y)

(defproblem kirby2 [b1 b2 b3 b4 b5 x]
  (/ (+ b1 (* b2 x) (* b3 (** x 2)))
     (+ 1 (* b4 x) (* b5 (** x 2)))))

(defproblem hahn1 [b1 b2 b3 b4 b5 b6 b7 x]
  (/ (+ b1 (* b2 x) (* b3 (** x 2)) (* b4 (** x 3)))
     (+ 1 (* b5 x) (* b6 (** x 2)) (* b7 (** x 3)))))

(defproblem thurber [b1 b2 b3 b4 b5 b6 b7 x]
  (/ (+ b1 (* b2 x) (* b3 (** x 2)) (* b4 (** x 3)))
     (+ 1 (* b5 x) (* b6 (** x 2)) (* b7 (** x 3)))))

(defproblem lanczos1 [b1 b2 b3 b4 b5 b6 x]
  (+ (* b1 (exp (* (- b2) x))) (* b3 (exp (* (- b4) x))) (* b5 (exp (* (- b6) x)))))

(defproblem lanczos2 [b1 b2 b3 b4 b5 b6 x]
  (+ (* b1 (exp (* (- b2) x))) (* b3 (exp (* (- b4) x))) (* b5 (exp (* (- b6) x)))))

(defproblem lanczos3 [b1 b2 b3 b4 b5 b6 x]
  (+ (* b1 (exp (* (- b2) x))) (* b3 (exp (* (- b4) x))) (* b5 (exp (* (- b6) x)))))

(defproblem gauss1 [b1 b2 b3 b4 b5 b6 b7 b8 x]
  (+ (* b1 (exp (* (- b2) x)))
     (* b3 (exp (- (/ (** (- x b4) 2) (** b5 2)))))
     (* b6 (exp (- (/ (** (- x b7) 2) (** b8 2)))))))

(defproblem gauss2 [b1 b2 b3 b4 b5 b6 b7 b8 x]
  (+ (* b1 (exp (* (- b2) x)))
     (* b3 (exp (- (/ (** (- x b4) 2) (** b5 2)))))
     (* b6 (exp (- (/ (** (- x b7) 2) (** b8 2)))))))

(defproblem gauss3 [b1 b2 b3 b4 b5 b6 b7 b8 x]
  (+ (* b1 (exp (* (- b2) x)))
     (* b3 (exp (- (/ (** (- x b4) 2) (** b5 2)))))
     (* b6 (exp (- (/ (** (- x b7) 2) (** b8 2)))))))

(defproblem enso [b1 b2 b3 b4 b5 b6 b7 b8 b9 x]
  (let [year (/ (* 2 pi x) 12)  el-nino (/ (* 2 pi x) b4)  southern (/ (* 2 pi x) b7)]
    (+ b1 (* b2 (cos year)) (* b3 (sin year))
       (* b5 (cos el-nino)) (* b6 (sin el-nino))
       (* b8 (cos southern)) (* b9 (sin southern)))))


;;; NIST's files ------------------------------------------------------------------------------------

(defclass Dataset []
  "One NIST file: `name`, `level` of difficulty, two `starts`, `certified` values, predictors `xs`, response `y`."

  (defn __init__ [self path]
    (setv text (.read-text (Path path))
          [header data] (re.split r"^Data: +y .*\n" text :maxsplit 1 :flags re.MULTILINE)
          rows (lfor row (re.findall r"^ *b\d+ *=(.*)$" header :flags re.MULTILINE)
                 (list (map float (.split row))))
          [y #* xs] (np.ascontiguousarray (np.loadtxt (.splitlines data) :unpack True)))
    (setv self.name (get (re.search r"Dataset Name: +(\w+)" header) 1)
          self.level (get (re.search r"(\w+) Level of Difficulty" header) 1)
          self.starts (list (map np.array (zip #* (lfor row rows (cut row 2)))))
          self.certified (np.array (lfor row rows (get row 2)))
          self.xs xs
          self.y (if (= self.name "Nelson") (np.log y) y))))


;;; Fitting and judging -----------------------------------------------------------------------------

(defn digits [value certified]
  "How many leading digits of each value agree with NIST's, which certifies 11: -log10 of the relative error."
  (with [_ (np.errstate :divide "ignore")]
    (np.clip (- (np.log10 (/ (abs (- value certified)) (abs certified)))) 0 11)))

(defn fit [residuals jacobian dataset start]
  "Fit the parameters from `start` by Levenberg-Marquardt; a scipy OptimizeResult.

  A parameter's unit is its starting value. (With the solver's own units, the columns of the Jacobian, the first
  step of BoxBOD from start 1 ends on the plateau exp(-b2 x) = 0, where no derivative leads anywhere.)"
  (least-squares residuals start :jac jacobian :args #(#* dataset.xs dataset.y) :method "lm"
                 :x-scale (abs start) :ftol 1e-15 :xtol 1e-15 :gtol 1e-15 :max-nfev 20000))

(defn compiled [function #* args]
  "The C code of a model for such arguments, and whether the C compiler ran for it or the disk cache had it."
  (setv entry (hyad.compile function :target "c" :args args))
  #(entry (if build.last.hit "loaded from the cache of compiled C" "compiled to C")))

(defclass Judged []
  "The fits of one problem from both starts: `fits`, and their `digits` per parameter."

  (defn __init__ [self dataset]
    (setv [self.model errors] (get PROBLEMS (.lower dataset.name))
          args #((get dataset.starts 0) #* dataset.xs dataset.y)
          began (time.perf-counter)
          [residuals from-residuals] (compiled errors #* args)
          [jacobian from-jacobian] (compiled (hyad.jacobian errors :wrt "b") #* args)
          self.seconds (- (time.perf-counter) began)
          self.origins [from-residuals from-jacobian]
          self.dataset dataset
          self.fits (lfor start dataset.starts (fit residuals jacobian dataset start))
          self.digits (lfor found self.fits (digits found.x dataset.certified))))

  (defn best [self]
    "The parameters of the fit with the smaller sum of squares."
    (. (min self.fits :key (fn [found] found.cost)) x))

  (defn __str__ [self]
    (.join "\n" (gfor [i [value certified #* agree]]
                      (enumerate (zip (.best self) self.dataset.certified #* self.digits))
                   (.format "{:<10}{:<9}b{:<2}{:>20.10E}{:>20.10E}{:>9.1f}{:>9.1f}"
                            #* (if i ["" ""] [self.dataset.name self.dataset.level])
                            (+ i 1) value certified #* agree)))))

(setv HEAD (.format "{:<10}{:<12}{:>20}{:>20}{:>9}{:>9}" "problem" "level" "fitted" "certified"
                   "digits 1" "digits 2"))

(defn verdict [judged]
  "What the fits are worth, in lines of text, and whether all agree to six digits."
  (setv runs (lfor j judged  [start [found agree]] (enumerate (zip j.fits j.digits) 1)
               #((min agree) j.dataset.name start found))
        short (lfor run runs :if (< (get run 0) 6) run)
        origins (Counter (gfor j judged  origin j.origins origin))
        [fewest name start _] (min runs :key (fn [run] (get run 0))))
  #((+ [(.format "{} of {} fits agree with NIST to 6 digits or more; the fewest are {:.1f}, {} from start {}."
                 (- (len runs) (len short)) (len runs) fewest name start)
        (.format "Residuals and Jacobians were ready in {:.2f} s: {}."
                 (sum (gfor j judged j.seconds))
                 (.join ", " (gfor [origin n] (.items origins) (+ (str n) " " origin))))]
       (lfor [agree name start found] short
         (.format "{} from start {}: {:.1f} digits after {} evaluations: {}" name start agree found.nfev
                  found.message)))
    (not short)))


;;; Showing ------------------------------------------------------------------------------------------

(defn beside [left right [width 48]]
  "Two texts in columns; a longer line is cut."
  (defn cell [line]
    (setv marks (sum (map (fn [c] (bool (combining c))) line)))   ; the bar of b̄ takes no room of its own
    (if (> (- (len line) marks) width) (+ (cut line (- width 1)) "…") (.ljust line (+ width marks))))
  (.join "\n" (gfor [l r] (zip-longest (.splitlines left) (.splitlines right) :fillvalue "")
                 (.rstrip (+ (cell l) "  " (cell r))))))

(defn stage [title model name]
  (+ (.ljust (+ "-- " title " ") 48 "-") "\n" (.strip (hyad.show model name))))

(defn stages [model wrt]
  "One model from the source to C, in two columns; of the C file the function alone."
  (setv gradient (hyad.grad model :wrt wrt)
        left [(stage "anf" model "anf") (stage "reverse" model "reverse")]
        right [(stage "forward" model "forward") (stage "simplified gradient" gradient "simplified")]
        c (hyad.show gradient "c"))
  (.join "\n" [(hyad.show model "source")
               (beside (.join "\n" left) (.join "\n" right))
               "-- c -------------------------------------------"
               (.strip (cut c (+ 2 (.rindex c "*/\n" 0 (.index c "\n{"))) None))]))

(defn draw [judged path]
  "Observations and fitted curves of the problems with one predictor, into an image file."
  (import matplotlib)
  (.use matplotlib "agg")
  (import matplotlib [pyplot :as plt])
  (setv drawn (lfor j judged :if (= (len j.dataset.xs) 1) j)
        columns (min (len drawn) 4)
        rows (- (// (- (len drawn)) columns))
        [figure axes] (plt.subplots rows columns :squeeze False :layout "constrained"
                                    :figsize #((* 3.6 columns) (* 2.7 rows))))
  (for [[j axis] (zip drawn axes.flat)]
    (setv [x] j.dataset.xs  grid (np.linspace (.min x) (.max x) 300))
    (.plot axis x j.dataset.y "." :color "0.4" :markersize 4)
    (.plot axis grid (lfor at grid (j.model #* (.best j) at)) :color "C3" :linewidth 1.2)
    (.set-title axis j.dataset.name :fontsize 9)
    (.tick-params axis :labelsize 7))
  (for [axis (cut axes.flat (len drawn) None)]
    (.set-axis-off axis))
  (.savefig figure path :dpi 120)
  (.close plt figure))

(defn with-progress [names]
  "The names one by one, with a bar on a terminal's standard error."
  (setv total (len names)  shown (and (.isatty sys.stderr) (> total 4)))
  (for [[done name] (enumerate names)]
    (when shown
      (setv filled (// (* 30 done) total))
      (print (.format "\r[{}{}] {:<10}" (* "#" filled) (* "." (- 30 filled)) name)
             :end "" :file sys.stderr :flush True))
    (yield name))
  (when shown
    (print (+ "\r" (* " " 48) "\r") :end "" :file sys.stderr :flush True)))


;;; The command --------------------------------------------------------------------------------------

(setv DEMO ["Misra1a" "Rat43" "MGH09" "Thurber"]
      HERE (/ (. (Path __file__) parent) "nist"))

(defn options [argv]
  (setv parser (argparse.ArgumentParser :prog "hyad run examples/nist.hy --"
                 :description "Fit NIST's nonlinear regression problems with hyad's Jacobians."))
  (.add-argument parser "--all" :action "store_true" :help "all 27 problems; the files come from --data")
  (.add-argument parser "--data" :type Path :default HERE :metavar "DIR" :help "the folder of NIST's .dat files")
  (.add-argument parser "--plot" :type Path :metavar "FILE"
    :help "draw the fits into FILE (with matplotlib installed, nist.png by default)")
  (setv chosen (.parse-args parser argv)
        names (lfor name (if chosen.all PROBLEMS DEMO) (.lower name))
        files (dfor path (.glob chosen.data "*.dat") (.lower path.stem) path)
        missing (lfor name names :if (not-in name files) name))
  (when missing
    (.error parser (.format "{} has no file of {}; NIST's files are at {}" chosen.data (.join ", " missing)
                            "https://www.itl.nist.gov/div898/strd/nls/nls_main.shtml")))
  #(chosen (lfor name names (get files name))))

(defn main [[argv None]]
  "Fit, print, judge; 0 if every fit agrees with NIST to six digits, 1 if not."
  (setv [chosen files] (options argv))
  (when (not chosen.all)
    (print (stages misra1a #("b1" "b2")) :end "\n\n"))
  (setv paths (dfor path files path.stem path)
        judged (lfor name (with-progress (list paths)) (Judged (Dataset (get paths name)))))
  (print (.join "\n" [HEAD #* (map str judged)]))
  (setv [lines agreed] (verdict judged))
  (print (.join "\n" ["" #* lines]))
  (setv plot (or chosen.plot (when (importlib.util.find-spec "matplotlib") (Path "nist.png"))))
  (when plot
    (draw judged plot)
    (print (.format "The fits are drawn in {}." plot)))
  (if agreed 0 1))

(when (= __name__ "__main__")
  (sys.exit (main)))
