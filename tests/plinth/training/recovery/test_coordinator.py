"""Losses as node 0's supervisor sees them: exits, closed connections, silence; two at once; those it cannot recover."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from plinth.training import wire
from plinth.training.checkpoint.rank_part import digest_of_lines
from plinth.training.config import RunConfig
from plinth.training.parameters.run import Recovery
from plinth.training.recovery.coordinator import RecoveryCoordinator
from plinth.training.recovery.keeper import CopyName
from plinth.training.recovery.orders import RecoveryLink
from plinth.training.supervise.nodes import NodePlace
from plinth.training.supervise.rank_watch import NODE_LOST, Process

Make = Callable[..., RunConfig]
PATIENCE_S = 60.0


class FakeRank:
    """A process of a rank, as the supervisor and the hub see it."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.connection: Connection | None = None
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.code

    def wait(self) -> int:
        return self.code or 0

    def send_signal(self, sig: int) -> None:
        self.signals.append(sig)

    def connect(self, link: RecoveryLink, rank: int, *, in_process: bool = True) -> FakeRank:
        self.connection = wire.connect(link.hub, link.secret)
        wire.send(self.connection, {"number": rank, "process": f"{id(self)}", "in_process": in_process})
        return self

    def say(self, phase: str, epoch: int, **more: Any) -> None:
        assert self.connection is not None
        wire.send(self.connection, {"phase": phase, "epoch": epoch, **more})

    def hear(self) -> dict[str, Any]:
        """Return the next message that is not just an answer."""
        assert self.connection is not None
        while not (message := wire.receive(self.connection)):
            pass
        return message

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


class Job:
    """A coordinator with fake ranks."""

    def __init__(self, config: RunConfig) -> None:
        self.replaced: list[tuple[list[int], RecoveryLink]] = []
        self.recoveries: list[tuple[str, int]] = []
        self.steps, self.attempt = 7, 1
        self.attested: list[tuple[int, str, str]] = []
        self.unreachable: set[int] = set()
        self.without_spares = False
        self.config, self.place, self.secret = config, NodePlace(), "secret"
        self.leader = self.log = self
        self.coordinator = RecoveryCoordinator(self)
        self.ranks: list[FakeRank] = [FakeRank() for _ in range(config.ranks)]
        self.link = self.coordinator.begin()
        self.all_ranks = list(self.ranks)

    def lacks_spares(self) -> bool:
        return self.without_spares

    def is_reachable(self, rank: int) -> bool:
        return rank not in self.unreachable

    def keepers(self) -> tuple[str, ...]:
        return ()

    def attest_state(self, step: int, copies: str, restored: str) -> None:
        self.attested.append((step, copies, restored))

    def highest(self) -> int:
        return self.steps

    def recovered(self, reason: str, step: int) -> None:
        self.recoveries.append((reason, step))

    def replace(self, ranks: list[int], link: RecoveryLink) -> None:
        self.replaced.append((ranks, link))
        for rank in ranks:
            self.ranks[rank] = FakeRank()
            self.all_ranks.append(self.ranks[rank])

    def start(self, **options: bool) -> Job:
        for number, rank in enumerate(self.ranks):
            rank.connect(self.link, number, **options).say("running", 0)
        return self

    def tend(self) -> None:
        processes: list[Process] = list(self.ranks)
        self.coordinator.tend(processes)

    def until(self, condition: Callable[[], object]) -> None:
        """Tend, as the supervisor does several times per second, until something has happened."""
        limit = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < limit, "it did not happen"
            self.tend()
            time.sleep(0.01)

    def put(self, *names: CopyName) -> None:
        with wire.connect(self.coordinator._keeper.address, "secret") as connection:
            for name in names:
                wire.send(connection, {"do": "put", "name": name.model_dump(), "size": 0})
                wire.send(connection, {"sha256": f"{name.rank}-{name.step}"})
                wire.receive(connection)

    def running(self) -> None:
        """Tend until all ranks have been heard as running, and once more."""
        self.until(lambda: self.coordinator._all("running"))
        self.tend()


