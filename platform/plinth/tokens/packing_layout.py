"""Look-up of the pieces of a sequence, and of the sequences of a span, in constant time for both packings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from plinth.errors import MissingError
from plinth.records import Manifest, Part, bucket_of
from plinth.storage.store import Store
from plinth.tokens.packing import PackedPieces, sequence_count, sequences_of
from plinth.tokens.shards.index import map_columns
from plinth.tokens.shards.parameters import parse
from plinth_text.compiled import compiled

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SpanPlacement:
    """Tokens of a span within a sequence: `tokens` tokens from position `first` on, including context."""

    sequence: int
    first: int
    tokens: int


class PackingLayout(Protocol):
    """Layout of the sequences of one stream.

    Attributes:
        sequences: number of sequences.
        tokens: number of tokens in the stream.
        width: tokens per sequence, S.
        padded: True if some targets are not scored.
        contiguous: True if a sequence is one span of the stream, which may cross documents. If False, each piece has
            tokens of a single document.
    """

    sequences: int
    tokens: int
    width: int
    padded: bool
    contiguous: bool

    def pieces(self, indices: NDArray[np.int64]) -> PackedPieces:
        """Return the pieces of the sequences at `indices`."""
        ...

    def placements(self, start: int, tokens: int) -> list[SpanPlacement]:
        """Return the placement of the stream's tokens `start` to `start + tokens` in each sequence that contains any of
        them.

        The placements are in order of sequences.
        """
        ...


class Concatenated:
    """Layout for packing `concatenate`: sequence k is tokens k S to k S + S of the stream, including both ends."""

    padded, contiguous = False, True

    def __init__(self, tokens: int, width: int) -> None:
        self.sequences, self.tokens, self.width = sequence_count(tokens, width), tokens, width

    def pieces(self, indices: NDArray[np.int64]) -> PackedPieces:
        """Return one piece per sequence. The first token of a piece is only an input and never a target."""
        return self.pieces_of(indices, self.width)

    @staticmethod
    def pieces_of(indices: NDArray[np.int64], width: int) -> PackedPieces:
        """Return the pieces of the sequences at `indices`, for any stream with this sequence length."""
        count = len(indices)
        return PackedPieces(
            np.arange(count + 1, dtype=np.int32),
            np.asarray(indices, np.int64) * width,
            np.full(count, width + 1, np.int32),
            np.ones(count, np.int8),
        )

    def placements(self, start: int, tokens: int) -> list[SpanPlacement]:
        """Return the placement of a span's tokens in each sequence. A token in two sequences is in both placements."""
        found = []
        for sequence in sequences_of(start, tokens, self.width, self.sequences):
            begin = sequence * self.width
            first, stop = max(start, begin), min(start + tokens, begin + self.width + 1)
            found.append(SpanPlacement(sequence, first - begin, stop - first))
        return found


class BestFit:
    """Layout for packing `best-fit`, from the packed index of a stream.

    Opening reads only the manifest. A window is one part of the index; it is mapped into memory when one of its
    sequences is first read. Window n begins with sequence `firsts[n]`.

    Args:
        store: store that has the parts.
        packed: manifest of a `{bucket}/packed` asset.
        stream: name of the stream.

    Raises:
        MissingError, IntegrityError: a part is absent, truncated or changed; raised when the part is first read.
    """

    padded, contiguous = True, False

    def __init__(self, store: Store, packed: Manifest, stream: str) -> None:
        self._store = store
        self._parts = packed.named(f"{parse(stream).folder}packed-")
        self.width = int(packed.stats["sequence_tokens"])
        self.firsts = np.array([*(part.stats["first"] for part in self._parts), 0], np.int64)
        self.firsts[-1] = sum(part.rows for part in self._parts)
        self.sequences = int(self.firsts[-1])
        self.tokens = sum(int(part.stats["tokens"]) for part in self._parts)
        self._windows: dict[int, PackedPieces] = {}

    def pieces(self, indices: NDArray[np.int64]) -> PackedPieces:
        """Return the pieces of the sequences at `indices`, copied from the mapped windows."""
        indices = np.asarray(indices, np.int64)
        numbers = np.searchsorted(self.firsts, indices, side="right") - 1
        addresses = np.zeros((len(self._parts), 4), np.int64)
        for number in np.unique(numbers).tolist():
            addresses[number] = self.column_addresses(number)
        return collect_pieces(addresses, numbers, indices - self.firsts[numbers])

    def placements(self, start: int, tokens: int) -> list[SpanPlacement]:
        """Return the placement of a span's tokens in each sequence, including tokens repeated as the context of a
        piece."""
        found = []
        for number, part in enumerate(self._parts):
            first = int(part.stats["start"])
            if first < start + tokens and start < first + int(part.stats["tokens"]):
                found += self._in_window(number, start, start + tokens)
        return sorted(found, key=lambda placement: (placement.sequence, placement.first))

    def _in_window(self, number: int, start: int, stop: int) -> list[SpanPlacement]:
        window, found = self._window(number), []
        for piece in np.flatnonzero((window.starts < stop) & (window.starts + window.tokens > start)).tolist():
            own = int(np.searchsorted(window.offsets, piece, side="right")) - 1
            before = slice(int(window.offsets[own]), piece)
            begin, count = int(window.starts[piece]), int(window.tokens[piece])
            place = int(window.tokens[before].sum()) + (count <= self.width)
            first, last = max(start, begin), min(stop, begin + count)
            found.append(SpanPlacement(int(self.firsts[number]) + own, place + first - begin, last - first))
        return found

    def column_addresses(self, number: int) -> list[int]:
        """Return the memory addresses of a window's columns, for `collect_pieces`.

        The addresses are valid as long as this object exists.
        """
        own = self._window(number)
        return [column.ctypes.data for column in (own.offsets, own.starts, own.tokens, own.context)]

    def _window(self, number: int) -> PackedPieces:
        own = self._windows.get(number)
        if own is None:
            own = self._windows.setdefault(number, self._map(self._parts[number]))  # threads keep one of them
        return own

    def _map(self, part: Part) -> PackedPieces:
        data, places = map_columns(self._store, part, "an index of sequences")
        if not part.rows:
            return PackedPieces(
                np.zeros(1, np.int32), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int8)
            )

        def column(number: int, dtype: str, count: int) -> NDArray[Any]:
            return data[places[number] :][: count * np.dtype(dtype).itemsize].view(dtype)

        offsets = column(0, "<i4", part.rows + 1)
        pieces = int(offsets[-1])
        return PackedPieces(offsets, column(1, "<i8", pieces), column(2, "<i4", pieces), column(3, "i1", pieces))


