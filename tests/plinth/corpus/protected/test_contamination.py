"""Contamination: hand-worked overlaps, planted leaks with precision and recall, boilerplate."""

import random
from typing import Any

import pytest

from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.corpus.protected.contamination import cuts
from plinth.corpus.protected.holdout import rank
from plinth.corpus.protected.parameters import Contamination, Holdout
from plinth.storage.parts import read_table


def words(picks: random.Random, count: int) -> list[str]:
    return [f"w{picks.randrange(10**9)}" for _ in range(count)]


def planted(tiny: Any, held: Any, others: list[Any], params: Contamination, bucket: str = "a") -> Any:
    """A corpus in which exactly `held` is held out: names are tried until its rank is the smallest."""
    lowest = min(rank(1, doc.id) for doc in others)
    for i in range(100_000):
        held = tiny.Doc(held.text, name=f"held{i}")
        if rank(1, held.id) < lowest:
            break
    tight = Holdout(fraction=1e-9, min_documents=1)
    corpus = tiny.corpus(
        {bucket: [[held, *others[::2]], others[1::2]]},
        holdout_params=tight,
        contamination_params=params,
        dedup=Dedup(minhash=MinHash(threshold=1.0)),
    )
    rows = corpus.rows(corpus.through_holdout())
    assert {identity for identity, row in rows.items() if row["held_out"]} == {held.id}
    return corpus, held


def test_hand_worked_overlap(tiny: Any) -> None:
    picks = random.Random(1)
    secret = words(picks, 6)
    held = tiny.Doc(" ".join([*words(picks, 4), *secret]))
    leak = tiny.Doc(" ".join([*words(picks, 2), *secret[:4]]).upper())  # 4 3-grams, 2 of them held out
    twice = tiny.Doc(" ".join([*secret[:3], *words(picks, 1), *secret[:3]]))  # 5 3-grams, 2 occurrences of one
    clean = tiny.Doc(" ".join([*words(picks, 5), *secret[:2]]))
    corpus, held = planted(tiny, held, [leak, twice, clean], Contamination(ngram_words=3, remove="document"))
    rows = corpus.rows(corpus.through_contamination())
    assert rows[leak.id] == {"overlap": 0.5, "matched": 2, "contaminated": True, "edits": []}
    assert rows[twice.id]["overlap"] == pytest.approx(0.4)
    assert rows[twice.id]["matched"] == 2
    assert rows[clean.id] == {"overlap": 0.0, "matched": 0, "contaminated": False, "edits": []}
    assert rows[held.id] == {"overlap": None, "matched": None, "contaminated": False, "edits": []}
    stats = corpus.contamination.stats
    assert (stats["considered"], stats["contaminated"], stats["held_out_ngrams"]) == (3, 2, 8)
    assert stats["contaminated_bytes"] == len(leak.text) + len(twice.text)


def test_max_overlap_is_allowed(tiny: Any) -> None:
    picks = random.Random(2)
    secret = words(picks, 5)
    leak = tiny.Doc(" ".join([*secret[:3], *words(picks, 1)]))  # half of its 3-grams
    for bound, contaminated in ((0.49, True), (0.5, False)):
        params = Contamination(ngram_words=3, max_overlap=bound, remove="document")
        corpus, _ = planted(tiny, tiny.Doc(" ".join(secret)), [leak], params)
        assert corpus.rows(corpus.through_contamination())[leak.id]["contaminated"] is contaminated


def test_documents_training_would_not_see_are_not_measured(tiny: Any) -> None:
    picks = random.Random(3)
    secret = " ".join(words(picks, 20))
    dropped = tiny.Doc(secret + " more of it", fired=("bad",))
    corpus, _ = planted(tiny, tiny.Doc(secret), [dropped, tiny.Doc("x y")], Contamination())
    assert corpus.rows(corpus.through_contamination())[dropped.id]["overlap"] is None


def test_boilerplate_is_no_leak(tiny: Any) -> None:
    picks = random.Random(4)
    licence, secret = words(picks, 30), words(picks, 30)
    held = tiny.Doc(" ".join([*licence, *secret]))
    innocent = [tiny.Doc(" ".join([*licence, *words(picks, 30)])) for _ in range(11)]
    leak = tiny.Doc(" ".join([*words(picks, 30), *secret[:20]]))
    for limit, flagged in ((10, {leak.id}), (11, {leak.id, *(doc.id for doc in innocent)}), (None, None)):
        params = Contamination(boilerplate_documents=limit, remove="document")
        corpus, _ = planted(tiny, held, [leak, *innocent], params)
        rows = corpus.rows(corpus.through_contamination())
        found = {identity for identity, row in rows.items() if row["contaminated"]}
        assert found == (flagged or {leak.id, *(doc.id for doc in innocent)})
        assert corpus.contamination.stats["boilerplate_ngrams"] == (18 if limit == 10 else 0)


