"""Learn a model of main content: labels of blocks from the text of a page, and decision trees by LightGBM.

A model is learned from nothing (the default model, by `tests/benchmarks/learn_blocks.py`), or by further trees on top
of another model (`plinth.corpus.documents.extraction_model`). Extraction itself does not need LightGBM.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import unescape
from typing import Any, NamedTuple

import numpy as np

from plinth.corpus.extract.content.engine import FEATURES, VERSION, BlockModel, page_blocks
from plinth_text.arrays import F32, F64

#: Words of the shingles by which a block is found in a text.
SHINGLE = 4
#: Share of a text that the blocks of its page must cover to be learned from, and words that it must have.
COVERED, MIN_WORDS = 0.7, 20
#: Limits of a page's blocks: their number, and bytes of their text.
MOST_BLOCKS, TEXT_BYTES = 40_000, 48 << 20
#: LightGBM's parameters for all models. One thread, so that sums have one order.
TREES: Mapping[str, Any] = {
    "objective": "cross_entropy", "reg_lambda": 2.0, "colsample_bytree": 0.3, "subsample": 0.6, "subsample_freq": 1,
    "max_bin": 127, "num_threads": 1, "seed": 0, "deterministic": True, "force_row_wise": True, "verbose": -1,
}  # fmt: skip
_WORD = re.compile(r"\w+")


class PageBlocks(NamedTuple):
    """Features [blocks, FEATURES] and texts of the blocks of a page."""

    features: F32
    texts: list[str]


class BlockReader:
    """Reader of the blocks of pages. It reuses its memory from page to page."""

    def __init__(self) -> None:
        self._features, self._places = (
            np.empty((MOST_BLOCKS, FEATURES), np.float32),
            np.empty((MOST_BLOCKS, 2), np.int64),
        )
        self._text = np.empty(TEXT_BYTES, np.uint8)

    def __call__(self, html: str) -> PageBlocks:
        """Return the blocks of a page. A page above the limits has no blocks."""
        page = np.frombuffer(html.encode("utf-8", "replace"), np.uint8)
        count = max(0, page_blocks(page, self._features, self._places, self._text))
        texts = [self._text[start:end].tobytes().decode("utf-8", "replace") for start, end in self._places[:count]]
        return PageBlocks(self._features[:count].copy(), [unescape(text) for text in texts])


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return _WORD.findall(text.lower())


def labels(texts: Sequence[str], truth: str) -> F64:
    """Return for each block the share of it that is in a text; NaN for a block without words.

    A block of fewer words than a shingle is in the text if it is one of its lines, or if it occurs in it and the
    nearest blocks that are certain are in it.
    """
    known = words(truth)
    shingles = {tuple(known[i : i + SHINGLE]) for i in range(len(known) - SHINGLE + 1)}
    lines, running = {" ".join(words(line)) for line in truth.split("\n")}, f" {' '.join(known)} "
    shares = list[float]()
    maybe = 0.6
    for text in texts:
        own = words(text)
        joined = " ".join(own)
        if not own:
            shares.append(np.nan)
        elif len(own) >= SHINGLE:
            hits = [tuple(own[i : i + SHINGLE]) in shingles for i in range(len(own) - SHINGLE + 1)]
            shares.append(sum(hits) / len(hits))
        else:
            occurs = len(joined) > 3 and f" {joined} " in running
            shares.append(1.0 if joined in lines else maybe if occurs else 0.0)
    result = list(shares)
    for i, share in enumerate(shares):
        if share == maybe:
            sides = shares[max(0, i - 5) : i][::-1], shares[i + 1 : i + 6]
            certain = [next((s for s in side if s != maybe and not np.isnan(s)), 0.0) for side in sides]
            result[i] = float(min(certain) >= 0.5)
    return np.array(result)


def covers(texts: Sequence[str], shares: F64, truth: str) -> bool:
    """Return True if the blocks that are in a text have most of its words, and the text is not tiny."""
    wanted = Counter(words(truth))
    kept = Counter(words("\n".join(text for text, share in zip(texts, shares, strict=True) if share >= 0.5)))
    return wanted.total() > MIN_WORDS and (wanted & kept).total() > COVERED * wanted.total()


def weights(texts: Sequence[str]) -> F64:
    """Return weights of blocks: more for long texts, less on pages with many blocks."""
    own = np.array([min(8.0, 0.3 + np.sqrt(len(text)) / 6) for text in texts])
    return np.asarray(own / max(1.0, (own.sum() / 60) ** 0.5))


class LabeledBlocks(NamedTuple):
    """Blocks to learn from: features [blocks, FEATURES], labels or their probabilities, weights, and the log-odds of
    the model that the trees are added to, if there is one."""

    features: F32
    truth: F64
    weight: F64
    start: F64 | None = None


def boosted(found: LabeledBlocks, trees: int, more: Mapping[str, Any], limits: tuple[float, float]) -> BlockModel:
    """Return a model of decision trees that LightGBM learns.

    Args:
        more: parameters of LightGBM in addition to `TREES`.
        limits: minimum log-odds on pages with an article, and on other pages.
    """
    import lightgbm

    data = lightgbm.Dataset(found.features, found.truth, weight=found.weight, init_score=found.start)
    booster = lightgbm.train({**TREES, **more}, data, num_boost_round=trees)
    return BlockModel(**_flat(booster.dump_model()["tree_info"]), article=limits[0], other=limits[1])


def _flat(trees: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return LightGBM's trees as arrays of `BlockModel`. A threshold becomes the largest float32 that is not above it,
    which compares with float32 features as the threshold does."""
    columns: dict[str, list[Any]] = {name: [] for name in BlockModel._fields[:6]}

    def add(node: Mapping[str, Any]) -> int:
        if "split_feature" not in node:
            columns["leaf"].append(node["leaf_value"])
            return ~(len(columns["leaf"]) - 1)
        near = np.float32(node["threshold"])
        limit = near if float(near) <= node["threshold"] else np.nextafter(near, np.float32(-np.inf))
        at = len(columns["feature"])
        for name, value in (("feature", node["split_feature"]), ("threshold", limit), ("left", 0), ("right", 0)):
            columns[name].append(value)
        for side in ("left", "right"):
            columns[side][at] = add(node[f"{side}_child"])
        return at

    columns["first"] = [add(tree["tree_structure"]) for tree in trees]
    kinds = {"feature": np.uint8, "threshold": np.float32, "leaf": np.float32}
    return {name: np.array(values, kinds.get(name, np.int32)) for name, values in columns.items()}


