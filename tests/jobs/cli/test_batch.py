"""`plinth run batch` lists the documents of a step, and they agree with the tokens that the trainer would load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.errors import RecipeError
from plinth.fingerprint import digest
from plinth.model.parameters import Model
from plinth.records import Manifest
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.batch import steps_of_document
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.shards.reader import ShardReader
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.training import config, preparation
from plinth.training.data import open_batches
from plinth.training.parameters.guard import GuardParameters
from plinth.training.parameters.run import Training
from plinth_extras import privacy
from plinth_extras.privacy import Privacy

Plinth = Callable[..., Any]
SEQUENCE = 8


def curated(ctx: Context, bucket: str, parts: int, documents: int) -> Manifest:
    """Documents with different words, in several parts."""
    written = []
    for part in range(parts):
        rows = [
            {
                "id": bytes.fromhex(digest([bucket, part, row]))[:16],
                "text": " ".join(f"{bucket}{part}{row}" for _ in range(5 + row % 7)),
                "uri": f"{bucket}://{part}/{row}",
                "snapshot": "s",
                "licence": "MIT",
                "mime": "text/plain",
                "source_bytes": 1,
                "extra": "{}",
            }
            for row in range(documents)
        ]
        table = pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA)
        written.append(write_table(ctx.store, f"part-{part:05d}.parquet", table))
    return Manifest(asset=f"{bucket}/curated", step="made", version="1", params={}, inputs={}, parts=tuple(written))


@pytest.fixture
def prepared(tmp_path: Path) -> tuple[Context, config.RunConfig]:
    """A run that is configured but was never trained: the order needs no training."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    texts = {bucket: curated(ctx, bucket, 2, 30) for bucket in ("code", "web")}
    trained = tokenizer.run(ctx, TokenizerParameters(vocab_size=320), texts)
    cut = {b: shards.run(ctx, b, Shards(tokens_per_shard=200), trained, each) for b, each in texts.items()}
    phases = (Phase(name="all", fraction=1, weights={"code": 1, "web": 3}),)
    params = Mixture(sequence_tokens=SEQUENCE, total_tokens=SEQUENCE * 64, phases=phases, block_sequences=16)
    mixed = mixture.run(ctx, params, cut)
    for manifest in texts.values():
        ctx.refs.save(manifest)
    training = Training(model=Model(layers=1, dim=16, heads=2, kv_heads=1, ffn_dim=16), global_batch_sequences=16)
    return ctx, preparation.prepare(ctx, "small", training, mixed, cut, trained)


def test_documents_of_a_step_are_those_whose_tokens_it_loads(
    plinth: Plinth, prepared: tuple[Context, config.RunConfig]
) -> None:
    ctx, run = prepared
    found = json.loads(plinth("run", "batch", "latest", "2", "--json").out)
    assert (found["run"], found["step"]) == (run.run_id, 2)
    assert [each["row"] for each in found["sequences"]] == list(range(16))
    assert {each["bucket"] for each in found["sequences"]} == {"code", "web"}
    readers = {b: ShardReader(ctx.store, ctx.refs.load(run.shards[b])) for b in run.shards}
    for each in found["sequences"]:
        assert sum(piece["tokens"] for piece in each["documents"]) == SEQUENCE + 1
        assert [piece["first"] for piece in each["documents"]] == list(
            np.cumsum([0, *(piece["tokens"] for piece in each["documents"])])[:-1]
        )
        for piece in each["documents"]:
            (span,) = readers[each["bucket"]].index.find(bytes.fromhex(piece["id"]))
            assert piece["uri"] == f"{each['bucket']}://{span.part}/{span.row}"
            assert piece["document_tokens"] == span.tokens


def test_steps_of_one_epoch_do_not_overlap(plinth: Plinth, prepared: tuple[Context, config.RunConfig]) -> None:
    seen = []
    for step in range(1, 5):
        for each in json.loads(plinth("run", "batch", "latest", step, "--json").out)["sequences"]:
            seen.append((each["bucket"], each["epoch"], each["sequence"]))
    assert len(seen) == len(set(seen)) == 64


