"""Classifier and tagger: held-out quality, the same bytes from any number of workers, refusals."""

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.corpus import lists, models
from plinth.corpus.models import artefact, classifier, examples
from plinth.corpus.models.artefact import Curve
from plinth.corpus.models.classifier import ClassifierParams, doubtful
from plinth.corpus.slices import generate
from plinth.errors import IntegrityError, RecipeError, SourceError, StageError
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth_text import scoring

TERMS = generate.invented(0)
SMALL = {"bits": 14, "epochs": 6}


def texts(slices: tuple[str, ...], count: int, seed: int) -> list[str]:
    return [generate.good(random.Random(f"{seed} {at}"), slices[at % len(slices)]) for at in range(count)]


def buckets(tiny: Any, **texts_by_name: list[str]) -> dict[str, Manifest]:
    made = {}
    for name, some in texts_by_name.items():
        docs = [tiny.Doc(text, f"{name}/{at}") for at, text in enumerate(some)]
        made[name] = [docs[: len(docs) // 2], docs[len(docs) // 2 :]]
    return dict(tiny.corpus(made).documents)


@pytest.fixture
def two(tiny: Any) -> dict[str, Manifest]:
    return buckets(tiny, good=texts(("medical", "legal"), 200, 1), web=texts(("plain", "fiction"), 240, 2))


def train(ctx: Context, made: dict[str, Manifest], **raw: Any) -> Manifest:
    given = {"kind": "classifier", "reference": ["good"], "random": ["web"], **SMALL, **raw}
    return models.train(ctx, "quality", given, made, {})


def test_reference_against_random(tiny: Any, two: dict[str, Manifest]) -> None:
    made = train(tiny.ctx, two)
    assert made.stats["label_documents"] == {"random": 240, "reference": 200}
    assert sum(made.stats["splits"].values()) == made.stats["documents"] == 440
    assert made.stats["auc"] > 0.99
    assert made.stats["ece"] < 0.1
    assert dict(made.inputs) == {f"{name}/documents": one.digest for name, one in two.items()}
    model = artefact.read(
        {part.name: tiny.ctx.store.open_path(part.blob) for part in made.parts}, "models/quality", "classifier"
    )
    p, _ = model.probabilities(pa.array(texts(("legal",), 20, 9) + texts(("plain",), 20, 9), pa.large_string()))
    assert p[:20, 0].min() > p[20:, 0].max()


@pytest.mark.exhaustive
def test_the_same_model_from_any_number_of_workers(tiny: Any, two: dict[str, Manifest], tmp_path: Path) -> None:
    one = train(tiny.ctx, two)
    other = Context(Workspace(tmp_path / "other").ensure(), LocalEngine(2))
    for made in two.values():
        for part in made.parts:
            data = tiny.ctx.store.read_bytes(part.blob)
            assert other.store.put_bytes(data) == part.blob
    assert train(other, two).digest == one.digest


def test_the_sample_is_bounded_and_follows_the_seed(tiny: Any) -> None:
    documents = buckets(tiny, good=texts(("medical",), 300, 1), web=texts(("plain",), 300, 2))
    small = train(tiny.ctx, documents, documents=150)
    assert small.stats["label_documents"] == {"random": 150, "reference": 150}
    other = train(tiny.ctx, documents, documents=150, seed=2)
    assert [part.blob.md5 for part in other.parts] != [part.blob.md5 for part in small.parts]


def test_copies_never_stand_on_both_sides() -> None:
    column = pa.array(["one  text", "One text", *(f"text {at}" for at in range(2000))], pa.large_string())
    found = examples.splits(column)
    assert found[0] == found[1]
    shares = np.bincount(found, minlength=5) / len(column)
    np.testing.assert_allclose(shares, list(examples.SPLITS.values()), atol=0.03)


def test_a_class_without_documents_is_named(tiny: Any, two: dict[str, Manifest]) -> None:
    empty = buckets(tiny, good=[], web=texts(("plain",), 200, 2))
    with pytest.raises(StageError, match="too few examples") as caught:
        train(tiny.ctx, empty)
    assert "0 of reference" in str(caught.value)
    copies = two | buckets(tiny, good=["the same text again"] * 200)
    with pytest.raises(StageError, match="no examples of reference in"):
        train(tiny.ctx, copies)


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ({"reference": ["a"]}, "both"),
        ({"labelled": ["l"], "reference": ["a"]}, "either"),
        ({"reference": ["a"], "random": ["a"]}, "both `reference` and `random`"),
        ({"labelled": ["l"], "band": [0.8, 0.2]}, "ascending"),
        ({"labelled": ["l"], "bits": 99}, "bits"),
    ],
)
def test_parameters_that_make_no_sense(raw: dict[str, Any], what: str) -> None:
    with pytest.raises(RecipeError, match=what):
        models.parameters("quality", {"kind": "classifier", **raw})


