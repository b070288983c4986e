"""A policy as arrays: which rules fire on which rows, and the values that made them.

For whoever asks about a policy without writing verdicts: what-if, reviews, the story of a document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.policy import rule_kernels
from plinth.corpus.policy.expressions import Expression, parse
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.policy.policy import check, columns_of

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Ruled:
    """A policy's rules, checked and parsed, with the columns that they read.

    Args:
        rules: reason and expression, in order.
        edits: reason and column of spans.
        labels: the columns of strings among those that the rules read.
        known: reasons of rules whose outcome is stored; their columns need not be read.
    """

    rules: tuple[tuple[str, Expression], ...]
    edits: tuple[tuple[str, str], ...]
    labels: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()

    @property
    def reasons(self) -> list[str]:
        """Names of the rules, in order."""
        return [reason for reason, _ in self.rules]

    @property
    def sidecars(self) -> dict[str, list[str]]:
        """Columns wanted of each sidecar (`documents` too), by its name."""
        wanted: dict[str, set[str]] = {}
        fresh = [rule for reason, rule in self.rules if reason not in self.known]
        names = {name for rule in fresh for name in rule.columns} | {name for _, name in self.edits}
        for name in names:
            sidecar, _, column = name.partition(".")
            wanted.setdefault(sidecar, set()).add(column)
        return {sidecar: sorted(columns) for sidecar, columns in sorted(wanted.items())}

    def fired(self, columns: Mapping[str, Any], rows: int, stored: pa.Array | None = None) -> Bools:
        """Which rules fire, [rules, rows].

        Args:
            columns: arrays of the columns that the rules read, but those in `known`.
            stored: names of the rules that fired when the policy was run, a list per row; read for `known`.
        """
        out = rule_kernels.fired([None if reason in self.known else rule for reason, rule in self.rules], columns, rows)
        if stored is not None and self.known:
            places = {reason: index for index, (reason, _) in enumerate(self.rules) if reason in self.known}
            names = stored.flatten().dictionary_encode()
            lines = np.array([places.get(name, -1) for name in names.dictionary.to_pylist()], dtype=np.int64)
            at = lines[names.indices.to_numpy()] if len(lines) else np.empty(0, np.int64)
            parents = pc.list_parent_indices(stored).to_numpy()
            out[at[at >= 0], parents[at >= 0]] = True
        return out

    def knowing(self, before: Policy) -> Ruled:
        """The same policy, where rules that stand in `before` word for word are taken from what is stored."""
        have = {rule.reason: rule.drop for rule in before.rules}
        known = frozenset(reason for reason, rule in self.rules if have.get(reason) == rule.text)
        same = self.edits == tuple((rule.reason, rule.spans) for rule in before.edits)
        return replace(self, known=known, edits=() if same else self.edits)

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
    labels = {name for _, rule in rules for name in rule.columns if pa.types.is_string(schema[name])}
    return Ruled(rules, tuple((rule.reason, rule.spans) for rule in policy.edits), frozenset(labels))
