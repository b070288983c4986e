"""Personal data in text: the asset `pii/data` (personal data left in training text), and the detector for any text.

The detection rules are in `corpus.annotate.pii`. The function `documents` turns a checkpoint's generated texts into a
manifest that annotators can read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from plinth.compute.context import Context, Item, add_stats, manifest, run_items
from plinth.corpus import annotate
from plinth.corpus.annotate.pii.pii import ANNOTATOR, DEFAULT_KINDS, KINDS, NAMED, PiiParams
from plinth.corpus.documents.documents import document_id
from plinth.corpus.sidecars import Slot, slots
from plinth.evaluation import statistics
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import DOCUMENT_SCHEMA, iter_aligned, write_batches, write_table
from plinth.storage.store import Store

# The asset `pii/data`: personal data left in training text after redaction, by bucket and kind.
#
# Every training document is scanned, without sampling. Upper limits are 95% limits of the share of documents with a
# finding (Clopper and Pearson 1934): 500 documents without a finding give a limit of 0.6%. The limits do not account
# for data that the detector misses; docs/languages-and-pii.md has its recall by kind.

ASSET: Final = "pii/data"
VERSION: Final = "1"
LEVEL: Final = 0.95
MILLION: Final = 1_000_000

#: One row per finding, without the text.
SCHEMA = pa.schema(
    [
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("uri", pa.string(), nullable=False),
        pa.field("rule", pa.string(), nullable=False),  # kind, or kind/rule
        pa.field("start_cp", pa.int32(), nullable=False),
        pa.field("end_cp", pa.int32(), nullable=False),
    ]
)


def run(ctx: Context, checkpoint: Manifest, curated: Mapping[str, Manifest], detector: PiiDetector) -> Manifest:
    """Count the personal data that the detector finds in the curated training text of every bucket.

    Returns:
        Manifest of `{bucket}/part-*` (`SCHEMA`), one for each part of training text. Stats: `documents`, `found`
        (documents with a finding), `per_million`, `at_most` (upper confidence limit of the fraction; None without
        documents), `kinds` (by kind: `documents`, `spans`, `per_million`, `per_million_at_most`), `buckets`
        (the same by bucket), `level`, `detector` (`PiiDetector.facts`).
    """
    facts = detector.facts
    step = Step(name=ASSET, version=VERSION, params={"written": sorted(detector.written)})
    sidecars = {bucket: detector.scan(ctx, bucket, made) for bucket, made in sorted(curated.items())}
    places = slots(curated, found=sidecars)
    items = [
        Item(
            (slot.documents.blob.sha256, slot.sides["found"].blob.sha256),
            _Task(slot, detector.written),
            slot.documents.rows,
        )
        for slot in places
    ]
    counted = [made[0] for made in run_items(ctx, step, _count, items, label=ASSET)]
    parts = [part.model_copy(update={"name": slot.name}) for slot, part in zip(places, counted, strict=True)]
    buckets = {
        bucket: rates(add_stats(part for part in parts if part.name.startswith(f"{bucket}/")), detector.kinds)
        for bucket in sorted(curated)
    }
    stats = rates(add_stats(parts), detector.kinds) | {"buckets": buckets, "level": LEVEL, "detector": facts}
    inputs: dict[str, Manifest] = {"checkpoint": checkpoint, **dict(detector.resources)}
    inputs |= {f"{bucket}/curated": made for bucket, made in sorted(curated.items())}
    return manifest(ASSET, step, inputs, parts, stats)


def rates(counted: Mapping[str, Any], kinds: tuple[str, ...]) -> dict[str, Any]:
    """Return the fractions of documents with personal data and their upper limits, computed from counts: `documents`,
    `found`, and by kind `documents` and `spans`."""
    documents, found = counted.get("documents", 0), counted.get("found", 0)
    by_kind = counted.get("kinds", {})
    return {
        "documents": documents,
        "found": found,
        **_share(found, documents),
        "kinds": {kind: _kind(by_kind.get(kind, {}), documents) for kind in kinds},
    }


def _share(found: int, documents: int) -> dict[str, Any]:
    if not documents:
        return {"per_million": None, "at_most": None}
    return {
        "per_million": MILLION * found / documents,
        "at_most": statistics.upper_share(found, documents, level=LEVEL),
    }


def _kind(counted: Mapping[str, int], documents: int) -> dict[str, Any]:
    share = _share(counted.get("documents", 0), documents)
    limit = share["at_most"]
    return {
        "documents": counted.get("documents", 0),
        "spans": counted.get("spans", 0),
        "per_million": share["per_million"],
        "per_million_at_most": None if limit is None else MILLION * limit,
    }


@dataclass(frozen=True)
class _Task:
    slot: Slot
    written: frozenset[str]  # the recipe's replacements for personal data


def _count(store: Store, task: _Task) -> tuple[Part, ...]:
    """Write the findings in one part of training text to a part with the number of documents that have findings."""
    slot = task.slot
    stats: dict[str, Any] = {"documents": slot.documents.rows, "found": 0, "kinds": {}}

    def batches() -> Iterator[pa.RecordBatch]:
        sources = ((slot.documents, ["id", "uri", "text"]), (slot.sides["found"], ["spans"]))
        for documents, sidecar in iter_aligned(store, *sources):
            rows = [row for found in _with_finds(documents, sidecar, task.written) for row in _rows(*found, stats)]
            yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)

    part = write_batches(store, slot.documents.name, SCHEMA, batches())
    return (part.model_copy(update={"stats": stats}),)


def _with_finds(
    documents: pa.RecordBatch, sidecar: pa.RecordBatch, written: frozenset[str]
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield each document that has findings, with its findings. The recipe's own replacement texts are not findings."""
    found = sidecar.column("spans")
    rows = pa.array([row for row, length in enumerate(found.value_lengths().to_pylist()) if length], pa.int64())
    for document, spans in zip(documents.take(rows).to_pylist(), found.take(rows).to_pylist(), strict=True):
        text = document.pop("text")
        kept = [span for span in spans if text[span["start_cp"] : span["end_cp"]] not in written]
        if kept:
            yield document, kept


