"""Two kinds of text: reference against random, or good against bad by a labelled list; in two stages.

The first stage is linear and cheap enough for every document. Where its calibrated probability lies in the band of
doubt, or below it although terms of a lexicon were found, a second one decides: boosted trees over the first stage's
margin, the look of the text and, with a lexicon, its hits. Each stage learns from documents that the
one before it was not trained on, is calibrated on others, and measured on others again. A second stage that is no
better is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.models import lexicon
from plinth.corpus.models.classify import learning, linear, probabilities, trees
from plinth.corpus.models.classify.artefact import FORMAT, ClassifierModel, Head, Second, second_features, second_names
from plinth.corpus.models.classify.learning import Learning
from plinth.corpus.models.examples import Examples, ExampleSource
from plinth.corpus.models.trainers import ModelTrainer
from plinth.records import Manifest, Step, internal
from plinth_text.arrays import F64, I64, Bools
from plinth_text.scoring.features import NAMES

KIND, VERSION = "classifier", "1"
LIBRARIES = ("unicode", "scikit-learn")

#: The second stage learns from the band and so much beside it, on either side, as a share of what lies there.
_BESIDE = 0.5
#: Documents of each truth without which a second stage is not fitted, or not calibrated and shown to be better.
_ENOUGH, _ENOUGH_TO_PROVE = 60, 15


class ClassifierParams(Learning):
    """Sources of the two labels, and settings of the stages."""

    reference: tuple[str, ...] = Field((), description="Buckets of text that is wanted.")
    random: tuple[str, ...] = Field((), description="Buckets of any text; a document's score says how unlike it is.")
    labelled: tuple[str, ...] = Field((), description="Instead: lists of JSON lines with `text` and `label`.")
    positive: str = Field("bad", description="The value of `label` whose probability is learnt.")
    lexicon: str | None = Field(None, description="List of terms whose hits the second stage is told of.")
    window: int = Field(
        0, ge=0, description="Words of a stretch; a document scores as its highest one. 0: documents as a whole."
    )
    band: tuple[float, float] = internal(
        (0.3, 0.7), description="Probabilities between which the second stage decides."
    )
    second_stage: bool = internal(True, description="Whether there is one.")

    @model_validator(mode="after")
    def _one_way(self) -> ClassifierParams:
        if bool(self.labelled) == bool(self.reference or self.random):
            raise ValueError("needs either `labelled`, or `reference` and `random`")
        if not self.labelled and not (self.reference and self.random):
            raise ValueError("needs `reference` and `random` both")
        if set(self.reference) & set(self.random):
            raise ValueError("a bucket is both `reference` and `random`")
        if not 0 <= self.band[0] < self.band[1] <= 1:
            raise ValueError("band: needs two rising probabilities")
        return self


def train(
    ctx: Context, asset: str, params: ClassifierParams, documents: Mapping[str, Manifest], lists: Mapping[str, Manifest]
) -> Manifest:
    """Manifest of the model's files. Statistics: `documents`, `label_documents`, `splits`, how training went, of
    the first stage on the test split `auc`, `average_precision`, `brier`, `ece`, of both stages together the same
    as `final_…`, of the documents of doubt `border_share`, `border_auc`, `border_second_auc`.

    Raises:
        StageError: too few examples of a truth.
    """
    values = ((params.positive, 1),)
    sources = [
        *(ExampleSource(name, lists[name], label=0, values=values, is_list=True) for name in params.labelled),
        *(ExampleSource(name, documents[name], label=1) for name in params.reference),
        *(ExampleSource(name, documents[name], label=0) for name in params.random),
    ]
    step = Step(
        name=f"models/{KIND}",
        version=VERSION,
        params=params.model_dump(mode="json"),
        libraries=fingerprint.libraries(*LIBRARIES),
    )
    names = ("other", params.positive) if params.labelled else ("random", "reference")
    terms = lists[params.lexicon] if params.lexicon else None
    return learning.train(ctx, asset, step, fit, params, names, sources, terms)


def fit(params: ClassifierParams, found: Examples, labels: tuple[str, ...]) -> tuple[ClassifierModel, dict[str, Any]]:
    """The model and its measures; a pure function of the examples."""
    stage = learning.fitted(params, found, 1)
    calibration, test = found.of("calibration"), found.of("test")
    curve = probabilities.fit(params.calibration, *_judged(stage, calibration, params.window))
    head = Head(
        format=FORMAT,
        kind=KIND,
        labels=(labels[1],),
        bits=params.bits,
        window=params.window,
        bias=tuple(stage.bias.tolist()),
        curves=(curve,),
        band=params.band,
        lexicon=params.lexicon,
    )
    model = _with_second(params, ClassifierModel(head, stage.table), stage, found)
    return model, learning.learnt(stage) | _measured(model, stage, test)


def _judged(stage: linear.Linear, some: Examples, window: int) -> tuple[F64, I64, F64]:
    """Margins, truth and weights of examples."""
    truth = some.documents.labels
    margins = linear.margins(some.documents, stage.table, stage.bias, window)[:, 0]
    return margins, truth, probabilities.balanced(truth, 2)


def _with_second(
    params: ClassifierParams, model: ClassifierModel, stage: linear.Linear, found: Examples
) -> ClassifierModel:
    """The model with a second stage, where there is doubt enough to learn from, and it does better there than the
    first on documents that neither has learnt from."""
    if not params.second_stage:
        return model
    border = found.of("border")
    margins, truth, weights = _judged(stage, border, params.window)
    hits = _hits(params.lexicon, border)
    chosen = _near(model.head.curves[0](margins), params.band, hits, truth)
    if chosen is None:
        return model
    forest = trees.fit(second_features(margins, border.dense)[chosen], truth[chosen], weights[chosen])
    calibration = found.of("calibration")
    margins, truth, weights = _judged(stage, calibration, params.window)
    first = model.head.curves[0](margins)
    doubt = doubtful(first, params.band, _hits(params.lexicon, calibration))
    if not _both(truth[doubt], _ENOUGH_TO_PROVE):
        return model
    raw = forest.margins(second_features(margins, calibration.dense)[doubt])
    curve = probabilities.platt(raw, truth[doubt], weights[doubt])
    losses = [probabilities.log_loss(truth[doubt], p, weights[doubt]) for p in (curve(raw), first[doubt])]
    if losses[0] >= losses[1]:
        return model
    names = second_names(lexicon.FEATURES if params.lexicon else ())
    head = model.head.model_copy(update={"second": Second(features=names, base=forest.base, curve=curve)})
    return ClassifierModel(head, model.table, forest)


def _hits(terms: str | None, some: Examples) -> Bools | None:
    """Whether terms of the lexicon were found in examples; None without one."""
    return None if terms is None else np.asarray(some.dense[:, len(NAMES)] > 0)


def _near(
    p: F64, band: tuple[float, float], hits: Bools | None, truth: I64
) -> Bools | None:
    """Documents of doubt and those beside them; all, where those are too few; None where all are."""
    wide = doubtful(p, (band[0] * (1 - _BESIDE), band[1] + (1 - band[1]) * _BESIDE), hits)
    for chosen in (wide, np.ones_like(wide)):
        if _both(truth[chosen], _ENOUGH):
            return chosen
    return None


def _both(truth: I64, least: int) -> bool:
    return bool(min((truth == 0).sum(), (truth == 1).sum()) >= least)


def doubtful(p: F64, band: tuple[float, float], hits: Bools | None = None) -> Bools:
    """Whether probabilities lie in the band of doubt, or below it although the lexicon has `hits`."""
    inside = (p >= band[0]) & (p <= band[1])
    return np.asarray(inside if hits is None else inside | (hits & (p < band[0])))


def _measured(model: ClassifierModel, stage: linear.Linear, test: Examples) -> dict[str, Any]:
    margins, truth, weights = _judged(stage, test, model.head.window)
    first = model.head.curves[0](margins)
    doubt = doubtful(first, model.head.band, _hits(model.head.lexicon, test))
    final = first.copy()
    border: dict[str, Any] = {"border_share": round(float(np.average(doubt, weights=weights)), 6)}
    if model.forest is not None:
        final[doubt] = model.second(margins[doubt], test.dense[doubt])
    if _both(truth[doubt], 1):
        own = truth[doubt], weights[doubt]
        border["border_auc"] = round(probabilities.auc(own[0], first[doubt], own[1]), 6)
        border["border_second_auc"] = round(probabilities.auc(own[0], final[doubt], own[1]), 6)
    whole = {f"final_{name}": value for name, value in probabilities.quality(truth, final, weights).items()}
    return probabilities.quality(truth, first, weights) | whole | border | {"second_stage": model.forest is not None}


TRAINER = ModelTrainer(
    kind=KIND,
    version=VERSION,
    description="Linear classifier on hashed words and pairs of words, calibrated, with boosted trees where it doubts.",
    source="Joulin et al. 2016 (fastText); Li et al. 2024 (DCLM), reference against random; Platt; Ke et al. 2017.",
    params=ClassifierParams,
    buckets=lambda params: (*params.reference, *params.random),
    lists=lambda params: (*params.labelled, *((params.lexicon,) if params.lexicon else ())),
    train=train,
    libraries=LIBRARIES,
    bounds=lambda params: (("auc", params.min_auc, None), ("final_auc", params.min_auc, None),
                           ("final_ece", None, params.max_ece)),
)  # fmt: skip
