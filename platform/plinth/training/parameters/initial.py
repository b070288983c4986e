"""Initial weights of a run."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, model_validator

from plinth.records import Frozen

#: Keys of sources; the content of a source is identified by digest.
NAMES = ("release", "checkpoint", "folder", "dcp", "licence")

#: Prefix of buckets of replayed text.
REPLAYED: Final = "replay-"


class InitialWeights(Frozen):
    """Initial weights that are not random. Set one of `release`, `checkpoint`, `folder` and `dcp`."""

    release: str | None = Field(
        None,
        description="Release as `NAME@champion` or `NAME/VERSION`. Before use, it is verified with the checks of "
        "`plinth verify`.",
    )
    checkpoint: str | None = Field(
        None,
        description="Committed and signed checkpoint of a run of this workspace: `RUN` (its newest step), `RUN:STEP`, "
        "or the digest of a signed average (`plinth run checkpoint average`).",
    )
    folder: str | None = Field(
        None,
        description="Folder in Hugging Face's layout (Llama, Qwen2, Qwen3, OLMo 2), as an absolute path or relative to "
        "the input folder. Every file is hashed.",
    )
    dcp: str | None = Field(
        None,
        exclude_if=lambda given: given is None,
        description="Folder of `torch.distributed.checkpoint`, with names of Hugging Face, Plinth, OLMo-core or "
        "Megatron. `config.json` and `tokenizer.json` in Hugging Face's form are read from `folder`, or from the same "
        "folder. Optimizer states are ignored.",
    )
    licence: str = Field(
        "",
        description="License of the weights in `folder` or `dcp`, as declared by their owner. It is recorded in the "
        "lineage.",
    )
    optimizer: Literal["fresh", "kept"] = Field(
        "fresh",
        description="`kept`: continue with the master weights and optimizer moments of the parent checkpoint, which "
        "must be from a run of this workspace. `fresh`: start with a new optimizer state. The learning rate schedule "
        "restarts in both cases.",
    )
    vocabulary: Literal["same", "mean"] = Field(
        "same",
        description="Handling of a tokenizer that differs from the parent's. `same`: raise an error. `mean`: keep the "
        "embedding rows of tokens with the same text, and set the other rows to the mean of the parent's rows (Hewitt "
        "2021).",
    )

    replay: float = Field(
        0.0,
        ge=0,
        le=0.5,
        exclude_if=lambda share: not share,
        description="Fraction of all training tokens that come from the parent's training text. The text has the "
        "proportions of the parent's mixture and is spread evenly over the run.",
    )

    @classmethod
    def named(cls, target: str) -> InitialWeights:
        """Parse the name of a release or checkpoint. Only release names contain `@` or `/`."""
        return cls(release=target) if "@" in target or "/" in target else cls(checkpoint=target)

    @model_validator(mode="after")
    def _one_source(self) -> InitialWeights:
        given = [name for name in ("release", "checkpoint", "folder", "dcp") if getattr(self, name)]
        if len(given) != 1 and given != ["folder", "dcp"]:
            found = " and ".join(given) or "none"
            raise ValueError(f"set one of `release`, `checkpoint`, `folder` and `dcp`; found {found}")
        external = self.folder or self.dcp
        if external and not self.licence:
            raise ValueError(f"`{given[-1]}` needs `licence`, the license of the weights")
        if self.licence and not external:
            raise ValueError(
                "`licence` is for `folder` and `dcp` only; other weights inherit the license of their sources"
            )
        if self.replay and external:
            raise ValueError("`replay` needs a `release` or `checkpoint` with known training text")
        if self.optimizer == "kept" and (external or self.vocabulary != "same"):
            raise ValueError("`optimizer: kept` needs a `release` or `checkpoint`, and `vocabulary: same`")
        return self


class InitialState(Frozen):
    """Resolved source of a run's initial weights: the digest of the manifest of asset `initial`, and the recipe's
    options."""

    manifest: str
    optimizer: Literal["fresh", "kept"] = "fresh"
    vocabulary: Literal["same", "mean"] = "same"
