"""Predicted curve: means of segments, what is outside the band, and a watch that reports each segment once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.errors import RequestError
from plinth.model.architectures import parameters
from plinth.training.config import RunConfig
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.predicted_curve import (
    MISSED,
    CurvePoint,
    CurveWatch,
    PredictedCurve,
    means,
    outcomes,
    read,
    shape_of,
)
from plinth.training.telemetry.timeline import Timeline

Make = Callable[..., RunConfig]


def curve(*points: tuple[int, float, float], **more: Any) -> PredictedCurve:
    """A curve of (last token, low, high), with the value between the ends."""
    made = tuple(CurvePoint(tokens=end, value=(low + high) / 2, low=low, high=high) for end, low, high in points)
    fields: dict[str, Any] = {"params": 1, "tokens": points[-1][0], "level": 0.95, "method": "by hand", "points": made}
    return PredictedCurve(**{**fields, **more})


def test_the_mean_of_a_segment_leaves_out_what_is_not_finite() -> None:
    losses = [(10, 4.0), (20, 2.0), (30, "nan"), (40, float("inf")), (41, 1.0), (99, 7.0)]
    assert means([20, 40, 60], losses) == [3.0, None, 1.0]


def test_only_finished_segments_have_an_outcome() -> None:
    own = curve((20, 2.5, 3.5), (40, 2.0, 2.2), (60, 1.0, 1.5))
    losses = [(10, 4.0), (20, 2.0), (30, 2.5), (40, 2.1), (50, 0.5)]
    found = list(outcomes(own, losses))
    assert [(one.loss, one.inside) for one in found] == [(3.0, True), (2.3, False)]
    assert found[1].words == "40 tokens: loss 2.3000, above 2.0000 to 2.2000"
    below = list(outcomes(own, [*losses, (60, 0.5)]))[-1]
    assert (below.inside, below.words) == (False, "60 tokens: loss 0.5000, below 1.0000 to 1.5000")


def test_a_segment_without_a_finite_loss_is_outside() -> None:
    own = curve((20, 2.5, 3.5), (40, 2.0, 2.2), (41, 1.0, 1.5), (60, 1.0, 1.5))
    losses = [(10, 3.0), (20, "nan"), (30, "nan"), (40, float("inf")), (60, 1.2)]
    found = list(outcomes(own, losses))
    assert [(one.predicted.tokens, one.inside) for one in found] == [(20, True), (40, False), (60, True)]
    assert (found[1].loss, found[1].words) == (None, "40 tokens: no finite loss")


def test_an_ended_run_may_be_a_rounded_step_short_of_the_last_segment() -> None:
    own = curve((500, 2.0, 3.0), (1000, 1.0, 2.0))
    losses = [(500, 2.5), (995, 1.5)]
    assert len(list(outcomes(own, losses))) == 1
    assert [one.inside for one in outcomes(own, losses, ended=True)] == [True, True]
    assert len(list(outcomes(own, [(500, 2.5), (900, 1.5)], ended=True))) == 1


@pytest.mark.parametrize("points", [((20, 3.0, 2.0),), ((20, 1.0, 2.0), (10, 1.0, 2.0)), ((20, 0.0, 1.0),)])
def test_a_curve_has_ordered_segments_and_intervals(points: tuple[tuple[int, float, float], ...]) -> None:
    with pytest.raises(ValueError, match=r"does not contain|in order of tokens|greater than 0"):
        curve(*points)


def test_a_file_that_is_no_curve_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    for content in ("", "[]", '{"points": []}', '{"params": NaN}'):
        path.write_text(content)
        with pytest.raises(RequestError, match="not a predicted curve"):
            read(path)
    own = curve((20, 1.0, 2.0))
    path.write_text(own.model_dump_json())
    assert read(path) == own


def test_a_curve_is_of_its_run_alone_and_ends_with_it(make: Make) -> None:
    config = make()
    tokens, size = config.tokens_through(config.total_steps), parameters(config.model, config.vocab_size).active
    own = curve((tokens - 5, 1.0, 2.0), params=size, shape=shape_of(config.optimizer))
    assert own.require_run(config).points[-1].tokens == tokens
    others = ({"params": 2 * size}, {"shape": {**shape_of(config.optimizer), "decay_fraction": 0.5}})
    for change in others:
        with pytest.raises(RequestError, match="another run"):
            own.model_copy(update=change).require_run(config)
    with pytest.raises(RequestError, match="another run"):
        curve((2 * tokens, 1.0, 2.0), params=size).require_run(config)


def test_schedules_are_alike_if_their_rates_are_relative_to_the_peak() -> None:
    ladder, larger = Optimizer(lr=1e-2, min_lr=1e-3), Optimizer(lr=2e-3, min_lr=2e-4)
    assert shape_of(ladder) == shape_of(larger)
    for other in (Optimizer(lr=2e-3), Optimizer(lr=2e-3, min_lr=2e-4, start_lr=1e-3)):
        assert shape_of(ladder) != shape_of(other)


class TestWatch:
    """Twelve steps of 256 tokens, in segments of three; the second and the last are outside."""

    LOSSES = (5.0, 5.0, 5.0, 3.0, 3.0, 3.0, 4.0, 4.0, 4.0, 9.0, 9.0, 9.0)
    BAND = curve((768, 4.0, 6.0), (1536, 4.0, 6.0), (2304, 3.5, 4.5), (3072, 3.0, 4.0))

    def trained(self, config: RunConfig, watch: CurveWatch, steps: range) -> list[tuple[int, int, float]]:
        found, events = [], Timeline(config.directory.events)
        for step in steps:
            events.append("step", step=step, tokens=config.tokens_through(step), loss=self.LOSSES[step - 1])
            for fields in watch.missed(step):
                events.append(MISSED, **fields)
                found.append((fields["step"], fields["tokens"], fields["loss"]))
        return found

    def test_each_segment_outside_is_reported_when_it_ends(self, make: Make) -> None:
        config = make()
        found = self.trained(config, CurveWatch(config, self.BAND), range(1, 13))
        assert found == [(6, 1536, 3.0), (12, 3072, 9.0)]

    def test_a_segment_whose_losses_are_not_finite_is_reported(self, make: Make) -> None:
        config, events = make(), Timeline(make().directory.events)
        for step in range(1, 4):
            events.append("step", step=step, tokens=config.tokens_through(step), loss=float("nan"))
        (fields,) = CurveWatch(config, self.BAND).missed(3)
        assert (fields["tokens"], fields["loss"]) == (768, None)

    def test_a_resumed_run_reports_nothing_twice(self, make: Make) -> None:
        config = make()
        first = self.trained(config, CurveWatch(config, self.BAND), range(1, 8))
        assert first == [(6, 1536, 3.0)]
        assert self.trained(config, CurveWatch(config, self.BAND), range(4, 13)) == [(12, 3072, 9.0)]

    def test_a_segment_that_ended_in_a_killed_process_is_reported_by_the_next(self, make: Make) -> None:
        config, events = make(), Timeline(make().directory.events)
        for step in range(1, 7):  # killed before the report
            events.append("step", step=step, tokens=config.tokens_through(step), loss=self.LOSSES[step - 1])
        assert self.trained(config, CurveWatch(config, self.BAND), range(7, 8)) == [(7, 1536, 3.0)]

    def test_steps_that_a_rollback_undid_do_not_count(self, make: Make) -> None:
        config, events = make(), Timeline(make().directory.events)
        for step in range(1, 5):
            events.append("step", step=step, tokens=config.tokens_through(step), loss=5.0 if step < 4 else 90.0)
        events.append("rolled_back", step=3, undone=1, number=1)
        for step in (5, 6):  # step 4 is left out
            events.append("step", step=step, tokens=config.tokens_through(step), loss=5.0)
        assert CurveWatch(config, self.BAND).missed(6) == []

    def test_no_more_than_two_segments_are_kept_and_the_file_is_read_once(self, make: Make) -> None:
        config = make()
        watch = CurveWatch(config, self.BAND)
        self.trained(config, watch, range(1, 13))
        assert len(watch._losses) <= 6
        assert watch._reader.read_bytes <= 1.2 * config.directory.events.stat().st_size
        assert json.loads(config.directory.events.read_text().splitlines()[0])["event"] == "step"
