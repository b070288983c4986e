"""Small run for fault injection: generated text, shards and mixture, and the undisturbed end state.

    made = rehearse(folder)            corpus, configuration, one undisturbed job
    config = made.copy(folder)         the same run, not started, in a workspace of its own
    made.end_state(config)             findings on documents, order, weights and state

The real supervisor, ranks and writers train the run on CPUs, on generated text. Where possible, the reference is
computed: the documents of a step are read from the mixture's manifests and not from the undisturbed run.

Does not belong here: faults.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from plinth.compute.context import Context
from plinth.launch.parameters import Launch, Supervision
from plinth.model.parameters import Model
from plinth.records import Manifest, Part
from plinth.storage.atomic import write_bytes
from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.training import data, preparation
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig, identified_as_prepared
from plinth.training.parallel.topology import place_of
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints, Training
from plinth.training.step_documents import StepDocuments
from plinth.training.telemetry.timeline import timeline
from plinth_ops.gamedays.gameday import Outcome, finding
from plinth_ops.gamedays.warm_job import WarmJob

SEQUENCE, BATCH, STEPS = 32, 4, 12

#: Shard size in tokens, which gives about a dozen shards per bucket.
SHARD_TOKENS = 512

#: Checkpoint files with state. The other files have paths, machine names and times.
_STATE = ("state.json", "data.json", "model/*.safetensors", "engine/*", "rng/*")

_WORDS = {
    "web": ["the", "cat", "sees", "a", "ship", "near", "my", "house"],
    "code": ["def", "return", "for", "value", "in", "range"],
}


@dataclass(frozen=True)
class RehearsalData:
    """Manifests of generated text (tokenizer, shards, curated text), with the workspace that contains them."""

    ctx: Context
    tokenizer: Manifest
    shards: dict[str, Manifest]
    curated: dict[str, Manifest]


@dataclass(frozen=True)
class Rehearsal:
    """Undisturbed run, to which runs with a fault are compared."""

    config: RunConfig

    def copy(self, folder: Path, **changes: Any) -> RunConfig:
        """Return the configuration of the same run in a copy of its workspace. The new run is not started."""
        return copied(self.config, folder, **changes)

    @cached_property
    def fingerprints(self) -> dict[int, str]:
        """Fingerprint of every step's batch, computed from the manifests in one process, by step."""
        return fingerprints(self.config)

    @cached_property
    def documents(self) -> dict[int, Counter[str]]:
        """Documents that every step reads, with the number of tokens from each document, according to the manifests."""
        listed = StepDocuments(self.config)
        found: dict[int, Counter[str]] = {}
        for step in range(1, self.config.total_steps + 1):
            counted: Counter[str] = Counter()
            for seen in listed.of_step(step):
                counted[seen.id] += seen.tokens
            found[step] = counted
        return found

    def end_state(self, config: RunConfig, left_out: Collection[int] = ()) -> list[Outcome]:
        """Compare the end state of a run with the computed data order and with the undisturbed run.

        Args:
            left_out: steps that the hypothesis expects to be skipped. If it is not empty, weights are not compared.
        """
        return [
            *documents_found(self, config, left_out),
            *([] if left_out else [weights_found(self.config, config)]),
            committed_found(config),
        ]


def documents_found(made: Rehearsal, config: RunConfig, left_out: Collection[int] = ()) -> list[Outcome]:
    """Check that every step trained on its batch of the computed data order, without lost or duplicated documents."""
    trained = timeline(config.directory.events).steps
    expected = {step: made.fingerprints[step] for step in made.fingerprints if step not in left_out}
    seen = {step: str(event["batch"]) for step, event in trained.items() if not event.get("vetoed")}
    wanted, read = Counter[str](), Counter[str]()
    for step in expected:
        wanted += made.documents[step]
    for step, batch in seen.items():
        if batch == expected.get(step):
            read += made.documents[step]
    lost, doubled = wanted - read, read - wanted
    other = sorted(step for step in {*seen, *expected} if seen.get(step) != expected.get(step))
    words = f"{len(lost)} documents lost, {len(doubled)} duplicated, of {len(wanted)}"
    return [
        Outcome(what="no document is lost or duplicated", passed=not (lost or doubled), seen=words),
        Outcome(
            what="every committed step trained on its batch of the computed order",
            passed=not other,
            seen=f"{len(expected) - len(other)} of {len(expected)} steps" + (f", not {other}" if other else ""),
        ),
    ]


