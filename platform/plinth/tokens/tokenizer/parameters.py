"""Parameters of the tokenizer, and limits of its audit."""

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
    """Parameters of a tokenizer that is trained on a weighted, capped sample of the curated buckets.

    Every text can be encoded and decoded without loss.
    """

    kind: Kind = Field(
        "bpe-bytes",
        description="`bpe-bytes` merges bytes (GPT-2, Llama 3). `bpe-fallback` merges characters, with rare characters "
        "as bytes (Llama 2). `unigram` uses the most likely pieces, with rare characters as bytes (T5, ALBERT). "
        "`initial` and `teacher` keep the tokenizer of the model in training.initial or training.distillation.",
    )
    vocab_size: int = Field(
        8192, ge=260, le=2**32 - 1, description="Vocabulary size, including special tokens and 256 bytes."
    )
    digits: Literal["single", "triples", "runs"] = Field(
        "single",
        description="Splitting of numbers. `single`: every digit is a token (Llama 2). `triples`: a token has up to "
        "three digits (Llama 3). `runs`: digits merge like letters (GPT-2).",
    )
    character_coverage: float = internal(
        0.9995, gt=0, le=1, description="Share of the sample's characters covered by character tokens."
    )
    sample_bytes: int = Field(
        64 * 2**20, gt=0, description="Maximum size of the training sample over all buckets, in bytes."
    )
    sample_weights: Mapping[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(
        default_factory=dict, description="Relative weights of buckets in the sample; the default is 1."
    )
    special_tokens: tuple[str, ...] = Field(
        ("<|endoftext|>", "<|pad|>"),
        min_length=1,
        description="Special tokens, which get the first ids in this order; the first token ends documents.",
    )
    min_frequency: int = internal(2, ge=1, description="BPE: minimum count of a pair for a merge.")
    audit_bytes_per_part: int = internal(2 * 2**20, gt=0, description="Audit: maximum bytes of text per part.")
    max_fertility: float = Field(4.0, gt=0, description="Audit: maximum tokens per word in any bucket.")
    max_fertility_by_script: Mapping[Unspaced, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="Audit: maximum tokens per character in scripts without spaces between words; the default is 2. "
        "The limit of a bucket with several scripts is the mean of their limits.",
    )
    max_fertility_by_language: Mapping[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict, description="Audit: maximum tokens per word by language, over all buckets."
    )
    max_fertility_by_domain: Mapping[str, Annotated[float, Field(gt=0)]] = internal(
        {}, description="Audit: maximum tokens per word by domain of the source."
    )
    min_bytes_per_token: float = Field(1.5, gt=0, description="Audit: minimum bytes per token in any bucket.")
    max_unreachable_share: float = internal(
        0.01, ge=0, le=1, description="Audit: maximum share of tokens whose own text is encoded as other tokens."
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
            raise ValueError(f"vocab_size {self.vocab_size} is too small: {self.kind} needs at least {least}")
        if self.sample_weights and not any(self.sample_weights.values()):
            raise ValueError("sample_weights: at least one weight must be above 0")
        return self
