"""Compare FineWeb-2's filters and datatrove's splitters, as released, with `fineweb2` on prose of this machine by
language.

git clone https://github.com/huggingface/fineweb-2
python tests/benchmarks/bench_languages.py fineweb-2 ru de zh

jieba, SudachiPy with sudachidict-core, PyThaiNLP and indic-nlp-library are needed for zh, ja, th and Indian languages.
Kept shares are those of `fineweb/languages`, and of FineWeb's rules for English alone. Writes results/languages.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from plinth.corpus.annotate.base import annotator
from plinth.corpus.annotate.rules import fineweb
from plinth.corpus.annotate.rules.fineweb import published
from plinth.corpus.policy.compiled_policy import columns_of
from plinth.corpus.policy.expressions import parse
from plinth.corpus.policy.profiles import profile
from tests.agreement.languages import documents

RESULTS = Path(__file__).parent / "results" / "languages.json"
LANGUAGES = (
    "zh", "ja", "th", "ko", "ar", "he", "fa", "hi", "bn", "ta", "te", "ka", "ru", "uk", "el", "de", "fr", "vi", "km",
    "my",
)  # fmt: skip
#: Those whose splitter in datatrove needs no download.
PEERS = ("zh", "ja", "th", "ar", "he", "fa", "hi", "bn", "ta", "te", "ru", "uk", "el", "de", "fr")


def main(checkout: Path, languages: list[str]) -> None:
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for language in languages or LANGUAGES:
        texts = documents(language)
        batch, columns = scored(language, texts)
        new, old = kept("fineweb/languages", columns, len(texts)), kept("fineweb/pipeline", columns, len(texts))
        started = time.process_time()
        fineweb.annotate_fineweb2(batch, fineweb.PreparedLimits({}))
        spent = time.process_time() - started
        megabytes = sum(len(text.encode()) for text in texts) / 1e6
        row: dict[str, Any] = {
            "documents": len(texts),
            "megabytes": round(megabytes, 2),
            "named_rightly": round(columns["language.label"].to_pylist().count(language) / max(1, len(texts)), 3),
            "kept_by_english_rules": round(float(old.mean()), 3),
            "kept": round(float(new.mean()), 3),
            "mb_per_second": round(megabytes / spent, 1),
        }
        if language in PEERS:
            row |= compared(checkout, language, texts, batch, megabytes)
        found[language] = row
        print(language, json.dumps(row), flush=True)
    RESULTS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def scored(language: str, texts: list[str]) -> tuple[pa.RecordBatch, dict[str, pa.Array]]:
    """Columns of all annotators of the profile; labels are the model's, but for `fineweb2` alone the true ones."""
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    columns: dict[str, pa.Array] = {}
    for name, params in {"language": {}, **profile("fineweb/languages").annotators}.items():
        chosen = annotator(name)
        given = chosen.params(**params)
        prepared = chosen.prepare(given, {}) if chosen.prepare else given
        read = batch
        for column in chosen.after:
            read = read.append_column(column, columns[column])
        made = chosen.annotate(read, prepared)
        columns |= {f"{name}.{column}": made.column(column) for column in made.schema.names}
    return batch.append_column(fineweb.LABEL, pa.array([language] * len(texts))), columns


def kept(name: str, columns: dict[str, pa.Array], rows: int) -> Any:
    """Where no rule of the profile fires."""
    chosen = profile(name)
    types = columns_of((*chosen.annotators, "language"))
    fires = [parse(drop, types, reason).evaluate(columns, rows) for reason, drop in chosen.rules]
    return ~np.any(fires, axis=0)


def compared(
    checkout: Path, language: str, texts: list[str], batch: pa.RecordBatch, megabytes: float
) -> dict[str, Any]:
    """Verdicts of FineWeb-2's rules by the same label on both sides."""
    judge = peer(checkout, published()[language].name)
    started = time.process_time()
    theirs = np.array([judge(text) for text in texts])
    spent = time.process_time() - started
    made = fineweb.annotate_fineweb2(batch, fineweb.PreparedLimits({}))
    columns = {f"fineweb2.{name}": made.column(name) for name in made.schema.names}
    rules = [(reason, drop) for reason, drop in profile("fineweb2/scripts").rules]
    types = columns_of(("fineweb2",))
    fires = {reason: parse(drop, types, reason).evaluate(columns, len(texts)) for reason, drop in rules}
    mine = ~np.any(list(fires.values()), axis=0)
    apart = mine != (theirs == "keep")
    reasons: dict[str, int] = {}
    for row in np.flatnonzero(apart):
        own = next((reason for reason, one in fires.items() if one[row]), "keep")
        reasons[f"{own} / {theirs[row]}"] = reasons.get(f"{own} / {theirs[row]}", 0) + 1
    return {
        "verdicts": round(float((~apart).mean()), 4),
        "kept_by_datatrove": round(float((theirs == "keep").mean()), 3),
        "datatrove_mb_per_second": round(megabytes / spent, 2),
        "apart": dict(sorted(reasons.items(), key=lambda item: -item[1])[:6]),
    }


def peer(checkout: Path, name: str) -> Callable[[str], str]:
    """The three filters of fineweb-2-pipeline.py in its order; the reason of the first that drops, or `keep`."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter

    shown = subprocess.run(
        ["git", "-C", str(checkout), "show", f"HEAD:configs/{name}.yml"], capture_output=True, check=True, text=True
    )
    given = yaml.safe_load(shown.stdout)
    filters = (
        GopherRepetitionFilter(
            language=name, dup_para_frac=0, dup_line_char_frac=0, dup_para_char_frac=0,
            dup_line_frac=given["dup_line_frac"], top_n_grams=given["top_n_grams"], dup_n_grams=given["dup_n_grams"],
        ),
        FineWebQualityFilter(
            language=name, short_line_thr=999, char_duplicates_ratio=0.1, line_punct_thr=given["line_punct_thr"],
            new_line_ratio=given["new_line_ratio"],
        ),
        GopherQualityFilter(
            language=name, max_avg_word_length=given["max_avg_word_length"],
            min_avg_word_length=given["min_avg_word_length"], stop_words=given["stopwords"],
            max_non_alpha_words_ratio=given["max_non_alpha_words_ratio"], min_stop_words=2,
        ),
    )  # fmt: skip

    def judge(text: str) -> str:
        for one in filters:
            verdict = one.filter(Document(text=text, id="0"))
            if verdict is not True:
                return str(verdict[1])
        return "keep"

    return judge


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
