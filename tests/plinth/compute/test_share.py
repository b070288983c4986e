"""Shares: every process would do everything, its own first; what another has done by then is taken as it is."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import Context, Item, TaskShare, run_items
from plinth.errors import MissingError, RecipeError
from plinth.records import Part, Step
from plinth.storage.state import State
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace

STEP = Step(name="test.share", version="1")


def test_the_own_share_comes_first_then_the_last_of_the_next_shares() -> None:
    tasks = list(range(8))
    assert TaskShare(0, 3).order(tasks) == [0, 3, 6, 7, 4, 1, 5, 2]
    assert TaskShare(2, 3).order(tasks) == [2, 5, 6, 3, 0, 7, 4, 1]
    assert TaskShare(0, 1).order(tasks) == tasks


@given(st.sets(st.integers(0, 200)), st.integers(1, 9))
def test_shares_part_the_tasks_and_every_process_has_all(tasks: set[int], count: int) -> None:
    orders = [TaskShare(index, count).order(sorted(tasks)) for index in range(count)]
    assert all(sorted(order) == sorted(tasks) for order in orders)
    own = [[task for task in order if task % count == index] for index, order in enumerate(orders)]
    assert all(order[: len(mine)] == mine == sorted(mine) for order, mine in zip(orders, own, strict=True))
    assert sorted(chain.from_iterable(own)) == sorted(tasks)


@pytest.mark.parametrize("text", ["8/8", "1", "-1/2", "1/0", "a/b", "1/2/3", " 1/2"])
def test_what_is_no_part_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="no part"):
        TaskShare.parse(text)


def test_parts_are_read_and_written() -> None:
    assert TaskShare.parse("") is None
    assert str(TaskShare.parse("3/8")) == "3/8"


def _work(store: Store, task: tuple[str, int]) -> tuple[Part, ...]:
    """Write a number; the second task finds on the way that another process finishes it and takes its input away."""
    root, number = task
    with (Path(root) / "done").open("a") as stream:
        stream.write(f"{number} ")
    if number == 1:
        _other(root, 1)
        raise MissingError("the input is gone")
    if number == 0:
        _other(root, 2)
    return (Part(name=str(number), blob=store.put_bytes(b"%d" % number)),)


def _other(root: str, number: int) -> None:
    state = State(Workspace(Path(root) / "workspace"))
    state.cache.put(STEP.key([str(number)]), [Part(name="other's", blob=state.store.put_bytes(b"%d" % number))])


def test_work_that_another_process_did_meanwhile_is_taken(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure(), share=TaskShare(0, 2))
    items = [Item((str(number),), (str(tmp_path), number)) for number in range(4)]
    made = run_items(ctx, STEP, _work, items, label="test")
    assert [parts[0].name for parts in made] == ["0", "other's", "other's", "3"]
    assert (tmp_path / "done").read_text() == "0 3 1 "  # task 2 had its record before its turn
    alone = Context(Workspace(tmp_path / "alone").ensure())
    with pytest.raises(MissingError):
        run_items(alone, STEP, _work, items, label="test")
