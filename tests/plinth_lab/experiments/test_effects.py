"""Effects of arms: planted ones are found, none is claimed of nothing, and no run is dropped in silence."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from plinth.errors import IntegrityError, RequestError
from plinth.evaluation.statistics import DOCUMENTS_ONLY, holm
from plinth_lab.experiments.effects import WHOLE, ArmScores, Effect, effects

DOCUMENTS = np.array([f"{i:032x}" for i in range(120)])
SLICES = np.array(["code"] * 40 + ["prose"] * 75 + ["rare"] * 5)
RNG = np.random.default_rng(0)
BYTES = np.round(np.exp(RNG.normal(7, 0.5, 120)))
TEXT = RNG.normal(1.3, 0.2, 120)


def run(arm: str, seed: int, effect: Any = 0.0, noise: float = 0.002, **changes: Any) -> ArmScores:
    """A run whose bits per byte are those of the text, plus an effect, plus training noise."""
    rng = np.random.default_rng([seed, *arm.encode()])
    bits = BYTES * (TEXT + effect + rng.normal(0, noise) + rng.normal(0, 0.01, 120))
    given = {"documents": DOCUMENTS, "slices": SLICES, "bytes": BYTES, "bits": bits, "status": "finished"}
    return ArmScores(arm=arm, seed=seed, **{"size": "4m", **given, **changes})


def lost(arm: str, seed: int, status: str, reason: str) -> ArmScores:
    return ArmScores(arm=arm, size="4m", seed=seed, status=status, reason=reason)  # type: ignore[arg-type]


def whole(lines: Sequence[Effect], arm: str) -> Effect:
    return next(line for line in lines if line.arm == arm and line.slice == WHOLE)


def test_planted_effects_are_found_and_nothing_else() -> None:
    given = {"base": 0.0, "good": -0.05, "bad": 0.04, "same": 0.0}
    lines = effects([run(arm, seed, by) for arm, by in given.items() for seed in range(4)], "base")
    found = {line.arm: line.better for line in lines if line.slice == WHOLE}
    assert found == {"good": "arm", "bad": "base", "same": ""}
    good, same = whole(lines, "good"), whole(lines, "same")
    assert good.difference is not None
    assert good.difference.low <= -0.05 <= good.difference.high
    low, high = -good.difference.high, -good.difference.low
    assert good.finding == f"better by {-good.difference.value:.3g} (95%: {low:.3g} to {high:.3g})"
    assert same.smallest is not None
    assert same.difference is not None
    bound = max(-same.difference.low, same.difference.high)
    assert same.finding == f"no difference larger than {bound:.2g} (95%; minimum detectable effect {same.smallest:.2g})"
    assert whole(lines, "bad").finding.startswith("worse by 0.0")
    assert (good.seeds, good.documents) == ((0, 1, 2, 3), 120)
    assert good.arm_value is not None
    assert good.base_value is not None
    assert good.arm_value - good.base_value == pytest.approx(good.difference.value)


def test_slices_are_measured_alone_and_small_ones_left_out() -> None:
    only_code = np.where(SLICES == "code", -0.05, 0.0)
    lines = effects([run("base", s) for s in range(3)] + [run("x", s, only_code) for s in range(3)], "base")
    assert {line.slice: line.better for line in lines} == {WHOLE: "arm", "code": "arm", "prose": ""}
    assert [line.documents for line in lines] == [120, 40, 75]


def test_p_is_corrected_for_the_arms_of_a_size() -> None:
    scores = [run(arm, s, noise=0.02, size=size) for size in ("4m", "9m") for arm in "abc" for s in range(3)]
    lines = effects(scores, "a")
    for size in ("4m", "9m"):
        own = [line for line in lines if line.size == size and line.slice == WHOLE]
        given = [line.difference.p for line in own if line.difference]
        assert [line.adjusted for line in own] == pytest.approx(holm(given).tolist())


def test_scores_are_better_when_more() -> None:
    scores = [run(arm, s, by, bytes=np.ones(120)) for arm, by in (("base", 0), ("x", 9)) for s in range(3)]
    (line, *_) = effects(scores, "base", measure="accuracy", fewer_is_better=False)
    assert (line.better, line.measure) == ("arm", "accuracy")


def test_one_seed_finds_nothing_however_large() -> None:
    (line, *_) = effects([run("base", 1), run("x", 1, -0.5)], "base")
    assert line.difference is not None
    assert DOCUMENTS_ONLY in line.difference.flags
    assert (line.better, line.adjusted) == ("", None)
    assert line.finding.startswith("too few seeds to estimate training noise; the interval covers documents only: -0.5")


def test_lost_runs_are_named_and_never_dropped() -> None:
    bad = run("torn", 1, bits=np.full(120, np.nan))
    scores = [
        *(run("base", s) for s in (1, 2, 3)), run("x", 1), run("x", 2), lost("x", 3, "failed", "disk full"),
        run("few", 1), run("few", 2), bad, lost("torn", 2, "diverged", "loss is nan at step 40"),
        lost("over", 1, "stopped", "cannot win any more"),
    ]  # fmt: skip
    lines = effects(scores, "base")
    assert whole(lines, "x").seeds == (1, 2)
    assert whole(lines, "x").lacking == ("x, seed 3: failed: disk full",)
    assert whole(lines, "few").lacking == ("few, seed 3: no run",)
    torn = whole(lines, "torn")
    assert (torn.difference, torn.better, torn.seeds) == (None, "", ())
    assert "torn, seed 1: diverged: the loss of 120 of 120 documents is not a number" in torn.finding
    assert "torn, seed 2: diverged: loss is nan at step 40" in torn.finding
    assert "over, seed 1: stopped: cannot win any more" in whole(lines, "over").finding


def test_an_arm_without_a_run_at_a_size_has_a_line_there() -> None:
    ran = (("base", "4m"), ("base", "9m"), ("x", "4m"))
    lines = effects([run(arm, s, size=size) for arm, size in ran for s in (1, 2)], "base")
    assert [(line.size, line.finding) for line in lines if not line.seeds] == [
        ("9m", "not measured: x, seed 1: no run; x, seed 2: no run")
    ]


def test_a_base_that_failed_leaves_every_arm_unmeasured() -> None:
    (line,) = effects([lost("base", 1, "failed", "no memory"), run("x", 1)], "base")
    assert line.finding == "not measured: base, seed 1: failed: no memory"


@pytest.mark.parametrize(
    "changed",
    [{"documents": DOCUMENTS[::-1]}, {"bytes": BYTES + 1}, {"slices": SLICES[::-1]}],
)
def test_other_text_is_refused_by_name(changed: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError, match="arm base, size 4m, seed 1, and arm x, size 4m, seed 2"):
        effects([run("base", 1), run("x", 2, **changed)], "base")


def test_a_run_twice_and_a_base_without_runs_are_refused() -> None:
    with pytest.raises(IntegrityError, match="has a duplicate run"):
        effects([run("base", 1), run("base", 1)], "base")
    with pytest.raises(RequestError, match="no run"):
        effects([run("x", 1)], "base")


def test_records_survive_json() -> None:
    lines = effects([run("base", 1), run("base", 2), run("x", 1), run("x", 2)], "base")
    assert [Effect.model_validate_json(line.model_dump_json()) for line in lines] == lines
