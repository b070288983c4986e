"""The language of policies: Python's comparisons over columns, read and checked once.

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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from plinth.corpus.policy.evaluator import (
    ARITHMETIC,
    COMPARISONS,
    NOTHING,
    Bools,
    Columns,
    column_name,
    evaluate_condition,
    evaluate_value,
)
from plinth.errors import RecipeError

MAX_CHARACTERS = 2000  # bounds the depth of the tree, too


@dataclass(frozen=True)
class StatedRule:
    """A rule as people read it, and the columns that it reads."""

    text: str
    columns: frozenset[str]


@dataclass(frozen=True)
class Expression(StatedRule):
    """A checked expression."""

    tree: ast.expr

    def evaluate(self, columns: Columns, rows: int, known: dict[ast.expr, Bools | None] = NOTHING) -> Bools:
        """Where it holds, [rows].

        Args:
            columns: an Arrow array of that many rows for each name in `columns`; strings may be dictionaries.
            known: see `evaluate_condition`.
        """
        return evaluate_condition(self.tree, columns, rows, known)


def parse(text: str, schema: Mapping[str, pa.DataType], where: str) -> Expression:
    """Read and check an expression.

    Args:
        text: the expression.
        schema: types of the columns that exist, by `sidecar.column`.
        where: the name in errors, such as `corpus.policies.default.rules.too_short`.

    Raises:
        RecipeError: a syntax error, something that is not allowed, an unknown column (with the nearest name),
            types that cannot be compared, or a result that is not boolean.
    """
    tree = _tree(text, where)
    names = sorted({column_name(node) for node in _names(tree, text, where)})
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
    """The error for an unknown column, with the nearest one, of its own annotator where that is there."""
    sidecar, sidecars = name.partition(".")[0], sorted({known.partition(".")[0] for known in schema})
    own = [known for known in schema if known.startswith(f"{sidecar}.")]
    near = difflib.get_close_matches(name, own or schema, n=1, cutoff=0.4 if own else 0.7)
    what = f"no column {name!r}" + ("" if own else f": no annotator of the recipe is called {sidecar!r}")
    columns = ", ".join(sorted(own or schema))
    remedy = f"did you mean {near[0]!r}?" if near else f"have: {columns if own else ', '.join(sidecars)}"
    return RecipeError(f"{where}: {what}", found=text, expected=columns, remedy=remedy)


def syntax(text: str) -> ast.expr:
    """The syntax tree of an expression, not checked.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: it is no expression of Python, or too deep.
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
    """Evaluate on no rows, so that types that do not fit are found before any document is read."""
    empty = {name: pa.nulls(0, schema[name]) for name in expression.columns}
    try:
        kind = evaluate_value(expression.tree, empty, 0).type
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
            raise RecipeError(f"{where}: nothing equals None", found=text, remedy="write `is None` or `is not None`")


def _reads(op: ast.cmpop) -> bool:
    """Whether the right side is an expression, not a list or None."""
    return type(op) in COMPARISONS


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
