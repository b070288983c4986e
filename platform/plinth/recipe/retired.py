"""Keys that recipes of 0.3 had and recipes no longer have: found by key, with what to write instead.

A setting that left the recipe is a parameter of its stage still (`records.internal`), at its default; one that left the
code as well is in `REMOVED`; a section that has become a value (`records.OneValue`) is written without its key.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from plinth.recipe.yaml_lines import Key
from plinth.records import OneValue, is_internal

#: Key, problem and hint.
Found = tuple[Key, str, str]

MESSAGE = "no longer a key of a recipe"

#: No value of a key is left out in silence.
NO_DEFAULT = object()


@dataclass(frozen=True)
class Gone:
    """A key that is gone: the value that had no effect in 0.3, and what to write instead."""

    default: Any
    advice: str


#: What to write instead, by the last part of a key or the last two. Others are fixed at the default of 0.3.
ADVICE = {
    "optimizer.warmup_tokens": "write `warmup_fraction`: these tokens / `mixture.total_tokens`",
    "optimizer.decay_tokens": "write `decay_fraction`: these tokens / `mixture.total_tokens`",
    "training.batch_schedule": "write `changes: [{from_step: …, global_batch_sequences: …}]`; tokens become step 1 + "
    "tokens / tokens of a step",
    "training.length_schedule": "write `changes: [{from_step: …, sequence_tokens: …}]`; tokens become step 1 + "
    "tokens / tokens of a step",
    "training.amendments": "write `changes: [{from_step: …, reason: …, …}]`; `plinth run timeline` shows the step that "
    "the run has reached",
    "minhash.target_recall": "write `bands` and `rows`: more bands find more pairs",
    "licence.permitted": "write `corpus.permitted_licences`",
    "licence.uses": "write `corpus.uses`",
    "licence.redistribute": "write `corpus.licences_by_use.redistribute`",
    "licence.commercial": "write `corpus.licences_by_use.commercial`",
    "url.soft_threshold": "compare `url.soft_words` in a rule of the policy",
    "domain.least": "compare `domain.score` in a rule of the policy",
    "tokenizer.max_fertility_by_domain": "write `max_fertility`, or make the domain a bucket",
    "perplexity.model": "call the model `perplexity` in `corpus.models`",
    "quality_classifier.model": "call the model `quality` in `corpus.models`",
    "domain.model": "call the model `domain` in `corpus.models`",
    "toxicity.model": "call the model `toxicity` in `corpus.models`",
    "sources.text_field": "write `fields: {text: …}`",
    "sources.uri_field": "write `fields: {uri: …}`",
    "sources.date_field": "write `fields: {date: …}`",
    "sources.licence_field": "write `fields: {licence: …}`",
    "protected.families": "write `deny` in a set of `corpus.protected.sets`",
    "family": "write `deny` in the set itself; every set of a family may have the same",
    "illegal.lists": "call the list `illegal` in `corpus.lists`",
    "toxicity.disguised": "leave it out: obfuscated terms are found, too",
    "quality_classifier.medium": "compare `quality_classifier.final` in a rule of the policy",
    "quality_classifier.high": "compare `quality_classifier.final` in a rule of the policy",
    "pii.ner_labels": "let the pipeline call its entities PERSON or PER, ADDRESS or STREET",
    "gopher_dolma.join_blank_lines": "leave it out: blank lines count as lines, as in Dolma 1.6",
    "phases.tokens": "write `weights`: these tokens / tokens of the phase; or `epochs`",
    "curriculum.manner": "leave it out: shares move from early to late; for one value after the other write phases",
    "telemetry.layers_every": "leave it out: layers are measured every 10 steps",
    "stopping.tokens": "write `mixture.total_tokens`, or `seconds`",
    "stopping.max_epochs": "write `mixture.max_epochs`",
    "stopping.when": "leave it out: whichever comes first ends the run",
    "guard.plateau": "write `training.stopping.plateau`, which ends the run",
    "validation.slices": "leave it out: all slices are measured",
    "optimizer.decay_shape": "write `schedule: wsd-sqrt`",
    "checkpoints.mode": "leave it out: training goes on while another process writes",
    "language.allowed": 'compare `language.label` in a rule of the policy: `language.label not in ["en", "de"]`',
    "kind": "leave it out: the name of the set says what it is",
    "illegal.disguised": "write `corpus.illegal.disguised`: the gate finds them",
    "minhash.shingle_characters": "write `preset: nemo`, or `shingle_words`: without spaces a character is a word",
    "guard.min_steps": "write `window_steps`, four times as many",
}

#: Fields that the models no longer have, by the last two parts of their key.
REMOVED = {
    "release.gates": Gone(NO_DEFAULT, "write them into a gate policy and sign it: `plinth gates sign FILE`"),
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
    """Every key that is gone and that plain data sets.

    Args:
        kind: the model, or the annotation of a field, that the data is for.
        data: mappings, lists and scalars, as YAML has them.
        at: the key of the data.
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
    """Plain data less the keys that are gone and have no effect: a dump by 0.3 is then a recipe again."""
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
    """Annotations inside one that is no model, each with the index or name of the data that it is for; None: all."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return [(each, None) for each in inner]
    if origin is tuple and isinstance(data, list):
        return [(inner[0], index) for index in range(len(data))]
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(data, dict):
        return [(inner[1], name) for name in data]
    return []


def _gone(kind: type[BaseModel], key: Key, value: Any) -> Gone | None:
    """What a key that is gone was; None for one that a recipe may set."""
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
        return Gone(NO_DEFAULT, f"write `{section}: {json.dumps(value)}`, the value without a key")
    return None


def settable(model: type[BaseModel]) -> list[str]:
    """Fields of a model that a recipe may set."""
    return [name for name, field in model.model_fields.items() if not is_internal(field)]


def _unchanging(default: Any) -> str:
    value = "its defaults" if isinstance(default, dict) and default else f"`{json.dumps(default)}`"
    return f"leave it out: it is {value} in every recipe"
