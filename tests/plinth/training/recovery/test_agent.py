"""Interruption of collectives: the sockets of the process groups are shut down, and no others."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from plinth.training import wire
from plinth.training.recovery.agent import GroupSockets
from plinth.training.recovery.orders import JoinOrder, RecoveryLink, own_keepers


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(60.0)
        yield made


def pair(listening: socket.socket) -> tuple[socket.socket, socket.socket]:
    one = socket.create_connection(listening.getsockname(), timeout=60.0)
    other, _ = listening.accept()
    other.settimeout(60.0)
    return one, other


def test_only_connections_of_the_groups_are_cut(listening: socket.socket) -> None:
    groups = GroupSockets()
    earlier = pair(listening)  # the loader's
    groups.begin()
    bucket = groups.apart(lambda: pair(listening))  # opened by the loader while the groups form
    own = pair(listening)
    local = socket.socketpair()  # a pipe to a child process
    groups.end()
    later = pair(listening)  # a copy in progress
    assert groups.cut() == 2
    assert [one.recv(1) for one in own] == [b"", b""]
    for one, other in (earlier, bucket, later, local):
        one.sendall(b"x")
        assert other.recv(1) == b"x"
    third = pair(listening)  # the listening socket still accepts
    for both in (earlier, bucket, own, local, later, third):
        for each in both:
            each.close()


def test_groups_that_are_just_forming_are_cut_too_except_the_agents_own(listening: socket.socket) -> None:
    groups = GroupSockets()
    groups.begin()
    own, agents = pair(listening), socket.create_connection(listening.getsockname(), timeout=60.0)
    groups.cut(agents.fileno())
    groups.cut(agents.fileno())  # again: those cut before do not matter
    assert own[0].recv(1) == b""
    hub, _ = listening.accept()
    hub.sendall(b"x")
    assert agents.recv(1) == b"x"
    for each in (*own, agents, hub):
        each.close()


def test_a_rank_does_not_wait_for_a_leading_rank_that_is_lost_meanwhile() -> None:
    lost = iter([False, False, True])
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(RuntimeError, match="does not listen"):
            wire.wait_until_open("127.0.0.1", silent.getsockname()[1], lambda: next(lost))
    assert list(lost) == []


def test_links_travel_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    order = JoinOrder(epoch=2, address="n0", port=29500, keepers=("n0:1", "n1:2", "n2:3"), step=40)
    link = RecoveryLink(hub="n0:7", secret="s", first=order)
    assert RecoveryLink.of(link.environment()) == link
    assert RecoveryLink.of({}) is None
    assert order.environment() == {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert [own_keepers(order.keepers, rank) for rank in (0, 3, 5)] == [
        ["n0:1", "n1:2"],
        ["n1:2", "n2:3"],
        ["n2:3", "n0:1"],
    ]
    partly = ("n0:1", "", "n2:3")  # node 1 has reported no keeper
    assert [own_keepers(partly, rank) for rank in (0, 3, 5)] == [["n0:1"], ["n2:3"], ["n2:3", "n0:1"]]
    assert own_keepers(("n0:1",), 0) == ["n0:1"]
