"""A PostgreSQL server of the distribution, in a folder of its own, on a socket; gone with the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a database on a server without a password; root lends it the distribution's user."""
    folder = Path(tempfile.mkdtemp(prefix="plinth-pg-"))  # a socket's path is short
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    data, quick = str(folder / "data"), f"-k {folder} -c listen_addresses='' -c fsync=off"
    try:
        _run(["initdb", "--no-sync", "-A", "trust", "-U", "plinth", "-D", data])
        _run(["pg_ctl", "-w", "-D", data, "-l", str(folder / "log"), "-o", quick, "start"])
        try:
            yield f"postgresql://plinth@/postgres?host={folder}"
        finally:
            _run(["pg_ctl", "-w", "-D", data, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder)


def _run(command: Sequence[str]) -> None:
    """As a user who may run a server, which root may not."""
    other = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    # a server keeps what it inherits open: no pipes
    subprocess.run([*other, *command], check=True, cwd="/", stdout=subprocess.DEVNULL, timeout=120)
