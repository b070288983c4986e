"""Parameters of the tokenizer and bounds of its audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from plinth.records import Frozen, internal

#: Every vocabulary has all single bytes, so that it can encode any text.
BYTES = 256

#: Printable ASCII and white space: tokens of every vocabulary of characters.
ASCII = 98

#: Scripts without spaces between words (`text.unicode.scripts.UNSPACED`).
Unspaced = Literal["han", "kana", "thai", "lao", "khmer", "myanmar"]

Kind = Literal["bpe-bytes", "bpe-fallback", "unigram", "initial", "teacher"]
#: Tokens per character allowed in them: bytes alone are 3, an English vocabulary some 2, one made for the script 1.
UNSPACED_FERTILITY = 2.0
#: Kinds that keep the tokenizer of another model: `vocab_size` is not theirs.
KEPT = ("initial", "teacher")


class TokenizerParameters(Frozen):
    """Trained on a weighted, capped sample of the curated buckets; every text round-trips."""

    kind: Kind = Field(
        "bpe-bytes",
        description="`bpe-bytes`: merges of bytes (GPT-2, Llama 3); `bpe-fallback`: merges of characters, rare ones in "
        "bytes (Llama 2); `unigram`: likeliest pieces, rare characters in bytes (T5, ALBERT); `initial` and "
        "`teacher`: that of the model which training.initial or training.distillation names, whose vocabulary stays.",
    )
    vocab_size: int = Field(8192, ge=260, le=2**32 - 1, description="Tokens, special ones and all 256 bytes included.")
    digits: Literal["single", "triples", "runs"] = Field(
        "single",
        description="`single`: every digit is a token (Llama 2); `triples`: up to three (Llama 3); `runs`: digits "
        "merge like letters (GPT-2).",
    )
    character_coverage: float = internal(
        0.9995, gt=0, le=1, description="Kinds of characters: this share of the sample's characters gets tokens."
    )
    sample_bytes: int = Field(64 * 2**20, gt=0, description="At most this much text, shared by buckets.")
    sample_weights: Mapping[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default_factory=dict, description="Shares of buckets in the sample; 1 where none is given."
    )
    special_tokens: tuple[str, ...] = Field(
        ("<|endoftext|>", "<|pad|>"), min_length=1, description="The first ids, in order; the first ends a document."
    )
    min_frequency: int = internal(2, ge=1, description="BPE: pairs seen less often are not merged.")
    audit_bytes_per_part: int = internal(2 * 2**20, gt=0, description="Audit: at most this much text of each part.")
    max_fertility: float = Field(4.0, gt=0, description="Audit: tokens per word allowed in any bucket.")
    max_fertility_by_script: Mapping[Unspaced, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Audit: tokens per character allowed in scripts without spaces between words, 2 unless given. A "
        "bucket of several scripts has the mean of their limits.",
    )
    max_fertility_by_language: Mapping[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="Audit: tokens per word allowed in texts of a language, over all buckets."
    )
    max_fertility_by_domain: Mapping[str, Annotated[float, Field(gt=0)]] = internal(
        {}, description="Audit: tokens per word allowed in texts of a source's domain."
    )
    min_bytes_per_token: float = Field(1.5, gt=0, description="Audit: lower bound in any bucket.")
    max_unreachable_share: float = internal(
        0.01, ge=0, le=1, description="Audit: share of tokens allowed that their own text is never written with."
    )

    @field_validator("special_tokens")
    @classmethod
    def _distinct(cls, tokens: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(tokens)) != len(tokens) or not all(tokens):
            raise ValueError("special tokens must be distinct and not empty")
        return tokens

    @model_validator(mode="after")
    def _has_tokens_to_learn(self) -> TokenizerParameters:
        letters = 0 if self.kind == "bpe-bytes" else ASCII
        least = BYTES + len(self.special_tokens) + letters + 1
        if self.vocab_size < least:
            raise ValueError(f"vocab_size {self.vocab_size} has no tokens left to learn: {self.kind} needs {least}")
        if self.sample_weights and not any(self.sample_weights.values()):
            raise ValueError("sample_weights: at least one weight must be above 0")
        return self
