"""Tokens by gigatoken are the library's, for any text and every character; other forms are refused by name."""

from __future__ import annotations

import json
import random
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from plinth.errors import IntegrityError
from plinth.tokens.tokenizer import audit, byte_level, encode, tokenizer
from plinth.tokens.tokenizer.byte_level import SEPARATOR, ByteLevel, UnsupportedFormError
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.tokens.tokenizer.reference import Reference, pieces

END = 0
SPECIAL = (
    "' s re've 'LL'll’s  \t\r\n\n 12 345 6789 ½Ⅻ٣٤٥ १२३ e\u0301\u0327 /path"
    " \u00a0\u2003\u0085 東京 نص हिन्दी ... --> _x_ \U0001f469\u200d\U0001f467 ①²³ Straße ΑΒΓ"
)
TEXTS = st.text(max_size=50) | st.text(SPECIAL, max_size=60) | st.text("' \n\r\t1२½a.é\u0301<|end>", max_size=40)
_CASE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
#: Patterns of other models, as their files state them.
FOREIGN = {
    "llama-3": _CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _REST,
    "qwen-2": _CASE + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _REST,
    "gpt-4o": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _CASE + "?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _CASE + "?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
FORMS = ("single", "triples", "runs", *FOREIGN)
NUMBERS = "in 2026, 12345 times ١٢٣ and 100 100 200\n" * 5
CORPUS = [SPECIAL * 3, "the house by the river\n    return x == 42\n" * 9, NUMBERS]


def foreign(pattern: str, **model: Any) -> Tokenizer:
    """A tokenizer of another model: its pattern, then bytes."""
    made = Tokenizer(models.BPE(**model))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    made.train_from_iterator(CORPUS, trainer)
    made.encode_special_tokens = True
    return made


@pytest.fixture(scope="module", params=FORMS)
def trained(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param in FOREIGN:
        return foreign(FOREIGN[request.param])
    made = tokenizer.train(TokenizerParameters(digits=request.param, vocab_size=600), CORPUS)
    made.encode_special_tokens = True
    return made


@pytest.fixture(scope="module")
def encoder(trained: Tokenizer) -> ByteLevel:
    return ByteLevel(trained, END)


def encoded(encoder: Any, texts: list[str]) -> list[list[int]]:
    ids, first = encoder.encode(pa.array(texts, pa.large_string()), "<u4")
    assert ids[first[1:] - 1].tolist() == [END] * len(texts)
    return [ids[a : b - 1].tolist() for a, b in pairwise(first)]


def expected(trained: Tokenizer, texts: list[str]) -> list[list[int]]:
    return [trained.encode(text, add_special_tokens=False).ids for text in texts]


@given(texts=st.lists(TEXTS, max_size=6))
@settings(max_examples=60, deadline=None)
def test_tokens_are_the_librarys(trained: Tokenizer, encoder: ByteLevel, texts: list[str]) -> None:
    assert encoded(encoder, texts) == expected(trained, texts)


def test_tokens_of_every_character_are_the_librarys(trained: Tokenizer, encoder: ByteLevel) -> None:
    chooser = random.Random(1)
    points = [chr(p) for p in range(0x110000) if not 0xD800 <= p < 0xE000 and (p < 0x3400 or chooser.random() < 0.05)]
    texts = [
        "".join(point + chooser.choice(("", "", "a", " ", "1", ".", "\n", "'s")) for point in points[at : at + 40])
        for at in range(0, len(points), 40)
    ]
    different = [text for text, a, b in zip(texts, encoded(encoder, texts), expected(trained, texts)) if a != b]  # noqa: B905
    assert different == []


def test_trial_texts(trained: Tokenizer, encoder: ByteLevel) -> None:
    texts = [*audit.trial_texts(), "", *CORPUS]
    assert encoded(encoder, texts) == expected(trained, texts)


def test_long_texts_are_cut_as_by_the_reference(trained: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_level, "MOST_BYTES", 30)
    monkeypatch.setattr(byte_level, "pieces", lambda text: pieces(text, 20))
    texts = ["short", "", "the house by the river " * 5, "12345 " * 9, "x"]
    found = encoded(ByteLevel(trained, END), texts)
    assert found == [list(chain(*expected(trained, pieces(text, 20)))) for text in texts]


def test_a_megabyte_of_one_letter() -> None:
    made = tokenizer.train(TokenizerParameters(vocab_size=400), CORPUS)
    made.encode_special_tokens = True
    column = pa.array(["x", "a" * 2**20, "y"], pa.large_string())
    for ours, theirs in zip(ByteLevel(made, END).encode(column, "<u2"), Reference(made, END).encode(column, "<u2")):  # noqa: B905
        assert ours.tolist() == theirs.tolist()


def test_texts_that_hold_the_separator_or_special_tokens(trained: Tokenizer, encoder: ByteLevel) -> None:
    texts = ["a", SEPARATOR, f"12{SEPARATOR}34", SEPARATOR[0], SEPARATOR[1], "<|endoftext|>", "<|end|>"]
    assert encoded(encoder, texts) == expected(trained, texts)


def test_slices_nulls_and_empty_columns(trained: Tokenizer, encoder: ByteLevel) -> None:
    column = pa.array(["first", "", "the house", None, "42"], pa.string()).slice(1, 3)
    ids, first = encoder.encode(column, "<u2")
    assert ids.tolist() == [END, *trained.encode("the house").ids, END, END]
    assert first.tolist() == [0, 1, len(ids) - 1, len(ids)]
    ids, first = encoder.encode(pa.array([], pa.large_string()), "<u2")
    assert (len(ids), first.tolist()) == (0, [0])


def test_bytes_that_are_not_text_are_named(encoder: ByteLevel) -> None:
    column = pa.array([b"good", b"bad \xff\xfe"], pa.large_binary()).view(pa.large_string())
    with pytest.raises(IntegrityError, match="not valid UTF-8"):
        encoder.encode(column, "<u2")


def _changed(**changes: Any) -> Tokenizer:
    spec = json.loads(foreign(FOREIGN["llama-3"]).to_str())
    spec["model"] |= changes.pop("model", {})
    made = Tokenizer.from_str(json.dumps(spec | changes))
    made.encode_special_tokens = True
    return made


def _with(**parts: Any) -> Tokenizer:
    made = _changed()
    for name, value in parts.items():
        setattr(made, name, value)
    return made


def _with_added(made: Tokenizer, token: AddedToken) -> Tokenizer:
    made.add_tokens([token])
    return made


def _ours(kind: str) -> Tokenizer:
    made = tokenizer.train(TokenizerParameters(kind=kind, vocab_size=480), CORPUS)  # type: ignore[arg-type]
    made.encode_special_tokens = True
    return made


AFTER_PUNCTUATION = pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(False)])
CUT = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: _ours("unigram"), "model Unigram"),
        (lambda: _ours("bpe-fallback"), "model BPE over characters"),
        (lambda: Tokenizer(models.WordLevel({"a": 0}, "a")), "model WordLevel"),
        (lambda: _changed(model={"dropout": 0.1}), "dropout is set"),
        (lambda: _changed(model={"end_of_word_suffix": "</w>"}), "end_of_word_suffix is set"),
        (lambda: _changed(truncation=CUT), "truncation is set"),
        (lambda: Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])), "a byte has no token"),
        (lambda: _with(normalizer=normalizers.NFC()), "normalizer NFC"),
        (lambda: _with(pre_tokenizer=pre_tokenizers.Whitespace()), "another pattern"),
        (lambda: _with(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)), "another pattern"),
        (lambda: _with(pre_tokenizer=AFTER_PUNCTUATION), "another pattern"),
        (lambda: foreign(r"\p{L}+|\P{L}+"), "Unknown pre_tokenizer"),
        (lambda: _with_added(_changed(), AddedToken("<tool>", single_word=True)), "added tokens"),
        (lambda: _with_added(_ours("bpe-bytes"), AddedToken("<tool>", normalized=False)), "added tokens"),
        (lambda: _with(encode_special_tokens=False), "special tokens are read from text"),
    ],
)  # fmt: skip
def test_other_forms_are_refused_by_name(made: Any, reason: str) -> None:
    given = made()
    given.encode_special_tokens = "read from text" not in reason
    with pytest.raises(UnsupportedFormError, match=reason):
        ByteLevel(given, END)
    of_characters = reason in ("model Unigram", "model BPE over characters")
    assert encode.encoder_of(given, END).name == ("word table" if of_characters else "tokenizers")


def test_added_tokens_of_another_model() -> None:
    made = _with_added(_changed(), AddedToken("<tool>", normalized=False, lstrip=True))
    texts = ["a <tool> 12", "<tool><tool>", "<tool", " <tool>", "<|end|> <tool>"]
    assert encoded(ByteLevel(made, END), texts) == expected(made, texts)
    assert made.token_to_id("<tool>") in expected(made, texts)[0]
