"""Steps between curated parts and shards: the stream of every document, and tokens in staging until shards are cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import get_ident
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plinth import fingerprint
from plinth.compute.context import Context, Item, run_items
from plinth.corpus.sidecars import slots
from plinth.corpus.sources.parameters import source_of
from plinth.errors import IntegrityError, MissingError, RecipeError, StorageError
from plinth.records import Blob, Manifest, Part, Step
from plinth.storage.atomic import named_failures
from plinth.storage.parts import iter_aligned, iter_batches, write_batches
from plinth.storage.store import Store, hash_stream
from plinth.tokens.shards.index import INDEX_SCHEMA
from plinth.tokens.shards.parameters import AXES, label_of
from plinth.tokens.shards.reader import ShardReader, open_streams
from plinth.tokens.tokenizer import encode
from plinth.tokens.tokenizer.comparison import SampleComparison
from plinth.tokens.tokenizer.reference import Encoder, slices

# The stream of every curated document: values of the axes, joined from the documents' sidecars.
#
# Curated text is the documents whose verdict is `train`, in order, so a sidecar's rows are filtered by the verdict and
# then match the curated rows. Memory is the labels of one part.

VERSION = "1"
VERDICTS, DOCUMENTS = "verdicts", "documents"
#: The axis of duplicates: a document stands for its whole cluster, of which it alone is left.
COPIES = "copies"

#: Row for row the curated part: the label of each document's stream.
SCHEMA = pa.schema([pa.field("label", pa.string(), nullable=False)])

_POWERS = 2 ** np.arange(63, dtype=np.int64)


def column_of(axis: str) -> str | None:
    """Return the sidecar column that has the values of an axis; None if a column of the document has them."""
    return AXES.get(axis, axis)


def sidecars_of(axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the stages whose manifests are needed to read the values of these axes.

    The stages are annotators, and also `verdicts` and `documents` if sidecar rows must be matched to documents.
    """
    named = {column.split(".")[0] for axis in axes if (column := column_of(axis))}
    placed = {VERDICTS, DOCUMENTS} if named or COPIES in axes else {DOCUMENTS} if "source" in axes else set()
    return tuple(sorted(named | placed))


