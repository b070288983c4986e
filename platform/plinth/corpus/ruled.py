"""A policy as arrays: which rules fire on which rows, and the values that made them.

For whoever asks about a policy without writing verdicts: what-if, reviews, the story of a document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plinth.corpus.expressions import Expression, parse
from plinth.corpus.policy import check, columns_of
from plinth.recipe.policies import Policy

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Ruled:
    """A policy's rules, checked and parsed, with the columns that they read."""

    rules: tuple[tuple[str, Expression], ...]
    edits: tuple[tuple[str, str], ...]

    @property
    def reasons(self) -> list[str]:
        """Names of the rules, in order."""
        return [reason for reason, _ in self.rules]

    @property
    def sidecars(self) -> dict[str, list[str]]:
        """Columns wanted of each sidecar (`documents` too), by its name."""
        wanted: dict[str, set[str]] = {}
        names = {name for _, rule in self.rules for name in rule.columns} | {name for _, name in self.edits}
        for name in names:
            sidecar, _, column = name.partition(".")
            wanted.setdefault(sidecar, set()).add(column)
        return {sidecar: sorted(columns) for sidecar, columns in sorted(wanted.items())}

    def fired(self, columns: Mapping[str, Any], rows: int) -> Bools:
        """Which rules fire, [rules, rows]."""
        out = np.zeros((len(self.rules), rows), dtype=np.bool_)
        for index, (_, rule) in enumerate(self.rules):
            out[index] = rule.evaluate(columns, rows).to_numpy(zero_copy_only=False)
        return out

    def values(self, reason: str, scores: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """The values that a rule read, by column; `scores` are a document's, by sidecar and column."""
        for name, rule in self.rules:
            if name == reason:
                pairs = {column: column.partition(".") for column in sorted(rule.columns)}
                return {column: scores.get(side, {}).get(one) for column, (side, _, one) in pairs.items()}
        return {}

    def text(self, reason: str) -> str | None:
        """The expression of a rule, or None when there is no such rule."""
        return next((rule.text for name, rule in self.rules if name == reason), None)


def ruled(policy: Policy, annotators: tuple[str, ...], where: str) -> Ruled:
    """A policy ready to be asked.

    Raises:
        RecipeError: a rule that cannot be read, a name used twice, a column that does not exist.
    """
    check(policy, annotators, where)
    schema = columns_of(annotators)
    rules = tuple((rule.reason, parse(rule.drop, schema, f"{where}.{rule.reason}")) for rule in policy.rules)
    return Ruled(rules, tuple((rule.reason, rule.spans) for rule in policy.edits))
