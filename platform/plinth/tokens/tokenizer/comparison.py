"""Comparison of a part's tokens with the tokenizers library, which decides what the tokens of a text are.

Encoders are proved equal by tests. A library that was built otherwise, or a fault of memory, shows only in the tokens.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from plinth.errors import IntegrityError
from plinth.tokens.tokenizer.reference import Encoded, Encoder, Reference

#: Documents compared per part: one in `ONE_IN`, in equal steps, but at least and at most these.
ONE_IN, LEAST, MOST = 256, 4, 64
#: Bytes of a document that is compared, and of a part's documents in all.
DOCUMENT_BYTES, PART_BYTES = 2**20, 2**19


class SampleComparison:
    """Comparison of a part's tokens with those of the tokenizers library, for documents in equal steps.

    Args:
        rows: documents of the part.
        name: name of the part, for errors.
    """

    def __init__(self, tokenizer: Tokenizer, encoder: Encoder, end: int, rows: int, name: str) -> None:
        self._reference, self._encoder, self._name = Reference(tokenizer, end), encoder, name
        self._step = max(1, rows // min(MOST, max(LEAST, rows // ONE_IN)))
        self._row, self.documents, self.bytes = 0, 0, 0

    def add(self, texts: pa.Array, encoded: Encoded) -> None:
        """Compare the chosen documents of the next texts.

        Raises:
            IntegrityError: a document has other tokens.
        """
        ids, first = encoded
        chosen = np.arange(-self._row % self._step, len(texts), self._step)
        self._row += len(texts)
        if isinstance(self._encoder, Reference):
            return
        sizes = pc.binary_length(texts.take(pa.array(chosen))).to_numpy(zero_copy_only=False)
        for row, size in zip(chosen.tolist(), sizes.tolist(), strict=True):
            if size > DOCUMENT_BYTES or self.bytes >= PART_BYTES:
                continue
            expected, _ = self._reference.encode(texts.slice(row, 1), ids.dtype.str)
            self._require(expected, ids[first[row] : first[row + 1]], self._row - len(texts) + row)
            self.documents, self.bytes = self.documents + 1, self.bytes + int(size)

    def _require(self, expected: np.ndarray, found: np.ndarray, row: int) -> None:
        if np.array_equal(expected, found):
            return
        same = min(expected.size, found.size)
        at = next(iter(np.flatnonzero(expected[:same] != found[:same]).tolist()), same)
        raise IntegrityError(
            f"{self._encoder.name} and the tokenizers library encode document {row} of {self._name} differently",
            found=f"{found[at : at + 8].tolist()} at token {at} of {found.size}",
            expected=f"{expected[at : at + 8].tolist()} of {expected.size} tokens",
            remedy=f"reinstall {self._encoder.name}; if the error stays, report the document and the tokenizer",
        )
