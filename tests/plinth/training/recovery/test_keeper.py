"""Copies in a keeper's memory: only whole ones, only the newest two, only for those who know the job's secret."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection

import pytest

from plinth.training import wire
from plinth.training.recovery import keeper as keepers
from plinth.training.recovery.keeper import CopyName, Keeper, KeeperProcess, listed, newest_common

LARGE = 9_000_001


@pytest.fixture
def keeper() -> Iterator[tuple[str, Keeper]]:
    made = Keeper()
    server = wire.MessageServer("secret", made.handle, everywhere=False)
    yield f"127.0.0.1:{server.port}", made
    server.close()


def put(connection: Connection, name: CopyName, data: bytes, *, whole: bool = True) -> None:
    wire.send(connection, {"do": "put", "name": name.model_dump(), "size": len(data)})
    wire.send_block(connection, memoryview(data if whole else data[: len(data) // 2]))
    if whole:
        wire.send(connection, {"of": name.step})
        assert wire.receive(connection) == {"stored": True}


def stored(keeper: Keeper) -> list[CopyName]:
    return [name for name, _ in keeper.listed()]


def get(address: str, name: CopyName) -> bytes | None:
    with wire.connect(address, "secret") as connection:
        wire.send(connection, {"do": "get", **name.model_dump()})
        found = wire.receive(connection)
        if found["plan"] is None:
            return None
        block = bytearray(found["size"])
        wire.receive_block(connection, memoryview(block))
        return bytes(block)


def test_the_two_newest_whole_copies_of_a_rank_are_kept(keeper: tuple[str, Keeper]) -> None:
    address, made = keeper
    names = [CopyName(rank=0, step=step) for step in (2, 4, 6)]
    data = [os.urandom(LARGE), b"", b"abc"]  # more than a socket holds, nothing, a little
    with wire.connect(address, "secret") as connection:
        for name, content in zip(names, data, strict=True):
            put(connection, name, content)
        put(connection, CopyName(rank=1, step=2), b"other")
    assert [get(address, name) for name in names] == [None, *data[1:]]
    assert stored(made) == [*names[1:], CopyName(rank=1, step=2)]
    with wire.connect(address, "secret") as connection:
        put(connection, names[2], b"again")  # the same step after a restore
    assert [get(address, name) for name in names] == [None, b"", b"again"]
    assert get(address, CopyName(rank=0, step=6, rollbacks=1)) is None


def test_the_memory_of_a_dropped_copy_is_filled_again_unless_the_copy_is_being_sent(
    keeper: tuple[str, Keeper],
) -> None:
    address, made = keeper
    data = {step: os.urandom(LARGE + step) for step in (2, 4, 6, 8, 10)}

    def block(step: int) -> bytearray:
        return next(one.block for one in made._copies[0] if one.name.step == step)

    with wire.connect(address, "secret") as connection, wire.connect(address, "secret") as reader:
        put(connection, CopyName(rank=0, step=2), data[2])
        first = block(2)
        put(connection, CopyName(rank=0, step=4), data[4])
        wire.send(reader, {"do": "get", **CopyName(rank=0, step=4).model_dump()})
        size = wire.receive(reader)["size"]
        second = block(4)
        for step in (6, 8, 10):
            put(connection, CopyName(rank=0, step=step), data[step])
        assert block(8) is first
        assert block(10) is not second
        late = bytearray(size)
        wire.receive_block(reader, memoryview(late))
    assert late == data[4]
    assert [get(address, CopyName(rank=0, step=step)) for step in (8, 10)] == [data[8], data[10]]


def test_a_copy_replaces_those_of_a_state_left_behind(keeper: tuple[str, Keeper]) -> None:
    """The step that all have in common stays; what was sent before the recovery and arrives later is not kept."""
    address, made = keeper
    with wire.connect(address, "secret") as connection:
        for step, history in ((6, 0), (8, 0), (8, 1), (10, 0)):
            put(connection, CopyName(rank=0, step=step, history=history), b"state")
    assert stored(made) == [CopyName(rank=0, step=6), CopyName(rank=0, step=8, history=1)]


def test_a_server_that_cannot_accept_a_connection_goes_on_later() -> None:
    server = wire.MessageServer("secret", Keeper().handle, everywhere=False)
    limits, waiting = resource.getrlimit(resource.RLIMIT_NOFILE), socket.socket()
    with open(os.devnull) as next_file:
        lowest = next_file.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        waiting.connect(("127.0.0.1", server.port))
        time.sleep(2 * wire.AGAIN_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with waiting:
        wire.connect(f"127.0.0.1:{server.port}", "secret").close()
    server.close()


def test_a_copy_whose_sender_dies_is_never_visible(keeper: tuple[str, Keeper]) -> None:
    address, made = keeper
    with wire.connect(address, "secret") as connection:
        put(connection, CopyName(rank=0, step=2), b"whole")
    connection = wire.connect(address, "secret")
    put(connection, CopyName(rank=0, step=4), b"x" * LARGE, whole=False)
    connection.close()
    assert get(address, CopyName(rank=0, step=4)) is None
    assert get(address, CopyName(rank=0, step=2)) == b"whole"
    assert stored(made) == [CopyName(rank=0, step=2)]


@pytest.mark.parametrize("piece", [b"x" * 9, b"x" * LARGE])
def test_more_bytes_than_announced_are_refused(keeper: tuple[str, Keeper], piece: bytes) -> None:
    address, made = keeper
    with wire.connect(address, "secret") as connection:
        wire.send(connection, {"do": "put", "name": {"rank": 0, "step": 2}, "size": 8})
        with suppress(OSError):  # the keeper may close the connection before all is sent
            connection.send_bytes(piece)
        with pytest.raises((EOFError, OSError)):
            wire.receive(connection)
    assert stored(made) == []


def test_without_the_secret_nothing_is_read_or_stored(keeper: tuple[str, Keeper]) -> None:
    address, made = keeper
    with pytest.raises(multiprocessing.AuthenticationError):
        wire.connect(address, "guess")
    assert listed([address], "guess") == {}
    assert stored(made) == []


def test_keepers_are_asked_at_once() -> None:
    """Their number grows with the nodes, and a recovery waits for them."""
    together = threading.Barrier(3)

    def handle(connection: Connection) -> None:
        wire.receive(connection)
        number = together.wait()
        wire.send(connection, {"copies": [{"name": {"rank": number, "step": 2}, "sha256": f"{number}"}]})

    servers = [wire.MessageServer("secret", handle, everywhere=False) for _ in range(3)]
    found = listed([f"127.0.0.1:{one.port}" for one in servers], "secret")
    assert found == {CopyName(rank=rank, step=2): f"{rank}" for rank in range(3)}
    for one in servers:
        one.close()


def test_common_steps() -> None:
    def names(*found: tuple[int, int, int]) -> list[CopyName]:
        return [CopyName(rank=rank, step=step, rollbacks=rollbacks) for rank, step, rollbacks in found]

    whole = names((0, 2, 0), (0, 4, 0), (1, 4, 0), (1, 2, 0))
    assert newest_common(whole, 2, 0) == (4, 0)
    assert newest_common(names((0, 4, 0), (0, 2, 0), (1, 2, 0), (1, 2, 0)), 2, 0) == (2, 0)
    mixed = [*names((0, 4, 0), (0, 2, 0), (1, 2, 0)), CopyName(rank=1, step=4, history=1)]
    assert newest_common(mixed, 2, 0) == (2, 0)  # never from before and after a recovery
    assert newest_common(names((0, 4, 0), (1, 2, 0)), 2, 0) is None
    assert newest_common(whole, 2, 1) is None  # of another history
    assert newest_common([], 1, 0) is None


def test_the_process_outlives_nothing_but_its_supervisor() -> None:
    """Killed senders leave it as it is; it ends when its supervisor closes it."""
    process = KeeperProcess("secret")
    name = CopyName(rank=3, step=8)
    sender = multiprocessing.get_context("fork").Process(target=_send_and_die, args=(process.address, name))
    sender.start()
    sender.join()
    assert sender.exitcode == -signal.SIGKILL
    assert listed([process.address, "127.0.0.1:1"], "secret") == {name: ""}
    assert get(process.address, name) == b"state"
    process.close()
    assert listed([process.address], "secret") == {}


def test_a_keeper_that_has_died_is_started_again_at_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its copies, and not more often than every `PAUSE_S`."""
    process = KeeperProcess("secret")
    with wire.connect(process.address, "secret") as connection:
        put(connection, CopyName(rank=0, step=2), b"state")
    first = process._process
    monkeypatch.setattr(keepers, "PAUSE_S", 900.0)
    first.kill()
    first.wait()
    process.tend()
    assert process._process is first
    monkeypatch.setattr(keepers, "PAUSE_S", 0.0)
    process.tend()
    assert process._process.stdout.readline()
    assert listed([process.address], "secret") == {}
    with wire.connect(process.address, "secret") as connection:
        put(connection, CopyName(rank=0, step=4), b"state")
    assert listed([process.address], "secret") == {CopyName(rank=0, step=4): ""}
    process.close()


def _send_and_die(address: str, name: CopyName) -> None:
    connection = wire.connect(address, "secret")
    put(connection, name, b"state")
    put(connection, name.model_copy(update={"step": 10}), b"half", whole=False)
    os.kill(os.getpid(), signal.SIGKILL)
