"""Play a game day: prepare once, strike at every instant, compare, judge.

    play(day, seed, instants, outside)   -> GameDayRecord

Instant n of a seed draws the same numbers whatever was played before it, so that one can be played again alone
(`first`). An error that is none of Plinth's own is a failed instant with its words, never the end of the game day.

Does not belong here: what is compared (`days/`), the signed record (`signed_record`).
"""

from __future__ import annotations

import platform
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import plinth
from plinth.errors import RequestError
from plinth.operation.gamedays.gameday import GameDay, GameDayRecord, Instant, Outcome
from plinth.operation.gamedays.scratch import Aborted, InstantWatch, scratch

#: Instants of a game day, unless said otherwise.
INSTANTS = 3


def play(
    day: GameDay,
    *,
    seed: int = 0,
    instants: int = INSTANTS,
    first: int = 0,
    outside: tuple[Path, ...] = (),
    on_instant: Callable[[Instant], None] = lambda instant: None,
) -> GameDayRecord:
    """Play instants `first` to `first + instants - 1` of a seed.

    Args:
        outside: folders that must not change meanwhile; a change aborts what is left.

    Raises:
        RequestError: no instant was asked for, or this machine lacks what the game day needs.
    """
    require_playable(day, instants)
    begun, played = time.monotonic(), list[Instant]()
    with scratch() as folder:
        watch = InstantWatch(outside)
        prepared = day.prepare(folder / "prepared")
        watch.begin()
        mechanism = day.mechanism(prepared)
        try:
            for number in range(first, first + instants):
                played.append(_instant(day, prepared, folder, watch, seed, number))
                on_instant(played[-1])
                if watch.damage():
                    break  # every further instant would damage more
        finally:
            day.end(prepared)
    return GameDayRecord(
        name=day.name,
        hypothesis=day.hypothesis,
        fault=day.fault,
        blast_radius=day.blast_radius,
        abort=day.abort,
        protection=day.protection,
        alerts=day.alerts,
        seed=seed,
        mechanism=mechanism,
        version=plinth.__version__,
        machine=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        instants=tuple(played),
        phases=_longest(played),
        seconds=round(time.monotonic() - begun, 3),
    )


def require_playable(day: GameDay, instants: int) -> None:
    """Refuse what cannot be played here.

    Raises:
        RequestError: no instant was asked for, or this machine lacks what the game day needs.
    """
    if instants < 1:
        raise RequestError("a game day needs an instant", found=instants, expected="1 or more")
    if why := day.missing():
        raise RequestError(f"game day {day.name} cannot be played here", found=why, remedy="see docs/gamedays.md")


def _instant(day: GameDay, prepared: Any, folder: Path, watch: InstantWatch, seed: int, number: int) -> Instant:
    begun, own = time.monotonic(), folder / f"instant-{number}"
    own.mkdir()
    chooser = Random(f"{day.name} {seed} {number}")

    def ended(where: str, findings: tuple[Outcome, ...] = (), **more: Any) -> Instant:
        seconds = round(time.monotonic() - begun, 3)
        return Instant(number=number, struck=where, findings=findings, seconds=seconds, **more)

    try:
        with watch.instant(day.abort_s):
            struck = day.play(prepared, own, chooser)
    except Aborted as reason:
        return ended("", aborted=str(reason))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        words = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return ended("", (Outcome(what="the instant could be played", passed=False, seen=words),))
    if damage := watch.damage():
        return ended(struck.where, struck.findings, aborted=damage)
    left = [f"{one.pid}" for one in watch.left()]
    clean = Outcome(what="no process is left over", passed=not left, seen=", ".join(left) or "none")
    return ended(struck.where, (*struck.findings, clean), alert_s=struck.alert_s, phases=struck.phases)


def _longest(played: list[Instant]) -> dict[str, float]:
    """The longest time of every phase, phases in their order."""
    names = dict.fromkeys(name for one in played for name in one.phases)
    return {name: max(one.phases.get(name, 0.0) for one in played) for name in names}
