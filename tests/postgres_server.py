"""A PostgreSQL server of the distribution, in a folder of its own, on a socket; gone with the test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from plinth_jobs.installation import program, run


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a database on a server without a password; root lends it the distribution's user."""
    folder = Path(tempfile.mkdtemp(prefix="plinth-pg-"))  # a socket's path is short
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    data, quick = str(folder / "data"), f"-k {folder} -c listen_addresses='' -c fsync=off"
    try:
        run([program("initdb"), "--no-sync", "-A", "trust", "-U", "plinth", "-D", data])
        run([program("pg_ctl"), "-w", "-D", data, "-l", str(folder / "log"), "-o", quick, "start"])
        try:
            yield f"postgresql://plinth@/postgres?host={folder}"
        finally:
            run([program("pg_ctl"), "-w", "-D", data, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder)
