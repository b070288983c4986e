"""All trainers. A new one is a file in this folder that holds a `TRAINER`, a line here, and a test."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from plinth.compute.context import Context
from plinth.corpus.models.base import ModelTrainer
from plinth.errors import RecipeError
from plinth.extensions import nearest, validated
from plinth.records import Frozen, Manifest

#: The modules of this folder that hold a `TRAINER` of the same kind.
MODULES: tuple[str, ...] = (
    "classify.classifier",
    "classify.tagger",
    "ngram.ngram",
    "given",
)

TRAINERS: dict[str, ModelTrainer] = {
    name.rpartition(".")[2]: import_module(f"plinth.corpus.models.{name}").TRAINER for name in MODULES
}


def trainer(name: str, raw: Mapping[str, Any]) -> ModelTrainer:
    """The trainer of a model of the recipe.

    Raises:
        RecipeError: no `kind`, or an unknown one.
    """
    kind = raw.get("kind")
    if kind not in TRAINERS:
        raise RecipeError(
            f"corpus.models.{name}: nothing trains a model of kind {kind!r}",
            expected=", ".join(TRAINERS),
            remedy=nearest(str(kind), TRAINERS),
        )
    return TRAINERS[kind]


def parameters(name: str, raw: Mapping[str, Any]) -> Frozen:
    """The parameters of a model out of the recipe's mapping.

    Raises:
        RecipeError: an unknown kind or parameter, or a value that is not allowed.
    """
    model = trainer(name, raw).params
    return validated(model, {key: value for key, value in raw.items() if key != "kind"}, f"corpus.models.{name}")


def train(
    ctx: Context,
    name: str,
    raw: Mapping[str, Any],
    documents: Mapping[str, Manifest],
    lists: Mapping[str, Manifest],
) -> Manifest:
    """Train `models/{name}` as the recipe says."""
    return trainer(name, raw).train(ctx, f"models/{name}", parameters(name, raw), documents, lists)