def weights_found(undisturbed: RunConfig, config: RunConfig) -> Outcome:
    """Check that weights, optimizer, random state and monitor of the last step equal those of the undisturbed run."""
    ours, theirs = (state_digests(one) for one in (config, undisturbed))
    other = sorted(path for path in {*ours, *theirs} if ours.get(path) != theirs.get(path))
    what = "weights and state are bit-identical to those of an undisturbed run"
    if not theirs:
        return Outcome(what=what, passed=False, seen="no state")
    seen = f"{len(theirs)} state files" if not other else f"{other[0]} and {len(other) - 1} other files differ"
    return Outcome(what=what, passed=not other, seen=seen)


def committed_found(config: RunConfig) -> Outcome:
    """Check that the last checkpoint is committed and matches its signed record."""
    step = max(checkpoint.committed(config.directory), default=0)
    whole = step == config.total_steps and checkpoint.is_valid(config.directory, step)
    return Outcome(what="the last checkpoint is committed and verifies", passed=whole, seen=f"step {step}")


def state_digests(config: RunConfig) -> dict[str, str]:
    """Return the SHA-256 of every state file of the last checkpoint, by path.

    If there is no checkpoint, the result is empty.
    """
    folder = checkpoint.path(config.directory, config.total_steps)
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for pattern in _STATE
        for path in sorted(folder.glob(pattern))
    }


def fingerprints(config: RunConfig) -> dict[int, str]:
    """Return the fingerprint of every step's batch, computed with a single rank, by step."""
    alone = config.model_copy(
        update={
            "launch": Launch(ranks=1),
            "micro_batch_sequences": config.global_batch_sequences,
            "batches": RunConfig.model_fields["batches"].default,
        }
    )
    place, found = place_of(alone.parallel, 1, 0), {}
    for step, batch in enumerate(data.open_batches(alone, 0)(1), 1):
        first, second = data.fingerprint_of(batch, place)
        found[step] = f"{first:08x}{second:08x}"
    return found


def copied(config: RunConfig, folder: Path, **changes: Any) -> RunConfig:
    """Return the configuration of the same run, not started, in a copy of the workspace without its runs."""
    source = Path(config.workspace)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("runs"), dirs_exist_ok=True)
    made = identified_as_prepared(config.model_copy(update={"workspace": str(folder), **changes}))
    without_audit(made)
    return made


def without_audit(config: RunConfig) -> None:
    """Skip the audit at the end of a job, because a game day compares the end states itself."""
    write_bytes(config.directory.evidence, b"{}")


def make_data(folder: Path, texts: dict[str, list[str]] | None = None, heldout: int = 0) -> RehearsalData:
    """Generate, tokenize and shard the text of two buckets.

    Args:
        texts: texts by bucket, to use in place of generated text.
        heldout: number of texts at the end of every bucket to hold out.
    """
    ctx = Context(Workspace(folder).ensure())
    chooser = random.Random(7)
    given = texts or {
        bucket: [" ".join(chooser.choices(words, k=80)) for _ in range(60)] for bucket, words in _WORDS.items()
    }
    curated = {bucket: _curated(ctx, bucket, rows, heldout) for bucket, rows in given.items()}
    trained = tokenizer.run(ctx, TokenizerParameters(vocab_size=300, sample_bytes=50_000), curated)
    cut = {bucket: _cut(ctx, bucket, trained, curated[bucket]) for bucket in curated}
    return RehearsalData(ctx, trained, cut, curated)


def with_bucket(made: RehearsalData, bucket: str, texts: list[str]) -> RehearsalData:
    """Return the data with one more bucket, which is encoded by the existing tokenizer."""
    curated = _curated(made.ctx, bucket, texts)
    cut = _cut(made.ctx, bucket, made.tokenizer, curated)
    return replace(made, shards={**made.shards, bucket: cut}, curated={**made.curated, bucket: curated})


