(defdata Tree
  (Leaf label x)
  (Node label left right))

(defmodel treesum [tree #^ Real a #^ Real b]
  "Sums, discounted to the left: nothing but the walk costs."
  (match tree
    (Leaf label x) (* a x)
    (Node label left right) (+ (* b (treesum left a b)) (treesum right a b))))
