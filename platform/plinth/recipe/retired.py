"""Keys that recipes of 0.3 had and recipes no longer have: found by key, with what to write instead.

A setting that left the recipe is still a parameter of its stage (`records.internal`), at its default.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from plinth.recipe.yaml_lines import Key
from plinth.records import is_internal

#: Key, problem and hint.
Found = tuple[Key, str, str]

MESSAGE = "no longer a key of a recipe"

#: What to write instead, by the last parts of a key. Others are fixed at the default of 0.3: leave them out.
ADVICE = {
    "optimizer.warmup_tokens": "write `warmup_fraction`: these tokens / `mixture.total_tokens`",
    "optimizer.decay_tokens": "write `decay_fraction`: these tokens / `mixture.total_tokens`",
    "batch_schedule.from_tokens": "write `from_step`: 1 + these tokens / tokens of a step",
    "length_schedule.from_tokens": "write `from_step`: 1 + these tokens / tokens of a step",
    "amendments.from_tokens": "write `from_step`; `plinth timeline` shows the step that the run has reached",
    "minhash.target_recall": "write `bands` and `rows`: more bands find more pairs",
    "licence.permitted": "write `corpus.permitted_licences`",
    "licence.uses": "write `corpus.uses`",
    "licence.redistribute": "write `corpus.licences_by_use.redistribute`",
    "licence.commercial": "write `corpus.licences_by_use.commercial`",
    "url.soft_threshold": "compare `url.soft_words` in a rule of the policy",
    "domain.least": "compare `domain.score` in a rule of the policy",
    "tokenizer.max_fertility_by_domain": "write `max_fertility` or `max_fertility_by_language`",
    "perplexity.model": "call the model `perplexity` in `corpus.models`",
    "quality_classifier.model": "call the model `quality` in `corpus.models`",
    "domain.model": "call the model `domain` in `corpus.models`",
    "toxicity.model": "call the model `toxicity` in `corpus.models`",
    "parallel.communication_dtype": "choose `training.precision`; gradients travel in the dtype they are summed in",
}


def retired(kind: Any, data: Any, at: Key = ()) -> Iterator[Found]:
    """Every internal parameter that plain data sets.

    Args:
        kind: the model, or the annotation of a field, that the data is for.
        data: mappings, lists and scalars, as YAML has them.
        at: the key of the data.
    """
    for key, field, _ in _internal(kind, data, at):
        yield key, MESSAGE, _advice(key, field.get_default(call_default_factory=True))


def without_defaults(kind: Any, data: dict[str, Any]) -> dict[str, Any]:
    """Plain data less the internal parameters that have their defaults: a dump by 0.3 is then a recipe again."""
    kept: dict[str, Any] = json.loads(json.dumps(data))
    for key, field, value in list(_internal(kind, kept, ())):
        default = to_jsonable_python(field.get_default(call_default_factory=True))
        if value == default:
            parent: Any = kept
            for step in key[:-1]:
                parent = parent[step]
            del parent[key[-1]]
    return kept


def _internal(kind: Any, data: Any, at: Key) -> Iterator[tuple[Key, FieldInfo, Any]]:
    """Key, field and value of every internal parameter in plain data."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, value in data.items() if isinstance(data, dict) else ():
            field = kind.model_fields.get(name)
            if field is not None and is_internal(field):
                yield (*at, name), field, value
            elif field is not None:
                yield from _internal(field.annotation, value, (*at, name))
        return
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        for each in inner:
            yield from _internal(each, data, at)
    elif origin is tuple and isinstance(data, list):
        for index, item in enumerate(data):
            yield from _internal(inner[0], item, (*at, index))
    elif isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(data, dict):
        for name, item in data.items():
            yield from _internal(inner[1], item, (*at, name))


def settable(model: type[BaseModel]) -> list[str]:
    """Fields of a model that a recipe may set."""
    return [name for name, field in model.model_fields.items() if not is_internal(field)]


def internals(value: Any) -> dict[str | int, Any]:
    """The internal fields of a record and all below it, as pydantic's `exclude` takes them."""
    found: dict[str | int, Any] = {}
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            below = True if is_internal(field) else internals(getattr(value, name))
            found |= {name: below} if below else {}
    elif isinstance(value, tuple | list | Mapping):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        found = {name: below for name, item in items if (below := internals(item))}
    return found


def _advice(key: Key, default: Any) -> str:
    words = [step for step in key if isinstance(step, str)]
    advice = ADVICE.get(".".join(words[-2:]))
    if advice:
        return advice
    value = "its defaults" if isinstance(default, BaseModel) else f"`{json.dumps(default)}`"
    return f"leave it out: it is {value} in every recipe"
