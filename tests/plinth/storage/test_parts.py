"""Parquet parts: deterministic bytes, streaming, faults by name."""

import itertools
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plinth.errors import DiskFullError, IntegrityError, SourceError
from plinth.records import Part
from plinth.storage import parts
from plinth.storage.store import Store

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("s", pa.large_string())])
ROWS = parts.ROW_GROUP_ROWS


def table(rows: int) -> pa.Table:
    picks = random.Random(rows)
    texts = [None if picks.random() < 0.1 else "wort " * picks.randrange(9) for _ in range(rows)]
    return pa.table({"n": list(range(rows)), "s": texts}, schema=SCHEMA)


@pytest.mark.parametrize("rows", [0, 1, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 7])
def test_round_trip(store: Store, rows: int) -> None:
    part = parts.write_table(store, "part-00000.parquet", table(rows), stats={"a": 1})
    assert (part.name, part.rows, part.stats) == ("part-00000.parquet", rows, {"a": 1})
    assert parts.read_table(store, part).equals(table(rows))
    assert parts.read_table(store, part, ["s"]).equals(table(rows).select(["s"]))
    assert [batch.num_rows for batch in parts.iter_batches(store, part)] == [
        min(ROWS, rows - start) for start in range(0, rows, ROWS)
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=15)
@given(st.lists(st.integers(0, 2 * ROWS), max_size=6))
def test_bytes_do_not_depend_on_how_the_batches_were_cut(store: Store, cuts: list[int]) -> None:
    whole = table(2 * ROWS + 100)
    edges = sorted({0, whole.num_rows, *cuts})
    batches = [
        batch for start, end in itertools.pairwise(edges) for batch in whole.slice(start, end - start).to_batches()
    ]
    assert parts.write_batches(store, "p", SCHEMA, batches) == parts.write_table(store, "p", whole)


@pytest.mark.parametrize(("group", "rows"), [(7, 64), (64, 64), (64, 7), (5, 3)])
def test_labels_come_as_dictionaries_in_the_same_batches(store: Store, group: int, rows: int) -> None:
    """Row groups have dictionaries of their own; batches do not end where they do."""
    made = pa.table(
        {"label": [None if i % 3 == 0 else f"label {i // 9}" for i in range(200)], "number": list(range(200))}
    )
    part = parts.write_batches(store, "part", made.schema, made.to_batches(), group_rows=group)
    plain = list(parts.iter_batches(store, part, rows=rows))
    labelled = list(parts.iter_batches(store, part, rows=rows, labels=["label"]))
    assert [pa.types.is_dictionary(batch.column("label").type) for batch in labelled] == [True] * len(plain)
    decoded = [{"label": b.column("label").dictionary_decode(), "number": b.column("number")} for b in labelled]
    assert [pa.record_batch(one) for one in decoded] == plain
    aligned = list(parts.iter_aligned(store, (part, ["number"]), (part, ["label"]), rows=rows, labels=[[], ["label"]]))
    assert [[one.num_rows for one in pair] for pair in aligned] == [[batch.num_rows] * 2 for batch in plain]


def test_known_row(store: Store) -> None:
    part = parts.write_table(store, "p", table(2 * ROWS))
    assert parts.read_row(store, part, ROWS + 3, ["n"]) == {"n": ROWS + 3}
    with pytest.raises(IntegrityError, match="no row"):
        parts.read_row(store, part, 2 * ROWS)


def test_unknown_column_is_an_error_not_an_empty_answer(store: Store) -> None:
    part = parts.write_table(store, "p", table(3))
    with pytest.raises(IntegrityError, match="no column"):
        parts.read_table(store, part, ["n", "score"])
    with pytest.raises(IntegrityError, match="no column"):
        parts.read_row(store, part, 0, ["score"])


def test_not_parquet_is_named(store: Store) -> None:
    part = Part(name="p", blob=store.put_bytes(b"PAR1 but not really PAR1"), rows=3)
    with pytest.raises(IntegrityError, match="cannot be read as Parquet"):
        parts.read_table(store, part)


def test_flipped_byte_in_a_page_is_named(store: Store) -> None:
    part = parts.write_table(store, "p", table(500))
    path = store.path(part.blob)
    data = bytearray(path.read_bytes())
    data[20:24] = b"\xff\xff\xff\xff"
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(IntegrityError):
        parts.read_table(store, part)


def test_row_count_that_differs_from_the_record_is_named(store: Store) -> None:
    part = parts.write_table(store, "p", table(5)).model_copy(update={"rows": 6})
    with pytest.raises(IntegrityError, match="short"):
        parts.read_table(store, part)


