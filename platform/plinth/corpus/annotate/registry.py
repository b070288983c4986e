"""All annotators. A new one is a file in this folder, a line here, and a test."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from plinth.corpus.annotate.base import Annotator
from plinth.errors import RecipeError
from plinth.records import Frozen

#: The modules of this folder that hold an `ANNOTATOR` of the same name, in the order of the catalogue.
MODULES = (
    "language",
    "rules.gopher_quality",
    "rules.gopher_repetition",
    "rules.c4",
    "rules.fineweb",
    "licence",
    "pii.pii",
    "url",
    "perplexity",
    "quality_classifier",
    "domain",
    "toxicity",
    "rules.gopher_dolma",
    "rules.redpajama",
    "rules.c4_lines",
    "rules.refinedweb_lines",
    "rules.repeated_tokens",
    "rules.characters",
    "illegal",
)

ANNOTATORS: dict[str, Annotator] = {
    found.name: found for found in (import_module(f"plinth.corpus.annotate.{name}").ANNOTATOR for name in MODULES)
}


def annotator(name: str) -> Annotator:
    """An annotator by name.

    Raises:
        RecipeError: no such annotator; the nearest name is given.
    """
    if name not in ANNOTATORS:
        raise RecipeError(f"no annotator {name!r}", expected=", ".join(ANNOTATORS), remedy=_nearest(name, ANNOTATORS))
    return ANNOTATORS[name]


def parameters(name: str, raw: Mapping[str, Any]) -> Frozen:
    """The parameters of an annotator out of a recipe's mapping.

    Raises:
        RecipeError: no such annotator, an unknown parameter, or a value that is not allowed.
    """
    model = annotator(name).params
    for given in raw:
        if given not in model.model_fields:
            known = ", ".join(model.model_fields) or "no parameters"
            remedy = _nearest(given, model.model_fields)
            raise RecipeError(f"annotator {name} has no parameter {given!r}", expected=known, remedy=remedy)
    try:
        return model.model_validate(dict(raw))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise RecipeError(
            f"corpus.annotate.{name}.{where}: {first['msg']}", found=first.get("input"), remedy="correct the value"
        ) from error


def _nearest(name: str, known: Mapping[str, Any]) -> str | None:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else None
