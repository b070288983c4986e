"""Where a run's first weights come from."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, model_validator

from plinth.records import Frozen

#: Keys that name something; what they name is identified by its content.
NAMES = ("release", "checkpoint", "folder", "licence")

#: How the names of buckets of replayed text begin.
REPLAYED: Final = "replay-"


class InitialWeights(Frozen):
    """Initial weights, instead of random ones: give one of `release`, `checkpoint` and `folder`."""

    release: str | None = Field(
        None, description="`NAME@champion` or `NAME/VERSION`; proved as `plinth verify` does before it is used."
    )
    checkpoint: str | None = Field(
        None,
        description="`RUN` or `RUN:STEP` of this workspace, committed and signed; without a step the newest. Or the "
        "digest of a mean (`plinth run checkpoint average`), which its trainer signed.",
    )
    folder: str | None = Field(
        None,
        description="In Hugging Face's layout (Llama, Qwen2, Qwen3, OLMo 2), below the input folder or absolute; every "
        "file is hashed.",
    )
    licence: str = Field("", description="Of a `folder`, as its owner states it; recorded in the lineage.")
    optimizer: Literal["fresh", "kept"] = Field(
        "fresh",
        description="`kept`: masters and moments of the parent's checkpoint go on, of a run of this workspace; the "
        "schedule begins anew in either case.",
    )
    vocabulary: Literal["same", "mean"] = Field(
        "same",
        description="Another tokenizer than the parent's: `same` refuses it; `mean` keeps the rows of tokens that both "
        "have, by their text, and begins the others at the mean of the parent's rows (Hewitt 2021).",
    )

    replay: float = Field(
        0.0,
        ge=0,
        le=0.5,
        exclude_if=lambda share: not share,
        description="Share of all training tokens that are the parent's: streams of the run that gave the weights, as "
        "its mixture had them, spread evenly.",
    )

    @classmethod
    def named(cls, target: str) -> InitialWeights:
        """Parse a release or a checkpoint from a name: only a release's name has an `@` or a `/`."""
        return cls(release=target) if "@" in target or "/" in target else cls(checkpoint=target)

    @model_validator(mode="after")
    def _one_source(self) -> InitialWeights:
        given = [name for name in ("release", "checkpoint", "folder") if getattr(self, name)]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"give one of `release`, `checkpoint` and `folder`; found {found}")
        if self.folder and not self.licence:
            raise ValueError("`folder` needs `licence`: under which terms its owner gives the weights")
        if self.licence and not self.folder:
            raise ValueError("`licence` is of a `folder`; a release and a checkpoint have that of their sources")
        if self.replay and self.folder:
            raise ValueError("`replay` needs a `release` or `checkpoint`, whose text is known")
        if self.optimizer == "kept" and (self.folder or self.vocabulary != "same"):
            raise ValueError("`optimizer: kept` needs a `release` or `checkpoint`, and its vocabulary")
        return self


class InitialState(Frozen):
    """Resolved source of a run's initial weights: the digest of the manifest `initial`, and its use."""

    manifest: str
    optimizer: Literal["fresh", "kept"] = "fresh"
    vocabulary: Literal["same", "mean"] = "same"
