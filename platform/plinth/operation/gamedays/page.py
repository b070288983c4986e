"""The page of a record: `reports/gameday-NAME.html` of a workspace, written again by every game day of that name.

Does not belong here: its layout (report).
"""

from __future__ import annotations

from pathlib import Path

from plinth.compute.context import Context
from plinth.operation.gamedays.gameday import GameDayRecord
from plinth.report.gameday_page import GameDayData, GameDayInstant, GameDayPhase, page
from plinth.storage.atomic import write_bytes


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
