"""Checks of what a recipe names: members of catalogues with their parameters, and the annotators, models and lists
of measured gates.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from plinth.corpus.policy.parameters import Policy
from plinth.corpus.slices.rates import GateSlices
from plinth.errors import ExtensionError, PlinthError, RecipeError
from plinth.extensions import Catalogue
from plinth.recipe.retired import retired, settable
from plinth.recipe.yaml_lines import Key

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe

#: Where, what, and a hint.
Found = tuple[Key, str, str]


def problems_of_extensions(data: Mapping[str, Any]) -> Iterator[Found]:
    """Members of installed packages that cannot be used, and parameters that they do not take."""
    from plinth.corpus.sources.record import READERS
    from plinth.evaluation.measurement import MEASUREMENTS
    from plinth.evaluation.probes.base import PROBES
    from plinth.launch.base import LAUNCHERS
    from plinth.training.hooks import HOOKS
    from plinth.training.parameters.optimizers import OPTIMIZERS

    for at, source in _sources(data):
        yield from _chosen(at, source, READERS)
    launch = _inside(data, "training", "launch")
    if isinstance(launch, dict):
        yield from _chosen(("training", "launch"), launch, LAUNCHERS)
    optimizer = _inside(data, "training", "optimizer")
    if isinstance(optimizer, dict):
        yield from _chosen(("training", "optimizer"), optimizer, OPTIMIZERS)
    catalogues: dict[str, Catalogue[Any]] = {"evaluation": MEASUREMENTS, "training": HOOKS}
    for section, catalogue in catalogues.items():
        asked = _inside(data, section, "extensions")
        for name, given in asked.items() if isinstance(asked, dict) else ():
            at = (section, "extensions", name)
            if name in catalogue.built_in:
                key = f"training.{name}" if catalogue is HOOKS else MEASUREMENTS[name].key
                yield at, "has a key of its own", f"set `{key}`" if key else ""
            else:
                yield from problems_of_member(at, name, given, catalogue)
    probes = _inside(data, "evaluation", "probes", "families")
    for index, name in enumerate(probes if isinstance(probes, list) else ()):
        if isinstance(name, str) and name not in PROBES.built_in:
            yield from _unusable(("evaluation", "probes", "families", index), name, PROBES)


def problems_of_member(at: Key, name: str, given: Any, catalogue: Catalogue[Any], whose: Key = ()) -> Iterator[Found]:
    """What is wrong with a name at a key, or with the parameters given beside or below it.

    Args:
        whose: the key of the parameters; the same as `at` where it is empty.
    """
    unusable = list(_unusable(at, name, catalogue))
    if unusable:
        yield from unusable
        return
    model, below = catalogue.find(name).params, whose or at
    yield from retired(model, given, below)
    for parameter in given if isinstance(given, dict) else ():
        if parameter not in model.model_fields:
            yield (*below, parameter), "unknown parameter", nearest(parameter, settable(model))
    try:
        model.model_validate_json(json.dumps(given), strict=True)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["type"] != "extra_forbidden":
                yield (*below, *detail["loc"]), f"{detail['msg'][0].lower()}{detail['msg'][1:]}", ""


def _unusable(at: Key, name: str, catalogue: Catalogue[Any]) -> Iterator[Found]:
    """A name that no member has, or whose member cannot be used."""
    try:
        catalogue.find(name)
    except ExtensionError as error:
        yield at, error.brief, error.remedy or ""
    except RecipeError:
        found = "" if at[-1] == name else f"found {json.dumps(name)}, "
        yield at, f"{found}no such {catalogue.noun}", nearest(name, catalogue)


def _chosen(at: Key, given: Mapping[str, Any], catalogue: Catalogue[Any]) -> Iterator[Found]:
    """A block with `kind` and, for a member of an installed package, `options`."""
    kind, options = given.get("kind"), given.get("options", {})
    if not isinstance(kind, str):
        return  # its default, or refused by the recipe's own validation
    if kind in catalogue.built_in and not options:
        return  # nothing to import
    yield from problems_of_member((*at, "kind"), kind, options, catalogue, (*at, "options"))


def _sources(data: Mapping[str, Any]) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    buckets = _inside(data, "corpus", "buckets")
    for name, bucket in buckets.items() if isinstance(buckets, dict) else ():
        sources = bucket.get("sources") if isinstance(bucket, dict) else None
        for index, source in enumerate(sources if isinstance(sources, list) else ()):
            if isinstance(source, dict):
                yield ("corpus", "buckets", name, "sources", index), source


def _inside(data: Any, *keys: str) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known word, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else f"have: {', '.join(known)}" if known else "there are none"


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
    from plinth.corpus.models.examples import marked_rows, refused

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
