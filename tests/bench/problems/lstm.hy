;; The loss of a network of LSTM layers whose weights are diagonal, over a sequence of one-hot symbols: minus the mean
;; of the targets' log-softmax, each symbol's target being the next.

(defmodel gate [w b x]
  (map (fn [w b x] (sigmoid (+ (* w x) b))) w b x))

(defmodel log-softmax [y]
  (let [top (fold max (get y 0) y)
        total (fold (fn [s a] (+ s (exp (- a top)))) 0.0 y)]
    (map (fn [a] (- a top (log total))) y)))

(defmodel layers [weight bias hidden cell x]
  "One step of all layers, the output of one the input of the next: output, hidden states, cells."
  (ifold (fn [state i]
           (let [x (get state 0)
                 hidden (get state 1)
                 cell (get state 2)
                 w (get weight i)
                 b (get bias i)
                 forget (gate (get w 0) (get b 0) x)
                 enter (gate (get w 1) (get b 1) (get hidden i))
                 leave (gate (get w 2) (get b 2) x)
                 change (map (fn [w b h] (tanh (+ (* w h) b))) (get w 3) (get b 3) (get hidden i))
                 c (map (fn [c f e g] (+ (* c f) (* e g))) (get cell i) forget enter change)
                 h (map (fn [o c] (* o (tanh c))) leave c)]
             #(h (update hidden i h) (update cell i c))))
         #(x hidden cell)
         (len weight)))

(defmodel lstm [#^ (Arr Real l 4 b) weight #^ (Arr Real l 4 b) bias
                #^ (Vec b) in-scale #^ (Vec b) out-scale #^ (Vec b) out-bias
                #^ (Mat l b) hidden #^ (Mat l b) cell #^ (Mat n b) text]
  (let [steps (- (len text) 1)
        end (ifold (fn [state t]
                     (let [x (map (fn [s a] (* s a)) in-scale (get text t))
                           next (layers weight bias (get state 1) (get state 2) x)
                           y (map (fn [s h b] (+ (* s h) b)) out-scale (get next 0) out-bias)]
                       #((+ (get state 0) (dot (get text (+ t 1)) (log-softmax y)))
                         (get next 1)
                         (get next 2))))
                   #(0.0 hidden cell)
                   steps)]
    (/ (- (get end 0)) (real (* steps (len in-scale))))))