def joined(model: BlockModel, more: BlockModel) -> BlockModel:
    """Return the model with the trees of both. It has the limits of the first."""
    nodes, leaves = model.feature.size, model.leaf.size
    parts = {name: [getattr(model, name), getattr(more, name)] for name in BlockModel._fields[:6]}
    for name in ("first", "left", "right"):
        own = parts[name][1]
        parts[name][1] = np.where(own < 0, own - leaves, own + nodes).astype(np.int32)
    return BlockModel(**{k: np.concatenate(v) for k, v in parts.items()}, article=model.article, other=model.other)


def log_odds(model: BlockModel, features: F32) -> F64:
    """Return the sum of a model's leaves for blocks [blocks, FEATURES], as the engine computes it."""
    rows = np.arange(len(features))[:, None]
    node = np.broadcast_to(model.first, (len(features), model.first.size)).copy()
    while (inner := node >= 0).any():
        at = np.where(inner, node, 0)
        left = features[rows, model.feature[at]] <= model.threshold[at]
        node = np.where(inner, np.where(left, model.left[at], model.right[at]), node)
    return np.asarray(model.leaf[~node].sum(axis=1, dtype=np.float64))


def model_bytes(model: BlockModel) -> bytes:
    """Return the file of a model, as `read_model` reads it."""
    arrays = {name: getattr(model, name) for name in BlockModel._fields[:6]}
    file = io.BytesIO()
    np.savez_compressed(file, version=np.int64(VERSION), limits=np.array([model.article, model.other]), **arrays)
    return file.getvalue()
