"""Loader of recipes from YAML: follows `extends:`, validates, and reports every problem with file, key and line.

All problems of a recipe are reported at once. Checks over several sections (for example of sums) run only after each
section is valid.
"""

from __future__ import annotations

import difflib
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, to_jsonable_python

from plinth import fingerprint as canonical
from plinth.errors import RecipeError
from plinth.recipe.extension_checks import MESSAGE, retired, settable
from plinth.recipe.recipe import FOLLOWS_MIXTURE, Recipe
from plinth.recipe.yaml_lines import Key, Lined, Position, Problem, dotted, follow, merge, read, shown
from plinth.records import OneValue, is_internal, is_spelling
from plinth.sections import refusal
from plinth.text import counted

#: Messages of pydantic, rephrased in YAML terms.
_PLAIN = {"missing": "missing", "extra_forbidden": "unknown key"}

#: Descriptions of regular expressions, for error messages.
_PATTERNS = {
    r"^[a-z][a-z0-9-]*$": "lower-case letters, digits and `-`, with a letter first",
    r"^[a-z][a-z0-9_]*$": "lower-case letters, digits and `_`, with a letter first",
    r"^[A-Za-z0-9][A-Za-z0-9_-]*$": "letters, digits, `_` and `-`, with a letter or digit first",
    r"^s3://[^/]+(/.*)?$": "`s3://bucket/prefix`",
    r"^(/|s3://[^/]+)": "an absolute folder, or `s3://bucket/prefix`",
}


def load(path: Path | str, packaged: Path | None = None, checked: str = "") -> Recipe:
    """Return the recipe in a YAML file.

    Args:
        path: the file.
        packaged: folder of packaged recipes. `extends:` looks up names in this folder if no such file is next to the
            recipe.
        checked: fingerprint of a recipe that passed all checks. If the recipe has this fingerprint, its annotators and
            columns are not checked again, because this would import every annotator.

    Raises:
        RecipeError: the file cannot be read or the recipe is wrong; the error lists every problem with its file,
            line and dotted key.
    """
    return required(*check(path, packaged, checked), Path(path))


def check_over(
    path: Path | str, overs: Sequence[Lined], name: Path, without: str = "", packaged: Path | None = None
) -> Recipe:
    """Return the recipe in a file after other keys are merged over it in order, as if they were files that extend it.

    Args:
        overs: keys to merge.
        name: file name to report for these keys in errors.
        without: section of `corpus` to ignore.

    Raises:
        RecipeError: the file cannot be read or the merged recipe is wrong; the error lists every problem.
    """
    lined = reduce(merge, overs, follow(Path(path), packaged))
    corpus = lined.data.get("corpus")
    if isinstance(corpus, dict) and without in corpus:
        kept = {key: value for key, value in corpus.items() if key != without}
        lined = replace(lined, data={**lined.data, "corpus": kept})
    return required(*_checked(lined, Position(shown(name), 1)), name)


def required(recipe: Recipe | None, problems: Sequence[Problem], path: Path) -> Recipe:
    """Return the recipe, or raise an error if it has problems.

    Raises:
        RecipeError: the recipe has problems; the error lists all of them.
    """
    if recipe is None or problems:
        count = counted(len(problems), "problem")
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise RecipeError(
            f"{count} in the recipe {shown(path)}\n{listed}",
            remedy="fix the lines above; `plinth recipe schema` and docs/recipe.md describe every key",
        )
    return recipe


def check(path: Path | str, packaged: Path | None = None, checked: str = "") -> tuple[Recipe | None, list[Problem]]:
    """Return the recipe, or None and its problems, in the order of files and lines.

    The arguments are those of `load`.
    """
    path = Path(path)
    return _checked(follow(path, packaged), Position(shown(path), 1), checked)


def _checked(lined: Lined, top: Position, checked: str = "") -> tuple[Recipe | None, list[Problem]]:
    """Validate parsed data. Problems that an unreadable key may have caused are not reported."""
    problems = list(lined.problems)
    recipe = None
    if lined.data and not lined.incomplete:
        unread = tuple(problem.key for problem in problems)
        recipe, found = _validate(lined, top, checked)
        problems += [problem for problem in found if not problem.key.startswith(unread)] if unread else found
    problems.sort(key=lambda problem: (problem.mark.file != top.file, problem.mark.file, problem.mark.line))
    return (None if problems else recipe), problems


def fingerprint(recipe: Recipe) -> str:
    """Return the SHA-256 of the whole recipe with its defaults. The digest does not depend on comments or key order."""
    return canonical.digest(recipe)


