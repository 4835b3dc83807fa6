"""Programs as a newcomer writes them: values and gradients by both modes, the C by hand that they are measured against,
and what an expert would not have written."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import hyad
import oracle
from hyad.core import Prim, all_binds

sys.path.insert(0, str(Path(__file__).parent / "bench"))

import naive  # noqa: E402

PROGRAMS = {p.name: p for p in naive.PROGRAMS}
SMALL = {
    "attention": 3, "kalman": 5, "obstacles": 9, "bumps": 9,
    "n-body": 4, "lennard-jones": 4, "charges": 4, "forces": 4, "heat": 6, "wave": 6, "binomial": 2, "black-scholes": 3,
    "hmm": 3, "leapfrog": 4, "gray-scott": 5, "thomas": 6, "convolution": 9,
    "gaussian-process": 5, "gaussian-process-inverse": 5, "normal-rows": 3, "asian": 9, "heston": 9,
    "viterbi": 3, "viterbi-table": 3, "crf": 3, "causal": 3, "masked": 3, "soft-dtw": 3, "alignment": 3,
    "clusters": 9, "batch-norm": 3, "cox": 5,
    "diffusion": 5, "jacobi": 5, "thomas-in-place": 6, "spectrum": 6, "bilateral": 6, "blur": 9,
    "shallow-water": 5, "kpss": 25, "garch": 6, "libor": 24, "rays": 3, "warp": 4,
    "crank-nicolson": 6, "whittaker": 6, "bar": 6, "tracking": 5, "barrier": 20, "sinkhorn": 4,
    "swaps": 7, "phases": 5, "lines": 5, "ssim": 7, "conjugate": 14, "brackets": 7,
}  # fmt: skip


@cache
def models():
    return naive.models()


def point(name: str):
    p = PROGRAMS[name]
    return p.arguments(SMALL[name], p.point(SMALL[name], np.random.default_rng(4)))


@pytest.mark.some(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_naive_programs(name: str) -> None:
    """Reverse mode along a direction, forward mode along it, and what runs define by run."""
    p, args = PROGRAMS[name], point(name)
    model = getattr(models(), p.stem)
    gradient = naive.derived(p, model, "gradient")
    active = [k for k, i in enumerate(p.inputs) if i.active]
    made = hyad.compile(gradient, args=args, target="python")(*args)
    made = made if len(active) > 1 else (made,)
    rng = np.random.default_rng(5)
    moves = [rng.normal(size=np.shape(a)) if k in active else np.zeros(np.shape(a)) for k, a in enumerate(args)]
    moves = [m if np.ndim(m) else float(m) for m in moves]
    slope = sum(float(np.sum(np.asarray(g) * moves[k])) for g, k in zip(made, active))
    h = 1e-5
    steps = ([a + s * h * np.asarray(m) if np.ndim(a) else a + s * h * m for a, m in zip(args, moves)] for s in (1, -1))
    up, down = (hyad.run(model, *moved) for moved in steps)
    assert slope == pytest.approx((up - down) / (2 * h), rel=1e-5)
    assert oracle.mismatch(hyad.run(gradient, *args), made if len(active) > 1 else made[0], 1e-9) is None


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory) -> ctypes.CDLL:
    target = tmp_path_factory.mktemp("hand") / "hand.so"
    source = naive.HERE / "hand.c"
    command = ["cc", "-O1", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(target)]
    subprocess.run([*command, str(source), "-lm"], check=True)
    return ctypes.CDLL(str(target))


@pytest.mark.some(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_c_by_hand_is_right(name: str, by_hand: ctypes.CDLL) -> None:
    """Values and gradients by hand are those of the models."""
    p, args, n = PROGRAMS[name], point(name), SMALL[name]
    model = getattr(models(), p.stem)
    room = np.zeros(max(1, p.room(n)))
    work = [ctypes.c_void_p(room.ctypes.data)] if "{work}" in p.sizes else []
    given = [ctypes.c_void_p(a.ctypes.data) if np.ndim(a) else ctypes.c_double(a) for a in args]
    given += [ctypes.c_longlong(int(s.format(n=n))) for s in p.sizes.split(", ") if s != "{work}"]
    value = getattr(by_hand, f"{p.stem}_hand")
    value.restype = ctypes.c_double
    assert value(*given, *work) == pytest.approx(hyad.run(model, *args), rel=1e-12)
    out = np.zeros(p.results(n))
    getattr(by_hand, f"{p.stem}_grad_hand")(*given, ctypes.c_void_p(out.ctypes.data), *work)
    made = hyad.run(naive.derived(p, model, "gradient"), *args)
    flat = np.concatenate([np.ravel(x) for x in (made if isinstance(made, tuple) else (made,))])
    np.testing.assert_allclose(out, flat, rtol=1e-9, atol=1e-12)


def test_a_border_leaves_no_check_in_the_loops() -> None:
    """Four comparisons, and what they say of the neighbours' subscripts, are one condition."""
    source = hyad.compile(models().heat).source
    assert source.count("return ") == 2  # the matrix has a first row; and the end


def test_the_tangents_of_a_tree_share_its_prices() -> None:
    """By two numbers, forwards: the prices are made once, as in the value."""
    p, args = PROGRAMS["binomial"], point("binomial")
    model = models().binomial
    programs = [f.optimised(f.specs(args)) for f in (model, naive.derived(p, model, "gradient"))]
    value, gradient = (
        sum(type(x.op) is Prim and x.op.name == "max" for x in all_binds(program.body)) for program in programs
    )
    assert value == gradient


def test_what_a_ray_sees_is_computed_once() -> None:
    """The way back joins the loop over rays, and its first part the loop over steps, that have checked them."""
    p, args = PROGRAMS["rays"], point("rays")
    source = hyad.compile(naive.derived(p, models().rays, "gradient"), args=args).source
    assert source.count("exp(") == 1
