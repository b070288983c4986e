"""Ranks that hang say what they wait for: real ranks, one of which does not come to a collective."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from plinth.training.directory import RunDirectory
from plinth.training.supervise import rank_watch
from tests.ranks import run_ranks


def entry(
    number: int, state: str = "scheduled", retired: bool = False, group: str = "0", **more: Any
) -> dict[str, Any]:
    named = {"process_group": [group, "default_pg"], "profiling_name": "nccl:all_reduce"}
    counted = {"record_id": number, "collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False}
    return {**named, **counted, "state": state, "retired": retired, **more}


def test_who_has_not_come_is_behind() -> None:
    ahead = [entry(1, "completed", True), entry(2, "started"), entry(3)]
    behind = [entry(1, "completed", True)]
    found = rank_watch.examine({0: ahead, 1: behind, 2: ahead, 4: ahead}, 6)
    waiting = {"ranks": "0,2,4", "collective": "nccl:all_reduce", "number": 2, "group": "0:default_pg"}
    assert found == {"waiting": [waiting], "behind": "1", "silent": "3,5", "elsewhere": [1]}


def test_a_group_of_others_says_nothing_of_a_rank() -> None:
    found = rank_watch.examine({0: [entry(9, group="1")], 1: [entry(2, "completed", True, group="2")]}, 2)
    assert (found["behind"], found["waiting"][0]["group"]) == ("", "1:default_pg")
    assert found["elsewhere"] == [1]  # it waits for no other rank, and none is known to wait for it


def test_a_message_between_two_ranks_is_numbered_by_itself() -> None:
    message = entry(7, is_p2p=True, p2p_seq_id=3, profiling_name="gloo:recv 0<-1")
    found = rank_watch.examine({0: [message], 1: [entry(1, "completed", True)]}, 2)
    assert (found["waiting"][0]["number"], found["behind"]) == (3, "")


def test_ranks_are_written_short() -> None:
    assert [rank_watch.spans(ranks) for ranks in ([], [3], [0, 1, 2, 5, 7, 8])] == ["", "3", "0-2,5,7-8"]


def test_the_flight_recorder_is_set_where_the_user_has_not(tmp_path: Path) -> None:
    """Names as this version of torch reads them."""
    import torch

    known = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    names = set(rank_watch.environment(RunDirectory(tmp_path))) - {"TORCH_NCCL_DUMP_ON_TIMEOUT"}  # in the CUDA library
    found, end = set[str](), b""
    with known.open("rb") as stream:
        while part := stream.read(1 << 24):  # of some 400 MB
            found |= {name for name in names if name.encode() in end + part}
            end = part[-100:]
    assert found == names
    header = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"
    assert "TORCH_NCCL_DUMP_ON_TIMEOUT" in header.read_text()


def loiter(pids: list[int], answers: Path) -> None:
    """Ask both ranks, and come to the collective only when they have answered."""
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    until = time.monotonic() + 120
    while len(list(answers.glob("rank-*.json"))) < 2 and time.monotonic() < until:
        time.sleep(0.1)


def one_does_not_come(root: Path) -> None:
    import torch
    import torch.distributed as dist

    from plinth.training.supervise import rank_watch

    rank, run = int(os.environ["RANK"]), RunDirectory(root)
    rank_watch.install(run, rank)
    dist.init_process_group("gloo")
    pids: list[Any] = [None, None]
    dist.all_gather_object(pids, os.getpid())
    if rank == 1:
        time.sleep(1.0)
        loiter(pids, run.hangs)
    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_that_hang_say_which_collective_they_wait_in_and_who_is_behind(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    rank_watch.prepare(run)
    run_ranks(2, one_does_not_come, tmp_path)
    found = rank_watch.collect(run, 2)
    (waiting,) = found["waiting"]
    assert (waiting["ranks"], waiting["collective"]) == ("0", "gloo:all_reduce")
    assert (found["behind"], found["silent"], found["files"]) == ("1", "", "hangs/0001")
    assert re.fullmatch(r"\w+\.py:\d+ \w+", found["at"]["1"])  # in `loiter`, or in what it calls
    assert " in loiter\n" in (run.hangs / "0001" / "rank-0001.stack").read_text()
    listed = ["rank-0000.json", "rank-0000.stack", "rank-0001.json", "rank-0001.stack"]
    assert sorted(path.name for path in (run.hangs / "0001").iterdir()) == listed
    assert "one_does_not_come" in (run.hangs / "0001" / "rank-0000.stack").read_text()
    rank_watch.prepare(run)
    assert [path.name for path in run.hangs.iterdir()] == ["0001"]
