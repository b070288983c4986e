"""Training examples, and the linear model trained on them. Examples are the features of sampled documents, or of the
texts in a labeled list, divided into splits.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, Item, run_items
from plinth.corpus import lists
from plinth.corpus.models.artefact import balanced, log_loss, sigmoid
from plinth.corpus.policy.expressions import Expression
from plinth.corpus.sidecars import Smallest, ranks
from plinth.errors import SourceError
from plinth.records import Blob, Frozen, Manifest, Part, Step
from plinth.storage.parts import iter_aligned, iter_batches, read_table, write_batches
from plinth.storage.store import Store
from plinth_text import scoring, unicode
from plinth_text.arrays import F32, F64, I32, I64, U64
from plinth_text.compiled import compiled

# Train a linear model on hashed words and pairs of words: logistic regression, one label against the rest.
#
# A document's margin is the mean of the rows of its features plus a bias, as in fastText (Joulin et al. 2016), whose
# two matrices are multiplied out here. Steps are Adagrad's (Duchi, Hazan and Singer 2011): a row's step shrinks with
# the gradients it has seen, so rare words learn as fast as common ones. The damping keeps words seen once from
# deciding anything. The epoch with the least loss on documents held back wins.
#
# Documents are visited in an order that their hashes give, one after the other: the result depends on nothing else.
# Memory is two tables and the sample. Letters: D documents, F features, R rows, K labels.

class Sgd(Frozen):
    """Settings of stochastic gradient descent for a linear model."""

    epochs: int = 10
    rate: float = 0.5
    damping: float = 0.3


@dataclass(frozen=True)
class Ragged:
    """Features of documents in one flat array. Document d has `rows[starts[d]:starts[d + 1]]`; `labels` [D] are below
    K."""

    starts: I64
    rows: I32
    labels: I64

    def take(self, chosen: I64) -> Ragged:
        """Return the features of the documents in `chosen`, in the order of `chosen`."""
        sizes = np.diff(self.starts)[chosen]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        at = np.arange(starts[-1]) + np.repeat(self.starts[chosen] - starts[:-1], sizes)
        return Ragged(starts, self.rows[at], self.labels[chosen])


@dataclass(frozen=True)
class Linear:
    """Linear model: table [R, K] and biases [K]. `losses` has the loss on held-back documents after every epoch."""

    table: F32
    bias: F32
    losses: tuple[float, ...]


def fit(train: Ragged, held: Ragged, outputs: int, bits: int, sgd: Sgd) -> Linear:
    """Train a linear model and return the model of the best epoch. A model with one output predicts label 1. In a model
    with several outputs, output k separates label k from the other labels."""
    classes = max(outputs, 2)
    table, bias = np.zeros((1 << bits, outputs), np.float32), np.zeros(outputs, np.float32)
    squares, bias_squares = np.zeros_like(table), np.zeros(outputs, np.float64)
    weights = balanced(train.labels, classes).astype(np.float32)
    best: tuple[F32, F32] | None = None
    losses: list[float] = []
    for epoch in range(sgd.epochs):
        order = _order(train.labels.size, epoch)
        train_epoch(
            train.starts, train.rows, train.labels, weights, order, sgd.rate, sgd.damping, table, bias, squares,
            bias_squares,
        )  # fmt: skip
        losses.append(loss(held, table, bias))
        if best is None or losses[-1] < min(losses[:-1]):
            best = table.copy(), bias.copy()
    assert best is not None
    return Linear(*best, tuple(losses))


def loss(held: Ragged, table: F32, bias: F32) -> float:
    """Return the mean loss over all outputs on held-back documents, in nats. All classes have equal weight."""
    outputs = bias.size
    probabilities = sigmoid(margins(held, table, bias))
    weights = balanced(held.labels, max(outputs, 2))
    truths = truth(held.labels, outputs)
    return float(np.mean([log_loss(truths[:, k], probabilities[:, k], weights) for k in range(outputs)]))


def truth(labels: I64, outputs: int) -> I64:
    """Return the targets, [D, K]. A target is 1 if the document has the label of the output, and 0 otherwise."""
    wanted = np.arange(outputs) if outputs > 1 else np.ones(1, np.int64)
    return np.asarray(labels[:, None] == wanted, dtype=np.int64)


def margins(documents: Ragged, table: F32, bias: F32, window: int = 0) -> F64:
    """Return the margins of documents, [D, K]. The margins equal those of `features.margins` on the texts."""
    out = np.empty((documents.labels.size, bias.size), np.float64)
    find_margins(documents.starts, documents.rows, table, bias, window, out)
    return out


def _order(size: int, epoch: int) -> I64:
    """Return a random permutation for one epoch. The generator is PCG64, because numpy guarantees its output."""
    return np.argsort(np.random.Generator(np.random.PCG64(epoch)).random(size), kind="stable")


@compiled
def train_epoch(
    starts: I64, rows: I32, labels: I64, weights: F32, order: I64, rate: float, damping: float, table: F32, bias: F32,
    squares: F32, bias_squares: F64,
) -> None:  # fmt: skip
    """Train on every document once, in the sequence that `order` lists."""


@compiled
def find_margins(starts: I64, rows: I32, table: F32, bias: F32, window: int, out: F64) -> None:
    """Write the margins of documents to `out`. The rows of a document's words come before those of word pairs."""

