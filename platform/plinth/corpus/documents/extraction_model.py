"""Stage that learns a model of main content on the user's own pages, from a slow extraction engine, the teacher.

    groups of files -> pages by site -> lessons     (sites to learn from)
                                     -> agreement   (held-out sites, since the pages of a site share a template)
    default model + lessons -> further trees -> model

The model is published only if it agrees with the teacher on held-out sites at least as much as the recipe requires, and
more than the default model does, by the interval. Pages are chosen by digests of their addresses, so the same sources
give the same model on any number of workers. Pages are read again for each step and never stored.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth import fingerprint
from plinth.compute.context import Context, Item, add_stats, manifest, run_items
from plinth.compute.worker import Death, ItemStream, Program
from plinth.corpus.documents.documents import FileGroupTask, items_of, normalised, records
from plinth.corpus.extract.content.engine import FEATURES, default_model
from plinth.corpus.extract.content.learner import LabeledBlocks, boosted, joined, model_bytes
from plinth.corpus.extract.content.lessons import (
    DISAGREES,
    EXAMINING,
    FAILED,
    NO_ARTICLE,
    NOT_COVERED,
    TAUGHT,
    TEACHER,
    TEACHING,
    Lesson,
    PageAgreement,
    agreement_of,
    lesson_of,
)
from plinth.corpus.extract.extractor import (
    BATCH_BYTES,
    BATCH_PAGES,
    IDLE_S,
    KEEP_MEMORY,
    PIPE_BYTES,
    Extractor,
    extracted,
)
from plinth.corpus.extract.page import KIND_OF, Page, page_bytes
from plinth.corpus.extract.worker import LIBRARIES
from plinth.corpus.illegal_gate import IllegalGate, Quarantined, passing
from plinth.corpus.sources.inventory import Inventory
from plinth.corpus.sources.parameters import Bucket, Documents, ExtractionModel
from plinth.corpus.sources.record import RawRecord
from plinth.errors import MissingError, StageError
from plinth.records import Blob, Frozen, Manifest, Part, Step
from plinth.storage.parts import PartWriter, read_table, write_table
from plinth.storage.store import Store
from plinth.text import host
from plinth_text.arrays import F64

#: Raise the version if the constants below, or those of `content.lessons` and `content.learner`, change.
ASSET, VERSION = "models/main_content", "3"
#: LightGBM's parameters. Trees are small, and few, so that they do not learn single pages.
TREES, PARAMETERS = 50, {"learning_rate": 0.06, "num_leaves": 16, "min_child_samples": 400}
#: Maximum number of groups of files that are sampled, and maximum share that one site may have: of the pages to sample
#: in a group, and of the weight of all articles that are learned (or twice the average, if there are few sites).
GROUPS, SITE_SHARE = 32, 0.1
#: Rounds in which the limit of a site's weight is found; the last ones hardly change it.
LIMIT_ROUNDS = 100
#: Labels below which names are registered in a domain of two letters, as in `co.uk`.
REGISTRIES = frozenset({
    "ac", "co", "com", "edu", "gob", "gouv", "gov", "govt", "go", "gv", "ltd", "mil", "ne", "net",
    "nom", "or", "org", "plc", "sch", "web",
})  # fmt: skip
#: Minimum numbers of articles and of their sites, to learn from and to measure.
MIN_LEARNED, MIN_MEASURED = (50, 5), (20, 5)
#: Draws of the bootstrap over sites, and the quantiles that are its interval.
DRAWS, QUANTILES = 2000, (0.025, 0.975)
#: Reasons for which a sampled page is not learned from the teacher.
TIMEOUT = "timeout"
REASONS = (NO_ARTICLE, DISAGREES, NOT_COVERED, FAILED, TIMEOUT)
_PAGE = [("site", pa.string()), ("outcome", pa.string())]
LESSONS = pa.schema([*_PAGE, *((name, pa.large_binary()) for name in Lesson._fields)])
AGREEMENTS = pa.schema([*_PAGE, *((name, pa.float64()) for name in PageAgreement._fields)])
#: Pages whose lessons are written at once.
WRITTEN = 64


class SampleTask(Frozen):
    """Task of one worker: pages of a group of files.

    Args:
        pages: maximum number of pages to sample.
        held_out: share of the sites that are held out.
        model: learned model to measure on held-out sites; None to collect lessons from the other sites.
    """

    work: FileGroupTask
    pages: int
    held_out: float
    model: Blob | None = None


class TreesTask(Frozen):
    """Task of one worker: trees learned from lessons."""

    lessons: tuple[Part, ...]


def libraries() -> dict[str, str]:
    """Return the versions of the libraries that decide the model.

    Raises:
        MissingError: LightGBM is not installed.
    """
    try:
        own = fingerprint.libraries("lightgbm")
    except MissingError as error:
        raise MissingError(
            "`extraction_model` needs LightGBM", found=error.what, remedy="pip install 'plinth[extraction]'"
        ) from error
    return own | fingerprint.libraries("FastWARC", *LIBRARIES["blocks"], *LIBRARIES[TEACHER])


def run(
    ctx: Context,
    params: Documents,
    learned: ExtractionModel,
    buckets: Mapping[str, tuple[Bucket, Inventory]],
    gate: IllegalGate | None,
    inputs: Mapping[str, Manifest],
) -> Manifest:
    """Learn a model of main content and return the manifest of its file.

    Args:
        buckets: buckets to sample, with their files, by name.

    Statistics: `agreement`, the mean F1 of words of the model's and the teacher's texts of held-out articles, with its
    95% interval `_low` and `_high` (bootstrap over sites); the same for the default model (`default_agreement`) and for
    the difference (`gain`); `kept`, the mean F1 of both models' texts of other held-out pages; numbers of pages, sites
    and blocks; `not_taught`, pages to learn from without a label of the teacher, by reason.

    Raises:
        StageError: there are too few articles or sites, no block is main content, or the agreement is too low.
    """
    step = Step(name="extraction_model", version=VERSION, params={"held_out": learned.held_out}, libraries=libraries())
    sampled = _sampled(params, learned, buckets, gate)
    taught = [one for (one,) in run_items(ctx, step, learn, sampled, label=f"{ASSET}: lessons", unit="files")]
    facts = add_stats(taught)
    stats: dict[str, Any] = {"blocks": facts["blocks"], "not_taught": {name: facts.get(name, 0) for name in REASONS}}
    stats |= _require(ctx.store, "learned", taught, MIN_LEARNED, stats["not_taught"])
    if not 0 < facts["content"] < facts["blocks"]:
        raise StageError(
            f"{ASSET}: the teacher's labels are all the same",
            found=f"{facts['content']} of {facts['blocks']} blocks are main content",
            expected="blocks of both kinds",
            remedy=_REMEDY,
        )
    trees = Item(tuple(part.blob.sha256 for part in taught), TreesTask(lessons=tuple(taught)))
    ((model,),) = run_items(ctx, step, grow, [trees], label=f"{ASSET}: trees")
    items = [
        Item((*item.inputs, model.blob.sha256), item.task.model_copy(update={"model": model.blob})) for item in sampled
    ]
    measured = [one for (one,) in run_items(ctx, step, examine, items, label=f"{ASSET}: agreement", unit="files")]
    stats |= _require(ctx.store, "measured", measured, MIN_MEASURED, add_stats(measured))
    stats |= agreements(pa.concat_tables(read_table(ctx.store, part) for part in measured))
    require_agreement(stats, learned.min_agreement)
    whole = step.model_copy(update={"params": learned.model_dump(mode="json")})
    return manifest(ASSET, whole, inputs, [model], stats | {"trees": model.rows})


def _sampled(
    params: Documents,
    learned: ExtractionModel,
    buckets: Mapping[str, tuple[Bucket, Inventory]],
    gate: IllegalGate | None,
) -> list[Item]:
    """Return one item per group of files to sample. Groups are chosen by the digests of their files."""
    extraction = params.extraction.model_copy(update={"engine": TEACHER})
    read = params.model_copy(update={"extraction": extraction, "extraction_model": None})
    found = list[tuple[str, Item]]()
    for name, (bucket, inventory) in buckets.items():
        for item in items_of(name, bucket, read, inventory, gate):
            if not learned.snapshots or item.task.source.snapshot in learned.snapshots:
                files = [[file.key, file.sha256] for file, _ in item.task.group.files]
                found.append((fingerprint.digest(files), item))
    if not found:
        raise StageError(
            f"{ASSET}: no source to sample",
            found=", ".join(sorted({source.snapshot for bucket, _ in buckets.values() for source in bucket.sources})),
            expected=f"one of the snapshots {', '.join(learned.snapshots)}",
            remedy="correct `extraction_model.snapshots`",
        )
    chosen = [item for _, item in sorted(found, key=lambda one: one[0])[:GROUPS]]
    pages = -(-learned.pages // len(chosen))
    return [
        Item((*item.inputs, str(pages)), SampleTask(work=item.task, pages=pages, held_out=learned.held_out), item.rows)
        for item in chosen
    ]


def learn(store: Store, task: SampleTask) -> tuple[Part, ...]:
    """Collect the lessons of pages of sites to learn from, one row per page that the teacher or the default model
    labels."""
    counts = Counter[str](blocks=0, content=0)

    def rows() -> Iterator[dict[str, Any]]:
        for site, answer in _answers(store, task):
            outcome, lesson = (_died(answer), None) if isinstance(answer, Death) else lesson_of(answer)
            if outcome != TAUGHT:
                counts[outcome] += 1
            elif lesson is not None:
                counts.update(blocks=len(lesson.truth), content=int(lesson.truth.sum()))
            if lesson is not None:
                arrays = {name: array.tobytes() for name, array in lesson._asdict().items()}
                yield {"site": site, "outcome": outcome} | arrays

    found = rows()
    with PartWriter(store, "lessons.parquet", LESSONS) as writer:
        while some := list(islice(found, WRITTEN)):
            writer.write(pa.RecordBatch.from_pylist(some, LESSONS))
        return (writer.finish(dict(counts)),)


def grow(store: Store, task: TreesTask) -> tuple[Part, ...]:
    """Add trees to the default model, learned from lessons."""

    def column(name: str) -> list[Any]:
        return [one for part in task.lessons for one in read_table(store, part, [name])[name].to_pylist()]

    truth, start = (np.frombuffer(b"".join(column(name)), np.float64) for name in ("truth", "start"))
    pages = [np.frombuffer(one, np.float64) for one in column("weight")]
    taught = np.array([outcome == TAUGHT for outcome in column("outcome")])
    factors = site_factors(column("site"), np.where(taught, [page.sum() for page in pages], 0.0))
    weight = np.concatenate([page * factor for page, factor in zip(pages, np.where(taught, factors, 1), strict=True)])
    features = np.frombuffer(b"".join(column("features")), np.float32).reshape(-1, FEATURES)
    found = LabeledBlocks(features, truth, weight, start)
    default = default_model()
    model = joined(default, boosted(found, TREES, PARAMETERS, (default.article, default.other)))
    return (Part(name="main_content.npz", blob=store.put_bytes(model_bytes(model)), rows=model.first.size),)


def site_factors(sites: Sequence[str], weights: F64) -> F64:
    """Return a factor for the weight of each page that leaves no site more than its share (`SITE_SHARE`)."""
    _, codes = np.unique(np.array(sites), return_inverse=True)
    sums = np.bincount(codes, weights)
    share = max(SITE_SHARE, 2 / max(1, int(np.count_nonzero(sums))))
    limit = float(sums.max(initial=0))
    for _ in range(LIMIT_ROUNDS):
        limit = share * float(np.minimum(sums, limit).sum())
    return np.asarray(np.minimum(1, limit / np.where(sums > 0, sums, 1))[codes])


def examine(store: Store, task: SampleTask) -> tuple[Part, ...]:
    """Measure a learned model on pages of held-out sites, one row per page."""
    rows, counts = list[dict[str, Any]](), Counter[str]()
    for site, answer in _answers(store, task):
        outcome, found = (_died(answer), None) if isinstance(answer, Death) else agreement_of(answer)
        if outcome != TAUGHT:
            counts[outcome] += 1
        if found is not None:
            rows.append({"site": site, "outcome": outcome} | found._asdict())
    return (write_table(store, "agreements.parquet", pa.Table.from_pylist(rows, AGREEMENTS), stats=dict(counts)),)


def _died(death: Death) -> str:
    return TIMEOUT if death.over_limit else FAILED


# Sampling: pages by the digest of their address, and a limit on the pages of one site.


def site_of(uri: str) -> str:
    """Return the site of a page: the registered domain of its host, by a rule for suffixes of two parts (`REGISTRIES`).
    Files without a host belong to the site that their first folder names."""
    uri = uri.encode("utf-8", "backslashreplace").decode()
    name = host(uri)
    if not name:
        return uri.partition("/")[0] if "/" in uri else ""
    labels = name.split(".")
    if labels[-1].isdigit() or ":" in name:
        return name
    two_parts = len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in REGISTRIES
    return ".".join(labels[-3 if two_parts else -2 :])


def is_held_out(site: str, share: float) -> bool:
    """Return True if a site is held out. The answer depends only on the site's name and the share."""
    return _number(f"held out: {site}") < share * 2**64


