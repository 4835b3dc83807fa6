"Heston's model by Monte Carlo: call prices and all their sensitivities, pathwise, on the CPU or on a GPU.

The model simulates one path of a share and its variance, and says what calls on it pay. Its Jacobian by the six
parameters, derived by hyad in forward mode, carries all tangents along the path; the price is the sensitivity to the
notional. Ten million paths need no memory to speak of: random numbers come from a generator written in the language,
with a seed that is computed from the path's number. The semi-analytic prices stand beside the results.

    hyad run examples/heston.hy                                100,000 paths on the CPU
    hyad run examples/heston.hy -- --threads 8                 the same on eight threads
    hyad run examples/heston.hy -- --gpu --paths 10000000      on a GPU (hyad[cuda])

S. L. Heston, A closed-form solution for options with stochastic volatility, Rev. Financial Studies 6 (1993).
The variance flows along its drift for half a step, along its noise for one, and along its drift for the other half
(S. Ninomiya, N. Victoir, Applied Math. Finance 15 (2008)); it stays positive where 4 kappa mean > xi^2. The share's
logarithm takes the variance's mean over the step (L. Andersen, J. Computational Finance 11 (2008)).
Random numbers: P. L'Ecuyer's MRG32k3a, Operations Research 47 (1999)."

(import argparse)
(import sys)
(import time)

(import hyad)
(import numpy :as np)
(require hyad.macros [defmodel])


;;; Random numbers ----------------------------------------------------------------------------------

