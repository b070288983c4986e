"""The evidence that a resume is exact, read again: what it concludes is counted from what it lists. No torch.

A file that only says so proves nothing. Every step and every committed state of the replay stands in the evidence
beside the original; here they are compared once more, and tied to the parameters of the checkpoint to be released.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from plinth.records import Frozen

#: Fields of a step that must be equal in the replay.
COMPARED = ("loss", "grad_norm", "lr", "loss_ema", "batch", "vetoed")
PARAMETERS = "parameters_sha256"


class ResumeProof(Frozen):
    """What the evidence shows: steps compared, and why it proves nothing, a sentence each."""

    compared_steps: int
    faults: tuple[str, ...]

    @property
    def bit_exact(self) -> bool:
        """Something was compared, and all of it is equal and about this checkpoint."""
        return not self.faults and self.compared_steps > 0


def examined(evidence: Mapping[str, Any], *, step: int, parameters_sha256: str) -> ResumeProof:
    """Compare original and replay again.

    Args:
        evidence: content of `resume.json`.
        step: of the checkpoint.
        parameters_sha256: digest of its parameters, from its manifest.

    Returns:
        A proof with faults where the evidence lacks what it must list.
    """
    try:
        return ResumeProof(
            compared_steps=len(evidence["steps"]), faults=tuple(_faults(evidence, step, parameters_sha256))
        )
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        return ResumeProof(compared_steps=0, faults=(f"it lists no replay: {error!r}",))


def _faults(evidence: Mapping[str, Any], step: int, parameters: str) -> Iterator[str]:
    skipped, acted = evidence["skipped_steps"], evidence["interventions"]
    listed = sorted({int(row["step"]) for row in evidence["steps"]} | set(skipped["replayed"]))
    expected = list(range(int(evidence["from_step"]) + 1, int(evidence["to_step"]) + 1))
    if listed != expected or not expected:
        yield f"it lists steps {listed[:1]} to {listed[-1:]}, not {expected[:1]} to {expected[-1:]} without a gap"
    for name, pair in (("skipped steps", skipped), ("interventions", acted)):
        if pair["original"] != pair["replayed"]:
            yield f"{name} differ"
    for row in evidence["steps"]:
        if different := [name for name in COMPARED if row[name]["original"] != row[name]["replayed"]]:
            yield f"step {row['step']}: {', '.join(different)} differ"
    for commit in evidence["commits"]:
        if different := [name for name, part in commit["parts"].items() if not _equal(part)]:
            yield f"state at step {commit['step']}: {', '.join(different)} differ"
    last = evidence["commits"][-1]
    found = (int(last["step"]), last["parts"][PARAMETERS]["replayed"])
    if found != (step, parameters):
        yield f"the replay ends at step {found[0]} with other parameters than the checkpoint of step {step}"


def _equal(part: Mapping[str, Any]) -> bool:
    """Digests are compared; the monitor's state is listed only where it differs."""
    if "replayed" in part:
        return bool(part["original"] == part["replayed"])
    return part["equal"] is True
