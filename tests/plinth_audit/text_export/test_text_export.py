"""Curated text for others: columns, terms, the same bytes again, going on after a kill, digests, readers of others."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

from plinth import fingerprint
from plinth.compute.context import Context, manifest
from plinth.compute.engine import LocalEngine
from plinth.corpus.sources.record import read
from plinth.errors import IntegrityError, SourceError, StorageError
from plinth.provenance import ledger
from plinth.records import Step
from plinth.storage import listing
from plinth.storage.parts import read_table
from plinth_audit.text_export import export as exports
from plinth_audit.text_export.export import export
from plinth_audit.text_export.manifest import hub_licence, size_category, verify
from plinth_jobs.cli import call
from plinth_registry import taint
from tests import judged_corpus, shared
from tests.judged_corpus import PLANTED, ledger_of
from tests.plinth.corpus.sources.conftest import make_source
from tests.plinth_audit.text_export.conftest import PAGE, card_of, run
from tests.rights import permitting
from tests.s3_server import serving


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_rows_are_curated_text_with_the_ledger(ctx: Context, tmp_path: Path) -> None:
    made = run(ctx, tmp_path)
    by_id = {}
    for bucket in PLANTED:
        curated = ctx.refs.current(f"{bucket}/curated")
        paths = sorted((tmp_path / "data" / bucket).iterdir())
        assert [path.name for path in paths] == [f"train-0000{i}-of-00002.parquet" for i in range(2)]
        for path, part in zip(paths, curated.named("part-"), strict=True):
            rows, texts = pq.read_table(path).to_pylist(), read_table(ctx.store, part).to_pylist()
            assert [row["text"] for row in rows] == [text["text"] for text in texts]
            assert [row["id"] for row in rows] == [text["id"].hex() for text in texts]
            by_id |= {row["id"]: row for row in rows}
    assert sum(file.documents for file in made.files.values()) == len(by_id)
    for part in ctx.refs.current("ledger").named("web/part-"):
        for told in read_table(ctx.store, part).to_pylist():
            if told["decision"] != "train":
                assert told["id"] not in by_id
                continue
            row = by_id[told["id"]]
            same = ("bucket", "uri", "snapshot", "licence", "cluster", "edits", "gopher_quality__word_count")
            assert {name: row[name] for name in same} == {name: told[name] for name in same}
            assert (row["source"], json.loads(row["metadata"])) == ("a.example", {"domain": "a.example"})
    assert not {"shard", "tokens", "mixture_weight"} & set(next(iter(by_id.values())))


def test_text_that_may_not_be_passed_on_stays(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    ctx = judged_corpus.copy(tmp_path_factory, tmp_path)
    ctx.refs.publish(ledger.run(ctx, ledger_of(ctx)), "key")
    ctx.refs.publish(card_of(ctx), "key")
    with pytest.raises(SourceError, match=r"bucket web do not allow redistribution[\s\S]*a\.example, 2026-46"):
        run(ctx, tmp_path / "out", buckets=("web",))
    assert not (tmp_path / "out").exists()


def test_planted_text_stays(ctx: Context, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SourceError, match="canaries cannot be exported"):
        run(ctx, tmp_path / "out", buckets=(*PLANTED, "canaries"))
    said = call(["export", "text", "canaries", "--to", str(tmp_path / "out"), "-w", str(ctx.workspace.root)])
    assert (said, "texts that measure memorization" in capsys.readouterr().err) == (4, True)
    assert not (tmp_path / "out").exists()


def test_documents_under_a_licence_that_may_not_be_passed_on_stay(
    ctx: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(judged_corpus.SOURCE["terms"], "redistribute", True)
    monkeypatch.setattr(judged_corpus, "RIGHTS", permitting("MIT", "CC0-1.0", redistribute=("CC0-1.0",)))
    ctx = judged_corpus.build(shared.copied(ctx.workspace.root.parent, tmp_path))
    ctx.refs.publish(ledger.run(ctx, ledger_of(ctx)), "key")
    ctx.refs.publish(card_of(ctx), "key")
    made = run(ctx, tmp_path / "out", buckets=("prose",))
    trained = ctx.refs.current("prose/curated").stats["documents"]
    assert trained > 0
    assert sum(file.documents for file in made.files.values()) == 0
    assert sum(file.withheld for file in made.files.values()) == trained


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz", "jsonl.zst"])
def test_the_same_bytes_on_any_number_of_workers_and_again(
    ctx: Context, two_workers: LocalEngine, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = run(ctx, tmp_path / "one", kind)
    monkeypatch.chdir(tmp_path)  # workers have another working directory
    two = run(Context(ctx.workspace, two_workers), Path("two"), kind)
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert one == two == run(ctx, tmp_path / "one", kind)
    assert set(files(tmp_path / "one")) == {*one.files, "manifest.json"}
    assert verify(str(tmp_path / "one"), one.digest) == one


def test_a_killed_export_goes_on_where_it_was(ctx: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    original = exports.write_text

    def dying(store: Path, task: Any) -> Any:
        if len(written) == 2:
            half = tmp_path / f"out/data/prose/.{task.name.rpartition('/')[2]}.x1.tmp"
            half.parent.mkdir()
            half.write_bytes(b"half")
            raise KeyboardInterrupt
        written.append(task.name)
        return original(store, task)

    whole = run(ctx, tmp_path / "whole")
    monkeypatch.setattr(exports, "write_text", dying)
    with pytest.raises(KeyboardInterrupt):
        run(ctx, tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()
    monkeypatch.setattr(exports, "write_text", lambda store, task: written.append(task.name) or original(store, task))
    assert run(ctx, tmp_path / "out") == whole
    assert len(written) == len(set(written)) == 4
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    before = (tmp_path / "out/data/web/train-00000-of-00002.parquet").stat().st_mtime_ns
    run(ctx, tmp_path / "out", buckets=("web",))  # what is no longer wanted goes, what is stays as it is
    assert not list((tmp_path / "out/data").rglob("*-of-00002.parquet.*"))
    assert {path.parent.name for path in (tmp_path / "out/data").rglob("*.parquet")} == {"web"}
    assert (tmp_path / "out/data/web/train-00000-of-00002.parquet").stat().st_mtime_ns == before


@pytest.mark.parametrize("finished", [True, False])
def test_a_file_that_was_changed_with_its_record_is_written_again(ctx: Context, tmp_path: Path, finished: bool) -> None:
    made = run(ctx, tmp_path)
    name, whole = "data/web/train-00001-of-00002.parquet", files(tmp_path)
    poison = b"x" * made.files[name].bytes
    (tmp_path / name).write_bytes(poison)
    changed = made.files[name].model_copy(update={"sha256": hashlib.sha256(poison).hexdigest()})
    if finished:
        forged = made.model_copy(update={"files": {**made.files, name: changed}})
        (tmp_path / "manifest.json").write_bytes(fingerprint.canonical(forged))
    else:
        (tmp_path / ".progress").mkdir()
        (tmp_path / ".progress/x.json").write_bytes(fingerprint.canonical({"name": name, "file": changed.model_dump()}))
    assert run(ctx, tmp_path) == made
    assert files(tmp_path) == whole


def test_the_driver_opens_one_ledger_part_per_bucket(ctx: Context, tmp_path: Path) -> None:
    run(ctx, tmp_path)
    opened = ctx.store.opened
    made = run(ctx, tmp_path)  # repeated: no file is written
    assert len([name for name in made.files if name.startswith("data/web/")]) == 2
    assert ctx.store.opened - opened == len(PLANTED)


def test_files_of_others_are_left_alone(ctx: Context, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/mine.parquet").write_bytes(b"mine")
    with pytest.raises(StorageError, match=r"not from an export[\s\S]*data/mine\.parquet"):
        run(ctx, tmp_path)
    assert files(tmp_path) == {"data/mine.parquet": b"mine"}


def test_verify_finds_what_changed(ctx: Context, tmp_path: Path) -> None:
    made = run(ctx, tmp_path)
    name = "data/web/train-00001-of-00002.parquet"
    data = bytearray((tmp_path / name).read_bytes())
    data[40] ^= 1
    (tmp_path / name).write_bytes(data)
    (tmp_path / "data/web/extra.parquet").write_bytes(b"")
    (tmp_path / "README.md").unlink()
    with pytest.raises(IntegrityError) as error:
        verify(str(tmp_path))
    found = f"README.md is missing; data/web/extra.parquet was added; {name} has changed"
    assert str(error.value.found) == found
    with pytest.raises(IntegrityError, match="the manifest has SHA-256"):
        verify(str(tmp_path), "0" * 64)
    assert call(["export", "verify", str(tmp_path), "--digest", made.digest]) == 5


def test_a_ledger_or_card_of_other_text_is_refused(ctx: Context, tmp_path: Path) -> None:
    card = card_of(ctx)
    other = manifest("data_card", Step(name="data_card", version="1"), {"web/curated": "0" * 64}, card.parts)
    with pytest.raises(IntegrityError, match="data_card does not belong to the current web/curated"):
        export(ctx, ("web",), "parquet", str(tmp_path), "judged", other, PAGE)


def test_s3_takes_it_and_verifies(ctx: Context, tmp_path: Path) -> None:
    made = run(ctx, tmp_path, "jsonl.gz")
    with serving() as bucket:
        assert run(ctx, bucket.uri("corpus"), "jsonl.gz") == made == run(ctx, bucket.uri("corpus"), "jsonl.gz")
        assert verify(bucket.uri("corpus")) == made
        fs = fsspec.filesystem("s3")
        found = {path.partition("/corpus/")[2]: fs.cat_file(path) for path in fs.find(bucket.uri("corpus"))}
        assert found == files(tmp_path)
        with pytest.raises(StorageError, match="cannot"):
            run(ctx, "s3://no-such-bucket-here/x")


def test_the_card_is_one_that_the_hub_reads(ctx: Context, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    run(ctx, tmp_path)
    card = hub.DatasetCard.load(tmp_path / "README.md")
    assert card.text.strip() == PAGE.strip()
    assert card.data.license == "mit"
    assert card.data.size_categories == ["n<1K"]
    for config in card.data.configs:
        (data,) = config["data_files"]
        patterns = data["path"] if isinstance(data["path"], list) else [data["path"]]
        found = {path for pattern in patterns for path in tmp_path.glob(pattern)}
        bucket = {"default": "*"}.get(config["config_name"], config["config_name"])
        assert found == set(tmp_path.glob(f"data/{bucket}/*.parquet"))
        assert found
    assert [config["config_name"] for config in card.data.configs] == ["default", *PLANTED]


@pytest.mark.parametrize(("documents", "words"), [(0, "n<1K"), (999, "n<1K"), (1000, "1K<n<10K"), (10**12, "n>1T")])
def test_size_categories(documents: int, words: str) -> None:
    assert size_category(documents) == words


def test_licences_of_the_hub() -> None:
    own = ["MIT", "CC-BY-SA-4.0", "GPL-3.0-only", "ODC-By-1.0", "LicenseRef-mine"]
    assert [hub_licence(one) for one in own] == ["mit", "cc-by-sa-4.0", "gpl-3.0", "odc-by", "other"]


@pytest.mark.parametrize("kind", ["parquet", "jsonl.gz"])
def test_datatrove_reads_it(ctx: Context, tmp_path: Path, kind: str) -> None:
    readers = pytest.importorskip("datatrove.pipeline.readers")
    run(ctx, tmp_path, kind, ("web",))
    reader = readers.ParquetReader if kind == "parquet" else readers.JsonlReader
    found = {one.id: one for one in reader(str(tmp_path / "data"), recursive=True).run()}
    texts = [
        row
        for part in ctx.refs.current("web/curated").named("part-")
        for row in read_table(ctx.store, part).to_pylist()
    ]
    assert {key: one.text for key, one in found.items()} == {row["id"].hex(): row["text"] for row in texts}
    for row in texts:
        metadata = found[row["id"].hex()].metadata
        assert (metadata["domain"], metadata["uri"], metadata["licence"]) == ("a.example", row["uri"], row["licence"])


def test_the_command(
    ctx: Context, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plinth.compute.engine.cores", lambda: 1)
    given = ["-w", str(ctx.workspace.root), "export"]
    assert call([*given, "text", "--to", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    out, root = str(tmp_path / "out"), ["--root", str(ctx.workspace.trust_folder / "root.json")]
    assert call([*given, "verify", out, "--digest", told["digest"]]) == 0
    assert call(["-w", str(tmp_path / "none"), "export", "verify", out, *root, "--json"]) == 0
    assert call([*given, "text", "--to", out]) == 0  # repeated, it is signed again
    assert call([*given, "verify", out, *root]) == 0
    assert f"{len(told['files']) + 1} files, text of judged" in capsys.readouterr().out
    assert call([*given, "text", "--unsigned", "--to", str(tmp_path / "bare")]) == 0
    assert call([*given, "verify", str(tmp_path / "bare")]) == 8
    assert "is not signed" in capsys.readouterr().err
    assert call([*given, "verify", str(tmp_path / "bare"), "--unsigned"]) == 0
    assert call([*given, "text", "nobody", "--to", str(tmp_path / "no")]) == 3


@pytest.mark.parametrize("kind", ["parquet", "jsonl.zst"])
def test_it_is_a_source_again(ctx: Context, tmp_path: Path, kind: str) -> None:
    run(ctx, tmp_path, kind, ("web",))
    source = make_source(kind.partition(".")[0], path=str(tmp_path / "data"), licence="per-document")
    files = listing.inventory(source.path, tmp_path)
    found = {item.extra["id"]: item for file in files for item in read(file, source, "per-document", 1 << 20)}
    for part in ctx.refs.current("web/curated").named("part-"):
        for row in read_table(ctx.store, part).to_pylist():
            item = found.pop(row["id"].hex())
            assert (item.content, item.uri, item.licence) == (row["text"], row["uri"], row["licence"])
            assert item.extra["gopher_quality__word_count"] > 0
    assert not found


def test_tainted_text_and_tokens_stay(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ctx = judged_corpus.copy(tmp_path_factory, tmp_path)
    ctx.refs.publish(card_of(ctx), "key")
    marked = taint.mark(ctx, ctx.refs.current("web/documents").digest, "compliance@example.org", "must go")
    place, of = ["--to", str(tmp_path / "out")], ["-w", str(ctx.workspace.root)]
    # The tokenizer was trained on both buckets, so the tokens of either are derived from the marked text.
    for command in (["text", "web"], ["tokens", "web", "--format", "bin"], ["tokens", "prose", "--format", "bin"]):
        assert call(["export", *command, *place, *of]) == 8
        assert "must go" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
    taint.lift(ctx, marked.target, "compliance@example.org", "it may stay")
    assert call(["export", "tokens", "prose", "--format", "bin", *place, *of]) == 0
    (note,) = (json.loads(path.read_bytes()) for path in (ctx.workspace.root / "exports").iterdir())
    assert (note["name"], note["to"]) == ("prose/shards", str(tmp_path / "out"))
    assert call(["export", "verify", str(tmp_path / "out"), *of]) == 0
    assert "tokens of prose" in capfd.readouterr().out
    (tmp_path / "out" / "prose.npy").write_bytes(b"")
    assert call(["export", "verify", str(tmp_path / "out"), *of]) == 8
    assert "prose.npy has changed" in capfd.readouterr().err
