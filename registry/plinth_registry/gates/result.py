"""Result of one gate, and the account of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, get_args

from plinth.evaluation.gate import GateState, GateVerdict
from plinth.text.plural import counted

STATES: Final[tuple[GateState, ...]] = get_args(GateState)
#: Maximum number of names listed in a reason; `evidence` has all.
NAMES_SHOWN: Final = 5
#: Beginning of the reason of a gate whose evidence was recomputed with another value.
MISCOUNTED: Final = "does not match its tables"


class GateResult(GateVerdict):
    """State of one gate, its reason and its evidence.

    A waiver keeps the reason: `waived` says who lets the candidate pass, until when and why.
    """

    name: str
    waived: str = ""

    @property
    def detail(self) -> str:
        """Reason, with the waiver if there is one."""
        return f"{self.reason} ({self.waived})" if self.waived else self.reason

    @property
    def text(self) -> str:
        """State and detail."""
        return f"{self.state}: {self.detail}"


def missing(name: str, what: str = "") -> GateResult:
    """Return the failed result of a gate without evidence."""
    return GateResult(name=name, state="failed", reason=f"no evidence{': ' if what else ''}{what}")


def decided(name: str, passed: bool, reason: str, **evidence: Any) -> GateResult:
    """Return the result of a gate that was evaluated."""
    return GateResult(name=name, state="passed" if passed else "failed", reason=reason, evidence=evidence)


def blocking(results: Iterable[GateResult]) -> tuple[GateResult, ...]:
    """Return the gates that block promotion: failed and pending ones."""
    return tuple(result for result in results if result.blocks)


def is_open(results: Sequence[GateResult]) -> bool:
    """True if no gate blocks promotion; no gates at all are not a pass."""
    return bool(results) and not blocking(results)


def outcome(results: Sequence[GateResult]) -> str:
    """State of a candidate in a few words: `passed`, `passed with 2 waivers (…)`, `pending (…)`, `failed (…)`."""
    if not results:
        return "failed (no gates)"
    for state in ("failed", "pending"):
        if own := [one.name for one in results if one.state == state]:
            return f"{state} ({', '.join(own)})"
    waived = [f"{one.name} {_who(one)}" for one in results if one.state == "waived"]
    return f"passed with {counted(len(waived), 'waiver')} ({'; '.join(waived)})" if waived else "passed"


def account(results: Sequence[GateResult]) -> str:
    """Number of gates by state, which adds up: `23 gates: 19 passed, 1 waived, 3 not applicable`."""
    found = Counter(result.state for result in results)
    parts = [f"{found[state]} {state}" for state in STATES if found[state]]
    return f"{counted(len(results), 'gate')}: {', '.join(parts) or 'none evaluated'}"


def summary(results: Sequence[GateResult]) -> str:
    """Outcome and account in one line."""
    return f"{outcome(results)}; {account(results)}"


def skipped(what: str, least: int, small: Sequence[tuple[str, int]]) -> str:
    """Part of a reason that names samples below the minimum; empty if there are none.

    Args:
        what: noun of one sample, such as `slice`.
        small: names with their n.
    """
    if not small:
        return ""
    return f"; {counted(len(small), what)} skipped (n too small, minimum {least}): {named(small)}"


def named(small: Sequence[tuple[str, int]]) -> str:
    """Names with their n, the first few."""
    shown_ones = ", ".join(f"{name} (n {n:,})" for name, n in small[:NAMES_SHOWN])
    more = len(small) - NAMES_SHOWN
    return f"{shown_ones} and {more} more" if more > 0 else shown_ones


def shown(value: float, apart_from: float | None = None, signed: bool = False) -> str:
    """A number for people: two decimals or three digits, more if it would look equal to what it differs from."""
    if value != value:
        return "unknown"
    value, plus = value + 0.0, "+" if signed else ""  # -0.0 is 0.0
    for digits in range(3, 17):
        text = _digits(value, digits, plus)
        if apart_from is None or value == apart_from or text.lstrip("+") != _digits(apart_from, digits, ""):
            return text
    return f"{value:{plus}}"


def percent(share: float, apart_from: float | None = None) -> str:
    """A share for people, in percent."""
    if share != share:
        return "unknown"
    return f"{shown(share * 100, None if apart_from is None else apart_from * 100)}%"


def number(value: float) -> float | str:
    """A number for JSON, which has none for NaN and infinity."""
    return value if value == value and abs(value) != float("inf") else str(value)


def _digits(value: float, digits: int, plus: str) -> str:
    if 1_000 <= abs(value) < 1e15:
        return f"{value:{plus},.{max(digits - len(str(int(abs(value)))), 0)}f}"
    text = f"{value:{plus}.{digits}g}"
    return text if any(mark in text for mark in ".en") else f"{text}.0"


def _who(one: GateResult) -> str:
    """Person and date of a waiver, without its reason."""
    return one.waived.partition(": ")[0].removeprefix("waived ")
