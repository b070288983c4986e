"""Claims about training text are those that its own columns give, of the text that the checkpoint was trained on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.provenance.statements import chain
from plinth_registry import attestations, evidence

LICENCES = {"documents": {"MIT": 2}, "permitted": ["MIT"]}
GRANTED = {"documents": 2, "train": True, "redistribute": True, "commercial": True}
TERMS = {"sources": {"test 2026-01": GRANTED}}
CLEAN = {"documents": 2, "contaminated": 0}


def faults(ctx: Context, line: Any, kind: str, facts: dict[str, Any], **materials: str | None) -> dict[str, Any]:
    named = {name: digest for name, digest in (line.materials | materials).items() if digest is not None}
    stated = attestations.attest(ctx, line.recipe, kind, kind, line.checkpoint.digest, materials=named, facts=facts)
    return evidence.miscounted_text(ctx, {kind: stated}, chain(ctx.refs, line.checkpoint))


def test_true_claims_have_no_fault(ctx: Context, line: Any) -> None:
    assert faults(ctx, line, "licences", LICENCES | TERMS) == {}
    assert faults(ctx, line, "contamination", CLEAN) == {}


@pytest.mark.parametrize(
    ("kind", "facts", "said"),
    [
        ("licences", LICENCES | TERMS | {"documents": {"CC0-1.0": 2}}, "CC0-1.0: stated 2, recomputed absent"),
        ("licences", LICENCES | {"sources": {"test 2026-01": GRANTED | {"documents": 1}}}, "stated 1, recomputed 2"),
        ("licences", LICENCES | {"sources": {}}, "sources/test 2026-01: stated absent"),
        ("contamination", CLEAN | {"documents": 200}, "documents: stated 200, recomputed 2"),
        ("contamination", {"documents": 2}, "cannot be recomputed"),
    ],
)
def test_a_claim_that_the_text_does_not_bear_out_is_named(
    ctx: Context, line: Any, kind: str, facts: dict[str, Any], said: str
) -> None:
    assert said in " ".join(faults(ctx, line, kind, facts)[kind])


def test_contaminated_documents_that_were_trained_on_are_counted(ctx: Context, line: Any) -> None:
    marked = line.made("contamination", {}, table=pa.table({"contaminated": [False, True]}), folder="web/")
    found = faults(ctx, line, "contamination", CLEAN, contamination=marked.digest)
    assert found == {"contamination": ("contamination: contaminated: stated 0, recomputed 1",)}


@pytest.mark.parametrize(
    ("materials", "said"),
    [
        (
            {"web/curated": fingerprint.digest("cleaner text")},
            "the measurement used another version of web/curated than the run was trained on",
        ),
        ({"web/curated": None}, "not computed on web/curated"),
        ({"web/verdicts": None}, "verdicts of no bucket, text of web"),
        ({"contamination": None}, "cannot be recomputed"),
        ({"contamination": "0" * 64}, "cannot be recomputed"),
    ],
)
def test_a_claim_is_about_the_text_that_was_trained_on(
    ctx: Context, line: Any, materials: dict[str, str | None], said: str
) -> None:
    assert said in " ".join(faults(ctx, line, "contamination", CLEAN, **materials)["contamination"])


def test_terms_are_those_that_the_text_was_read_under(ctx: Context, line: Any) -> None:
    """The owner forbids commercial use; the statement allows it."""
    line.documents = line.made("web/documents", {}, sources=[{"domain": "test", "snapshot": "2026-01", "terms": {}}])
    found = evidence._licences(ctx, statement(ctx, line, LICENCES | TERMS))
    assert "sources/test 2026-01/commercial: stated True, recomputed False" in found


def statement(ctx: Context, line: Any, facts: dict[str, Any]) -> attestations.Attestation:
    return attestations.attest(
        ctx, line.recipe, "licences", "licences", line.checkpoint.digest, materials=line.materials, facts=facts
    )
