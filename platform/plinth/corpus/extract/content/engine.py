"""Engine `blocks`: the kernels, the model that ships with Plinth, and main content with title."""

from __future__ import annotations

import re
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from plinth.corpus.extract.content.risk import TRAITS
from plinth.corpus.extract.page import MainContent
from plinth.corpus.extract.readable import readable_formulas
from plinth_text.arrays import F32, F64, I32, I64, U8, U64
from plinth_text.compiled import compiled

#: Bump when features, or the text that is written, change. The model's file states it, and is part of the step's
#: identity.
VERSION = 7
#: Features of a block, as in `features.h`.
FEATURES = 201
#: Leaves that a tree may have: each is a bit of a number.
MOST_LEAVES = 64
ALL_LEAVES = 2**MOST_LEAVES - 1
#: Words in links for screen readers.
NEW_TAB = re.compile(r"\s?\((?:link )?opens in (?:a )?new (?:tab|window)\)", re.IGNORECASE)
MODEL = Path(__file__).with_name("model.npz")


class BlockModel(NamedTuple):
    """Decision trees over the features of a block. Their sum is the log-odds that the block is main content.

    Args:
        first: first node of each tree; below 0, the complement of a leaf.
        left, right: child of each node if the feature is at most the threshold, and if not.
        feature, threshold: feature of each node, and the value that it is compared with.
        leaf: log-odds of the leaves.
        article, other: minimum log-odds on pages with an article, and on other pages.
    """

    first: I32
    left: I32
    right: I32
    feature: U8
    threshold: F32
    leaf: F32
    article: float
    other: float


class Conditions(NamedTuple):
    """The trees of a model as the kernel reads them: N conditions in order of their feature and threshold.

    Args:
        starts: [FEATURES + 1] first condition of each feature.
        threshold, tree: [N] threshold and tree of each condition.
        others: [N] leaves of the tree that are not on the left side of the condition, one bit each.
        first: first leaf of each tree.
        leaf, article, other: as in `BlockModel`.
    """

    starts: I32
    threshold: F32
    tree: I32
    others: U64
    first: I32
    leaf: F32
    article: float
    other: float


def conditions(model: BlockModel) -> Conditions:
    """Return the conditions of a model. Nodes are in the order of their trees, each before its children, and leaves
    from left to right.

    Raises:
        ValueError: a tree has too many leaves.
    """
    count = model.feature.size
    begin, middle, end = np.zeros((3, count), np.int64).tolist()  # leaves on the left side of a node, and on the right
    for node in range(count - 1, -1, -1):
        left, right = int(model.left[node]), int(model.right[node])
        begin[node] = ~left if left < 0 else begin[left]
        middle[node] = ~left + 1 if left < 0 else end[left]
        end[node] = ~right + 1 if right < 0 else end[right]
    roots = np.flatnonzero(model.first >= 0)
    if any(end[root] - begin[root] > MOST_LEAVES for root in model.first[roots].tolist()):
        raise ValueError(f"a tree of the model has more than {MOST_LEAVES} leaves")
    first = np.array([~root if root < 0 else begin[root] for root in model.first.tolist()], np.int32)
    tree = roots[np.searchsorted(model.first[roots], np.arange(count), side="right") - 1]
    others = [
        ALL_LEAVES ^ (1 << stop - at) - (1 << start - at)
        for start, stop, at in zip(begin, middle, first[tree].tolist(), strict=True)
    ]
    order = np.lexsort((model.threshold, model.feature))
    return Conditions(
        np.searchsorted(model.feature[order], np.arange(FEATURES + 1)).astype(np.int32),
        model.threshold[order],
        tree[order].astype(np.int32),
        np.array(others, np.uint64)[order],
        first,
        model.leaf,
        model.article,
        model.other,
    )


@compiled
def main_content(
    html: U8,
    starts: I32,
    threshold: F32,
    tree: I32,
    others: U64,
    first: I32,
    leaf: F32,
    article: float,
    other: float,
    votes: F32,
    traits: F64,
    out: U8,
) -> tuple[int, int, int, float, int]:
    """Write the main content of a page in UTF-8, and return its size and the place of the title in the HTML.

    Character references are kept as written. A negative size is the room that `out` would need. The last
    numbers are `unsure` and `article` of `MainContent`; `traits` are those of `risk.py`.
    """


