"""Entries of a large list, sorted by hash, in a file that every process maps: no copy and no reading per worker.

    hash     uint64, ascending: BLAKE2b of the entry, 8 bytes, little-endian
    entry    the text; equal hashes are decided by it, so a look-up is exact
    value    what the list says of the entry

Of an entry that stands twice, the first counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.errors import IntegrityError
from plinth_text.arrays import U64

#: Entries that are Python objects at the same time while a table is made.
AT_ONCE = 200_000


@dataclass(frozen=True)
class ListTable:
    """Look-up of many names at once.

    Args:
        table: hash, entry, value.
        left_out: lines of its files that have the wrong form.
    """

    table: pa.Table
    left_out: int = 0

    @classmethod
    def of(cls, entries: Iterable[tuple[str, Any]], value: pa.DataType) -> ListTable:
        """The table of entries with their values, of an Arrow type."""
        found = iter(entries)
        hashes, names, values = [np.empty(0, np.uint64)], [pa.array([], pa.large_string())], [pa.array([], value)]
        while some := list(islice(found, AT_ONCE)):
            hashes.append(_hashes([name for name, _ in some]))
            names.append(pa.array([name for name, _ in some], pa.large_string()))
            values.append(pa.array([one for _, one in some], value))
        keys = np.concatenate(hashes)
        order = np.argsort(keys, kind="stable")
        columns = {"hash": pa.array(keys[order])}
        columns["entry"] = pa.chunked_array(names).combine_chunks().take(pa.array(order))
        columns["value"] = pa.chunked_array(values).combine_chunks().take(pa.array(order))
        return cls(pa.table(columns))

    @classmethod
    def map(cls, path: Path) -> ListTable:
        """A table from its file (`storage.parts.write_arrow`), mapped, not read.

        Raises:
            IntegrityError: the file is none.
        """
        try:
            with pa.ipc.open_file(pa.memory_map(str(path))) as file:
                return cls(file.read_all())
        except (pa.ArrowException, OSError) as error:
            raise IntegrityError(f"{path} is no table of a list", found=error, expected="an Arrow file") from error

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def values(self, names: Sequence[str]) -> list[Any]:
        """The value of each name; None where the list does not have it."""
        if not names or not len(self):
            return [None] * len(names)
        column = self.table.column("hash")
        keys = column.chunk(0).to_numpy() if column.num_chunks == 1 else column.to_numpy()
        wanted = _hashes(names)
        at = np.searchsorted(keys, wanted)
        found: list[Any] = [None] * len(names)
        for row in np.flatnonzero(keys[np.minimum(at, keys.size - 1)] == wanted).tolist():
            place = int(at[row])
            while place < keys.size and keys[place] == wanted[row]:
                if self.table.column("entry")[place].as_py() == names[row]:
                    found[row] = self.table.column("value")[place].as_py()
                    break
                place += 1
        return found


def _hashes(names: Sequence[str]) -> U64:
    raw = b"".join(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest() for name in names)
    return np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=False)
