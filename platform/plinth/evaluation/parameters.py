"""What is measured of a checkpoint: held-out text and its slices, probes, tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator

from plinth.evaluation.probes.parameters import Probes
from plinth.evaluation.tasks.parameters import TaskSet
from plinth.records import Frozen, Name
from plinth.sections import extended

#: Axes of every evaluation.
BUILT_IN = ("bucket", "language", "domain", "length")

#: The kind of a comparison's lines on text that the parent of a model held out.
PARENT_SLICES = "parent slices"

#: The name of an axis becomes a column and a key of statistics.
AxisName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]


@extended("evaluation")
class Evaluation(Frozen):
    """Bits per byte on the held-out slices and on protected items, beside two baselines on the same bytes; probes."""

    max_bytes_per_slice: int = Field(
        2**20,
        gt=0,
        description="At most this much held-out text per bucket, and of the items of a protected set of each status.",
    )
    probes: Probes = Probes()
    tasks: Mapping[Name, TaskSet] = Field(
        default_factory=dict, description="Sets of tasks of lm-evaluation-harness, from local files."
    )
    against: str = Field(
        "",
        description="Model that every new checkpoint is compared with: `champion` (of the recipe's release), `initial` "
        "(what the run began from: shows what it forgot), a folder of weights, in the workspace's `input` or absolute, "
        "or a checkpoint's digest. Makes the asset `comparison`.",
    )
    slices: Mapping[AxisName, str] = Field(
        default_factory=dict,
        description="Further slices, beside those by bucket, language, domain and length: a name and an expression "
        "over columns of the ledger, in the language of policies. A condition, such as `pii.spans > 0`, makes the "
        "slices `yes` and `no`; a column alone, such as `documents.licence`, one for each value.",
    )
    extensions: Mapping[str, Mapping[str, Any]] = Field(
        default_factory=dict,
        exclude_if=lambda given: not given,
        description="Measurements of installed packages, by name, each with its parameters.",
    )

    def of_held_out(self) -> dict[str, Any]:
        """What the bits per byte of held-out text and items depend on; other parts of the section do not enter."""
        return self.model_dump(mode="json", include={"max_bytes_per_slice", "slices"})

    @field_validator("slices")
    @classmethod
    def _own_names(cls, slices: Mapping[str, str]) -> Mapping[str, str]:
        taken = sorted(set(BUILT_IN) & set(slices))
        if taken:
            raise ValueError(f"every evaluation has slices by {taken[0]}; give yours another name")
        return slices
