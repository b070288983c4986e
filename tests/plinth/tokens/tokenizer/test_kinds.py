"""Every kind of tokenizer writes every text, gives the same bytes each time, and keeps its promises on digits."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import AddedToken, Tokenizer, models

from plinth.errors import StageError
from plinth.tokens.tokenizer import audit, encode, tokenizer
from plinth.tokens.tokenizer import vocabulary as vocabulary_audit
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.tokens.tokenizer.pipeline import pipeline
from plinth.tokens.tokenizer.vocabulary import byte_ids, encode_bytes, token_bytes

KINDS = ("bpe-bytes", "bpe-fallback", "unigram")
DIGITS = ("single", "triples", "runs")
CORPUS = [
    "the house by the river and the house on the hill in 2026, 12345 times",
    "import os\n\ndef main():\n        print(42)\n\treturn None\n",
    "été über 東京 des Hauses, l'été n'est pas là",
    "<0x41> ▁ naïve नमस्ते दुनिया",
] * 30

TRAINED: dict[tuple[str, str], Tokenizer] = {}


def trained(kind: str, digits: str = "single") -> Tokenizer:
    if (kind, digits) not in TRAINED:
        params = TokenizerParameters(kind=kind, digits=digits, vocab_size=480, character_coverage=0.99)  # type: ignore[arg-type]
        made = tokenizer.train(params, CORPUS)
        made.encode_special_tokens = True
        TRAINED[kind, digits] = made
    return TRAINED[kind, digits]


def comes_back(made: Tokenizer, text: str) -> bool:
    (ids,) = encode.encode_texts(made, [text], "<u4")
    table = token_bytes(made)
    written = b"".join(table[token] for token in ids)
    return written == text.encode() and made.decode(ids.tolist(), skip_special_tokens=False) == text


@pytest.mark.parametrize(("kind", "digits"), list(product(KINDS, DIGITS)))
def test_every_text_comes_back(kind: str, digits: str) -> None:
    made = trained(kind, digits)
    assert [text for text in audit.trial_texts() if not comes_back(made, text)] == []
    assert made.get_vocab_size() <= 480
    assert made.token_to_id("<|endoftext|>") == 0


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=60) | st.text("<0xA1F>▁ \ue000\n\t", max_size=40))
@settings(max_examples=48, deadline=None)
def test_any_text_comes_back(kind: str, text: str) -> None:
    assert comes_back(trained(kind), text)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.binary(max_size=80))
@settings(max_examples=48, deadline=None)
def test_any_bytes_come_back(kind: str, data: bytes) -> None:
    made = trained(kind)
    table = token_bytes(made)
    assert b"".join(table[token] for token in encode_bytes(made, data)) == data


@pytest.mark.parametrize("kind", KINDS)
def test_rare_characters_are_written_in_bytes(kind: str) -> None:
    made = trained(kind)
    (ids,) = encode.encode_texts(made, ["𓀀"], "<u4")
    assert [token_bytes(made)[token] for token in ids] == [bytes([byte]) for byte in "𓀀".encode()]
    assert len(byte_ids(made)) == (0 if kind == "bpe-bytes" else 256)


@pytest.mark.parametrize("kind", KINDS)
def test_digits_keep_their_promise(kind: str) -> None:
    assert vocabulary_audit._digits(b" 2026") == 4
    longest = {d: max(map(vocabulary_audit._digits, token_bytes(trained(kind, d)))) for d in DIGITS}
    assert longest["single"] == 1
    assert 1 < longest["triples"] <= 3
    assert longest["runs"] > (3 if kind != "unigram" else 1)


PROGRAM = f"""
import hashlib, sys
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.tokens.tokenizer import tokenizer
for kind in {KINDS}:
    made = tokenizer.train(TokenizerParameters(kind=kind, vocab_size=480, character_coverage=0.99), {CORPUS!r})
    print(hashlib.sha256(made.to_str().encode()).hexdigest())
