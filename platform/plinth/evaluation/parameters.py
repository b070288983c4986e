"""Parameters of the evaluation: held-out text and its slices, probes, task sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from plinth.records import Frozen, Name, internal
from plinth.sections import extended

Family = Literal["knowledge", "code", "maths", "long_context", "languages", "safety"]
FAMILIES: tuple[Family, ...] = ("knowledge", "code", "maths", "long_context", "languages", "safety")


class UserProbe(Frozen):
    """A custom probe: a JSONL file with fields such as `prompt` and `gold` (docs/probes.md)."""

    path: str = Field(description="JSONL file, relative to `input/`.")
    family: Family = Field("knowledge", description="Family under which the probe is reported.")
    examples: int = Field(
        0, ge=0, description="Number of lines at the start that are used as few-shot examples and not scored."
    )
    max_rejected: float = internal(0.01, ge=0, le=1, description="Maximum fraction of invalid lines.")


class Probes(Frozen):
    """Probes: small sets of items, scored by likelihood. The items must not occur in training text."""

    families: tuple[Name, ...] = Field(
        FAMILIES, description="Built-in probes by family, and probes of installed packages by name."
    )
    sets: Mapping[Name, UserProbe] = Field(default_factory=dict, description="Custom probes by name.")

    @model_validator(mode="after")
    def _names(self) -> Probes:
        for name in self.sets:
            if name in (*FAMILIES, *self.families):
                raise ValueError(f"sets.{name}: {name!r} is a built-in or installed probe; choose another name")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all probes, in order of construction and display."""
        others = sorted({*self.families} - {*FAMILIES})
        return (*(name for name in FAMILIES if name in self.families), *others, *sorted(self.sets))


class TaskSet(Frozen):
    """Tasks of lm-evaluation-harness that are evaluated together on a checkpoint."""

    include: str = Field(
        description="Folder of task files (YAML, functions, data) in the input folder or at a URI. Paths of data files "
        "are relative to this folder. Put the copy of a hub dataset into a subfolder with the dataset's name "
        "(`allenai/ai2_arc/`).",
    )
    tasks: tuple[str, ...] = Field(
        (),
        description="Names of tasks, groups or tags from the folder or from lm-evaluation-harness. If empty, all tasks "
        "in the folder are used.",
    )
    fewshot: int | None = Field(
        None,
        ge=0,
        description="Number of few-shot examples. If unset, each task's own default is used, or 0 if it has none.",
    )
    limit: int | None = Field(
        None, ge=1, description="Maximum number of documents per task, counted from the first. If unset, all are used."
    )
    seed: int = Field(
        1234, ge=0, description="Seed that selects few-shot examples; lm-evaluation-harness has the same default."
    )


#: Axes of every evaluation.
BUILT_IN = ("bucket", "language", "domain", "length")

#: Kind of the comparison lines for held-out text of a model's parent.
PARENT_SLICES = "parent slices"

#: Pattern of axis names, which become columns and keys of statistics.
AxisName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]


@extended("evaluation")
class Evaluation(Frozen):
    """Evaluation: bits per byte on held-out slices and protected items, with two baselines on the same text; probes;
    and tasks."""

    max_bytes_per_slice: int = Field(
        2**20,
        gt=0,
        description="Maximum bytes of held-out text per bucket, and of scored items per protected set and "
        "contamination status.",
    )
    probes: Probes = Probes()
    tasks: Mapping[Name, TaskSet] = Field(
        default_factory=dict, description="Task sets of lm-evaluation-harness by name, from local files."
    )
    against: str = Field(
        "",
        description="Model to compare every new checkpoint with: `champion` (of the recipe's release), `initial` "
        "(the initial weights, to measure forgetting), a folder of weights (absolute, or in the workspace's `input`), "
        "or the digest of a checkpoint. Enables the asset `comparison`.",
    )
    slices: Mapping[AxisName, str] = Field(
        default_factory=dict,
        description="Additional slices by name, next to bucket, language, domain and length. Each is an expression "
        "over columns of the ledger, in the policy language. A condition, such as `pii.spans > 0`, yields the "
        "slices `yes` and `no`. A column alone, such as `documents.licence`, yields one slice per value.",
    )
    extensions: Mapping[str, Mapping[str, Any]] = Field(
        default_factory=dict,
        exclude_if=lambda given: not given,
        description="Parameters of the measurements of installed packages, by name.",
    )

    def of_held_out(self) -> dict[str, Any]:
        """Return the parameters that affect bits per byte of held-out text and protected items."""
        return self.model_dump(mode="json", include={"max_bytes_per_slice", "slices"})

    @field_validator("slices")
    @classmethod
    def _own_names(cls, slices: Mapping[str, str]) -> Mapping[str, str]:
        taken = sorted(set(BUILT_IN) & set(slices))
        if taken:
            raise ValueError(f"{taken[0]} is a built-in axis; choose another name")
        return slices
