"""Passes that find nothing leave a program alone, the same object; what they look at before is neither too much nor too
little."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hyad
from hyad.core import Program
from hyad.passes import optimise as passes
from hyad.passes.nests import Register
from hyad.passes.onehot import OneHot
from hyad.program.alike import same_code
from hyad.program.dead import dead_code
from hyad.program.journal import fires, recorded
from hyad.program.rebuild import Rebuild, rebuild

SINES = "(fn [#^ (Mat n m) a] (map (fn [row] (map sin row)) a))"
#: An inner loop adds to one element of an array, and so does the loop around it.
ONE_PLACE = """(fn [#^ (Mat n m) a #^ (Vec n) v #^ Int k]
  (ifold (fn [z i] (ifold (fn [z j] (add-at z k (* (get a i j) (get v i)))) z m)) (zeros n) n))"""


@pytest.mark.parametrize(
    "pass_",
    [
        *(passes.jam, passes.jam_rows, passes.lanes, passes.row_lanes, passes.eights, passes.whole_eights),
        passes.register,
    ],
    ids=passes.named,
)
def test_a_loop_pass_that_takes_no_loop(pass_: Callable[[Program], Program]) -> None:
    program = passes.optimise(hyad.model(SINES, namespace={}).program())
    assert passes.nested_loops(program)
    assert pass_(program) is program


#: Loops in loops, states that are numbers and arrays, a branch, elements that are stored and added to.
NOTHING_TO_DO = """(fn [#^ (Mat n m) a #^ (Vec n) v #^ Int k]
  (let [w (ifold (fn [z i] (update z (// i 2) (if (> (get v i) 0) (sin (get v i)) 1.0))) (zeros n) n)
        s (ifold (fn [z i] (ifold (fn [z j] (add-at z k (* (get a i j) (get v i)))) z m)) (zeros n) n)]
    #(w s (sum (map (fn [x] (sum (map sin x))) a)))))"""


@pytest.mark.parametrize(
    "pass_",
    [
        *(passes.carry, passes.strands, passes.running_sums, passes.suffix_sums, passes.prefixes, passes.unread),
        *(passes.align, passes.edges, passes.one_store, passes.filled, passes.fuse, passes.fuse_numbers),
        *(passes.row_folds, passes.skips, passes.fills, passes.factors, passes.interchange, passes.expand),
        *(passes.tabulate, passes.unbranched, passes.neighbours, passes.keep_calls),
    ],
    ids=passes.named,
)
def test_a_pass_that_knows_before(pass_: Callable[[Program], Program], monkeypatch: pytest.MonkeyPatch) -> None:
    """That it would treat nothing is seen before the program is rebuilt."""
    program = passes.optimise(hyad.model(NOTHING_TO_DO, namespace={}).program(), [passes.fuse])
    monkeypatch.setattr(Rebuild, "block", lambda self, block: pytest.fail("rebuilt"))
    assert pass_(program) is program


#: A branch of which both arms cost something, a test of no loop's index, two additions in an iteration, a square matrix
#: that is read everywhere, a sum over all pairs.
SOMETHING_LIKE_IT = """(fn [#^ (Vec n) v #^ Int k]
  (let [m (build [n n] (fn [i j] (* 2.0 (sin (* (get v i) (get v j))))))
        a (ifold (fn [s i] (+ s (if (> (get v i) 0) (exp (get v i)) (sin (get v i))))) 0.0 n)
        b (ifold (fn [z i] (add-at (add-at z (// i 2) (if (= (% i 2) 0) 1.0 (get v i))) k (get v i))) (zeros n) n)
        c (ifold (fn [z i] (ifold (fn [z j] (add-at z k (get m i j))) z n)) (zeros n) n)
        d (ifold (fn [z i] (ifold (fn [z j] (add-at z k (exp (get m i j)))) z n)) (zeros n) n)]
    #(a b c d)))"""


@pytest.mark.parametrize(
    "pass_",
    [
        *(passes.idle, passes.one_hot, passes.shifts, passes.forwards, passes.one_store, passes.one_addition),
        *(passes.alone, passes.diagonals, passes.pairs, passes.at_hand, passes.triangles, passes.branch_sums),
    ],
    ids=passes.named,
)
def test_a_pass_that_looks_closer(pass_: Callable[[Program], Program], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is what it is for, but not as it wants it, nothing is rebuilt either."""
    program = hyad.model(SOMETHING_LIKE_IT, namespace={}).program()
    monkeypatch.setattr(Rebuild, "block", lambda self, block: pytest.fail("rebuilt"))
    assert pass_(program) is program


def test_a_program_rebuilt_as_it_was_is_the_one_before() -> None:
    program = passes.optimise(hyad.model(SINES, namespace={}).program())
    again = rebuild(program)
    assert again is not program and same_code(program.body, again.body)
    assert passes.changed(rebuild, program) is program


@pytest.mark.parametrize(
    "text",
    [
        "(fn [#^ (Mat n m) a] (map (fn [row] (map cos row)) a))",
        "(fn [#^ (Mat n m) a] (map (fn [line] (map sin line)) a))",
        "(fn [#^ (Mat n m) a] (map (fn [row] (map (fn [e] (sin (sin e))) row)) a))",
        "(fn [#^ (Mat n m) a] (map (fn [row] (map (fn [e] (+ (sin e) 0.0)) row)) a))",
    ],
)
def test_other_code_is_not_the_same(text: str) -> None:
    one, other = (hyad.model(t, namespace={}).program().body for t in (SINES, text))
    assert not same_code(one, other) and not same_code(other, one)
    assert same_code(one, one)


def test_a_register_is_looked_for_wherever_there_may_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is the same with every loop tried, and another one with none."""
    texts = []
    for takes in (Register.takes, lambda self, bind: True, lambda self, bind: False):
        monkeypatch.setattr(Register, "takes", takes)
        texts.append(hyad.compile(hyad.model(ONE_PLACE, namespace={})).source)
    assert texts[0] == texts[1] != texts[2]


def test_the_trials_of_one_hot_loops_grow_with_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each level and one more, not two for each loop around a loop."""
    trials = []
    trial = OneHot.trial
    monkeypatch.setattr(OneHot, "trial", lambda self, *args: trials.append(1) or trial(self, *args))
    for depth in range(2, 6):
        product = " ".join(f"(get x i{k})" for k in range(depth))
        text = f"(if (= i{depth - 1} j) (* {product}) 0.0)"
        for k in reversed(range(depth)):
            text = f"(sum (build n (fn [i{k}] {text})))"
        program = dead_code(hyad.model(f"(fn [#^ (Vec n) x #^ Int j] {text})", namespace={}).program())
        trials.clear()
        passes.one_hot(program)
        assert len(trials) == depth + 1


def test_what_a_pass_does_in_vain_is_not_on_record() -> None:
    """What it says of a form that it leaves as it is stays, and is told as the pass's own."""
    program = passes.optimise(hyad.model(SINES, namespace={}).program())

    def again(program: Program) -> Program:
        fires("sharing")
        return rebuild(program)

    def leaves(program: Program) -> Program:
        fires("sharing")
        fires("too-long")
        return program

    told = []
    with recorded() as fired:
        fires("hoisting")
        after = passes.optimise(program, [again, leaves], watch=lambda p, made: told.append((p, made)))
    assert after is program and [name for name, _ in fired] == ["hoisting", "too-long"]
    assert told == [(leaves, program)]


def test_each_step_told_of_does_something() -> None:
    steps = hyad.explain(hyad.grad("(fn [#^ (Mat n n) a #^ (Vec n) b] (sum (solve a b)))")).steps
    assert {s.name for s in steps} >= {"assign", "fuse"} and len(steps) < 12
