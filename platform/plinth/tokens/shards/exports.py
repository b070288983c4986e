"""Exports of token shards for other trainers.

    megatron   NAME.bin, NAME.idx       megatron/core/datasets/indexed_dataset.py, version 1; a sequence is a document
    olmo       NAME.npy, NAME.csv.gz    tokens alone, as OLMo-core maps them; first and end token of each document
    mds        NAME/index.json, *.mds   MosaicML Streaming, version 2; a sample is the column `tokens` of a document
    bin        NAME.bin, NAME.npy       tokens alone, as nanoGPT reads them; [documents + 1] int64 offsets in tokens
    shards     ASSET/PART               every file under its name, as `training.reading.layout: names` reads them

NAME is the stream's. Every shard's SHA-256 is compared as it is copied or before it is read; a file appears whole or
not at all. `NAME.json` (counts, digests; for MDS its `index.json`) is written last. Memory is one copy buffer, one
document and one batch of the index.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from plinth.errors import StorageError
from plinth.records import Manifest, Part
from plinth.storage.atomic import relative
from plinth.storage.store import Store, require_unchanged
from plinth.storage.uris import Sink, WrittenFile, write_file
from plinth.tokens.shards.reader import ShardReader, open_streams

Format = Literal["megatron", "bin", "shards", "olmo", "mds"]

MAGIC, MEGATRON_VERSION = b"MMIDIDX\x00\x00", 1
#: Megatron's codes of the two types that tokens have. It knows no uint32; ids stay far below 2^31.
MEGATRON_TYPE = {"<u2": 8, "<u4": 4}
MOST_TOKENS = 2**31 - 1  # of a document: lengths are int32
_NUMBERS = 2**20

#: Maximum bytes of an MDS file, as the default of its own writer; a longer document has its own file.
MDS_BYTES = 1 << 26

Numbers = NDArray[np.int64]


def export(store: Store, shards: Iterable[Manifest], kind: Format, to: str) -> list[dict[str, Any]]:
    """Write the streams of shard sets into a folder or `s3://` prefix, and return a description of each stream or
    asset.

    In a description, `sha256` maps the name of every file relative to `to` to its digest.

    Raises:
        IntegrityError: a shard has changed; the file with its tokens is not written.
        StorageError: `to` cannot be written, or a document is too long for the format.
    """
    root = to.rstrip("/")
    if kind == "shards":
        return [_named(store, made, root) for made in shards]
    write = {"megatron": _megatron, "bin": _plain, "olmo": _olmo, "mds": _mds}[kind]
    return [write(store, reader, root, name) for name, reader in open_streams(store, shards).items()]


def _megatron(store: Store, reader: ShardReader, to: str, name: str) -> dict[str, Any]:
    prefix = f"{to}/{name}"
    files = {"bin": write_file(f"{prefix}.bin", lambda out: _tokens(store, reader.shards, out))}
    files["idx"] = write_file(f"{prefix}.idx", lambda out: _megatron_index(reader, out))
    return _write_facts(reader, to, name, "megatron", files)


def _megatron_index(reader: ShardReader, out: Sink) -> None:
    """Write Megatron's index file.

    The file has a header, the document lengths (int32), their byte offsets (int64), and the number of the sequence at
    which each document begins (int64), followed by the number of documents.
    """
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


def _olmo(store: Store, reader: ShardReader, to: str, name: str) -> dict[str, Any]:
    prefix = f"{to}/{name}"
    files = {"npy": write_file(f"{prefix}.npy", lambda out: _tokens(store, reader.shards, out))}
    files["csv.gz"] = write_file(f"{prefix}.csv.gz", lambda out: _boundaries(reader, out))
    return _write_facts(reader, to, name, "olmo", files)


def _boundaries(reader: ShardReader, out: Sink) -> None:
    """Write the first and the end token of each document, as lines of a compressed table. The time is left out."""
    with gzip.GzipFile(filename="", mode="wb", fileobj=cast(Any, out), mtime=0) as packed:
        for starts, lengths in reader.index_batches():
            pairs = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
            packed.write("".join(f"{start},{end}\n" for start, end in pairs).encode())


def _mds(store: Store, reader: ShardReader, to: str, name: str) -> dict[str, Any]:
    described = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": ["sha256"],
        "size_limit": MDS_BYTES,
        "column_names": ["tokens"],
        "column_encodings": [f"ndarray:{reader.dtype.name}"],
        "column_sizes": [None],
    }
    files, listed = {}, []
    columns = json.dumps(described, sort_keys=True).encode()
    for number, (starts, lengths) in enumerate(_mds_groups(reader, MDS_BYTES - 8 - len(columns))):
        file = f"shard.{number:05d}.mds"
        content = _mds_bytes(reader, starts, lengths, columns)
        written = write_file(f"{to}/{name}/{file}", lambda out, content=content: _all(content, out))  # type: ignore[misc]
        raw = {"basename": file, "bytes": written.bytes, "hashes": {"sha256": written.sha256}}
        listed.append({**described, "samples": len(starts), "raw_data": raw, "zip_data": None})
        files[f"{name}/{file}"] = written
    index = json.dumps({"version": 2, "shards": listed}, sort_keys=True).encode()
    files[f"{name}/index.json"] = write_file(f"{to}/{name}/index.json", lambda out: out.write(index))
    facts = {**_facts(reader, "mds"), "files": {one.rpartition("/")[2]: own.model_dump() for one, own in files.items()}}
    return {**facts, "at": f"{to}/{name}", "sha256": {one: own.sha256 for one, own in files.items()}}


def _mds_groups(reader: ShardReader, most: int) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the starts and lengths of the documents of each MDS file: at most `most` bytes, at least one document.

    A file ends with each batch of the index, so that a group is never larger than a batch.
    """
    for starts, lengths in reader.index_batches():
        ends = np.cumsum(_sample_bytes(lengths, reader.dtype) + 4)
        first = 0
        while first < len(starts):
            before = ends[first - 1] if first else 0
            stop = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
            yield starts[first:stop], lengths[first:stop]
            first = stop


