"""The layouts of all streams of a run as one, so that the pieces of a step are collected in one call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plinth.tokens.packing.best_fit import PackedPieces
from plinth.tokens.packing.layout import BestFit, Concatenated, PackingLayout, collect_pieces


class JointLayout:
    """Sequences by stream and index. Streams are numbered as given; a run packs all of them in one way.

    Attributes:
        padded, contiguous: as in `PackingLayout`.
    """

    def __init__(self, layouts: Sequence[PackingLayout]) -> None:
        self.padded, self.contiguous = layouts[0].padded, layouts[0].contiguous
        self._width = layouts[0].width
        self._fits = [layout for layout in layouts if isinstance(layout, BestFit)]
        if len(self._fits) != (0 if self.contiguous else len(layouts)):
            raise TypeError("streams of one run are packed in one way")
        # streams one after another: the first sequence of each stream, then of each window, and the window's stream
        self._begins = np.cumsum([0, *(layout.sequences for layout in layouts)])
        firsts = [fit.firsts[:-1] + self._begins[stream] for stream, fit in enumerate(self._fits)]
        self._firsts = np.concatenate([np.empty(0, np.int64), *firsts])
        self._streams = np.repeat(np.arange(len(firsts)), [len(own) for own in firsts])
        self._addresses = np.zeros((len(self._firsts), 4), np.int64)

    def pieces(self, streams: NDArray[np.int16], indices: NDArray[np.int64]) -> PackedPieces:
        """The pieces of these sequences.

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
