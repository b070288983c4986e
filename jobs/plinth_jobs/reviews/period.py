"""The last whole week or month."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple

Length = Literal["week", "month"]


class Period(NamedTuple):
    """Days that are looked at together. `begin` and `end` are Unix seconds; `end` does not belong to it."""

    length: Length
    begin: float
    end: float

    @property
    def name(self) -> str:
        """`2026-W48` or `2026-11`."""
        begin = datetime.fromtimestamp(self.begin, UTC)
        year, week, _ = begin.isocalendar()
        return f"{year}-W{week:02d}" if self.length == "week" else f"{begin:%Y-%m}"

    def has(self, at: float) -> bool:
        """Whether a time in Unix seconds is in it."""
        return self.begin <= at < self.end

    @property
    def before(self) -> Period:
        """The one before it."""
        return period(self.length, self.begin)


def period(length: Length, until: float) -> Period:
    """The last whole week (Monday to Sunday) or calendar month that had ended at a time, in UTC."""
    day = datetime.fromtimestamp(until, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if length == "week":
        end = day - timedelta(days=day.weekday())
        begin = end - timedelta(days=7)
    else:
        end = day.replace(day=1)
        begin = (end - timedelta(days=1)).replace(day=1)
    return Period(length, begin.timestamp(), end.timestamp())
