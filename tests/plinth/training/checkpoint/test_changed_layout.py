"""A run that loses half its ranks and gets them back: same documents, same curve, and the timeline records the
change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import changed_layout
import pytest

from plinth.launch.parameters import Launch
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from plinth.training.telemetry.timeline import timeline
from tests.ranks import run_ranks

#: Nats; FP32 noise of another order of summation over twelve steps.
NOISE = 5e-7


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_ranks_then_one_then_a_pipeline(
    make: Callable[..., RunConfig], job: Callable[..., int], tmp_path: Path
) -> None:
    def on(ranks: int, **parallel: int) -> RunConfig:
        supervision = {"max_restarts": 0, "backoff_s": 0.1, "hang_s": 1800.0}
        block = Parallel(**parallel)  # type: ignore[arg-type]
        return make(
            launch=Launch(ranks=ranks),
            parallel=block,
            supervision=supervision,
            checkpoints=Checkpoints(every_steps=3, audit_steps=4, mode="sync"),  # a kill finds the last one committed
            batches="changed_layout:open_batches",
        )

    faults = json.dumps({"marks": str(tmp_path), "kill": [[5, 1], [10, 0]]})
    failed = 7
    assert job(on(2, zero_stage=3), FAULTS=faults) == failed
    assert job(on(1), FAULTS=faults) == failed
    last = on(2, pipeline=2)
    assert job(last, FAULTS=faults) == 0
    story = timeline(last.directory.events)
    assert [event["step"] for event in story.of("resumed")] == [3, 9]
    told = [(event["step"], event["from"], event["to"]) for event in story.of("reshaped")]
    assert [(step, old["ranks"], new["ranks"]) for step, old, new in told] == [(3, 2, 1), (9, 1, 2)]
    assert (told[0][1]["zero_stage"], told[1][2]["pipeline"]) == (3, 2)

    (reference,) = run_ranks(1, changed_layout.journey, [(on(1), None, 1, 12, tmp_path / "reference")], timeout_s=300)[
        0
    ]
    steps = list(story.steps.values())
    assert list(story.steps) == list(range(1, 13))
    assert [step["batch"] for step in steps] == reference["batch"]
    assert [step["loss"] for step in steps] == pytest.approx(reference["loss"], abs=NOISE)
    assert checkpoint.read_state(last.directory, 12)["layout"]["pipeline"] == 2

    evidence = json.loads(last.directory.evidence.read_bytes())
    assert evidence["bit_exact"] is False  # replayed over two stages from a checkpoint of one rank
    assert evidence["same_batches"] is True
    assert evidence["max_abs_difference"]["loss"] <= NOISE
    ranks = {step: saved["ranks"] for step, saved in evidence["layouts"]["original"].items()}
    assert ranks == {"8": 1, "9": 1, "12": 2}
    assert evidence["layouts"]["replayed"]["pipeline"] == 2
