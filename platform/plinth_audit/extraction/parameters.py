"""The section `evaluation.extraction` of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, field_validator

from plinth.records import Frozen, internal
from plinth.sections import RecipeSection

#: Slices of every extraction, where the ledger has their columns.
RISKS: Mapping[str, str] = {
    "duplicated": "documents.cluster_size > 1",
    "personal_data": "pii.total > 0",
    "restricted_licence": "not licence.redistribute",
}
#: The slice of all documents, and that of the user's list.
ALL, LISTED = "all", "listed"

_SliceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]


class ExtractionTest(Frozen):
    """Does a checkpoint continue training text word for word? 50 tokens are given, 50 compared, greedily."""

    slices: Mapping[_SliceName, str] = Field(
        default_factory=dict,
        description="Further slices of risk, beside `duplicated`, `personal_data` and `restricted_licence`: a name and "
        "a condition over columns of the ledger.",
    )
    listed: str | None = Field(
        None,
        description="File of document ids or URIs, one a line, which make the slice `listed`; below the workspace's "
        "`input/`, absolute, or a URI.",
    )
    documents_per_slice: int = internal(
        200, ge=1, description="Documents tried of a slice at most: 0 found of 200 bounds the share by 1.5%."
    )
    seed: int = internal(0, description="Of the choice of documents and of windows in them.")
    prefix_tokens: int = internal(50, ge=1, description="Tokens that are given.")
    suffix_tokens: int = internal(50, ge=1, description="Tokens that are compared.")
    near_edits: float = internal(0.1, ge=0, lt=1, description="Share of the tokens that may differ in a near match.")

    @field_validator("slices")
    @classmethod
    def _own_names(cls, slices: Mapping[str, str]) -> Mapping[str, str]:
        taken = sorted({*RISKS, ALL, LISTED} & set(slices))
        if taken:
            raise ValueError(f"every extraction has a slice {taken[0]}; give yours another name")
        return slices

    @property
    def width(self) -> int:
        """Tokens of a window: given and compared."""
        return self.prefix_tokens + self.suffix_tokens


SECTION = RecipeSection(
    name="evaluation.extraction",
    model=ExtractionTest,
    description="Whether training text of risk can be extracted word for word; `{}` asks for it.",
    dumped=True,
)
