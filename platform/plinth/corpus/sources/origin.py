"""The source of a bucket that a document came from, by the document's columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def source_of(sources: Sequence[Mapping[str, Any]], domain: str | None, snapshot: str) -> int | None:
    """The index of the only source with this domain and snapshot, or None where several fit or none does."""
    fitting = [i for i, one in enumerate(sources) if (one.get("domain"), one.get("snapshot")) == (domain, snapshot)]
    return fitting[0] if len(fitting) == 1 else None
