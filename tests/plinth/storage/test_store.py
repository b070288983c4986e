"""Blobs by content: layout, verification, faults."""

import hashlib
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plinth.errors import DiskFullError, IntegrityError, MissingError
from plinth.storage.store import Store, hash_stream


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=25)
@given(st.binary(max_size=4000))
def test_round_trip_and_dvc_layout(store: Store, data: bytes) -> None:
    blob = store.put_bytes(data)
    md5 = hashlib.md5(data).hexdigest()
    assert (blob.md5, blob.sha256, blob.bytes) == (md5, hashlib.sha256(data).hexdigest(), len(data))
    path = store.root / "files" / "md5" / md5[:2] / md5[2:]
    assert store.path(blob) == store.path(md5) == path
    assert path.stat().st_mode & 0o777 == 0o444
    assert store.read_bytes(blob) == data
    assert store.put_bytes(data) == blob
    assert list((store.root / "staging").iterdir()) == []


def test_hash_stream_reads_beyond_one_chunk() -> None:
    data = bytes(range(256)) * 10_000
    assert hash_stream(io.BytesIO(data)).sha256 == hashlib.sha256(data).hexdigest()


def test_torn_blob_is_refused_and_replaced_by_the_next_write(store: Store) -> None:
    blob = store.put_bytes(b"four")
    path = store.path(blob)
    path.chmod(0o644)
    path.write_bytes(b"fou")
    assert not store.has(blob)
    with pytest.raises(IntegrityError, match="torn"):
        store.open_path(blob)
    assert store.put_bytes(b"four") == blob
    assert store.read_bytes(blob) == b"four"


def test_flipped_byte_is_found_by_verify(store: Store) -> None:
    blob = store.put_bytes(b"four")
    store.path(blob).chmod(0o644)
    store.path(blob).write_bytes(b"fouR")
    assert store.has(blob)
    with pytest.raises(IntegrityError, match="has changed"):
        store.verify(blob)
    with pytest.raises(IntegrityError, match="has changed"):
        store.read_bytes(blob)


def test_missing_blob_is_named(store: Store) -> None:
    blob = store.put_bytes(b"x")
    store.path(blob).unlink()
    with pytest.raises(MissingError, match=blob.md5):
        store.verify(blob)


def test_full_disk_leaves_no_blob_and_no_staging(small_disk: Path) -> None:
    store = Store(small_disk)
    with pytest.raises(DiskFullError):
        store.put_bytes(bytes(2**20))
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []
    assert store.read_bytes(store.put_bytes(b"small")) == b"small"
