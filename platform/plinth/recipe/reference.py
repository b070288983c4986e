"""Generator of docs/recipe.md: `python -m plinth.recipe.reference docs/recipe.md`; `--count` prints the number of keys.

Field descriptions, types, bounds and defaults are defined only in the models; docs/recipe.md repeats them.
"""

from __future__ import annotations

import json
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from plinth.recipe.recipe import Recipe
from plinth.records import INTERNAL, SPELLING, OneValue, is_internal
from plinth.storage.parts import EDIT_TYPE

INTRODUCTION = """\
# Recipe reference

<!-- Written by `make docs` from the models in platform/plinth/recipe/. Edit those. -->

A recipe is one YAML file that describes a whole run. `plinth recipe check FILE` reports every problem with
file, line and key; `plinth recipe show FILE` prints the recipe with all defaults filled in;
`plinth recipe schema` prints a JSON Schema for editors.

- `extends: other.yaml` starts from another recipe: a path relative to this file, or the name of a packaged
  recipe (`base.yaml`, `web.yaml`, `demo.yaml`, `tiny.yaml`) if there is no file of that name next to this one;
  `./base.yaml` is always a file. Mappings merge key by key, lists are replaced, and `null` removes an
  inherited key.
- Unknown and duplicate keys are errors. Types are strict: `"6"` is not a number. Only `true` and `false`
  are booleans.
- A stage is cached by the part of the recipe that it reads: changing a threshold re-runs the policy and
  the stages after it, and nothing before.
"""

#: Keys that most recipes set, in the order of a recipe file.
COMMON = (
    "name", "corpus.buckets.NAME.owner", "corpus.buckets.NAME.policy", "corpus.buckets.NAME.sources[].kind",
    "corpus.buckets.NAME.sources[].path", "corpus.buckets.NAME.sources[].licence",
    "corpus.buckets.NAME.sources[].terms", "corpus.annotate", "corpus.policies.NAME.rules",
    "corpus.permitted_licences", "tokenizer.vocab_size", "mixture.sequence_tokens", "mixture.total_tokens",
    "mixture.phases[].weights", "training.model.preset", "training.optimizer.lr", "training.global_batch_sequences",
    "training.launch.ranks", "training.checkpoints.every_steps", "release.name",
)  # fmt: skip

BOUNDS = {"ge": "≥ {}", "gt": "> {}", "le": "≤ {}", "lt": "< {}", "min_length": "at least {}"}


def document() -> str:
    """Return the recipe reference as Markdown."""
    lines = [INTRODUCTION, *_common(), ""]
    for path, model in _models(Recipe, ""):
        title = f"`{path}`" if path else "The file"
        lines += [f"## {title}", "", _first_paragraph(model), "", *_table(model, path), ""]
    return "\n".join([*lines, *_expressions(), *_annotators(), *_trainers()]).rstrip() + "\n"


def main(target: str) -> None:
    """Write the recipe reference to the file `target`."""
    Path(target).write_text(document(), encoding="utf-8")


def _common() -> Iterator[str]:
    """Yield the keys that most recipes set, each with its full dotted path."""
    yield f"## {len(COMMON)} keys that most recipes set"
    yield ""
    yield "All other keys have defaults; the sections below list every key."
    yield ""
    yield from ("| key | type | default | meaning |", "|---|---|---|---|")
    found = {
        f"{path}.{name}".lstrip("."): (path, name, field)
        for path, one in _models(Recipe, "")
        for name, field in _fields(one)
    }
    for key in COMMON:
        path, name, field = found[key]
        yield f"| `{key}` | {_type(field, path, name)} | {_default(field)} | {_meaning(field)} |"