def test_a_labelled_list_and_a_second_stage_that_knows_the_lexicon(shared_room: Any) -> None:
    rows = generate.toxicity(1, 150, TERMS, "train")
    given = {
        "toxic": shared_room.labelled("toxic", rows),
        "words": shared_room.listed("words.tsv", generate.lexicon_file(TERMS)),
    }
    raw = {"kind": "classifier", "labelled": ["toxic"], "lexicon": "words", "window": 64, "bits": 16}
    made = models.train(shared_room.ctx, "toxicity", raw, {}, given)
    assert made.stats["second_stage"] is True
    assert made.stats["final_auc"] >= made.stats["auc"] > 0.9
    assert made.stats["border_second_auc"] > made.stats["border_auc"]
    assert models.trainer("toxicity", raw).lists(models.parameters("toxicity", raw)) == ("toxic", "words")
    model = artefact.read(shared_room.files(made), "models/toxicity", "classifier")
    assert model.head.second is not None
    assert model.head.second.features[-5:] == lists.FEATURES


@pytest.mark.parametrize("line", ['{"text": "x"}', '{"text": 1, "label": "bad"}', "no json", "[]"])
def test_a_broken_line_of_a_labelled_list_is_named(room: Any, line: str) -> None:
    rows = room.listed("rows.jsonl", '{"text": "x", "label": "bad"}\n\n' + line + "\n")
    with pytest.raises(SourceError, match="line 3 is not a labeled example"):
        models.train(room.ctx, "m", {"kind": "classifier", "labelled": ["rows"]}, {}, {"rows": rows})


def test_doubt_is_the_band_and_hits_below_it() -> None:
    p = np.array([0.1, 0.3, 0.5, 0.7, 0.9])
    assert doubtful(p, (0.3, 0.7)).tolist() == [False, True, True, True, False]
    hits = np.array([True, False, False, False, True])
    assert doubtful(p, (0.3, 0.7), hits).tolist() == [True, True, True, True, False]


def test_margins_in_training_are_those_of_use() -> None:
    column = pa.array([*texts(("news", "code"), 6, 3), "", "one"], pa.large_string())
    starts, rows = scoring.rows(column, 12, 10**6)
    table = np.random.default_rng(0).normal(size=(1 << 12, 2)).astype(np.float32)
    bias = np.array([0.5, -1], np.float32)
    documents = examples.Ragged(starts, rows, np.zeros(8, np.int64))
    for window in (0, 7, 64):
        used = scoring.margins(column, table, bias, window)
        np.testing.assert_allclose(examples.margins(documents, table, bias, window), used, atol=1e-9)


