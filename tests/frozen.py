"""Takes programs from their models on with records that refuse to change: ``test_check.py`` runs it with
``HYAD_FREEZE=1``. They are the naive programs of the benchmark and recursive ones, and their gradients."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "bench"))

import naive
import test_recursion
from hyad.codegen.c import print_c
from hyad.core import FROZEN
from hyad.passes.optimise import optimise


def main() -> None:
    assert FROZEN
    models, step = naive.models(), int(sys.argv[1])
    for p in naive.PROGRAMS[::step]:
        f = getattr(models, p.stem)
        args = p.arguments(9, p.point(9, np.random.default_rng(0)))
        for made in (f, naive.derived(p, f, "gradient")):
            print_c(made.optimised(made.specs(args)))
    for make, _, _ in [*test_recursion.CASES.values()][::step]:
        for program in (test_recursion.reverse(make(), "record"), test_recursion.forward(make())):
            optimise(program)


main()
