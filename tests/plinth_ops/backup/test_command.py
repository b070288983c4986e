"""`plinth ops backup` as a command: its JSON, its exit codes, and the account that it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.compute.progress import SILENT
from plinth.storage.workspace import Workspace, folder_of
from plinth_jobs import object_store
from plinth_jobs.cli import call
from plinth_ops.backup.snapshot import BackupArchive
from plinth_ops.backup.taking import take
from tests.plinth_ops.backup.test_backup import fill
from tests.s3_server import serving


def test_a_workspace_is_backed_up_proved_and_restored(
    tmp_path: Path, own_trust: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(Context(Workspace(tmp_path / "workspace").ensure()))
    place, workspace = str(tmp_path / "backups"), str(tmp_path / "workspace")
    assert call(["-w", workspace, "ops", "backup", "to", place, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["databases"], made["to be made again"]) == (1, 1)
    assert call(["ops", "backup", "list", place, "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == [made["name"]]
    assert call(["-w", workspace, "ops", "backup", "drill", place, "--json"]) == 0
    assert all(row["passed"] for row in json.loads(capsys.readouterr().out))
    assert call(["-w", str(tmp_path / "new"), "ops", "backup", "restore", place]) == 0
    assert "1 blob not copied to the backup; `plinth run` rebuilds them." in capsys.readouterr().out
    assert (tmp_path / "new" / "releases" / "head").exists()
    assert call(["-w", workspace, "ops", "backup", "restore", place]) == 5
    assert "is not empty" in capsys.readouterr().err
    (tmp_path / "workspace" / "taint" / "00001.json").unlink()
    assert call(["-w", workspace, "ops", "backup", "drill", place]) == 1
    assert call(["ops", "backup", "list", str(tmp_path / "nothing")]) == 3


@pytest.mark.slow
def test_the_role_backup_can_back_up_and_change_nothing(
    tmp_path: Path, own_trust: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLINTH_CACHE", str(tmp_path / "cache"))
    with serving() as bucket:
        accounts = object_store.prepare(f"http://{bucket.endpoint}", None, object_store.BUCKET, object_store.PREFIX)

        def acting(role: str) -> None:
            import s3fs

            s3fs.S3FileSystem.clear_instance_cache()
            for name, value in accounts[role].items():
                monkeypatch.setenv(name, value)

        acting(object_store.ADMINISTRATOR)
        ctx = Context(Workspace(folder_of("s3://plinth/workspace")).ensure())
        fill(ctx)
        acting("backup")
        archive = BackupArchive("s3://plinth-backups/corpus")
        name, snapshot = take(ctx, archive, (), "all", SILENT)
        assert archive.names() == [name]
        assert {"refs/web/documents.json", "exclusions/00001.json"} <= {each.path for each in snapshot.entries}
