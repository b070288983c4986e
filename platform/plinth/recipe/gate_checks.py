"""Checks of `corpus.slices` against the annotators, policies and lists of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from plinth.corpus.policy.parameters import Policy
from plinth.corpus.slices.parameters import GateSlices
from plinth.errors import RecipeError
from plinth.recipe.yaml_lines import Key


def problems_of_gates(corpus: Mapping[str, Any], annotators: tuple[str, ...]) -> Iterator[tuple[Key, str, str]]:
    """Key, problem and hint of gates that do not exist, or whose rules cannot be found or read."""
    from plinth.corpus.slices.measured_gates import measured_gate
    from plinth.corpus.slices.rule import rule_of

    slices, lists = corpus.get("slices"), corpus.get("lists") or {}
    policies = _policies(corpus)
    for name, raw in slices.items() if isinstance(slices, dict) else ():
        at: Key = ("corpus", "slices", name)
        try:
            params = GateSlices.model_validate(raw)
            rule_of(measured_gate(name), params, policies, annotators)
        except ValidationError:
            continue  # the recipe's own validation reports it
        except RecipeError as error:
            what = error.what.removeprefix(f"corpus.slices.{name}: ").removeprefix("corpus.slices: ")
            yield at, what, error.remedy or (f"expected {error.expected}" if error.expected else "")
            continue
        for one in params.lists:
            if one not in lists:
                yield (*at, "lists"), f"there is no list {one!r}", f"have: {', '.join(lists)}" if lists else ""


def _policies(corpus: Mapping[str, Any]) -> dict[str, Policy]:
    given, found = corpus.get("policies"), {}
    for name, raw in given.items() if isinstance(given, dict) else ():
        try:
            found[name] = Policy.model_validate(raw)
        except ValidationError:
            continue  # the recipe's own validation reports it
    return found