def _models(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield every pydantic model of a recipe with its dotted path, depth first, in the order of a recipe file."""
    yield path, model
    for name, field in _fields(model):
        inner, suffix = _inner(field.annotation)
        if inner is not None:
            yield from _models(inner, f"{path}.{name}{suffix}".lstrip("."))


def _fields(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """Return the fields of a model that a recipe may set."""
    return [(name, field) for name, field in model.model_fields.items() if not is_internal(field)]


def keys() -> list[str]:
    """Return the dotted path of every recipe key, including the keys of annotators and models."""
    from plinth.corpus.annotate.base import ANNOTATORS
    from plinth.corpus.models import trainers

    models: list[tuple[str, type[BaseModel]]] = [("", Recipe)]
    models += [(f"corpus.annotate.{one.name}", one.params) for one in map(ANNOTATORS.find, ANNOTATORS.built_in)]
    models += [(f"corpus.models.NAME({kind})", one.params) for kind, one in trainers().items()]
    return [
        f"{path}.{name}".lstrip(".")
        for top, model in models
        for path, below in _models(model, top)
        for name, _ in _fields(below)
    ]


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe, for editors."""
    whole = Recipe.model_json_schema()
    definitions = whole.pop("$defs", {})
    for part in (whole, *definitions.values()):
        given = part.get("properties", {})
        settable = {name: one for name, one in given.items() if INTERNAL not in one}
        for one in settable.values():
            one.pop(SPELLING, None)
            if "$ref" in one:
                one.pop("default", None)  # a whole section, with internal keys
        part["properties"] = settable
    reached: dict[str, Any] = {}
    waiting = [whole]
    while waiting:
        for name in re.findall(r'"#/\$defs/([^"]+)"', json.dumps(waiting.pop())):
            if name not in reached:
                reached[name] = definitions[name]
                waiting.append(definitions[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole, "$defs": reached}


def _inner(kind: Any) -> tuple[type[BaseModel] | None, str]:
    """Return the model inside an annotation, and the part that its container adds to the dotted key."""
    if _is_one_value(kind):
        return None, ""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind, ""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        inner, rest = _inner(arguments[0])
        return inner, f"[]{rest}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        inner, rest = _inner(arguments[1])
        return inner, f".NAME{rest}"
    if origin in (typing.Union, types.UnionType):  # a section that may be `null`
        return next((found for each in arguments if (found := _inner(each))[0] is not None), (None, ""))
    return None, ""


def _is_one_value(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, OneValue)


def _one_value(kind: Any) -> type[OneValue] | None:
    """Return the `OneValue` model in an annotation, which may also allow `null`; None if there is no such model."""
    if _is_one_value(kind):
        found: type[OneValue] = kind
        return found
    return next((inner for each in typing.get_args(kind) if (inner := _one_value(each)) is not None), None)


def _table(model: type[BaseModel], path: str) -> Iterator[str]:
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in _fields(model):
        yield f"| `{name}` | {_type(field, path, name)} | {_default(field)} | {_meaning(field)} |"


def _type(field: FieldInfo, path: str, name: str) -> str:
    inner, suffix = _inner(field.annotation)
    if inner is None:
        return _named(field.annotation)
    target = f"{path}.{name}{suffix}".lstrip(".")
    kind = {"": "section", "[]": "list of", ".NAME": "by name:"}.get(suffix, "section")
    return f"[{kind}](#{_anchor(target)})" if kind == "section" else f"{kind} [sections](#{_anchor(target)})"


def _named(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if _is_one_value(kind):
        return _named(kind.model_fields[kind.key()].annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_named(each) for each in arguments)
    if origin is typing.Annotated:
        return _named(arguments[0])
    if origin is tuple:
        return f"list of {_named(arguments[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"mapping of names to {_named(arguments[1])}"
    names = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`", type(None): "`null`"}
    return names.get(kind, "value")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, OneValue):
        value = getattr(value, value.key())
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 2**20 and value % 2**20 == 0:
        return f"`{value}` ({value // 2**20} Mi)"
    return f"`{json.dumps(value, ensure_ascii=False).replace('|', chr(92) + '|')}`"


def _meaning(field: FieldInfo) -> str:
    alone = _one_value(field.annotation)
    inner, value = (alone, alone.model_fields[alone.key()]) if alone else (_inner(field.annotation)[0], None)
    words = [field.description or (_first_paragraph(inner) if inner else ""), value.description if value else ""]
    metadata = value.metadata if value else field.metadata
    bounds = [
        text.format(getattr(rule, attribute))
        for rule in metadata
        for attribute, text in BOUNDS.items()
        if getattr(rule, attribute, None) is not None
    ]
    pattern = next((rule.pattern for rule in metadata if getattr(rule, "pattern", None)), None)
    if pattern:
        bounds.append(f"matches `{pattern}`")
    return " ".join(word for word in (*words, f"({', '.join(bounds)})" if bounds else "") if word).replace("|", "\\|")


def _expressions() -> Iterator[str]:
    from plinth.corpus.policy import expressions
    from plinth.corpus.policy.compiled_policy import DOCUMENT_COLUMNS

    text = (expressions.__doc__ or "").strip().partition("\n\n")[2]
    own = ", ".join(f"`documents.{name}`" for name in DOCUMENT_COLUMNS)
    yield from ("## Expressions", "", "A rule's `drop` is an expression in this language:", "", *text.splitlines(), "")
    yield from (f"In addition to the annotators' columns below, expressions can use {own}.", "")


def _annotators() -> Iterator[str]:
    from plinth.corpus.annotate.base import ANNOTATORS

    yield "## Annotators"
    yield ""
    yield "Names under `corpus.annotate`, with their parameters and the columns that policies may use. The default"
    yield "of `licence.permitted` is `corpus.permitted_licences`."
    for annotator in map(ANNOTATORS.find, ANNOTATORS.built_in):
        yield from ("", f"### `{annotator.name}`", "", f"{annotator.description} {annotator.source}", "")
        for path, model in _models(annotator.params, f"corpus.annotate.{annotator.name}"):
            if model is not annotator.params:
                yield from (f"### `{path}`", "", _first_paragraph(model), "")
            if _fields(model):
                yield from (*_table(model, path), "")
        yield "| column | type |"
        yield "|---|---|"
        for field in annotator.schema:
            yield f"| `{annotator.name}.{field.name}` | {_column_type(field.type)} |"


def _trainers() -> Iterator[str]:
    from plinth.corpus.models import trainers

    yield from (
        "",
        "## Models",
        "",
        "Values of `kind` for an entry of `corpus.models`, with the parameters of each kind.",
    )
    for kind, trainer in trainers().items():
        yield from ("", f"### `kind: {kind}`", "", f"{trainer.description} {trainer.source}", "")
        for path, model in _models(trainer.params, f"corpus.models.{kind}"):
            if model is not trainer.params:
                yield from ("", f"### `{path}`", "", _first_paragraph(model), "")
            yield from _table(model, path)


def _column_type(kind: pa.DataType) -> str:
    return "spans (code points)" if kind == EDIT_TYPE else str(kind).replace("|", "\\|")


def _first_paragraph(model: type[BaseModel]) -> str:
    text = (model.__doc__ or "").strip()
    return " ".join(line.strip() for line in text.split("\n\n")[0].splitlines())


def _anchor(path: str) -> str:
    """Return GitHub's anchor of a heading: lower case, letters, digits, `-` and `_`."""
    return "".join(letter for letter in path.lower() if letter.isalnum() or letter in "-_")


if __name__ == "__main__":
    if sys.argv[1:] == ["--count"]:
        print(len(keys()))
    else:
        main(sys.argv[1])
