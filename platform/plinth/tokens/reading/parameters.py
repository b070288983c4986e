"""Parameters of reading: where a job reads its shards from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from plinth.records import Frozen, internal


class Reading(Frozen):
    """Location of the shards that a job reads, and its cache. Not part of identity."""

    remote: str | None = Field(
        None,
        description="`s3://bucket/prefix` (or a folder) that the shards were pushed or exported to; by default the "
        "workspace's own store.",
    )
    layout: Literal["store", "names"] = Field(
        "store", description="`store`: as `plinth` and DVC push it; `names`: files named as the parts."
    )
    fetch: Literal["auto", "shard", "span"] = internal(
        "auto",
        description="`shard`: whole, checked by SHA-256, kept in the cache; `span`: each rank only the blocks with its "
        "rows, each checked by SHA-256; `auto`: whole where all fit into half the cache.",
    )
    cache: str | None = Field(
        None, description="Folder that the processes of a node share; by default `cache` in the workspace."
    )
    cache_bytes: int = Field(256 * 2**30, gt=0, description="Bound of the cache.")
    ahead: int = internal(
        4, ge=0, description="Shards that are fetched and compared at once before their steps; 0: when they are read."
    )

    def by_spans(self, shards_bytes: int) -> bool:
        """Whether shards of so many bytes are read by spans from the remote, rather than fetched whole or opened in the
        workspace's store."""
        if self.remote is None or self.fetch != "auto":
            return self.remote is not None and self.fetch == "span"
        return 2 * shards_bytes > self.cache_bytes
