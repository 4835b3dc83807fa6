(defmodel power [#^ Real x #^ Int n]
  "A product of sines as deep as n says."
  (if (= n 0)
      1.0
      (* x (sin (power x (- n 1))))))
