"""Annotators per core: Gopher, FineWeb and C4 scores compared with datatrove's filters on the same real documents.

The four are timed one by one and all in one pass over the documents, batch by batch as the stage hands them out. The
ratio takes the peer's three in one pass, as the stage runs them: words are split once. One thread. datatrove is
measured as released (its English word splitter is spaCy's) and, for comparison, with words split at white space, each
compared with ours on the same words. It stops at the first rule that drops a document; we always compute every score.
An even sample of the documents is enough for it. MB are of UTF-8 text, seconds are of CPU time.

    python tests/benchmarks/bench_annotate.py [--megabytes 20] [--peer-megabytes 1]
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(name, "1")

import pyarrow as pa  # noqa: E402
from bench_minhash import megabytes, real_documents  # noqa: E402
from cpu import best  # noqa: E402

from plinth.corpus.annotate.base import ANNOTATORS  # noqa: E402
from plinth.corpus.annotate.external import BATCH_ROWS  # noqa: E402
from plinth.corpus.annotate.stage import slices  # noqa: E402
from plinth_text.shared import forget  # noqa: E402

SCORES = ("gopher_quality", "gopher_repetition", "fineweb", "c4")
MEASURED = (*SCORES, "language", "licence", "pii")
FILTERS = {
    "gopher_quality": ("gopher_quality_filter", "GopherQualityFilter"),
    "gopher_repetition": ("gopher_repetition_filter", "GopherRepetitionFilter"),
    "fineweb": ("fineweb_quality_filter", "FineWebQualityFilter"),
    "c4": ("c4_filters", "C4QualityFilter"),
}
REQUIRED_MB_PER_S, REQUIRED_RATIO = 60, 150
PEER_SCORES = ("gopher_quality", "gopher_repetition", "fineweb")  # the ratio leaves C4 out
REPEATS = 3
RESULTS = Path(__file__).parent / "results" / "annotate.json"


def ours(texts: Sequence[str], profile: str | None = None) -> dict[str, float]:
    """Seconds by annotator, and of some scores in one pass, in batches as the stage hands them out."""
    columns = {"text": pa.array(texts, pa.large_string()), "licence": pa.array(["MIT"] * len(texts))}
    whole = pa.Table.from_pydict(columns).to_batches(max_chunksize=BATCH_ROWS)
    batches = [some for batch in whole for some in slices(batch)]

    def params(name: str) -> Any:
        chosen = ANNOTATORS[name]
        given = chosen.params(**({"profile": profile} if profile and name in SCORES else {}))
        return chosen.prepare(given, {}) if chosen.prepare else given

    names = SCORES if profile else MEASURED
    prepared = {name: params(name) for name in names}

    def work(names: Sequence[str]) -> None:
        forget()  # words are split again for each annotator alone, once for all in one pass
        for batch in batches:
            for name in names:
                ANNOTATORS[name].annotate(batch, prepared[name])

    for name in names:
        ANNOTATORS[name].annotate(batches[0].slice(0, 2), prepared[name])  # compiles, or loads the model
    seconds = {name: best(lambda name=name: work([name])) for name in names}
    return {**seconds, "scores": best(lambda: work(SCORES)), "peer's scores": best(lambda: work(PEER_SCORES))}


def datatrove(texts: Sequence[str], own_words: bool) -> dict[str, float]:
    """Seconds by filter."""
    from importlib import import_module

    from datatrove.data import Document

    seconds = {}
    for name, (module_name, class_name) in FILTERS.items():
        module = import_module(f"datatrove.pipeline.filters.{module_name}")
        if not own_words and name == "c4":
            ends = re.compile(r"[.!?]+[\"')]*(?=[ \t]|\Z)")
            module.split_into_sentences = lambda text, language, ends=ends: ends.split(text)
        elif not own_words:
            module.split_into_words = lambda text, language: text.split()
        made = getattr(module, class_name)()
        made.filter(Document(text=texts[0], id="0"))

        def work(made: Any = made) -> None:
            for text in texts:
                made.filter(Document(text=text, id="0"))

        seconds[name] = best(work, 1 if own_words else REPEATS)
    return seconds


def rows(size: float, seconds: dict[str, float], label: str) -> dict[str, float]:
    """MB/s by name, printed."""
    speeds = {name: size / value for name, value in seconds.items()}
    for name, speed in speeds.items():
        print(f"{label:<24}{name:<20}{speed:10.2f} MB/s")
    return speeds


def together(size: float, seconds: dict[str, float], names: Sequence[str]) -> float:
    return size / sum(seconds[name] for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--peer-megabytes", type=float, default=1.0)
    options = parser.parse_args()
    texts = [text for text in real_documents(options.megabytes) if text.strip()]
    size = megabytes(texts)
    sample = texts[:: max(1, int(size / options.peer_megabytes))]
    small = megabytes(sample)
    print(f"{len(texts)} documents, {size:.1f} MB; datatrove on {len(sample)} of them, {small:.1f} MB")
    seconds = ours(texts)
    result: dict[str, Any] = {"documents": len(texts), "megabytes": size, "plinth": rows(size, seconds, "plinth")}
    plain = ours(texts, "white-space")
    result["plinth, plain words"] = rows(size, plain, "plinth, plain words")
    print(f"\nall four scores in one pass: {size / seconds['scores']:.1f} MB/s", end="")
    print(f", at white space {size / plain['scores']:.1f} MB/s (required: {REQUIRED_MB_PER_S})\n")
    result |= {"scores": size / seconds["scores"], "times_faster": {}, "load_average": os.getloadavg()[0]}
    for label, own_words in {"datatrove": True, "datatrove, plain words": False}.items():
        theirs = datatrove(sample, own_words)
        result[label] = rows(small, theirs, label)
        total = together(small, theirs, PEER_SCORES)
        own = seconds if own_words else plain
        mine, apart = size / own["peer's scores"], together(size, own, PEER_SCORES)
        result["times_faster"][label] = mine / total
        result["times_faster"][f"{label}, one by one"] = apart / total
        print(f"Gopher, repetition, FineWeb: {total:.2f} MB/s, plinth {mine:.1f}: {mine / total:.0f} times faster")
        print(f"one by one: plinth {apart:.1f} MB/s: {apart / total:.0f} times faster")
    print(f"required: {REQUIRED_RATIO} times datatrove {version('datatrove')} as released")
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
