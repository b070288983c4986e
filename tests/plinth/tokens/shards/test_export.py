from __future__ import annotations

import json
import struct
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, StorageError
from plinth.records import Manifest
from plinth.storage.store import Store
from plinth.tokens.reading.shard_sources import open_shards
from plinth.tokens.shards import reader as exports
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Reading, Shards
from plinth.tokens.shards.reader import open_streams
from plinth.tokens.tokenizer import tokenizer
from plinth_jobs.cli import call
from tests.s3_server import serving

Read = Callable[[str], bytes]


def read_megatron(read: Read, prefix: str) -> tuple[list[list[int]], np.ndarray]:
    """Documents by the rules of Megatron's reader, written from the format's description; and the type of tokens."""
    index, data = read(f"{prefix}.idx"), read(f"{prefix}.bin")
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, documents = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    dtype = np.dtype({1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}[code])
    at = 34
    lengths = np.frombuffer(index, "<i4", sequences, at)
    pointers = np.frombuffer(index, "<i8", sequences, at + 4 * sequences)
    borders = np.frombuffer(index, "<i8", documents, at + 12 * sequences)
    assert len(index) == at + 12 * sequences + 8 * documents
    assert borders[0] == 0
    assert borders[-1] == sequences
    rows = [np.frombuffer(data, dtype, n, p).tolist() for n, p in zip(lengths.tolist(), pointers.tolist(), strict=True)]
    whole = [list(chain(*rows[first:last])) for first, last in pairwise(borders.tolist())]
    return whole, np.empty(0, dtype)


def _line(ctx: Context, made: SimpleNamespace, vocabulary: int = 0) -> tuple[Manifest, list[list[int]]]:
    parts = [made.texts(1, 30), [], made.texts(2, 9)]
    trained, curated, done = made.pipeline(ctx, {"web": parts}, tokens_per_shard=200)
    encoder = tokenizer.load(ctx.store, trained)
    if vocabulary:
        trained = trained.model_copy(update={"stats": {**trained.stats, "vocab_size": vocabulary}})
        done["web"] = shards.run(ctx, "web", Shards(tokens_per_shard=200), trained, curated["web"])
    return done["web"], [[*encoder.encode(text).ids, 0] for part in parts for text in part]


@pytest.mark.parametrize(("vocabulary", "code"), [(0, "<u2"), (70_000, "<i4")])
def test_megatron_gets_every_token_and_document(
    ctx: Context, made: SimpleNamespace, tmp_path: Path, vocabulary: int, code: str
) -> None:
    done, expected = _line(ctx, made, vocabulary)
    (told,) = exports.export(ctx.store, [done], "megatron", str(tmp_path / "out"))
    documents, like = read_megatron(lambda name: Path(name).read_bytes(), told["at"])
    assert documents == expected
    assert like.dtype.str == code == told["dtype"]
    assert (told["tokens"], told["documents"]) == (sum(map(len, expected)), len(expected))
    assert (
        json.loads((tmp_path / "out" / "web.json").read_text())["files"]["web.idx"]["bytes"]
        == (tmp_path / "out" / "web.idx").stat().st_size
    )


def test_plain_files_are_tokens_and_offsets(ctx: Context, made: SimpleNamespace, tmp_path: Path) -> None:
    done, expected = _line(ctx, made)
    (told,) = exports.export(ctx.store, [done], "bin", str(tmp_path))
    tokens, offsets = np.fromfile(tmp_path / "web.bin", told["dtype"]), np.load(tmp_path / "web.npy")
    assert [part.tolist() for part in np.split(tokens, offsets[1:-1])] == expected
    assert (offsets[0], offsets[-1]) == (0, len(tokens))


def test_s3_takes_them_and_shards_are_read_from_there(ctx: Context, made: SimpleNamespace, tmp_path: Path) -> None:
    done, expected = _line(ctx, made)
    with serving() as bucket:
        (told,) = exports.export(ctx.store, [done], "megatron", bucket.uri("mega"))
        documents, _ = read_megatron(lambda name: fsspec.filesystem("s3").cat_file(name), told["at"])
        assert documents == expected
        exports.export(ctx.store, [done], "shards", bucket.uri("named"))
        reading = Reading(remote=bucket.uri("named"), layout="names", cache=str(tmp_path / "cache"))
        reader = open_shards(Store(tmp_path), [done], reading).readers["web"]
        assert reader.read(0, reader.tokens).tolist() == list(chain(*expected))
        with pytest.raises(StorageError, match="cannot write"):
            exports.export(ctx.store, [done], "bin", "s3://no-such-bucket-here/x")
        _damage(ctx, done)
        with pytest.raises(IntegrityError, match="has changed"):
            exports.export(ctx.store, [done], "bin", bucket.uri("bad"))
        assert not fsspec.filesystem("s3").exists(bucket.uri("bad/web.bin"))


def test_a_damaged_shard_leaves_no_file(ctx: Context, made: SimpleNamespace, tmp_path: Path) -> None:
    done, _ = _line(ctx, made)
    _damage(ctx, done)
    with pytest.raises(IntegrityError, match="has changed"):
        exports.export(ctx.store, [done], "megatron", str(tmp_path / "out"))
    assert list((tmp_path / "out").iterdir()) == []


def test_a_document_too_long_for_the_format_is_named(
    ctx: Context, made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, expected = _line(ctx, made)
    monkeypatch.setattr(exports, "MOST_TOKENS", max(map(len, expected)) - 1)
    with pytest.raises(StorageError, match="too long for Megatron"):
        exports.export(ctx.store, [done], "megatron", str(tmp_path))
    assert not (tmp_path / "web.idx").exists()


def test_the_command_writes_a_bucket(
    ctx: Context, made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done, expected = _line(ctx, made)
    ctx.refs.publish(done, "key")
    given = ["-w", str(ctx.workspace.root), "export"]
    assert call([*given, "tokens", "web", "--format", "megatron", "--to", str(tmp_path / "out"), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["tokens"] == sum(map(len, expected))
    assert read_megatron(lambda name: Path(name).read_bytes(), told["at"])[0] == expected
    assert call([*given, "tokens", "nobody", "--format", "bin", "--to", str(tmp_path / "out")]) == 3
    assert call([*given, str(tmp_path / "dvc"), "web/shards"]) == 0
    assert (tmp_path / "dvc" / "web-shards.dvc").exists()
    assert open_streams(ctx.store, [done])["web"].tokens == sum(map(len, expected))


def _damage(ctx: Context, made: Manifest) -> None:
    path: Any = ctx.store.path(made.named("shard-")[1].blob)
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
