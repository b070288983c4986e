"""Data pages of exported Parquet recur after an insertion, so that a store of chunks keeps them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plinth.storage.parts import ROW_GROUP_ROWS, parquet_encoding
from plinth.storage.uris import DigestWriter
from plinth_audit.text_export.export import write_parquet

SCHEMA = pa.schema([pa.field("id", pa.string()), pa.field("text", pa.large_string()), pa.field("edits", pa.int32())])
DOCUMENTS, LENGTH = 6000, 4000


class Compact:
    """Reader of Thrift's compact protocol, as far as Parquet's page headers need it."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def integer(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def struct(self) -> dict[int, int]:
        """The integers of a struct by field; other values are read and left out."""
        found, field = dict[int, int](), 0
        while head := self.data[self.at]:
            self.at += 1
            kind, delta = head & 15, head >> 4
            field = field + delta if delta else self.integer()
            if kind in (4, 5, 6):
                found[field] = self.integer()
            elif kind == 8:
                length = self.varint()
                self.at += length
            elif kind == 12:
                self.struct()
            else:
                assert kind in (1, 2), f"Thrift type {kind}"  # booleans have no bytes of their own
        self.at += 1
        return found


def pages(data: bytes) -> Iterator[bytes]:
    """The data pages of a Parquet file, as they are stored."""
    meta = pq.read_metadata(BytesIO(data))
    for group in range(meta.num_row_groups):
        for column in range(meta.num_columns):
            chunk = meta.row_group(group).column(column)
            first = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
            end = first + chunk.total_compressed_size
            while first < end:
                reader = Compact(data, first)
                header = reader.struct()
                first = reader.at + header[3]
                if header[1] != 2:  # a dictionary
                    yield data[reader.at : first]


def documents() -> pa.RecordBatch:
    letters = np.random.default_rng(1).integers(97, 123, DOCUMENTS * LENGTH, dtype=np.uint8).tobytes().decode()
    texts = [letters[at : at + LENGTH] for at in range(0, len(letters), LENGTH)]
    ids = [hashlib.sha256(text.encode()).hexdigest()[:32] for text in texts]
    return pa.record_batch([ids, pa.array(texts, pa.large_string()), pa.array([0] * len(texts), pa.int32())], SCHEMA)


def exported(batch: pa.RecordBatch) -> bytes:
    out = BytesIO()
    write_parquet(SCHEMA, [batch], DigestWriter(out))
    return out.getvalue()


def plain(batch: pa.RecordBatch) -> bytes:
    """The same file without the option."""
    out = BytesIO()
    with pq.ParquetWriter(out, SCHEMA, **parquet_encoding(SCHEMA)) as file:
        file.write_table(pa.Table.from_batches([batch]), ROW_GROUP_ROWS)
    return out.getvalue()


def recurring(before: bytes, after: bytes) -> float:
    """The share of the bytes of data pages of a file that another file already has."""
    known = {hashlib.sha256(page).digest() for page in pages(before)}
    sizes = [(len(page), hashlib.sha256(page).digest() in known) for page in pages(after)]
    whole = sum(size for size, _ in sizes)
    assert whole > 0.95 * len(after)  # the rest is dictionaries, headers with the statistics of a page, and the footer
    return sum(size for size, same in sizes if same) / whole


@pytest.fixture(scope="module")
def batches() -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Documents, and the same after one that is inserted at the beginning."""
    batch = documents()
    new = pa.record_batch(
        [["0" * 32], pa.array(["a new document"], pa.large_string()), pa.array([1], pa.int32())], SCHEMA
    )
    return batch, pa.Table.from_batches([new, batch]).combine_chunks().to_batches()[0]


def test_pages_recur_after_an_insertion(batches: tuple[pa.RecordBatch, pa.RecordBatch]) -> None:
    before, after = map(exported, batches)
    assert recurring(before, after) > 0.8
    assert pq.read_table(BytesIO(after)).equals(pa.Table.from_batches([batches[1]]))


def test_without_the_option_they_do_not(batches: tuple[pa.RecordBatch, pa.RecordBatch]) -> None:
    assert recurring(*map(plain, batches)) < 0.05