def test_failure_of_the_source_keeps_its_own_name_and_writes_nothing(store: Store) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from table(ROWS).to_batches()
        raise SourceError("the source broke")

    with pytest.raises(SourceError, match="the source broke"):
        parts.write_batches(store, "p", SCHEMA, batches())
    assert [path for path in store.root.rglob("*") if path.is_file()] == []


def test_full_disk_while_writing(small_disk: Path) -> None:
    random_bytes = pa.table({"b": [os.urandom(4000) for _ in range(400)]})
    with pytest.raises(DiskFullError):
        parts.write_table(Store(small_disk), "p", random_bytes)
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []


def test_row_groups_are_bounded_in_rows_and_bytes_and_do_not_depend_on_the_cut(monkeypatch):
    monkeypatch.setattr(parts, "ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(parts, "ROW_GROUP_BYTES", 10)
    schema = pa.schema([("text", pa.large_string())])
    sizes = [3, 3, 3, 3, 1, 1, 1, 1, 1, 20, 0, 0, 5, 6, 1]
    whole = pa.record_batch([pa.array(["x" * size for size in sizes], pa.large_string())], schema=schema)

    def groups(*cuts: int) -> list[list[int]]:
        starts = [sum(cuts[:i]) for i in range(len(cuts))]
        pieces = [whole.slice(start, cut) for start, cut in zip(starts, cuts, strict=True)]
        made = parts.RowGroups(schema)
        whole_groups = [*itertools.chain.from_iterable(map(made.add, pieces)), *made.rest()]
        return [[len(text) for text in group.column(0).to_pylist()] for group in whole_groups]

    expected = [[3, 3, 3, 3], [1, 1, 1, 1], [1, 20], [0, 0, 5, 6], [1]]
    assert groups(15) == groups(*[1] * 15) == groups(7, 8) == groups(2, 3, 10) == expected


def test_several_parts_are_written_side_by_side_and_only_finished_ones_become_visible(store: Store) -> None:
    whole = table(ROWS + 9)
    with parts.PartWriter(store, "one", SCHEMA) as one, parts.PartWriter(store, "two", SCHEMA) as two:
        for batch in whole.to_batches(max_chunksize=700):
            one.write(batch)
            two.write(batch.slice(0, 5))
        written = one.finish()
    assert written == parts.write_table(store, "one", whole)
    assert [path for path in store.root.rglob("*") if path.is_file()] == [store.path(written.blob)]


def test_bytes_of_rows_count_text_inside_lists_and_structs() -> None:
    pair = pa.struct([("at", pa.int32()), ("name", pa.string())])
    kinds = {"n": pa.int64(), "s": pa.string(), "pairs": pa.list_(pair), "wide": pa.list_(pa.int16())}
    schema = pa.schema(list(kinds.items()))
    rows = [
        {"n": 1, "s": None, "pairs": None, "wide": [1]},
        {"n": 2, "s": "äb", "pairs": [{"at": 1, "name": "xyz"}, {"at": 2, "name": None}], "wide": []},
        {"n": 3, "s": "", "pairs": [], "wide": None},
        {"n": 4, "s": "a", "pairs": [None, {"at": 1, "name": "é"}], "wide": [1, 2]},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    expected = [2, 3 + 4 + 3 + 4, 0, 1 + 4 + 4 + 2 + 4]
    assert parts._row_bytes(batch).tolist() == expected
    assert parts._row_bytes(batch.slice(1, 3)).tolist() == expected[1:]
    assert parts._row_bytes(batch.slice(4)).tolist() == []


def test_groups_of_scores_are_long_until_their_lists_are_heavy(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("score", pa.float64()), ("spans", pa.list_(pa.int64()))])
    rows, each = 3 * ROWS, 4
    starts = pa.array(range(0, each * rows + 1, each), pa.int32())
    spans = pa.ListArray.from_arrays(starts, pa.array(range(each * rows)))
    whole = pa.record_batch([pa.array([0.5] * rows), spans], schema=schema)

    def groups() -> list[int]:
        batches = [whole.slice(start, 1024) for start in range(0, rows, 1024)]
        part = parts.write_batches(store, "p", schema, batches, group_rows=parts.SCORE_GROUP_ROWS)
        assert parts.read_table(store, part).equals(pa.Table.from_batches([whole]))
        metadata = pq.read_metadata(store.path(part.blob))
        return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]

    assert groups() == [rows]
    monkeypatch.setattr(parts, "ROW_GROUP_BYTES", 2 * ROWS * 8 * each)
    assert groups() == [2 * ROWS, ROWS]
