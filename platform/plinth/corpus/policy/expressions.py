"""Expression language of policies: Python comparisons over columns, parsed and checked once.

    gopher_quality.word_count < 50 or not 3 <= gopher_quality.mean_word_characters <= 10
    language.label not in ["en", "de"] and language.score > 0.5
    licence.permitted is False

Names are `sidecar.column`. Expressions may use comparisons, chained comparisons, `and`, `or`, `not`, `in` with a
list, `is None`, `+ - * /`, numbers, strings, True and False. Calls and imports are not allowed. A comparison with a
missing value is false, so its negation is true. Arithmetic uses 64-bit floats. Division by zero gives infinity or
NaN, and comparisons with them follow IEEE 754.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.errors import RecipeError
from plinth_text.arrays import Bools

MAX_CHARACTERS = 2000  # bounds the depth of the tree, too


@dataclass(frozen=True)
class StatedRule:
    """Rule as text, with the columns that the rule reads."""

    text: str
    columns: frozenset[str]


#: Default for expressions without shared comparisons.
NOTHING: dict[ast.expr, Bools | None] = {}


@dataclass(frozen=True)
class Expression(StatedRule):
    """Expression that was parsed and checked."""

    tree: ast.expr

    def evaluate(self, columns: Columns, rows: int, known: dict[ast.expr, Bools | None] = NOTHING) -> Bools:
        """Return a mask of the rows for which the expression is true.

        Args:
            columns: an Arrow array with `rows` rows for each column that the expression reads; strings may be
                dictionary-encoded.
            known: results of shared comparisons, as in `evaluate_condition`.
        """
        return evaluate_condition(self.tree, columns, rows, known)


def parse(text: str, schema: Mapping[str, pa.DataType], where: str) -> Expression:
    """Parse and check an expression.

    Args:
        text: the expression.
        schema: types of the available columns, by `sidecar.column`.
        where: name in error messages, such as `corpus.policies.default.rules.too_short`.

    Raises:
        RecipeError: the expression has a syntax error, syntax that is not allowed, an unknown column, or types that
            cannot be compared; or its result is not boolean.
    """
    tree = _tree(text, where)
    names = sorted({column_name(node) for node in _names(tree, text, where)})
    if not names:
        raise RecipeError(
            f"{where}: has no column",
            found=text,
            expected="a condition on columns, such as `gopher_quality.word_count < 50`",
        )
    for name in names:
        if name not in schema:
            raise _unknown(name, schema, text, where)
    expression = Expression(text, frozenset(names), tree)
    _try(expression, schema, where)
    return expression


def _unknown(name: str, schema: Mapping[str, pa.DataType], text: str, where: str) -> RecipeError:
    """Return the error for an unknown column. The error suggests the most similar column, if possible from the same
    annotator."""
    sidecar, sidecars = name.partition(".")[0], sorted({known.partition(".")[0] for known in schema})
    own = [known for known in schema if known.startswith(f"{sidecar}.")]
    near = difflib.get_close_matches(name, own or schema, n=1, cutoff=0.4 if own else 0.7)
    what = f"no column {name!r}" + ("" if own else f": the recipe has no annotator {sidecar!r}")
    columns = ", ".join(sorted(own or schema))
    remedy = f"did you mean {near[0]!r}?" if near else f"have: {columns if own else ', '.join(sidecars)}"
    return RecipeError(f"{where}: {what}", found=text, expected=columns, remedy=remedy)


def syntax(text: str) -> ast.expr:
    """Return the syntax tree of an expression without checking it.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: the text is not a Python expression, or is too deeply
            nested.
    """
    while True:
        # CPython counts the depth of all parses of a process in one place: one in another thread, or one that the
        # garbage collector starts, makes this one fail, though nothing is wrong with the text.
        with suppress(SystemError):
            return ast.parse(text.strip(), mode="eval").body


def _tree(text: str, where: str) -> ast.expr:
    if len(text) > MAX_CHARACTERS:
        raise RecipeError(
            f"{where}: is too long", found=f"{len(text)} characters", expected=f"at most {MAX_CHARACTERS}"
        )
    try:
        return syntax(text)
    except SyntaxError as error:
        raise RecipeError(f"{where}: cannot be read", found=text, expected=f"an expression; {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise RecipeError(
            f"{where}: cannot be read", found=f"{text[:80]}…", expected=f"an expression; {error}"
        ) from error


def _try(expression: Expression, schema: Mapping[str, pa.DataType], where: str) -> None:
    """Evaluate the expression on zero rows, so that type errors are found before any document is read."""
    empty = {name: pa.nulls(0, schema[name]) for name in expression.columns}
    try:
        kind = evaluate_value(expression.tree, empty, 0).type
    except (pa.ArrowException, TypeError) as error:
        kinds = ", ".join(f"{name} is {schema[name]}" for name in sorted(expression.columns))
        expected = f"values of the same type: {kinds}"
        raise RecipeError(f"{where}: types do not match", found=expression.text, expected=expected) from error
    if not pa.types.is_boolean(kind):
        raise RecipeError(
            f"{where}: is not a condition", found=f"{expression.text} gives {kind}", expected="true or false"
        )


def _names(tree: ast.expr, text: str, where: str) -> Iterable[ast.Attribute]:
    """Yield every column in the expression. Raise RecipeError for syntax that is not part of the policy language."""
    if isinstance(tree, ast.Attribute):
        if not isinstance(tree.value, ast.Name):
            raise _refused(tree, text, where)
        return [tree]
    if isinstance(tree, ast.Constant):
        if not _is_value(tree):
            raise _refused(tree, text, where)
        return []
    if isinstance(tree, ast.BoolOp):
        parts = tree.values
    elif isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not | ast.USub):
        parts = [tree.operand]
    elif isinstance(tree, ast.BinOp) and type(tree.op) in ARITHMETIC:
        parts = [tree.left, tree.right]
    elif isinstance(tree, ast.Compare):
        _require_comparison(tree, text, where)
        parts = [tree.left, *(right for op, right in zip(tree.ops, tree.comparators, strict=True) if _reads(op))]
    else:
        raise _refused(tree, text, where)
    return [name for part in parts for name in _names(part, text, where)]


def _require_comparison(tree: ast.Compare, text: str, where: str) -> None:
    if len(tree.ops) > 1 and not all(_reads(op) for op in tree.ops):
        raise RecipeError(
            f"{where}: `in` and `is` cannot be chained", found=text, remedy="join two conditions by `and`"
        )
    for op, right in zip(tree.ops, tree.comparators, strict=True):
        listed = isinstance(right, ast.List | ast.Tuple) and all(_is_value(item) for item in right.elts)
        identity = isinstance(right, ast.Constant) and (right.value is None or isinstance(right.value, bool))
        if isinstance(op, ast.In | ast.NotIn) and not listed:
            raise RecipeError(f"{where}: `in` needs a list of values", found=text)
        if isinstance(op, ast.Is | ast.IsNot) and not identity:
            raise RecipeError(f"{where}: `is` needs None, True or False", found=text)
        if _reads(op) and isinstance(right, ast.Constant) and right.value is None:
            raise RecipeError(
                f"{where}: comparison with None is always false", found=text, remedy="write `is None` or `is not None`"
            )


def _reads(op: ast.cmpop) -> bool:
    """Return True if the right operand is an expression. For `in` and `is`, it is a list or a constant."""
    return type(op) in COMPARISONS


def _is_value(node: ast.expr) -> bool:
    """Return True for a literal that Arrow represents exactly: a string, a boolean or a finite number."""
    value = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    if not isinstance(value, ast.Constant) or not isinstance(value.value, int | float | str | bool):
        return False
    if value is not node and isinstance(value.value, str | bool):
        return False
    return abs(value.value) < 2**63 if isinstance(value.value, int) else value.value != math.inf


def _refused(node: ast.expr, text: str, where: str) -> RecipeError:
    return RecipeError(
        f"{where}: {type(node).__name__} is not part of the policy language",
        found=ast.get_source_segment(text.strip(), node) or text,
        expected="comparisons, and, or, not, in, arithmetic, columns as `sidecar.column`",
    )


# The evaluator of policy expressions: a checked syntax tree over columns to one boolean per row.
#
# Conditions are numpy masks, values are Arrow arrays. Nearly all rules compare a column of numbers with a number: numpy
# does this four times as fast as Arrow and needs no conversion from bits. A comparison that reads one column of labels
# (an Arrow dictionary) is evaluated once per label. Arrow evaluates everything else. A comparison with a missing value
# is false; arithmetic is that of 64-bit floats.

#: Arrow arrays of one length, by `sidecar.column`.
Columns = Mapping[str, Any]

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
    """Return the column name `sidecar.column` of a syntax node."""
    return f"{node.value.id}.{node.attr}"  # type: ignore[attr-defined]


def shared_comparisons(trees: Sequence[ast.expr]) -> tuple[list[ast.expr], frozenset[ast.expr]]:
    """Return the same trees with equal comparisons merged into one node, and the nodes that occur more than once."""
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
    """Return a mask of the rows for which a condition is true.

    Args:
        known: results of shared comparisons on these columns. Where the value is None, the result is computed and
            filled in.

    Raises:
        TypeError, pa.ArrowException: operand types do not match. After `parse` has checked the tree, they always match.
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
    """Return the value of a column, a number, an arithmetic expression or a condition, as an Arrow array or scalar."""
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
    """Return the literals as an Arrow array that is built from their bytes. pyarrow's conversion of Python values is
    avoided because it would import pandas.

    Args:
        kind: type of the array; by default, the type of the literals.

    Raises:
        TypeError, pa.ArrowException: the values have different types, or a type that does not match `kind`.
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
    """Return a mask as an Arrow array."""
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
    """Compare a numeric column with a number. A missing value gives False.

    Return None for other comparisons and for empty columns, so that Arrow checks their types.
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
    """Evaluate comparisons such as `a < b < c`, `a in [...]` and `a is None` with Arrow."""
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
    """Convert values to 64-bit floats, so that arithmetic does not overflow and division by zero raises no error."""
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise TypeError(f"arithmetic needs numbers, not {values.type}")
    return pc.cast(values, pa.float64(), safe=False)


def _mask(values: Any, rows: int) -> Bools:
    """Return Arrow booleans as a mask in which missing values are False. The function is ten times as fast as Arrow's
    conversion."""
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
