"""Clusters as runs of members: who is listed, under which name, and who survives."""

from typing import Any

import numpy as np

from plinth.corpus.dedup import clusters, sorted_runs


def test_only_clusters_of_two_or_more_are_listed(tiny: Any) -> None:
    """The first two of 3, 5 and 9 are equal: 5 has the smaller id and names both, 3 has the better rank and is kept."""
    ranks = np.array([[7, 1, 0], [7, 0, 1], [1, 1, 0]], np.uint64)  # both halves of the id, the rank
    part = clusters.write_members(tiny.ctx.store, np.array([3, 5, 9], np.uint64), np.array([8, 8, 2]), ranks)
    with sorted_runs.SortedRun(tiny.ctx.store, part, clusters.MEMBERS) as opened:
        rows = np.stack(opened.all(), axis=1).tolist()
    assert rows == [[3, 7, 0, 2 << 1 | 1], [5, 7, 0, 2 << 1]]
