"""Gates that can be measured: the annotator behind each, and how documents of known truth are made for it.

A new gate is a generator and a line here; or a line alone, for a gate that only lists and reviewers label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plinth.corpus.annotate.registry import annotator
from plinth.corpus.policy.compiled_policy import DOCUMENTS, CompiledPolicy, columns_of
from plinth.corpus.policy.expressions import Expression, parse
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.slices import generate, illegal
from plinth.corpus.slices.generate import Labelled, Term
from plinth.corpus.slices.parameters import GateSlices
from plinth.errors import RecipeError
from plinth.extensions import nearest
from plinth_text.arrays import Bools

#: Of a seed, documents of each truth in every slice, and terms that may be planted.
Generate = Callable[[int, int, Sequence[Term]], list[Labelled]]
#: What may be planted, out of the files of the annotator's lists.
Plants = Callable[[Mapping[str, Mapping[str, Path]]], tuple[Term, ...]]


@dataclass(frozen=True)
class MeasuredGate:
    """A gate: the annotator whose columns its rules read, its generator, and whether that plants terms of the lists
    that the annotator reads, which then are lexicons; `plants` reads lists of another form."""

    name: str
    annotator: str
    generate: Generate | None = None
    plants_terms: bool = False
    plants: Plants | None = None


MEASURED_GATES = {
    gate.name: gate
    for gate in (
        MeasuredGate("quality", "quality_classifier", generate.quality),
        MeasuredGate("toxicity", "toxicity", generate.toxicity, plants_terms=True),
        MeasuredGate("pii", "pii"),
        MeasuredGate("domain", "domain"),
        MeasuredGate("illegal", "illegal", illegal.generate, plants=illegal.plants),
    )
}


def measured_gate(name: str) -> MeasuredGate:
    """A gate by name.

    Raises:
        RecipeError: no such gate; the nearest name is given.
    """
    if name not in MEASURED_GATES:
        remedy = nearest(name, MEASURED_GATES)
        raise RecipeError(f"corpus.slices: no gate {name!r}", expected=", ".join(MEASURED_GATES), remedy=remedy)
    return MEASURED_GATES[name]


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

    def removed(self, columns: Mapping[str, Any], rows: int) -> Bools:
        """Which documents are removed, [rows]; `columns` by `annotator.column`."""
        found: Bools = np.any(self.compiled.fires(columns, rows), axis=0)
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
