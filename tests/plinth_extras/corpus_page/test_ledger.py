"""Lists, facets and histograms against a count of every row; named errors of damaged parts."""

from __future__ import annotations

from collections import Counter
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.errors import IntegrityError, MissingError, StorageError
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth_extras.corpus_page import ledger as module
from plinth_extras.corpus_page.ledger import BINS, FACET_VALUES, LedgerReader, OpenLedger, edges, is_stale
from plinth_extras.corpus_page.view import FACETS, View


def every(ctx: Context) -> list[dict[str, Any]]:
    """All rows of the ledger, read without DuckDB."""
    parts = [part for part in ctx.refs.current("ledger").parts if "/part-" in part.name]
    return pa.concat_tables(pq.read_table(ctx.store.open_path(part.blob)) for part in parts).to_pylist()


def fits(row: dict[str, Any], view: View, *without: str) -> bool:
    for facet, column in FACETS.items():
        wanted = view.values(facet) if facet not in without else ()
        own = (row[column] or [""]) if column == "fired" else [row.get(column) or ""]
        if wanted and not set(wanted) & set(own):
            return False
    for one in view.ranges:
        value = row[one.column]
        if one.column in without:
            continue
        if value is None or (one.low is not None and value < one.low) or (one.high is not None and value >= one.high):
            return False
    return True


VIEWS = ["", "bucket=web", "decision=drop&bucket=prose&bucket=web", "reason=", "rule=too_few_words&reason=licence",
         "in.gopher_quality__word_count=..20", "in.text_bytes=60..300&decision=train&in.cluster_size=2..",
         "domain=a.example&licence=MIT", "reason=nothing", "rule="]  # fmt: skip


@pytest.mark.parametrize("query", VIEWS)
def test_counts_facets_and_histograms_are_those_of_the_rows(ctx: Context, opened: OpenLedger, query: str) -> None:
    view, rows = View.parse(parse_qsl(query, keep_blank_values=True), opened.numeric), every(ctx)
    totals, facets = opened.counts(view)
    chosen = [row for row in rows if fits(row, view)]
    assert totals.documents == len(chosen)
    assert totals.trained == sum(row["decision"] == "train" for row in chosen)
    assert totals.text_bytes == sum(row["text_bytes"] for row in chosen)
    assert totals.tokens == sum(row["tokens"] or 0 for row in chosen)
    assert set(facets) == {"bucket", "decision", "reason", "rule", "domain", "licence"}  # no language, no cluster
    for facet, found in facets.items():
        column = FACETS[facet]
        counts = Counter(
            value
            for row in rows if fits(row, view, facet)
            for value in (row[column] if facet == "rule" else [row[column] or ""])
        )  # fmt: skip
        assert dict(found) == {**dict.fromkeys(view.values(facet), 0), **counts}
        assert len(found) <= FACET_VALUES + len(view.values(facet))
    for column, bins in opened.histograms(view):
        own = [row for row in rows if fits(row, view, column) and row[column] is not None]
        assert sum(one.documents for one in bins) == len(own)
        for one in bins:
            inside = [row for row in own if one.low <= row[column] < one.high]
            assert (one.documents, one.trained) == (len(inside), sum(row["decision"] == "train" for row in inside))


def test_a_bar_leads_to_its_documents(opened: OpenLedger) -> None:
    view = View.parse([("hist", "gopher_quality__mean_word_characters")], opened.numeric)
    ((column, bins),) = opened.histograms(view)
    for one in bins:
        query = parse_qsl(view.within(column, one.low, one.high).removeprefix("/?"))
        assert opened.counts(View.parse(query, opened.numeric))[0].documents == one.documents


def test_rows_are_in_order_with_their_places(ctx: Context, opened: OpenLedger) -> None:
    rows = every(ctx)
    found = [row for page in (1, 2) for row in opened.rows(View.parse([("page", str(page))], opened.numeric))]
    assert [row["id"] for row in found] == [row["id"] for row in rows]
    for row in found:
        assert opened.whole(opened.number(*row["at"][:2]), row["at"][2])["id"] == row["id"]
        assert opened.find([row["id"]])[row["id"]]["at"] == row["at"]
    view = View.parse([("sort", "-text_bytes"), ("decision", "train")], opened.numeric)
    sizes = [row["text_bytes"] for row in rows if row["decision"] == "train"]
    assert [row["text_bytes"] for row in opened.rows(view)] == sorted(sizes, reverse=True)[:50]
    with pytest.raises(MissingError):
        opened.number("web", 99)


def test_documents_of_a_cluster(ctx: Context, opened: OpenLedger) -> None:
    row = next(row for row in every(ctx) if row["cluster_size"] == 2)
    found = opened.rows(View.parse([("cluster", row["cluster"])], opened.numeric))
    assert len(found) == 2
    assert {one["decision"] == "drop" for one in found} == {True, False}


@given(
    st.floats(-1e9, 1e9), st.floats(0, 1e9) | st.just(0.0), st.booleans(),
)  # fmt: skip
def test_edges_increase_and_cover_the_range(low: float, width: float, whole: bool) -> None:
    low, high = (float(int(low)), float(int(low + width))) if whole else (low, low + width)
    found = edges(low, high, whole)
    assert list(found) == sorted(set(found))
    assert found[0] <= low
    assert found[-1] > high
    assert 1 <= len(found) - 1 <= BINS + 1


def test_no_ledger_and_no_documents(tmp_path: Any) -> None:
    with pytest.raises(MissingError, match="ledger"), LedgerReader().opened(Context(Workspace(tmp_path).ensure())):
        pass


def _delete(path: Any) -> None:
    path.unlink()


def _truncate(path: Any) -> None:
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Any) -> None:
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("harm", "error"), [(_delete, MissingError), (_truncate, IntegrityError), (_flip, IntegrityError)]
)
def test_a_damaged_part_is_named(ctx: Context, harm: Any, error: type[Exception]) -> None:
    reader = LedgerReader()
    with reader.opened(ctx) as found:
        path = ctx.store.path(found.parts[-1].part.blob)
        found.counts(View())
    harm(path)
    with pytest.raises(error, match=path.name), reader.opened(ctx):
        pass


def test_duckdb_is_confined(ctx: Context, opened: OpenLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    for sql in ("load httpfs", "install httpfs", "set memory_limit = '1TB'"):
        with pytest.raises(Exception, match=r"(?i)extension|configuration"):
            opened.query(sql, [])
    monkeypatch.setattr(module, "MEMORY", "1MB")
    with pytest.raises(StorageError, match="more memory"), LedgerReader().opened(ctx) as small:
        small.query(f"select a.id, count(*) from {small.source} a, {small.source} b, {small.source} c group by all", [])


def test_a_ledger_that_is_older_than_the_verdicts(ctx: Context, opened: OpenLedger) -> None:
    assert not is_stale(ctx, opened)
    made = ctx.refs.current("web/verdicts")
    ctx.refs.publish(Manifest.model_validate({**made.model_dump(), "version": "again"}), key="again")
    assert is_stale(ctx, opened)
