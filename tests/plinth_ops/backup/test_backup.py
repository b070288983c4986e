"""Backups put back what was there, refuse what was changed, and can be killed anywhere."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.compute.progress import SILENT
from plinth.corpus.exclusions import EXCLUSIONS
from plinth.errors import IntegrityError, MissingError, SignatureError, WorkspaceError
from plinth.records import Manifest, Part
from plinth.storage.workspace import Workspace, folder_of
from plinth.trust.dsse import COMPLIANCE
from plinth_ops.backup import drill as backup_drill
from plinth_ops.backup import snapshot, taking
from plinth_ops.backup.drill import restore
from plinth_ops.backup.snapshot import BackupArchive, BackupSnapshot
from plinth_ops.backup.taking import DatabaseSource, take
from plinth_ops.gamedays.play import GAMEDAYS
from plinth_registry import releases
from plinth_registry.audit_log import LOGS, MARKS, RELEASES
from tests.s3_server import serving


def release(ctx: Context, version: int) -> None:
    releases.append(
        ctx,
        action="champion",
        goal="champion",
        model="demo",
        version=str(version),
        previous=None,
        candidate={"candidate": f"{version:064d}"},
        candidate_version=str(version),
        by="ada",
        reason="better",
        at="2026-01-01T00:00:00+00:00",
    )


def publish(ctx: Context, asset: str, *texts: str) -> Manifest:
    parts = tuple(Part(name=f"part-{n:05d}.parquet", blob=ctx.store.put_bytes(t.encode())) for n, t in enumerate(texts))
    made = Manifest(asset=asset, step="s", version="1", params={}, inputs={}, parts=parts)
    ctx.refs.publish(made, "k" * 64)
    ctx.cache.put(hashlib.sha256(asset.encode()).hexdigest(), parts)
    return made


def fill(ctx: Context) -> None:
    """Create a little of everything: documents and assets derived from them, releases, marks, a run, databases."""
    publish(ctx, "web/documents", "a document", "another")
    publish(ctx, "web/curated", "a document, curated")
    for version in (1, 2):
        release(ctx, version)
    MARKS.append(ctx, {"mark": "unfit"}, {"part": "0" * 64}, COMPLIANCE)
    EXCLUSIONS.append(ctx, {"reason": "asked"}, {"document": "1" * 64}, COMPLIANCE)
    run = ctx.workspace.runs / "r"
    (run / "checkpoints" / "step-00000002").mkdir(parents=True)
    (run / "staging").mkdir()
    for name, text in {
        "config.json": "{}",
        "events.jsonl": '{"event": "step"}\n{"event": "st',
        "checkpoints/step-00000002/model.bin": "weights",
        "checkpoints/step-00000002.json": "{}",
        "checkpoints/step-00000004.json": "{}",  # its folder is gone
        "staging/half": "never read",
        "lock": "",
    }.items():
        (run / name).write_text(text)
    ctx.workspace.mlflow.mkdir(exist_ok=True)
    with closing(sqlite3.connect(ctx.workspace.mlflow / "mlflow.db")) as database, database:
        database.execute("CREATE TABLE experiments (name TEXT)")
        database.executemany("INSERT INTO experiments VALUES (?)", [("a",), ("b",)])


MLFLOW = (DatabaseSource("mlflow", "mlflow/mlflow.db"),)


@pytest.fixture
def ctx(tmp_path: Path, own_trust: Path) -> Context:
    made = Context(Workspace(tmp_path / "workspace").ensure())
    fill(made)
    return made


def back_up(ctx: Context, place: Path | str) -> tuple[str, BackupSnapshot]:
    return take(ctx, BackupArchive(str(place)), MLFLOW, "needed", SILENT)


def put_back(place: Path | str, target: Path, name: str = "") -> Context:
    archive = BackupArchive(str(place))
    restore(archive, archive.read(name), Workspace(target), {}, SILENT)
    return Context(Workspace(target))


def content(folder: Path) -> dict[str, bytes]:
    """Files with what is in them."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items()}


