"""Learn the default model of the extraction engine `blocks`.

    pip install lightgbm==4.7.0
    python tests/benchmarks/learn_blocks.py WCXB EXCLUDED.txt MODEL.npz

WCXB is a clone of github.com/Murrough-Foley/web-content-extraction-benchmark (CC BY 4.0): the split `dev` is learned,
with its text written by people. EXCLUDED.txt lists domains that are left out: those of the benchmarks on which the
model is measured. Each block counts twice, once with the label of the written text and once with that of Trafilatura,
the slow engine, where the two agree on the page; this teaches the model what both leave out of articles.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from plinth.corpus.extract.content.engine import FEATURES, VERSION, page_blocks
from plinth.corpus.sources.codings import decode

WORD = re.compile(r"\w+")
#: Words of the shingles by which a block is found in a text.
SHINGLE = 4
#: F1 of words from which Trafilatura's text of a page is taken for a second opinion.
AGREEMENT = 0.75
#: Share of the written text that the blocks of a page must cover to be learned from.
COVERED = 0.7
#: Blocks of a page that are learned from, on average at most.
PAGE_BLOCKS = 300
TREES = {
    "n_estimators": 500, "learning_rate": 0.06, "num_leaves": 47, "min_child_samples": 40, "reg_lambda": 2.0,
    "colsample_bytree": 0.3, "subsample": 0.6, "subsample_freq": 1, "max_bin": 127, "n_jobs": 1, "random_state": 0,
    "deterministic": True, "force_row_wise": True, "verbose": -1,
}  # fmt: skip
#: Minimum log-odds on pages with an article and on others: probabilities of 0.7 and 0.35.
LIMITS = (float(np.log(0.7 / 0.3)), float(np.log(0.35 / 0.65)))


class LabeledPage(NamedTuple):
    """Features of a page's blocks [blocks, FEATURES], their texts, and the labels of people and of Trafilatura."""

    features: npt.NDArray[np.float32]
    texts: list[str]
    written: npt.NDArray[np.float64]
    taught: npt.NDArray[np.float64]


def words(text: str) -> list[str]:
    return WORD.findall(text.lower())


def labels(texts: Sequence[str], truth: str) -> npt.NDArray[np.float64]:
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


def agreement(text: str, truth: str) -> float:
    """Return the F1 of the words of two texts."""
    a, b = Counter(words(text)), Counter(words(truth))
    return 2 * (a & b).total() / (a.total() + b.total()) if a or b else 1.0


def domain(url: str) -> str:
    """Return the registered domain of a URL, by the few public suffixes of two parts that matter here."""
    host = urlsplit(url).netloc.lower().split(":")[0].split(".")
    return ".".join(host[-3 if host[-2:] in (["co", "uk"], ["com", "au"]) else -2 :])


def pages(folder: Path, excluded: set[str]) -> Iterator[LabeledPage]:
    """Yield the pages to learn from."""
    from trafilatura import extract

    features, places = np.empty((40_000, FEATURES), np.float32), np.empty((40_000, 2), np.int64)
    buffer = np.empty(48 << 20, np.uint8)
    for name, facts in json.loads((folder / "metadata.json").read_text())["files"].items():
        if facts["split"] != "dev":
            continue
        truth = json.loads((folder / "dev" / "ground-truth" / f"{name}.json").read_text())
        if domain(truth["url"]) in excluded:
            continue
        html = decode(gzip.decompress((folder / "dev" / "html" / f"{name}.html.gz").read_bytes()), "", html=True)
        count = page_blocks(np.frombuffer(html.encode("utf-8", "replace"), np.uint8), features, places, buffer)
        texts = [unescape(buffer[a:b].tobytes().decode("utf-8", "replace")) for a, b in places[: max(count, 0)]]
        main = truth["ground_truth"].get("main_content") or ""
        written = labels(texts, main)
        wanted = Counter(words(main))
        kept = Counter(words("\n".join(text for text, share in zip(texts, written, strict=True) if share >= 0.5)))
        if wanted.total() <= 20 or (wanted & kept).total() <= COVERED * wanted.total():
            continue
        second = extract(html, favor_precision=True, include_comments=False) or ""
        taught = labels(texts, second) if agreement(second, main) >= AGREEMENT else written
        yield LabeledPage(features[:count].copy(), texts, written, taught)


def weights(texts: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return weights of blocks: more for long texts, less on pages with many blocks."""
    own = np.array([min(8.0, 0.3 + np.sqrt(len(text)) / 6) for text in texts])
    return own / max(1.0, (own.sum() / 60) ** 0.5)


def learn(found: Sequence[LabeledPage]) -> Any:
    """Return LightGBM's model of the pages."""
    import lightgbm

    draw = np.random.RandomState(0)
    chosen = np.concatenate([draw.rand(len(p.texts)) < min(1.0, PAGE_BLOCKS / len(p.texts)) for p in found])
    written = np.concatenate([p.written for p in found])
    chosen &= ~np.isnan(written)
    features = np.concatenate([p.features for p in found])[chosen]
    taught = np.nan_to_num(np.concatenate([p.taught for p in found]))[chosen]
    weight = np.concatenate([weights(p.texts) for p in found])[chosen] / 2
    truth = np.concatenate([written[chosen] >= 0.5, taught >= 0.5]).astype(int)
    model = lightgbm.LGBMClassifier(**TREES)
    return model.fit(np.concatenate([features] * 2), truth, sample_weight=np.concatenate([weight] * 2)).booster_


def flat(booster: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the trees as arrays of `BlockModel`. A threshold becomes the largest float32 that is not above it, which
    compares with float32 features as the threshold does."""
    columns: dict[str, list[Any]] = {name: [] for name in ("first", "left", "right", "feature", "threshold", "leaf")}

    def add(node: dict[str, Any]) -> int:
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

    columns["first"] = [add(tree["tree_structure"]) for tree in booster.dump_model()["tree_info"]]
    kinds = {"feature": np.uint8, "threshold": np.float32, "leaf": np.float32}
    return {name: np.array(values, kinds.get(name, np.int32)) for name, values in columns.items()}


def main() -> None:
    folder, excluded, target = map(Path, sys.argv[1:])
    found = list(pages(folder, set(excluded.read_text().split())))
    print(f"{len(found)} pages, {sum(len(p.texts) for p in found):,} blocks")
    np.savez_compressed(target, version=np.int64(VERSION), limits=np.array(LIMITS), **flat(learn(found)))


if __name__ == "__main__":
    main()
