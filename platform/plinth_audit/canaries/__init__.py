"""Exposure of the canaries that a run was trained on (`plinth.corpus.canaries` plants them).

    audit         ranks among references, exposure, one p-value for all canaries; lower bound on epsilon from the
                  coins
    job           the asset, its stage; its items recomputed, compared and shown
    measurement   facts, the gate `canaries`

Formulas are in the modules that compute them. The steps that took each planted copy: `plinth.tokens.order.batch`.

Also here: the command `plinth model exposure`, which loads the other modules when it runs.
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
    short_help="Show the canaries' exposure at the checkpoints of a run.",
    epilog=examples(
        "plinth model exposure",
        "plinth model exposure latest:400",
        "plinth model exposure latest --json | jq '.[] | {step, p_value, epsilon: .audit.epsilon}'",
    )
)
@click.argument("target", default="latest")
@shared
@json_option
def exposure(settings: Settings, target: str, as_json: bool) -> None:
    """Show the mean exposure of a run's canaries, in bits, at every checkpoint that is kept, or at one.

    TARGET is `latest`, a run or a prefix of its id, or RUN:STEP. A checkpoint within a run has seen some of the copies;
    of a model that saw none the exposure is 1.44 bits. What was measured once is not measured again: the
    first time every checkpoint scores all canaries and references, with progress on standard error.
    """
    from plinth_jobs.cli import output

    found = measured(settings.context(), target)
    if as_json:
        output.emit_json(found)
        return
    groups = list(found[0]["groups"])
    times = (f"{name} times" for name in groups)
    columns = ("step", "copies seen", *times, "not planted", "p, all planted", "epsilon at least")
    rows = [
        (one["step"], sum(group["seen"] for group in one["groups"].values()),
         *(_mean(one["groups"][name]) for name in groups), _mean(one["out"]),
         f"{one['p_value']:.2g}", f"{one['audit']['epsilon']:.2f}")
        for one in found
    ]  # fmt: skip
    output.table(columns, rows, right=columns)


def measured(ctx: Context, target: str) -> list[dict[str, Any]]:
    """Statistics of the canaries (`job.summary`) at checkpoints of a run, with run and step.

    Raises:
        MissingError: no such run or checkpoint, or a run without canaries.
        CheckpointError, TrainingError: a checkpoint is not what was committed, or cannot be scored.
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
        raise MissingError(f"run {config.run_id} has no checkpoint", remedy="wait until its first one is committed")
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
            remedy="plant them and train again; what a run has not read cannot be asked for",
        )
    return ctx.refs.load(planted["manifest"])


def _at(ctx: Context, config: RunConfig, step: str, texts: Manifest, seen: Mapping[int, int]) -> dict[str, Any]:
    """One checkpoint, read from the run's folder: nothing of it is copied into the store."""
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
    """The mean exposure and its interval; a dash for a group without canaries."""
    if not group["canaries"]:
        return "-"
    found = group["exposure"]
    interval = f" ({found['low']:.2f} … {found['high']:.2f})" if "low" in found else ""
    return f"{found['value']:.2f}{interval}"
