"""Verification of the evidence that a resume is exact. It recomputes conclusions from the listed values, without torch.

The evidence lists every step and every committed state, both of the replay and of the original run. This module
compares the values again, and compares the digest of the parameters with the checkpoint to be released.

There are two classes of proof; the gate policy names the classes that it accepts:

    bit-equal   every number of every step and every committed state is equal
    measured    decisions are equal (batches, rates, updates, interventions, generators), and numbers differ by at most
                `FACTOR` times the largest difference between two replays of the same steps from the same checkpoint on
                the same hardware
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from plinth import processes
from plinth.errors import MissingError, TrainingError
from plinth.processes import free_port
from plinth.records import Frozen
from plinth.storage.atomic import append_to, write_bytes
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.forensics.order_proof import order_proof
from plinth.training.shared_run.shipping import claimed
from plinth.training.stopping import last_step
from plinth.training.supervise.rank_watch import describe_exit, watch
from plinth.training.supervise.result import hold
from plinth.training.telemetry.timeline import Timeline

#: Fields of a step that must be equal in the replay.
COMPARED = ("loss", "grad_norm", "lr", "loss_ema", "batch", "vetoed")
#: Fields affected by kernel arithmetic; all others are decisions.
MEASURED = ("loss", "grad_norm", "loss_ema")
PARAMETERS = "parameters_sha256"
GENERATORS = "rng_sha256"

#: Tolerance = FACTOR x the largest difference between two replays. Original and replay differ like two replays do; the
#: largest of some dozens of such differences is seldom more than 3 times the largest of another sample of that size.
FACTOR: Final = 8.0

#: Losses and norms are sums in FP32: two that differ at all differ by at least this share. A number that is equal in
#: two replays by chance, although they end in different states, counts as having this difference.
RESOLUTION: Final = 2.0**-23

#: Relative difference of two numbers of opposite sign and equal size: the maximum.
WHOLLY: Final = 2.0

ToleranceClass = Literal["bit-equal", "measured"]


class MeasuredBound(Frozen):
    """Bound for one number: the largest relative difference between original and replay, the largest difference between
    two replays, and the allowed maximum."""

    difference: float
    spread: float

    @property
    def bound(self) -> float:
        return FACTOR * self.spread

    @property
    def holds(self) -> bool:
        """True if the difference is within the bound. A bound of 1 or more is never met, because it would allow any
        value."""
        return self.difference <= self.bound < 1


class Tolerance(Frozen):
    """Measured bounds on which a proof of the class `measured` is based."""

    bounds: Mapping[str, MeasuredBound]
    hardware: tuple[str, ...]
    method: str
    faults: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """True if every difference is within its bound and all decisions are the same."""
        return not self.faults

    @property
    def largest(self) -> float:
        """Largest of the allowed relative differences."""
        return max(one.bound for one in self.bounds.values())


class ResumeProof(Frozen):
    """Result of the verification: the number of compared steps, and the reasons why they are not bit-equal, one
    sentence each.

    If the steps are not bit-equal, the result includes the measured tolerance.
    """

    compared_steps: int
    faults: tuple[str, ...]
    tolerance: Tolerance | None = None

    @property
    def bit_exact(self) -> bool:
        """True if steps were compared, all are equal, and the evidence belongs to this checkpoint."""
        return not self.faults and self.compared_steps > 0

    @property
    def classes(self) -> tuple[ToleranceClass, ...]:
        """Classes of proof that the evidence supports."""
        if self.bit_exact:
            return ("bit-equal", "measured")
        within = self.tolerance is not None and self.tolerance.holds and self.compared_steps > 0
        return ("measured",) if within else ()


def examined(evidence: Mapping[str, Any], *, step: int, parameters_sha256: str) -> ResumeProof:
    """Recompute the comparison of original and replay from the evidence.

    Args:
        evidence: content of `resume.json`.
        step: step of the checkpoint.
        parameters_sha256: digest of the checkpoint's parameters, from its manifest.

    Returns:
        A proof that lists faults if the evidence is incomplete.
    """
    try:
        skeleton = tuple(_skeleton(evidence, step))
        faults = (*skeleton, *_differences(evidence), *_another(evidence, parameters_sha256, "replayed"))
        compared = len(evidence["steps"])
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        return ResumeProof(compared_steps=0, faults=(f"the evidence lists no replay: {error!r}",))
    if not faults or not evidence.get("tolerance"):
        return ResumeProof(compared_steps=compared, faults=faults)
    try:
        tolerance = _tolerance(evidence, (*skeleton, *_another(evidence, parameters_sha256, "original")))
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        lacking = f"the evidence lists no second replay: {error!r}"
        return ResumeProof(compared_steps=compared, faults=(*faults, lacking))
    return ResumeProof(compared_steps=compared, faults=faults, tolerance=tolerance)


def other_decisions(evidence: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the decisions in which original and replay differ (batches, rates, updates, interventions, generators), as
    sentences. Differences of arithmetic are left out.

    Raises:
        KeyError, TypeError, IndexError, ValueError: the evidence lists no replay.
    """
    return (*_skeleton(evidence, int(evidence["to_step"])), *_undecided(evidence))