def _rows(document: Mapping[str, Any], spans: list[dict[str, Any]], stats: dict[str, Any]) -> Iterator[dict[str, Any]]:
    stats["found"] += 1
    kinds = [span["reason"].partition("/")[0] for span in spans]
    for kind in sorted(set(kinds)):
        own = stats["kinds"].setdefault(kind, {"documents": 0, "spans": 0})
        own["documents"] += 1
        own["spans"] += kinds.count(kind)
    for span in spans:
        yield {**document, "rule": span["reason"], "start_cp": span["start_cp"], "end_cp": span["end_cp"]}


# The detector of the corpus, with every kind of data that can identify a person.
#
# All kinds are counted, even if the recipe redacts fewer. With the recipe's spaCy pipeline, names and addresses are
# counted too.

NAME = ANNOTATOR.name


@dataclass(frozen=True)
class PiiDetector:
    """The PII annotator with its parameters.

    Args:
        given: the recipe's parameters of the annotator `pii`; empty if there are none.
        resources: the recipe's spaCy pipeline, if any.
    """

    given: Mapping[str, Any]
    resources: Mapping[str, Manifest]

    @cached_property
    def params(self) -> PiiParams:
        """The recipe's parameters, with every kind of `DEFAULT_KINDS` added.

        Raises:
            RecipeError: the recipe has an unknown parameter.
        """
        own = annotate.parameters(NAME, self.given)
        assert isinstance(own, PiiParams)
        kinds = {*DEFAULT_KINDS, *own.kinds}
        return own.model_copy(update={"kinds": tuple(kind for kind in KINDS if kind in kinds), "replacements": {}})

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of personal data that are detected, in the order of the annotator's columns."""
        return (*self.params.kinds, *(NAMED if self.params.ner else ()))

    @property
    def written(self) -> frozenset[str]:
        """The recipe's replacements for personal data; they may look like personal data themselves."""
        return frozenset(self.given.get("replacements", {}).values())

    @property
    def facts(self) -> dict[str, Any]:
        """Annotator, version, parameters and libraries: everything that determines the findings."""
        params = self.params.model_dump(mode="json")
        return {"annotator": NAME, "version": ANNOTATOR.version, "params": params, "libraries": self.libraries}

    @property
    def libraries(self) -> dict[str, str]:
        """Versions of third-party libraries that determine the findings."""
        return annotate.libraries(NAME, self.params.model_dump(mode="json"))

    def scan(self, ctx: Context, bucket: str, documents: Manifest) -> Manifest:
        """Return the annotator's sidecar for the given documents. Parts in the step cache are reused."""
        params = self.params.model_dump(mode="json")
        return annotate.run(ctx, bucket, NAME, params, documents, self.resources)


def needs(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys of the assets that the detector reads under a recipe's parameters."""
    return ANNOTATOR.needs(annotate.parameters(NAME, given))


def documents(ctx: Context, bucket: str, texts: Mapping[str, str]) -> Manifest:
    """Return a manifest with one part that contains one document per text, in order, each with its own URI."""
    rows = [_document(bucket, uri, text) for uri, text in texts.items()]
    part = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))
    return manifest(f"{bucket}/documents", Step(name=bucket, version="1"), {}, (part,))


def _document(bucket: str, uri: str, text: str) -> dict[str, Any]:
    return {
        "id": document_id(bucket, uri, text.encode()), "text": text, "uri": uri, "captured_at": None,
        "snapshot": bucket, "licence": "unknown", "mime": "text/plain", "source_bytes": len(text.encode()),
        "extra": "{}",
    }  # fmt: skip
