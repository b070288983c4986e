"""Runs that may continue from given weights, and those that are refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from plinth.errors import RecipeError
from plinth.model.hugging_face import TOKENIZER
from plinth.model.parameters import Model, RopeScaling
from plinth.records import Blob, Manifest, Part
from plinth.storage.store import Store
from plinth.training.config import run_key
from plinth.training.initial import require_agreement
from plinth.training.parameters.initial import InitialWeights
from plinth.training.parameters.run import Training

MODEL = Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64)
SAME = InitialWeights(release="base@champion")


def held(tokenizer: str = "a", rows: int = 64, model: Model = MODEL) -> Manifest:
    blob = Blob(md5=tokenizer * 32, sha256=tokenizer * 64, bytes=1)
    stats: dict[str, Any] = {"vocab_size": rows, "model": model.model_dump(mode="json")}
    parts = (Part(name=TOKENIZER, blob=blob),)
    return Manifest(asset="x", step="x", version="1", params={}, inputs={}, parts=parts, stats=stats)


class Files(Store):
    """Tokenizers by the first character of their digest; `c` is `a` with a template."""

    def __init__(self) -> None:
        pass

    def read_bytes(self, blob: Blob) -> bytes:
        template = {"post_processor": {"type": "TemplateProcessing"}} if blob.sha256[0] == "c" else {}
        return json.dumps({"model": "a" if blob.sha256[0] == "c" else blob.sha256[0], **template}).encode()


FILES = Files()


def test_every_difference_is_named_with_the_value_that_agrees() -> None:
    other = MODEL.model_copy(update={"layers": 3, "tied_embeddings": False, "head_dim": 16})
    with pytest.raises(RecipeError) as caught:
        require_agreement(FILES, SAME, MODEL, held(model=other), held())
    assert caught.value.found == "layers 2, tied_embeddings True, head_dim 8"
    assert caught.value.expected == "layers 3, tied_embeddings False, head_dim 16"


def test_positions_and_what_only_training_uses_may_change() -> None:
    scaling = RopeScaling(kind="yarn", factor=4.0, original_tokens=32)
    changes: dict[str, Any] = {"rope_theta": 5e5, "rope_scaling": scaling, "z_loss": 1e-4, "init": "normal"}
    require_agreement(FILES, SAME, MODEL.model_copy(update={**changes, "head_dim": 8}), held(), held())


@pytest.mark.parametrize(("tokenizer", "rows"), [("b", 64), ("a", 60)])
def test_another_vocabulary_is_refused_unless_it_is_resized(tokenizer: str, rows: int) -> None:
    with pytest.raises(RecipeError, match=r"tokenizer\.kind: initial.*vocabulary: mean"):
        require_agreement(FILES, SAME, MODEL, held(), held(tokenizer, rows))
    require_agreement(FILES, SAME.model_copy(update={"vocabulary": "mean"}), MODEL, held(), held(tokenizer, rows))


def test_the_template_of_an_export_makes_no_other_vocabulary() -> None:
    require_agreement(FILES, SAME, MODEL, held("c"), held())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "set one of `release`, `checkpoint`, `folder` and `dcp`; found none"),
        ({"release": "a@champion", "checkpoint": "b"}, "found release and checkpoint"),
        ({"folder": "llama"}, "`folder` needs `licence`"),
        ({"checkpoint": "b", "licence": "MIT"}, "`licence` is for `folder` and `dcp` only"),
        ({"folder": "a", "licence": "MIT", "optimizer": "kept"}, "needs a `release` or `checkpoint`"),
        ({"checkpoint": "b", "vocabulary": "mean", "optimizer": "kept"}, "and `vocabulary: same`"),
    ],
)
def test_one_source_with_its_licence(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        InitialWeights(**given)


def test_the_key_has_content_and_no_name() -> None:
    plain = Training(model=MODEL)
    begun = [plain.model_copy(update={"initial": InitialWeights(checkpoint=name)}) for name in ("run-a", "run-b:6")]
    folder = InitialWeights(folder="a", licence="MIT")
    keys = [run_key(one, "m", "t", "w1") for one in (*begun, plain.model_copy(update={"initial": folder}))]
    assert len(set(keys)) == 1
    resized = plain.model_copy(update={"initial": folder.model_copy(update={"vocabulary": "mean"})})
    others = {run_key(plain, "m", "t"), run_key(begun[0], "m", "t", "w2"), run_key(resized, "m", "t", "w1")}
    assert len(others | set(keys)) == 4


def test_a_run_that_begins_at_random_has_the_key_it_had() -> None:
    """Sessions of early 0.4: recipes that do not name weights continue their runs."""
    assert "initial" not in Training().model_dump(mode="json")
