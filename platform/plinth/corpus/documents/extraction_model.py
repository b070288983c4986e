"""Stage that learns a model of main content on the user's own pages, from a slow extraction engine, the teacher.

    groups of files -> pages by site -> lessons     (sites to learn from)
                                     -> agreement   (held-out sites, since the pages of a site share a template)
    default model + lessons -> further trees -> model

The default model stays, and the trees added to it are learned from what it leaves: with few pages, they change little.
The model is published only if it agrees with the teacher on held-out sites more than the default model does, by the
interval, and at least as much as the recipe requires. Pages are chosen by digests of their addresses, so that the same
sources give the same model on any number of workers. Pages are read again for each step, never stored.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, Item, add_stats, manifest, run_items
from plinth.compute.worker import Death, ItemStream, Program
from plinth.corpus.documents.documents import FileGroupTask, items_of, records
from plinth.corpus.extract.content.engine import FEATURES, default_model
from plinth.corpus.extract.content.learner import Examples, boosted, joined, log_odds, model_bytes
from plinth.corpus.extract.content.lessons import HANDLER, OUTCOMES, Lesson, lesson_of
from plinth.corpus.extract.extractor import BATCH_BYTES, BATCH_PAGES, IDLE_S, KEEP_MEMORY, PIPE_BYTES, Extractor
from plinth.corpus.extract.fallback import agreement
from plinth.corpus.extract.page import Answer, Page, Text, page_bytes
from plinth.corpus.extract.worker import LIBRARIES
from plinth.corpus.illegal_gate import IllegalGate
from plinth.corpus.sources.inventory import Inventory
from plinth.corpus.sources.parameters import Bucket, Documents, Extraction, ExtractionModel
from plinth.corpus.sources.record import RawRecord
from plinth.errors import MissingError, StageError, not_installed
from plinth.records import Blob, Frozen, Manifest, Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.storage.store import Store
from plinth.text import host
from plinth_text.arrays import F64

ASSET, VERSION = "models/main_content", "1"
FILE = "main_content.npz"
#: Groups of files that are sampled, and the maximum share of a group's sample that one site may have.
GROUPS, SITE_SHARE = 32, 0.1
#: Minimum numbers of pages and sites to learn from, and of pages and sites to measure.
MIN_LEARNED, MIN_HELD_OUT = (50, 5), (20, 5)
#: Draws of the bootstrap over sites, and the quantiles that its interval has.
DRAWS, QUANTILES = 2000, (0.025, 0.975)
LESSONS = pa.schema([(name, pa.large_binary()) for name in ("features", "truth", "weight")] + [("site", pa.string())])
AGREEMENTS = pa.schema([("site", pa.string()), ("default", pa.float64()), ("learned", pa.float64())])


class SampleTask(Frozen):
    """Task of one worker: pages of a group of files.

    Args:
        pages: maximum number of pages to sample.
        model: learned model to measure; None to collect lessons.
    """

    work: FileGroupTask
    params: ExtractionModel
    pages: int
    model: Blob | None = None


class TreesTask(Frozen):
    """Task of one worker: trees learned from lessons."""

    lessons: tuple[Part, ...]
    params: ExtractionModel


def libraries(params: ExtractionModel) -> dict[str, str]:
    """Return the versions of the libraries that decide the model.

    Raises:
        MissingError: LightGBM is not installed.
    """
    try:
        own = fingerprint.libraries("lightgbm")
    except MissingError as error:
        raise not_installed("lightgbm") from error
    names = {"unicode", "FastWARC", "Resiliparse", *LIBRARIES["blocks"], *LIBRARIES[params.teacher]}
    return own | fingerprint.libraries(*sorted(names))


def run(
    ctx: Context,
    documents: Documents,
    params: ExtractionModel,
    buckets: Mapping[str, tuple[Bucket, Inventory]],
    gate: IllegalGate | None,
    inputs: Mapping[str, Manifest],
) -> Manifest:
    """Learn a model of main content and return the manifest of its file.

    Statistics: `agreement`, the mean F1 of words of the model's and the teacher's texts on held-out pages, with `_low`
    and `_high` (95%, bootstrap over sites); the same for the default model (`default_`), and for their difference
    (`gain_`); numbers of pages, sites and blocks; pages that were not learned, by reason.

    Raises:
        StageError: there are too few pages or sites, no block is main content, or the model does not agree enough.
        MissingError: LightGBM is not installed.
    """
    chosen = _sampled(documents, params, buckets, gate)
    step = Step(name="extraction_model", version=VERSION, params=_facts(params), libraries=libraries(params))
    taught = [parts[0] for parts in run_items(ctx, step, learn, chosen, label=f"{ASSET}: lessons", unit="files")]
    sites = _sites(ctx.store, taught)
    facts = add_stats(taught)
    found = {"pages": sum(part.rows for part in taught), "sites": len(set(sites)), "blocks": facts.get("blocks", 0)}
    unlearned = {name: facts.get(name, 0) for name in UNLEARNED}
    _require(found["pages"], found["sites"], MIN_LEARNED, "to learn from", unlearned)
    trees = Item(tuple(part.blob.sha256 for part in taught), TreesTask(lessons=tuple(taught), params=params))
    ((model,),) = run_items(ctx, step, grow, [trees], label=f"{ASSET}: trees")
    asked = [
        Item((*item.inputs, model.blob.sha256), item.task.model_copy(update={"model": model.blob})) for item in chosen
    ]
    examined = [parts[0] for parts in run_items(ctx, step, examine, asked, label=f"{ASSET}: agreement", unit="files")]
    measured = pa.concat_tables(read_table(ctx.store, part) for part in examined)
    held_out = {"held_out_pages": measured.num_rows, "held_out_sites": len(set(measured["site"].to_pylist()))}
    _require(*held_out.values(), MIN_HELD_OUT, "to measure the model on", unlearned)
    stats = {**found, "unlearned": unlearned, **held_out, **agreements(measured), "trees": params.trees}
    require_better(stats, params)
    return manifest(ASSET, step, inputs, [model], stats)
