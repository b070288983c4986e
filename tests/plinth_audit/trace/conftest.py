"""Fixtures of the core: small curated buckets and shards, and a line from sources to a run."""

from tests.plinth.provenance.conftest import built, line
from tests.plinth.tokens.conftest import ctx, made, make_ctx, small

__all__ = ["built", "ctx", "line", "made", "make_ctx", "small"]
