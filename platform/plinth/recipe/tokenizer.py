"""The tokenizer."""

from __future__ import annotations

from typing import Literal

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
