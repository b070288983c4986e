"""SIGKILL at every boundary of a save, on files: what was committed last always loads, and the next save commits.

The save has two ranks' parts, the commit, the event, and a retention that deletes one checkpoint. Each boundary has
a process of its own that is killed there. What whole runs do is in `test_crash_run`.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import CheckpointError, DiskFullError
from plinth.storage import tensor_file
from plinth.storage.boundaries import install
from plinth.training.checkpoint import checkpoint, rank_part
from plinth.training.checkpoint.rank_part import Lead, Tensor, TensorsFile, Timing, WritePlan
from plinth.training.directory import RunDirectory
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import read_events, timeline

BLOCK = memoryview(bytes(range(256)) * 16)
POLICY = Checkpoints(keep_last=2)


def plan_of(run: RunDirectory, step: int, rank: int) -> WritePlan:
    tensor = Tensor(name="w", dtype="F32", torch_dtype="torch.float32", shape=(512,), at=rank * 2048, bytes=2048)
    path = f"engine/rank-{rank:05d}.safetensors"
    return WritePlan(
        run=str(run.root),
        step=step,
        rank=rank,
        mode="sync",
        tensor_files=(TensorsFile(path=path, metadata={}, tensors=(tensor,)),),
        texts={f"rng/rank-{rank:05d}.json": "[1]"},
        pieces={"w": (0, 0, 1, rank * 512, rank * 512 + 512)},
        parameters=(tensor,) if rank == 0 else (),
        optimizer=(tensor,),
        rng_sha256="r",
        lead=Lead(ranks=2, state={"step": step, "monitor": {}}, checkpoints=POLICY, always=()) if rank == 0 else None,
    )


def save(run: RunDirectory, step: int) -> None:
    """Run the file operations of the ranks and their writers, one after the other."""
    checkpoint.stage(run, step)
    leading = plan_of(run, step, 0)
    rank_part.write(plan_of(run, step, 1), BLOCK)
    rank_part.write(leading, BLOCK)
    assert leading.lead is not None
    assert rank_part.missing(leading, leading.lead) == []
    rank_part.commit(leading, leading.lead, Timing(0.0, 0.0, 0.0))


@pytest.fixture
def saved() -> Iterator[Callable[[str], RunDirectory]]:
    """A run with steps 1 and 2 committed, as often as it is asked for; in memory, where a flush costs nothing."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="plinth-crash-", dir=memory if memory.exists() else None) as folder:
        first = RunDirectory(Path(folder) / "first")
        for step in (1, 2):
            save(first, step)

        def copy(name: str) -> RunDirectory:
            place = Path(folder) / name / first.root.name  # a record commits nothing in a run of another name
            shutil.copytree(first.root, place)
            return RunDirectory(place)

        yield copy


