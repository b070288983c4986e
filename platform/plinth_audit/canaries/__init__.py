"""Exposure of the canaries that a run was trained on (`plinth.corpus.canaries` plants them).

    audit         ranks among references, exposure, p-value over all canaries; lower bound on epsilon
    job           the asset and its stage; recomputation, comparison and display of its items
    measurement   values that the gate reads (facts), and the gate `canaries`

Each module states its formulas next to the code. `plinth.tokens.order.batch` computes which training steps read each
planted copy.

This package also defines the command `plinth model exposure`, which imports the other modules when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.records import Manifest
    from plinth.training.config import RunConfig


@click.command(
    short_help="Show canary exposure at the checkpoints of a run.",
    epilog=examples(
        "plinth model exposure",
        "plinth model exposure latest:400",
        "plinth model exposure latest --json | jq '.[] | {step, p_value, epsilon: .audit.epsilon}'",
    ),
)
@click.argument("target", default="latest")
@shared
@json_option
def exposure(settings: Settings, target: str, as_json: bool) -> None:
    """Show the mean canary exposure of a run in bits, at one checkpoint or all checkpoints.

    TARGET is `latest`, a run ID or its prefix, or RUN:STEP. At an intermediate checkpoint, the model has read only some
    of the planted copies. The expected exposure of an unseen text is 1.44 bits. Results are cached; the first
    measurement scores all canaries and references at every checkpoint.
    """
    from plinth_jobs.cli import output

    found = measured(settings.context(), target)
    if as_json:
        output.emit_json(found)
        return
    groups = list(found[0]["groups"])
    times = (f"{name} times" for name in groups)
    columns = ("step", "copies seen", *times, "not planted", "p (all planted)", "epsilon ≥")
    rows = [
        (one["step"], sum(group["seen"] for group in one["groups"].values()),
         *(_mean(one["groups"][name]) for name in groups), _mean(one["out"]),
         f"{one['p_value']:.2g}", f"{one['audit']['epsilon']:.2f}")
        for one in found
    ]  # fmt: skip
    output.table(columns, rows, right=columns)


def measured(ctx: Context, target: str) -> list[dict[str, Any]]:
    """Return the canary statistics (`job.summary`) of each checkpoint of a run, with run ID and step.

    Raises:
        MissingError: there is no such run or checkpoint, or the run has no canaries.
        CheckpointError, TrainingError: a checkpoint differs from its commit record, or cannot be scored.
    """
    from plinth.errors import MissingError
    from plinth.tokens.order.batch import draws, seen_through
    from plinth.training.checkpoint import checkpoint
    from plinth.training.telemetry.timeline import timeline
    from plinth_jobs.targets import find_run

    run, colon, step = target.partition(":")
    config = find_run(ctx, run)
    texts = _planted(ctx, config)
    steps = [step] if colon else [str(one) for one in checkpoint.committed(config.directory)]
    if not steps:
        raise MissingError(f"run {config.run_id} has no checkpoint", remedy="wait until the run commits a checkpoint")
    shards = ctx.refs.load(config.shards[texts.asset.partition("/")[0]])
    copies = draws(ctx, ctx.refs.load(config.mixture), shards, texts, config.steps)
    skipped = sorted(timeline(config.directory.events).skipped)
    return [
        _at(ctx, config, one, texts, seen_through(copies, int(one) if one.isdecimal() else 0, skipped)) for one in steps
    ]


def _planted(ctx: Context, config: RunConfig) -> Manifest:
    from plinth.errors import MissingError

    planted = config.provenance.get("canaries")
    if planted is None:
        raise MissingError(
            f"run {config.run_id} has no canaries",
            expected="a run of a recipe with `corpus.canaries`",
            remedy="add canaries to the recipe and train again",
        )
    return ctx.refs.load(planted["manifest"])


def _at(ctx: Context, config: RunConfig, step: str, texts: Manifest, seen: Mapping[int, int]) -> dict[str, Any]:
    """Measure canary exposure at one checkpoint in the run's folder, without copying the checkpoint to the object
    store."""
    from plinth import fingerprint
    from plinth.storage.parts import read_table
    from plinth.training.checkpoint import checkpoint
    from plinth_audit.canaries import job
    from plinth_jobs.cli.generate import engine

    model = engine(ctx, f"{config.run_id}:{step}", label=f"{job.ASSET}, step {step}")
    record = checkpoint.record_path(config.directory, int(step)).read_text()
    identity = fingerprint.digest({"commit": record, "tokenizer": config.tokenizer})
    part = job.measured(ctx, model, identity, texts, seen)
    return {"run": config.run_id, "step": int(step), **job.summary(read_table(ctx.store, part))}


def _mean(group: Mapping[str, Any]) -> str:
    """Format the mean exposure of a group of canaries with its confidence interval, or a dash if the group is empty."""
    if not group["canaries"]:
        return "-"
    found = group["exposure"]
    interval = f" ({found['low']:.2f} … {found['high']:.2f})" if "low" in found else ""
    return f"{found['value']:.2f}{interval}"
