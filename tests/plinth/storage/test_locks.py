"""A lock has one holder, lives as long as any process that inherited it, and dies with the last."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from plinth.errors import WorkspaceError
from plinth.storage import atomic


def test_a_second_holder_gives_up_and_sees_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "below" / "lock"
    assert atomic.owner(path) == ""
    first = atomic.take(path, owner="process 1: train")
    assert atomic.try_take(path, owner="process 2") is None
    assert (atomic.held(path), atomic.owner(path)) == (True, "process 1: train")
    os.close(first)
    assert not atomic.held(path)
    second = atomic.try_take(path, owner="2")
    assert second is not None
    assert atomic.owner(path) == "2"  # the longer text of the first is gone
    os.close(second)


def test_a_block_waits_for_the_holder(tmp_path: Path) -> None:
    path, order = tmp_path / "lock", list[str]()

    def second() -> None:
        with atomic.locked(path):
            order.append("second")

    with atomic.locked(path):
        thread = threading.Thread(target=second)
        thread.start()
        assert atomic.held(path)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]
    assert not atomic.held(path)


def test_a_block_that_fails_gives_the_lock_back(tmp_path: Path) -> None:
    with pytest.raises(KeyError), atomic.locked(tmp_path / "lock"):
        raise KeyError
    assert not atomic.held(tmp_path / "lock")


def test_a_child_that_inherits_the_descriptor_holds_the_lock_until_it_dies(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    fd = atomic.take(path)
    heir = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(fd,))
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    os.close(fd)
    assert atomic.held(path)
    assert atomic.try_take(path) is None
    heir.kill()
    heir.communicate()
    assert not atomic.held(path)  # a child to which it was not passed holds nothing
    stranger.communicate(b"\n")


def test_testing_a_lock_does_not_hide_it_from_another_test(tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / "lock"
    os.close(atomic.take(path))
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # another process that tests at this moment
        assert not atomic.held(path)


def test_a_lock_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkspaceError, match="cannot write"):
        atomic.take(tmp_path / "file" / "lock")
