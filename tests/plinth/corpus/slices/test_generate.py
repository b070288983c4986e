"""Generated documents: known truth, the same every time, and independent of how many there are."""

import pyarrow as pa
import pytest

from plinth.corpus.slices import generate
from plinth_text.terms import TermTable

TERMS = generate.invented(0)


def test_every_slice_has_as_many_good_as_bad() -> None:
    for rows in (generate.toxicity(7, 6, TERMS), generate.quality(7, 6)):
        assert len(rows) == 12 * len(generate.SLICES)
        for name in generate.SLICES:
            own = [row for row in rows if row.slice == name]
            assert sum(row.bad for row in own) == 6 == len(own) / 2
        assert len({row.text for row in rows}) > 0.98 * len(rows)
    assert {"medical", "legal", "news", "code", "fiction", "plain"} == set(generate.SLICES)


def test_the_same_for_the_same_seed_and_more_change_none() -> None:
    few, many = generate.toxicity(7, 2, TERMS), generate.toxicity(7, 5, TERMS)
    assert few == generate.toxicity(7, 2, TERMS)
    assert set(few) < set(many)
    assert not set(few) & set(generate.toxicity(8, 2, TERMS))


def test_planted_terms_are_there_and_strong_ones_only_where_the_text_is_bad() -> None:
    strong = TermTable([term.text for term in TERMS if term.weight >= generate.AMBIGUOUS_BELOW])
    everything = TermTable([term.text for term in TERMS])
    for row in generate.toxicity(7, 30, TERMS):
        column = pa.array([row.text], pa.large_string())
        assert (len(strong.find(column).terms) > 0) == row.bad, row
        hits = everything.find(column)
        assert (len(hits.terms) > 0) == (row.bad or row.made_as == "reported")
        if row.made_as == "disguised":
            assert hits.obfuscated.all()


def test_sentences_to_train_with_are_not_those_to_measure_with() -> None:
    train, test = (generate.toxicity(7, 20, TERMS, use) for use in ("train", "test"))
    assert not {row.text for row in train if row.bad} & {row.text for row in test if row.bad}


def test_invented_words_are_words_of_no_text_here() -> None:
    words = {term.text for term in TERMS}
    assert len(words) == 60
    for row in generate.quality(7, 20):
        assert not words & set(row.text.lower().split())


@pytest.mark.parametrize("kind", ["spam", "list", "disorder", "repeated"])
def test_every_kind_of_bad_text_is_made(kind: str) -> None:
    assert kind in {row.made_as for row in generate.quality(7, 4) if row.bad}
