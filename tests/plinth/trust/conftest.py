"""A workspace with a root of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from plinth.storage.workspace import TRUST_VARIABLE, Workspace
from plinth.trust import enrolment
from plinth.trust.root import Trust

ADA, BEN = "ada@example.org", "ben@example.org"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv(TRUST_VARIABLE, str(tmp_path / "trust"))
    return Workspace(tmp_path / "workspace").ensure()


@pytest.fixture
def trust(workspace: Workspace) -> Trust:
    return enrolment.initialise(workspace, "acme", [ADA, BEN])
