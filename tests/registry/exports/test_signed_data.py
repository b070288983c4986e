"""Exports of text and tokens: what compliance signed is proved with the root alone, and nothing else is."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.errors import GateError, SignatureError, StorageError
from plinth.records import Manifest
from plinth.storage.uris import write_file
from plinth.trust import dsse, standalone_verify
from plinth.trust.root import Trust
from plinth.trust.standalone_verify import EXPORT
from plinth_jobs.cli import call
from plinth_registry import audit_log, exports, taint
from plinth_registry.exports.data import leaving, verify
from tests.registry.exports.conftest import SealedFolder, make_root
from tests.s3_server import serving

FILES = {"web.bin": b"\x01\x02\x03", "web.npy": b"numbers", "deep/web.json": b"{}"}
Attack = Callable[[Context, Path], None]


@pytest.fixture
def ctx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    return make_root(tmp_path / "owner", monkeypatch)


@pytest.fixture
def shards(ctx: Context) -> Manifest:
    inputs = {"web/documents": documents(ctx).digest}
    return saved(ctx, "web/shards", inputs)


def documents(ctx: Context) -> Manifest:
    return saved(ctx, "web/documents", {"web/sources": "0" * 64})


def saved(ctx: Context, asset: str, inputs: dict[str, str]) -> Manifest:
    made = Manifest(asset=asset, step=asset.split("/")[1], version="1", params={}, inputs=inputs, parts=())
    ctx.refs.save(made)
    return made


def export_to(ctx: Context, made: Manifest, to: str, files: dict[str, bytes] = FILES, unsigned: bool = False) -> None:
    """As the commands do: what is written, and then signed."""
    with leaving(ctx, [made], to, f"tokens of {made.asset.split('/')[0]}", unsigned=unsigned) as seal:
        for name, content in files.items():
            write_file(f"{to}/{name}", lambda out, content=content: out.write(content))  # type: ignore[misc]
        digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        assert (seal.sign(digests, {made.asset: made.digest}) is None) == unsigned


def root_of(ctx: Context) -> Path:
    return ctx.workspace.trust_folder / "root.json"


def test_it_is_proved_with_the_root_alone(ctx: Context, shards: Manifest, tmp_path: Path) -> None:
    to = tmp_path / "out"
    export_to(ctx, shards, str(to))
    root = Path(shutil.copy(root_of(ctx), tmp_path / "root.json"))
    entry = audit_log.entries(ctx)[-1]
    assert (entry.action, entry.outcome, entry.actor, entry.subject) == (
        "export data", "done", "compliance", "tokens of web")  # fmt: skip
    shutil.rmtree(ctx.workspace.root)
    proved = verify(str(to), root)
    assert (proved["name"], proved["role"], proved["signed_by"]) == ("tokens of web", "compliance", ["compliance"])
    assert set(proved["digests"]) == set(FILES)
    stated = dsse.unverified(dsse.envelope_of(to / EXPORT), "export")["predicate"]
    assert stated["materials"] == {"web/shards": shards.digest}
    assert standalone_verify.main([str(to), "--root", str(root), "--data"]) == 0


def test_it_is_no_model(ctx: Context, shards: Manifest, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    export_to(ctx, shards, str(tmp_path / "out"))
    given = [str(tmp_path / "out"), "--root", str(root_of(ctx)), "--unreleased"]
    assert standalone_verify.main(given) == 1
    assert "tokens of web is not a model" in capfd.readouterr().err
    assert call(["verify", *given]) == 8
    with pytest.raises(SignatureError, match="not a model"):
        exports.verify(tmp_path / "out", root_of(ctx), unreleased=True)


def test_a_model_is_no_data(export: SealedFolder) -> None:
    with pytest.raises(SignatureError, match="is a model, not data"):
        verify(str(export.directory), export.root)


def restated(role: str, **changes: str) -> Attack:
    """The same statement, changed or not, signed as another role."""

    def attack(ctx: Context, at: Path) -> None:
        content = dsse.unverified(dsse.envelope_of(at / EXPORT), "export")
        content["predicate"].update(changes)
        dsse.write(at / EXPORT, content, Trust.of(ctx.workspace).signer(role))

    return attack


ATTACKS: dict[str, Attack] = {
    "web.bin has changed": lambda ctx, at: (at / "web.bin").write_bytes(b"\x01\x02\x04") and None,
    "web.npy is missing": lambda ctx, at: (at / "web.npy").unlink(),
    "more.bin was added": lambda ctx, at: (at / "more.bin").write_bytes(b"") and None,
    "was rewritten": lambda ctx, at: (at / EXPORT).write_text((at / EXPORT).read_text() + "\n") and None,
    "not signed as compliance": restated("promoter"),
    "is not signed as promoter": restated("compliance", status="released"),
    "is not signed as trainer": restated("compliance", status="UNRELEASED"),
}


@pytest.mark.parametrize("reason", list(ATTACKS))
def test_what_was_changed_is_refused_by_name(ctx: Context, shards: Manifest, tmp_path: Path, reason: str) -> None:
    export_to(ctx, shards, str(tmp_path / "out"))
    ATTACKS[reason](ctx, tmp_path / "out")
    with pytest.raises(SignatureError, match=reason):
        verify(str(tmp_path / "out"), root_of(ctx))


def test_another_root_proves_nothing(
    ctx: Context, shards: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_to(ctx, shards, str(tmp_path / "out"))
    other = make_root(tmp_path / "other", monkeypatch)
    with pytest.raises(SignatureError, match="is not signed as compliance"):
        verify(str(tmp_path / "out"), root_of(other))


def test_exports_share_a_folder_and_a_stranger_is_not_signed(ctx: Context, shards: Manifest, tmp_path: Path) -> None:
    to, books = str(tmp_path / "out"), saved(ctx, "books/shards", {"books/documents": documents(ctx).digest})
    export_to(ctx, shards, to)
    export_to(ctx, books, to, {"books.bin": b"\x07", "web.npy": b"others"})
    proved = verify(to, root_of(ctx))
    assert (proved["name"], set(proved["digests"])) == ("tokens of books, tokens of web", {*FILES, "books.bin"})
    (tmp_path / "out" / "web.bin").unlink()
    export_to(ctx, books, to, {"books.bin": b"\x08"})
    assert set(verify(to, root_of(ctx))["digests"]) == {"web.npy", "deep/web.json", "books.bin"}
    (tmp_path / "out" / "web.npy").write_bytes(b"put there")
    export_to(ctx, books, to, {"books.bin": b"\x08"})
    with pytest.raises(SignatureError, match=r"web\.npy has changed"):  # its first digest stays signed
        verify(to, root_of(ctx))


def test_the_seal_of_a_model_is_never_overwritten(export: SealedFolder) -> None:
    before, shards = (export.directory / EXPORT).read_bytes(), saved(export.ctx, "web/shards", {})
    with pytest.raises(StorageError, match="has another export"):
        export_to(export.ctx, shards, str(export.directory))
    assert not (export.directory / "web.bin").exists()
    assert (export.directory / EXPORT).read_bytes() == before


def test_without_the_key_nothing_leaves_but_unsigned(ctx: Context, shards: Manifest, tmp_path: Path) -> None:
    shutil.rmtree(ctx.workspace.trust_folder / "keys" / "compliance")
    with pytest.raises(SignatureError, match=r"no private key[\s\S]*--unsigned"):
        export_to(ctx, shards, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    assert (audit_log.entries(ctx)[-1].action, audit_log.entries(ctx)[-1].outcome) == ("export data", "refused")
    export_to(ctx, shards, str(tmp_path / "out"), unsigned=True)
    assert not (tmp_path / "out" / EXPORT).exists()
    (note,) = (json.loads(path.read_bytes()) for path in (ctx.workspace.root / "exports").iterdir())
    assert (note["name"], note["subject"]) == ("web/shards", shards.digest)


@pytest.mark.parametrize("unsigned", [False, True])
def test_what_is_tainted_stays_signed_or_not(ctx: Context, shards: Manifest, tmp_path: Path, unsigned: bool) -> None:
    taint.mark(ctx, documents(ctx).digest, "compliance@example.org", "taken down")
    with pytest.raises(GateError, match="taken down"):
        export_to(ctx, shards, str(tmp_path / "out"), unsigned=unsigned)
    assert not (tmp_path / "out").exists()


def test_it_is_proved_where_it_lies_on_s3(ctx: Context, shards: Manifest) -> None:
    with serving() as bucket:
        to = bucket.uri("tokens")
        export_to(ctx, shards, to)
        assert set(verify(to, root_of(ctx))["digests"]) == set(FILES)
        write_file(f"{to}/web.bin", lambda out: out.write(b"\x01\x02\x04"))
        with pytest.raises(SignatureError, match=r"web\.bin has changed"):
            verify(to, root_of(ctx))
        write_file(f"{to}/added.bin", lambda out: out.write(b""))
        with pytest.raises(SignatureError, match=r"added\.bin was added"):
            verify(to, root_of(ctx))
