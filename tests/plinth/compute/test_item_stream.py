"""Item streams: every item is answered once and in its turn, by its answer or by the death that it caused."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.engine import LocalEngine
from plinth.compute.worker import SPARES, Death, ItemStream, Program
from plinth.errors import WorkerError
from tests.plinth.compute import handlers
from tests.plinth.compute.handlers import HARMS, STATUS

LEAVING = Program(f"{handlers.__name__}:leaving")
PROGRAM = Program(f"{handlers.__name__}:harmed", quiet=True)


def through(batches: list[list[bytes]]) -> list[list[bytes | Death]]:
    with ItemStream(PROGRAM) as stream:
        return list(stream.map(batches))


def test_an_item_that_does_harm_is_answered_by_its_death_and_costs_no_other() -> None:
    items = [b"a", b"spin", b"b", b"sleep", b"c", b"segfault", b"memory", b"d", b"exit", b"exit", b"e"]
    ((*found,),) = through([items])
    assert [one for one in found if isinstance(one, bytes)] == [b"A", b"B", b"C", b"D", b"E"]
    deaths = {item: one for item, one in zip(items, found, strict=True) if isinstance(one, Death)}
    assert deaths.keys() == HARMS.keys()
    assert {item: deaths[item].status for item in STATUS} == STATUS
    assert -deaths[b"spin"].status in (signal.SIGPROF, signal.SIGALRM)
    assert {item for item, death in deaths.items() if death.over_limit} == {b"spin", b"sleep"}


BAD = (b"exit", b"segfault")


@settings(max_examples=5)
@given(
    st.lists(st.lists(st.sampled_from([b"a", b"bc", b"x" * 70_000, b"", b"exit", b"segfault"]), max_size=5), max_size=4)
)
def test_answers_come_in_the_order_of_the_items(batches: list[list[bytes]]) -> None:
    expected = [[Death(STATUS[item]) if item in STATUS else item.upper() for item in batch] for batch in batches]
    assert through(batches) == expected


def test_an_item_whose_worker_was_killed_once_is_tried_again(tmp_path: Path) -> None:
    items = [b"a", *(os.fsencode(tmp_path / str(n)) for n in range(3)), b"b"]
    assert through([items]) == [[item.upper() for item in items]]


def test_a_limit_is_of_an_item_and_not_of_its_batch() -> None:
    started = time.monotonic()
    with ItemStream(Program(f"{handlers.__name__}:slow")) as stream:
        (found,) = stream.map([[b"%d" % n for n in range(12)]])
    assert found == [b"%d" % n for n in range(12)]
    assert time.monotonic() - started > 12 * 0.15


def test_a_worker_that_ends_between_items_is_a_named_error() -> None:
    with (
        ItemStream(LEAVING) as stream,
        pytest.raises(WorkerError, match="between items"),
    ):
        list(stream.map([[b"a"]]))


def test_a_stream_works_inside_a_worker_of_an_engine() -> None:
    with LocalEngine(2) as engine:
        assert list(engine.map(within, [b"a", b"exit", b"b"])) == [[b"A", b"C"], [Death(7), b"C"], [b"B", b"C"]]


def within(item: bytes) -> list[bytes | Death]:
    return through([[item, b"c"]])[0]


def test_an_idle_worker_serves_the_next_stream_of_its_program() -> None:
    SPARES.end()
    pids = set()
    for _ in range(2):
        with ItemStream(PROGRAM) as stream:
            list(stream.map([[b"a"]]))
            assert stream._worker is not None
            pids.add(stream._worker.pid)
    assert len(pids) == len(SPARES) == 1
    SPARES.end()
    assert len(SPARES) == 0
