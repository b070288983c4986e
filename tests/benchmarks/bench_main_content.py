"""Main content: precision, recall and F1 of the engines on public benchmarks; MB of HTML per CPU second, in one run.

    python tests/benchmarks/bench_main_content.py [--strings DIR] [--articles DIR] [--types DIR] [ENGINE ...]

    --strings    `tests` of github.com/adbar/trafilatura: 990 pages with strings that must and must not be in the text
    --articles   github.com/scrapinghub/article-extraction-benchmark: 181 news articles; F1 of four-word shingles
    --types      github.com/Murrough-Foley/web-content-extraction-benchmark (CC BY 4.0): 511 pages of its split `test`,
                 by type; F1 of words. The default model of `blocks` was learned on its split `dev`

The benchmarks are not part of this repository: clone them. Engines run as in the worker, in this process.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from plinth.corpus.extract.worker import engine
from plinth.corpus.sources.codings import decode

ENGINES = ("blocks", "blocks+trafilatura", "resiliparse", "trafilatura")
WORD = re.compile(r"\w+")
Extract = Callable[[bytes], str]


def squeezed(text: str) -> str:
    return " ".join(text.split())


def f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def strings(folder: Path, extract: Extract) -> dict[str, float]:
    """Return micro averages over the strings of all pages, as the benchmark's own evaluation defines them."""
    hits = intruders = wanted = 0
    for item in json.loads((folder / "evaldata.json").read_text()).values():
        path = next(p for where in ("cache", "eval") if (p := folder / where / item["file"]).exists())
        text = squeezed(extract(path.read_bytes()))
        hits += sum(squeezed(string) in text for string in item["with"])
        intruders += sum(squeezed(string) in text for string in item["without"])
        wanted += len(item["with"])
    precision, recall = hits / (hits + intruders), hits / wanted
    return {"precision": precision, "recall": recall, "f1": f1(precision, recall)}


def articles(folder: Path, extract: Extract) -> dict[str, float]:
    """Return the benchmark's own macro averages of precision and recall over shingles of four words."""
    sys.path.insert(0, str(folder))
    import evaluate

    truth = json.loads((folder / "ground-truth.json").read_text())
    found = [
        evaluate.string_shingle_matching(
            true=item.get("articleBody", ""),
            pred=extract(gzip.decompress((folder / "html" / f"{name}.html.gz").read_bytes())),
        )
        for name, item in truth.items()
    ]
    return dict(evaluate.metrics_from_tp_fp_fns(found))


def types(folder: Path, extract: Extract) -> dict[str, float]:
    """Return the mean F1 of words over all pages of the split `test`, and by type of page."""
    by_type: dict[str, list[float]] = {}
    for name, facts in json.loads((folder / "metadata.json").read_text())["files"].items():
        if facts["split"] != "test":
            continue
        truth = json.loads((folder / "test" / "ground-truth" / f"{name}.json").read_text())["ground_truth"]
        wanted = Counter(WORD.findall((truth.get("main_content") or "").lower()))
        text = extract(gzip.decompress((folder / "test" / "html" / f"{name}.html.gz").read_bytes()))
        given = Counter(WORD.findall(text.lower()))
        both, total = (wanted & given).total(), wanted.total() + given.total()
        by_type.setdefault(facts["page_type"], []).append(2 * both / total if total else 1.0)
    means = {name: statistics.fmean(values) for name, values in sorted(by_type.items())}
    return {"f1": statistics.fmean(value for values in by_type.values() for value in values)} | means


class Timed:
    """An engine with the CPU time and the bytes of the pages that it read."""

    def __init__(self, name: str) -> None:
        self.extract, self.seconds, self.bytes = engine(name), 0.0, 0
        self.extract("<p>The first page loads tables and compiles patterns.</p>")

    def __call__(self, page: bytes) -> str:
        html = decode(page, "", html=True)
        begun = time.process_time()
        text = self.extract(html)[0]
        self.seconds += time.process_time() - begun
        self.bytes += len(page)
        return text


def measured(arguments: argparse.Namespace) -> Iterator[tuple[str, str, dict[str, float]]]:
    for name in arguments.engines or ENGINES:
        for kind, measure in (("strings", strings), ("articles", articles), ("types", types)):
            folder = getattr(arguments, kind)
            if folder is not None:
                extract = Timed(name)
                values = measure(folder.resolve(), extract)
                yield kind, name, values | {"MB/s": extract.bytes / 1e6 / extract.seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for kind in ("strings", "articles", "types"):
        parser.add_argument(f"--{kind}", type=Path)
    parser.add_argument("engines", nargs="*", metavar="ENGINE")
    for kind, name, values in measured(parser.parse_args()):
        print(f"{kind:<9}{name:<19}" + "  ".join(f"{key} {value:.3f}" for key, value in values.items()), flush=True)


if __name__ == "__main__":
    main()
