"What the classes of the textbook share: their figures' `...`.

A figure shows + and *. The other operations follow from these two and `of`,
a function of one number with its derivative; sin and its kin here take plain
numbers and the figures' alike."

(import math)

(defclass Operators []
  "The operations of a number that knows +, * and `of`.

  `x` is its value. `(.lift self that)` is `that` as a number of the same
  class: a constant, if it is a plain one."
  (defn lift [self that]
    (if (isinstance that (type self)) that ((type self) that)))

  (defn __radd__ [self that] (+ self that))
  (defn __rmul__ [self that] (* self that))
  (defn __neg__ [self] (* self -1.0))
  (defn __sub__ [self that] (+ self (* that -1.0)))
  (defn __rsub__ [self that] (+ (* self -1.0) that))
  (defn __truediv__ [self that] (* self (reciprocal that)))
  (defn __rtruediv__ [self that] (* (reciprocal self) that))
  (defn __pow__ [self n]
    (.of self (fn [u] (** u n)) (fn [u] (* n (** u (- n 1))))))

  ;; control is decided by values alone
  (defn __lt__ [self that] (< (value self) (value that)))
  (defn __le__ [self that] (<= (value self) (value that)))
  (defn __gt__ [self that] (> (value self) (value that)))
  (defn __ge__ [self that] (>= (value self) (value that)))
  (defn __eq__ [self that] (= (value self) (value that)))
  (setv __hash__ object.__hash__)
  (defn __repr__ [self]
    f"({(. (type self) __name__)} {self.x})"))

(defn value [u]
  "The plain number in `u`, however deep."
  (if (isinstance u Operators) (value u.x) u))

(defn unary [f df]
  "f, for plain numbers and the figures' alike; `df` computes f′."
  (defn f* [u]
    (if (isinstance u Operators) (.of u f* df) (f u)))
  (setv f*.__name__ f.__name__)
  f*)

(setv sin  (unary math.sin  (fn [u] (cos u)))
      cos  (unary math.cos  (fn [u] (- (sin u))))
      exp  (unary math.exp  (fn [u] (exp u)))
      log  (unary math.log  (fn [u] (reciprocal u)))
      sqrt (unary math.sqrt (fn [u] (/ 0.5 (sqrt u))))
      reciprocal (unary (fn [u] (/ 1.0 u))
                        (fn [u] (- (reciprocal (* u u))))))
