"""Words as the library cuts them, tokens as it gives them, whatever the table has learned before."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from plinth.tokens.tokenizer import audit, tokenizer, word_table
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.tokens.tokenizer.pipeline import pipeline
from plinth.tokens.tokenizer.word_table import WordTable

DIGITS = ("single", "triples", "runs")
END = 600
SPECIAL = (
    "' s re've 'LL'll\u2019s  \t\r\n\n 12 345 6789 ½Ⅻ٣ e\u0301\u0327"
    " \u00a0\u2003\u0085 東京 نص हिन्दी ... --> _x_ \U0001f469\u200d\U0001f467"
)
TEXTS = st.text(max_size=50) | st.text(SPECIAL, max_size=60) | st.text("' \n\r\t1a.é\u0301", max_size=40)


def cut(digits: str, text: str) -> tuple[list[str], list[str]]:
    """The words of a text by our scan, and by the library."""
    splitter: Any = pipeline(TokenizerParameters(kind="bpe-fallback", digits=digits)).pre_tokenizer  # type: ignore[arg-type]
    data, group = np.frombuffer(text.encode(), dtype=np.uint8), word_table.group_of(splitter)
    assert group is not None
    ends = np.empty(data.size, dtype=np.int64)
    stops = ends[: word_table.word_ends(data, word_table.classes(), group, ends)].tolist()
    found = [bytes(data[at:stop]).decode() for at, stop in pairwise([0, *stops])]
    return found, [text[a:b] for _, (a, b) in splitter.pre_tokenize_str(text)]


@pytest.mark.parametrize("digits", DIGITS)
@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_words_are_the_librarys(digits: str, text: str) -> None:
    ours, theirs = cut(digits, text)
    assert ours == theirs


@pytest.mark.parametrize("digits", DIGITS)
def test_words_of_every_character_are_the_librarys(digits: str) -> None:
    chooser = random.Random(1)
    points = [chr(p) for p in chooser.sample(range(0x110000), 20_000) if not 0xD800 <= p < 0xE000]
    text = "".join(point + chooser.choice(("", "", "a", " ", "1", ".", "\n")) for point in points)
    ours, theirs = cut(digits, text)
    assert ours == theirs


def test_words_by_hand() -> None:
    assert cut("single", "it's  42\n\n x")[0] == ["it", "'s", " ", " ", "4", "2", "\n\n", " x"]
    assert cut("runs", "it's  42\n\n x")[0] == ["it", "'s", " ", " 42", "\n\n", " x"]
    assert cut("triples", "a 12345\n    b")[0] == ["a", " ", "123", "45", "\n", "   ", " b"]


def test_a_long_word_is_cut_between_characters() -> None:
    text = "é" * word_table.MAX_WORD_BYTES
    ours, _ = cut("single", text)
    assert "".join(ours) == text
    assert max(len(word.encode()) for word in ours) <= word_table.MAX_WORD_BYTES + 2


@pytest.fixture(scope="module", params=["bpe-fallback", "unigram"])
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    params = TokenizerParameters(kind=request.param, vocab_size=600)
    made = tokenizer.train(params, [SPECIAL * 3, "the house by the river\n    return x == 42\n" * 9])
    made.encode_special_tokens = True
    return made


def encoded(trained: Tokenizer, texts: list[str], encoder: WordTable) -> list[list[int]]:
    ids, first = encoder.encode(pa.array(texts, pa.large_string()), "<u2")
    assert ids[first[1:] - 1].tolist() == [END] * len(texts)
    return [ids[a : b - 1].tolist() for a, b in pairwise(first)]


@given(texts=st.lists(TEXTS, max_size=6))
@settings(max_examples=40, deadline=None)
def test_tokens_are_the_librarys(trained: Tokenizer, texts: list[str]) -> None:
    expected = [trained.encode(text, add_special_tokens=False).ids for text in texts]
    assert encoded(trained, texts, WordTable(trained, END)) == expected


def test_what_the_table_holds_does_not_show(trained: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text for text in audit.trial_texts() if len(text) < 1000] * 2
    expected = [trained.encode(text, add_special_tokens=False).ids for text in texts]
    monkeypatch.setattr(word_table, "SLOTS", 2**9)
    monkeypatch.setattr(word_table, "MOST_BYTES", 700)
    monkeypatch.setattr(word_table, "BATCH_BYTES", 64)
    small = WordTable(trained, END)
    for column in (texts, texts[5:40], texts):
        assert encoded(trained, column, small) == [expected[texts.index(text)] for text in column]


def test_slices_and_empty_columns(trained: Tokenizer) -> None:
    column = pa.array(["first", "", "the house", "42"], pa.large_string()).slice(1, 2)
    ids, first = WordTable(trained, END).encode(column, "<u4")
    assert ids.dtype == np.dtype("<u4")
    assert first.tolist() == [0, 1, len(ids)]
    assert ids.tolist() == [END, *trained.encode("the house").ids, END]
    ids, first = WordTable(trained, END).encode(pa.array([], pa.large_string()), "<u2")
    assert (len(ids), first.tolist()) == (0, [0])


def test_another_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="a pattern that Plinth does not know"):
        WordTable(Tokenizer(models.BPE()), END)