def choose(pages: Iterable[tuple[int, str]], most: int) -> list[tuple[int, str]]:
    """Return the pages with the smallest numbers, at most `most` and at most the share `SITE_SHARE` of one site. Pages
    are (number, site)."""
    chosen, sites = list[tuple[int, str]](), Counter[str]()
    limit = max(1, int(most * SITE_SHARE))
    for number, site in sorted(pages):
        if len(chosen) < most and sites[site] < limit:
            chosen.append((number, site))
            sites[site] += 1
    return chosen


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "replace")).digest()[:8], "big")


def _pages(store: Store, task: SampleTask) -> Iterator[RawRecord]:
    """Yield the HTML pages of a group of files."""
    for record in records(store, task.work, Counter()):
        if isinstance(record, RawRecord) and isinstance(record.content, bytes) and record.mime not in KIND_OF:
            yield record


def _legal(store: Store, work: FileGroupTask, pages: Iterator[RawRecord]) -> Iterator[RawRecord]:
    """Leave out pages whose text, as the default model reads it, matches a list of illegal content."""
    if work.gate is None:
        yield from pages
        return
    sent = deque[RawRecord]()

    def remembered() -> Iterator[RawRecord]:
        for page in pages:
            sent.append(page)
            yield page

    with Extractor(work.params.extraction.model_copy(update={"engine": "blocks"})) as extractor:
        texts = normalised(extracted(remembered(), extractor, Counter()), work)
        for item in passing(work.gate, store, texts):
            page = sent.popleft()
            if not isinstance(item, Quarantined):
                yield page


