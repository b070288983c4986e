"""The table of domains is what DuckDB answers over the exported ledger."""

from __future__ import annotations

import math
from pathlib import Path

import duckdb
import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError
from plinth.provenance.ledger import ledger
from plinth.provenance.ledger.export import export
from registry.papers.domains import trained_text
from registry.papers.facts import PaperFacts
from tests.judged_corpus import ledger_of

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
    export(corpus, corpus.refs.current("ledger"), tmp_path)
    wanted = duckdb.sql(QUERY.format(tmp_path / "*.parquet")).fetchall()
    assert facts.trained is not None
    assert len(wanted) == facts.trained.domain_count > 15
    shown = [(one.domain, one.documents, one.tokens) for one in facts.trained.domains]
    assert shown == wanted[: math.ceil(len(wanted) / 10)]
    assert len(shown) == 3
    assert facts.trained.tokens == sum(row[2] for row in wanted)
    assert facts.trained.documents == sum(row[1] for row in wanted)
    assert all("@" not in name and ":" not in name for name, _, _ in wanted)


def test_a_ledger_without_tokens_is_refused(corpus: Context) -> None:
    made = ledger.run(corpus, ledger_of(corpus, shards=None, mixture=None))
    with pytest.raises(IntegrityError, match=r"knows no tokens of \d+ documents[\s\S]*--select ledger"):
        trained_text(corpus.store, made)
