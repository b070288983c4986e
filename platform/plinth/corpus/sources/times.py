"""Metadata that pages, archives and servers declare: times and dates, opt-outs, and a license."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

# Times as archives and data sets write them, in UTC; local ones are taken as UTC.
#
# ISO 8601 and its cousins, also to the month or the year, of which the first moment is meant; 14 digits, 12, 8, 6 or 4;
# seconds, milliseconds, microseconds or nanoseconds since 1970; RFC 5322, RFC 850 and `ctime`; a day with the English
# name of its month. Ambiguous text (`01/02/2026`) is not a time.

LONGEST = 64
#: The largest number of seconds, and the same in thousandths and so on, that is taken for one.
_LATEST, _MOST = 1e11, 1e20
_NUMBER = re.compile(r"-?\d{1,19}(?:\.\d+)?", re.A)
_DIGITS = {4: "%Y", 6: "%Y%m", 8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_PARTS = re.compile(
    r"(\d{4})([-/.])(\d{1,2})(?:\2(\d{1,2})(?:[T\s]+(\d{1,2}):(\d\d)(?::(\d\d))?(?:[.,](\d+))?)?)?"
    r"\s*(Z|UTC|GMT|[+-]\d\d:?(?:\d\d)?)?",
    re.I | re.A,
)


def read_time(value: object) -> datetime | None:
    """Parse a value as a time. Return None if the value is not a time, or is an impossible time."""
    try:
        found = _read(value)
        if found is None:
            return None
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError, OSError, TypeError, IndexError):
        return None


def _read(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = repr(value) if not isinstance(value, str) else value.strip()[: LONGEST + 1]
    if len(text) > LONGEST:
        return None
    if isinstance(value, float):
        return _epoch(value)
    if text.isdigit() and isinstance(value, str) and len(text) < 9 and len(text) not in _DIGITS:
        return None  # a number of something else
    return _number(text) if _NUMBER.fullmatch(text) else None if text.isdigit() else _written(text)


def _number(text: str) -> datetime | None:
    """Parse a time written in digits. The digits are a date without separators if that date is plausible, otherwise
    seconds (or fractions of a second) since 1970."""
    form = _DIGITS.get(len(text))
    if form and (text[:2] in ("19", "20") or len(text) < 8):
        return datetime.strptime(text, form)
    return _epoch(float(text))


def _epoch(number: float) -> datetime | None:
    if not math.isfinite(number) or abs(number) > _MOST:
        return None
    while abs(number) >= _LATEST:
        number /= 1000
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=round(number, 6))


def _written(text: str) -> datetime | None:
    text = text.replace(":60", ":59") if ":60" in text else text  # a leap second
    for reader in (datetime.fromisoformat, _separated, parsedate_to_datetime, _named):
        try:
            found = reader(text)
        except (ValueError, TypeError, IndexError):
            continue
        if found is not None:
            return found
    return None


def _separated(text: str) -> datetime | None:
    parts = _PARTS.fullmatch(text)
    if parts is None:
        return None
    year, _, month, day, hour, minute, second, _, zone = parts.groups()
    moment = datetime(int(year), int(month), int(day or 1)) + timedelta(
        hours=_below(hour, 25), minutes=_below(minute, 60), seconds=_below(second, 60)
    )
    if zone is None or zone[0] not in "+-":
        return moment.replace(tzinfo=UTC)
    digits = zone[1:].replace(":", "").ljust(4, "0")
    away = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return (moment - away if zone[0] == "+" else moment + away).replace(tzinfo=UTC)


def _below(text: str | None, limit: int) -> int:
    number = int(text or 0)
    if number >= limit:
        raise ValueError("no such time")
    return number


def _named(text: str) -> datetime | None:
    """Parse a date whose month is written in words: a day, a month or a year. Return None if the text also has a time
    of day."""
    day = None if ":" in text else iso_date(text)
    return datetime.fromisoformat(f"{day}-01-01"[:10]) if day else None


# A date in a page -> ISO 8601, with the precision given: `2026-01-02`, `2026-01`, `2026`.
#
# The day is taken as written, regardless of time zone. Ambiguous text (`01/02/2026`) is not a date.

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = rf"\b(?P<name>{'|'.join(MONTHS)})[a-z]*\.?"
_DAY, _YEAR = r"(?<!\d)(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<year>\d{4})(?!\d)"
_FLAGS = re.I | re.A
#: Forms of ISO 8601, also with other separators; compact, with or without a time; only a year.
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
    """Return the date that `text` states. Return None if the date is missing, impossible or ambiguous."""
    text = text.strip()[:LONGEST]
    return next((found for read in _READERS if (found := read(text))), None)


def _from_epoch(text: str) -> str | None:
    """Convert a number of seconds or milliseconds since 1970 to a UTC date."""
    found = _SECONDS.fullmatch(text)
    return datetime.fromtimestamp(int(found[1]), UTC).date().isoformat() if found else None


def _year_first(text: str) -> str | None:
    found = _FIRST.match(text)
    return found and _valid(found["year"], found["month"] or found["month2"], found["day"] or found["day2"])


def _with_named_month(text: str) -> str | None:
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
    """Return the date if it exists in the calendar and its year is plausible, otherwise None."""
    try:
        whole = date(int(year), int(month or 1), int(day or 1))
    except ValueError:
        return None
    return whole.isoformat()[: 10 if day else 7 if month else 4] if 1000 <= whole.year < 3000 else None


_READERS: tuple[Callable[[str], str | None], ...] = (_from_epoch, _year_first, _with_named_month, _year_last)


# Declarations of a page or of the server's response about its use: opt-outs and a license, as in `extra`.
#
#     directives    of `robots` (`<meta>`, `X-Robots-Tag`) those that speak of use, and `tdm-reservation` where it is 1
#                   (TDM Reservation Protocol, W3C community group), as words in order
#     tdm_policy    address of the owner's policy on text and data mining
#     rel_license   address of the license that the page links to, where it links to one
#
# A directive for one named crawler (`X-Robots-Tag: otherbot: noindex`) is not for others, and is left out.

DIRECTIVES, TDM_POLICY, REL_LICENSE = "directives", "tdm_policy", "rel_license"
#: `none` is `noindex, nofollow` (Google's and Bing's documentation); `noai` and `noimageai` are DeviantArt's.
WORDS = {"noai": "noai", "noimageai": "noimageai", "noarchive": "noarchive", "noindex": "noindex", "none": "noindex"}
TDM = "tdm-reservation"
HEADERS = ("x-robots-tag", TDM, "tdm-policy", "link")
ADDRESS_CHARACTERS = 500
_FOR_ONE = re.compile(r"\s*(?!unavailable_after|max-)[\w-]+\s*:", re.I)
_LINK = re.compile(r"<([^<>]{1,500})>\s*;[^<>]{0,200}?\brel\s*=\s*\"?[^\"<>,;]{0,100}\blicense\b", re.I)
_CREATIVE_COMMONS = re.compile(
    r"https?://(?:www\.)?creativecommons\.org/(licenses|publicdomain)/([a-z-]{2,10})/(\d\.\d)(?:/([a-z]{2,3}))?(?:/|$)",
    re.I,
)


def directives(robots: Iterable[str], tdm: Iterable[str]) -> str:
    """Return the opt-out words in the values of `robots` and `tdm-reservation`, sorted alphabetically."""
    given = (value for value in robots if not _FOR_ONE.match(value))
    found = {WORDS[word] for value in given for word in value.lower().replace(",", " ").split() if word in WORDS}
    if any(value.strip() == "1" for value in tdm):
        found.add(TDM)
    return " ".join(sorted(found))


def of_headers(headers: Any) -> dict[str, str]:
    """Return the opt-out signals and the license that the headers of an HTTP response declare. The headers are
    FastWARC's."""
    given = [(name.lower(), value) for name, value in headers.items()]
    if not any(name in HEADERS for name, _ in given):
        return {}
    robots, tdm, policies, links = ([value for of, value in given if of == name] for name in HEADERS)
    found = {
        DIRECTIVES: directives(robots, tdm),
        TDM_POLICY: "".join(policies[:1]).strip()[:ADDRESS_CHARACTERS],
        REL_LICENSE: one_of(match[1] for line in links for match in _LINK.finditer(line)),
    }
    return {name: value for name, value in found.items() if value}


def one_of(addresses: Iterable[str]) -> str:
    """Return the address if all addresses are equal, otherwise an empty text. If a page names two licenses, only its
    text explains how they apply."""
    found = {address.strip() for address in addresses} - {""}
    return found.pop() if len(found) == 1 else ""


def joined(first: Mapping[str, Any], second: Mapping[str, str]) -> dict[str, Any]:
    """Merge the metadata of an HTTP response and of its page. Directives of both are combined. For other values, the
    page's values take precedence."""
    both = {*str(first.get(DIRECTIVES, "")).split(), *second.get(DIRECTIVES, "").split()}
    return {**first, **second, **({DIRECTIVES: " ".join(sorted(both))} if both else {})}


def spdx(address: str) -> str:
    """Return the SPDX identifier of the Creative Commons license at a URL, or an empty text for other URLs."""
    found = _CREATIVE_COMMONS.match(address)
    if found is None:
        return ""
    kind, name, version, place = found[1].lower(), found[2].upper(), found[3], (found[4] or "").upper()
    if kind == "publicdomain":
        return "CC0-1.0" if name == "ZERO" else ""
    return f"CC-{name}-{version}" + (f"-{place}" if place else "")