# Examples to learn from: a sample of documents or of a labeled list, as features, cut into splits.
#
# Of a bucket those documents are taken whose ids have the smallest keyed hash, about as many as wanted, so that the
# sample is the same on every machine and memory is bounded by it. A document's split follows from a keyed hash of its
# text, so that copies never stand on both sides.
#
# Letters: D examples, F features of all of them.

VERSION = "1"
BATCH_ROWS = 512
#: A sample by hash is of about the size wanted; so much more is drawn, and the surplus dropped.
_MARGIN = 1.1
#: Share of every split, in this order.
SPLITS = {"train": 0.50, "validation": 0.10, "border": 0.15, "calibration": 0.13, "test": 0.12}
_SPLIT_KEY = 0x5EED

SCHEMA = pa.schema(
    [
        pa.field("rank", pa.uint64(), nullable=False),
        pa.field("split", pa.int8(), nullable=False),
        pa.field("label", pa.int32(), nullable=False),
        pa.field("rows", pa.list_(pa.int32()), nullable=False),
        pa.field("dense", pa.list_(pa.float32()), nullable=False),
    ]
)


class Drawing(Frozen):
    """Parameters of the sample of examples."""

    documents: int
    bits: int
    max_words: int
    seed: int


@dataclass(frozen=True)
class ExampleSource:
    """Bucket or list that examples are sampled from.

    Args:
        name: name of the bucket or list.
        made: manifest of the bucket or list.
        label: label of all documents of the source.
        globs: URI patterns, each with the label of matching documents. If set, they are used instead of `label`, and a
            document gets the label of the first pattern that matches.
        values: label number for each value of a list's field `label`. Other values get the argument `label`.
        judged: sidecar that labels the documents of a bucket, and the rule over its columns: documents for which the
            rule holds get label 1, others label 0. Documents with a null in a column of the rule are not sampled.
    """

    name: str
    made: Manifest
    label: int = -1
    globs: tuple[tuple[str, int], ...] = ()
    values: tuple[tuple[str, int], ...] = ()
    is_list: bool = False
    judged: tuple[Manifest, Expression] | None = None


@dataclass(frozen=True)
class _Task:
    drawing: Drawing
    source: str
    label: int
    globs: tuple[tuple[str, int], ...]
    values: tuple[tuple[str, int], ...]
    is_list: bool
    limit: int
    part: Part
    lexicon: tuple[tuple[str, Blob], ...]
    judged: tuple[Part, Expression] | None = None


@dataclass(frozen=True)
class Examples:
    """Examples in the order of their hashes: features and labels [D], splits [D], and features of the second stage [D,
    N]."""

    documents: Ragged
    splits: npt.NDArray[np.int8]
    dense: F32

    def of(self, split: str) -> Examples:
        """Return the examples of one split."""
        chosen = np.flatnonzero(self.splits == list(SPLITS).index(split))
        return Examples(self.documents.take(chosen), self.splits[chosen], self.dense[chosen])


def draw(
    ctx: Context, asset: str, drawing: Drawing, sources: Sequence[ExampleSource], terms: Manifest | None
) -> list[Part]:
    """Sample examples and return them as parts, at most about `drawing.documents` per source.

    Args:
        terms: lexicon whose matches become features.
    """
    step = Step(name="examples", version=VERSION, params=drawing.model_dump(), libraries=fingerprint.UNICODE)
    blobs = tuple((part.name, part.blob) for part in terms.parts) if terms else ()
    items = []
    for source in sources:
        parts = source.made.parts if source.is_list else source.made.named("part-")
        rows = max(1, sum(part.rows for part in parts))
        share = 1.0 if source.is_list or source.judged else min(1.0, _MARGIN * drawing.documents / rows)
        limit = min(2**64 - 1, int(share * 2**64))
        sides = source.judged[0].named("part-") if source.judged else parts
        for part, side in zip(parts, sides, strict=True):
            judged = (side, source.judged[1]) if source.judged else None
            task = _Task(drawing, source.name, source.label, source.globs, source.values, source.is_list, limit,
                         part, blobs, judged)  # fmt: skip
            what = f"{source.label} {source.globs} {source.values} {limit}"
            identity = (part.blob.sha256, what, *(f"{name}/{blob.sha256}" for name, blob in blobs))
            identity += (judged[0].blob.sha256, judged[1].text) if judged else ()
            items.append((source.name, Item(identity, task, part.rows or 1)))
    made = run_items(ctx, step, _draw, [item for _, item in items], label=f"{asset} examples")
    return [parts[0].model_copy(update={"name": name}) for (name, _), parts in zip(items, made, strict=True)]


