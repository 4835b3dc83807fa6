(defdata Tree
  (Leaf label x)
  (Node label left right))

(defmodel treernn [tree #^ Real a #^ Real b #^ Real c]
  "A recursive network with one number for a state."
  (match tree
    (Leaf label x) (tanh (* a x))
    (Node label left right) (tanh (+ (* b (treernn left a b c)) (* c (treernn right a b c))))))
