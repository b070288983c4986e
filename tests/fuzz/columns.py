"""Columns of hostile text for every kernel that takes text: bytes that are not UTF-8, slices, nulls.

A build with sanitizers finds each read and write past an end. Compile first, then preload the library:

    export PLINTH_PRIVATE=/new/folder PLINTH_KERNEL_FLAGS="-fsanitize=address,undefined -O1 -g"
    python -m plinth_text.compiled
    ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc ARROW_DEFAULT_MEMORY_POOL=system \\
        LD_PRELOAD="$(gcc -print-file-name=libasan.so)" python -m pytest tests/fuzz -k text_columns
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.corpus.dedup.near import linking
from plinth.corpus.dedup.parameters import MinHash
from plinth.tokens.tokenizer import word_table
from plinth_text import english, scoring, similarity, unicode
from plinth_text import terms as pii
from plinth_text import words as hashes
from plinth_text.fasttext import model_file
from plinth_text.fasttext.predict import DocumentScorer, Predictor
from plinth_text.rules import c4, fineweb, gopher, redpajama, refinedweb  # fmt: skip
from plinth_text.terms import TermTable
from plinth_text.unicode import utf8
from tests.plinth_text.fasttext.model_writer import write

#: Surrogates, overlong forms, beyond U+10FFFF, characters cut short, bytes that UTF-8 never has; what rules look for.
HOSTILE = (
    b"", b"\0", b"a", b"\x80", b"\xff", b"\xf7\xbf\xbf\xbf", b"\xff\xff\xff\xff", b"\xf5\x80\x80\x80",
    b"\xf4\x90\x80\x80",
    b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xc0\x80", b"\xe0\x80\xaf", b"\xf0\x9f\x98", b"\xe4\xb8", b"\xc3",
    b"x \xf0\x9f\x98\x80", b"\xef\xbf\xbf", b"\xf4\x8f\xbf\xbf", b"\xe2\x80\xa8", b"\xc2\x85", b"[1]",
    b"[citation needed",
    b"{", b"...", b"\r\n", b"\r", b"a@b.cd", b"+1 555 123 4567", b"192.168.0.1", b"l0rem ipsum", b"use cookies",
    b"f.u.c.k", b"http://a.b/" + b"c" * 300, b"can't", b"don't.", b"$1,000.00", b"w" * 5000, b"\xf0\x9f\x98\x80" * 1100,
    b"\n" * 70, b" " * 70, b"a b " * 1500, b"\xe4\xb8\xad" * 700, b"\xe0\xb8\x81" * 300,
    b"\xe1\x80\x80\xe1\x80\xba" * 90,
)  # fmt: skip


def read(data: bytes) -> None:
    """Rows between 0x01 as a slice of a column; a row `null` is none."""
    rows = [None if row == b"null" else row for row in data.split(b"\x01")]
    for kernel in kernels().values():
        with suppress(UnicodeDecodeError):  # where Python reads what a kernel leaves to it
            kernel(column([b"\xff \xf0\x9f", *rows], 1))


def column(rows: Sequence[bytes | None], before: int = 0) -> pa.Array:
    """A slice of a `large_string` column without its first rows, in buffers that end with its text."""
    offsets = np.cumsum([0, *(len(row or b"") for row in rows)], dtype=np.int64)
    valid = np.packbits(np.array([row is not None for row in rows], dtype=np.bool_), bitorder="little")
    text = np.frombuffer(b"".join(row or b"" for row in rows), dtype=np.uint8).copy()
    buffers = [pa.py_buffer(each) for each in (valid, offsets, text)]
    return pa.LargeStringArray.from_buffers(len(rows), *(buffers[i] for i in (1, 2, 0))).slice(before)


@lru_cache(maxsize=1)
def kernels() -> dict[str, Callable[[pa.Array], Any]]:
    """Functions of a column of texts."""
    a, b = similarity.permutations(16, 1)
    stops, terms = fineweb.stop_words([["the", "über", "的"]]), TermTable(["lorem", "use cookies", "l0rem ipsum"])
    weights, shift = np.ones((64, 2), np.float32), np.zeros(2, np.float32)
    found: dict[str, Callable[[pa.Array], Any]] = {
        "any language": lambda t: fineweb.language_counts(t, np.zeros(len(t), np.int64), stops),
        "cited lines": lambda t: [c4.lines(t, every, 5) for every in (False, True)],
        "dolma": lambda t: [gopher.dolma_shares(t, join) for join in (False, True)],
        "periods": gopher.periods, "red pajama": redpajama.signals, "line cuts": refinedweb.line_cuts,
        "stops": lambda t: redpajama.signals(t, frozenset(["the"])), "tally": redpajama.tally,
        "english": lambda t: english.column_words(*utf8(t)), "dense": scoring.dense,
        "rows": lambda t: [scoring.rows(t, 6, most) for most in (0, 1, 100)],
        "margins": lambda t: [scoring.margins(t, weights[:, :k].copy(), shift[:k], w) for k in (1, 2) for w in (0, 3)],
        "lines": lambda t: [similarity.paragraphs(similarity.lines(t)), similarity.edge_lines(similarity.lines(t), 2)],
        "windows": lambda t: [similarity.window_keys(w := similarity.windows(t, n), n, w.fresh) for n in (1, 3, 13)],
        "signatures": lambda t: [similarity.signatures(t, n, a, b) for n in (1, 5)],
        "characters": lambda t: linking.signatures(t, MinHash(shingle_characters=5), a, b),
        "sets": lambda t: linking.sets(t, MinHash(shingle_characters=5)),
        "simhash": lambda t: similarity.simhashes(t, 3), "pii": pii.places, "digests": unicode.digests,
        "terms": terms.find, "counts": terms.word_counts,
        "n-grams": lambda t: [hashes.ngram_sets(t, n) for n in (1, 9)],
        "sentences": scoring.tokens,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.bin"
        predictor = Predictor(model_file.read(write(path, minn=2, maxn=4)))
        scorer = DocumentScorer(model_file.read(write(path, word_ngrams=2)))
    found |= {"fastText": lambda t: [predictor.predict(t, 1, most) for most in (0, 7)], "scores": scorer.score}
    found["tokens"] = lambda t: [_words(group, t) for group in (0, 1, 3)]
    for flag in (False, True):
        lines = c4.Lines(3, 1000, english=flag)
        found |= {
            f"gopher {flag}": lambda t, flag=flag: gopher.gopher_counts(t, flag),
            f"fineweb {flag}": lambda t, flag=flag: fineweb.fineweb_counts(*utf8(t), 30, flag),
            f"repetition {flag}": lambda t, flag=flag: gopher.repetition_shares(t, flag),
            f"pages {flag}": lambda t, lines=lines: c4.pages(t, lines).counts,
            f"kept {flag}": lambda t, lines=lines: c4.pages(t, lines).kept,
        }
    return found



def _words(group: int, texts: pa.Array) -> Any:
    """Number the words of a column, as `WordTable` does before it encodes them."""
    data, offsets = utf8(texts)
    size = int(offsets[-1] - offsets[0])
    slots = np.zeros((1 << max(4, (2 * size).bit_length()), 2), dtype=np.uint64)
    starts, known = np.zeros(size + 2, dtype=np.int64), np.zeros(size, dtype=np.uint8)
    numbers, counts = np.empty(size, dtype=np.int32), np.zeros(offsets.size - 1, dtype=np.int64)
    return word_table.scan(data, offsets, word_table.classes(), group, slots, starts, known, 0, numbers, counts)
