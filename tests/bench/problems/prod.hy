(defmodel prod [#^ (Vec n) x]
  "Speelpenning's product."
  (fold * 1.0 x))