def configured(made: RehearsalData, phases: tuple[Phase, ...] = (), steps: int = STEPS, **changes: Any) -> RunConfig:
    """Return the configuration of a run on generated text. `changes` override the training section of its recipe."""
    even = Phase(name="all", fraction=1.0, weights={"code": 1.0, "web": 3.0})
    wanted = Mixture(
        sequence_tokens=SEQUENCE,
        total_tokens=SEQUENCE * BATCH * steps,
        phases=phases or (even,),
        block_sequences=BATCH,
        max_epochs=1000.0,
    )
    mixed = mixture.run(made.ctx, wanted, made.shards)
    fields: dict[str, Any] = {
        "model": Model(layers=2, dim=32, heads=4, kv_heads=2, ffn_dim=64),
        "optimizer": Optimizer(lr=1e-2, warmup_fraction=0.2),
        "precision": "fp32",
        "micro_batch_sequences": 2,
        "global_batch_sequences": BATCH,
        "parallel": Parallel(zero_stage=1),
        "launch": Launch(ranks=1),
        "checkpoints": Checkpoints(every_steps=3, audit_steps=4, keep_last=9, mode="sync"),
        "supervision": Supervision(backoff_s=0.1, hang_s=300.0, grace_s=60.0),
    }
    training = Training(**{**fields, **changes})
    return preparation.prepare(made.ctx, "rehearsal", training, mixed, made.shards, made.tokenizer)


def rehearse(
    folder: Path, environment: Mapping[str, str] | None = None, batches: str = "", **changes: Any
) -> Rehearsal:
    """Generate text and run one undisturbed job on the text.

    Args:
        environment, batches: settings for a job that counts its writes.
        changes: overrides of the recipe's training section.

    Raises:
        TrainingError: the undisturbed job fails. Then there is no reference to compare with.
    """
    config = configured(make_data(folder), **changes)
    config = config.model_copy(update={"batches": batches} if batches else {})
    without_audit(config)
    WarmJob(config, **(environment or {})).require_finished()
    return Rehearsal(config)


def finished(status: int) -> Outcome:
    """Check that the last job of a run finished, from the job's exit status."""
    return finding("the run reaches its last step", status, 0)


def _cut(ctx: Context, bucket: str, trained: Manifest, curated: Manifest) -> Manifest:
    return shards.run(ctx, bucket, Shards(tokens_per_shard=SHARD_TOKENS), trained, curated)


def _curated(ctx: Context, bucket: str, texts: list[str], heldout: int = 0) -> Manifest:
    """Save the text of a bucket as an asset, with lineage to a placeholder source."""
    source = {f"{bucket}/sources": hashlib.sha256(bucket.encode()).hexdigest()}
    read = Manifest(asset=f"{bucket}/documents", step="made", version="1", params={}, inputs=source, parts=())
    ctx.refs.save(read)
    rows = [_row(bucket, number, text) for number, text in enumerate(texts)]
    cut = len(rows) - heldout
    parts = [_part(ctx, "part-00000.parquet", rows[:cut])]
    parts += [_part(ctx, "heldout-00000.parquet", rows[cut:])] if heldout else []
    inputs = {read.asset: read.digest}
    made = Manifest(asset=f"{bucket}/curated", step="made", version="1", params={}, inputs=inputs, parts=tuple(parts))
    ctx.refs.save(made)
    return made


def _part(ctx: Context, name: str, rows: list[dict[str, Any]]) -> Part:
    return write_table(ctx.store, name, pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))


def _row(bucket: str, number: int, text: str) -> dict[str, Any]:
    return {
        "id": hashlib.sha256(f"{bucket} {number} {text}".encode()).digest()[:16],
        "text": text,
        "uri": f"https://{bucket}.example/{number}",
        "captured_at": None,
        "snapshot": "game day",
        "licence": "CC0-1.0",
        "mime": "text/plain",
        "source_bytes": len(text),
        "extra": f'{{"domain": "{bucket}.example"}}',
    }
