"""Probe items that a run scores during training, and the scoring interval. They are chosen once, before the run starts.

The choice is computed from token counts without timing, so it is the same on every machine. Scoring a token costs a
third of training on it, because there is no backward pass. All evaluations together may cost a given fraction of the
run's tokens. If the full sets exceed this budget, the number of evaluations is reduced first, down to `LEAST_LOOKS`.
Then the number of items is reduced, equally for every probe, by a hash of their names. Every evaluation scores the same
items. The result contains the number of items used and the total number.

A run stores the digest of the chosen items, and ranks read the items from the store. They are not part of the run's
identity.

Does not belong here: scoring by the model (validation), so this module needs no torch.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from plinth import fingerprint
from plinth.compute.context import Context, cached, manifest
from plinth.evaluation.engine import batches
from plinth.evaluation.engine.batches import ScoredStream, plan
from plinth.evaluation.engine.records import Request
from plinth.evaluation.probes.base import ProbeItem, from_table, to_table
from plinth.evaluation.probes.scoring import fitting, requests, trusted
from plinth.records import Manifest, Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.storage.store import Store
from plinth.tokens.tokenizer import tokenizer
from plinth.tokens.tokenizer.encode import load as load_tokenizer

ASSET = "run/probes"
VERSION = "1"
ITEMS, STREAMS = "items.parquet", "streams.parquet"

#: Trained tokens per scored token at equal cost: 2 of the 6 FLOPs per parameter (Kaplan et al. 2020).
COST = 1 / 3

#: Minimum evaluations, preferred over more items: noise and a regression need as many.
LEAST_LOOKS = 8

STREAM_SCHEMA = pa.schema(
    [
        pa.field("first", pa.int32(), nullable=False),  # first scored token
        pa.field("tokens", pa.list_(pa.uint32()), nullable=False),
    ]
)


class Budget(NamedTuple):
    """Maximum cost of scoring probes in a run, and the numbers from which it is computed.

    Attributes:
        share: maximum cost as a fraction of the run's training cost.
        tokens: number of tokens that the run trains on.
        looks: number of held-out evaluations; probes are scored at every n-th of them.
        sequence_tokens: maximum length of a window.
    """

    share: float
    tokens: int
    looks: int
    sequence_tokens: int

    @property
    def scored_tokens(self) -> float:
        """Maximum number of scored tokens in the whole run."""
        return self.share * self.tokens / COST


class Choice(NamedTuple):
    """Items that every evaluation scores, their token streams, and the number of held-out evaluations between two
    scorings."""

    items: list[ProbeItem]
    streams: list[ScoredStream]
    every: int
    tokens: int  # per evaluation, padding included


class ProbePlan(NamedTuple):
    """Probe items and token streams that the ranks of a run score."""

    items: list[ProbeItem]
    streams: list[ScoredStream]
    every: int
    digest: str


def prepare(
    ctx: Context, budget: Budget, items: Sequence[ProbeItem], sources: Mapping[str, Manifest], trained: Manifest
) -> Manifest:
    """Select and tokenize the probe items, or return an earlier result for the same items.

    Args:
        ctx: the run context, with workspace and store.
        budget: maximum cost.
        items: items of all probes that are not in the training text.
        sources: sources of the items.
        trained: manifest of asset `tokenizer`.

    Stats: `probes` (name -> items, and total), `too_long` (items longer than a sequence, which offline evaluation does
    not score either), `set` (digest of the items), `every` (interval in held-out evaluations), `tokens` (per
    evaluation), `share` (computed fraction of the run's training cost).
    """
    step = Step(name="run.probes", version=VERSION, params=budget._asdict())
    inputs = {**sources, "tokenizer": trained}

    def planned() -> Sequence[Part]:
        (file,) = trained.named(tokenizer.FILE)
        model, start = load_tokenizer(ctx.store, file.blob), int(trained.stats["end_of_text"])
        streams = batches.requests(model, start, [Request(*pair) for pair in requests(items)])
        fit = fitting(items, [len(one.ids) - 1 for one in streams], budget.sequence_tokens)
        asked = [stream for own, fits in zip(_by_item(items, streams), fit, strict=True) if fits for stream in own]
        kept = [one for one, fits in zip(items, fit, strict=True) if fits]
        return _written(ctx, kept, choose(kept, asked, budget), too_long=fit.count(False))

    parts = cached(ctx, step, inputs.values(), planned)
    made = manifest(ASSET, step, inputs, parts, _stats(parts, budget))
    ctx.refs.save(made)
    return made


def scorable(ctx: Context, probes: Mapping[str, Manifest]) -> list[ProbeItem]:
    """Return the probe items that are not in the training text, from the assets `probe_sets` and `protected`."""
    from plinth.evaluation.probes import probe_sets

    items = probe_sets.load(ctx.store, probes["probe_sets"])
    return trusted(items, probe_sets.statuses(ctx.store, probes["protected"]))


def choose(items: Sequence[ProbeItem], streams: Sequence[ScoredStream], budget: Budget) -> Choice:
    """Choose as many items and evaluations as the budget allows.

    If the budget does not cover one evaluation, no items are chosen.

    Args:
        items: all items.
        streams: token streams of the items' `scoring.requests`, in order.
        budget: maximum cost.
    """
    own = list(_by_item(items, streams))
    ranks = _ranks(items)

    def first(count: int) -> tuple[list[ProbeItem], list[ScoredStream], int]:
        kept = [number for number, rank in enumerate(ranks) if rank < count]
        chosen = [stream for number in kept for stream in own[number]]
        return [items[number] for number in kept], chosen, _tokens(chosen, budget.sequence_tokens)

    low, high, wanted = 0, max(ranks, default=-1) + 1, min(budget.looks, LEAST_LOOKS)
    while low < high:  # the maximum number of items within the budget
        middle = -(-(low + high) // 2)
        low, high = (middle, high) if first(middle)[2] * wanted <= budget.scored_tokens else (low, middle - 1)
    chosen, found, tokens = first(low)
    paid = int(budget.scored_tokens // tokens) if tokens else budget.looks
    return Choice(chosen, found, -(-budget.looks // max(1, min(paid, budget.looks))) if budget.looks else 1, tokens)


def load(store: Store, made: Manifest) -> ProbePlan:
    """Return the probe items and token streams in a manifest that `prepare` returned.

    Raises:
        MissingError, IntegrityError: the items are missing from the store, or have changed.
    """
    (items,), (streams,) = made.named(ITEMS), made.named(STREAMS)
    table = read_table(store, streams)
    ids = [np.array(one, np.int64) for one in table["tokens"].to_pylist()]
    found = [ScoredStream(own, first) for own, first in zip(ids, table["first"].to_pylist(), strict=True)]
    return ProbePlan(from_table(read_table(store, items)), found, int(made.stats["every"]), made.stats["set"])


def _written(ctx: Context, items: Sequence[ProbeItem], choice: Choice, *, too_long: int) -> tuple[Part, ...]:
    rows = [{"first": one.first, "tokens": one.ids} for one in choice.streams]
    table = pa.Table.from_pylist(rows, schema=STREAM_SCHEMA)
    every, kept = Counter(one.probe for one in items), Counter(one.probe for one in choice.items)
    counts = {name: {"items": kept[name], "of": every[name]} for name in sorted(every)}
    stats = {"probes": counts, "every": choice.every, "tokens": choice.tokens, "too_long": too_long}
    return (
        write_table(ctx.store, ITEMS, to_table(choice.items), stats=stats),
        write_table(ctx.store, STREAMS, table),
    )


def _stats(parts: Sequence[Part], budget: Budget) -> dict[str, Any]:
    made = dict(parts[0].stats)
    looks = -(-budget.looks // made["every"]) if made["tokens"] else 0
    share = looks * made["tokens"] * COST / budget.tokens
    asked = fingerprint.digest([one.blob.sha256 for one in parts])[:12]
    return made | {"looks": looks, "share": round(share, 6), "set": asked}


def _by_item(items: Sequence[ProbeItem], streams: Sequence[ScoredStream]) -> Iterator[Sequence[ScoredStream]]:
    at = 0
    for one in items:
        size = 2 + len(one.wrong)
        yield streams[at : at + size]
        at += size


def _ranks(items: Sequence[ProbeItem]) -> list[int]:
    """Return the rank of each item within its probe, by a hash of its name. A smaller selection is therefore a subset
    of a larger selection."""
    places: dict[str, list[tuple[bytes, int]]] = {}
    for number, one in enumerate(items):
        name = hashlib.blake2b(f"{one.probe}\n{one.item}".encode(), digest_size=16).digest()
        places.setdefault(one.probe, []).append((name, number))
    ranks = [0] * len(items)
    for own in places.values():
        for rank, (_, number) in enumerate(sorted(own)):
            ranks[number] = rank
    return ranks


def _tokens(streams: Sequence[ScoredStream], sequence_tokens: int) -> int:
    """Return the number of tokens that one evaluation computes, including padding."""
    return sum(len(one.rows) * max(row.length for row in one.rows) for one in plan(streams, sequence_tokens))
