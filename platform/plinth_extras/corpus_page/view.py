"""State of the document list: filters, ranges, histograms, sort order and page. All of it is in the page's address."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from plinth.errors import RequestError

#: Rows of one page.
PAGE_ROWS: Final = 50
#: Largest page number. Deeper pages would read the whole corpus; a filter is the better way to these documents.
MAX_PAGE: Final = 200
#: Maximum length of a value in the address, and of the address's number of filters.
MAX_CHARACTERS, MAX_FILTERS = 2000, 40
#: Columns of the ledger that a filter selects by value. `rule` is a list of rules.
FACETS: Final[Mapping[str, str]] = {
    "bucket": "bucket",
    "decision": "decision",
    "reason": "reason",
    "rule": "fired",
    "domain": "domain",
    "language": "language__label",
    "licence": "licence",
    "cluster": "cluster",
}
#: Facets without a list of their values, because each value is rare.
UNLISTED: Final = frozenset({"cluster"})
#: Histograms of the first page, if the ledger has these columns.
DEFAULT_HISTOGRAMS: Final = ("text_bytes", "gopher_quality__word_count", "language__score")
MAX_HISTOGRAMS: Final = 4


@dataclass(frozen=True)
class ValueRange:
    """Range of a numeric column: `low` is included, `high` is not. None means no bound."""

    column: str
    low: float | None
    high: float | None

    @property
    def text(self) -> str:
        """The range as in the address, `LOW..HIGH`."""
        return "..".join("" if value is None else number(value) for value in (self.low, self.high))


@dataclass(frozen=True)
class View:
    """Filters, order and page of the document list.

    Args:
        chosen: pairs of a facet and a value. Values of one facet are alternatives; an empty value matches null.
        ranges: ranges of numeric columns; all must hold.
        histograms: numeric columns with a histogram, if they are not those of the first page.
        shown: numeric columns with a histogram.
        sort: column to sort by; a leading `-` means descending; empty means the order of the corpus.
        text: words that the text must contain; `similar` is a text whose near duplicates are searched.
        after: position at which the search for `text` continues.
    """

    chosen: tuple[tuple[str, str], ...] = ()
    ranges: tuple[ValueRange, ...] = ()
    histograms: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    sort: str = ""
    page: int = 1
    text: str = ""
    similar: str = ""
    after: int = 0

    @classmethod
    def parse(cls, query: Iterable[tuple[str, str]], numeric: Iterable[str]) -> View:
        """Parse the query string of an address.

        Args:
            numeric: numeric columns of the ledger.

        Raises:
            RequestError: a filter, column or number is unknown or invalid.
        """
        have, chosen = set(numeric), list[tuple[str, str]]()
        ranges, histograms, single = dict[str, ValueRange](), list[str](), dict[str, str]()
        pairs = [(name, value) for name, value in query if value or name in FACETS]
        if len(pairs) > MAX_FILTERS or any(len(value) > MAX_CHARACTERS for _, value in pairs):
            raise RequestError(
                "the address is too long", expected=f"{MAX_FILTERS} filters of {MAX_CHARACTERS} characters at most"
            )
        for name, value in pairs:
            if name in FACETS:
                chosen.append((name, value))
            elif name.startswith("in."):
                column = _column(name.removeprefix("in."), have)
                ranges[column] = _range(column, value)
            elif name == "hist":
                histograms.append(_column(value, have))
            else:
                single[name] = value
        if sort := single.get("sort", ""):
            _column(sort.removeprefix("-"), have)
        shown = tuple(dict.fromkeys(histograms)) or tuple(name for name in DEFAULT_HISTOGRAMS if name in have)
        return cls(
            chosen=tuple(dict.fromkeys(chosen)),
            ranges=tuple(one for one in ranges.values() if one.low is not None or one.high is not None),
            histograms=tuple(histograms),
            shown=shown[-MAX_HISTOGRAMS:],
            sort=sort,
            page=_whole("page", single.get("page", "1"), 1, MAX_PAGE),
            after=_whole("after", single.get("after", "0"), 0, 2**62),
            text=single.get("text", ""),
            similar=single.get("similar", ""),
        )

    def values(self, facet: str) -> tuple[str, ...]:
        """Return the chosen values of a facet."""
        return tuple(value for name, value in self.chosen if name == facet)

    def range_of(self, column: str) -> ValueRange | None:
        """Return the range of a column, or None."""
        return next((one for one in self.ranges if one.column == column), None)

    def pairs(self, *without: str) -> list[tuple[str, str]]:
        """Return the state as names and values of an address, without some names."""
        found = [*self.chosen, *((f"in.{one.column}", one.text) for one in self.ranges)]
        found += [("hist", column) for column in self.histograms]
        single = {"sort": self.sort, "text": self.text, "similar": self.similar, "after": self.after or ""}
        found += [(name, str(value)) for name, value in single.items() if value]
        found += [("page", str(self.page))] if self.page > 1 else []
        return [pair for pair in found if pair[0] not in without]

    def link(self, **changes: Any) -> str:
        """Return the address of this list with changes. A change of anything but the page leads to the first page."""
        return "/?" + urlencode(replace(self, **({"page": 1, "after": 0} | changes)).pairs())

    def toggled(self, facet: str, value: str) -> str:
        """Return the address with a value of a facet added, or removed if it is chosen."""
        pair = (facet, value)
        return self.link(
            chosen=tuple(one for one in self.chosen if one != pair) if pair in self.chosen else (*self.chosen, pair)
        )

    def within(self, column: str, low: float | None, high: float | None) -> str:
        """Return the address with a range of a column set; two times None removes the range."""
        others = tuple(one for one in self.ranges if one.column != column)
        return self.link(ranges=others if low is None and high is None else (*others, ValueRange(column, low, high)))

    def where(self, *without: str) -> tuple[str, list[Any]]:
        """Return the filter as an SQL condition with its parameters.

        Args:
            without: facets and columns whose own filters are left out, for the counts of their values.
        """
        tests, values = ["true"], list[Any]()
        for facet, column in FACETS.items():
            given = self.values(facet) if facet not in without else ()
            if not given:
                continue
            named = [value for value in given if value]
            one = f"list_contains({quoted(column)}, ?)" if facet == "rule" else f"{quoted(column)} = ?"
            absent = f"len({quoted(column)}) = 0" if facet == "rule" else f"coalesce({quoted(column)}, '') = ''"
            tests.append("(" + " or ".join([one] * len(named) + [absent] * ("" in given)) + ")")
            values += named
        for within in self.ranges:
            if within.column not in without:
                for bound, sign in ((within.low, ">="), (within.high, "<")):
                    if bound is not None:
                        tests.append(f"{quoted(within.column)} {sign} ?")
                        values.append(bound)
        return " and ".join(tests), values

    @property
    def filtered(self) -> bool:
        """True if any filter is set."""
        return bool(self.chosen or self.ranges)


def number(value: float) -> str:
    """Return the shortest text that is read as the same number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def quoted(name: str) -> str:
    """Return a column name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _column(name: str, have: set[str]) -> str:
    if name not in have:
        raise RequestError(
            f"the ledger has no numeric column {name!r}",
            expected=f"one of {', '.join(sorted(have))}",
            remedy="run an annotator that writes it, then `plinth run --select ledger`",
        )
    return name


def _range(column: str, text: str) -> ValueRange:
    low, separator, high = text.partition("..")
    try:
        bounds = [float(one) if one.strip() else None for one in (low, high)]
    except ValueError:
        bounds = [math.nan]
    if not separator or not all(one is None or math.isfinite(one) for one in bounds):
        expected = "LOW..HIGH with finite numbers, such as 50..1000 or ..0.3"
        raise RequestError(f"{text!r} is not a range", expected=expected)
    return ValueRange(column, *bounds)


def _whole(name: str, text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise RequestError(f"{name} {text!r} is not valid", expected=f"a number from {least} to {most}")
    return int(text)
