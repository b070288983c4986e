"""Tokens and mixture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from plinth.records import Frozen


class Tokenizer(Frozen):
    """Byte-level BPE, trained on a capped sample of the curated buckets."""

    kind: Literal["bpe-bytes"] = Field("bpe-bytes", description="Byte-level BPE: every text can be written.")
    vocab_size: int = Field(8192, ge=260, le=2**32 - 1, description="Tokens, special ones and all 256 bytes included.")
    digits: Literal["single", "runs"] = Field(
        "single", description="`single`: every digit is a token (Llama 2); `runs`: digits merge like letters (GPT-2)."
    )
    sample_bytes: int = Field(64 * 2**20, gt=0, description="At most this much text, shared evenly by buckets.")
    special_tokens: tuple[str, ...] = Field(
        ("<|endoftext|>", "<|pad|>"), min_length=1, description="The first ids, in order; the first ends a document."
    )
    min_frequency: int = Field(2, ge=1, description="Pairs seen less often are not merged.")
    audit_bytes_per_part: int = Field(2 * 2**20, gt=0, description="Audit: at most this much text of each part.")
    max_fertility: float = Field(4.0, gt=0, description="Audit: tokens per word allowed in any bucket.")
    min_bytes_per_token: float = Field(1.5, gt=0, description="Audit: lower bound in any bucket.")

    @field_validator("special_tokens")
    @classmethod
    def _distinct(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(tokens)) != len(tokens) or not all(tokens):
            raise ValueError("special tokens must be distinct and not empty")
        return tokens


class Shards(Frozen):
    """Binary token shards of even size with a document index."""

    tokens_per_shard: int = Field(64 * 2**20, gt=0, description="Tokens of one shard file.")


class Phase(Frozen):
    """A stretch of training with its own bucket weights."""

    name: str = Field(description="Such as `stable` or `annealing`.")
    fraction: float = Field(gt=0, le=1, description="Share of all training tokens.")
    weights: Mapping[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        min_length=1, description="Relative weights of buckets."
    )

    @field_validator("weights")
    @classmethod
    def _some_weight(cls, weights: Mapping[str, float]) -> Mapping[str, float]:
        if sum(weights.values()) <= 0:
            raise ValueError("at least one weight must be above 0")
        return weights


class Mixture(Frozen):
    """What the run sees, in phases; counts per block are exact, order is a keyed permutation."""

    sequence_tokens: int = Field(512, ge=8, description="Tokens of one training sequence.")
    total_tokens: int = Field(gt=0, description="Tokens of the whole run.")
    phases: tuple[Phase, ...] = Field(
        min_length=1, description="In the order of training; their fractions add up to 1."
    )
    block_sequences: int = Field(256, ge=1, description="Bucket counts are exact in each block of sequences.")
    max_epochs: float = Field(4.0, gt=0, description="No bucket may be repeated more often than this.")
    seed: int = Field(1, description="Of the order of sequences.")
