"""Conditions as numpy masks, where that is quicker than Arrow: a column of numbers beside a number, and labels.

Nearly all rules are of the first kind. numpy compares them four times as fast and needs no conversion from bits. A
condition on a column of labels (an Arrow dictionary) is evaluated once for each label. Whatever is of neither kind is
left to `Expression.evaluate`, and all say the same.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth.corpus.policy.expressions import Columns, Expression

Bools = npt.NDArray[np.bool_]

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Bools]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}


def mask(rule: Expression, columns: Columns, rows: int) -> Bools:
    """Where a condition holds, [rows]; as `Expression.evaluate`."""
    node = rule.tree
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        found = mask(replace(rule, tree=node.values[0]), columns, rows)
        for value in node.values[1:]:
            found = join(found, mask(replace(rule, tree=value), columns, rows))
        return found
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return np.logical_not(mask(replace(rule, tree=node.operand), columns, rows))
    plain = _plain(node, columns)
    return _evaluated(rule, columns, rows) if plain is None else plain


def _plain(node: ast.expr, columns: Columns) -> Bools | None:
    """A comparison of a column of numbers, none of them missing, with a number; None for anything else."""
    if not isinstance(node, ast.Compare) or len(node.ops) > 1 or type(node.ops[0]) not in _COMPARE:
        return None
    left, right = node.left, node.comparators[0]
    if not isinstance(left, ast.Attribute) or not isinstance(right, ast.Constant):
        return None
    column, value = columns[f"{left.value.id}.{left.attr}"], right.value  # type: ignore[attr-defined]
    if column.null_count or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    compare = _COMPARE[type(node.ops[0])]
    if pa.types.is_integer(column.type) and isinstance(value, int):
        return compare(column.to_numpy(), value)
    if pa.types.is_float32(column.type) or pa.types.is_float64(column.type):
        # a Python float would be rounded to the column's 32 bits; as 64 bits it is compared as it was written
        return compare(column.to_numpy(), np.float64(value))
    return None


def _evaluated(rule: Expression, columns: Columns, rows: int) -> Bools:
    """As Arrow says; `columns` may hold dictionaries, which `Expression.evaluate` does not know."""
    names = {f"{node.value.id}.{node.attr}" for node in ast.walk(rule.tree) if isinstance(node, ast.Attribute)}  # type: ignore[attr-defined]
    own = {name: columns[name] for name in names}
    labels = [name for name, values in own.items() if pa.types.is_dictionary(values.type)]
    if len(names) > 1 or not labels:
        own |= {name: own[name].dictionary_decode() for name in labels}
        return _unpacked(rule.evaluate(own, rows), rows)
    column = own[labels[0]]
    values = pa.concat_arrays([column.dictionary, pa.nulls(1, column.dictionary.type)])
    places = column.indices.fill_null(len(values) - 1).to_numpy()
    found: Bools = _unpacked(rule.evaluate({labels[0]: values}, len(values)), len(values))[places]
    return found


def _unpacked(found: pa.Array, rows: int) -> Bools:
    """Booleans without nulls as numpy has them, ten times as fast as Arrow's own conversion."""
    if not rows:
        return np.zeros(0, dtype=np.bool_)
    bits = np.frombuffer(found.buffers()[1], dtype=np.uint8)
    flags = np.unpackbits(bits, count=found.offset + rows, bitorder="little")[found.offset :]
    return flags.view(np.bool_)