def _batches(store: Store, task: SampleTask) -> Iterator[list[tuple[str, bytes]]]:
    """Yield the sampled pages, either of held-out sites or of the others, with their site, serialized. Files are read
    twice, so that no more than a batch of pages is in memory."""
    chosen = list[tuple[int, str]]()
    for record in _pages(store, task):
        chosen.append((_number(record.uri), site_of(record.uri)))
        if len(chosen) >= 16 * task.pages:
            chosen = choose(chosen, task.pages)
    wanted = {
        number: site
        for number, site in choose(chosen, task.pages)
        if is_held_out(site, task.held_out) == (task.model is not None)
    }
    batch, size = list[tuple[str, bytes]](), 0
    pages = (record for record in _pages(store, task) if _number(record.uri) in wanted) if wanted else iter(())
    for record in _legal(store, task.work, pages):
        site = wanted.pop(_number(record.uri), None)
        if site is not None and isinstance(record.content, bytes):
            batch.append((site, page_bytes(Page(record.content, record.charset))))
            size += len(record.content)
        if len(batch) == BATCH_PAGES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _answers(store: Store, task: SampleTask) -> Iterator[tuple[str, bytes | Death]]:
    """Yield the answers of a worker to the sampled pages, with the sites of the pages."""
    handler, model = (EXAMINING, [str(store.open_path(task.model))]) if task.model else (TEACHING, [])
    sites = list[str]()

    def items() -> Iterator[list[bytes]]:
        for batch in _batches(store, task):
            sites.extend(site for site, _ in batch)
            yield [page for _, page in batch]

    seconds = str(task.work.params.extraction.seconds_per_page)
    program = Program(handler, (seconds, *model), KEEP_MEMORY, IDLE_S, PIPE_BYTES, quiet=True)
    with ItemStream(program) as stream:
        answers = (answer for batch in stream.map(items()) for answer in batch)
        yield from ((site, answer) for answer, site in zip(answers, sites, strict=False))  # `sites` grows


