"""The signed history of releases as a value: its records, and which version is champion, on trial, or gone.

Read and proved once (`plinth_registry.releases.history`), then handed on. MLflow's aliases are a mirror of it
(`mirror`); whoever sets one by hand changes nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final, Literal

from plinth.errors import GateError
from plinth.records import Frozen
from plinth_registry.gates.facts import Approval

Action = Literal["canary", "champion", "rollback", "withdrawn", "returned"]
Place = Literal["champion", "previous", "canary", "superseded", "rolled back"]
#: Movements that release a version; others give places back.
PROMOTED: Final = ("canary", "champion")
#: A place of a release, as people write it.
_HELD = re.compile(r"(models:/)?[a-z][a-z0-9-]*@(champion|canary|previous)")


class ReleaseRecord(Frozen):
    """One movement of an alias.

    `goal` is where the movement ends: a `canary` on its way to `champion`, or one that stays for trial. `version` is
    the release's version that holds the place afterwards (None when withdrawn), `previous` the one that was champion
    before. A `returned` canary is `previous`, and the champion stays. `policy` is the digest of the gate policy under
    which it was decided, `audit` number and SHA-256 of the newest entry of the log of decisions then.
    """

    number: int
    prior: str | None
    action: Action
    goal: Action
    model: str
    version: str | None
    previous: str | None
    candidate: dict[str, str]
    candidate_version: str | None
    by: str
    reason: str
    approvals: tuple[Approval, ...] = ()
    gates: Mapping[str, str] = {}
    policy: str = ""
    audit: Mapping[str, Any] = {}
    at: str


class Standing(Frozen):
    """Versions of one release by what they are now.

    `champions` are those that became champion and were never rolled back from, oldest first; the last one is champion.
    `gone` are those that were rolled back from, returned from trial, replaced on trial by another, or withdrawn.
    """

    champions: tuple[str, ...] = ()
    canary: str | None = None
    gone: tuple[str, ...] = ()

    @property
    def champion(self) -> str | None:
        return self.champions[-1] if self.champions else None

    @property
    def previous(self) -> str | None:
        return self.champions[-2] if len(self.champions) > 1 else None

    @property
    def aliases(self) -> dict[str, str | None]:
        """What MLflow should show."""
        return {"champion": self.champion, "canary": self.canary, "previous": self.previous}

    def place(self, version: str) -> Place | None:
        """What a version is now; None for one that was never released."""
        if version in self.gone:
            return "rolled back"
        named: dict[Place, str | None] = {"champion": self.champion, "canary": self.canary, "previous": self.previous}
        for place, held in named.items():
            if held == version:
                return place
        return "superseded" if version in self.champions else None


def names_place(target: str) -> bool:
    """Whether a target is `NAME@PLACE`: never a folder, whatever lies in the working directory under that name."""
    return _HELD.fullmatch(target) is not None


def standing_after(records: Iterable[ReleaseRecord]) -> Standing:
    """What the history of one release, oldest record first, says about its versions."""
    found = Standing()
    for record in records:
        found = _after(found, record)
    return found


def ended(records: Iterable[ReleaseRecord], candidate: Mapping[str, str]) -> int:
    """Number of the record that ended the last promotion of a candidate; 0 before the first one has ended.

    A promotion ends where the version is champion or canary no more, whatever the cause. A rollback to it resumes it.
    An approval counts for the promotion after this record.

    Args:
        candidate: its digests, as records name them.
    """
    now, own, found = Standing(), set[str | None](), [0]
    for record in records:
        if record.action in PROMOTED and record.candidate == candidate:
            own.add(record.version)
        before, now = now, _after(now, record)
        was, holds = (bool(own & {one.champion, one.canary} - {None}) for one in (before, now))
        if was and not holds:
            found.append(record.number)
        elif holds and not was and record.action not in PROMOTED:
            found.pop()
    return found[-1]


def _after(now: Standing, record: ReleaseRecord) -> Standing:
    version, before = record.version, record.previous
    gone = tuple(each for each in now.gone if each != version)
    if record.action == "canary":
        # A canary that another one replaces was never found good enough for everybody.
        replaced = () if now.canary in (None, version, *now.champions) else (str(now.canary),)
        return now.model_copy(update={"canary": version, "gone": (*gone, *replaced)})
    if record.action == "champion" and version is not None:
        kept = tuple(each for each in now.champions if each != version)
        canary = None if now.canary == version else now.canary
        return now.model_copy(update={"champions": (*kept, version), "canary": canary, "gone": gone})
    if record.action == "returned":
        return now.model_copy(update={"canary": None, "gone": (*now.gone, str(before))})
    place = 0 if version is None else now.champions.index(version) + 1
    left = now.champions[place:]
    return Standing(
        champions=now.champions[:place],
        canary=None if now.canary in left else now.canary,
        gone=(*now.gone, *left),
    )


def never_released(name: str, version: str) -> GateError:
    """The refusal of a version that no signed record names."""
    return GateError(
        f"{name} version {version} was never released",
        found="no record signed by the promoter",
        expected="a record in releases/",
        remedy="do not use it; promote its candidate",
    )


class ReleaseHistory(tuple[ReleaseRecord, ...]):
    """The records of one release, or of all, oldest first."""

    def of(self, model: str) -> ReleaseHistory:
        """The records of one release."""
        return ReleaseHistory(record for record in self if record.model == model)

    @cached_property
    def standing(self) -> Standing:
        """What the records of one release say now about its versions."""
        return standing_after(self)

    def releasing(self, model: str, version: str) -> ReleaseRecord:
        """The newest record that released a version: a rollback to it, or the return of a canary, decides nothing.

        Raises:
            GateError: the promoter never released it.
        """
        for record in reversed(self):
            if (record.model, record.version) == (model, version) and record.action in PROMOTED:
                return record
        raise never_released(model, version)
