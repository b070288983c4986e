"""A proposal to go on training is a recipe that loads, with more of what drifts; nothing else differs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from plinth.recipe.load import load
from plinth_audit.drift.judge import MovedDocument, SliceDrift, in_words, overlay
from tests.jobs.conftest import RECIPE


def drifting(bucket: str, axis: str = "bucket") -> SliceDrift:
    moved = MovedDocument(
        id="0" * 32, uri="https://a.example/1", bucket=bucket, snapshot="2026-50", bytes=100, model=4.0, excess_bits=9.0
    )
    return SliceDrift(
        axis=axis, slice=bucket, documents=40, later=40, reference=(2.0, 1.9, 2.1), latest=(3.0, 2.8, 3.2), p=1e-5,
        adjusted=1e-4, drifts=True, look=2, bucket=bucket, moved=(moved,),
    )  # fmt: skip


def test_it_begins_from_the_champion_with_twice_the_weight_and_loads(tmp_path: Path) -> None:
    recipe = load(RECIPE)
    bucket = next(iter(recipe.corpus.buckets))
    text = overlay(recipe, str(RECIPE.absolute()), [drifting(bucket), drifting("prose", "language")])
    (tmp_path / "continued.yaml").write_text(text)
    made = load(tmp_path / "continued.yaml", RECIPE.parent)
    assert made.training.initial is not None
    assert made.training.initial.release == f"{recipe.required_release().name}@champion"
    for now, then in zip(made.mixture.phases, recipe.mixture.phases, strict=True):
        told = {key: now.weights[key] / weight for key, weight in then.weights.items() if weight}
        assert told == {key: 2.0 if key == bucket else 1.0 for key in told}
    assert made.corpus == recipe.corpus
    assert text.startswith("# Proposed because held-out text has drifted")
    assert yaml.safe_load(text)["training"]["initial"]["replay"] == 0.1


def test_a_bucket_that_no_weight_names_gets_a_factor() -> None:
    recipe = load(RECIPE)
    phase = recipe.mixture.phases[0].model_copy(update={"weights": {"*": 1.0}})
    natural = recipe.model_copy(update={"mixture": recipe.mixture.model_copy(update={"phases": (phase,)})})
    bucket = next(iter(recipe.corpus.buckets))
    made = yaml.safe_load(overlay(natural, "base", [drifting(bucket)]))["mixture"]["phases"][0]
    assert made["upsample"] == {bucket: 2.0}


def test_nothing_that_drifts_is_no_proposal() -> None:
    with pytest.raises(ValueError, match="no slice drifts"):
        overlay(load(RECIPE), "base", [drifting("web").model_copy(update={"drifts": False})])


def test_words_name_slice_change_and_documents() -> None:
    assert in_words(drifting("web")) == (
        "bucket web: bits per byte changed from 2.000 to 3.000 (anytime-valid p 0.0001); documents: https://a.example/1"
    )
