from __future__ import annotations

import gzip
import hashlib
import json
import struct
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.errors import IntegrityError, StorageError
from plinth.records import Manifest
from plinth.storage.store import Store
from plinth.tokens.reading.shard_sources import open_shards
from plinth.tokens.shards import exports, shards
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


@pytest.mark.parametrize("vocabulary", [0, 70_000])
def test_olmo_gets_tokens_and_document_borders(
    ctx: Context, made: SimpleNamespace, tmp_path: Path, vocabulary: int
) -> None:
    done, expected = _line(ctx, made, vocabulary)
    (told,) = exports.export(ctx.store, [done], "olmo", str(tmp_path / "out"))
    tokens = np.fromfile(f"{told['at']}.npy", told["dtype"])
    borders = gzip.decompress(Path(f"{told['at']}.csv.gz").read_bytes()).decode()
    rows = [line.split(",") for line in borders.split()]
    assert [tokens[int(first) : int(end)].tolist() for first, end in rows] == expected
    exports.export(ctx.store, [done], "olmo", str(tmp_path / "again"))
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()
        assert hashlib.sha256(path.read_bytes()).hexdigest() == told["sha256"][path.name]


def test_the_reader_of_olmo_core_agrees(
    ctx: Context, made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLMO_TRITON_CACHE_DIR_AUTO", "")  # set when the library is imported
    data = pytest.importorskip("olmo_core.data")
    done, expected = _line(ctx, made)
    (told,) = exports.export(ctx.store, [done], "olmo", str(tmp_path / "out"))
    path, dtype = f"{told['at']}.npy", np.dtype(told["dtype"]).type
    for given in ({"use_array_if_local": False}, {"eos_token_id": told["end_of_text"]}):
        found = list(data.utils.iter_document_indices(path, dtype=dtype, **given))
        assert [data.utils.load_array_slice(path, *one, dtype).tolist() for one in found] == expected
    whole = list(chain(*expected))
    rows = data.NumpyFSLDataset(path, sequence_length=16, pad_token_id=0, eos_token_id=0, vocab_size=500, dtype=dtype)
    rows.prepare()
    assert [rows[n]["input_ids"].tolist() for n in range(len(rows))] == [
        whole[at : at + 16] for at in range(0, len(whole) // 16 * 16, 16)
    ]


def read_mds(folder: Path) -> list[list[int]]:
    """Samples by the rules of MosaicML's reader, written from the format's description."""
    samples = []
    for shard in json.loads((folder / "index.json").read_text())["shards"]:
        data = (folder / shard["raw_data"]["basename"]).read_bytes()
        assert len(data) == shard["raw_data"]["bytes"]
        assert hashlib.sha256(data).hexdigest() == shard["raw_data"]["hashes"]["sha256"]
        (count,) = struct.unpack_from("<I", data)
        assert count == shard["samples"]
        for first, end in pairwise(struct.unpack_from(f"<{count + 1}I", data, 4)):
            (size,) = struct.unpack_from("<I", data, first)
            assert first + 4 + size == end
            width = 1 << data[first + 4] % 4
            assert data[first + 4] >> 2 == 1
            kind = shard["column_encodings"][0].removeprefix("ndarray:")
            tokens = np.frombuffer(data[first + 5 + width : end], kind).tolist()
            assert len(tokens) == int.from_bytes(data[first + 5 : first + 5 + width], "little")
            samples.append(tokens)
    return samples


@pytest.mark.parametrize(("vocabulary", "most"), [(0, 1 << 26), (70_000, 400), (0, 1)])
def test_mds_has_a_sample_per_document(
    ctx: Context, made: SimpleNamespace, tmp_path: Path, vocabulary: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "MDS_BYTES", most)
    done, expected = _line(ctx, made, vocabulary)
    (told,) = exports.export(ctx.store, [done], "mds", str(tmp_path / "out"))
    assert read_mds(tmp_path / "out" / "web") == expected
    files = {f"web/{path.name}" for path in (tmp_path / "out" / "web").iterdir()}
    assert files == set(told["sha256"])
    assert len(files) == {1 << 26: 2, 1: 1 + len(expected)}.get(most, len(files))


def streaming_base(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package `streaming.base`. `streaming` itself imports torchvision, for data sets of images."""
    spec = find_spec("streaming")
    if spec is None:
        pytest.skip("mosaicml-streaming is not installed")
    package = ModuleType("streaming")
    package.__path__ = list(spec.submodule_search_locations or ())
    monkeypatch.setitem(sys.modules, "streaming", package)
    return import_module("streaming.base")


def test_the_writer_and_reader_of_streaming_agree(
    ctx: Context, made: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streaming = streaming_base(monkeypatch)
    monkeypatch.setattr(exports, "MDS_BYTES", 2000)
    done, expected = _line(ctx, made)
    exports.export(ctx.store, [done], "mds", str(tmp_path / "out"))
    found = streaming.LocalDataset(str(tmp_path / "out" / "web"))
    assert [found[n]["tokens"].tolist() for n in range(len(found))] == expected
    columns, theirs = {"tokens": "ndarray:uint16"}, tmp_path / "theirs"
    with streaming.MDSWriter(columns=columns, out=str(theirs), hashes=["sha256"], size_limit=2000) as writer:
        for document in expected:
            writer.write({"tokens": np.array(document, "<u2")})
    for path in theirs.iterdir():
        assert (tmp_path / "out" / "web" / path.name).read_bytes() == path.read_bytes()


def test_megatrons_own_reader_agrees(ctx: Context, made: SimpleNamespace, tmp_path: Path) -> None:
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    for vocabulary in (0, 70_000):
        done, expected = _line(ctx, made, vocabulary)
        (told,) = exports.export(ctx.store, [done], "megatron", str(tmp_path / f"out{vocabulary}"))
        found = indexed.IndexedDataset(told["at"])
        assert [one.tolist() for one in found[: len(found)]] == expected
        assert found.document_indices.tolist() == list(range(len(expected) + 1))


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
