"""The stopping rules on signals made by hand, and a run that they end and that goes on under others."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from tiny_mixture import made_mixture

from plinth.compute.context import Context
from plinth.errors import MissingError
from plinth.launch.parameters import Launch
from plinth.storage.workspace import Workspace
from plinth.tokens.order.order import Order
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.parameters.guard import Plateau, Stopping
from plinth.training.parameters.run import Checkpoints
from plinth.training.stopping import Gatherer, Point, Signals, Watch, judge, last_step, stopped_event
from plinth.training.telemetry.timeline import timeline
from tests.plinth.training.conftest import tiny
from tests.ranks import run_ranks

#: Steps of a run over a mixture of two buckets: three whole blocks of the order and a rest.
STEPS = 200


def curve(slope: float, noise: float = 0.02, steps: int = 400) -> list[Point]:
    """A loss at every 100 tokens that falls by `slope` per 10,000 tokens."""
    draw = random.Random(3)
    return [Point(100 * n, 3 - slope * n / 100 + draw.gauss(0, noise)) for n in range(1, steps + 1)]


FLAT = Plateau(window_tokens=20_000, min_improvement=0.02)


@pytest.mark.parametrize(("slope", "stops"), [(0.0, True), (0.005, True), (0.02, False), (0.1, False)])
def test_plateau(slope: float, stops: bool) -> None:
    verdict = judge(Stopping(plateau=FLAT), Signals(tokens=40_000, losses=curve(slope)))
    (state,) = verdict.states
    assert (verdict.stop, state.holds) == (stops, stops)
    assert state.value is not None
    assert 2 * slope <= state.value <= 2 * slope + 0.02  # of a window, at most, and hardly more


def test_a_noisy_curve_is_not_called_flat() -> None:
    """Uncertainty favors training on: the bound, not the estimate, decides."""
    assert not judge(Stopping(plateau=FLAT), Signals(losses=curve(0.0, noise=1.0))).stop
    assert not judge(Stopping(plateau=FLAT), Signals(losses=curve(0.0, steps=150))).stop  # three quarters of a window
    assert not judge(Stopping(plateau=FLAT), Signals()).stop


def test_slices_must_be_flat_too() -> None:
    rules = Stopping(plateau=Plateau(window_tokens=20_000, min_improvement=0.02, slices=("code",)))
    flat = Signals(losses=curve(0.0))
    assert not judge(rules, flat).stop  # not evaluated yet
    assert judge(rules, Signals(losses=curve(0.0), slices={"code": curve(0.0, 0.001)[::20]})).stop
    assert not judge(rules, Signals(losses=curve(0.0), slices={"code": curve(0.1, 0.001)[::20]})).stop


def test_a_slice_that_still_falls_keeps_a_run_going_though_nobody_named_it() -> None:
    rules = Stopping(plateau=FLAT)
    few = curve(0.1, 0.001)[::200]
    assert judge(rules, Signals(losses=curve(0.0), slices={"code": few})).stop  # two looks judge nothing
    falling = judge(rules, Signals(losses=curve(0.0), slices={"web": few, "code": curve(0.1, 0.001)[::20]}))
    assert not falling.stop
    assert [state.rule for state in falling.states] == ["plateau", "plateau of code"]
    assert "bits per byte in 20,000 tokens" in falling.states[1].reason
    assert judge(rules, Signals(losses=curve(0.0), slices={"code": curve(0.0, 0.001)[::20]})).stop


def test_text_that_was_read_as_often_as_it_may_be_ends_a_run() -> None:
    read = {"web": 0.4, "code": 3.99}
    assert not judge(Stopping(epochs=4.0), Signals(epochs=read)).stop
    verdict = judge(Stopping(epochs=4.0), Signals(epochs=read | {"code": 4.0}))
    assert verdict.stop
    assert verdict.reasons == ["epochs: code read 4 times of 4"]
    assert not judge(Stopping(epochs=4.0), Signals()).stop
    assert "epochs" not in Stopping().model_dump()  # rules that stopped a run before are the same rules


def test_the_order_says_how_often_text_was_read(tmp_path: Path) -> None:
    """As counted sequence by sequence; and the rule ends a run at the first step where a bucket has had its epochs."""
    ctx = Context(Workspace(tmp_path).ensure())
    mixed, _, _ = made_mixture(ctx, steps=STEPS)
    ctx.refs.save(mixed)
    order = Order(mixed)
    assert set(order.epochs(0).values()) == {0.0}
    streams, _, _ = order.drawn(np.arange(order.sequences))
    for position in (0, order.block_sequences, 3 * order.block_sequences, order.sequences):
        counted = np.bincount(streams[:position], minlength=len(order.streams))
        wanted = {name: n / held for name, n, held in zip(order.streams, counted, order.available, strict=True)}
        assert order.epochs(position) == pytest.approx(wanted)
    within = [max(order.epochs(position).values()) for position in range(order.sequences + 1)]
    assert within == sorted(within)
    with pytest.raises(MissingError):
        order.epochs(order.sequences + 1)
    most = max(order.epochs(order.sequences).values())
    rules = Stopping(epochs=most * 0.5, every_steps=1)
    run = tiny(tmp_path, total_steps=STEPS, global_batch_sequences=4, mixture=mixed.digest, stopping=rules)
    run.directory.root.mkdir(parents=True)
    run.directory.events.touch()
    watch = Watch(run)
    ends = next(step for step in range(1, STEPS + 1) if watch.verdict_at(step) is not None)
    assert max(order.epochs(4 * ends).values()) >= rules.epochs > max(order.epochs(4 * (ends - 1)).values())
    verdict = watch.verdict_at(ends)
    assert verdict is not None
    event = stopped_event(rules, ends, verdict)
    assert event["reasons"][0].startswith("epochs: ")
    assert event["signals"][0]["value"] == max(order.epochs(4 * ends).values())


def test_budgets_are_spent_by_steps_done_again_too() -> None:
    gatherer = Gatherer()
    step = {"event": "step", "step_s": 2.0, "loss": 3.0}
    events: list[dict[str, Any]] = [{"event": "run_started", "ranks": 4}]
    events += [{**step, "step": n, "tokens": 100 * n} for n in (1, 2, 3)]
    events += [{"event": "checkpoint", "seconds": 1.0}, {"event": "run_started", "ranks": 2}]
    events += [{**step, "step": n, "tokens": 100 * n, "loss": 2.0} for n in (2, 3, 4)]
    for event in events:
        gatherer.add(event)
    found = gatherer.signals
    assert (found.tokens, found.spent_tokens, found.seconds) == (400, 600, 13.0)
    assert found.rank_seconds == 7 * 4 + 6 * 2
    assert [(p.tokens, p.value) for p in found.losses] == [(400, 2.0)]  # no window asks for more
    for rules, stop in (
        ({"tokens": 600}, True),
        ({"tokens": 601}, False),
        ({"seconds": 13.0}, True),
        ({"money": 40 / 3600, "price_per_rank_hour": 1.0}, True),
        ({"money": 41 / 3600, "price_per_rank_hour": 1.0}, False),
    ):
        assert judge(Stopping(**rules), found).stop is stop
    with pytest.raises(ValidationError, match="price_per_rank_hour"):
        Stopping(money=3.0)


def test_losses_told_again_count_once() -> None:
    gatherer = Gatherer(window_tokens=1000)
    for n, loss in ((1, 5.0), (2, 4.0), (3, 9.0), (2, 4.5), (3, 3.5)):
        gatherer.add({"event": "step", "step": n, "tokens": 100 * n, "step_s": 1.0, "loss": loss})
    gatherer.add({"event": "step", "step": 4, "tokens": 400, "step_s": 1.0, "loss": "nan"})
    assert [p.value for p in gatherer.signals.losses] == [5.0, 4.5, 3.5]
    assert gatherer.signals.tokens == 400


def test_whichever_rule_holds_first_stops() -> None:
    assert judge(Stopping(plateau=FLAT, seconds=1.0), Signals(seconds=1.0)).stop
    assert judge(Stopping(plateau=FLAT, seconds=9.0), Signals(losses=curve(0.0))).stop
    assert not judge(Stopping(plateau=FLAT, seconds=9.0), Signals(losses=curve(0.1))).stop
    assert not judge(Stopping(), Signals(tokens=500)).stop


def test_runs_of_before_go_on_under_their_identity() -> None:
    """Rules of 0.3 that no recipe can set stand in the dump at the value that has no effect, and at no other."""
    before = {"regression": None, "max_epochs": None, "when": "any", "min_tokens": 0}
    assert Stopping.model_validate(before).model_dump().items() >= before.items()
    for name, value in (("max_epochs", 4.0), ("when", "all"), ("min_tokens", 1), ("regression", {})):
        with pytest.raises(ValidationError, match=name):
            Stopping.model_validate({name: value})


def train_then_audit(config: RunConfig) -> tuple[bool, int]:
    """On a rank: to the end, and the evidence; whether the run is finished, and its last step."""
    from plinth.training.engine.engine import join, leave
    from plinth.training.forensics.audit import replay
    from plinth.training.loop import train

    rank = join(config)
    finished = train(config, rank, 0)
    replay(config, rank)
    leave()
    return finished, last_step(config)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_ends_by_rule_and_goes_on_under_others(make: Callable[..., RunConfig]) -> None:
    config = make(
        launch=Launch(ranks=2),
        checkpoints=Checkpoints(every_steps=2, audit_steps=4),
        stopping=Stopping(tokens=4 * 256, every_steps=1),
    )
    assert config.step_tokens() == 256
    configuration.write(config)
    assert run_ranks(2, train_then_audit, config) == [(True, 5)] * 2
    story = timeline(config.directory.events)
    (ended,) = story.of("stopped_by_rule")
    assert ended["step"] == 5 == max(story.steps)  # seen after step 4, carried out by the next
    assert ended["reasons"] == ["tokens: 1,024 spent of 1,024"]
    assert ended["signals"][0]["holds"] is True
    assert checkpoint.newest_valid(config.directory)[0] == 5
    assert json.loads(config.directory.evidence.read_text())["bit_exact"] is True  # of what it did train

    further = config.model_copy(update={"stopping": Stopping(tokens=10**9)})
    assert last_step(further) == config.total_steps
    configuration.write(further)
    assert run_ranks(2, train_then_audit, further) == [(True, config.total_steps)] * 2
    assert max(timeline(config.directory.events).steps) == config.total_steps
    assert not timeline(config.directory.events).of("signal")
