"""The Model Documentation Form: all items, each with evidence, a declaration, or not stated; changes are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, PlinthError, SignatureError
from plinth.model.architectures import flops_exact, parameters
from plinth.storage.workspace import Workspace
from plinth_audit.papers import signed
from plinth_audit.papers.documentation import _SIZES, _TIMES, FORM, MODEL_DOCUMENTATION, range_of
from plinth_audit.papers.facts import SignedText
from plinth_audit.papers.gather import AttestedFacts, PaperSubject, gather
from plinth_audit.papers.provider import SUBJECTS, ProviderStatement
from plinth_audit.papers.signed import papers
from plinth_registry.exports.models import find
from tests.plinth_audit.papers.conftest import MODEL, child_of
from tests.registry.exports.test_released import export, release_in, root_of, verify

COST, DECLARED = "7" * 64, "e" * 64
#: A run of 2 days on 4 devices.
AMOUNTS = {"flops": 6.14e21, "device_s": 691_200.0, "job_s": 172_800.0, "kwh": 1234.5, "kwh_measured": 0.25,
           "pue": 1.2}  # fmt: skip
#: Items without evidence, whoever trained the model.
UNKNOWN = {
    "Version of the document", "Legal name of the provider", "Union market release date", "Distribution channels",
    "License", "Acceptable use policy", "Intended uses", "Type and nature of AI systems that can integrate the model",
    "Required hardware", "Required software", "Decision rationale", "How data was obtained and selected",
    "Measures to detect identifiable biases",
}  # fmt: skip
#: Items whose evidence is the cost attestation.
COSTS = {
    "Training time", "Amount of computation used for training", "Measurement methodology of computation",
    "Amount of energy used for training", "Measurement methodology of energy",
}  # fmt: skip


def items(corpus: Context, subject: PaperSubject) -> dict[str, list[list[str]]]:
    """Rows by item: statement, source, and the beginning of the evidence."""
    page = papers(gather(corpus, subject))[MODEL_DOCUMENTATION].decode().partition("## Evidence")[0]
    found: dict[str, list[list[str]]] = {}
    for part in page.split("\n### ")[1:]:
        name, _, body = part.partition("\n")
        rows = [line[2:-2].split(" | ") for line in body.splitlines() if line.startswith("| ")][1:]
        assert bool(rows) != ("Not stated." in body)
        found[name] = rows
    return found


def attested(subject: PaperSubject, **amounts: float) -> PaperSubject:
    cost = AttestedFacts(kind="cost", sha256=COST, role="trainer", facts={"amounts": amounts})
    return subject.model_copy(update={"attested": (*subject.attested, cost)})


def test_items_are_those_of_the_form(corpus: Context, subject: PaperSubject) -> None:
    found = items(corpus, subject)
    assert list(found) == [item.name for own in FORM.values() for item in own]
    assert [len(own) for own in FORM.values()] == [2, 6, 5, 2, 6, 2, 8, 3, 4]
    assert {name for name, rows in found.items() if not rows} == UNKNOWN | COSTS


def test_annexes_are_answered_point_by_point() -> None:
    """Annex XI, section 1: points 1(a) to (f) and 2(a) to (e); Annex XII: points 1(a) to (h) and 2(a) to (c)."""
    texts = [item.annexes for own in FORM.values() for item in own]
    first = {point for text in texts for point in re.findall(r"Annex XI 1\((\d)\)\(([a-f])\)", text)}
    assert first == {("1", letter) for letter in "abcdef"} | {("2", letter) for letter in "abcde"}
    second = [text.partition("Annex XII ")[2] for text in texts]
    assert {point for text in second for point in text.split(", ") if point} == {
        *(f"1({letter})" for letter in "abcdefgh"), *(f"2({letter})" for letter in "abc"),
    }  # fmt: skip


def test_model_and_inference_are_computed_from_its_configuration(corpus: Context, subject: PaperSubject) -> None:
    found, config = items(corpus, subject), subject.provenance["files"]["config.json"]["sha256"][:12]
    count = parameters(MODEL, 300).total
    words = f"{count:,} parameters; range of the form: up to 500 million"
    assert found["Total model size"] == [[words, "evidence", f"`{config}`"]]
    assert found["Input modalities and maximum size"] == [["text, at most 16 tokens", "evidence", f"`{config}`"]]
    forward = flops_exact(MODEL, 300, 16) // 3
    ((inference, *_),) = found["Benchmarked amount of computation for inference"]
    assert inference == f"{forward * 100_000:.3g} FLOPs for 100,000 tokens"
    design = {row[0] for row in found["Design specifications of the training process"]}
    assert {"training.precision: bf16", "training.optimizer.lr: 0.25", "tokens: 640"} <= design
    widths = [row[0] for row in found["Design specifications of the model"] if ".dim:" in row[0]]
    assert widths == ["training.model.dim: 64"]
    assert not any("model." in one or "k" * 64 in one for one in design)


def test_computation_and_energy_are_those_of_the_cost_attestation(corpus: Context, subject: PaperSubject) -> None:
    found = items(corpus, attested(subject, **AMOUNTS))
    rows = {name: found[name] for name in COSTS}
    assert {evidence for own in rows.values() for *_, evidence in own} == {f"`{COST[:12]}`"}
    assert rows["Training time"][0][0] == "2 wall-clock days, 8 device-days; range of the form: less than 1 month"
    assert rows["Amount of computation used for training"][0][0] == "6.14e+21 FLOPs"
    assert rows["Amount of energy used for training"][0][0] == "1.23 MWh"
    method = rows["Measurement methodology of energy"][0][0]
    assert "multiplied by the site's power usage effectiveness, 1.2;" in method
    assert method.endswith("share of the devices' time: 25% measured, 75% at rated power")
    unset = items(corpus, attested(subject, **{**AMOUNTS, "pue": 1.0}))  # the default
    assert "jobs, without site overhead;" in unset["Measurement methodology of energy"][0][0]
    unpowered = items(corpus, attested(subject, **{key: AMOUNTS[key] for key in ("flops", "device_s", "job_s")}))
    assert {name for name in COSTS if not unpowered[name]} == {name for name in COSTS if "energy" in name}


def test_declared_text_is_shown_as_declared_with_its_signer(corpus: Context, subject: PaperSubject) -> None:
    said = {"by": "c@example.org", "role": "compliance", "evidence": DECLARED}
    texts = [SignedText(subject=subject, text=f"the {field} <b>", **said) for field, subject in SUBJECTS.items()]
    found = items(corpus, subject.model_copy(update={"said": (*subject.said, *texts)}))
    assert {name for name, rows in found.items() if not rows} == {"Version of the document"} | COSTS - {
        "Amount of energy used for training"
    }
    declared = ["the intended_uses &lt;b&gt;", "declared, signed by c@example.org", f"`{DECLARED[:12]}`"]
    assert found["Intended uses"] == [declared]
    assert [row[0] for row in found["Legal name of the provider"]] == [
        "provider: the provider &lt;b&gt;", "contact: the contact &lt;b&gt;",
        "authorised representative: the authorised_representative &lt;b&gt;",
    ]  # fmt: skip
    forged = [one.model_copy(update={"role": "approver"}) for one in texts]
    assert items(corpus, subject.model_copy(update={"said": tuple(forged)}))["Intended uses"] == []


def test_every_declared_field_is_one_of_the_declaration() -> None:
    fields = {field for own in FORM.values() for item in own for field in item.declared}
    assert fields <= set(ProviderStatement.model_fields)
    assert set(tuple(SUBJECTS)[tuple(SUBJECTS).index("other") + 1 :]) <= fields


def test_weights_of_another_model_are_a_dependency(corpus: Context, subject: PaperSubject) -> None:
    assert items(corpus, subject)["Model dependencies"][0][0] == "N/A: no initial weights and no teacher model"
    ((words, *_),) = items(corpus, child_of(corpus, "concatenate"))["Model dependencies"]
    assert re.fullmatch(r"initial: checkpoint [0-9a-f]{64}", words)


@pytest.mark.parametrize(
    ("number", "ranges", "words"),
    [
        (5e8, _SIZES, "up to 500 million"),
        (5e8 + 1, _SIZES, "500 million to 5 billion"),
        (7.3e10, _SIZES, "50 to 100 billion"),
        (2e12, _SIZES, "more than 1 trillion"),
        (30.5, _TIMES, "1 to 3 months"),
        (400, _TIMES, "more than 6 months"),
    ],
)
def test_ranges(number: float, ranges: Any, words: str) -> None:
    assert range_of(number, ranges) == words


def test_a_changed_document_or_changed_evidence_is_refused(tmp_path: Path) -> None:
    ctx = release_in(Context(Workspace(tmp_path / "workspace").ensure()))
    assert export(ctx, "demo/2", tmp_path / "out") == 0
    assert verify(tmp_path / "out", root_of(ctx))["name"] == "demo/2"
    page = tmp_path / "out" / "papers" / MODEL_DOCUMENTATION
    assert "| provider: Example GmbH | declared, signed by compliance |" in page.read_text()
    assert signed.signed_by(ctx, signed.papers_of(ctx, find(ctx, "demo/2"))) == ("compliance",)
    page.chmod(0o644)
    page.write_text(page.read_text().replace("Example GmbH", "Other GmbH"))
    with pytest.raises((IntegrityError, SignatureError), match=MODEL_DOCUMENTATION):
        verify(tmp_path / "out", root_of(ctx))
    (cost,) = ctx.workspace.attestations.glob("*/cost.json")
    envelope = json.loads(cost.read_bytes())
    envelope["payload"] = envelope["payload"][:-8] + "AAAAAAA="
    cost.write_text(json.dumps(envelope))
    with pytest.raises(PlinthError, match="cost"):
        signed.papers_of(ctx, find(ctx, "demo/2"))
