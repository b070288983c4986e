"""Process of a node that stores copies of the states of its own ranks and of a neighbor's ranks in memory.

    rank ── put ──▶ keeper of its own node, and keeper of the next node
    rank ◀── get ── after a failure, from whichever has the copy

Started by the node's supervisor as `python -m plinth.training.recovery.keeper EVERYWHERE PORT` (0: any port), with the
job's secret on standard input. It prints its port, and ends with its supervisor. Killed ranks do not affect it.

It keeps the two newest complete copies of each rank. A copy that is still arriving is not visible. Two are enough: a
rank begins a step that is followed by a copy only after its previous copy has arrived everywhere, and no rank ends the
step before all have begun it, so all ranks have at least one copy in common.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from plinth import processes
from plinth.errors import LaunchError
from plinth.records import Frozen
from plinth.training import wire
from plinth.training.supervise.rank_watch import SUPERVISOR, die_with_supervisor

#: Number of complete copies of each rank.
KEPT = 2

#: Minimum seconds between two starts of a node's keeper.
PAUSE_S = 2.0

#: Number of keepers that node 0 queries at once.
AT_ONCE = 32


class CopyName(Frozen):
    """Name of a copy: the rank, the step after which it was taken, the number of rollbacks before it, and the order by
    which its rank had joined. Copies of the same step from before and after a recovery are not restored together,
    because a run without deterministic kernels may have another state then."""

    rank: int
    step: int
    rollbacks: int = 0
    history: int = 0


@dataclass(eq=False)
class StoredCopy:
    """A complete copy. Its bytes are the first `size` of a block. `readers` counts the answers that send it."""

    name: CopyName
    plan: dict[str, Any]
    block: bytearray
    size: int
    readers: int = 0


class Keeper:
    """Copies by rank, the newest last."""

    def __init__(self) -> None:
        self._copies: dict[int, list[StoredCopy]] = defaultdict(list)
        self._dropped: dict[int, bytearray] = {}  # rank -> block that its next copy may fill
        self._lock = threading.Lock()

    def handle(self, connection: Connection) -> None:
        """Answer the requests of one connection until it is closed."""
        while True:
            request = wire.receive(connection)
            match request.pop("do"):
                case "put":
                    self._put(connection, **request)
                case "get":
                    self._get(connection, CopyName.model_validate(request))
                case "list":
                    found = [{"name": name.model_dump(), "sha256": digest} for name, digest in self.listed()]
                    wire.send(connection, {"copies": found})

    def listed(self) -> list[tuple[CopyName, str]]:
        """Return the names of all complete copies, and the digests that their ranks have sent with them."""
        with self._lock:
            return [(one.name, one.plan.get("sha256", "")) for copies in self._copies.values() for one in copies]

    def _put(self, connection: Connection, name: dict[str, Any], size: int) -> None:
        stored = CopyName.model_validate(name)
        block = self._block(stored.rank, size)
        with memoryview(block) as view:
            wire.receive_block(connection, view[:size])
        plan = wire.receive(connection)
        with self._lock:
            copies = self._copies[stored.rank]
            if all(one.name.history <= stored.history for one in copies):  # else it was sent before a recovery
                kept = [one for one in copies if one.name.step < stored.step]  # others belong to a state left behind
                self._copies[stored.rank] = [*kept[1 - KEPT :], StoredCopy(stored, plan, block, size)]
                gone = [one.block for one in set(copies) - set(self._copies[stored.rank]) if not one.readers]
                if gone:
                    self._dropped[stored.rank] = gone[0]
        wire.send(connection, {"stored": True})

    def _block(self, rank: int, size: int) -> bytearray:
        """Return memory for a copy. That of a dropped copy is filled again, which costs a third of new memory."""
        with self._lock:
            block = self._dropped.pop(rank, None)
        return block if block is not None and size <= len(block) <= 2 * size else bytearray(size + size // 64)

    def _get(self, connection: Connection, name: CopyName) -> None:
        with self._lock:
            found = next((one for one in self._copies[name.rank] if one.name == name), None)
            if found is not None:
                found.readers += 1
        if found is None:
            wire.send(connection, {"plan": None})
            return
        try:
            wire.send(connection, {"plan": found.plan, "size": found.size})
            with memoryview(found.block) as view:
                wire.send_block(connection, view[: found.size])
        finally:
            with self._lock:
                found.readers -= 1


class KeeperProcess:
    """The keeper of this node, started by its supervisor.

    Args:
        host: address of this machine for the other nodes; empty if there are none.
    """

    def __init__(self, secret: str, host: str = "") -> None:
        self.secret, self._host = secret, host
        self._process = self._start(0)
        try:
            self._port = int(self._process.stdout.readline())
        except (OSError, ValueError) as error:
            raise LaunchError(
                "the process that stores copies in memory has not started",
                found=f"exit status {self._process.wait()}",
                remedy="read the job's log, or set `training.recovery.copies_every: 0`",
            ) from error
        self.address = f"{host or '127.0.0.1'}:{self._port}"

    def tend(self) -> None:
        """Start the process again if it has ended, at the same address. The ranks' next copies arrive there."""
        if self._process.poll() is not None and time.monotonic() - self._started > PAUSE_S:
            self.close()
            self._process = self._start(self._port)

    def close(self) -> None:
        """End the process and free its memory."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()

    def _start(self, port: int) -> Any:
        command = processes.python("plinth.training.recovery.keeper", str(int(bool(self._host))), str(port))
        own = {SUPERVISOR: str(os.getpid())}
        process = processes.start(command, own=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._started = time.monotonic()
        with suppress(OSError):  # it has ended already
            process.stdin.write(self.secret.encode() + b"\n")
            process.stdin.flush()
        return process


def listed(addresses: Sequence[str], secret: str) -> dict[CopyName, str]:
    """Return the names and digests of the copies at all keepers that answer. Many requests run at once."""
    found: dict[CopyName, str] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for copies in pool.map(partial(_listed, secret=secret), addresses):
            found |= copies
    return found


def _listed(address: str, secret: str) -> dict[CopyName, str]:
    try:
        with wire.connect(address, secret, timeout_s=2.0) as connection:
            wire.send(connection, {"do": "list"})
            copies = wire.receive(connection)["copies"]
            return {CopyName.model_validate(one["name"]): one["sha256"] for one in copies}
    except wire.FAILURES:
        return {}  # the keeper's node is lost


def newest_common(found: Collection[CopyName], ranks: int, rollbacks: int) -> tuple[int, int] | None:
    """Return step and history of the newest copies with this number of rollbacks that every rank has, or None."""
    having: dict[tuple[int, int], set[int]] = defaultdict(set)
    for one in found:
        if one.rollbacks == rollbacks:
            having[one.step, one.history].add(one.rank)
    return max((common for common, known in having.items() if len(known) == ranks), default=None)


def main() -> int:
    """Serve copies until the supervisor ends."""
    die_with_supervisor()
    secret = sys.stdin.readline().strip()
    server = wire.MessageServer(secret, Keeper().handle, everywhere=sys.argv[1] == "1", port=int(sys.argv[2]))
    print(server.port, flush=True)
    while sys.stdin.readline():  # ends with the supervisor
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
