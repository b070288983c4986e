"""Statements of the tiny pipeline are valid for the published schemas."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.statements import validated

SIGNED = {
    "root", "training-attempt", "checkpoint-commit", "evidence", "gate-policy", "release", "release-head", "log:audit",
    *(f"attestation:{kind}" for kind in
      ("measurement", "contamination", "resume", "licences", "personal_data", "stability", "cost")),
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_statement_of_the_tiny_pipeline_is_valid(released: Path, trust_folder: Path) -> None:
    found = validated(released) | validated(trust_folder)
    assert {f"urn:plinth:{kind}:v1" for kind in SIGNED} <= found
