"""The coordinator of a federation: judges what the sites sent, and makes the common weights of the next round.

    contributions of round r ──► judged: signed, from these weights, these shapes, finite, unchanged ──► outer step
                                    └─► refused by name: the others' mean is taken                         │
    rounds/r.json, last ◄──────────────────────────────────────────────────────────────────────────────────┘

All its state is in the exchange. A coordinator that was killed had either committed a round or not: the next one makes
the round from the same files, which are the same bits. Two of them at once do no harm: the first record stays.

Round 0 has no outer step: the sites' first weights must be the same bits, and are the common weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from torch import Tensor

from plinth.errors import CheckpointError, PlinthError
from plinth.records import Blob
from plinth.training.checkpoint.sharded_state import MASTER, ShardedState
from plinth_extras.federated.exchange import Contribution, Exchange, Round, SignedRecord, now
from plinth_extras.federated.outer_step import (
    MOMENTUM,
    RoundFiles,
    mean_of,
    next_common,
    next_momentum,
    require_fit,
    same_weights,
)
from plinth_extras.federated.parameters import Federated
from plinth_extras.federated.pruning import prune

POLL_S = 1.0


class Coordinator:
    """Makes rounds from what lies in an exchange."""

    def __init__(self, exchange: Exchange, params: Federated) -> None:
        self.exchange, self.params = exchange, params
        self.number = exchange.newest() + 1
        self._accepted: dict[str, tuple[Contribution, SignedRecord]] = {}
        self._refused: dict[str, str] = {}
        self._ended = set(exchange.round(self.number - 1)[0].ended) if self.number else set[str]()

    def receive(self) -> list[str]:
        """Judge what has come for the next round; returns the sites that have sent nothing yet."""
        for site in self._awaited:
            try:
                found = self.exchange.contribution(self.number, site)
                if found is not None:
                    self._judge(found[0])
                    self._accepted[site] = found
            except PlinthError as error:
                self._refused[site] = error.what if error.found is None else f"{error.what}: found {error.found}"
        return self._awaited

    @property
    def can_commit(self) -> bool:
        """Whether the next round could be made of what has come."""
        return bool(self._accepted)

    @property
    def _awaited(self) -> list[str]:
        return sorted({*self.params.sites} - {*self._accepted} - {*self._refused} - self._ended)

    def commit(self) -> Round:
        """Make and commit the next round from the contributions that were accepted.

        Raises:
            CheckpointError: none was, with the reasons; or the sites' first weights differ.
        """
        if not self._accepted:
            raise CheckpointError(
                f"round {self.number} has no weights to average",
                found="; ".join(f"{site}: {reason}" for site, reason in sorted(self._refused.items())),
                expected="the contribution of at least one site",
            )
        try:
            with ExitStack() as stack:
                common, momentum = self._outer_step(RoundFiles(stack, self.exchange.store))
        except PlinthError:
            if self.exchange.newest() < self.number:
                raise
            return self._next()  # another coordinator has made the round, and pruned
        before = self.exchange.round(self.number - 1)[1].sha256 if self.number else ""
        ended = self._ended | {site for site, (made, _) in self._accepted.items() if made.ends}
        self.exchange.commit(
            Round(
                round=self.number,
                before=before,
                common=common,
                momentum=momentum,
                taken={site: signed.sha256 for site, (_, signed) in sorted(self._accepted.items())},
                refused=dict(sorted(self._refused.items())),
                missing=tuple(self._awaited),
                ended=tuple(sorted(ended)),
                outer_lr=self.params.outer_lr,
                outer_momentum=self.params.outer_momentum,
                at=now(),
            )
        )
        return self._next()

    def _next(self) -> Round:
        """Go on after the round that is committed now, by whoever came first."""
        committed, _ = self.exchange.round(self.number)
        self.number, self._accepted, self._refused = self.number + 1, {}, {}
        self._ended = set(committed.ended)
        return committed

    def _judge(self, made: Contribution) -> None:
        """Refuse what must not be averaged.

        Raises:
            CheckpointError: from other common weights; other parameters or shapes; not finite.
            IntegrityError, MissingError: a file is absent or was changed.
        """
        base = self.exchange.round(self.number - 1)[0].common if self.number else None
        if made.base != (base.sha256 if base else ""):
            raise CheckpointError(
                "it began from other common weights", found=made.base[:12] or "none", expected=base and base.sha256[:12]
            )
        with ExitStack() as stack:
            files = RoundFiles(stack, self.exchange.store)
            require_fit(files.opened(*made.files), files.opened(base) if base else None)

    def _outer_step(self, files: RoundFiles) -> tuple[Blob, Blob | None]:
        """The next common weights, and the momentum where there is any."""
        lr, mu = self.params.outer_lr, self.params.outer_momentum
        sites = {site: files.opened(*made.files) for site, (made, _) in sorted(self._accepted.items())}
        if not self.number:
            _require_same(sites)
            first = next(iter(sites.values()))
            return files.write(first, MASTER, lambda name: first.whole(name, MASTER)), None
        before, _ = self.exchange.round(self.number - 1)
        common = files.opened(before.common)
        velocity = None if before.momentum is None else files.opened(before.momentum)

        def mean(name: str) -> Tensor:
            return mean_of([site.whole(name, MASTER) for site in sites.values()])

        def momentum(name: str) -> Tensor:
            last = None if velocity is None else velocity.whole(name, MOMENTUM)
            return next_momentum(common.whole(name, MASTER), last, mean(name), mu)

        made = files.write(common, MOMENTUM, momentum) if mu else None
        pushed = None if made is None else files.opened(made)

        def weights(name: str) -> Tensor:
            push = None if pushed is None else pushed.whole(name, MOMENTUM)
            return next_common(common.whole(name, MASTER), push, mean(name), lr, mu)

        return files.write(common, MASTER, weights), made


def coordinate(
    coordinator: Coordinator, wait_s: float, tell: Callable[[Round], object], poll_s: float = POLL_S
) -> Round:
    """Make rounds until the runs of all sites that took part in one have ended; returns the last.

    Args:
        wait_s: how long a round waits for further sites once one has sent its weights.
        tell: called with each committed round.

    Raises:
        CheckpointError: a round in which no site's weights can be taken.
    """
    prune(coordinator.exchange, coordinator.params.sites)  # of one that was killed
    while True:
        deadline = float("inf")
        while coordinator.receive() and time.monotonic() < deadline:
            if coordinator.can_commit:
                deadline = min(deadline, time.monotonic() + wait_s)
            time.sleep(min(poll_s, max(0.0, deadline - time.monotonic())))
        made = coordinator.commit()
        tell(made)
        prune(coordinator.exchange, coordinator.params.sites)
        if not {*coordinator.params.sites} - {*made.ended} - {*made.missing}:
            return made


def _require_same(sites: dict[str, ShardedState]) -> None:
    """Raises CheckpointError where a site begins from other weights than the first."""
    (name, first), *others = sites.items()
    for other, state in others:
        if not same_weights(first, state):
            raise CheckpointError(
                f"sites {name} and {other} begin from different weights",
                expected="the same training.seed and model, or the same training.initial",
            )
