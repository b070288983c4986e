"""Evidence of resume is what it lists, not what it says."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from plinth.training.forensics.proof import COMPARED, PARAMETERS, examined

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
        (("from_step",), 0, "without a gap"),
        (("to_step",), 6, "without a gap"),
        (("steps",), [], "without a gap"),
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
