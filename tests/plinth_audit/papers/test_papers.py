"""Papers: each statement names signed evidence, the same evidence gives the same bytes, other programs read them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from plinth.compute.context import Context, manifest
from plinth.errors import LineageError, PlinthError
from plinth.records import Step
from plinth_audit.papers.bom import BOM
from plinth_audit.papers.cards import DATA_CARD, MODEL_CARD
from plinth_audit.papers.documentation import MODEL_DOCUMENTATION
from plinth_audit.papers.facts import PaperFacts
from plinth_audit.papers.gather import PaperSubject, _buckets, gather
from plinth_audit.papers.provider import SUBJECTS, TRAINING_SUMMARY, size_range
from plinth_audit.papers.signed import papers
from plinth_registry.exports.models import UNRELEASED
from tests.plinth_audit.papers.conftest import APPROVED, child_of, subject_of

PAGES = (MODEL_CARD, DATA_CARD, TRAINING_SUMMARY, MODEL_DOCUMENTATION)
#: Fields of the provider declaration in the summary of training content.
SUMMARY = tuple(SUBJECTS)[: tuple(SUBJECTS).index("other") + 1]
#: Pages that list replayed text with the checkpoint of its model.
REPLAYED = (MODEL_CARD, DATA_CARD, TRAINING_SUMMARY)


@pytest.fixture(scope="module")
def made(facts: PaperFacts) -> dict[str, bytes]:
    return papers(facts)


def test_the_same_evidence_gives_the_same_bytes(corpus: Context, made: dict[str, bytes]) -> None:
    assert papers(gather(corpus, subject_of(corpus))) == made
    assert set(made) == {*PAGES, "bom.cdx.json", "sbom.spdx.json"}


@pytest.mark.parametrize("name", PAGES)
def test_every_row_names_evidence_of_the_signed_chain(
    made: dict[str, bytes], facts: PaperFacts, subject: PaperSubject, name: str
) -> None:
    page = made[name].decode()
    body, _, listed = page.partition("## Evidence")
    rows = [line for line in body.splitlines() if line.startswith("| ") and not line.endswith("| evidence |")]
    named = {re.search(r"`([0-9a-f]{12})` \|$", row).group(1) for row in rows}  # type: ignore[union-attr]
    items = re.findall(r"^- `([0-9a-f]{64})` (\w+)", listed, re.MULTILINE)
    assert {digest[:12] for digest, _ in items} == named
    known = {link["digest"] for link in subject.provenance["chain"]}
    known |= {file["sha256"] for file in subject.provenance["files"].values()}
    known |= {one.sha256 for one in facts.evidence if one.kind == "attestation"}
    evaluation = subject.evaluation
    outside = {digest for digest, _ in items} - known - {evaluation}
    # The digest proves the inputs of the evaluation: the ledger, and the policies that the ledger names.
    assert outside <= {one.sha256 for one in facts.evidence if one.name == "ledger" or one.name.endswith("/policy")}
    assert len(rows) > 8


def test_hub_reads_the_cards(made: dict[str, bytes]) -> None:
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard(made[MODEL_CARD].decode())
    assert card.data.model_name == "judged/3"
    (overall, *slices) = card.data.eval_results
    assert (overall.dataset_config, overall.metric_type, overall.metric_value) == ("overall", "bits_per_byte", 2.125)
    assert overall.metric_args == {"low": 2.0, "high": 2.25, "n": 12}
    assert {one.dataset_config for one in slices} == {"web", "prose"}
    assert card.data.tags == ["plinth", "released"]
    data = hub.DatasetCard(made[DATA_CARD].decode()).data
    assert (data.license, data.size_categories) == ("mit", ["n<1K"])


def test_the_bill_of_materials_is_strictly_valid(made: dict[str, bytes], facts: PaperFacts) -> None:
    json_validation = pytest.importorskip("cyclonedx.validation.json")
    schema = pytest.importorskip("cyclonedx.schema")
    validator = json_validation.JsonStrictValidator(schema.SchemaVersion.V1_7)
    assert validator.validate_str(made[BOM].decode()) is None
    content = json.loads(made[BOM])
    hashes = {one["bom-ref"]: one["hashes"][0]["content"] for one in content["components"]}
    assert {hashes[f"file:{name}"] for name in facts.files} == set(facts.files.values())
    assert hashes["text:web"] == facts.chain["web/curated"]
    metric = content["metadata"]["component"]["modelCard"]["quantitativeAnalysis"]["performanceMetrics"][0]
    assert metric["confidenceInterval"] == {"lowerBound": "2", "upperBound": "2.25"}
    broken = content | {"colour": "red"}
    assert validator.validate_str(json.dumps(broken)) is not None


def test_text_from_outside_cannot_change_a_page(made: dict[str, bytes]) -> None:
    page = made[MODEL_CARD].decode()
    row = next(line for line in page.splitlines() if "Good" in line)
    assert "\x1b" not in page
    assert "Good \\| enough \\[31m &lt;b&gt;now&lt;/b&gt;" in row
    assert f"`{APPROVED}` attestation: approval (anna@example.org)" in page


def test_an_unreleased_model_says_so_everywhere(corpus: Context, subject: PaperSubject) -> None:
    made = papers(gather(corpus, subject.model_copy(update={"released": None, "name": "c0ffee"})))
    assert f"**{UNRELEASED}**" in made[MODEL_CARD].decode()
    assert yaml.safe_load(made[MODEL_CARD].decode().split("---")[1])["tags"] == ["plinth", UNRELEASED]
    properties = json.loads(made[BOM])["metadata"]["component"]["properties"]
    assert {"name": "plinth:release", "value": UNRELEASED} in properties


def test_what_nobody_signed_is_not_stated(corpus: Context, subject: PaperSubject) -> None:
    bare = gather(corpus, subject.model_copy(update={"evaluation": None, "attested": (), "said": ()}))
    page = papers(bare)[TRAINING_SUMMARY].decode()
    for field in SUMMARY:
        assert f"- {SUBJECTS[field]}: not stated" in page
    assert "Domains: not stated." in page
    assert (bare.scores, bare.trained) == ((), None)


def test_the_summary_has_every_section_of_the_template(facts: PaperFacts) -> None:
    crawled = [one.model_copy(update={"kind": "warc"}) for one in facts.sources if one.bucket == "web"]
    table = facts.trained and facts.trained.model_copy(update={"crawled": facts.trained.all})
    page = papers(facts.model_copy(update={"sources": (*facts.sources[:1], *crawled), "trained": table}))
    lines = page[TRAINING_SUMMARY].decode().splitlines()
    sections = [line.split()[1].rstrip(".") for line in lines if line.startswith(("## ", "### "))]
    assert sections[:-1] == ["1", "1.1", "1.2", "1.3", "2", *(f"2.{n}" for n in range(1, 7)), "3", "3.1", "3.2", "3.3"]
    listed = {title: lines[lines.index(title) + 4] for title in lines if title.startswith("### 2.") and "Data" in title}
    assert listed["### 2.3 Data crawled from the web"].startswith("| web | a.example | 2026-46 | warc |")
    assert any(line.startswith("| size | less than 1 billion tokens |") for line in lines)
    assert any(line.startswith("| permitted licences, web | CC0-1.0, MIT |") for line in lines)
    kept = [line for line in lines if line.startswith("| licenses of the documents that the policy keeps, web |")]
    assert [line.split(" | ")[1] for line in kept] == ["MIT: 36"]
    assert "None of the declared sources." in lines


def test_another_score_is_another_card(corpus: Context, made: dict[str, bytes]) -> None:
    other = papers(gather(corpus, subject_of(corpus, model=2.25)))
    assert other[MODEL_CARD] != made[MODEL_CARD]
    assert "| web | 2.25 |" in other[MODEL_CARD].decode()


@pytest.mark.parametrize("packing", ["concatenate", "best-fit"])
def test_replayed_text_has_rows_of_its_own(corpus: Context, packing: str) -> None:
    """Forty sequences, ten of them the parent's: as its mixture had them, with their sources, of its checkpoint."""
    child = child_of(corpus, packing)
    facts = gather(corpus, child)
    assert [(one.name, one.seen_tokens) for one in facts.buckets] == [("prose", None), ("web", 480)]  # tokenizer alone
    assert [(one.name, one.seen_tokens, one.share) for one in facts.replayed] == [
        ("replay-prose", 48, 0.075),
        ("replay-web", 112, 0.175),
    ]
    (parent,) = [one["inputs"]["checkpoint"] for one in child.provenance["chain"] if one["asset"] == "initial"]
    assert "books/curated" in facts.chain  # behind the parent, and no text of this run
    links = {link["digest"]: link["asset"] for link in child.provenance["chain"]}
    assert {one.parent for one in facts.replayed} == {parent}
    assert {links[one.evidence] for one in facts.replayed} == {"replay-prose/shards", "replay-web/shards"}
    assert {one.bucket for one in facts.sources} == {"web", "prose", "replay-web", "replay-prose"}
    (begun,) = [one for one in facts.run if one.name == "initial"]
    assert (begun.value, links[begun.evidence]) == (f"checkpoint {parent}", "initial")
    made = papers(facts)
    row = rf"\| replay-web \| {parent} \| [\d,]+ \| 112 \| 0.175 \| "
    assert all(re.search(row, made[name].decode()) for name in REPLAYED)
    content = json.loads(made[BOM])
    (data,) = [one for one in content["components"] if one["bom-ref"] == "text:replay-web"]
    said = {one["name"]: one["value"] for one in data["data"][0]["contents"]["properties"]}
    assert (said["plinth:replayed of checkpoint"], said["plinth:seen_tokens"]) == (parent, "112")
    assert {"ref": "text:replay-web"} in content["metadata"]["component"]["modelCard"]["modelParameters"]["datasets"]
    json_validation, schema = (pytest.importorskip(f"cyclonedx.{name}") for name in ("validation.json", "schema"))
    assert json_validation.JsonStrictValidator(schema.SchemaVersion.V1_7).validate_str(made[BOM].decode()) is None


