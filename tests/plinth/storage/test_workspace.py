"""One directory holds all state; one writer at a time; refusals are named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plinth.errors import WorkspaceError
from plinth.storage.workspace import FOLDERS, Workspace


def test_ensure_makes_the_folders_(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    assert not (tmp_path / "w").exists()
    workspace.ensure().ensure()
    assert sorted(path.name for path in workspace.root.iterdir()) == sorted(FOLDERS)


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "w").write_text("in the way")
    with pytest.raises(WorkspaceError, match="cannot write"):
        Workspace(tmp_path / "w").ensure()


def test_unwritable_workspace_is_named(tmp_path: Path) -> None:
    """As another user where this one may write everywhere."""
    root = tmp_path / "w"
    Workspace(root).ensure()
    (root / "store").chmod(0o555)
    open_to_all = (tmp_path, *tmp_path.parents[:3], root, *(root / name for name in FOLDERS if name != "store"))
    for folder in open_to_all if os.geteuid() == 0 else ():
        folder.chmod(folder.stat().st_mode | (0o777 if root in (folder, *folder.parents) else 0o055))
    code = _as_nobody(
        "from plinth.errors import WorkspaceError\nfrom plinth.storage.workspace import Workspace\n"
        f"try: Workspace({str(root)!r}).ensure()\n"
        "except WorkspaceError as error: print(error); raise SystemExit(error.exit_code)\n"
    )
    assert code == 5


def test_lock_names_the_holder_and_dies_with_it(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w").ensure()
    script = (
        "import sys, time\nfrom plinth.storage.workspace import Workspace\n"
        "with Workspace(sys.argv[1]).locked('plinth run'):\n    print('held', flush=True); time.sleep(600)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(workspace.root)], stdout=subprocess.PIPE, env=_environment()
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(WorkspaceError, match=rf"process {holder.pid}: plinth run"), workspace.locked("other"):
        pass
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with workspace.locked("other"):
        pass


def test_what_fails_under_the_lock_keeps_its_own_name(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w").ensure()
    with pytest.raises(ConnectionResetError), workspace.locked("run"):
        raise ConnectionResetError


def test_the_lock_sweeps_what_killed_processes_left(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w").ensure()
    staging = workspace.store / "staging"
    (staging / "deep").mkdir(parents=True)
    old, fresh, folder = staging / "old", workspace.tmp / "fresh", workspace.tmp / "folder"
    folder.mkdir()
    for path in (old, fresh, folder / "file"):
        path.write_bytes(b"x")
    for path in (old, folder):
        os.utime(path, (0, 0))
    with workspace.locked("run"):
        assert (old.exists(), folder.exists(), fresh.exists(), (staging / "deep").exists()) == (
            False,
            False,
            True,
            True,
        )


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def _as_nobody(script: str) -> int:
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            exec(script, {})
            code = 0
        except SystemExit as leave:
            code = int(leave.code or 0)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
