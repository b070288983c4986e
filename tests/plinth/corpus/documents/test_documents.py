"""Documents end to end: identity, determinism, incremental work, rejects, bounds."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.engine import InlineEngine, LocalEngine
from plinth.corpus.documents import documents
from plinth.corpus.sources.inventory import groups, inventory
from plinth.corpus.sources.parameters import Documents, Normalisation
from plinth.errors import RejectRateError, SourceError, StageError
from plinth.records import Manifest
from plinth.storage.parts import DOCUMENT_SCHEMA, REJECT_SCHEMA, read_table
from tests.plinth.corpus.source_folder import SourceFolder
from tests.s3_server import serving

PARAMS = Documents(part_bytes=2000, max_reject_rate=0.5)


class Corpus(SourceFolder):
    def run(self, *kinds: str, params: Documents = PARAMS, **fields: Any) -> Manifest:
        bucket = self.bucket(*kinds, **fields)
        return documents.run(self.ctx, "b", bucket, params, inventory(bucket, self.root))


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return Corpus(tmp_path)


def fill(corpus: Corpus, files: int = 30) -> None:
    for i in range(files):
        corpus.write(f"text/{i:03d}.txt", f"This is file {i}.  \r\n".encode() * 12)
    lines = [json.dumps({"id": i, "text": f"Line {i}"}) for i in range(50)]
    corpus.write("jsonl/a.jsonl", "\n".join([*lines, "not json"]).encode())
    page = b"<html><head><title>T</title></head><body><p>A paragraph of the page.</p></body></html>"
    corpus.write("html/index.html", page)


def test_rows_are_what_the_schema_says(corpus: Corpus) -> None:
    fill(corpus, 1)
    manifest = corpus.run("text", "html")
    first, page = corpus.rows(manifest)
    text = "\n".join(["This is file 0."] * 12)
    assert first["text"] == text
    assert first["id"] == hashlib.sha256(b"b\x00000.txt\x00" + text.encode()).digest()[:16]
    assert (first["uri"], first["licence"], first["mime"]) == ("000.txt", "MIT", "text/plain")
    assert (first["snapshot"], first["captured_at"]) == ("2026-46", None)
    assert first["source_bytes"] == len(b"This is file 0.  \r\n") * 12
    assert json.loads(page["extra"]) == {"domain": "example.org", "title": "T"}
    assert page["text"] == "A paragraph of the page."
    for part in manifest.parts:
        schema = DOCUMENT_SCHEMA if part.name.startswith("part-") else REJECT_SCHEMA
        assert read_table(corpus.ctx.store, part).schema.equals(schema)
    expected = {"documents": 2, "files": 2, "text_bytes": len(text) + 24, "rejects": {}, "reject_rate": 0.0}
    assert {key: manifest.stats[key] for key in expected} == expected


def test_any_number_of_workers_and_any_place_give_the_same_manifest(tmp_path: Path, two_workers: LocalEngine) -> None:
    digests = []
    for name, engine in (("one", InlineEngine()), ("two", two_workers)):
        corpus = Corpus(tmp_path / name, engine)
        fill(corpus)
        manifest = corpus.run("text", "jsonl", "html")
        assert len(manifest.named("part-")) > 4
        digests.append(manifest.digest)
    assert digests[0] == digests[1]


def test_one_new_file_costs_its_own_part(corpus: Corpus) -> None:
    fill(corpus)
    before = {part.blob.sha256 for part in corpus.run("text", "jsonl").parts}
    corpus.write("text/0155.txt", b"A new file.")
    after = [part.blob.sha256 for part in corpus.run("text", "jsonl").parts]
    assert len(set(after) - before) <= 2
    assert len(set(after) & before) >= len(before) - 2


def test_nothing_is_done_twice(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(corpus)
    first = corpus.run("text", "jsonl", "html")
    monkeypatch.setattr(documents, "make_part", None)
    assert corpus.run("text", "jsonl", "html").digest == first.digest


@pytest.mark.parametrize(
    "change",
    [
        {"licence": "ISC"},
        {"snapshot": "2026-47"},
        {"domain": "example.com"},
        {"params": PARAMS.model_copy(update={"normalisation": Normalisation(max_blank_lines=0)})},
    ],
)
def test_every_fact_of_a_source_bears_identity(corpus: Corpus, change: dict[str, Any]) -> None:
    fill(corpus, 3)
    assert corpus.run("text", **change).digest != corpus.run("text").digest


def test_where_the_source_lies_bears_none(corpus: Corpus) -> None:
    fill(corpus, 3)
    (corpus.root / "elsewhere").symlink_to(corpus.root / "text")
    assert corpus.run("text", path="elsewhere").digest == corpus.run("text").digest
    (corpus.root / "000.txt").symlink_to(corpus.root / "text/000.txt")
    alone = [corpus.run("text", path=path) for path in ("000.txt", "text/000.txt")]
    assert alone[0].digest == alone[1].digest


def test_metadata_is_unicode_whatever_a_source_writes(corpus: Corpus) -> None:
    line = rb'{"text": "A line.", "title": "cut \ud83d", "tags": ["\ude00"], "whole": "\ud83d\ude00", "\ud83d": 1}'
    corpus.write("jsonl/a.jsonl", line)
    (row,) = corpus.rows(corpus.run("jsonl"))
    extra = json.loads(row["extra"])
    assert json.dumps(extra, ensure_ascii=False).encode()  # as exports and pages write it
    assert extra == {"?": 1, "domain": "example.org", "tags": ["?"], "title": "cut ?", "whole": "\U0001f600"}


def test_rejects_are_kept_with_their_reasons(corpus: Corpus) -> None:
    fill(corpus)
    for name, data in {"nul": b"a\0b", "latin": b"\xe4\xf6", "blank": b" \n\t\n", "none": b""}.items():
        corpus.write(f"text/{name}.txt", data)
    corpus.write("jsonl/b.jsonl", b'{"text": "\\ud800"}')
    manifest = corpus.run("text", "jsonl")
    found = {row["uri"]: row["reason"] for row in corpus.rows(manifest, "rejects-")}
    assert found == {
        **{"nul.txt": "nul_bytes", "latin.txt": "invalid_utf8", "blank.txt": "empty", "none.txt": "empty"},
        **{"a.jsonl#L51": "broken_record", "b.jsonl#L1": "invalid_utf8"},
    }
    reasons = {"broken_record": 1, "empty": 2, "invalid_utf8": 2, "nul_bytes": 1}
    assert manifest.stats["rejects"] == reasons
    assert manifest.stats["documents"] == 80 == len(corpus.rows(manifest))
    assert manifest.stats["reject_rate"] == round(4 / 84, 6)  # empty files do not count as damage


def captured(name: str, mime: str, body: bytes, status: int = 200) -> bytes:
    http = b"HTTP/1.1 %d X\r\nContent-Type: %s\r\n\r\n%s" % (status, mime.encode(), body)
    head = f"WARC/1.1\r\nWARC-Type: response\r\nWARC-Target-URI: https://e.org/{name}\r\n"
    head += f"Content-Type: application/http\r\nContent-Length: {len(http)}\r\n\r\n"
    return gzip.compress(head.encode() + http + b"\r\n\r\n", mtime=0)


ASSETS = (("image/png", b"\x89PNG\r\n\x1a\n"), ("text/css", b"a {}"), ("application/javascript", b"x"))
PAGE = "<html><body><p>The text of page %d says something that no other page of this crawl says.</p></body></html>"


def test_a_crawl_full_of_what_crawls_contain_runs_with_defaults(corpus: Corpus) -> None:
    """60 pages, 25 assets, 15 redirects, 6 empty pages and robots.txt: nothing of it is damage; one broken page is."""
    records = [captured(str(i), "text/html", (PAGE % i).encode()) for i in range(60)]
    records += [captured(f"asset-{i}", *ASSETS[i % 3]) for i in range(25)]
    records += [captured(f"old-{i}", "text/html", b"<p>Moved.</p>", 301) for i in range(15)]
    records += [captured(f"empty-{i}", "text/html", b"<html></html>" if i % 2 else b"") for i in range(6)]
    records += [captured("robots.txt", "text/plain", b"User-agent: *"), captured("bad", "text/plain", b"\xff\x01")]
    corpus.write("warc/crawl.warc.gz", b"".join(records))
    made = corpus.run("warc", params=Documents())
    assert made.stats["documents"] == 60
    exclusions = {"not_html": 25, "http_status": 15, "empty": 6, "robots_txt": 1}
    assert made.stats["rejects"] == exclusions | {"invalid_utf8": 1}
    assert made.stats["reject_rate"] == round(1 / 61, 6)


def test_a_tree_with_empty_and_binary_files_and_links_runs_with_defaults(corpus: Corpus, tmp_path: Path) -> None:
    for i in range(20):
        corpus.write(f"tree/p{i}/a.py", b"a = %d\n" % i)
        corpus.write(f"tree/p{i}/__init__.py", b"")
    corpus.write("tree/p0/a.pyc", b"\xa7\r\r\n\0\0\0\0")
    corpus.write("tree/p0/a.so", b"\x7fELF" + b"\1" * 20_000_000)
    corpus.write("secret", b"what no source may lead to")
    (tmp_path / "tree/p1/link.py").symlink_to(tmp_path / "secret")
    (tmp_path / "tree/LICENCES.json").symlink_to(tmp_path / "secret")
    made = corpus.run("tree", params=Documents(), licence="per-document")
    assert (made.stats["documents"], made.stats["reject_rate"]) == (20, 0.0)
    assert made.stats["rejects"] == {"empty": 20, "binary": 2, "symlink": 2}
    links = {row["uri"]: row["detail"] for row in corpus.rows(made, "rejects-") if row["reason"] == "symlink"}
    assert set(links) == {"p1/link.py", "LICENCES.json"}
    assert not any(str(tmp_path) in detail for detail in links.values())
    assert {row["licence"] for row in corpus.rows(made)} == {"unknown"}


def test_damage_throughout_fails_before_everything_is_read(corpus: Corpus) -> None:
    for i in range(100):
        corpus.write(f"text/{i:03d}.txt", b"\xff" + b"x" * 900 if i % 2 else b"A text. " * 120)
    read: list[int] = []

    class Counting(InlineEngine):
        def map(self, fn: Any, tasks: Any, **options: Any) -> Any:
            read.append(len(tasks))
            return super().map(fn, tasks, **options)

    counting = Corpus(corpus.root, Counting())
    params = Documents(part_bytes=1000)
    with pytest.raises(RejectRateError, match=r"[45]\d\.\d% of the records are damaged in a sample of \d+ parts"):
        counting.run("text", params=params)
    whole = len(list(groups(corpus.bucket("text"), inventory(corpus.bucket("text"), corpus.root), 1000)))
    assert len(read) == 1
    assert documents.PROBE_GROUPS <= read[0] <= 2 * documents.PROBE_GROUPS < whole
    lenient = corpus.run("text", params=params.model_copy(update={"max_reject_rate": 0.6}))
    assert lenient.stats["documents"] == 50


def test_too_many_rejects_fail_by_name(corpus: Corpus) -> None:
    fill(corpus, 3)
    corpus.write("text/bad1.txt", b"\0")
    corpus.write("text/bad2.txt", b"\0")
    with pytest.raises(RejectRateError) as failure:
        corpus.run("text", params=Documents(max_reject_rate=0.1))
    message = str(failure.value)
    for piece in ("b/documents", "40.0%", "nul_bytes 2", "bad1.txt (file)", "10.0%"):
        assert piece in message


def test_text_in_another_field_is_said_with_how_to_name_it(corpus: Corpus) -> None:
    corpus.write("lines/a.jsonl", b'{"body": "Some text."}\n')
    with pytest.raises(RejectRateError) as failure:
        corpus.run("jsonl", path="lines")
    assert "(has `body`)" in str(failure.value)
    assert "`fields: {text: NAME}`" in str(failure.value)


def test_a_bucket_without_documents_is_an_error(corpus: Corpus) -> None:
    corpus.write("text/a.txt", b"")
    with pytest.raises(SourceError, match="no documents"):
        corpus.run("text", params=Documents(max_reject_rate=1))


def test_the_same_document_twice_in_one_part_and_across_parts(corpus: Corpus) -> None:
    line = b'{"uri": "https://example.org/", "text": "The same."}\n'
    other = json.dumps({"text": hashlib.sha512(b"x").hexdigest() * 30}).encode() + b"\n"
    corpus.write("jsonl/a.jsonl", line + line + other)
    corpus.write("jsonl/b.jsonl", other + line)
    corpus.write("jsonl/c.jsonl", line + other)
    manifest = corpus.run("jsonl", params=Documents(part_bytes=1000, max_reject_rate=0))  # no failure of the source
    assert len(manifest.named("part-")) == 3
    rows = corpus.rows(manifest)
    assert sorted(row["uri"] for row in rows) == ["a.jsonl#L3", "b.jsonl#L1", "c.jsonl#L2", "https://example.org/"]
    assert manifest.stats["rejects"] == {"seen_before": 3}
    assert manifest.stats["seen_before_bytes"] == 3 * len("The same.")
    assert manifest.stats["reject_rate"] == 0.0
    assert manifest.stats["documents"] == 4
    assert manifest.stats["text_bytes"] == sum(len(row["text"]) for row in rows)


def test_licences_per_document(corpus: Corpus) -> None:
    corpus.write("tree/free/a.py", b"a = 1\n")
    corpus.write("tree/other/b.py", b"b = 1\n")
    corpus.write("tree/LICENCES.json", b'{"free": "MIT"}')
    manifest = corpus.run("tree", licence="per-document", suffixes=(".py",))
    assert {row["uri"]: row["licence"] for row in corpus.rows(manifest)} == {
        "free/a.py": "MIT",
        "other/b.py": "unknown",
    }
    corpus.write("tree/LICENCES.json", b'{"free": "MIT", "other": "ISC"}')
    again = corpus.run("tree", licence="per-document", suffixes=(".py",))
    assert {row["licence"] for row in corpus.rows(again)} == {"MIT", "ISC"}


def test_hostile_pages_do_not_stop_the_others(corpus: Corpus) -> None:
    corpus.write("html/a.html", b"<p>First page, fine.</p>")
    corpus.write("html/b.html", b"<div>" * 100_000 + b"x" + b"</div>" * 100_000)
    corpus.write("html/c.html", b"")
    corpus.write("html/d.html", b"<p>Last page, fine.</p>")
    params = PARAMS.model_copy(update={"extraction": PARAMS.extraction.model_copy(update={"seconds_per_page": 0.5})})
    manifest = corpus.run("html", params=params)
    assert [row["text"] for row in corpus.rows(manifest)] == ["First page, fine.", "Last page, fine."]
    assert manifest.stats["rejects"] == {"empty": 1, "extract_timeout": 1}


def test_order_is_kept_where_pages_and_texts_mix(corpus: Corpus) -> None:
    kinds = ("text/plain", "text/html", "text/html")
    pages = (captured(str(i), kinds[i % 3], b"<p>number %d</p>" % i) for i in range(200))
    corpus.write("warc/a.warc.gz", b"".join(pages))
    rows = corpus.rows(corpus.run("warc"))
    assert [row["uri"] for row in rows] == [f"https://e.org/{i}" for i in range(200)]
    assert [row["text"] for row in rows[:2]] == ["<p>number 0</p>", "number 1"]


def large_warc(records: int = 120) -> bytes:
    pages = (b"<p>%d %s</p>" % (i, hashlib.sha512(b"%d" % i).hexdigest().encode() * 20) for i in range(records))
    return b"".join(captured(str(i), "text/html", page) for i, page in enumerate(pages))


def run_in_pieces(corpus: Corpus, piece_bytes: int, **fields: Any) -> Manifest:
    bucket = corpus.bucket("warc", **fields)
    params = PARAMS.model_copy(update={"part_bytes": 8000})
    return documents.run(corpus.ctx, "b", bucket, params, inventory(bucket, corpus.root, piece_bytes=piece_bytes))


def test_one_large_file_is_several_parts_on_any_number_of_workers(tmp_path: Path, two_workers: LocalEngine) -> None:
    made = []
    for name, engine in (("one", InlineEngine()), ("two", two_workers)):
        corpus = Corpus(tmp_path / name, engine)
        corpus.write("warc/a.warc.gz", large_warc())
        made.append(run_in_pieces(corpus, 6000))
    assert made[0].digest == made[1].digest
    assert len(made[0].named("part-")) > 2
    assert made[0].stats["files"] == 1
    rows = corpus.rows(made[1])
    assert [row["uri"] for row in rows] == [f"https://e.org/{i}" for i in range(120)]
    whole = corpus.rows(run_in_pieces(corpus, 10**9))
    assert rows == whole


def test_a_large_file_that_grows_costs_its_last_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(tmp_path)
    corpus.write("warc/a.warc.gz", large_warc())
    before = run_in_pieces(corpus, 6000)
    corpus.write("warc/a.warc.gz", large_warc(125))
    after = run_in_pieces(corpus, 6000)
    shared = {part.blob.sha256 for part in before.parts} & {part.blob.sha256 for part in after.parts}
    assert len(shared) >= len(before.parts) - 2
    assert after.stats["documents"] == 125


def test_a_bucket_on_s3_gives_the_documents_of_the_same_files_on_disk(tmp_path: Path) -> None:
    """Names are part of the identity: manifest and all parts are equal, including large files in pieces and parts."""
    corpus = Corpus(tmp_path)
    fill(corpus, 5)
    corpus.write("warc/a.warc.gz", large_warc())
    with serving() as bucket:
        for path in sorted(tmp_path.rglob("*.*")):
            kind = path.relative_to(tmp_path).parts[0]
            if kind in ("text", "jsonl", "html", "warc"):
                bucket.put_in_parts(f"corpus/{path.relative_to(tmp_path)}", path.read_bytes())
        elsewhere = Corpus(tmp_path / "elsewhere")
        for kind in ("text", "jsonl", "html"):
            there = elsewhere.run(kind, path=bucket.uri(f"corpus/{kind}"))
            assert there.digest == corpus.run(kind).digest
        there = run_in_pieces(elsewhere, 6000, path=bucket.uri("corpus/warc"))
        assert there.digest == run_in_pieces(corpus, 6000).digest


def test_boundaries_are_mended_where_the_source_asks(corpus: Corpus) -> None:
    corpus.write("text/scan.txt", b"An example of a page\n\n12\n\fthat ended.The exam-\nple went on.")
    assert corpus.rows(corpus.run("text"))[0]["text"].startswith("An example of a page\n\n12")
    (row,) = corpus.rows(corpus.run("text", repair_boundaries=True))
    assert row["text"] == "An example of a page that ended. The example went on."


def test_a_worker_with_another_reader_is_refused(corpus: Corpus) -> None:
    fill(corpus, 1)
    bucket = corpus.bucket("text")
    (group,) = groups(bucket, inventory(bucket, corpus.root), 1 << 20)
    facts = {"bucket": "b", "source": bucket.sources[0], "group": group, "params": PARAMS}
    work = documents.FileGroupTask(**facts, reader="acme 2.0 sha256:0")
    with pytest.raises(StageError, match="reader text of this worker differs") as refused:
        documents.make_part(corpus.ctx.store, work)
    assert (refused.value.found, refused.value.expected) == ("built in", "acme 2.0 sha256:0")