def load(store: Store, parts: Sequence[Part], documents: int) -> Examples:
    """Load the examples in parts, at most `documents` per source. The name of a part is the name of its source."""
    tables = []
    for name in dict.fromkeys(part.name for part in parts):
        own = pa.concat_tables([read_table(store, part) for part in parts if part.name == name])
        tables.append(own.take(pa.array(np.argsort(own.column("rank").to_numpy(), kind="stable")[:documents])))
    table = pa.concat_tables(tables).combine_chunks()
    order = np.argsort(table.column("rank").to_numpy(), kind="stable")
    table = table.take(pa.array(order)).combine_chunks()
    rows, dense = (table.column(name).combine_chunks() for name in ("rows", "dense"))
    ragged = Ragged(
        np.concatenate([[0], np.cumsum(np.diff(rows.offsets.to_numpy()))]),
        rows.flatten().to_numpy(),
        table.column("label").to_numpy().astype(np.int64),
    )
    look = dense.flatten().to_numpy().reshape(len(table), -1)
    return Examples(ragged, table.column("split").to_numpy(), look)


def _draw(store: Store, task: _Task) -> tuple[Part, ...]:
    terms = None
    if task.lexicon:
        terms = lists.read({name: store.open_path(blob) for name, blob in task.lexicon}, "the lexicon")
    found = _listed(store, task) if task.is_list else _documents(store, task)
    return (write_batches(store, "part.parquet", SCHEMA, (_batch(task.drawing, terms, *one) for one in found)),)


Found = tuple[pa.Array, U64, I64]


def _documents(store: Store, task: _Task) -> Iterator[Found]:
    """Yield the texts, ranks and labels of the sampled documents of a part."""
    if task.judged is not None:
        yield from _judged(store, task, *task.judged)
        return
    patterns = [(re.compile(fnmatch.translate(glob)), label) for glob, label in task.globs]
    for batch in iter_batches(store, task.part, ("id", "text", "uri"), BATCH_ROWS):
        place = ranks(batch.column("id"), task.drawing.seed)
        chosen = place < np.uint64(task.limit) if task.limit < 2**64 - 1 else np.ones(place.size, np.bool_)
        labels = np.full(batch.num_rows, task.label, np.int64)
        if patterns:
            labels[:] = [_by_uri(uri, patterns) for uri in batch.column("uri").to_pylist()]
        at = np.flatnonzero(chosen & (labels >= 0))
        if at.size:
            yield batch.column("text").take(pa.array(at)), place[at], labels[at]


def _judged(store: Store, task: _Task, sidecar: Part, rule: Expression) -> Iterator[Found]:
    """Yield the texts, ranks and labels of the documents that a sidecar labels."""
    names = {name: name.partition(".")[2] for name in sorted(rule.columns)}
    sources = (task.part, ("id", "text")), (sidecar, tuple(names.values()))
    for batch, side in iter_aligned(store, *sources, rows=BATCH_ROWS):
        columns = {name: side.column(column) for name, column in names.items()}
        known = np.logical_and.reduce([column.is_valid().to_numpy(False) for column in columns.values()])
        labels = rule.evaluate(columns, batch.num_rows).astype(np.int64)
        at = np.flatnonzero(known)
        if at.size:
            yield batch.column("text").take(pa.array(at)), ranks(batch.column("id"), task.drawing.seed)[at], labels[at]


def _by_uri(uri: str, patterns: Sequence[tuple[re.Pattern[str], int]]) -> int:
    return next((label for pattern, label in patterns if pattern.match(uri)), -1)