def _sample_bytes(lengths: Numbers, dtype: np.dtype[Any]) -> Numbers:
    """Return the bytes of each sample: the size, one byte for the number of axes, the length, and the tokens."""
    return 4 + 1 + _length_bytes(lengths) + lengths * dtype.itemsize


def _length_bytes(lengths: Numbers) -> Numbers:
    return np.select([lengths < 1 << 8, lengths < 1 << 16], [1, 2], 4)


def _mds_bytes(reader: ShardReader, starts: Numbers, lengths: Numbers, described: bytes) -> Iterator[bytes]:
    """Yield the bytes of an MDS file: number of samples, their offsets, the columns, and the samples.

    Raises:
        StorageError: a document is too long for the 32-bit offsets of the format.
    """
    sizes = _sample_bytes(lengths, reader.dtype)
    offsets = np.concatenate([[0], np.cumsum(sizes)]) + 4 + 4 * (len(starts) + 1) + len(described)
    if offsets[-1] >= 1 << 32:
        raise StorageError(
            f"a document of {reader.stream.name} is too long for MDS",
            found=f"{lengths.max():,} tokens",
            expected="files of less than 4 GiB",
            remedy="export with --format olmo",
        )
    yield struct.pack("<I", len(starts)) + offsets.astype("<u4").tobytes() + described
    widths = _length_bytes(lengths)
    for start, length, size, width in zip(*(one.tolist() for one in (starts, lengths, sizes, widths)), strict=True):
        head = struct.pack("<IB", size - 4, 1 << 2 | width.bit_length() - 1) + length.to_bytes(width, "little")
        yield head + reader.read(start, length).tobytes()


def _all(pieces: Iterable[bytes], out: Sink) -> None:
    for piece in pieces:
        out.write(piece)


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
        **_facts(reader, kind),
        "files": {f"{name.rpartition('/')[2]}.{suffix}": written.model_dump() for suffix, written in files.items()},
    }
    text = json.dumps(facts, indent=2, sort_keys=True).encode() + b"\n"
    written = {**files, "json": write_file(f"{to}/{name}.json", lambda out: out.write(text))}
    digests = {f"{name}.{suffix}": one.sha256 for suffix, one in written.items()}
    return {**facts, "at": f"{to}/{name}", "sha256": digests}


def _facts(reader: ShardReader, kind: str) -> dict[str, Any]:
    return {
        "stream": reader.stream.name,
        "format": kind,
        "tokens": reader.tokens,
        "documents": reader.documents_count,
        "dtype": "<i4" if kind == "megatron" and reader.dtype.itemsize == 4 else reader.dtype.str,
        "end_of_text": reader.end_of_text,
    }


def _tokens(store: Store, parts: Iterable[Part], out: Sink) -> None:
    """Write the bytes of parts to `out` in order, and compare each part with its digest."""
    for part in parts:
        require_unchanged(store.located(part.blob), part.blob, out.write, part=part.name)
