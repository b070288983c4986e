"""The story of docs/training.md: a run is launched, killed, moved, poisoned and resumed, and its page shows it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from plinth.training.telemetry.timeline import History, timeline
from tests import story_corpus
from tests.jobs.conftest import ROOT, answer, plinth

pytestmark = pytest.mark.exhaustive

RECIPE = ROOT / "tests" / "story.yaml"

#: Steps of which `dump` is a part, by the phases of the recipe.
POISON = range(100, 105)

PATIENCE_S = 1800.0


class Told:
    """A run as its engineer sees it: from outside."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace

    @property
    def directory(self) -> Path:
        (found,) = (self.workspace / "runs").glob("story-*")
        return found

    @property
    def story(self) -> History:
        return timeline(self.directory / "events.jsonl")

    @property
    def supervisor(self) -> psutil.Process:
        return psutil.Process(int(json.loads((self.directory / "handle.json").read_bytes())["id"]))

    @property
    def ranks(self) -> list[psutil.Process]:
        return [one for one in self.supervisor.children() if one.name().startswith("rank-")]

    def until(self, holds: Callable[[History], object], cli: subprocess.Popen[bytes]) -> None:
        """Wait for something to be on the timeline."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and cli.poll() is None:
            if list((self.workspace / "runs").glob("story-*")) and holds(self.story):
                return
            time.sleep(0.1)
        raise AssertionError(f"it did not happen; the command line ended with {cli.poll()}")


def start(workspace: Path, recipe: Path) -> subprocess.Popen[bytes]:
    """Start `plinth run --select run` in the background, with its output in a file."""
    command = [
        sys.executable,
        "-m",
        "plinth_jobs.cli",
        "-w",
        str(workspace),
        "run",
        "-r",
        str(recipe),
        "--select",
        "run",
    ]
    with (workspace / "said.log").open("ab") as said:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=said, stderr=said)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """The whole story."""
    workspace = tmp_path_factory.mktemp("story")
    story_corpus.write(workspace / "input")
    run = Told(workspace)

    clis: list[subprocess.Popen[bytes]] = []
    try:
        happen(run, clis)
        yield run
    finally:
        end(run, clis)


def happen(run: Told, clis: list[subprocess.Popen[bytes]]) -> None:
    """The command line is killed, then the job is asked to leave; the run moves to another number of ranks and ZeRO
    stage, and a rank is killed."""
    alone = run.workspace / "alone.yaml"
    change = "training: {launch: {ranks: 1}, parallel: {zero_stage: 2}}"
    alone.write_text(f"extends: {os.path.relpath(RECIPE, run.workspace)}\n{change}\n")
    clis.append(start(run.workspace, alone))
    run.until(lambda story: story.steps, clis[-1])
    clis[-1].kill()
    clis[-1].wait()
    rank = found_again(run, alone, clis)
    os.kill(run.supervisor.pid, signal.SIGTERM)
    while not sigterm_waits_for(rank):
        time.sleep(0.05)
    rank.resume()
    assert clis[-1].wait(PATIENCE_S) == 7
    assert len(run.story.of("run_started")) == 1, "a second job was started beside the first"

    clis.append(start(run.workspace, RECIPE))
    run.until(lambda story: story.of("reshaped") and max(story.steps) > 30, clis[-1])
    os.kill(run.ranks[1].pid, signal.SIGKILL)
    assert clis[-1].wait(PATIENCE_S) == 0


def found_again(run: Told, recipe: Path, clis: list[subprocess.Popen[bytes]]) -> psutil.Process:
    """Training outlives the command line that began it; the same command finds it and tells of it.

    Returns the rank, which is suspended: however long a command line takes to start, the run has not ended by then.
    """
    seen = len(run.story.steps)
    while len(run.story.steps) <= seen + 1:  # one may have been under way
        assert psutil.pid_exists(run.supervisor.pid), "training ended with the command line"
        time.sleep(0.1)
    (rank,) = run.ranks
    suspend(rank)
    said = run.workspace / "said.log"
    before = said.stat().st_size
    clis.append(start(run.workspace, recipe))
    for pause_s in range(1, 60):
        time.sleep(pause_s)
        seen = len(run.story.steps)
        rank.resume()  # a step now and then, for the command line to tell of
        run.until(lambda story, seen=seen: len(story.steps) > seen, clis[-1])
        suspend(rank)
        if b"run: " in said.read_bytes()[before:]:
            return rank
    raise AssertionError("the second command line did not tell of the run")


def suspend(rank: psutil.Process) -> None:
    """Until it stands still: a signal that comes before would be dealt with first."""
    rank.suspend()
    while rank.status() != psutil.STATUS_STOPPED:
        time.sleep(0.02)


def sigterm_waits_for(rank: psutil.Process) -> bool:
    """Return True if it is pending (proc_pid_status(5))."""
    status = Path(f"/proc/{rank.pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in status if line.startswith("ShdPnd:"))
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


def end(run: Told, clis: list[subprocess.Popen[bytes]]) -> None:
    """Leave nothing behind, whatever happened."""
    from plinth.storage.workspace import Workspace
    from plinth_registry.mlflow.server import stop_server

    for cli in clis:
        cli.kill()
    with suppress(
        ValueError, FileNotFoundError, psutil.NoSuchProcess, ProcessLookupError
    ):  # no run was made; it has ended
        if "plinth.training.supervise.supervisor" in run.supervisor.cmdline():
            os.killpg(run.supervisor.pid, signal.SIGKILL)
    stop_server(Workspace(run.workspace))


def test_it_is_on_the_timeline_what_happened_and_why(told: Told) -> None:
    story = told.story
    (restart,) = story.of("restart")
    assert restart["reason"] == "rank 1 was killed by SIGKILL"
    assert restart["lost_steps"] <= 20 + 20  # an interval, and what ran while it was being written
    (stop,) = story.of("stopped")
    # again where the rank was killed before the new layout's first checkpoint
    reshaped = {(one["step"], one["from"]["ranks"], one["to"]["ranks"]) for one in story.of("reshaped")}
    assert reshaped == {(stop["step"], 1, 2)}
    acts = [event for event in story.of("intervention") if event["action"] != "warn"]
    assert acts[0]["action"] == "rollback"
    assert all(set(range(act["window"][0], act["window"][1] + 1)) <= set(POISON) for act in acts)
    assert {event["sources"][0]["source"] for event in story.of("documents")} == {"scraped.example"}
    assert sorted({*story.steps, *story.skipped}) == list(range(1, 151))
    assert story.diverged == []
    assert story.of("audited")[-1]["bit_exact"]


def test_the_command_line_said_it_while_it_happened(told: Told) -> None:
    said = (told.workspace / "said.log").read_text()
    for words in ("run: restart: reason rank 1 was killed by SIGKILL", "run: resumed: step", "stopped at"):
        assert words in said, words
    assert "Traceback" not in said


def test_the_page_tells_of_it(told: Told) -> None:
    page = Path(json.loads(plinth(told.workspace, "run", "timeline", "latest", "--json").stdout)["page"]).read_text()
    for words in ("rank 1 was killed by SIGKILL", "ranks 1 → 2, zero stage 2 → 1", "rolled_back", "scraped.example"):
        assert words in page, words
    assert page.count('data-key="slices"') == 2  # held-out slices, by time and by step
    kept = {path.name for path in (told.workspace / "mlflow" / "artifacts").rglob("*") if path.is_file()}
    assert {"events.jsonl", f"{told.directory.name}.html"} <= kept


def test_the_documents_of_the_window_are_listed(told: Told) -> None:
    first = told.story.of("rolled_back") and told.story.of("documents")[0]["window"][0]
    batch: Any = answer(told.workspace, "batch", "latest", first)
    assert "dump" in {sequence["bucket"] for sequence in batch["sequences"]}
    assert all(row["intact"] for row in answer(told.workspace, "checkpoint", "verify", "latest"))
