"""The cost of a corpus of any size: core hours, tasks, bytes shuffled, requests, money, wall clock.

Every stage reads parts and writes parts, and its work is proportional to text, to documents or to both. The
speeds were measured on one core (docs/benchmarks.md has the commands); the rest is multiplication. Not in it:
stragglers, retries, and the network between storage and cores, which is asked for as a bandwidth.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from plinth.records import Frozen


class StageWork(NamedTuple):
    """One stage on one core.

    Args:
        stage: its name.
        megabytes_s: MB of text per second; 0 where documents count.
        documents_s: documents per second; 0 where bytes count.
        reads_text: whether it reads documents, or columns alone.
        written: bytes written per byte of text, intermediate runs included.
        written_document: bytes written per document beside that.
    """

    stage: str
    megabytes_s: float
    documents_s: float
    reads_text: bool
    written: float
    written_document: float


#: Speeds as measured; of the bytes written, those of signatures follow from their layout, those of lines, substring
#: and the index were measured, and the rest are estimates by column widths (docs/scale.md).
MEASURED = (
    StageWork("repeats of a snapshot", 0, 4_800_000, False, 0.0, 24),
    StageWork("annotate: heuristics", 9.5, 0, True, 0.0, 150),
    StageWork("annotate: language, PII", 57, 0, True, 0.0, 60),
    StageWork("annotate: classifiers", 50, 0, True, 0.0, 30),
    StageWork("annotate: perplexity", 34, 0, True, 0.0, 16),
    StageWork("exact duplicates", 255, 0, True, 0.0, 60),
    StageWork("MinHash signatures", 490, 0, True, 0.0, 448),
    StageWork("near duplicates", 0, 71_000, False, 0.0, 300),
    StageWork("lines", 40, 0, True, 0.16, 0),
    StageWork("substring", 31, 0, True, 0.15, 0),
    StageWork("policy and verdicts", 0, 1_000_000, False, 0.0, 40),
    StageWork("held out, curated", 84, 0, True, 0.25, 0),
)
#: WARC to documents, MB of HTML per second and core (resiliparse).
EXTRACT_MEGABYTES_S = 8.0
#: The same, hashed compressed and inflated to be cut; and compressed bytes, a byte of HTML.
DIGEST_MEGABYTES_S, COMPRESSED = 249.0, 0.25
#: zstd Parquet of documents, bytes per byte of text.
PARQUET = 0.25
#: Bytes that one task of the near-duplicate stage holds for every document of the corpus.
COMPONENT_BYTES = 8


class CorpusScale(Frozen):
    """A corpus and the machines for it."""

    text_bytes: float = Field(gt=0, description="Text after extraction, bytes.")
    html_bytes: float = Field(0, ge=0, description="HTML it is extracted from; 0: it is text already.")
    document_bytes: float = Field(5300, gt=0, description="Mean length of a document.")
    part_bytes: float = Field(256 * 2**20, gt=0, description="Text per part.")
    cores: int = Field(1000, ge=1, description="Cores that work at the same time.")
    core_hour: float = Field(0.04, ge=0, description="Price of a core for an hour.")
    gigabyte_month: float = Field(0.023, ge=0, description="Price of storage.")
    million_requests: float = Field(5.0, ge=0, description="Price of a million writes; reads are a twelfth of it.")
    gigabit_s_per_core: float = Field(0.3, gt=0, description="Network between storage and one core.")


class StageEstimate(Frozen):
    """One stage of the estimate."""

    stage: str
    tasks: int
    core_hours: float
    read_bytes: float
    written_bytes: float
    hours: float  # wall clock on all cores: the longer of work and network


class CorpusEstimate(Frozen):
    """The whole."""

    documents: int
    parts: int
    rows: tuple[StageEstimate, ...]
    core_hours: float
    hours: float
    read_bytes: float
    written_bytes: float
    requests: float
    stored_bytes: float
    component_bytes: float
    compute_cost: float
    request_cost: float
    storage_cost_month: float


def estimate(scale: CorpusScale) -> CorpusEstimate:
    """Cost of every stage and of the whole, on `scale.cores` cores."""
    documents, parts = scale.text_bytes / scale.document_bytes, max(1, round(scale.text_bytes / scale.part_bytes))
    rows = [_row(work, scale, documents, parts) for work in MEASURED]
    if scale.html_bytes:
        hours = scale.html_bytes / (EXTRACT_MEGABYTES_S * 1e6) / 3600
        rows.insert(0, _timed("extract", parts, hours, scale.html_bytes, PARQUET * scale.text_bytes, scale))
        hours = scale.html_bytes / (DIGEST_MEGABYTES_S * 1e6) / 3600
        rows.insert(0, _timed("digests of sources", parts, hours, COMPRESSED * scale.html_bytes, 0.0, scale))
    core_hours = sum(row.core_hours for row in rows)
    requests = sum(2.0 * row.tasks for row in rows)
    stored = PARQUET * scale.text_bytes * 2 + sum(work.written_document for work in MEASURED) * documents
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
        component_bytes=COMPONENT_BYTES * documents,
        compute_cost=core_hours * scale.core_hour,
        request_cost=requests / 2e6 * scale.million_requests * (1 + 1 / 12),
        storage_cost_month=stored / 1e9 * scale.gigabyte_month,
    )


def _row(work: StageWork, scale: CorpusScale, documents: float, parts: int) -> StageEstimate:
    by_bytes = scale.text_bytes / (work.megabytes_s * 1e6) if work.megabytes_s else 0.0
    by_documents = documents / work.documents_s if work.documents_s else 0.0
    read = PARQUET * scale.text_bytes if work.reads_text else _columns(work) * documents
    written = work.written * scale.text_bytes + work.written_document * documents
    return _timed(work.stage, parts, (by_bytes + by_documents) / 3600, read, written, scale)


def _columns(work: StageWork) -> float:
    """Bytes per document that a stage without text reads: signatures' keys, ids, or all columns."""
    return {"near duplicates": 300.0, "repeats of a snapshot": 40.0}.get(work.stage, 250.0)


def _timed(stage: str, tasks: int, core_hours: float, read: float, written: float, scale: CorpusScale) -> StageEstimate:
    at_once = min(scale.cores, tasks)
    network = (read + written) * 8 / (scale.gigabit_s_per_core * 1e9 * at_once) / 3600
    return StageEstimate(
        stage=stage,
        tasks=tasks,
        core_hours=core_hours,
        read_bytes=read,
        written_bytes=written,
        hours=max(core_hours / at_once, network),
    )