def _listed(store: Store, task: _Task) -> Iterator[Found]:
    """Yield the texts, ranks and labels of examples sampled from a list of JSON lines with `text` and `label`."""
    values = dict(task.values)
    smallest = Smallest(task.drawing.documents)
    lines = read_labelled(store.open_path(task.part.blob).read_bytes(), f"lists/{task.source}, {task.part.name}")
    rows = [(row["text"], values.get(row["label"], task.label)) for row in lines]
    for start in range(0, len(rows), BATCH_ROWS):
        some = rows[start : start + BATCH_ROWS]
        digests = unicode.digests(pa.array([text for text, _ in some], pa.large_string()))
        smallest.extend(zip(ranks(digests, task.drawing.seed).tolist(), some, strict=True))
    chosen = smallest.chosen()
    for start in range(0, len(chosen), BATCH_ROWS):
        some = chosen[start : start + BATCH_ROWS]
        texts = pa.array([text for text, _ in some], pa.large_string())
        yield texts, ranks(unicode.digests(texts), task.drawing.seed), np.array([label for _, label in some], np.int64)


def read_labelled(data: bytes, where: str) -> Iterator[Mapping[str, Any]]:
    """Yield the lines of a labeled set. Each line is an object with the strings `text` and `label`, and other fields.

    Raises:
        SourceError: a line is malformed; the error names the line.
    """
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise _no_row(where, number, error) from error
        if not isinstance(row, dict) or not (isinstance(row.get("text"), str) and isinstance(row.get("label"), str)):
            raise _no_row(where, number, f"{str(row)[:80]}")
        yield row


def _no_row(where: str, number: int, found: object) -> SourceError:
    expected = 'an object with the strings "text" and "label"'
    message = f"{where} line {number} is not a labeled example"
    return SourceError(message, found=found, expected=expected, remedy="correct the line")


def _batch(
    drawing: Drawing,
    terms: lists.Lexicon | None,
    texts: pa.Array,
    place: U64,
    labels: I64,
) -> pa.RecordBatch:
    starts, rows = scoring.rows(texts, drawing.bits, drawing.max_words)
    look = second_look(texts, terms)
    lists = pa.ListArray.from_arrays(pa.array(starts.astype(np.int32)), pa.array(rows))
    wide = pa.array(np.arange(len(texts) + 1, dtype=np.int32) * look.shape[1])
    columns = [pa.array(place), pa.array(splits(texts)), pa.array(labels.astype(np.int32)), lists,
               pa.ListArray.from_arrays(wide, pa.array(look.ravel()))]  # fmt: skip
    return pa.record_batch(columns, schema=SCHEMA)


def second_look(texts: pa.Array, terms: lists.Lexicon | None) -> F32:
    """Return the features of the second stage, [texts, N], without the margin: surface statistics of the text, and
    matches of a lexicon."""
    counts = scoring.counts(texts)
    look = scoring.from_counts(counts)
    if terms is None:
        return look
    return np.concatenate([look, terms.features(terms.find(texts), counts[:, scoring.WORDS])], axis=1)


def splits(texts: pa.Array) -> npt.NDArray[np.int8]:
    """Return the split of every text, as an index into `SPLITS`."""
    place = ranks(unicode.digests(texts), _SPLIT_KEY) / 2.0**64
    return np.searchsorted(np.cumsum(list(SPLITS.values()))[:-1], place, side="right").astype(np.int8)


# The mark of labeled sets that `plinth corpus slices --write` generates, and its refusal.
#
# Generated good and bad text come from one generator: a model trained on one half seems perfect on the other half, and
# misclassifies harmless text of other kinds. Such sets are for tests.

#: A field that every generated row has, whatever became of the file.
MARK = "generated"


def line(text: str, label: str, slice_name: str) -> str:
    """Return one line of a generated labeled set. The line is marked as generated."""
    return json.dumps({"text": text, "label": label, "slice": slice_name, MARK: True}, ensure_ascii=False) + "\n"


def require_real(store: Store, lists: Mapping[str, Manifest], user: str) -> None:
    """Raise SourceError if a labeled set has generated rows.

    Args:
        lists: labeled sets by asset key.
        user: asset that reads the labeled sets, such as `models/toxicity`.

    Raises:
        SourceError: a set has generated rows, or cannot be read; the error names the set.
    """
    for key, made in lists.items():
        for part in made.parts:
            where = f"{key}, {part.name}"
            marked = marked_rows(store.open_path(part.blob), where)
            if marked:
                raise refused(where, marked, user)


def marked_rows(path: Path, where: str) -> int:
    """Return the number of rows of a labeled set that are marked as generated."""
    return sum(bool(row.get(MARK)) for row in read_labelled(path.read_bytes(), where))


def refused(where: str, marked: int, user: str) -> SourceError:
    """Return the error for a labeled set with generated rows in a recipe that is not a test recipe."""
    return SourceError(
        f"{user} may not read {where}",
        found=f"{marked:,} generated examples (`plinth corpus slices --write`)",
        expected="text labeled by people: results on generated text do not transfer to other text",
        remedy="use your own labeled set or a ready model (docs/learned-gates.md); `test: true` marks a test "
        "recipe, which may read it",
    )