def _skeleton(evidence: Mapping[str, Any], step: int) -> Iterator[str]:
    """Yield the faults that no tolerance excuses: wrong steps compared, or wrong steps skipped."""
    skipped, acted = evidence["skipped_steps"], evidence["interventions"]
    listed = sorted({int(row["step"]) for row in evidence["steps"]} | set(skipped["replayed"]))
    expected = list(range(int(evidence["from_step"]) + 1, int(evidence["to_step"]) + 1))
    if listed != expected or not expected:
        yield (
            f"the evidence lists steps {listed[:1]} to {listed[-1:]} instead of all steps from {expected[:1]} to "
            f"{expected[-1:]}"
        )
    if skipped["original"] != skipped["replayed"]:
        yield "skipped steps differ"
    if _decisions(acted["original"]) != _decisions(acted["replayed"]):
        yield "interventions differ"
    ends = int(evidence["commits"][-1]["step"])
    if ends != step:
        yield f"the replay ends at step {ends}, not at the checkpoint's step {step}"


def _differences(evidence: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each step or state in which original and replay differ."""
    acted = evidence["interventions"]
    if _decisions(acted["original"]) == _decisions(acted["replayed"]) and acted["original"] != acted["replayed"]:
        yield "values of interventions differ"
    for row in evidence["steps"]:
        if different := [name for name in COMPARED if row[name]["original"] != row[name]["replayed"]]:
            yield f"step {row['step']}: {', '.join(different)} differ"
    for commit in evidence["commits"]:
        if different := [name for name, part in commit["parts"].items() if not _equal(part)]:
            yield f"state at step {commit['step']}: {', '.join(different)} differ"


def _another(evidence: Mapping[str, Any], parameters: str, side: str) -> Iterator[str]:
    if evidence["commits"][-1]["parts"][PARAMETERS][side] != parameters:
        yield f"the replay ends with other parameters ({side}) than the checkpoint"


def _tolerance(evidence: Mapping[str, Any], faults: tuple[str, ...]) -> Tolerance:
    """Return the tolerance that the evidence supports, recomputed from the steps of both replays."""
    measured, rows = evidence["tolerance"], evidence["steps"]
    state = MeasuredBound(difference=measured["state"]["original"], spread=measured["state"]["repeated"])
    least = RESOLUTION if state.spread > 0 else 0.0
    bounds = {**{name: _of_steps(rows, name, least) for name in MEASURED}, "state": state}
    found = [*faults, *_undecided(evidence)]
    found += [
        f"{name} differs by {one.difference:.3g}, which exceeds {FACTOR:g} times the difference between two replays "
        f"({one.spread:.3g})"
        for name, one in bounds.items()
        if not one.holds
    ]
    if not measured["hardware"]:
        found.append("the evidence does not name its hardware")
    return Tolerance(
        bounds=bounds, hardware=tuple(measured["hardware"]), method=measured["method"], faults=tuple(found)
    )


def _of_steps(rows: list[Mapping[str, Any]], name: str, least: float) -> MeasuredBound:
    """Return the bound of one number over all steps. The difference between two replays counts as at least `least`."""
    pairs = [row[name] for row in rows]
    return MeasuredBound(
        difference=max(relative(pair["original"], pair["replayed"]) for pair in pairs),
        spread=max(least, *(relative(pair["repeated"], pair["replayed"]) for pair in pairs)),
    )


def relative(first: float, second: float) -> float:
    """Return the absolute difference of two numbers divided by the larger magnitude, at most `WHOLLY`.

    The result is `WHOLLY` if only one number is finite.
    """
    if first == second or (math.isnan(first) and math.isnan(second)):
        return 0.0
    found = abs(first - second) / max(abs(first), abs(second))
    return found if math.isfinite(found) else WHOLLY


def _undecided(evidence: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each step or state in which decisions (batches, rates, updates, interventions) differ."""
    for row in evidence["steps"]:
        exact = [name for name in COMPARED if name not in MEASURED]
        if different := [name for name in exact if row[name]["original"] != row[name]["replayed"]]:
            yield f"step {row['step']}: {', '.join(different)} differ, and no tolerance applies to them"
    for commit in evidence["commits"]:
        parts = commit["parts"]
        monitor = parts["monitor"]
        same = _equal(monitor) or _decisions(monitor["original"]) == _decisions(monitor["replayed"])
        different = [name for name, equal in ((GENERATORS, _equal(parts[GENERATORS])), ("monitor", same)) if not equal]
        if different:
            yield f"state at step {commit['step']}: {', '.join(different)} differ, and no tolerance applies to them"


def _decisions(value: Any) -> Any:
    """Return a copy of a record without its measured numbers. Measured numbers are floats, or floats written as
    text."""
    if isinstance(value, Mapping):
        return {name: _decisions(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_decisions(inner) for inner in value]
    if isinstance(value, str):
        return None if _fraction(value) else value
    return None if isinstance(value, float) else value


def _fraction(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return not text.isdigit()


def _equal(part: Mapping[str, Any]) -> bool:
    """Return True if original and replay agree. The monitor's state is listed only if it differs."""
    if "replayed" in part:
        return bool(part["original"] == part["replayed"])
    return part["equal"] is True


# Audit of a run that is not training: selection of the checkpoints to replay between. It reads files only, so the
# command line can check them before it starts ranks.


def span(config: RunConfig, start: int | None = None, committed: Sequence[int] | None = None) -> tuple[int, list[int]]:
    """Return the newest step committed up to `start`, and the later committed steps in order.

    By default `start` is the checkpoint that is kept for the audit. If a stopping rule ended the run before that
    checkpoint, `start` is an earlier one.

    Args:
        committed: committed steps in order, if they are not those of the run's folder.

    Raises:
        MissingError: no checkpoint exists up to `start`, or no later one exists.
    """
    start = min(config.audit_step, last_step(config) - 1) if start is None else start
    steps = checkpoint.committed(config.directory) if committed is None else committed
    before = [step for step in steps if step <= start]
    after = [step for step in steps if before and step > before[-1]]
    if not after:
        raise MissingError(
            f"run {config.run_id} has nothing to replay from step {start}",
            found=f"checkpoints of steps {', '.join(map(str, steps)) or 'none'}",
            expected=f"one checkpoint at or before step {start}, and another checkpoint after it",
            remedy="pass an earlier step with --from, or let the run commit another checkpoint",
        )
    return before[-1], after


def store(config: RunConfig, evidence: Mapping[str, Any], *, of_resume: bool = True) -> int:
    """Store evidence next to all earlier evidence, and return its number.

    Args:
        of_resume: True if it is the newest evidence about a resume; False if other code replayed the run's steps.
    """
    run = config.directory
    data = json.dumps(evidence, indent=1, sort_keys=True).encode() + b"\n"
    number = len(list(run.audits.glob("*.json"))) + 1 if run.audits.exists() else 1
    write_bytes(run.audits / f"{number:04d}.json", data)
    if of_resume:
        write_bytes(run.evidence, data)
    return number


def newest(run: RunDirectory) -> tuple[bytes, dict[str, Any]]:
    """Return the newest stored evidence of any code, as bytes and as an object.

    Raises:
        MissingError: there is none.
    """
    path = max(run.audits.glob("*.json"), default=None)
    if path is None:
        raise MissingError(f"run {run.root.name} has no evidence of a replay", expected=run.audits)
    data = path.read_bytes()
    return data, json.loads(data)


def store_order(config: RunConfig, evidence: Mapping[str, Any]) -> None:
    """Store the evidence about an external trainer's order, and log an event on the timeline."""
    number, found = store(config, evidence), order_proof(evidence)
    Timeline(config.directory.events).append("replayed", number=number, durable=True, **found.model_dump())


# Audit of a run that is not training: start ranks for the audit.
#
# The audit holds the run's lock, so no job changes the compared state. No torch; the ranks are processes of their own.


def audit(config: RunConfig, start: int | None = None) -> dict[str, Any]:
    """Replay from the newest checkpoint committed up to step `start`; store the evidence and return it. If an external
    trainer trained the run, sampled steps are replayed.

    Raises:
        LaunchError: the run is training.
        MissingError: fewer than two committed checkpoints can be used.
        TrainingError: a rank failed.
    """
    if config.trainer is None:
        span(config, start)
    held = hold(config.directory.lock)
    try:
        with claimed(config):
            _replay(config, start, held)
    finally:
        os.close(held)
    evidence: dict[str, Any] = json.loads(config.directory.evidence.read_bytes())
    return evidence


def _replay(config: RunConfig, start: int | None, held: int) -> None:
    run, port = config.directory, free_port()
    command = processes.python("plinth.training", str(run.config), "--audit")
    command += ["--start", str(start)] if start is not None else []
    shared = {"WORLD_SIZE": config.ranks, "LOCAL_WORLD_SIZE": config.ranks, "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": port, "OMP_NUM_THREADS": max(1, (os.cpu_count() or 1) // config.ranks)}
    with append_to(run.log) as log:
        ranks = []
        for rank in range(config.ranks):
            place = {name: str(value) for name, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()}
            own = {**config.launch.environment, **place, "PLINTH_SUPERVISOR": str(os.getpid())}
            ranks.append(
                processes.start(
                    command, *processes.JOB, own=own, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(held,)
                )
            )
        hanging = watch(ranks, run.events, config.supervision, lambda: 0, lambda: None, lambda: None)
        codes = [process.wait() for process in ranks]
    if any(codes):
        said = hanging or "; ".join(describe_exit(rank, code) for rank, code in enumerate(codes) if code)
        raise TrainingError("the audit failed", found=said, remedy=f"see the end of {run.log}")
