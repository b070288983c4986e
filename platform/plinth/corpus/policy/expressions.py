"""Expressions of a policy: Python's comparisons over columns, checked once, evaluated on Arrow columns.

    gopher_quality.word_count < 50 or not 3 <= gopher_quality.mean_word_characters <= 10
    language.label not in ["en", "de"] and language.score > 0.5
    licence.permitted is False

Names are `sidecar.column`. Allowed: comparisons (chained too), `and`, `or`, `not`, `in` a list, `is None`,
`+ - * /` and numbers, strings, True, False. Nothing is called and nothing is imported. A comparison with a
missing value is false, so that `not` of it is true. Arithmetic is that of 64-bit floats; division by zero gives
infinity or NaN, which compare as usual.
"""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plinth.errors import RecipeError

Columns = Mapping[str, Any]
MAX_CHARACTERS = 2000  # bounds the depth of the tree, too

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: pc.add,
    ast.Sub: pc.subtract,
    ast.Mult: pc.multiply,
    ast.Div: pc.divide,
}


@dataclass(frozen=True)
class Expression:
    """A checked expression. `columns` are the names it reads; `evaluate` gives one boolean per row."""

    text: str
    columns: frozenset[str]
    tree: ast.expr

    def evaluate(self, columns: Columns, rows: int) -> pa.Array:
        """Booleans without nulls, [rows].

        Args:
            columns: an Arrow array of that many rows for each name in `columns`.
        """
        found = _evaluate(self.tree, columns)
        if isinstance(found, pa.Scalar | bool):
            value = found.as_py() if isinstance(found, pa.Scalar) else found
            return pa.array([bool(value)] * rows, pa.bool_())
        return _true(found)


def parse(text: str, schema: Mapping[str, pa.DataType], where: str) -> Expression:
    """Read and check an expression.

    Args:
        text: the expression.
        schema: types of the columns that exist, by `sidecar.column`.
        where: what to call it in errors, such as `corpus.policies.default.rules.too_short`.

    Raises:
        RecipeError: a syntax error, something that is not allowed, an unknown column (with the nearest name),
            types that cannot be compared, or a result that is no truth value.
    """
    tree = _tree(text, where)
    names = sorted({_name(node) for node in _names(tree, text, where)})
    if not names:
        raise RecipeError(
            f"{where}: names no column",
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
    """The error for a column that nobody writes: with the nearest one, of its own annotator where that is there."""
    sidecar, sidecars = name.partition(".")[0], sorted({known.partition(".")[0] for known in schema})
    own = [known for known in schema if known.startswith(f"{sidecar}.")]
    near = difflib.get_close_matches(name, own or schema, n=1, cutoff=0.4 if own else 0.7)
    what = f"no column {name!r}" + ("" if own else f": no annotator of the recipe is called {sidecar!r}")
    columns = ", ".join(sorted(own or schema))
    remedy = f"did you mean {near[0]!r}?" if near else f"have: {columns if own else ', '.join(sidecars)}"
    return RecipeError(f"{where}: {what}", found=text, expected=columns, remedy=remedy)


def _tree(text: str, where: str) -> ast.expr:
    if len(text) > MAX_CHARACTERS:
        raise RecipeError(
            f"{where}: is too long", found=f"{len(text)} characters", expected=f"at most {MAX_CHARACTERS}"
        )
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise RecipeError(f"{where}: cannot be read", found=text, expected=f"an expression; {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise RecipeError(
            f"{where}: cannot be read", found=f"{text[:80]}…", expected=f"an expression; {error}"
        ) from error


def _try(expression: Expression, schema: Mapping[str, pa.DataType], where: str) -> None:
    """Evaluate on no rows: types that do not fit are found before the corpus is."""
    empty = {name: pa.array([], schema[name]) for name in expression.columns}
    try:
        found = _evaluate(expression.tree, empty)
        kind = found.type if isinstance(found, pa.Array | pa.Scalar) else pa.scalar(found).type
    except (pa.ArrowException, TypeError) as error:
        kinds = ", ".join(f"{name} is {schema[name]}" for name in sorted(expression.columns))
        expected = f"values of one kind: {kinds}"
        raise RecipeError(f"{where}: types do not fit", found=expression.text, expected=expected) from error
    if not pa.types.is_boolean(kind):
        raise RecipeError(
            f"{where}: is no condition", found=f"{expression.text} gives {kind}", expected="true or false"
        )


def _names(tree: ast.expr, text: str, where: str) -> Iterable[ast.Attribute]:
    """Every column named; refuses anything outside the language."""
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
    elif isinstance(tree, ast.BinOp) and type(tree.op) in _ARITHMETIC:
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
            raise RecipeError(f"{where}: nothing equals None", found=text, remedy="write `is None` or `is not None`")


def _reads(op: ast.cmpop) -> bool:
    """Whether the right side is an expression, not a list or None."""
    return type(op) in _COMPARE


def _is_value(node: ast.expr) -> bool:
    """A literal that Arrow holds exactly: text, a truth value, a finite number."""
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


def _name(node: ast.Attribute) -> str:
    return f"{node.value.id}.{node.attr}"  # type: ignore[attr-defined]


def _evaluate(node: ast.expr, columns: Columns) -> Any:
    if isinstance(node, ast.Attribute):
        return columns[_name(node)]
    if isinstance(node, ast.Constant):
        return pa.scalar(node.value)
    if isinstance(node, ast.UnaryOp):
        inner = _evaluate(node.operand, columns)
        return pc.invert(_true(inner)) if isinstance(node.op, ast.Not) else pc.negate(_float(inner))
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left, columns), _evaluate(node.right, columns)
        return _ARITHMETIC[type(node.op)](_float(left), _float(right))
    if isinstance(node, ast.BoolOp):
        join = pc.and_ if isinstance(node.op, ast.And) else pc.or_
        found = _true(_evaluate(node.values[0], columns))
        for value in node.values[1:]:
            found = join(found, _true(_evaluate(value, columns)))
        return found
    assert isinstance(node, ast.Compare)
    return _comparison(node, columns)


def _comparison(node: ast.Compare, columns: Columns) -> Any:
    found, left = None, _evaluate(node.left, columns)
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        if isinstance(op, ast.In | ast.NotIn):
            values = pa.array([ast.literal_eval(item) for item in comparator.elts], left.type)  # type: ignore[attr-defined]
            one, right = pc.is_in(left, value_set=values), left
            one = pc.invert(one) if isinstance(op, ast.NotIn) else one
        elif isinstance(op, ast.Is | ast.IsNot):
            right = left
            value = comparator.value  # type: ignore[attr-defined]
            one = pc.is_null(left) if value is None else _true(pc.equal(left, pa.scalar(value)))
            one = pc.invert(one) if isinstance(op, ast.IsNot) else one
        else:
            right = _evaluate(comparator, columns)
            one = _true(_COMPARE[type(op)](left, right))
        found = one if found is None else pc.and_(found, one)
        left = right
    return found


def _float(values: Any) -> Any:
    """As 64-bit floats: no overflow, and no error on division by zero."""
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise TypeError(f"arithmetic needs numbers, not {values.type}")
    return pc.cast(values, pa.float64(), safe=False)


def _true(values: Any) -> Any:
    """Nulls are false."""
    if isinstance(values, pa.Array | pa.ChunkedArray) and values.null_count:
        return pc.fill_null(values, False)
    return values
