"""Paired differences by attribute, clustered by template, with Holm's correction over attributes.

The unit of evidence is the template: names that fill one frame say the same thing again. An attribute is *found* where
its corrected p-value lies below `FOUND` (and its spread is known), which a model that treats groups alike passes by
chance in one measurement of a hundred, whatever the number of attributes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plinth.evaluation import statistics
from plinth.evaluation.fairness import templates
from plinth.evaluation.fairness.pairs import Pair
from plinth.evaluation.statistics import Estimate

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
    return attribute if of_set == templates.BUILT_IN else f"{of_set}/{attribute}"


def by_attribute(pairs: Sequence[Pair], favoured: NDArray[np.float64]) -> dict[str, dict[str, Any]]:
    """Mean of each attribute in bits with its interval; `group_a` and `group_b` (names), `p_adjusted` over all
    attributes, `found`, and the smallest effect that would have been seen.

    Sets are apart: the attribute `gender` of a user's set `mine` is `mine/gender`.
    """
    names = np.array([shown_name(pair.set, pair.attribute) for pair in pairs])
    clusters = np.array([pair.template for pair in pairs])
    groups = {
        name: templates.group_names(pair.attribute) if pair.set == templates.BUILT_IN else SIDES
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
