"""The page of a record: `reports/gameday-NAME.html` of a workspace, written again by every game day of that name."""

from __future__ import annotations

from pathlib import Path

from plinth.compute.context import Context
from plinth.records import Frozen
from plinth.report.page import template
from plinth.storage.atomic import write_bytes
from plinth_ops.gamedays.gameday import GameDayRecord


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
    return template("page.html.j2", __package__).render(data=data, title=f"Game day: {data.name}")


def path_of(ctx: Context, name: str) -> Path:
    """Where the page of a game day lies."""
    return ctx.workspace.reports / f"gameday-{name}.html"


def write(ctx: Context, record: GameDayRecord, signed: str) -> Path:
    """Write the page of a record; returns its path.

    Args:
        signed: which signed record it shows, or why there is none.
    """
    made = path_of(ctx, record.name)
    write_bytes(made, page(contents(record, signed)).encode())
    return made


def contents(record: GameDayRecord, signed: str) -> GameDayData:
    """What the page shows."""
    named = dict.fromkeys(one.what for instant in record.instants for one in instant.findings)
    shown = record.model_dump(
        include={"name", "hypothesis", "fault", "blast_radius", "abort", "protection", "mechanism", "seed", "seconds"}
    )
    return GameDayData(
        **shown,
        passed=record.passed,
        alerts=" or ".join(record.alerts) or "none: nobody may be woken",
        machine=f"{record.machine}, Plinth {record.version}",
        record=signed,
        compared=tuple(named),
        instants=tuple(
            GameDayInstant(
                number=one.number,
                struck=one.struck,
                passed=one.passed,
                failures=one.failures,
                alert_s=one.alert_s,
                seconds=one.seconds,
            )
            for one in record.instants
        ),
        phases=tuple(GameDayPhase(name=name, seconds=seconds) for name, seconds in record.phases.items()),
    )
