(defmodel fibonacci [#^ Real x #^ Real y #^ Int n]
  "Fibonacci's recursion, weighted: two calls in each."
  (if (< n 2)
      x
      (+ (* y (fibonacci x y (- n 1))) (* x (fibonacci x y (- n 2))))))
