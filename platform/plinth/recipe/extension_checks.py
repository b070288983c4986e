"""Checks of a recipe's keys: keys removed since 0.3, with their replacements; members of catalogs with their
parameters; the annotators, models and lists of measured gates.
"""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from plinth.corpus.policy.parameters import Policy
from plinth.corpus.slices.rates import GateSlices
from plinth.errors import ExtensionError, PlinthError, RecipeError
from plinth.extensions import Catalogue
from plinth.recipe.yaml_lines import Key
from plinth.records import OneValue, is_internal

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe


# Keys removed since 0.3, with their replacements.
#
# A setting removed from the recipe may remain a parameter of its stage (`records.internal`), at its default. Settings
# that were removed from the code too are in `REMOVED`. A section that became a value (`records.OneValue`) is written
# without its key.

#: Key, problem and hint.
Found = tuple[Key, str, str]

MESSAGE = "removed from recipes"

#: Placeholder default for keys that are reported whatever their value.
NO_DEFAULT = object()


@dataclass(frozen=True)
class Gone:
    """Removed recipe key: the value that had no effect in 0.3, and advice on the replacement."""

    default: Any
    advice: str


#: Replacements, keyed by the last part or the last two parts of a key. Other removed keys are fixed at their default in
#: 0.3.
ADVICE = {
    "optimizer.warmup_tokens": "write `warmup_fraction`, which is these tokens divided by `mixture.total_tokens`",
    "optimizer.decay_tokens": "write `decay_fraction`, which is these tokens divided by `mixture.total_tokens`",
    "training.batch_schedule": "write `changes: [{from_step: …, global_batch_sequences: …}]`; from_step = 1 + tokens "
    "/ tokens per step",
    "training.length_schedule": "write `changes: [{from_step: …, sequence_tokens: …}]`; from_step = 1 + tokens / "
    "tokens per step",
    "training.amendments": "write `changes: [{from_step: …, reason: …, …}]`; `plinth run timeline` shows the current "
    "step of the run",
    "minhash.target_recall": "write `bands` and `rows`; with more bands, more pairs are found",
    "licence.permitted": "write `corpus.permitted_licences`",
    "licence.uses": "write `corpus.uses`",
    "licence.redistribute": "write `corpus.licences_by_use.redistribute`",
    "licence.commercial": "write `corpus.licences_by_use.commercial`",
    "url.soft_threshold": "compare `url.soft_words` in a rule of the policy",
    "domain.least": "compare `domain.score` in a rule of the policy",
    "tokenizer.max_fertility_by_domain": "write `max_fertility`, or make the domain a bucket",
    "perplexity.model": "name the model `perplexity` in `corpus.models`",
    "quality_classifier.model": "name the model `quality` in `corpus.models`",
    "domain.model": "name the model `domain` in `corpus.models`",
    "toxicity.model": "name the model `toxicity` in `corpus.models`",
    "sources.text_field": "write `fields: {text: …}`",
    "sources.uri_field": "write `fields: {uri: …}`",
    "sources.date_field": "write `fields: {date: …}`",
    "sources.licence_field": "write `fields: {licence: …}`",
    "protected.families": "write `deny` in a set of `corpus.protected.sets`",
    "family": "write `deny` in the set itself; sets of one family may have the same value",
    "illegal.lists": "name the list `illegal` in `corpus.lists`",
    "toxicity.disguised": "remove this key: obfuscated terms are always matched",
    "quality_classifier.medium": "compare `quality_classifier.final` in a rule of the policy",
    "quality_classifier.high": "compare `quality_classifier.final` in a rule of the policy",
    "pii.ner_labels": "use a pipeline with the entity labels PERSON or PER, ADDRESS or STREET",
    "gopher_dolma.join_blank_lines": "remove this key: blank lines count as lines, as in Dolma 1.6",
    "phases.tokens": "write `weights`, which are these tokens divided by the tokens of the phase, or write `epochs`",
    "curriculum.manner": "remove this key: shares shift gradually; to use one value after another, write phases",
    "telemetry.layers_every": "remove this key: layers are measured every 10 steps",
    "stopping.tokens": "write `mixture.total_tokens`, or `seconds`",
    "stopping.max_epochs": "write `mixture.max_epochs`",
    "stopping.when": "remove this key: the first rule that applies ends the run",
    "guard.plateau": "write `training.stopping.plateau`, which ends the run",
    "validation.slices": "remove this key: all slices are measured",
    "optimizer.decay_shape": "write `schedule: wsd-sqrt`",
    "checkpoints.mode": "remove this key: checkpoints are always written asynchronously",
    "language.allowed": 'compare `language.label` in a rule of the policy: `language.label not in ["en", "de"]`',
    "kind": "remove this key: the name of the set is enough",
    "illegal.disguised": "write `corpus.illegal.disguised`, which applies to the gate",
    "minhash.shingle_characters": "write `preset: nemo`, or `shingle_words`: in scripts without spaces, each character "
    "is a word",
    "guard.min_steps": "write `window_steps`, with four times this number",
}

