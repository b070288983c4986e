"""Preview of a run, without work: the assets that it would materialize, the reason for each, and the expected cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plinth.compute.context import Context, load
from plinth.errors import PlinthError
from plinth.operation import admission, settlement, spending
from plinth.records import Manifest
from plinth_assets.framework import Decision, Stage

RUN = "run"


class ExpectedWork(NamedTuple):
    """Asset that would be materialized. Costs are None if no earlier materialization tells them.

    Args:
        reason: what changed since the last materialization.
        cpu_hours: CPU hours of corpus stages and of other work outside the ranks.
        rank_hours: rank-hours of the training run.
        cost_usd: price of both.
    """

    asset: str
    group: str
    reason: str
    cpu_hours: float | None
    rank_hours: float | None
    cost_usd: float | None


def expected(ctx: Context, stages: Sequence[Stage], decision: Decision) -> list[ExpectedWork]:
    """Return the stale assets of these stages, upstream first.

    The cost is that of the last materialization, for all items, scaled to the current size of the inputs. The real cost
    is lower if the step cache has some of the items, and higher if the parameters ask for more work per byte.
    """
    known = dict(decision.manifests)
    settings = spending.load(ctx.workspace)
    stale = set(decision.stale)
    found = []
    for stage in stages:
        if stage.asset not in stale:
            continue
        last = _published(ctx, stage.asset)
        reason = _reason(stage, last, known, stale)
        size = admission.input_bytes(known[dep] for dep in stage.deps if dep in known)
        corpus = admission.expected_cost(load(ctx.workspace, stage.asset), size, settings.prices)
        cpu_hours, cost = corpus or (None, None)
        rank_hours = None
        if stage.asset == RUN and last is not None:
            spent = settlement.run_spend(ctx, str(last.stats["run_id"]))
            rank_hours = spent.rank_hours if spent else None
            cost = cost if spent is None else (cost or 0.0) + spent.spent
        found.append(ExpectedWork(stage.asset, stage.group, reason, cpu_hours, rank_hours, cost))
        if last is not None:
            known[stage.asset] = last  # its size is the best guess for the stages after it
    return found


def _published(ctx: Context, asset: str) -> Manifest | None:
    ref = ctx.refs.seen(asset)
    try:
        return ctx.refs.load(ref.digest) if ref else None
    except PlinthError:  # an unreadable manifest is made again
        return None


def _reason(stage: Stage, last: Manifest | None, known: Mapping[str, Manifest], stale: set[str]) -> str:
    if last is None:
        return "never materialized"
    upstream = [dep for dep in stage.deps if dep in stale]
    if upstream:
        return f"upstream: {', '.join(upstream[:3])}" + (f" and {len(upstream) - 3} more" if len(upstream) > 3 else "")
    digests = set(last.inputs.values())
    changed = [dep for dep in stage.deps if dep in known and digests and known[dep].digest not in digests]
    if changed:
        return f"new data in {', '.join(changed[:3])}"
    return "source files, recipe or code changed" if stage.outside else "recipe or code changed"
