"""The emitted C as a person would read it: nothing in it that does nothing, sums as one would write them, comments
that are forms."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest

import hyad
from codegen.expressions import ADD, MUL, PRIMARY, Expr, added, integer


def text_of(f: Any) -> str:
    """The C of a model, without its head."""
    source = hyad.compile(f).cfunction.source
    return source[source.index("/* ") :]


def code_of(f: Any) -> str:
    """The C of a model without comments, a space for all white space."""
    text = re.sub(r"//[^\n]*", "", text_of(f))
    return " ".join(text[text.index("*/") :].split())


@pytest.mark.parametrize("start, loops", [("0.0", 0), ("2.5", 0), ("-0.0", 1)])
def test_a_sum_of_nothing_is_its_start(start: str, loops: int) -> None:
    """Adding 0.0 changes -0.0 alone."""
    compiled = hyad.compile(hyad.model(f"(fn [#^ Int n] (ifold (fn [s i] (+ s 0.0)) {start} n))"))
    assert compiled.cfunction.source.count("for (") == loops
    for n in (0, 3):
        got, expected = compiled(n), float(start) + 0.0 if n else float(start)
        assert got == expected and np.signbit(got) == np.signbit(expected)


def test_pairs_in_a_triangle_add_nothing_for_the_others() -> None:
    f = hyad.model(
        "(fn [#^ (Vec n) x] (sum (build [(len x) (len x)] (fn [i j] (if (< i j) (* (get x i) (get x j)) 0.0)))))"
    )
    assert "+= 0.0" not in text_of(f)
    x = np.array([1.0, 2.0, 3.0, 5.0])
    assert np.isclose(hyad.compile(f)(x), (x.sum() ** 2 - x @ x) / 2, rtol=1e-15)


# ------------------------------------------------------------------------------------------- integers


def number(value: int) -> Expr:
    return Expr(str(value))


K, J, N = (Expr(name) for name in "ijn")


@pytest.mark.parametrize(
    "made, expected",
    [
        (integer("-", N, integer("+", K, number(1))), "n - i - 1"),
        (integer("+", integer("-", integer("-", N, number(1)), K), number(1)), "n - i"),
        (integer("+", number(1), K), "i + 1"),
        (integer("-", number(64), integer("+", K, number(1))), "63 - i"),
        (integer("-", integer("+", K, number(1)), N), "i + 1 - n"),
        (integer("+", integer("*", number(3), integer("+", integer("*", number(3), K), number(2))), J), "9*i + j + 6"),
        (integer("*", number(3), integer("+", K, J)), "3*(i + j)"),
        (integer("*", integer("*", number(4), K), N), "4*i*n"),
        (integer("-", K, K), "0"),
        (integer("*", K, number(0)), "0"),
        (integer("+", K, K), "2*i"),
        (integer("-", integer("-", number(0), K), number(2)), "-i - 2"),
    ],
)
def test_sums_of_integers(made: Expr, expected: str) -> None:
    assert made.text == expected


@pytest.mark.parametrize("of, expected", [(N, "n % 4"), (integer("+", K, number(1)), "(i + 1) % 4")])
def test_what_a_quotient_leaves(of: Expr, expected: str) -> None:
    quarters = Expr(f"{of.at(MUL)}/4", MUL, quotient=(of, 4))
    assert integer("-", of, integer("*", number(4), quarters)).text == expected
    assert "%" not in integer("-", of, integer("*", number(3), quarters)).text
    assert "%" not in integer("-", integer("+", of, number(1)), integer("*", number(4), quarters)).text


@pytest.mark.parametrize("seed", range(200))
def test_the_text_is_the_integer(seed: int) -> None:
    """Random sums, products and quotients: the text, evaluated, is what they are."""
    rng = random.Random(seed)
    values = {"i": rng.randrange(9), "j": rng.randrange(9), "n": rng.randrange(1, 30)}

    def made(depth: int) -> tuple[Expr, int]:
        kind = rng.randrange(6 if depth else 2)
        if kind == 0:
            k = rng.randrange(-3, 7)
            return Expr(str(k), PRIMARY if k >= 0 else MUL + 1), k
        if kind == 1:
            name = rng.choice("ijn")
            return Expr(name), values[name]
        if kind == 2:  # a quotient of what is not negative, as those are printed
            name, by = rng.choice("ijn"), rng.choice((4, 8))
            quotient = Expr(f"{name}/{by}", MUL, quotient=(Expr(name), by))
            return quotient, values[name] // by
        if kind == 3 and rng.random() < 0.3:
            return Expr("i < j ? i : n", 2), values["i"] if values["i"] < values["j"] else values["n"]
        operator = rng.choice("++-*")
        (a, x), (b, y) = made(depth - 1), made(depth - 1)
        return integer(operator, a, b), {"+": x + y, "-": x - y, "*": x * y}[operator]

    def evaluated(text: str) -> int:
        text = re.sub(r"([ijn])/(\d)", r"(\1//\2)", text.replace("i < j ? i : n", "i if i < j else n"))
        return eval(text, {}, values)

    for _ in range(20):
        expr, value = made(4)
        assert evaluated(expr.text) == value, expr.text
        assert evaluated(f"7 * {expr.at(MUL + 1)}") == 7 * value, expr.text
        assert evaluated(f"n - {expr.at(MUL, leftmost=False)}") == values["n"] - value, expr.text


# ------------------------------------------------------------------------------------------ statements


@pytest.mark.parametrize(
    "text, prec, expected",
    [
        ("-2.0*t", MUL, "s -= 2.0*t"),
        ("-(a - b)", MUL + 1, "s -= a - b"),
        ("-(a)*(b)", MUL, "s -= (a)*(b)"),
        ("a - b", ADD, "s += a - b"),
    ],
)
def test_adding_what_is_negative(text: str, prec: int, expected: str) -> None:
    assert added("s", Expr(text, prec)) == expected


THOMAS = """(fn [#^ (Vec n) c #^ (Vec n) b]
  (sum (ifold (fn [c k] (update c k (/ (get c k) (get b k)))) c (- (len b) 1))))"""


def test_an_element_is_changed_in_place() -> None:
    assert re.search(r"(\w+)\[k\] /= b\[k\];", code_of(hyad.model(THOMAS)))


def test_what_is_stored_has_no_name_of_differentiations_own() -> None:
    """A name that the user gave stays."""
    f = hyad.model("(fn [#^ (Vec n) w] (sum (map (fn [a] (* a a a)) w)))")
    code = code_of(hyad.grad(f))
    assert not re.search(r"const double (\w+_bar\w*) = [^;]*; \w+\[\w+\] = \1;", code)
    named = hyad.model("(fn [#^ (Vec n) w] (map (fn [a] (let [cube (* a a a)] cube)) w))")
    assert "cube" in code_of(named)
    x = np.array([0.5, -2.0])
    assert np.allclose(hyad.compile(hyad.grad(f))(x), 3 * x**2, rtol=1e-15)


def test_a_short_choice_is_an_expression() -> None:
    f = hyad.model(
        "(fn [#^ (Vec n) x] (ifold (fn [s i] (if (= (% i 5) 0) (+ s (get x i)) (- s (get x i)))) 0.0 (len x)))"
    )
    code = code_of(f)
    assert "if (" not in code and "i % 5 == 0 ? " in code
    x = np.arange(1.0, 8.0)
    assert hyad.compile(f)(x) == x[::5].sum() * 2 - x.sum()


def test_a_long_branch_stays_one() -> None:
    f = hyad.model(
        "(fn [x y] (if (< x y) (sin (+ (exp x) (* (cos y) (tanh x) (sqrt (abs y)) (log (+ 1.0 (* y y)))))) 0.0))"
    )
    assert "if (x < y) {" in code_of(f)


def test_zeros_are_cleared_at_once() -> None:
    """A row that is set to zeros."""
    row = hyad.model("(fn [#^ (Mat n m) a #^ Int k] (update a k (zeros (len (get a 0)))))")
    code = code_of(row)
    assert code.count("memset") == 1 and "work" not in code
    a = np.arange(1.0, 7.0).reshape(3, 2)
    assert np.array_equal(hyad.compile(row)(a, 1), [[1, 2], [0, 0], [5, 6]])


def test_no_fewer_than_no_zeros_are_cleared() -> None:
    """A size that may be negative is checked before ``memset`` has it."""
    f = hyad.model("(fn [#^ Int n] (zeros [n n]))")
    code = code_of(f)
    assert code.index("if (n < 0) return 1;") < code.index("memset(")
    assert np.array_equal(hyad.compile(f)(2), np.zeros((2, 2)))
    with pytest.raises(hyad.ModelTypeError, match="negative"):
        hyad.compile(f)(-2)


def test_a_number_that_is_no_literal_stays_in_parts() -> None:
    most = number(2**62)
    assert integer("+", integer("+", K, most), most).text == f"i + {2**62} + {2**62}"


def test_an_element_is_not_set_to_itself() -> None:
    f = hyad.model("(fn [#^ (Vec n) x] (ifold (fn [x i] (update x i (get x i))) x (len x)))")
    assert "for (" not in code_of(f)
    past = hyad.model(
        "(fn [#^ (Vec n) x] (ifold (fn [x i] (let [a (get x i)] (update (update x (+ i 1) (* 2.0 a)) i a)))"
        " x (- (len x) 1)))"
    )
    assert len(re.findall(r"\] = ", code_of(past))) == 1
    assert np.array_equal(hyad.compile(past)(np.array([1.0, 5.0, 7.0])), [1.0, 2.0, 4.0])


def test_an_index_that_is_checked_is_computed_once() -> None:
    f = hyad.model("(fn [#^ (Vec n) x #^ (Vec m) at] (ifold (fn [s i] (+ s (get x (int (get at i))))) 0.0 (len at)))")
    code = code_of(f)
    assert code.count("hyad_to_int(at[i])") == 1
    assert hyad.compile(f)(np.array([1.0, 2.0, 4.0]), np.array([2.0, 0.0])) == 5.0


def test_twos_and_halves_of_derivatives_cancel() -> None:
    """A half that a user wrote before a square: the derivative has neither."""
    f = hyad.model(
        "(fn [#^ (Vec n) x #^ (Vec n) y] (* 0.5 (ifold (fn [s i] (+ s (** (- (get x i) (get y i)) 2))) 0.0 (len x))))"
    )
    code = code_of(hyad.grad(f, wrt="x"))
    assert "0.5" not in code and "2.0" not in code
    x, y = np.array([1.0, 2.5]), np.array([0.25, -1.0])
    assert np.array_equal(hyad.compile(hyad.grad(f, wrt="x"))(x, y), x - y)


# -------------------------------------------------------------------------------------------- comments

WIDE = """(defmodel wide
  [#^ (Mat rows columns) first #^ (Mat rows columns) second #^ (Vec columns) weights #^ (Vec rows) seen]
  "What a model of many parameters says of itself, which is longer than a line of a comment has room for, and the last."
  (sum (map (fn [a b s] (square (- s (sum (map (fn [p q w] (* p q w (exp (* -0.5 (square (- p q)))))) a b weights)))))
            first second seen)))"""


def test_comments_are_whole_forms() -> None:
    for f in (hyad.model(WIDE), hyad.grad(hyad.model(WIDE))):
        comments = re.findall(r"// (.*)", text_of(f))
        assert len(comments) > 2
        for comment in comments:
            assert all(comment.count(a) == comment.count(b) for a, b in ("()", "[]")), comment


def test_the_banner_says_all_shapes() -> None:
    banner = text_of(hyad.grad(hyad.model(WIDE))).partition("*/")[0]
    flat = " ".join(banner.replace("\n *", " ").split())
    assert "(defmodel wide [#^ (Mat rows columns) first " in flat and "seen] ...)" in flat
    assert "first_bar[rows][columns], second_bar[rows][columns], weights_bar[columns], seen_bar[rows]" in flat
    assert "and the last." in " ".join(text_of(hyad.model(WIDE)).partition("*/")[0].replace("\n *", " ").split())
    assert max(map(len, banner.split("\n"))) <= 100
