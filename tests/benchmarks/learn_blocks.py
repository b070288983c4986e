"""Learn the default model of the extraction engine `blocks`.

    pip install 'plinth[extraction]'
    python tests/benchmarks/learn_blocks.py WCXB EXCLUDED.txt MODEL.npz

WCXB is a clone of github.com/Murrough-Foley/web-content-extraction-benchmark (CC BY 4.0): the split `dev` is learned,
with its text written by people. EXCLUDED.txt lists domains that are left out: those of the benchmarks on which the
model is measured. Each block counts twice, once with the label of the written text and once with that of Trafilatura,
the slow engine, where the two agree on the page; this teaches the model what both leave out of articles.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from plinth.corpus.extract.content.engine import BlockModel
from plinth.corpus.extract.content.learner import (
    BlockReader,
    LabeledBlocks,
    PageBlocks,
    boosted,
    covers,
    labels,
    model_bytes,
    weights,
)
from plinth.corpus.extract.fallback import agreement
from plinth.corpus.sources.codings import decode
from plinth_text.arrays import F64

#: F1 of words from which Trafilatura's text of a page is taken for a second opinion.
AGREEMENT = 0.75
#: Blocks of a page that are learned from, on average at most.
PAGE_BLOCKS = 300
TREES = 500
PARAMETERS = {"objective": "binary", "learning_rate": 0.06, "num_leaves": 47, "min_child_samples": 40}
#: Minimum log-odds on pages with an article and on others: probabilities of 0.7 and 0.35.
LIMITS = (float(np.log(0.7 / 0.3)), float(np.log(0.35 / 0.65)))


class LabeledPage(NamedTuple):
    """Blocks of a page with the labels of people and of Trafilatura."""

    url: str
    blocks: PageBlocks
    written: F64
    taught: F64


def domain(url: str) -> str:
    """Return the registered domain of a URL, by the few public suffixes of two parts that matter here."""
    host = urlsplit(url).netloc.lower().split(":")[0].split(".")
    return ".".join(host[-3 if host[-2:] in (["co", "uk"], ["com", "au"]) else -2 :])


def pages(folder: Path, excluded: set[str]) -> Iterator[LabeledPage]:
    """Yield the pages to learn from."""
    from trafilatura import extract

    read = BlockReader()
    for name, facts in json.loads((folder / "metadata.json").read_text())["files"].items():
        if facts["split"] != "dev":
            continue
        truth = json.loads((folder / "dev" / "ground-truth" / f"{name}.json").read_text())
        if domain(truth["url"]) in excluded:
            continue
        html = decode(gzip.decompress((folder / "dev" / "html" / f"{name}.html.gz").read_bytes()), "", html=True)
        blocks, main = read(html), truth["ground_truth"].get("main_content") or ""
        written = labels(blocks.texts, main)
        if not covers(blocks.texts, written, main):
            continue
        second = extract(html, favor_precision=True, include_comments=False) or ""
        taught = labels(blocks.texts, second) if agreement(second, main) >= AGREEMENT else written
        yield LabeledPage(truth["url"], blocks, written, taught)


def learn(found: Sequence[LabeledPage]) -> BlockModel:
    """Return the model of the pages."""
    draw = np.random.RandomState(0)
    sizes = [len(page.blocks.texts) for page in found]
    chosen = np.concatenate([draw.rand(size) < min(1.0, PAGE_BLOCKS / size) for size in sizes])
    written = np.concatenate([page.written for page in found])
    chosen &= ~np.isnan(written)
    features = np.concatenate([page.blocks.features for page in found])[chosen]
    taught = np.nan_to_num(np.concatenate([page.taught for page in found]))[chosen]
    weight = np.concatenate([weights(page.blocks.texts) for page in found])[chosen] / 2
    truth = np.concatenate([written[chosen] >= 0.5, taught >= 0.5]).astype(float)
    twice = LabeledBlocks(np.concatenate([features] * 2), truth, np.concatenate([weight] * 2))
    return boosted(twice, TREES, PARAMETERS, LIMITS)


def main() -> None:
    folder, excluded, target = map(Path, sys.argv[1:])
    found = list(pages(folder, set(excluded.read_text().split())))
    print(f"{len(found)} pages, {sum(len(page.written) for page in found):,} blocks")
    target.write_bytes(model_bytes(learn(found)))


if __name__ == "__main__":
    main()
