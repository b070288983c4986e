"""Token shards."""

from __future__ import annotations

from pydantic import Field

from plinth.records import Frozen


class Shards(Frozen):
    """Binary token shards of even size with a document index."""

    tokens_per_shard: int = Field(64 * 2**20, gt=0, description="Tokens of one shard file.")
