"""The evaluator of policy expressions: a checked syntax tree over columns to one boolean per row.

Conditions are numpy masks, values are Arrow arrays. Nearly all rules compare a column of numbers with a number: numpy
does this four times as fast as Arrow and needs no conversion from bits. A comparison that reads one column of labels
(an Arrow dictionary) is evaluated once per label. Arrow evaluates everything else. A comparison with a missing value is
false; arithmetic is that of 64-bit floats.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: Arrow arrays of one length, by `sidecar.column`.
Columns = Mapping[str, Any]
Bools = npt.NDArray[np.bool_]
#: No comparison is shared.
NOTHING: dict[ast.expr, Bools | None] = {}

#: Each comparison as Arrow and as numpy compute it.
COMPARISONS: dict[type[ast.cmpop], tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Bools]]] = {
    ast.Lt: (pc.less, np.less),
    ast.LtE: (pc.less_equal, np.less_equal),
    ast.Gt: (pc.greater, np.greater),
    ast.GtE: (pc.greater_equal, np.greater_equal),
    ast.Eq: (pc.equal, np.equal),
    ast.NotEq: (pc.not_equal, np.not_equal),
}
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: pc.add,
    ast.Sub: pc.subtract,
    ast.Mult: pc.multiply,
    ast.Div: pc.divide,
}


def column_name(node: ast.Attribute) -> str:
    """`sidecar.column`."""
    return f"{node.value.id}.{node.attr}"  # type: ignore[attr-defined]


def shared_comparisons(trees: Sequence[ast.expr]) -> tuple[list[ast.expr], frozenset[ast.expr]]:
    """The same trees, in which equal comparisons are one node, and the nodes that occur more than once."""
    sharing = _Sharing()
    made = [sharing.visit(tree) for tree in trees]
    return made, frozenset(sharing.nodes[text] for text, times in sharing.times.items() if times > 1)


class _Sharing(ast.NodeTransformer):
    def __init__(self) -> None:
        self.nodes, self.times = dict[str, ast.expr](), Counter[str]()

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        text = ast.dump(node)
        self.times[text] += 1
        return self.nodes.setdefault(text, node)


def evaluate_condition(
    node: ast.expr, columns: Columns, rows: int, known: dict[ast.expr, Bools | None] = NOTHING
) -> Bools:
    """Where a condition holds, [rows].

    Args:
        known: outcomes of shared comparisons over these columns; None where it is to be filled in.

    Raises:
        TypeError, pa.ArrowException: operands whose types do not fit; never after `parse` has checked the tree.
    """
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        found = evaluate_condition(node.values[0], columns, rows, known)
        for operand in node.values[1:]:
            found = join(found, evaluate_condition(operand, columns, rows, known))
        return found
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return np.logical_not(evaluate_condition(node.operand, columns, rows, known))
    if isinstance(node, ast.Compare):
        outcome = known.get(node)
        if outcome is None:
            outcome = _comparison(node, columns, rows)
            if node in known:
                known[node] = outcome
        return outcome
    return _mask(evaluate_value(node, columns, rows), rows)


def evaluate_value(node: ast.expr, columns: Columns, rows: int) -> Any:
    """The values of a column, a number, an arithmetic expression or a condition: an Arrow array or scalar."""
    if isinstance(node, ast.Attribute):
        column = columns[column_name(node)]
        return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if isinstance(node, ast.Constant):
        return literals([node.value])[0]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return pc.negate(_float(evaluate_value(node.operand, columns, rows)))
    if isinstance(node, ast.BinOp):
        left, right = evaluate_value(node.left, columns, rows), evaluate_value(node.right, columns, rows)
        return ARITHMETIC[type(node.op)](_float(left), _float(right))
    return _booleans(evaluate_condition(node, columns, rows))


def literals(values: Sequence[Any], kind: pa.DataType | None = None) -> Any:
    """Literals as an Arrow array, from their bytes: pyarrow's conversion of Python values imports pandas.

    Args:
        kind: type of the array; by default that of the literals.

    Raises:
        TypeError, pa.ArrowException: values of several kinds, or of another kind than the array.
    """
    kinds = {type(value) for value in values}
    if kinds == {str} and (kind is None or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        texts = [value.encode() for value in values]
        ends = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        made = pa.Array.from_buffers(pa.string(), len(texts), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))])
    elif kinds == {bool} and (kind is None or pa.types.is_boolean(kind)):
        made = _booleans(np.array(values))
    elif kinds == {int} and (kind is None or pa.types.is_integer(kind)):
        made = pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.array(values, np.int64))])
    elif kinds == {float} and (kind is None or pa.types.is_floating(kind)):
        made = pa.Array.from_buffers(pa.float64(), len(values), [None, pa.py_buffer(np.array(values))])
    else:
        return pa.array(values, kind)  # missing values, mixtures, and what pyarrow refuses by name
    return made if kind is None else made.cast(kind)


def _booleans(mask: Bools) -> Any:
    """A mask as an Arrow array."""
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(np.packbits(mask, bitorder="little"))])


def _comparison(node: ast.Compare, columns: Columns, rows: int) -> Bools:
    numbers = _numbers(node, columns)
    if numbers is not None:
        return numbers
    name, *others = {column_name(part) for part in ast.walk(node) if isinstance(part, ast.Attribute)} or {""}
    column = columns.get(name)
    if others or column is None or not pa.types.is_dictionary(column.type):
        return _chain(node, columns, rows)
    labels = pa.concat_arrays([column.dictionary, pa.nulls(1, column.dictionary.type)])
    places = column.indices.fill_null(len(labels) - 1).to_numpy()
    found: Bools = _chain(node, {name: labels}, len(labels))[places]
    return found


def _numbers(node: ast.Compare, columns: Columns) -> Bools | None:
    """A comparison of a column of numbers with a number, false where one is missing; None for anything else.

    None for no rows too: whether types fit is found by Arrow, on empty columns.
    """
    left, operator, right = node.left, COMPARISONS.get(type(node.ops[0])), node.comparators[0]
    if len(node.ops) > 1 or operator is None:
        return None
    if not isinstance(left, ast.Attribute) or not isinstance(right, ast.Constant):
        return None
    column, number = columns[column_name(left)], right.value
    if not len(column) or isinstance(number, bool) or not isinstance(number, int | float):
        return None
    if pa.types.is_float32(column.type) or pa.types.is_float64(column.type):
        number = np.float64(number)  # numpy rounds a Python float to the column's 32 bits; this one it does not
    elif not (pa.types.is_integer(column.type) and isinstance(number, int)):
        return None
    if not column.null_count:
        return operator[1](column.to_numpy(), number)
    width = np.dtype(column.type.to_pandas_dtype())
    values = np.frombuffer(column.buffers()[1], width)[column.offset : column.offset + len(column)]
    return np.logical_and(operator[1](values, number), _mask(column.is_valid(), len(column)))


def _chain(node: ast.Compare, columns: Columns, rows: int) -> Bools:
    """`a < b < c`, `a in [...]` and `a is None`, by Arrow."""
    found, left = None, evaluate_value(node.left, columns, rows)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        if isinstance(op, ast.In | ast.NotIn):
            values = literals([ast.literal_eval(item) for item in comparator.elts], left.type)  # type: ignore[attr-defined]
            one, right = _mask(pc.is_in(left, value_set=values), rows), left
        elif isinstance(op, ast.Is | ast.IsNot):
            literal, right = comparator.value, left  # type: ignore[attr-defined]
            one = _mask(pc.is_null(left) if literal is None else pc.equal(left, literals([literal])[0]), rows)
        else:
            right = evaluate_value(comparator, columns, rows)
            one = _mask(COMPARISONS[type(op)][0](left, right), rows)
        one = np.logical_not(one) if isinstance(op, ast.NotIn | ast.IsNot) else one
        found = one if found is None else np.logical_and(found, one)
        left = right
    assert found is not None  # a comparison has an operator
    return found


def _float(values: Any) -> Any:
    """As 64-bit floats: no overflow, and no error on division by zero."""
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise TypeError(f"arithmetic needs numbers, not {values.type}")
    return pc.cast(values, pa.float64(), safe=False)


def _mask(values: Any, rows: int) -> Bools:
    """Arrow booleans as a mask, missing values as false; ten times as fast as Arrow's own conversion."""
    if not pa.types.is_boolean(values.type):
        raise TypeError(f"a condition needs booleans, not {values.type}")
    if isinstance(values, pa.Scalar):
        return np.full(rows, bool(values.as_py()))
    if not rows:
        return np.zeros(0, dtype=np.bool_)
    filled = pc.fill_null(values, False) if values.null_count else values
    bits = np.frombuffer(filled.buffers()[1], dtype=np.uint8)
    flags = np.unpackbits(bits, count=filled.offset + rows, bitorder="little")[filled.offset :]
    return flags.view(np.bool_)