def resolved(path: Path | str, packaged: Path | None = None) -> dict[str, Any]:
    """Return the recipe as plain data, with `extends:` followed and defaults filled in.

    Raises:
        RecipeError: the file cannot be read or the recipe is wrong; the error lists every problem.
    """
    return written(load(path, packaged))


def written(recipe: Recipe, *, defaults: bool = True) -> dict[str, Any]:
    """Return a recipe as plain data that loads as the same recipe.

    Args:
        defaults: if True, keys that the recipe omits are included with their defaults.
    """
    unused = ("mixture", *FOLLOWS_MIXTURE) if recipe.mixture is None else ()
    return {name: value for name, value in _plain(recipe, defaults).items() if name not in unused}


def _plain(value: Any, defaults: bool) -> Any:
    """Return a parameter in its YAML form, without fields that recipes cannot set."""
    if isinstance(value, OneValue):
        return _plain(getattr(value, value.key()), defaults)
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {name: _plain(getattr(value, name), defaults) for name in fields if _is_written(value, name, defaults)}
    if isinstance(value, Mapping):
        return {name: _plain(each, defaults) for name, each in value.items()}
    return [_plain(each, defaults) for each in value] if isinstance(value, tuple) else to_jsonable_python(value)


def _is_written(section: BaseModel, name: str, defaults: bool) -> bool:
    field, given = type(section).model_fields[name], name in section.model_fields_set
    if is_spelling(field):
        return given
    shown = not is_internal(field) and not field.exclude and (defaults or given)
    return shown and not (field.exclude_if is not None and field.exclude_if(getattr(section, name)))


def _validate(lined: Lined, top: Position, checked: str) -> tuple[Recipe | None, list[Problem]]:
    recipe, invalid = None, None
    try:
        # Validate through JSON, because pydantic's strict mode accepts lists for tuples only there.
        recipe = Recipe.model_validate_json(json.dumps(lined.data), strict=True)
    except ValidationError as error:
        invalid = error
    if recipe is not None and checked and fingerprint(recipe) == checked:
        return recipe, []
    from plinth.recipe.column_checks import problems_of_columns
    from plinth.recipe.extension_checks import problems_of_extensions

    inner = [*retired(Recipe, lined.data), *problems_of_columns(lined.data), *problems_of_extensions(lined.data)]
    problems = [Problem(lined.mark(key, top), dotted(key), message, hint) for key, message, hint in inner]
    if invalid is not None:
        gone = {problem.key for problem in problems if problem.message == MESSAGE}
        return None, [*(one for one in _explain(invalid, lined, top) if one.key not in gone), *problems]
    return recipe, problems


def _explain(error: ValidationError, lined: Lined, top: Position) -> Iterator[Problem]:
    details = error.errors(include_url=False)
    renamed = {near for detail in details if (near := _meant(detail)) is not None}
    for detail in details:
        key = _located(detail["loc"], lined)
        if detail["type"] == "recipe":
            for where, message in detail["ctx"]["problems"]:
                yield Problem(lined.mark(where, top), dotted(where), message)
        elif detail["type"] == "missing" and detail["loc"] in renamed:
            continue  # the misspelled key next to it is reported
        elif detail["type"] == "too_short" and detail["input"]:
            continue  # the wrong items are reported one by one
        else:
            yield Problem(lined.mark(key, top), dotted(key), _message(detail), _hint(detail))


def _located(loc: Sequence[str | int], lined: Lined) -> Key:
    """Return the recipe key of a pydantic error location, without the tags that pydantic adds for union members."""
    key = tuple(step for step in loc if step != "[key]")  # pydantic's mark for the name of an entry
    while len(key) > 1 and key not in lined.marks and not (key[:-1] in lined.marks and _is_mapping(lined, key[:-1])):
        key = key[:-1]
    return key


def _is_mapping(lined: Lined, key: Key) -> bool:
    """Return True if the file has a mapping or list at a key; a scalar (`OneValue`) has no positions below it."""
    value: Any = lined.data
    for step in key:
        value = value[step]
    return isinstance(value, dict | list)


def _message(detail: ErrorDetails) -> str:
    plain = _PLAIN.get(detail["type"])
    if plain:
        return (refusal(dotted(detail["loc"])) if detail["type"] == "extra_forbidden" else "") or plain
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if detail["type"] == "string_pattern_mismatch":
        return (
            f"found {json.dumps(detail['input'])}, expected {_PATTERNS.get(detail['ctx']['pattern'], 'another form')}"
        )
    message = detail["msg"].replace("Input should be", "expected").replace("'", "`")
    value = detail["input"]
    shown = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else json.dumps(value)
    return f"found {shown}, {message[0].lower()}{message[1:]}"


