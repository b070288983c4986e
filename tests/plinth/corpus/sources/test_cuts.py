"""Large files in pieces: the records are those of the whole file, whatever the pieces' size."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plinth.corpus.sources.inventory import cutter, groups, inventory
from plinth.corpus.sources.parameters import Bucket
from plinth.corpus.sources.record import RawRecord, Reject, read
from plinth.errors import IntegrityError
from plinth.storage import listing
from plinth.storage.files import SourceFile
from tests.plinth.corpus.sources.conftest import MAX_BYTES, make_source

MakeRecord = Callable[..., bytes]
PIECE = 20_000


def noise(number: int, size: int) -> bytes:
    return bytes(random.Random(number).choices(b"abcdefghij klmnop", k=size))


def large_file(kind: str, warc_record: MakeRecord) -> tuple[str, bytes]:
    """A name and the bytes of a file of about 200 KB in 60 records."""
    sizes = [random.Random(n).randrange(100, 12_000) for n in range(60)]
    if kind == "jsonl":
        rows = [{"text": noise(n, size).decode()} for n, size in enumerate(sizes)]
        return "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode()
    line = b"\n" if kind == "warc.lf" else b"\r\n"
    records = [warc_record(str(n), noise(n, size), line=line) for n, size in enumerate(sizes)]
    if kind == "warc.gz":
        return "x.warc.gz", b"".join(gzip.compress(record, 1) for record in records)
    return "x.warc", b"".join(records)


def listed(folder: Path, kind: str, piece_bytes: int = PIECE) -> SourceFile:
    (file,) = listing.inventory("x*", folder, (), partial(cutter, kind, piece_bytes=piece_bytes))
    return file


def contents(files: list[SourceFile], kind: str) -> list[tuple[str, Any]]:
    items = [item for file in files for item in read(file, make_source(kind), "MIT", MAX_BYTES)]
    return [(item.uri, item.content if isinstance(item, RawRecord) else item.reason) for item in items]


@pytest.mark.parametrize("kind", ["warc", "warc.lf", "warc.gz", "jsonl"])
@pytest.mark.parametrize("piece_bytes", [5000, PIECE, 60_000])
def test_pieces_hold_the_records_of_the_whole_in_order(
    tmp_path: Path, warc_record: MakeRecord, kind: str, piece_bytes: int
) -> None:
    name, data = large_file(kind, warc_record)
    (tmp_path / name).write_bytes(data)
    reader = kind.partition(".")[0]
    whole = listed(tmp_path, reader, 10**9)
    file = listed(tmp_path, reader, piece_bytes)
    pieces = file.split()
    assert whole.pieces == ()
    assert file.sha256 == whole.sha256
    assert len(pieces) >= len(data) // (2 * piece_bytes)
    assert sum(piece.bytes for piece in pieces) == len(data)
    assert all(piece.bytes >= piece_bytes for piece in pieces[:-1])
    assert contents(pieces, reader) == contents([whole], reader)
    assert len(contents(pieces, reader)) == 60


def test_every_piece_is_proved_by_itself(tmp_path: Path, warc_record: MakeRecord) -> None:
    name, data = large_file("warc", warc_record)
    (tmp_path / name).write_bytes(data)
    pieces = listed(tmp_path, "warc").split()
    damaged = bytearray(data)
    damaged[pieces[2].start + 500] ^= 1
    (tmp_path / name).write_bytes(damaged)
    for number, piece in enumerate(pieces):
        if number == 2:
            with pytest.raises(IntegrityError, match="changed while it was being read"):
                contents([piece], "warc")
        else:
            contents([piece], "warc")


def test_what_is_appended_leaves_the_pieces_before_as_they_were(tmp_path: Path, warc_record: MakeRecord) -> None:
    name, data = large_file("jsonl", warc_record)
    (tmp_path / name).write_bytes(data)
    before = listed(tmp_path, "jsonl").split()
    (tmp_path / name).write_bytes(data + b'{"text": "one more"}\n' * 2000)
    after = listed(tmp_path, "jsonl").split()
    assert [(p.key, p.sha256) for p in after[: len(before) - 1]] == [(p.key, p.sha256) for p in before[:-1]]
    assert len(after) > len(before)


def test_a_page_cannot_have_itself_cut_loose(tmp_path: Path, warc_record: MakeRecord) -> None:
    forged = warc_record("forged", b"<p>lies</p>")
    inside = b"\r\n\r\n" + forged * 300
    (tmp_path / "x.warc").write_bytes(b"".join(warc_record(str(n), inside) for n in range(4)))
    stored = b"".join(gzip.compress(warc_record(str(n), gzip.compress(forged) * 300), 0) for n in range(4))
    assert stored.count(gzip.compress(forged)) == 1200  # the members of the page lie bare in the file
    for name, data in (("x.warc", None), ("x.warc.gz", stored)):
        if data:
            (tmp_path / "x.warc").unlink()
            (tmp_path / name).write_bytes(data)
        pieces = listed(tmp_path, "warc", 30_000).split()
        assert len(pieces) > 1
        assert [uri for uri, _ in contents(pieces, "warc")] == [f"https://example.org/{n}" for n in range(4)]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_damage_costs_the_same_records_cut_or_not(tmp_path: Path, warc_record: MakeRecord, data: st.DataObject) -> None:
    """Whole members and records are read; broken ones are rejects, wherever they are."""
    good = [gzip.compress(warc_record(str(n), noise(n, 900)), 1) for n in range(30)]
    for at in data.draw(st.lists(st.integers(0, 29), max_size=4)):
        broken = bytearray(good[at])
        broken[len(broken) // 2] ^= 0x55
        good[at] = bytes(broken)
    (tmp_path / "x.warc.gz").write_bytes(b"".join(good))
    whole = contents([listed(tmp_path, "warc", 10**9)], "warc")
    pieces = listed(tmp_path, "warc", data.draw(st.integers(500, 5000))).split()
    assert contents(pieces, "warc") == whole


def test_what_cannot_be_cut_is_one_piece(tmp_path: Path, warc_record: MakeRecord) -> None:
    _, data = large_file("warc", warc_record)
    for name, kind, content in (
        ("x.warc.gz", "warc", gzip.compress(data * 30, 1, mtime=0)),
        ("x.warc", "warc", b"no WARC at all" * 9000),
        ("x.warc", "warc", b"WARC/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n" + data),
        ("x.jsonl", "jsonl", b"x" * 200_000),
        ("x.jsonl.gz", "jsonl", data),
        ("x.parquet", "parquet", data),
        ("x.parquet", "parquet", data + b"\xff\xff\x00\x00PAR1"),
    ):
        (tmp_path / name).write_bytes(content)
        assert listed(tmp_path, kind).pieces == (), name
        (tmp_path / name).unlink()


def test_row_groups_become_pieces(tmp_path: Path) -> None:
    rows = [{"id": n, "text": noise(n, 400).decode(), "url": f"https://e.org/{n}"} for n in range(500)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=50)
    file = listed(tmp_path, "parquet")
    assert len(file.pieces) > 3
    assert contents(file.split(), "parquet") == [(row["url"], row["text"]) for row in rows]
    changed = bytearray((tmp_path / "x.parquet").read_bytes())
    changed[-20] ^= 1  # in the footer, which every piece rests on
    (tmp_path / "x.parquet").write_bytes(changed)
    for piece in file.split():
        with pytest.raises(IntegrityError):
            contents([piece], "parquet")


def test_groups_are_made_of_pieces(tmp_path: Path, warc_record: MakeRecord) -> None:
    name, data = large_file("warc.gz", warc_record)
    (tmp_path / name).write_bytes(data)
    bucket = Bucket(description="", owner="o", sources=(make_source("warc", path=name),))
    found = inventory(bucket, tmp_path, piece_bytes=PIECE)
    made = list(groups(bucket, found, 2 * PIECE))
    assert len(made) > 2
    assert [file for group in made for file, _ in group.files] == found.files[0][1].split()
    assert found.digest == inventory(bucket, tmp_path).digest  # the cut is not part of the identity


def test_hashing_a_large_file_takes_bounded_memory(tmp_path: Path) -> None:
    line = json.dumps({"text": "x" * 1000}).encode() + b"\n"
    with (tmp_path / "x.jsonl").open("wb") as out:
        for _ in range(60):
            out.write(line * 1000)
    listed(tmp_path, "jsonl")  # imports
    tracemalloc.start()
    file = listed(tmp_path, "jsonl", 4_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(file.pieces) == 16
    assert peak < 8_000_000
    assert not any(isinstance(item, Reject) for item in read(file.split()[3], make_source("jsonl"), "MIT", MAX_BYTES))
