from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.errors import IntegrityError
from plinth.records import Manifest
from plinth.storage.parts import write_table
from plinth.tokens.tokenizer import audit, tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters

TEXTS = ["the house of the river", "the be to of and", "haus und fluss über dem haus", "東京 東京"]
#: A vocabulary with nothing to complain of.
SOUND: dict[str, Any] = {
    "byte_tokens": 256,
    "unreachable_share": 0.0,
    "digits": {"longest": 1},
    "arbitrary_bytes": {"strings": 9, "failed": 0},
}
SPACED: dict[str, Any] = {"scripts": {}, "spaced": 100}
LANGUAGES = ["en", "en", "de", None]


def _languages(ctx: Context, bucket: str, parts: list[list[str | None]]) -> Manifest:
    written = [
        write_table(ctx.store, f"part-{i:05d}.parquet", pa.table({"label": pa.array(own, pa.string())}))
        for i, own in enumerate(parts)
    ]
    return Manifest(asset=f"{bucket}/language", step="made", version="1", params={}, inputs={}, parts=tuple(written))


def _audited(ctx: Context, made: SimpleNamespace, params: TokenizerParameters, kept: int = 4) -> Manifest:
    """One bucket whose documents have all TEXTS, and whose curated part has the first `kept`."""
    documents = made.curated(ctx, "web", [TEXTS], asset="documents")
    curated = made.curated(ctx, "web", [TEXTS[:kept]])
    trained = tokenizer.run(ctx, params, {"web": curated})
    language = _languages(ctx, "web", [LANGUAGES])
    return audit.run(ctx, params, trained, {"web": curated}, {"web": documents}, {"web": language})


def test_facts_by_hand(ctx: Context, made: SimpleNamespace) -> None:
    # A vocabulary of bytes alone: a token is a byte, and each byte of 東京 is a fragment of a character.
    result = _audited(ctx, made, TokenizerParameters(vocab_size=260, min_frequency=1000, max_fertility=99))
    assert {name: facts["documents"] for name, facts in result.stats["languages"].items()} == {
        "de": 1,
        "en": 2,
        "und": 1,
    }
    english, unknown = result.stats["languages"]["en"], result.stats["languages"]["und"]
    assert (english["words"], english["bytes"], english["tokens"]) == (10, 38, 38)
    assert (english["fertility"], english["bytes_per_token"], english["fragment_share"]) == (3.8, 1.0, 0.0)
    assert (unknown["words"], unknown["characters"], unknown["bytes"], unknown["fragments"]) == (4, 5, 13, 12)
    assert (unknown["spaced"], unknown["scripts"], unknown["fertility"]) == (0, {"han": 4}, 13 / 4)
    bucket = result.stats["buckets"]["web"]
    assert bucket["tokens"] == sum(facts["tokens"] for facts in result.stats["languages"].values())
    used = {byte for text in TEXTS for byte in text.encode()}
    assert (result.stats["byte_tokens"], result.stats["unused_tokens"]) == (256, 256 - len(used))
    assert result.stats["failures"] == ["bucket web: 1.00 bytes per token, minimum 1.5"]


def test_languages_follow_documents_that_were_dropped(ctx: Context, made: SimpleNamespace) -> None:
    result = _audited(ctx, made, TokenizerParameters(vocab_size=300), kept=2)
    assert set(result.stats["languages"]) == {"en"}


def test_everything_comes_back(ctx: Context, made: SimpleNamespace) -> None:
    result = _audited(ctx, made, TokenizerParameters(vocab_size=300))
    assert result.stats["round_trip"]["failed"] == 0
    assert result.stats["round_trip"]["texts"] == 4 + len(list(audit.trial_texts()))


def test_trial_texts_reach_every_plane() -> None:
    points = {ord(character) for text in audit.trial_texts() for character in text}
    assert {point >> 16 for point in points} == set(range(17))
    assert set(range(0x3000)) <= points


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"max_fertility": 2.0}, ["bucket web: fertility 2.50 tokens per word, limit 2"]),
        (
            {"max_fertility_by_language": {"de": 4.0, "fr": 1.0}},
            ["language de: fertility 5.00 tokens per word, limit 4"],
        ),
        (
            {"max_fertility_by_domain": {"news.example": 1.5}},
            ["domain news.example: fertility 2.00 tokens per word, limit 1.5"],
        ),
        ({"min_bytes_per_token": 3.5}, ["bucket web: 3.00 bytes per token, minimum 3.5"]),
    ],
)
def test_bounds(changes: dict[str, Any], expected: list[str]) -> None:
    stats = {
        "buckets": {
            "web": {**SPACED, "fertility": 2.5, "bytes_per_token": 3.0},
            "empty": {"fertility": None, "bytes_per_token": None, "scripts": {}, "spaced": 0},
        },
        "languages": {"de": {**SPACED, "fertility": 5.0}},
        "domains": {"news.example": {**SPACED, "fertility": 2.0}},
        "round_trip": {"failed": 0, "texts": 3},
        **SOUND,
    }
    assert audit.failures(TokenizerParameters(**changes), stats) == expected


