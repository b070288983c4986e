"""Rules of policies that drop documents by what a model learnt, and the buckets whose text is trusted beside them.

A model that was trained on text of one kind may take innocent text of another for what it was taught to find. So every
rule that reads a learnt column needs evidence from outside (`recipe.gate_checks`), and what it removes is measured on
every bucket (`removal_rates`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plinth.corpus.annotate.registry import annotator, parameters
from plinth.corpus.policy.compiled_policy import columns_of
from plinth.corpus.policy.expressions import Expression, parse
from plinth.corpus.policy.parameters import Policy

#: Kinds of models that judge how likely a text is, and not which class it is of: nobody labels text for them.
WITHOUT_CLASSES = ("ngram",)
Raw = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class LearnedRule:
    """A rule of a policy that reads learnt columns.

    Args:
        policy, reason: where it stands.
        expression: the rule.
        annotators: those whose learnt columns it reads, sorted.
    """

    policy: str
    reason: str
    expression: Expression
    annotators: tuple[str, ...]


def learned_rules(policies: Mapping[str, Policy], annotate: Raw) -> tuple[LearnedRule, ...]:
    """The rules of these policies that read a learnt column, in order.

    Args:
        annotate: parameters of the recipe's annotators, by name.

    Raises:
        RecipeError: a rule or a parameter that cannot be read.
    """
    schema, learnt, found = columns_of(tuple(annotate)), learnt_columns(annotate), list[LearnedRule]()
    for name, policy in policies.items():
        for rule in policy.rules:
            expression = parse(rule.drop, schema, f"corpus.policies.{name}.rules.{rule.reason}")
            own = sorted({column.partition(".")[0] for column in expression.columns & learnt})
            if own:
                found.append(LearnedRule(name, rule.reason, expression, tuple(own)))
    return tuple(found)


def learnt_columns(annotate: Raw) -> frozenset[str]:
    """Columns, as `annotator.column`, that a model gives."""
    found: set[str] = set()
    for name, raw in annotate.items():
        chosen = annotator(name)
        if models_of(name, raw):
            columns = chosen.schema.names if chosen.learned is None else chosen.learned
            found.update(f"{name}.{column}" for column in columns)
    return frozenset(found)


def models_of(name: str, raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Names in `corpus.models` of the models that an annotator needs."""
    needed = annotator(name).needs(parameters(name, raw))
    return tuple(key.removeprefix("models/") for key in needed if key.startswith("models/"))


def has_classes(model: Mapping[str, Any]) -> bool:
    """Whether a model tells classes apart, for which labelled text can be shown."""
    return model.get("of", model.get("kind")) not in WITHOUT_CLASSES


def trusted(named: Sequence[str], models: Raw) -> tuple[str, ...]:
    """Buckets trusted as reference: those that the recipe names, else those that a model takes as its `reference`."""
    from_models: Iterable[Any] = (one for model in models.values() for one in model.get("reference") or ())
    return tuple(dict.fromkeys(map(str, named or from_models)))
