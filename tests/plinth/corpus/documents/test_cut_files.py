"""A file cut into pieces that holds the same record several times: one survivor, and a story for each."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from plinth.corpus.documents import documents
from plinth.corpus.sources.inventory import inventory
from plinth.corpus.sources.parameters import Bucket, Documents, Source, Terms
from plinth.provenance import explain
from plinth.records import Manifest
from plinth.storage.parts import read_table

LEFT = ("train", "heldout")


def text(name: str) -> str:
    """Words that nothing else shares."""
    return " ".join(hashlib.sha256(f"{name} {n}".encode()).hexdigest()[:9] for n in range(60))


#: Identifier and text by line. `same` is one record three times; `renewed` is one identifier with two texts;
#: `first` and `second` are one text under two identifiers.
SAME, OLD, NEW, SHARED = text("same"), text("old"), text("new"), text("shared")
LINES = (
    [("same", SAME), ("renewed", OLD), ("first", SHARED)]
    + [(f"filler-{n}", text(f"filler {n}")) for n in range(12)]
    + [("same", SAME), ("renewed", NEW), ("second", SHARED)]
    + [(f"filler-{n}", text(f"filler {n}")) for n in range(12, 24)]
    + [("same", SAME)]
)


@pytest.fixture
def made(tiny: Any, tmp_path: Path) -> Any:
    """The line from the cut file to curated text, published."""
    lines = [json.dumps({"id": key, "text": value}) for key, value in LINES]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    facts = {"kind": "jsonl", "path": "a.jsonl", "licence": "MIT", "domain": "example.org", "snapshot": "2026-46"}
    terms = Terms(train=True, redistribute=True, commercial=True)
    bucket = Bucket(description="", owner="o", sources=(Source.model_validate({**facts, "terms": terms}),))
    params = Documents(part_bytes=6000, max_reject_rate=0.5)
    found = documents.run(tiny.ctx, "b", bucket, params, inventory(bucket, tmp_path, piece_bytes=5000))
    corpus = tiny.corpus({})
    corpus.documents = {"b": found}
    kept = [[tiny.Doc("")] * part.rows for part in found.named("part-")]
    corpus.policies = {"b": corpus._manifest("b/policy", kept, corpus._policy)}
    corpus.through_curated()
    for manifest in (found, corpus.policies["b"], corpus.exact, corpus.near, corpus.verdicts["b"], corpus.curated["b"]):
        tiny.ctx.refs.publish(manifest, key="test")
    return corpus


def rows(corpus: Any, manifest: Manifest, stem: str = "part-") -> list[dict[str, Any]]:
    return [row for part in manifest.named(stem) for row in read_table(corpus.ctx.store, part).to_pylist()]


def survivors(corpus: Any) -> list[str]:
    """Texts that train or are held out, which one document of any bucket always is."""
    both = zip(rows(corpus, corpus.documents["b"]), rows(corpus, corpus.verdicts["b"]), strict=True)
    return sorted(document["text"] for document, verdict in both if verdict["decision"] != "drop")


def test_the_file_is_cut_and_its_repeats_lie_in_different_pieces(made: Any) -> None:
    parts = made.documents["b"].named("part-")
    assert len(parts) > 2
    holding = [name for part in parts for name in read_table(made.ctx.store, part, ["uri"]).column(0).to_pylist()]
    assert holding.count("a.jsonl#renewed") == 2


def test_one_document_remains_of_a_record_that_is_in_several_pieces(made: Any) -> None:
    found = rows(made, made.documents["b"])
    assert len({row["id"] for row in found}) == len(found) == len(LINES) - 2
    assert [row["uri"] for row in found if row["text"] == SAME] == ["a.jsonl#same"]
    rejects = rows(made, made.documents["b"], "rejects-")
    assert [(row["uri"], row["reason"]) for row in rejects] == [("a.jsonl#same", "seen_before")] * 2
    assert made.documents["b"].stats["documents"] + made.documents["b"].stats["rejects"]["seen_before"] == len(LINES)


def test_the_line_ends_with_one_survivor_of_each_text(made: Any) -> None:
    assert survivors(made) == sorted({value for _, value in LINES})
    decided = rows(made, made.verdicts["b"])
    assert [row["reason"] for row in decided if row["reason"]] == ["exact_duplicate"]
    trained = [row["text"] for row in rows(made, made.curated["b"])]
    assert len(trained) == len(set(trained)) == made.curated["b"].stats["documents"]
    assert set(trained) <= set(survivors(made))


def test_explain_tells_every_document_of_a_name(made: Any) -> None:
    story = explain.explain_document(made.ctx, "a.jsonl#renewed")
    assert story["document"]["preview"] == OLD[: explain.PREVIEW_CHARACTERS]
    assert len(story["also"]) == 1
    assert story["status"] in LEFT
    same = explain.explain_document(made.ctx, "a.jsonl#same")
    assert same["status"] in LEFT
    assert len(same["also"]) == 2  # the rejects
    statuses = [explain.explain_document(made.ctx, f"a.jsonl#{name}")["status"] for name in ("first", "second")]
    assert statuses.count("drop") == 1


def test_equal_ids_in_two_parts_are_one_cluster_with_one_survivor(tiny: Any) -> None:
    """The documents stage leaves none; what else writes documents may: nothing is lost and nothing doubled."""
    twice, once = tiny.Doc(text("twice"), name="twice"), tiny.Doc(text("once"), name="once")
    corpus = tiny.corpus({"b": [[twice, once], [twice], [once, twice]]})
    corpus.through_curated()
    assert survivors(corpus) == sorted([twice.text, once.text])
    decisions = [row["decision"] for row in rows(corpus, corpus.verdicts["b"])]
    assert decisions.count("drop") == 3
    assert corpus.curated["b"].stats["documents"] == decisions.count("train") == 1
