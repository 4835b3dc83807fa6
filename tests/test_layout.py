"""The layout of forms: what it looks like, that it reads back, and that size and depth do not matter."""

from __future__ import annotations

import re

import hy
import hy.models as m
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyad.layout import pformat
from hyad.program.forms import Form, read_forms, unparse

# Text that is laid out already: what `pformat` has to give for it.
LAID_OUT = [
    "(let [x 1] (* x x))",
    """
(let [x 1
      y 2]
  (* x y))""",
    """
(defmodel thurber [x b1 b2 b3 b4 b5 b6 b7]
  "semiconductor electron mobility"
  (let [num (+ b1 (* b2 x) (* b3 x x) (* b4 x x x))
        den (+ 1 (* b5 x) (* b6 x x) (* b7 x x x))]
    (/ num den)))""",
    """
(fn [v]
  (ifold (fn [acc i]
           (let [xi (get v i)
                 yi (sin (* xi (get v (+ i 1))))]
             (+ acc (* xi yi (exp (- (* xi xi)))))))
         0.0
         (- (len v) 1)))""",
    """
(build [n m]
  (fn [i j]
    (* (get a i j) (get a j i) (if (= i j) 1.0 (+ (get b i) (get b j) eps)))))""",
    """
(defmodel f [x #^ (Vec 3) v]
  (cond
    (< x 0.0) (- x)
    (> x 100.0)
      (let [over (- x 100.0)]
        (+ x (* over over (get v 0) (get v 1) (get v 2) (log (+ 1 over)))))
    True x))""",
    """
(if (< (norm v) tolerance)
    (sum-of-the-parts v (norm v) (get v 0))
    (sum-of-the-parts (scaled v (/ 1 (norm v))) 1.0 (get v 0)))""",
    """
(grad some-function-with-a-name
      :wrt #("alpha" "beta" "gamma" "delta" "epsilon")
      :target "c")""",
    """
{"a" 1
 "a list" [1 2 3]
 :function (fn [x]
             (let [y (* x 2)
                   z y]
               z))}""",
    """
[1.5 2.5 3.5 4.5 5.5 6.5 7.5 8.5 9.5 10.5 11.5 12.5 13.5 14.5 15.5 16.5 17.5
 18.5 19.5 20.5]""",
    """
(setv first-value (some-function-of 1.0 2.0 3.0 4.0)
      second-value (some-function-of 5.0 6.0 7.0))""",
    """
`(let [~y ~e1
       ~(tangent y) ~(d/dx e1 x bound)]
   ~@(rest-of-the-body-which-is-long-enough-to-need-a-line-of-its-own y e1))""",
    """
(a-function-with-a-long-name
  (another-function-with-a-long-name 1.0 2.0 3.0 4.0)
  (another-function-with-a-long-name 5.0 6.0 7.0 8.0))""",
    """
(match tree
  (Leaf w) (* w x)
  (Node l a b) (combine (evaluate-the-tree a x) (evaluate-the-tree b x) l))""",
    """
(defn f [x]
  "A first line.

  And a \\"second\\" paragraph with a \\\\ and a \\t."
  x)""",
]


@pytest.mark.parametrize("text", [t.strip("\n") for t in LAID_OUT])
def test_what_is_laid_out_well_stays_as_it_is(text):
    assert pformat(hy.read(text)) == text


@pytest.mark.parametrize("text", [t.strip("\n") for t in LAID_OUT if not re.search("[`~]|defn", t)])
def test_hyads_own_forms_are_laid_out_as_hys_are(text):
    (form,) = read_forms(text)
    assert pformat(form) == text


# ------------------------------------------------------------------------------------------ round trip

names = st.sampled_from(["x", "ẏ1", "log-likelihood", "+", "**", "null?", "set!", "d/dx", "True", "None", "_"])
heads = st.sampled_from(
    "let fn if cond do build ifold defmodel defn match setv quote annotate unquote . model +".split()
)
atoms = st.one_of(
    names.map(m.Symbol),
    st.integers(-(10**20), 10**20).map(m.Integer),
    st.floats(allow_nan=False).map(m.Float),
    st.text(max_size=20).map(m.String),
    st.binary(max_size=5).map(m.Bytes),
    st.sampled_from(["wrt", "a-b", ""]).map(m.Keyword),
    st.just(hy.read('f"a{x :>9}b"')),
    st.just(hy.read("#[[a\n]b]]")),
    st.just(m.Symbol("@x")),
)