def open_layout(
    store: Store, load: Callable[[str], Manifest], mixture: Manifest, stream: str, tokens: int
) -> PackingLayout:
    """Open the packing layout of a stream of a mixture.

    Args:
        store: store with the parts.
        load: function that loads a manifest by its digest.
        tokens: number of tokens in the stream.

    Raises:
        MissingError: the mixture has no packed index for the stream's bucket.
    """
    if mixture.params.get("packing", "concatenate") == "concatenate":
        return Concatenated(tokens, int(mixture.stats["sequence_tokens"]))
    asset = f"{bucket_of(stream)}/packed"
    if asset not in mixture.inputs:
        raise MissingError(f"the mixture does not name {asset}", found=", ".join(mixture.inputs))
    return BestFit(store, load(mixture.inputs[asset]), stream)


def open_layouts(
    store: Store, load: Callable[[str], Manifest], mixture: Manifest, tokens: Mapping[str, int]
) -> dict[str, PackingLayout]:
    """Open the packing layouts of several streams. `tokens` maps each stream to its number of tokens."""
    return {name: open_layout(store, load, mixture, name, count) for name, count in tokens.items()}


def collect_pieces(addresses: NDArray[np.int64], windows: NDArray[np.int64], rows: NDArray[np.int64]) -> PackedPieces:
    """Return the pieces of sequences in mapped windows.

    Args:
        addresses: [windows, 4] addresses of each window's columns.
        windows, rows: [n] number of the window, and row in the window.
    """
    offsets = np.zeros(len(rows) + 1, np.int32)
    total = count_pieces(addresses, windows, rows, offsets)
    starts, tokens, context = np.empty(total, np.int64), np.empty(total, np.int32), np.empty(total, np.int8)
    copy_pieces(addresses, windows, rows, offsets, starts, tokens, context)
    return PackedPieces(offsets, starts, tokens, context)


@compiled
def count_pieces(addresses: Ints, windows: Ints, rows: Ints, offsets: NDArray[np.int32]) -> int:
    """Write the start of each row's pieces into `offsets`, from 0 on, and return the number of pieces of all rows."""


@compiled
def copy_pieces(
    addresses: Ints, windows: Ints, rows: Ints, offsets: NDArray[np.int32], starts: Ints, tokens: NDArray[np.int32],
    context: NDArray[np.int8],
) -> None:  # fmt: skip
    """Copy the pieces of all rows from the mapped windows."""


class JointLayout:
    """Layout of several streams, whose sequences are given by stream number and index.

    Streams are numbered in the given order. All streams of a run have the same packing.

    Attributes:
        padded, contiguous: as in `PackingLayout`.
    """

    def __init__(self, layouts: Sequence[PackingLayout]) -> None:
        self.padded, self.contiguous = layouts[0].padded, layouts[0].contiguous
        self._width = layouts[0].width
        self._fits = [layout for layout in layouts if isinstance(layout, BestFit)]
        if len(self._fits) != (0 if self.contiguous else len(layouts)):
            raise TypeError("all streams of a run must have the same packing")
        # streams one after another: the first sequence of each stream, then of each window, and the window's stream
        self._begins = np.cumsum([0, *(layout.sequences for layout in layouts)])
        firsts = [fit.firsts[:-1] + self._begins[stream] for stream, fit in enumerate(self._fits)]
        self._firsts = np.concatenate([np.empty(0, np.int64), *firsts])
        self._streams = np.repeat(np.arange(len(firsts)), [len(own) for own in firsts])
        self._addresses = np.zeros((len(self._firsts), 4), np.int64)

    def pieces(self, streams: NDArray[np.int16], indices: NDArray[np.int64]) -> PackedPieces:
        """Return the pieces of the sequences at `indices` of `streams`.

        Raises:
            MissingError, IntegrityError: a part of the packed index is absent, or has changed.
        """
        if not self._fits:
            return Concatenated.pieces_of(indices, self._width)
        sequences = indices + self._begins[streams]
        windows = np.searchsorted(self._firsts, sequences, side="right") - 1
        if not self._addresses[windows, 0].all():
            for window in np.unique(windows).tolist():
                stream = int(self._streams[window])
                first = int(np.searchsorted(self._streams, stream))
                self._addresses[window] = self._fits[stream].column_addresses(window - first)
        return collect_pieces(self._addresses, windows, sequences - self._firsts[windows])
