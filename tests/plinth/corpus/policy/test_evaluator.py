"""The evaluator against Arrow's comparisons and against Python: kinds of numbers, slices, missing values, edges."""

import ast
import itertools
import math
import operator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.corpus.policy import expressions
from plinth.corpus.policy.expressions import parse

SCHEMA = {"a.i": pa.int32(), "a.l": pa.int64(), "a.f": pa.float32(), "a.d": pa.float64(), "b.ok": pa.bool_()}
COLUMNS = {
    "a.i": pa.array([0, 49, 50, -(2**31), 2**31 - 1], pa.int32()),
    "a.l": pa.array([0, 49, None, 2**53, -(2**53)], pa.int64()),
    "a.f": pa.array([0.1, 0.65, math.nan, math.inf, -0.0], pa.float32()),
    "a.d": pa.array([0.1, 0.65, math.nan, math.inf, -0.0], pa.float64()),
    "b.ok": pa.array([True, False, None, True, False]),
}
WIDE = ("2147483647", "2147483648", "9999999999", "4294967345")
NUMBERS = ("0", "49", "50", "0.1", "0.65", "49.5", "1e300")
#: Each operator as Arrow and as Python compute it.
OPERATORS = {
    "<": (pc.less, operator.lt),
    "<=": (pc.less_equal, operator.le),
    ">": (pc.greater, operator.gt),
    ">=": (pc.greater_equal, operator.ge),
    "==": (pc.equal, operator.eq),
    "!=": (pc.not_equal, operator.ne),
}


#: Arrow refuses to combine 32-bit floats with integers that they cannot represent; so does `parse`.
PAIRS = [
    (column, number)
    for column in ("a.i", "a.l", "a.f", "a.d")
    for number in (*NUMBERS, *(WIDE if column != "a.f" else ()))
]


@pytest.mark.parametrize("sign", OPERATORS)
@pytest.mark.parametrize("start", [0, 1, 4, 5])
def test_every_comparison_is_arrows(sign: str, start: int) -> None:
    columns = {name: values.slice(start) for name, values in COLUMNS.items()}
    for column, number in PAIRS:
        rule = parse(f"{column} {sign} {number}", SCHEMA, "rule")
        arrow = pc.fill_null(OPERATORS[sign][0](columns[column], pa.scalar(ast.literal_eval(number))), False)
        assert rule.evaluate(columns, 5 - start).tolist() == arrow.to_pylist(), rule.text


def test_a_column_of_numbers_beside_a_number_is_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all rules are such a comparison, and numpy is four times as fast."""
    rule = parse("a.i < 50", SCHEMA, "rule")
    monkeypatch.setitem(expressions.COMPARISONS, ast.Lt, (None, np.less))
    assert rule.evaluate(COLUMNS, 5).tolist() == [True, True, False, True, False]


def conditions() -> st.SearchStrategy[str]:
    columns, signs = st.sampled_from(["a.i", "a.l", "a.f", "a.d"]), st.sampled_from(sorted(OPERATORS))
    comparison = st.builds("{} {} {}".format, columns, signs, st.sampled_from(NUMBERS))
    terms = st.one_of(columns, st.sampled_from(NUMBERS))
    sums = st.builds("({} {} {})".format, columns, st.sampled_from("+-*"), terms)
    compared = st.builds("{} {} {}".format, sums, signs, st.one_of(terms, sums))
    chained = st.builds("{} {} {}".format, compared, signs, sums)
    others = st.sampled_from(["b.ok", "b.ok is None", "0 < a.i <= 50", "a.i in [49, 50]", "a.l * 2 > 90", "1 < a.d"])
    return st.recursive(
        st.one_of(comparison, compared, chained, others),
        lambda inner: st.one_of(
            st.builds("not ({})".format, inner),
            st.builds("({}) {} ({})".format, inner, st.sampled_from(["and", "or"]), inner),
        ),
        max_leaves=5,
    )


ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def in_python(node: ast.expr, row: dict[str, Any]) -> Any:
    """The value of an expression for one row; None is a missing value."""
    match node:
        case ast.Attribute(value=ast.Name(id=sidecar), attr=column):
            return row[f"{sidecar}.{column}"]
        case ast.Constant(value=value):
            return value
        case ast.BoolOp(op=join, values=operands):
            found = [bool(in_python(one, row)) for one in operands]
            return all(found) if isinstance(join, ast.And) else any(found)
        case ast.UnaryOp(operand=inner):
            return not in_python(inner, row)
        case ast.BinOp(left=left, op=op, right=right):
            numbers = in_python(left, row), in_python(right, row)
            return None if None in numbers else ARITHMETIC[type(op)](*map(float, numbers))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            values = [in_python(one, row) if not isinstance(one, ast.List) else one for one in (left, *comparators)]
            return all(holds(op, *pair) for op, pair in zip(ops, itertools.pairwise(values), strict=True))
    raise AssertionError(ast.dump(node))


def holds(op: ast.cmpop, left: Any, right: Any) -> bool:
    if isinstance(op, ast.Is):
        return left is None
    if isinstance(op, ast.In):
        return left in ast.literal_eval(right)
    signs = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
    return None not in (left, right) and bool(OPERATORS[signs[type(op)]][1](left, right))


@given(conditions(), st.integers(0, 5))
def test_every_condition_is_pythons_with_values_missing(text: str, start: int) -> None:
    rule, rows = parse(text, SCHEMA, "rule"), 5 - start
    columns = {name: values.slice(start, rows) for name, values in COLUMNS.items()}
    lists = {name: values.to_pylist() for name, values in columns.items()}
    expected = [bool(in_python(rule.tree, {name: lists[name][row] for name in lists})) for row in range(rows)]
    assert rule.evaluate(columns, rows).tolist() == expected


LABELS = {"a.label": pa.string(), "b.label": pa.string(), "c.n": pa.int32()}
STRINGS = st.sampled_from(["en", "de", "", None])
ASKED = (
    "a.label != 'en'", "a.label in ['de', '']", "a.label is None", "not a.label == 'en'", "a.label < 'e'",
    "a.label == b.label", "a.label == 'en' and c.n > 1", "not (b.label is not None or a.label not in ['de'])",
    "(a.label == 'en') == (c.n > 1)", "'a' < a.label < 'e'",
    "1 < 2 and a.label == 'de'", "c.n > 1 and True",
)  # fmt: skip


@given(st.lists(st.tuples(STRINGS, STRINGS, st.integers(0, 3)), max_size=12), st.integers(0, 3))
def test_a_condition_on_labels_is_that_on_the_strings(rows: list[tuple[str | None, str | None, int]], cut: int) -> None:
    plain = {name: pa.array([row[i] for row in rows], kind).slice(cut) for i, (name, kind) in enumerate(LABELS.items())}
    labels = {name: one.dictionary_encode() if pa.types.is_string(one.type) else one for name, one in plain.items()}
    size = len(plain["c.n"])
    for text in ASKED:
        rule = parse(text, LABELS, "rule")
        assert rule.evaluate(labels, size).tolist() == rule.evaluate(plain, size).tolist(), text
