"""Attack: write access to the workspace, including the file with the location of a shared workspace."""

from __future__ import annotations

from pathlib import Path

import pytest

from plinth.errors import WorkspaceError
from plinth.storage.workspace import CACHE_VARIABLE, LOCATION, Workspace, folder_of
from plinth_jobs.cli import call

PLACE = "s3://elsewhere/workspace"


def test_a_folder_that_is_said_to_be_a_bucket(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Its text would be read from there and written there, and nothing of that place was ever seen."""
    space = Workspace(tmp_path / "workspace").ensure()
    (space.root / LOCATION).write_text(PLACE)
    for use in (lambda: Workspace(space.root).uri, lambda: Workspace(space.root).places,
                lambda: Workspace(space.root).objects("refs"), lambda: Workspace(space.root).input):  # fmt: skip
        with pytest.raises(WorkspaceError, match="does not match the name of its folder"):
            use()
    assert call(["-w", str(space.root), "status"]) == 5
    assert "does not match the name of its folder" in capfd.readouterr().err


def test_the_folder_of_a_shared_workspace_that_is_said_to_be_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    folder = folder_of("s3://ours/workspace")
    assert Workspace(folder).uri == "s3://ours/workspace"
    (tmp_path / "link").symlink_to(folder)
    assert Workspace(tmp_path / "link").uri == "s3://ours/workspace"
    (folder / LOCATION).write_text(PLACE)
    with pytest.raises(WorkspaceError, match="does not match the name of its folder"):
        _ = Workspace(folder).uri
