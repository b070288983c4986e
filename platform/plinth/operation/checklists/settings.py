"""`checklists.yaml` of a workspace: the people behind the roles, and the bounds of some lines."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from plinth.operation.settings_file import read_settings
from plinth.records import Frozen
from plinth.storage.workspace import Workspace

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


def load(workspace: Workspace) -> ChecklistSettings:
    """The settings of a workspace.

    Raises:
        RequestError: the file has none that can be used.
    """
    path = workspace.root / FILE
    return read_settings(path, ChecklistSettings, "has no settings of checklists", "docs/checklists.md")
