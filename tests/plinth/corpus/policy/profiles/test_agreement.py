"""Compare profiles with slow references of their projects' definitions, on real documents of this machine.

The projects themselves are run by tests/agreement/compare.py, whose result test_profiles.py reads; here the verdicts
are reached again wherever the tests run, from definitions in plain Python, and from datatrove, which is installed.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from plinth.corpus.policy.profiles import PROFILES
from tests.agreement import lines, peer, words
from tests.agreement.compare import compared
from tests.agreement.profiles import real_documents, verdicts

TOP, REPEATED = {2: 0.20, 3: 0.18, 4: 0.16}, {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}


def repeats(row: dict[str, float]) -> bool:
    """Gopher's rules of n-grams."""
    return any(row[f"top_{n}_gram"] > most for n, most in TOP.items()) or any(
        row[f"duplicate_{n}_grams"] > most for n, most in REPEATED.items()
    )


def gopher_dolma(text: str) -> bool:
    row = words.gopher_dolma(text)
    return (
        50 <= row["word_count"] <= 100_000
        and 3 <= row["median_word_characters"] <= 10
        and row["symbol_words"] <= 0.1
        and row["letter_words"] >= 0.8
        and row["stop_words"] >= 2
        and row["bullet_lines"] <= 0.9
        and row["ellipsis_lines"] <= 0.3
        and row["duplicate_lines"] <= 0.3
        and row["duplicate_line_characters"] <= 0.3
        and not repeats(row)
    )


def gopher_redpajama(text: str) -> bool:
    row = words.redpajama(text)
    return (
        50 <= row["word_count"] <= 10_000
        and 3 <= row["mean_word_characters"] <= 10
        and row["symbol_ratio"] <= 0.1
        and row["bullet_lines"] <= 0.9
        and row["ellipsis_lines"] <= 0.3
        and row["no_letter_words"] <= 0.2
        and not repeats(row)
    )


def code_redpajama(text: str) -> bool:
    row = words.characters(text)
    return row["longest_line"] <= 1000 and row["mean_line"] <= 100 and row["alphanumeric"] >= 0.25


#: True if a document stays, or the page that does.
REFERENCES: dict[str, Callable[[str], Any]] = {
    "gopher/dolma": gopher_dolma,
    "dolma/1.6": lambda text: gopher_dolma(text) and words.repeated_tokens(text)["times"] < 100,
    "gopher/redpajama": gopher_redpajama,
    "code/redpajama": code_redpajama,
    "c4/paper": lines.c4_paper,
    "c4/dclm": lines.c4_dclm,
    "c4/dolma": lines.c4_dolma,
    "refinedweb/dclm": lines.refinedweb,
}
DATATROVE = sorted(name for name in PROFILES if name.endswith("/white-space"))


def agrees(name: str, texts: list[str]) -> None:
    kept = 0
    for text, (reason, page) in zip(texts, verdicts(name, texts), strict=True):
        expected = REFERENCES[name](text)
        stays = expected is not None and expected is not False
        assert (reason == "keep") == stays, (reason, text[:200])
        if stays and page is not None:
            assert lines.tidy(page) == lines.tidy(expected)
        kept += stays
    assert 0 < kept < len(texts), "documents that are all judged alike prove nothing"


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_verdicts_and_pages_follow_the_definition(name: str) -> None:
    agrees(name, real_documents(150, 4000))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_on_five_thousand_documents_too(name: str) -> None:
    texts = real_documents(5000, 3000)
    assert len(texts) == 5000
    agrees(name, texts)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("datatrove") is None, reason="a peer of the benchmarks")
@pytest.mark.parametrize("name", DATATROVE)
def test_datatrove_at_white_space_agrees_on_five_thousand_documents(name: str, monkeypatch: Any) -> None:
    from datatrove.pipeline.filters import (
        c4_filters,
        fineweb_quality_filter,
        gopher_quality_filter,
        gopher_repetition_filter,
    )

    # the peer replaces them for its process, which is ours here
    monkeypatch.setattr(c4_filters, "split_into_sentences", c4_filters.split_into_sentences)
    for module in (fineweb_quality_filter, gopher_quality_filter, gopher_repetition_filter):
        monkeypatch.setattr(module, "split_into_words", module.split_into_words)
    texts = real_documents(5000, 6000)
    judge = peer.PEERS[name]("")
    entry = compared(name, texts, [judge(text) for text in texts])
    assert entry["documents"] == 5000
    assert entry["verdicts"] == 1.0, entry["apart"]
