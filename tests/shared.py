"""Read-only resources with a high cost: created once per test session, by the first process that needs them."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder that `make` has filled. The processes of pytest-xdist share it; no test may change its
    content."""
    base = factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, made = root / f"shared-{name}", root / f"shared-{name}.made"
    with (root / f"shared-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


def copied(source: Path, target: Path) -> Path:
    """A copy that may be changed; the target may be an empty folder."""
    return Path(shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True))
