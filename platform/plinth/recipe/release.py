"""Gates, approval, promotion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from plinth.records import Frozen, internal


class Gates(Frozen):
    """Conditions on a candidate; each gate gives evidence and a reason."""

    beat_gzip: bool = Field(True, description="Bits per byte below `gzip -9` on every slice.")
    beat_trigram: bool = Field(True, description="Bits per byte below the byte trigram on every slice.")
    max_bits_per_byte: float | None = Field(None, gt=0, description="Absolute bound on every slice.")
    max_contaminated_documents: int = internal(
        0, ge=0, description="Training documents that may still overlap the held-out set."
    )
    require_resume_evidence: bool = internal(True, description="A resumed run must have been proved bit-exact.")
    max_stability_events: int | None = internal(
        None, ge=0, description="Interventions and restarts allowed in the run; they are reported in any case."
    )
    approvals: int = Field(1, ge=0, description="Different people who must approve.")
    approvers: tuple[str, ...] = Field((), description="Who may approve; empty means anyone with access.")
    two_person: bool = Field(
        False, description="At least two people, neither of whom is the one that asked for the run."
    )
    extensions: Mapping[str, Mapping[str, Any]] = Field(
        default_factory=dict,
        exclude_if=lambda given: not given,
        description="Gates of installed packages, by name, each with its parameters.",
    )


class ReleaseParameters(Frozen):
    """The registered model."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=64, description="Name of the registered model.")
    gates: Gates = Gates()
    auto_approve_as: str | None = Field(
        None, description="Demo only: sign an approval as this person with a key made on first use."
    )

    @field_validator("name")
    @classmethod
    def _is_no_candidate(cls, name: str) -> str:
        if name.endswith("-candidate"):
            raise ValueError(
                f"{name!r} is the name of candidates: trainers write `NAME-candidate`, releases are `NAME`"
            )
        return name
