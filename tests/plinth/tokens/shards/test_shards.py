from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from plinth.tokens.shards import shards, staged_tokens
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.shards.reader import ShardReader
from plinth.tokens.shards.shards import even_sizes
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.encode import token_dtype
from plinth.tokens.tokenizer.parameters import TokenizerParameters


def _damage(ctx: Context, manifest: Manifest, name: str, at: int) -> None:
    (part,) = manifest.named(name)
    path = ctx.store.path(part.blob)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_the_stream_is_every_document_closed_by_end_of_text(ctx: Context, made: SimpleNamespace) -> None:
    parts = [made.texts(1, 30), [], made.texts(2, 7), ["", "<|endoftext|>"]]
    trained, _, done = made.pipeline(ctx, {"web": parts}, tokens_per_shard=200)
    encoder = tokenizer.load(ctx.store, trained)
    expected = [token for part in parts for text in part for token in [*encoder.encode(text).ids, 0]]
    reader = ShardReader(ctx.store, done["web"])
    assert reader.read(0, reader.tokens).tolist() == expected
    assert done["web"].stats["tokens"] == len(expected)
    assert done["web"].stats["text_bytes"] == sum(len(text.encode()) for part in parts for text in part)
    assert (done["web"].stats["documents"], done["web"].stats["dtype"]) == (39, "<u2")
    assert done["web"].rows == 39


def test_shards_are_even_and_named(ctx: Context, made: SimpleNamespace) -> None:
    _, _, done = made.pipeline(ctx, {"web": [made.texts(1, 30), made.texts(2, 30)]}, tokens_per_shard=300)
    parts = done["web"].named("shard-")
    sizes = [part.stats["tokens"] for part in parts]
    assert [part.name for part in parts] == [f"shard-{i:05d}.bin" for i in range(len(parts))]
    assert max(sizes) - min(sizes) <= 1
    assert [part.blob.bytes for part in parts] == [2 * size for size in sizes]
    assert len(parts) == round(sum(sizes) / 300) > 3
    raw = b"".join(ctx.store.read_bytes(part.blob) for part in parts)
    reader = ShardReader(ctx.store, done["web"])
    assert np.frombuffer(raw, "<u2").tolist() == reader.read(0, reader.tokens).tolist()


@pytest.mark.parametrize(
    ("tokens", "aim", "sizes"), [(0, 5, []), (3, 5, [3]), (10, 5, [5, 5]), (11, 5, [6, 5]), (13, 5, [5, 4, 4])]
)
def test_even_sizes_by_hand(tokens: int, aim: int, sizes: list[int]) -> None:
    assert even_sizes(tokens, aim) == sizes


def test_documents_of_a_span_and_places_of_a_document(ctx: Context, made: SimpleNamespace) -> None:
    _, _, done = made.pipeline(ctx, {"web": [made.texts(1, 20), made.texts(2, 11)]})
    reader = ShardReader(ctx.store, done["web"])
    every = made.documents(reader)
    assert len(every) == 31
    for start, stop in [(0, 1), (5, 9), (every[3].start, every[3].start + 1), (every[19].start, every[21].start + 1)]:
        expected = [span for span in every if span.start < stop and span.start + span.tokens > start]
        assert reader.index.within(np.array([start]), np.array([stop]))[1].records() == expected
    id_ = bytes.fromhex(every[25].id)
    assert reader.index.find(id_) == [every[25]] == reader.index.find(id_, part=1)
    assert reader.index.find(id_, part=0) == reader.index.find(bytes(16)) == []