@pytest.fixture
def job(make: Make) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def opened(**limits: float) -> Job:
        made.append(Job(make(recovery=Recovery(copies_every=2, **{"silent_s": 900.0, "closed_s": 900.0, **limits}))))
        return made[-1]

    yield opened
    for one in made:
        one.coordinator.close()
        for rank in one.all_ranks:
            rank.close()


def test_a_killed_rank_is_replaced_and_all_continue_after_the_newest_common_step(job: Callable[..., Job]) -> None:
    one = job().start()
    one.put(*(CopyName(rank=rank, step=step) for rank in (0, 1) for step in (2, 4)), CopyName(rank=0, step=6))
    one.running()
    one.ranks[1].code = -9
    one.tend()
    ((ranks, link),) = one.replaced
    assert (ranks, link.first.epoch) == ([1], 1)
    assert one.ranks[0].hear() == {"do": "halt", "epoch": 1}
    one.ranks[0].say("halted", 1)
    one.ranks[1].connect(link, 1).say("halted", 1)
    one.until(lambda: one.recoveries)
    assert one.recoveries == [("rank 1 was killed by SIGKILL", 4)]
    order = one.ranks[0].hear()["order"]
    assert (order["epoch"], order["step"], order["rollbacks"]) == (1, 4, 0)
    assert one.ranks[1].hear() == {"do": "halt", "epoch": 1}  # said before it connected
    assert one.ranks[1].hear()["order"] == order
    digest = digest_of_lines(["0-4\n", "1-4\n"])
    for rank in one.ranks:
        assert one.attested == []
        rank.say("restored", 1, step=4, restored=digest)
        one.tend()
    one.until(lambda: one.attested)
    assert one.attested == [(4, digest, digest)]
    for rank in one.ranks:
        assert rank.hear() == {"do": "attested", "epoch": 1}
        rank.say("running", 1)
    one.running()
    assert one.replaced == [([1], link)]


def test_copies_that_lead_to_no_new_step_are_restored_twice_then_the_checkpoint_is_loaded(
    job: Callable[..., Job],
) -> None:
    one = job()
    one.put(CopyName(rank=0, step=4), CopyName(rank=1, step=4))
    starts = [one.coordinator.begin().first for _ in range(3)]
    assert [order.step for order in starts] == [4, 4, None]
    assert len({order.history for order in starts}) == 3
    one.steps += 1
    assert one.coordinator.newest() == 4


def test_a_second_loss_during_a_recovery_begins_it_again(job: Callable[..., Job]) -> None:
    """Also of the replacement itself, and of the rank that has already halted."""
    one = job().start()
    one.running()
    one.ranks[1].code = -9
    one.tend()
    one.ranks[0].say("halted", 1)
    one.ranks[1].code = 1  # before it connects
    one.tend()
    one.ranks[0].code = -9
    one.tend()
    assert [(ranks, link.first.epoch) for ranks, link in one.replaced] == [([1], 1), ([1], 2), ([0], 3)]
    for number, rank in enumerate(one.ranks):
        rank.connect(one.replaced[-1][1], number).say("halted", 3)
    one.until(lambda: one.recoveries)
    ((reason, step),) = one.recoveries
    assert reason == "rank 1 was killed by SIGKILL; rank 1 ended with status 1; rank 0 was killed by SIGKILL"
    assert step == 0  # neither a copy nor a checkpoint: from the beginning


def test_a_closed_connection_and_silence_are_losses(job: Callable[..., Job]) -> None:
    closed = job(closed_s=0.05).start()
    closed.running()
    closed.ranks[1].close()
    closed.until(lambda: closed.replaced)
    closed.ranks[0].say("halted", 1)
    closed.ranks[1].connect(closed.link, 1).say("halted", 1)
    closed.until(lambda: closed.recoveries)
    assert closed.recoveries[0][0] == "rank 1 has no connection"

    silent = job(silent_s=3.0).start()

    def beat() -> bool:
        silent.ranks[0].say("running", 0)
        return bool(silent.replaced)

    silent.until(beat)
    assert [ranks for ranks, _ in silent.replaced] == [[1]]


