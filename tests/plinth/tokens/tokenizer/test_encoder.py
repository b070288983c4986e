"""Words as the library cuts them, tokens as it gives them, whatever the table has learned before."""

from __future__ import annotations

import random
from itertools import pairwise, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from plinth.tokens.tokenizer import audit, encode, tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters

KINDS = list(product(("bpe-bytes", "bpe-fallback"), ("single", "triples", "runs")))
SPECIAL = (
    "' s re've 'LL'll\u2019s  \t\r\n\n 12 345 6789 ½Ⅻ٣ e\u0301\u0327"
    " \u00a0\u2003\u0085 東京 نص हिन्दी ... --> _x_ \U0001f469\u200d\U0001f467"
)
TEXTS = st.text(max_size=50) | st.text(SPECIAL, max_size=60) | st.text("' \n\r\t1a.é\u0301", max_size=40)


def cut(kind: str, digits: str, text: str) -> tuple[list[str], list[str]]:
    """The words of a text by our scan, and by the library."""
    splitter: Any = encode.pipeline(TokenizerParameters(kind=kind, digits=digits)).pre_tokenizer  # type: ignore[arg-type]
    data, pattern = np.frombuffer(text.encode(), dtype=np.uint8), encode.pattern_of(splitter)
    assert pattern is not None
    ends = np.empty(data.size, dtype=np.int64)
    stops = ends[: encode.word_ends(data, encode.classes(), *pattern, ends)].tolist()
    found = [bytes(data[at:stop]).decode() for at, stop in pairwise([0, *stops])]
    return found, [text[a:b] for _, (a, b) in splitter.pre_tokenize_str(text)]


@pytest.mark.parametrize(("kind", "digits"), KINDS)
@given(text=TEXTS)
@settings(max_examples=60, deadline=None)
def test_words_are_the_librarys(kind: str, digits: str, text: str) -> None:
    ours, theirs = cut(kind, digits, text)
    assert ours == theirs


@pytest.mark.parametrize(("kind", "digits"), KINDS)
def test_words_of_every_character_are_the_librarys(kind: str, digits: str) -> None:
    chooser = random.Random(1)
    points = [chr(p) for p in chooser.sample(range(0x110000), 20_000) if not 0xD800 <= p < 0xE000]
    text = "".join(point + chooser.choice(("", "", "a", " ", "1", ".", "\n")) for point in points)
    ours, theirs = cut(kind, digits, text)
    assert ours == theirs


def test_words_by_hand() -> None:
    assert cut("bpe-bytes", "single", "it's  42\n\n x")[0] == ["it", "'s", "  ", "4", "2", "\n\n", " x"]
    assert cut("bpe-bytes", "runs", "it's  42\n\n x")[0] == ["it", "'s", " ", " 42", "\n\n", " x"]
    assert cut("bpe-fallback", "triples", "a 12345\n    b")[0] == ["a", " ", "123", "45", "\n", "   ", " b"]


def test_a_long_word_is_cut_between_characters() -> None:
    text = "é" * encode.MAX_WORD_BYTES
    ours, _ = cut("bpe-bytes", "single", text)
    assert "".join(ours) == text
    assert max(len(word.encode()) for word in ours) <= encode.MAX_WORD_BYTES + 2


@pytest.fixture(scope="module", params=["bpe-bytes", "bpe-fallback", "unigram"])
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    params = TokenizerParameters(kind=request.param, vocab_size=600)
    made = tokenizer.train(params, [SPECIAL * 3, "the house by the river\n    return x == 42\n" * 9])
    made.encode_special_tokens = True
    return made


@given(texts=st.lists(TEXTS, max_size=6))
@settings(max_examples=40, deadline=None)
def test_tokens_are_the_librarys(trained: Tokenizer, texts: list[str]) -> None:
    found = [ids.tolist() for ids in encode.encode_texts(trained, texts, "<u4")]
    assert found == [trained.encode(text, add_special_tokens=False).ids for text in texts]


def test_what_the_table_holds_does_not_show(trained: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text for text in audit.trial_texts() if len(text) < 1000] * 2
    expected = [trained.encode(text, add_special_tokens=False).ids for text in texts]
    monkeypatch.setattr(encode, "SLOTS", 2**9)
    monkeypatch.setattr(encode, "MOST_BYTES", 700)
    monkeypatch.setattr(encode, "BATCH_BYTES", 64)
    small = encode.Encoder(trained)
    for column in (texts, texts[5:40], texts):
        ids, first = small.encode(pa.array(column, pa.large_string()), "<u2")
        assert [ids[a:b].tolist() for a, b in pairwise(first)] == [expected[texts.index(text)] for text in column]


def test_slices_and_empty_columns(trained: Tokenizer) -> None:
    column = pa.array(["first", "", "the house", "42"], pa.large_string()).slice(1, 2)
    ids, first = encode.Encoder(trained).encode(column, "<u2")
    assert first.tolist() == [0, 0, len(ids)]
    assert ids.tolist() == trained.encode("the house").ids
    ids, first = encode.Encoder(trained).encode(pa.array([], pa.large_string()), "<u2")
    assert (len(ids), first.tolist()) == (0, [0])


def test_another_pipeline_goes_through_the_library() -> None:
    other = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    assert encode.pattern_of(other.pre_tokenizer) is None
    assert [ids.tolist() for ids in encode.encode_texts(other, ["ab a", "", "b"], "<u2")] == [[2, 0], [], [1]]
    with pytest.raises(ValueError, match="a pattern that Plinth does not know"):
        encode.Encoder(other)


def test_dtype_is_kept(trained: Tokenizer) -> None:
    ids, _ = encode.Encoder(trained).encode(pa.array(["x"], pa.large_string()), "<u4")
    assert ids.dtype == np.dtype("<u4")
