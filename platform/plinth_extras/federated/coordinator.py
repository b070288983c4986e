"""Coordinator of a federation: checks contributions, and computes the common weights of the next round.

    contributions of round r ──► checked: signature, base weights, shapes, finite values, digests ─────► outer step
                                    └─► rejected with a reason: the other sites are averaged               │
    rounds/r.json, last ◄──────────────────────────────────────────────────────────────────────────────────┘

All state of the coordinator is in the exchange. After a kill, a round is either committed, or is computed again from
the same files with the same bits. Two coordinators at once are harmless: the record that is written first is kept.

Round 0 has no outer step: the sites' initial weights must be bit-identical, and become the common weights.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from plinth.errors import CheckpointError, PlinthError
from plinth.records import Blob
from plinth.storage import tensor_file
from plinth.storage.store import Store
from plinth.training.checkpoint.sharded_state import FORMAT, MASTER, WHOLE, ShardedState, Share, key_of
from plinth_extras.federated.exchange import Contribution, Exchange, Federated, Round, SignedRecord, now, prune

# The arithmetic of a round: the mean of the sites' weights, and an outer step of Nesterov toward it.
#
#     x   common weights that the sites began from      v   momentum, 0 at first
#     m   mean of the sites' weights                    d   their mean change, m - x
#
#     v' = mu v + d          rounded to FP32
#     x' = m + (lr - 1) d + lr mu v'
#
# This is `torch.optim.SGD(lr, momentum=mu, nesterov=True)` with the gradient -d, which has x + lr (d + mu v'); written
# from the mean, no rounding of m - x comes back: with lr 1 and mu 0 the common weights *are* the mean, and of one site
# its own weights, bit for bit. For the same reason sites send weights, not differences rounded to FP32. Sums are FP64,
# in the order of the sites' names, rounded once. One parameter is in memory at a time.

#: The kind of the outer momentum in its file.
MOMENTUM = "momentum"


def mean_of(sites: Sequence[Tensor]) -> Tensor:
    """Return the mean of the sites' weights for one parameter, in FP64."""
    total = sites[0].double()  # and not 0 + it: a minus zero stays one
    for weights in sites[1:]:
        total = total + weights.double()
    return total / len(sites)


def next_momentum(common: Tensor, momentum: Tensor | None, mean: Tensor, mu: float) -> Tensor:
    """Return the momentum v' of the outer step in FP32 for the next round."""
    change = mean - common.double()
    return (change if momentum is None else mu * momentum.double() + change).float()


def next_common(common: Tensor, momentum: Tensor | None, mean: Tensor, lr: float, mu: float) -> Tensor:
    """Return the common weights x' in FP32 for the next round.

    `momentum` is v', which is needed only if mu is above 0.
    """
    if lr != 1:
        mean = mean + (lr - 1) * (mean - common.double())
    if mu and momentum is not None:
        mean = mean + lr * mu * momentum.double()
    return mean.float()


class RoundFiles:
    """Weight files of a round. They stay open until `stack` is closed."""

    def __init__(self, stack: ExitStack, store: Store) -> None:
        self._stack, self._store = stack, store

    def opened(self, *files: Blob) -> ShardedState:
        """Open weight files as one sharded state.

        Raises:
            CheckpointError, IntegrityError, MissingError: a file is absent, changed, or not a sharded state.
        """
        return ShardedState(self._stack, self._store.root, files=[self._store.open_path(file) for file in files])

    def write(self, like: ShardedState, kind: str, value: Callable[[str], Tensor]) -> Blob:
        """Write a file with one whole tensor for each parameter of `like`, sorted by parameter name."""
        names = sorted(like.names)
        shapes = {name: list(like.shape_of(name)) for name in names}
        keys = {name: key_of(Share(name, tuple(shapes[name]), WHOLE, 0, {}), kind, 0) for name in names}
        sizes = {keys[name]: ("F32", [numel], 4 * numel) for name, numel in _numels(shapes)}
        metadata = {"plinth": json.dumps({"format": FORMAT, "shapes": shapes}, sort_keys=True)}

        def pieces() -> Iterator[memoryview]:
            yield memoryview(tensor_file.header(sizes, metadata))
            for name in names:
                yield value(name).contiguous().view(-1).numpy().data

        with self._store.staging(".safetensors") as path:
            tensor_file.write_chunks(path, pieces())
            return self._store.put_file(Path(path))


