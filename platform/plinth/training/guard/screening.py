"""Screening: the text of a batch is judged before its update, by bounds that the guard's policy names.

    loader's thread: token ids ─► facts of each row ─► rows that break a bound, by rule        numbers of this rank
    device:          sum over ranks, with loss and fingerprint ─► more than the policy's share? ─► no update
    host:            the same sums ─► findings ─► an intervention that names rule, share, bound, rows and documents

A count of rows is exact on any number of ranks, and a bound knows no history: the same batches are kept back on every
rank, in every layout and after any resume. A batch that is kept back says nothing about loss and gradient: neither is
judged, and neither becomes a level that others are judged by.

Does not belong here: the facts (tokens.reading.compact_batch), how an update is kept back (skipped_update).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plinth.errors import RecipeError
from plinth.tokens.reading.compact_batch import FACTS, CompactBatch, row_facts
from plinth.training.guard.records import Finding
from plinth.training.parameters.guard import BatchScreening

#: The rules of screening: a fact of rows each, and the streams that rows come from.
TEXT_RULES = (*FACTS, "streams")

#: What a rank counts that sees no row of its own.
NONE_BROKEN = (0,) * len(TEXT_RULES)


def values(policy: BatchScreening, batch: CompactBatch, streams: Sequence[str] = ()) -> NDArray[np.float64]:
    """What the rules judge of every sequence, [B, TEXT_RULES]: its facts, and 1 where its stream is a named one.

    Args:
        streams: the name of each sequence's stream; none where a source has no streams.
    """
    named = np.zeros(len(batch))
    if policy.streams and streams:
        known = {name: float(_is_named(policy, name)) for name in set(streams)}
        named[:] = [known[name] for name in streams]
    judged = any(getattr(policy, fact) is not None for fact in FACTS)
    facts = row_facts(batch) if judged else np.zeros((len(batch), len(FACTS)))
    return np.column_stack([facts, named])


def breaking(policy: BatchScreening, found: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which sequences break the bound of each rule, [B, TEXT_RULES]."""
    duplicate, top, entropy = (found[:, FACTS.index(fact)] for fact in FACTS)
    return np.column_stack(
        [
            duplicate > _or(policy.duplicate_ngrams, math.inf),
            top > _or(policy.top_ngram, math.inf),
            entropy < _or(policy.entropy, -math.inf),
            found[:, TEXT_RULES.index("streams")] > 0,
        ]
    )


def count_broken(policy: BatchScreening, batch: CompactBatch, streams: Sequence[str] = ()) -> tuple[int, ...]:
    """How many sequences break the bound of each rule."""
    return tuple(breaking(policy, values(policy, batch, streams)).sum(axis=0).tolist())


def limit_of(policy: BatchScreening | None, rows: int) -> float:
    """How many of a batch's rows may break a bound before its update is kept back."""
    return math.inf if policy is None or policy.action == "warn" else policy.rows * rows


def findings(policy: BatchScreening, counts: Sequence[int], rows: int) -> tuple[Finding, ...]:
    """The rules that find a batch suspicious: of each the share of rows that break its bound.

    Args:
        counts: rows of all ranks that break the bound of each rule.
        rows: of all ranks.
    """
    return tuple(
        Finding(rule=rule, value=broken / rows, threshold=policy.rows, bound=bound(policy, rule))
        for rule, broken in zip(TEXT_RULES, counts, strict=True)
        if broken > policy.rows * rows
    )


def bound(policy: BatchScreening, rule: str) -> float | None:
    """The bound of a row; None for streams, which are named or not."""
    return None if rule == "streams" else getattr(policy, rule)


def require_streams(policy: BatchScreening, streams: Sequence[str]) -> None:
    """Refuse a name that no stream of the run has.

    Raises:
        RecipeError: it would never find anything.
    """
    unknown = [name for name in policy.streams if not any(fnmatchcase(stream, name) for stream in streams)]
    if unknown:
        raise RecipeError(
            "training.guard.screening.streams names what the run does not read",
            found=", ".join(unknown),
            expected=", ".join(streams),
            remedy="name a stream, or a pattern of streams such as `web/language=*`",
        )


def broken_rows(
    policy: BatchScreening, batch: CompactBatch, streams: Sequence[str], rule: Any
) -> list[tuple[int, float]]:
    """The sequences that break the bound of a rule, with their numbers, the furthest out first."""
    found, place = values(policy, batch, streams), TEXT_RULES.index(rule)
    rows = np.flatnonzero(breaking(policy, found)[:, place]).tolist()
    rows.sort(key=lambda row: (found[row, place] if rule == "entropy" else -found[row, place], row))
    return [(row, float(found[row, place])) for row in rows]


def _is_named(policy: BatchScreening, stream: str) -> bool:
    return any(fnmatchcase(stream, name) for name in policy.streams)


def _or(value: float | None, other: float) -> float:
    return other if value is None else value
