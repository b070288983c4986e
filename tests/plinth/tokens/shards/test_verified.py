from __future__ import annotations

import os
from pathlib import Path

import pytest

from plinth.errors import IntegrityError
from plinth.storage.store import Store
from plinth.tokens.shards.verified import verify_once


def test_a_file_is_compared_once_until_it_changes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    blob = store.put_bytes(b"tokens" * 1000)
    assert [verify_once(store, blob), verify_once(Store(tmp_path), blob)] == [True, False]
    path = store.path(blob)
    os.utime(path, ns=(1, 1))  # touched, and whole
    assert [verify_once(store, blob), verify_once(store, blob)] == [True, False]
    path.chmod(0o644)
    path.write_bytes(b"tokenz" * 1000)
    for _ in range(2):  # what is wrong gets no stamp
        with pytest.raises(IntegrityError, match="has changed"):
            verify_once(store, blob)