def _hint(detail: ErrorDetails) -> str:
    """Return the hint of a validation error: the closest valid key or value, or all valid ones if they are few."""
    if detail["type"] == "extra_forbidden":
        if refusal(dotted(detail["loc"])):
            return ""
        meant = _meant(detail)
        if meant:
            return f"did you mean `{meant[-1]}`?"
        valid = _fields(detail["loc"][:-1])
        return f"valid here: {', '.join(valid)}" if valid else ""
    if detail["type"] == "literal_error" and isinstance(detail["input"], str):
        valid = [word for word in detail["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ") if word]
        near = difflib.get_close_matches(detail["input"], valid, n=1, cutoff=0.5)
        return f"did you mean `{near[0]}`?" if near else ""
    if detail["type"] == "bool_type" and detail["input"] in ("yes", "no", "on", "off"):
        return "write `true` or `false`"
    if detail["type"] == "missing":
        field = _field(detail["loc"])
        return (field.description or "") if field else ""
    return ""


def _meant(detail: ErrorDetails) -> tuple[str | int, ...] | None:
    """Return the location of the valid key that an unknown key resembles."""
    if detail["type"] != "extra_forbidden":
        return None
    *parent, name = detail["loc"]
    near = difflib.get_close_matches(str(name), _fields(parent), n=1, cutoff=0.6)
    return (*parent, near[0]) if near else None


def _fields(loc: Sequence[str | int]) -> list[str]:
    model = _model_at(Recipe, loc)
    names = settable(model) if model else []
    return names if loc else [*names, "extends"]


def _field(loc: Sequence[str | int]) -> Any:
    model = _model_at(Recipe, loc[:-1])
    return model.model_fields.get(str(loc[-1])) if model else None


def _model_at(kind: Any, loc: Sequence[str | int]) -> type[BaseModel] | None:
    """Return the pydantic model of the mapping at a location, by following the type annotations."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):  # a section that may be left out
        found = (_model_at(each, loc) for each in typing.get_args(kind))
        return next((model for model in found if model is not None), None)
    if not loc:
        return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        field = kind.model_fields.get(str(loc[0]))
        return _model_at(field.annotation, loc[1:]) if field else None
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return _model_at(inner[0], loc[1:])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _model_at(inner[1], loc[1:])
    return None


# Trial of other policies: a whole recipe, or a few keys merged over the current recipe.
#
#     policies:                      the same as   corpus:
#       default:                                     policies:
#         rules: [...]                                 default: …
#
# Keys merge as with `extends:`, so a file may set one policy and keep the rest. Problems are reported with the file and
# line of the key.

#: A file that has one of these keys is a whole recipe.
WHOLE = frozenset({"extends", "name"})
#: Keys that may be at the top level, without `corpus:` around them.
SHORT = frozenset({"policies", "buckets"})


def load_tried(new: Path, recipe: Path, packaged: Path | None = None) -> Recipe:
    """Return the recipe that results from a file of changes, as in `plinth corpus policy try`.

    Args:
        new: whole recipe, or keys to merge over `recipe`; `policies:` may be at the top.
        recipe: current recipe.
        packaged: folder of recipes that `extends:` finds by name.

    Raises:
        RecipeError: the file cannot be read, or has unknown names; the error shows the line and the closest known name.
    """
    lined = read(new, shown(new))
    if lined.problems or WHOLE & lined.data.keys():
        return load(new, packaged)
    # A trial evaluates no gates, so the rules of a gate may be missing.
    return check_over(recipe, [_placed(lined)], new, without="slices", packaged=packaged)


def _placed(lined: Lined) -> Lined:
    """Move `policies:` and `buckets:` below `corpus:`."""
    if "corpus" in lined.data or not SHORT & lined.data.keys():
        return lined
    data = {key: value for key, value in lined.data.items() if key not in SHORT}
    data["corpus"] = {key: value for key, value in lined.data.items() if key in SHORT}
    first = min(lined.marks.values(), key=lambda mark: mark.line)
    marks = {_deeper(key): mark for key, mark in lined.marks.items()} | {("corpus",): first}
    return replace(lined, data=data, marks=marks)


def _deeper(key: Key) -> Key:
    return ("corpus", *key) if key[0] in SHORT else key
