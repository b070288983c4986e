"""The most that the rest of a run may take, in rank-seconds: like runs', the planner's, its own rules'.

    table of devices   the run's division at the least efficiency that the planner assumes, and a margin
    like runs          the dearest of the ledger's that trained the same on as many ranks, a token, and a margin
    own rules          `stopping.seconds`, or `stopping.money` at the recipe's price, and a margin
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from plinth import fingerprint
from plinth.launch.devices import Device
from plinth.operation.planning import ranking
from plinth.operation.planning.efficiency import STATED, Efficiency
from plinth.operation.planning.forecast import work_of
from plinth.operation.spending.ledger import Reservation
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig

#: Share of a run's tokens that another must have trained for its price to be asked: starting is dear, a token.
LEAST = 0.1


class Bound(NamedTuple):
    """Rank-seconds, and where they come from; None where nothing bounds the run."""

    rank_s: float | None
    reason: str


def work(config: RunConfig) -> str:
    """Identity of what a rank-second of this run does: model, rows, batch, division, ranks, launcher."""
    launch = config.launch.model_dump(include={"kind", "ranks", "nodes"})
    names = {"model", "vocab_size", "precision", "parallel", "sequence_tokens", "micro_batch_sequences"}
    names |= {"global_batch_sequences", "optimizer"}
    return fingerprint.digest({"launch": launch, **config.model_dump(mode="json", include=names)})[:16]


def bound(
    config: RunConfig,
    device: Device | None,
    margin: float,
    start_s: float,
    known: Sequence[Reservation],
    efficiency: Efficiency = STATED,
) -> Bound:
    """The least of what is known, for the steps after the last commit; the times to start and to leave are in it.

    Args:
        device: that a rank runs on, where the settings name one.
        margin: share added to what is predicted.
        start_s: seconds until ranks train.
        known: submissions of the ledger that did the same work.
        efficiency: of the device, of which the least counts.
    """
    found = list(_bounds(config, device, 1 + margin, known, efficiency))
    if not found:
        return Bound(None, "no device is named in budget/settings.yaml, no like run is in the ledger, and "
                     "training.stopping bounds neither time nor money")  # fmt: skip
    least, reason = min(found)
    return Bound(least + (start_s + config.supervision.grace_s) * config.ranks, reason)


def _bounds(
    config: RunConfig, device: Device | None, factor: float, known: Sequence[Reservation], efficiency: Efficiency
) -> Iterator[tuple[float, str]]:
    done = max(checkpoint.committed(config.directory), default=0)
    total, behind = config.tokens_through(config.total_steps), config.tokens_through(done)
    if like := _a_token(known, total * LEAST):
        yield like * (total - behind) * factor, "like runs in the ledger"
    elif device is not None:
        seconds = step_s(config, device, efficiency.low) * (config.total_steps - done + config.checkpoints.audit_steps)
        source = "" if efficiency == STATED else f", the least of {efficiency.source}"
        yield seconds * config.ranks * factor, f"the planner, at {efficiency.low:.0%} of the device's peak{source}"
    rules = config.stopping
    if rules.seconds is not None:
        yield rules.seconds * config.ranks * factor, "training.stopping.seconds"
    if rules.money is not None:
        yield rules.money / rules.price_per_rank_hour * 3600 * factor, "training.stopping.money"


def step_s(config: RunConfig, device: Device, efficiency: float = STATED.low) -> float:
    """Seconds of a step as the run is divided."""
    micro, ranks = config.micro_batch_sequences, config.ranks
    return ranking.of_block(work_of(config), config.parallel, micro, ranks, device, efficiency).step_s


def _a_token(known: Sequence[Reservation], least: float) -> float:
    """Rank-seconds a token of the dearest run that has come so far; 0 where none has."""
    taken, tokens = dict[tuple[str, str], float](), dict[tuple[str, str], int]()
    for one in known:
        if one.rank_s is not None:
            key = one.workspace, one.run
            taken[key] = taken.get(key, 0.0) + one.rank_s
            tokens[key] = max(tokens.get(key, 0), one.tokens or 0)
    return max((taken[key] / count for key, count in tokens.items() if count >= least), default=0.0)
