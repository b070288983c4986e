"""The account of a bucket: each file and each record of its sources is counted once, and the counts add up.

    files      found = read + not read, by reason
    records    read = documents + exclusions + damage + repeats

The left sides are counted where files are listed and where readers yield records, the right sides where files are
opened and where parts are written. So what is lost on the way between them shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plinth.corpus.sources.record import EXCLUSIONS, SEEN_BEFORE
from plinth.errors import StageError
from plinth.records import Frozen, Manifest
from plinth.text import counted


class Account(Frozen):
    """Files and records of a bucket.

    `repeated_ids` are identifiers of records that stand on several texts of a file, `unread_dates` documents that state
    a date that cannot be read.
    """

    found: int
    read: int
    not_read: Mapping[str, int]
    records: int
    documents: int
    exclusions: Mapping[str, int]
    damage: Mapping[str, int]
    repeats: int
    repeated_ids: int = 0
    unread_dates: int = 0

    @property
    def line(self) -> str:
        """The account in one line."""
        files = f"{counted(self.found, 'file')} = {self.read} read"
        files += f" + {_total(self.not_read)} not read{_reasons(self.not_read)}" if self.not_read else ""
        terms = [counted(self.documents, "document")]
        for name, counts in (("excluded", self.exclusions), ("damaged", self.damage)):
            terms += [f"{_total(counts)} {name}{_reasons(counts)}"] if counts else []
        terms += [f"{self.repeats} repeated"] if self.repeats else []
        ids = f"; {counted(self.repeated_ids, 'id')} on several texts" if self.repeated_ids else ""
        dates = f"; {counted(self.unread_dates, 'date')} not read" if self.unread_dates else ""
        return f"{files}; {counted(self.records, 'record')} = {' + '.join(terms)}{ids}{dates}"

    def require_balance(self, label: str) -> None:
        """Fail where a file or a record is lost.

        Raises:
            StageError: one side is larger than the other.
        """
        files = self.read + _total(self.not_read)
        written = self.documents + _total(self.exclusions) + _total(self.damage) + self.repeats
        if self.found == files and self.records == written:
            return
        raise StageError(
            f"{label}: the account does not add up",
            found=f"{files} of {counted(self.found, 'file')}, {written} of {counted(self.records, 'record')}: "
            + self.line,
            expected="as many files as were found, and as many records as were read",
            remedy="report it as a defect, with these lines; nothing of this bucket was published",
        )


def account(found: int, not_read: Mapping[str, int], documents: Mapping[str, Any]) -> Account:
    """The account of a bucket.

    Args:
        found: files in its sources.
        not_read: how many of them are not read, by reason.
        documents: statistics of its documents.
    """
    rejects = documents["rejects"]
    return Account(
        found=found,
        read=documents["files_read"],
        not_read=not_read,
        records=documents["records"],
        documents=documents["documents"],
        exclusions={name: n for name, n in rejects.items() if name in EXCLUSIONS and name != SEEN_BEFORE},
        damage={name: n for name, n in rejects.items() if name not in EXCLUSIONS},
        repeats=rejects.get(SEEN_BEFORE, 0),
        repeated_ids=documents.get("repeated_ids", 0),
        unread_dates=documents.get("unread_dates", 0),
    )


def published(sources: Manifest, documents: Manifest) -> Account | None:
    """The account of published manifests; None for those of earlier versions, which did not count all of it."""
    if "found" not in sources.stats or "records" not in documents.stats:
        return None
    return account(sources.stats["found"], sources.stats["not_read"], documents.stats)


def _total(counts: Mapping[str, int]) -> int:
    return sum(counts.values())


def _reasons(counts: Mapping[str, int]) -> str:
    """Counts in parentheses, largest first."""
    named = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return f" ({', '.join(f'{n:,} {name}' for name, n in named)})"