def test_what_cannot_be_made_again_comes_back_byte_for_byte(ctx: Context, tmp_path: Path) -> None:
    name, snapshot = back_up(ctx, tmp_path / "backups")
    before, after = (
        content(ctx.workspace.root),
        content(put_back(tmp_path / "backups", tmp_path / "new").workspace.root),
    )
    gone = {name for name in before if name not in after}
    blob = ctx.refs.current("web/curated").parts[0].blob
    made_again = f"store/files/md5/{blob.md5[:2]}/{blob.md5[2:]}"
    never = {"runs/r/lock", "runs/r/staging/half", "runs/r/checkpoints/step-00000004.json", made_again}
    assert {each for each in gone if not re.search(r"[./]lock$", each) or "/r/" in each} == never
    same = {name: data for name, data in after.items() if name != "mlflow/mlflow.db"}
    assert same == {name: before[name] for name in same}
    assert [one.md5 for one in snapshot.missing] == [blob.md5]
    assert snapshot.databases[0].rows == {"experiments": 2}
    assert taking.rows_of_sqlite(tmp_path / "new" / "mlflow" / "mlflow.db") == {"experiments": 2}
    assert hashlib.sha256((tmp_path / "backups" / "snapshots" / name).read_bytes()).hexdigest() in name


def test_the_restored_history_proves_itself_and_goes_on(ctx: Context, tmp_path: Path) -> None:
    back_up(ctx, tmp_path / "backups")
    restored = put_back(tmp_path / "backups", tmp_path / "new")
    assert releases.history(restored) == releases.history(ctx)
    assert len(MARKS.records(restored, whole=True)) == 1
    assert restored.refs.current("web/documents") == ctx.refs.current("web/documents")
    release(restored, 3)
    assert len(releases.history(restored)) == 3


def test_every_signed_log_is_in_a_backup() -> None:
    assert {log.name for log in (RELEASES, GAMEDAYS, *LOGS)} <= set(snapshot.LOGS)


def test_a_second_backup_copies_what_is_new(ctx: Context, tmp_path: Path) -> None:
    back_up(ctx, tmp_path / "backups")
    first = set(content(tmp_path / "backups" / "objects"))
    publish(ctx, "prose/documents", "new")
    name, _ = back_up(ctx, tmp_path / "backups")
    second = set(content(tmp_path / "backups" / "objects"))
    assert first < second
    assert len(second - first) <= 6  # a blob, its manifest, reference and record; costs and the ledger may move
    archive = BackupArchive(str(tmp_path / "backups"))
    assert len(archive.names()) == 2
    assert archive.named() == name


def test_private_keys_are_in_no_backup(ctx: Context, tmp_path: Path, own_trust: Path) -> None:
    back_up(ctx, tmp_path / "backups")
    secrets = [path.read_bytes() for path in (own_trust / "keys").rglob("*.key")] + [(own_trust / "seal").read_bytes()]
    assert len(secrets) > 5
    kept = content(tmp_path / "backups").values()
    assert not [1 for data in kept for secret in secrets if secret in data]
    shutil.copy(next((own_trust / "keys").rglob("*.key")), ctx.workspace.runs / "r" / "oops")
    with pytest.raises(SignatureError, match="the workspace contains a private key: runs/r/oops"):
        back_up(ctx, tmp_path / "backups")


TAMPERED: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed": (lambda path: path.write_bytes(b"x" * path.stat().st_size), "was changed: the content of"),
    "shorter": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "incomplete: the content of"),
    "gone": (lambda path: path.unlink(), "incomplete: the content of"),
}


