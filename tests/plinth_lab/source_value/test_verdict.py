"""The verdict on a source follows from intervals; what gains nothing is hardly ever bought."""

from __future__ import annotations

import numpy as np
import pytest

from plinth.errors import IntegrityError
from plinth.evaluation import statistics
from plinth_lab.experiments.effects import ArmScores
from plinth_lab.source_value.question import WITH, WITHOUT, SourceQuestion
from plinth_lab.source_value.verdict import BUY, DO_NOT_BUY, NOT_DECIDED, SourceChange, SourceVerdict, verdict

DOCUMENTS = 40
USES = ("proxy", "anneal")
SAMPLE = {
    "refusal": "",
    "effective": {
        "factors": {"nominal_tokens": 1e6, "rho_parse": 1.0, "rho_quality": 0.5, "r_dup": 0.0},
        "tokens": {"value": 5e5, "low": 4e5, "high": 6e5},
    },
}


def question(**given: object) -> SourceQuestion:
    terms = {"train": True, "redistribute": False, "commercial": False}
    described = {"kind": "jsonl", "path": "x.jsonl", "licence": "MIT", "terms": terms, "domain": "d", "snapshot": "s"}
    anneal = {"checkpoint": "run:1", "tokens": 10, "share": 0.5}
    return SourceQuestion.model_validate(described | {"price": 1000, "share": 0.2, "anneal": anneal} | given)


def runs(picks: np.random.Generator, gains: dict[str, float], seeds: int = 3, noise: float = 0.01) -> list[ArmScores]:
    """Both arms at each use: bits per byte that the source gains, noise of trainings, and of documents."""
    weights = np.exp(picks.normal(6, 0.7, DOCUMENTS)).round() + 20
    names = np.array([f"{at:032x}" for at in range(DOCUMENTS)])
    found = []
    for use, gain in gains.items():
        taste = picks.normal(0, 0.03, DOCUMENTS)  # documents that the source helps more than others
        for seed in range(1, seeds + 1):
            plain = weights * (2.5 + picks.normal(0, 0.2, DOCUMENTS)) + weights * picks.normal(0, noise)
            ours = plain - weights * (gain + taste + picks.normal(0, noise) + picks.normal(0, 0.02, DOCUMENTS))
            for arm, bits in ((WITHOUT, plain), (WITH, ours)):
                found.append(
                    ArmScores(arm=arm, size=use, seed=seed, status="finished", documents=names, bytes=weights,
                              slices=np.full(DOCUMENTS, "test"), bits=bits)
                )  # fmt: skip
    return found


def asked(gains: dict[str, float], least: float = 0.0, seeds: int = 3, **given: object) -> SourceVerdict:
    scores = runs(np.random.default_rng(4), gains, seeds)
    return verdict(question(least_gain=least), tuple(gains), SAMPLE, scores, **given)  # type: ignore[arg-type]


def change(**given: object) -> SourceChange:
    found = statistics.paired_difference([1.0, 1.1, 1.2, 1.4], [0.0, 0.2, 0.1, 0.3])
    line = {"use": "proxy", "kind": "fairness", "measure": "toxicity", "fewer_is_better": True, "seeds": 3, "items": 4}
    return SourceChange.model_validate(line | {"change": found} | given)


def test_a_gain_at_one_use_is_bought() -> None:
    found = asked({"proxy": 0.3, "anneal": 0.0})
    assert found.verdict == BUY
    assert found.reason.startswith("proxy: +0.")
    assert found.level == 0.975
    proxy, anneal = found.gains
    assert proxy.gain is not None
    assert proxy.gain.level == 0.975
    assert proxy.with_source is not None
    assert proxy.without_source is not None
    assert proxy.without_source - proxy.with_source == pytest.approx(proxy.gain.value)
    assert proxy.per_bit is not None
    assert proxy.per_bit.value == 1000 / proxy.gain.value
    assert (proxy.per_bit.low, proxy.per_bit.high) == (1000 / proxy.gain.high, 1000 / proxy.gain.low)
    assert anneal.per_bit is None
    assert anneal.smallest is not None
    assert anneal.smallest > 0
    assert found.share == {"proxy": 0.2, "anneal": 0.5}
    assert found.tokens.per_token.value == 1000 / 5e5


def test_the_interval_of_one_use_is_at_95_percent() -> None:
    assert asked({"proxy": 0.3}).level == pytest.approx(0.95)


def test_harm_at_every_use_is_not_bought() -> None:
    assert asked({"proxy": -0.3, "anneal": -0.2}).verdict == DO_NOT_BUY
    assert asked({"proxy": -0.3, "anneal": 0.0}).verdict == NOT_DECIDED


