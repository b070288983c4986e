"""Measured manifests of two models as pairs, one reader for each asset that measures.

Readers take columns and go through them by Arrow and numpy; one measure is held at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.evaluation.comparison import risk_readers
from plinth.evaluation.comparison.columns import chosen, groups, part_table
from plinth.evaluation.comparison.pairs import Pairs, align, labelled
from plinth.evaluation.parameters import PARENT_SLICES
from plinth.evaluation.slices.tables import AXIS
from plinth.records import Manifest, Part
from plinth.storage.parts import read_table
from plinth.storage.store import Store

Reader = Callable[[Store, Manifest, Manifest], Iterator[Pairs]]

BITS_PER_BYTE = "bits per byte"
#: Columns of documents that are slices, where they are there.
AXES = ("bucket", "language", "domain", "length")
#: What lm-evaluation-harness itself made of likelihoods: bits of the right answer are a measure of their own.
_RIGHT_ANSWER = "bits per byte of the right answer"
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)
_TASK_COLUMNS = ("document", "hash", "filter", "metric", "score", "weight", "bits", "bytes", "reason")


def reader(asset: str) -> Reader | None:
    """The reader of an asset, or None where it measures nothing of a model."""
    return READERS.get(asset) or READERS.get(asset.partition("/")[0])


def read(store: Store, a: Mapping[str, Manifest], b: Mapping[str, Manifest]) -> Iterator[Pairs]:
    """Pairs of every asset that both models were measured by, in the order of their names; measures without a pair too.

    Raises:
        IntegrityError: both were measured on other items.
    """
    for asset in sorted(set(a) & set(b)):
        if one := reader(asset):
            yield from one(store, a[asset], b[asset])


def _evaluation(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Held-out documents, and items of protected sets by set."""
    documents = [_documents(part_table(store, made, "documents.parquet")) for made in (a, b)]
    yield align("slices", BITS_PER_BYTE, *documents, fewer_is_better=True, ratio=True)
    items = [part_table(store, made, "items.parquet") for made in (a, b)]
    for name, (ours, theirs) in groups("set", *items):
        sides = [_protected(side) for side in (ours, theirs)]
        yield align("protected", name, *sides, fewer_is_better=True, ratio=True)


def _of_parent(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Held-out documents of the run that b came of, and that a began from."""
    documents = [_documents(part_table(store, made, "documents.parquet")) for made in (a, b)]
    yield align(PARENT_SLICES, BITS_PER_BYTE, *documents, fewer_is_better=True, ratio=True)


def _documents(table: pa.Table) -> pa.Table:
    names = table.schema.names
    axes = {name: name.removeprefix(AXIS) for name in names if name in AXES or name.startswith(AXIS)}
    columns: dict[str, Any] = {
        "item": _hexadecimal(table["id"]),
        "value": table["model_bits"],
        "weight": table["bytes"],
        "slices": labelled(table, axes),
    }
    return pa.table(columns | {to: table[name] for to, name in (("text", "text"), ("source", "uri")) if name in names})


def _hexadecimal(ids: pa.ChunkedArray) -> pa.Array:
    """Identities of 16 bytes as text of 32 digits."""
    if not len(ids):
        return pa.array([], pa.string())
    held = ids.combine_chunks()
    packed = np.frombuffer(held.buffers()[1], np.uint8)[16 * held.offset : 16 * (held.offset + len(held))]
    digits = _DIGITS[np.stack([packed >> 4, packed & 15], axis=1)]
    offsets = np.arange(0, digits.size + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(len(held), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits)))


def _protected(table: pa.Table) -> pa.Table:
    return chosen(table, "model_bits", "bytes", slices=labelled(table, {"status": "status"}))


def _tasks(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Every metric of every task that is a mean or ratio over items, and the bits of the right answers."""
    ours, theirs = ({part.name.removesuffix(".parquet"): part for part in made.parts} for made in (a, b))
    for task in sorted(set(ours) | set(theirs)):
        known = {at: _asked(store, part[task]) for at, part in enumerate((ours, theirs)) if task in part}
        none = next(iter(known.values())).slice(0, 0)
        sides = [known.get(at, none) for at in (0, 1)]
        yield from _right_answers(task, sides)
        scored = [side.filter(pc.is_valid(side["score"])) for side in sides]
        for metric, own in groups("measure", *scored):
            ratio = all(side["weight"].null_count == 0 for side in own)
            pair = [chosen(side, "score", "weight" if ratio else None, item="hash") for side in own]
            fewer = not _higher(ours.get(task) or theirs[task], metric)
            yield align("tasks", f"{task}: {metric}", *pair, fewer_is_better=fewer, ratio=ratio)


def _asked(store: Store, part: Part) -> pa.Table:
    """Rows of items that are not damaged, with the name of their measure."""
    table = read_table(store, part, _TASK_COLUMNS)
    table = table.filter(pc.and_(pc.is_null(table["reason"]), pc.is_valid(table["document"])))
    plain = pc.equal(table["filter"], "none")
    named = pc.if_else(plain, table["metric"], pc.binary_join_element_wise(table["metric"], table["filter"], ","))
    return table.append_column("measure", named)


def _right_answers(task: str, sides: Sequence[pa.Table]) -> Iterator[Pairs]:
    """Bits of the right answers, which stand in the rows of every metric alike: of the first."""
    known = [side.filter(pc.and_(pc.is_valid(side["bits"]), pc.greater(side["bytes"], 0))) for side in sides]
    if any(len(side) for side in known):
        pair = []
        for side in known:
            first = pc.min(side["measure"])
            pair.append(chosen(side.filter(pc.equal(side["measure"], first)), "bits", "bytes", item="hash"))
        yield align("tasks", f"{task}: {_RIGHT_ANSWER}", *pair, fewer_is_better=True, ratio=True)


def _higher(part: Part, measure: str) -> bool:
    return bool(part.stats["metrics"].get(measure, {}).get("higher_is_better", True))


def _probes(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Of every probe the bits of right answers and, where there is a choice, accuracy above chance; by template."""
    sides = [part_table(store, made, "items.parquet") for made in (a, b)]
    for measure, value, weight in ((BITS_PER_BYTE, "bits", "bytes"), ("accuracy above chance", "centred", None)):
        yield from _by_name("probes", "probe", measure, sides, value, weight, cluster="template")


def _proxies(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Of every family of proxies the items that pass, and the bits of right answers."""
    sides = [part_table(store, made, "items.parquet") for made in (a, b)]
    for measure, value, weight in (("passed", "passed", None), (BITS_PER_BYTE, "bits", "bytes")):
        yield from _by_name("proxies", "family", measure, sides, value, weight, item="number", text="prompt")


def _by_name(
    kind: str, name: str, measure: str, sides: Sequence[pa.Table], value: str, weight: str | None, **columns: str
) -> Iterator[Pairs]:
    """Items that have a value, by probe or family."""
    for group, own in groups(name, *sides):
        known = [side.filter(pc.is_valid(side[value])) for side in own]
        if any(len(side) for side in known):
            pair, ratio = [chosen(side, value, weight, **columns) for side in known], weight is not None
            yield align(kind, f"{group}: {measure}", *pair, fewer_is_better=ratio, ratio=ratio)


READERS: Mapping[str, Reader] = {
    "evaluation": _evaluation,
    "evaluation/parent": _of_parent,
    "fairness": risk_readers.fairness,
    "memorisation/canaries": risk_readers.canaries,
    "memorisation/extraction": risk_readers.extraction,
    "pii/outputs": risk_readers.personal_data,
    "probes": _probes,
    "proxies": _proxies,
    "tasks": _tasks,
}
