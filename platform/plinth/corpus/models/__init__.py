"""Models trained on buckets of the corpus itself. Each model is an asset with a version: `models/NAME`.

    examples           training examples: features of sampled documents or of a labeled list, divided into splits;
                       linear models of hashed words; the mark of generated labeled sets
    artefact           files of a classifier; its trees; calibration of margins to probabilities
    classifier         classifiers and taggers
    ngram_counts       vocabulary, counts and smoothing of n-gram models
    ngram              Kneser-Ney models, their files, and perplexity bands
    student            classifiers trained on a language model's labels
    given              pretrained models, supplied as files; fastText models; transformer classification heads

This module has the class `ModelTrainer`, which describes a function that trains a model on the documents of some
buckets, and all trainers by kind. To add a trainer, add a file in this folder that defines a `TRAINER`, a line in
`_BUILT_IN`, and a test.

The recipe names models under `corpus.models` and lists under `corpus.lists`. An annotator names the models and lists
that it needs (`Annotator.resources`), and reads their files once per process (`Annotator.prepare`); see
`plinth.corpus.annotate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from plinth.compute.context import Context
from plinth.errors import RecipeError
from plinth.extensions import nearest, validated
from plinth.records import Frozen, Manifest


class Train(Protocol):
    """Function that trains a model from documents by bucket, sidecars by `bucket/annotator`, and lists by name. The
    function returns the manifest of the model's files, with statistics."""

    def __call__(
        self,
        ctx: Context,
        asset: str,
        params: Any,
        documents: Mapping[str, Manifest],
        lists: Mapping[str, Manifest],
    ) -> Manifest: ...


@dataclass(frozen=True)
class ModelTrainer:
    """Kind of model that the pipeline can train.

    Args:
        kind: name in the recipe (`corpus.models.NAME.kind`).
        version: version of the trainer's code; raise it when a change gives a different model for the same text.
        description: one sentence for the catalog.
        source: the paper or project that the trainer follows.
        params: frozen model of the parameters, without `kind`.
        buckets: function that returns the names of the buckets to read, for given parameters.
        lists: function that returns the names of the lists to read, for given parameters.
        sidecars: function that returns the sidecars to read, as `bucket/annotator`, for given parameters.
        train: training function; it must be deterministic and use bounded memory.
        libraries: names of third-party libraries that affect the model (`fingerprint.libraries`).
        bounds: function that returns triples `(statistic, minimum, maximum)` for given parameters. A model is
            published only if its statistics are within these bounds.
    """

    kind: str
    version: str
    description: str
    source: str
    params: type[Frozen]
    buckets: Callable[[Any], tuple[str, ...]]
    train: Train
    libraries: tuple[str, ...] = ("unicode",)
    sidecars: Callable[[Any], tuple[str, ...]] = lambda params: ()
    lists: Callable[[Any], tuple[str, ...]] = lambda params: ()
    bounds: Callable[[Any], tuple[tuple[str, float | None, float | None], ...]] = lambda params: ()


#: Trainers by kind: module and attribute.
_BUILT_IN = {
    "classifier": "plinth.corpus.models.classifier:CLASSIFIER",
    "tagger": "plinth.corpus.models.classifier:TAGGER",
    "ngram": "plinth.corpus.models.ngram:TRAINER",
    "given": "plinth.corpus.models.given:TRAINER",
    "student": "plinth.corpus.models.student:TRAINER",
}


@cache
def trainers() -> dict[str, ModelTrainer]:
    """Return all trainers by kind."""
    places = {kind: place.split(":") for kind, place in _BUILT_IN.items()}
    return {kind: getattr(import_module(module), name) for kind, (module, name) in places.items()}


def trainer(name: str, raw: Mapping[str, Any]) -> ModelTrainer:
    """Return the trainer for a model in the recipe.

    Raises:
        RecipeError: the model has no `kind`, or an unknown kind.
    """
    kind = raw.get("kind")
    if kind not in trainers():
        raise RecipeError(
            f"corpus.models.{name}: unknown kind {kind!r}",
            expected=", ".join(trainers()),
            remedy=nearest(str(kind), trainers()),
        )
    return trainers()[kind]


def parameters(name: str, raw: Mapping[str, Any]) -> Frozen:
    """Return the parameters of a model from the recipe's mapping.

    Raises:
        RecipeError: the kind or a parameter does not exist, or a value is not allowed.
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
    """Train the model `models/{name}` with the recipe's parameters, and return the manifest of its files."""
    return trainer(name, raw).train(ctx, f"models/{name}", parameters(name, raw), documents, lists)

__all__ = ["ModelTrainer", "parameters", "train", "trainer"]
