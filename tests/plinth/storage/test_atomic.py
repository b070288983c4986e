"""Files appear whole or not at all."""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from plinth.errors import DiskFullError, StorageError, WorkspaceError
from plinth.storage.atomic import named_failures, replacing, write_bytes


def test_writes_bytes_mode_and_parents(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    write_bytes(path, b"one", mode=0o600)
    write_bytes(path, b"two", mode=0o600)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["b"]


def test_a_failing_block_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_bytes(path, b"old")

    def fail_halfway() -> None:
        with replacing(path) as stream:
            stream.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_halfway()
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_full_disk_is_named_and_leaves_nothing(small_disk: Path) -> None:
    with pytest.raises(DiskFullError, match="no space left"):
        write_bytes(small_disk / "x", bytes(2**20))
    assert list(small_disk.iterdir()) == []


def test_file_size_limit_counts_as_full(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(DiskFullError):
            write_bytes(tmp_path / "x", bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DiskFullError),
        (errno.EDQUOT, DiskFullError),
        (errno.EROFS, WorkspaceError),
        (errno.EACCES, WorkspaceError),
        (errno.ENOTDIR, WorkspaceError),
        (errno.EIO, StorageError),
    ],
)
def test_refusals_get_names(number: int, kind: type[StorageError], tmp_path: Path) -> None:
    with pytest.raises(kind) as caught, named_failures(tmp_path):
        raise OSError(number, os.strerror(number))
    assert type(caught.value) is kind
    assert str(tmp_path) in str(caught.value)


def test_kill_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_bytes(path, b"old")
    script = (
        "import sys, time; from pathlib import Path; from plinth.storage.atomic import replacing\n"
        "with replacing(Path(sys.argv[1])) as stream:\n"
        "    stream.write(b'half'); stream.flush(); print('ready', flush=True); time.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, env=_environment())
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert path.read_bytes() == b"old"
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