def test_a_person_sees_a_table(plinth: Plinth, prepared: tuple[Context, config.RunConfig]) -> None:
    outcome = plinth("run", "batch", prepared[1].run_id[:9], "1")
    assert outcome.code == 0
    assert f"{prepared[1].run_id} step 1: 16 sequences (code 4, web 12)" in outcome.out
    assert "web://" in outcome.out


@pytest.mark.parametrize(
    ("run", "step", "message"),
    [("latest", 5, "a step from 1 to 4"), ("other", 1, "no run 'other'"), ("latest", 0, "not in the range")],
)
def test_what_is_not_there_is_named(
    plinth: Plinth, prepared: tuple[Context, config.RunConfig], run: str, step: int, message: str
) -> None:
    outcome = plinth("run", "batch", run, step)
    assert outcome.code in (2, 3)
    assert message in outcome.err


def test_two_runs_of_one_beginning(plinth: Plinth, prepared: tuple[Context, config.RunConfig]) -> None:
    run = prepared[1]
    config.write(run.model_copy(update={"run_id": "small-other"}))
    outcome = plinth("run", "batch", "small", "1")
    assert outcome.code == 3
    assert "several runs match 'small'" in outcome.err
    assert plinth("run", "batch", "small-other", "1").code == 0


@pytest.mark.exhaustive
def test_a_private_run_is_listed_as_it_is_drawn(
    plinth: Plinth, prepared: tuple[Context, config.RunConfig], own_trust: Path
) -> None:
    """The list of `plinth run batch` equals the trainer's batch, also from a document to its steps; it requires the
    key."""
    ctx, plain = prepared
    mixed, trained = ctx.refs.load(plain.mixture), ctx.refs.load(plain.tokenizer)
    cut = {bucket: ctx.refs.load(digest) for bucket, digest in plain.shards.items()}
    settings = {
        "model": plain.model, "global_batch_sequences": 16, "guard": GuardParameters(enabled=False),
        "privacy": Privacy(epsilon=30.0, delta=1e-3, noise_multiplier=1.0),
    }  # fmt: skip
    run = preparation.prepare(ctx, "private", Training.model_validate(settings), mixed, cut, trained)
    assert run == preparation.prepare(ctx, "private", Training.model_validate(settings), mixed, cut, trained)
    assert run.privacy is not None
    assert (run.privacy.sample_rate, run.total_steps) == (0.25, 4)
    ranks = [open_batches(run, rank) for rank in range(run.ranks)]
    loaded = [[rows for rank in ranks for rows in next(iter(rank(step))).micro] for step in range(1, 5)]
    readers = {b: ShardReader(ctx.store, cut[b]) for b in cut}
    seen = []
    for step, micro in enumerate(loaded, 1):
        told = json.loads(plinth("run", "batch", run.run_id, step, "--json").out)
        listed = told["sequences"]
        assert told["tokens"] == len(listed) * SEQUENCE
        tokens = [readers[one["bucket"]].read(one["sequence"] * SEQUENCE, SEQUENCE + 1).tolist() for one in listed]
        assert [rows.tokens[0].tolist() for rows in micro] == tokens
        seen.append({document["id"] for one in listed for document in one["documents"]})
    assert len({len(micro) for micro in loaded}) > 1
    document = sorted(set.union(*seen))[0]
    bucket = next(b for b in cut if readers[b].index.find(bytes.fromhex(document)))
    uses = steps_of_document(ctx, mixed, cut, bucket, document, run.draws)
    assert {use.step for use in uses} == {step for step, own in enumerate(seen) if document in own}
    assert "key=" not in repr(run.draws)
    privacy.key_path(ctx.workspace, run.run_id).unlink()
    outcome = plinth("run", "batch", run.run_id, "1")
    assert outcome.code == 8
    assert "the privacy key of run" in outcome.err
    spent = Training.model_validate({**settings, "privacy": Privacy(epsilon=0.1, delta=1e-3, noise_multiplier=1.0)})
    with pytest.raises(RecipeError, match="4 steps spend more than training"):
        preparation.prepare(ctx, "spent", spent, mixed, cut, trained)


def test_no_run_yet(plinth: Plinth, tmp_path: Path) -> None:
    Workspace(tmp_path / "workspace").ensure()
    outcome = plinth("run", "batch", "latest", "1")
    assert outcome.code == 3
    assert "no run in this workspace" in outcome.err
