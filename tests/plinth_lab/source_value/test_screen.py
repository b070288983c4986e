"""Results of a sample before anything is trained."""

from typing import Any

import pytest

from plinth.errors import RequestError
from plinth.evaluation import statistics
from plinth_lab.source_value import question

ALL = {"documents": 200, "source_bytes": 1000, "of_bytes": 1000}
PART = {"documents": 200, "source_bytes": 1000, "of_bytes": 9000}


def sample(
    nominal: float, tokens: dict[str, float] | None, read: dict[str, int] = PART, held: int = 0, rate: float = 0.0
) -> dict[str, Any]:
    ends = {"value": rate, "low": 0.9 * rate, "high": 1.1 * rate}
    return {
        "tokenizer": {"bytes_per_token": ends, "corpus": 4.0} if rate else {},
        "sample": read,
        "effective": {"tokens": tokens or {}, "factors": {"nominal_tokens": nominal}},
        "test": {"documents": 60, "held": held},
    }  # fmt: skip


def test_tokens_that_a_share_needs() -> None:
    assert question.needed(0.3, 1000, 4) == 75
    assert question.needed(0.3, 1001, 4) == 76


def test_a_source_that_overlaps_the_test_text_or_is_too_small() -> None:
    with pytest.raises(RequestError, match=r"(?s)overlaps the test text.*3 of 60"):
        question.require_meaning(sample(1e6, None, held=3), {"proxy": 10})
    with pytest.raises(RequestError, match=r"(?s)too small for its share.*99 tokens.*at least 100"):
        question.require_meaning(sample(99, None), {"proxy": 7, "anneal": 100})
    question.require_meaning(sample(100, None), {"proxy": 7, "anneal": 100})


def test_too_little_that_is_new_is_an_answer() -> None:
    enough = {"value": 60.0, "low": 40.0, "high": 100.0}
    assert question.refusal(sample(1000, enough), {"proxy": 100}, 1.5) == ""
    said = question.refusal(sample(1000, enough), {"proxy": 101}, 1.5)
    assert said.startswith("at most 100 of the source's 1,000 tokens ")


def test_text_that_the_tokenizer_takes_apart_is_an_answer_where_the_whole_interval_is_below_the_bound() -> None:
    enough = {"value": 60.0, "low": 40.0, "high": 100.0}
    said = question.refusal(sample(1000, enough, rate=1.0), {"proxy": 100}, 1.5)
    assert said.startswith("the source's text has at most 1.1 bytes per token (95%)")
    assert "a bucket needs 1.5" in said
    assert question.refusal(sample(1000, enough, rate=1.4), {"proxy": 100}, 1.5) == ""
    assert question.refusal(sample(1000, enough, rate=3.5), {"proxy": 100}, 1.5) == ""


def test_of_a_sample_without_anything_new_the_documents_bound_the_rest() -> None:
    assert question.most_new(sample(1e6, None)) == statistics.upper_share(0, 200) * 1e6
    assert question.most_new(sample(1e6, {"value": 0.0, "low": 0.0, "high": 0.0})) > 10_000
    assert question.most_new(sample(1e6, None, ALL)) == 0.0
