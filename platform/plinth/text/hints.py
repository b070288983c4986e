"""Which texts can hold an e-mail address, an IP address or a long number at all: a filter in front of patterns.

One pass over the bytes. A hint may be wrong, a missing hint never is: whatever the patterns of the `pii`
annotator match is hinted at.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from plinth.text.codepoints import utf8
from plinth.text.ngrams import I64, U8

#: Bits of a hint.
EMAIL, IPV4, IPV6, NUMBER = 1, 2, 4, 8
MIN_DIGITS = 13  # of a payment card

_DIGIT, _HEX, _COLON, _DOT, _AT, _JOIN, _NAME = 1, 2, 4, 8, 16, 32, 64


def _classes() -> npt.NDArray[np.uint8]:
    table = np.zeros(256, dtype=np.uint8)
    for characters, flag in (
        (b"0123456789", _DIGIT),
        (b"0123456789abcdefABCDEF", _HEX),
        (b":", _COLON),
        (b".", _DOT),
        (b"@", _AT),
        (b" -", _JOIN),
        (b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.%+-", _NAME),
    ):
        table[list(characters)] |= flag
    return table


_CLASSES = _classes()


def hints(texts: pa.Array) -> npt.NDArray[np.uint8]:
    """Bits of `EMAIL`, `IPV4`, `IPV6`, `NUMBER` for each text, [documents].

    `EMAIL`: an `@` between characters of names. `IPV4`: four numbers of one to three digits with dots between.
    `IPV6`: a run of hexadecimal digits and colons with two colons and five characters. `NUMBER`: 13 digits, with at
    most one space or hyphen between two.
    """
    data, offsets = utf8(texts)
    out = np.zeros(len(texts), dtype=np.uint8)
    _hints(data, offsets, _CLASSES, out)
    return out


@njit(nogil=True, cache=True)
def _hints(data: U8, offsets: I64, table: U8, out: U8) -> None:
    for doc in range(offsets.size - 1):
        found, before = 0, 0  # `before`: the class of the byte before this one
        digits, groups = 0, 0  # of a dotted address: digits of the last number, and numbers
        colons, run = 0, 0  # of a run of hexadecimal digits and colons
        long_digits = 0
        for at in range(offsets[doc], offsets[doc + 1]):
            here = table[data[at]]
            if before & _AT and here & _NAME and at - 1 > offsets[doc] and table[data[at - 2]] & _NAME:
                found |= EMAIL
            if here & _DIGIT:
                digits = digits + 1 if before & _DIGIT else 1
                groups = (groups if before & (_DIGIT | _DOT) else 0) + (digits == 1)
                groups = groups if digits <= 3 else 0
                found |= IPV4 if groups >= 4 else 0
                long_digits += 1
                found |= NUMBER if long_digits >= MIN_DIGITS else 0
            else:
                groups = groups if here & _DOT and before & _DIGIT else 0
                long_digits = long_digits if here & _JOIN and before & _DIGIT else 0
            if here & (_HEX | _COLON):
                run += 1
                colons += (here & _COLON) != 0
                found |= IPV6 if colons >= 2 and run >= 5 else 0
            else:
                run, colons = 0, 0
            before = here
        out[doc] = found
