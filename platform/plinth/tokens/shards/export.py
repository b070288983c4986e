"""Shards for other trainers: Megatron's indexed dataset, plain token files, or the shards by name.

    megatron   NAME.bin, NAME.idx     megatron/core/datasets/indexed_dataset.py, version 1; a sequence is a document
    bin        NAME.bin, NAME.npy     tokens alone, as nanoGPT reads them; [documents + 1] int64 offsets in tokens
    shards     ASSET/PART             every file under its name, as `training.reading.layout: names` reads them

NAME is the stream's. Every shard's SHA-256 is compared as it is copied; a file appears whole or not at all, and
`NAME.json` (counts, digests) is written last. Memory is one copy buffer and one batch of the index.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from plinth.errors import StorageError
from plinth.records import Manifest, Part
from plinth.storage.safe_path import relative
from plinth.storage.store import Store, require_unchanged
from plinth.storage.uris import Sink, WrittenFile, write_file
from plinth.tokens.shards.reader import ShardReader, open_streams

Format = Literal["megatron", "bin", "shards"]

MAGIC, MEGATRON_VERSION = b"MMIDIDX\x00\x00", 1
#: Megatron's codes of the two types that tokens have. It knows no uint32; ids stay far below 2^31.
MEGATRON_TYPE = {"<u2": 8, "<u4": 4}
MOST_TOKENS = 2**31 - 1  # of a document: lengths are int32
_NUMBERS = 2**20


def export(store: Store, shards: Iterable[Manifest], kind: Format, to: str) -> list[dict[str, Any]]:
    """Write the streams of shard sets below a folder or `s3://` prefix; returns facts by stream or asset, of which
    `sha256` has the digest of every file by its name below `to`.

    Raises:
        IntegrityError: a shard has changed; the file that it belongs to is not written.
        StorageError: the place cannot be written, or a document is too long for the format.
    """
    root = to.rstrip("/")
    if kind == "shards":
        return [_named(store, made, root) for made in shards]
    write = _megatron if kind == "megatron" else _plain
    return [write(store, reader, root, name) for name, reader in open_streams(store, shards).items()]


def _megatron(store: Store, reader: ShardReader, to: str, name: str) -> dict[str, Any]:
    prefix = f"{to}/{name}"
    files = {"bin": write_file(f"{prefix}.bin", lambda out: _tokens(store, reader.shards, out))}
    files["idx"] = write_file(f"{prefix}.idx", lambda out: _megatron_index(reader, out))
    return _write_facts(reader, to, name, "megatron", files)


def _megatron_index(reader: ShardReader, out: Sink) -> None:
    """Header, lengths int32, byte offsets int64, and the sequence at which each document begins, int64, and the end."""
    documents = reader.documents_count
    out.write(MAGIC + struct.pack("<QBQQ", MEGATRON_VERSION, MEGATRON_TYPE[reader.dtype.str], documents, documents + 1))
    for _, lengths in reader.index_batches():
        if lengths.max(initial=0) > MOST_TOKENS:
            raise StorageError(
                f"a document of {reader.stream.name} is too long for Megatron's index",
                found=f"{lengths.max():,} tokens",
                expected=f"at most {MOST_TOKENS:,}",
                remedy="export with --format bin",
            )
        out.write(lengths.astype("<i4").tobytes())
    for starts, _ in reader.index_batches():
        out.write((starts * reader.dtype.itemsize).astype("<i8").tobytes())
    for first in range(0, documents + 1, _NUMBERS):
        out.write(np.arange(first, min(first + _NUMBERS, documents + 1), dtype="<i8").tobytes())


def _plain(store: Store, reader: ShardReader, to: str, name: str) -> dict[str, Any]:
    prefix = f"{to}/{name}"
    files = {"bin": write_file(f"{prefix}.bin", lambda out: _tokens(store, reader.shards, out))}
    files["npy"] = write_file(f"{prefix}.npy", lambda out: _offsets(reader, out))
    return _write_facts(reader, to, name, "bin", files)


def _offsets(reader: ShardReader, out: Sink) -> None:
    shape = {"descr": "<i8", "fortran_order": False, "shape": (reader.documents_count + 1,)}
    np.lib.format.write_array_header_1_0(out, shape)
    for starts, _ in reader.index_batches():
        out.write(starts.astype("<i8").tobytes())
    out.write(np.array([reader.tokens], "<i8").tobytes())


def _named(store: Store, made: Manifest, to: str) -> dict[str, Any]:
    digests = {}
    for part in made.parts:
        name = f"{made.asset}/{relative(part.name, made.asset)}"
        written = write_file(f"{to}/{name}", lambda out, part=part: _tokens(store, [part], out))  # type: ignore[misc]
        digests[name] = written.sha256
    last = write_file(f"{to}/{made.asset}/manifest.json", lambda out: out.write(made.model_dump_json().encode()))
    digests[f"{made.asset}/manifest.json"] = last.sha256
    facts = {"asset": made.asset, "format": "shards", "digest": made.digest, "files": len(made.parts)}
    return {**facts, "at": f"{to}/{made.asset}", "sha256": digests}


def _write_facts(
    reader: ShardReader, to: str, name: str, kind: str, files: Mapping[str, WrittenFile]
) -> dict[str, Any]:
    facts = {
        "stream": reader.stream.name,
        "format": kind,
        "tokens": reader.tokens,
        "documents": reader.documents_count,
        "dtype": "<i4" if kind == "megatron" and reader.dtype.itemsize == 4 else reader.dtype.str,
        "end_of_text": reader.end_of_text,
        "files": {f"{name.rpartition('/')[2]}.{suffix}": written.model_dump() for suffix, written in files.items()},
    }
    text = json.dumps(facts, indent=2, sort_keys=True).encode() + b"\n"
    written = {**files, "json": write_file(f"{to}/{name}.json", lambda out: out.write(text))}
    digests = {f"{name}.{suffix}": one.sha256 for suffix, one in written.items()}
    return {**facts, "at": f"{to}/{name}", "sha256": digests}


def _tokens(store: Store, parts: Iterable[Part], out: Sink) -> None:
    """Bytes of parts, one after another, each compared with its digest."""
    for part in parts:
        require_unchanged(store.located(part.blob), part.blob, out.write, part=part.name)