def test_evidence_about_something_else_is_refused(corpus: Context, subject: PaperSubject) -> None:
    with pytest.raises(LineageError, match="belongs to another checkpoint"):
        gather(corpus, _for(subject, "0" * 64))
    absent: Any = [link | {"digest": "0" * 64} for link in subject.provenance["chain"]]
    with pytest.raises(PlinthError, match="0" * 12):
        gather(corpus, subject.model_copy(update={"provenance": {**subject.provenance, "chain": absent}}))


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (10**9 - 1, "less than 1 billion tokens"),
        (10**9, "1 billion to 10 trillion tokens"),
        (10**13, "more than 10 trillion tokens"),
    ],
)
def test_sizes_are_ranges(tokens: int, words: str) -> None:
    assert size_range(tokens) == words


def _for(subject: PaperSubject, checkpoint: str) -> PaperSubject:
    other = {**subject.provenance, "checkpoint": {"asset": "checkpoint", "digest": checkpoint}}
    return subject.model_copy(update={"provenance": other})


def test_text_that_was_generated_is_a_bucket_too() -> None:
    """The tokens of all buckets are those of the run, so canaries are listed, although nobody read them."""
    step = Step(name="x", version="1")
    made = {
        "canaries/curated": manifest("canaries/curated", step, {}, [], {"documents": 3, "text_bytes": 9}),
        "mixture": manifest(
            "mixture", step, {}, [], {"sequence_tokens": 8, "buckets": {"canaries": {"needed": 2, "sequences": 2}}}
        ),
    }
    (found,) = _buckets(made)
    assert (found.name, found.documents, found.curated, found.seen_tokens, found.epochs) == ("canaries", 3, 3, 16, 1.0)
