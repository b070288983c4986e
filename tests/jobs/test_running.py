"""List and stop the processes that Plinth has started for a workspace."""

import subprocess
import sys
from pathlib import Path

from plinth.storage.running import RunningProcess
from plinth.storage.workspace import Workspace
from plinth_jobs import supervised
from plinth_jobs.supervised import UpRecord


def test_plinth_up_is_listed_and_stopped(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace").ensure()
    assert supervised.started(workspace) == supervised.down(workspace) == []
    command = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline() == b"1\n"  # it is more than a fork now
        record = UpRecord(**RunningProcess.of(process.pid).model_dump())
        supervised.record_path(workspace).write_text(record.model_dump_json())
        (found,) = supervised.started(workspace)
        assert (found.name, found.pid) == ("plinth up", process.pid)
        assert found.bytes > 2**20
        assert [one.pid for one in supervised.down(workspace)] == [found.pid]
        assert process.poll() is not None
    assert supervised.started(workspace) == supervised.ended(workspace) == []
