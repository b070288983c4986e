"""The documents of the curated parts that each stream of a bucket takes: all, or those of its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plinth.compute.context import Context
from plinth.errors import RecipeError
from plinth.records import Manifest, Part
from plinth.tokens.shards import axes
from plinth.tokens.shards.cut import DocumentChoice
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.shards.streams import OTHER

#: Most streams of a bucket: each is a unit of the mixture and has its own files.
MAX_STREAMS = 1024


@dataclass(frozen=True)
class StreamAssignment:
    """The documents that a stream takes of each curated part."""

    label: str
    choices: tuple[tuple[int, DocumentChoice, int, int], ...]  # part, its documents, how many, their tokens

    @property
    def tokens(self) -> int:
        return sum(tokens for *_, tokens in self.choices)

    @property
    def documents(self) -> int:
        return sum(documents for *_, documents, _ in self.choices)


def assign_streams(
    ctx: Context,
    bucket: str,
    params: Shards,
    curated: Manifest,
    lengths: list[Part],
    sidecars: Mapping[str, Manifest],
) -> list[StreamAssignment]:
    """The bucket's streams in order of label."""
    if not params.axes:
        whole = tuple((i, DocumentChoice(part), part.rows, int(part.stats["tokens"])) for i, part in enumerate(lengths))
        return [StreamAssignment("", whole)]
    labels = axes.run(ctx, bucket, params.axes, curated, lengths, sidecars)
    stream_of = _merged([part.stats["streams"] for part in labels], params.min_stream_tokens)
    if len(set(stream_of.values())) > MAX_STREAMS:
        raise RecipeError(
            f"shards.axes cut {bucket} into too many streams",
            found=f"{len(set(stream_of.values()))} streams by {', '.join(params.axes)}",
            expected=f"at most {MAX_STREAMS}",
            remedy="raise shards.min_stream_tokens, or take fewer axes",
        )
    made = []
    for stream in sorted(set(stream_of.values())):
        choices = []
        for number, (own_lengths, own_labels) in enumerate(zip(lengths, labels, strict=True)):
            own = {label: count for label, count in own_labels.stats["streams"].items() if stream_of[label] == stream}
            if own:
                documents = sum(count["documents"] for count in own.values())
                tokens = sum(count["tokens"] for count in own.values())
                choices.append((number, DocumentChoice(own_lengths, own_labels, tuple(sorted(own))), documents, tokens))
        made.append(StreamAssignment(stream, tuple(choices)))
    return made


def _merged(counted: Sequence[Mapping[str, Mapping[str, int]]], least: int) -> dict[str, str]:
    """The stream of every label: itself, or `other` where its tokens in all parts are too few."""
    totals: dict[str, int] = {}
    for part in counted:
        for label, count in part.items():
            totals[label] = totals.get(label, 0) + count["tokens"]
    return {label: label if tokens >= least else OTHER for label, tokens in totals.items()}
