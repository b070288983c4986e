"""The decision of one gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from plinth.records import Frozen


class GateResult(Frozen):
    """The decision of one gate, its reason and its evidence.

    A waiver changes nothing of it: `waived` says who let the candidate pass all the same, why, and until when.
    """

    name: str
    passed: bool
    reason: str
    evidence: Mapping[str, Any] = Field(default_factory=dict)
    waived: str = ""

    @property
    def holds(self) -> bool:
        """Whether the gate lets the candidate pass: by itself, or by a waiver."""
        return self.passed or bool(self.waived)

    @property
    def said(self) -> str:
        """The reason, with the waiver where there is one."""
        return f"{self.reason} ({self.waived})" if self.waived else self.reason


def missing(name: str, what: str = "") -> GateResult:
    """A gate without its evidence."""
    return GateResult(name=name, passed=False, reason=f"no evidence{': ' if what else ''}{what}")


def bounded(name: str, value: float, bound: float, what: str, **evidence: Any) -> GateResult:
    """A gate on an upper limit: passed up to the bound; a value that is no number passes nothing."""
    passed = value <= bound
    return GateResult(
        name=name,
        passed=passed,
        reason=f"{what} at most {shown(value)}, {'within' if passed else 'above'} the bound {shown(bound)}",
        evidence={"at_most": number(value), "bound": bound, **evidence},
    )


def shown(value: float) -> str:
    """A number for people."""
    return f"{value:.4g}"


def number(value: float) -> float | str:
    """A number for JSON, which has none for NaN and infinity."""
    return value if value == value and abs(value) != float("inf") else str(value)


def open_gates(results: tuple[GateResult, ...]) -> bool:
    """Whether every gate lets the candidate pass; no gates at all is not a pass."""
    return bool(results) and all(result.holds for result in results)


def failed(results: tuple[GateResult, ...]) -> tuple[GateResult, ...]:
    """The gates that hold the candidate back."""
    return tuple(result for result in results if not result.holds)
