"""Statements of the tiny pipeline are valid for the published schemas, its bills of materials for their standards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.storage.workspace import Workspace
from plinth_audit.papers import signed
from plinth_registry.exports import models
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


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_bills_of_materials_of_the_tiny_release_are_valid(released: Path) -> None:
    ctx = Context(Workspace(released))
    made = signed.papers_of(ctx, models.find(ctx, "tiny@champion")).files
    validation, schema = (pytest.importorskip(f"cyclonedx.{name}") for name in ("validation.json", "schema"))
    bom = made["papers/bom.cdx.json"].decode()
    assert validation.JsonStrictValidator(schema.SchemaVersion.V1_7).validate_str(bom) is None
    spdx, objects = pytest.importorskip("spdx_python_model").load_data(json.loads(made["papers/sbom.spdx.json"]))
    spdx.JSONLDSerializer().serialize_data(objects)
    stated = {one["name"].partition("@")[0]: one["value"] for one in json.loads(bom)["properties"]}
    assert stated["plinth:g7:INF-02 Infrastructure hardware"].startswith("hardware ")
    assert stated["plinth:g7:SP-04 Vulnerability referencing"] == "not stated"
