"""Proof that a resume is exact: a range of steps is replayed from a committed checkpoint and compared.

A new process per rank loads the checkpoint and trains up to a later committed checkpoint, without writing into the run.
It compares these items with the original timeline and checkpoints:

    every step                loss, gradient norm, learning rate, batch, and if the update was applied
    skipped steps             windows of rollbacks, and every other intervention of the guard
    every commit on the way   parameters, optimizer state and generators of every rank, monitor and guard

If any value differs, the same steps are replayed once more from the same checkpoint. The difference between the two
replays measures the nondeterminism of kernels on this hardware (tolerance).

Differences are recorded as evidence, and a gate decides. The evidence contains no times or paths. `resume.json` is the
newest evidence; `audits/` keeps all evidence.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from plinth.model.folder import SavedWeights
from plinth.model.hugging_face import hf_name
from plinth.training.checkpoint import checkpoint, model_share, snapshot
from plinth.training.checkpoint.resume import SharedVerification
from plinth.training.checkpoint.selection import rollbacks_of
from plinth.training.config import RunConfig, layout_of
from plinth.training.corruption.sampling import RECORD
from plinth.training.engine.engine import Rank, TrainingEngine
from plinth.training.engine.skipped_update import Measured
from plinth.training.forensics.proof import COMPARED, FACTOR, MEASURED, WHOLLY, span, store
from plinth.training.guard.rules import Intervention
from plinth.training.telemetry.timeline import History, Pulse, Timeline, timeline
from plinth.training.trainer import Trainer


@dataclass
class Replayed:
    """Steps and states of a replay. `states` maps each committed step in the range to the state after it."""

    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    skipped: list[int] = field(default_factory=list)
    interventions: list[dict[str, Any]] = field(default_factory=list)
    states: dict[int, dict[str, Any]] = field(default_factory=dict)
    difference: float = 0.0  # largest, to the parameters of the last commit
    tolerance: dict[str, Any] | None = None  # from a second replay, if this one differs


def replay(config: RunConfig, rank: Rank, start: int | None = None, *, other_code: bool = False) -> None:
    """Replay from an earlier committed checkpoint to the newest one.

    The replay starts at the last checkpoint committed up to step `start` (by default `config.audit_step`). The leading
    rank writes the evidence.

    Args:
        other_code: True if this code has not trained the run. Its replay is not evidence about a resume; the newest
            such evidence stays, and no event `audited` is logged.

    Raises:
        MissingError: fewer than two committed checkpoints can be used.
        CheckpointError, ResumeError: a checkpoint cannot be trusted.
    """
    first, commits = span(config, start)
    verification = SharedVerification(config, rank)
    for step in (first, *commits):
        verification.verify(step)
    trainer = Trainer(config, rank)
    found = _replay(trainer, first, commits)
    if _differs(config, rank, first, found):
        found.tolerance = _measure(trainer, first, commits)
    if not rank.leads:
        return
    evidence = compare(config, first, found)
    if other_code:
        store(config, evidence, of_resume=False)
    else:
        write(config, evidence)


def _differs(config: RunConfig, rank: Rank, first: int, found: Replayed) -> bool:
    """Return True on every rank if the leading rank finds a difference. All ranks must call this."""
    differs = [rank.leads and not compare(config, first, found)["bit_exact"]]
    torch.distributed.broadcast_object_list(differs, src=0)
    return bool(differs[0])


def _measure(trainer: Trainer, first: int, commits: list[int]) -> dict[str, Any]:
    """Replay the steps once more and measure the nondeterminism. All ranks must call this.

    Return the numbers of each step, the distance between the final states of both replays, and the distance between the
    first replay and the original.
    """
    engine = trainer.engine
    before = share_of(engine)
    again = _replay(trainer, first, commits)
    repeated = distance(engine, before)
    trainer.load(commits[-1])
    return {
        "method": METHOD,
        "factor": FACTOR,
        "hardware": hardware(engine),
        "deterministic": trainer.config.deterministic,
        "state": {"original": distance(engine, before), "repeated": repeated},
        "steps": {step: {name: row[name] for name in MEASURED} for step, row in again.steps.items()},
    }


def _replay(trainer: Trainer, first: int, commits: list[int]) -> Replayed:
    trainer.load(first)
    trainer.guard.set_rollbacks(rollbacks_of(trainer.config))
    found, stream = Replayed(), trainer.batches(first + 1)
    for step in range(first + 1, commits[-1] + 1):
        os.utime(trainer.config.directory.events)  # no event is written, so signals progress to the supervisor
        if trainer.guard.leaves_out(step) is None:
            measured = trainer.launch(stream, step).read()
            found.interventions += [made.event() for made in trainer.record(measured)]
            found.steps[step] = _step(measured, trainer.monitor.loss_ema)
        else:
            next(stream)
            found.skipped.append(step)
        while (hook := trainer.hooks.due(step)) is not None:
            hook.adopt(step)
        if step in commits:
            monitor = json.loads(json.dumps(trainer.state()))
            found.states[step] = {**snapshot.digests(trainer.engine), "monitor": monitor}
    found.difference = _parameter_difference(trainer.engine, commits[-1])
    return found


def _layout(config: RunConfig, step: int) -> dict[str, int]:
    """Return the layout of the ranks that saved a checkpoint."""
    layout: dict[str, int] = checkpoint.read_state(config.directory, step)["layout"]
    return layout


def _step(measured: Measured, loss_ema: float | None) -> dict[str, Any]:
    return {name: loss_ema if name == "loss_ema" else getattr(measured, name) for name in COMPARED}


def compare(config: RunConfig, first: int, found: Replayed) -> dict[str, Any]:
    """Return the evidence: each original and replayed value, and if the two are equal."""
    history, last = timeline(config.directory.events), max(found.states)
    steps = [_compared(history.steps.get(step, {}), step, again) for step, again in found.steps.items()]
    skipped = sorted(step for step in history.skipped if first < step <= last)
    acted = [_comparable(event) for event in _repeatable_interventions(history, first, last)]
    again = [_comparable(json.loads(json.dumps(event))) for event in found.interventions]
    commits = [_commit(config, step, state) for step, state in sorted(found.states.items())]
    measured = dict(found.tolerance or {})
    for row, again_measured in ((row, measured.get("steps", {}).get(row["step"], {})) for row in steps):
        for name, value in again_measured.items():
            row[name]["repeated"] = value
    measured.pop("steps", None)
    same = {
        "steps": all(row["equal"] for row in steps),
        "skipped": skipped == found.skipped,
        "interventions": acted == again,
        "states": all(commit["equal"] for commit in commits),
    }
    return {
        "claim": "a run resumed from `from_step` equals the uninterrupted one",
        "bit_exact": all(same.values()),
        "equal": same,
        "from_step": first,
        "to_step": last,
        "compared_steps": len(steps),
        "skipped_steps": {"original": skipped, "replayed": found.skipped},
        "interventions": {"original": acted, "replayed": again},
        "ranks": config.ranks,
        "zero_stage": config.parallel.zero_stage,
        "layouts": {  # the order of sums depends on the layout, so only a replay on the same layout is exact
            "original": {str(step): _layout(config, step) for step in (first, *sorted(found.states))},
            "replayed": layout_of(config),
        },
        "max_abs_difference": {
            "loss": _largest_difference(steps, "loss"),
            "grad_norm": _largest_difference(steps, "grad_norm"),
            "parameters": found.difference,
        },
        "tolerance": measured or None,
        "same_batches": all(row["batch"]["original"] == row["batch"]["replayed"] for row in steps),
        "digests": commits[-1]["parts"],
        "commits": commits,
        "steps": steps,
    }


def write(config: RunConfig, evidence: Mapping[str, Any]) -> None:
    """Store the evidence, and log an event on the timeline."""
    number = store(config, evidence)
    Timeline(config.directory.events).append(
        "audited",
        bit_exact=evidence["bit_exact"],
        from_step=evidence["from_step"],
        to_step=evidence["to_step"],
        compared_steps=evidence["compared_steps"],
        delta=_relative_difference(evidence["steps"], "loss"),
        number=number,
        durable=True,
    )


def _compared(original: Mapping[str, Any], step: int, again: Mapping[str, Any]) -> dict[str, Any]:
    """Compare one step of the original run with the replay. If the timeline lacks the step, every value counts as
    different."""
    pairs = {
        name: {"original": original.get(name, False if name == "vetoed" else None), "replayed": again[name]}
        for name in COMPARED
    }
    return {"step": step, "equal": all(pair["original"] == pair["replayed"] for pair in pairs.values()), **pairs}


def _commit(config: RunConfig, step: int, again: Mapping[str, Any]) -> dict[str, Any]:
    """Compare the original and the replayed state at one commit. List the monitor, which includes the guard, only if it
    differs."""
    expected = checkpoint.read_state(config.directory, step)
    parts: dict[str, Any] = {
        part: {"original": expected[part], "replayed": again[part], "equal": expected[part] == again[part]}
        for part in sorted(again)
        if part != "monitor"
    }
    before, now = (_monitor_at(state["monitor"], step) for state in (expected, again))
    parts["monitor"] = (
        {"equal": before == now} if before == now else {"equal": False, "original": before, "replayed": now}
    )
    return {"step": step, "equal": all(part["equal"] for part in parts.values()), "parts": parts}


def _monitor_at(monitor: Mapping[str, Any], step: int) -> dict[str, Any]:
    """Return the part of the monitor that can be compared with a replay.

    Rollbacks of later windows are left out, because a replay knows them from its start. Held-out slices and
    the record of sampled steps are left out, because a replay evaluates and samples nothing.
    """
    guard = monitor["guard"]
    made = [rollback for rollback in guard["rollbacks"] if rollback["window"][0] <= step]
    known = {name: value for name, value in monitor.items() if name not in ("slices", RECORD)}
    return {**known, "guard": {**guard, "rollbacks": made}}


def _repeatable_interventions(history: History, first: int, last: int) -> Iterator[dict[str, Any]]:
    """Yield the interventions that a replay of these steps repeats.

    Rollbacks are left out, because a replay skips their steps. Interventions on discarded steps and those of the
    throughput rule are left out too.
    """
    for event in history.of("intervention"):
        again = event["action"] != "rollback" and event["rule"] != "throughput"
        if again and first < event["step"] <= last and event["step"] in history.steps:
            yield event


def _comparable(event: Mapping[str, Any]) -> dict[str, Any]:
    made = Intervention.of(event).event()
    names = ("step", "rule", "action", "value", "threshold", "window", "number")
    return {name: str(made[name]) if isinstance(made[name], float) else made[name] for name in names}  # NaN != NaN


def _largest_difference(steps: list[dict[str, Any]], name: str) -> float:
    """Return the largest absolute difference of one number between original and replay. Steps without both values are
    left out."""
    pairs = ((row[name]["original"], row[name]["replayed"]) for row in steps)
    return max((abs(a - b) for a, b in pairs if isinstance(a, float) and isinstance(b, float)), default=0.0)


def _relative_difference(steps: list[dict[str, Any]], name: str) -> float:
    """Return the largest relative difference of one number between original and replay. It is infinite if a step lacks
    one of the two values."""
    pairs = [(row[name]["original"], row[name]["replayed"]) for row in steps]
    if not all(isinstance(one, float) for pair in pairs for one in pair):
        return math.inf
    return max((float(abs(a - b) / abs(a) if a else abs(b)) for a, b in pairs), default=0.0)


def _parameter_difference(engine: TrainingEngine, step: int) -> float:
    """Return the largest absolute difference between the engine's parameters and the parameters in a checkpoint.

    Each parameter is compared by one rank. All ranks must call this.
    """
    division = model_share.division_of(engine)
    wanted = {hf_name(name) for name in division.share(engine.rank.index)}
    found = torch.zeros((), dtype=torch.float64)
    folder = checkpoint.path(engine.config.directory, step) / "model"
    with SavedWeights(folder, names=wanted) if wanted else nullcontext() as saved:  # another machine may have the files
        for name, tensor in model_share.share(engine, division, Pulse(engine.config.directory.events)):
            assert saved is not None
            difference = (tensor.cpu().float() - saved.tensor(hf_name(name)).float()).abs().max()
            found = torch.maximum(found, difference.double())
    found = found.to(engine.rank.device)
    torch.distributed.all_reduce(found, op=torch.distributed.ReduceOp.MAX)
    return float(found)


# Distance between two replays of the same steps on this hardware: the basis of a proof of the class `measured`.
#
# If kernels sum in a nondeterministic order, a resumed run cannot equal the uninterrupted one bit for bit. Two replays
# from the same checkpoint then differ by as much as original and replay do, if the resume is exact. Each rank compares
# its own share of master weights and optimizer state; the model is never gathered.
#
# The conclusion is drawn in `proof`.

METHOD: Final = (
    "the steps were replayed twice from the same checkpoint by the same ranks on this hardware; a bound is "
    f"{FACTOR:g} times the largest relative difference between the two replays"
)


def share_of(engine: TrainingEngine) -> list[Tensor]:
    """Return a copy of this rank's master weights and optimizer state on the CPU. It is as large as the rank's part of
    a checkpoint."""
    return [tensor.detach().to("cpu", copy=True) for tensor in engine.optimizer_tensors()]


def distance(engine: TrainingEngine, other: list[Tensor]) -> float:
    """Return the distance between the current state of all ranks and an earlier copy by `share_of`, from 0 to 2.

    For each tensor, the norm of the difference is divided by the larger of the two norms; the distance is the maximum
    over all tensors. All ranks must call this.
    """
    found = [_relative(now.detach(), then) for now, then in zip(engine.optimizer_tensors(), other, strict=True)]
    largest = torch.tensor(max(found, default=0.0), dtype=torch.float64, device=engine.rank.device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return float(largest)


def _relative(now: Tensor, then: Tensor) -> float:
    then = then.to(now.device)
    if torch.equal(now, then):
        return 0.0
    first, second = now.double(), then.double()
    apart = float((first - second).norm() / torch.maximum(first.norm(), second.norm()))
    return apart if math.isfinite(apart) else WHOLLY


def hardware(engine: TrainingEngine) -> list[str]:
    """Return the device and library versions of each rank, in rank order. All ranks must call this."""
    device = engine.rank.device
    if device.type == "cuda":
        version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
        libraries = f"CUDA {torch.version.cuda}, NCCL {'.'.join(map(str, version))}"
        name = f"{torch.cuda.get_device_name(device)}, {libraries}"
    else:
        name = f"{platform.machine()} CPU, {torch.backends.cpu.get_cpu_capability()}"
    found: list[Any] = [None] * engine.rank.world
    dist.all_gather_object(found, f"{name}, torch {torch.__version__}")
    return [str(one) for one in found]
