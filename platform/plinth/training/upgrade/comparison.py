"""Verdict about new code, from a replay of the run's last committed steps by that code.

    bit-equal         every number and every committed state is equal
    measured          numbers differ by no more than two replays of the new code differ (proof.FACTOR), and no step has
                      a loss that is higher by more than `max_increase`: code that is noisy enough repeats anything
    no worse          the 95% interval of the mean difference of the loss ends below `max_increase`
    undecided, worse  it does not, and includes 0 or is above 0; with fewer than 8 steps it is never decided
    other decisions   batches, learning rates, skipped steps, interventions or random numbers differ

The loss of a step is that of text the model has not seen, so the mean difference over steps is that on unseen text. The
differences of neighboring steps are alike, because the parameters drift apart: they are clustered in blocks of steps.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from plinth.errors import CheckpointError
from plinth.evaluation import statistics
from plinth.evaluation.statistics import Estimate
from plinth.storage.workspace import Workspace
from plinth.training import attempts
from plinth.training.attempts import AttemptRecord, this_host
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.forensics.proof import PARAMETERS, examined, newest, other_decisions
from plinth.training.upgrade.record import CodeComparison, UpgradeRequest, UpgradeVerdict
from plinth.trust.dsse import TRAINER
from plinth.trust.root import Trust

#: Number of blocks of steps, the clusters of the interval.
BLOCKS = 16

#: Number of steps below which no interval is trusted.
FEWEST = 8


def compared(config: RunConfig, request: UpgradeRequest) -> CodeComparison:
    """Return the comparison of this machine's code with the code of the run, from the newest replay.

    All changes of the run's code together may increase the loss by `request.max_increase`: what earlier ones may have
    increased it by is no longer available.

    Raises:
        LineageError, SignatureError: the attestations of earlier attempts cannot be trusted.
        CheckpointError: the replay cannot be read.
    """
    data, evidence = newest(config.directory)
    records = trained(config.directory)
    limit = max(0.0, request.max_increase - sum(one.upgrade.increase for one in records if one.upgrade))
    try:
        verdict, found = judged(evidence, limit)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise CheckpointError(f"the replay of run {config.run_id} cannot be read", found=repr(error)) from error
    return CodeComparison(
        before=records[-1].hosts[0].trains_with,
        after=this_host().trains_with,
        from_step=evidence["from_step"],
        to_step=evidence["to_step"],
        steps=len(evidence["steps"]),
        verdict=verdict,
        difference=found.value if found else None,
        low=found.low if found else None,
        high=found.high if found else None,
        parameters=evidence["max_abs_difference"]["parameters"],
        max_increase=limit,
        evidence_sha256=hashlib.sha256(data).hexdigest(),
    )


def judged(evidence: Mapping[str, Any], max_increase: float) -> tuple[UpgradeVerdict, Estimate | None]:
    """Return the verdict about new code, and the mean difference of the loss of a step (new minus old, nats per token)
    if the numbers differ.

    Args:
        evidence: replay of committed steps by the new code (`forensics.audit.compare`).
        max_increase: largest accepted increase of the loss, in nats per token: of each step if it is `measured`, else
            the upper end of the interval.

    Raises:
        KeyError, TypeError, IndexError, ValueError: the evidence lists no replay.
    """
    parameters = evidence["commits"][-1]["parts"][PARAMETERS]["original"]
    proof = examined(evidence, step=evidence["to_step"], parameters_sha256=parameters)
    if proof.bit_exact:
        return "bit-equal", None
    if other_decisions(evidence):
        return "other decisions", None
    losses = [(row["loss"]["replayed"], row["loss"]["original"]) for row in evidence["steps"]]
    if not all(math.isfinite(new) and math.isfinite(old) for new, old in losses):
        return "worse", None
    width, higher = math.ceil(len(losses) / BLOCKS), [new - old for new, old in losses]
    found = statistics.mean(higher, [at // width for at in range(len(losses))])
    if "measured" in proof.classes and max(higher) <= max_increase:
        return "measured", found.model_copy(update={"low": min(higher), "high": max(higher)})
    if not found.low < found.high:
        return "undecided", None
    if len(losses) < FEWEST:
        return "undecided", found
    if found.high <= max_increase:
        return "no worse", found
    return ("worse" if found.low > 0 else "undecided"), found


def is_new_code(run: RunDirectory) -> bool:
    """Return True if the software of this machine is not that of the newest attempt that trained.

    Raises:
        LineageError, SignatureError: the attestations of earlier attempts cannot be trusted.
    """
    return trained(run)[-1].hosts[0].trains_with != this_host().trains_with


def trained(run: RunDirectory) -> list[AttemptRecord]:
    """Return the attempts that trained, in order, after checking the signatures of all attempts.

    Raises:
        LineageError, SignatureError: the attestations cannot be trusted, or there is none.
    """
    authority = Trust.of(Workspace(run.workspace)).authority(TRAINER)
    found = attempts.opened(attempts.known(run), authority, run.root.name)
    return [one for one in found if not one.audit]
