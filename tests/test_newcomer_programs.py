"""Programs as they are written on a first day, in the words of their fields: values as NumPy has them, gradients as
differences of NumPy's values have them, at several sizes of one compiled program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.special import expit, logsumexp, softmax

import batch
import hyad
from hyad.plain_python import python_callable

pytestmark = pytest.mark.skipif(batch.CC is None, reason="no C compiler")


class Example(NamedTuple):
    """``args`` are shapes, by the sizes of a case: ``"nm"`` a matrix, ``""`` a number; ``"n<k"`` integers below k, k
    itself is ``"#k"``. The gradient is by those that are reals."""

    text: str
    numpy: Callable[..., float]
    args: tuple[str, ...]
    sizes: tuple[dict[str, int], ...]


def viterbi(pi: Any, a: Any, b: Any) -> float:
    d = pi + b[0]
    for row in b[1:]:
        d = np.max(d[:, None] + a, 0) + row
    return float(d.max())


def crf(trans: Any, unary: Any, tags: Any) -> float:
    z = unary[0]
    for row in unary[1:]:
        z = logsumexp(z[:, None] + trans, 0) + row
    score = sum(unary[t, k] for t, k in enumerate(tags)) + sum(trans[a, b] for a, b in zip(tags, tags[1:]))
    return float(logsumexp(z) - score)


def heads(x: Any, wq: Any, wk: Any, gain: Any, count: int, width: int) -> float:
    n, d = x.shape
    q, k = ((x @ w).reshape(n, count, width).transpose(1, 0, 2) for w in (wq, wk))
    out = x + (softmax(q @ k.transpose(0, 2, 1), -1) @ q).transpose(1, 0, 2).reshape(n, d)
    normed = (out - out.mean(1, keepdims=True)) / np.sqrt(out.var(1, keepdims=True) + 0.1)
    return float(np.sin(gain * normed).sum())


def pooled(img: Any, ker: Any, bias: float) -> float:
    k = len(ker)
    h, w = img.shape[0] - k + 1, img.shape[1] - k + 1
    out = bias + sum(ker[a, b] * img[a : a + h, b : b + w] for a in range(k) for b in range(k))
    h, w = h // 2, w // 2
    return float((np.maximum(out, 0)[: 2 * h, : 2 * w].reshape(h, 2, w, 2).max((1, 3)) ** 2).sum())


def thomas(lo: Any, di: Any, up: Any, rhs: Any) -> float:
    n = len(di)
    lines = np.diag(di + 6.0) + np.diag(lo[1:], -1) + np.diag(up[:-1], 1) if n > 1 else np.diag(di + 6.0)
    return float(np.sin(np.linalg.solve(lines, rhs)).sum())


def smoother(phi: float, ys: Any) -> float:
    m, p, ahead = 0.0, 1.0, []
    for y in ys:
        mp, pp = phi * m, phi * phi * p + 0.3
        k = pp / (pp + 0.5)
        m, p = mp + k * (y - mp), (1 - k) * pp
        ahead.append((m, p, mp, pp))
    last = total = m
    for (m, p, _, _), (_, _, mp, pp) in zip(ahead[-2::-1], ahead[:0:-1]):
        last = m + phi * p / pp * (last - mp)
        total += last * last
    return float(total)


def particles(mu: float, sig: float, ys: Any, noise: Any) -> float:
    x, total = np.zeros(noise.shape[1]), 0.0
    for y, z in zip(ys, noise):
        x = mu * x + sig * z
        lw = -0.5 * (y - x) ** 2
        at = np.searchsorted(np.cumsum(softmax(lw)), (np.arange(len(x)) + 0.4) / len(x))
        x, total = x[np.minimum(len(x) - 1, at)], total + logsumexp(lw)
    return float(total)


def ordinal(w: Any, cuts: Any, x: Any, y: Any) -> float:
    th = np.cumsum(np.concatenate([cuts[:1], np.exp(cuts[1:])]))
    edges = np.concatenate([[-np.inf], th, [np.inf]])
    s = x @ w
    return float(-np.log(expit(edges[y + 1] - s) - expit(edges[y] - s)).sum())


def warped(uv: Any, a: Any, b: Any) -> float:
    h, w = a.shape
    y, x = (g + d for g, d in zip(np.meshgrid(np.arange(h), np.arange(w), indexing="ij"), uv))
    y, x = np.clip(y, 0, h - 1.001), np.clip(x, 0, w - 1.001)
    i, j = y.astype(int), x.astype(int)
    u, v = y - i, x - j
    here = (1 - u) * ((1 - v) * b[i, j] + v * b[i, j + 1]) + u * ((1 - v) * b[i + 1, j] + v * b[i + 1, j + 1])
    return float(((here - a) ** 2).sum())


def sinkhorn(x: Any, y: Any, eps: float, steps: int) -> float:
    cost = ((x[:, None] - y[None]) ** 2).sum(-1)
    f, g = np.zeros(len(x)), np.zeros(len(y))
    for _ in range(steps):
        f = -eps * (logsumexp((g - cost) / eps, 1) + np.log(len(x)))
        g = -eps * (logsumexp((f[:, None] - cost) / eps, 0) + np.log(len(y)))
    return float(f.mean() + g.mean())


def factors(u: Any, v: Any, user: Any, item: Any, rating: Any) -> float:
    return float(((rating - (u[user] * v[item]).sum(1)) ** 2).sum() + 0.1 * ((u**2).sum() + (v**2).sum()))


def american(s: float, a: float, n: int) -> float:
    up = np.exp(0.2 + 0.05 * np.sin(a))
    spot, p = 100 * np.exp(0.1 * s), (1.02 - 1 / up) / (up - 1 / up)
    prices = [spot * up ** (2.0 * np.arange(i + 1) - i) for i in range(n + 1)]
    v = np.maximum(0, 105 - prices[n])
    for i in range(n - 1, -1, -1):
        v = np.maximum((p * v[1:] + (1 - p) * v[:-1]) / 1.02, 105 - prices[i])
    return float(v[0])


def gru(wz: Any, uz: Any, wh: Any, uh: Any, xs: Any, h: Any) -> float:
    total = 0.0
    for x in xs:
        z = expit(wz @ x + uz @ h)
        h = (1 - z) * h + z * np.tanh(wh @ x + uh @ (z * h))
        total += (h**2).sum()
    return float(total)


def mixture(mu: Any, scale: Any, weight: Any, x: Any) -> float:
    z = (x[:, None] - mu) / np.exp(scale)
    return float(logsumexp(weight - scale.sum(1) - 0.5 * (z * z).sum(-1), 1).sum() - len(x) * logsumexp(weight))


def reaction(u: Any, v: Any, feed: float, steps: int) -> float:
    def around(a: Any) -> Any:
        return sum(np.roll(a, shift, axis) for shift in (1, -1) for axis in (0, 1)) - 4 * a

    for _ in range(steps):
        r = u * v * v
        u, v = u + 0.1 * around(u) - r + feed * (1 - u), v + 0.05 * around(v) + r - (feed + 0.06) * v
    return float((v * v).sum())


def fluid(x: Any, box: float) -> float:
    d = x[:, None] - x
    d = d - box * np.round(d / box)
    r = (d * d).sum(-1)[np.triu_indices(len(x), 1)]
    s = 1 / (0.2 + r[r < 2.0]) ** 3
    return float((4 * (s * s - s)).sum())


def spheres(centers: Any, radii: Any, colours: Any, target: Any) -> float:
    h, w = target.shape
    y, x = np.meshgrid(np.arange(h) / h - 0.5, np.arange(w) / w - 0.5, indexing="ij")
    ray = np.stack([x, y, np.ones_like(x)], -1)
    ray /= np.linalg.norm(ray, axis=-1, keepdims=True)
    best, image = np.full((h, w), 1e9), np.full((h, w), 0.1)
    for c, r, colour in zip(centers + [0, 0, 4.0], radii, colours):
        b = ray @ c
        hits = b * b - (c @ c - r * r)
        t = b - np.sqrt(np.maximum(hits, 0))
        seen = (hits > 0) & (t < best)
        shade = np.maximum(0, -((t[..., None] * ray - c) / r)[..., 2])
        best, image = np.where(seen, t, best), np.where(seen, colour * shade, image)
    return float(((image - target) ** 2).sum())


def seismic(c: Any, source: Any, record: Any) -> float:
    n, misfit = len(c), 0.0
    now = before = np.zeros(n)
    for shot, wanted in zip(source, record):
        after = np.zeros(n)
        after[1:-1] = 2 * now[1:-1] - before[1:-1] + c[1:-1] ** 2 * (now[2:] + now[:-2] - 2 * now[1:-1])
        after[-1] = now[-1] - c[-1] * (now[-1] - now[-2]) if n > 1 else 0.0
        after[0] = now[0] + c[0] * (now[1] - now[0]) if n > 1 else 0.0
        after[n // 2] += shot
        misfit += (after[-1] - wanted) ** 2
        now, before = after, now
    return float(misfit)


def rope(x: Any, rest: float, steps: int) -> float:
    x, old = x.copy(), x.copy()
    for _ in range(steps):
        x[1:], old[1:] = x[1:] + 0.99 * (x[1:] - old[1:]) + [0.0, -0.02], x[1:].copy()
        for _, i in np.ndindex(3, max(0, len(x) - 1)):
            d = x[i + 1] - x[i]
            c = (np.linalg.norm(d) - rest) / np.linalg.norm(d) * d
            x[i] += 0.5 * c if i else 0.0
            x[i + 1] -= 0.5 * c if i else c
    return float((x * x).sum())


def rod(k: Any, u: Any, steps: int) -> float:
    n, left, right = len(u), np.exp(k[:-1]), np.exp(k[1:])
    half = 0.5 * (np.diag(left + right) - np.diag(left[1:], -1) - np.diag(right[:-1], 1)) if n else np.zeros((0, 0))
    for _ in range(steps):
        u = np.linalg.solve(np.eye(n) + half, (np.eye(n) - half) @ u)
    return float((u * u).sum())


def regulator(a: Any, b: Any, steps: int) -> float:
    p = np.eye(len(a))
    for _ in range(steps):
        p = np.eye(len(a)) + a.T @ p @ (a - b @ np.linalg.solve(np.eye(2) + b.T @ p @ b, b.T @ p @ a))
    return float(np.trace(p))


def galaxy(x: Any, v: Any, m: Any, soft: float, steps: int) -> float:
    x, v = x.copy(), v.copy()
    for _ in range(steps):
        for i in range(len(x)):
            for j in range(i + 1, len(x)):
                d = x[j] - x[i]
                k = 0.05 * (d @ d + soft * soft) ** -1.5
                v[i], v[j] = v[i] + k * m[j] * d, v[j] - k * m[i] * d
        x += 0.05 * v
    return float((x * x).sum() + (v * v).sum())


def paths(w: Any, c: float) -> float:
    d = w + 0.0
    for k in range(len(d)):
        d = np.minimum(d, d[:, k, None] + d[None, k])
    return float(np.sin(c * d).sum())


def chosen(m: Any, at: Any, width: float) -> float:
    rows = m[at, 1:] - m[at, :-1]
    return float(np.exp(-width * (rows[:, None] - rows[None, :]) ** 2).sum())


def sifted(v: Any, c: float) -> float:
    kept = np.ones(len(v), bool)
    for i in range(2, len(v)):
        if kept[i]:
            kept[i * i :: i] = False
    return float((c * v[kept] ** 2).sum())


EXAMPLES = {
    "viterbi": Example(
        """(fn [pi a b]
      (let [k (len pi)
            first (build k (fn [j] (+ (get pi j) (get b 0 j))))
            step (fn [d t] (build k (fn [j] (+ (max (build k (fn [i] (+ (get d i) (get a i j))))) (get b (+ t 1) j)))))]
        (max (ifold step first (- (len b) 1)))))""",
        viterbi, ("n", "nn", "tn"), ({"n": 3, "t": 4}, {"n": 1, "t": 1}, {"n": 5, "t": 17}),
    ),
    "a chain of labels": Example(
        """(fn [trans unary tags]
      (let [steps (len unary)  k (len trans)
            z (ifold (fn [a t] (build k (fn [j] (+ (logsumexp (+ a (build k (fn [i] (get trans i j)))))
                                                   (get unary (+ t 1) j)))))
                     (get unary 0) (- steps 1))
            score (ifold (fn [s t] (+ s (get unary t (get tags t))
                                      (if (> t 0) (get trans (get tags (- t 1)) (get tags t)) 0.0)))
                         0.0 steps)]
        (- (logsumexp z) score)))""",
        crf, ("kk", "tk", "t<k"), ({"k": 3, "t": 4}, {"k": 1, "t": 2}, {"k": 4, "t": 1}),
    ),
    "heads of attention": Example(
        """(fn [x wq wk gain #^ Int heads #^ Int w]
      (let [n (len x)  d (* heads w)  q (@ x wq)  k (@ x wk)
            part (fn [m h] (build [n w] (fn [i j] (get m i (+ (* h w) j)))))
            head (fn [h] (@ (softmax (@ (part q h) (transpose (part k h))) 1) (part q h)))
            out (build [n d] (fn [i j] (+ (get x i j) (get (head (// j w)) i (% j w)))))]
        (sum (map (fn [row] (sum (sin (* gain (/ (- row (mean row)) (sqrt (+ (var row) 0.1))))))) out))))""",
        heads, ("nd", "dd", "dd", "d", "#h", "#w"),
        ({"n": 3, "d": 4, "h": 2, "w": 2}, {"n": 1, "d": 3, "h": 1, "w": 3}),
    ),
    "convolution and pooling": Example(
        """(fn [img ker bias]
      (let [k (len ker)  h (+ 1 (- (len img) k))  w (+ 1 (- (len (get img 0)) k))
            out (build [h w] (fn [i j]
                  (max 0.0 (+ bias (ifold (fn [s a]
                      (+ s (ifold (fn [s b] (+ s (* (get ker a b) (get img (+ i a) (+ j b))))) 0.0 k)))
                    0.0 k)))))
            pool (build [(// h 2) (// w 2)] (fn [i j]
                  (max (get out (* 2 i) (* 2 j)) (get out (* 2 i) (+ 1 (* 2 j)))
                       (get out (+ 1 (* 2 i)) (* 2 j)) (get out (+ 1 (* 2 i)) (+ 1 (* 2 j))))))]
        (sum (* pool pool))))""",
        pooled, ("nm", "kk", ""), ({"n": 6, "m": 7, "k": 3}, {"n": 3, "m": 3, "k": 3}, {"n": 9, "m": 4, "k": 1}),
    ),
    "a tridiagonal system, in place": Example(
        """(fn [lo di up rhs]
      (let [n (len di)  c (copy up)  d (copy rhs)]
        (set-at! c 0 (/ (get up 0) (+ 6.0 (get di 0))))
        (set-at! d 0 (/ (get rhs 0) (+ 6.0 (get di 0))))
        (ifold (fn [_ j]
                 (let [i (+ j 1)  w (- (+ 6.0 (get di i)) (* (get lo i) (get c (- i 1))))]
                   (set-at! c i (/ (get up i) w))
                   (set-at! d i (/ (- (get rhs i) (* (get lo i) (get d (- i 1)))) w))
                   0))
               0 (- n 1))
        (ifold (fn [_ j]
                 (let [i (- n 2 j)] (set-at! d i (- (get d i) (* (get c i) (get d (+ i 1))))) 0))
               0 (- n 1))
        (sum (sin d))))""",
        thomas, ("n", "n", "n", "n"), ({"n": 3}, {"n": 1}, {"n": 2}, {"n": 17}),
    ),
    "a smoother": Example(
        """(fn [phi ys]
      (let [n (len ys)
            ahead (scan (fn [s y] (let [mp (* phi (get s 0))  pp (+ (* phi phi (get s 1)) 0.3)  k (/ pp (+ pp 0.5))]
                                    [(+ mp (* k (- y mp))) (* (- 1 k) pp) mp pp]))
                        [0.0 1.0 0.0 1.0] ys)
            last (get ahead (- n 1) 0)
            back (scan (fn [m t] (+ (get ahead t 0) (* (/ (* phi (get ahead t 1)) (get ahead (+ t 1) 3))
                                                       (- m (get ahead (+ t 1) 2)))))
                       last (flip (arange (- n 1))))]
        (+ last (sq-norm back))))""",
        smoother, ("", "n"), ({"n": 3}, {"n": 1}, {"n": 17}),
    ),
    "a particle filter": Example(
        """(fn [mu sig ys noise]
      (let [n (len (get noise 0))
            run (ifold (fn [st t]
                  (let [x (+ (* mu (fst st)) (* sig (get noise t)))
                        lw (map (fn [p] (* -0.5 (** (- (get ys t) p) 2))) x)
                        c (cumsum (softmax lw))
                        at (build n (fn [i] (min (- n 1) (searchsorted c (/ (+ i 0.4) n)))))]
                    #((gather x at) (+ (snd st) (logsumexp lw)))))
                #((zeros n) 0.0) (len ys))]
        (snd run)))""",
        particles, ("", "", "t", "tn"), ({"n": 4, "t": 3}, {"n": 1, "t": 2}, {"n": 17, "t": 5}),
    ),
    "ordered classes": Example(
        """(fn [w cuts x y]
      (let [k (+ 1 (len cuts))  th (cumsum (concat [(get cuts 0)] (exp (cut cuts 1 None))))]
        (- (sum (map (fn [row c]
            (let [s (dot row w)
                  hi (if (= c (- k 1)) 1.0 (sigmoid (- (get th c) s)))
                  lo (if (= c 0) 0.0 (sigmoid (- (get th (- c 1)) s)))]
              (log (- hi lo))))
          x y)))))""",
        ordinal, ("d", "c", "nd", "n<c"),
        ({"d": 2, "c": 3, "n": 5}, {"d": 1, "c": 1, "n": 1}, {"d": 3, "c": 2, "n": 0}),
    ),
    "an image moved": Example(
        """(fn [uv a b]
      (let [h (len a)  w (len (get a 0))
            at (fn [y x] (let [y (clip y 0.0 (- h 1.001))  x (clip x 0.0 (- w 1.001))
                               i (int (floor y))  j (int (floor x))  u (- y i)  v (- x j)]
                 (+ (* (- 1 u) (+ (* (- 1 v) (get b i j)) (* v (get b i (+ j 1)))))
                    (* u (+ (* (- 1 v) (get b (+ i 1) j)) (* v (get b (+ i 1) (+ j 1))))))))]
        (sum (square (build [h w] (fn [i j] (- (at (+ i (get uv 0)) (+ j (get uv 1))) (get a i j))))))))""",
        warped, ("2", "nm", "nm"), ({"n": 3, "m": 4}, {"n": 2, "m": 2}),
    ),
    "optimal transport": Example(
        """(fn [x y eps #^ Int steps]
      (let [n (len x)  m (len y)  eps (+ 0.5 (square eps))
            cost (build [n m] (fn [i j] (sum (square (- (get x i) (get y j))))))
            end (ifold (fn [p _]
                  (let [f (build n (fn [i] (* (- eps) (+ (log (real n))
                             (logsumexp (build m (fn [j] (/ (- (get (snd p) j) (get cost i j)) eps))))))))
                        g (build m (fn [j] (* (- eps) (+ (log (real m))
                             (logsumexp (build n (fn [i] (/ (- (get f i) (get cost i j)) eps))))))))]
                    #(f g)))
                #((zeros n) (zeros m)) steps)]
        (+ (mean (fst end)) (mean (snd end)))))""",
        lambda x, y, eps, steps: sinkhorn(x, y, 0.5 + eps**2, steps), ("n2", "m2", "", "#s"),
        ({"n": 3, "m": 4, "s": 3}, {"n": 1, "m": 2, "s": 1}, {"n": 2, "m": 1, "s": 0}),
    ),
    "ratings": Example(
        """(fn [u v user item rating]
      (let [error (map (fn [i j r] (- r (dot (get u i) (get v j)))) user item rating)]
        (+ (sum (square error)) (* 0.1 (+ (sq-norm u) (sq-norm v))))))""",
        factors, ("nk", "mk", "q<n", "q<m", "q"), ({"n": 3, "m": 4, "k": 2, "q": 9}, {"n": 1, "m": 1, "k": 1, "q": 0}),
    ),
    "a mixture": Example(
        """(fn [mu scale weight x]
      (- (sum (map (fn [xi]
             (logsumexp (build (len weight) (fn [k]
               (- (get weight k) (sum (get scale k)) (* 0.5 (sum (** (/ (- xi (get mu k)) (exp (get scale k))) 2))))))))
           x))
         (* (len x) (logsumexp weight))))""",
        mixture, ("kd", "kd", "k", "nd"),
        ({"k": 3, "d": 2, "n": 5}, {"k": 1, "d": 1, "n": 17}, {"k": 2, "d": 3, "n": 0}),
    ),
    "reaction and diffusion": Example(
        """(fn [u0 v0 feed #^ Int steps]
      (let [n (len u0)  m (len (get u0 0))
            around (fn [a i j] (- (+ (get a (% (+ i 1) n) j) (get a (% (- i 1) n) j)
                                     (get a i (% (+ j 1) m)) (get a i (% (- (+ j m) 1) m))) (* 4 (get a i j))))
            end (ifold (fn [s t]
                  (let [#(u v) s
                        r (fn [i j] (* (get u i j) (** (get v i j) 2)))]
                    #((build [n m] (fn [i j] (+ (get u i j) (* 0.1 (around u i j)) (- (r i j))
                                                (* feed (- 1 (get u i j))))))
                      (build [n m] (fn [i j] (+ (get v i j) (* 0.05 (around v i j)) (r i j)
                                                (- (* (+ feed 0.06) (get v i j)))))))))
                  #(u0 v0) steps)]
        (sum (** (snd end) 2))))""",
        reaction, ("nm", "nm", "", "#s"),
        ({"n": 3, "m": 4, "s": 2}, {"n": 1, "m": 2, "s": 3}, {"n": 2, "m": 1, "s": 1}, {"n": 5, "m": 3, "s": 0}),
    ),
    "a fluid in a box": Example(
        """(fn [x box]
      (let [box (+ 2.0 (* box box))]
        (ifold (fn [e i]
          (ifold (fn [e j]
            (if (< i j)
              (let [d (- (get x i) (get x j))
                    d (- d (* box (round (/ d box))))
                    r (sum (* d d))]
                (if (< r 2.0)
                  (let [s (/ 1 (** (+ 0.2 r) 3))] (+ e (* 4 (- (* s s) s))))
                  e))
              e))
            e (len x)))
          0.0 (len x))))""",
        lambda x, box: fluid(x, 2.0 + box**2), ("n3", ""), ({"n": 6}, {"n": 1}, {"n": 17}),
    ),
    "spheres": Example(
        """(fn [centers radii colours target]
      (let [h (len target)  w (len (get target 0))
            image (build [h w] (fn [i j]
              (let [d [(- (/ j w) 0.5) (- (/ i h) 0.5) 1.0]
                    d (/ d (norm d))
                    hit (ifold (fn [best k]
                          (let [c (+ (get centers k) [0.0 0.0 4.0])
                                b (dot d c)
                                disc (- (* b b) (- (dot c c) (** (get radii k) 2)))]
                            (if (> disc 0)
                              (let [t (- b (sqrt disc))]
                                (if (< t (fst best))
                                  #(t (* (get colours k) (max 0 (- (get (/ (- (* t d) c) (get radii k)) 2)))))
                                  best))
                              best)))
                        #(1e9 0.1) (len radii))]
                (snd hit))))]
        (sum (** (- image target) 2))))""",
        spheres, ("k3", "k", "k", "hw"), ({"k": 2, "h": 6, "w": 5}, {"k": 1, "h": 1, "w": 1}, {"k": 0, "h": 2, "w": 3}),
    ),
    "gates": Example(
        """(fn [wz uz wh uh xs h0]
      (let [step (fn [h x] (let [z (sigmoid (+ (@ wz x) (@ uz h)))]
                             (+ (* (- 1 z) h) (* z (tanh (+ (@ wh x) (@ uh (* z h))))))))]
        (sum (square (scan step h0 xs)))))""",
        gru, ("nd", "nn", "nd", "nn", "td", "n"),
        ({"n": 3, "d": 2, "t": 4}, {"n": 1, "d": 1, "t": 1}, {"n": 2, "d": 3, "t": 0}),
    ),
    "a put on a tree, by arrays": Example(
        """(fn [s a #^ Int n]
          (let [u (exp (+ 0.2 (* 0.05 (sin a))))
                d (/ 1 u)
                spot (* 100 (exp (* 0.1 s)))
                p (/ (- 1.02 d) (- u d))
                leaves (build (+ n 1) (fn [j] (max 0.0 (- 105 (* spot (** u j) (** d (- n j)))))))]
            (get (ifold (fn [v k]
                          (let [i (- n 1 k)]
                            (build (+ n 1) (fn [j]
                              (if (<= j i)
                                (max (/ (+ (* p (get v (+ j 1))) (* (- 1 p) (get v j))) 1.02)
                                     (- 105 (* spot (** u j) (** d (- i j)))))
                                0.0)))))
                        leaves n) 0)))""",
        american, ("", "", "#n"), ({"n": 6}, {"n": 1}, {"n": 13}),
    ),
    "a put on a tree, in place": Example(
        """(fn [s a #^ Int n]
          (let [h (+ 0.2 (* 0.05 (sin a)))
                spot (* 100 (exp (* 0.1 s)))
                p (/ (- 1.02 (exp (- h))) (- (exp h) (exp (- h))))
                v (zeros (+ n 1))]
            (for [j (range (+ n 1))] (set-at! v j (max 0.0 (- 105 (* spot (exp (* h (- (* 2 j) n))))))))
            (for [i (range (- n 1) -1 -1)  j (range (+ i 1))]
              (let [hold (/ (+ (* p (get v (+ j 1))) (* (- 1 p) (get v j))) 1.02)]
                (set-at! v j (max hold (- 105 (* spot (exp (* h (- (* 2 j) i)))))))))
            (get v 0)))""",
        american, ("", "", "#n"), ({"n": 6}, {"n": 1}, {"n": 13}),
    ),
    "a wave and its record": Example(
        """(fn [c source record]
      (let [n (len c)
            at (// n 2)
            end (ifold
              (fn [s t]
                (let [#(now before misfit) s
                      next (build n (fn [i]
                             (cond
                               (= i 0) (if (> n 1) (+ (get now 0) (* (get c 0) (- (get now 1) (get now 0)))) 0.0)
                               (= i (- n 1)) (- (get now i) (* (get c i) (- (get now i) (get now (- i 1)))))
                               True (+ (- (* 2 (get now i)) (get before i))
                                       (* (get c i) (get c i)
                                          (+ (get now (+ i 1)) (- (get now (- i 1)) (* 2 (get now i)))))))))
                      next (update next at (+ (get next at) (get source t)))
                      e (- (get next (- n 1)) (get record t))]
                  #(next now (+ misfit (* e e)))))
              #((zeros n) (zeros n) 0.0) (len source))]
        (get end 2)))""",
        seismic, ("n", "t", "t"), ({"n": 5, "t": 4}, {"n": 1, "t": 2}, {"n": 2, "t": 3}, {"n": 8, "t": 0}),
    ),
    "a rope of links": Example(
        """(fn [x0 rest #^ Int steps]
      (let [n (len x0)  x (+ x0 0.0)  old (+ x0 0.0)]
        (for [t (range steps)]
          (for [i (range 1 n)]
            (let [p (get x i)
                  new (+ p (* 0.99 (- p (get old i))) [0.0 -0.02])]
              (set-at! old i p)
              (set-at! x i new)))
          (for [round (range 3)  i (range (- n 1))]
            (let [d (- (get x (+ i 1)) (get x i))
                  c (* (/ (- (norm d) rest) (norm d)) d)]
              (if (= i 0)
                (set-at! x 1 (- (get x 1) c))
                (do (set-at! x i (+ (get x i) (* 0.5 c)))
                    (set-at! x (+ i 1) (- (get x (+ i 1)) (* 0.5 c))))))))
        (sum (square x))))""",
        rope, ("n2", "", "#s"), ({"n": 4, "s": 2}, {"n": 1, "s": 2}, {"n": 2, "s": 1}, {"n": 7, "s": 0}),
    ),
    "heat in a rod": Example(
        """(fn [k u0 #^ Int steps]
      (let [n (len u0)
            kl (fn [i] (exp (get k i)))
            kr (fn [i] (exp (get k (+ i 1))))
            di (build n (fn [i] (+ 1 (* 0.5 (+ (kl i) (kr i))))))
            step (fn [u t]
              (let [c (zeros n)  d (zeros n)  x (zeros n)
                    b (build n (fn [i]
                        (+ (* (- 2 (get di i)) (get u i))
                           (if (> i 0) (* 0.5 (kl i) (get u (- i 1))) 0.0)
                           (if (< i (- n 1)) (* 0.5 (kr i) (get u (+ i 1))) 0.0))))]
                (for [i (range n)]
                  (let [m (if (= i 0) (get di 0) (+ (get di i) (* 0.5 (kl i) (get c (- i 1)))))]
                    (set-at! c i (/ (* -0.5 (kr i)) m))
                    (set-at! d i (/ (if (= i 0) (get b 0) (+ (get b i) (* 0.5 (kl i) (get d (- i 1))))) m))))
                (for [i (range (- n 1) -1 -1)]
                  (set-at! x i (if (= i (- n 1)) (get d i) (- (get d i) (* (get c i) (get x (+ i 1)))))))
                x))]
        (sum (square (ifold step u0 steps)))))""",
        rod, ("m", "n", "#s"), ({"m": 6, "n": 5, "s": 2}, {"m": 2, "n": 1, "s": 2}, {"m": 1, "n": 0, "s": 1}),
    ),
    "a regulator": Example(
        """(fn [a b #^ Int steps]
      (let [step (fn [p t]
              (let [btp (@ (transpose b) p)
                    k (solve (+ (eye 2) (@ btp b)) (@ btp a))]
                (+ (eye (len a)) (@ (transpose a) p (- a (@ b k))))))]
        (trace (ifold step (eye (len a)) steps))))""",
        regulator, ("nn", "n2", "#s"), ({"n": 3, "s": 3}, {"n": 1, "s": 2}, {"n": 2, "s": 0}),
    ),
    "masses, each pair once": Example(
        """(fn [x0 v0 m soft #^ Int steps]
      (let [n (len x0)  x (+ x0 0.0)  v (+ v0 0.0)]
        (for [t (range steps)]
          (for [i (range n)  j (range (+ i 1) n)]
            (let [d (- (get x j) (get x i))
                  r2 (+ (sq-norm d) (* soft soft))
                  k (/ 0.05 (* r2 (sqrt r2)))]
              (set-at! v i (+ (get v i) (* k (get m j) d)))
              (set-at! v j (- (get v j) (* k (get m i) d)))))
          (for [i (range n)]
            (set-at! x i (+ (get x i) (* 0.05 (get v i))))))
        (+ (sum (square x)) (sum (square v)))))""",
        galaxy, ("n3", "n3", "n", "", "#s"), ({"n": 4, "s": 2}, {"n": 1, "s": 1}, {"n": 0, "s": 2}, {"n": 5, "s": 0}),
    ),
    "shortest paths": Example(
        """(fn [w c] (sum (sin (* c
      (ifold (fn [d k] (np.minimum d (+ (get d #((slice None) k None)) (get d #(None k))))) w (len w))))))""",
        paths, ("nn", ""), ({"n": 4}, {"n": 1}, {"n": 0}, {"n": 7}),
    ),
    "chosen rows beside each other": Example(
        """(fn [m #^ (Arr Int k) at width]
      (let [rows (- (get m at (slice 1 None)) (get m #(at (slice None -1))))]
        (np.sum (np.exp (* (- width) (** (- (get rows #((slice None) None)) (get rows None)) 2))))))""",
        chosen, ("nd", "k<n", ""), ({"n": 4, "d": 3, "k": 5}, {"n": 1, "d": 1, "k": 2}, {"n": 2, "d": 4, "k": 0}),
    ),
    "a sieve": Example(
        """(fn [v c]
      (let [n (len v)  kept (np.full n True)]
        (for [i (range 2 n)]
          (when (get kept i)
            (for [j (range (* i i) n i)] (set-at! kept j False))))
        (np.sum (np.where kept (* c (** v 2)) 0.0))))""",
        sifted, ("n", ""), ({"n": 12}, {"n": 1}, {"n": 0}, {"n": 30}),
    ),
}  # fmt: skip


def arguments(e: Example, sizes: dict[str, int]) -> tuple[Any, ...]:
    rng = np.random.default_rng(list(sizes.values()))

    def one(form: str) -> Any:
        if form.startswith("#"):
            return sizes[form[1:]]
        shape, _, below = form.partition("<")
        dims = [int(d) if d.isdigit() else sizes[d] for d in shape]
        if below:
            return rng.integers(0, sizes[below], dims)
        return rng.normal(size=dims) if dims else float(rng.normal())

    return tuple(map(one, e.args))


def moving(e: Example) -> tuple[int, ...]:
    return tuple(k for k, form in enumerate(e.args) if "#" not in form and "<" not in form)


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    made, found = batch.Batch(), {}
    for name, e in EXAMPLES.items():
        f = hyad.value_and_grad(hyad.model(e.text, namespace={}), wrt=moving(e))
        program = f.optimised(f.specs(arguments(e, e.sizes[0])))
        found[name] = (made.add(program), python_callable(program))
    made.compile()
    return found


@pytest.mark.some(4)
@pytest.mark.parametrize("name", EXAMPLES)
def test_values_and_gradients(name: str, compiled: dict[str, Any]) -> None:
    e = EXAMPLES[name]
    c, python = compiled[name]
    for sizes in e.sizes:
        args = arguments(e, sizes)
        like = (0.0, tuple(args[k] for k in moving(e)))
        value, gradient = c(*args, like=like)
        assert value == pytest.approx(e.numpy(*args), rel=1e-10, abs=1e-10)
        for got, wanted in zip(python(*args)[1], gradient, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-9)
        rng = np.random.default_rng(1)
        along = {k: rng.normal(size=np.shape(args[k])) for k in moving(e)}

        def at(h: float) -> float:
            return e.numpy(*(a + h * along[k] if k in along else a for k, a in enumerate(args)))

        h = 1e-5
        slope = (8 * (at(h) - at(-h)) - at(2 * h) + at(-2 * h)) / (12 * h)
        got = sum(float(np.sum(g * along[k])) for g, k in zip(gradient, along))
        assert got == pytest.approx(slope, rel=1e-6, abs=1e-6 * max(1.0, abs(value)))
