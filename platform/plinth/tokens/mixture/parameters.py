"""Parameters of the mixture: phases, weights, limits on epochs, and keys that select streams."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Literal
from urllib.parse import unquote

from pydantic import BeforeValidator, Field, field_validator, model_validator

from plinth.records import Frozen, internal

# Keys of weights: a bucket, a stream of a bucket, or every stream with certain values.
#
#     web                          all of the bucket
#     web/language=de              its German streams, whatever else they are
#     web/language=de,tier=high    and of those the best
#     language=de                  the German streams of every bucket
#     *                            everything
#     web/other                    values too rare in `web` for a stream of their own
#
# A stream takes the weight of the most precise key that names it: the one with the most values, then the one that
# names the bucket.

EVERYTHING = "*"
#: Label of the stream of rare values; see `OTHER`.
REST = "other"


@dataclass(frozen=True)
class Selector:
    """Parsed key of the recipe, which selects streams. If `bucket` is None, it selects from every bucket."""

    text: str
    bucket: str | None
    values: Mapping[str, str] = field(default_factory=dict)
    rest: bool = False

    @property
    def precision(self) -> tuple[int, int]:
        """Precision of the key. If two keys match a stream, the more precise key applies."""
        return len(self.values) + self.rest, self.bucket is not None

    def names(self, bucket: str, label: str, values: Mapping[str, str]) -> bool:
        """Return True if the key names the stream with this bucket, label and values."""
        if self.bucket not in (None, bucket) or (self.rest and label != REST):
            return False
        return all(values.get(axis) == value for axis, value in self.values.items())


@lru_cache(maxsize=4096)
def parse(text: str) -> Selector:
    """Parse a recipe key that selects streams.

    Raises:
        ValueError: the key has none of the supported forms.
    """
    if text == EVERYTHING:
        return Selector(text, None)
    bucket, slash, label = text.partition("/")
    if not slash and "=" in text:
        bucket, label = "", text
    if label == REST:
        return Selector(text, bucket or None, rest=True)
    pairs = [pair.partition("=") for pair in label.split(",")] if label else []
    if (not bucket and not pairs) or (slash and not label) or not all(axis and value for axis, _, value in pairs):
        raise ValueError(f"{text!r} is neither a bucket, nor `bucket/axis=value,…`, nor `axis=value,…`")
    return Selector(text, bucket or None, {axis: unquote(value) for axis, _, value in pairs})


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?`, or the known names if none is similar, for messages about unknown names."""
    have = sorted(known)
    near = difflib.get_close_matches(name, have, n=1, cutoff=0.5)
    return f"; did you mean `{near[0]}`?" if near else f"; have: {', '.join(have) or 'none'}"


def problems(text: str, buckets: Iterable[str], axes: Iterable[str]) -> Iterator[str]:
    """Yield the errors in a key that the recipe alone shows. Values of axes are known only after sharding."""
    try:
        key = parse(text)
    except ValueError as error:
        yield str(error)
        return
    buckets, axes = sorted(buckets), sorted(axes)
    if key.bucket is not None and key.bucket not in buckets:
        yield f"no bucket {key.bucket!r}{nearest(key.bucket, buckets)}"
    for axis in key.values:
        if axis not in axes:
            yield f"shards.axes has no axis {axis!r}{nearest(axis, axes)}"


Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _natural(weights: object) -> object:
    return {EVERYTHING: 1.0} if weights == "natural" else weights


#: `natural` is everything by its text.
Weights = Annotated[Mapping[str, Share], BeforeValidator(_natural)]


class Curriculum(Frozen):
    """Order of text within a phase. The total amount per stream still follows the weights."""

    by: str = Field(description="Axis to order by: `bucket`, or one of `shards.axes`, such as `tier`.")
    order: tuple[str, ...] = Field(min_length=2, description="Values of the axis, from start to end of the phase.")
    manner: Literal["ramp"] = internal("ramp", description="Shares change linearly from early to late values.")
    strength: float = internal(
        1.0, gt=0, le=1, description="Strength of the ordering, at most 1 so that no share is negative."
    )

    @field_validator("order")
    @classmethod
    def _once(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(order)) < len(order):
            raise ValueError("duplicate value")
        return order


