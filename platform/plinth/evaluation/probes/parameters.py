"""Which probes a run is measured with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from plinth.records import Frozen, Name, internal

Family = Literal["knowledge", "code", "maths", "long_context", "languages", "safety"]
FAMILIES: tuple[Family, ...] = ("knowledge", "code", "maths", "long_context", "languages", "safety")


class UserProbe(Frozen):
    """A probe of the user's own: a JSON object a line, with `prompt`, `gold` and the like (docs/probes.md)."""

    path: str = Field(description="JSONL file, relative to `input/`.")
    family: Family = Field("knowledge", description="Family that it is reported under.")
    examples: int = Field(
        0, ge=0, description="The first so many lines stand before every prompt as examples, and are not scored."
    )
    max_rejected: float = internal(0.01, ge=0, le=1, description="Most share of lines that are no items.")


class Probes(Frozen):
    """Probes: small sets of items, scored by likelihood, that training text must not hold."""

    families: tuple[Name, ...] = Field(
        FAMILIES, description="Probes made by code: the built-in one of each family, or of an installed package."
    )
    sets: Mapping[Name, UserProbe] = Field(default_factory=dict, description="Probes of your own by name.")

    @model_validator(mode="after")
    def _names(self) -> Probes:
        for name in self.sets:
            if name in (*FAMILIES, *self.families):
                raise ValueError(f"sets.{name}: {name!r} is a probe made by code; give yours another name")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """All probes, in the order in which they are built and shown."""
        others = sorted({*self.families} - {*FAMILIES})
        return (*(name for name in FAMILIES if name in self.families), *others, *sorted(self.sets))
