"""Facts for gates out of manifests: of this checkpoint, as stages write them, and none where they cannot be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.errors import ExtensionError
from plinth.evaluation import measurement, statistics
from plinth.evaluation.comparison import job
from plinth.evaluation.comparison.differences import Difference
from plinth.evaluation.engine.records import Request
from plinth.evaluation.measurement import JudgedCheckpoint, Measurement, single
from plinth.evaluation.probes.noise import worth
from plinth.records import Frozen, Manifest
from plinth.trust.dsse import COMPLIANCE
from plinth_assets.measurements import quality
from plinth_assets.measurements.quality import PiiShare
from plinth_audit.canaries import audit
from plinth_audit.canaries import job as canaries
from plinth_audit.canaries.measurement import CanaryFacts
from plinth_audit.extraction import ExtractionFacts
from plinth_audit.extraction import job as extraction
from plinth_audit.fairness import pairs as fairness_bias
from plinth_audit.fairness.measurement import BiasFacts
from plinth_audit.fairness.pairs import Pair
from plinth_audit.pii_outputs.measurement import WrittenPii
from plinth_registry import attestations, candidate, evidence
from plinth_registry.candidate import Candidate
from plinth_registry.gates.facts import ComparisonFacts, ProbeFacts, TaskFacts
from tests.catalogues import Including
from tests.registry.conftest import moved

OURS = "a" * 64
MEASURING = ("probes", "comparison", "memorisation/extraction", "memorisation/canaries", "fairness", "tasks/small")


def made(ctx: Context, asset: str, stats: dict[str, Any], checkpoint: str = OURS) -> Manifest:
    found = manifest_of(asset, stats).model_copy(update={"inputs": {"checkpoint": checkpoint}})
    ctx.refs.save(found)
    return found


def test_only_attested_measurements_of_this_checkpoint_count(ctx: Context, line: Any) -> None:
    asked, tasks = made(ctx, "probes", {"probes": {}}), made(ctx, "tasks/small", {}, checkpoint="b" * 64)
    made(ctx, "fairness", {})
    for one in (asked, tasks):
        attestations.attest_measurement(ctx, line.recipe, OURS, one)
    stated = attestations.about(ctx, OURS).valid
    assert sorted(stated) == ["probes", "tasks/small"]
    assert list(attestations.measurements_of(ctx, OURS, stated)) == ["probes"]


def test_probes_decide_by_the_noise_of_their_run(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"items": 9, "signal": {"value": 0.4}}
    found = {"probes": made(ctx, "probes", {"probes": {"maths": row, "code": {"items": 0}}})}
    looks = {"maths": worth(0.5, [1.0, 1.1, 0.9])}
    monkeypatch.setattr(quality, "worth", lambda provenance: looks if provenance else {})
    facts = attestations.measured_facts(found, JudgedCheckpoint(provenance={"training": {}}))["probes"]
    assert isinstance(facts, ProbeFacts)
    assert (facts.probes["maths"].signal, facts.probes["maths"].decides) == (0.5, True)
    assert facts.probes["maths"].snr == pytest.approx(5.0)
    assert (facts.probes["code"].items, facts.probes["code"].decides) == (0, False)
    unknown = attestations.measured_facts(found, JudgedCheckpoint())["probes"]
    assert isinstance(unknown, ProbeFacts)
    assert not unknown.probes["maths"].decides


def test_extraction_is_read_as_it_is_written() -> None:
    rows = [("all", False, "exact"), ("all", False, "other"), ("all", True, "other"), ("duplicated", False, "near")]
    table = pa.table(dict(zip(("slice", "heldout", "outcome"), map(list, zip(*rows, strict=True)), strict=True)))
    stats = extraction.summary(table, ["personal_data"])
    facts = facts_of("memorisation/extraction", stats)
    assert isinstance(facts, ExtractionFacts)
    assert {name: one.windows for name, one in facts.slices.items()} == {"all": 2, "duplicated": 1}
    assert facts.slices["all"].at_most == statistics.upper_share(1, 2, level=extraction.LEVEL)


def facts_of(asset: str, stats: dict[str, Any]) -> Frozen | None:
    """The facts of the only measurement."""
    return next(
        iter(attestations.measured_facts({asset: manifest_of(asset, stats)}, JudgedCheckpoint()).values()), None
    )


def manifest_of(asset: str, stats: dict[str, Any]) -> Manifest:
    return Manifest(asset=asset, step="s", version="1", params={}, inputs={}, parts=(), stats=stats)


def test_canaries_have_a_p_value_by_repetitions() -> None:
    rng, count = np.random.default_rng(0), 24
    bits = np.concatenate([rng.normal(100, 5, count), rng.normal(100, 5, 512)])
    repetitions = np.array([1, 64] * (count // 2) + [0] * 512)
    bits[:count][repetitions[:count] == 64] = 20.0
    given = {
        "kind": ["canary"] * count + ["reference"] * 512,
        "number": list(range(count + 512)),
        "repetitions": repetitions.tolist(),
        "planted": [number % 4 < 2 for number in range(count)] + [False] * 512,
    }
    table = canaries.table(pa.table(given), bits, np.full(bits.size, 50), {})
    stats = canaries.summary(table)
    facts = facts_of("memorisation/canaries", stats)
    assert isinstance(facts, CanaryFacts)
    own = table.filter(pa.compute.and_(table["planted"], pa.compute.equal(table["repetitions"], 64)))
    assert facts.p_values[64] == pytest.approx(audit.exposure_p_value(own["exposure"].to_numpy()), rel=1e-9)
    assert facts.p_values[64] < 1e-6 < facts.p_values[1]
    assert (facts.planted, facts.epsilon) == (stats["planted"], stats["audit"]["epsilon"])


def test_bias_is_read_as_it_is_written() -> None:
    a, b = Request("", "x"), Request("", "y")
    pairs = [Pair("built_in", str(n), "gender", str(n % 5), True, a, b) for n in range(10)]
    stats = {"attributes": fairness_bias.by_attribute(pairs, np.arange(10.0)), "toxicity": None}
    facts = facts_of("fairness", stats)
    assert isinstance(facts, BiasFacts)
    assert facts.toxicity is None
    assert facts.attributes["gender"].pairs == 10


def test_a_comparison_is_read_as_it_is_written() -> None:
    gap = statistics.paired_difference([1.0, 2.0, 4.0], [1.0, 1.0, 1.0], ["x", "y", "z"])
    written = Difference(
        kind="slices", measure="bits per byte", slice="all", fewer_is_better=True, a=gap, b=gap, difference=gap,
        adjusted=1.0, better="", smallest=None,
    )  # fmt: skip
    models = {"a": {"checkpoint": OURS}, "b": {"checkpoint": "b" * 64}}
    stats = {"models": models, "lines": [written.model_dump(mode="json")]}
    facts = facts_of("comparison", stats)
    assert isinstance(facts, ComparisonFacts)
    (line,) = facts.lines
    assert (facts.candidate, facts.champion, line.clusters) == (OURS, "b" * 64, 3)
    assert (line.worse_at_most, line.low) == (gap.high, gap.low)
    assert facts_of("comparison", dict(job.alone(manifest_of("checkpoint", {})).stats)) is None


PII = {"documents": 300, "found": 0, "at_most": 0.009, "detector": {"annotator": "pii", "version": "4"},
       "kinds": {"email": {"per_million_at_most": 9000.0}}}  # fmt: skip


def of_text(ctx: Context, line: Any, **inputs: str) -> Manifest:
    """A count of personal data, of the curated text that the inputs name."""
    none = {"documents": 0, "found": 0, "at_most": None}
    found = manifest_of("pii/data", PII | {"buckets": {"web": {**PII, "documents": 200}, "code": none}})
    found = found.model_copy(update={"inputs": {"checkpoint": line.checkpoint.digest, **inputs}})
    ctx.refs.save(found)
    return found


def test_personal_data_counts_where_all_the_text_of_the_checkpoint_was_read(
    ctx: Context, unregistered: Candidate, line: Any
) -> None:
    for text, known in (("f" * 64, False), (line.curated.digest, True)):
        found = of_text(ctx, line, **{"web/curated": text})
        attestations.attest_measurement(ctx, line.recipe, line.checkpoint.digest, found)
        facts = evidence.gather(ctx, line.recipe, unregistered, {}).measured
        assert ("pii_data" in facts) == known
    data = facts["pii_data"]
    assert isinstance(data, PiiShare)
    assert (data.texts, data.found, data.detector) == (300, 0, "pii version 4")
    assert {name: one.texts for name, one in data.slices.items()} == {"web": 200}
    assert data.per_million == {"email": 9000.0}
    assert "pii_outputs" not in facts


def test_outputs_count_where_all_the_training_text_was_searched(
    ctx: Context, unregistered: Candidate, line: Any
) -> None:
    one = {"texts": 200, "found": 3, "at_most": 0.04, "memorised": 1, "memorised_at_most": 0.02}
    stats = {"unprompted": one, "invited": {**one, "texts": 120}, "all": {**one, "texts": 320}}
    for text, known in (("f" * 64, False), (line.curated.digest, True)):
        made = manifest_of("pii/outputs", stats | {"detector": PII["detector"]})
        made = made.model_copy(update={"inputs": {"checkpoint": line.checkpoint.digest, "web/curated": text}})
        ctx.refs.save(made)
        assert attestations.attest_measurement(ctx, line.recipe, line.checkpoint.digest, made).kind == "measurement"
        facts = evidence.gather(ctx, line.recipe, unregistered, {}).measured
        assert ("pii_outputs" in facts) == known
    outputs = facts["pii_outputs"]
    assert isinstance(outputs, WrittenPii)
    assert (outputs.unprompted.found, outputs.invited.texts, "pii_data" in facts) == (3, 120, False)
    assert (outputs.memorised.texts, outputs.memorised.found) == (320, 1)
    assert outputs.memorised.at_most == 0.02


def test_only_compliance_states_what_is_left_in_training_text(ctx: Context, line: Any) -> None:
    made, checkpoint = of_text(ctx, line), line.checkpoint.digest
    attestations.attest(
        ctx, line.recipe, "measurement", made.asset, checkpoint, materials={made.asset: made.digest, **made.inputs}
    )
    assert list(attestations.measurements_of(ctx, checkpoint, attestations.about(ctx, checkpoint).valid)) == [
        "evaluation"
    ]
    assert not attestations.is_attested(ctx, checkpoint, made)
    assert attestations.attest_measurement(ctx, line.recipe, checkpoint, made).kind == "personal_data"
    assert attestations.KINDS["personal_data"] == COMPLIANCE
    assert attestations.is_attested(ctx, checkpoint, made)
    assert set(attestations.measurements_of(ctx, checkpoint, attestations.about(ctx, checkpoint).valid)) == {
        "evaluation",
        "pii/data",
    }


@pytest.mark.parametrize("stats", [{}, {"slices": {}, "tasks": 3, "lines": [], "probes": {"x": {}}}, {"attributes": 1}])
def test_numbers_that_cannot_be_read_are_no_evidence(stats: dict[str, Any]) -> None:
    found = {name: manifest_of(name, stats) for name in MEASURING}
    facts = attestations.measured_facts(found, JudgedCheckpoint())
    assert not [one for one in facts.values() if one != ExtractionFacts(slices={})]  # which opens no gate either


class Length(Frozen):
    """Facts of the measurement of these tests."""

    words: int


def test_a_measurement_of_another_package_is_evidence_and_counted_again(
    ctx: Context, unregistered: Candidate, line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Measurement(
        name="length", description="Words.", asset="length", stages=lambda recipe: (), facts=Length,
        read=single(lambda stats: Length(words=stats["words"])),
        recount=lambda ctx, made, found: ({"words": made.stats["words"]}, {"words": 3}),
    )  # fmt: skip
    monkeypatch.setattr(measurement, "MEASUREMENTS", Including(measurement.MEASUREMENTS, own))
    for words, wrong in ((3, {}), (4, {"length": ("length: words: stated 4, recomputed 3",)})):
        found = made(ctx, "length", {"words": words}, checkpoint=line.checkpoint.digest)
        attestations.attest_measurement(ctx, line.recipe, line.checkpoint.digest, found)
        gathered = evidence.gather(ctx, line.recipe, unregistered, {})
        assert gathered.of("length", Length) == Length(words=words)
        assert gathered.miscounted == wrong


def test_a_name_that_is_not_the_assets_is_refused() -> None:
    with pytest.raises(ValueError, match="must be named after its asset"):
        Measurement(name="words", description="Words.", asset="text/words", stages=lambda recipe: ())


def test_one_that_raises_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Measurement(
        name="length", description="Words.", asset="length", stages=lambda recipe: (), facts=Length,
        read=single(lambda stats: Length(words=1 // 0)),
    )  # fmt: skip
    monkeypatch.setattr(measurement, "MEASUREMENTS", Including(measurement.MEASUREMENTS, own))
    assert facts_of("length", {}) is None


def test_one_that_cannot_be_used_is_no_evidence_and_its_manifest_still_marked(
    ctx: Context, line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Including):
        def _member(self, name: str) -> Any:
            if name == "length":
                raise ExtensionError("the measurement 'length' cannot be imported")
            return super()._member(name)

    own = Measurement(name="length", description="Words.", asset="length", stages=lambda recipe: ())
    asked, other = made(ctx, "probes", {"probes": {}}), made(ctx, "length", {})
    for one in (asked, other):
        attestations.attest_measurement(ctx, line.recipe, OURS, one)
    published = made(ctx, "length", {"words": 1})
    ctx.refs.publish(published, "key")
    monkeypatch.setattr(measurement, "MEASUREMENTS", Broken(measurement.MEASUREMENTS, own))
    assert list(attestations.measurements_of(ctx, OURS, attestations.about(ctx, OURS).valid)) == ["probes"]
    assert set(candidate.evidence_of(ctx, OURS)) == {one.digest for one in (asked, other, published)}


def test_no_package_takes_a_member_of_a_family_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Measurement(name="tasks_small", description="Words.", asset="tasks/small", stages=lambda recipe: ())
    monkeypatch.setattr(measurement, "MEASUREMENTS", Including(measurement.MEASUREMENTS, own))
    found = facts_of("tasks/small", {"tasks": {"copying": {"documents": 3, "damaged": 0}}})
    assert isinstance(found, TaskFacts)


def test_a_measurement_of_another_package_is_made_where_a_recipe_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not looked at where none does: no code of a package runs because the package is installed."""
    own = Measurement(name="length", description="Words.", asset="length", stages=lambda recipe: ())
    monkeypatch.setattr(measurement, "MEASUREMENTS", Including(measurement.MEASUREMENTS, own))
    for asked, further in (({}, []), ({"length": {}}, [own])):
        recipe = SimpleNamespace(evaluation=SimpleNamespace(extensions=asked))
        found = list(measurement.measurements(recipe))
        assert found[len(measurement.MEASUREMENTS.built_in) :] == further