class Phase(Frozen):
    """Phase of training with its own mixture.

    `tokens` and `epochs` are allocated first; `weights` divide the rest of the phase.
    """

    name: str = Field(description="Name of the phase, such as `stable` or `annealing`.")
    fraction: float = Field(gt=0, le=1, description="Share of all training tokens.")
    weights: Weights | None = Field(
        None,
        description="Shares of tokens by bucket, stream (`web/language=de`) or selector (`language=de`, `*`); "
        "`natural`: in proportion to the available tokens.",
    )
    to_weights: Weights | None = Field(
        None, description="Weights at the end of the phase; shares change linearly from `weights`."
    )
    ramp_steps: Literal[0] = internal(
        0, description="Number of steps in the ramp to `to_weights`; 0 means a continuous linear ramp."
    )
    temperature: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Exponent of the shares: 1 keeps them, 0 makes them equal. For languages, mBERT uses 0.7 and XLM-R "
        "0.3. If a paper states a temperature T in p^(1/T), write 1/T.",
    )
    temperature_over: str = Field(
        "stream", description="Shares to apply `temperature` to: `stream`, `bucket` or an axis such as `language`."
    )
    upsample: Mapping[str, Positive] = Field(
        default_factory=dict, description="Factors that multiply shares, with the same keys as `weights`."
    )
    epochs: Mapping[str, Positive] = Field(
        default_factory=dict,
        description="Number of passes over the text that a key selects, in this phase; an alternative to weights.",
    )
    tokens: Mapping[str, Positive] = internal(
        {}, description="Number of tokens from the text that a key selects, in this phase; an alternative to weights."
    )
    curriculum: Curriculum | None = Field(
        None, description="Order of text within the phase; if null, all text is mixed."
    )

    @field_validator("weights", "to_weights")
    @classmethod
    def _some_weight(cls, weights: Weights | None) -> Weights | None:
        if weights is not None and sum(weights.values()) <= 0:
            raise ValueError("at least one weight must be above 0")
        return weights

    @model_validator(mode="after")
    def _fits_together(self) -> Phase:
        if self.weights is None and not (self.epochs or self.tokens):
            raise ValueError("set `weights`, `epochs` or `tokens`")
        if self.to_weights is not None and self.weights is None:
            raise ValueError("`to_weights` needs `weights`")
        if self.to_weights is not None and self.curriculum is not None:
            raise ValueError("set `to_weights` or `curriculum`, not both")
        weighed = {key for field, key in self.named() if field in ("weights", "to_weights")}
        twice = sorted(set(self.epochs) & set(self.tokens) | weighed & (set(self.epochs) | set(self.tokens)))
        if twice:
            raise ValueError(f"`{twice[0]}` is in two of `weights`, `epochs` and `tokens`")
        return self

    def named(self) -> list[tuple[str, str]]:
        """Return every key that selects text, with the field that contains it."""
        fields = ("weights", "to_weights", "upsample", "epochs", "tokens")
        return [(field, key) for field in fields for key in getattr(self, field) or ()]


class Mixture(Frozen):
    """Training data in phases. Counts per block are exact, and the order is a keyed permutation."""

    sequence_tokens: int = Field(512, ge=8, description="Tokens per training sequence.")
    packing: Literal["concatenate", "best-fit"] = Field(
        "concatenate",
        description="Packing of documents into sequences. `concatenate` cuts the stream every `sequence_tokens`, "
        "without padding. `best-fit` cuts only documents longer than a sequence, and pads sequences "
        "(arXiv:2404.10830).",
    )
    total_tokens: int = Field(gt=0, description="Number of training tokens in the whole run.")
    phases: tuple[Phase, ...] = Field(
        min_length=1, description="Phases in the order of training; their fractions add up to 1."
    )
    block_sequences: int = Field(256, ge=1, description="Sequences per block; the mixture is exact in each block.")
    max_epochs: float = Field(4.0, gt=0, description="Maximum number of passes over the text of a stream.")
    epoch_caps: Mapping[str, Positive] = Field(
        default_factory=dict, description="Exceptions to `max_epochs`, with the same keys as weights."
    )
    over_cap: Literal["refuse", "redistribute"] = Field(
        "refuse",
        description="Action if weights need more epochs than the limit: `refuse` stops with an error, `redistribute` "
        "moves the excess to the other streams of the phase, in proportion to their weights.",
    )
    seed: int = Field(1, description="Random seed of the order of sequences.")
