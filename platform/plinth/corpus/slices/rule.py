"""The rules by which a gate removes documents: an expression of its own, or rules of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from plinth.corpus.annotate.registry import annotator
from plinth.corpus.policy.compiled_policy import DOCUMENTS, CompiledPolicy, columns_of
from plinth.corpus.policy.expressions import Expression, parse
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.slices.measured_gates import MeasuredGate
from plinth.corpus.slices.parameters import GateSlices
from plinth.errors import RecipeError


@dataclass(frozen=True)
class GateRule:
    """Rules, one of which suffices to remove a document.

    Args:
        compiled: the rules.
        reasons: of the rules; reviewers name these. The gate's own name is one, too.
        annotators: whose columns they read, and those that one of them reads; each behind those that it reads.
    """

    compiled: CompiledPolicy
    reasons: tuple[str, ...]
    annotators: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """The expressions."""
        return tuple(rule.text for _, rule in self.compiled.rules)

    def removed(self, columns: Mapping[str, Any], rows: int) -> npt.NDArray[np.bool_]:
        """Which documents are removed, [rows]; `columns` by `annotator.column`."""
        found: npt.NDArray[np.bool_] = np.any(self.compiled.fires(columns, rows), axis=0)
        return found


def rule_of(
    gate: MeasuredGate, params: GateSlices, policies: Mapping[str, Policy], annotators: tuple[str, ...]
) -> GateRule:
    """The rules by which the gate removes, from the recipe.

    Args:
        annotators: names of all of the recipe's.

    Raises:
        RecipeError: its annotator is not in the recipe, no such policy, no rule that reads its columns, or an
            expression that cannot be read.
    """
    where = f"corpus.slices.{gate.name}"
    if gate.annotator not in annotators:
        remedy = f"add `{gate.annotator}` to `corpus.annotate`"
        raise RecipeError(f"{where}: its annotator is not in the recipe", expected=gate.annotator, remedy=remedy)
    schema = columns_of(annotators)
    if params.removes is not None:
        return _joined(gate, [(gate.name, parse(params.removes, schema, f"{where}.removes"))])
    if params.policy not in policies:
        raise RecipeError(f"{where}: no policy {params.policy!r}", expected=", ".join(policies))
    parsed = [(rule.reason, parse(rule.drop, schema, where)) for rule in policies[params.policy].rules]
    own = [(reason, rule) for reason, rule in parsed if any(c.startswith(f"{gate.annotator}.") for c in rule.columns)]
    if not own:
        raise RecipeError(
            f"{where}: no rule of policy {params.policy} reads a column of {gate.annotator}",
            expected="a rule that drops documents by it",
            remedy="add one, or set `removes` to the expression of what the gate removes",
        )
    return _joined(gate, own)


def _joined(gate: MeasuredGate, rules: list[tuple[str, Expression]]) -> GateRule:
    read = {column.split(".")[0] for _, rule in rules for column in rule.columns} - {DOCUMENTS}
    reasons = dict.fromkeys([*(reason for reason, _ in rules), gate.name])
    for _, rule in rules:
        for column in rule.columns:
            if column.startswith(f"{DOCUMENTS}."):
                raise RecipeError(
                    f"corpus.slices.{gate.name}: the gate reads {column}",
                    expected="columns of annotators alone: labelled documents come from nowhere",
                    remedy="give `removes` without it",
                )
    read |= {other for one in read for other in annotator(one).sidecars}
    ordered = sorted(read, key=lambda one: (len(annotator(one).after), one))
    return GateRule(CompiledPolicy(tuple(rules)), tuple(reasons), tuple(ordered))
