"""Training documents and held-out control documents of every slice, selected from the ledger.

Each slice keeps the documents with the smallest hash of (seed, ID). This sample does not depend on document order and
can be computed part by part. Memory holds one batch of the ledger plus the sample.

A window consists of prefix tokens and suffix tokens that follow each other in a document. A window in a training
document is used only if some step read it in one sequence, because text that was never read in one piece cannot be
memorized as a whole. The position of a window in its document is derived from the same hash of (seed, ID).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plinth.compute.context import Context, Item, run_items
from plinth.corpus.policy.expressions import Expression, parse
from plinth.errors import RecipeError
from plinth.evaluation.slices.choice import columns, ledger_column
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import iter_batches, read_table, write_table
from plinth.storage.store import Store
from plinth.tokens.order.batch import SpanSteps
from plinth.tokens.order.steps import Steps
from plinth.tokens.shards.reader import ShardReader, open_streams
from plinth.tokens.tokenizer import encode, tokenizer
from plinth.tokens.tokenizer.sample import mix64
from plinth_audit.extraction import ALL, LISTED, RISKS, ExtractionTest

VERSION = "1"
WHERE = "evaluation.extraction.slices"
DECISIONS = ("train", "heldout")
#: Oversampling factor: the run may not have read some documents, and others may be too short.
SPARE = 4
#: Oversampling factor of held-out documents, whose token counts are unknown here.
_COLUMNS = ("id", "uri", "bucket", "decision", "shard", "position", "tokens")

CANDIDATES = pa.schema(
    [
        pa.field("slice", pa.string(), nullable=False),
        pa.field("rank", pa.uint64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("bucket", pa.string(), nullable=False),
        pa.field("decision", pa.string(), nullable=False),
        pa.field("shard", pa.string()),
        pa.field("position", pa.int64()),  # in the shard; null for held-out documents
        pa.field("tokens", pa.int64()),  # with end-of-text
    ]
)


@dataclass(frozen=True)
class _Task:
    part: Part
    slices: tuple[tuple[str, Expression], ...]
    listed: tuple[str, ...]
    buckets: tuple[str, ...]
    least_tokens: int
    most: int
    seed: int


def candidates(
    ctx: Context, params: ExtractionTest, ledger: Manifest, buckets: Iterable[str], listed: Sequence[str] = ()
) -> tuple[pa.Table, list[str], list[str]]:
    """Return documents that may be tested, the names of searched slices, and the default slices that cannot be
    searched.

    A default slice cannot be searched if the ledger lacks its columns. The documents are rows of `CANDIDATES`, sorted
    by slice, decision and rank.

    Args:
        buckets: buckets to sample; planted canaries are measured separately.
        listed: IDs or URIs from the user's list.

    Raises:
        RecipeError: a slice condition is invalid, or names a column that the ledger lacks.
    """
    types = columns(ctx.store, ledger)
    known = {name: text for name, text in RISKS.items() if _readable(text, types)}
    slices = tuple((n, parse(t, types, f"{WHERE}.{n}")) for n, t in sorted({**known, **params.slices}.items()))
    own = tuple(sorted(buckets))
    most, least = SPARE * params.documents_per_slice, params.width + 1
    asked = (*(f"{name}:{one.text}" for name, one in slices), *sorted(listed), *own, f"{most}:{least}")
    items = [
        Item(
            (part.blob.sha256, *asked),
            _Task(part, slices, tuple(sorted(listed)), own, least, most, params.seed),
            part.rows,
        )
        for part in ledger.parts
        if "/part-" in part.name
    ]
    step = Step(name="memorisation.candidates", version=VERSION, params={"seed": params.seed})
    made = run_items(ctx, step, _choose, items, label="memorisation/extraction: documents")
    every = pa.concat_tables([CANDIDATES.empty_table(), *(read_table(ctx.store, parts[0]) for parts in made)])
    names = [ALL, *([LISTED] if listed else []), *(name for name, _ in slices)]
    return _first(every, most), sorted(names), sorted(set(RISKS) - set(known))


def _readable(text: str, types: Mapping[str, pa.DataType]) -> bool:
    try:
        parse(text, types, WHERE)
    except RecipeError:
        return False
    return True


def _choose(store: Store, task: _Task) -> tuple[Part, ...]:
    wanted = {name: ledger_column(name) for _, one in task.slices for name in one.columns}
    kept = CANDIDATES.empty_table()
    for batch in iter_batches(store, task.part, [*dict.fromkeys([*_COLUMNS, *wanted.values()])]):
        kept = _first(pa.concat_tables([kept, *_rows(batch, task, wanted)]), task.most)
    return (write_table(store, "candidates.parquet", kept),)


def _rows(batch: pa.RecordBatch, task: _Task, wanted: Mapping[str, str]) -> Iterator[pa.Table]:
    """Yield the candidate documents in a ledger batch, one table per slice."""
    long = pc.fill_null(pc.greater_equal(batch.column("tokens"), task.least_tokens), True)
    here = pc.is_in(batch.column("bucket"), pa.array(task.buckets, pa.string()))
    decided = pc.and_(pc.is_in(batch.column("decision"), pa.array(DECISIONS)), here)
    fit = pc.and_(decided, long).to_numpy(zero_copy_only=False)
    values = {name: batch.column(column) for name, column in wanted.items()}
    ranks = _ranks(batch.column("id"), task.seed)
    own = {name: batch.column(name) for name in CANDIDATES.names if name in _COLUMNS}
    masks = {ALL: np.ones(batch.num_rows, np.bool_)}
    masks |= {name: one.evaluate(values, batch.num_rows) for name, one in task.slices}
    if task.listed:
        among = pa.array(task.listed, pa.string())
        either = pc.or_(pc.is_in(batch.column("id"), among), pc.is_in(batch.column("uri"), among))
        masks[LISTED] = either.to_numpy(zero_copy_only=False)
    for name, mask in masks.items():
        table = pa.table({"slice": [name] * batch.num_rows, "rank": ranks, **own}, schema=CANDIDATES)
        yield table.filter(pa.array(mask & fit))


def _ranks(ids: pa.Array, seed: int) -> NDArray[np.uint64]:
    """Return the hash of (seed, document ID) for each document, [n]."""
    halves = np.array([int(one[:16], 16) for one in ids.to_pylist()], np.uint64)
    return mix64(halves ^ mix64(np.array([seed], np.uint64)))


def _first(table: pa.Table, most: int) -> pa.Table:
    """Return the rows with the `most` smallest ranks, for each pair of slice and decision."""
    table = table.sort_by([(name, "ascending") for name in ("slice", "decision", "rank", "id", "bucket")])
    if not table.num_rows:
        return table
    groups = pc.binary_join_element_wise(table["slice"], table["decision"], "/").to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
    lengths = np.diff(np.append(starts, len(groups)))
    within = np.arange(len(groups)) - np.repeat(starts, lengths)
    return table.filter(pa.array(within < most)).combine_chunks()


#: Windows to try per document, since a sequence boundary may cut some.
TRIES = 16


@dataclass(frozen=True)
class TextWindow:
    """Window of consecutive tokens in one document.

    Args:
        id: document ID, hexadecimal.
        heldout: True if the document is held out.
        offset: position of the first token in the document.
        seen: number of steps that read the whole window in one sequence; 0 for a held-out document.
        tokens: prefix and suffix tokens, [width].
    """

    id: str
    bucket: str
    heldout: bool
    offset: int
    seen: int
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Taken:
    """Steps that a checkpoint was trained on: all steps up to the checkpoint, except skipped steps."""

    mixture: Manifest
    steps: Steps
    last: int
    left_out: frozenset[int] = frozenset()


class TrainedWindows:
    """Windows of training documents, read from the shards."""

    def __init__(self, ctx: Context, params: ExtractionTest, shards: Mapping[str, Manifest], taken: Taken) -> None:
        self._params, self._taken = params, taken
        self._spans = SpanSteps(ctx, taken.mixture, taken.steps)
        self._shards: dict[tuple[str, str], tuple[ShardReader, int]] = {
            (reader.bucket, part.name): (reader, int(part.stats["start"]))
            for reader in open_streams(ctx.store, shards).values()
            for part in reader.shards
        }

    def of(self, row: Mapping[str, Any]) -> TextWindow | None:
        """Try up to `TRIES` windows of a document. Return the first that some step read whole, or None if there is
        none."""
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
    """Return one window per held-out document, by bucket and ID. Documents shorter than a window are left out.

    All texts of the documents stay in memory.

    Args:
        trained: tokenizer manifest of the run.
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
    """Return the start of a window in its document, derived from the document's rank (a hash of seed and ID)."""
    return int(mix64(np.array([rank % 2**64], np.uint64))[0] % np.uint64(tokens - width + 1))
