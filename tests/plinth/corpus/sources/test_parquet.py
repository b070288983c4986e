"""Parquet: rows as records, columns as the recipe names them, damage as rejects, memory bounded."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plinth.corpus.sources.record import Reject, read
from plinth.errors import SourceError
from plinth.storage.listing import inventory
from tests.plinth.corpus.sources.conftest import MAX_BYTES, make_source


def parquet(table: pa.Table | list[dict[str, Any]], **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table if isinstance(table, pa.Table) else pa.Table.from_pylist(table), out, **options)
    return out.getvalue()


def test_a_row_keeps_its_facts(read_file: Any) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    row = {"text": "Hello", "url": "https://e.org/", "timestamp": moment, "licence": "ISC", "score": 0.5, "tags": ["a"]}
    (item,) = read_file("parquet", "x.parquet", parquet([row]), licence="per-document")
    assert (item.uri, item.content, item.licence, item.captured_at) == ("https://e.org/", "Hello", "ISC", moment)
    assert (item.where, item.source_bytes, item.mime) == (
        "row 1",
        len("Hello") + len("https://e.org/") + 3,
        "text/plain",
    )
    assert item.extra == {"score": 0.5, "tags": ["a"], "timestamp": moment.isoformat()}


def test_columns_are_named_by_the_recipe(read_file: Any) -> None:
    row = {"body": "Hello", "meta": {"where": "https://e.org/", "terms": "MIT"}, "day": date(2026, 1, 2), "text": "no"}
    fields = {"text_field": "body", "uri_field": "meta.where", "licence_field": "meta.terms", "date_field": "day"}
    (item,) = read_file("parquet", "x.parquet", parquet([row]), licence="per-document", **fields)
    assert (item.content, item.uri, item.licence) == ("Hello", "https://e.org/", "MIT")
    assert item.captured_at == datetime(2026, 1, 2, tzinfo=UTC)
    assert item.extra == {"text": "no", "meta": row["meta"], "day": "2026-01-02"}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
def test_text_of_every_type(read_file: Any, kind: pa.DataType) -> None:
    table = pa.table({"text": pa.array(["schön", None, "b"]).cast(kind)})
    items = read_file("parquet", "x.parquet", parquet(table))
    assert [item.reason if isinstance(item, Reject) else item.content for item in items] == [
        "schön",
        "empty",
        "b",
    ]
    assert [item.uri for item in items] == ["x.parquet#R1", "x.parquet#R2", "x.parquet#R3"]


def test_rows_that_cannot_be_used_cost_themselves(read_file: Any) -> None:
    rows = {"id": [1, 1, 2, 3], "text": [b"a", b"b", b"\xff\xfe", b"d" * 2000]}
    items = read_file("parquet", "x.parquet", parquet(pa.table(rows)), max_bytes=1000)
    found = [item.reason if isinstance(item, Reject) else item.content for item in items]
    assert found == ["a", "b", "invalid_utf8", "too_large"]
    assert [item.repeated_id for item in items[:2]] == [False, True]
    # Arrow does not check that strings are UTF-8.
    bad = pa.StringArray.from_buffers(2, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"a\xff"))
    items = read_file("parquet", "x.parquet", parquet(pa.table({"text": bad})))
    assert [item.reason if isinstance(item, Reject) else item.content for item in items] == ["a", "broken_record"]


def test_a_column_that_is_not_there_is_a_named_error(read_file: Any) -> None:
    with pytest.raises(SourceError, match="no column 'text'") as failure:
        read_file("parquet", "x.parquet", parquet([{"content": "a"}]))
    assert "content" in str(failure.value)
    assert "fields: {text" in str(failure.value)


@pytest.mark.parametrize("name", ["text", "other"])
def test_two_columns_of_one_name_are_refused_by_name(read_file: Any, name: str) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], names=["text", name, "other"])
    with pytest.raises(SourceError, match=f"two columns called '{name}'"):
        read_file("parquet", "x.parquet", parquet(table))


def test_two_fields_of_one_name_inside_a_column_are_refused(read_file: Any) -> None:
    inside = pa.StructArray.from_arrays([pa.array(["b"]), pa.array(["c"])], names=["x", "x"])
    with pytest.raises(SourceError, match=r"two columns called 'meta\.x'"):
        read_file("parquet", "x.parquet", parquet(pa.table({"text": ["a"], "meta": inside})))


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, 0.99])
def test_what_is_no_parquet_file_is_one_reject(read_file: Any, keep: float) -> None:
    data = parquet([{"text": "word " * 100} for _ in range(100)], compression="none", use_dictionary=False)
    items = read_file("parquet", "x.parquet", data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    assert [item.reason for item in items] == ["broken_parquet"]


def test_damage_in_a_row_group_keeps_what_came_before(read_file: Any) -> None:
    rows = [{"text": f"row {n} " * 50} for n in range(300)]
    data = bytearray(
        parquet(rows, row_group_size=100, compression="none", use_dictionary=False, write_page_checksum=True)
    )
    at = data.index(b"row 250 ")
    data[at : at + 4] = b"XXXX"
    items = read_file("parquet", "x.parquet", bytes(data))
    assert [item.content for item in items[:200]] == [row["text"] for row in rows[:200]]
    assert [item.reason for item in items[200:]] == ["broken_parquet"]


def test_an_empty_table_is_an_empty_file(read_file: Any) -> None:
    (item,) = read_file("parquet", "x.parquet", parquet(pa.table({"text": pa.array([], pa.string())})))
    assert item.reason == "empty"


def test_a_row_group_that_inflates_a_thousandfold_is_refused_unread(read_file: Any) -> None:
    data = parquet(pa.table({"text": ["a" * 3_000_000]}), compression="zstd", use_dictionary=False)
    assert len(data) < 5000
    items = read_file("parquet", "x.parquet", data, max_bytes=1000)
    assert [item.reason for item in items] == ["too_large"]


def test_rows_are_streamed(tmp_path: Path) -> None:
    texts = pa.table({"text": ["b" * 100_000 + str(n) for n in range(800)]})
    path = tmp_path / "x.parquet"
    path.write_bytes(parquet(texts, use_dictionary=False, write_batch_size=8))
    del texts
    (file,) = inventory("x.parquet", tmp_path)
    before, peak, rows = pa.total_allocated_bytes(), 0, 0
    for item in read(file, make_source("parquet"), "MIT", MAX_BYTES):
        peak = max(peak, pa.total_allocated_bytes() - before)
        rows += not isinstance(item, Reject)
    assert rows == 800
    assert peak < 45_000_000  # of 80 MB, in one row group


def test_nested_columns_are_kept_and_payloads_are_named(read_file: Any) -> None:
    rows = [{"text": "a", "meta": {"url": "https://e.org/", "tags": ["x", "y"]}, "day": date(2026, 1, 2)}]
    rows[0] |= {"vector": [0.5] * 4, "image": b"\x89PNG"}
    (item,) = read_file("parquet", "x.parquet", parquet(pa.Table.from_pylist(rows)))
    assert item.extra == {"meta": rows[0]["meta"], "day": "2026-01-02", "left_out": ["image", "vector"]}
