"""Detection of lost ranks by node 0's supervisor, and the order in which the others continue.

    running ── a rank is lost ──▶ halting ── all have left their groups ──▶ joining ── all take steps ──▶ running
                                    ▲                                         │
                                    └──────────── another loss ───────────────┘

Before the first step, the supervisor attests the state that the ranks have restored.

A loss is detected by the exit of the process, by a connection that stays closed, or by a silent heartbeat. The lost
rank is started again, while the others leave their groups. Then all continue after the newest step of which every rank
has a copy, or from the newest checkpoint if that is newer.

A named failure of a rank, a device without this support, a recovery that takes too long, or too many recoveries without
a new step are left to the supervisor, which restarts all ranks. Their state comes from the same copies.
"""

from __future__ import annotations

import time
from typing import Literal

from plinth import processes
from plinth.training.checkpoint import checkpoint, writer
from plinth.training.checkpoint.rank_part import digest_of_lines
from plinth.training.checkpoint.selection import rollbacks_of
from plinth.training.peers import Peers
from plinth.training.recovery import keeper
from plinth.training.recovery.keeper import CopyName
from plinth.training.recovery.orders import JoinOrder, RankPhase, RankState, RecoveryLink
from plinth.training.supervise.job_ranks import JobRanks
from plinth.training.supervise.nodes import end_standby, keep_standby
from plinth.training.supervise.rank_watch import EXIT_PREEMPTED, Process, describe_exit

#: Exit statuses of a rank that has not failed.
_IN_ORDER = (None, 0, EXIT_PREEMPTED)

#: Number of times that the same copies are restored if no new step follows; then the newest checkpoint is loaded.
TRIES = 2

#: Seconds that ranks may take to leave their groups. Then their writers stop waiting for other machines: a rank may
#: wait for the commit of a save of which a lost rank's part will not arrive.
HALT_S = 10.0

Stage = Literal["running", "halting", "joining"]


