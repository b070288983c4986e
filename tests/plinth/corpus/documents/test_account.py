"""The account of a bucket: each file and each record is counted once, and a lost one stops the stage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.compute.engine import Engine, InlineEngine, LocalEngine
from plinth.corpus.documents import documents
from plinth.corpus.documents.account import Account, account
from plinth.corpus.sources.inventory import inventory, not_read
from plinth.corpus.sources.parameters import Bucket, Documents, Source
from plinth.errors import StageError
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace

WHOLE = Account(
    found=12, read=9, not_read={"hidden": 1, ".md": 2}, records=1234, documents=1200,
    exclusions={"empty": 5, "not_html": 15}, damage={"broken_record": 4}, repeats=10, repeated_ids=2,
)  # fmt: skip


def line(text: str, **fields: Any) -> str:
    return json.dumps({"text": text, **fields}) + "\n"


def bucket(*kinds: str, **fields: Any) -> Bucket:
    facts = {"licence": "MIT", "domain": "example.org", "snapshot": "2026-46", **fields}
    terms = {"train": True, "redistribute": True, "commercial": True}
    sources = tuple(Source.model_validate({"kind": kind, "path": kind, "terms": terms, **facts}) for kind in kinds)
    return Bucket(description="", owner="o", sources=sources)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def run(folder: Path, given: Bucket, engine: Engine | None = None) -> tuple[Context, Manifest, Account]:
    ctx = Context(Workspace(folder / "workspace").ensure(), engine=engine or InlineEngine())
    found = inventory(given, folder)
    made = documents.run(ctx, "b", given, Documents(part_bytes=400, max_reject_rate=0.5), found)
    return ctx, made, account(found.found, not_read(given, found), made.stats)


def test_the_line_of_an_account() -> None:
    assert WHOLE.line == (
        "12 files = 9 read + 3 not read (2 .md, 1 hidden); 1,234 records = 1,200 documents + 20 excluded (15 not_html, "
        "5 empty) + 4 damaged (4 broken_record) + 10 repeated; 2 ids on several texts"
    )
    alone = Account(found=1, read=1, not_read={}, records=1, documents=1, exclusions={}, damage={}, repeats=0)
    assert alone.line == "1 file = 1 read; 1 record = 1 document"


@pytest.mark.parametrize("lost", ["found", "read", "records", "documents", "repeats"])
def test_an_account_that_does_not_add_up_is_refused(lost: str) -> None:
    WHOLE.require_balance("b/documents")
    with pytest.raises(StageError, match="b/documents: the account does not add up"):
        WHOLE.model_copy(update={lost: getattr(WHOLE, lost) + 1}).require_balance("b/documents")


MESS = {
    "jsonl/a.jsonl": line("One.") + line("Another.", id="x") + "no json\n" + line("") + line("Third.", id="x"),
    "jsonl/b.jsonl": line("A page.", url="https://e.org/") + line("A page.", url="https://e.org/"),
    "jsonl/c.jsonl": line("A page.", url="https://e.org/") + line("Of its own.", url="https://e.org/c") * 20,
    "jsonl/empty.jsonl": "",
    "jsonl/notes.md": "notes",
    "jsonl/.git/d.jsonl": line("hidden"),
    "text/a.txt": "A text.",
    "text/binary.txt": "%PDF-1.4",
    "text/.DS_Store": "x",
}


def test_the_account_of_a_messy_bucket(tmp_path: Path) -> None:
    write(tmp_path, MESS)
    (tmp_path / "text/link.txt").symlink_to("/etc/hostname")
    _, made, found = run(tmp_path, bucket("jsonl", "text"))
    assert found == Account(
        found=10, read=6, not_read={".md": 1, "hidden": 2, "symlink": 1}, records=32, documents=6,
        exclusions={"binary": 1, "empty": 2, "symlink": 1}, damage={"broken_record": 1}, repeats=21, repeated_ids=1,
    )  # fmt: skip
    assert len(made.named("part-")) > 1


def test_what_is_not_read_changes_no_document(tmp_path: Path) -> None:
    write(tmp_path, {"text/a.txt": "A text.", "text/b.md": "Notes."})
    first = run(tmp_path, bucket("text", suffixes=[".txt"]))
    write(tmp_path, {"text/c.md": "More notes."})
    second = run(tmp_path, bucket("text", suffixes=[".txt"]))
    assert first[1].digest == second[1].digest
    assert (first[2].not_read, second[2].not_read) == ({".md": 1}, {".md": 2})


def test_a_record_that_is_lost_on_the_way_stops_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, MESS)
    kept = documents._normalised

    def lossy(items: Any, work: Any) -> Iterator[Any]:
        return (item for item in kept(items, work) if getattr(item, "content", "") != "A text.")

    monkeypatch.setattr(documents, "_normalised", lossy)
    with pytest.raises(StageError, match="the account does not add up") as failure:
        run(tmp_path, bucket("jsonl", "text"))
    assert "9 of 9 files, 30 of 31 records" in str(failure.value)


def test_an_id_that_repeats_loses_no_text(tmp_path: Path, two_workers: LocalEngine) -> None:
    """Pages of one book, parts of one parent, and empty identifiers: on any number of workers the same documents."""
    rows = [[line(f"Page {i}.", id="book-1", page=i) for i in range(4)]]
    rows += [[line(f"Part {i}.", metadata={"id": "parent"}) for i in range(4)]]
    rows += [[line(f"Piece {i}.", id="") for i in range(3)]]
    files = {f"jsonl/{name}.jsonl": "".join(own) for name, own in zip("abc", rows, strict=True)}
    for name in ("one", "two"):
        write(tmp_path / name, files)
    ctx, made, found = run(tmp_path / "one", bucket("jsonl"))
    read = [row for part in made.named("part-") for row in read_table(ctx.store, part).to_pylist()]
    assert [row["text"] for row in read] == [json.loads(own)["text"] for file in rows for own in file]
    assert len({row["uri"] for row in read}) == len({row["id"] for row in read}) == 11
    assert (found.records, found.documents, found.repeats, found.repeated_ids) == (11, 11, 0, 2)
    assert run(tmp_path / "two", bucket("jsonl"), two_workers)[1].digest == made.digest


def test_dates_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    dates = ["2020", "yesterday", "2020-13-01", "", 1583298367]
    write(tmp_path, {"jsonl/a.jsonl": "".join(line(f"text {n}", date=one) for n, one in enumerate(dates))})
    _, made, found = run(tmp_path, bucket("jsonl"))
    assert made.stats["unread_dates"] == found.unread_dates == 2
    assert found.line == "1 file = 1 read; 5 records = 5 documents; 2 dates not read"
