"""Evaluation of a gate on labeled documents, with the same annotators and rules as for the corpus.

Labeled documents are generated, or come from the user's lists, or are documents of the corpus that reviewers labeled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from plinth.compute.context import Context, Item, manifest, run_items
from plinth.corpus import lists
from plinth.corpus.annotate.base import annotator, parameters
from plinth.corpus.models.examples import read_labelled
from plinth.corpus.slices import rates
from plinth.corpus.slices import reviews as review_labels
from plinth.corpus.slices.generate import Labelled, Term, invented
from plinth.corpus.slices.measured_gates import MEASURED_GATES, GateRule
from plinth.corpus.slices.rates import GateSlices
from plinth.corpus.slices.reviews import Review
from plinth.errors import MissingError, SourceError
from plinth.records import Blob, Manifest, Part, Step
from plinth.storage.parts import DOCUMENT_SCHEMA, iter_batches, write_batches
from plinth.storage.store import Store

VERSION = "2"
GENERATED = "generated"
BATCH_ROWS = 256
GOOD, BAD = "good", "bad"
#: Parameters that are limits for the measurement.
BOUNDS = ("max_false_positive", "max_over_removal", "min_documents", "min_recall")

#: One row per labeled document: its label, and whether the gate removed it.
SCHEMA = pa.schema(
    [
        pa.field("slice", pa.string(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),  # generated, list/NAME, review
        pa.field("made_as", pa.string(), nullable=False),  # what the generator planted; a reviewer's reason
        pa.field("bad", pa.bool_(), nullable=False),
        pa.field("removed", pa.bool_(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
    ]
)


@dataclass(frozen=True)
class _Task:
    gate: str
    params: GateSlices
    rule: GateRule
    annotate: tuple[tuple[str, Mapping[str, Any]], ...]
    resources: tuple[tuple[str, str, Blob], ...]  # key, name of the part, content
    lists: tuple[tuple[str, Part], ...]
    reviewed: tuple[tuple[str, Part], ...]  # bucket, rows of its documents
    reviews: tuple[Review, ...]


def run(
    ctx: Context,
    gate_name: str,
    params: GateSlices,
    rule: GateRule,
    annotate: Mapping[str, Mapping[str, Any]],
    resources: Mapping[str, Manifest],
    documents: Mapping[str, Manifest],
    reviews: Sequence[Review] = (),
) -> Manifest:
    """Measure a gate on labeled documents, and write the asset `slices/{gate}`.

    Args:
        rule: rules by which the gate removes documents (`measured_gates.rule_of`).
        annotate: parameters of the annotators that the rule reads.
        resources: models and lists that these annotators need, and the labeled lists, by key.
        documents: manifests of the buckets' documents, used to read documents that reviewers labeled.
        reviews: labels of reviewers; labels for reasons other than the rule's are ignored.

    Returns:
        Manifest of one table, `labelled.parquet`. Statistics: `slices` (`rates.by_slice`), `origins` (documents by
        origin), `made_as` (`documents` and `removed`, by the kind of generated document), `rule`, `bounds`,
        `real` (documents that people labeled, `good` and `bad`), `reviews_without_document`.

    Raises:
        MissingError: a resource is missing.
        SourceError: a labeled list cannot be read; the error names the line.
    """
    needed = [key for name, raw in annotate.items() for key in annotator(name).needs(parameters(name, raw))]
    lists = [f"lists/{name}" for name in params.lists]
    missing = sorted({key for key in (*needed, *lists) if key not in resources})
    if missing:
        raise MissingError(f"slices/{gate_name} needs {', '.join(missing)}", found=", ".join(resources) or "nothing")
    counted = tuple(review for review in reviews if params.reviews and review.reason in rule.reasons)
    rows = review_labels.rows(ctx, gate_name, counted, documents)
    task = _Task(
        gate=gate_name,
        params=params,
        rule=rule,
        annotate=tuple(sorted(annotate.items())),
        resources=tuple((key, p.name, p.blob) for key in sorted(set(needed)) for p in resources[key].parts),
        lists=tuple((key, part) for key in lists for part in resources[key].parts),
        reviewed=rows,
        reviews=counted,
    )
    asset, step = f"slices/{gate_name}", _step(task)
    part = run_items(ctx, step, _measure, [Item(_identity(task), task)], label=asset)[0][0]
    inputs = {key: resources[key] for key in sorted({*needed, *lists})}
    if counted:
        inputs |= {f"{bucket}/documents": made for bucket, made in documents.items()}
    bounds = {name: getattr(params, name) for name in BOUNDS}
    return manifest(asset, step, inputs, [part], {**part.stats, "bounds": bounds, "rule": list(rule.texts)})


def _step(task: _Task) -> Step:
    """Return the step of the measurement. The bounds are not part of the step, because they do not affect the measured
    rates."""
    annotators = {name: [annotator(name).version, dict(raw)] for name, raw in task.annotate}
    measured = task.params.model_dump(mode="json", exclude=set(BOUNDS))
    rule = list(task.rule.texts)
    return Step(
        name="slices",
        version=VERSION,
        params={"gate": task.gate, "measured": measured, "rule": rule, "annotators": annotators},
    )


def _identity(task: _Task) -> tuple[str, ...]:
    """Return the digests of everything that the task reads: models, lists, documents that reviewers labeled, and the
    labels."""
    return (
        *(f"{key}/{name}:{blob.sha256}" for key, name, blob in task.resources),
        *(f"{key}/{part.name}:{part.blob.sha256}" for key, part in task.lists),
        *(f"{bucket}:{part.blob.sha256}" for bucket, part in task.reviewed),
        *(review.model_dump_json() for review in task.reviews),
    )


def _measure(store: Store, task: _Task) -> tuple[Part, ...]:
    files: dict[str, dict[str, Path]] = {}
    for key, name, blob in task.resources:
        files.setdefault(key, {})[name] = store.open_path(blob)
    outcomes: list[rates.LabelledOutcome] = []
    origins: dict[str, int] = {}
    made_as: dict[str, dict[str, int]] = {}
    real = {GOOD: 0, BAD: 0}

    def batches() -> Iterator[pa.RecordBatch]:
        prepared = {name: _prepared(name, raw, files) for name, raw in task.annotate}
        for origin, rows in _labelled(store, task, files):
            for start in range(0, len(rows), BATCH_ROWS):
                some = rows[start : start + BATCH_ROWS]
                made = _judged(task, prepared, origin, some)
                yield made
                for row, removed in zip(some, made.column("removed").to_pylist(), strict=True):
                    outcomes.append(rates.LabelledOutcome(row.slice, row.bad, removed, len(row.text.encode())))
                    origins[origin] = origins.get(origin, 0) + 1
                    real[BAD if row.bad else GOOD] += origin != GENERATED
                    kind = made_as.setdefault(row.made_as, {"bad": int(row.bad), "documents": 0, "removed": 0})
                    kind["documents"] += 1
                    kind["removed"] += removed

    part = write_batches(store, "labelled.parquet", SCHEMA, batches())
    given = {review.id for review in task.reviews}
    stats = {
        "slices": rates.by_slice(outcomes),
        "origins": origins,
        "real": real,
        "made_as": dict(sorted(made_as.items())),
        "reviews_without_document": len(given) - len({row for row in given if row in _ids(store, task)}),
    }
    return (part.model_copy(update={"stats": stats}),)


def _ids(store: Store, task: _Task) -> set[str]:
    found: set[str] = set()
    for _, part in task.reviewed:
        for batch in iter_batches(store, part, ("id",)):
            found.update(one.hex() for one in batch.column("id").to_pylist())
    return found


def _prepared(name: str, raw: Mapping[str, Any], files: Mapping[str, Mapping[str, Path]]) -> Any:
    chosen, params = annotator(name), parameters(name, raw)
    return params if chosen.prepare is None else chosen.prepare(params, files)


def _judged(task: _Task, prepared: Mapping[str, Any], origin: str, rows: Sequence[Labelled]) -> pa.RecordBatch:
    documents, columns = _documents(rows), dict[str, pa.Array]()
    for name, params in prepared.items():
        chosen = annotator(name)
        read = documents.select(list(chosen.reads))
        for column in chosen.after:
            read = read.append_column(column, columns[column])
        made = chosen.annotate(read, params)
        columns |= {f"{name}.{column}": made.column(column) for column in made.schema.names}
    removed = task.rule.removed(columns, len(rows))
    table = {
        "slice": [row.slice for row in rows],
        "origin": [origin] * len(rows),
        "made_as": [row.made_as for row in rows],
        "bad": [row.bad for row in rows],
        "removed": pa.array(removed),
        "text": [row.text for row in rows],
    }
    return pa.RecordBatch.from_pydict(table, schema=SCHEMA)


def _documents(rows: Sequence[Labelled]) -> pa.RecordBatch:
    """Return labeled texts as rows of documents that have no source."""
    size = len(rows)
    columns = {
        "id": [hashlib.sha256(row.text.encode()).digest()[:16] for row in rows],
        "text": [row.text for row in rows],
        "uri": [f"labelled:{row.slice}" for row in rows],
        "captured_at": [None] * size,
        "snapshot": [""] * size,
        "licence": ["CC0-1.0"] * size,
        "mime": ["text/plain"] * size,
        "source_bytes": [len(row.text.encode()) for row in rows],
        "extra": ["{}"] * size,
    }
    return pa.RecordBatch.from_pydict(columns, schema=DOCUMENT_SCHEMA)


def _labelled(
    store: Store, task: _Task, files: Mapping[str, Mapping[str, Path]]
) -> Iterator[tuple[str, list[Labelled]]]:
    gate = MEASURED_GATES[task.gate]
    if (
        gate.generate is not None and task.params.documents_per_slice and not task.lists
    ):  # lists replace generated documents
        terms = gate.plants(files) if gate.plants else _terms(files) if gate.plants_terms else ()
        yield GENERATED, gate.generate(task.params.seed, task.params.documents_per_slice, terms)
    for key, part in task.lists:
        where = f"{key}, {part.name}"
        yield f"list/{key.removeprefix('lists/')}", _listed(store.open_path(part.blob).read_bytes(), where)
    yield "review", review_labels.labelled(store, task.reviewed, task.reviews)


def _terms(files: Mapping[str, Mapping[str, Path]]) -> tuple[Term, ...]:
    """Return the terms of all lexicons. If there are no lexicons, return invented terms."""
    found: list[Term] = []
    for key in sorted(files):
        if key.startswith("lists/"):
            read = lists.read(files[key], key)
            found += [
                Term(text, float(weight), category)
                for text, weight, category in zip(read.terms.terms, read.weights, read.categories, strict=True)
            ]
    return tuple(found) or invented(0)


def _listed(data: bytes, where: str) -> list[Labelled]:
    out = []
    for number, row in enumerate(read_labelled(data, where), start=1):
        if row["label"] not in (GOOD, BAD):
            raise SourceError(
                f"{where}: example {number} has an unknown label", found=row["label"], expected=f"{GOOD} or {BAD}"
            )
        name = str(row.get("slice", "unnamed"))
        out.append(Labelled(row["text"], row["label"] == BAD, name, str(row.get("made_as", row["label"]))))
    return out


#: Maximum share of common texts: short ones occur in any two sets.
MAX_SHARED = 0.01


def require_apart(store: Store, shown: Mapping[str, Manifest], learned: Mapping[str, Manifest], gate: str) -> None:
    """Raise SourceError if a labeled set overlaps with the training data of a model.

    Args:
        shown: labeled sets that measure the gate, by asset key.
        learned: training sets of the gate's models.

    Raises:
        SourceError: more than the share `MAX_SHARED` of a set's texts is training data, or a set cannot be read.
    """
    known = {digest for key, made in learned.items() for digest in _texts(store, key, made)}
    for key, made in shown.items() if known else ():
        texts = list(_texts(store, key, made))
        shared = sum(text in known for text in texts)
        if shared > MAX_SHARED * len(texts):
            raise SourceError(
                f"slices/{gate} cannot be measured on {key}",
                found=f"{shared:,} of its {len(texts):,} texts are in {', '.join(learned)}, the model's training data",
                expected=f"at most {MAX_SHARED:.0%} shared texts",
                remedy="split one set, and use one half in corpus.models, the other in corpus.slices",
            )


def _texts(store: Store, key: str, made: Manifest) -> Iterator[bytes]:
    for part in made.parts:
        for row in read_labelled(store.open_path(part.blob).read_bytes(), f"{key}, {part.name}"):
            yield hashlib.sha256(" ".join(row["text"].split()).encode("utf-8", "surrogatepass")).digest()[:16]
