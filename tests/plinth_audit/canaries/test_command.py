"""`plinth model exposure`: real checkpoints of a run that planted canaries, each with the copies that it has seen."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import torch

from plinth.compute.context import Context
from plinth.corpus import planted_canaries
from plinth.corpus.canaries import BUCKET, Canaries
from plinth.evaluation.engine.client import ModelEngine
from plinth.model.decoder import build
from plinth.model.hugging_face import hf_config
from plinth.model.parameters import Model
from plinth.records import Manifest, Part
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.batch import draws, seen_through
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.tokens.tokenizer.vocabulary import lexis_of
from plinth.training import config as configuration
from plinth.training import preparation
from plinth.training.checkpoint import checkpoint
from plinth.training.parameters.run import Training
from plinth_audit.canaries import job
from tests.model_folder import save_model

pytestmark = pytest.mark.slow

SEQUENCE, SEQUENCES, BATCH, STEPS = 64, 1600, 8, (50, 200)
SHAPE = Model(layers=1, dim=16, heads=2, kv_heads=1, ffn_dim=16)


class Planted(NamedTuple):
    ctx: Context
    texts: Manifest
    shards: Manifest
    mixture: Manifest
    run: configuration.RunConfig
    model: Manifest  # of the first checkpoint, as an asset has it


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    """A run with two committed checkpoints, whose first steps were read and one of them left out."""
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    text = _curated(ctx)
    trained = tokenizer.run(ctx, TokenizerParameters(vocab_size=320), {"web": text})
    params = Canaries(count=8, references=128)
    own = planted_canaries.run(
        ctx, params, trained, lexis_of(ctx.store, trained), sequence_tokens=SEQUENCE, concatenated=True
    )
    cut = {
        name: shards.run(ctx, name, Shards(tokens_per_shard=3000), trained, made)
        for name, made in {"web": text, BUCKET: own}.items()
    }
    asked = Mixture(
        sequence_tokens=SEQUENCE, total_tokens=SEQUENCE * SEQUENCES, block_sequences=32, max_epochs=1e6,
        phases=(Phase(name="all", fraction=1, weights={"*": 1}),),
    )  # fmt: skip
    mixed = mixture.run(ctx, asked, cut, None, [BUCKET])
    for made in (trained, own, *cut.values(), mixed):
        ctx.refs.save(made)
    training = Training(model=SHAPE, global_batch_sequences=BATCH)
    run = preparation.prepare(ctx, "told", training, mixed, cut, trained, None, own)
    model, _ = [_commit(ctx, run, trained, step) for step in STEPS]
    return Planted(ctx, own, cut[BUCKET], mixed, run, model)


def _curated(ctx: Context) -> Manifest:
    rng, syllables = random.Random(5), [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    rows = [
        {
            "id": rng.randbytes(16), "text": " ".join("".join(rng.choices(syllables, k=3)) for _ in range(40)),
            "uri": str(n), "snapshot": "s", "licence": "MIT", "mime": "text/plain", "source_bytes": 1, "extra": "{}",
        }
        for n in range(40)
    ]  # fmt: skip
    part = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))
    made = Manifest(asset="web/curated", step="made", version="1", params={}, inputs={}, parts=(part,))
    ctx.refs.save(made)
    return made


def _commit(ctx: Context, run: configuration.RunConfig, trained: Manifest, step: int) -> Manifest:
    model = build(SHAPE, run.vocab_size, seed=step)
    with torch.no_grad():
        model.embed_tokens.mul_(20)  # so that predictions differ from uniform
    folder = checkpoint.stage(run.directory, step) / "model"
    save_model(
        folder, dict(model.named_parameters()), hf_config(SHAPE, run.vocab_size, SEQUENCE, "float32", run.end_of_text)
    )
    files = [Part(name=path.name, blob=ctx.store.put_bytes(path.read_bytes())) for path in sorted(folder.iterdir())]
    checkpoint.commit(run.directory, step)
    parts = (*files, *trained.named("tokenizer.json"))
    return Manifest(asset="checkpoint", step="run", version="1", params={}, inputs={}, parts=parts)


@pytest.mark.exhaustive
def test_every_kept_checkpoint_with_the_copies_that_it_has_seen(
    plinth: Callable[..., Any], planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, run = planted.ctx, planted.run
    copies = draws(ctx, planted.mixture, planted.shards, planted.texts, run.steps)
    skipped = next(one.steps[0] for one in copies if one.steps[0] <= STEPS[0])
    event = {"event": "skipped", "step": skipped, "rule": "r", "window": [skipped, skipped], "seq": 1, "at": "0"}
    run.directory.events.write_text(json.dumps(event) + "\n")

    command = ("model", "exposure", "latest", "-w", ctx.workspace.root)
    monkeypatch.setattr("plinth.compute.progress.PATIENCE_S", 0.0)  # each checkpoint takes seconds, or less
    first_time = plinth(*command, "--json")
    assert [f"memorisation/canaries, step {step}: " in first_time.err for step in STEPS] == [True, True]  # progress
    found = json.loads(first_time.out)
    assert [(one["run"], one["step"]) for one in found] == [(run.run_id, step) for step in STEPS]
    for one in found:
        seen = seen_through(copies, one["step"], [skipped])
        assert sum(group["seen"] for group in one["groups"].values()) == sum(seen.values()) > 0
    first = seen_through(copies, STEPS[0], [skipped])
    expected = {"run": run.run_id, **job.run(ctx, planted.model, planted.texts, first).stats}
    assert found[0] == {"step": STEPS[0], **{name: value for name, value in expected.items() if name != "seed"}}
    assert found[0]["p_value"] != found[1]["p_value"]

    def never(self: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(ModelEngine, "__enter__", never)
    assert json.loads(plinth("model", "exposure", f"told:{STEPS[1]}", "-w", ctx.workspace.root, "--json").out) == [
        found[1]
    ]
    shown = plinth(*command).out
    assert all(str(step) in shown for step in STEPS)
    assert all(f"{one['p_value']:.2g}" in shown for one in found)
    absent = plinth("model", "exposure", "told:7", "-w", ctx.workspace.root)
    assert (absent.code, "checkpoints of steps 50, 200" in absent.err) == (3, True)


def test_a_run_without_canaries_is_named(plinth: Callable[..., Any], planted: Planted) -> None:
    configuration.write(planted.run.model_copy(update={"provenance": {}}))
    shown = plinth("model", "exposure", "told", "-w", planted.ctx.workspace.root)
    assert (shown.code, "has no canaries" in shown.err) == (3, True)
