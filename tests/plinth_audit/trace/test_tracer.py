"""A text to documents, steps and checkpoints, in a workspace with a run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.errors import MissingError
from plinth.provenance import document_rows
from plinth.tokens.order.batch import documents_of_step
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer import encode
from plinth.training import config
from plinth.training.telemetry.timeline import Timeline
from plinth_audit.extraction import job
from plinth_audit.takedown import exposed_runs
from plinth_audit.trace import trace_index, tracer
from plinth_audit.trace.tracer import Tracer
from plinth_registry.exports import noted, record

Line = Any  # of conftest.py


@pytest.fixture
def traced(line: Line) -> Line:
    for bucket in ("prose", "code"):
        made = trace_index.run(line.ctx, bucket, line.made[f"{bucket}/shards"], line.made[f"{bucket}/curated"])
        line.keep(made)
    return line


ALICE = "alice was beginning to get very tired of sitting by her sister on the bank, " * 3


def test_a_span_names_its_document_shard_steps_and_checkpoints(traced: Line) -> None:
    found = Tracer(traced.ctx).text(f'"{ALICE}"')
    (span,) = found["spans"]
    assert span["documents"] == len(span["found"]) == 1
    assert ALICE.strip()[-60:] in span["text"]
    (one,) = span["found"]
    assert one["id"] == traced.id("prose", 0)
    assert one["uri"] == "https://example.org/prose/page-0.html"
    assert one["licence"] == "CC-BY-4.0"
    assert found["covered"] >= span["tokens"] >= 32
    assert sum(piece["tokens"] for piece in one["shards"]) == span["tokens"]
    (run,) = one["training"]
    (by_document,) = document_rows.runs(traced.ctx, "prose", one["id"])
    assert run["checkpoints"] == by_document["checkpoints"]
    assert set(run["steps"]) <= set(by_document["steps"])
    assert run["by"] == "tokens"


def test_exports_of_later_checkpoints_are_named(traced: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    def exports() -> list[str]:
        (span,) = Tracer(traced.ctx).text(f'"{ALICE}"')["spans"]
        (run,) = span["found"][0]["training"]
        assert run["checkpoints"]
        return list(run["exports"])

    assert exports() == []
    before, after = (f"{traced.run.run_id}:{step}" for step in (0, traced.run.total_steps - 2))
    for name, to in ((before, "/srv/before"), (after, "/srv/after"), ("other:8", "/srv/other")):
        record(traced.ctx, name=name, status="UNRELEASED", subject="7" * 64, to=to)
    assert exports() == ["/srv/after"]

    reads = list[str]()
    monkeypatch.setattr(tracer, "noted", lambda ctx: reads.append("exports") or noted(ctx))
    real = exposed_runs.published_checkpoints
    monkeypatch.setattr(exposed_runs, "published_checkpoints", lambda ctx: reads.append("manifests") or real(ctx))
    searching = Tracer(traced.ctx)
    for _ in range(3):
        assert searching.text(f'"{ALICE}"')["spans"]
    assert sorted(reads) == ["exports", "manifests"]  # not once per document


def test_steps_are_those_whose_batch_holds_the_tokens(traced: Line) -> None:
    """Against the listing of every step: its sequences, and the tokens of the document that lie in them."""
    ctx, run = traced.ctx, traced.run
    found = Tracer(ctx).text(ALICE[:190])
    (one,) = found["spans"][0]["found"]
    first, stop = one["start"], one["start"] + found["spans"][0]["tokens"]
    mixture = ctx.refs.load(run.mixture)
    expected = []
    for step in range(run.total_steps - 2):
        for row in documents_of_step(ctx, mixture, None, step, run.steps):
            held = range(row.sequence.start, row.sequence.start + row.sequence.tokens)
            if row.sequence.stream == "prose" and max(first, held.start) < min(stop, held.stop):
                expected.append(step + 1)
    assert one["training"][0]["steps"] == sorted(set(expected))
    assert one["training"][0]["times_seen"] == len(expected) > 0


def test_steps_that_a_rollback_left_out_are_not_among_them(traced: Line) -> None:
    tracer = Tracer(traced.ctx)
    steps = tracer.text(ALICE)["spans"][0]["found"][0]["training"][0]["steps"]
    Timeline(traced.run.directory.events).append("skipped", step=steps[0], rule="spike", window=[steps[0], steps[0]])
    assert Tracer(traced.ctx).text(ALICE)["spans"][0]["found"][0]["training"][0]["steps"] == steps[1:]
    assert steps[0] not in document_rows.runs(traced.ctx, "prose", traced.id("prose", 0))[0]["steps"]


def test_a_run_over_older_shards_is_asked_by_document(traced: Line) -> None:
    """The shards are made again with another document before: the run's order is that of its own shards."""
    ctx = traced.ctx
    before = Tracer(ctx).text(ALICE)["spans"][0]["found"][0]
    curated = traced.made["prose/curated"]
    doubled = {**curated.model_dump(), "parts": [_second(ctx, curated), curated.parts[0]]}
    grown = traced.keep(type(curated)(**doubled))
    cut = traced.keep(shards.run(ctx, "prose", Shards(), traced.made["tokenizer"], grown))
    traced.keep(trace_index.run(ctx, "prose", cut, grown))
    after = Tracer(ctx).text(ALICE)["spans"][0]["found"][0]
    assert after["start"] > before["start"]
    assert [run.pop("by") for run in (before["training"][0], after["training"][0])] == ["tokens", "document"]
    assert after["training"] == before["training"]
    config.write(traced.run.model_copy(update={"mixture": "0" * 64}))
    (unknown,) = Tracer(ctx).text(ALICE)["spans"][0]["found"][0]["training"]
    assert "not in this workspace" in unknown["unknown"]