def test_reads_cross_shards_and_refuse_what_is_outside(ctx: Context, made: SimpleNamespace) -> None:
    _, _, done = made.pipeline(ctx, {"web": [made.texts(1, 30)]}, tokens_per_shard=50)
    reader = ShardReader(ctx.store, done["web"])
    whole = reader.read(0, reader.tokens)
    for start in range(0, reader.tokens - 120, 37):
        assert np.array_equal(reader.read(start, 120), whole[start : start + 120])
    assert reader.read(reader.tokens, 0).size == 0
    for start, count in [(-1, 2), (0, reader.tokens + 1), (reader.tokens, 1)]:
        with pytest.raises(ValueError, match="which has"):
            reader.read(start, count)


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the parts that are encoded from now on."""
    done: list[str] = []
    original = staged_tokens._tokenise
    monkeypatch.setattr(
        staged_tokens, "_tokenise", lambda store, task: (done.append(task.curated.name), original(store, task))[1]
    )
    return done


def test_a_new_part_tokenises_only_itself(ctx: Context, made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [made.texts(1, 20), made.texts(2, 20), made.texts(3, 20)]
    trained, curated, first = made.pipeline(ctx, {"web": texts[:2]})
    for manifest in (curated["web"], first["web"]):
        ctx.refs.publish(manifest, "key")
    done = _counted(monkeypatch)
    more = made.curated(ctx, "web", texts)
    grown = shards.run(ctx, "web", Shards(tokens_per_shard=500), trained, more)
    assert done == ["part-00002.parquet"]  # the others came back out of the published shards
    fresh = Context(Workspace(ctx.workspace.root.parent / "fresh").ensure())
    same, _, _ = made.pipeline(fresh, {"web": texts[:2]})
    more = made.curated(fresh, "web", texts)
    assert shards.run(fresh, "web", Shards(tokens_per_shard=500), same, more) == grown
    assert not list((ctx.store.root / "staging").glob("tokens-*"))


def test_tokens_are_stored_once(ctx: Context, made: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, curated, done = made.pipeline(ctx, {"web": [made.texts(1, 60), made.texts(2, 60)]})
    tokens = 2 * done["web"].stats["tokens"]
    stored = [path.stat().st_size for path in ctx.store.root.rglob("*") if path.is_file()]
    assert sum(part.blob.bytes for part in done["web"].named("shard-")) == tokens
    assert max(stored) < tokens  # no file holds them all, and none is left in staging
    assert not list((ctx.store.root / "staging").iterdir())
    again = _counted(monkeypatch)  # nothing published holds them: encoded again when the cut changes
    other = shards.run(ctx, "web", Shards(tokens_per_shard=300), trained, curated["web"])
    assert again == ["part-00000.parquet", "part-00001.parquet"]
    assert not list((ctx.store.root / "staging").iterdir())
    whole = [ShardReader(ctx.store, one) for one in (done["web"], other)]
    assert np.array_equal(*(reader.read(0, reader.tokens) for reader in whole))


def test_published_shards_that_are_damaged_give_nothing_back(ctx: Context, made: SimpleNamespace) -> None:
    trained, curated, done = made.pipeline(ctx, {"web": [made.texts(1, 60)]})
    for manifest in (curated["web"], done["web"]):
        ctx.refs.publish(manifest, "key")
    before = ShardReader(ctx.store, done["web"]).read(0, done["web"].stats["tokens"]).copy()
    _damage(ctx, done["web"], "shard-00000", 40)
    other = shards.run(ctx, "web", Shards(tokens_per_shard=300), trained, curated["web"])
    assert np.array_equal(ShardReader(ctx.store, other).read(0, len(before)), before)


@pytest.mark.parametrize(("vocabulary", "dtype"), [(65_535, "<u2"), (65_536, "<u2"), (65_537, "<u4")])
def test_the_border_of_two_bytes(vocabulary: int, dtype: str) -> None:
    assert token_dtype(vocabulary) == dtype
    assert np.dtype(dtype).type(vocabulary - 1) == vocabulary - 1


def test_large_vocabularies_get_four_bytes(ctx: Context, made: SimpleNamespace) -> None:
    curated = made.curated(ctx, "web", [made.texts(1, 10)])
    trained = tokenizer.run(ctx, TokenizerParameters(vocab_size=300), {"web": curated})
    wide = trained.model_copy(update={"stats": {**trained.stats, "vocab_size": 70_000}})
    narrow, made_wide = (shards.run(ctx, "web", Shards(), found, curated) for found in (trained, wide))
    assert (made_wide.stats["dtype"], made_wide.stats["bytes_per_token"]) == ("<u4", 4)
    readers = [ShardReader(ctx.store, found) for found in (narrow, made_wide)]
    assert np.array_equal(*(reader.read(0, reader.tokens) for reader in readers))


def test_an_empty_bucket_has_no_shards(ctx: Context, made: SimpleNamespace) -> None:
    _, _, done = made.pipeline(ctx, {"web": [made.texts(1, 20)], "none": [[]]})
    assert done["none"].named("shard-") == ()
    assert ShardReader(ctx.store, done["none"]).tokens == 0
    assert made.documents(ShardReader(ctx.store, done["none"])) == []


def test_a_flipped_byte_is_found(ctx: Context, made: SimpleNamespace) -> None:
    _, _, done = made.pipeline(ctx, {"web": [made.texts(1, 30)]}, tokens_per_shard=300)
    _damage(ctx, done["web"], "shard-00001", 17)
    reader = ShardReader(ctx.store, done["web"])
    reader.read(0, 10)  # the first shard is whole
    with pytest.raises(IntegrityError, match="has changed"):
        reader.read(done["web"].named("shard-")[1].stats["start"], 1)


def test_a_torn_shard_is_named_without_verifying(ctx: Context, made: SimpleNamespace) -> None:
    _, _, done = made.pipeline(ctx, {"web": [made.texts(1, 30)]}, tokens_per_shard=300)
    path = ctx.store.path(done["web"].named("shard-00000")[0].blob)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(IntegrityError, match="torn"):
        ShardReader(ctx.store, done["web"]).read(0, 1)


def test_a_manifest_that_does_not_add_up_is_refused(ctx: Context, made: SimpleNamespace) -> None:
    _, _, done = made.pipeline(ctx, {"web": [made.texts(1, 30)]}, tokens_per_shard=300)
    short = done["web"].model_copy(update={"parts": done["web"].parts[1:]})
    with pytest.raises(IntegrityError, match="do not have the recorded number of tokens"):
        ShardReader(ctx.store, short)
