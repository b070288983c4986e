"""Files of Plinth are readable by their user alone, unless the umask allows more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plinth import private
from plinth.errors import WorkspaceError
from plinth.storage.atomic import write_bytes
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in [folder, *folder.rglob("*")]}


@pytest.mark.parametrize(("mask", "file", "folder"), [("", 0o600, 0o700), ("007", 0o660, 0o770), ("27", 0o640, 0o750)])
def test_files_and_folders_of_a_workspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: str, file: int, folder: int
) -> None:
    monkeypatch.setenv(private.MASK_VARIABLE, mask)
    space = Workspace(tmp_path / "w").ensure()
    write_bytes(space.reports / "page.html", b"<html>")
    blob = Store(space.store).put_bytes(b"x")
    found = modes(space.root)
    assert found["."] == found["store"] == found["runs"] == folder
    assert found["reports/page.html"] == file
    assert Store(space.store).path(blob).stat().st_mode & 0o777 == 0o444  # below folders that other users cannot enter


def test_a_workspace_that_is_there_keeps_its_modes(tmp_path: Path) -> None:
    """Its owner may have chosen them."""
    (tmp_path / "w").mkdir(mode=0o755)
    (tmp_path / "w").chmod(0o755)
    assert modes(Workspace(tmp_path / "w").ensure().root)["."] == 0o755


@pytest.mark.parametrize("given", ["8", "rwx", "-1", "00077", "0o77"])
def test_what_is_no_mask_is_named(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(private.MASK_VARIABLE, given)
    with pytest.raises(WorkspaceError, match="PLINTH_UMASK is not a mask"):
        private.mask()


def test_the_program_masks_itself_and_its_children(tmp_path: Path) -> None:
    """Whatever the shell's mask is."""
    environment = {**os.environ, "PLINTH_TRUST": str(tmp_path / "trust")}
    command = [sys.executable, "-m", "plinth_jobs.cli", "-w", str(tmp_path / "w"), "keys", "init", "--demo"]
    subprocess.run(command, check=True, env=environment, umask=0o022, capture_output=True)
    found = modes(tmp_path / "w") | modes(tmp_path / "trust")
    assert len(found) > 3
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}


def test_torch_compiles_into_private_folders(tmp_path: Path) -> None:
    names = ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR"]
    script = f"import os; from plinth import private; private.for_torch(); print(*map(os.environ.get, {names}))"
    own = {"PYTHONPATH": os.pathsep.join(sys.path), private.VARIABLE: str(tmp_path / "private")}
    others = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([sys.executable, "-c", script], env=others | own, capture_output=True, text=True, check=True)
    for place in done.stdout.split():
        assert Path(place).is_relative_to(tmp_path / "private")
        assert Path(place).stat().st_mode & 0o777 == 0o700