@pytest.mark.parametrize(
    ("how", "what"),
    [
        *((how, "blob") for how in TAMPERED),
        *(("changed", what) for what in ("refs/web/documents.json", "releases/head", "database mlflow")),
    ],
)
def test_a_torn_or_changed_backup_is_refused_by_name(ctx: Context, tmp_path: Path, how: str, what: str) -> None:
    _, snapshot = back_up(ctx, tmp_path / "backups")
    known = {each.path: each.sha256 for each in snapshot.entries}
    known |= {"database mlflow": snapshot.databases[0].sha256, "blob": snapshot.blobs[0].sha256}
    change, message = TAMPERED[how]
    path = tmp_path / "backups" / "objects" / known[what][:2] / known[what]
    path.chmod(0o600)
    change(path)
    with pytest.raises(IntegrityError, match=f"{message} {what}"):
        put_back(tmp_path / "backups", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_changed_record_is_refused(ctx: Context, tmp_path: Path) -> None:
    name, _ = back_up(ctx, tmp_path / "backups")
    path = tmp_path / "backups" / "snapshots" / name
    path.write_bytes(path.read_bytes().replace(b'"group":"pointers"', b'"group":"records"', 1))
    with pytest.raises(IntegrityError, match=r"the backup record \S+ was changed"):
        put_back(tmp_path / "backups", tmp_path / "new")


def test_a_backup_is_not_put_over_anything(ctx: Context, tmp_path: Path) -> None:
    back_up(ctx, tmp_path / "backups")
    with pytest.raises(WorkspaceError, match="is not empty"):
        put_back(tmp_path / "backups", ctx.workspace.root)
    with pytest.raises(MissingError, match="no backup at"):
        BackupArchive(str(tmp_path / "elsewhere")).read()


def test_a_path_that_leaves_the_workspace_is_refused(ctx: Context, tmp_path: Path) -> None:
    """A user who can write to the backup location can write a record with a valid name."""
    _, snapshot = back_up(ctx, tmp_path / "backups")
    first = snapshot.entries[0].model_copy(update={"path": "../outside"})
    archive = BackupArchive(str(tmp_path / "backups"))
    name = archive.commit(snapshot.model_copy(update={"entries": (first,), "at": "2030-01-01T00:00:00+00:00"}))
    with pytest.raises(Exception, match="outside"):
        put_back(tmp_path / "backups", tmp_path / "inner" / "new", name)
    assert not (tmp_path / "inner" / "outside").exists()


def test_the_drill_proves_a_sound_backup(ctx: Context, tmp_path: Path) -> None:
    archive = BackupArchive(str(tmp_path / "backups"))
    name, _ = take(ctx, archive, tuple(backup_drill.databases_of(ctx.workspace)), "needed", SILENT)
    backup_drill.remember(ctx.workspace, name)
    before = content(ctx.workspace.root)
    found = backup_drill.drill(ctx.workspace, archive, "", SILENT)
    assert {each.what for each in found} >= {"content", "log releases", "log taint", "references", "database mlflow"}
    assert [each for each in found if not each.passed] == []
    assert content(ctx.workspace.root) == before


def test_the_drill_sees_a_backup_of_somebody_else_and_what_was_removed_since(ctx: Context, tmp_path: Path) -> None:
    archive = BackupArchive(str(tmp_path / "backups"))
    name, snapshot = back_up(ctx, tmp_path / "backups")
    backup_drill.remember(ctx.workspace, name)
    # a whole backup with a right name, whose release history lacks its newest record
    entries = tuple(each for each in snapshot.entries if each.path != "releases/00002.json")
    archive.commit(snapshot.model_copy(update={"entries": entries, "at": "2030-01-01T00:00:00+00:00"}))
    failed = {each.what for each in backup_drill.drill(ctx.workspace, archive, "", SILENT) if not each.passed}
    assert failed == {"record", "head of the release history"}
    (ctx.workspace.taint / "00001.json").unlink()
    failed = {each.what for each in backup_drill.drill(ctx.workspace, archive, name, SILENT) if not each.passed}
    assert failed == {"counts"}


def test_a_changed_blob_of_the_workspace_is_not_backed_up(ctx: Context, tmp_path: Path) -> None:
    path = ctx.store.path(ctx.refs.current("web/documents").parts[0].blob)
    path.chmod(0o600)
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(IntegrityError):
        back_up(ctx, tmp_path / "backups")
    assert not (tmp_path / "backups" / "snapshots").exists()


def _killed(root: Path, place: Path, after: int) -> None:
    """Back up, and exit silently after the given number of objects."""
    kept, count = BackupArchive.keep, 0

    def keep(self: BackupArchive, *given: object) -> bool:
        nonlocal count
        count += 1
        if count > after:
            os.kill(os.getpid(), signal.SIGKILL)
        return kept(self, *given)  # type: ignore[arg-type]

    BackupArchive.keep = keep  # type: ignore[method-assign,assignment]
    back_up(Context(Workspace(root)), place)


def test_killed_anywhere_the_same_command_goes_on(ctx: Context, tmp_path: Path) -> None:
    place = tmp_path / "backups"
    for after in (0, 3, 9, 14):
        process = multiprocessing.get_context("fork").Process(target=_killed, args=(ctx.workspace.root, place, after))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert not (place / "snapshots").exists()
    before = {path: path.stat().st_mtime_ns for path in (place / "objects").rglob("*") if path.is_file()}
    assert len(before) >= 10
    back_up(ctx, place)
    assert {path: path.stat().st_mtime_ns for path in before} == before  # nothing was copied twice
    assert releases.history(put_back(place, tmp_path / "new")) == releases.history(ctx)


def test_a_killed_restore_shows_nothing_and_is_repeated(ctx: Context, tmp_path: Path) -> None:
    back_up(ctx, tmp_path / "backups")
    (tmp_path / "new.restoring" / "refs").mkdir(parents=True)  # what a killed one left
    (tmp_path / "new.restoring" / "refs" / "stale.json").write_text("{}")
    restored = put_back(tmp_path / "backups", tmp_path / "new")
    assert not (restored.workspace.root / "refs" / "stale.json").exists()
    assert releases.history(restored) == releases.history(ctx)


@pytest.mark.parametrize("head", [b"{", b"[]", b'{"payload": "e30=", "payloadType": "application/vnd.in-toto+json"}'])
def test_a_damaged_head_is_refused_by_name(ctx: Context, tmp_path: Path, head: bytes) -> None:
    (ctx.workspace.root / "releases" / "head").write_bytes(head)
    with pytest.raises(SignatureError, match="releases/head"):
        back_up(ctx, tmp_path / "backups")
    assert not (tmp_path / "backups" / "snapshots").exists()


def test_a_pin_that_is_taken_away_meanwhile_stops_no_backup(
    ctx: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin = ctx.workspace.root / "pins" / "one.json"
    pin.parent.mkdir()
    pin.write_text("{}")
    kept = BackupArchive.keep

    def keep(self: BackupArchive, *given: object) -> bool:
        if given[3] == "releases/head":  # the files of its group are listed, the pin is not copied yet
            pin.unlink()
        return kept(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(BackupArchive, "keep", keep)
    _, snapshot = back_up(ctx, tmp_path / "backups")
    assert "pins/one.json" not in {each.path for each in snapshot.entries}


def test_every_backup_is_whole_whenever_others_write(
    ctx: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three releases and an asset come between two files of a backup, wherever that is in it.

    Every reference has its manifest and documents then, and the head its records.
    """
    kept = BackupArchive.keep
    files, before, seen = len(content(ctx.workspace.root)), 2, set()
    for moment in range(0, files, 4):
        count = 0

        def keep(self: BackupArchive, *given: object, moment: int = moment, before: int = before) -> bool:
            nonlocal count
            if (count := count + 1) == moment:
                publish(ctx, f"b{moment}/documents", f"text {moment}")
                for number in (1, 2, 3):
                    release(ctx, before + number)
            return kept(self, *given)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(BackupArchive, "keep", keep)
            back_up(ctx, tmp_path / f"backups{moment}")
        after = len(releases.history(ctx))
        restored = put_back(tmp_path / f"backups{moment}", tmp_path / f"new{moment}")
        refs = [restored.refs.current(ref.asset) for ref in restored.refs.all()]
        assert all(restored.store.has(p.blob) for m in refs if "documents" in m.asset for p in m.parts)
        seen.add(len(releases.history(restored)) - before)
        before = after
    assert seen <= {0, 1, 3}
    assert 0 in seen


def test_an_anchor_of_a_head_that_came_later_is_left_out(ctx: Context, tmp_path: Path) -> None:
    folder = ctx.workspace.releases / "anchors"
    folder.mkdir()
    for number in (2, 3):
        (folder / f"{number:05d}-0a1b.json").write_text("{}")
    _, snapshot = back_up(ctx, tmp_path / "backups")
    assert [each.path for each in snapshot.entries if "anchors" in each.path] == ["releases/anchors/00002-0a1b.json"]


@pytest.mark.slow
def test_a_shared_workspace_goes_to_a_bucket_and_back(
    tmp_path: Path, own_trust: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as bucket:
        for machine, target in (("a", "one"), ("b", "two")):
            monkeypatch.setenv("PLINTH_CACHE", str(tmp_path / machine))
            workspace = Workspace(folder_of(bucket.uri(target)))
            if target == "one":
                ctx = Context(workspace.ensure())
                fill(ctx)
                take(ctx, BackupArchive(bucket.uri("backups")), MLFLOW, "all", SILENT)
                wanted = {ref.asset: ref.digest for ref in ctx.refs.all()}
            else:
                archive = BackupArchive(bucket.uri("backups"))
                restore(archive, archive.read(), workspace, {}, SILENT)
        restored = Context(workspace)
        assert {ref.asset: ref.digest for ref in restored.refs.all()} == wanted
        assert len(releases.history(restored)) == 2
        assert len(EXCLUSIONS.records(restored, whole=True)) == 1
        with restored.store.for_task() as store:
            assert store.open_path(restored.refs.current("web/curated").parts[0].blob).read_bytes()
        with pytest.raises(WorkspaceError, match="is not empty"):
            restore(archive, archive.read(), workspace, {}, SILENT)
