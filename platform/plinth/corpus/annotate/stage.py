"""Stage that runs an annotator over the documents of a bucket. Several annotators can run in the same pass."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context, Item, manifest, renamed, run_items
from plinth.corpus.annotate import external
from plinth.corpus.annotate.base import ANSWERS, TABLES, Annotator, annotator, parameters, resolved
from plinth.corpus.annotate.external import BATCH_ROWS
from plinth.corpus.llm.parameters import Endpoint
from plinth.corpus.sidecars import slots
from plinth.errors import MissingError, StageError
from plinth.records import Blob, Frozen, Manifest, Part, Step
from plinth.storage.parts import SCORE_GROUP_ROWS, PartWriter, iter_aligned, write_arrow
from plinth.storage.store import Store

_LOG = logging.getLogger(__name__)
#: Target bytes of text per call of an annotator, so that data shared by annotators stays small.
SLICE_BYTES = 4 << 20


_NO_PARTS: Mapping[str, Part] = MappingProxyType({})


@dataclass(frozen=True)
class _Request:
    """Annotator to run, with its parameters and resources. A resource is a key, the name of a data file, and its
    content."""

    name: str
    version: str
    params: Frozen
    resources: tuple[tuple[str, str, Blob], ...]
    libraries: Mapping[str, str]

    @property
    def step(self) -> Step:
        params = {"params": self.params.model_dump(mode="json")}
        return Step(name=f"annotate/{self.name}", version=self.version, params=params, libraries=self.libraries)

    def inputs(self, documents: Part, sidecars: Mapping[str, Part] = _NO_PARTS) -> tuple[str, ...]:
        """Return the digests of all inputs that determine the sidecar of one data file."""
        beside = (f"{name}:{part.blob.sha256}" for name, part in sidecars.items())
        return (documents.blob.sha256, *(f"{key}/{file}:{blob.sha256}" for key, file, blob in self.resources), *beside)


@dataclass(frozen=True)
class _Task:
    documents: Part
    requests: tuple[_Request, ...]  # first the requested annotator, then its companions
    sidecars: Mapping[str, Part] = dataclasses.field(default_factory=dict)  # read by the requested annotator


def run(
    ctx: Context,
    bucket_name: str,
    annotator_name: str,
    raw_params: Mapping[str, Any],
    documents: Manifest,
    resources: Mapping[str, Manifest] | None = None,
    *,
    beside: Mapping[str, Mapping[str, Any]] | None = None,
    sidecars: Mapping[str, Manifest] | None = None,
    endpoints: Mapping[str, Endpoint] | None = None,
) -> Manifest:
    """Write the sidecar of one annotator over one bucket. If the context has a program for the annotator, the program
    computes the rows; they are checked and identified as if this process had computed them.

    Args:
        resources: manifests of the assets listed by `Annotator.needs`.
        `beside`: other annotators of the bucket, by name, with their parameters. These annotators run in the same pass
            if their resources are available. Their stages then find the sidecars in the step cache. The sidecar of
            this annotator is the same without them.
        sidecars: manifests of the bucket's sidecars from the annotators listed in `Annotator.after`.
        endpoints: endpoints of language models in the recipe, by name.

    Returns:
        Manifest of `part-*`, aligned with the files of `documents`. Statistics: `documents`; `columns`, by name: for
            numbers `values`, `nulls`, `sum`, `min`, `max`, `mean`; for booleans `true`, `nulls`; for spans `spans`, and
            the number of `documents` with at least one span; `labels`: number of documents per value of each text
            column, with rare values counted together as `other`; `tables`, if the annotator has tables: the number of
            `entries`, and of malformed lines (`left_out`).

    Raises:
        RecipeError: the annotator or a parameter does not exist.
        StageError: the annotator or its program returned invalid rows or columns.
        MissingError: a resource that the annotator needs is missing.
        BudgetError, EndpointError, RejectRateError: a language model did not answer all questions.
    """
    chosen, params, given = annotator(annotator_name), parameters(annotator_name, raw_params), resources or {}
    read = _resources(chosen, params, given)
    before = _before(chosen, sidecars or {})
    request, tables = _request(ctx, annotator_name, params, read)
    by_program = annotator_name in ctx.programs
    companions = {} if by_program else {name: raw for name, raw in (beside or {}).items() if name != annotator_name}
    others = _beside(ctx, given, companions)
    asset = f"{bucket_name}/{annotator_name}"
    if chosen.asks is not None:
        before[ANSWERS] = chosen.asks(ctx, asset, params, documents, read, endpoints or {})
    found = slots({bucket_name: documents}, **{name: {bucket_name: made} for name, made in before.items()})
    items = [_item(ctx, request, others, slot.documents, slot.sides) for slot in found]
    if by_program:
        finished = _by_program(ctx, request, items, asset)
    else:
        finished = run_items(ctx, request.step, _annotate, items, label=asset, unit="documents")
    made = [done[0] for done in finished]
    inputs = {f"{bucket_name}/documents": documents, **read}
    inputs |= {f"{bucket_name}/{name}": sidecar for name, sidecar in before.items()}
    stats = total(made) | ({"tables": {part.name: dict(part.stats) for part in tables}} if tables else {})
    return manifest(asset, request.step, inputs, renamed(made, "part"), stats)


def libraries(annotator_name: str, raw_params: Mapping[str, Any]) -> dict[str, str]:
    """Return the libraries that affect an annotator's sidecars, with the installed version of each library."""
    return _uses(annotator(annotator_name), parameters(annotator_name, raw_params))


