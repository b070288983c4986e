"""A real run under a contract: its ranks start, report a missed forecast, and start in no other way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plinth.launch.parameters import Launch
from plinth.model.architectures import parameters
from plinth.storage.workspace import Workspace
from plinth.training import attempts, contract
from plinth.training.config import RunConfig
from plinth.training.contract import BucketShare, LaunchContract, RunBudget
from plinth.training.predicted_curve import MISSED, CurvePoint, PredictedCurve
from plinth.training.telemetry.timeline import timeline
from plinth.trust import dsse
from plinth.trust.dsse import OWNER
from plinth.trust.root import Trust

Make = Callable[..., RunConfig]


def sign(config: RunConfig) -> None:
    tokens = config.tokens_through(config.total_steps)
    points = [CurvePoint(tokens=tokens // 2, value=9.0, low=0.1, high=99.0)]
    points += [CurvePoint(tokens=tokens, value=0.2, low=0.1, high=0.3)]  # no run of twelve steps is so good
    size = parameters(config.model, config.vocab_size).active
    curve = PredictedCurve(params=size, tokens=tokens, level=0.95, method="by hand", points=tuple(points))
    made = LaunchContract(
        run=config.run_id, key=config.key, number=1, settings=contract.settings(config),
        mixture={"web": BucketShare(share=1.0, epochs=1.0)}, curve=curve, owner=OWNER, at=dsse.now(),
        budget=RunBudget(rank_hours=10, reason="stated by the owner"),
    )  # fmt: skip
    signer = Trust.of(Workspace(config.workspace)).signer(OWNER)
    dsse.write(config.directory.contracts / "0001.json", contract.statement(made), signer)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_under_its_contract(make: Make, job: Callable[..., int], tmp_path: Path) -> None:
    Workspace(tmp_path).ensure()
    config = make(contract="required")
    assert job(config) != 0  # nothing is signed
    assert not config.directory.attempts.exists()
    sign(config)
    assert job(make(contract="required", launch=Launch(ranks=1))) != 0  # another topology
    assert not config.directory.attempts.exists()
    assert job(config) == 0
    history = timeline(config.directory.events)
    (missed,) = history.of(MISSED)
    assert (missed["step"], missed["tokens"], missed["high"]) == (12, config.tokens_through(12), 0.3)
    assert missed["loss"] == pytest.approx(sum(history.steps[step]["loss"] for step in range(7, 13)) / 6)
    named = [attempts.stated(one, "it").contract for one in attempts.known(config.directory)]
    assert set(named) == {contract.fingerprint.digest(contract.known(config.directory)[0])}
