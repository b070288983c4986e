"""A student of a language model: labels of a sample, a classifier, scores of all documents."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.corpus import annotate, models
from plinth.corpus.annotate.llm import LlmParams
from plinth.corpus.llm.parameters import Endpoint
from plinth.corpus.models.student import StudentParams, agreement
from plinth.corpus.slices.rates import wilson
from plinth.errors import RecipeError, StageError
from plinth.storage.parts import read_table
from tests.llm_server import MODEL, llm_server
from tests.plinth.corpus.llm.prompts import prompt_list
from tests.tiny_corpus import NOUNS, VERBS

DULL = ["coupon", "discount", "checkout", "voucher", "bargain"]
STUDENT = {"kind": "student", "buckets": ["web"], "positive": "llm.score >= 3"}


def texts(count: int) -> list[str]:
    """Prose, and as much advertising."""
    rng = random.Random(4)
    words = [NOUNS + VERBS, NOUNS + VERBS + 6 * DULL]
    return [" ".join(rng.choices(words[n % 2], k=40)) for n in range(count)]


def answer(prompt: str) -> str:
    dull = sum(prompt.count(word) for word in DULL)
    return json.dumps({"score": 1 if dull > 5 else 4}) if not prompt.startswith("Rate river") else "no idea"


@pytest.fixture(scope="module")
def labeled(shared_tiny: Any) -> Any:
    """A bucket of 1,600 documents, of which a model has labeled half."""
    many = [shared_tiny.Doc(text) for text in texts(1600)]
    corpus = shared_tiny.corpus({"web": [many[:900], many[900:]]})
    raw = {"endpoint": "local", "model": MODEL, "prompt": "rate", "columns": {"score": {"type": "integer"}}}
    with llm_server(answer) as llm:
        endpoints = {"local": Endpoint(url=llm.url, concurrency=32)}
        corpus.labels = annotate.run(Context(corpus.ctx.workspace), "web", "llm", raw | {"sample": 0.5},
                                     corpus.documents["web"], {"lists/rate": prompt_list(corpus.ctx)},
                                     endpoints=endpoints)  # fmt: skip
        corpus.asked = len(llm.prompts)
    return corpus


def test_a_student_scores_what_the_model_never_read(labeled: Any) -> None:
    ctx, documents = labeled.ctx, {"web": labeled.documents["web"], "web/llm": labeled.labels}
    made = models.train(ctx, "student", STUDENT, documents, {})
    assert 700 < labeled.asked < 900
    assert made.stats["documents"] == labeled.labels.stats["columns"]["score"]["values"]
    assert set(made.inputs) == {"web/documents", "web/llm"}
    scored = annotate.run(ctx, "web", "student", {}, labeled.documents["web"], {"models/student": made})
    pairs = zip(labeled.documents["web"].parts, scored.parts, strict=True)
    rows = [(text, score) for part, side in pairs
            for text, score in zip(read_table(ctx.store, part).column("text").to_pylist(),
                                   read_table(ctx.store, side).column("score").to_pylist(), strict=True)]  # fmt: skip
    right = sum((score >= 0.5) == (json.loads(answer(text))["score"] >= 3) for text, score in rows
                if not text.startswith("river"))  # fmt: skip
    assert len(rows) == 1600
    assert right / len(rows) > 0.9
    facts = made.stats
    assert facts["agreement_low"] < facts["agreement"] <= facts["agreement_high"]
    assert wilson(round(facts["agreement"] * facts["test_documents"]), facts["test_documents"]) == pytest.approx(
        (facts["agreement_low"], facts["agreement_high"]), abs=1e-6
    )
    assert facts["test_documents"] == facts["splits"]["test"]


def test_the_model_is_the_same_again(labeled: Any) -> None:
    documents = {"web": labeled.documents["web"], "web/llm": labeled.labels}
    assert models.train(labeled.ctx, "student", STUDENT, documents, {}) == models.train(
        Context(labeled.ctx.workspace), "student", STUDENT, documents, {}
    )


def test_faults_of_the_rule_and_of_the_labels_are_named(labeled: Any) -> None:
    documents = {"web": labeled.documents["web"], "web/llm": labeled.labels}
    with pytest.raises(RecipeError, match=r"models\.student\.positive"):
        models.train(labeled.ctx, "student", STUDENT | {"positive": "llm.grade >= 3"}, documents, {})
    with pytest.raises(StageError, match="too few examples"):
        models.train(labeled.ctx, "student", STUDENT | {"positive": "llm.score >= 5"}, documents, {})
    for rule in ("3 > 2", "llm.score > 1 and url.blocked"):
        with pytest.raises(ValidationError, match="exactly one annotator"):
            StudentParams(buckets=("web",), positive=rule)


def test_agreement_of_known_judges() -> None:
    judged, labels = np.array([1, 1, 0, 0, 1], bool), np.array([1, 0, 0, 0, 1])
    found = agreement(judged, labels)
    assert found["agreement"] == 0.8
    assert found["kappa"] == pytest.approx((0.8 - 0.48) / 0.52, abs=1e-6)
    assert found["majority"] == 0.6
    assert agreement(np.zeros(3, bool), np.zeros(3, np.int64))["kappa"] == 0.0


def test_the_columns_of_the_sidecar_are_those_of_its_parameters(labeled: Any) -> None:
    params = LlmParams.model_validate(labeled.labels.params["params"])
    assert list(params.columns) == ["score"]
    table = read_table(labeled.ctx.store, labeled.labels.parts[0])
    assert pa.types.is_int64(table.schema.field("score").type)
