"""Samples of what was removed, and what labels say of a reason."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.corpus.sidecars import Smallest, excerpt, rank, ranks
from plinth.corpus.slices import reviews
from plinth.corpus.slices.reviews import Review
from plinth.errors import MissingError
from tests import judged_corpus
from tests.judged_corpus import PLANTED


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return judged_corpus.copy(tmp_path_factory, tmp_path_factory.mktemp("judged"))


def ids(rows: list[dict[str, object]]) -> list[str]:
    return [str(row["id"]) for row in rows]


def test_everything_of_a_reason_in_order_of_its_hash(ctx: Context) -> None:
    rows = reviews.sample(ctx, "too_few_words", sorted(PLANTED), 100, seed=3)
    assert len(rows) == sum(counts[1] for counts in PLANTED.values())
    hashes = [rank(bytes.fromhex(one), 3) for one in ids(rows)]
    assert hashes == sorted(hashes)
    for row in rows:
        assert row["values"] == {"gopher_quality.word_count": 10}
        assert row["rule"] == "gopher_quality.word_count < 20"
        assert (row["stage"], row["fired"], row["label"]) == ("policy", ["too_few_words"], None)
    assert ids(reviews.sample(ctx, "too_few_words", sorted(PLANTED), 3, seed=3)) == ids(rows)[:3]
    assert {row["bucket"] for row in reviews.sample(ctx, "too_few_words", ["prose"], 100)} == {"prose"}
    assert ids(reviews.sample(ctx, "too_few_words", sorted(PLANTED), 100, seed=4)) != ids(rows)


def test_other_stages_and_rejects(ctx: Context) -> None:
    copies = reviews.sample(ctx, "exact_duplicate", ["web"], 10)
    assert len(copies) == PLANTED["web"][3]
    assert {(row["stage"], row["rule"]) for row in copies} == {("exact", None)}
    for row in copies:
        assert row["survivor"]["id"] != row["id"]
        assert row["survivor"]["uri"].startswith("https://")
    held = reviews.sample(ctx, "held_out", ["web"], 100)
    assert len(held) == ctx.refs.current("web/verdicts").stats["decisions"]["heldout"]
    refused = reviews.sample(ctx, "empty", ["web"], 10)
    assert sorted(row["uri"] for row in refused) == [f"https://web.example/bad{i}" for i in range(3)]
    assert {row["stage"] for row in refused} == {"documents"}
    assert len(set(ids(refused))) == 3
    assert all(len(one) == 32 for one in ids(refused))


def test_where_a_rule_fired_though_another_was_first(tmp_path: Path) -> None:
    rules = judged_corpus.POLICY.model_copy(
        update={
            "rules": (*judged_corpus.POLICY.rules, judged_corpus.POLICY.rules[1].model_copy(update={"reason": "again"}))
        }
    )
    ctx = judged_corpus.build(tmp_path, rules)
    with pytest.raises(MissingError, match="no document was removed for 'again'"):
        reviews.sample(ctx, "again", ["web"])
    fired = reviews.sample(ctx, "again", ["web"], 100, fired=True)
    assert len(fired) == PLANTED["web"][1]
    assert {tuple(row["fired"]) for row in fired} == {("too_few_words", "again")}


def test_an_unknown_reason_names_those_there_are(ctx: Context) -> None:
    with pytest.raises(MissingError, match=r"too_few_words \(8\)"):
        reviews.sample(ctx, "to_few_words", sorted(PLANTED))


def test_summary_by_reason() -> None:
    said = [("a", "bad")] * 8 + [("a", "good")] * 2 + [("b", "good")] * 5
    labels = [
        Review(id=f"{i:032x}", reason=reason, label=label, reviewer="ada", time="2026-11-01T00:00:00Z")  # type: ignore[arg-type]
        for i, (reason, label) in enumerate(said)
    ]
    first, second = reviews.summary(labels)
    assert (first["labels"], first["rightly_removed"], first["precision"]) == (10, 8, 0.8)
    # Newcombe 1998 and every statistics package: 8 of 10 has Wilson's interval 0.4902 to 0.9433.
    assert (first["low"], first["high"]) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert (second["precision"], second["low"]) == (0.0, 0.0)
    assert second["high"] == pytest.approx(0.4345, abs=1e-4)
    assert reviews.summary([]) == []


@given(st.lists(st.integers(0, 50), max_size=80), st.integers(0, 12))
def test_smallest_is_the_head_of_a_stable_sort(values: list[int], count: int) -> None:
    best = Smallest(count)
    best.extend((value, (value, i)) for i, value in enumerate(values))
    expected = sorted(((value, i) for i, value in enumerate(values)), key=lambda pair: pair[0])[:count]
    assert best.chosen() == expected


def test_hashes_of_ids_are_even_and_keyed() -> None:
    found = [hashlib.sha256(bytes([i % 256, i // 256])).digest()[:16] for i in range(4096)]
    column = pa.array([b"\0" * 16, *found], pa.binary(16)).slice(1)
    one, two = ranks(column, 1), ranks(column, 2)
    assert one.tolist() == [rank(identity, 1) for identity in found]
    assert np.unique(one).size == 4096
    assert abs(np.corrcoef(one.astype(float), two.astype(float))[0, 1]) < 0.06
    assert abs((one < 2**63).mean() - 0.5) < 0.03


def test_excerpts_are_one_line_of_bounded_length() -> None:
    picks = random.Random(1)
    text = "".join(picks.choice("ab \n\t\u3000é") for _ in range(9000))
    shown = excerpt(text, 100)
    assert len(shown) == 100
    assert shown.endswith("…")
    assert shown[:-1] in " ".join(text.split())
    assert excerpt(" a\n b ") == "a b"
