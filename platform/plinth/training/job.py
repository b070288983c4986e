"""A training run as its asset sees it: submit or find, follow, and say what came out.

    prepare (config) -> submit_or_find -> follow -> run_manifest -> checkpoint_manifest

Manifests hold what is a function of the inputs; times, restarts and speeds are `facts`.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from plinth.compute import stage
from plinth.compute.context import Context
from plinth.errors import TrainingError
from plinth.launch.base import Handle, Launcher
from plinth.launch.choose import choose
from plinth.launch.files import read_handle
from plinth.model.hugging_face import CONFIG, WEIGHTS
from plinth.records import Manifest, Part, Step
from plinth.storage import parts
from plinth.training import amendments
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.stopping.stopping import last_step
from plinth.training.supervise.supervisor import JobResult
from plinth.training.telemetry.timeline import Event, History, Timeline, TimelineReader, timeline

POLL_S = 0.5

#: Lines of the log shown with a failure that nothing names.
LOG_LINES = 25

#: Points of the loss curve kept in the manifest of a run.
CURVE_POINTS = 200

#: What of a step is a function of the inputs.
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


def launcher_of(config: RunConfig) -> Launcher:
    """The launcher that knows the run's job: the one of its handle, or, where there is none, the one of its recipe.

    A recipe may name another launcher than the one that the job was submitted with; the job stays where it is.
    """
    known = read_handle(config.directory.root)
    return choose(known.launcher if known else config.launch.kind, config.launch, config.supervision.grace_s)


def command(config: RunConfig) -> list[str]:
    """What a launcher starts on each node."""
    return [sys.executable, "-m", "plinth.training.supervise.supervisor", str(config.directory.config)]


def submit_or_find(ctx: Context, config: RunConfig) -> Handle:
    """The job of this run: the one that is alive, or has finished and left a final checkpoint that verifies, or a
    new one, which resumes. A job that is alive is stopped first where the recipe amends the run.

    Raises:
        RecipeError: an amendment touches a step that was taken.
        LaunchError: it could not be submitted, or runs on another machine.
    """
    run, launcher = config.directory, launcher_of(config)
    known = launcher.find(run.root)
    if amendments.pending(config):
        _amend(config, launcher, known)
    alive = known is not None and launcher.poll(known).alive
    if known is not None and not alive:
        ended = result(config)
        if ended is not None and ended.status == "finished" and checkpoint.is_valid(run, last_step(config)):
            return known
        run.result.unlink(missing_ok=True)
    configuration.write(config)
    if not alive:
        launcher = choose(config.launch.kind, config.launch, config.supervision.grace_s)
        Timeline(run.events).append("submitted", launcher=config.launch.kind)
    return launcher.submit(command(config), run.root, run.log)


def _amend(config: RunConfig, launcher: Launcher, known: Handle | None) -> None:
    """Stop the job at the end of a step, and give the run its amendment, if all it touches is still to come."""
    amendments.check(config)
    if known is not None and launcher.poll(known).alive:
        launcher.cancel(known, config.supervision.grace_s + 5.0)
        amendments.check(config)  # with the steps that it took until then
    amendments.record(config)


def follow(ctx: Context, config: RunConfig, on_event: Callable[[Event], None] | None = None) -> JobResult:
    """Relay events from the beginning of the timeline until the job ends; the job does not depend on it.

    Raises:
        PlinthError: what a rank named, as it was.
        TrainingError: the job failed otherwise, was stopped, or vanished; with the end of its log.
    """
    run, launcher = config.directory, launcher_of(config)
    reader, handle = TimelineReader(run.events), launcher.find(run.root)
    if handle is None:
        raise TrainingError(f"run {config.run_id} was never submitted", remedy="run the command that trains it")
    while True:
        alive = launcher.poll(handle).alive  # asked first: what it wrote last is then read below
        for event in reader.poll():
            if on_event is not None:
                on_event(event)
        if not alive:
            return _result_or_error(config, launcher)
        time.sleep(POLL_S)


def cancel(ctx: Context, config: RunConfig) -> None:
    """Ask the job to save and stop; end it when it does not within the grace of the recipe."""
    launcher = launcher_of(config)
    handle = launcher.find(config.directory.root)
    if handle is not None:
        launcher.cancel(handle, config.supervision.grace_s + 5.0)


def result(config: RunConfig) -> JobResult | None:
    """How the last job ended, or None while it runs or when it was killed."""
    try:
        return JobResult.model_validate_json(config.directory.result.read_bytes())
    except FileNotFoundError:
        return None


def run_manifest(ctx: Context, config: RunConfig) -> Manifest:
    """The manifest of asset `run`: the timeline's deterministic columns, and the loss curve.

    Raises:
        TrainingError: the run has not finished, or its timeline lacks steps.
    """
    story = _finished_history(config)
    last = last_step(config, story)
    state = checkpoint.read_state(config.directory, last)
    columns = {field.name: [event[field.name] for event in story.steps.values()] for field in TIMELINE_SCHEMA}
    table = pa.table(columns, schema=TIMELINE_SCHEMA)
    stride = max(1, -(-last // CURVE_POINTS))
    kept = [step for step in story.steps if step % stride == 0 or step in (1, last)]
    stats = {
        "run_id": config.run_id,
        "steps": last,
        "tokens": config.tokens_through(last),
        "stopped_by_rule": _stop_reasons(config, story),
        "final_loss": list(story.steps.values())[-1]["loss"],
        "skipped_steps": sorted(story.skipped),
        "final_loss_ema": state["monitor"]["loss_ema"],
        "loss_curve": [[step, story.steps[step]["loss"]] for step in kept],
        "parameters_sha256": state["parameters_sha256"],
    }
    inputs = {"mixture": config.mixture, "tokenizer": config.tokenizer}
    return stage.manifest(
        "run", _step(config), inputs, [parts.write_table(ctx.store, "timeline.parquet", table)], stats
    )


def checkpoint_manifest(ctx: Context, config: RunConfig, run: Manifest) -> Manifest:
    """The manifest of asset `checkpoint`: what is needed to use and to trust the final model, in the content store.

    Raises:
        CheckpointError: the final checkpoint is not what was committed.
        TrainingError: the evidence of resume is missing.
    """
    last = last_step(config)
    folder = checkpoint.verify(config.directory, last)
    evidence = config.directory.evidence
    if not evidence.exists():
        raise TrainingError(
            f"run {config.run_id} has no evidence of resume", expected=evidence, remedy="run the command again"
        )
    files = {
        WEIGHTS: folder / "model" / WEIGHTS,
        CONFIG: folder / "model" / CONFIG,
        "state.json": folder / "state.json",
        "resume.json": evidence,
    }
    made = [_stored(ctx, name, path) for name, path in files.items()]
    (tokenizer,) = ctx.refs.load(config.tokenizer).named("tokenizer.json")
    proof = json.loads(evidence.read_bytes())
    stats = {
        "run_id": config.run_id,
        "step": last,
        "tokens": config.tokens_through(last),
        "parameters_sha256": run.stats["parameters_sha256"],
        "bit_exact_resume": proof["bit_exact"],
        "compared_steps": proof["compared_steps"],
    }
    step = Step(name="checkpoint", version=configuration.VERSION)
    return stage.manifest("checkpoint", step, {"run": run, "tokenizer": config.tokenizer}, [*made, tokenizer], stats)


def facts(ctx: Context, config: RunConfig) -> dict[str, Any]:
    """What happened this time and need not happen again: speeds, waits, restarts, memory. For people and plots."""
    story = timeline(config.directory.events)
    steps, commits, restarts = list(story.steps.values()), story.of("checkpoint"), story.of("restart")
    losses = restarts + story.of("vanished") + story.of("lost")
    if not steps:
        return {"steps": 0, "restarts": len(restarts)}
    seconds = sum(event["step_s"] for event in steps)
    return {
        "steps": len(steps),
        "tokens_per_s": round(statistics.median(event["tokens_per_s"] for event in steps), 1),
        "step_s": round(statistics.median(event["step_s"] for event in steps), 4),
        "data_wait_share": round(sum(event["data_wait_s"] for event in steps) / seconds, 5),
        "training_s": round(seconds, 1),
        "checkpoints": len(commits),
        "checkpoint_s": round(sum(event["seconds"] for event in commits), 2),
        "checkpoint_bytes": commits[-1]["bytes"] if commits else 0,
        "peak_memory_bytes": max(event["memory_bytes"] for event in steps),
        "restarts": len(restarts),
        "lost_steps": sum(event["lost_steps"] for event in losses),
        "lost_s": round(sum(event["lost_s"] for event in losses), 1),
        "redone_steps": story.redone,
        "diverged_steps": story.diverged,
        "interventions": sum(event["action"] != "warn" for event in story.of("intervention")),
        "skipped_steps": len(story.skipped) + sum(bool(event.get("vetoed")) for event in steps),
        "refused_checkpoints": len(story.of("refused")),
        "attempts": len(story.of("run_started")),
    }


def _result_or_error(config: RunConfig, launcher: Launcher) -> JobResult:
    ended = result(config)
    if ended is not None and ended.status == "finished":
        return ended
    if ended is not None and ended.failure is not None:
        raise ended.failure.error()
    if ended is not None and ended.status == "stopped":  # nothing is wrong, and the log has nothing to add
        raise TrainingError(
            f"run {config.run_id} stopped at step {ended.step}",
            found=ended.reason,
            expected=f"{config.total_steps} steps",
            remedy="run the same command again: it goes on from the last committed checkpoint",
        )
    how = "vanished: its supervisor was killed" if ended is None else f"{ended.status} at step {ended.step}"
    tail = launcher.logs(config.directory.log, LOG_LINES)
    raise TrainingError(
        f"run {config.run_id} {how}",
        found=(f"{ended.reason}; " if ended else "") + f"{config.directory.log} ends:\n{tail}",
        remedy="run the same command again: it goes on from the last committed checkpoint",
    )


def _finished_history(config: RunConfig) -> History:
    story = timeline(config.directory.events)
    last = last_step(config, story)
    missing = sorted(set(range(1, last + 1)) - set(story.steps) - story.skipped)
    if missing or last not in checkpoint.committed(config.directory):
        raise TrainingError(
            f"run {config.run_id} has not finished",
            found=f"{len(story.steps)} steps in {config.directory.events}, first missing {missing[:1] or 'none'}",
            expected=f"{last} steps and a committed checkpoint of the last",
            remedy="run the same command again: it goes on from the last committed checkpoint",
        )
    return story


def _stop_reasons(config: RunConfig, story: History) -> list[str]:
    """What the stopping rules ended the run for; empty when it went to its last step."""
    early = last_step(config, story) < config.total_steps
    return list(story.of("stopped_by_rule")[-1]["reasons"]) if early else []


def _step(config: RunConfig) -> Step:
    params = config.model_dump(
        mode="json",
        include={"key", "model", "vocab_size", "optimizer", "precision", "seed", "sequence_tokens"}
        | {"amendments", "batch_schedule", "length_schedule", "global_batch_sequences", "total_steps"},
    )
    return Step(name="run", version=configuration.VERSION, params=params)


def _stored(ctx: Context, name: str, path: Path) -> Part:
    with ctx.store.staging() as copy:
        shutil.copyfile(path, copy)
        return Part(name=name, blob=ctx.store.put_file(copy), rows=0)
