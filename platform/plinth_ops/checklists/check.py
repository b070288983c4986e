"""One line of a checklist and its answer, the settings of a workspace, and the scope that a line is evaluated over.

pass            the claim holds; the evidence says what was seen
warn            it holds, and will not for long, or holds by a default that was not chosen
fail            it does not hold
undetermined    it could not be seen: never a pass
not applicable  the claim is about something that is not here
waived          it does not hold, and the owner of the policy has accepted that until a date, signed

`checklists.yaml` of a workspace has the people behind the roles and the bounds of some lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from pydantic import Field

from plinth.compute.context import Context
from plinth.operation.settings_file import read_settings
from plinth.records import Frozen
from plinth.storage.workspace import Workspace

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe
    from plinth.training.config import RunConfig


FILE = "checklists.yaml"


class ChecklistSettings(Frozen):
    """Without the file: roles without people, and these bounds."""

    owners: Mapping[str, str] = Field(default_factory=dict, description="By role: who answers for its lines.")
    expiry_days: int = Field(30, ge=1, description="Warn so many days before root or release head expire.")
    free_checkpoints: int = Field(3, ge=1, description="Free space for so many more checkpoints.")
    interval_factor: float = Field(
        3.0, gt=1, description="Times the best interval of saves, or the inverse, beyond which a line warns."
    )
    clock_s: float = Field(1.0, gt=0, description="Seconds that two clocks may differ by.")
    backups: str = Field("", description="Folder or s3:// place of the backups; empty: nobody has said where.")
    backup_hours: float = Field(26.0, gt=0, description="Hours that the newest backup may be old.")
    idle_hours: float = Field(8.0, gt=0, description="Hours without use after which a server runs for nobody.")


def settings_of(workspace: Workspace) -> ChecklistSettings:
    """The settings of a workspace.

    Raises:
        RequestError: the file has none that can be used.
    """
    path = workspace.root / FILE
    return read_settings(path, ChecklistSettings, "has no settings of checklists", "docs/checklists.md")


@dataclass(frozen=True)
class CheckScope:
    """A workspace with its recipe.

    Args:
        recipe: None where the workspace has none yet.
        recipe_path: its file.
        now: Unix seconds.
    """

    ctx: Context
    recipe: Recipe | None = None
    recipe_path: Path | None = None
    settings: ChecklistSettings = field(default_factory=ChecklistSettings)
    now: float = field(default_factory=time.time)

    @cached_property
    def runs(self) -> tuple[RunConfig, ...]:
        """The runs of the workspace, the newest timeline last.

        Raises:
            TrainingError: a configuration is broken.
        """
        from plinth.training import config as configuration

        found = [configuration.load(path) for path in sorted(self.ctx.workspace.runs.glob("*/config.json"))]
        begun = [config for config in found if config.directory.events.exists()]
        return tuple(sorted(begun, key=lambda config: config.directory.events.stat().st_mtime))

    @property
    def newest_run(self) -> RunConfig | None:
        """The run that was trained last."""
        return self.runs[-1] if self.runs else None


Outcome = Literal["pass", "warn", "fail", "undetermined", "not applicable", "waived"]
ChecklistName = Literal["preproduction", "readiness", "incident", "security"]
CHECKLISTS: Final[tuple[ChecklistName, ...]] = get_args(ChecklistName)

#: What each checklist answers.
PURPOSES: Final[dict[ChecklistName, str]] = {
    "preproduction": "May a long run of this recipe begin?",
    "readiness": "May this workspace be relied on, and called in the night for?",
    "incident": "What still holds, and what can be returned to?",
    "security": "Is what SECURITY.md rests on in place here?",
}


class CheckAnswer(NamedTuple):
    """What a line's function saw. `evidence` names it: a path, a number, a person."""

    outcome: Outcome
    evidence: str


def passed(evidence: str) -> CheckAnswer:
    """The claim holds."""
    return CheckAnswer("pass", evidence)


def warned(evidence: str) -> CheckAnswer:
    """It holds, and will not for long, or by a default."""
    return CheckAnswer("warn", evidence)


def failed(evidence: str) -> CheckAnswer:
    """It does not hold."""
    return CheckAnswer("fail", evidence)


def undetermined(evidence: str) -> CheckAnswer:
    """It could not be seen; `evidence` says why."""
    return CheckAnswer("undetermined", evidence)


def not_applicable(evidence: str) -> CheckAnswer:
    """Nothing here that the claim is about."""
    return CheckAnswer("not applicable", evidence)


@dataclass(frozen=True)
class Check:
    """One line.

    Args:
        name: lower-case letters, digits and `-`.
        claim: what has to hold, as a sentence.
        owner: a role that answers for it; `checklists.yaml` has the people.
        lists: checklists that have it.
        remedy: what to do where it does not hold.
        examine: gives outcome and evidence. It reads only, ends within seconds and starts no server. An error of trust
            is a fail; any other error leaves the line undetermined.
        waivable: whether a signed waiver counts. Not for what waivers themselves rest on.
    """

    name: str
    claim: str
    owner: str
    lists: tuple[ChecklistName, ...]
    remedy: str
    examine: Callable[[CheckScope], CheckAnswer]
    waivable: bool = True


class CheckedLine(Frozen):
    """A line, evaluated. `waiver` is who has waived it, until when and why; `seen` the outcome under the waiver."""

    name: str
    claim: str
    outcome: Outcome
    evidence: str
    remedy: str
    owner: str
    seconds: float
    waiver: str = ""
    seen: Outcome | None = None
