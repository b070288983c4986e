"""Units of text that are compared with other documents: lines, paragraphs, lines at heads and feet.

Every unit has a 128-bit key. The scope (a bucket, a domain, the corpus) and the kind of unit are mixed into it,
so that only what may be compared can be equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from plinth.corpus.dedup.edits import I64, U64
from plinth.corpus.dedup.span_parameters import LineParameters
from plinth_text.compiled import compiled
from plinth_text.similarity.line_hashes import HashedLines, edges, paragraphs

BOILERPLATE, PARAGRAPH, LINE = 0, 1, 2


@dataclass(frozen=True)
class Units:
    """Units of a batch, those of one kind in reading order; U of them.

    Args:
        key, low: [U] halves of the key.
        first, last: [U] the lines it covers, half open.
        doc: [U] its text.
        kind: [U] `BOILERPLATE`, `PARAGRAPH` or `LINE`.
    """

    key: U64
    low: U64
    first: I64
    last: I64
    doc: I64
    kind: I64


def compared(params: LineParameters, bucket: str, found: HashedLines, domains: list[str]) -> Units:
    """The units of a batch of texts of one bucket; `domains` has that of every text."""
    owner = np.repeat(np.arange(found.starts.size - 1), np.diff(found.starts))
    by_domain = _salts("domain", domains)
    scopes = {"corpus": np.zeros_like(by_domain), "bucket": _salts("bucket", [bucket] * len(domains))}
    scope = by_domain if params.scope == "domain" else scopes[params.scope]
    made = []
    for kind, high, low, first, last in _kinds(params, found):
        salt = (by_domain if kind == BOILERPLATE else scope)[owner[first]]
        made.append((_salted(high, salt, kind), low, first, last, owner[first], np.full(first.size, kind)))
    return Units(*(np.concatenate(column) for column in zip(*made, strict=True)))


def _kinds(params: LineParameters, found: HashedLines) -> Iterator[tuple[int, U64, U64, I64, I64]]:
    """Kind, hashes, first line, one past the last, of everything that is compared."""
    if params.boilerplate_documents is not None:
        at = np.flatnonzero(found.alphanumeric & edges(found, params.edge_lines))
        yield BOILERPLATE, found.high[at], found.low[at], at, at + 1
    if "paragraph" in params.units:
        blocks = paragraphs(found)
        several = (blocks.last - blocks.first > 1) | ("line" not in params.units)  # else the line is compared
        at = np.flatnonzero(blocks.alphanumeric & several & (blocks.size >= params.min_characters))
        yield PARAGRAPH, blocks.high[at], blocks.low[at], blocks.first[at], blocks.last[at]
    if "line" in params.units:
        at = np.flatnonzero(found.alphanumeric & (found.size >= params.min_characters))
        yield LINE, found.high[at], found.low[at], at, at + 1


def _salted(high: U64, salt: U64, kind: int) -> U64:
    out = np.empty_like(high)
    salt_hashes(np.ascontiguousarray(high), np.ascontiguousarray(salt), kind, out)
    return out


def _salts(kind: str, names: list[str]) -> U64:
    """64 bits for each name."""
    known = {
        name: int.from_bytes(hashlib.blake2b(f"{kind}:{name}".encode(), digest_size=8).digest(), "big")
        for name in set(names)
    }
    return np.array([known[name] for name in names], dtype=np.uint64)


@compiled
def salt_hashes(high: U64, salt: U64, kind: int, out: U64) -> None:
    """Fill in hashes of units that depend on their scope and kind."""