def _uses(chosen: Annotator, params: Frozen) -> dict[str, str]:
    # Character classes come from Python's tables, so a different Unicode version may give different results.
    return fingerprint.libraries("unicode", *(chosen.libraries(params) if chosen.libraries else ()))


def _request(
    ctx: Context, name: str, params: Frozen, read: Mapping[str, Manifest]
) -> tuple[_Request, tuple[Part, ...]]:
    """Return the request for one annotator, which can be used for every data file, and the tables built from its
    resources."""
    # Sort by name, so that a model supplied as a folder has the same identity as the trained model.
    named = ((key, part.name, part.blob) for key, derived_from in read.items() for part in derived_from.parts)
    chosen = annotator(name)
    request = _Request(
        name, chosen.version, params, tuple(sorted(named, key=lambda one: one[:2])), _uses(chosen, params)
    )
    if chosen.tables is None:
        return request, ()
    step = request.step.model_copy(update={"name": f"{request.step.name}/tables"})
    item = Item(tuple(f"{key}/{file}:{blob.sha256}" for key, file, blob in request.resources), request)
    made = run_items(ctx, step, _write_tables, [item], label=f"{name} tables")[0]
    mapped = tuple((TABLES, part.name, part.blob) for part in made)
    return replace(request, resources=(*request.resources, *mapped)), made


def _write_tables(store: Store, request: _Request) -> tuple[Part, ...]:
    chosen = annotator(request.name)
    assert chosen.tables is not None
    tables = chosen.tables(request.params, _files(store, request.resources))
    return tuple(
        write_arrow(store, name, one.table, stats={"entries": len(one), "left_out": one.left_out})
        for name, one in tables.items()
    )


def _beside(ctx: Context, given: Mapping[str, Manifest], others: Mapping[str, Mapping[str, Any]]) -> list[_Request]:
    """Return requests for the other annotators in `others` whose resources are available."""
    requests = []
    for name, raw in others.items():
        params = parameters(name, raw)
        needs = annotator(name).needs(params)
        elsewhere = name in ctx.programs or annotator(name).annotate is external.only_external
        if all(key in given for key in needs) and not annotator(name).after and not elsewhere:
            requests.append(_request(ctx, name, params, {key: given[key] for key in needs})[0])
    return requests


