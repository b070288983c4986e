"""Verdicts reached from our columns and by datatrove's own filters, with its default thresholds, on real documents.

As released: datatrove splits words and sentences by itself (spaCy, blank English), and nothing is replaced. At white
space: its splitters are replaced by ours for the profile `white-space`, so that the counts of that are compared too.
"""

import importlib.util
import re
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from plinth.corpus.annotate.base import ANNOTATORS
from plinth_text.rules import c4
from tests.agreement.profiles import verdicts
from tests.agreement.released import judged

pytestmark = pytest.mark.skipif(importlib.util.find_spec("datatrove") is None, reason="a peer of the benchmarks")

Row = dict[str, Any]
#: datatrove's reasons in its order, by what our columns say.
RULES: dict[str, dict[str, Callable[[Row], bool]]] = {
    "gopher_quality": {
        "gopher_short_doc": lambda row: row["word_count"] < 50,
        "gopher_long_doc": lambda row: row["word_count"] > 100_000,
        "gopher_below_avg_threshold": lambda row: row["mean_word_characters"] < 3,
        "gopher_above_avg_threshold": lambda row: row["mean_word_characters"] > 10,
        "gopher_too_many_hashes": lambda row: row["hash_ratio"] > 0.1,
        "gopher_too_many_ellipsis": lambda row: row["ellipsis_ratio"] > 0.1,
        "gopher_too_many_bullets": lambda row: row["bullet_lines"] > 0.9,
        "gopher_too_many_end_ellipsis": lambda row: row["ellipsis_lines"] > 0.3,
        "gopher_below_alpha_threshold": lambda row: row["letter_words"] < 0.8,
        "gopher_enough_stop_words": lambda row: row["stop_words"] < 2,
    },
    "gopher_repetition": {
        "dup_para_frac": lambda row: row["duplicate_paragraphs"] > 0.3,
        "dup_para_char_frac": lambda row: row["duplicate_paragraph_characters"] > 0.2,
        "dup_line_frac": lambda row: row["duplicate_lines"] > 0.3,
        "dup_line_char_frac": lambda row: row["duplicate_line_characters"] > 0.2,
        "top_2_gram": lambda row: row["top_2_gram"] > 0.2,
        "top_3_gram": lambda row: row["top_3_gram"] > 0.18,
        "top_4_gram": lambda row: row["top_4_gram"] > 0.16,
        "duplicated_5_n_grams": lambda row: row["duplicate_5_grams"] > 0.15,
        "duplicated_6_n_grams": lambda row: row["duplicate_6_grams"] > 0.14,
        "duplicated_7_n_grams": lambda row: row["duplicate_7_grams"] > 0.13,
        "duplicated_8_n_grams": lambda row: row["duplicate_8_grams"] > 0.12,
        "duplicated_9_n_grams": lambda row: row["duplicate_9_grams"] > 0.11,
        "duplicated_10_n_grams": lambda row: row["duplicate_10_grams"] > 0.10,
    },
    "fineweb": {
        "line_punct_ratio": lambda row: row["ended_lines"] < 0.12,
        "short_line_ratio": lambda row: row["short_lines"] > 0.67,
        "char_dup_ratio": lambda row: row["duplicate_characters"] > 0.01,
        "list_ratio": lambda row: row["newlines_per_word"] > 0.3,
    },
    "c4": {
        # datatrove stops at the line that holds it; our columns do not say which of the two came first
        "stopped": lambda row: row["lorem_ipsum_lines"] > 0 or row["curly_bracket_lines"] > 0,
        "too_few_sentences": lambda row: row["sentences"] < 5,
    },
}
STOPPED = ("lorem_ipsum", "curly_bracket")