# Agreement with the teacher on held-out articles, and its limits.

_REMEDY = "add sources or raise `pages` in `extraction_model`, or remove `extraction_model` to use the default model"


def _require(
    store: Store, name: str, parts: Sequence[Part], least: tuple[int, int], others: Mapping[str, int]
) -> dict[str, int]:
    """Return the numbers of articles and of their sites. Raise StageError if they are too low."""
    tables = [read_table(store, part, ["site", "outcome"]) for part in parts]
    sites = [row["site"] for table in tables for row in table.to_pylist() if row["outcome"] == TAUGHT]
    pages, count = len(sites), len(set(sites))
    if pages < least[0] or count < least[1]:
        reasons = ", ".join(f"{reason} {number}" for reason, number in others.items() if number) or "none"
        raise StageError(
            f"{ASSET}: too few articles are {name}",
            found=f"{pages} articles of {count} sites; other sampled pages: {reasons}",
            expected=f"at least {least[0]} articles of {least[1]} sites",
            remedy=_REMEDY,
        )
    return {f"{name}_articles": pages, f"{name}_sites": count}


def agreements(measured: pa.Table) -> dict[str, float]:
    """Return mean agreements and their intervals from rows of `AGREEMENTS`."""
    taught = measured.filter(pc.equal(measured["outcome"], TAUGHT))
    others = measured.filter(pc.not_equal(measured["outcome"], TAUGHT))["kept"].to_numpy()
    sites = taught["site"].to_pylist()
    default, own = (taught[name].to_numpy() for name in ("default", "learned"))
    found = {
        **_interval("agreement", own, sites),
        **_interval("default_agreement", default, sites),
        **_interval("gain", own - default, sites),
    }
    return found | ({"kept": round(float(others.mean()), 6)} if others.size else {})