#: Fields that the models no longer have, keyed by the last two parts of the key.
REMOVED = {
    "release.gates": Gone(NO_DEFAULT, "write the gates into a gate policy and sign it: `plinth gates sign FILE`"),
    "ray.cpus": Gone(1.0, "write `resources: {CPU: …}`"),
    "ray.gpus": Gone(0.0, "write `resources: {GPU: …}`"),
    "ray.memory_bytes": Gone(0, "write `resources: {memory: …}`"),
    "ray.python": Gone("", "write `training.launch.python`"),
    "kubernetes.python": Gone("python", "write `training.launch.python`"),
    "slurm.partition": Gone("", "write `sbatch: [--partition=…]`"),
    "slurm.account": Gone("", "write `sbatch: [--account=…]`"),
    "slurm.time_limit": Gone("", "write `sbatch: [--time=…]`"),
    "slurm.gpus_per_node": Gone(0, "write `sbatch: [--gpus-per-node=…]`"),
    "slurm.cpus_per_node": Gone(0, "write `sbatch: [--cpus-per-task=…]`"),
}


def retired(kind: Any, data: Any, at: Key = ()) -> Iterator[Found]:
    """Yield every removed key that plain data sets.

    Args:
        kind: model of the data, or annotation of the field that contains it.
        data: mappings, lists and scalars, as YAML has them.
        at: key of the data.
    """
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, value in data.items() if isinstance(data, dict) else ():
            key, field = (*at, name), kind.model_fields.get(name)
            gone = _gone(kind, key, value)
            if gone is not None:
                yield key, MESSAGE, gone.advice
            elif field is not None:
                yield from retired(field.annotation, value, key)
        return
    for inner, step in _below(kind, data):
        yield from retired(inner, data if step is None else data[step], at if step is None else (*at, step))


def without_defaults(kind: Any, data: Any, at: Key = ()) -> Any:
    """Return plain data without removed keys that have no effect, so that a dump by 0.3 is a valid recipe."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if not isinstance(data, dict):
            return data
        kept = {}
        for name, value in data.items():
            key, field = (*at, name), kind.model_fields.get(name)
            gone = _gone(kind, key, value)
            if gone is None or gone.default != value:
                kept[name] = without_defaults(field.annotation, value, key) if field and gone is None else value
        alone = issubclass(kind, OneValue) and list(kept) == [kind.key()]
        return next(iter(kept.values())) if alone else kept
    for inner, step in _below(kind, data):
        if step is None:
            data = without_defaults(inner, data, at)
        else:
            data = data.copy()
            data[step] = without_defaults(inner, data[step], (*at, step))
    return data


def _below(kind: Any, data: Any) -> list[tuple[Any, Any]]:
    """Return the annotations inside a container type.

    Each annotation comes with the index or name of the item that it describes, or None if it describes all items.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return [(each, None) for each in inner]
    if origin is tuple and isinstance(data, list):
        return [(inner[0], index) for index in range(len(data))]
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(data, dict):
        return [(inner[1], name) for name in data]
    return []


def _gone(kind: type[BaseModel], key: Key, value: Any) -> Gone | None:
    """Return the advice for a removed key, or None for a key that a recipe may set."""
    name, field = str(key[-1]), kind.model_fields.get(str(key[-1]))
    words = [step for step in key if isinstance(step, str)]
    ending = ".".join(words[-2:])
    if field is None:
        return REMOVED.get(ending)
    if is_internal(field):
        default = to_jsonable_python(field.get_default(call_default_factory=True))
        return Gone(default, ADVICE.get(ending) or ADVICE.get(name) or _unchanging(default))
    if issubclass(kind, OneValue) and name == kind.key():
        section = next((step for step in reversed(key[:-1]) if isinstance(step, str)), "")
        return Gone(NO_DEFAULT, f"write `{section}: {json.dumps(value)}`, without the inner key")
    return None


