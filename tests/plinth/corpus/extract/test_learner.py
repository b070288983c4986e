"""Learning of the main-content model: labels of blocks, trees as arrays, lessons of pages and answers of workers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from plinth.compute.worker import ItemStream, Program
from plinth.corpus.extract.content.engine import FEATURES, default_model, read_model
from plinth.corpus.extract.content.learner import (
    BlockReader,
    LabeledBlocks,
    boosted,
    covers,
    joined,
    labels,
    log_odds,
    model_bytes,
    weights,
)
from plinth.corpus.extract.content.lessons import (
    DISAGREES,
    FAILED,
    KEEPING,
    NO_ARTICLE,
    NOT_COVERED,
    PAGE_BLOCKS,
    TAUGHT,
    TEACHING,
    PageAgreement,
    agreement_of,
    declares_article,
    lesson_of,
)
from plinth.corpus.extract.page import Page, page_bytes
from tests.plinth.corpus.extract.test_content import FIRST, SECOND, THIRD
from tests.plinth.corpus.extract.test_fallback import page

FORM = {"objective": "binary", "num_leaves": 4, "min_child_samples": 5, "learning_rate": 0.5}


def test_a_block_has_the_share_of_its_shingles_that_is_in_the_text() -> None:
    texts = ["one two three four five", "one two three four nine", "seven", "", "eight words", "zero", "other words"]
    found = labels(texts, "one two three four five six\nseven\nmany eight words more")
    assert found.tolist()[:3] == [1.0, 0.5, 1.0]
    assert np.isnan(found[3])
    assert found.tolist()[4:] == [0.0, 0.0, 0.0]  # no certain block after "eight words"


def test_a_short_block_that_occurs_is_in_the_text_if_its_neighbors_are() -> None:
    truth = "a b c d e\nf g more here h\nw x y z"
    assert labels(["a b c d e", "more here", "w x y z"], truth).tolist() == [1.0, 1.0, 1.0]
    assert labels(["a b c d e", "more here", "p q r s"], truth).tolist() == [1.0, 0.0, 0.0]


def test_a_text_is_covered_by_the_blocks_that_are_in_it() -> None:
    text = f"{FIRST}\n{SECOND}"
    both = [FIRST, SECOND, THIRD]
    assert covers(both, labels(both, text), text)
    assert not covers([FIRST], labels([FIRST], text), text)
    assert not covers(["A tiny text of few words"], np.ones(1), "A tiny text of few words")


def test_long_blocks_weigh_more_and_pages_of_many_blocks_less() -> None:
    short, long = weights(["x", "x" * 900])
    assert (short, long) == pytest.approx((0.3 + 1 / 6, 0.3 + 5))
    assert weights(["x" * 900] * 100).sum() == pytest.approx((530 * 60) ** 0.5)


def examples(rows: int = 400) -> LabeledBlocks:
    draw = np.random.RandomState(1)
    features = draw.rand(rows, FEATURES).astype(np.float32)
    return LabeledBlocks(features, (features[:, 3] + features[:, 7] > 1).astype(float), np.ones(rows))


def test_trees_as_arrays_have_the_log_odds_of_lightgbm() -> None:
    import lightgbm

    from plinth.corpus.extract.content.learner import TREES

    found = examples()
    model = boosted(found, 12, FORM, (0.0, 0.0))
    theirs = lightgbm.train({**TREES, **FORM}, lightgbm.Dataset(found.features, found.truth, weight=found.weight), 12)
    expected = theirs.predict(found.features, raw_score=True)
    np.testing.assert_allclose(log_odds(model, found.features), expected, atol=1e-5)


def test_further_trees_are_learned_from_what_the_model_leaves(tmp_path: Path) -> None:
    found = examples()
    first = boosted(found, 5, FORM, (0.5, -0.5))
    start = log_odds(first, found.features)
    more = boosted(found._replace(start=start), 7, FORM, (0.0, 0.0))
    both = joined(first, more)
    assert (both.first.size, both.article, both.other) == (12, 0.5, -0.5)
    np.testing.assert_allclose(log_odds(both, found.features), start + log_odds(more, found.features), atol=1e-6)
    wrong = 1 - 2 * found.truth
    before, after = (np.log1p(np.exp(wrong * log_odds(model, found.features))).mean() for model in (first, both))
    assert after < before
    (tmp_path / "model.npz").write_bytes(model_bytes(both))
    again = read_model(tmp_path / "model.npz")
    assert all(np.array_equal(a, b) for a, b in zip(both, again, strict=True))
    assert model_bytes(again) == model_bytes(joined(first, boosted(found._replace(start=start), 7, FORM, (0.0, 0.0))))


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ('<meta property="og:type" content="article">', True),
        ("<META property='og:type' content='News.Article'/>", True),
        ('<meta property="og:type" content="website"><meta name="x" content="article">', False),
        ('<meta property="og:type">article', False),
    ],
)
def test_a_page_declares_an_article(head: str, expected: bool) -> None:
    assert declares_article(f"<html><head>{head}</head>") is expected


def lessons(*bodies: str) -> list[tuple[str, object]]:
    with ItemStream(Program(TEACHING, ("5",), idle_s=15.0, quiet=True)) as stream:
        (answers,) = stream.map([[page_bytes(Page(body.encode())) for body in bodies]])
    return [lesson_of(answer) for answer in answers if isinstance(answer, bytes)]


def test_lessons_of_articles_have_labels_of_the_teacher_and_others_of_the_default_model() -> None:
    text = f"<h1>Head</h1><p>{FIRST}</p><p>{SECOND}</p><p>{THIRD}</p>"
    found = lessons(page("article", text), page("website", text), page("article", "<p>x</p>"))
    outcomes, (taught, kept, _) = [outcome for outcome, _ in found], [lesson for _, lesson in found]
    assert outcomes[:2] == [TAUGHT, NO_ARTICLE]
    assert outcomes[2] in (DISAGREES, NOT_COVERED)
    features, texts = BlockReader()(page("article", text))
    np.testing.assert_array_equal(taught.features, features)
    assert taught.truth.tolist() == [float(text in (FIRST, SECOND, THIRD, "Head")) for text in texts]
    np.testing.assert_allclose(taught.weight, weights(texts))
    np.testing.assert_allclose(kept.weight, weights(texts) * KEEPING)
    np.testing.assert_allclose(kept.truth, 1 / (1 + np.exp(-log_odds(default_model(), kept.features))))


def test_a_page_of_many_blocks_is_sampled() -> None:
    lines = "".join(f"<p>Line {n} of many lines.</p>" for n in range(2 * PAGE_BLOCKS))
    ((_, lesson),) = lessons(page("website", lines))
    assert len(lesson.truth) == PAGE_BLOCKS


def test_answers_that_are_no_lesson_fail() -> None:
    row = 4 * FEATURES + 24
    good = struct.pack("<BI", 0, 1) + bytes(row)
    assert lesson_of(good)[0] == TAUGHT
    nan = struct.pack("<BI", 0, 1) + b"\xff" * row
    for bad in (b"", b"x", good[:-1], good + b"x", nan, struct.pack("<BI", 9, 0), struct.pack("<BI", 0, 2**31)):
        assert lesson_of(bad) == (FAILED, None)
    assert agreement_of(struct.pack("<B3d", 1, 0.5, 1.0, 0.0)) == (NO_ARTICLE, PageAgreement(0.5, 1.0, 0.0))
    for bad in (b"", b"x" * 25, struct.pack("<B3d", 0, 2.0, 0, 0), struct.pack("<B3d", 0, float("nan"), 0, 0)):
        assert agreement_of(bad) == (FAILED, None)
