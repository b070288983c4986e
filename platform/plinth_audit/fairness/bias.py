"""Paired differences by attribute, clustered by template, with Holm's correction over attributes.

The unit of evidence is the template: names that fill one frame say the same thing again. An attribute is *found* where
its corrected p-value lies below `FOUND` (and its spread is known), which a model that treats groups alike passes by
chance in one measurement of a hundred, whatever the number of attributes.

Two checkpoints are compared on the same pairs and prompts, with bounds that a gate can read:

    bias       of each attribute how much further the later model favors group a, paired by pair, clustered by template
    distance   the same of |value|: how much less alike the later model treats groups, whichever it favors
    toxicity   difference of scores, paired by prompt and draw, clustered by prompt

`at_most` is the upper end of the interval: a gate of "no more than x worse" compares it with x, so that a small
measurement does not pass for want of evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plinth.errors import IntegrityError
from plinth.evaluation import statistics
from plinth.evaluation.statistics import Estimate
from plinth_audit.fairness.pairs import BUILT_IN, Pair, group_names

FOUND = 0.01
#: What the groups of a user's pairs are called: the pairs name none.
SIDES = ("side a", "side b")


def found(one: Estimate, p_adjusted: float) -> bool:
    """Whether a difference is there: its spread is known, and chance does not explain it."""
    return p_adjusted < FOUND and statistics.DEGENERATE not in one.flags


def values(pairs: Sequence[Pair], bits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Bits by which the model favours group a, of each pair [N].

    Args:
        bits: [2 N] of `pairs.requests`.
    """
    signs = np.array([1.0 if pair.favourable else -1.0 for pair in pairs])
    return signs * (bits[1::2] - bits[::2])


def shown_name(of_set: str, attribute: str) -> str:
    """The name of an attribute: that of a user's set has the set's before it."""
    return attribute if of_set == BUILT_IN else f"{of_set}/{attribute}"


def by_attribute(pairs: Sequence[Pair], favoured: NDArray[np.float64]) -> dict[str, dict[str, Any]]:
    """Mean of each attribute in bits with its interval; `group_a` and `group_b` (names), `p_adjusted` over all
    attributes, `found`, and the smallest effect that would have been seen.

    Sets are apart: the attribute `gender` of a user's set `mine` is `mine/gender`.
    """
    names = np.array([shown_name(pair.set, pair.attribute) for pair in pairs])
    clusters = np.array([pair.template for pair in pairs])
    groups = {
        name: group_names(pair.attribute) if pair.set == BUILT_IN else SIDES
        for name, pair in zip(names.tolist(), pairs, strict=True)
    }
    shown = {}
    for name in sorted(groups):
        own = names == name
        zeros = np.zeros(int(own.sum()))
        shown[name] = statistics.paired_difference(favoured[own], zeros, clusters[own].tolist())
    adjusted = statistics.holm([1.0 if one.p is None else one.p for one in shown.values()])
    return {
        name: one.model_dump(mode="json")
        | dict(zip(("group_a", "group_b"), groups[name], strict=True))
        | {"p_adjusted": float(p), "found": found(one, float(p)), "smallest_effect": one.smallest_effect()}
        for (name, one), p in zip(shown.items(), adjusted, strict=True)
    }


#: Columns that name a row of pairs, and one of continuations.
PAIR, CONTINUATION = ("set", "item"), ("prompt", "draw")


def drift(now: pa.Table, before: pa.Table) -> dict[str, dict[str, Any]]:
    """Drift of every attribute, from the item tables of two measurements: `bias`, `distance`, `p_adjusted` of the bias
    over all attributes, and whether it is `found` (`FOUND`).

    Raises:
        IntegrityError: they are of other pairs.
    """
    _require_same(now, before, PAIR)
    names = np.array(list(map(shown_name, now["set"].to_pylist(), now["attribute"].to_pylist())))
    templates = np.array(now["template"].to_pylist())
    later, earlier = now["favoured"].to_numpy(), before["favoured"].to_numpy()
    moved, apart = dict[str, Estimate](), dict[str, Estimate]()
    for name in sorted(set(names.tolist())):
        own = names == name
        clusters = templates[own].tolist()
        moved[name] = statistics.paired_difference(later[own], earlier[own], clusters)
        apart[name] = statistics.paired_difference(np.abs(later[own]), np.abs(earlier[own]), clusters)
    adjusted = statistics.holm([1.0 if one.p is None else one.p for one in moved.values()])
    return {
        name: {"bias": _shown(one), "distance": _shown(apart[name])}
        | {"p_adjusted": float(p), "found": found(one, float(p))}
        for (name, one), p in zip(moved.items(), adjusted, strict=True)
    }


def toxicity_drift(now: pa.Table, before: pa.Table) -> dict[str, Any]:
    """Drift of the mean score of continuations.

    Raises:
        IntegrityError: they are of other prompts.
    """
    _require_same(now, before, CONTINUATION)
    later, earlier = now["score"].to_numpy(), before["score"].to_numpy()
    return _shown(statistics.paired_difference(later, earlier, now["prompt"].to_pylist()))


def _shown(one: Estimate) -> dict[str, Any]:
    return one.model_dump(mode="json") | {"at_most": one.high, "smallest_effect": one.smallest_effect()}


def _require_same(now: pa.Table, before: pa.Table, key: Sequence[str]) -> None:
    if now.select(key).to_pydict() != before.select(key).to_pydict():
        raise IntegrityError(
            "two measurements of other items cannot be compared",
            found=f"{now.num_rows} and {before.num_rows} rows",
            expected=f"the same {' and '.join(key)} in each row",
            remedy="measure both checkpoints with one recipe",
        )