@compiled
def page_blocks(html: U8, features: F32, places: I64, text: U8) -> int:
    """Write features, places and texts of the blocks of a page, and return the number of blocks.

    A negative number is the complement of the number of blocks: `features` or `text` is too small.
    """


@compiled
def may_have_formulas(html: U8) -> int:
    """Return 1 if an element `math`, `sub` or `sup` may begin in a page, otherwise 0."""


@compiled
def short_page(
    html: U8,
    starts: I32,
    threshold: F32,
    tree: I32,
    others: U64,
    first: I32,
    leaf: F32,
    limit: float,
    places: I64,
    text: U8,
    copy: U8,
) -> tuple[int, int]:
    """Write places and texts of the blocks of a page, and a copy of its HTML without elements whose blocks all have
    log-odds below `limit`. Return the number of blocks and the size of the copy.

    A negative number is the complement of the number of blocks: `places` or `text` is too small.
    """


@cache
def default_model() -> BlockModel:
    """Return the model that ships with Plinth."""
    return read_model(MODEL)


def read_model(path: Path) -> BlockModel:
    """Return the model in a file.

    Raises:
        ValueError: the model was learned for another version of the features.
    """
    with np.load(path, allow_pickle=False) as stored:
        if int(stored["version"]) != VERSION:
            raise ValueError(f"{path.name} is of version {int(stored['version'])}, expected {VERSION}")
        arrays: dict[str, Any] = {name: np.ascontiguousarray(stored[name]) for name in BlockModel._fields[:6]}
        article, other = map(float, stored["limits"])
        return BlockModel(**arrays, article=article, other=other)


class ShortPage(NamedTuple):
    """Texts of all blocks of a page, and its HTML without the elements that are hardly main content."""

    texts: list[str]
    html: str


def encoded(html: str | bytes) -> bytes:
    """Return a page as the kernels read it."""
    return html if isinstance(html, bytes) else html.encode("utf-8", "replace")


def with_formulas(html: str) -> bytes:
    """Return a page, encoded, with its formulas converted to text."""
    data = encoded(html)
    return encoded(readable_formulas(html)) if may_have_formulas(np.frombuffer(data, np.uint8)) else data


NO_VOTES: F32 = np.empty(0, np.float32)


class BlockEngine:
    """Main content of pages by a model. Reuses its memory from page to page."""

    def __init__(self, model: BlockModel) -> None:
        self._model = conditions(model)
        self._traits = np.zeros(len(TRAITS))
        self._out: npt.NDArray[np.uint8] = np.empty(1 << 20, np.uint8)
        self._places: npt.NDArray[np.int64] = np.empty((1 << 12, 2), np.int64)

    def __call__(self, html: str | bytes, votes: F32 = NO_VOTES) -> MainContent:
        """Return main content and title of a page, which may be encoded already. `votes` are log-odds that are added to
        those of its blocks."""
        data = encoded(html)
        view = np.frombuffer(data, np.uint8)
        size, title_from, title_to, unsure, article = main_content(view, *self._model, votes, self._traits, self._out)
        if size < 0:
            self._out = np.empty(-size, np.uint8)
            size, title_from, title_to, unsure, article = main_content(
                view, *self._model, votes, self._traits, self._out
            )
        text = unescape(self._out[:size].tobytes().decode("utf-8", "replace")).replace("\xa0", " ")
        text = NEW_TAB.sub("", text) if "pens in" in text else text
        title = unescape(data[title_from:title_to].decode("utf-8", "replace"))
        return MainContent(text, " ".join(title.split()) or None, unsure, bool(article), tuple(self._traits.tolist()))

    def shortened(self, html: str | bytes, vote: float) -> ShortPage:
        """Return the blocks of a page, and its HTML without the elements that a vote of this weight could not make
        content of an article."""
        data = np.frombuffer(encoded(html), np.uint8)
        text, copy = np.empty(2 * data.size + 64, np.uint8), np.empty(data.size, np.uint8)
        trees, limit = self._model[:-2], self._model.article - vote
        count, size = short_page(data, *trees, limit, self._places, text, copy)
        if count < 0:
            self._places = np.empty((~count, 2), np.int64)
            count, size = short_page(data, *trees, limit, self._places, text, copy)
        texts = [text[start:end].tobytes().decode("utf-8", "replace") for start, end in self._places[:count].tolist()]
        return ShortPage([unescape(text) for text in texts], copy[:size].tobytes().decode("utf-8", "replace"))