class RecoveryCoordinator:
    """Recoveries of one job."""

    def __init__(self, ranks: JobRanks) -> None:
        self._job, self._leader, self._log, self._config = ranks, ranks.leader, ranks.log, ranks.config
        host = ranks.place.address if ranks.place.nodes > 1 else ""  # for other nodes, if there are any
        self._host, self._secret = host or "127.0.0.1", ranks.leader.secret
        self._hub = Peers(self._secret, RankState(), self._ranks, everywhere=bool(host))
        self._keeper, self._standby = keeper.KeeperProcess(self._secret, host), keep_standby()
        self._keepers: tuple[str, ...] = ()
        self._stage: Stage = "running"
        self._epoch, self._begun, self._fruitless, self._seen = 0, 0.0, 0, -1
        self._reasons: list[str] = []
        self._given_up = True
        self._writers_told = False  # to wait no longer for other machines
        self._copies = ""  # digest of the copies that the last order names
        self._unattested = False  # True until the state of the ranks that continue is attested
        self._history = 0  # of the last order
        self._source: tuple[int | None, int, int] | None = None  # step and history restored last, and the highest step
        self._times = 0  # that it was restored

    @property
    def _ranks(self) -> range:
        return range(self._config.ranks)

    def begin(self) -> RecoveryLink:
        """Prepare an attempt: all ranks start. Return their link."""
        self._stage, self._epoch, self._given_up = "running", 0, False
        self._hub.reset()
        return self._link(self._chosen(self._continuation(0)))

    def newest(self) -> int | None:
        """Return the step of the copies from which an attempt would start now, or None if from a checkpoint."""
        return self._continuation(0).step

    def tend(self, ranks: list[Process]) -> None:
        """Detect losses and advance the recovery. Call this several times per second."""
        self._keeper.tend()
        if self._given_up:
            return
        lost = self._lost(ranks)
        late = self._stage != "running" and time.monotonic() - self._begun > self._config.recovery.limit_s
        if lost and not late and self._can_recover(ranks):
            self._halt(lost)
        elif lost or late:
            self._give_up(ranks)
        elif self._unattested and self._all("restored"):
            self._attest(ranks)
        elif self._stage == "halting" and self._all("halted"):
            self._continue()
        elif self._stage == "halting" and not self._writers_told and time.monotonic() - self._begun > HALT_S:
            self._writers_told = True
            writer.give_up(self._config.directory)
        elif self._stage == "joining" and self._all("running"):
            self._stage = "running"

    def close(self) -> None:
        """End this node's keeper and its waiting process."""
        self._hub.close()
        self._keeper.close()
        end_standby(self._standby)

    def _lost(self, ranks: list[Process]) -> dict[int, str]:
        """Return the ranks that are lost now, with the reasons. Nothing counts before all ranks have started."""
        found: dict[int, str] = {}
        limits = self._config.recovery
        for rank, process in enumerate(ranks):
            code, known = process.poll(), self._hub.known(rank)
            if code not in _IN_ORDER:
                found[rank] = describe_exit(rank, code)
            elif code is None and known is not None and known.state.phase != "done" and self._leader.is_reachable(rank):
                silence = known.silence(limits.closed_s, limits.silent_s)
                if silence:
                    found[rank] = f"rank {rank} {silence}"
        return found

    def _can_recover(self, ranks: list[Process]) -> bool:
        """Return True if the ranks can continue without a restart of all."""
        known = [self._hub.known(rank) for rank in self._ranks]
        started = self._stage != "running" or self._all("running")
        capable = all(one.hello["in_process"] for one in known if one is not None)
        named = any(process.poll() in range(2, 9) for process in ranks)
        fruitful = self._fruitless < self._config.supervision.max_restarts
        return started and capable and not named and fruitful and not self._leader.lacks_spares()

    def _halt(self, lost: dict[int, str]) -> None:
        """Have the other ranks leave their groups, and start the lost ranks again."""
        highest = self._log.highest()
        self._fruitless, self._seen = self._fruitless + 1 if highest <= self._seen else 1, highest
        if self._stage == "running":
            self._begun, self._reasons = time.monotonic(), []
        self._epoch, self._stage, self._unattested, self._writers_told = self._epoch + 1, "halting", False, False
        self._reasons += lost.values()
        for rank in lost:
            self._hub.forget(rank)
        self._hub.tell({"do": "halt", "epoch": self._epoch})
        self._job.replace(sorted(lost), self._link(JoinOrder(epoch=self._epoch)))

    def _continue(self) -> None:
        """Choose the state, and order all ranks to join."""
        run, order = self._config.directory, self._continuation(self._epoch)
        if order.step is None:
            if writer.alive(run):
                return  # a writer may still commit the state that every rank had staged
            checkpoint.clean(run)
            order = self._continuation(self._epoch)
        self._log.recovered("; ".join(self._reasons), order.step or max(checkpoint.committed(run), default=0))
        self._hub.tell({"do": "continue", "order": self._chosen(order).model_dump()}, also=True)
        self._stage = "joining"

    def _continuation(self, epoch: int) -> JoinOrder:
        """Return the order to continue after the newest step that every rank can restore from memory, unless the newest
        checkpoint is newer. A step that is not on the timeline, which a lost node 0 has not shipped, is taken again."""
        rollbacks = len(rollbacks_of(self._config))
        self._keepers = (self._keeper.address, *self._leader.keepers())
        known = keeper.listed([one for one in self._keepers if one], self._secret)
        highest = self._log.highest()
        logged = [name for name in known if name.step <= highest]
        step, restored = keeper.newest_common(logged, self._config.ranks, rollbacks) or (None, 0)
        if step is not None and (
            step < max(checkpoint.committed(self._config.directory), default=0)
            or (self._times >= TRIES and self._source == (step, restored, highest))
        ):
            step = None
        # copies may be those of a lost node 0, whose orders were counted there
        self._history = max([self._history, *(name.history for name in known)]) + 1
        wanted = [CopyName(rank=rank, step=step or 0, rollbacks=rollbacks, history=restored) for rank in self._ranks]
        self._copies = digest_of_lines(f"{known[name]}\n" for name in wanted) if step is not None else ""
        return JoinOrder(
            epoch=epoch,
            attempt=self._log.attempt + (epoch > 0),
            address=self._host,
            port=processes.free_port(),
            keepers=self._keepers,
            history=self._history,
            step=step,
            rollbacks=rollbacks,
            restored=restored,
        )

    def _chosen(self, order: JoinOrder) -> JoinOrder:
        """Count how often the same copies are restored without a new step, and return the order."""
        source = order.step, order.restored, self._log.highest()
        self._times = self._times + 1 if source == self._source else 1
        self._source = source
        self._unattested = order.continues
        return order

    def _link(self, first: JoinOrder) -> RecoveryLink:
        return RecoveryLink(hub=f"{self._host}:{self._hub.port}", secret=self._secret, first=first)

    def _all(self, phase: RankPhase) -> bool:
        known = [self._hub.known(rank) for rank in self._ranks]
        return all(one is not None and (one.state.phase, one.state.epoch) == (phase, self._epoch) for one in known)

    def _attest(self, ranks: list[Process]) -> None:
        """Have the state that all ranks have restored attested, and let them take steps. A state that differs from the
        copies is not attested: all ranks restart."""
        leading = self._hub.known(0)
        assert leading is not None
        step, restored = leading.state.step, leading.state.restored
        if restored not in ("", self._copies):
            self._give_up(ranks)
            return
        self._job.attest_state(step, self._copies if restored else "", restored)  # else a copy was damaged
        self._unattested = False
        self._hub.tell({"do": "attested", "epoch": self._epoch}, also=True)

    def _give_up(self, ranks: list[Process]) -> None:
        """Leave the loss to the supervisor: end the ranks that wait for an order."""
        self._given_up = True
        if self._stage != "running" or self._unattested:
            for process in ranks:
                if process.poll() is None:
                    process.send_signal(9)
