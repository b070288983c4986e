"""A workspace, and a file system that is really full."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace
from tests import services


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    with services.small_disk(tmp_path / "small", "256k") as path:
        yield path
