"""State of the list in its address."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest

from plinth.errors import RequestError
from plinth_extras.corpus_page.view import MAX_PAGE, ValueRange, View, number

NUMERIC = ("text_bytes", "language__score", "edits")


def parsed(query: str) -> View:
    return View.parse(parse_qsl(query, keep_blank_values=True), NUMERIC)


def test_a_link_is_read_as_the_same_state() -> None:
    query = "bucket=a&bucket=b+%26+c&reason=&in.text_bytes=50..1e9&in.language__score=..0.3&hist=edits&sort=-edits"
    query += "&text=x%3C"
    view = parsed(query)
    assert view.chosen == (("bucket", "a"), ("bucket", "b & c"), ("reason", ""))
    assert view.ranges == (ValueRange("text_bytes", 50, 1e9), ValueRange("language__score", None, 0.3))
    assert (view.histograms, view.sort, view.text) == (("edits",), "-edits", "x<")
    assert parsed(view.link(page=3).removeprefix("/?")) == parsed(f"{query}&page=3")


def test_a_value_is_added_and_removed() -> None:
    view = parsed("bucket=a&page=7")
    more = parsed(view.toggled("bucket", "b").removeprefix("/?"))
    assert (more.values("bucket"), more.page) == (("a", "b"), 1)
    assert parsed(more.toggled("bucket", "b").removeprefix("/?")) == parsed("bucket=a")
    assert parsed(view.within("edits", 1, 2).removeprefix("/?")).range_of("edits") == ValueRange("edits", 1, 2)


def test_values_of_a_facet_are_alternatives_and_its_own_filter_can_be_left_out() -> None:
    view = parsed("bucket=a&bucket=b&reason=&rule=r&in.edits=1..2")
    condition, values = view.where()
    assert values == ["a", "b", "r", 1.0, 2.0]
    assert '("bucket" = ? or "bucket" = ?)' in condition
    assert "(coalesce(\"reason\", '') = '')" in condition
    assert 'list_contains("fired", ?)' in condition
    assert view.where("bucket", "edits")[1] == ["r"]


@pytest.mark.parametrize(
    "query",
    ["sort=uri", "hist=1%3Bdrop", "in.nope=1..2", "in.edits=5", "in.edits=a..b", "in.edits=nan..", "in.edits=..inf",
     "page=0", f"page={MAX_PAGE + 1}", "page=%D9%A3", "after=-1", "after=1" + "0" * 30, "text=" + "x" * 3000,
     "bucket=a&" * 50],
)  # fmt: skip
def test_what_is_not_a_state_is_refused(query: str) -> None:
    with pytest.raises(RequestError):
        parsed(query)


def test_numbers_are_short_and_exact() -> None:
    assert [number(value) for value in (50.0, 0.3, 1 / 3, 1e9)] == ["50", "0.3", "0.3333333333333333", "1e+09"]
