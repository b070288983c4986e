"""A date as pages write it -> ISO 8601, as far as it is stated: `2026-01-02`, `2026-01`, `2026`.

The day is the one written, whatever the time zone. A text that reads in two ways (`01/02/2026`) is no date.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime

LONGEST = 64  # characters that a date is looked for in
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"\b(?P<name>{'|'.join(MONTHS)})[a-z]*\.?"
_DAY, _YEAR = r"(?<!\d)(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<year>\d{4})(?!\d)"
_FLAGS = re.I | re.A
#: Of ISO 8601 and its cousins with other separators; compact, with or without a time; only a year.
_FIRST = re.compile(
    r"(?P<year>\d{4})(?:(?P<by>[-/.])(?P<month>\d{1,2})(?:(?P=by)(?P<day>\d{1,2}))?(?!(?P=by)?\d)"
    r"|(?P<month2>\d\d)(?P<day2>\d\d)(?=T|\D|$|\d{6}$)|(?=$))",
    _FLAGS,
)
#: With the month's English name: RFC 5322, and as people write; with the year last after a time (`ctime`).
_NAMED = (
    re.compile(rf"{_DAY}[\s.-]*(?:of\s)?{_MONTH}[\s,.-]*{_YEAR}", _FLAGS),
    re.compile(rf"{_MONTH}\s*{_DAY}[\s,]+{_YEAR}", _FLAGS),
    re.compile(rf"{_MONTH}\s+{_DAY}\s[\d:]{{5,8}}\s(?:[A-Z]{{2,5}}\s)?{_YEAR}", _FLAGS),
    re.compile(rf"{_MONTH}[\s,]+{_YEAR}", _FLAGS),
)
#: Day, month, year, as dots say; with slashes either may be first.
_LAST = re.compile(r"(?P<a>\d{1,2})(?P<by>[./-])(?P<b>\d{1,2})(?P=by)(?P<year>\d{4})(?!\d)", _FLAGS)
_SECONDS = re.compile(r"(\d{10})(?:\d{3})?", _FLAGS)


def iso_date(text: str) -> str | None:
    """The date that `text` states, or None when it states none, none that exists, or none that is certain."""
    text = text.strip()[:LONGEST]
    return next((found for read in _READERS if (found := read(text))), None)


def _epoch(text: str) -> str | None:
    """Seconds or milliseconds since 1970, in UTC."""
    found = _SECONDS.fullmatch(text)
    return datetime.fromtimestamp(int(found[1]), UTC).date().isoformat() if found else None


def _year_first(text: str) -> str | None:
    found = _FIRST.match(text)
    return found and _valid(found["year"], found["month"] or found["month2"], found["day"] or found["day2"])


def _named(text: str) -> str | None:
    for pattern in _NAMED:
        if found := pattern.search(text):
            parts = found.groupdict()
            return _valid(parts["year"], str(MONTHS.index(parts["name"].lower()) + 1), parts.get("day"))
    return None


def _year_last(text: str) -> str | None:
    if not (found := _LAST.match(text)):
        return None
    day_first = _valid(found["year"], found["b"], found["a"])
    if found["by"] == ".":
        return day_first
    month_first = _valid(found["year"], found["a"], found["b"])
    return day_first or month_first if not (day_first and month_first) or day_first == month_first else None


def _valid(year: str, month: str | None, day: str | None) -> str | None:
    """A date that the calendar has, in the years of which texts are likely to speak."""
    try:
        whole = date(int(year), int(month or 1), int(day or 1))
    except ValueError:
        return None
    return whole.isoformat()[: 10 if day else 7 if month else 4] if 1000 <= whole.year < 3000 else None


_READERS: tuple[Callable[[str], str | None], ...] = (_epoch, _year_first, _named, _year_last)
