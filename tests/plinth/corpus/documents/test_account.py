"""The account of a bucket: each file and each record is counted once, and a lost one stops the stage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.engine import Engine, LocalEngine
from plinth.corpus.documents import documents
from plinth.corpus.sources.inventory import inventory, not_read
from plinth.corpus.sources.parameters import Documents
from plinth.corpus.sources.record import Account, account
from plinth.errors import StageError
from plinth.records import Manifest
from tests.plinth.corpus.source_folder import SourceFolder

WHOLE = Account(
    found=12, read=9, not_read={"hidden": 1, ".md": 2}, records=1234, documents=1200,
    exclusions={"empty": 5, "not_html": 15}, damage={"broken_record": 4}, repeats=10, repeated_ids=2,
)  # fmt: skip


def line(text: str, **fields: Any) -> str:
    return json.dumps({"text": text, **fields}) + "\n"


class Folder(SourceFolder):
    def account(self, *kinds: str) -> tuple[Manifest, Account]:
        bucket, params = self.bucket(*kinds), Documents(part_bytes=400, max_reject_rate=0.5)
        found = inventory(bucket, self.root)
        made = documents.run(self.ctx, "b", bucket, params, found)
        return made, account(found.found, not_read(bucket, found), made.stats)


def folder(root: Path, files: dict[str, str], engine: Engine | None = None) -> Folder:
    made = Folder(root, engine)
    for name, text in files.items():
        made.write(name, text)
    return made


def test_the_line_of_an_account() -> None:
    assert WHOLE.line == (
        "12 files: 9 read, 3 not read (2 .md, 1 hidden); 1,234 records: 1,200 documents, 20 excluded (15 not_html, "
        "5 empty), 4 damaged (4 broken_record), 10 repeated; 2 ids on several texts"
    )
    alone = Account(found=1, read=1, not_read={}, records=1, documents=1, exclusions={}, damage={}, repeats=0)
    assert alone.line == "1 file: 1 read; 1 record: 1 document"


@pytest.mark.parametrize("lost", ["found", "read", "records", "documents", "repeats"])
def test_an_account_that_does_not_add_up_is_refused(lost: str) -> None:
    WHOLE.require_balance("b/documents")
    with pytest.raises(StageError, match="b/documents: the numbers of files or records do not add up"):
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
    bucket = folder(tmp_path, MESS)
    (tmp_path / "text/link.txt").symlink_to("/etc/hostname")
    made, found = bucket.account("jsonl", "text")
    assert found == Account(
        found=10, read=6, not_read={".md": 1, "hidden": 2, "symlink": 1}, records=32, documents=6,
        exclusions={"binary": 1, "empty": 2, "symlink": 1}, damage={"broken_record": 1}, repeats=21, repeated_ids=1,
    )  # fmt: skip
    assert len(made.named("part-")) > 1


def test_a_record_that_is_lost_on_the_way_stops_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = folder(tmp_path, MESS)
    kept = documents.normalised

    def lossy(items: Any, work: Any) -> Iterator[Any]:
        return (item for item in kept(items, work) if getattr(item, "content", "") != "A text.")

    monkeypatch.setattr(documents, "normalised", lossy)
    with pytest.raises(StageError, match="the numbers of files or records do not add up") as failure:
        bucket.account("jsonl", "text")
    assert "9 of 9 files, 30 of 31 records" in str(failure.value)


def test_an_id_that_repeats_loses_no_text(tmp_path: Path, two_workers: LocalEngine) -> None:
    """Pages of one book, parts of one parent, and empty identifiers: on any number of workers the same documents."""
    rows = [[line(f"Page {i}.", id="book-1", page=i) for i in range(4)]]
    rows += [[line(f"Part {i}.", metadata={"id": "parent"}) for i in range(4)]]
    rows += [[line(f"Piece {i}.", id="") for i in range(3)]]
    files = {f"jsonl/{name}.jsonl": "".join(own) for name, own in zip("abc", rows, strict=True)}
    bucket = folder(tmp_path / "one", files)
    made, found = bucket.account("jsonl")
    read = bucket.rows(made)
    assert [row["text"] for row in read] == [json.loads(own)["text"] for file in rows for own in file]
    assert len({row["uri"] for row in read}) == len({row["id"] for row in read}) == 11
    assert (found.records, found.documents, found.repeats, found.repeated_ids) == (11, 11, 0, 2)
    assert folder(tmp_path / "two", files, two_workers).account("jsonl")[0].digest == made.digest


def test_dates_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    dates = ["2020", "yesterday", "2020-13-01", "", 1583298367]
    lines = "".join(line(f"text {n}", date=one) for n, one in enumerate(dates))
    made, found = folder(tmp_path, {"jsonl/a.jsonl": lines}).account("jsonl")
    assert made.stats["unread_dates"] == found.unread_dates == 2
    assert found.line == "1 file: 1 read; 5 records: 5 documents; 2 dates not read"
