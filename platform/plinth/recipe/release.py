"""Evaluation, gates, approval, promotion."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen


class Evaluation(Frozen):
    """Bits per byte on the held-out slices, beside two baselines on the same bytes."""

    max_bytes_per_slice: int = Field(2**20, gt=0)
    batch_sequences: int = Field(8, ge=1)


class Gates(Frozen):
    """What a candidate must prove; each gate gives evidence and a reason."""

    beat_trigram: bool = Field(True, description="Bits per byte below the byte trigram on every slice.")
    max_bits_per_byte: float | None = Field(None, description="Absolute bound on every slice.")
    max_contaminated_documents: int = Field(0, ge=0)
    require_resume_evidence: bool = True
    approvals: int = Field(1, ge=0, description="People who must approve.")
    approvers: tuple[str, ...] = Field((), description="Who may approve; empty means anyone with access.")


class Release(Frozen):
    """The registered model."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    gates: Gates = Gates()
    auto_approve_as: str | None = Field(
        None, description="Demo only: sign an approval as this person with a key made on first use."
    )
