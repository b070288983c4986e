"""What Plinth has started for a workspace is listed, and stopped."""

import subprocess
import sys
from pathlib import Path

import psutil

from jobs import running
from plinth.storage.started import RunningProcess
from plinth.storage.workspace import Workspace


def test_the_pages_of_up_are_listed_and_stopped(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").ensure()
    assert running.started(workspace) == running.down(workspace) == []
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        running.note_pages(workspace, process.pid)
        (found,) = running.started(workspace)
        assert (found.name, found.pid) == ("Dagster", process.pid)
        assert found.bytes > 2**20
        assert [one.pid for one in running.down(workspace)] == [found.pid]
        assert process.poll() is not None
    assert running.started(workspace) == []


def test_another_process_of_the_same_number_is_left_alone(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").ensure()
    own = psutil.Process().pid
    path = running.note_pages(workspace, own)
    path.write_text(RunningProcess(pid=own, started_at_s=1.0).model_dump_json())
    assert running.down(workspace) == []
