"""The demo's gates on the measurements of its run: each passes, and refuses evidence that is just past its bound.

`demo_evidence.json` is the result of `plinth_registry.evidence.gather` after a whole `plinth run -r demo`; the
policy is the demo's own. A second candidate is judged by the same evidence against an equally good champion.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plinth.recipe.load import load
from plinth_registry import policy as policies
from plinth_registry.gates import GateResult, evaluate, is_open
from plinth_registry.gates.facts import ComparisonFacts, Evidence
from tests.registry.gate_evidence import OURS, THEIRS, line, set_fact

RECORDED = json.loads(Path(__file__).with_name("demo_evidence.json").read_text())
ROOT = Path(__file__).parents[2]
POLICY = policies.load(ROOT / "jobs/plinth_jobs/policies/demo.yaml")
BUCKETS = ("code", "manuals", "prose", "web")
LINES = (
    line("slices", "bits per byte"),
    *(line("slices", "bits per byte", slice=f"bucket {bucket}") for bucket in BUCKETS),
    line("probes", "code: bits per byte"),
    *(line("tasks", f"{task}: exact_match", fewer_is_better=False) for task in ("last_word", "next_code")),
    line("fairness", "bits between groups"),
)
LINE = {one.kind: index for index, one in reversed(list(enumerate(LINES)))}
#: Gates of the first release, with the facts that fail them.
SPOILT: dict[str, list[tuple[str, object]]] = {
    "signature": [("signature/holds", False)],
    "lineage": [("lineage/holds", False)],
    "beats_trigram": [(f"measured/evaluation/slices/{bucket}/model", 3.5) for bucket in BUCKETS],
    "max_bits_per_byte": [
        ("measured/evaluation/slices/prose", {"bytes": 9, "model": 4.51, "gzip": 5.0, "trigram": 5.0})
    ],
    "contamination": [("contamination/contaminated", 1)],
    "extraction": [
        ("measured/memorisation_extraction/slices/all/at_most", 0.101),
        ("measured/memorisation_extraction", None),
    ],
    # A canary that was planted once, remembered as those are that were planted 64 times.
    "canaries": [
        ("measured/memorisation_canaries/p_values/1", RECORDED["measured"]["memorisation_canaries"]["p_values"]["64"]),
        ("measured/memorisation_canaries/epsilon", 2.91),
    ],
    "pii_data": [("measured/pii_data/at_most", 0.0201), ("measured/pii_data/slices/prose/at_most", 0.0201)],
    "pii_outputs": [
        ("measured/pii_outputs/unprompted/at_most", 0.0501),
        ("measured/pii_outputs/memorised/at_most", 0.0201),
    ],
    "licence": [("licences/documents/GPL-3.0-only", 1)],
    "terms": [("licences/sources/site-packages demo/train", False)],
    "resume": [("resume/bit_exact", False), ("resume/compared_steps", 0)],
    "stability": [("stability/events/restarts", 21)],
    "bias": [("measured/fairness/attributes/age/high", 1.01), ("measured/fairness/attributes/religion/low", -1.01)],
    "cost": [("cost/amounts/tokens", 0.0)],
    "error_budget": [("own/error_budget/0/good_s", 0.0)],
    "taint": [("taints", ["web/curated is marked by ada: poisoned"])],
    "approvals": [("approvals", [])],
}
#: Gates of the second release: the comparison with its champion.
WORSE: dict[str, list[tuple[str, object]]] = {
    "slices": [("measured/comparison/lines/0/high", 0.021), ("measured/comparison/lines/1/high", 0.201)],
    "probes": [(f"measured/comparison/lines/{LINE['probes']}/high", 0.251), ("measured/probes/probes", {})],
    "tasks": [
        (f"measured/comparison/lines/{LINE['tasks']}/low", -0.501),
        ("measured/tasks/tasks/last_word/damaged", 16),
    ],
    "bias": [(f"measured/comparison/lines/{LINE['fairness']}/high", 0.501)],
}


def second() -> dict[str, Any]:
    """Return the same measurements with a champion, for a run whose probe of code is above its noise."""
    compared = ComparisonFacts(candidate=OURS, champion=THEIRS, lines=LINES).model_dump(mode="json")
    measured = RECORDED["measured"]
    probes = measured["probes"]["probes"]
    decided = {"probes": probes | {"code": probes["code"] | {"decides": True}}}
    return RECORDED | {"champion": THEIRS, "measured": measured | {"comparison": compared, "probes": decided}}


def results(data: dict[str, Any], *spoils: tuple[str, object]) -> tuple[GateResult, ...]:
    copied = json.loads(json.dumps(data))
    for path, value in spoils:
        set_fact(copied, path, value)
    return evaluate(POLICY, Evidence.model_validate(copied))


def refused(judged: tuple[GateResult, ...]) -> list[str]:
    return [one.name for one in judged if one.blocks]


def test_the_evidence_is_of_the_packaged_recipe() -> None:
    mixture = load(ROOT / "jobs/plinth_jobs/recipes/demo.yaml").mixture
    assert mixture is not None
    assert RECORDED["cost"]["amounts"]["tokens"] == mixture.total_tokens


def test_every_gate_of_the_demo_passes_on_measurements_of_its_own() -> None:
    first, later = results(RECORDED), results(second())
    assert is_open(first)
    # Nothing to compare with, and no probe above its noise in this run.
    assert {one.name: one.state for one in first if one.state != "passed"} == {
        "slices": "not applicable", "probes": "skipped", "tasks": "not applicable"
    }  # fmt: skip
    assert {one.name: one.state for one in later if one.state != "passed"} == {}
    assert {one.name for one in first} == SPOILT.keys() | WORSE.keys()


@pytest.mark.parametrize(("name", "spoil"), [(name, one) for name, own in SPOILT.items() for one in own])
def test_spoilt_evidence_of_the_demo_closes_its_gate_alone(name: str, spoil: tuple[str, object]) -> None:
    assert refused(results(RECORDED, spoil)) == [name]


@pytest.mark.parametrize(("name", "spoil"), [(name, one) for name, own in WORSE.items() for one in own])
def test_a_candidate_worse_than_the_demos_champion_is_refused(name: str, spoil: tuple[str, object]) -> None:
    assert refused(results(second(), spoil)) == [name]


def test_the_demo_remembers_what_it_saw_often() -> None:
    """Its measure of memorization has the power to refuse: copies by the dozen are found beyond doubt."""
    remembered = RECORDED["measured"]["memorisation_canaries"]["p_values"]
    assert max(remembered["16"], remembered["64"]) < POLICY.model_dump()["canaries"]["min_p"][1] < remembered["1"]
