"""Which rank's file holds which piece of the state, so that a rank opens only those it needs. No torch.

The manifest of a rank lists its pieces: a range of the flattened shard of a parameter, the same for master weights and
moments. Where the layout is another than that which wrote, the ranks read a share of the manifests each and exchange
tables of fixed-size rows, 40 bytes a piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from plinth.training.checkpoint.digest_tree import RankManifest

#: A row of the table; parameters by 64 bits of the BLAKE3 of their name.
_SMALL = [(name, "<i4") for name in ("dim", "part", "parts", "rank")]
ROW = np.dtype([("name", "<u8"), *_SMALL, ("first", "<i8"), ("end", "<i8")])

Table = npt.NDArray[Any]


class Piece(NamedTuple):
    """Elements `first` … `end` of part `part` of a parameter that is divided along `dim` into `parts`, flattened."""

    dim: int
    part: int
    parts: int
    first: int
    end: int


def covers(held: Mapping[str, tuple[int, int, int, int, int]], wanted: Mapping[str, Piece]) -> bool:
    """Whether the pieces that one rank wrote hold all that is wanted."""
    return all(name in held and _within(Piece(*held[name]), want) for name, want in wanted.items())


def table_of(manifests: Iterable[RankManifest]) -> Table:
    """The pieces of some ranks."""
    tables = [np.zeros(0, ROW)]
    keys: dict[str, int] = {}
    for manifest in manifests:
        rows = np.empty(len(manifest.pieces), ROW)
        rows["name"] = [keys.get(name) or keys.setdefault(name, _key(name)) for name in manifest.pieces]
        numbers = np.array(list(manifest.pieces.values()), np.int64).reshape(-1, len(Piece._fields))
        for column, field in enumerate(Piece._fields):
            rows[field] = numbers[:, column]
        rows["rank"] = manifest.rank
        tables.append(rows)
    return np.concatenate(tables)


def ranks_for(table: Table, wanted: Mapping[str, Piece]) -> list[int]:
    """The ranks whose files hold something that is wanted, in order.

    Where nobody wrote that very shard, the whole parameter is needed.
    """
    ordered = table[np.argsort(table["name"], kind="stable")]
    found: set[int] = set()
    for name, want in wanted.items():
        key = np.uint64(_key(name))
        rows = ordered[np.searchsorted(ordered["name"], key) : np.searchsorted(ordered["name"], key, "right")]
        same = rows[(rows["dim"] == want.dim) & (rows["part"] == want.part) & (rows["parts"] == want.parts)]
        if len(same):
            rows = same[(same["first"] < want.end) & (same["end"] > want.first)]
        found.update(rows["rank"].tolist())
    return sorted(found)


def _within(piece: Piece, want: Piece) -> bool:
    return piece[:3] == want[:3] and piece.first <= want.first and want.end <= piece.end


def _key(name: str) -> int:
    return int.from_bytes(blake3(name.encode()).digest()[:8], "little")
