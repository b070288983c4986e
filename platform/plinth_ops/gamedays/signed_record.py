"""Records of game days in a workspace: a signed log, chained as all others are, and the page of the newest record of
each game day, `reports/gameday-NAME.html`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.records import Frozen
from plinth.report.page import template
from plinth.report.workspace_index import StateTile
from plinth.storage.atomic import write_bytes
from plinth.trust.authority import EVALUATOR
from plinth.trust.log_record import LogRecord
from plinth.trust.root import Trust
from plinth.trust.signed_log import SignedLog
from plinth_jobs.index_tiles import AddedTile, beside, some
from plinth_ops.gamedays.gameday import GameDayRecord

# The records of game days in a workspace: a signed log, chained as all others are.
#
#     append(ctx, record)    the next record, signed as evaluator, whose subject is the digest of the record
#     records(ctx)           all, oldest first, each verified
#     untouched(ctx)         folders that no game day may change
#
# A game day measures the platform; the role that states measurements states this one.

_UNTOUCHED = ("refs", "manifests", "records", "releases", "taint", "trust", "policies", "attestations", "approvals")

GAMEDAYS: Final = SignedLog("gamedays", (EVALUATOR,), keeps_revoked=True)


def append(ctx: Context, record: GameDayRecord) -> LogRecord:
    """Sign a record and put it after all earlier ones of the workspace.

    Raises:
        SignatureError: the log does not hold, or there is no key as evaluator here.
        ConflictError: another process has written that number meanwhile.
    """
    body = {**record.model_dump(mode="json"), "passed": record.passed}
    return GAMEDAYS.append(ctx, body, {f"gameday/{record.name}": fingerprint.digest(body)}, EVALUATOR)


def require_signer(ctx: Context) -> None:
    """Refuse before anything is played where the record could not be signed afterwards.

    Raises:
        SignatureError: no root is pinned, or there is no key as evaluator here.
    """
    Trust.of(ctx.workspace).signer(EVALUATOR)


def records(ctx: Context) -> list[tuple[LogRecord, GameDayRecord]]:
    """Every record, oldest first.

    Raises:
        SignatureError: one was edited, removed, moved, or is no record of a game day.
    """
    return [(one, _content(one)) for one in GAMEDAYS.records(ctx)]


def _content(record: LogRecord) -> GameDayRecord:
    body = dict(record.body)
    try:
        passed, found = body.pop("passed"), GameDayRecord.model_validate(body)
    except (KeyError, ValidationError) as error:
        raise SignatureError(f"record {record.number} of gamedays/ is no game day", found=error) from error
    if passed != found.passed:
        raise SignatureError(f"record {record.number} of gamedays/ contradicts itself", found=passed)
    return found


def untouched(ctx: Context) -> tuple[Path, ...]:
    """What no game day may change: what a workspace has published and signed, and the keys beside it."""
    root = ctx.workspace.root
    return (*(root / name for name in _UNTOUCHED), ctx.workspace.trust_folder)


def tile(ctx: Context) -> StateTile:
    """The last record of each game day that was ever played here."""
    last = {record.name: record for _, record in records(ctx)}
    if not last:
        return StateTile(label="Game days", value="none", note="plinth ops gameday list")
    failed = sorted(name for name, record in last.items() if not record.passed)
    shown = failed[0] if failed else list(last)[-1]
    return StateTile(
        label="Game days",
        value=f"{len(last) - len(failed)} of {len(last)} passed",
        note=some(failed),
        standing="bad" if failed else "good",
        href=beside(ctx, f"gameday-{shown}.html"),
    )


TILE: Final = AddedTile("game_days", tile)


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