def require_fit(state: ShardedState, common: ShardedState | None) -> None:
    """Reject weights that are not finite or do not match the parameters of the common weights.

    Raises:
        CheckpointError: a parameter differs or is not finite; the error names the first such parameter.
    """
    if common is not None and (differing := sorted(state.names ^ common.names)):
        raise CheckpointError("parameters other than those of the common weights", found=", ".join(differing[:3]))
    for name in sorted(state.names):
        if common is not None and state.shape_of(name) != common.shape_of(name):
            raise CheckpointError(f"{name} has shape {state.shape_of(name)}", expected=common.shape_of(name))
        if not state.whole(name, MASTER).isfinite().all():
            raise CheckpointError(f"{name} is not finite")


def same_weights(state: ShardedState, other: ShardedState) -> bool:
    """Return True if the weights of both states are bit-identical."""
    bits = ((one.whole(name, MASTER).view(torch.int32) for one in (state, other)) for name in sorted(state.names))
    return state.names == other.names and all(torch.equal(*pair) for pair in bits)


def _numels(shapes: dict[str, list[int]]) -> list[tuple[str, int]]:
    return [(name, torch.Size(shape).numel()) for name, shape in shapes.items()]


POLL_S = 1.0


class Coordinator:
    """Coordinator of the rounds in an exchange."""

    def __init__(self, exchange: Exchange, params: Federated) -> None:
        self.exchange, self.params = exchange, params
        self.number = exchange.newest() + 1
        self._accepted: dict[str, tuple[Contribution, SignedRecord]] = {}
        self._refused: dict[str, str] = {}
        self._ended = set(exchange.round(self.number - 1)[0].ended) if self.number else set[str]()

    def receive(self) -> list[str]:
        """Check new contributions to the next round; return the sites that have not sent a contribution."""
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
        """True if the next round has at least one accepted contribution."""
        return bool(self._accepted)

    @property
    def _awaited(self) -> list[str]:
        return sorted({*self.params.sites} - {*self._accepted} - {*self._refused} - self._ended)

    def commit(self) -> Round:
        """Average the accepted contributions, and commit the next round.

        Raises:
            CheckpointError: no contribution was accepted (the error lists the reasons), or initial weights differ.
        """
        if not self._accepted:
            raise CheckpointError(
                f"round {self.number} has no weights to average",
                found="; ".join(f"{site}: {reason}" for site, reason in sorted(self._refused.items())),
                expected="an accepted contribution from at least one site",
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
        """Return the round that this or another coordinator has committed, and advance to the round after it."""
        committed, _ = self.exchange.round(self.number)
        self.number, self._accepted, self._refused = self.number + 1, {}, {}
        self._ended = set(committed.ended)
        return committed

    def _judge(self, made: Contribution) -> None:
        """Reject a contribution that must not be averaged.

        Raises:
            CheckpointError: the base weights, parameters or shapes are wrong, or values are not finite.
            IntegrityError, MissingError: a file is missing or was changed.
        """
        base = self.exchange.round(self.number - 1)[0].common if self.number else None
        if made.base != (base.sha256 if base else ""):
            raise CheckpointError(
                "the contribution has other base weights",
                found=made.base[:12] or "none",
                expected=base and base.sha256[:12],
            )
        with ExitStack() as stack:
            files = RoundFiles(stack, self.exchange.store)
            require_fit(files.opened(*made.files), files.opened(base) if base else None)

    def _outer_step(self, files: RoundFiles) -> tuple[Blob, Blob | None]:
        """Write the next common weights. If the outer step has momentum, also write the next momentum."""
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
    """Commit rounds until the runs of all participating sites have ended; return the last round.

    Args:
        wait_s: seconds to wait for other sites after the first site has sent its weights.
        tell: called with each committed round.

    Raises:
        CheckpointError: a round has no valid contribution.
    """
    prune(coordinator.exchange, coordinator.params.sites)  # left by a killed coordinator
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
    """Check that all sites have the same initial weights.

    Raises:
        CheckpointError: a site's initial weights differ from those of the first site.
    """
    (name, first), *others = sites.items()
    for other, state in others:
        if not same_weights(first, state):
            raise CheckpointError(
                f"sites {name} and {other} begin from different weights",
                expected="the same `training.seed` and `training.model`, or the same `training.initial`, at all sites",
            )