def test_labels_of_buckets_and_of_uris(tiny: Any) -> None:
    documents = buckets(
        tiny,
        law=texts(("legal",), 150, 1),
        programs=texts(("code",), 150, 2),
        web=texts(("medical",), 150, 3) + texts(("plain",), 150, 4),
    )
    raw = {
        "kind": "tagger",
        "labels": {"law": ["law"], "code": ["programs"]},
        "rules": [{"uri": "test:web/[0-9]", "label": "medicine"}, {"uri": "test:web/1[0-4]?", "label": "medicine"},
                  {"uri": "test:web/[1-9][0-9]", "label": "medicine"}, {"uri": "test:*", "label": "life"}],
        "rule_buckets": ["web"],
        **SMALL,
    }  # fmt: skip
    made = models.train(tiny.ctx, "domain", raw, documents, {})
    assert made.stats["label_documents"] == {"code": 150, "law": 150, "life": 150, "medicine": 150}
    assert made.stats["accuracy"] > 0.95
    assert made.stats["worst_auc"] > 0.98
    assert set(made.stats["labels"]) == {"code", "law", "life", "medicine"}
    for bound, low, high in models.trainer("domain", raw).bounds(models.parameters("domain", raw)):
        assert (low or 0) <= made.stats[bound] <= (high or 1)


@dataclass
class Small:
    head: artefact.Head
    model: artefact.ClassifierModel


@pytest.fixture
def small() -> Small:
    head = artefact.Head(
        format=artefact.FORMAT, kind="classifier", labels=("bad",), bits=8, window=0, bias=(0.0,), curves=(Curve(),),
        band=(0.3, 0.7),
    )  # fmt: skip
    return Small(head, artefact.ClassifierModel(head, np.ones((256, 1), np.float32)))


def files(room: Any, model: artefact.ClassifierModel) -> dict[str, Path]:
    return {part.name: room.ctx.store.open_path(part.blob) for part in artefact.write(room.ctx.store, model)}


def test_a_model_survives_its_files(room: Any, small: Small) -> None:
    back = artefact.read(files(room, small.model), "models/m", "classifier")
    assert back.head == small.head
    assert (back.table == small.model.table).all()
    with pytest.raises(ValueError, match="no second stage"):
        back.second(np.zeros(1), np.zeros((1, 3), np.float32))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"format": "plinth-linear/0"}, "plinth-linear/0"),
        ({"kind": "tagger"}, "tagger"),
        ({"bits": 9}, "a table"),
        ({"bias": (0.0, 1.0)}, "2 biases"),
    ],
)
def test_a_model_of_another_version_or_kind_is_refused(
    room: Any, small: Small, change: dict[str, Any], what: str
) -> None:
    head = small.head.model_copy(update=change)
    with pytest.raises(IntegrityError, match=r"models/m cannot be used") as caught:
        artefact.read(files(room, replace(small.model, head=head)), "models/m", "classifier")
    assert what in str(caught.value)
    assert "train the model again" in str(caught.value)


def test_damaged_files_of_a_model(room: Any, small: Small, tmp_path: Path) -> None:
    good = files(room, small.model)
    for name, data in (
        ("table.npy", good["table.npy"].read_bytes()[:-4]),
        ("table.npy", b""),
        ("model.json", b"{"),
        ("model.json", json.dumps([1]).encode()),
    ):
        bad = tmp_path / "bad"
        bad.write_bytes(data)
        with pytest.raises(IntegrityError, match="cannot be used"):
            artefact.read({**good, name: bad}, "models/m", "classifier")
    with pytest.raises(IntegrityError, match="cannot be used"):
        artefact.read({"model.json": good["model.json"]}, "models/m", "classifier")
    pickled = tmp_path / "pickled.npy"
    np.save(pickled, np.array([object()]), allow_pickle=True)
    with pytest.raises(IntegrityError, match="cannot be used"):
        artefact.read({**good, "table.npy": pickled}, "models/m", "classifier")


def test_every_parameter_says_what_it_is() -> None:
    for model in (ClassifierParams, classifier.TaggerParams):
        assert all(one.description for one in model.model_fields.values())
    assert ClassifierParams.model_validate({"labelled": ["a"]}).drawing.documents == 20_000
