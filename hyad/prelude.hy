;; What the language has beside its primitives, defined in the language itself: the vector and matrix functions of dF~
;; (Table 1, Fig. 4) and what NumPy's users expect beside them. Each form is read when a model names it. A name that
;; ends in /n is the same function of n arguments: (sum m) and (sum m 0).

; ---------------------------------------------------------------- vectors

(defmodel vec-map [f v] "f of each element" (map f v))
(defmodel vec-add [u v] "the sum of two vectors" (map (fn [a b] (+ a b)) u v))
(defmodel vec-sub [u v] "the difference of two vectors" (map (fn [a b] (- a b)) u v))
(defmodel vec-mul [u v] "the product, element by element" (map (fn [a b] (* a b)) u v))
(defmodel vec-scale [s v] "a number times a vector" (map (fn [a] (* s a)) v))
(defmodel vec-sum [v] "the sum of the elements" (fold + 0.0 v))
(defmodel dot [u v] "the inner product, of matrices their product: u's last axis with v's last but one"
  (cond
    (or (= (rank u) 0) (= (rank v) 0)) (* u v)
    (< (rank v) 3) (matmul u v)
    (= (rank u) 1) (map (fn [m] (dot u m)) v)
    True (map (fn [row] (dot row v)) u)))
(defmodel inner [u v] "the inner product; of matrices those of their rows"
  (cond
    (or (= (rank u) 0) (= (rank v) 0)) (* u v)
    (> (rank u) 1) (map (fn [row] (inner row v)) u)
    (> (rank v) 1) (map (fn [row] (inner u row)) v)
    True (dot u v)))
(defmodel vdot [u v] "the inner product of all elements" (dot (ravel u) (ravel v)))
(defmodel sq-norm [a] "the sum of the squares"
  (if (= (rank a) 1)
    (fold (fn [s x] (+ s (* x x))) 0.0 a)
    (fold (fn [s row] (+ s (sq-norm row))) 0.0 a)))
(defmodel norm [a] "the Euclidean length, a matrix's Frobenius norm; its derivative at zero is 0"
  (let [s (sq-norm a)]
    (if (= s 0.0) 0.0 (sqrt s))))
(defmodel frobenius [a] "the root of the sum of the squares" (norm a))
(defmodel np.linalg.norm [a] "the root of the sum of the squares" (norm a))
(defmodel cross [u v] "the vector product in three dimensions; of matrices those of their rows"
  (cond
    (> (rank u) (rank v)) (map (fn [a] (cross a v)) u)
    (< (rank u) (rank v)) (map (fn [b] (cross u b)) v)
    (> (rank u) 1) (map cross u v)
    True
      (do
        (require-equal (len u) 3)
        (require-equal (len v) 3)
        [(- (* (get u 1) (get v 2)) (* (get u 2) (get v 1)))
         (- (* (get u 2) (get v 0)) (* (get u 0) (get v 2)))
         (- (* (get u 0) (get v 1)) (* (get u 1) (get v 0)))])))
(defmodel outer [u v] "the matrix of all products; of matrices, those of their elements row by row"
  (if (= (+ (rank u) (rank v)) 2)
    (let [u (known-zeros u)  v (known-zeros v)] (build [(len u) (len v)] (fn [i j] (* (get u i) (get v j)))))
    (outer (ravel u) (ravel v))))
