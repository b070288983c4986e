"""Evidence of resume is judged by the data that it lists, not by its own conclusions."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from plinth.training.forensics.proof import COMPARED, FACTOR, GENERATORS, MEASURED, PARAMETERS, examined, relative

DIGEST = "d" * 64


def evidence() -> dict[str, Any]:
    nothing: dict[str, Any] = {"original": [], "replayed": []}
    state = {PARAMETERS: {"original": DIGEST, "replayed": DIGEST}, "monitor": {"equal": True}}
    return {
        "bit_exact": True,
        "from_step": 2,
        "to_step": 5,
        "skipped_steps": {"original": [4], "replayed": [4]},
        "interventions": nothing,
        "steps": [{"step": step} | {name: {"original": 1, "replayed": 1} for name in COMPARED} for step in (3, 5)],
        "commits": [{"step": 5, "parts": state}],
    }


def test_an_equal_replay_of_this_checkpoint_is_a_proof() -> None:
    found = examined(evidence(), step=5, parameters_sha256=DIGEST)
    assert (found.bit_exact, found.compared_steps, found.faults) == (True, 2, ())


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("steps", 1, "loss", "replayed"), 2, "step 5: loss differ"),
        (("steps", 0, "batch", "original"), 2, "step 3: batch differ"),
        (("commits", 0, "parts", "monitor", "equal"), False, "state at step 5: monitor differ"),
        (("commits", 0, "parts", PARAMETERS, "original"), "e" * 64, "differ"),
        (("commits", 0, "parts", PARAMETERS), {"original": "e" * 64, "replayed": "e" * 64}, "other parameters"),
        (("skipped_steps", "replayed"), [], "skipped steps differ"),
        (("interventions", "replayed"), [1], "interventions differ"),
        (("from_step",), 0, "instead of all steps from"),
        (("to_step",), 6, "instead of all steps from"),
        (("steps",), [], "instead of all steps from"),
        (("commits",), [], "lists no replay"),
        (("steps",), None, "lists no replay"),
    ],
)
def test_one_changed_fact_and_it_proves_nothing(path: tuple[Any, ...], value: Any, fault: str) -> None:
    changed = copy.deepcopy(evidence())
    target: Any = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    found = examined(changed, step=5, parameters_sha256=DIGEST)
    assert not found.bit_exact
    assert any(fault in each for each in found.faults)


def test_another_checkpoint_is_not_proved() -> None:
    assert not examined(evidence(), step=5, parameters_sha256="e" * 64).bit_exact
    assert not examined(evidence(), step=6, parameters_sha256=DIGEST).bit_exact


@pytest.mark.parametrize("content", [{}, {"bit_exact": True, "compared_steps": 9}, {"steps": 3}])
def test_a_sentence_alone_proves_nothing(content: dict[str, Any]) -> None:
    found = examined(content, step=5, parameters_sha256=DIGEST)
    assert (found.bit_exact, found.compared_steps) == (False, 0)


OTHER = "e" * 64


def close(difference: float = 4e-6, spread: float = 1e-6) -> dict[str, Any]:
    """Evidence of kernels that are apart: loss and state differ, and two replays differ by `spread`."""
    found = evidence()
    found["steps"] = [copy.deepcopy(row) for row in found["steps"]]
    for row in found["steps"]:
        for name in MEASURED:
            row[name] = {"original": 1.0 + difference, "replayed": 1.0, "repeated": 1.0 + spread}
    guard = {"losses": [1.0 + difference], "rollbacks": [{"window": [3, 3], "value": "9.5"}]}
    now = {"losses": [1.0], "rollbacks": [{"window": [3, 3], "value": "9.25"}]}
    found["commits"][0]["parts"] = {
        PARAMETERS: {"original": DIGEST, "replayed": OTHER},
        GENERATORS: {"original": ["g"], "replayed": ["g"]},
        "monitor": {"equal": False, "original": {"guard": guard}, "replayed": {"guard": now}},
    }
    found["tolerance"] = {
        "method": "twice",
        "factor": 1e9,  # its own factor is ignored
        "hardware": ["a GPU"],
        "state": {"original": difference, "repeated": spread},
    }
    return found


def test_a_difference_within_the_measured_bound_is_a_proof_of_its_class() -> None:
    found = examined(close(), step=5, parameters_sha256=DIGEST)
    assert not found.bit_exact
    assert found.classes == ("measured",)
    assert found.tolerance is not None
    assert found.tolerance.hardware == ("a GPU",)
    assert found.tolerance.largest == pytest.approx(FACTOR * 1e-6, rel=1e-3)
    assert set(found.tolerance.bounds) == {*MEASURED, "state"}
    equal = examined(evidence(), step=5, parameters_sha256=DIGEST)
    assert equal.classes == ("bit-equal", "measured")
    assert equal.tolerance is None


def test_more_than_the_bound_is_none() -> None:
    for changed in (close(difference=9e-6), close(spread=0.0)):
        found = examined(changed, step=5, parameters_sha256=DIGEST)
        assert found.classes == ()
        assert found.tolerance is not None
        assert any("exceeds 8 times the difference between two replays" in fault for fault in found.tolerance.faults)
    without = close()
    del without["tolerance"]
    assert examined(without, step=5, parameters_sha256=DIGEST).classes == ()


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("steps", 0, "batch", "replayed"), 2, "step 3: batch differ, and no tolerance applies to them"),
        (("steps", 0, "lr", "replayed"), 1.0000001, "step 3: lr differ, and no tolerance applies to them"),
        (("steps", 1, "vetoed", "replayed"), 0, "step 5: vetoed differ, and no tolerance applies to them"),
        (("steps", 1, "loss", "replayed"), float("nan"), "loss differs by 2"),
        (("commits", 0, "parts", GENERATORS, "replayed"), ["h"], "rng_sha256 differ, and no tolerance applies to them"),
        (("commits", 0, "parts", "monitor", "replayed", "guard", "rollbacks"), [], "monitor differ, and no"),
        (("commits", 0, "parts", PARAMETERS, "original"), OTHER, "other parameters (original)"),
        (("skipped_steps", "replayed"), [], "skipped steps differ"),
        (("tolerance", "state", "original"), 1e-3, "state differs by 0.001"),
        (("tolerance", "hardware"), [], "does not name its hardware"),
    ],
)
def test_a_tolerance_excuses_no_decision(path: tuple[Any, ...], value: Any, fault: str) -> None:
    changed = close()
    target: Any = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    found = examined(changed, step=5, parameters_sha256=DIGEST)
    assert found.classes == ()
    assert found.tolerance is not None
    assert any(fault in each for each in found.tolerance.faults), found.tolerance.faults


def test_a_loss_that_two_replays_share_by_chance_is_known_to_the_last_bit() -> None:
    found = close(difference=1e-7, spread=1e-7)
    for row in found["steps"]:
        row["loss"]["repeated"] = 1.0
    shown = examined(found, step=5, parameters_sha256=DIGEST)
    assert shown.tolerance is not None
    assert (shown.classes, shown.tolerance.bounds["loss"].spread) == (("measured",), 2.0**-23)
    found["tolerance"]["state"]["repeated"] = 0.0  # kernels are deterministic: no excuse
    assert examined(found, step=5, parameters_sha256=DIGEST).classes == ()


def test_relative_differences() -> None:
    assert relative(2.0, 1.0) == relative(1.0, 2.0) == 0.5
    assert relative(0.0, 0.0) == relative(float("nan"), float("nan")) == 0.0
    assert relative(1.0, -1.0) == relative(1.0, float("inf")) == relative(float("nan"), 1.0) == 2.0
