"""Measurement of learned gates on labelled documents, and its bounds."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen, internal


class GateSlices(Frozen):
    """Slice evaluation of one gate. Bounds hold for all documents together and for every slice that is large enough.

    Shares are of documents but for over-removal, which is of the bytes of good text.
    """

    removes: str | None = Field(
        None,
        description="Expression over annotation columns that is true where the gate removes a document; by default any "
        "rule of `policy` that reads a column of the gate's annotator.",
    )
    policy: str = Field("default", description="Policy whose rules are the gate, where `removes` is not given.")
    documents_per_slice: int = internal(
        200, ge=0, description="Generated documents of each truth in every slice, where there are no `lists`."
    )
    seed: int = internal(7, ge=0, description="Of the generated documents.")
    lists: tuple[str, ...] = Field(
        (), description="Labelled sets of yours in `corpus.lists`: JSONL with `text`, `label` (good, bad) and `slice`."
    )
    reviews: bool = internal(True, description="Whether labels of reviewers (`reviews/` of the workspace) count, too.")
    min_documents: int = internal(
        30, ge=1, description="A slice with fewer documents of a truth is reported, but held to no bound."
    )
    min_recall: float = Field(0.0, ge=0, le=1, description="Least share of bad documents that the gate removes.")
    max_false_positive: float = Field(0.05, ge=0, le=1, description="Most share of good documents that it removes.")
    max_over_removal: float = Field(1.0, ge=0, le=1, description="Most share of the bytes of good text it removes.")
