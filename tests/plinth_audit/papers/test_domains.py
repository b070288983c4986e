"""The table of domains is what DuckDB answers over the exported ledger."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError
from plinth.provenance import ledger
from plinth_audit.papers.facts import DomainTable, PaperFacts
from plinth_audit.papers.gather import trained_text
from tests.judged_corpus import ledger_of
from tests.peers import Peer

duckdb = Peer("duckdb")

QUERY = """
    WITH host AS (
        SELECT *, split_part(split_part(split_part(lower(uri), '://', 2), '/', 1), '?', 1) AS long FROM '{0}'
    ),
    trained AS (
        SELECT *, CASE WHEN long = '' THEN domain
                  ELSE rtrim(regexp_replace(split_part(regexp_replace(long, '^.*@', ''), ':', 1), '^www[.]', ''), '.')
                  END AS name
        FROM host WHERE decision = 'train'
    )
    SELECT name, count(*), sum(tokens) FROM trained GROUP BY 1 ORDER BY 3 DESC, 1
"""


def test_domains_are_those_of_a_query(corpus: Context, facts: PaperFacts, tmp_path: Path) -> None:
    ledger.export(corpus, corpus.refs.current("ledger"), tmp_path)
    wanted = duckdb.sql(QUERY.format(tmp_path / "*.parquet")).fetchall()
    assert facts.trained is not None
    assert facts.trained.all.count > 15
    assert len(facts.trained.all.domains) == 3
    assert_same(facts.trained.all, wanted)
    assert all("@" not in name and ":" not in name for name, _, _ in wanted)
    assert facts.trained.crawled.documents == 0  # its sources are files of text


def test_domains_of_crawled_sources_are_counted_apart(corpus: Context, tmp_path: Path) -> None:
    ledger.export(corpus, corpus.refs.current("ledger"), tmp_path)
    asked = QUERY.format(tmp_path / "*.parquet").replace("WHERE decision", "WHERE bucket = 'web' AND decision")
    ledger_now = corpus.refs.current("ledger")
    found = trained_text(corpus.store, ledger_now, [("web", "a.example"), ("prose", "b.example")])
    assert_same(found.crawled, duckdb.sql(asked).fetchall())
    days = f"SELECT min(captured_at)::date::text, max(captured_at)::date::text FROM '{tmp_path}/*.parquet' "
    wanted = duckdb.sql(f"{days} WHERE decision = 'train' AND bucket = 'web'").fetchall()
    assert [(found.crawled.first, found.crawled.latest)] == wanted
    assert found.all.documents > found.crawled.documents > 0


def assert_same(found: DomainTable, wanted: list[tuple[str, int, int]]) -> None:
    assert len(wanted) == found.count
    shown = [(one.domain, one.documents, one.tokens) for one in found.domains]
    assert shown == wanted[: math.ceil(len(wanted) / 10)]
    assert found.tokens == sum(row[2] for row in wanted)
    assert found.documents == sum(row[1] for row in wanted)


def test_a_ledger_without_tokens_is_refused(corpus: Context) -> None:
    made = ledger.run(corpus, ledger_of(corpus, shards=None, mixture=None))
    with pytest.raises(IntegrityError, match=r"lacks token counts of \d+ documents[\s\S]*--select ledger"):
        trained_text(corpus.store, made)
