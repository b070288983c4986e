"""Annotators that rest on models and lists: columns, layers, tiers, spans, refusals."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.corpus import annotate, lists, models
from plinth.corpus.annotate import learned
from plinth.corpus.slices import generate
from plinth.errors import IntegrityError, MissingError, RecipeError, SourceError
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace

TERMS = generate.invented(0)
STRONG = next(term for term in TERMS if term.weight >= 0.5)
WEAK = next(term for term in TERMS if term.weight < 0.5)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Context, dict[str, Manifest]]:
    """A workspace with a lexicon, and models trained on generated sets."""
    ctx = Context(Workspace(tmp_path_factory.mktemp("learned")).ensure())
    sets = {
        "toxic_set": generate.toxicity(1, 150, TERMS, "train"),
        "quality_set": generate.quality(1, 120, (), "train"),
    }
    made: dict[str, Manifest] = {}
    for name, rows in sets.items():
        said = ({"text": row.text, "label": "bad" if row.bad else "good"} for row in rows)
        (ctx.workspace.input / name).write_text("".join(json.dumps(one) + "\n" for one in said))
        made[f"lists/{name}"] = lists.run(ctx, name, name)
    (ctx.workspace.input / "lexicon.tsv").write_text(generate.lexicon_file(TERMS))
    made["lists/toxic"] = lists.run(ctx, "toxic", "lexicon.tsv")
    given = {key.removeprefix("lists/"): one for key, one in made.items()}
    raws: dict[str, dict[str, Any]] = {
        "toxicity": {"labelled": ["toxic_set"], "lexicon": "toxic", "window": 64},
        "quality": {"labelled": ["quality_set"], "positive": "good"},
    }
    for name, raw in raws.items():
        made[f"models/{name}"] = models.train(ctx, name, {"kind": "classifier", "bits": 16, **raw}, {}, given)
    return ctx, made


def files(ctx: Context, made: dict[str, Manifest]) -> dict[str, dict[str, Path]]:
    return {key: {part.name: ctx.store.open_path(part.blob) for part in one.parts} for key, one in made.items()}


def rows(chosen: Any, prepared: Any, *texts: str) -> list[dict[str, Any]]:
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    made = chosen.annotate(batch, prepared)
    assert made.schema == chosen.schema
    return list(made.to_pylist())


def test_quality_in_two_stages(trained: Any) -> None:
    ctx, made = trained
    prepared = learned.prepare_quality_classifier(
        learned.QualityClassifierParams(medium=0.4, high=0.6), files(ctx, made)
    )
    good = [generate.good(random.Random(at), name) for at, name in enumerate(generate.SLICES * 3)]
    bad = [row.text for row in generate.quality(9, 4) if row.bad]
    found = rows(learned.QUALITY_CLASSIFIER, prepared, *good, *bad, "")
    low, high = prepared[1].head.band
    assert any(row["second_score"] is not None for row in found)
    for row in found:
        assert (row["second_score"] is not None) == (low <= row["score"] <= high)
        assert row["final"] == (row["score"] if row["second_score"] is None else row["second_score"])
        tier = "low" if row["final"] < 0.4 else "medium" if row["final"] < 0.6 else "high"
        assert row["tier"] == tier
    finals = np.array([row["final"] for row in found])
    assert finals[: len(good)].mean() > finals[len(good) : -1].mean() + 0.5


def test_quality_of_a_text_does_not_depend_on_its_neighbours(trained: Any) -> None:
    ctx, made = trained
    prepared = learned.prepare_quality_classifier(learned.QualityClassifierParams(), files(ctx, made))
    texts = [row.text for row in generate.quality(5, 3)]
    together = rows(learned.QUALITY_CLASSIFIER, prepared, *texts)
    assert together == [rows(learned.QUALITY_CLASSIFIER, prepared, text)[0] for text in texts]


def test_layers_of_toxicity(trained: Any) -> None:
    ctx, made = trained
    layers = learned.prepare_toxicity(learned.ToxicityParams(), files(ctx, made))
    clean = generate.good(random.Random(3), "medical")
    hit = f"You are a filthy {STRONG.text.upper()} and everybody knows it."
    reported, hurt = f"{clean} Historians describe how {WEAK.text} became an insult.", f"{clean} {hit}"
    first, second, third, empty = rows(learned.TOXICITY, layers, clean, reported, hurt, "")
    assert (first["lexicon_hits"], first["category"], first["spans"], first["label"]) == (0, None, [], "clean")
    assert (second["lexicon_hits"], second["category"], second["label"]) == (1, WEAK.category, "clean")
    assert (third["category"], third["label"]) == (STRONG.category, "toxic")
    (span,) = third["spans"]
    assert hurt[span["start_cp"] : span["end_cp"]] == STRONG.text.upper()
    assert span["reason"] == STRONG.category
    words = len(hurt.replace("-", " ").split())
    assert third["lexicon_density"] == pytest.approx(100 * STRONG.weight / words, rel=0.05)
    assert second["second_score"] is not None  # the first stage was at ease, but a term was found
    assert empty["lexicon_hits"] == 0
    assert 0 <= empty["final"] <= 1


def test_a_lexicon_alone(trained: Any) -> None:
    ctx, made = trained
    layers = learned.prepare_toxicity(learned.ToxicityParams(model=None, saturation=20.0), files(ctx, made))
    spelt = ".".join(STRONG.text)
    clean, hit = rows(learned.TOXICITY, layers, "nothing to see here", f"é you {spelt} are there")
    assert (clean["score"], clean["second_score"], clean["final"]) == (None, None, 0.0)
    assert hit["final"] == pytest.approx(min(1.0, hit["lexicon_density"] / 20))
    assert hit["spans"][0]["start_cp"] == 6
    assert hit["spans"][0]["end_cp"] == 6 + len(spelt)
    open_only = learned.prepare_toxicity(learned.ToxicityParams(model=None, disguised=False), files(ctx, made))
    assert rows(learned.TOXICITY, open_only, spelt)[0]["lexicon_hits"] == 0


def test_a_model_that_learnt_with_another_lexicon_is_refused(trained: Any) -> None:
    ctx, made = trained
    with pytest.raises(RecipeError, match="another lexicon"):
        learned.prepare_toxicity(learned.ToxicityParams(lexicon=None), files(ctx, made))
    with pytest.raises(IntegrityError, match=r"models/quality cannot be used"):
        learned.prepare_domain(learned.DomainParams(model="quality"), files(ctx, made))


def test_a_poisoned_lexicon_stops_the_stage_with_its_line(trained: Any, tiny: Any) -> None:
    (tiny.ctx.workspace.input / "bad.tsv").write_text("zill\t1\tinsult\nthe\t1\tinsult\n")
    poisoned = lists.run(tiny.ctx, "toxic", "bad.tsv")
    documents = tiny.corpus({"web": [[tiny.Doc("one text")]]}).documents["web"]
    with pytest.raises(SourceError, match=r"lists/toxic, .* line 2 is invalid"):
        annotate.run(tiny.ctx, "web", "toxicity", {"model": None}, documents, {"lists/toxic": poisoned})
    with pytest.raises(MissingError, match="lists/toxic"):
        annotate.run(tiny.ctx, "web", "toxicity", {"model": None}, documents, {})


def test_domains_and_what_is_none(tiny: Any) -> None:
    texts = {
        name: [generate.good(random.Random(f"{name} {at}"), name) for at in range(150)]
        for name in ("code", "legal", "plain")
    }
    documents = tiny.corpus({name: [[tiny.Doc(text) for text in some]] for name, some in texts.items()}).documents
    raw = {"kind": "tagger", "labels": {name: [name] for name in texts}, "bits": 14}
    made = {"models/domain": models.train(tiny.ctx, "domain", raw, documents, {})}
    sure = learned.prepare_domain(learned.DomainParams(), files(tiny.ctx, made))
    new = [generate.good(random.Random(f"new {name}"), name) for name in texts]
    found = rows(learned.DOMAIN, sure, *new)
    assert [row["label"] for row in found] == list(texts)
    assert min(row["score"] for row in found) > 0.5
    strict = learned.prepare_domain(learned.DomainParams(least=1.0), files(tiny.ctx, made))
    assert {row["label"] for row in rows(learned.DOMAIN, strict, "zzz qqq")} == {"other"}
    assert learned.annotate_domain(pa.record_batch({"text": pa.array([], pa.large_string())}), sure).num_rows == 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_same_sidecars_from_any_number_of_workers(trained: Any, tiny: Any) -> None:
    ctx, made = trained
    parts = [[tiny.Doc(row.text) for row in generate.toxicity(seed, 2, TERMS)] for seed in (11, 12, 13)]
    documents = tiny.corpus({"web": parts}).documents["web"]
    for key in ("lists/toxic", "models/toxicity"):
        for part in made[key].parts:
            tiny.ctx.store.put_bytes(ctx.store.read_bytes(part.blob))
    read = {key: made[key] for key in ("lists/toxic", "models/toxicity")}
    one = annotate.run(tiny.ctx, "web", "toxicity", {}, documents, read)
    other = Context(tiny.ctx.workspace, LocalEngine(2))
    for path in tiny.ctx.workspace.records.rglob("*.json"):
        path.unlink()
    two = annotate.run(other, "web", "toxicity", {}, documents, read)
    assert two.digest == one.digest
    assert one.inputs["models/toxicity"] == made["models/toxicity"].digest
    assert read_table(tiny.ctx.store, one.parts[0]).num_rows == len(parts[0])
