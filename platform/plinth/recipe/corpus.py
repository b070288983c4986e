"""The corpus part of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plinth.corpus.canaries.parameters import Canaries
from plinth.corpus.dedup.parameters import Dedup
from plinth.corpus.illegal.parameters import Illegal
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.protected.parameters import Contamination, Holdout, Protected
from plinth.corpus.slices.parameters import GateSlices
from plinth.corpus.sources.parameters import Bucket, Documents
from plinth.records import Frozen, Name, internal
from plinth.sections import extended

if TYPE_CHECKING:
    from plinth.corpus.policy.rights import Rights


@extended("corpus")
class Corpus(Frozen):
    """Everything up to curated text."""

    buckets: Mapping[Name, Bucket] = Field(min_length=1, description="Buckets by name.")
    documents: Documents = Documents()
    illegal: Illegal = Illegal()
    annotate: Mapping[str, Mapping[str, Any]] = Field(
        description="Annotators by name, each with its parameters (`{}` for the defaults)."
    )
    models: Mapping[Name, Mapping[str, Any]] = Field(
        default_factory=dict,
        description="Models trained by the pipeline on its own buckets, by name: `kind` and its parameters.",
    )
    lists: Mapping[Name, str] = Field(
        default_factory=dict,
        description="Lists of yours (blocked domains, words, hashes) by name: a file or folder, relative to `input/`.",
    )
    slices: Mapping[Name, GateSlices] = Field(
        default_factory=dict,
        description="Gates that are measured on labelled documents, by name (`quality`, `toxicity`, …), with bounds.",
    )
    policies: Mapping[Name, Policy] = Field(description="Policies by the name that buckets give.")
    reference_buckets: tuple[Name, ...] = Field(
        (),
        exclude_if=lambda given: not given,
        description="Buckets whose text is trusted as good; by default those that a model takes as its `reference`.",
    )
    max_reference_removed: float = Field(
        0.01,
        ge=0,
        le=1,
        exclude_if=lambda given: given == 0.01,
        description="Most share of a trusted bucket's documents, and of its bytes, that a rule which rests on a model "
        "may remove; more stops the pipeline.",
    )
    dedup: Dedup = Dedup()
    holdout: Holdout = Holdout()
    contamination: Contamination = internal(
        Contamination(), description="Overlap of training text with the held-out set."
    )
    protected: Protected = Protected()
    canaries: Canaries | None = Field(
        None,
        exclude_if=lambda given: given is None,
        description="Generated texts that measure memorisation; none are planted unless this is set.",
    )
    permitted_licences: tuple[str, ...] = Field(
        description="SPDX identifiers that may be curated; everything else is dropped, whatever the policies say."
    )
    uses: tuple[Literal["redistribute", "commercial"], ...] = Field(
        (), description="Uses of the result beside training, which sources and licences must allow, too."
    )
    licences_by_use: Mapping[Literal["redistribute", "commercial"], tuple[str, ...]] = Field(
        default_factory=dict,
        description="Of the permitted licences, those that allow a use; a use that is not named here allows all.",
    )

    def rights(self) -> Rights:
        """The licence gate of these lists and uses; imported here, for it brings compiled kernels."""
        from plinth.corpus.annotate.licence import LicenceParams
        from plinth.corpus.policy.rights import Rights

        by_use = {use: tuple(sorted(allowed)) for use, allowed in self.licences_by_use.items()}
        permitted, uses = tuple(sorted(self.permitted_licences)), tuple(sorted(self.uses))
        return Rights(licences=LicenceParams(permitted=permitted, uses=uses, **by_use))