# ---- the champion, by the signed history ---------------------------------------------------------


def recorded(ctx: Context, action: str, version: str | None, checkpoint: str, previous: str | None = None) -> None:
    moved(ctx, action, version, dict.fromkeys(("candidate", "checkpoint", "evaluation"), checkpoint), previous)


def test_the_champion_follows_from_the_signed_history_alone(ctx: Context) -> None:
    first, second = "1" * 64, "2" * 64
    assert evidence.champion(ctx, "demo", OURS) == ""
    recorded(ctx, "canary", "1", first)
    assert evidence.champion(ctx, "demo", OURS) == ""
    recorded(ctx, "champion", "1", first)
    assert evidence.champion(ctx, "demo", OURS) == first
    assert evidence.champion(ctx, "demo", first) == ""  # nothing is compared with itself
    recorded(ctx, "champion", "2", second, "1")
    assert evidence.champion(ctx, "demo", OURS) == second
    assert evidence.champion(ctx, "demo", second) == first
    assert evidence.champion(ctx, "other", OURS) == ""
    recorded(ctx, "rollback", "1", first, "2")
    assert evidence.champion(ctx, "demo", OURS) == first


def test_terms_and_licences_come_from_the_signed_facts(ctx: Context, unregistered: Candidate, line: Any) -> None:
    found = evidence.gather(ctx, line.recipe, unregistered, {})
    assert found.licences is not None
    (source,) = found.licences.sources.values()
    assert (source.documents, source.train, source.commercial) == (2, True, True)
    assert (found.champion, list(found.measured)) == ("", ["evaluation"])
    assert found.resume is not None
    assert (found.resume.bit_exact, found.resume.compared_steps) == (True, 3)
