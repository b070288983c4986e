"""Windows of documents: the tokens that are given to a checkpoint, and those that it would have to write.

Of a training document a window counts where some step took all of it in one sequence: text that was never read in one
piece cannot have been memorised as one. The window's place in its document is drawn by the hash of its id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plinth.compute.context import Context
from plinth.evaluation.memorisation.parameters import ExtractionTest
from plinth.records import Manifest
from plinth.storage.parts import iter_batches
from plinth.tokens.order.batch import SpanSteps
from plinth.tokens.order.steps import Steps
from plinth.tokens.shards.reader import ShardReader, open_streams
from plinth.tokens.splitmix import mix64
from plinth.tokens.tokenizer import encode, tokenizer

#: Windows tried of a document: the border of a sequence may run through some.
TRIES = 16


@dataclass(frozen=True)
class TextWindow:
    """Consecutive tokens of one document.

    Args:
        id: of the document, hexadecimal.
        heldout: whether the document was held out.
        offset: of the first token in the document.
        seen: how often a step took all of it in one sequence; 0 of a held-out document.
        tokens: prefix and suffix, [width].
    """

    id: str
    bucket: str
    heldout: bool
    offset: int
    seen: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Taken:
    """The steps that a checkpoint was trained on: of this mixture and schedule, up to the last, less those left out."""

    mixture: Manifest
    steps: Steps
    last: int
    left_out: frozenset[int] = frozenset()


class TrainedWindows:
    """Windows of training documents, from the shards."""

    def __init__(self, ctx: Context, params: ExtractionTest, shards: Mapping[str, Manifest], taken: Taken) -> None:
        self._params, self._taken = params, taken
        self._spans = SpanSteps(ctx, taken.mixture, taken.steps)
        self._shards: dict[tuple[str, str], tuple[ShardReader, int]] = {
            (reader.bucket, part.name): (reader, int(part.stats["start"]))
            for reader in open_streams(ctx.store, shards).values()
            for part in reader.shards
        }

    def of(self, row: Mapping[str, Any]) -> TextWindow | None:
        """The first of `TRIES` windows of a candidate that some step took whole; None where there is none."""
        reader, first = self._shards[row["bucket"], row["shard"]]
        for tried in range(TRIES):
            offset = _offset(row["rank"] + tried, int(row["tokens"]) - 1, self._params.width)
            start = first + int(row["position"]) + offset
            if seen := self._seen(reader.stream.name, start):
                held = reader.read(start, self._params.width)
                return TextWindow(row["id"], row["bucket"], False, offset, seen, tuple(held.tolist()))
        return None

    def _seen(self, stream: str, start: int) -> int:
        width, taken = self._params.width, self._taken
        uses = self._spans.of(stream, start, width)
        return sum(use.tokens >= width and use.step < taken.last and use.step + 1 not in taken.left_out for use in uses)


def heldout_windows(
    ctx: Context,
    params: ExtractionTest,
    trained: Manifest,
    curated: Mapping[str, Manifest],
    rows: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, str], TextWindow]:
    """Windows of held-out candidates by bucket and id, without those that are too short. Memory is their texts.

    Args:
        trained: the tokenizer of the run.
    """
    ranks = {(row["bucket"], row["id"]): row["rank"] for row in rows}
    texts = dict(_texts(ctx, curated, ranks))
    (file,) = trained.named(tokenizer.FILE)
    found = {}
    with encode.parallel(False):
        encoded = encode.encode_texts(encode.load(ctx.store, file.blob), texts.values(), "<u4")
        for (bucket, id_), ids in zip(texts, encoded, strict=True):
            if len(ids) >= params.width:
                offset = _offset(ranks[bucket, id_], len(ids), params.width)
                tokens: NDArray[Any] = ids[offset : offset + params.width]
                found[bucket, id_] = TextWindow(id_, bucket, True, offset, 0, tuple(tokens.tolist()))
    return found


def _texts(
    ctx: Context, curated: Mapping[str, Manifest], wanted: Mapping[tuple[str, str], int]
) -> Iterator[tuple[tuple[str, str], str]]:
    for bucket in sorted({bucket for bucket, _ in wanted}):
        for part in curated[bucket].named("heldout-"):
            for batch in iter_batches(ctx.store, part, ["id", "text"]):
                for id_, text in zip(batch.column("id").to_pylist(), batch.column("text").to_pylist(), strict=True):
                    if (bucket, id_.hex()) in wanted:
                        yield (bucket, id_.hex()), text


def _offset(rank: int, tokens: int, width: int) -> int:
    """Where a window begins among this many tokens, drawn by the document's hash."""
    return int(mix64(np.array([rank % 2**64], np.uint64))[0] % np.uint64(tokens - width + 1))
