"""A sealed export of a few files, with a release record and an approval, under a root of its own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import dsse, enrolment
from plinth.trust.authority import APPROVER, PROMOTER
from plinth.trust.pin import Trust
from registry import approval, releases
from registry.exports.sealed import ExportClaim, seal

CHECKPOINT = "c" * 64
RECORD = {
    "number": 7, "model": "demo", "version": "2", "candidate": {"checkpoint": CHECKPOINT}, "action": "champion",
    "at": "2026-11-01T10:00:00+00:00",
}  # fmt: skip


@dataclass
class SealedFolder:
    """An export with the root that proves it; `copy` gives attackers one of their own."""

    ctx: Context
    directory: Path
    root: Path

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.directory, to)
        for path in to.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        return to

    def write(self, directory: Path, claim: ExportClaim) -> Path:
        """Fill a folder and seal it."""
        files = {"config.json": b"{}", "model.safetensors": os.urandom(300), "papers/DATA_CARD.md": b"# Data\n"}
        for name, content in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for name, envelope in self.evidence().items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(json.dumps(envelope, indent=1, sort_keys=True))
        seal(self.ctx, directory, claim)
        return directory

    def evidence(self, **changes: Any) -> dict[str, dict[str, Any]]:
        trust = Trust.of(self.ctx.workspace)
        about = {"checkpoint": CHECKPOINT}
        released = dsse.statement(releases.PREDICATE, about, RECORD | changes)
        decided = dsse.statement(approval.PREDICATE, about, {"decision": "approved", "at": RECORD["at"]})
        return {
            "evidence/release.json": dsse.seal(released, trust.signer(PROMOTER)),
            "evidence/approvals/anna.json": dsse.seal(decided, trust.signer(APPROVER, "anna@example.org")),
        }


CLAIM = ExportClaim(
    name="demo/2",
    status="released",
    checkpoint=CHECKPOINT,
    number=7,
    released_at=str(RECORD["at"]),
    evidence={"evidence/release.json": "promoter", "evidence/approvals/anna.json": "approver"},
)


def make_root(folder: Path, patch: pytest.MonkeyPatch, name: str = "serving", demo: bool = False) -> Context:
    """A workspace with a root of its own, pinned in `folder/trust`."""
    patch.setenv(TRUST_VARIABLE, str(folder / "trust"))
    workspace = Workspace(folder / "workspace").ensure()
    enrolment.initialise(workspace, name, ["anna@example.org"], demo=demo)
    return Context(workspace)


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SealedFolder:
    ctx = make_root(tmp_path / "owner", monkeypatch)
    made = SealedFolder(ctx, tmp_path / "model", tmp_path / "owner" / "trust" / "root.json")
    made.write(made.directory, CLAIM)
    return made


Attack = Callable[[SealedFolder, Path], None]