@pytest.mark.parametrize(
    ("scripts", "spaced", "fertility", "expected"),
    [
        ({"han": 600}, 0, 1.9, []),  # 22.8 tokens for each run between spaces, and no fault
        ({"han": 600}, 0, 2.1, ["bucket zh: fertility 2.10 tokens per character (Han), limit 2"]),
        ({"han": 100}, 300, 3.4, []),  # three words of four have the limit of words: 3.5
        ({"thai": 4}, 4, 3.1, ["bucket zh: fertility 3.10 tokens per word or character (Thai), limit 3"]),
    ],
)
def test_a_script_without_spaces_has_its_own_limit(
    scripts: dict[str, int], spaced: int, fertility: float, expected: list[str]
) -> None:
    facts = {"fertility": fertility, "bytes_per_token": 3.0, "scripts": scripts, "spaced": spaced}
    stats = {"buckets": {"zh": facts}, "languages": {}, "domains": {}, "round_trip": {"failed": 0, "texts": 3}, **SOUND}
    assert audit.failures(TokenizerParameters(), stats) == expected


def test_a_bucket_that_ends_empty_and_a_vocabulary_that_stays_small_are_named() -> None:
    stats = {"buckets": {"web": {"tokens": 9}, "few": {"tokens": 0}}, "languages": {}, "domains": {}, "vocab_size": 660}
    assert audit.unjudged(TokenizerParameters(vocab_size=70_000), stats) == [
        "bucket few: not measured, it has no curated text",
        "the vocabulary has 660 tokens, tokenizer.vocab_size is 70,000: the text has no more pairs to merge; "
        "add text or lower vocab_size",
    ]
    assert len(audit.unjudged(TokenizerParameters(kind="initial"), stats)) == 1


def test_a_bound_that_judged_nothing_is_told() -> None:
    stats = {"languages": {"de": {"fertility": 5.0}, "en": {"fertility": 2.0}}, "domains": {}}
    stats |= {"buckets": {}, "vocab_size": 8192}
    bounds = {"max_fertility_by_language": {"english": 2.0, "de": 9.0}, "max_fertility_by_domain": {"a.example": 2.0}}
    assert audit.unjudged(TokenizerParameters(**bounds), stats) == [
        "language english: has a limit but no text; have: de, en",
        "domain a.example: has a limit but no text; have: none",
    ]


def test_lost_bytes_and_lost_texts_are_failures() -> None:
    stats = {"buckets": {}, "languages": {}, "domains": {}, "round_trip": {"failed": 2, "texts": 3}}
    stats |= {**SOUND, "byte_tokens": 255}
    lines = audit.failures(TokenizerParameters(), stats)
    assert lines == [
        "2 of 3 texts did not round-trip",
        "255 of 256 bytes are in the vocabulary: some text cannot be encoded",
    ]


def test_the_sample_is_capped_and_kept_in_order(ctx: Context, made: SimpleNamespace) -> None:
    texts = made.texts(4, 100)
    documents = made.curated(ctx, "web", [texts], asset="documents")
    params = TokenizerParameters(vocab_size=300, audit_bytes_per_part=3000)
    trained = tokenizer.run(ctx, params, {"web": documents})
    language = {"web": _languages(ctx, "web", [["en"] * 100])}
    result = audit.run(ctx, params, trained, {"web": documents}, {"web": documents}, language)
    assert 2000 < result.stats["buckets"]["web"]["bytes"] <= 3000


def test_a_giant_is_measured_up_to_the_cap(ctx: Context, made: SimpleNamespace) -> None:
    documents = made.curated(ctx, "web", [["é" * 5000]], asset="documents")
    params = TokenizerParameters(vocab_size=300, audit_bytes_per_part=1001)
    trained = tokenizer.run(ctx, params, {"web": documents})
    language = {"web": _languages(ctx, "web", [["fr"]])}
    result = audit.run(ctx, params, trained, {"web": documents}, {"web": documents}, language)
    assert result.stats["buckets"]["web"]["bytes"] == 1000


def test_sidecars_of_other_documents_are_refused(ctx: Context, made: SimpleNamespace) -> None:
    documents = made.curated(ctx, "web", [TEXTS], asset="documents")
    params = TokenizerParameters(vocab_size=300)
    trained = tokenizer.run(ctx, params, {"web": documents})
    for language, message in (
        (_languages(ctx, "web", [["en"]]), "differ in their rows"),
        (_languages(ctx, "web", []), "no document or language parts"),
    ):
        with pytest.raises(IntegrityError, match=message):
            audit.run(ctx, params, trained, {"web": documents}, {"web": documents}, {"web": language})


@pytest.mark.exhaustive
def test_workers_do_not_show(tmp_path: object, make_ctx: object, made: SimpleNamespace) -> None:
    digests = set()
    for workers in (1, 2):
        with LocalEngine(workers) as engine:
            ctx = make_ctx(f"w{workers}", engine)  # type: ignore[operator]
            digests.add(_audited(ctx, made, TokenizerParameters(vocab_size=300)).digest)
    assert len(digests) == 1
