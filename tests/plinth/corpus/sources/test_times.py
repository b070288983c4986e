"""Times as archives and data sets write them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.corpus.sources.times import read_time

DAY = datetime(2020, 3, 4, tzinfo=UTC)
TIME = datetime(2020, 3, 4, 5, 6, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "time"),
    [
        *((text, TIME) for text in ("2020-03-04T05:06:07Z", "2020-03-04T06:06:07+01:00", "2020-03-03T21:06:07-0800")),
        *((text, TIME) for text in ("2020-03-04 05:06:07", "2020-03-04 05:06:07 UTC", "2020/3/4 5:06:07")),
        ("20200304050607", TIME),
        *((text, TIME) for text in ("20200304T050607Z", "Wed, 04 Mar 2020 05:06:07 GMT", "4 Mar 2020 06:06:07 +0100")),
        *((text, TIME) for text in ("Wed Mar  4 05:06:07 2020", "Wednesday, 04-Mar-20 05:06:07 GMT")),
        *((text, TIME) for text in (" 2020-03-04T05:06:07 ", "1583298367", "1583298367000", 1583298367.0)),
        *((number, TIME) for number in (1583298367, 1583298367000, 1583298367000000)),
        (1583298367000000000, TIME),
        ("2020-03-04T05:06:07.123456789Z", TIME + timedelta(microseconds=123456)),
        ("2020-03-04T05:06:60Z", TIME.replace(second=59)),
        ("2020-03-04 24:00", DAY + timedelta(days=1)),
        ("202003040506", TIME.replace(second=0)),
        *((text, DAY) for text in ("2020-03-04", "20200304", 20200304, "2020/03/04", "2020.3.4")),
        *((text, DAY) for text in ("4 March 2020", "March 4, 2020")),
        *((text, DAY.replace(day=1)) for text in ("2020-03", "202003", "2020/3", "March 2020")),
        *((text, DAY.replace(month=1, day=1)) for text in ("2020", 2020)),
        (datetime(2020, 3, 4, 6, 6, 7, tzinfo=timezone(timedelta(hours=1))), TIME),
        (datetime(2020, 3, 4, 5, 6, 7), TIME),
        (date(2020, 3, 4), DAY),
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_time_is_read_in_every_form(value: Any, time: datetime) -> None:
    assert read_time(value) == time


@pytest.mark.parametrize(
    "value",
    [
        *("", "  ", "yesterday", "2009-03-65T08:43:19-0800", "2020-13-01", "20201301", "20200304056007"),
        *("2020-03-04 25:00", "never", "0001-01-01T00:00:00+14:00"),
        *("01/02/2026", "12", "123456", "99", "0000", "x" * 999, "1" * 40, True, None, [2020], {"a": 1}, float("nan")),
        *(float("inf"), 1e300),
    ],
)
def test_what_is_no_time_is_none(value: Any) -> None:
    assert read_time(value) is None


@given(st.one_of(st.text(max_size=40), st.integers(), st.floats(), st.text("0123456789-:/ TZ+.", max_size=24)))
def test_any_value_is_read_or_none(value: Any) -> None:
    found = read_time(value)
    assert found is None or found.tzinfo is UTC