def _item(ctx: Context, request: _Request, others: list[_Request], part: Part, sidecars: Mapping[str, Part]) -> Item:
    keyed = [(other, other.step.key(other.inputs(part))) for other in others]
    lacking = [(other, key) for other, key in keyed if ctx.cache.get(key) is None]
    requests = (request, *(other for other, _ in lacking))
    task = _Task(part, requests, sidecars)
    return Item(request.inputs(part, sidecars), task, part.rows, tuple(key for _, key in lacking))


def _before(chosen: Annotator, given: Mapping[str, Manifest]) -> dict[str, Manifest]:
    missing = [name for name in chosen.sidecars if name not in given]
    if missing:
        raise MissingError(
            f"annotator {chosen.name} reads {', '.join(chosen.after)}",
            found=", ".join(given) or "no sidecars",
            expected=f"the sidecar of {', '.join(missing)}",
            remedy=f"add `{missing[0]}: {{}}` to corpus.annotate",
        )
    return {name: given[name] for name in chosen.sidecars}


def _resources(chosen: Annotator, params: Frozen, given: Mapping[str, Manifest]) -> dict[str, Manifest]:
    missing = [key for key in chosen.needs(params) if key not in given]
    if missing:
        raise MissingError(
            f"annotator {chosen.name} needs {', '.join(missing)}",
            found=", ".join(given) or "no resources",
            remedy="add it to the recipe: `corpus.models` for models/…, `corpus.lists` for lists/…",
        )
    return {key: given[key] for key in chosen.needs(params)}


@lru_cache(maxsize=16)
def _prepared(name: str, params: str, store: Store, resources: tuple[tuple[str, str, Blob], ...]) -> Any:
    """Return an annotator's prepared parameters, with its resources loaded. Each worker loads a model once for all data
    files of a bucket."""
    chosen = annotator(name)
    given = chosen.params.model_validate_json(params)
    if chosen.prepare is None:
        return given
    return chosen.prepare(given, _files(store, resources))


def _files(store: Store, resources: Sequence[tuple[str, str, Blob]]) -> dict[str, dict[str, Path]]:
    files: dict[str, dict[str, Path]] = {}
    for key, file, blob in resources:
        files.setdefault(key, {})[file] = store.open_path(blob)
    return files


@dataclass(frozen=True)
class _Written:
    """File that a program wrote for a data file."""

    documents: Part
    request: _Request
    path: Path


def _by_program(ctx: Context, request: _Request, items: Sequence[Item], label: str) -> list[tuple[Part, ...]]:
    """Have the program annotate the data files without a sidecar in the step cache, then check and store its files."""
    found = ctx.cache.get_many([request.step.key(item.inputs) for item in items])
    with external.outputs(ctx.store) as folder:
        tasks = [_Written(item.task.documents, request, folder / f"{n:05d}.parquet") for n, item in enumerate(items)]
        files = [
            external.DataFile(
                ctx.store.open_path(item.task.documents.blob),
                {name: ctx.store.open_path(part.blob) for name, part in item.task.sidecars.items()},
                item.rows,
                task.path,
            )
            for item, task, parts in zip(items, tasks, found, strict=True)
            if parts is None
        ]
        if files:
            resources = _files(ctx.store, request.resources)
            work = external.write_work(
                folder, annotator(request.name), request.params, request.libraries, files, resources
            )
            ctx.programs[request.name](work)
        written = [replace(item, task=task) for item, task in zip(items, tasks, strict=True)]
        return run_items(ctx, request.step, _adopt, written, label=label)


def _adopt(store: Store, task: _Written) -> tuple[Part, ...]:
    """Check a program's file and write it as a sidecar."""
    with ExitStack() as stack:
        made = _Made(store, stack, task.request)
        for batch in external.written(store, made.chosen, task.documents, task.path):
            made.add(batch, batch.num_rows)
            made.write()
        return (made.finish(),)


def _annotate(store: Store, task: _Task) -> tuple[Part, ...]:
    if len(task.requests) > 1:
        try:
            return _pass(store, task, task.requests)
        except Exception as error:  # annotators are retried one by one to identify the one that fails
            _LOG.info("%s runs alone, because an annotator in the same pass failed: %s", task.requests[0].name, error)
    return _pass(store, task, task.requests[:1])


