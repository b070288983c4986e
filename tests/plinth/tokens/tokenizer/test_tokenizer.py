from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.errors import IntegrityError, StageError
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.tokens.tokenizer.sample import MAX_DOCUMENT_BYTES, sample, sampled_texts, shares

MakeContext = Callable[..., Context]


def test_special_tokens_come_first_and_the_rest_is_told(
    ctx: Context, made: SimpleNamespace, small: TokenizerParameters
) -> None:
    trained = tokenizer.run(ctx, small, {"web": made.curated(ctx, "web", [made.texts(1, 50)])})
    assert [part.name for part in trained.parts] == ["tokenizer.json"]
    assert trained.stats["special_tokens"] == {"<|endoftext|>": 0, "<|pad|>": 1}
    assert trained.stats["end_of_text"] == 0
    assert trained.stats["vocab_size"] == tokenizer.load(ctx.store, trained).get_vocab_size() == 320
    assert list(trained.inputs) == ["web/curated"]


def test_merges_by_hand() -> None:
    # "ab" occurs 3 times, then "ab" + "c" twice, all else once: the two merges to give are (a, b) and (ab, c).
    trained = tokenizer.train(TokenizerParameters(vocab_size=2 + 256 + 2), iter(["abc abc", "ab", "cd"]))
    vocabulary = sorted(trained.get_vocab(), key=trained.token_to_id)
    assert vocabulary[-2:] == ["ab", "abc"]


def test_a_megabyte_of_one_sign_does_not_stop_the_training() -> None:
    """A run that long is one word to the trainer, whose time grows with its square: hours, were it not cut."""
    trained = tokenizer.train(TokenizerParameters(vocab_size=300), iter(["=" * 2**20, " " * 2**20, "ab " * 9]))
    assert "====" in trained.get_vocab()
    assert max(map(len, tokenizer.short_runs("=" * 2**20))) == tokenizer.MAX_RUN


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("", [0]), ("a b", [3]), ("x" * 255, [255]), ("x" * 600, [256, 256, 88]), ("a" + " " * 300 + "b", [1, 256, 45])],
)
def test_long_runs_are_cut_and_nothing_is_lost(text: str, lengths: list[int]) -> None:
    cut = tokenizer.short_runs(text)
    assert [len(piece) for piece in cut] == lengths
    assert "".join(cut) == text


def test_workers_and_threads_do_not_show(
    make_ctx: MakeContext, made: SimpleNamespace, small: TokenizerParameters
) -> None:
    parts = {"web": [made.texts(1, 40), made.texts(2, 40)], "code": [made.texts(3, 30)]}
    digests = set()
    with LocalEngine(2) as engine:
        for ctx in (make_ctx("two", engine), make_ctx()):
            curated = {bucket: made.curated(ctx, bucket, sampled_texts) for bucket, sampled_texts in parts.items()}
            digests.add(tokenizer.run(ctx, small, curated).digest)
    assert len(digests) == 1


def test_audit_bounds_train_nothing_again(small: TokenizerParameters) -> None:
    bounds = small.model_copy(update={"max_fertility": 9.0, "min_bytes_per_token": 0.1, "audit_bytes_per_part": 5})
    assert tokenizer.step(bounds) == tokenizer.step(small)
    assert tokenizer.step(small.model_copy(update={"vocab_size": 321})) != tokenizer.step(small)


def test_the_same_again_does_no_work(ctx: Context, made: SimpleNamespace, small: TokenizerParameters) -> None:
    curated = {"web": made.curated(ctx, "web", [made.texts(1, 50)])}
    first = tokenizer.run(ctx, small, curated)
    ctx.engine = None  # type: ignore[assignment]  # any work would need it
    assert tokenizer.run(ctx, small, curated) == first


@pytest.mark.parametrize("parts", [[], [[]], [["", ""]]])
def test_nothing_to_train_on_is_named(
    ctx: Context, made: SimpleNamespace, small: TokenizerParameters, parts: list[list[str]]
) -> None:
    with pytest.raises(StageError, match="no text to train on"):
        tokenizer.run(ctx, small, {"web": made.curated(ctx, "web", parts)})


def test_a_changed_tokenizer_is_refused(ctx: Context, made: SimpleNamespace, small: TokenizerParameters) -> None:
    trained = tokenizer.run(ctx, small, {"web": made.curated(ctx, "web", [made.texts(1, 50)])})
    path = ctx.store.path(trained.parts[0].blob)
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="has changed"):
        tokenizer.load(ctx.store, trained)


@pytest.mark.parametrize("tokens", [(), ("a", "a"), ("",)])
def test_special_tokens_must_be_distinct(tokens: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        TokenizerParameters(special_tokens=tokens)


def test_shares_are_even_and_pass_on_what_is_left() -> None:
    assert shares({"a": 100, "b": 100}, 60) == {"a": 30, "b": 30}
    assert shares({"a": 10, "b": 100, "c": 100}, 100) == {"a": 10, "b": 45, "c": 45}
    assert shares({"a": 10, "b": 20}, 100) == {"a": 10, "b": 20}
    assert shares({}, 100) == {}


def test_a_sample_is_capped_spread_and_in_order(ctx: Context, made: SimpleNamespace) -> None:
    parts = [made.texts(part, 200) for part in range(4)]
    manifest = made.curated(ctx, "web", parts)
    (taken,) = sample(ctx, {"web": manifest}, 40_000, "t")
    found = list(sampled_texts(ctx.store, taken))
    assert sum(len(text.encode()) for text in found) in range(39_997, 40_001)
    flat = [text for part in parts for text in part]
    places = [flat.index(text) for text in found[:-1]]
    assert places == sorted(places)
    per_part = Counter(place // 200 for place in places)
    assert min(per_part.values()) > len(places) / 8  # all parts give their share


def test_a_small_budget_is_not_taken_from_the_front(ctx: Context, made: SimpleNamespace) -> None:
    parts = [[f"{part} {row} " + "x" * 90 for row in range(1000)] for part in range(5)]
    (taken,) = sample(ctx, {"web": made.curated(ctx, "web", parts)}, 3_000, "t")
    assert len({text.split()[0] for text in sampled_texts(ctx.store, taken)}) >= 4


def test_a_giant_gives_no_more_than_its_cap(ctx: Context, made: SimpleNamespace) -> None:
    giant = "é" * MAX_DOCUMENT_BYTES  # twice the cap
    (taken,) = sample(ctx, {"web": made.curated(ctx, "web", [[giant, "small"]])}, 2**30, "t")
    assert taken.budget_bytes == MAX_DOCUMENT_BYTES + 5
    assert sorted(len(text.encode()) for text in sampled_texts(ctx.store, taken)) == [5, MAX_DOCUMENT_BYTES]