def _second(ctx: Any, curated: Any) -> Any:
    """A part of one more document, to come before the others."""
    from plinth.storage.parts import read_table, write_table

    table = read_table(ctx.store, curated.named("part-")[0]).slice(0, 1)
    row = {**table.to_pylist()[0], "id": b"n" * 16, "text": "nothing that anybody quotes", "uri": "https://new.example"}
    return write_table(ctx.store, "part-new.parquet", pa.Table.from_pylist([row], schema=table.schema))


def test_completions_of_the_latest_checkpoint_are_traced(traced: Line) -> None:
    ctx = traced.ctx
    with pytest.raises(MissingError, match="no completions of a checkpoint are published"):
        tracer.latest(ctx)
    trained = encode.load(ctx.store, traced.made["tokenizer"].named("tokenizer.json")[0].blob)
    ids = trained.encode(ALICE, add_special_tokens=False).ids
    unknown = trained.encode("zyx wvu " * 20, add_special_tokens=False).ids[:50]

    def row(outcome: str, id_: str, prefix: list[int], completion: list[int]) -> dict[str, Any]:
        facts = {"slice": "all", "id": id_, "bucket": "prose", "heldout": False, "offset": 0, "seen": 1, "edits": 0}
        said = {"prefix": prefix, "suffix": completion, "completion": completion, "completion_text": "…"}
        return facts | said | {"outcome": outcome}

    rows = [row("other", "0" * 32, ids[:20], unknown), row("exact", "1" * 32, ids[:20], ids[20:60])]
    rows += [row("other", "2" * 32, unknown, ids[5:45]), {**rows[1], "slice": "late"}]
    table = pa.Table.from_pylist(rows, schema=job.SCHEMA)
    traced.put(job.ASSET, {job.TABLE: table}, ["checkpoint"])
    said = tracer.latest(ctx)
    assert (said["run"], said["step"]) == (traced.run.run_id, traced.run.total_steps - 2)
    assert said["completions"] == 3
    assert [one["outcome"] for one in said["found"]] == ["exact", "other"]
    spans = [one["trace"]["spans"][0] for one in said["found"]]
    assert [span["tokens"] for span in spans] == [60, 40]  # of what matches, the prefix is part of the span
    assert all(span["found"][0]["id"] == traced.id("prose", 0) for span in spans)
    assert spans[0]["found"][0]["training"]


def test_no_index_and_no_match_are_said(line: Line) -> None:
    with pytest.raises(MissingError, match="no trace index is published"):
        Tracer(line.ctx)
    for bucket in ("prose", "code"):
        line.keep(trace_index.run(line.ctx, bucket, line.made[f"{bucket}/shards"], line.made[f"{bucket}/curated"]))
    tracer = Tracer(line.ctx)
    assert tracer.text("")["spans"] == []
    assert tracer.text("nobody wrote this sentence, " * 9)["covered"] == 0
    assert json.dumps(tracer.tokens(np.arange(50)))
