"""What was spent, by whom and on what: rows of the ledger added up, a run's money divided between buckets by tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from plinth.compute.context import Context
from plinth.errors import PlinthError
from plinth.operation.spending.ledger import MICROS, Reservation
from plinth.records import Frozen, bucket_of
from plinth.tokens.mixture.mixture_audit import shares_over_run
from plinth.training import config as configuration

#: By what spending is added up.
By = Literal["run", "bucket", "team", "experiment", "person", "recipe"]

#: What a row is called whose team, experiment or bucket is not known.
UNKNOWN = "-"


class SpendRow(Frozen):
    """One name of a summary. Money as prices state it."""

    name: str
    submissions: int
    refused: int
    reserved: float  # of submissions that are not settled
    spent: float
    rank_hours: float
    price_per_rank_hour: float  # mean, of what was spent


def summarise(ctx: Context, rows: Sequence[Reservation], by: By) -> list[SpendRow]:
    """The dearest first."""
    if by == "bucket":
        return _added(_by_bucket(ctx, rows))
    return _added((getattr(one, by) or UNKNOWN, 1.0, one) for one in rows)


def _added(shares: Iterable[tuple[str, float, Reservation]]) -> list[SpendRow]:
    groups: dict[str, list[tuple[float, Reservation]]] = defaultdict(list)
    for name, share, one in shares:
        groups[name].append((share, one))
    found = []
    for name, parts in groups.items():
        spent = sum(share * (one.spent or 0) for share, one in parts) / MICROS
        hours = sum(share * (one.rank_s or 0.0) for share, one in parts) / 3600
        refused = sum(one.refused for _, one in parts)
        found.append(
            SpendRow(
                name=name,
                submissions=len(parts) - refused,
                refused=refused,
                reserved=sum(share * (one.reserved or 0) for share, one in parts if one.ended is None) / MICROS,
                spent=spent,
                rank_hours=hours,
                price_per_rank_hour=spent / hours if hours else 0.0,
            )
        )
    return sorted(found, key=lambda row: (-row.spent, -row.reserved, row.name))


def _by_bucket(ctx: Context, rows: Sequence[Reservation]) -> Iterable[tuple[str, float, Reservation]]:
    """Every submission by the share of each bucket in the tokens that its run had seen when it was settled."""
    mixtures = {run: _mixture(ctx, run) for run in {one.run for one in rows}}
    for one in rows:
        known = mixtures[one.run]
        found = bucket_shares(*known, one.tokens or 0) if known else {UNKNOWN: 1.0}
        yield from ((bucket, share, one) for bucket, share in found.items())


def _mixture(ctx: Context, run: str) -> tuple[Mapping[str, Any], int] | None:
    """The counts of a run's mixture, and the tokens of a sequence; None where the run was not in this workspace."""
    try:
        config = configuration.load(ctx.workspace.runs / run / "config.json")
        return ctx.refs.load(config.mixture).stats, config.sequence_tokens
    except PlinthError:
        return None


def bucket_shares(stats: Mapping[str, Any], sequence_tokens: int, tokens: int) -> dict[str, float]:
    """Shares of the buckets in the first so many tokens of a mixture; of all of it where there are none."""
    end = -(-tokens // sequence_tokens) or stats["sequences"]
    found: dict[str, float] = defaultdict(float)
    for row in shares_over_run(stats):
        seen = max(0, min(row["stop"], end) - row["first"])
        for stream, share in row["realised"].items():
            found[bucket_of(stream)] += seen * share
    total = sum(found.values())
    return {bucket: seen / total for bucket, seen in found.items() if seen}
