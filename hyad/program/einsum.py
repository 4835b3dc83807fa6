"""``(einsum "ij,jk->ik" a b)``: sums of products by the names of their axes, as functions of the language.

``"ij,jk->ik"``  =>  ``(defmodel einsum [a0 a1] (build [..] (fn [i k] (ifold (fn [total j] ..) 0.0 ..))))``

That is the text of ``mat-mul``: what makes products of matrices quick finds these. Of more than two arrays the first
two are put together, then the third: what neither a later one nor the result names is summed as soon as it can be.
"""

from __future__ import annotations

import re

#: What stands before the names in a function's name: ``einsum "ij,jk->ik"``.
HEAD = 'einsum "'


def function_text(name: str) -> str | None:
    """The text of the function of that name; None where it is none of ``einsum``'s."""
    if not (name.startswith(HEAD) and name.endswith('"')):
        return None
    operands, result = parted(name[len(HEAD) : -1])
    names = [f"a{k}" for k in range(len(operands))]
    terms = list(zip(names, operands))
    lines: list[str] = []
    if len(terms) > 1:
        terms = [_alone(k, terms, result, lines) for k in range(len(terms))]
    while len(terms) > 2:
        later = {i for _, axes in terms[2:] for i in axes} | set(result)
        axes = "".join(i for i in dict.fromkeys(terms[0][1] + terms[1][1]) if i in later)
        lines.append(f"p{len(terms)} {_product(terms[:2], axes)}")
        terms = [(f"p{len(terms)}", axes), *terms[2:]]
    body = _product(terms, result)
    if lines:
        body = f"(let [{'  '.join(lines)}] {body})"
    return f'(defmodel einsum [{" ".join(names)}] "the products, summed over the axes that the result has not" {body})'


def parted(spec: str) -> tuple[list[str], str]:
    """The axes of each operand and of the result, which is all that stand once where it is not said.

    Raises ``ValueError`` with what is wrong.
    """
    left, arrow, result = spec.replace(" ", "").partition("->")
    operands = left.split(",")
    if not re.fullmatch("[A-Za-z,]*", left) or not re.fullmatch("[A-Za-z]*", result):
        raise ValueError("axes are letters, operands stand between commas, the result behind ->")
    if not arrow:
        result = "".join(sorted(i for i in set(left) - {","} if left.count(i) == 1))
    missing = sorted(set(result) - set(left))
    if missing or len(set(result)) < len(result):
        what = f"no operand has the axis {missing[0]}" if missing else "the result has an axis twice"
        raise ValueError(what)
    return operands, result


def _alone(k: int, terms: list[tuple[str, str]], result: str, lines: list[str]) -> tuple[str, str]:
    """Term k, summed beforehand over what it alone has; a diagonal is taken out."""
    name, axes = terms[k]
    others = {i for n, (_, other) in enumerate(terms) if n != k for i in other} | set(result)
    left = "".join(i for i in dict.fromkeys(axes) if i in others)
    if left == axes:
        return name, axes
    lines.append(f"s{k} {_product([terms[k]], left)}")
    return f"s{k}", left


def _product(terms: list[tuple[str, str]], result: str) -> str:
    """The sum of the products of one or two terms over all axes that the result does not have."""
    first: dict[str, str] = {}
    checks: list[str] = []
    for name, axes in terms:
        checks.append(f"(require-equal (rank {name}) {len(axes)})")
        for axis, i in enumerate(axes):
            size = f"(shape {name} {axis})"
            if i in first:
                checks.append(f"(require-equal {first[i]} {size})")
            else:
                first[i] = size
    parts = [f"(get {name} {' '.join(axes)})" if axes else name for name, axes in terms]
    body = parts[0] if len(parts) == 1 else f"(* {' '.join(parts)})"
    summed = [i for i in first if i not in result]
    if summed:
        body = f"(+ total {body})"
        for i in reversed(summed):
            body = f"(ifold (fn [total {i}] {body}) {'0.0' if i == summed[0] else 'total'} {first[i]})"
    if result:
        body = f"(build [{' '.join(first[i] for i in result)}] (fn [{' '.join(result)}] {body}))"
    return f"(do {' '.join(checks)} {body})"
