"""A bias that was planted is found, none is found where there is none; pairs, drift and their errors."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from plinth.errors import IntegrityError, RejectRateError, SourceError
from plinth.evaluation.engine.records import Request
from plinth_audit.fairness import job, pairs
from plinth_audit.fairness.pairs import Pair
from tests.plinth_audit.fairness.swapped_corpus import counted_model

BUILT_IN = pairs.built_in()


def _found(seed: int, share: float) -> set[str]:
    measured = pairs.by_attribute(BUILT_IN, pairs.values(BUILT_IN, counted_model(seed, share, sentences=4000)))
    return {name for name, one in measured.items() if one["found"]}


def test_a_corpus_swapped_nine_to_one_is_found_and_one_to_one_is_not() -> None:
    assert [_found(seed, 0.9) for seed in range(5)] == [{"gender"}] * 5
    assert [_found(seed, 0.5) for seed in range(5)] == [set()] * 5


@pytest.mark.exhaustive
def test_the_same_in_two_hundred_corpora() -> None:
    swapped = [_found(seed, 0.9) for seed in range(200)]
    assert sum("gender" in one for one in swapped) >= 190
    assert sum(one <= {"gender"} for one in swapped) >= 190
    assert sum(_found(seed, 0.5) == set() for seed in range(1000, 1200)) >= 190


def test_the_value_is_what_the_model_gives_group_a() -> None:
    one = Pair("s", "1", "gender", "t", True, Request("", "x"), Request("", "y"))
    assert pairs.values([one, one._replace(favourable=False)], np.array([3.0, 5.0, 3.0, 5.0])).tolist() == [2.0, -2.0]


def test_names_of_a_group_play_no_part() -> None:
    """A constant for each name, on both ends alike, cancels in the sum of a good and a bad end."""
    rng = np.random.default_rng(1)
    names = rng.normal(size=len(BUILT_IN))[:, None] * [[1.0, -1.0]]
    paired = np.repeat(names[::2], 2, axis=0)  # built in pairs come good, bad, good, bad
    found = pairs.by_attribute(BUILT_IN, pairs.values(BUILT_IN, paired.ravel()))
    assert all(abs(one["value"]) < 1e-12 and not one["found"] for one in found.values())


def test_the_pairs_that_come_along() -> None:
    assert len({one.item for one in BUILT_IN}) == len(BUILT_IN) == 12 * 2 * 14
    assert {one.attribute for one in BUILT_IN} == set(pairs.GROUPS)
    assert all(one.a.continuation == one.b.continuation and one.a.prompt != one.b.prompt for one in BUILT_IN)
    assert len(set(pairs.PROMPTS)) == 20


LINE = {"attribute": "gender", "template": "t", "a": "He came.", "b": "She came."}


def test_lines_of_a_file() -> None:
    sides = {"a": {"prompt": "p", "continuation": " x"}, "b": {"continuation": "y"}}
    sided = {"attribute": "age", "favourable": False, **sides}
    found, rejects = pairs.read_pairs("mine", b"\xef\xbb\xbf" + "\n".join(map(json.dumps, [LINE, sided])).encode(), 0.0)
    assert rejects == []
    assert found == [
        Pair("mine", "line 1", "gender", "t", True, Request("", "He came."), Request("", "She came.")),
        Pair("mine", "line 2", "age", "line 2", False, Request("p", " x"), Request("", "y")),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting"),
        ("[1]", "a JSON object is expected"),
        (json.dumps(LINE | {"more": 1}), "unknown field 'more'"),
        (json.dumps(LINE | {"attribute": 3}), "`attribute`"),
        (json.dumps(LINE | {"favourable": "yes"}), "`favourable` must be true or false"),
        (json.dumps(LINE | {"b": LINE["a"]}), "are the same"),
        (json.dumps(LINE | {"a": {"prompt": "x"}}), "`a` must be a string"),
        (json.dumps(LINE | {"a": ""}), "`a` must be a string"),
        (json.dumps(LINE)[:-1] + ', "template": "\\ud800", "a": "\\ud800"}', "surrogates"),
        (json.dumps(LINE | {"a": "x" * 20_001}), "at most 20000"),
        ("[" * 100_000, ""),
    ],
)
def test_a_corrupted_line_costs_itself(line: str, reason: str) -> None:
    good = "\n".join(json.dumps(LINE | {"template": str(n)}) for n in range(99))
    found, (reject,) = pairs.read_pairs("mine", f"{good}\n{line}".encode(), 0.01)
    assert len(found) == 99
    assert (reject.line, reason in reject.reason) == (100, True)
    with pytest.raises(RejectRateError, match="1 of 1 lines are invalid"):
        pairs.read_pairs("mine", line.encode(), 0.01)


def test_a_file_without_pairs_is_named() -> None:
    with pytest.raises(SourceError, match="has no pair"):
        pairs.read_pairs("mine", b"\n", 0.01)


def _table(bits: np.ndarray) -> pa.Table:
    return job.table(BUILT_IN, np.full(len(bits), 3, np.int64), bits)


def test_drift_is_the_difference_pair_by_pair() -> None:
    even, skewed = _table(counted_model(1, 0.5)), _table(counted_model(2, 0.8))
    found = pairs.drift(skewed, even)
    moved = found["gender"]["bias"]
    assert moved["low"] > 0
    assert found["gender"]["p_adjusted"] < 0.01
    assert moved["at_most"] == moved["high"] > 1
    assert found["gender"]["distance"]["low"] > 0
    assert found["age"]["bias"]["low"] < 0 < found["age"]["bias"]["high"]
    own = np.array(even["attribute"].to_pylist()) == "gender"
    by_hand = (skewed["favoured"].to_numpy() - even["favoured"].to_numpy())[own].mean()
    assert moved["value"] == pytest.approx(by_hand)


def test_no_drift_between_a_checkpoint_and_itself() -> None:
    one = _table(counted_model(3, 0.9))
    drift = pairs.drift(one, one).values()
    assert all(found["bias"]["value"] == 0 and found["bias"]["at_most"] == 0 for found in drift)


def test_other_pairs_are_not_compared() -> None:
    one = _table(counted_model(3, 0.9))
    with pytest.raises(IntegrityError, match="different items"):
        pairs.drift(one, one.slice(2))


def test_drift_of_toxicity() -> None:
    rng = np.random.default_rng(1)
    names = {"prompt": [p for p in pairs.PROMPTS for _ in range(2)], "draw": [0, 1] * len(pairs.PROMPTS)}
    before, now = (pa.table(names | {"score": rng.uniform(low, low + 0.2, 40)}) for low in (0.0, 0.1))
    found = pairs.toxicity_drift(now, before)
    assert found["low"] < 0.1 < found["at_most"] == found["high"]
    assert found["clusters"] == 20


def test_the_section_of_the_page_names_what_was_found() -> None:
    attributes = pairs.by_attribute(BUILT_IN, pairs.values(BUILT_IN, counted_model(1, 0.9)))
    section = job.section("", {"attributes": attributes, "toxicity": {"toxic_at_most": 0.07}, "pairs": len(BUILT_IN)})
    assert "favors a group in gender after correction" in section.lead
    assert "≤ 7.0%" in section.lead
    assert [one.name for one in section.groups[0].measures] == sorted(pairs.GROUPS)
