"""A rank's named error as data, so that the user's process can raise it again."""

from __future__ import annotations

from plinth import errors
from plinth.errors import PlinthError, TrainingError
from plinth.records import Frozen

#: Words of the reason in the timeline when a node was lost.
NODE_SILENT = "sends no heartbeat"


class RankFailure(Frozen):
    """The fields of a `PlinthError`, as `rank_failed` events and `result.json` keep them."""

    kind: str
    what: str
    found: str | None = None
    expected: str | None = None
    remedy: str | None = None

    @classmethod
    def of(cls, error: PlinthError) -> RankFailure:
        """The failure that an error names."""
        found, expected = (None if value is None else str(value) for value in (error.found, error.expected))
        return cls(kind=type(error).__name__, what=error.what, found=found, expected=expected, remedy=error.remedy)

    def error(self) -> PlinthError:
        """The error again, of its own class, so that its exit status is kept."""
        kind = getattr(errors, self.kind, TrainingError)
        raised: PlinthError = kind(self.what, found=self.found, expected=self.expected, remedy=self.remedy)
        return raised