def length_class(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each document's number of tokens, rounded up to a power of two, [documents]."""
    return _POWERS[np.searchsorted(_POWERS, tokens, side="left")]


def copies_class(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the size of each document's duplicate cluster, rounded down to a power of two, [documents].

    For a document without duplicates, the size is 1.
    """
    return _POWERS[np.searchsorted(_POWERS, np.maximum(sizes, 1), side="right") - 1]


@dataclass(frozen=True)
class _Task:
    axes: tuple[str, ...]
    curated: Part
    lengths: Part
    verdicts: Part | None
    sidecars: Mapping[str, Part]
    sources: tuple[Mapping[str, Any], ...]


def run(
    ctx: Context,
    bucket: str,
    axes: tuple[str, ...],
    curated: Manifest,
    lengths: list[Part],
    sidecars: Mapping[str, Manifest],
) -> list[Part]:
    """Write a part with the label of every document (`SCHEMA`), for every curated part.

    The stats of a part are `streams`, the number of documents and tokens by label.

    Args:
        lengths: token counts of the documents, one part for every curated part.
        sidecars: manifests of this bucket, for the stages that `sidecars_of(axes)` returns.

    Raises:
        RecipeError: a column cannot be used in the names of streams.
        IntegrityError: a sidecar does not belong to the curated text.
    """
    parts = curated.named("part-")
    columns = {name: made for name, made in sidecars.items() if name != DOCUMENTS}
    placed: list[Mapping[str, Part]] = [{} for _ in parts]
    if columns:
        places = slots({bucket: sidecars[DOCUMENTS]}, **{name: {bucket: made} for name, made in columns.items()})
        by_name = {slot.documents.name: slot.sides for slot in places}
        placed = [by_name[part.name] for part in parts]
    sources = tuple(sidecars[DOCUMENTS].params.get("sources", ())) if "source" in axes else ()
    facts = json.dumps([list(axes), [dict(one) for one in sources]], sort_keys=True)
    items = []
    for part, own_lengths, side in zip(parts, lengths, placed, strict=True):
        digests = (part.blob.sha256, own_lengths.blob.sha256, *(f"{n}:{side[n].blob.sha256}" for n in sorted(side)))
        own = {name: one for name, one in side.items() if name != VERDICTS}
        task = _Task(axes, part, own_lengths, side.get(VERDICTS), own, sources)
        items.append(Item((*digests, facts), task, part.rows))
    step = Step(name="tokens.shards.axes", version=VERSION)
    return [one[0] for one in run_items(ctx, step, _write, items, label=f"{bucket}/shards: streams")]


def _write(store: Store, task: _Task) -> tuple[Part, ...]:
    tokens = _read_column(store, task.lengths, "tokens").to_numpy()
    columns = [_values(store, task, axis, tokens) for axis in task.axes]
    for axis, column in zip(task.axes, columns, strict=True):
        if len(column) != task.curated.rows:
            raise IntegrityError(
                f"the values of axis {axis} do not match the documents of {task.curated.name}",
                found=f"{len(column)} documents",
                expected=f"{task.curated.rows} training documents",
                remedy="recompute the sidecar and the curated text from the same documents",
            )
    labels = _labels(task.axes, columns)
    codes, names = labels.indices.to_numpy(), labels.dictionary.to_pylist()
    counts = np.bincount(codes, minlength=len(names))
    sums = np.bincount(codes, weights=tokens.astype(np.float64), minlength=len(names)).astype(np.int64)
    streams = {name: {"documents": int(counts[i]), "tokens": int(sums[i])} for i, name in enumerate(names)}
    batch = pa.RecordBatch.from_arrays([labels.dictionary_decode()], schema=SCHEMA)
    return (write_batches(store, "labels.parquet", SCHEMA, [batch], stats={"streams": streams}),)


def _labels(axes: tuple[str, ...], columns: list[pa.Array]) -> pa.DictionaryArray:
    """Return the label of every document, as a dictionary array whose dictionary is in order of name."""
    coded = [column.dictionary_encode() for column in columns]
    numbers = np.zeros(len(columns[0]), dtype=np.int64)
    for one in coded:
        numbers = numbers * max(1, len(one.dictionary)) + one.indices.to_numpy()
    present, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    rows = [[one.dictionary[one.indices[int(at)].as_py()].as_py() for one in coded] for at in first]
    names = [label_of(dict(zip(axes, row, strict=True))) for row in rows]
    order = sorted(set(names))  # two values may have one name: absent, and the word `unknown`
    place = np.array([order.index(name) for name in names], dtype=np.int32)
    codes = place[inverse] if len(present) else np.empty(0, np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(order, pa.string()))


def _values(store: Store, task: _Task, axis: str, tokens: NDArray[np.int64]) -> pa.Array:
    """Return the value of an axis for every curated document, as strings without nulls."""
    column = column_of(axis)
    if column is not None:
        return _without_nulls(pa.chunked_array(_sidecar_column(store, task, column), pa.string()))
    if axis == "length":
        return pa.array(length_class(tokens).astype(str), pa.string())
    if axis == COPIES:
        return pa.array(copies_class(_cluster_sizes(store, task)).astype(str), pa.string())
    if axis in ("domain", "source"):
        return pa.array([_origin(axis, task, *row) for row in _origins(store, task.curated)], pa.string())
    return _without_nulls(_read_column(store, task.curated, axis))


def _sidecar_column(store: Store, task: _Task, column: str) -> list[pa.Array]:
    """Return a sidecar's column for the training documents, as strings."""
    side, _, name = column.partition(".")
    assert task.verdicts is not None
    as_strings = _to_strings(column)
    return [
        as_strings(one.column(name).filter(pc.equal(verdict.column("decision"), "train")))
        for one, verdict in iter_aligned(store, (task.sidecars[side], [name]), (task.verdicts, ["decision"]))
    ]


def _cluster_sizes(store: Store, task: _Task) -> NDArray[np.int64]:
    """Return the size of the duplicate cluster of every training document."""
    assert task.verdicts is not None
    sizes = [
        batch.column("cluster_size").filter(pc.equal(batch.column("decision"), "train")).to_numpy()
        for batch in iter_batches(store, task.verdicts, ["decision", "cluster_size"])
    ]
    return np.concatenate([np.empty(0, np.int64), *sizes]).astype(np.int64)


def _to_strings(column: str) -> Callable[[pa.Array], pa.Array]:
    def convert(values: pa.Array) -> pa.Array:
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        if not (pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise RecipeError(
                f"shards.axes: {column} cannot be used in names of streams",
                found=f"values of type {kind}",
                expected="a column of strings, or of booleans",
                remedy="choose a label (language.label, perplexity.band, …) instead of a score",
            )
        return pc.cast(values, pa.string())

    return convert


def _origins(store: Store, curated: Part) -> Iterator[tuple[str | None, str]]:
    """Yield the domain and snapshot of every curated document."""
    for batch in iter_batches(store, curated, ["extra", "snapshot"]):
        domains = [json.loads(extra).get("domain") for extra in batch.column("extra").to_pylist()]
        yield from zip(domains, batch.column("snapshot").to_pylist(), strict=True)


def _origin(axis: str, task: _Task, domain: str | None, snapshot: str) -> str:
    if axis == "domain":
        return domain or ""
    place = source_of(task.sources, domain, snapshot)
    return "" if place is None else str(place)


def _read_column(store: Store, part: Part, column: str) -> pa.Array:
    batches = [batch.column(column) for batch in iter_batches(store, part, [column])]
    return pa.chunked_array(batches).combine_chunks() if batches else pa.array([], pa.string())


def _without_nulls(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return pc.fill_null(whole, "")


# The tokens of curated parts on their way into shards: in staging, and no longer than the shards are cut.
#
# Even shards can only be cut once all parts are counted, so a part's tokens are written twice: to staging, then into
# the shards. The staged copy is removed as soon as no shard needs it. When the cut changes (text was added), the tokens
# are copied back from the shards that were published last; where those are gone the text is encoded again. Either way
# the bytes are those whose SHA-256 was recorded.

#: Documents that are read at once: a few times `COLUMN_BYTES` of text.
BATCH_ROWS = 1024
#: Row for row the curated part: id and number of tokens of each document.
_LENGTHS = pa.schema([INDEX_SCHEMA.field("id"), INDEX_SCHEMA.field("tokens")])


@dataclass(frozen=True)
class StagedTokens:
    """Tokens of a curated part in staging: documents in order, each followed by end-of-text.

    Args:
        bucket: bucket of the part; two buckets never share a file.
        blob: content of the file, which may or may not exist.
    """

    bucket: str
    blob: Blob

    @property
    def name(self) -> str:
        """Name of the file in staging."""
        return f"tokens-{self.bucket}-{self.blob.sha256}.bin"

    def exists(self, store: Store) -> bool:
        """Return True if the file exists with its recorded length."""
        return store.has_scratch(self.name, self.blob.bytes)

    def open_path(self, store: Store) -> Path:
        """Return the path of the file for reading.

        Raises:
            MissingError: the file does not exist.
        """
        if not self.exists(store):
            raise MissingError(
                f"the staged tokens of a part of {self.bucket} were deleted while in use",
                expected=self.name,
                remedy="run the same command again to recompute them",
            )
        return store.open_scratch(self.name, self.blob)

    def remove(self, store: Store) -> None:
        """Remove the file from staging."""
        store.remove_scratch(self.name)


@dataclass(frozen=True)
class PublishedTokens:
    """Published shards that contain a part's tokens: blob of the shards' manifest, and number of the curated part."""

    shards: Blob
    part: int


@dataclass(frozen=True)
class TokeniseTask:
    """Task to tokenize a curated part; `staged` and `published` are set if its tokens are restored."""

    bucket: str
    tokenizer: Blob
    curated: Part
    dtype: str
    end_of_text: int
    staged: StagedTokens | None = None
    published: PublishedTokens | None = None


def tokenise(ctx: Context, asset: str, tasks: Sequence[TokeniseTask]) -> list[Part]:
    """Tokenize every curated part, and return the ids and token counts of its documents.

    The stats of a part are tokens, text_bytes, `stream` (blob of the tokens), `encoder` (library that encoded), and
    `compared` (documents and bytes that were encoded with the tokenizers library too).
    """
    items = [Item((task.tokenizer.sha256, task.curated.blob.sha256), task, task.curated.rows) for task in tasks]
    facts = {"dtype": tasks[0].dtype, "end_of_text": tasks[0].end_of_text} if tasks else {}
    libraries = fingerprint.libraries(*encode.LIBRARIES)
    step = Step(name="tokens.shards.tokenise", version="3", params=facts, libraries=libraries)
    return [parts[0] for parts in run_items(ctx, step, _tokenise, items, label=f"{asset}: tokenize", unit="documents")]


def published_tokens(ctx: Context, asset: str, tokenizer: str, dtype: str) -> dict[str, PublishedTokens]:
    """Return the locations of curated parts' tokens in the published shards, by SHA-256 of the curated part.

    The result is empty if the published shards are incomplete, or have another tokenizer or dtype.
    """
    ref = ctx.refs.ref(asset)
    if ref is None:
        return {}
    try:
        shards = ctx.refs.load(ref.digest)
        curated = ctx.refs.load(shards.inputs[asset.rsplit("/", 1)[0] + "/curated"])
    except (KeyError, MissingError, StorageError):
        return {}
    whole = ctx.store.has_all(part.blob for part in shards.parts)
    if not whole or (shards.stats.get("tokenizer"), shards.stats.get("dtype")) != (tokenizer, dtype):
        return {}
    kept = ctx.store.put_bytes(fingerprint.canonical(shards))
    return {part.blob.sha256: PublishedTokens(kept, number) for number, part in enumerate(curated.named("part-"))}


def restore(store: Store, task: TokeniseTask) -> None:
    """Put the tokens of a part back into staging: from published shards, or by tokenizing the text again.

    Raises:
        IntegrityError: tokenizing the text results in other tokens than before.
    """
    wanted = task.staged
    assert wanted is not None
    if task.published is not None and _copy_published(store, wanted, task.published):
        return
    (lengths,) = _tokenise(store, task)
    if lengths.stats["stream"] != wanted.blob.model_dump():
        raise IntegrityError(
            f"{task.curated.name} of {task.bucket} results in other tokens than before",
            found=f"SHA-256 {lengths.stats['stream']['sha256']}",
            expected=f"SHA-256 {wanted.blob.sha256}",
            remedy="the tokenizer library has changed: retrain the tokenizer, or install the pinned version",
        )


@lru_cache(maxsize=1)
def _encoder(store: Store, blob: Blob, end: int, thread: int) -> tuple[Tokenizer, Encoder]:
    """Return a tokenizer and its encoder, kept for the thread's next part: tables take a tenth of a second to build."""
    trained = encode.load(store, blob)
    return trained, encode.encoder_of(trained, end)


def _tokenise(store: Store, task: TokeniseTask) -> tuple[Part, ...]:
    trained, encoder = _encoder(store, task.tokenizer, task.end_of_text, get_ident())
    compared = SampleComparison(trained, encoder, task.end_of_text, task.curated.rows, task.curated.name)
    lengths, size = [np.empty(0, np.int64)], 0
    with _writer(store, task.bucket) as (stream, made), encode.parallel(False):
        for batch in iter_batches(store, task.curated, ["text"], BATCH_ROWS):
            for texts in slices(batch.column("text")):
                ids, first = encoder.encode(texts, task.dtype)
                compared.add(texts, (ids, first))
                stream.write(ids.data)
                lengths.append(np.diff(first))
                size += pc.sum(pc.binary_length(texts)).as_py() or 0
    counts = np.concatenate(lengths)
    stats = {
        "tokens": int(counts.sum()),
        "text_bytes": size,
        "stream": made[0].blob.model_dump(),
        "encoder": encoder.name,
        "compared": {"documents": compared.documents, "bytes": compared.bytes},
    }
    part = write_batches(store, "index.parquet", _LENGTHS, _length_batches(store, task.curated, counts))
    return (part.model_copy(update={"stats": stats}),)


def _length_batches(store: Store, curated: Part, lengths: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    row = 0
    for batch in iter_batches(store, curated, ["id"]):
        tokens = pa.array(lengths[row : row + batch.num_rows], pa.int64())
        yield pa.RecordBatch.from_arrays([batch.column("id"), tokens], schema=_LENGTHS)
        row += batch.num_rows


@contextmanager
def _writer(store: Store, bucket: str) -> Iterator[tuple[IO[bytes], list[StagedTokens]]]:
    """Open a file in staging for tokens.

    The yielded list contains the record of the tokens after the block has ended without an error.
    """
    made: list[StagedTokens] = []
    with store.staging(".bin") as path:
        with named_failures(path), path.open("wb") as stream:
            yield stream, made
        with path.open("rb") as read:
            made.append(StagedTokens(bucket, hash_stream(read)))
        store.keep_scratch(path, made[0].name)


def _copy_published(store: Store, staged: StagedTokens, published: PublishedTokens) -> bool:
    """Copy a part's tokens from published shards to staging. Return False if they differ from the recorded tokens."""
    documents = []
    for reader in _readers(store, published.shards).values():
        documents += [(span.row, reader, span) for span in reader.index.of_part(published.part)]
    try:
        with _writer(store, staged.bucket) as (out, made):
            for _, reader, span in sorted(documents, key=lambda found: found[0]):
                out.write(np.ascontiguousarray(reader.read(span.start, span.tokens)).tobytes())
    except IntegrityError:
        return False
    if made[0] != staged:
        made[0].remove(store)
        return False
    return True


@lru_cache(maxsize=1)
def _readers(store: Store, shards: Blob) -> Mapping[str, ShardReader]:
    """Return the readers of published shards.

    The readers are cached per process, because loading a large manifest takes seconds.
    """
    return open_streams(store, [Manifest.model_validate_json(store.read_bytes(shards))])
