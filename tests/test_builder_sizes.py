"""Sizes of arrays that are made row by row: they hold where there is no row, too."""

from __future__ import annotations

import numpy as np
import pytest

import hyad
from hyad.program.journal import without

BLOCKS = {
    "a block": "(get s #((slice 0 k) (slice 0 (max 1 k))))",
    "its sums": "(sum (get s #((slice 0 k) (slice 0 (max 1 k)))) 0)",
    "rows": "(build k (fn [i] (build (max 1 k) (fn [j] 1.0))))",
    "two": "(+ (get s #((slice 0 k) (slice 0 (max 1 k)))) (outer (cut (get s 0) 0 k) (cut (get s 1) 0 (max 1 k))))",
    "in place": """(let [t (copy s)]
        (for [i (range k)]
          (set-at! t #((slice 0 i) (slice (max 0 (- i 1)) (+ i 1)))
                   (* 2.0 (get s #((slice 0 i) (slice (max 0 (- i 1)) (+ i 1)))))))
        t)""",
}


@pytest.mark.parametrize("name", BLOCKS)
def test_rows_that_are_not_there_have_a_size(name: str) -> None:
    f = hyad.model(f"(fn [#^ (Mat n n) s #^ Int k] {BLOCKS[name]})", namespace={})
    s = np.arange(16.0).reshape(4, 4)
    with without(list(hyad.optimisations())):
        plain = hyad.compile(f)
    made = hyad.compile(f)
    for k in (0, 1, 2, 4):
        wanted = hyad.run(f, s, k)
        for found in (made(s, k), plain(s, k)):
            assert np.shape(found) == np.shape(wanted)
            np.testing.assert_array_equal(found, wanted)
