"""Lessons: what the model of `blocks` learns from the text that a slow engine, the teacher, takes from a page.

A page is read in a worker process, with the limits of extraction: a page on which the teacher hangs or dies costs
itself. A lesson is numbers, and no text.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from plinth.compute.worker_process import Handler, ItemWatch
from plinth.corpus.extract.content.engine import FEATURES
from plinth.corpus.extract.content.learner import BlockReader, covers, labels, weights
from plinth.corpus.extract.fallback import AGREEMENT, agreement
from plinth.corpus.extract.page import Extract, page_of
from plinth.corpus.extract.readable import readable_formulas
from plinth.corpus.extract.worker import engine, set_limits
from plinth.corpus.sources.codings import decode
from plinth_text.arrays import F32, F64, Bools

HANDLER = "plinth.corpus.extract.content.lessons:teaching"
#: Outcomes of a page. `DISAGREES`: the texts of teacher and default model have little in common, so at least one of
#: them does not read the page well. `NOT_COVERED`: the teacher's text is not in the page's blocks.
TAUGHT, DISAGREES, NOT_COVERED, FAILED = range(4)
OUTCOMES = ("taught", "disagrees", "not_covered", "failed")
#: Maximum number of blocks of a page that are learned from.
PAGE_BLOCKS = 300
_HEAD = struct.Struct("<BI")


class Lesson(NamedTuple):
    """Blocks of a page: features [blocks, FEATURES], labels by the teacher's text, and weights."""

    features: F32
    truth: Bools
    weight: F64


def teaching(watch: ItemWatch, teacher: str, seconds: str) -> Handler:
    """Return a handler that turns serialized pages into lessons.

    Args:
        teacher: extraction engine whose text is learned.
        seconds: maximum CPU seconds per page.
    """
    set_limits(watch, float(seconds))
    teach, fast, read = engine(teacher), engine("blocks"), BlockReader()

    def handle(items: Iterator[memoryview]) -> Iterator[bytes]:
        for item in items:
            watch.begin()
            answer = _answer(item, teach, fast, read)
            watch.end()
            watch.stop()
            yield answer

    return handle


def lesson_of(answer: bytes) -> tuple[int, Lesson | None]:
    """Parse the answer of a worker: the outcome, and the lesson if the page is taught. A worker that a hostile page
    controls may answer anything; other bytes are the outcome `FAILED`."""
    outcome, count = _HEAD.unpack_from(answer) if len(answer) >= _HEAD.size else (FAILED, 0)
    if outcome != TAUGHT:
        return (outcome if outcome < len(OUTCOMES) else FAILED), None
    if not 0 < count <= PAGE_BLOCKS or len(answer) != _HEAD.size + count * (4 * FEATURES + 1 + 8):
        return FAILED, None
    features = np.frombuffer(answer, np.float32, count * FEATURES, _HEAD.size).reshape(count, FEATURES)
    at = _HEAD.size + features.nbytes
    truth = np.frombuffer(answer, np.uint8, count, at) > 0
    weight = np.frombuffer(answer, np.float64, count, at + count)
    sound = np.isfinite(features).all() and np.isfinite(weight).all() and weight.min() >= 0
    return (TAUGHT, Lesson(features, truth, weight)) if sound else (FAILED, None)


def _answer(page: memoryview, teach: Extract, fast: Extract, read: BlockReader) -> bytes:
    try:
        outcome, lesson = _lesson(page, teach, fast, read)
    except BaseException:  # a panic of Rust code is not an Exception
        outcome, lesson = FAILED, None
    if lesson is None:
        return _HEAD.pack(outcome, 0)
    arrays = lesson.features.tobytes(), lesson.truth.astype(np.uint8).tobytes(), lesson.weight.tobytes()
    return b"".join((_HEAD.pack(outcome, len(lesson.truth)), *arrays))


def _lesson(
    page: memoryview, teach: Extract, fast: Extract, read: BlockReader
) -> tuple[int, Lesson | None]:
    given = page_of(page)
    html = decode(given.body, given.charset, html=True)
    text = teach(html).text
    if agreement(text, fast(html).text) < AGREEMENT:
        return DISAGREES, None
    blocks = read(readable_formulas(html))
    shares = labels(blocks.texts, text)
    if not covers(blocks.texts, shares, text):
        return NOT_COVERED, None
    known = np.flatnonzero(~np.isnan(shares))
    if known.size > PAGE_BLOCKS:
        seed = int.from_bytes(hashlib.sha256(given.body).digest()[:4], "big")
        known = np.sort(np.random.RandomState(seed).permutation(known)[:PAGE_BLOCKS])
    return TAUGHT, Lesson(blocks.features[known], shares[known] >= 0.5, weights(blocks.texts)[known])
