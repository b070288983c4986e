"""Lessons: what the model of `blocks` learns from a page and from the text that a slow engine, the teacher, extracts.

Trafilatura reads articles about as well as the default model, and other pages much worse. Its text is therefore learned
only from pages that declare an article (`og:type`) and on which it has much in common with the text of the default
model. On all other pages, the labels are the default model's own probabilities, which keep further trees from changing
its answers there.

Pages are read in a worker process, with the limits of extraction: a page on which the teacher hangs or dies costs
itself. A lesson has numbers and no text.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from plinth.compute.worker_process import Handler, ItemWatch
from plinth.corpus.extract.content.engine import FEATURES, default_model
from plinth.corpus.extract.content.learner import BlockReader, covers, labels, log_odds, weights
from plinth.corpus.extract.fallback import AGREEMENT, agreement
from plinth.corpus.extract.page import HEAD_CHARACTERS, page_of
from plinth.corpus.extract.readable import readable_formulas
from plinth.corpus.extract.streamed import in_place
from plinth.corpus.extract.worker import engine, set_limits
from plinth.corpus.sources.codings import decode
from plinth_text.arrays import F32, F64

TEACHING, EXAMINING = (f"plinth.corpus.extract.content.lessons:{name}" for name in ("teaching", "examining"))
TEACHER = "trafilatura"
#: Outcomes of a page: learned from the teacher; learned from the default model, by reason; not learned.
TAUGHT, NO_ARTICLE, DISAGREES, NOT_COVERED, FAILED = "taught", "no_article", "disagrees", "not_covered", "failed"
OUTCOMES = (TAUGHT, NO_ARTICLE, DISAGREES, NOT_COVERED, FAILED)
#: Maximum number of blocks of a page that are learned from.
PAGE_BLOCKS = 300
#: Weight of blocks whose labels are the default model's probabilities.
KEEPING = 10.0
_HEAD, _NUMBERS = struct.Struct("<BI"), struct.Struct("<B3d")
_ROW_BYTES = 4 * FEATURES + 3 * 8
_DECLARED = re.compile(r"""<meta\s[^<>]{0,99}?\bog:type["'][^<>]{0,99}?\bcontent=["']?[^"'<>]{0,99}?article""", re.I)


class Lesson(NamedTuple):
    """Blocks of a page: features [blocks, FEATURES], probabilities that they are main content, weights, and log-odds by
    the default model."""

    features: F32
    truth: F64
    weight: F64
    start: F64


class PageAgreement(NamedTuple):
    """Agreement of texts of a held-out page, as F1 of words: of default and learned model with the teacher, and of the
    learned with the default model."""

    default: float
    learned: float
    kept: float


def declares_article(html: str) -> bool:
    """Return True if a page declares in its head that it is an article."""
    return _DECLARED.search(html, 0, HEAD_CHARACTERS) is not None


def teachable(html: str, text: str, default: str) -> str:
    """Return the outcome of a page, by the texts of the teacher and of the default model."""
    if not declares_article(html):
        return NO_ARTICLE
    return TAUGHT if agreement(text, default) >= AGREEMENT else DISAGREES


def teaching(watch: ItemWatch, seconds: str) -> Handler:
    """Return a handler that turns serialized pages into lessons.

    Args:
        seconds: maximum CPU seconds per page.
    """
    set_limits(watch, float(seconds))
    teach, fast, read = engine(TEACHER), engine("blocks"), BlockReader()

    def answer(html: str) -> bytes:
        outcome, lesson = _lesson(html, teach(html).text, fast(html).text, read)
        arrays = (array.tobytes() for array in lesson)
        return b"".join((_HEAD.pack(OUTCOMES.index(outcome), len(lesson.truth)), *arrays))

    return _handler(watch, answer, _HEAD.pack(OUTCOMES.index(FAILED), 0))


def examining(watch: ItemWatch, seconds: str, model: str) -> Handler:
    """Return a handler that measures a model on serialized pages.

    Args:
        seconds: maximum CPU seconds per page.
        model: path of the learned model.
    """
    set_limits(watch, float(seconds))
    teach, fast, learned = engine(TEACHER), engine("blocks"), engine("blocks", Path(model))

    def answer(html: str) -> bytes:
        text, before, after = teach(html).text, fast(html).text, learned(html).text
        found = agreement(text, before), agreement(text, after), agreement(before, after)
        return _NUMBERS.pack(OUTCOMES.index(teachable(html, text, before)), *found)

    return _handler(watch, answer, _NUMBERS.pack(OUTCOMES.index(FAILED), 0, 0, 0))


def _handler(watch: ItemWatch, answer: Callable[[str], bytes], failed: bytes) -> Handler:
    def read(item: memoryview) -> bytes:
        page = page_of(item)
        try:
            return answer(decode(page.body, page.charset, html=True))
        except BaseException:  # a panic of Rust code is not an Exception
            return failed

    def handle(items: Iterator[memoryview]) -> Iterator[bytes]:
        for item in items:
            watch.begin()
            found = read(item)
            watch.end()
            watch.stop()
            yield found

    return handle


def lesson_of(answer: bytes) -> tuple[str, Lesson | None]:
    """Parse the answer of a worker: the outcome, and the lesson unless the page failed. A worker that a hostile page
    controls may answer anything; an answer that is not a lesson is the outcome `FAILED`."""
    outcome, count = _HEAD.unpack_from(answer) if len(answer) >= _HEAD.size else (len(OUTCOMES), 0)
    if outcome >= OUTCOMES.index(FAILED) or count > PAGE_BLOCKS or len(answer) != _HEAD.size + count * _ROW_BYTES:
        return FAILED, None
    features = np.frombuffer(answer, np.float32, count * FEATURES, _HEAD.size).reshape(count, FEATURES)
    rest = np.frombuffer(answer, np.float64, 3 * count, _HEAD.size + features.nbytes).reshape(3, count)
    if not np.isfinite(features).all() or not np.isfinite(rest).all() or (rest[:2] < 0).any() or (rest[0] > 1).any():
        return FAILED, None
    return OUTCOMES[outcome], Lesson(features, *rest)


def agreement_of(answer: bytes) -> tuple[str, PageAgreement | None]:
    """Parse the answer of a worker that measures: the outcome, and the agreement unless the page failed."""
    outcome, *values = _NUMBERS.unpack(answer) if len(answer) == _NUMBERS.size else (len(OUTCOMES),)
    if outcome >= OUTCOMES.index(FAILED) or not all(0 <= value <= 1 for value in values):
        return FAILED, None
    return OUTCOMES[outcome], PageAgreement(*values)


def _lesson(html: str, text: str, default: str, read: BlockReader) -> tuple[str, Lesson]:
    """Return the outcome and the lesson of a page, by the texts of the teacher and of the default model."""
    blocks, outcome = read(readable_formulas(in_place(html))), teachable(html, text, default)
    shares = labels(blocks.texts, text)
    if outcome == TAUGHT and not covers(blocks.texts, shares, text):
        outcome = NOT_COVERED
    chosen = np.flatnonzero(~np.isnan(shares))
    if chosen.size > PAGE_BLOCKS:
        seed = int.from_bytes(hashlib.sha256(html.encode("utf-8", "replace")).digest()[:4], "big")
        chosen = np.sort(np.random.RandomState(seed).permutation(chosen)[:PAGE_BLOCKS])
    features, weight = blocks.features[chosen], weights(blocks.texts)[chosen]
    start = log_odds(default_model(), features)
    if outcome == TAUGHT:
        return outcome, Lesson(features, (shares[chosen] >= 0.5).astype(float), weight, start)
    return outcome, Lesson(features, 1 / (1 + np.exp(-start)), weight * KEEPING, start)