def _interval(name: str, values: F64, sites: Sequence[str]) -> dict[str, float]:
    """Return the mean of values, with its interval by a bootstrap over sites."""
    _, codes = np.unique(np.array(sites), return_inverse=True)
    sums, sizes = np.bincount(codes, values), np.bincount(codes)
    drawn = np.random.RandomState(0).randint(0, len(sums), (DRAWS, len(sums)))
    ends = np.quantile(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1), QUANTILES)
    keys = name, f"{name}_low", f"{name}_high"
    return {key: round(float(value), 6) for key, value in zip(keys, (values.mean(), *ends), strict=True)}


def in_words(stats: Mapping[str, Any]) -> str:
    """Return the agreement with the teacher in one line."""
    return (
        f"agreement {stats['agreement']:.3f} [{stats['agreement_low']:.3f}, {stats['agreement_high']:.3f}], "
        f"default {stats['default_agreement']:.3f}, gain {stats['gain']:+.4f} [{stats['gain_low']:+.4f}, "
        f"{stats['gain_high']:+.4f}], on {stats['measured_articles']} articles of {stats['measured_sites']} sites"
    )


def require_agreement(stats: Mapping[str, Any], least: float) -> None:
    """Raise StageError if the model does not agree with the teacher enough, or not more than the default model."""
    if stats["agreement"] >= least and stats["gain_low"] > 0:
        return
    low = stats["agreement"] < least
    raise StageError(
        f"{ASSET}: the learned model "
        + ("agrees too little with the teacher" if low else "is not better than the default model"),
        found=in_words(stats),
        expected=f"agreement of at least {least:g} (min_agreement), and a gain whose interval is above 0",
        remedy=_REMEDY,
    )
