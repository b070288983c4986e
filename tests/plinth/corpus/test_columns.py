"""Columns over all documents, in pieces: any choice of documents is that of one array."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.corpus import sidecars
from plinth.errors import IntegrityError
from plinth.storage.workspace import Workspace


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8),
    st.sampled_from([1, 3]),
    st.integers(1, 12),
    st.lists(st.integers(0, 71), max_size=20, unique=True),
)
def test_a_column_in_pieces_is_one_array(
    tmp_path_factory: Any, sizes: list[int], width: int, piece: int, chosen: list[int]
) -> None:
    ctx = Context(Workspace(tmp_path_factory.mktemp("columns")).ensure())
    whole = np.arange(sum(sizes) * width, dtype=np.uint64).reshape((-1, width) if width > 1 else (-1,))
    edges = np.cumsum([0, *sizes]).tolist()
    parts = [sidecars.write(ctx.store, "x", whole[a:b]) for a, b in pairwise(edges)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sidecars, "PIECE_ROWS", piece)
        column = sidecars.joined(ctx, "test", parts, "<u8", width)
    numbers = np.array(sorted(one for one in chosen if one < len(whole)), dtype=np.uint64)
    assert column.take(ctx.store, numbers).tolist() == whole[numbers].tolist()


def test_a_piece_that_has_changed_is_refused(tmp_path: Any) -> None:
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    part = sidecars.write(ctx.store, "x", np.arange(9, dtype=np.uint64))
    column = sidecars.joined(ctx, "test", [part], "<u8")
    path = ctx.store.path(part.blob)  # one piece of one part is the same blob
    path.chmod(0o644)
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    with pytest.raises(IntegrityError, match="has changed since it was written"):
        column.take(ctx.store, np.array([3], dtype=np.uint64))
