"""A run's configuration, which is located through its workspace, also after the workspace was moved."""

from __future__ import annotations

import shutil
from pathlib import Path

from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from tests.plinth.training.conftest import tiny


def test_a_run_of_a_copied_workspace_is_the_copy_s(tmp_path: Path) -> None:
    """Else a copy, or what was restored from a backup, would be judged, resumed and written where it came from."""
    first, second = tmp_path / "first", tmp_path / "second"
    written = tiny(Workspace(first).ensure().root, run_id="r")
    path = configuration.write(written)
    assert configuration.load(path) == written
    shutil.copytree(first, second)
    copied = configuration.load(second / "runs" / "r" / "config.json")
    assert copied.directory.root == second / "runs" / "r"
    assert copied == written.model_copy(update={"workspace": str(second)})
    assert configuration.identity(copied) == configuration.identity(written)


def test_a_configuration_that_lies_elsewhere_keeps_its_workspace(tmp_path: Path) -> None:
    written = tiny(Workspace(tmp_path / "w").ensure().root, run_id="r")
    alone = shutil.copy(configuration.write(written), tmp_path / "config.json")
    assert configuration.load(alone) == written
