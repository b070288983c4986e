"""Rules counted in one pass: results of the kernels equal those of plain Python for each document."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.corpus.policy import policy


@st.composite
def firings(draw: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rules that fire seldom or often, on numbers of documents around the eights that are skipped at once."""
    rules, documents = draw(st.integers(0, 5)), draw(st.sampled_from([0, 1, 7, 8, 9, 64, 65, 130]))
    picks = np.random.default_rng(draw(st.integers(0, 2**32)))
    often = draw(st.sampled_from([0.0, 0.02, 0.3, 1.0]))
    return picks.random((rules, documents)) < often, picks.integers(0, 1000, documents)


@settings(deadline=None)
@given(firings())
def test_tally_and_lists_are_those_of_plain_python(given: tuple[np.ndarray, np.ndarray]) -> None:
    fires, size = given
    fired = [[rule for rule in range(fires.shape[0]) if fires[rule, at]] for at in range(size.size)]
    first, count, counts = policy.tally(fires, size)
    assert first.tolist() == [rules[0] if rules else -1 for rules in fired]
    assert count.tolist() == [len(rules) for rules in fired]
    for rule in range(fires.shape[0]):
        on = [at for at, rules in enumerate(fired) if rule in rules]
        leads = [at for at in on if fired[at][0] == rule]
        alone = [at for at in on if fired[at] == [rule]]
        expected = [len(on), len(leads), len(alone), *(int(size[own].sum()) for own in (on, leads, alone))]
        assert counts[rule].tolist() == expected
    offsets, values = policy.rule_lists(fires, count)
    assert [values[a:b].tolist() for a, b in pairwise(offsets)] == fired


def test_sizes_may_be_read_only_and_of_any_stride() -> None:
    sizes = pa.array([5, 1, 7, 1]).to_numpy()[::2]
    assert policy.tally(np.array([[True, True]]), sizes)[2].tolist() == [[2, 2, 2, 12, 12, 12]]