"""


def test_thread_counts_and_hash_seeds_do_not_show() -> None:
    ours = [hashlib.sha256(_plain(kind).encode()).hexdigest() for kind in KINDS]
    env = os.environ | {"RAYON_NUM_THREADS": "3", "PYTHONHASHSEED": "3", "PYTHONPATH": "platform"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ours


def _plain(kind: str) -> str:
    params = TokenizerParameters(kind=kind, vocab_size=480, character_coverage=0.99)  # type: ignore[arg-type]
    return str(tokenizer.train(params, iter(CORPUS)).to_str())


def test_merges_of_characters_by_hand() -> None:
    # "ab" occurs five times and "abc" twice: with room for two merges those are the two.
    params = TokenizerParameters(kind="bpe-fallback", vocab_size=2 + 256 + len(tokenizer.ALWAYS) + 2)
    made = tokenizer.train(params, ["abc abc", "ab", "ab", "ab", "cd"])
    assert sorted(made.get_vocab(), key=made.token_to_id)[-2:] == ["ab", "abc"]


def test_the_likeliest_pieces_win() -> None:
    # Viterbi by hand: "abab" as ab|ab costs -2, as abab -3, as a|b|a|b -20.
    special = [("<|endoftext|>", -1e6)]
    letters = [(name, tokenizer.BYTE_SCORE) for name in tokenizer.BYTE_TOKENS]
    pieces = [("a", -5.0), ("b", -5.0), ("ab", -1.0), ("abab", -3.0)]
    params = TokenizerParameters(kind="unigram")
    made = pipeline(params, models.Unigram([*special, *letters, *pieces], unk_id=0, byte_fallback=True))
    assert [made.id_to_token(i) for i in made.encode("abab").ids] == ["ab", "ab"]


def test_alphabet_by_hand() -> None:
    # Of 10,000 characters 9,990 are ASCII, 9 are é and 1 is ü.
    text = "a" * 9990 + "é" * 9 + "ü"
    assert set(tokenizer.choose([text], 0.999, 500)) == tokenizer.ALWAYS
    assert set(tokenizer.choose([text], 0.9995, 500)) == tokenizer.ALWAYS | {"é"}
    assert set(tokenizer.choose([text], 1.0, 500)) == tokenizer.ALWAYS | {"é", "ü"}
    assert list(tokenizer.prepared(["aéü<0x41>"], ["a", "é", *"<0x41>"])) == ["aé\0<", "0x41>"]


def test_unigram_tells_when_there_is_too_little_text() -> None:
    with pytest.raises(StageError, match="cannot be trained"):
        tokenizer.train_unigram(TokenizerParameters(kind="unigram", vocab_size=400), ["\0"], [])


def test_what_training_never_sees_is_found() -> None:
    vocabulary = ["<|endoftext|>", *tokenizer.BYTE_TOKENS, "a", "b", "c", "ab", "abc"]
    merges = [("a", "b")]  # nothing ever writes "abc"
    model = models.BPE({name: i for i, name in enumerate(vocabulary)}, merges, byte_fallback=True)
    made = pipeline(TokenizerParameters(kind="bpe-fallback"), model)
    made.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    counts = np.zeros(len(vocabulary), np.int64)
    documents = counts.copy()
    counts[-5:], documents[-5:] = (9, 99, 30, 0, 0), (4, 1, 2, 0, 0)
    found = vocabulary_audit.vocabulary_facts(made, counts, documents)
    assert [name.split()[1] for name in found["unreachable_examples"]] == ["'abc'"]
    assert found["one_document_examples"] == ["258 'b'"]
    assert found["unused_tokens"] == 256 + 2
    assert found["arbitrary_bytes"]["failed"] == 0
    lines = vocabulary_audit.failures(TokenizerParameters(max_unreachable_share=0.0), found)
    assert lines == ["1 tokens are never produced by encoding their own text, such as 261 'abc'; at most 0.0% allowed"]


@pytest.mark.parametrize("kind", KINDS)
def test_trained_vocabularies_are_reachable(kind: str) -> None:
    made = trained(kind)
    lost = vocabulary_audit.unreachable(made, token_bytes(made))
    assert len(lost) <= 0.01 * made.get_vocab_size()


def test_space_is_told() -> None:
    chooser = random.Random(3)
    lines = ["\n" + " " * chooser.choice((4, 8)) + chooser.choice(("x = 1", "return y", "pass")) for _ in range(400)]
    params = TokenizerParameters(kind="bpe-fallback", vocab_size=420)
    made = tokenizer.train(params, ["".join(lines)])
    space = vocabulary_audit._whitespace(made, token_bytes(made))
    assert space["longest_run"] == 7  # the pattern leaves the last space to the word
    assert space["tokens"]["indent_8"] < space["tokens"]["indent_16"]


@pytest.mark.parametrize(
    "wrong", [{"vocab_size": 300, "special_tokens": tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX")}]
)
def test_a_vocabulary_without_room_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="is too small"):
        TokenizerParameters(**wrong)