(defmodel scrambled [#^ Int x]
  "x^5 modulo the prime 2^31 - 1: another one of the numbers below it for each."
  (let [p 2147483647  x (% x p)  square (% (* x x) p)]
    (% (* x (% (* square square) p)) p)))

(defmodel seed [#^ Int path #^ Int k]
  "The word k of the generator's state at the start of a path."
  (+ 1 (scrambled (+ (scrambled (+ path (* 7919 k) 12345)) (* 104729 k) 67890))))

(defmodel later [#^ Int x2 #^ Int x3 #^ Int y1 #^ Int y3]
  "The next two words of MRG32k3a's recurrences, from the last but one and the third last, the last and the third last."
  #((% (- (* 1403580 x2) (* 810728 x3)) 4294967087)
    (% (- (* 527612 y1) (* 1370589 y3)) 4294944443)))

(defmodel uniform [#^ Int x #^ Int y]
  "A number between 0 and 1, neither of them, from the two words."
  (/ (+ 0.5 (real (% (- x y) 4294967087))) 4294967087.0))


;;; The model ---------------------------------------------------------------------------------------

(defmodel terminal [#^ (Vec 7) theta rate years #^ Int steps #^ Int path]
  "The share at the end of a path."
  (let [[s0 v0 kappa mean xi rho] (build 6 (fn [k] (get theta k)))
        dt (/ years (real steps))
        root (sqrt dt)
        across (sqrt (- 1.0 (* rho rho)))
        level (- mean (/ (* xi xi) (* 4.0 kappa)))
        decay (exp (* -0.5 kappa dt))
        drift (fn [v] (+ level (* decay (- v level))))
        #(x v a b c d e f)
        (ifold (fn [state k]
                 (let [#(x v a b c d e f) state
                       #(a1 d1) (later b c d f)
                       #(a2 d2) (later a b d1 e)
                       r (sqrt (* -2.0 (log (uniform a1 d1))))
                       angle (* 6.283185307179586 (uniform a2 d2))
                       g (+ (sqrt (drift v)) (* 0.5 xi root r (cos angle)))
                       w (drift (* g g))
                       between (* 0.5 (+ v w))]
                   #((+ x (* dt (- rate (* 0.5 between)))
                        (* (/ rho xi) (- w v (* kappa dt (- mean between))))
                        (* across root (sqrt between) r (sin angle)))
                     w a2 a1 a d2 d1 d)))
               #((log s0) v0 (seed path 1) (seed path 2) (seed path 3) (seed path 4) (seed path 5) (seed path 6))
               steps)]
    (exp x)))

(defmodel payoffs [#^ (Vec 7) theta #^ (Vec 8) strikes rate years #^ Int steps #^ Int path]
  "What calls pay at the end of a path, discounted, for a notional theta[6]."
  (let [s (terminal theta rate years steps path)
        discount (* (get theta 6) (exp (- (* rate years))))]
    (map (fn [k] (* discount (max 0.0 (- s k)))) strikes)))

(defmodel mean-payoffs [#^ (Vec 7) theta #^ (Vec 8) strikes rate years #^ Int steps #^ Int first #^ Int count]
  "The mean over `count` paths from the path `first` on."
  (map (fn [total] (/ total (real count)))
       (ifold (fn [total k] (map + total (payoffs theta strikes rate years steps (+ first k))))
              (build 8 (fn [k] 0.0)) count)))

(defmodel sensitivities [#^ (Vec 7) theta #^ (Vec 8) strikes rate years #^ Int steps
                         #^ Int first #^ Int count #^ Int chunks]
  "For each of `chunks` times `count` paths the Jacobian of the mean payoffs by theta."
  (build chunks
    (fn [c]
      ((jacobian (fn [theta] (mean-payoffs theta strikes rate years steps (+ first (* c count)) count)))
       theta))))


;;; Prices without simulation -----------------------------------------------------------------------

(setv NAMES ["share" "variance" "kappa" "mean" "xi" "rho"]
      THETA (np.array [100.0 0.04 2.0 0.04 0.3 -0.7 1.0])
      STRIKES (np.linspace 80.0 120.0 8)
      RATE 0.03  YEARS 1.0)

(defn exact-prices [theta]
  "The calls' prices by Fourier inversion of the characteristic function."
  (setv [s0 v0 kappa mean xi rho notional] theta
        [nodes weights] (np.polynomial.legendre.leggauss 400)
        u (+ (* 100.0 (+ nodes 1.0)) 1e-12))
  (defn characteristic [u]
    (setv b (- kappa (* rho xi 1j u))
          d (np.sqrt (+ (* b b) (* xi xi (+ (* 1j u) (* u u)))))
          g (/ (- b d) (+ b d))
          decay (np.exp (* (- d) YEARS))
          growth (* (/ (* kappa mean) (* xi xi))
                    (- (* (- b d) YEARS) (* 2 (np.log (/ (- 1 (* g decay)) (- 1 g))))))
          level (/ (* (- b d) (- 1 decay)) (* xi xi (- 1 (* g decay)))))
    (np.exp (+ (* RATE 1j u YEARS) growth (* level v0) (* 1j u (np.log s0)))))
  (setv turned (/ (np.exp (* -1j (np.outer (np.log STRIKES) u))) (* 1j u))
        shares (/ (characteristic (- u 1j)) (characteristic (np.array [-1j])))
        [in-shares in-cash] (lfor weight [shares (characteristic u)]
                              (+ 0.5 (/ (np.sum (* 100.0 weights (np.real (* turned weight))) 1) np.pi))))
  (* notional (- (* s0 in-shares) (* STRIKES (np.exp (- (* RATE YEARS))) in-cash))))

(defn exact-sensitivities []
  "The Jacobian of the exact prices by theta, from differences."
  (setv columns [])
  (for [k (range (len THETA))]
    (setv step (np.zeros-like THETA)
          (get step k) (* 1e-5 (abs (get THETA k))))
    (.append columns (/ (- (exact-prices (+ THETA step)) (exact-prices (- THETA step))) (* 2 (get step k)))))
  (np.stack columns 1))


;;; Simulation --------------------------------------------------------------------------------------

(defn simulate [f paths steps count chunks [progress None]]
  "Means over all paths of the Jacobian by theta, and their standard errors: `chunks` times `count` paths in a call."
  (setv rounds (max 1 (round (/ paths (* count chunks))))
        total 0.0  squares 0.0)
  (for [k (range rounds)]
    (setv found (f THETA STRIKES RATE YEARS steps (* k count chunks) count chunks))
    (+= total (.sum found 0))
    (+= squares (.sum (** found 2) 0))
    (when progress
      (progress (/ (+ k 1) rounds))))
  (setv n (* rounds chunks)
        mean (/ total n))
  #(mean (np.sqrt (/ (np.maximum 0.0 (- (/ squares n) (** mean 2))) (max 1 (- n 1)))) (* n count)))

(defn bar [done]
  (setv width (int (* 40 done)))
  (print f"\r[{(* "#" width)}{(* "." (- 40 width))}] {(* 100 done) :.0f}%" :end (if (< done 1) "" "\n")
         :file sys.stderr :flush True))

(defn main [[arguments None]]
  (setv parser (argparse.ArgumentParser :prog "heston.hy" :description "Heston's model by Monte Carlo."))
  (.add-argument parser "--paths" :type int :default 100000)
  (.add-argument parser "--steps" :type int :default 100 :help "in the year")
  (.add-argument parser "--gpu" :action "store_true" :help "run on a GPU")
  (.add-argument parser "--threads" :type int :default 1 :help "of the CPU")
  (setv given (.parse-args parser arguments))
  (when (or (< given.paths 1) (< given.steps 1) (< given.threads 1))
    (.error parser "numbers of paths, steps and threads are at least 1"))
  (setv count (min given.paths (if given.gpu 32 500))                    ; a GPU wants many chunks at once
        chunks (max 1 (min (// given.paths count) (if given.gpu 131072 (* 8 given.threads))))
        example #(THETA STRIKES RATE YEARS given.steps 0 count chunks)
        started (time.perf-counter)
        f (if given.gpu
              (hyad.compile sensitivities "cuda" :args example)
              (hyad.compile sensitivities :args example :threads given.threads))
        compiled (time.perf-counter)
        [mean error paths] (simulate f given.paths given.steps count chunks (when (.isatty sys.stderr) bar))
        seconds (- (time.perf-counter) compiled)
        exact (exact-sensitivities))
  (print f"{paths} paths of {given.steps} steps on {(if given.gpu "a GPU" "the CPU")}: {seconds :.2f} s,"
         f"{(/ (* paths given.steps) seconds 1e6) :.1f} million steps with six tangents a second"
         f"(compiled in {(- compiled started) :.2f} s)\n")
  (print "  strike     price      +-      exact")
  (for [[k strike] (enumerate STRIKES)]
    (print f"{strike :8.2f}  {(get mean k 6) :8.4f}  {(get error k 6) :6.4f}   {(get exact k 6) :8.4f}"))
  (setv k 4)
  (print f"\nthe call struck at {(get STRIKES k) :.2f} by" "           +-      exact")
  (for [[j name] (enumerate NAMES)]
    (print f"{name :>10s}  {(get mean k j) :20.4f}  {(get error k j) :7.4f}  {(get exact k j) :9.4f}")))

(when (= __name__ "__main__")
  (main))
