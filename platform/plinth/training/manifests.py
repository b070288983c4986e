"""Manifests of a finished run: asset `run` has the timeline and the loss curve, asset `checkpoint` has the final model.

Manifests contain only values that the inputs determine. Times, restarts and speeds are `facts`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from plinth.compute import context
from plinth.compute.context import Context
from plinth.errors import CheckpointError, MissingError, TrainingError
from plinth.records import Manifest, Part, Step
from plinth.storage import parts
from plinth.training import config as configuration
from plinth.training import hooks
from plinth.training.checkpoint import checkpoint
from plinth.training.checkpoint.shares import fetch_whole
from plinth.training.config import RunConfig
from plinth.training.parameters.trainer import UNPROVED
from plinth.training.shared_run.shipping import refresh
from plinth.training.stopping import last_step
from plinth.training.telemetry.timeline import Event, History, host_memory_bytes, timeline, waited_s

#: Points of the loss curve kept in the manifest of a run.
CURVE_POINTS = 200

#: Fields of a step event that are functions of the inputs.
TIMELINE_SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("loss", pa.float64(), nullable=False),
        pa.field("grad_norm", pa.float64(), nullable=False),
        pa.field("lr", pa.float64(), nullable=False),
        pa.field("batch", pa.string(), nullable=False),
    ]
)


def run_manifest(ctx: Context, config: RunConfig) -> Manifest:
    """Return the manifest of asset `run`: the timeline's deterministic columns, and the loss curve.

    Raises:
        ResumeError: the run was trained with other settings than its recipe has now, for example an edited config.json.
        TrainingError: the run has not finished, or its timeline lacks steps.
    """
    refresh(config.directory)
    history = _finished_history(config)
    last = last_step(config, history)
    fetch_whole(config, last)
    state = checkpoint.read_state(config.directory, last)
    if config.trainer is None:  # others write their own state
        checkpoint.require_identity(config, state)
    schema = TIMELINE_SCHEMA if config.trainer is None else _optional(TIMELINE_SCHEMA)
    columns = {field.name: [event.get(field.name) for event in history.steps.values()] for field in schema}
    table = pa.table(columns, schema=schema)
    stride = max(1, -(-last // CURVE_POINTS))
    kept = [step for step in history.steps if step % stride == 0 or step in (1, last)]
    stats = {
        "run_id": config.run_id,
        "steps": last,
        "tokens": config.tokens_through(last),
        "stopped_by_rule": _stop_reasons(config, history),
        "final_loss": list(history.steps.values())[-1]["loss"],
        "skipped_steps": sorted(history.skipped),
        "final_loss_ema": state["monitor"]["loss_ema"],
        "loss_curve": [[step, history.steps[step]["loss"]] for step in kept],
        "parameters_sha256": state["parameters_sha256"],
        **({"canaries": dict(config.provenance["canaries"])} if "canaries" in config.provenance else {}),
        **_of_hooks(config, history, state),
    }
    inputs = _inputs(config)
    return context.manifest(
        "run", _step(config), inputs, [parts.write_table(ctx.store, "timeline.parquet", table)], stats
    )


def checkpoint_manifest(ctx: Context, config: RunConfig, run: Manifest) -> Manifest:
    """Return the manifest of asset `checkpoint`: the final model's files, and the files that verify the model.

    Raises:
        CheckpointError: the final checkpoint differs from its commit record.
        TrainingError: there is no evidence of a replay.
    """
    last = last_step(config)
    fetch_whole(config, last)
    folder = checkpoint.verify(config.directory, last)
    evidence = config.directory.evidence
    if not evidence.exists():
        raise TrainingError(
            f"run {config.run_id} has no evidence of a replay",
            expected=evidence,
            remedy="run the command again",
        )
    listed = checkpoint.digests(config.directory, last)
    made = _model_parts(ctx, folder, listed)
    made.append(_stored(ctx, "state.json", folder / "state.json", listed["state.json"]))
    made.append(_stored(ctx, "resume.json", evidence, None))
    (tokenizer,) = ctx.refs.load(config.tokenizer).named("tokenizer.json")
    proof = json.loads(evidence.read_bytes())
    stats = {
        "run_id": config.run_id,
        "step": last,
        "tokens": config.tokens_through(last),
        "parameters_sha256": run.stats["parameters_sha256"],
        "bit_exact_resume": proof["bit_exact"],
        "compared_steps": proof["compared_steps"],
        **({} if config.trainer is None else {"resume_proof": UNPROVED}),
        **_of_hooks(config, None, checkpoint.read_state(config.directory, last)),
    }
    step = Step(name="checkpoint", version=configuration.VERSION)
    return context.manifest("checkpoint", step, {"run": run, "tokenizer": config.tokenizer}, [*made, tokenizer], stats)


def committed_step(config: RunConfig, number: int | None = None) -> int:
    """Return the step of a committed checkpoint that is still on disk, by default of the newest one.

    Raises:
        MissingError: the run has no such checkpoint.
    """
    known = checkpoint.committed(config.directory)
    chosen = number if number is not None else max(known, default=0)
    if chosen not in known:
        raise MissingError(
            f"run {config.run_id} has no checkpoint {number or ''}".rstrip(),
            found=", ".join(str(step) for step in known) or "none",
            remedy="`plinth run checkpoint list RUN` lists the checkpoints",
        )
    return chosen


def committed_manifest(ctx: Context, config: RunConfig, number: int | None = None) -> Manifest:
    """Return the manifest of a committed checkpoint for evaluation, by default of the newest. The run may be
    unfinished.

    For the last checkpoint of a finished run, this is the manifest of asset `checkpoint`. No other checkpoint can be
    released, because it has no evidence that the run can be resumed.

    Raises:
        MissingError: the run has no such checkpoint.
        CheckpointError: the checkpoint differs from its commit record.
    """
    chosen = committed_step(config, number)
    if config.directory.evidence.exists() and chosen == last_step(config):
        run = run_manifest(ctx, config)
        ctx.refs.save(run)
        return checkpoint_manifest(ctx, config, run)
    fetch_whole(config, chosen)
    folder = checkpoint.verify(config.directory, chosen)
    stats = {"run_id": config.run_id, "step": chosen, "tokens": config.tokens_through(chosen)}
    state = checkpoint.read_state(config.directory, chosen)
    stats |= _of_hooks(config, None, state)
    loss = state["monitor"]["loss_ema"]
    inputs = _inputs(config)
    skipped = sorted(step for step in timeline(config.directory.events).skipped if step <= chosen)
    of_run = stats | {"final_loss_ema": loss, "skipped_steps": skipped}
    run = context.manifest("run", _step(config), inputs, [], of_run)
    ctx.refs.save(run)
    files = _model_parts(ctx, folder, checkpoint.digests(config.directory, chosen))
    (tokenizer,) = ctx.refs.load(config.tokenizer).named("tokenizer.json")
    step = Step(name="checkpoint", version=configuration.VERSION)
    return context.manifest("checkpoint", step, {"run": run, "tokenizer": config.tokenizer}, [*files, tokenizer], stats)


def facts(ctx: Context, config: RunConfig) -> dict[str, Any]:
    """Return facts that differ each time a run is repeated, such as waits, restarts and memory.

    They are for display and plots. To compare runs, use the numbers from `telemetry.timeline`.
    """
    history = timeline(config.directory.events)
    steps, commits, restarts = list(history.steps.values()), history.of("checkpoint"), history.of("restart")
    losses = restarts + history.of("vanished") + history.of("lost")
    if not steps:
        return {"steps": 0, "restarts": len(restarts)}
    seconds = sum(event["step_s"] for event in steps)
    return {
        "steps": len(steps),
        "data_wait_share": round(sum(map(waited_s, steps)) / seconds, 5),
        "training_s": round(seconds, 1),
        "checkpoints": len(commits),
        "checkpoint_s": round(sum(event["seconds"] for event in commits), 2),
        "checkpoint_bytes": commits[-1]["bytes"] if commits else 0,
        "peak_host_memory_bytes": max(map(host_memory_bytes, steps)),
        **_device_facts(steps),
        "restarts": len(restarts),
        "lost_steps": sum(event["lost_steps"] for event in losses),
        "lost_s": round(sum(event["lost_s"] for event in losses), 1),
        "redone_steps": history.redone,
        "diverged_steps": history.diverged,
        "interventions": sum(event["action"] != "warn" for event in history.of("intervention")),
        "skipped_steps": len(history.skipped) + sum(bool(event.get("vetoed")) for event in steps),
        "refused_checkpoints": len(history.of("refused")),
        "attempts": len(history.of("run_started")),
    }


def _device_facts(steps: list[Event]) -> dict[str, Any]:
    """Return the peak device memory of the leading rank, or nothing if the rank has no device memory."""
    peaks = [event["device_memory"]["peak"] for event in steps if "device_memory" in event]
    return {"peak_device_memory_bytes": max(peaks)} if peaks else {}


def _finished_history(config: RunConfig) -> History:
    history = timeline(config.directory.events)
    last = last_step(config, history)
    missing = sorted(set(range(1, last + 1)) - set(history.steps) - history.skipped)
    if missing or last not in checkpoint.committed(config.directory):
        raise TrainingError(
            f"run {config.run_id} has not finished",
            found=f"{len(history.steps)} steps in {config.directory.events}, first missing {missing[:1] or 'none'}",
            expected=f"{last} steps and a committed checkpoint of the last step",
            remedy="run the same command again to resume from the last committed checkpoint",
        )
    return history


def _of_hooks(config: RunConfig, history: History | None, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statistics of the run's hooks, from the timeline and from the state in a committed checkpoint."""
    found = (hook.facts(history, state["monitor"].get(hook.name, {})) for hook, _ in hooks.asked(config))
    return {name: value for facts in found for name, value in facts.items()}


