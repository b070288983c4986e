"""Wall-clock time for signed records of people's acts; never part of an identity."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
