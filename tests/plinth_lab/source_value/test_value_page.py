"""The section of a source on the page of its experiment."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from plinth_lab.experiments.effects import effects
from plinth_lab.experiments.page import page
from plinth_lab.source_value.question import WITHOUT
from plinth_lab.source_value.verdict import NOT_DECIDED, SourceVerdict, verdict
from tests.plinth_lab.source_value.test_verdict import SAMPLE, change, question, runs

ENDS = {"value": 0.5, "low": 0.4, "high": 0.6}
FOUND = {
    **SAMPLE,
    "sample": {"documents": 200},
    "acceptance": {"parsed": 0.9} | dict.fromkeys(
        ("kept", "duplicates_of_corpus", "duplicates_in_itself", "accepted_bytes"), ENDS
    ),
    "density": {"new_ngrams": ENDS, "new_ngrams_of_held_out": ENDS},
    "tokenizer": {"bytes_per_token": {"value": 3.5, "low": 3.4, "high": 3.6}, "corpus": 4.0},
}  # fmt: skip


def drawn(least: float, **given: Any) -> tuple[SourceVerdict, str]:
    scores = runs(np.random.default_rng(4), {"proxy": 0.3, "anneal": 0.01})
    asked = question(least_gain=least, currency="EUR")
    found = verdict(asked, ("proxy", "anneal"), FOUND, scores, [change(**given)], ["probes: the recipe has none"])
    made = page("forum", "Is the forum worth its price?", "bits per byte", WITHOUT, {"without": {}, "with": {"a": 1}},
                scores, effects(scores, WITHOUT), value=(found, FOUND))  # fmt: skip
    return found, made


def test_verdict_gains_changes_prices_and_sample() -> None:
    found, made = drawn(0.0)
    text = re.sub(r"\s+", " ", re.sub(r"<(style|svg).*?</\1>|<[^>]+>", " ", made, flags=re.S))
    assert "Verdict: buy" in text
    assert found.reason in text
    proxy = found.gains[0]
    assert proxy.gain is not None
    assert f"{proxy.gain.value:+.3g} ({proxy.gain.low:+.3g} to {proxy.gain.high:+.3g})" in text
    assert "confidence level of 97.5%" in text
    assert "2,000 EUR (1,667 to 2,500)" in text  # of a million tokens: 1000 / 0.5, 0.6 and 0.4 million
    assert "0 of 1 measures" in text
    assert "Not measured: probes: the recipe has none." in text
    assert "1 M nominal tokens × 1.000 (fraction parsed) × 0.500 (fraction kept) × " in text
    assert "× 1.000 (fraction not duplicated)" in text
    assert "50.0% (40.0% to 60.0%)" in text
    assert re.search(r"<(script|link|img)\b|https?://(?!www\.w3\.org)", made) is None


def test_what_got_worse_and_the_least_gain() -> None:
    found, made = drawn(0.05, worse=True)
    assert found.verdict == NOT_DECIDED
    assert 'Verdict: <span class="">not decided</span>' in made
    assert "a person must weigh what got worse: toxicity (proxy)" in made
    assert '<div class="value">1</div><div class="note">of 1 measures</div>' in made
    assert drawn(0.0)[1].count("<svg") == made.count("<svg") == 2


def test_the_same_bytes() -> None:
    assert drawn(0.0)[1] == drawn(0.0)[1]
