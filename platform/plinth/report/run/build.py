"""The page of a run, from its directory and the manifests it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from pathlib import Path
from typing import Any

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.model import flops as planned
from plinth.report.run import run_page
from plinth.report.run.added_sections import SECTIONS
from plinth.storage.atomic import write_bytes
from plinth.text.plural import counted
from plinth.tokens.mixture.mixture_audit import shares_over_run
from plinth.training.config import RunConfig
from plinth.training.telemetry.devices import read_samples
from plinth.training.telemetry.timeline import read_events
from plinth.training.validation import seeds
from plinth.training.validation.probe_curves import curves

#: Stretches of the mixture that are drawn.
STRETCHES = 120


def path(ctx: Context, config: RunConfig) -> Path:
    """Where the page of a run lies."""
    return ctx.workspace.reports / f"{config.run_id}.html"


def write(
    ctx: Context,
    config: RunConfig,
    *,
    peak_flops: float | None = None,
    price_per_rank_hour: float | None = None,
    target: Path | None = None,
) -> Path:
    """Write the page of a run, finished or under way; returns its path.

    Args:
        peak_flops: of one device in the run's precision, for the utilisation.
        price_per_rank_hour: the recipe's (`training.stopping`) when None.

    Raises:
        MissingError: nothing has happened yet.
        StorageError, DiskFullError: it could not be written.
    """
    events, samples = list(read_events(config.directory.events)), read_samples(config.directory)
    if not events:
        raise MissingError(
            f"run {config.run_id} has no timeline yet", expected=config.directory.events, remedy="wait for its ranks"
        )
    price = config.stopping.price_per_rank_hour or None if price_per_rank_hour is None else price_per_rank_hour
    about = run_page.About(
        run_id=config.run_id,
        description=_described(config, events),
        ranks=config.ranks,
        total_steps=config.total_steps,
        total_tokens=config.tokens_through(config.total_steps),
        flops_per_token=tuple(
            (stretch.first_step + 1, planned.flops_exact(config.model, config.vocab_size, stretch.length))
            for stretch in config.steps.stretches
        ),
        peak_flops=peak_flops,
        price_per_rank_hour=price,
        added=tuple((one, one.html(ctx, config)) for one in SECTIONS.values()),
        mixture=tuple(shares_over_run(ctx.refs.load(config.mixture).stats, STRETCHES)),
        sequence_tokens=config.sequence_tokens,
        over_seeds=seeds.over_seeds(config, curves(events)),
    )
    place = target or path(ctx, config)
    together = list(merge(events, samples, key=lambda event: float(event["time"])))
    write_bytes(place, run_page.page(together, about).encode())
    return place


def _described(config: RunConfig, events: Sequence[dict[str, Any]]) -> str:
    started = [event for event in events if event["event"] == "run_started"]
    last = started[-1] if started else {}
    model, parameters = config.model, planned.parameters(config.model, config.vocab_size)
    sizes = sorted({batch * config.sequence_tokens for batch in config.steps.batches})
    batch = f"{' to '.join(f'{size:,}' for size in sizes)} tokens a step of sequences of {config.sequence_tokens:,}"
    device = f"{last.get('device', 'device unknown')}, {last.get('precision', config.precision)}"
    place = f"{counted(config.ranks, 'rank')} ({device})"
    shape = f"{model.layers} layers of {model.dim}, {parameters.total:,} parameters"
    described = f"{shape}; {batch}; ZeRO-{config.parallel.zero_stage} over {place}; seed {config.seed}"
    return "; ".join([described, *_private(events)])


def _private(events: Sequence[dict[str, Any]]) -> list[str]:
    """What a private run has spent."""
    spent = [event for event in events if event["event"] == "privacy"][-1:]
    return [
        f"differentially private by {one['unit']}: epsilon {one['epsilon']:.4g} at delta {one['delta']:g} "
        f"after step {one['step']:,}"
        for one in spent
    ]