def _optional(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose fields may be null: an external trainer reports only some of them."""
    return pa.schema([pa.field(one.name, one.type) for one in schema])


def _stop_reasons(config: RunConfig, history: History) -> list[str]:
    """Return the stopping rules that ended the run, or an empty list if the run reached its last step."""
    early = last_step(config, history) < config.total_steps
    return list(history.of("stopped_by_rule")[-1]["reasons"]) if early else []


def _inputs(config: RunConfig) -> dict[str, Manifest | str]:
    """Return the digests of a run's inputs, by asset."""
    begun = {"initial": config.initial.manifest} if config.initial else {}
    read = {asset: digest for hook, state in hooks.asked(config) for asset, digest in hook.inputs(state).items()}
    return {"mixture": config.mixture, "tokenizer": config.tokenizer, **begun, **read}


def _step(config: RunConfig) -> Step:
    own = {"optimizer", "precision", "seed", "rotary_schedule"} if config.trainer is None else {"trainer"}
    params = config.model_dump(
        mode="json",
        include={"key", "model", "vocab_size", "sequence_tokens", *own}
        | {"amendments", "batch_schedule", "length_schedule", "global_batch_sequences", "total_steps"},
    )
    return Step(name="run", version=configuration.VERSION, params=params)


def _model_parts(ctx: Context, folder: Path, listed: Mapping[str, str]) -> list[Part]:
    """Return the files of the model: its configuration, and its weights in one file or several files with an index."""
    names = sorted(path for path in listed if path.startswith("model/"))
    return [_stored(ctx, path.removeprefix("model/"), folder / path, listed[path]) for path in reversed(names)]


def _stored(ctx: Context, name: str, path: Path, sha256: str | None) -> Part:
    """Copy a file into the store and compare its digest with the checkpoint's record, if the record lists one.

    Raises:
        CheckpointError: the file was replaced after its verification.
    """
    with ctx.store.staging() as copy:
        shutil.copyfile(path, copy)
        blob = ctx.store.put_file(copy)
    if blob.sha256 != (sha256 or blob.sha256):
        raise CheckpointError(f"{path} was replaced after its verification", found=blob.sha256, expected=sha256)
    return Part(name=name, blob=blob, rows=0)