def _sequences(inner):
    several = st.lists(inner, max_size=6)
    return st.one_of(
        st.builds(lambda head, items: m.Expression([m.Symbol(head), *items]), heads, several),
        several.map(m.Expression),
        several.map(m.List),
        several.map(m.Dict),
        several.map(m.Tuple),
        several.map(m.Set),
        inner.map(lambda x: m.Expression([m.Symbol("unquote"), x])),
    )


hy_forms = st.recursive(atoms, _sequences, max_leaves=30)


@settings(max_examples=200)
@given(hy_forms, st.integers(1, 100))
def test_the_text_reads_back_as_an_equal_form(form, width):
    assert hy.read(pformat(form, width)) == form


@given(hy_forms)
def test_closers_never_stand_alone(form):
    text = pformat(form, 30)
    if '"' not in text and "#[" not in text:
        assert not any(re.match(r"\s*[)\]}]", line) for line in text.splitlines())


def _calls(inner):
    return st.lists(inner, min_size=1, max_size=5).map(lambda items: Form("(", items))


own_forms = st.recursive(
    st.one_of(
        names.filter(lambda n: n != "True").map(lambda n: Form("sym", n)),
        st.floats(allow_nan=False).map(lambda x: Form("num", x)),
        st.integers().map(lambda x: Form("num", x)),
        st.sampled_from(["", "a b", 'a "b"', "a\nb\\"]).map(lambda s: Form("str", s)),
        st.just(Form("key", "wrt")),
    ),
    lambda inner: st.one_of(
        _calls(inner),
        st.lists(inner, max_size=5).map(lambda items: Form("[", items)),
        st.tuples(inner, inner).map(lambda pair: Form("#^", list(pair))),
    ),
    max_leaves=30,
)


@given(own_forms, st.integers(1, 100))
def test_hyads_reader_reads_it_back(form, width):
    (again,) = read_forms(pformat(form, width))
    assert unparse(again) == unparse(form)


def test_a_symbol_that_starts_with_an_at_sign_is_not_spliced():
    form = m.Expression([m.Symbol("unquote"), m.Symbol("@x")])
    assert pformat(form) == "~ @x"


# ------------------------------------------------------------------------------------- size and depth


def tokens(text):
    return re.findall(r"[^\s()\[\]]+|[()\[\]]", text)


def test_ten_thousand_bindings():
    bindings = " ".join(f"y{i} (* y{i - 1} 1.5)" for i in range(1, 10_001))
    (form,) = read_forms(f"(let [{bindings}] y10000)")
    text = pformat(form)
    assert tokens(text) == tokens(unparse(form))
    assert len(text.splitlines()) == 10_001


@pytest.mark.parametrize("layer", ["(+ 1 ", "(let [y 1 z 2] ", "(fn [x] ", "[", "(a-function-with-a-long-name "])
def test_five_thousand_levels(layer):
    close = "]" if layer == "[" else ")"
    (form,) = read_forms(layer * 5000 + "x" + close * 5000)
    text = pformat(form)
    assert tokens(text) == tokens(unparse(form))
    # deep forms stop moving right, so the text is linear in the form
    assert len(text) < 5000 * 250


@given(own_forms)
def test_lines_are_no_wider_than_asked_where_there_is_room(form):
    flat = pformat(form, 10**6)
    if len(flat) <= 40 and "\n" not in flat:
        assert pformat(form, 40) == flat


@pytest.mark.parametrize(
    "text",
    [
        "(. p x)", "p.x", "(. (f p) x)", "(. p x y)", "(.sum v)", "(f .sum)", '"a\\tb"', '"it\'s"', '"a \\\\theta"',
        '"one\ntwo\\tthree\'s"', '"\\""', "(f 1_000 0x1F 1e-3 .5 -Inf)",
    ],
)  # fmt: skip
def test_hyads_reader_and_hys_lay_out_alike(text: str) -> None:
    """What they are compared by when ``defmodel`` looks whether the text at hand is the form that it was given."""
    assert pformat(read_forms(text)[0], 1000) == pformat(hy.read(text), 1000)
    assert hy.read(pformat(hy.read(text), 1000)) == hy.read(text)
