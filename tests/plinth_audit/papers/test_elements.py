"""Bills of materials for AI: fifty minimum elements in seven clusters, in two formats that their own libraries read."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth_audit.papers.bom import BOM
from plinth_audit.papers.elements import DOCUMENT, Described, elements
from plinth_audit.papers.facts import NOT_STATED, PaperFacts, SignedText
from plinth_audit.papers.gather import AttestedFacts, PaperSubject, gather
from plinth_audit.papers.signed import papers
from plinth_audit.papers.spdx import SPDX

#: Elements by cluster in the publication of 2026-05-12.
COUNTS = {"MD": 10, "SLP": 9, "MDL": 13, "DP": 10, "INF": 2, "SP": 4, "KPI": 2}
NAMELESS = {
    "MD-05", "MD-07", "SLP-09", "MDL-06", "MDL-12", "DP-02", "DP-08", "SP-01", "SP-02", "SP-03", "SP-04", "KPI-01",
}  # fmt: skip
PROVIDER = SignedText(subject="provider", text="Example GmbH", by="c@example.org", role="compliance", evidence="e" * 64)


@pytest.fixture(scope="module")
def made(facts: PaperFacts) -> dict[str, bytes]:
    return papers(facts)


@pytest.fixture(scope="module")
def declared(corpus: Context, subject: PaperSubject) -> dict[str, bytes]:
    """Documents of the same model after its provider has signed a declaration."""
    return papers(gather(corpus, subject.model_copy(update={"said": (*subject.said, PROVIDER)})))


def listed(made: dict[str, bytes]) -> dict[str, list[tuple[Any, str]]]:
    """Values with their evidence by element, as SPDX has them."""
    graph = json.loads(made[SPDX])["@graph"]
    found = [json.loads(one["statement"]) for one in graph if one["type"] == "Annotation"]
    return {
        one["element"].split()[0]: []
        if one["stated"] == NOT_STATED
        else [(each["value"], each["evidence"]) for each in one["stated"]]
        for one in found
    }


def model(facts: Any) -> Any:
    return pytest.importorskip("spdx_python_model").load_data(json.loads(facts[SPDX]))


def test_every_element_of_the_seven_clusters_is_there(facts: PaperFacts) -> None:
    found = elements(Described(facts, "CycloneDX", "1.7", {}))
    by_cluster = {cluster: [one.id for one in found if one.id.startswith(f"{cluster}-")] for cluster in COUNTS}
    assert {cluster: len(ids) for cluster, ids in by_cluster.items()} == COUNTS
    assert len({one.id for one in found}) == len(found) == 50


def test_each_element_has_evidence_or_is_not_stated(made: dict[str, bytes], subject: PaperSubject) -> None:
    found = listed(made)
    known = {link["digest"] for link in subject.provenance["chain"]} | {subject.evaluation, subject.provenance_sha256}
    known |= {file["sha256"] for file in subject.provenance["files"].values()} | {"b" * 64, "c" * 64, "d" * 64}
    known |= {hashlib.sha256(content).hexdigest() for name, content in made.items() if name.endswith(".md")}
    policies = {digest for _, digest in found["DP-07"]}  # the ledger, which the evaluation names
    assert {digest for own in found.values() for _, digest in own} <= known | policies | {DOCUMENT}
    assert {name for name, own in found.items() if not own} == NAMELESS | {"MD-01", "SLP-03", "MDL-05"}
    assert all(digest == DOCUMENT for name, own in found.items() if name in ("MD-02", "MD-03") for _, digest in own)


def test_values_are_those_of_the_evidence(declared: dict[str, bytes], subject: PaperSubject) -> None:
    found = listed(declared)
    assert {name for name, own in found.items() if not own} == NAMELESS
    assert found["MD-01"] == found["SLP-03"] == [("Example GmbH", "e" * 64)]
    assert found["MD-09"] == found["SLP-05"] == [("2026-11-21T09:30:00Z", "d" * 64)]
    weights = subject.provenance["files"]["model.safetensors"]["sha256"]
    assert found["MDL-07"] == [(f"model.safetensors: {weights}", weights)]
    assert found["MDL-13"][0] == ("DATA_CARD.md", hashlib.sha256(declared["DATA_CARD.md"]).hexdigest())
    assert {value for value, _ in found["INF-02"]} == {
        "hardware system: Linux", "hardware cpu: Zen 5, 8 threads", "hardware gpu: NVIDIA H200",
    }  # fmt: skip
    assert ("software torch: 2.13.0", subject.provenance_sha256) in found["INF-01"]
    assert b"secret-host-name" not in b"".join(declared.values())
    assert found["KPI-02"][0] == ("bits_per_byte on overall: 2.125", subject.evaluation)


def test_measurements_of_personal_data_and_of_attacks_are_stated(corpus: Context, subject: PaperSubject) -> None:
    measured = {"pii/data": {"found": 3}, "memorisation/extraction": {"share": 0.25}, "pii/outputs": {"found": 0}}
    more = [AttestedFacts(kind=kind, sha256="9" * 64, role="evaluator", facts=own) for kind, own in measured.items()]
    found = listed(papers(gather(corpus, subject.model_copy(update={"attested": (*subject.attested, *more)}))))
    assert found["DP-08"] == [("pii/data.found: 3", "9" * 64)]
    assert {value for value, _ in found["KPI-01"]} == {"memorisation/extraction.share: 0.25", "pii/outputs.found: 0"}


def test_both_formats_have_the_same_elements(declared: dict[str, bytes]) -> None:
    rows = [one for one in json.loads(declared[BOM])["properties"] if one["name"].startswith("plinth:g7:")]
    found: dict[str, list[tuple[str, str]]] = {}
    for one in rows:
        title, _, evidence = one["name"].removeprefix("plinth:g7:").partition("@")
        own = found.setdefault(title.split()[0], [])
        own += [(one["value"], evidence)] if evidence else []
        assert bool(evidence) != (one["value"] == NOT_STATED)
    wanted = listed(declared)
    for name in ("MD-03", "MD-04"):  # the format of the document itself
        assert {found.pop(name)[0][0], wanted.pop(name)[0][0]} in ({"CycloneDX", "SPDX"}, {"1.7", "3.0.1"})
    assert found == wanted


def test_the_library_of_spdx_reads_the_document(declared: dict[str, bytes], facts: PaperFacts) -> None:
    spdx, objects = model(declared)
    (document,) = objects.foreach_type(spdx.SpdxDocument)
    assert {one.rpartition("/")[2] for one in document.profileConformance} == {"core", "software", "ai"}
    (own,) = objects.foreach_type(spdx.ai_AIPackage)
    assert (own.name, own.software_packageVersion, own.suppliedBy.name) == ("judged", "3", "Example GmbH")
    assert next((one.key, one.value) for one in own.ai_metric) == ("bits_per_byte, overall", "2.125")
    texts = {one.name: one for one in objects.foreach_type(spdx.dataset_DatasetPackage)}
    assert set(texts) == {one.name for one in facts.buckets}
    assert texts["web"].verifiedUsing[0].hashValue == facts.chain["web/curated"]
    related = {
        one.relationshipType.rpartition("/")[2]: {end.name for end in one.to}
        for one in objects.foreach_type(spdx.Relationship)
    }
    assert related == {"contains": set(facts.files), "trainedOn": set(texts), "usesTool": {"plinth"}}
    assert not objects.missing_ids
    spdx.JSONLDSerializer().serialize_data(objects)  # checks types and counts of every property


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("ai_AIPackage", {"ai_colour": "red"}),
        ("ai_AIPackage", {"releaseTime": "yesterday"}),
        ("dataset_DatasetPackage", {"dataset_datasetType": ["novel"]}),
        ("Relationship", {"relationshipType": "adores"}),
    ],
)
def test_the_library_refuses_what_the_standard_does_not_know(
    declared: dict[str, bytes], kind: str, change: dict[str, Any]
) -> None:
    content = json.loads(declared[SPDX])
    next(one for one in content["@graph"] if one["type"] == kind).update(change)
    with pytest.raises((ValueError, KeyError, TypeError)):
        model({SPDX: json.dumps(content)})


def test_an_unreleased_model_claims_no_profile_that_it_lacks(corpus: Context, subject: PaperSubject) -> None:
    bare = subject.model_copy(update={"released": None, "name": "c0ffee"})
    found = papers(gather(corpus, bare))
    spdx, objects = model(found)
    (document,) = objects.foreach_type(spdx.SpdxDocument)
    assert {one.rpartition("/")[2] for one in document.profileConformance} == {"core", "software"}
    assert listed(found)["MD-09"] == [("2026-11-20T10:00:00Z", "b" * 64)]
    assert listed(found)["SLP-05"] == []


def test_without_a_time_there_is_no_spdx_document(corpus: Context, subject: PaperSubject) -> None:
    timeless = {"released_at": None, "attested": (), "provenance": {**subject.provenance, "training": {}}}
    found = papers(gather(corpus, subject.model_copy(update=timeless)))
    assert SPDX not in found
    assert "timestamp" not in json.loads(found[BOM])["metadata"]


def test_the_dates_are_those_of_signed_evidence(made: dict[str, bytes]) -> None:
    assert json.loads(made[BOM])["metadata"]["timestamp"] == "2026-11-21T09:30:00Z"
    times = set(re.findall(rb"\d{4}-\d\d-\d\dT[\d:]+Z", made[SPDX] + made[BOM]))
    assert times == {b"2026-11-21T09:30:00Z"}