def test_a_gain_below_what_the_price_asks_for_is_not_bought() -> None:
    assert asked({"proxy": 0.3}, least=0.1).verdict == BUY
    found = asked({"proxy": 0.3}, least=0.6)
    assert found.verdict == DO_NOT_BUY
    assert "no use gains more than 0.6" in found.reason
    assert asked({"proxy": 0.3}, least=0.3).verdict == NOT_DECIDED


def test_nothing_is_decided_where_the_interval_holds_the_bound() -> None:
    found = asked({"proxy": 0.0})
    assert found.verdict == NOT_DECIDED
    assert "minimum detectable effect" in found.reason


def test_one_seed_decides_nothing() -> None:
    found = asked({"proxy": 0.9}, seeds=1)
    assert (found.verdict, found.gains[0].per_bit) == (NOT_DECIDED, None)
    assert "too few seeds" in found.reason


def test_one_document_decides_nothing_and_the_reason_is_not_the_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "DOCUMENTS", 1)
    found = asked({"proxy": 0.9})
    assert found.verdict == NOT_DECIDED
    assert found.reason.startswith("proxy: only 1 test documents are left")


def test_what_got_worse_is_left_to_a_person() -> None:
    assert asked({"proxy": 0.3}, changes=[change()]).verdict == BUY
    found = asked({"proxy": 0.3}, changes=[change(worse=True)])
    assert found.verdict == NOT_DECIDED
    assert "a person must weigh what got worse: toxicity (proxy)" in found.reason
    assert asked({"proxy": -0.3}, changes=[change(worse=True)]).verdict == DO_NOT_BUY


def test_runs_that_failed_are_named() -> None:
    scores = runs(np.random.default_rng(4), {"proxy": 0.3, "anneal": 0.3})
    lost = [one if one.arm == WITHOUT or one.size == "anneal" else
            ArmScores(one.arm, one.size, one.seed, "failed", "out of text") for one in scores]  # fmt: skip
    found = verdict(question(), USES, SAMPLE, lost)
    assert found.verdict == BUY
    assert found.gains[0].gain is None
    assert found.gains[0].lacking == tuple(f"with, seed {seed}: failed: out of text" for seed in (1, 2, 3))
    alone = verdict(question(), ("proxy",), SAMPLE, [one for one in lost if one.size == "proxy"])
    assert (alone.verdict, alone.level) == (NOT_DECIDED, 0.95)
    assert alone.reason.startswith("proxy: not measured: with, seed 1: failed: out of text")


def test_a_loss_that_is_no_number_is_named() -> None:
    scores = runs(np.random.default_rng(4), {"proxy": 0.3})
    bits = scores[1].bits.copy()
    bits[3] = np.nan
    broken = [scores[0], ArmScores(scores[1].arm, "proxy", 1, "finished", documents=scores[1].documents,
              slices=scores[1].slices, bytes=scores[1].bytes, bits=bits), *scores[2:]]  # fmt: skip
    found = verdict(question(), ("proxy",), SAMPLE, broken)
    assert found.gains[0].seeds == (2, 3)
    assert "not a number" in found.gains[0].lacking[0]


def test_a_sample_that_answers_is_the_verdict() -> None:
    stopped = [ArmScores(arm, "proxy", 1, "stopped", "nothing new") for arm in (WITHOUT, WITH)]
    found = verdict(question(), ("proxy",), {**SAMPLE, "refusal": "at most 3 tokens are new"}, stopped)
    assert (found.verdict, found.reason) == (DO_NOT_BUY, "at most 3 tokens are new")


def test_runs_scored_on_other_text_are_refused() -> None:
    scores = runs(np.random.default_rng(4), {"proxy": 0.3})
    other = runs(np.random.default_rng(5), {"proxy": 0.3})
    with pytest.raises(IntegrityError, match="scored on different text"):
        verdict(question(), ("proxy",), SAMPLE, [scores[0], *other[1:]])


def bought(experiments: int, gain: float, noise: float) -> float:
    """Share of experiments at two uses that buy."""
    picks, found = np.random.default_rng(11), 0
    for _ in range(experiments):
        scores = runs(picks, dict.fromkeys(USES, gain), noise=noise)
        found += verdict(question(), USES, SAMPLE, scores).verdict == BUY
    return found / experiments


@pytest.mark.exhaustive
@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_a_source_that_gains_nothing_is_bought_in_at_most_5_percent(noise: float) -> None:
    """The limit for 1,000 experiments is 5% plus two standard errors, where trainings or documents vary most."""
    assert bought(1000, 0.0, noise) <= 0.05 + 2 * (0.05 * 0.95 / 1000) ** 0.5


@pytest.mark.exhaustive
def test_a_source_that_gains_is_bought() -> None:
    assert bought(100, 0.2, 0.02) > 0.95