(defmodel kron [a b] "all products of an element and a whole array, in the places of the elements"
  (cond
    (< (rank a) (rank b)) (kron [a] b)
    (> (rank a) (rank b)) (kron a [b])
    (= (rank a) 1) (build (* (len a) (len b)) (fn [i] (* (get a (// i (len b))) (get b (% i (len b))))))
    True
      (let [n (len b)  m (shape b 1)]
        (build [(* (len a) n) (* (shape a 1) m)]
          (fn [i j] (* (get a (// i n) (// j m)) (get b (% i n) (% j m))))))))
(defmodel convolve [u v] "the products of all elements, added where their indices have the same sum"
  (let [n (len u)  m (len v)  out (build (- (+ n m) 1) (fn [k] 0.0))]
    (require-below 0 (min n m))
    (for [j (range (- m 1) -1 -1)]
      (for [i (range n)]
        (set-at! out (+ i j) (+ (get out (+ i j)) (* (get u i) (get v j))))))
    out))
(defmodel correlate [u v] "the products with v, the shorter, at each place of u"
  (do
    (get u (- (len u) (len v)))  ; it is the shorter
    (build (+ 1 (- (len u) (len v)))
      (fn [k] (ifold (fn [s i] (+ s (* (get u (+ k i)) (get v i)))) 0.0 (len v))))))
(defmodel polyval [c x] "a polynomial of x, the coefficient of its highest power first"
  (fold (fn [s a] (+ (* s x) a)) (* 0 x) c))

; ---------------------------------------------------------------- matrices

(defmodel transpose [m] "rows and columns exchanged; of an array of more axes, their order turned round"
  (cond
    (= (rank m) 1) m
    (= (rank m) 2) (swap-first m)
    True (first-to (map transpose m) (- (rank m) 1))))
(defmodel transpose/2 [a axes] "the axes in another order" (permuted a axes 0))
(defmodel permuted [a axes k] "the axes in the order axes, from its element k on; those before are gone from a"
  (if (= k (len axes))
    a
    (map (fn [row] (permuted row axes (+ k 1))) (to-first a (place-left axes k 0 (get axes k))))))
(defmodel place-left [axes k e p] "where the axis p is among those that the elements e up to k of axes left"
  (if (= e k) p (place-left axes k (+ e 1) (if (< (get axes e) (get axes k)) (- p 1) p))))
(defmodel swap-first [a] "the first two axes exchanged"
  (build [(shape a 1) (shape a 0)] (fn [i j] (get a j i))))
(defmodel to-first [a k] "axis k before the others"
  (if (= k 0) a (swap-first (map (fn [row] (to-first row (- k 1))) a))))
(defmodel first-to [a k] "the first axis in place k"
  (if (= k 0) a (map (fn [row] (first-to row (- k 1))) (swap-first a))))
(defmodel axis-of [a axis more] "an axis counted from the first, of an array with more axes than a"
  (if (num? axis) (if (< axis 0) (+ axis (rank a) more) axis) (shape a axis)))
(defmodel moveaxis [a from to] "one axis in another place"
  (moved a (axis-of a from 0) (axis-of a to 0)))
(defmodel moved [a from to] "one axis in another place, both counted from the first"
  (if (and (> from 0) (> to 0)) (map (fn [row] (moved row (- from 1) (- to 1))) a) (first-to (to-first a from) to)))
(defmodel swapaxes [a i j] "two axes exchanged"
  (let [i (axis-of a i 0)  j (axis-of a j 0)] (if (< i j) (swapped a i j) (swapped a j i))))
(defmodel swapped [a i j] "two axes exchanged, i not after j"
  (cond
    (= i j) a
    (> i 0) (map (fn [row] (swapped row (- i 1) (- j 1))) a)
    (= j 1) (swap-first a)
    True (swap-first (map (fn [row] (swapped row 0 (- j 1))) (swap-first a)))))
(defmodel expand-dims [a axis] "an array with one more axis, of size 1, or several"
  (if (num? axis)
    (let [k (axis-of a axis 1)]
      (if (= k 0) [a] (map (fn [row] (expand-dims row (- k 1))) a)))
    (expand-among a axis 0 (+ (rank a) (len axis)))))
(defmodel expand-among [a axes k n] "an array with axes of size 1 among its n, from axis k on"
  (if (= k n)
    a
    (expand-among (if (is-among axes k n (- (len axes) 1)) (expand-dims a k) a) axes (+ k 1) n)))
(defmodel is-among [axes k n j] "whether axis k is one of those up to j, of n"
  (if (< j 0) False (if (= (% (get axes j) n) k) True (is-among axes k n (- j 1)))))
(defmodel in-brackets [x a] "a number as an array of the rank of another, of size 1 along each axis"
  (bracketed x (rank a)))
(defmodel bracketed [x k] "the same, of rank k" (if (= k 0) x (bracketed [x] (- k 1))))
(defmodel squeeze/1 [a] "an array without its axes of size 1" (without-ones a))
(defmodel squeeze [a axis] "an array without an axis of size 1"
  (let [k (axis-of a axis 0)]
    (if (= k 0) (do (require-equal (len a) 1) (get a 0)) (map (fn [row] (squeeze row (- k 1))) a))))
(defmodel mat-add [a b] "the sum of two matrices" (map vec-add a b))
(defmodel mat-sub [a b] "the difference of two matrices" (map vec-sub a b))
(defmodel mat-scale [s m] "a number times a matrix" (map (fn [row] (vec-scale s row)) m))
(defmodel mat-vec [m v] "a matrix times a column vector; an inverse, a Hessian or a product is not made for that"
  (cond
    (not (null? (noted-result inv m))) (solve (noted-result inv m) v)
    (not (null? (noted-result times-hessian m))) (times-hessian m v)
    (not (null? (noted-result mat-mul m))) (let [#(a b) (noted-result mat-mul m)] (mat-vec a (mat-vec b v)))
    (not (null? (band-of m))) (band-times m v)
    True (map (fn [row] (dot row v)) (known-zeros m))))
(defmodel vec-mat [v m] "a row vector times a matrix; an inverse, a Hessian or a product is not made for that"
  (cond
    (not (null? (noted-result inv m))) (solve-from-left (noted-result inv m) v)
    (not (null? (noted-result times-hessian m))) (times-hessian m v)
    (not (null? (noted-result mat-mul m))) (let [#(a b) (noted-result mat-mul m)] (vec-mat (vec-mat v a) b))
    (not (null? (band-of m))) (band-times (transpose m) v)
    True (do
      (require-equal (len v) (len m))
      (let [v (known-zeros v)  m (known-zeros m)]
        (build (shape m 1) (fn [j] (ifold (fn [s i] (+ s (* (get v i) (get m i j)))) 0.0 (len v))))))))
(defmodel times-hessian [m v] "a Hessian m, of which function at which point is noted, times a vector"
  (do
    (require-equal (len v) (len m))
    (let [#(f x) (noted-result times-hessian m)] (hvp f x v))))
(defmodel mat-mul [a b] "the product of two matrices"
  (do
    (require-equal (shape a 1) (len b))
    (cond
      (not (null? (noted-result inv a))) (solve (noted-result inv a) b)
      (not (null? (band-of a))) (note-result mat-mul (band-times a b) #(a b))
      (not (null? (band-of b))) (note-result mat-mul (transpose (band-times (transpose b) (transpose a))) #(a b))
      True (noted-product
             (let [a (known-zeros a)  b (known-zeros b)]
               (build [(len a) (shape b 1)]
                 (fn [i j] (ifold (fn [s k] (+ s (* (get a i k) (get b k j)))) 0.0 (len b)))))
             a b))))
(defmodel noted-product [p a b] "a product, of which the factors are kept, unless it is the same in all iterations"
  (if (hoisted? p) p (note-result mat-mul p #(a b))))
(defmodel band-times [a x] "the product of a matrix that is known to have few diagonals and a vector, or a matrix"
  (do
    (require-equal (shape a 1) (len x))
    (let [#(l u) (band-of a)] (band-product (band-rows a l u) x l))))
(defmodel matmul [a b] "the product of vectors, matrices, or stacks of matrices"
  (cond
    (> (rank a) 2) (if (= (rank a) (rank b)) (map matmul a b) (map (fn [m] (matmul m b)) a))
    (> (rank b) 2) (map (fn [m] (matmul a m)) b)
    (= (rank a) 2) (if (= (rank b) 2) (mat-mul a b) (mat-vec a b))
    (= (rank b) 2) (vec-mat a b)
    (not (null? (noted-result solve-symmetric b a))) (quadratic-form a (noted-result solve-symmetric b a))
    (not (null? (noted-result solve-symmetric a b))) (quadratic-form b (noted-result solve-symmetric a b))
    True (fold (fn [s x y] (+ s (* x y))) 0.0 (known-zeros a) (known-zeros b))))
(defmodel @ [a b] "the product of vectors, matrices, or stacks of matrices" (matmul a b))
(defmodel @/3 [a b c] "the product of three, from left to right" (@ (@ a b) c))
(defmodel @/4 [a b c d] "the product of four, from left to right" (@ (@ (@ a b) c) d))
(defmodel matrix-power [m k] "a matrix times itself, k factors; where k is negative, its inverse"
  (let [m (if (< k 0) (inv m) m)] (ifold (fn [p i] (mat-mul p m)) (eye (len m)) (abs k))))
(defmodel trace [m] "the sum of the diagonal"
  (do
    (require-equal (len m) (shape m 1))
    (ifold (fn [s i] (+ s (get m i i))) 0.0 (len m))))
(defmodel diag [a] "the diagonal of a matrix, or the matrix with a vector as its diagonal"
  (if (= (rank a) 1)
    (build [(len a) (len a)] (fn [i j] (if (= i j) (get a i) 0.0)))
    (build (min (len a) (shape a 1)) (fn [i] (get a i i)))))
(defmodel diag/2 [a k] "the diagonal k above the middle one, or the matrix with a vector there"
  (if (= (rank a) 1)
    (build [(+ (len a) (abs k)) (+ (len a) (abs k))]
      (fn [i j] (if (= (- j i) k) (get a (min i j)) 0.0)))
    (build (max 0 (min (+ (len a) (min k 0)) (- (shape a 1) (max k 0))))
      (fn [i] (get a (- i (min k 0)) (+ i (max k 0)))))))
(defmodel tril/2 [m k] "a matrix with zeros above the diagonal k above its own"
  (if (> (rank m) 2)
    (map (fn [part] (tril part k)) m)
    (build (shape m) (fn [i j] (if (<= j (+ i k)) (get m i j) 0.0)))))
(defmodel triu/2 [m k] "a matrix with zeros below the diagonal k above its own"
  (if (> (rank m) 2)
    (map (fn [part] (triu part k)) m)
    (build (shape m) (fn [i j] (if (<= (+ i k) j) (get m i j) 0.0)))))
(defmodel tril [m] "a matrix with zeros above its diagonal"
  (if (> (rank m) 2) (map tril m) (build (shape m) (fn [i j] (if (<= j i) (get m i j) 0.0)))))
(defmodel triu [m] "a matrix with zeros below its diagonal"
  (if (> (rank m) 2) (map triu m) (build (shape m) (fn [i j] (if (<= i j) (get m i j) 0.0)))))

; ---------------------------------------------------------------- making arrays: sizes are a number or [n m ...]

(defmodel full [dims x] "an array that holds x everywhere"
  (if (num? dims) (build dims (fn [i] x)) (full-from dims x 0)))
(defmodel full-from [dims x k] "an array of the sizes from axis k on"
  (if (= k (len dims)) x (build (get dims k) (fn [i] (full-from dims x (+ k 1))))))
(defmodel zeros [dims] "an array of zeros" (full dims 0.0))
(defmodel ones [dims] "an array of ones" (full dims 1.0))
(defmodel zeros-like [a] "zeros in the shape of an array" (full-like a 0.0))
(defmodel ones-like [a] "ones in the shape of an array" (full-like a 1.0))
(defmodel full-like [a x] "x everywhere in the shape of an array" (if (= (rank a) 0) x (full (shape a) x)))
(defmodel eye [n] "the identity matrix" (build [n n] (fn [i j] (if (= i j) 1.0 0.0))))
(defmodel eye/2 [n m] "n rows of m with ones on the diagonal" (build [n m] (fn [i j] (if (= i j) 1.0 0.0))))
(defmodel eye/3 [n m k] "n rows of m with ones on a diagonal, k to the right of the main one"
  (build [n m] (fn [i j] (if (= j (+ i k)) 1.0 0.0))))
(defmodel identity [n] "the identity matrix" (eye n))
(defmodel one-hot [n k] "n zeros with a one at k" (build n (fn [i] (if (= i k) 1.0 0.0))))
(defmodel arange [n] "the integers below n" (build n (fn [i] i)))
(defmodel arange/2 [start stop] "the integers from start on below stop" (build (- stop start) (fn [i] (+ start i))))
(defmodel arange/3 [start stop step] "every step-th integer from start on, below stop"
  (let [a (build (max 0 (steps start stop step)) (fn [i] (+ start (* step i))))]
    (do
      (require-below 0 (abs step))
      a)))
(defmodel steps [start stop step] "how many steps lead from start on below stop"
  (cond
    (= step 1) (- stop start)
    (= step -1) (- start stop)
    True (// (- (+ stop step) (+ start (if (< step 0) -1 1))) step)))
(defmodel linspace [a b n] "n numbers from a to b at equal distances"
  (build n (fn [i] (+ a (/ (* (- b a) i) (max 1 (- n 1)))))))

; ---------------------------------------------------------------- parts and other shapes

(defmodel size [a] "the number of elements" (fold * 1 (shape a)))
(defmodel slice [v start stop] "the elements from start on below stop, none where stop is before start"
  (build (max 0 (- stop start)) (fn [i] (get v (+ start i)))))
(defmodel slice/4 [v start stop step] "every step-th element from start on, below stop, none where stop is before start"
  (do
    (require-below 0 (abs step))
    (build (max 0 (steps start stop step)) (fn [i] (get v (+ start (* step i)))))))
(defmodel concat [a b] "one array after another"
  (if (> (rank a) 1) (do (require-equal (shape a 1) (shape b 1)) (joined a b)) (joined a b)))
(defmodel joined [a b] "one array after another"
  (build (+ (len a) (len b)) (fn [i] (if (< i (len a)) (get a i) (get b (- i (len a)))))))
(defmodel concat/3 [a b c] "one array after another" (concat (concat a b) c))
(defmodel concat/4 [a b c d] "one array after another" (concat (concat a b c) d))
(defmodel concatenate [parts] "the arrays of a tuple, one after another" (concatenate-from parts (- (len parts) 1)))
(defmodel concatenate/2 [parts axis] "the arrays of a tuple, one after another along an axis"
  (let [k (axis-of (get parts 0) axis 0)]
    (if (= k 0) (concatenate parts) (concatenate-along parts k (- (len parts) 1)))))
(defmodel concatenate-from [parts k] "the arrays up to k, one after another"
  (if (= k 0) (get parts 0) (concat (concatenate-from parts (- k 1)) (get parts k))))
(defmodel concatenate-along [parts axis k] "the arrays up to k, one after another along an axis"
  (if (= k 0)
    (get parts 0)
    (along-two (concatenate-along parts axis (- k 1)) (get parts k) axis)))
(defmodel along-two [a b axis] "two arrays, one after the other along an axis"
  (if (= axis 0) (concat a b) (map (fn [u v] (along-two u v (- axis 1))) a b)))
(defmodel stack [arrays] "arrays of one shape, of a tuple or an array, as one array" (array-of arrays))
(defmodel stack/2 [arrays axis] "arrays of one shape as one array, along a new axis"
  (let [made (array-of arrays)] (first-to made (axis-of made axis 0))))
(defmodel hstack [parts] "the arrays of a tuple side by side: vectors one after another, matrices row by row"
  (if (= (rank (get parts 0)) 1) (concatenate parts) (concatenate parts 1)))
(defmodel vstack [parts] "the arrays of a tuple one below the other, a vector as a row"
  (vstack-from parts (- (len parts) 1)))
(defmodel vstack-from [parts k] "the arrays up to k, one below the other"
  (let [a (get parts k)
        rows (if (= (rank a) 1) [a] a)]
    (if (= k 0) rows (concat (vstack-from parts (- k 1)) rows))))
(defmodel column-stack [parts] "the arrays of a tuple side by side, a vector as a column"
  (column-stack-from parts (- (len parts) 1)))
(defmodel column-stack-from [parts k] "the arrays up to k, side by side"
  (let [a (get parts k)
        columns (if (= (rank a) 1) (expand-dims a 1) a)]
    (if (= k 0) columns (along-two (column-stack-from parts (- k 1)) columns 1))))
(defmodel pad [a widths] "zeros before and after along each axis: as many of them, [before after], or a pair for each axis"
  (pad-from a widths (- (rank a) 1)))
(defmodel pad-from [a widths k] "zeros along the axes up to k"
  (if (< k 0)
    a
    (pad-from (by-rows (fn [v] (padded v (pad-width widths k 0) (pad-width widths k 1))) a k) widths (- k 1))))
(defmodel pad-width [widths k side] "how many zeros stand before (side 0) or after along axis k"
  (cond
    (num? widths) widths
    (num? (get widths 0)) (get widths side)
    True (get (get widths k) side)))
(defmodel padded [v before after] "the elements, or rows, with zeros before and after them"
  (do
    (require-at-most 0 before)
    (require-at-most 0 after)
    (build (+ before (len v) after)
      (fn [i] (let [k (- i before)] (if (and (<= 0 k) (< k (len v))) (get v k) (full-from (shape v) 0.0 1)))))))
(defmodel fliplr [m] "each row in the other order" (flip m 1))
(defmodel flipud [m] "the rows in the other order" (backwards m))
(defmodel meshgrid [x y] "two matrices: x in each row, y in each column"
  #((build [(len y) (len x)] (fn [i j] (get x j))) (build [(len y) (len x)] (fn [i j] (get y i)))))
(defmodel vander [x] "the powers of each element, as many as there are elements, down to 0" (vander x (len x)))
(defmodel vander/2 [x n] "the powers n-1 to 0 of each element"
  (build [(len x) n] (fn [i j] (** (get x i) (- n (+ j 1))))))
(defmodel repeat [a k] "each element k times; of a matrix row by row"
  (if (= (rank a) 1) (repeated a k) (repeated (ravel a) k)))
(defmodel repeat/3 [a k axis] "each element k times along an axis"
  (by-rows (fn [v] (repeated v k)) a (axis-of a axis 0)))
(defmodel repeated [v k] "each element, or row, k times" (build (* (len v) k) (fn [i] (get v (// i k)))))
(defmodel tile [a k] "the elements k times over; of a matrix each row; k may have a number for each axis"
  (cond
    (num? k) (by-rows (fn [v] (tiled v k)) a (- (rank a) 1))
    (< (rank a) (len k)) (tile [a] k)
    True (tile-from a k 0)))
(defmodel tile-from [a k j] "the array over and over along the last axes, from that of k's element j on"
  (if (= j (len k))
    a
    (tile-from (by-rows (fn [v] (tiled v (get k j))) a (+ (- (rank a) (len k)) j)) k (+ j 1))))
(defmodel tiled [v k] "the elements, or rows, k times over" (build (* (len v) k) (fn [i] (get v (% i (len v))))))
(defmodel backwards [v] "the elements, or rows, in the other order"
  (build (len v) (fn [i] (get v (- (len v) (+ i 1))))))
(defmodel flip [a] "the elements in the other order, along every axis"
  (if (= (rank a) 1) (backwards a) (backwards (map flip a))))
(defmodel flip/2 [a axis] "the elements in the other order along an axis" (by-rows backwards a (axis-of a axis 0)))
(defmodel roll [a k] "the elements moved k places on, round and round, of several k by all; of a matrix row by row"
  (if (= (rank a) 1) (rolled a k) (reshape (rolled (ravel a) k) (shape a))))
(defmodel roll/3 [a k axis] "the elements moved k places on along an axis, round and round"
  (by-rows (fn [v] (rolled v k)) a (axis-of a axis 0)))
(defmodel rolled [v k] "the elements, or rows, moved k places on, round and round"
  (if (num? k) (build (len v) (fn [i] (get v (% (- i k) (len v))))) (rolled v (fold + 0 k))))
(defmodel ravel [a] "the elements as a vector, row by row"
  (if (= (rank a) 1) a (build (* (len a) (row-size a)) (fn [k] (element-at a k)))))
(defmodel row-size [a] "the number of elements of a row, which may have axes of its own" (size-from a 1))
(defmodel size-from [a axis] "the number of elements of a part from an axis on"
  (if (= (+ axis 1) (rank a))
    (shape a axis)
    (let [n (* (shape a axis) (size-from a (+ axis 1)))] (do (require-at-most 0 n) n))))
(defmodel element-at [a k] "element k, counted row by row"
  (if (= (rank a) 1) (get a k) (let [m (row-size a)] (element-at (get a (// k m)) (% k m)))))
(defmodel reshape [a dims] "the elements in an array of other sizes, of which one may be -1: what the others leave"
  (if (num? dims)
    (let [v (ravel a)] (if (= dims -1) v (do (require-equal (len v) dims) v)))
    (reshape-rows a dims 0)))
(defmodel reshape-rows [a dims k] "an array of the sizes from axis k on; each row by itself where there are as many"
  (cond
    (and (> (rank a) 1) (< (+ k 1) (len dims)) (same-size? (len a) (get dims k)))
      (do
        (require-equal (row-size a) (product-of-sizes (row-size a) dims (+ k 1) (+ k 1)))
        (map (fn [row] (reshape-rows row dims (+ k 1))) a))
    True
      (let [v (ravel a)]
        (do
          (require-equal (len v) (product-of-sizes (len v) dims k k))
          (reshape-from v dims k k 0)))))
(defmodel size-of [n dims k first] "size k of dims, for n elements in an array of the sizes from axis first on"
  (if (= (get dims k) -1) (// n (max 1 (- (product-from dims first)))) (get dims k)))
(defmodel product-of-sizes [n dims k first] "the product of the sizes from axis k on, for n elements"
  (if (= k (len dims)) 1 (* (size-of n dims k first) (product-of-sizes n dims (+ k 1) first))))
(defmodel product-from [dims k] "the product of the sizes from axis k on"
  (if (= k (len dims)) 1 (* (get dims k) (product-from dims (+ k 1)))))
(defmodel reshape-from [v dims k first at] "an array of the sizes from axis k on; at counts the rows before it"
  (if (= k (len dims))
    (get v at)
    (let [n (size-of (len v) dims k first)]
      (build n (fn [i] (reshape-from v dims (+ k 1) first (+ (* at n) i)))))))
(defmodel range-step [k] "the step of a range, which is not 0" (do (require-below 0 (abs k)) k))
(defmodel gather [v at] "the elements at some indices"
  (if (num? at) (get v at) (map (fn [i] (gather v i)) at)))
(defmodel gather/3 [a i j] "the elements at pairs of indices, which are broadcast" (along-pairs a (+ i (* 0 j)) (+ j (* 0 i))))
(defmodel gather/4 [a i j k] "the elements at triples of indices, which are broadcast"
  (along-triples a (+ i (* 0 (+ j k))) (+ j (* 0 (+ i k))) (+ k (* 0 (+ i j)))))
(defmodel along-pairs [a i j] "the elements at pairs of indices"
  (if (num? i) (get a i j) (map (fn [i j] (along-pairs a i j)) i j)))
(defmodel along-triples [a i j k] "the elements at triples of indices"
  (if (num? i) (get a i j k) (map (fn [i j k] (along-triples a i j k)) i j k)))
(defmodel of-parts [f part a at] "f of a part of a at indices; of each part where indices are arrays"
  (if (= (+ (rank part) at) (rank a)) (f part) (map (fn [p] (of-parts f p a at)) part)))
(defmodel take [a at] "the elements at some indices; of a matrix counted row by row" (gather (ravel a) at))
(defmodel take/3 [a at axis] "the parts of an array at some indices along an axis"
  (let [k (axis-of a axis 0)] (if (= k 0) (gather a at) (map (fn [row] (take row at (- k 1))) a))))
(defmodel scatter [v at xs] "an array with some elements replaced; of two at one index, the later one"
  (do
    (require-equal (len at) (len xs))
    (ifold (fn [w k] (update w (get at k) (get xs k))) v (len at))))
(defmodel scatter-add [v at xs] "an array with something added to some elements"
  (do
    (require-equal (len at) (len xs))
    (if (and (reals? v) (= (rank v) 2) (= (rank xs) 2))
      (do
        (require-equal (shape v 1) (shape xs 1))
        (ifold (fn [w k] (add-at w (get at k) (get xs k))) v (len at)))
      (ifold (fn [w k] (let [i (get at k)] (update w i (+ (get w i) (get xs k))))) v (len at)))))
(defmodel where [c a b] "a where c holds, or is a number other than 0, b where not: numbers, arrays, or rows for each of
  a matrix"
  (let [r (max (rank c) (rank a) (rank b))]
    (if (= r 0)
      (if (true-or-not-zero c) a b)
      (let [n (len (if (= (rank c) r) c (if (= (rank a) r) a b)))]
        (do
          (where-fits c r n)
          (where-fits a r n)
          (where-fits b r n)
          (build n (fn [i] (where (where-part c r i) (where-part a r i) (where-part b r i)))))))))
(defmodel put-there [x part] "what comes where a part of an array is: an array of its size, or a row or number for all"
  (if (= (rank x) (rank part))
    (if (= (rank x) 0) x (do (require-equal (len x) (len part)) x))
    (map (fn [row] (put-there x row)) part)))
(defmodel where-fits [a r n] "requires n rows of an array of rank r" (if (= (rank a) r) (require-equal (len a) n) nil))
(defmodel where-part [a r i] "row i of an array of rank r; what has a lower rank is used whole"
  (if (= (rank a) r) (get a i) a))

; ---------------------------------------------------------------- reductions, of all elements or along an axis

(defmodel sum [a] "the sum of all elements, or how many of them are true"
  (cond
    (truths? a) (real (count-nonzero a))
    (= (rank a) 1) (fold + 0.0 a)
    True (fold (fn [s row] (+ s (sum row))) 0.0 a)))
(defmodel prod [a] "the product of all elements"
  (if (= (rank a) 1) (fold * 1.0 a) (fold (fn [s row] (* s (prod row))) 1.0 a)))
(defmodel mean [a] "the mean of all elements" (/ (sum a) (real (size a))))
(defmodel var [a] "the mean square distance from the mean" (mean (square (- a (mean a)))))
(defmodel var/3 [a axis less] "the squares of the distances from the mean, over their number less something"
  (reduced (fn [part] (var-over part less)) a axis))
(defmodel var-over [a less] "the same of all elements"
  (/ (sum (square (- a (mean a)))) (max 0.0 (- (real (size a)) less))))
(defmodel std/3 [a axis less] "the roots of these; their derivatives where all elements are equal are 0"
  (reduced (fn [part] (let [s (var-over part less)] (if (= s 0.0) 0.0 (sqrt s)))) a axis))
(defmodel std [a] "the standard deviation; its derivative where all elements are equal is 0"
  (let [s (var a)] (if (= s 0.0) 0.0 (sqrt s))))
(defmodel amax [a] "the largest element; its derivative is the first one's"
  (if (= (rank a) 1) (fold max (get a 0) a) (fold (fn [m row] (max m (amax row))) (amax (get a 0)) a)))
(defmodel amin [a] "the smallest element; its derivative is the first one's"
  (if (= (rank a) 1) (fold min (get a 0) a) (fold (fn [m row] (min m (amin row))) (amin (get a 0)) a)))
(defmodel argmax [a] "where the largest element is, the first of equals, or the first NaN; in a matrix counted row by row"
  (place-of > a))
(defmodel argmin [a] "where the smallest element is, the first of equals, or the first NaN; in a matrix counted row by row"
  (place-of < a))
(defmodel place-of [beyond a] "where the first NaN is, or else the first element that no other is beyond"
  (let [v (ravel a)
        n (len v)
        number (fn [i] (let [x (get v i)] (if (num? x) x (if x 1 0))))
        step (fn [state i]
               (let [#(best nan) state  x (number i)]
                 #((if (beyond x (snd best)) #(i x) best) (min nan (if (= x x) n i)))))
        #(best nan) (ifold step #(#(0 (number 0)) n) n)]
    (if (< nan n) nan (fst best))))
(defmodel true-or-not-zero [x] "whether a truth value is true, or a number not zero" (if (num? x) (!= x 0) x))
(defmodel any [c] "whether one of them is true, or not zero"
  (if (= (rank c) 1) (fold (fn [s x] (or s (true-or-not-zero x))) False c) (any (map any c))))
(defmodel all [c] "whether all are true, or not zero"
  (if (= (rank c) 1) (fold (fn [s x] (and s (true-or-not-zero x))) True c) (all (map all c))))
(defmodel count-nonzero [a] "how many elements are true, or not zero"
  (if (= (rank a) 1)
    (fold (fn [n x] (if (true-or-not-zero x) (+ n 1) n)) 0 a)
    (fold (fn [n row] (+ n (count-nonzero row))) 0 a)))
(defmodel radians [x] "an angle in degrees, in radians" (* x 0.017453292519943295))
(defmodel degrees [x] "an angle in radians, in degrees" (* x 57.29577951308232))
(defmodel clip [a low high] "the elements, none below low and none above high; no bound is None"
  (let [a (if (null? low) a (max a low))] (if (null? high) a (min a high))))
(defmodel isnan [a] "whether a number is none, for each element" (!= a a))
(defmodel isfinite [a] "whether a number is neither infinite nor NaN, for each element" (= (- a a) 0.0))
(defmodel isinf [a] "whether a number is infinite, for each element" (> (abs a) 1.7976931348623157e308))
(defmodel nansum [a] "the sum of all elements that are not NaN" (sum (where (= a a) a 0.0)))
(defmodel ptp [a] "the largest element less the smallest" (- (amax a) (amin a)))
(defmodel differences [a] "each element less the one before it; of a matrix row by row"
  (steps-along a (- (rank a) 1)))
(defmodel differences/2 [a axis] "each element less the one before it along an axis"
  (do
    (shape a axis)  ; there is such an axis
    (steps-along a (axis-of a axis 0))))
(defmodel steps-along [a k] "the differences along the axis k"
  (if (= k 0)
    (build (max 0 (- (len a) 1)) (fn [i] (- (get a (+ i 1)) (get a i))))
    (map (fn [row] (steps-along row (- k 1))) a)))
(defmodel nth-differences [a] "each element less the one before it; of a matrix row by row" (differences a))
(defmodel nth-differences/2 [a n] "the differences of the differences and so on, n times"
  (if (= n 0) a (nth-differences (differences a) (- n 1))))
(defmodel nth-differences/3 [a n axis] "the differences of the differences and so on, n times, along an axis"
  (if (= n 0) a (nth-differences (differences a axis) (- n 1) axis)))
(defmodel trapezoid [y] "the area below points at distances of 1, by trapezia; of a matrix row by row"
  (if (= (rank y) 1) (* 0.5 (sum (trapezia y))) (map (fn [row] (trapezoid row)) y)))
(defmodel trapezoid/2 [y x] "the area below points at x, by trapezia; of a matrix row by row"
  (cond
    (= (rank y) 1) (* 0.5 (dot (differences x) (trapezia y)))
    (= (rank x) 1) (map (fn [row] (trapezoid row x)) y)
    True (map (fn [row at] (trapezoid row at)) y x)))
(defmodel trapezia [y] "each element and the one before it, added"
  (build (max 0 (- (len y) 1)) (fn [i] (+ (get y (+ i 1)) (get y i)))))
(defmodel cov [m] "the covariances of the rows of a matrix"
  (let [d (- m (expand-dims (mean m 1) 1))] (/ (mat-mul d (transpose d)) (- (real (shape m 1)) 1))))
(defmodel logsumexp [a] "the logarithm of the sum of the exponentials"
  (let [m (constant finite-max a)] (+ m (log (sum (exp (- a m)))))))
(defmodel finite-max [a] "the largest element, or 0 where that is infinite"
  (let [m (amax a)] (if (= (- m m) 0.0) m 0.0)))
(defmodel softmax [a] "the exponentials over their sum"
  (let [e (exp (- a (constant amax a)))  s (sum e)] (map (fn [x] (/ x s)) e)))
(defmodel softmax/2 [a axis] "the exponentials over their sums along an axis" (along softmax a axis))
(defmodel log-softmax [a] "the logarithms of the exponentials over their sum"
  (let [d (- a (constant finite-max a))] (- d (log (sum (exp d))))))
(defmodel log-softmax/2 [a axis] "the logarithms of the exponentials over their sums along an axis"
  (along log-softmax a axis))
(defmodel cumsum [a] "the sums of the first elements, of the first two and so on; of a matrix row by row"
  (if (= (rank a) 1) (scan + 0.0 a) (cumsum (ravel a))))
(defmodel cumprod [a] "the products of the first elements, of the first two and so on; of a matrix row by row"
  (if (= (rank a) 1) (scan * 1.0 a) (cumprod (ravel a))))

; ---------------------------------------------------------------- order

(defmodel argsort [v] "the indices of the elements in rising order, equal ones in the order of their indices, NaN last;
  of a matrix row by row"
  (if (= (rank v) 1) (constant (fn [v] (snd (in-rising-order v))) v) (map argsort v)))
(defmodel sort [v] "the elements in rising order, NaN last; of a matrix row by row"
  (if (= (rank v) 1)
    (let [#(ordered order) (in-rising-order v)]
      (if (reals? v)
        (ruled (fn [v ordered order] ordered)
          (fn [v ordered order result dv] (gather dv order))
          (fn [v ordered order result ct] (scatter-add (zeros [(len v)]) order ct))
          v ordered order)
        ordered))
    (map sort v)))
(defmodel in-order [a b] "whether a stands before b, which comes after it" (or (<= a b) (!= b b)))
(defmodel within [n i] "an index of n elements: i, where it is one" (max 0 (min (- n 1) i)))

; Runs of 64 elements are ordered by counting, then merged, always two of a width, into twice as long ones. What a run
; becomes part of is made 64 elements at a time, each 64 independently of the others: where they begin in the two is
; searched for. What fills the last 64 up is never looked at.
(defmodel in-rising-order [v] "the elements in rising order, equal ones in the order of their indices, and the indices"
  (if (same-size? (min 64 (len v)) (len v))
    (in-order-by-counting v (len v))
    (let [n (len v)
          runs
            (build (// (+ n 63) 64)
              (fn [c]
                (let [first (* 64 c)
                      run (build 64 (fn [t] (get v (min (- n 1) (+ first t)))))
                      #(ordered order) (in-order-by-counting run (min 64 (- n first)))]
                  #(ordered (map (fn [k] (+ first k)) order)))))
          ordered (ref (map fst runs))
          order (ref (map snd runs))
          width (ref 64)]
      (while (< (deref width) n)
        (let [merged (merged-runs (deref ordered) (deref order) n (deref width))]
          (set! ordered (map fst merged))
          (set! order (map snd merged))
          (set! width (* 2 (deref width)))))
      #((slice (ravel (deref ordered)) 0 n) (slice (ravel (deref order)) 0 n)))))
(defmodel in-order-by-counting [v m] "v, its first m elements in rising order, and their indices"
  (ifold (fn [state t]
      (let [#(ordered order) state
            a (get v t)
            before
              (ifold (fn [count s] (let [b (get v s)]
                  (if (if (< s t) (in-order b a) (not (in-order a b))) (+ count 1) count))) 0 m)
            place (within (len v) before)]
        #((update ordered place a) (update order place t))))
    #(v (arange (len v))) m))
(defmodel merged-runs [ordered order n width]
  "n elements and their indices in rows of 64, pairs of ordered runs of a width being merged"
  (build (len ordered)
    (fn [c]
      (let [at (% (* 64 c) (* 2 width))  ; from the beginning of the two runs
            start (- (* 64 c) at)
            middle (min n (+ start width))
            end (min n (+ middle width))
            i (+ start (merge-point ordered start middle end at))
            #(made places _ _)
              (ifold (fn [state t]
                  (let [#(made places i j) state
                        a (at-place ordered i)
                        b (at-place ordered j)
                        first (and (< i middle) (or (>= j end) (in-order a b)))]
                    #((update made t (if first a b))
                      (update places t (if first (at-place order i) (at-place order j)))
                      (if first (+ i 1) i)
                      (if first j (+ j 1)))))
                #((get ordered c) (get order c) i (- (+ start middle at) i)) 64)]
        #(made places)))))
(defmodel merge-point [ordered start middle end at]
  "how many of the first elements of two merged runs, at of them, are the first run's"
  (let [low (ref (max 0 (- at (- end middle))))  high (ref (min at (- middle start)))]
    (while (< (deref low) (deref high))
      (let [k (// (+ (deref low) (deref high)) 2)
            a (at-place ordered (+ start k))
            b (at-place ordered (- (+ middle at) k 1))]
        (if (in-order a b) (set! low (+ k 1)) (set! high k))))
    (deref low)))
(defmodel at-place [rows k] "element k of all rows of 64, the nearest of them if there is none"
  (let [k (within (* 64 (len rows)) k)] (get rows (// k 64) (% k 64))))
(defmodel sort/2 [a axis] "the elements in rising order along an axis" (along sort (if (null? axis) (ravel a) a) axis))
(defmodel argsort/2 [a axis] "the indices of the elements in rising order along an axis"
  (along argsort (if (null? axis) (ravel a) a) axis))
(defmodel median [a] "the middle one of the elements in order, or the mean of the middle two"
  (let [v (sort (ravel a))  n (len v)  last (get v (- n 1))]
    (cond
      (!= last last) last
      (= (% n 2) 1) (get v (// n 2))
      True (* 0.5 (+ (get v (- (// n 2) 1)) (get v (// n 2)))))))
(defmodel median/2 [a axis] "the medians along an axis" (reduced median a axis))
(defmodel quantile [a q] "what the part q of the elements in order is below, or each part of an array"
  (if (= (rank q) 0) (below-part a q) (map (fn [p] (quantile a p)) q)))
(defmodel below-part [a q] "what the part q of the elements in order is below, on the line between two of them"
  (let [v (sort (ravel a))
        at (* q (real (- (len v) 1)))
        k (max 0 (min (- (len v) 2) (int (floor at))))
        q-from-0-to-1 (if (and (<= 0 q) (<= q 1)) k (len v))
        below (get v q-from-0-to-1)
        last (get v (- (len v) 1))]
    (if (or (= (len v) 1) (!= last last))  ; NaN stands last
      last
      (+ below (* (- at (real k)) (- (get v (+ k 1)) below))))))
(defmodel quantile/3 [a q axis] "what the part q of the elements in order along an axis is below"
  (if (= (rank q) 0) (reduced (fn [v] (below-part v q)) a axis) (map (fn [p] (quantile a p axis)) q)))
(defmodel percentile [a q] "what q per cent of the elements in order are below" (quantile a (/ q 100.0)))
(defmodel percentile/3 [a q axis] "what q per cent of the elements in order along an axis are below"
  (quantile a (/ q 100.0) axis))
(defmodel doublings [n] "how often 1 is doubled until it is n or more"
  (fst (ifold (fn [state k] (let [#(count width) state] (if (< width n) #((+ count 1) (* 2 width)) state))) #(0 1) 62)))
(defmodel searchsorted [v x] "how many elements of an ordered vector are less than x, or each x; NaN is more than any"
  (if (num? x)
    (constant (fn [v x]
        (fst (ifold (fn [state step]
            (let [#(low high) state  k (// (+ low high) 2)]
              (if (< low high) (if (in-order x (get v k)) #(low k) #((+ k 1) high)) state)))
          #(0 (len v)) (+ 1 (doublings (len v))))))
      v x)
    (map (fn [one] (searchsorted v one)) x)))
(defmodel interp [x xs ys] "the line through the points (xs, ys), xs rising, at x, or at each x; level beyond the ends"
  (do
    (require-equal (len xs) (len ys))
    (if (num? x) (interp-at x xs ys) (map (fn [one] (interp one xs ys)) x))))
(defmodel interp-at [x xs ys] "the same at a number"
  (let [i (max 0 (min (- (len xs) 2) (- (searchsorted xs x) 1)))
        a (get xs i)
        b (get xs (+ i 1))
        t (clip (/ (- x a) (- b a)) 0.0 1.0)]
    (+ (get ys i) (* t (- (get ys (+ i 1)) (get ys i))))))

; ---------------------------------------------------------------- along an axis

(defmodel along [f a axis] "a function of the vectors along an axis, that gives a number or a vector; of all of the array
  if axis is None"
  (if (null? axis) (f a) (along-from f a (axis-of a axis 0) (shape a axis))))
(defmodel reduced [f a axis] "a function of all elements along an axis, or several; of all of the array if axis is None"
  (if (or (null? axis) (num? axis))
    (along f a axis)
    (of-rows f (axes-last a axis 0) (- (rank a) (len axis)))))
(defmodel of-rows [f a k] "a function of the parts that the axes from k on make"
  (if (= k 0) (f a) (map (fn [row] (of-rows f row (- k 1))) a)))
(defmodel axes-last [a axes k] "an array whose axes that axes names, from its element k on, stand last"
  (if (= k (len axes))
    a
    (do
      (shape a (get axes k))
      (axes-last (moveaxis a (axis-left a axes k 0 (axis-of a (get axes k) 0)) -1) axes (+ k 1)))))
(defmodel axis-left [a axes k e p] "where axis k of axes is, those that the elements e up to k name having gone to the end"
  (if (= e k)
    p
    (let [one (axis-of a (get axes e) 0)  other (axis-of a (get axes k) 0)]
      (axis-left a axes k (+ e 1)
        (cond
          (< one other) (- p 1)
          (= one other) (shape a (rank a))
          True p)))))
(defmodel by-rows [f a k] "a function of the elements, or rows, along axis k"
  (if (= k 0) (f a) (map (fn [row] (by-rows f row (- k 1))) a)))
(defmodel along-from [f a k n] "the same, of n elements each along the axis k"
  (cond
    (> k 0) (map (fn [row] (along-from f row (- k 1) n)) a)
    (= (rank a) 1) (f a)
    True
      (let [made (build (shape a 1) (fn [j] (along-from f (map (fn [row] (get row j)) a) 0 n)))]
        (if (= (rank made) (rank a)) (swap-first made) made))))
(defmodel nansum/2 [a axis] "the sums of what is not NaN along an axis" (reduced nansum a axis))
(defmodel ptp/2 [a axis] "the largest elements less the smallest along an axis" (reduced ptp a axis))
(defmodel sum/2 [a axis] "the sums along an axis" (reduced sum a axis))
(defmodel prod/2 [a axis] "the products along an axis" (reduced prod a axis))
(defmodel mean/2 [a axis] "the means along an axis" (reduced mean a axis))
(defmodel var/2 [a axis] "the mean square distances from the means along an axis" (reduced var a axis))
(defmodel std/2 [a axis] "the standard deviations along an axis" (reduced std a axis))
(defmodel norm/2 [a axis] "the Euclidean lengths along an axis" (reduced norm a axis))
(defmodel amax/2 [a axis] "the largest elements along an axis" (reduced amax a axis))
(defmodel amin/2 [a axis] "the smallest elements along an axis" (reduced amin a axis))
(defmodel argmax/2 [a axis] "where the largest elements along an axis are" (along argmax a axis))
(defmodel argmin/2 [a axis] "where the smallest elements along an axis are" (along argmin a axis))
(defmodel cumsum/2 [a axis] "the sums of the first elements along an axis" (along cumsum a axis))
(defmodel cumprod/2 [a axis] "the products of the first elements along an axis" (along cumprod a axis))
(defmodel count-nonzero/2 [a axis] "how many elements along an axis are true, or not zero" (reduced count-nonzero a axis))
(defmodel any/2 [c axis] "whether one along an axis is true" (reduced any c axis))
(defmodel all/2 [c axis] "whether all along an axis are true" (reduced all c axis))
(defmodel logsumexp/2 [a axis] "the logarithms of the sums of the exponentials along an axis" (reduced logsumexp a axis))

; ---------------------------------------------------------------- linear algebra: each with its derivatives by rule

(defmodel times-row [u x] "the products of the elements of vectors, or of the rows of matrices"
  (if (= (rank u) 1) (outer u x) (mat-mul u (transpose x))))

(defmodel solve-lower [l b] "the solution x of l x = b for a lower triangular matrix l; b is a vector or a matrix"
  (do
    (require-equal (len l) (shape l 1))
    (require-equal (len l) (len b))
    (ruled (fn [l b] (substitute-down l b False))
      (fn [l b x dl db] (solve-lower l (- db (matmul (tril dl) x))))
      (fn [l b x ct] (let [u (solve-lower-transposed l ct)] #((tril (- (times-row u x))) u)))
      l b)))
(defmodel solve-lower-transposed [l b] "the solution x of l' x = b, l' the transpose of a lower triangular matrix"
  (ruled (fn [l b] (substitute-up-transposed l b False))
    (fn [l b x dl db] (solve-lower-transposed l (- db (matmul (transpose (tril dl)) x))))
    (fn [l b x ct] (let [u (solve-lower l ct)] #((tril (- (times-row x u))) u)))
    l b))
(defmodel solve-upper [u b] "the solution x of u x = b for an upper triangular matrix u; b is a vector or a matrix"
  (do
    (require-equal (len u) (shape u 1))
    (require-equal (len u) (len b))
    (ruled substitute-up
      (fn [u b x du db] (solve-upper u (- db (matmul (triu du) x))))
      (fn [u b x ct] (let [l (solve-upper-transposed u ct)] #((triu (- (times-row l x))) l)))
      u b)))
(defmodel solve-upper-transposed [u b] "the solution x of u' x = b, u' the transpose of an upper triangular matrix"
  (ruled (fn [u b] (substitute-down-transposed u b False))
    (fn [u b x du db] (solve-upper-transposed u (- db (matmul (transpose (triu du)) x))))
    (fn [u b x ct] (let [l (solve-upper u ct)] #((triu (- (times-row x l))) l)))
    u b))

; Substitution reads triangles by rows, and rows of a matrix on the right side are sums of rows before or after them.
; What the other triangle holds is not read. Ones are taken for the diagonal where unit is true.
(defmodel substitute-down [l b unit] "forward substitution"
  (if (= (rank b) 1)
    (ifold (fn [x i]
        (update x i (over-pivot (ifold (fn [s k] (- s (* (get l i k) (get x k)))) (get x i) i) l i unit)))
      b (len l))
    (ifold (fn [x i]
        (update x i
          (build (shape b 1)
            (fn [j]
              (over-pivot (- (get b i j) (ifold (fn [s k] (+ s (* (get l i k) (get x k j)))) 0.0 i)) l i unit)))))
      b (len l))))
(defmodel substitute-up [u b] "backward substitution"
  (ifold (fn [x t]
      (let [i (- (len u) (+ t 1))]
        (update x i
          (if (= (rank b) 1)
            (/ (ifold (fn [s k] (- s (* (get u i (+ i 1 k)) (get x (+ i 1 k))))) (get x i) t) (get u i i))
            (build (shape b 1)
              (fn [j]
                (/ (- (get b i j) (ifold (fn [s k] (+ s (* (get u i (+ i 1 k)) (get x (+ i 1 k) j)))) 0.0 t))
                  (get u i i))))))))
    b (len u)))
(defmodel substitute-down-transposed [u b unit] "forward substitution with the transpose of an upper triangle"
  (ifold (fn [x i]
      (if (= (rank b) 1)
        (let [y (over-pivot (get x i) u i unit)]
          (ifold (fn [x k] (let [j (+ i 1 k)] (update x j (- (get x j) (* y (get u i j)))))) (update x i y)
            (- (len u) (+ i 1))))
        (update x i
          (build (shape b 1)
            (fn [j]
              (over-pivot (- (get b i j) (ifold (fn [s k] (+ s (* (get u k i) (get x k j)))) 0.0 i)) u i unit))))))
    b (len u)))
(defmodel substitute-up-transposed [l b unit] "backward substitution with the transpose of a lower triangle"
  (ifold (fn [x t]
      (let [i (- (len l) (+ t 1))]
        (if (= (rank b) 1)
          (let [y (over-pivot (get x i) l i unit)]
            (ifold (fn [x j] (update x j (- (get x j) (* y (get l i j))))) (update x i y) i))
          (update x i
            (build (shape b 1)
              (fn [j]
                (over-pivot
                  (- (get b i j) (ifold (fn [s k] (+ s (* (get l (+ i 1 k) i) (get x (+ i 1 k) j)))) 0.0 t))
                  l i unit)))))))
    b (len l)))
(defmodel over-pivot [s l i unit] "a number over the element of the diagonal" (if unit s (/ s (get l i i))))

(defmodel lu [a] "the LU factors of a matrix with its rows exchanged, one below the diagonal and one above, and the order
of the rows"
  (lu/2 a (len a)))
(defmodel lu/2 [a steps] "the same after so many steps"
  (let [n (len a)]
    (ifold (fn [state k]
        (let [#(a order) state
              p (fst (ifold (fn [best i] (let [x (abs (get a (+ k i) k))] (if (> x (snd best)) #((+ k i) x) best)))
                       #(k (abs (get a k k))) (- n k)))
              p (max k (min p (- n 1)))]  ; it is that anyway, and now it is known to be: nothing is left to check
          #((ifold (fn [a i]
                (let [r (+ k 1 i)
                      pivot (get a k k)
                      f (/ (get a r k) (if (= pivot 0) 1 pivot))]  ; zeros below a pivot of zero stay
                  (ifold (fn [a j] (let [c (+ k 1 j)] (update a r c (- (get a r c) (* f (get a k c))))))
                    (update a r k f) (- n (+ k 1)))))
              (ifold (fn [a j] (let [x (get a k j)] (update (update a k j (get a p j)) p j x))) a n)
              (- n (+ k 1)))
            (let [x (get order k)] (update (update order k (get order p)) p x)))))
      #(a (arange n)) steps)))
(defmodel lu-solve [f order b] "the solution of a x = b from a's LU factors; of a vector by rows of their transpose"
  (let [b (rows-in-order order b)]
    (if (= (rank b) 1)
      (let [t (transpose f)] (substitute-up-transposed t (substitute-down-transposed t b True) False))
      (substitute-up f (substitute-down f b True)))))
(defmodel lu-solve-transposed [f order b] "the solution of a' x = b, a' the transpose, from a's LU factors"
  (in-order-of order (substitute-up-transposed f (substitute-down-transposed f b False) True)))
(defmodel rows-in-order [order b] "the rows in an order" (map (fn [k] (get b (index-below k (len b)))) order))
(defmodel in-order-of [order x] "row k of x at the place that order has at k, for each k"
  (ifold (fn [y k] (update y (index-below (get order k) (len x)) (get x k))) (zeros (shape x)) (len order)))
(defmodel index-below [k n] "an index below n, which it is anyway: nothing is left to check, and loops may move"
  (max 0 (min k (- n 1))))
(defmodel lu-inverse [f order] "the inverse from the LU factors: of the lower one first, row by row"
  (transpose (in-order-of order (transpose (substitute-up f (unit-lower-inverse f))))))
(defmodel unit-lower-inverse [f] "the inverse of the lower one of the LU factors, which has ones on the diagonal"
  (ifold (fn [l i]
      (let [row (build i (fn [j] (ifold (fn [s k] (+ s (* (get f i k) (get l k j)))) 0.0 i)))]
        (ifold (fn [l j] (update l i j (- (get row j)))) l i)))
    (eye (len f)) (len f)))

(defmodel solve [a b] "the solution x of a x = b; b is a vector or a matrix; of a stack of each, each one's"
  (if (> (rank a) 2) (map solve a b) (solve-one a b)))
(defmodel solve-one [a b] "the solution x of a x = b for a matrix a"
  (do
    (require-equal (len a) (shape a 1))
    (require-equal (len a) (len b))
    (cond
      (not (null? (band-of a))) (let [#(rows l) (banded a)] (solve-banded (constant band-lu rows l) rows b l))
      (lower-triangular? a) (solve-lower a b)
      (upper-triangular? a) (solve-upper a b)
      (same-size? (len a) 2) (solve-two (if (symmetric? a) (by-lower-triangle a) a) b)
      (symmetric? a) (let [a (by-lower-triangle a)  factors (constant factored-symmetric a)]
        (note-result solve-symmetric (solve-symmetric factors a b) b #(factors a)))
      True (let [#(f order) (constant lu a)] (solve-factored f order a b)))))
(defmodel solve-from-left [a b] "the solution x of x a = b, for a vector b"
  (do
    (require-equal (len a) (len b))
    (cond
      (symmetric? a) (solve a b)
      (same-size? (len a) 2) (solve-two (transpose a) b)
      (not (null? (band-of a)))
        (let [#(rows l) (banded a)] (solve-banded-transposed (constant band-lu rows l) rows b l))
      (lower-triangular? a) (solve-lower-transposed a b)
      (upper-triangular? a) (solve-upper-transposed a b)
      True (let [#(f order) (constant lu a)] (solve-transposed f order a b)))))
(defmodel solve-factored [f order a b] "the solution of a x = b, its derivatives too, from a's LU factors"
  (ruled (fn [a b f order] (lu-solve f order b))
    (fn [a b f order x da db] (solve-factored f order a (- db (matmul da x))))
    (fn [a b f order x ct] (let [u (solve-transposed f order a ct)] #((- (times-row u x)) u)))
    a b f order))
(defmodel solve-transposed [f order a b] "the solution of a' x = b, a' the transpose, from a's LU factors"
  (ruled (fn [a b f order] (lu-solve-transposed f order b))
    (fn [a b f order x da db] (solve-transposed f order a (- db (matmul (transpose da) x))))
    (fn [a b f order x ct] (let [u (solve-factored f order a ct)] #((- (times-row x u)) u)))
    a b f order))
(defmodel inv [a] "the inverse; of a stack of matrices, each one's"
  (if (> (rank a) 2) (map inv a) (inv-one a)))
(defmodel inv-one [a] "the inverse of a matrix"
  (do
    (require-equal (len a) (shape a 1))
    (note-result inv
      (cond
        (lower-triangular? a) (note-lower (solve-lower a (eye (len a))))
        (upper-triangular? a) (solve-upper a (eye (len a)))
        (same-size? (len a) 2) (inv-two (if (symmetric? a) (by-lower-triangle a) a))
        (symmetric? a) (let [a (by-lower-triangle a)] (inv-symmetric (constant factored-symmetric a) a))
        True (let [#(f order) (constant lu a)] (inv-factored f order a)))
      a)))
(defmodel inv-factored [f order a] "the inverse, its derivatives too, from a's LU factors"
  (ruled (fn [a f order] (lu-inverse f order))
    (fn [a f order x da] (- (mat-mul x (mat-mul da x))))
    (fn [a f order x ct] (let [t (transpose x)] (- (mat-mul (mat-mul t ct) t))))
    a f order))
(defmodel det [a] "the determinant; of a stack of matrices, each one's"
  (if (> (rank a) 2) (map det a) (det-of-one a)))
(defmodel det-of-one [a] "the determinant of a matrix"
  (do
    (require-equal (len a) (shape a 1))
    (cond
      (not (null? (band-of a)))
        (let [#(rows l) (banded a)  #(f r m p ordered) (band-lu rows l)]
          (ifold (fn [d k] (/ (if (= (get p k) 0) d (- d)) (get r k))) 1.0 (len r)))
      (same-size? (len a) 2) (det-two (if (symmetric? a) (by-lower-triangle a) a))
      True (let [#(f order) (constant lu a)]
        (ruled (fn [a f order] (lu-det f order))
          (fn [a f order d da] (* d (trace (solve-factored f order a da))))
          (fn [a f order d ct] (* (* ct d) (transpose (inv-factored f order a))))
          a f order)))))
(defmodel lu-det [f order] "the determinant from the LU factors: the diagonal's product, its sign that of the order"
  (* (ifold (fn [p i] (* p (get f i i))) 1.0 (len f)) (order-sign order)))
(defmodel order-sign [order] "1 or -1: for an even or an odd number of exchanges"
  (ifold (fn [s i] (ifold (fn [s j] (if (> (get order j) (get order i)) (- s) s)) s i)) 1.0 (len order)))
(defmodel logdet [a] "the logarithm of the determinant's magnitude; of a stack of matrices, each one's"
  (if (> (rank a) 2) (map logdet a) (logdet-of-one a)))
(defmodel slogdet [a] "the sign of the determinant, and the logarithm of its magnitude"
  #((constant (fn [a] (sign (det a))) a) (logdet a)))
(defmodel logdet-of-one [a] "the logarithm of the determinant's magnitude"
  (do
    (require-equal (len a) (shape a 1))
    (cond
      (not (null? (band-of a)))
        (let [#(rows l) (banded a)  #(f r m p ordered) (band-lu rows l)] (ifold (fn [s k] (- s (log (abs (get r k))))) 0.0 (len r)))
      (same-size? (len a) 2) (logdet-two (if (symmetric? a) (by-lower-triangle a) a))
      (symmetric? a) (let [a (by-lower-triangle a)] (logdet-symmetric (constant factored-symmetric a) a))
      True (let [#(f order) (constant lu a)]
        (ruled (fn [a f order] (lu-logdet f))
          (fn [a f order d da] (trace (solve-factored f order a da)))
          (fn [a f order d ct] (* ct (transpose (inv-factored f order a))))
          a f order)))))
(defmodel lu-logdet [f] "the logarithm of the determinant's magnitude from the LU factors"
  (ifold (fn [s i] (+ s (log (abs (get f i i))))) 0.0 (len f)))

; Of a matrix that is known to have two rows the inverse is the adjugate over the determinant: one division, in place of
; three that wait for one another. The error is at most some units of the condition number, as it is by elimination, for
; two rows alone (Higham, Accuracy and Stability of Numerical Algorithms, section 1.10.1). Where the determinant is out of
; the range of numbers, or near its ends, the matrix is taken apart.
(defmodel upper-right [a] "the element beside the diagonal of one of two rows: the one below it, if that is the same"
  (if (symmetric? a) (get a 1 0) (get a 0 1)))
(defmodel det-two [a] "the determinant of two rows" (- (* (get a 0 0) (get a 1 1)) (* (upper-right a) (get a 1 0))))
(defmodel well-scaled [d]
  "whether a determinant is well within the range of numbers, floats among them"
  (< 1e-30 (abs d) 1e30))
(defmodel inv-two [a] "the inverse of two rows, its derivatives too"
  (ruled (fn [a]
      (let [d (det-two a)
            r (/ 1.0 d)
            #(p q s t)
              (if (well-scaled d)
                #((* r (get a 1 1)) (- (* r (upper-right a))) (- (* r (get a 1 0))) (* r (get a 0 0)))
                (let [#(f order) (lu a)  x (lu-inverse f order)] #((get x 0 0) (get x 0 1) (get x 1 0) (get x 1 1))))]
        [[p q] [s t]]))
    (fn [a x da] (- (mat-mul x (mat-mul da x))))
    (fn [a x ct] (let [t (transpose x)] (- (mat-mul (mat-mul t ct) t))))
    a))
(defmodel solve-two [a b] "the solution x of a x = b for two rows, its derivatives too"
  (ruled (fn [a b]
      (let [d (det-two a)  r (/ 1.0 d)]
        (if (well-scaled d)
          (let [p (get b 0)  q (get b 1)]
            [(* r (- (* (get a 1 1) p) (* (upper-right a) q))) (* r (- (* (get a 0 0) q) (* (get a 1 0) p)))])
          (let [#(f order) (lu a)] (lu-solve f order b)))))
    (fn [a b x da db] (solve-two a (- db (matmul da x))))
    (fn [a b x ct] (let [u (solve-two (transpose a) ct)] #((- (times-row u x)) u)))
    a b))
(defmodel logdet-two [a] "the logarithm of the magnitude of the determinant of two rows, its derivatives too"
  (ruled (fn [a] (let [d (det-two a)] (if (well-scaled d) (log (abs d)) (let [#(f order) (lu a)] (lu-logdet f)))))
    (fn [a d da] (trace (solve-two a da)))
    (fn [a d ct] (* ct (transpose (inv-two a))))
    a))

; Of a matrix that is made with l diagonals below the main one and u above it, all others zeros, those are read: w
; numbers of each row. It is taken apart row by row: the next rows, as many as may be exchanged, each from the pivot's column on,
; are all that is at hand. As rows may be exchanged, those of the upper factor are as long as those of the matrix;
; where none were, what is then not zero is no wider than the matrix was.
(defmodel banded [a] "the diagonals of a matrix that is known to have few, by rows, and how many are below the main one"
  (let [#(l u) (band-of a)  l (max l 1)] #((band-rows a l u) l)))
(defmodel band-rows [a l u] "the diagonals of a matrix by rows, l below the main one and u above; zeros beyond its columns"
  (build [(len a) (+ l u 1)]
    (fn [i d] (let [j (+ i (- d l))] (if (and (<= 0 j) (< j (shape a 1))) (get a i j) 0.0)))))
(defmodel band-lu [rows l] "the factors of a matrix with l diagonals below the main one, at least one: rows of the upper
one right of its diagonal of ones; reciprocals of what is between the two; what of each row goes to the next l; which of
them comes first; whether none was exchanged"
  (let [n (len rows)
        w (shape rows 1)
        start (build [(+ l 1) w]
                (fn [i c] (let [d (+ c (- l i))] (if (and (< d w) (< i n)) (get rows i (min d (- w 1))) 0.0))))
        #(s ordered f r m p) (loop n (fn [k s ordered] (band-step rows l n k s ordered)) start True)]
    #(f r m p ordered)))
(defmodel band-step [rows l n k s ordered] "the rows at hand after step k; a row of the factors"
  (let [w (shape rows 1)
        p (fst (ifold (fn [best i] (let [x (abs (get s (+ i 1) 0))] (if (> x (snd best)) #((+ i 1) x) best)))
                 #(0 (abs (get s 0 0))) l))
        top (if (< l 4)
              (build w (fn [c] (ifold (fn [x i] (if (= p (+ i 1)) (get s (+ i 1) c) x)) (get s 0 c) l)))
              (get s (index-below p (+ l 1))))
        pivot (get top 0)
        over (/ 1.0 (if (= pivot 0) 1.0 pivot))
        others (build [l w] (fn [i c] (if (= p (+ i 1)) (get s 0 c) (get s (+ i 1) c))))
        m (build l (fn [i] (* over (get others i 0))))
        next (+ k 1 l)]
    #((build [(+ l 1) w]
        (fn [i c]
          (cond
            (= i l) (if (< next n) (get rows next c) 0.0)
            (= c (- w 1)) 0.0
            True (- (get others i (+ c 1)) (* (get m i) (get top (+ c 1)))))))
      (and ordered (= p 0))
      (build (- w 1) (fn [c] (* over (get top (+ c 1))))) (if (= pivot 0) (/ 1.0 pivot) over) m p)))
(defmodel band-solve [factors b] "the solution of a x = b from a's factors"
  (let [#(f r m p ordered) factors
        n (len f)
        l (shape m 1)
        w (shape f 1)
        y (with-zeros b w)]
    (cut (if ordered
           (band-up f r (band-down m y n l) n (- w l))
           (band-up f r (band-down-exchanged m p y n l) n w))
      0 n)))
(defmodel band-down [m y n l] "what the lower factor leaves"
  (ifold (fn [y k] (ifold (fn [y i] (let [j (+ k 1 i)] (update y j (- (get y j) (* (get m k i) (get y k)))))) y l))
    y n))
(defmodel band-down-exchanged [m p y n l] "the same where rows are exchanged"
  (ifold (fn [y k]
      (let [first (+ k (index-below (get p k) (+ l 1)))  x (get y k)  t (get y first)]
        (update
          (ifold (fn [y i] (let [j (+ k 1 i)] (update y j (- (if (= first j) x (get y j)) (* (get m k i) t))))) y l)
          k t)))
    y n))
(defmodel band-up [f r y n w] "what the upper factor leaves, w elements of each row"
  (ifold (fn [x i]
      (let [k (- n (+ i 1))]
        (update x k
          (ifold (fn [s c] (let [j (- w c)] (- s (* (get f k (- j 1)) (get x (+ k j)))))) (* (get r k) (get x k)) w))))
    y n))
(defmodel band-solve-transposed [factors b] "the solution of a' x = b, a' the transpose, from a's factors"
  (let [#(f r m p ordered) factors
        n (len f)
        l (shape m 1)
        w (shape f 1)
        y (with-zeros b w)]
    (cut (if ordered
           (band-up m r (band-down f y n (- w l)) n l)
           (band-up-exchanged m r p (band-down f y n w) n l))
      0 n)))
(defmodel band-up-exchanged [m r p y n l] "what the transpose of the lower factor leaves where rows are exchanged"
  (ifold (fn [x i]
      (let [k (- n (+ i 1))
            first (+ k (index-below (get p k) (+ l 1)))
            t (ifold (fn [s j] (- s (* (get m k j) (get x (+ k 1 j))))) (* (get r k) (get x k)) l)]
        (update (update x k (get x first)) first t)))
    y n))
(defmodel with-zeros [b k] "a vector, or the rows of a matrix, and k more of zeros"
  (let [n (len b)]
    (if (= (rank b) 1)
      (build (+ n k) (fn [i] (if (< i n) (get b i) 0.0)))
      (build [(+ n k) (shape b 1)] (fn [i j] (if (< i n) (get b i j) 0.0))))))
(defmodel band-product [rows x l] "the product of a matrix with l diagonals below the main one and x"
  (let [f (fn [i g] (band-sum (fn [d j] (* (get rows i d) (g j))) i l (shape rows 1) (len x)))]
    (if (= (rank x) 1)
      (build (len rows) (fn [i] (f i (fn [j] (get x j)))))
      (build [(len rows) (shape x 1)] (fn [i k] (f i (fn [j] (get x j k))))))))
(defmodel band-sum [f i l w n] "the sum of f of d below w and i + d - l, where that is an index below n"
  (ifold (fn [s d] (let [j (+ i (- d l))] (if (and (<= 0 j) (< j n)) (+ s (f d j)) s))) 0.0 w))
(defmodel band-outer [x y l w] "minus the products of the elements, or rows, of x and y in a band, by rows"
  (build [(len x) w]
    (fn [i d]
      (let [j (+ i (- d l))]
        (if (and (<= 0 j) (< j (len y)))
          (- (if (= (rank x) 1) (* (get x i) (get y j)) (dot (get x i) (get y j))))
          0.0)))))
(defmodel turned-rows [rows l] "the diagonals of the transpose of a matrix, by rows"
  (let [n (len rows)  w (shape rows 1)]
    (build [n w]
      (fn [i d] (let [j (- (+ i d l 1) w)] (if (and (<= 0 j) (< j n)) (get rows j (- (- w 1) d)) 0.0))))))
(defmodel solve-banded [factors rows b l] "the solution of a x = b, its derivatives too, from a's factors and diagonals"
  (let [#(f r m p ordered) factors]
    (ruled (fn [rows b f r m p ordered l] (band-solve #(f r m p ordered) b))
      (fn [rows b f r m p ordered l x drows db]
        (solve-banded #(f r m p ordered) rows (- db (band-product drows x l)) l))
      (fn [rows b f r m p ordered l x ct]
        (let [v (solve-banded-transposed #(f r m p ordered) rows ct l)] #((band-outer v x l (shape rows 1)) v)))
      rows b f r m p ordered l)))
(defmodel solve-banded-transposed [factors rows b l] "the solution of a' x = b, a' the transpose"
  (let [#(f r m p ordered) factors]
    (ruled (fn [rows b f r m p ordered l] (band-solve-transposed #(f r m p ordered) b))
      (fn [rows b f r m p ordered l x drows db]
        (let [u (- (shape rows 1) (+ l 1))]
          (solve-banded-transposed #(f r m p ordered) rows (- db (band-product (turned-rows drows l) x u)) l)))
      (fn [rows b f r m p ordered l x ct]
        (let [v (solve-banded #(f r m p ordered) rows ct l)] #((band-outer x v l (shape rows 1)) v)))
      rows b f r m p ordered l)))

; Of a symmetric matrix one triangle is read, and has the derivatives. Its factors have ones on the diagonal: one below
; it, one above, and a diagonal between them. Where it is positive definite, which shows while it is factored, its rows
; stay in their order, one factor is the transpose of the other, and half of the work is left out.
(defmodel by-lower-triangle [a] "a symmetric matrix, its derivatives all by the lower triangle"
  (ruled (fn [a] a) (fn [a s da] da) (fn [a s ct] (folded-down ct)) a))
(defmodel folded-down [g] "the lower triangle with what is above the diagonal added"
  (build (shape g) (fn [i j] (if (< j i) (+ (get g i j) (get g j i)) (if (= i j) (get g i i) 0.0)))))
(defmodel mirrored [a m rows] "m with so many rows and columns of a symmetric matrix, of which the lower triangle is read"
  (ifold (fn [m i] (ifold (fn [m j] (let [x (get a i j)] (update (update m i j x) j i x))) m (+ i 1))) m rows))
(defmodel factored-symmetric [a]
  "the factors of a symmetric matrix, the order of the rows, and whether it is positive definite"
  (let [n (len a)
        #(f definite) (eliminate-symmetric (mirrored a (zeros-of n n) n))
        again (if definite 0 n)
        #(f order) (lu (mirrored a f again) again)
        f (ifold (fn [f i]
              (let [p (get f i i)]
                (ifold (fn [f j] (let [c (+ i 1 j)] (update f i c (/ (get f i c) p)))) f (- n (+ i 1)))))
            f n)]
    #(f order definite)))
(defmodel eliminate-symmetric [a] "the LU factors where no rows need to be exchanged, and whether all pivots are positive"
  (let [n (len a)]
    (ifold (fn [state i]
        (let [#(f definite) state]
          (if definite
            (let [row (build (- n i)
                    (fn [j] (- (get f i (+ i j)) (ifold (fn [s k] (+ s (* (get f i k) (get f k (+ i j))))) 0.0 i))))
                  p (get row 0)
                  over (/ 1.0 p)]
              #((ifold (fn [f j] (let [c (+ i 1 j)  x (get row (+ j 1))] (update (update f i c x) c i (* over x))))
                  (update f i i p) (- n (+ i 1)))
                (> p 2.3e-308)))
            state)))
      #(a True) n)))
(defmodel forward-symmetric [f b] "forward substitution with the lower factor, which lies above the diagonal as well"
  (ifold (fn [x i]
      (let [y (get x i)]
        (ifold (fn [x k] (let [j (+ i 1 k)] (update x j (- (get x j) (* y (get f i j)))))) x (- (len f) (+ i 1)))))
    b (len f)))
(defmodel backward-symmetric [f b] "backward substitution with its transpose"
  (ifold (fn [x t]
      (let [i (- (len f) (+ t 1))  y (get x i)]
        (ifold (fn [x j] (update x j (- (get x j) (* y (get f i j))))) x i)))
    b (len f)))
(defmodel over-diagonal [b f] "each row over the element of the diagonal" (map (fn [row p] (/ row p)) b (diag f)))
(defmodel substitute-symmetric [f order b] "the solution of a x = b from a's factors"
  (let [t (transpose f)  y (substitute-down-transposed t (rows-in-order order b) True)]
    (substitute-up-transposed t (over-diagonal y f) True)))
(defmodel solve-symmetric [factors a b] "the solution of a x = b, its derivatives too, for a symmetric matrix"
  (let [#(f order definite) factors]
    (ruled (fn [a b f order definite]
        (if (= (rank b) 1)
          (if definite
            (backward-symmetric f (over-diagonal (forward-symmetric f b) f))
            (substitute-symmetric f order b))
          (substitute-symmetric f order b)))
      (fn [a b f order definite x da db] (solve-symmetric #(f order definite) a (- db (matmul da x))))
      (fn [a b f order definite x ct]
        (let [u (solve-symmetric #(f order definite) a ct)] #((- (times-row u x)) u)))
      a b f order definite)))
(defmodel quadratic-form [b made] "b times the solution of a x = b, for a symmetric matrix a"
  (let [#(factors a) made  #(f order definite) factors]
    (ruled (fn [a b f order definite]
        (if definite
          (let [y (forward-symmetric f b)] (ifold (fn [s i] (+ s (/ (square (get y i)) (get f i i)))) 0.0 (len y)))
          (fold (fn [s x y] (+ s (* x y))) 0.0 b (substitute-symmetric f order b))))
      (fn [a b f order definite q da db]
        (let [x (solve-symmetric #(f order definite) a b)] (- (* 2 (dot x db)) (dot x (mat-vec da x)))))
      (fn [a b f order definite q ct]
        (let [x (solve-symmetric #(f order definite) a b)] #((* (- ct) (outer x x)) (* (* 2 ct) x))))
      a b f order definite)))
(defmodel inv-symmetric [factors a] "the inverse, its derivatives too, of a symmetric matrix"
  (let [#(f order definite) factors]
    (ruled (fn [a f order definite] (let [x (inverse-below f order definite)]
          (build (shape x) (fn [i j] (if (<= j i) (get x i j) (get x j i))))))
      (fn [a f order definite x da] (- (mat-mul x (mat-mul da x))))
      (fn [a f order definite x ct] (- (mat-mul (mat-mul x ct) x)))
      a f order definite)))
(defmodel inverse-below [f order definite]
  "the inverse of a symmetric matrix from its factors; its lower triangle where it is positive definite"
  (let [n (len f)
        more (if definite 0 n)
        x (ifold (fn [x t]
              (let [i (- n (+ t 1))
                    row (build (min n (+ i 1 more))
                        (fn [j] (ifold (fn [s k] (+ s (* (get f i (+ i 1 k)) (get x (+ i 1 k) j)))) 0.0 t)))
                    p (get f i i)]
                (ifold (fn [x j] (update x i j (- (/ (get x i j) p) (get row j)))) x (len row))))
            (unit-lower-inverse f) n)]
    (ifold (fn [x i] (update x i (in-order-of order (get x i)))) x more)))
(defmodel logdet-symmetric [factors a] "the logarithm of the determinant's magnitude, of a symmetric matrix"
  (let [#(f order definite) factors]
    (ruled (fn [a f order definite] (lu-logdet f))
      (fn [a f order definite d da] (trace (solve-symmetric #(f order definite) a da)))
      (fn [a f order definite d ct]
        (let [x (inv-symmetric #(f order definite) a)]
          (build (shape a) (fn [i j] (if (< j i) (* (* 2 ct) (get x i j)) (if (= i j) (* ct (get x i i)) 0.0))))))
      a f order definite)))

(defmodel cholesky [a] "the lower triangular matrix whose product with its transpose is a; reads a's lower triangle"
  (if (> (rank a) 2) (map cholesky a) (cholesky-of-one a)))
(defmodel cholesky-of-one [a] "Cholesky's factor of a matrix"
  (do
    (require-equal (len a) (shape a 1))
    (note-lower
      (ruled cholesky-rows
        (fn [a l da]
          (let [s (tril da)  h (half-lower (mirrored-solve l (- (+ s (transpose s)) (diag (diag s)))))] (mat-mul l h)))
        (fn [a l ct] (cholesky-adjoint l ct))
        a))))
(defmodel half-lower [m] "the lower triangle, with half of the diagonal"
  (build (shape m) (fn [i j] (if (< j i) (get m i j) (if (= i j) (* 0.5 (get m i i)) 0.0)))))
(defmodel mirrored-solve [l s] "the inverse of l times s times the inverse of l's transpose"
  (solve-lower l (transpose (solve-lower l s))))
(defmodel cholesky-rows [a] "Cholesky's factor: the rows of its transpose, each less the products of those before it"
  (let [n (len a)]
    (transpose
      (ifold (fn [u i]
          (let [row (build (- n i)
                      (fn [j]
                        (- (get u i (+ i j)) (ifold (fn [s k] (+ s (* (get u k i) (get u k (+ i j))))) 0.0 i))))
                p (sqrt (get row 0))]
            (ifold (fn [u j] (let [c (+ i 1 j)] (update u i c (/ (get row (+ j 1)) p)))) (update u i i p)
              (- n (+ i 1)))))
        (ifold (fn [u i] (ifold (fn [u j] (update u j i (get a i j))) u (+ i 1))) (zeros [n n]) n) n))))
(defmodel cholesky-adjoint [l ct]
  "the adjoint of a's lower triangle for that of its factor l: the last row first, what the rows after it leave of its
adjoint, over l (I. Murray, Differentiation of the Cholesky decomposition, 2016)"
  (let [n (len l)
        s (ifold (fn [s t]
              (let [i (- n (+ t 1))
                    left (build (+ i 1)
                           (fn [j]
                             (- (get ct i j)
                               (ifold (fn [x m] (let [r (+ i 1 m)] (+ x (* (get s r i) (get l r j))))) 0.0 t))))
                    row (ifold (fn [x t]
                            (let [k (- i t)  y (/ (get x k) (get l k k))]
                              (ifold (fn [x j] (update x j (- (get x j) (* y (get l k j))))) (update x k y) k)))
                          left (+ i 1))]
                (ifold (fn [s j] (update s i j (get row j))) s (+ i 1))))
            (zeros [n n]) n)]
    (half-lower s)))
(defmodel solve-cholesky [l b] "the solution of a x = b from a's Cholesky factor l"
  (solve-lower-transposed l (solve-lower l b)))

; ---------------------------------------------------------------- dF~ Fig. 4 in its own names and order of arguments

(defmodel length [v] "the number of elements" (len v))
(defmodel pair [a b] "a pair" #(a b))
(defmodel vector-range [n] "the integers below n" (build n (fn [i] i)))
(defmodel vector-fill [n e] "n times e" (build n (fn [i] e)))
(defmodel vector-zeros [n] "n zeros" (vector-fill n 0.0))
(defmodel vector-ones [n] "n ones" (vector-fill n 1.0))
(defmodel vector-hot [n i] "n zeros with a one at i" (one-hot n i))
(defmodel vector-map [v f] "f of each element" (map f v))
(defmodel vector-map2 [v1 v2 f] "f of the elements of two vectors" (map f v1 v2))
(defmodel vector-zip [v1 v2] "the pairs of elements" (map pair v1 v2))
(defmodel vector-add [v1 v2] "the sum of two vectors" (vec-add v1 v2))
(defmodel vector-sub [v1 v2] "the difference of two vectors" (vec-sub v1 v2))
(defmodel vector-e-mul [v1 v2] "the product, element by element" (vec-mul v1 v2))
(defmodel vector-s-mul [v s] "a vector times a number" (map (fn [a] (* a s)) v))
(defmodel vector-sum [v] "the sum of the elements" (vec-sum v))
(defmodel vector-dot [v1 v2] "the inner product" (dot v1 v2))
(defmodel vector-cross [v1 v2] "the vector product in three dimensions" (cross v1 v2))
(defmodel vector-norm [v] "the Euclidean length" (norm v))
(defmodel vector-slice [v s e] "the elements from s to e, both included" (slice v s (+ e 1)))
(defmodel vector-to-matrix [v] "the matrix of one row" (build 1 (fn [i] v)))
(defmodel vector-out-prod [v1 v2] "the matrix of all products" (outer v1 v2))
(defmodel matrix-rows [m] "the number of rows" (len m))
(defmodel matrix-cols [m] "the number of columns" (shape m 1))
(defmodel matrix-fill [r c e] "r rows of c times e" (build [r c] (fn [i j] e)))
(defmodel matrix-zeros [r c] "a matrix of zeros" (matrix-fill r c 0.0))
(defmodel matrix-ones [r c] "a matrix of ones" (matrix-fill r c 1.0))
(defmodel matrix-eye [n] "the identity matrix" (eye n))
(defmodel matrix-hot [n m r c] "zeros with a one at row r, column c"
  (build [n m] (fn [i j] (if (and (= i r) (= j c)) 1.0 0.0))))
(defmodel matrix-map [m f] "f of each row" (map f m))
(defmodel matrix-map2 [m1 m2 f] "f of the rows of two matrices" (map f m1 m2))
(defmodel matrix-zip [m1 m2] "the pairs of elements" (map vector-zip m1 m2))
(defmodel matrix-add [m1 m2] "the sum of two matrices" (mat-add m1 m2))
(defmodel matrix-sub [m1 m2] "the difference of two matrices" (mat-sub m1 m2))
(defmodel matrix-transpose [m] "rows and columns exchanged" (transpose m))
(defmodel matrix-mul [m1 m2] "the product of two matrices" (mat-mul m1 m2))
(defmodel matrix-mult [m1 m2] "the product of two matrices" (mat-mul m1 m2))
(defmodel matrix-trace [m] "the sum of the diagonal" (trace m))

; ---------------------------------------------------------------- lists: nil, or a pair whose second is a list

(defmodel list-fold [f z l] "the fold of a list"
  (if (null? l) z (list-fold f (f z (car l)) (cdr l))))
(defmodel list-fold-2 [f z l m] "the fold of two lists"
  (if (null? l) z (list-fold-2 f (f z (car l) (car m)) (cdr l) (cdr m))))
(defmodel list-map [f l] "a function of each element of a list"
  (if (null? l) nil (cons (f (car l)) (list-map f (cdr l)))))
(defmodel list-map-2 [f l m] "a function of the elements of two lists"
  (if (null? l) nil (cons (f (car l) (car m)) (list-map-2 f (cdr l) (cdr m)))))
(defmodel list-map-3 [f l m n] "a function of the elements of three lists"
  (if (null? l) nil (cons (f (car l) (car m) (car n)) (list-map-3 f (cdr l) (cdr m) (cdr n)))))
(defmodel list-scan [f z l] "the accumulators of a fold of a list"
  (if (null? l) nil (let [y (f z (car l))] (cons y (list-scan f y (cdr l))))))
(defmodel list-len [l] "the number of elements of a list"
  (list-fold (fn [n x] (+ n 1)) 0 l))
