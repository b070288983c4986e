"""Game day of a launch contract: a run with another learning rate leaves the predicted loss curve that its owner
signed.

The curve is the band of a new run among a few undisturbed runs with other seeds. A scaling ladder predicts larger runs;
here the predicted run has the size of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from plinth.compute.context import Context
from plinth.evaluation.statistics import new_curves, simultaneous
from plinth.model.architectures import parameters
from plinth.operation import contracts
from plinth.storage.workspace import Workspace
from plinth.training.config import RunConfig, identified_as_prepared
from plinth.training.predicted_curve import MISSED, CurvePoint, PredictedCurve, means
from plinth.training.telemetry.timeline import timeline
from plinth_ops.gamedays import gameday, rehearsal, warm_job
from plinth_ops.gamedays.gameday import Chooser, GameDay, Outcome, Struck, finding
from plinth_ops.gamedays.rehearsal import Rehearsal

#: Ends of the segments, in steps.
ENDS: Final = (4, 8, 12)
#: Seeds of the runs from which the curve is predicted, in addition to the rehearsal's own.
SEEDS: Final = (101, 102, 103, 104, 105)
#: Factors on the learning rate, far from what the curve was predicted for.
FACTORS: Final = (0.01, 0.05, 10.0, 30.0)
#: Probability that an undisturbed run stays in the band. One that does not would turn the game day red.
LEVEL: Final = 0.999
DRAWS: Final = 20_000


@dataclass(frozen=True)
class Predicted:
    """Undisturbed run, and the loss curve predicted for its like."""

    made: Rehearsal
    curve: PredictedCurve


def prepare(folder: Path) -> Predicted:
    """Train undisturbed runs with several seeds, and predict the curve of another one."""
    made = rehearsal.rehearse(folder / "1")
    runs = [made.config, *(made.copy(folder / f"{seed}", seed=seed) for seed in SEEDS)]
    for config in runs[1:]:
        warm_job.WarmJob(config).require_finished()
    return Predicted(made, _band(runs))


def _band(runs: list[RunConfig]) -> PredictedCurve:
    config = runs[0]
    ends = [config.tokens_through(step) for step in ENDS]
    curves = np.log(np.array([means(ends, _losses(one)) for one in runs], np.float64))
    low, high = np.exp(simultaneous(new_curves(curves, draws=DRAWS, seed=0), level=LEVEL))
    rows = zip(ends, np.exp(curves.mean(axis=0)).tolist(), low.tolist(), high.tolist(), strict=True)
    return PredictedCurve(
        params=parameters(config.model, config.vocab_size).active,
        tokens=ends[-1],
        level=LEVEL,
        method=f"band of a new run among {len(runs)} runs with other seeds",
        points=tuple(CurvePoint(tokens=end, value=value, low=min(low_, value), high=max(high_, value))
                     for end, value, low_, high_ in rows),
    )  # fmt: skip


def _losses(config: RunConfig) -> list[tuple[int, float]]:
    return [(int(event["tokens"]), event["loss"]) for event in timeline(config.directory.events).steps.values()]


def missed_forecast(predicted: Predicted, folder: Path, chooser: Chooser) -> Struck:
    """Train a run as predicted, one with another learning rate, and try one that was edited after the signature."""
    factor, seed = chooser.choice(FACTORS), chooser.randrange(1000, 2000)
    as_promised, deviates, edited = (
        _signed(predicted, folder / name, seed, by) for name, by in (("same", 1.0), ("other", factor), ("edited", 1.0))
    )
    status, quiet = warm_job.run(as_promised), timeline(as_promised.directory.events).of(MISSED)
    found = [
        finding("a run as predicted finishes", status, 0),
        finding("it raises no alarm", len(quiet), 0),
        *gameday.no_page(as_promised),
    ]
    found.append(finding("a run with another learning rate goes on to its last step", warm_job.run(deviates), 0))
    alert, after = gameday.fired(deviates, MISSED_FORECAST.alerts, MISSED)
    found += [*alert, *gameday.no_page(deviates), *_deviation(predicted, deviates)]
    rate = edited.optimizer.model_copy(update={"lr": factor * edited.optimizer.lr})
    edited = edited.model_copy(update={"optimizer": rate})
    refused = warm_job.run(edited)
    steps = len(timeline(edited.directory.events).steps)
    log = edited.directory.log.read_text(errors="replace")
    seen = (refused != 0, steps, "is not what its launch contract promises" in log)
    found.append(finding("a run that was edited after the signature takes no step", seen, (True, 0, True)))
    return Struck(f"learning rate times {factor:g}", tuple(found), after)


def _signed(predicted: Predicted, folder: Path, seed: int, factor: float) -> RunConfig:
    """Return a run with this seed and learning rate, under a contract with the predicted curve."""
    config = predicted.made.copy(folder, seed=seed, contract="required")
    rate = config.optimizer.model_copy(update={"lr": factor * config.optimizer.lr})
    config = identified_as_prepared(config.model_copy(update={"optimizer": rate}))
    ctx = Context(Workspace(folder))
    contracts.sign(ctx, contracts.draft(ctx, config, None, curve=predicted.curve, rank_hours=1.0))
    return config


def _deviation(predicted: Predicted, config: RunConfig) -> Iterator[Outcome]:
    """Check that the alarms name exactly the segments whose losses are outside the signed band."""
    ctx, told = Context(Workspace(config.workspace)), timeline(config.directory.events).of(MISSED)
    signed = contracts.current(ctx, config)
    assert signed is not None
    yield finding("the contract has the predicted curve", signed.contract.curve == predicted.curve, True)
    outside = contracts.outcome(config, signed.contract).missed
    expected = [(one.predicted.tokens, one.loss) for one in outside]
    yield finding("the alarms name the segments outside", [(one["tokens"], one["loss"]) for one in told], expected)


MISSED_FORECAST: Final = GameDay(
    name="missed-forecast",
    hypothesis="A run that its owner promised with another learning rate than it has leaves the predicted loss curve: "
    "each segment outside raises the alarm, and the run goes on. A run as predicted raises none, and a run that was "
    "edited after the signature does not start.",
    fault="Another learning rate, before or after the owner signs the launch contract.",
    protection="comparison of each finished segment with the signed curve, and of the settings before the ranks start",
    prepare=prepare,
    play=missed_forecast,
    alerts=("ForecastMissed",),
)
