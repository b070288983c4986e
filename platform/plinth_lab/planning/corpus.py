"""Cost of a corpus of any size: core hours, tasks, bytes shuffled, requests, money, wall clock.

Every stage reads parts and writes parts, and its work is proportional to text, to documents or to both. The speeds were
measured on one core (docs/benchmarks.md has the commands); the estimate multiplies them by the amounts. Stragglers and
retries are not included. The network bandwidth between storage and cores is an option.

The costs of finished runs can replace the measured speeds. Tasks and store operations grow with the number of parts;
CPU time and bytes grow with the amount of text. With one run, costs are proportional to size. With several runs of
different sizes, a line is fitted, so that the fixed cost of a run is separate from the cost of its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from pydantic import Field

from plinth.compute import context
from plinth.errors import MissingError
from plinth.operation.spending import CorpusPrices
from plinth.records import Frozen
from plinth.storage.state import State

#: Stages of an estimate by the assets that make them; an asset's last piece where it is one of a bucket. Annotators are
#: known by their steps, for one reading serves all.
STAGES = {
    "sources": "documents",
    "documents": "documents",
    "policy": "policy and verdicts",
    "verdicts": "policy and verdicts",
    "dedup/exact": "exact duplicates",
    "minhash": "MinHash signatures",
    "dedup/index": "near duplicates",
    "dedup/minhash": "near duplicates",
    "dedup/semantic": "look-alikes",
    "dedup/lines": "lines",
    "dedup/substring": "substring",
    "holdout": "held out, curated",
    "contamination": "held out, curated",
    "protected": "protected",
    "curated": "held out, curated",
}
ANNOTATE = "annotate"


class Amount(NamedTuple):
    """Cost of one stage: CPU time, tasks, store operations, bytes and wall-clock time."""

    cpu_s: float = 0.0
    tasks: float = 0.0
    operations: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    wall_s: float = 0.0


def sum_amounts(many: Iterable[Amount]) -> Amount:
    """Return the sum of several costs, field by field."""
    return Amount(*map(sum, zip(Amount(), *many, strict=True)))


#: Amounts that grow with the number of data files. The other amounts grow with text.
BY_PARTS = {"tasks", "operations"}


class RunCosts(Frozen):
    """Recorded costs of a finished corpus run.

    Args:
        annotators: names of the run's annotators.
        spared: share of the run's items that an earlier run had already computed.
    """

    text_bytes: float
    documents: int
    parts: int
    annotators: tuple[str, ...]
    stages: Mapping[str, Amount]
    spared: float


def of_run(state: State) -> RunCosts:
    """Return the recorded costs of the published assets in a workspace.

    Raises:
        MissingError: no costs were recorded, or there are no documents.
    """
    amounts, annotators, spared, items = dict[str, Amount](), set[str](), 0, 0
    text_bytes, documents, parts = 0, 0, 0
    for ref in state.refs.all():
        kind = _kind(ref.asset)
        if kind == "documents":
            made = state.refs.load(ref.digest)
            text_bytes, parts = text_bytes + made.stats["text_bytes"], parts + len(made.named("part-"))
            documents += made.stats["documents"]
        cost = context.load(state.workspace, ref.asset)
        if cost is None:
            continue
        stage, tasks = STAGES.get(kind, kind), cost.tasks
        if any(step.startswith("annotate/") for step in cost.steps):
            stage = ANNOTATE
            annotators.add(kind)
        else:  # other annotators find their items done by the first, and a stage those of the one before it
            spared, items = spared + tasks.spared, items + tasks.spared + tasks.tasks
        cpu_s = tasks.cpu_s + cost.driver_cpu_s
        mine = Amount(cpu_s, tasks.tasks, tasks.operations, tasks.read_bytes, tasks.written_bytes, cost.wall_s)
        amounts[stage] = sum_amounts([amounts.get(stage, Amount()), mine])
    if not amounts or not text_bytes:
        raise MissingError(
            f"{state.workspace.root} has no recorded costs of a run",
            found="no documents" if amounts else "no cost records",
            expected="a workspace in which `plinth run` has built documents and later stages",
            remedy="run the pipeline there; runs of earlier versions have no cost records",
        )
    return RunCosts(
        text_bytes=text_bytes,
        documents=documents,
        parts=parts,
        annotators=tuple(sorted(annotators)),
        stages=amounts,
        spared=spared / max(1, items),
    )


def _kind(asset: str) -> str:
    first, _, rest = asset.partition("/")
    return asset if first == "dedup" or not rest else first if first in ("models", "lists") else rest


def predict(runs: Sequence[RunCosts], text_bytes: float, parts: int) -> dict[str, Amount]:
    """Predict the cost of every stage for an amount of text and a number of parts, from finished runs."""
    found = {}
    for stage in dict.fromkeys(stage for run in runs for stage in run.stages):
        mine = [run for run in runs if stage in run.stages]
        values = []
        for name in Amount._fields:
            by_parts = name in BY_PARTS
            sizes = [run.parts if by_parts else run.text_bytes for run in mine]
            fixed, slope = line(sizes, [getattr(run.stages[stage], name) for run in mine])
            values.append(fixed + slope * (parts if by_parts else text_bytes))
        found[stage] = Amount(*values)
    return found


def line(sizes: Sequence[float], amounts: Sequence[float]) -> tuple[float, float]:
    """Fit a line to amounts over sizes by least squares.

    Return the fixed amount and the amount per unit of size. Neither is below 0.
    """
    x, y = np.array(sizes, dtype=np.float64), np.array(amounts, dtype=np.float64)
    if np.unique(x).size > 1:
        slope, fixed = np.polyfit(x, y, 1)
        if slope >= 0 and fixed >= 0:
            return float(fixed), float(slope)
        if slope < 0:
            return float(y.mean()), 0.0
    return 0.0, float((x * y).sum() / (x * x).sum())


class StageWork(NamedTuple):
    """Speed and output of one corpus stage on one core.

    Args:
        stage: name of the stage.
        megabytes_s: MB of text per second, or 0 if the work depends only on the number of documents.
        documents_s: documents per second, or 0 if the work depends only on bytes.
        reads_text: True if the stage reads documents, False if it reads only columns.
        written: bytes written per byte of text, including intermediate runs.
        written_document: additional bytes written per document.
        operations: files opened or written in the store, per part.
    """

    stage: str
    megabytes_s: float
    documents_s: float
    reads_text: bool
    written: float
    written_document: float
    operations: float


#: Speeds as measured; of the bytes written, those of signatures follow from their layout, those of lines, substring
#: and the index were measured, and the rest are estimates by column widths (docs/scale.md). Operations are a run's own
#: (`bench_scale.py`). The speed of near duplicates is that of `bench_dedup.py`, less a quarter: with a hundred million
#: documents, runs are merged once more (`bench_dedup_scale.py`).
MEASURED = (
    StageWork("repeats of a snapshot", 0, 4_800_000, False, 0.0, 24, 5),
    StageWork("annotate: heuristics", 45, 0, True, 0.0, 150, 6),
    StageWork("annotate: language, PII", 57, 0, True, 0.0, 60, 2),
    StageWork("annotate: classifiers", 50, 0, True, 0.0, 30, 2),
    StageWork("annotate: perplexity", 34, 0, True, 0.0, 16, 1),
    StageWork("exact duplicates", 255, 0, True, 0.0, 60, 18),
    StageWork("MinHash signatures", 490, 0, True, 0.0, 448, 2),
    StageWork("near duplicates", 0, 60_000, False, 0.0, 1100, 14),
    StageWork("lines", 40, 0, True, 0.16, 0, 12),
    StageWork("substring", 31, 0, True, 0.15, 0, 41),
    StageWork("protected", 36, 0, True, 0.0, 16, 18),
    StageWork("policy and verdicts", 0, 1_000_000, False, 0.0, 40, 15),
    StageWork("held out, curated", 84, 0, True, 0.25, 0, 27),
)
#: Reading and normalization of plain text, which replaces `extract`.
DOCUMENTS = StageWork("documents", 38, 0, True, 0.25, 0, 2)
#: Stages of chosen buckets: in no estimate of a whole corpus, and compared where a run has them.
CHOSEN = (StageWork("look-alikes", 55, 0, True, 0.0, 1100, 25),)
#: Rows that a run has as part of another stage.
WITH = {"repeats of a snapshot": "documents", "extract": "documents", "digests of sources": "documents"}
#: Annotators by the row of `MEASURED` that has them.
ANNOTATORS = {
    "heuristics": {"gopher_quality", "gopher_repetition", "c4", "c4_lines", "fineweb", "refinedweb_lines", "redpajama"},
    "language, PII": {"language", "pii"},
    "classifiers": {"quality_classifier", "toxicity"},
    "perplexity": {"perplexity"},
}
#: WARC to documents, MB of HTML per second and core: the speed of all stages together (`bench_pipeline.py`), since
#: extraction is most of them.
EXTRACT_MEGABYTES_S = 30.5
#: The same, hashed compressed and inflated to be cut; and compressed bytes, a byte of HTML.
DIGEST_MEGABYTES_S, COMPRESSED = 249.0, 0.25
#: zstd Parquet of documents, bytes per byte of text.
PARQUET = 0.25
#: Bytes that the largest task holds (0.7 GB in `bench_dedup.py`, and for any number of connected documents in
#: `bench_dedup_scale.py --connected`; the shingle sets of a part of 256 MB take up to 1 GB), and bytes of every
#: document: the footer of the largest branch of the index of near duplicates. It has up to 40% of the corpus, 14 keys
#: a document, and 12 bytes for 4,096 keys.
LARGEST_TASK_BYTES, FOOTER_BYTES = 1.0e9, 1 / 64


class CorpusScale(CorpusPrices):
    """Size of a corpus, and the machines and prices for processing it."""

    text_bytes: float = Field(gt=0, description="Size of the text after extraction, in bytes.")
    html_bytes: float = Field(0, ge=0, description="Size of the HTML source in bytes; 0 for plain text.")
    document_bytes: float = Field(5300, gt=0, description="Mean length of a document, in bytes.")
    part_bytes: float = Field(256 * 2**20, gt=0, description="Size of the text in one part, in bytes.")
    cores: int = Field(1000, ge=1, description="Number of concurrent cores.")
    gigabit_s_per_core: float = Field(0.3, gt=0, description="Bandwidth between storage and one core, in Gbit/s.")


class StageEstimate(Frozen):
    """Estimated cost of one stage of a corpus pipeline. `speed` is the rate per core that the estimate is based on."""

    stage: str
    speed: str
    tasks: int
    core_hours: float
    read_bytes: float
    written_bytes: float
    requests: float
    hours: float  # wall clock on all cores: the longer of work and network


class CorpusEstimate(Frozen):
    """Estimated cost of processing the whole corpus."""

    documents: int
    parts: int
    rows: tuple[StageEstimate, ...]
    core_hours: float
    hours: float
    read_bytes: float
    written_bytes: float
    requests: float
    stored_bytes: float
    largest_task_bytes: float
    compute_cost: float
    request_cost: float
    storage_cost_month: float


def estimate(scale: CorpusScale, runs: Sequence[RunCosts] = ()) -> CorpusEstimate:
    """Return the estimated cost of every stage and of the whole corpus, on `scale.cores` cores.

    Args:
        runs: finished runs whose rates are used; if empty, the rates in `MEASURED`.
    """
    documents, parts = scale.text_bytes / scale.document_bytes, max(1, round(scale.text_bytes / scale.part_bytes))
    if runs:
        speed = "one run" if len(runs) == 1 else f"{len(runs)} runs"
        rows = [_priced(stage, speed, one, scale) for stage, one in predict(runs, scale.text_bytes, parts).items()]
        stored = sum(row.written_bytes for row in rows)
    else:
        rows = _by_constants(scale, documents, parts)
        stored = PARQUET * scale.text_bytes * 2 + sum(work.written_document for work in MEASURED) * documents
    core_hours, requests = sum(row.core_hours for row in rows), sum(row.requests for row in rows)
    return CorpusEstimate(
        documents=round(documents),
        parts=parts,
        rows=tuple(rows),
        core_hours=core_hours,
        hours=sum(row.hours for row in rows),
        read_bytes=sum(row.read_bytes for row in rows),
        written_bytes=sum(row.written_bytes for row in rows),
        requests=requests,
        stored_bytes=stored,
        largest_task_bytes=LARGEST_TASK_BYTES + FOOTER_BYTES * documents,
        compute_cost=core_hours * scale.core_hour,
        request_cost=scale.requests(requests / 2, requests / 2),
        storage_cost_month=stored / 1e9 * scale.gigabyte_month,
    )


def compare(run: RunCosts, runs: Sequence[RunCosts] = ()) -> dict[str, tuple[Amount | None, Amount]]:
    """Return the predicted and the actual cost of a finished run by stage.

    Args:
        runs: finished runs whose rates are used for the prediction; if empty, the rates in `MEASURED`.
    """
    if runs:
        found: Mapping[str, Amount] = predict(runs, run.text_bytes, run.parts)
    else:
        found = _like(run)
    return {stage: (found.get(stage), amount) for stage, amount in run.stages.items()}


def _like(run: RunCosts) -> dict[str, Amount]:
    """Return the cost of a run by stage as `MEASURED` predicts it. All annotators count as one stage."""
    scale = CorpusScale(text_bytes=run.text_bytes, part_bytes=run.text_bytes / run.parts)
    absent = {f"{ANNOTATE}: {name}" for name, own in ANNOTATORS.items() if not own & set(run.annotators)}
    found = dict[str, Amount]()
    chosen = [_row(work, scale, run.documents, run.parts) for work in CHOSEN]
    for row in (*_by_constants(scale, run.documents, run.parts), *chosen):
        if row.stage not in absent:
            stage = ANNOTATE if row.stage.startswith(ANNOTATE) else WITH.get(row.stage, row.stage)
            mine = Amount(row.core_hours * 3600, row.tasks, row.requests, row.read_bytes, row.written_bytes)
            found[stage] = sum_amounts([found.get(stage, Amount()), mine])
    return found


def _by_constants(scale: CorpusScale, documents: float, parts: int) -> list[StageEstimate]:
    rows = [_row(work, scale, documents, parts) for work in MEASURED]
    if scale.html_bytes:
        seconds = scale.html_bytes / (EXTRACT_MEGABYTES_S * 1e6)
        amount = Amount(seconds, parts, 2.0 * parts, scale.html_bytes, PARQUET * scale.text_bytes)
        rows.insert(0, _priced("extract", f"{EXTRACT_MEGABYTES_S:g} MB/s HTML", amount, scale))
        seconds = scale.html_bytes / (DIGEST_MEGABYTES_S * 1e6)
        amount = Amount(seconds, parts, 2.0 * parts, COMPRESSED * scale.html_bytes, 0.0)
        rows.insert(0, _priced("digests of sources", f"{DIGEST_MEGABYTES_S:g} MB/s HTML", amount, scale))
    else:
        rows.insert(0, _row(DOCUMENTS, scale, documents, parts))
    return rows


def _row(work: StageWork, scale: CorpusScale, documents: float, parts: int) -> StageEstimate:
    by_bytes = scale.text_bytes / (work.megabytes_s * 1e6) if work.megabytes_s else 0.0
    by_documents = documents / work.documents_s if work.documents_s else 0.0
    read = PARQUET * scale.text_bytes if work.reads_text else _columns(work) * documents
    written = work.written * scale.text_bytes + work.written_document * documents
    amount = Amount(by_bytes + by_documents, parts, work.operations * parts, read, written)
    speed = f"{work.megabytes_s:g} MB/s" if work.megabytes_s else f"{work.documents_s:,.0f} docs/s"
    return _priced(work.stage, speed, amount, scale)


def _columns(work: StageWork) -> float:
    """Return the bytes per document that a stage reads if it reads no text, but keys, IDs or all columns."""
    return {"near duplicates": 1500.0, "repeats of a snapshot": 40.0}.get(work.stage, 250.0)


def _priced(stage: str, speed: str, amount: Amount, scale: CorpusScale) -> StageEstimate:
    core_hours, tasks = amount.cpu_s / 3600, max(1, round(amount.tasks))
    at_once = min(scale.cores, tasks)
    moved = amount.read_bytes + amount.written_bytes
    network = moved * 8 / (scale.gigabit_s_per_core * 1e9 * at_once) / 3600
    return StageEstimate(
        stage=stage,
        speed=speed,
        tasks=tasks,
        core_hours=core_hours,
        read_bytes=amount.read_bytes,
        written_bytes=amount.written_bytes,
        requests=amount.operations,
        hours=max(core_hours / at_once, network),
    )
