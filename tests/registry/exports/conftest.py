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
from plinth.provenance.statements import SLSA_PREDICATE
from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import dsse, enrolment
from plinth.trust.dsse import APPROVER, EVALUATOR, PROMOTER, TRAINER
from plinth.trust.root import Trust
from plinth.trust.standalone_verify import MEASUREMENT_TYPE as MEASUREMENT
from plinth.trust.standalone_verify import digest_of
from plinth_registry import approval, judgement, policy, releases
from plinth_registry.candidate import EVIDENCE_PREDICATE
from plinth_registry.exports import ExportClaim, seal
from plinth_registry.gates.settings import ApprovalPolicy

CHECKPOINT = "c" * 64
#: Subject of the export, and the digest of the policy under which it was released.
ABOUT, POLICY = {"candidate": "a" * 64, "checkpoint": CHECKPOINT, "evaluation": "e" * 64}, "b" * 64
RECORD = {
    "number": 7, "model": "demo", "version": "2", "candidate": ABOUT, "action": "champion", "policy": POLICY,
    "at": "2026-11-01T10:00:00+00:00",
}  # fmt: skip
#: The files of the checkpoint as its trainer stated them.
SOURCE = {"model.safetensors": "5" * 64, "config.json": "6" * 64}
MODEL_FILES = ("config.json", "model.safetensors")


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
        return self.seal(directory, claim)

    def seal(self, directory: Path, claim: ExportClaim) -> Path:
        """Have everyone state the files that a folder has now, and seal it."""
        for name, envelope in self.evidence(directory).items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(json.dumps(envelope, indent=1, sort_keys=True))
        seal(self.ctx, directory, claim)
        return directory

    def evidence(self, directory: Path, **changes: Any) -> dict[str, dict[str, Any]]:
        """Return the chain of an export, link by link; `changes` apply to the release record."""
        at, about = RECORD["at"], {"checkpoint": CHECKPOINT}
        made = {"buildDefinition": {"internalParameters": {"checkpoint": {"digest": CHECKPOINT}}}}
        files = {name: digest_of(directory / name) for name in MODEL_FILES}
        measured = {"asset": "evaluation", "facts": {}, "at": at}
        form = {"asset": "forms/hf-saved", "facts": {"files": files, "source": SOURCE}, "at": at}
        asked = {"approvals": ApprovalPolicy().model_dump(mode="json")}
        decided = {"decision": "approved", "by": "anna@example.org", "policy": POLICY, "at": at}
        passed = {"policy": {"digest": {"sha256": POLICY}}, "verificationResult": "PASSED"}
        stated = {
            "release.json": (releases.PREDICATE, about, RECORD | changes, PROMOTER),
            "provenance.slsa.json": (SLSA_PREDICATE, SOURCE, made, TRAINER),
            "evidence.json": (EVIDENCE_PREDICATE, ABOUT, {"facts": {"requested_by": None}}, TRAINER),
            "attestations/evaluation.json": (MEASUREMENT, _without(ABOUT, "candidate"), measured, EVALUATOR),
            "attestations/forms.hf-saved.json": (MEASUREMENT, about, form, EVALUATOR),
            "policy.json": (policy.PREDICATE, {"demo": POLICY}, {"policy": asked, "at": at}, "policy"),
            "verdict.json": (judgement.VERDICT_PREDICATE, ABOUT, passed, PROMOTER),
            "approvals/anna.json": (approval.PREDICATE, ABOUT, decided, APPROVER),
        }
        trust = Trust.of(self.ctx.workspace)
        owner = {APPROVER: "anna@example.org"}
        return {
            f"evidence/{name}": dsse.seal(dsse.statement(kind, of, said), trust.signer(role, owner.get(role)))
            for name, (kind, of, said, role) in stated.items()
        }


def _without(about: dict[str, str], name: str) -> dict[str, str]:
    return {each: digest for each, digest in about.items() if each != name}


CLAIM = ExportClaim(
    name="demo/2",
    status="released",
    checkpoint=CHECKPOINT,
    number=7,
    policy=POLICY,
    released_at=str(RECORD["at"]),
    evidence={
        "evidence/release.json": PROMOTER, "evidence/approvals/anna.json": APPROVER,
        "evidence/provenance.slsa.json": TRAINER, "evidence/evidence.json": TRAINER,
        "evidence/attestations/evaluation.json": EVALUATOR, "evidence/attestations/forms.hf-saved.json": EVALUATOR,
        "evidence/policy.json": "policy", "evidence/verdict.json": PROMOTER,
    },
)  # fmt: skip


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
