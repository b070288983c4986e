"""Text of a version that users see first in MLflow."""

from __future__ import annotations

from plinth_registry.gates import GateResult
from plinth_registry.registration import CARD, DESCRIPTION_CHARACTERS, scores_text, version_text

SLICES = {"all": {"bytes": 10, "model": 2.2, "gzip": 3.0, "trigram": 2.9}}
GATES = [
    GateResult(name="lineage", passed=True, reason="52 manifests"),
    GateResult(name="cost", passed=False, reason="none | <b>stated</b>"),
    GateResult(name="tasks", passed=False, reason="worse", waived="until 2027-01-01 by ada"),
]
TAGS = {
    "gates": "failed (cost); 3 gates: 1 passed, 1 waived, 1 failed",
    **{f"gate/{each.name}": each.text for each in GATES},
    "gate/probes": "not required by policy: none is measured",
    "policy": "policy 3 of demo, signed by policy",
    "root": "root acme version 2",
    "checkpoint": "ab" * 32,
}


def test_gates_stand_above_scores_and_are_written_again() -> None:
    first = scores_text("ab" * 32, SLICES)
    text = version_text(first, TAGS)
    assert text.endswith(first)
    assert text.splitlines()[:6] == [
        "## Gates: failed (cost); 3 gates: 1 passed, 1 waived, 1 failed",
        "",
        "| gate | state | evidence |",
        "|---|---|---|",
        "| cost | **failed** | none \\| &lt;b&gt;stated&lt;/b&gt; |",
        "| lineage | passed | 52 manifests |",
    ]
    assert "| tasks | waived | worse (until 2027-01-01 by ada) |" in text
    assert "probes" not in text
    assert version_text(text, TAGS) == text
    assert version_text(version_text(text, {**TAGS, "gates": "passed"}), TAGS) == text


def test_a_mark_and_a_demo_root_are_said_first_and_go_with_their_tags() -> None:
    text = version_text(scores_text("ab" * 32, SLICES), TAGS)
    marked = version_text(text, {**TAGS, "taint": "dpo: must <i>go</i>", "root": "demo root x version 1"})
    assert marked.startswith("> **TAINTED, do not use.** dpo: must &lt;i&gt;go&lt;/i&gt;\n")
    assert "`plinth release impact abababababababab`" in marked.splitlines()[1]
    assert "demo root x version 1" in marked
    assert version_text(marked, TAGS) == text


def test_a_trial_is_said_in_short_and_goes_with_its_tag() -> None:
    text = version_text(scores_text("ab" * 32, SLICES), TAGS)
    tried = version_text(text, {**TAGS, "trial": "will be withdrawn. <b>latency</b>: worse " + "x" * 900})
    assert tried.startswith("> **Canary, last check:** will be withdrawn. &lt;b&gt;latency&lt;/b&gt;: worse x")
    assert len(tried.splitlines()[0]) < 500
    assert version_text(tried, TAGS) == text


def test_it_is_never_longer_than_what_databases_keep() -> None:
    many = {f"bucket {n}": SLICES["all"] for n in range(500)}
    text = version_text(scores_text("ab" * 32, many), TAGS)
    assert len(text) <= DESCRIPTION_CHARACTERS
    assert text.splitlines()[-1].startswith("| … more")
    assert version_text(text, TAGS) == text


LINK = f"{CARD}model-card-demo-1.md` among the artifacts of the source run."
MODEL_CARD = f"{LINK}\n\n# Model card: demo/1\n\nCheckpoint.\n\n## Model\n\nSmall.\n\n## Evidence\n\n- digests"


def test_the_model_card_follows_the_scores_and_is_kept() -> None:
    scores = scores_text("ab" * 32, SLICES)
    text = version_text(scores, TAGS, MODEL_CARD)
    assert text.endswith(f"{scores}\n\n{MODEL_CARD}")
    assert text.startswith("## Gates: failed")
    assert version_text(text, TAGS) == text == version_text(text, TAGS, MODEL_CARD)
    assert version_text(text, {**TAGS, "taint": "dpo: leak"}).endswith(f"{scores}\n\n{MODEL_CARD}")
    assert version_text(text, TAGS, MODEL_CARD.replace("Small", "Large")) == text.replace("Small", "Large")


def test_a_long_model_card_ends_with_a_whole_section_and_names_its_artifact() -> None:
    scores, room = scores_text("ab" * 32, SLICES), DESCRIPTION_CHARACTERS - len(version_text("", TAGS))
    card = MODEL_CARD.replace("digests", "d" * DESCRIPTION_CHARACTERS)
    text = version_text(scores, TAGS, card)
    assert text.endswith("## Model\n\nSmall.")
    assert version_text(text, TAGS) == text
    longest = MODEL_CARD.replace("Small.", "s" * (room - len(scores) - len(MODEL_CARD) + len("Small.") - 2))
    text = version_text(scores, TAGS, longest)
    assert (len(text), text.endswith("- digests")) == (DESCRIPTION_CHARACTERS, True)
    assert version_text(scores, TAGS, longest + "d").endswith("s" * 9)
    many = {f"bucket {n}": SLICES["all"] for n in range(500)}
    text = version_text(scores_text("ab" * 32, many), TAGS, MODEL_CARD)
    assert len(text) <= DESCRIPTION_CHARACTERS
    assert text.endswith(f" | | | | |\n\n{LINK}")


def test_tags_that_somebody_broke_hide_nothing_else() -> None:
    assert version_text(scores_text("ab" * 32, SLICES), {"gate/cost": "fine"}) == scores_text("ab" * 32, SLICES)


def test_how_to_approve_is_shown_only_while_approval_is_pending() -> None:
    text = scores_text("ab" * 32, SLICES)
    assert "To approve" in version_text(text, {**TAGS, "gate/approvals": "pending: 0 of 1 approvals"})
    assert "To approve" not in version_text(text, {**TAGS, "gate/approvals": "passed: 1 of 1 approvals (ada)"})
