"""Checks of `corpus.slices` and of rules that rest on models, against annotators, policies, models and lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from plinth.corpus.policy.parameters import Policy
from plinth.corpus.slices.parameters import GateSlices
from plinth.errors import PlinthError, RecipeError
from plinth.recipe.yaml_lines import Key

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe

Found = tuple[Key, str, str]
Section = Mapping[str, Any]


def problems_of_gates(corpus: Section, annotators: tuple[str, ...]) -> Iterator[Found]:
    """Key, problem and hint of gates that do not exist, or whose rules cannot be found or read."""
    from plinth.corpus.slices.measured_gates import measured_gate, rule_of

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


def problems_of_evidence(corpus: Section) -> Iterator[Found]:
    """Rules in use that drop by what a model learnt, of which nothing independent says how often it is right."""
    from plinth.corpus.slices.removal_rates import learned_rules, trusted

    annotate, models, buckets = (_section(corpus, name) for name in ("annotate", "models", "buckets"))
    used = {str(bucket.get("policy", "default")) for bucket in buckets.values() if isinstance(bucket, dict)}
    policies = {name: policy for name, policy in _policies(corpus).items() if name in used}
    try:
        rules = learned_rules(policies, {name: raw or {} for name, raw in annotate.items()})
    except (RecipeError, AttributeError, TypeError):
        return  # rules, annotators and parameters are reported where they are checked
    for rule in rules:
        at: Key = ("corpus", "policies", rule.policy)
        for annotator in rule.annotators:
            why = _unproven(corpus, annotator)
            if why:
                yield at, f"rule {rule.reason} drops documents by {annotator}, {why[0]}", why[1]
    if rules and not trusted(corpus.get("reference_buckets") or (), models):
        names = ", ".join(sorted({name for rule in rules for name in rule.annotators}))
        what = f"rules drop documents by {names}, and no bucket is trusted as reference: nothing bounds what they take"
        yield ("corpus",), what, "name buckets of good text in `corpus.reference_buckets`"


def _unproven(corpus: Section, annotator: str) -> tuple[str, str] | None:
    """Why nothing independent measures an annotator's models, and what to do; None where something does."""
    from plinth.corpus.slices.measured_gates import MEASURED_GATES
    from plinth.corpus.slices.removal_rates import has_classes, models_of

    models, slices = _section(corpus, "models"), _section(corpus, "slices")
    gates = [gate.name for gate in MEASURED_GATES.values() if gate.annotator == annotator]
    lists = _section(corpus, "lists")
    shown = {str(lists.get(one, one)) for gate in gates for one in (slices.get(gate) or {}).get("lists") or ()}
    for name in models_of(annotator, _section(corpus, "annotate").get(annotator) or {}):
        model = models.get(name) or {}
        labelled = {str(lists.get(one, one)) for one in model.get("labelled") or ()}
        if not has_classes(model) or model.get("sha256") or shown - labelled:
            continue
        if model.get("kind") == "given":
            return (
                f"and models.{name} has no digest",
                f"write `sha256:` into corpus.models.{name} (docs/learned-gates.md)",
            )
        if labelled:
            key = f"corpus.slices.{gates[0]}.lists" if gates else "a ready model"
            return (
                "and nothing independent says how often it is right",
                f"name labelled text that models.{name} does not learn from in `{key}`, or give a ready model (`kind: "
                "given` with `sha256`); with neither, take the rule out: the data card then says `not screened`",
            )
    return None


def generated_lists(recipe: Recipe, folder: Path) -> Iterator[Found]:
    """Labelled sets among the input files that are generated, in a recipe that is no test.

    Args:
        folder: what locations of lists are relative to; files that are not there are passed over.
    """
    from plinth.corpus.models.generated_sets import marked_rows, refused

    users = {one: f"models/{name}" for name, raw in recipe.corpus.models.items() for one in raw.get("labelled") or ()}
    users |= {one: f"slices/{name}" for name, params in recipe.corpus.slices.items() for one in params.lists}
    for name, user in users.items() if not recipe.test else ():
        path = folder / recipe.corpus.lists[name]
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            marked = 0
            with suppress(PlinthError, OSError):  # what cannot be read is reported by the run
                marked = marked_rows(file, name) if file.is_file() else 0
            if marked:
                error = refused(f"lists/{name} ({file})", marked, user)
                yield ("corpus", "lists", name), f"{error.what}: found {error.found}", error.remedy or ""


def _section(corpus: Section, name: str) -> dict[str, Any]:
    found = corpus.get(name)
    return found if isinstance(found, dict) else {}


def _policies(corpus: Section) -> dict[str, Policy]:
    found = {}
    for name, raw in _section(corpus, "policies").items():
        try:
            found[name] = Policy.model_validate(raw)
        except ValidationError:
            continue  # the recipe's own validation reports it
    return found
