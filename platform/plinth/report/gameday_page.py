"""The page of a game day: what was stated before, and what was found at every instant; loads nothing."""

from __future__ import annotations

from plinth.records import Frozen
from plinth.report.page import template


class GameDayInstant(Frozen):
    """One instant: its number, where the fault struck, what did not hold, seconds until the alert, seconds it took."""

    number: int
    struck: str
    passed: bool
    failures: tuple[str, ...] = ()
    alert_s: float | None = None
    seconds: float = 0.0


class GameDayPhase(Frozen):
    """A timed phase of a rehearsal."""

    name: str
    seconds: float


class GameDayData(Frozen):
    """Contents of the page. `compared` are the statements that every instant was held to; `record` names the signed
    record, or says why there is none."""

    name: str
    passed: bool
    hypothesis: str
    fault: str
    blast_radius: str
    abort: str
    protection: str
    alerts: str
    mechanism: str
    seed: int
    machine: str
    record: str
    compared: tuple[str, ...]
    instants: tuple[GameDayInstant, ...]
    phases: tuple[GameDayPhase, ...] = ()
    seconds: float


def page(data: GameDayData) -> str:
    """The page as HTML. The same data gives the same bytes."""
    return template("gameday_page.html.j2").render(data=data, title=f"Game day: {data.name}")
