"""A rank's connection to node 0's supervisor: heartbeat, interruption of collectives, and the order to continue.

    main thread     steps ── collective fails, or is cut ── tears down ── "halted" ── waits ── joins again, restores
                    ── "restored" ── waits until the supervisor has attested the state ── steps
    agent's thread  beat … "halt" ─▶ cut                                    "continue" ─┘

A lost rank makes collectives of its neighbors fail, but not all: two ranks may wait for each other in different groups,
and gloo cannot abort. So the agent shuts down the sockets that the process groups have opened. Every collective then
fails at once, on every rank, and the groups can be freed.

Only gloo is interrupted. With NCCL all ranks are restarted, and only their state comes from memory.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TypeVar

from torch.distributed import DistError

from plinth.training.engine.ranks import Rank
from plinth.training.peers import BEAT_S, PeerLink
from plinth.training.recovery.orders import JoinOrder, RankPhase, RankState, RecoveryLink
from plinth.training.wire import Message

#: Seconds between two attempts to interrupt the collectives of a rank.
CUT_S = 0.2

#: Seconds that a rank whose collective has failed waits for the supervisor to name the loss.
NAMED_WITHIN_S = 25.0

_Result = TypeVar("_Result")


class Agent:
    """Agent of one rank. Its thread runs until the process ends."""

    def __init__(self, link: RecoveryLink, rank: int, *, in_process: bool) -> None:
        """Start the thread. `in_process` is True if this rank can form new process groups."""
        self._link = link
        self._phase: RankPhase = "starting"
        self._changed = threading.Condition()
        self._halted = self._joined = link.first.epoch  # epoch of the last halt, and of the groups
        self._restored, self._attested = (0, ""), link.first.epoch - 1  # epoch of the last state that was attested
        self._order: JoinOrder | None = link.first if link.first.epoch == 0 else None
        self.sockets = GroupSockets()
        self._hub = PeerLink(rank, self._state, self._take, self._pause_s, in_process=in_process)
        threading.Thread(target=self._follow, name="plinth-recovery", daemon=True).start()

    @property
    def secret(self) -> str:
        return self._link.secret

    def restored(self, order: JoinOrder, step: int, digest: str) -> None:
        """Report the step and the digest of the state that was restored, and wait until the supervisor has attested
        it.

        Raises:
            RuntimeError: another rank is lost.
        """
        if order.continues:
            self._restored = step, digest
            self._report("restored")
            with self._changed:
                self._changed.wait_for(lambda: max(self._attested, self._halted - 1) >= order.epoch)
                if self._halted > order.epoch:
                    raise RuntimeError("another rank is lost")
        self._report("running")

    def done(self) -> None:
        """Report that this rank ends in order."""
        self._report("done")

    def require_interrupted(self, error: BaseException) -> None:
        """Return if the supervisor has named a loss that explains a failed collective. Otherwise raise the error.

        Raises:
            BaseException: the error, because it is not that of a collective, or no loss was named in time.
        """
        limit_s = NAMED_WITHIN_S if isinstance(error, DistError) or "gloo" in str(error) else BEAT_S
        with self._changed:
            if not self._changed.wait_for(lambda: self._halted > self._joined, limit_s):
                raise error

    def next(self) -> JoinOrder:
        """Report that this rank has left its process groups. Wait for the order to join new ones, and return it."""
        self._report("halted")
        with self._changed:
            while self._order is None or self._order.epoch < self._halted:
                self._changed.wait()
            self._joined = self._order.epoch
            self._phase = "starting"
            return self._order

    def _report(self, phase: RankPhase) -> None:
        with self._changed:
            self._phase = phase
        self._hub.report()

    def _state(self) -> Message:
        with self._changed:
            step, digest = self._restored
            return RankState(phase=self._phase, epoch=self._halted, step=step, restored=digest).model_dump()

    def _follow(self) -> None:
        """Stay connected to the hub. If the supervisor has ended, the kernel ends this process too."""
        while True:
            self._hub.hold(self._link.hub, self.secret)

    def _pause_s(self, connection: Connection) -> float:
        """Interrupt the collectives if a loss was named, again and again, because groups may just be forming."""
        if self.must_leave():
            self.sockets.cut(connection.fileno())
        return CUT_S if self.must_leave() else BEAT_S

    def must_leave(self) -> bool:
        """Return True if a loss was named and the main thread has not left its process groups yet."""
        return self._halted > self._joined and self._phase != "halted"

    def _take(self, message: Message) -> None:
        match message["do"]:
            case "halt":
                with self._changed:
                    if message["epoch"] <= self._halted:
                        return
                    self._halted = message["epoch"]
                    self._changed.notify_all()
                if self._phase == "halted":
                    self._hub.report()  # it has no groups: it has halted for this loss too
            case "attested":
                with self._changed:
                    self._attested = message["epoch"]
                    self._changed.notify_all()
            case "continue":
                with self._changed:
                    self._order = JoinOrder.model_validate(message["order"])
                    self._changed.notify_all()


def recovery_agent(rank: Rank) -> Agent | None:
    """Start the agent of this process, or return None if the run does not recover from memory."""
    link = RecoveryLink.of(os.environ)
    return None if link is None else Agent(link, rank.index, in_process=rank.device.type == "cpu")


class GroupSockets:
    """The TCP sockets of this process's groups and their store: those opened between `begin` and `end`.

    Until `end`, all sockets opened since `begin` count, except those opened in `apart`.
    """

    def __init__(self) -> None:
        self._before: frozenset[str] = frozenset()
        self._own: frozenset[str] | None = frozenset()

    def begin(self) -> None:
        """Call this before the first process group is formed."""
        self._before, self._own = frozenset(_open_sockets()), None

    def apart(self, work: Callable[[], _Result]) -> _Result:
        """Return the result of work that opens sockets of its own, such as the loader's connections to a bucket."""
        before = _open_sockets().keys()
        result = work()
        self._before |= _open_sockets().keys() - before
        return result

    def end(self) -> None:
        """Call this once all process groups are formed."""
        self._own = frozenset(_open_sockets()) - self._before

    def cut(self, spared: int = -1) -> int:
        """Shut down the connections of the groups, so that every collective fails. Return their number.

        Args:
            spared: descriptor of a socket that is not cut.
        """
        count = 0
        for name, descriptor in _open_sockets().items():
            ours = name not in self._before if self._own is None else name in self._own
            if ours and descriptor != spared:
                with suppress(OSError):  # closed meanwhile, or it only listens
                    count += _shut_down(name, descriptor)
        return count


def _open_sockets() -> dict[str, int]:
    """Return the descriptor of each open socket, by its name in the kernel, which is not reused while it is open."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            name = os.readlink(f"/proc/self/fd/{number}")
            if name.startswith("socket:"):
                found[name] = int(number)
    return found


def _shut_down(name: str, descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as opened:
        if os.readlink(f"/proc/self/fd/{opened.fileno()}") != name:
            return False  # another thread has closed the socket, and opened something else
        internet = opened.family in (socket.AF_INET, socket.AF_INET6)
        if not internet or opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        opened.shutdown(socket.SHUT_RDWR)
        return True
