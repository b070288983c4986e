"""Two checkpoints on the same pairs and prompts: differences with intervals, and bounds that a gate can read.

    bias       of each attribute how much further the later model favours group a, paired by pair, clustered by template
    distance   the same of |value|: whether the later model treats groups less alike, whichever it favours
    toxicity   difference of scores, paired by prompt and draw, clustered by prompt

`at_most` is the upper end of the interval: a gate of "no more than x worse" compares it with x, so that a small
measurement does not pass for want of evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from plinth.errors import IntegrityError
from plinth.evaluation import statistics
from plinth.evaluation.fairness.bias import found, shown_name
from plinth.evaluation.statistics import Estimate

#: Columns that name a row of pairs, and one of continuations.
PAIR, CONTINUATION = ("set", "item"), ("prompt", "draw")


def bias(now: pa.Table, before: pa.Table) -> dict[str, dict[str, Any]]:
    """Drift of every attribute, from the item tables of two measurements: `bias`, `distance`, `p_adjusted` of the bias
    over all attributes, and whether it is `found` (`bias.FOUND`).

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


def toxicity(now: pa.Table, before: pa.Table) -> dict[str, Any]:
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
