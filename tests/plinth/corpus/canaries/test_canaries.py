"""Canaries follow from the seed, have one length, and pass through tokens and packing without a cut."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.compute.engine import InlineEngine
from plinth.corpus import canaries as generate
from plinth.corpus import planted_canaries
from plinth.corpus.canaries import Canaries, Lexis, document_tokens
from plinth.errors import RecipeError, StageError
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace

PARAMS = Canaries(count=8, references=128)


def characters(texts: Sequence[str]) -> list[int]:
    """A tokenizer of three characters a token, rounded up by word."""
    return [sum(-(-len(word) // 3) for word in text.split()) for text in texts]


SYLLABLES = Lexis(characters, ())


def _made(tmp_path: Path, params: Canaries = PARAMS, **rows: object) -> tuple[Context, Manifest]:
    ctx = Context(Workspace(tmp_path / "workspace").ensure(), InlineEngine())
    tokenizer = Manifest(asset="tokenizer", step="made", version="1", params={}, inputs={}, parts=())
    places = {"sequence_tokens": 128, "concatenated": True} | rows
    return ctx, planted_canaries.run(ctx, params, tokenizer, SYLLABLES, **places)  # type: ignore[arg-type]


def test_texts_are_words_of_syllables_and_have_the_length() -> None:
    made = generate.canaries(PARAMS, 31, SYLLABLES)
    assert characters([one.text for one in made]) == [31] * 8
    assert len({one.text for one in made}) == 8
    assert set("".join(one.text for one in made)) <= set("bdfghjklmnprstvzaeio ")
    assert [one.repetitions for one in made] == [1, 4, 16, 64] * 2


def test_the_seed_alone_decides_texts_and_coins() -> None:
    assert generate.canaries(PARAMS, 31, SYLLABLES) == generate.canaries(PARAMS, 31, SYLLABLES)
    other = generate.canaries(PARAMS.model_copy(update={"seed": 2}), 31, SYLLABLES)
    assert not {one.text for one in other} & {one.text for one in generate.canaries(PARAMS, 31, SYLLABLES)}
    # known answer: another derivation would break the coins of runs that have been made
    assert generate.words("canary 1 0 0", 6, generate.syllables()) == KNOWN
    assert sum(generate.coin(1, n) for n in range(1000)) == 511




KNOWN = "sabo togi voseno beke mokono nabeto"


def test_words_of_the_tokenizer_are_taken_where_it_has_enough() -> None:
    vocabulary = [f"word{n}" for n in range(generate.LEAST_WORDS)]
    lexis = Lexis(lambda texts: [len(text.split()) for text in texts], vocabulary)
    made = generate.canaries(PARAMS, 31, lexis)
    assert all(len(one.text.split()) == 31 for one in made)
    assert {word for one in made for word in one.text.split()} <= set(vocabulary)
    few = generate.canaries(PARAMS, 31, lexis._replace(words=vocabulary[:-1]))
    assert {word for one in few for word in one.text.split()} <= set(generate.syllables())


def test_coins_are_fair_and_independent_of_the_group() -> None:
    coins = [[generate.coin(seed, n) for n in range(64)] for seed in range(200)]
    ones = sum(map(sum, coins))
    assert abs(ones - 6400) < 4 * (12800 / 4) ** 0.5
    agree = sum(a == b for row in coins for a, b in itertools.pairwise(row))
    assert abs(agree - 6300) < 4 * (12600 / 4) ** 0.5


def test_a_tokenizer_without_such_texts_is_named() -> None:
    with pytest.raises(StageError, match="too few generated texts have exactly 31 tokens"):
        generate.canaries(PARAMS, 31, Lexis(lambda texts: [2 * n for n in characters(texts)], ()))


def test_too_many_canaries_for_the_references_are_refused() -> None:
    with pytest.raises(ValidationError, match="references / 16"):
        Canaries(count=256, references=1024)
    with pytest.raises(ValidationError, match="not divisible"):
        Canaries(count=10)


def test_a_document_divides_every_row() -> None:
    assert [document_tokens(n) for n in (512, 64, 11, 100, 1000, 2048, 536, 96)] == [16, 16, None, 20, 20, 16, None, 16]


@pytest.mark.parametrize("concatenated", [True, False])
def test_documents_fill_whole_sequences(tmp_path: Path, concatenated: bool) -> None:
    ctx, made = _made(tmp_path, concatenated=concatenated)
    (part,) = made.named("part-")
    documents = read_table(ctx.store, part)
    tokens = [n + 1 for n in characters(documents["text"].to_pylist())]
    assert tokens == [17] * concatenated + [16] * (len(tokens) - concatenated)
    assert (sum(tokens) - concatenated) % 128 == 0
    starts = [sum(tokens[:i]) for i in range(concatenated, len(tokens))]
    assert all((start - concatenated) // 128 == (start - concatenated + 15) // 128 for start in starts)


def test_copies_are_those_of_the_coins_in_a_drawn_order(tmp_path: Path) -> None:
    ctx, made = _made(tmp_path)
    planted = [one for one in planted_canaries.planted_documents(ctx.store, made) if one[0] != planted_canaries.FILLER]
    canaries = planted_canaries.table(ctx.store, made).filter(pa.compute.field("kind") == "canary").to_pylist()
    expected = [(c["number"], copy) for c in canaries if c["planted"] for copy in range(c["repetitions"])]
    assert sorted(planted) == expected
    assert planted != expected
    assert planted == sorted(planted, key=lambda one: hashlib.sha256(f"order 1 {one[0]} {one[1]}".encode()).digest())
    stats = made.stats
    assert stats["copies"] == len(planted)
    assert stats["documents"] == stats["copies"] + stats["fillers"]
    assert (stats["canaries"], stats["references"], stats["document_tokens"]) == (8, 128, 16)


def test_references_never_enter(tmp_path: Path) -> None:
    ctx, made = _made(tmp_path)
    table = planted_canaries.table(ctx.store, made).to_pylist()
    out = {row["text"] for row in table if not row["planted"]}
    (part,) = made.named("part-")
    assert not out & set(read_table(ctx.store, part, ["text"])["text"].to_pylist())
    assert len(out) == 128 + 8 - made.stats["planted"]


def test_the_same_bytes_again(tmp_path: Path) -> None:
    assert _made(tmp_path / "a")[1].digest == _made(tmp_path / "b")[1].digest


def test_rows_that_no_document_divides_are_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no canary length divides"):
        _made(tmp_path, sequence_tokens=536)