def documents(most: int, size: int = 30_000) -> list[str]:
    """Sources of the standard library, and descriptions and notes of installed packages."""
    texts = []
    for root, pattern in (
        ("stdlib", "*.py"),
        ("purelib", "*/METADATA"),
        ("purelib", "*/licenses/**/*"),
        ("purelib", "*/*.md"),
    ):
        folder = Path(sysconfig.get_path(root))
        paths = sorted(path for path in folder.glob(pattern) if path.is_file())[: most // 2]
        texts += [path.read_bytes()[:size].decode("utf-8", "replace") for path in paths]
    # docstrings, which are the only prose among sources
    prose = [
        found
        for text in texts[: most // 2]
        for found in re.findall(r'"""(.+?)"""', text, re.DOTALL)
        if len(found) > 300
    ]
    return [text for text in [*texts, *prose] if text.strip()][: 4 * most]


def sentences(line: str, language: str | None = None) -> list[str]:
    pieces = re.split(r"[.!?]+[\"')]*(?=[ \t]|\Z)", line)
    full = [piece for piece in pieces if any(c > " " for c in re.sub(r"[.!?]+[\"')]*", "", piece))]
    return full or [line]


def modules() -> dict[str, ModuleType]:
    from datatrove.pipeline.filters import (
        c4_filters,
        fineweb_quality_filter,
        gopher_quality_filter,
        gopher_repetition_filter,
    )

    return {
        "gopher_quality": gopher_quality_filter,
        "gopher_repetition": gopher_repetition_filter,
        "fineweb": fineweb_quality_filter,
        "c4": c4_filters,
    }


CLASSES = {
    "gopher_quality": "GopherQualityFilter",
    "gopher_repetition": "GopherRepetitionFilter",
    "fineweb": "FineWebQualityFilter",
    "c4": "C4QualityFilter",
}


def theirs(name: str, texts: list[str], **params: Any) -> list[str]:
    """datatrove's reason for each text, `keep` where it has none."""
    from datatrove.data import Document

    made = getattr(modules()[name], CLASSES[name])(**params)
    reasons = []
    for text in texts:
        verdict = made.filter(Document(text=text, id="0"))
        reason = "keep" if verdict is True else verdict[1]
        reasons.append("stopped" if reason in STOPPED else reason)
    return reasons


def ours(name: str, texts: list[str], **params: Any) -> list[str]:
    chosen = ANNOTATORS[name]
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    rows = chosen.annotate(batch, chosen.params(**params)).to_pylist()
    return [next((reason for reason, fires in RULES[name].items() if fires(row)), "keep") for row in rows]


def agreement(name: str, texts: list[str], peer: dict[str, Any] | None = None, **params: Any) -> tuple[float, float]:
    """Share of texts with the same verdict, and with the same reason."""
    pairs = list(zip(ours(name, texts, **params), theirs(name, texts, **(peer or {})), strict=True))
    verdicts = sum((one == "keep") == (other == "keep") for one, other in pairs)
    return verdicts / len(pairs), sum(one == other for one, other in pairs) / len(pairs)


@pytest.fixture
def same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in modules().items():
        if name == "c4":
            monkeypatch.setattr(module, "split_into_sentences", sentences)
        else:
            monkeypatch.setattr(module, "split_into_words", lambda text, language: text.split())


@pytest.fixture(scope="module")
def texts() -> list[str]:
    found = documents(200)
    assert len(found) > 400
    return found


@pytest.mark.parametrize("name", sorted(RULES))
def test_verdicts_and_reasons_agree_at_white_space(name: str, texts: list[str], same_words: None) -> None:
    reasons = set(ours(name, texts, profile="white-space"))
    assert len(reasons) > 2, "documents that are all judged alike prove nothing"
    assert agreement(name, texts, profile="white-space") == (1.0, 1.0)


@pytest.mark.parametrize("name", sorted(RULES))
def test_verdicts_and_reasons_agree_as_released(name: str, texts: list[str]) -> None:
    some = [text[:3000] for text in texts[::3]]
    assert len(set(ours(name, some))) > 2, "documents that are all judged alike prove nothing"
    assert agreement(name, some) == (1.0, 1.0)


@pytest.mark.exhaustive
def test_fineweb_s_order_agrees_as_released(texts: list[str]) -> None:
    """The last filter counts what C4 leaves, and that is another text for many documents."""
    some = [text[:3000] for text in texts[::3]]
    other = judged(some)["fineweb/pipeline"]
    mine = [reason for reason, _ in verdicts("fineweb/pipeline", some)]
    assert [one == "keep" for one in mine] == [one == "keep" for one in other]
    assert 3 < sum(one == "keep" for one in mine) < len(some)


@pytest.mark.parametrize("params", [{}, {"filter_no_terminal_punct": False}])
def test_the_lines_that_c4_leaves_are_datatrove_s(texts: list[str], params: dict[str, bool]) -> None:
    from datatrove.data import Document
    from datatrove.pipeline.filters import C4QualityFilter

    chosen = C4QualityFilter(**params, min_num_sentences=-1)
    lines = c4.Lines(3, 1000, params.get("filter_no_terminal_punct", True))
    data, starts, _ = c4.pages(pa.array(texts, pa.large_string()), lines).kept
    checked = 0
    for text, start, end in zip(texts, starts[:-1], starts[1:], strict=True):
        document = Document(text=text, id="0")
        if chosen.filter(document) is True:
            assert data[start:end].tobytes().decode() == document.text
            checked += 1
    assert checked > 100


def test_c4_without_terminal_punctuation_agrees(texts: list[str], same_words: None) -> None:
    peer = {"filter_no_terminal_punct": False, "min_words_per_line": 5, "max_word_length": 60}
    mine = {"profile": "white-space", "terminal_punctuation": False, "min_words_per_line": 5, "max_word_characters": 60}
    assert agreement("c4", texts, peer, **mine) == (1.0, 1.0)
