;; Rewrite rules that the builder applies to every scalar operation as it is made:
;;   (name pattern => template)
;; In a pattern x, y, z match any operand (the same letter, the same operand), c and d constants, w one of magnitude
;; at least one, p a power of two of that kind, n a negative constant, q and r finite ones without a sign, 0 1 2 -1 an
;; operand of that value, (temp ..) an operand that nobody named, (soft 0) one that differentiation itself introduced. A
;; template builds operations, so that its parts are shared and rewritten again; (fold op c d) computes with constants.
;; (if x c d) is a branch that gives one of two constants.
;;
;; A rule here holds for every IEEE number, NaN and infinity included, and to the last bit, subnormal numbers aside,
;; up to the sign of a zero where the pattern holds a soft operand. What does not (x*0 => 0, x/x => 1) fires on soft
;; operands alone.

;; ones and zeros
(mul-one-left         (* 1 x)                   => x)
(mul-one-right        (* x 1)                   => x)
(mul-minus-one-left   (* -1 x)                  => (neg x))
(mul-minus-one-right  (* x -1)                  => (neg x))
(mul-zero-left        (* (soft 0) x)            => (soft 0))
(mul-zero-right       (* x (soft 0))            => (soft 0))
(div-one              (/ x 1)                   => x)
(div-minus-one        (/ x -1)                  => (neg x))
(div-zero             (/ (soft 0) x)            => (soft 0))
(add-zero-left        (+ (soft 0) x)            => x)
(add-zero-right       (+ x (soft 0))            => x)
(add-zero-square      (+ 0 (* x x))             => (* x x))
(sub-zero             (- x 0)                   => x)
(sub-from-zero        (- (soft 0) x)            => (neg x))
(pass-on-zero         (pass-on (soft 0) x)      => (soft 0))
(pass-on-nothing      (pass-on x (soft 0))      => (soft 0))
(pass-on-one          (pass-on x (soft 1))      => x)
(pass-on-minus-one    (pass-on x (soft -1))     => (neg x))

;; signs
(neg-neg              (neg (neg x))             => x)
(add-neg              (+ x (neg y))             => (- x y))
(neg-add              (+ (neg x) y)             => (- y x))
(sub-neg              (- x (neg y))             => (+ x y))
(mul-neg-left         (* (neg x) y)             => (neg (* x y)))
(mul-neg-right        (* x (neg y))             => (neg (* x y)))
(div-neg-left         (/ (neg x) y)             => (neg (/ x y)))
(div-neg-right        (/ x (neg y))             => (neg (/ x y)))
(neg-mul-constant     (neg (* c x))             => (* (fold neg c) x))
(sub-constant         (- x n)                   => (+ x (fold neg n)))

;; even and odd functions; a difference of equals is 0, or NaN
(cos-neg              (cos (neg x))             => (cos x))
(cosh-neg             (cosh (neg x))            => (cosh x))
(abs-neg              (abs (neg x))             => (abs x))
(sin-neg              (sin (neg x))             => (neg (sin x)))
(tan-neg              (tan (neg x))             => (neg (tan x)))
(sinh-neg             (sinh (neg x))            => (neg (sinh x)))
(tanh-neg             (tanh (neg x))            => (neg (tanh x)))
(atan-neg             (atan (neg x))            => (neg (atan x)))
(cos-same             (cos (- x x))             => (+ 1 (- x x)))
(exp-same             (exp (- x x))             => (+ 1 (- x x)))
(sin-same             (sin (- x x))             => (- x x))

;; doubling and powers: a product of equals is exact in the same steps
(add-same             (+ x x)                   => (* 2 x))
(sub-neg-same         (- (neg x) x)             => (* -2 x))
(pow-zero             (** x 0)                  => 1)
(pow-one              (** x 1)                  => x)
(pow-two              (** x 2)                  => (* x x))
(square               (square x)                => (* x x))

;; constants come first, and meet where that is exact: both at least one, so that no product between overflows or
;; underflows alone
(mul-constant-first   (* x c)                   => (* c x))
(mul-scale            (* p (temp (* w x)))      => (* (fold * p w) x))
(mul-scaled           (* w (temp (* p x)))      => (* (fold * w p) x))

;; what differentiation makes of a product with a constant
(mul-constants        (* (soft c) (* (soft d) x)) => (* (fold * c d) x))

;; choices between values already computed
(select-same          (select x y y)            => y)
(max-same             (max x x)                 => x)
(min-same             (min x x)                 => x)
(mul-zero-select      (* 0 (select x q r))      => 0)
(mul-zero-if          (* 0 (if x q r))          => 0)
(mul-select-left      (* (select x (soft 1) (soft 0)) y) => (select x y (soft 0)))
(mul-select-right     (* y (select x (soft 1) (soft 0))) => (select x y (soft 0)))
(mul-select-left-2    (* (select x (soft 0) (soft 1)) y) => (select x (soft 0) y))
(mul-select-right-2   (* y (select x (soft 0) (soft 1))) => (select x (soft 0) y))
(add-selects          (+ (select x (soft 0) y) (select x z (soft 0))) => (select x z y))
(add-selects-2        (+ (select x y (soft 0)) (select x (soft 0) z)) => (select x y z))
(sub-selects          (- (select x (soft 0) y) (select x z (soft 0))) => (select x (neg z) y))
(sub-selects-2        (- (select x y (soft 0)) (select x (soft 0) z)) => (select x y (neg z)))
