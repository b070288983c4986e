"""Parameters of the evaluation: held-out text and its slices, probes, sets of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from plinth.records import Frozen, Name, internal
from plinth.sections import extended

Family = Literal["knowledge", "code", "maths", "long_context", "languages", "safety"]
FAMILIES: tuple[Family, ...] = ("knowledge", "code", "maths", "long_context", "languages", "safety")


class UserProbe(Frozen):
    """A custom probe: a JSON object per line, with fields such as `prompt` and `gold` (docs/probes.md)."""

    path: str = Field(description="JSONL file, relative to `input/`.")
    family: Family = Field("knowledge", description="Family that it is reported under.")
    examples: int = Field(
        0, ge=0, description="The first so many lines stand before every prompt as examples, and are not scored."
    )
    max_rejected: float = internal(0.01, ge=0, le=1, description="Most share of lines that are no items.")


class Probes(Frozen):
    """Probes: small sets of items, scored by likelihood. Training text must not contain them."""

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
        """All probes, in order of construction and display."""
        others = sorted({*self.families} - {*FAMILIES})
        return (*(name for name in FAMILIES if name in self.families), *others, *sorted(self.sets))


class TaskSet(Frozen):
    """Tasks of lm-evaluation-harness that are run together on a checkpoint."""

    include: str = Field(
        description="Folder of task files (YAML, functions, data) in the input folder or at a URI. Data files are "
        "named relative to it; a copy of a hub dataset lies under its name (`allenai/ai2_arc/`)."
    )
    tasks: tuple[str, ...] = Field(
        (),
        description="Tasks, groups or tags of the folder or of lm-evaluation-harness; empty: all of the folder.",
    )
    fewshot: int | None = Field(
        None, ge=0, description="Examples before each question; unset, or where a task fixes none: as the task says."
    )
    limit: int | None = Field(None, ge=1, description="At most so many documents of each task, the first ones.")
    seed: int = Field(1234, ge=0, description="Draws the examples before a question; lm-evaluation-harness' default.")


#: Axes of every evaluation.
BUILT_IN = ("bucket", "language", "domain", "length")

#: The kind of a comparison's lines on text that the parent of a model held out.
PARENT_SLICES = "parent slices"

#: The name of an axis becomes a column and a key of statistics.
AxisName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]


@extended("evaluation")
class Evaluation(Frozen):
    """Bits per byte on held-out slices and protected items, with two baselines on the same bytes; probes; tasks."""

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
        """Return the parameters that bits per byte of held-out text and items depend on."""
        return self.model_dump(mode="json", include={"max_bytes_per_slice", "slices"})

    @field_validator("slices")
    @classmethod
    def _own_names(cls, slices: Mapping[str, str]) -> Mapping[str, str]:
        taken = sorted(set(BUILT_IN) & set(slices))
        if taken:
            raise ValueError(f"every evaluation has slices by {taken[0]}; give yours another name")
        return slices
