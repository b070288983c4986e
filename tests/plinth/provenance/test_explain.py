"""One document's story, whatever became of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.provenance import explain
from plinth.storage.workspace import Workspace
from plinth.tokens.order.batch import documents_of_step


def test_a_document_that_trained(line: Any) -> None:
    story = explain.explain_document(line.ctx, line.id("prose", 2))
    json.dumps(story)
    assert (story["bucket"], story["status"], story["reason"]) == ("prose", "train", None)
    assert story["uri"] == "https://example.org/prose/page-2.html"
    facts = story["document"]
    assert (facts["licence"], facts["snapshot"], facts["extra"]) == ("CC-BY-4.0", "2026-46", {"n": 1})
    assert facts["captured_at"] == "2026-11-01T00:00:00+00:00"
    assert facts["preview"].startswith("write to a@b.example")
    assert (facts["part"], facts["row"]) == ("part-00000.parquet", 2)
    assert story["scores"] == {"language": {"label": "en", "score": 0.98}}
    assert story["verdict"]["edits"] == story["policy"]["edits"]
    assert story["policy"]["edits"][0]["replacement"] == "<email>"
    assert story["dedup"]["near"]["members"] == []
    assert story["holdout"] == {"held_out": False}
    assert story["curated"]["part"] == "part-00000.parquet"
    assert story["curated"]["row"] == 1
    assert story["curated"]["characters"] == facts["characters"] - 11 + 7
    (span,) = story["tokens"]
    assert sum(piece["tokens"] for piece in span["shards"]) == span["tokens"]
    assert "stale" not in story
    assert "contamination" not in story


def test_steps_are_those_whose_batches_hold_the_document(line: Any) -> None:
    """The other direction, batch by batch, must say the same."""
    shards = {bucket: line.made[f"{bucket}/shards"] for bucket in ("prose", "code")}
    config = line.run
    for bucket, row in (("prose", 0), ("prose", 2), ("code", 0)):
        id_ = line.id(bucket, row)
        expected = [
            step
            for step in range(1, config.total_steps - 1)
            if any(
                piece.document.id == id_
                for each in documents_of_step(
                    line.ctx, line.made["mixture"], shards, step - 1, config.global_batch_sequences
                )
                for piece in each.documents
            )
        ]
        (run,) = explain.explain_document(line.ctx, id_)["training"]
        assert run["steps"] == expected
        assert run["run"] == config.run_id
        assert run["checkpoints"] == [config.total_steps - 2]
        assert run["times_seen"] >= len(expected) > 0


def test_a_near_duplicate_names_its_cluster(line: Any) -> None:
    story = explain.explain_document(line.ctx, "https://example.org/prose/page-1.html")
    assert (story["status"], story["reason"]) == ("drop", "near_duplicate")
    near = story["dedup"]["near"]
    assert near["cluster"] == line.id("prose", 0)
    assert [(each["id"], each["survivor"]) for each in near["members"]] == [
        (line.id("prose", 0), True),
        (line.id("prose", 1), False),
    ]
    assert not {"curated", "tokens"} & set(story)
    assert story["training"] == []


def test_a_document_dropped_by_the_policy(line: Any) -> None:
    story = explain.explain_document(line.ctx, line.id("prose", 3))
    assert (story["status"], story["reason"]) == ("drop", "too_short")
    assert story["policy"]["fired"] == ["too_short"]
    assert story["dedup"]["near"]["cluster"] is None
    assert "members" not in story["dedup"]["near"]


def test_a_held_out_document_is_curated_and_never_trained_on(line: Any) -> None:
    story = explain.explain_document(line.ctx, line.id("code", 1))
    assert (story["status"], story["holdout"]) == ("heldout", {"held_out": True})
    assert story["curated"]["part"] == "heldout-00000.parquet"
    assert "tokens" not in story
    assert story["training"] == []


def test_a_reject_is_found_by_its_uri(line: Any) -> None:
    story = explain.explain_document(line.ctx, "https://example.org/broken")
    assert (story["bucket"], story["status"], story["reason"]) == ("prose", "reject", "timeout")
    assert story["reject"]["where"] == "record 7"


def test_an_unknown_uri_names_the_nearest(line: Any) -> None:
    with pytest.raises(MissingError, match=r"closest: https://example\.org/prose/page-2\.html"):
        explain.explain_document(line.ctx, "http://example.org/prose/page-2.htm")
    with pytest.raises(MissingError, match="no document"):
        explain.explain_document(line.ctx, "0" * 32)
    with pytest.raises(MissingError, match="nothing similar"):
        explain.explain_document(line.ctx, "£" * 90)


def test_an_empty_workspace_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no documents in this workspace"):
        explain.explain_document(Context(Workspace(tmp_path / "w").ensure()), "x")


def test_sidecars_of_other_documents_are_stale_and_not_believed(line: Any) -> None:
    before = line.made["prose/documents"]
    line.publish("prose/documents", before.parts, {"prose/sources": "6" * 64})
    story = explain.explain_document(line.ctx, line.id("prose", 0))
    assert story["scores"] == {}
    assert story["status"] == "undecided"
    assert {"prose/language", "prose/policy", "prose/verdicts", "dedup/exact", "holdout"} <= set(story["stale"])


def test_before_anything_but_documents_is_made(line: Any) -> None:
    for ref in list(line.ctx.refs.all()):
        if not ref.asset.endswith("/documents"):
            (line.ctx.workspace.refs / f"{ref.asset}.json").unlink()
    story = explain.explain_document(line.ctx, line.id("prose", 0))
    assert (story["status"], story["scores"], story["dedup"]) == ("undecided", {}, {})
    assert story["training"][0]["steps"]  # the run names its own data
