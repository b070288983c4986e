"""The rules reach the figures of docs/languages-and-pii.md on hard cases."""

import re
from pathlib import Path

from tests.plinth.corpus.annotate import pii_hard

PAGE = Path(__file__).resolve().parents[5] / "docs" / "languages-and-pii.md"


def test_the_page_promises_no_more_than_is_measured() -> None:
    cases = list(pii_hard.cases())
    without = sum(case.value is None for case in cases)
    assert len(cases) >= 1000
    assert without >= 300
    page = PAGE.read_text(encoding="utf-8")
    assert f"{len(cases):,} hard cases, {without} of them look-alikes" in page
    table, _ = pii_hard.measured(cases)
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert [kind for kind, *_ in rows] == list(table)
    for kind, values, precision, recall in rows:
        assert int(values) == table[kind][0], kind
        assert table[kind][2] >= float(precision) - 0.0005, kind
        assert table[kind][3] >= float(recall) - 0.0005, kind