def test_a_rank_that_connects_again_is_the_same(job: Callable[..., Job]) -> None:
    one = job(closed_s=300.0).start()
    one.running()
    one.ranks[1].close()
    one.ranks[1].connect(one.link, 1)
    one.running()
    assert one.replaced == []


def test_silence_of_a_rank_whose_node_has_no_connection_says_nothing_yet(job: Callable[..., Job]) -> None:
    """Its node is connected again, or lost: then its place is that of a spare, or the supervisor ends the job."""
    one = job(closed_s=0.05).start()
    one.running()
    one.unreachable, one.without_spares = {1}, True
    one.ranks[1].close()
    limit = time.monotonic() + 1.0
    one.until(lambda: time.monotonic() > limit)
    assert one.replaced == []
    one.ranks[1].code = NODE_LOST
    one.tend()
    assert one.replaced == []
    assert one.coordinator._given_up


@pytest.mark.parametrize("why", ["another state", "silence"])
def test_ranks_that_wait_for_an_attestation_are_ended_if_there_will_be_none(job: Callable[..., Job], why: str) -> None:
    """A state that differs from the copies is not signed: verifiers would refuse all attestations of the run."""
    one = job(closed_s=0.05)
    one.put(CopyName(rank=0, step=4), CopyName(rank=1, step=4))
    one.link = one.coordinator.begin()
    for number, rank in enumerate(one.ranks):
        rank.connect(one.link, number).say("restored", 0, step=4, restored="another")
    if why == "silence":
        one.ranks[1].close()
    one.until(lambda: one.coordinator._given_up)
    assert one.attested == []
    assert [rank.signals for rank in one.ranks] == [[9], [9]]


@pytest.mark.parametrize("why", ["named", "device", "starting", "slow"])
def test_what_is_left_to_the_supervisor(job: Callable[..., Job], why: str) -> None:
    one = job(limit_s=0.05 if why == "slow" else 300.0)
    if why != "starting":
        one.start(in_process=why != "device")
        one.running()
    one.ranks[1].code = 7 if why == "named" else -9
    one.tend()
    if why == "slow":
        one.until(lambda: one.ranks[0].signals)
        assert one.ranks[0].signals == [9]
    else:
        assert one.replaced == []
        assert one.ranks[0].signals == []  # the supervisor ends them
    before = len(one.replaced)
    one.ranks[0].code = -9
    one.tend()
    assert len(one.replaced) == before


def test_recoveries_without_a_new_step_are_limited(job: Callable[..., Job]) -> None:
    one = job().start()
    one.running()
    for epoch in range(1, 10):
        one.ranks[1].code = -9
        one.tend()
        if len(one.replaced) < epoch:
            break
        one.ranks[0].say("halted", epoch)
        one.ranks[1].connect(one.replaced[-1][1], 1).say("halted", epoch)
        one.until(lambda epoch=epoch: len(one.recoveries) == epoch)
        for rank in one.ranks:
            rank.say("restored", epoch)
        one.until(lambda epoch=epoch: len(one.attested) == epoch)
        for rank in one.ranks:
            rank.say("running", epoch)
        one.running()
    assert len(one.replaced) == 3  # supervision.max_restarts


def test_a_step_that_is_not_on_the_timeline_is_taken_again(job: Callable[..., Job]) -> None:
    """A lost node 0 may not have shipped the last events. Later copies follow those of earlier orders."""
    made = job()
    made.put(*[CopyName(rank=rank, step=step, history=4) for rank in (0, 1) for step in (6, 8)])
    first = made.coordinator.begin().first
    assert (made.steps, first.step, first.restored, first.history) == (7, 6, 4, 5)
    made.steps = 8
    assert (made.coordinator.newest(), made.coordinator.begin().first.step) == (8, 8)
