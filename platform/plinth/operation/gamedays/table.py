"""The game days by name, each where it is written; looked up without loading the others.

Game days that need MLflow or a registry are in `jobs/plinth_jobs/gamedays`, whose table is this one with its own lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from plinth.errors import MissingError
from plinth.operation.gamedays.gameday import GameDay

_DAYS = "plinth.operation.gamedays.days"

#: Name -> module and attribute.
TABLE: Final[Mapping[str, str]] = {
    "corrupted-checkpoint": f"{_DAYS}.checkpoint_days:CORRUPTED",
    "partial-write": f"{_DAYS}.checkpoint_days:PARTIAL",
    "full-disk": f"{_DAYS}.checkpoint_days:FULL_DISK",
    "preemption": f"{_DAYS}.job_days:PREEMPTION",
    "lost-node": f"{_DAYS}.job_days:LOST_NODE",
    "clock-jump": f"{_DAYS}.job_days:CLOCK_JUMP",
    "storage-stall": f"{_DAYS}.data_days:STORAGE_STALL",
    "bad-shard": f"{_DAYS}.data_days:BAD_SHARD",
    "poisoned-batch": f"{_DAYS}.data_days:POISONED",
    "revoked-key": f"{_DAYS}.trust_days:REVOKED_KEY",
}


def find(name: str, table: Mapping[str, str] = TABLE) -> GameDay:
    """The game day of a name.

    Raises:
        MissingError: there is none.
    """
    if name not in table:
        remedy = "`plinth ops gameday list` lists them"
        raise MissingError(f"no game day {name!r}", expected=", ".join(sorted(table)), remedy=remedy)
    module, _, attribute = table[name].partition(":")
    found: GameDay = getattr(import_module(module), attribute)
    return found
