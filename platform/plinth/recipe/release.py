"""The registered model. The gates that a release must pass are no part of a recipe: its owner signs them."""

from __future__ import annotations

from pydantic import Field, field_validator

from plinth.records import Frozen


class ReleaseParameters(Frozen):
    """The registered model."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=64, description="Name of the registered model.")
    auto_approve_as: str | None = Field(
        None, description="Demo only: sign an approval as this person, whose key is on this machine."
    )

    @field_validator("name")
    @classmethod
    def _is_no_candidate(cls, name: str) -> str:
        if name.endswith("-candidate"):
            raise ValueError(
                f"{name!r} is the name of candidates: trainers write `NAME-candidate`, releases are `NAME`"
            )
        return name