def _pass(store: Store, task: _Task, requests: Sequence[_Request]) -> tuple[Part, ...]:
    """Read a data file once, batch by batch, and write the sidecars of all requested annotators."""
    from plinth_text.shared import forget  # kernels are for workers

    with ExitStack() as stack:
        made = [_Made(store, stack, request) for request in requests]
        columns = sorted({name for one in made for name in one.chosen.reads})
        wanted = annotator(requests[0].name).aligned
        sources = [(task.documents, columns), *((part, wanted[name]) for name, part in task.sidecars.items())]
        try:
            for batch, *others in iter_aligned(store, *sources, rows=BATCH_ROWS):
                for other, name in zip(others, task.sidecars, strict=True):
                    for column in wanted[name]:
                        batch = batch.append_column(f"{name}.{column}", other.column(column))
                for some in slices(batch):
                    for one in made:
                        one.annotate(some)
                for one in made:
                    one.write()
        finally:
            forget()
        return tuple(one.finish() for one in made)


def slices(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Cut a batch into slices of about `SLICE_BYTES` of text. A batch without text stays one slice."""
    from plinth_text.unicode import utf8

    if "text" not in batch.schema.names:
        return [batch]
    ends = utf8(batch.column("text"))[1]
    numbers = (ends[:-1] - ends[0]) // SLICE_BYTES
    cuts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), batch.num_rows]
    return [batch.slice(low, high - low) for low, high in pairwise(cuts)]


class _Made:
    """Sidecar that is being written."""

    def __init__(self, store: Store, stack: ExitStack, request: _Request) -> None:
        self.chosen = resolved(request.name, request.params)
        external.require_version(self.chosen, request.version)
        fingerprint.require_libraries(request.step.name, request.libraries)
        self._prepare = partial(_prepared, request.name, request.params.model_dump_json(), store, request.resources)
        self._counts = ColumnCounts(self.chosen.schema)
        self._writer = stack.enter_context(PartWriter(store, "part.parquet", self.chosen.schema, SCORE_GROUP_ROWS))
        self._made: list[pa.RecordBatch] = []

    def annotate(self, batch: pa.RecordBatch) -> None:
        read = batch.select([*self.chosen.reads, *self.chosen.after])
        self.add(self.chosen.annotate(read, self._prepare()), batch.num_rows)

    def add(self, made: pa.RecordBatch, rows: int) -> None:
        """Check rows of the annotator, and keep them for the next `write`."""
        _require(self.chosen, rows, made)
        self._made.append(made)

    def write(self) -> None:
        """Write the rows that were annotated after the last call, and add them to the statistics. The size of the
        written batches does not depend on the slices."""
        made = pa.concat_batches(self._made) if len(self._made) > 1 else self._made[0]
        self._made = []
        self._counts.add(made)
        self._writer.write(made)

    def finish(self) -> Part:
        return self._writer.finish(self._counts.stats())


def _require(chosen: Annotator, rows: int, made: pa.RecordBatch) -> None:
    """Raise StageError unless an annotator returned one row per document, with the columns and types of its schema."""
    expected = f"{rows} rows with the columns {', '.join(f'{field.name} ({field.type})' for field in chosen.schema)}"
    found = (
        f"{made.num_rows} rows with the columns {', '.join(f'{field.name} ({field.type})' for field in made.schema)}"
    )
    if made.num_rows == rows and made.schema.equals(chosen.schema):
        faults = [fault for field in chosen.schema if (fault := _fault(field, made.column(field.name)))]
        if not faults:
            return
        found, expected = "; ".join(faults), "finite numbers, and no nulls in columns that are not nullable"
    raise StageError(
        f"annotator {chosen.name} returned an invalid batch",
        found=found,
        expected=expected,
        remedy=f"correct {chosen.annotate.__module__}, or the annotator's program, and raise the annotator's version",
    )


def _fault(field: pa.Field, column: pa.Array) -> str:
    if column.null_count and not field.nullable:
        return f"{column.null_count} nulls in {field.name}"
    if pa.types.is_floating(field.type) and pc.all(pc.is_finite(column)).as_py() is False:
        return f"NaN or infinity in {field.name}"
    return ""


#: Maximum number of values counted per label column; further values are counted together.
MAX_LABELS = 200
#: Maximum length of a counted value in characters; longer values are counted as `other`, because manifests contain
#: the values.
MAX_LABEL_CHARACTERS = 1000
OTHER = "other"


class ColumnCounts:
    """Running statistics of a sidecar's columns."""

    def __init__(self, schema: pa.Schema) -> None:
        self.documents = 0
        self.columns: dict[str, dict[str, Any]] = {}
        self.labels: dict[str, dict[str, int]] = {field.name: {} for field in schema if pa.types.is_string(field.type)}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch to the statistics."""
        self.documents += batch.num_rows
        for field, column in zip(batch.schema, batch.columns, strict=True):
            if pa.types.is_boolean(field.type):
                _merge(self.columns, field.name, {"true": pc.sum(column).as_py() or 0, "nulls": column.null_count})
            elif pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
                _merge(self.columns, field.name, _numbers(column))
            elif pa.types.is_list(field.type):
                lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
                facts = {"spans": int(lengths.sum()), "documents": int((lengths > 0).sum())}
                _merge(self.columns, field.name, facts)
            elif field.name in self.labels:
                counts = {str(row["values"]): row["counts"] for row in pc.value_counts(column).to_pylist()}
                _merge_labels(self.labels, field.name, counts)

    def stats(self) -> dict[str, Any]:
        """Return the statistics of all rows added so far."""
        return _finished(self.documents, self.columns, self.labels)


def _finished(documents: int, columns: dict[str, dict[str, Any]], labels: dict[str, dict[str, int]]) -> dict[str, Any]:
    means = {name: round(facts["sum"] / facts["values"], 6) for name, facts in columns.items() if facts.get("values")}
    return {
        "documents": documents,
        "columns": {name: facts | ({"mean": means[name]} if name in means else {}) for name, facts in columns.items()},
        "labels": {name: dict(sorted(counts.items())) for name, counts in labels.items()},
    }


def _numbers(column: pa.Array) -> dict[str, Any]:
    if len(column) == column.null_count:
        return {"values": 0, "nulls": column.null_count, "sum": 0}
    limits = pc.min_max(column).as_py()
    return {
        "values": len(column) - column.null_count,
        "nulls": column.null_count,
        "sum": round(float(pc.sum(column).as_py()), 6),
        **limits,
    }


def _merge(columns: dict[str, dict[str, Any]], name: str, more: Mapping[str, Any]) -> None:
    have = columns.setdefault(name, {})
    for key, value in more.items():
        if key == "min":
            have[key] = min(have.get(key, value), value)
        elif key == "max":
            have[key] = max(have.get(key, value), value)
        else:
            have[key] = have.get(key, 0) + value


def _merge_labels(labels: dict[str, dict[str, int]], name: str, more: Mapping[str, int]) -> None:
    have = labels.setdefault(name, {})
    for label, count in sorted(more.items()):
        counted = len(have) < MAX_LABELS and len(label) <= MAX_LABEL_CHARACTERS
        key = label if label in have or counted else OTHER
        have[key] = have.get(key, 0) + count


def total(parts: Sequence[Part]) -> dict[str, Any]:
    """Return the statistics of all parts of a sidecar."""
    columns: dict[str, dict[str, Any]] = {}
    labels: dict[str, dict[str, int]] = {}
    for part in parts:
        for name, facts in part.stats["columns"].items():
            _merge(columns, name, facts)
        for name, counts in part.stats["labels"].items():
            _merge_labels(labels, name, counts)
    return _finished(sum(part.stats["documents"] for part in parts), columns, labels)