def in_child(work: Callable[[], Any]) -> int:
    """Do it in a fork of this process; its exit status, negative when a signal ended it."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(work() or 0)
        except BaseException:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def boundaries_of(work: Callable[[], Any]) -> int:
    """Return the number of boundaries, counted in a child."""
    read, write = os.pipe()

    def counted() -> None:
        counter = install(0)
        work()
        os.write(write, str(counter.passed).encode())

    assert in_child(counted) == 0
    return int(os.read(read, 20))


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_killed_at_every_boundary_of_a_save(saved: Callable[[str], RunDirectory], step: int) -> None:
    """The newest whole checkpoint is the one before, until it is the new one; never neither, never half of one."""
    whole = saved("whole")
    total = boundaries_of(lambda: save(whole, 3))
    assert total > 60  # creations, writes torn in two, flushes, renames, the record, deletions
    assert checkpoint.committed(whole) == [2, 3]
    expected = (whole.checkpoints / "step-00000003/manifest.json").read_bytes()
    newest = []
    for number in range(1, total + 1, step):
        run = saved(f"killed-{number}")
        assert in_child(lambda run=run, number=number: (install(number), save(run, 3))[0] and 0) == -9, number
        checkpoint.clean(run)
        valid, refused = checkpoint.newest_valid(run)
        assert valid is not None
        assert refused == [], number
        newest.append(valid)
        folders = {path.name for path in run.checkpoints.iterdir() if path.is_dir()}
        assert folders == {checkpoint.name(known) for known in checkpoint.committed(run)}, number
        assert not run.staging.exists()
        assert not list(run.checkpoints.glob(".*")), number
        assert len(list(read_events(run.events))) >= 2, number
        save(run, 3)
        assert checkpoint.newest_valid(run) == (3, [])
        assert (run.checkpoints / "step-00000003/manifest.json").read_bytes() == expected
        shutil.rmtree(run.root)
    turn = newest.index(3)
    assert newest == [2] * turn + [3] * (len(newest) - turn)
    assert turn > 0


@pytest.mark.parametrize("number", [pytest.param(errno.ENOSPC, marks=pytest.mark.exhaustive), errno.EIO])
def test_every_refusal_of_the_disk_leaves_the_last_one(saved: Callable[[str], RunDirectory], number: int) -> None:
    """The same boundaries, where the operating system refuses instead: a named failure, and nothing is lost."""
    total = boundaries_of(lambda: save(saved("counting"), 3))

    def refuse() -> None:
        raise OSError(number, os.strerror(number))

    def work(run: RunDirectory, at: int) -> int:
        install(at, refuse)
        try:
            save(run, 3)
        except DiskFullError as error:
            return 1 if number == errno.ENOSPC else int(error.exit_code)
        except Exception as error:
            return int(getattr(error, "exit_code", 98))
        return 0

    for at in range(1, total + 1, 7):
        run = saved(f"refused-{number}-{at}")
        status = in_child(lambda run=run, at=at: work(run, at))
        assert status in (0, 1 if number == errno.ENOSPC else 5), at
        checkpoint.clean(run)
        step, refused = checkpoint.newest_valid(run)
        assert step in (2, 3)
        assert refused == []


def test_a_file_that_is_not_what_the_writer_wrote_is_not_committed(saved: Callable[[str], RunDirectory]) -> None:
    run = saved("shrunk")
    checkpoint.stage(run, 3)
    leading = plan_of(run, 3, 0)
    for rank in (0, 1):
        rank_part.write(plan_of(run, 3, rank), BLOCK)
    with (run.staging / "step-00000003/engine/rank-00001.safetensors").open("r+b") as stream:
        stream.truncate(100)
    assert leading.lead is not None
    with pytest.raises(CheckpointError, match="lacks files that its writers have written"):
        rank_part.commit(leading, leading.lead, Timing(0.0, 0.0, 0.0))
    assert checkpoint.newest_valid(run) == (2, [])


def test_a_wall_clock_that_jumps_changes_nothing(
    saved: Callable[[str], RunDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention depends on steps, the timeline on sequence numbers; a clock set back an hour and forward a year has no
    effect."""
    run = saved("jumping")
    for step, clock in ((3, 1e6), (4, 2e9), (5, 0.0)):
        monkeypatch.setattr("plinth.training.telemetry.timeline.time.time", lambda clock=clock: clock)
        save(run, step)
        assert checkpoint.committed(run) == [step - 1, step]
    story = timeline(run.events)
    assert [event["step"] for event in story.of("checkpoint")] == [1, 2, 3, 4, 5]
    assert [event["steps"] for event in story.of("retired")] == [[1], [2], [3]]
    assert all(event["seconds"] > 0 for event in story.of("checkpoint"))


def test_the_files_are_safetensors(tmp_path: Path) -> None:
    """Another program's reader finds the same numbers."""
    import torch
    from safetensors.torch import load_file

    values = torch.arange(6, dtype=torch.bfloat16)
    data = values.view(torch.uint8).numpy().data
    entries = {
        "a/b": tensor_file.TensorEntry("BF16", (2, 3), data),
        "empty": tensor_file.TensorEntry("F32", (0,), memoryview(b"")),
    }
    written = tensor_file.write(tmp_path / "x.safetensors", entries, {"plinth": "{}"})
    found = load_file(tmp_path / "x.safetensors")
    assert torch.equal(found["a/b"], values.view(2, 3))
    assert found["empty"].shape == (0,)
    assert written.bytes == (tmp_path / "x.safetensors").stat().st_size
