(defdata Tree
  (Leaf label x)
  (Node label left right))

(defmodel treelstm [tree #^ (Vec 30) w]
  "Tree-LSTM with scalar states: the loss over the labels of all nodes (Tai et al. 2015, as in Lantern)."
  (letrec [nll (fn [h label]
                 (let [scores (build 5 (fn [k] (+ (* (get w (+ 20 k)) h) (get w (+ 25 k)))))]
                   (- (log (fold + 0.0 (map exp scores))) (get scores label))))
           state (fn [t]
                   (match t
                     (Leaf label x)
                       (let [i (sigmoid (+ (* (get w 0) x) (get w 1)))
                             o (sigmoid (+ (* (get w 2) x) (get w 3)))
                             u (tanh (+ (* (get w 4) x) (get w 5)))
                             c (* i u)
                             h (* o (tanh c))]
                         #(h c (nll h label)))
                     (Node label left right)
                       (let [#(hl cl el) (state left)
                             #(hr cr er) (state right)
                             i (sigmoid (+ (* (get w 6) hl) (* (get w 7) hr) (get w 8)))
                             fl (sigmoid (+ (* (get w 9) hl) (* (get w 10) hr) (get w 13)))
                             fr (sigmoid (+ (* (get w 11) hl) (* (get w 12) hr) (get w 13)))
                             o (sigmoid (+ (* (get w 14) hl) (* (get w 15) hr) (get w 16)))
                             u (tanh (+ (* (get w 17) hl) (* (get w 18) hr) (get w 19)))
                             c (+ (* i u) (* fl cl) (* fr cr))
                             h (* o (tanh c))]
                         #(h c (+ (nll h label) el er)))))]
    (let [#(h c loss) (state tree)]
      loss)))