def test_precision_and_recall_on_planted_leaks(tiny: Any) -> None:
    picks = random.Random(5)
    held_out = [words(picks, 80) for _ in range(5)]
    held = tiny.Doc(" . ".join(" ".join(one) for one in held_out))
    leaks, clean = [], []
    for i in range(60):
        body = words(picks, 100)
        start, length = picks.randrange(60), 13 if i % 2 else 12
        span = held_out[i % 5][start : start + length]
        (leaks if length == 13 and len(span) == 13 else clean).append(
            tiny.Doc(" ".join([*body[:50], *span, *body[50:]]))
        )
    corpus, _ = planted(tiny, held, leaks + clean, Contamination())
    rows = corpus.rows(corpus.through_contamination())
    assert {identity for identity, row in rows.items() if row["matched"]} == {doc.id for doc in leaks}
    # GPT-3's rule: of 1,100 characters the match goes, and what is left stays
    assert {identity for identity, row in rows.items() if row["edits"]} == {doc.id for doc in leaks}
    assert not any(row["contaminated"] for row in rows.values())
    every = {" ".join(one[i : i + 13]) for one in held_out for i in range(68)}
    trained = {row["id"]: row["text"] for made in corpus.through_curated().values() for part in made.named("part-")
               for row in read_table(tiny.ctx.store, part, ["id", "text"]).to_pylist()}  # fmt: skip
    for leak in leaks:
        text = trained[leak.id]
        assert not any(gram in text for gram in every)
        assert 500 < len(text) < len(leak.text) - 400
        assert set(text.split()) <= set(leak.text.split())  # no half words
    assert len(leaks) > 20
    assert len(clean) > 20


def test_held_out_documents_of_other_buckets_count(tiny: Any) -> None:
    picks = random.Random(6)
    docs = {name: [tiny.Doc(" ".join(words(picks, 30))) for _ in range(4)] for name in ("a", "b")}
    tight = Holdout(fraction=1e-9, min_documents=1)
    first = tiny.corpus({name: [some] for name, some in docs.items()}, holdout_params=tight)
    rows = first.rows(first.through_holdout())
    (held,) = (doc for doc in docs["a"] if rows[doc.id]["held_out"])
    quoting = tiny.Doc(held.text + " " + " ".join(words(picks, 40)), name="")
    lowest = min(rank(1, doc.id) for doc in docs["b"])
    for i in range(1000):
        quoting = tiny.Doc(quoting.text, name=f"q{i}")
        if rank(1, quoting.id) > lowest:
            break
    corpus = tiny.corpus({"a": [docs["a"]], "b": [docs["b"], [quoting]]}, holdout_params=tight)
    rows = corpus.rows(corpus.through_contamination())
    assert rows[quoting.id]["matched"] == 18
    assert corpus.contamination.stats["buckets"]["b"]["cut"] == 1


def test_nothing_held_out_contaminates_nothing(tiny: Any) -> None:
    corpus = tiny.corpus({"a": [[tiny.Doc("x", fired=("bad",))]]})
    assert corpus.through_contamination().stats["contaminated"] == 0


@pytest.mark.parametrize(
    ("length", "matches", "expected"),
    [
        (1000, [(500, 560)], [(300, 760)]),  # 200 characters on both sides
        (1100, [(500, 560), (570, 600)], [(300, 800)]),  # windows that overlap are one cut
        (1000, [(350, 400)], [(0, 600)]),  # 150 characters are left before it: fewer than 200 go too
        (1000, [(0, 60)], [(0, 260)]),
        (1000, [(940, 1000)], [(740, 1000)]),
        (600, [(280, 320)], None),  # nothing of 200 characters is left
        (10_000, [(at, at + 20) for at in range(500, 9000, 900)], "ten cuts, eleven pieces"),
        (10_000, [(at, at + 20) for at in range(500, 8000, 900)], "nine cuts, ten pieces"),
    ],
)
def test_gpt3s_rule_by_hand(length: int, matches: list[tuple[int, int]], expected: object) -> None:
    text = "x " * (length // 2)  # white space next to every character, so that no cut is widened by more than one
    found = cuts(text, matches)
    if isinstance(expected, str):
        assert (found is None) == expected.startswith("ten")
    elif found is None or not isinstance(expected, list):
        assert found is expected
    else:
        assert len(found) == len(expected)
        for (start, end), (least, most) in zip(found, expected, strict=True):
            assert start in (least, least - 1, least + 1)
            assert end in (most, most + 1, most - 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [("The mill is old. ", " and new. "), ("The mill is “old.”\n", " Is it? "), ("水車は古い。", "と言う。")],
)
def test_a_cut_ends_where_a_sentence_ends(before: str, after: str) -> None:
    lead, rest = 40 * "So it goes. ", "And on it goes. " * 40
    text = f"{lead}{before}{'he says ' * 30}{'leak ' * 13}{'she says ' * 30}{after}{rest}"
    at = text.index("leak")
    ((start, end),) = cuts(text, [(at, at + 13 * 5)]) or [(0, 0)]
    assert text[:start].strip() == f"{lead}{before}".strip()
    assert text[end:].strip() == rest.strip()
