"""Bits that are flipped in weights, gradients and optimizer state at any time of a step are found if the step is
sampled, and no healthy device is named; a run that nothing disturbs trains to the bit as without replays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plinth.errors import CorruptionError
from plinth.evaluation.statistics.shares import lower_share, upper_share
from plinth.launch.base import excluded_hosts
from plinth.launch.parameters import Launch
from plinth.training.checkpoint import checkpoint, snapshot
from plinth.training.config import RunConfig
from plinth.training.corruption.replays import DataRing, Mismatch, Place
from plinth.training.corruption.sampling import ReplayRecord, interval, samples
from plinth.training.corruption.votes import DeviceVerdict
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints, ReplayChecks
from plinth.training.supervise.host_checks import HOST_VARIABLE
from plinth.training.telemetry.timeline import timeline
from tests.ranks import RankFailed, run_ranks

Make = Callable[..., RunConfig]

#: One step of three is sampled.
OFTEN = ReplayChecks(share=0.5)

#: Place and time of a flip within a step.
KINDS = (
    "weights before the step", "computed gradient", "accumulated gradient", "gradient of the update",
    "optimizer state before the step", "master weights before the step", "weights after the step",
    "optimizer state after the step",
)  # fmt: skip


def configured(make: Make, root: Path, ranks: int, **changes: Any) -> RunConfig:
    fields = {"launch": Launch(ranks=ranks), "global_batch_sequences": 4 * ranks, "replay_checks": OFTEN}
    return make(workspace=root, **{**fields, **changes})


def flip(tensor: Any, generator: np.random.Generator) -> None:
    """Flip one bit of one element."""
    words = tensor.data.view(-1).numpy(force=False) if tensor.element_size() == 4 else None
    if words is None:  # NumPy has no BF16
        import torch

        words = tensor.data.view(-1).view(torch.int16).numpy()
    unsigned = words.view(np.uint32 if words.itemsize == 4 else np.uint16)
    index, bit = generator.integers(len(unsigned)), generator.integers(8 * unsigned.itemsize)
    unsigned[index] ^= unsigned.dtype.type(1 << int(bit))


class Struck:
    """A rank whose next step has one flipped bit."""

    def __init__(self, engine: Any, kind: str, generator: np.random.Generator) -> None:
        self.engine, self.kind, self.generator = engine, kind, generator
        self._handles: list[Any] = []

    def before(self) -> None:
        """Before the step is observed."""
        if self.kind == "computed gradient":
            self._handles = [self._parameter().register_hook(self._changed)]

    def observed(self) -> None:
        """After the copy of the state, before the step."""
        inner = self.engine.deepspeed.basic_optimizer
        if self.kind == "accumulated gradient":
            self._handles = [self._parameter().register_hook(self._changed)]
        elif self.kind == "gradient of the update":
            self._handles = [inner.register_step_pre_hook(self._in_update)]
        elif self.kind.endswith("before the step"):
            flip(self._state(), self.generator)

    def after(self) -> None:
        """After the step, before it is replayed."""
        for handle in self._handles:
            handle.remove()
        if self.kind.endswith("after the step"):
            flip(self._state(), self.generator)

    def _parameter(self) -> Any:
        parameters = list(self.engine.module.parameters())
        return parameters[self.generator.integers(len(parameters))]

    def _state(self) -> Any:
        if self.kind.startswith("weights"):
            return self._parameter()
        found = [one for one in self.engine.optimizer_tensors() if one.numel() > 1]
        masters = found[::3]  # each is followed by its two moments
        chosen = masters if self.kind.startswith("master") else [one for at, one in enumerate(found) if at % 3]
        return chosen[self.generator.integers(len(chosen))]

    def _changed(self, gradient: Any) -> Any:
        if self._handles:
            flipped = gradient.clone()
            flip(flipped, self.generator)
            self._handles.pop().remove()  # of the first micro batch only
            return flipped
        return gradient

    def _in_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if self._handles and gradients:
            self._handles.pop().remove()
            flip(gradients[self.generator.integers(len(gradients))], self.generator)


def strike(config: RunConfig, trials: int) -> list[dict[str, Any]]:
    """In each step, flip one bit on one rank; then take the step again without, and go on."""
    import torch.distributed as dist

    from plinth.training.corruption.state import StateCopy, digest, weights_of
    from plinth.training.engine import engine as engines
    from plinth.training.loop import TrainingRun

    rank = engines.join(config)
    run = TrainingRun(config, rank)
    run.resume(0)
    trainer, replays, found = run.trainer, run.replays, []
    assert replays is not None
    stream, engine, start = trainer.batches(1), trainer.engine, StateCopy()

    def outcome() -> list[int]:
        words = [int(digest(tensors, rank.device)) for tensors in (engine.optimizer_tensors(), weights_of(engine))]
        every: list[Any] = [None] * rank.world
        dist.all_gather_object(every, words)
        return [word for words in every for word in words]

    trainer.launch(stream, 1).read()
    for step in range(2, trials + 2):
        start.take(engine)
        trainer.launch(stream, step).read()
        clean, generator = outcome(), np.random.default_rng(step)
        start.put_back(engine)
        kind, struck = KINDS[step % len(KINDS)], int(generator.integers(rank.world))
        flips = Struck(engine, kind, generator) if rank.index == struck else None
        batch = replays._batch(rank.index, step)
        if flips:
            flips.before()
        if replays.due(step):
            replays.begin(engine)
        if flips:
            flips.observed()
        trainer.repeat(batch)
        if flips:
            flips.after()
        masked, mismatch = outcome() == clean, None
        if replays.due(step):
            mismatch = replays.check(trainer, step)
        verdict = None if mismatch is None else (mismatch.what, *mismatch.verdict)
        found.append({"step": step, "kind": kind, "struck": struck, "masked": masked, "found": verdict})
        start.put_back(engine)
        trainer.repeat(batch)
        assert outcome() == clean
    run.saver.close()
    engines.leave()
    return found


def require_found(config: RunConfig, trials: list[dict[str, Any]]) -> None:
    """A flip is found exactly if its step was sampled and it left a trace, and only the struck device is named. If the
    ranks of a replica exchange activations, those are named that the struck one has misled."""
    sampled, size = set(samples(config.key, OFTEN.share, len(trials) + 1)), config.parallel.model_ranks
    for trial in trials:
        if size > 1:
            trial |= {"found": trial["found"] and (trial["found"][0], *map(_replicas(size), trial["found"][1:]))}
            trial |= {"struck": trial["struck"] // size}
        assert (trial["found"] is not None) == (trial["step"] in sampled and not trial["masked"]), trial
        if trial["found"]:
            what, faulty, suspects = trial["found"]
            assert set(faulty) <= {trial["struck"]}, trial
            assert not suspects or trial["struck"] in suspects, trial
            if what != "reduced gradient":
                assert faulty == (trial["struck"],), trial


def _replicas(size: int) -> Callable[[tuple[int, ...]], tuple[int, ...]]:
    return lambda ranks: tuple(sorted({rank // size for rank in ranks}))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_flips_are_found_and_only_the_struck_device_is_named(make: Make, tmp_path: Path) -> None:
    config = configured(make, tmp_path, 2, parallel=Parallel(zero_stage=1), total_steps=99)
    trials = run_ranks(2, strike, config, 6)[0]
    require_found(config, trials)
    assert [trial["step"] for trial in trials if trial["found"]] == [3, 7]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "parallel", "precision"),
    [
        (3, Parallel(zero_stage=0), "fp32"),
        (3, Parallel(zero_stage=0), "bf16"),
        (4, Parallel(zero_stage=1), "bf16"),
        (3, Parallel(zero_stage=2), "fp32"),
        (6, Parallel(zero_stage=1, tensor=2), "fp32"),
        (6, Parallel(zero_stage=0, sequence=2), "fp32"),
    ],
)
def test_flips_are_found_at_the_rate_of_sampling(
    ranks: int, parallel: Parallel, precision: str, make: Make, tmp_path: Path
) -> None:
    """50 trials, judged by the exact binomial interval."""
    more = {"parallel": parallel, "precision": precision, "total_steps": 99}
    config = configured(make, tmp_path, ranks, **more)
    trials = run_ranks(ranks, strike, config, 50)[0]
    require_found(config, trials)
    traces = [trial for trial in trials if not trial["masked"]]
    found = sum(trial["found"] is not None for trial in traces)
    low, high = (limit(found, len(traces), level=0.995) for limit in (lower_share, upper_share))
    assert low <= 1 / interval(OFTEN.share) <= high


def trained(config: RunConfig, faults: str, host: str = "") -> dict[str, Any]:
    """Train in this process; the digests of the final state, and the record of replays.

    Args:
        host: name of this rank's machine, to which the rank's number is added.
    """
    os.environ["FAULTS"] = faults
    if host:
        os.environ[HOST_VARIABLE] = host + os.environ["RANK"]
    from plinth.training.engine import engine as engines
    from plinth.training.loop import TrainingRun

    run = TrainingRun(config, engines.join(config))
    assert run.finish(run.resume(0))
    found = {**snapshot.digests(run.trainer.engine), "record": ReplayRecord.of(run.trainer.state())}
    engines.leave()
    return found


def test_a_flip_is_undone_and_the_end_is_that_of_a_run_without_replays(
    make: Make, tmp_path: Path, uninterrupted: RunConfig
) -> None:
    """Step 7 is sampled, and so was step 3: the checkpoints of steps 4 and 6 are not trusted, and that of step 2 was
    kept."""
    marks = tmp_path / "marks"
    marks.mkdir()
    saves = Checkpoints(every_steps=2, keep_last=1, audit_steps=4)
    config = configured(make, tmp_path, 2, batches="flipped_bits:open_batches", checkpoints=saves)
    found = run_ranks(2, trained, config, json.dumps({"marks": str(marks), "flips": [[7, 1]]}))[0]
    record = ReplayRecord(steps=12, samples=4, mismatches=1, last=12, other_hosts=False)
    state, undisturbed = (checkpoint.read_state(one.directory, 12) for one in (config, uninterrupted))
    assert record == found["record"] == ReplayRecord.of(state["monitor"])
    assert {name: state[name] for name in snapshot.DIGESTS} == {name: undisturbed[name] for name in snapshot.DIGESTS}
    story = timeline(config.directory.events)
    assert [event["step"] for event in story.of("replay_checked")] == [3, 3, 7, 10, 12]
    assert [(event["step"], event["undone"]) for event in story.of("rolled_back")] == [(2, 5)]
    (made,), (error,) = story.of("intervention"), story.of("device_error")
    assert (made["rule"], made["action"], made["window"]) == ("corruption", "rollback", [4, 3])
    assert made["reason"].startswith("the gradient of 1 rank differs in a replay: rank 1 on ")
    assert (error["kind"], error["rank"], error["step"]) == ("corruption", 1, 7)
    assert story.skipped == set()
    assert 6 in {event["step"] for event in story.of("refused")}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_machine_of_a_faulty_device_is_excluded_and_the_run_goes_on_from_before(
    make: Make, tmp_path: Path, uninterrupted: RunConfig
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    config = configured(make, tmp_path, 2, batches="flipped_bits:open_batches")
    with pytest.raises(RankFailed) as caught:
        run_ranks(2, trained, config, json.dumps({"marks": str(marks), "flips": [[7, 1]]}), "machine-")
    assert isinstance(caught.value.error, CorruptionError)
    assert excluded_hosts(config.directory.root) == ["machine-1"]
    (excluded,) = timeline(config.directory.events).of("node_excluded")
    assert (excluded["host"], [check["check"] for check in excluded["checks"]]) == ("machine-1", ["replay"])
    found = run_ranks(2, trained, config, "", "other-")[0]
    assert found["record"] == ReplayRecord(steps=12, samples=4, mismatches=1, last=12, other_hosts=True)
    undisturbed = checkpoint.read_state(uninterrupted.directory, 12)
    assert {name: found[name] for name in snapshot.DIGESTS} == {name: undisturbed[name] for name in snapshot.DIGESTS}
    assert [event["step"] for event in timeline(config.directory.events).of("resumed")] == [3]


def test_the_work_of_a_rank_is_done_by_ranks_with_the_same_part_of_the_model(make: Make, tmp_path: Path) -> None:
    ring = DataRing(configured(make, tmp_path, 8, parallel=Parallel(tensor=2)))
    assert (ring.size, [ring.worker(3, shift) for shift in (0, 1, -1, 5)]) == (4, [3, 5, 1, 5])
    nodes = [[ring.worker(rank, ring.to_next_node(size)) // size for rank in range(8)] for size in (2, 4)]
    assert nodes == [[1, 1, 2, 2, 3, 3, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]]
    assert [ring.replica_of(rank) for rank in range(8)] == [0, 1] * 4


@pytest.mark.parametrize(("hosts", "bad"), [(("a", "a", "b", "b"), ["b"]), (("b", "b", "b", "b"), [])])
def test_the_last_machine_is_not_excluded(hosts: tuple[str, ...], bad: list[str]) -> None:
    places = tuple(Place(number // 2, host, None, "") for number, host in enumerate(hosts))
    found = Mismatch(7, "weights", DeviceVerdict((2, 3)), 2, places)
    assert [report.host for report in found.reports()] == bad
    undecided = Mismatch(7, "weights", DeviceVerdict((), (0, 2)), 2, places)
    assert (undecided.reports(), list(undecided.device_errors())) == ([], [])
    assert undecided.reason.endswith(f"rank 0 on {hosts[0]} and rank 2 on {hosts[2]} disagree")


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "parallel", "changes"),
    [
        (2, Parallel(zero_stage=0), {"precision": "bf16"}),
        (4, Parallel(zero_stage=1), {}),
        (3, Parallel(zero_stage=2), {"precision": "bf16", "optimizer": Optimizer(kind="muon", ema_decay=0.9)}),
        (2, Parallel(zero_stage=3), {}),
        (2, Parallel(zero_stage=1, compile=True), {}),
        (4, Parallel(zero_stage=1, tensor=2), {"precision": "bf16"}),
        (4, Parallel(zero_stage=2, sequence=2), {}),
    ],
)
def test_an_undisturbed_run_is_the_same_with_replays_and_has_no_mismatch(
    ranks: int, parallel: Parallel, changes: dict[str, Any], make: Make, tmp_path: Path
) -> None:
    ends = []
    for checks in (OFTEN, None):
        root = tmp_path / str(checks is None)
        root.mkdir()
        config = configured(make, root, ranks, **changes, parallel=parallel, total_steps=60, replay_checks=checks)
        ends.append(run_ranks(ranks, trained, config, "")[0])
        assert timeline(config.directory.events).of("intervention") == []
    replayed = ends[0].pop("record")
    assert (replayed.mismatches, replayed.steps) == (0, 60)
    assert replayed.samples == len(list(samples("0" * 64, OFTEN.share, 60)))
    assert ends[1].pop("record").samples == 0
    assert ends[0] == ends[1]
