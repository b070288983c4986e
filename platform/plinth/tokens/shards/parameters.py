"""Parameters of shards: their size, and the axes of streams."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from plinth.records import Frozen

#: Axes by name, and the sidecar's column that has their value; None where it is a column of the document.
AXES: dict[str, str | None] = {
    "language": "language.label",
    "tier": "quality_classifier.tier",
    "band": "perplexity.band",
    "function": "domain.label",
    "domain": None,
    "source": None,
    "licence": None,
    "snapshot": None,
    "mime": None,
    "length": None,
    "copies": None,
}


class Shards(Frozen):
    """Binary token shards of even size with a document index."""

    tokens_per_shard: int = Field(64 * 2**20, gt=0, description="Tokens of one shard file.")
    axes: tuple[str, ...] = Field(
        (),
        description="Cut a bucket into streams by these values, which a mixture can then weigh: "
        f"{', '.join(AXES)}, or `annotator.column` of any column of words or of true and false. "
        "`length` is the power of two of tokens that a document fits in, `copies` the largest power of two that its "
        "cluster of duplicates reaches.",
    )
    min_stream_tokens: int = Field(
        0, ge=0, description="Streams with fewer tokens are one stream of their bucket, `other`."
    )

    @field_validator("axes")
    @classmethod
    def _known(cls, axes: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(axes)) < len(axes):
            raise ValueError("an axis is named twice")
        strange = [axis for axis in axes if axis not in AXES and axis.count(".") != 1]
        if strange:
            raise ValueError(f"no axis {strange[0]!r}; have: {', '.join(AXES)}, or `annotator.column`")
        return axes

    def identity(self) -> dict[str, Any]:
        """Parameters that the shards depend on, as plain data: without axes as before axes existed."""
        return self.model_dump(mode="json", exclude=set() if self.axes else {"axes", "min_stream_tokens"})
