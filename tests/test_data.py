"""Data that Python and models share: constructors, sums, lists."""

from __future__ import annotations

import copy
import pickle
import sys
import types
from functools import partial

import hy  # noqa: F401
import numpy as np
import pytest

import hyad
from hyad import ModelTypeError

Tree = hyad.defdata("Tree", ["Leaf", "word"], ["Node", "label", "left-arm", "right"], ["Empty"])
Leaf, Node, Empty = Tree.constructors


def test_a_constructor_holds_its_fields_in_order():
    t = Node(1.0, Leaf(2), Empty())
    assert (t.label, t.left_arm.word, t.right) == (1.0, 2, Empty())
    assert isinstance(t, Tree) and isinstance(t, Tree.Node)
    match t:
        case Node(label, Leaf(word), _):
            assert (label, word) == (1.0, 2)
    assert repr(t) == "(Node 1.0 (Leaf 2) (Empty))"


def test_values_are_equal_by_what_they_hold_and_do_not_change():
    assert Leaf(1.0) == Leaf(1.0) != Leaf(2.0)
    assert Leaf(np.ones(2)) == Leaf(np.ones(2)) != Leaf(np.ones(3))
    assert hash(Node(1.0, Leaf(2), None)) == hash(Node(1.0, Leaf(2), None))
    assert hyad.inl(1.0) != hyad.inr(1.0)
    with pytest.raises(AttributeError, match="make another"):
        Leaf(1.0).word = 2.0
    with pytest.raises(ModelTypeError, match="takes 3 fields"):
        Node(1.0)


def test_values_are_copied_and_pickled():
    t = Node(1.0, Leaf(2), Empty())
    assert copy.deepcopy(t) == t
    Tree.__module__, sum_ = __name__, hyad.inl(hyad.inr(1.0))
    assert pickle.loads(pickle.dumps(sum_)) == sum_ and repr(sum_) == "(inl (inr 1.0))"


def test_deep_values_compare_and_print_without_recursion():
    def chain(n):
        t = Empty()
        for k in range(n):
            t = Node(float(k), t, (1.0, None))
        return t

    assert chain(100_000) == chain(100_000) != chain(99_999)
    assert repr(chain(100_000)).count("(Node") == 100_000


def test_a_list_is_nested_pairs():
    assert hyad.lisp([1.0, 2.0]) == (1.0, (2.0, None)) and hyad.lisp([]) is None


def test_wrong_data_types_are_refused():
    with pytest.raises(ModelTypeError, match="two constructors"):
        hyad.defdata("T", ["A"], ["A"])
    with pytest.raises(ModelTypeError, match="one name"):
        hyad.defdata("T", ["A", "x", "x"])
    with pytest.raises(ModelTypeError, match="no constructor"):
        hyad.defdata("T")


def test_defdata_in_a_file_of_models_and_in_hy(tmp_path):
    path = tmp_path / "trees.hy"
    path.write_text("(defdata Tree (Leaf word) (Node label left right))\n(defmodel f [x] (* x x))\n")
    module = hyad.load(path)
    assert module.Node(1.0, module.Leaf(2), None).left.word == 2 and module.f(3.0) == 9.0
    path.write_text(
        "(require hyad.macros [defdata])\n(defdata Tree (Leaf word) (Node label left right))\n(setv t (Leaf 3))\n"
    )
    module = hyad.load(path)
    assert module.t == module.Leaf(3) and module.Tree.Node is module.Node


def test_a_model_is_pickled_by_its_name():
    """As a function is; a derivative by what it is a derivative of. A copy is the model itself. What was compiled is
    its model with options and signature."""
    module = types.ModuleType("pickled_models")
    module.square = hyad.model("(fn [x y] (* x x y))", namespace=module.__dict__)
    sys.modules[module.__name__] = module
    try:
        assert pickle.loads(pickle.dumps(module.square)) is module.square
        slope = pickle.loads(pickle.dumps(hyad.grad(hyad.grad(module.square, "x"), wrt=("x", "y"))))
        assert slope(3.0, 5.0) == (10.0, 6.0)
        assert copy.deepcopy([module.square])[0] is copy.copy(module.square) is module.square
        cube = hyad.model("(fn [#^ (Vec n) v] (fold (fn [s a] (+ s (* a a a))) 0.0 v))", namespace=module.__dict__)
        module.cube, v = cube, np.arange(1.0, 4.0)
        made = [
            hyad.compile(hyad.grad(cube)),
            hyad.compile(cube, args=(np.array([2, 3]),), math="vector", without="jam"),
            hyad.compile(module.square, "python", args=(2, (3.0))),
            hyad.compile(cube, dtype="f32", flags="fast"),
        ]
        for f in made:
            again = pickle.loads(pickle.dumps(f))
            assert again.model.name == f.model.name and (again.target, again.dtype) == (f.target, f.dtype)
            assert getattr(again, "source", "") == getattr(f, "source", "")
            given = (2, 3.0) if f.target == "python" else (v.astype("f4") if f.dtype == "f32" else v,)
            np.testing.assert_array_equal(again(*given), f(*given))
        assert copy.copy(made[0])(v).tolist() == [3.0, 12.0, 27.0] and type(made[0]).__call__ is partial.__call__
    finally:
        del sys.modules[module.__name__]
    with pytest.raises(hyad.ModelTypeError, match="cannot be pickled"):
        pickle.dumps(hyad.compile("(fn [x] x)"))
    with pytest.raises(hyad.ModelTypeError, match="cannot be pickled"):
        pickle.dumps(hyad.model("(fn [x] x)"))


@pytest.mark.parametrize("target", ["c", "python"])
def test_what_is_compiled_without_a_signature_takes_that_of_its_first_call(target: str) -> None:
    """As a model does; it was refused. Until then there is no code, and asking for it says why."""
    squares = "(fn [v] (map (fn [x] (* x x)) v))"
    f, v = hyad.compile(squares, target), np.array([1.0, 2.0, 3.0])
    with pytest.raises(hyad.ModelTypeError, match="what is not declared is taken as a number"):
        f.program
    with pytest.raises(hyad.ModelTypeError, match=r"takes 1 argument \[v\], not 2"):
        f(v, v)
    for _ in range(2):
        assert f(v).tolist() == [1.0, 4.0, 9.0]
    assert f(np.array([2])).tolist() == [4] and f.target == target and not hasattr(f, "no_such")
    assert ("void f(" in f.source) if target == "c" else f.program.params[0].name == "v"
    assert hyad.compile(hyad.jacobian(squares), target)(v[:2]).tolist() == [[2.0, 0.0], [0.0, 4.0]]
    assert hyad.compile('(fn [p] (* 2 (get p "a")))', target)({"a": 1.5}) == 3.0
    assert copy.copy(f)(v).tolist() == [1.0, 4.0, 9.0]
    with pytest.raises(hyad.UnboundError):
        hyad.compile("(fn [v] (nowhere v))", target)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("(defdata T Nil (B l))", "a constructor stands in brackets", "`(Nil)` is one without fields"),
        ("(defdata T (B #^ Int l))", "a field has no annotation", "its type is that of what is given"),
        ("(defdata T (B [l]))", "a constructor is a name with the names of its fields", "Node label left right"),
    ],
)
def test_what_is_no_constructor_is_said(text: str, message: str, hint: str) -> None:
    with pytest.raises(hyad.ReadError, match=message) as found:
        hyad.model(f"{text} (fn [t] t)", namespace={})
    assert hint in str(found.value)
