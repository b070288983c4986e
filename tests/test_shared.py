"""Resources shared by test processes: created once for concurrent requests, and again after a failure, which each
gets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from tests.shared import once


def test_two_who_ask_at_once_share_what_one_has_made(tmp_path_factory: pytest.TempPathFactory) -> None:
    made: list[Path] = []
    both = Barrier(2)

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "made").touch()

    def ask() -> Path:
        both.wait()
        return once(tmp_path_factory, "asked-at-once", make)

    with ThreadPoolExecutor(2) as pool:
        first, second = [one.result() for one in [pool.submit(ask), pool.submit(ask)]]
    assert made == [first] == [second]
    assert (first / "made").exists()


def test_a_failure_is_given_to_everybody_who_asks_and_leaves_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    def fail(folder: Path) -> None:
        assert list(folder.iterdir()) == []  # not what the one before has left
        (folder / "half").touch()
        raise OSError("no space left")

    both = Barrier(2)

    def ask() -> None:
        both.wait()
        with pytest.raises(OSError, match="no space left"):
            once(tmp_path_factory, "failed", fail)

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(ask), pool.submit(ask)]:
            one.result(timeout=600)
    made = once(tmp_path_factory, "failed", lambda folder: (folder / "whole").touch())
    assert [path.name for path in made.iterdir()] == ["whole"]