def settable(model: type[BaseModel]) -> list[str]:
    """Return the fields of a model that a recipe may set."""
    return [name for name, field in model.model_fields.items() if not is_internal(field)]


def _unchanging(default: Any) -> str:
    value = "its defaults" if isinstance(default, dict) and default else f"`{json.dumps(default)}`"
    return f"remove this key: the value is fixed at {value}"


# Members of catalogs, and measured gates.


def problems_of_extensions(data: Mapping[str, Any]) -> Iterator[Found]:
    """Yield the problems of installed extensions in a recipe: unusable extensions, and parameters that they do not
    have."""
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
                yield at, "is a built-in, not an extension", f"set `{key}`" if key else ""
            else:
                yield from problems_of_member(at, name, given, catalogue)
    probes = _inside(data, "evaluation", "probes", "families")
    for index, name in enumerate(probes if isinstance(probes, list) else ()):
        if isinstance(name, str) and name not in PROBES.built_in:
            yield from _unusable(("evaluation", "probes", "families", index), name, PROBES)


def problems_of_member(at: Key, name: str, given: Any, catalogue: Catalogue[Any], whose: Key = ()) -> Iterator[Found]:
    """Yield the problems of a catalog member that a recipe names, both of its name and of its parameters.

    Args:
        at: key of the member's name.
        name: name of the member.
        given: parameters in the recipe.
        catalogue: catalog that should have the member.
        whose: key of the parameters; if empty, `at`.
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
    """Yield a problem if the catalog has no member of this name, or if the member is unusable."""
    try:
        catalogue.find(name)
    except ExtensionError as error:
        yield at, error.brief, error.remedy or ""
    except RecipeError:
        found = "" if at[-1] == name else f"found {json.dumps(name)}, "
        yield at, f"{found}no such {catalogue.noun}", nearest(name, catalogue)


def _chosen(at: Key, given: Mapping[str, Any], catalogue: Catalogue[Any]) -> Iterator[Found]:
    """Check a recipe block that selects a catalog member by `kind`.

    If the member belongs to an installed package, its `options` are checked too.
    """
    kind, options = given.get("kind"), given.get("options", {})
    if not isinstance(kind, str):
        return  # the default applies, or the recipe's own validation refuses it
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
    """Return a hint with the known word that is closest to `word`, or with all known words if none is similar."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else f"have: {', '.join(known)}" if known else "there are none"


Section = Mapping[str, Any]


def problems_of_gates(corpus: Section, annotators: Mapping[str, Any]) -> Iterator[Found]:
    """Yield key, problem and hint for each gate that does not exist, or whose rules are missing or invalid."""
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
    """Check that the error rates of all rules that drop documents by learned models are measured independently."""
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
        what = f"rules drop documents by {names}, but no trusted reference bucket limits how much they remove"
        yield ("corpus",), what, "list buckets of known good text in `corpus.reference_buckets`"


def _unproven(corpus: Section, annotator: str) -> tuple[str, str] | None:
    """Return the reason why no independent evidence measures an annotator's models, and the remedy.

    Return None if there is such evidence.
    """
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
                f"but models.{name} has no digest",
                f"add `sha256:` to corpus.models.{name} (docs/learned-gates.md)",
            )
        if labelled:
            key = f"corpus.slices.{gates[0]}.lists" if gates else "a ready model"
            return (
                "but no independent labeled set measures its accuracy",
                f"list labeled text that models.{name} is not trained on in `{key}`, or use a ready model (`kind: "
                "given` with `sha256`); otherwise remove the rule: the data card then shows `not screened`",
            )
    return None


def generated_lists(recipe: Recipe, folder: Path) -> Iterator[Found]:
    """Yield labeled input sets whose text is generated, unless the recipe is a test.

    Args:
        folder: root of relative locations of lists; missing files are skipped.
    """
    from plinth.corpus.models.examples import marked_rows, refused

    users = {one: f"models/{name}" for name, raw in recipe.corpus.models.items() for one in raw.get("labelled") or ()}
    users |= {one: f"slices/{name}" for name, params in recipe.corpus.slices.items() for one in params.lists}
    for name, user in users.items() if not recipe.test else ():
        path = folder / recipe.corpus.lists[name]
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            marked = 0
            with suppress(PlinthError, OSError):  # the run reports unreadable files
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
