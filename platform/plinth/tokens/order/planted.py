"""The training steps that take each planted copy, from the arithmetic of packing and order; nothing is trained for it.

    copy -> span of the stream -> sequence (layout) -> positions (order) -> step, row (steps)

A copy counts where all its tokens are targets of one row. Before training, every planted copy must have such a
step: an exposure of zero would else mean nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from plinth.compute.context import Context
from plinth.corpus.canaries import plant
from plinth.corpus.canaries.parameters import BUCKET
from plinth.errors import TrainingError
from plinth.records import Manifest
from plinth.tokens.order.order import Order
from plinth.tokens.order.steps import Steps
from plinth.tokens.packing.layout import PackingLayout, open_layout
from plinth.tokens.shards.reader import ShardReader

#: Copies that an error names.
NAMED = 5


class DrawnCopy(NamedTuple):
    """A planted copy: canary, number of the copy, steps (from 1) that train on all of it, and why there is none."""

    canary: int
    copy: int
    steps: tuple[int, ...]
    fault: str = ""


def draws(ctx: Context, mixture: Manifest, shards: Manifest, canaries: Manifest, steps: Steps) -> list[DrawnCopy]:
    """Every planted copy with its steps, in the order of the stream.

    Args:
        shards: of the bucket `canaries`.
        canaries: what they were made of.
        steps: of the run.
    """
    reader = ShardReader(ctx.store, shards)
    layout = open_layout(ctx.store, ctx.refs.load, mixture, BUCKET, reader.tokens)
    spans = [span for starts, tokens in reader.index_batches() for span in zip(starts, tokens, strict=True)]
    documents = plant.planted_documents(ctx.store, canaries)
    order, found = Order(mixture), []
    for (canary, copy), (start, tokens) in zip(documents, spans, strict=True):
        if canary != plant.FILLER:
            found.append(_drawn(canary, copy, int(start), int(tokens) - 1, layout, order, steps))
    return found


def require_drawn(copies: Sequence[DrawnCopy]) -> None:
    """Refuse a run that would not train on a planted copy.

    Raises:
        TrainingError: names the copies.
    """
    lost = [one for one in copies if not one.steps]
    if lost:
        named = "; ".join(f"canary {one.canary}, copy {one.copy}: {one.fault}" for one in lost[:NAMED])
        raise TrainingError(
            f"{len(lost)} planted copies would receive no loss, so their exposure would mean nothing",
            found=named + (f"; and {len(lost) - NAMED} more" if len(lost) > NAMED else ""),
            expected=f"all {len(copies)} copies whole in a row of a step",
            remedy="make mixture.total_tokens a multiple of every step's tokens, leave changed row lengths at "
            "multiples of the recipe's others, or leave out corpus.canaries",
        )


def seen_through(copies: Sequence[DrawnCopy], step: int, skipped: Sequence[int] = ()) -> dict[int, int]:
    """Copies of each canary trained on by the end of a step, without those of skipped steps."""
    left_out = set(skipped)
    counts = Counter(one.canary for one in copies for taken in one.steps if taken <= step and taken not in left_out)
    return dict(counts)


def _drawn(
    canary: int, copy: int, start: int, tokens: int, layout: PackingLayout, order: Order, steps: Steps
) -> DrawnCopy:
    # The token at place p of a sequence is the target of place p - 1, so place 0 is no target.
    places = [place for place in layout.placements(start, tokens) if place.first >= 1 and place.tokens == tokens]
    if not places:
        return DrawnCopy(canary, copy, (), "no sequence has all of it as targets")
    taken, cut, unused = [], 0, 0
    for place in places:
        for _, position in order.positions(BUCKET, place.sequence):
            at = steps.step_of(position)
            if at is None:
                unused += 1
            elif (place.first - 1) // (row := steps.length(at[0])) != (place.first + tokens - 2) // row:
                cut += 1
            else:
                taken.append(at[0] + 1)
    if taken:
        return DrawnCopy(canary, copy, tuple(sorted(taken)))
    fault = "its row is cut within it" if cut else "its sequence fills no step" if unused else "the run never reads it"
    return DrawnCopy(canary, copy, (), fault)
