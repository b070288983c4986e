from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from plinth.errors import IntegrityError
from plinth.storage.store import Store
from plinth.tokens.tokenizer import encode, reference, tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.tokens.tokenizer.vocabulary import token_bytes

CORPUS = ["the house by the river", "import os\n\nprint(42)\n", "été über 東京 des Hauses", "l'été n'est pas là"] * 20


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    trained = tokenizer.train(TokenizerParameters(vocab_size=330), iter(CORPUS))
    trained.encode_special_tokens = True
    return trained


def test_every_byte_has_a_token_and_special_tokens_have_none(trained: Tokenizer) -> None:
    table = token_bytes(trained)
    assert table[:2] == [b"", b""]
    assert {data for data in table if len(data) == 1} == {bytes([byte]) for byte in range(256)}


def test_text_never_becomes_a_special_token(trained: Tokenizer) -> None:
    (ids,) = encode.encode_texts(trained, ["a<|endoftext|>b<|pad|>"], "<u2")
    assert not set(ids.tolist()) & {0, 1}


@given(words=st.lists(st.sampled_from(["the", "über", "東京", "x=1", "...", "\n", "\t", "don't", "42"]), max_size=60))
@settings(max_examples=40, deadline=None)
def test_pieces_tokenise_as_the_whole(trained: Tokenizer, words: list[str]) -> None:
    text = " ".join(words)
    cut = reference.pieces(text, limit=24)
    assert "".join(cut) == text
    if all(len(piece) < 24 for piece in cut):  # every cut found a seam
        whole = trained.encode(text).ids
        assert [token for piece in cut for token in trained.encode(piece).ids] == whole


def test_a_text_without_seams_is_cut_all_the_same(trained: Tokenizer) -> None:
    cut = reference.pieces("x" * 100, limit=30)
    assert [len(piece) for piece in cut] == [30, 30, 30, 10]
    assert reference.pieces("short", limit=30) == ["short"]
    assert reference.pieces("", limit=30) == [""]


def test_batches_do_not_show(trained: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*CORPUS[:7], "", "the river " * 50]
    whole = [ids.tolist() for ids in encode.encode_texts(trained, texts, "<u2")]
    monkeypatch.setattr(encode, "BATCH_CHARACTERS", 25)
    assert [ids.tolist() for ids in encode.encode_texts(trained, texts, "<u2")] == whole
    assert whole == [trained.encode(text).ids for text in texts]


def test_a_blob_that_is_no_tokenizer_is_named(tmp_path: object) -> None:
    store = Store(str(tmp_path))
    with pytest.raises(IntegrityError, match="not a tokenizer"):
        encode.load(store, store.put_bytes(b'{"model": 1}'))


def test_slices_hold_some_bytes_or_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "COLUMN_BYTES", 4)
    column = pa.array(["ab", "cd", "é", "", "a long one", None, "x"], pa.large_string())
    found = [one.to_pylist() for one in reference.slices(column)]
    assert found == [["ab", "cd"], ["é", ""], ["a long one"], [None, "x"]]
    assert list(reference.slices(column[:0])) == []
