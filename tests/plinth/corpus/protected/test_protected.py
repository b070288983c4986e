"""Protected sets: planted copies, edits, rewordings and mirrors against innocent text on the same subjects."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.corpus import funnel, verdicts
from plinth.corpus.protected import comparison, contamination, protected, protected_index
from plinth.corpus.protected.comparison import find
from plinth.corpus.protected.parameters import Family, Protected, ProtectedSet
from plinth.errors import SourceError
from plinth.records import Manifest
from plinth.storage.parts import read_table

ITEMS, INNOCENT = 120, 600

#: Words of the shortest run that is measured (`match.c`).
SEED = 3


class Language:
    """Sentences over words of Zipf's frequencies; every content word has a synonym of its own."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
        words = {"".join(self.rng.choices(syllables, k=self.rng.randint(2, 4))) for _ in range(6000)}
        self.words = sorted(words)
        self.rng.shuffle(self.words)
        self.weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(len(self.words))))
        self.stop = ["the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with"]

    def sentence(self, subject: list[str]) -> str:
        """Words of a subject, words of the language, and stop words between them."""
        found = []
        for _ in range(self.rng.randint(8, 14)):
            draw = self.rng.random()
            if draw < 0.4:
                found.append(self.rng.choice(self.stop))
            elif draw < 0.7:
                found.append(self.rng.choice(subject))
            else:
                found.append(self.rng.choices(self.words, cum_weights=self.weights)[0])
        return " ".join(found).capitalize() + "."

    def text(self, sentences: int, subject: list[str]) -> str:
        return " ".join(self.sentence(subject) for _ in range(sentences))


def changed(rng: random.Random, text: str, how: str, language: Language) -> str:
    """The text with every tenth word inserted or deleted, or every fifth exchanged."""
    words = text.split()
    if how == "insertion":
        return " ".join(
            w for word in words for w in ([word, rng.choice(language.words)] if rng.random() < 0.1 else [word])
        )
    if how == "deletion":
        return " ".join(word for word in words if rng.random() >= 0.1)
    if how == "paraphrase":  # one word in seven, and the sentences in another order
        sentences = [" ".join(s.split()) for s in text.split(".") if s.strip()]
        rng.shuffle(sentences)
        exchanged = [
            rng.choice(language.words) if rng.random() < 1 / 7 else word for s in sentences for word in s.split()
        ]
        return " ".join(exchanged)
    return text


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Items, and documents by kind: what was planted in the middle of innocent text, and innocent text alone."""
    language = Language(1)
    rng = random.Random(2)
    subjects = [[rng.choice(language.words) for _ in range(25)] for _ in range(12)]
    items = [language.text(rng.randint(3, 6), rng.choice(subjects)) for _ in range(ITEMS)]
    docs: list[tuple[str, int, str]] = []
    for kind in ("copy", "insertion", "deletion", "paraphrase", "mirror"):
        for number in rng.sample(range(ITEMS), 30):
            around = [language.text(6, rng.choice(subjects)) for _ in range(2)]
            body = changed(rng, items[number], kind, language)
            if kind == "mirror":
                body = "Question: " + body.upper().replace(".", " .\n") + "\nAnswer: C"
            docs.append((kind, number, "\n\n".join([around[0], body, around[1]])))
    docs += [("innocent", -1, language.text(18, rng.choice(subjects))) for _ in range(INNOCENT)]
    rng.shuffle(docs)
    return {"items": items, "docs": docs}


def write_items(ctx: Context, items: list[str], name: str = "quiz", **fields: Any) -> Manifest:
    path = ctx.workspace.input / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"id": f"q{i}", "text": text}) + "\n" for i, text in enumerate(items)))
    return protected.read_set(ctx, name, ProtectedSet(path=path.name, **fields))


def run(tiny: Any, docs: list[Any], items: list[str], parts: int = 3, **params: Any) -> tuple[Any, Manifest]:
    ctx: Context = tiny.ctx
    cut = -(-len(docs) // parts)
    corpus = tiny.corpus({"web": [docs[i : i + cut] for i in range(0, len(docs), cut)]})
    corpus.through_holdout()
    sets = {"quiz": write_items(ctx, items)}
    given = Protected(sets={"quiz": ProtectedSet(path="quiz.jsonl")}, **params)
    return corpus, protected.run(ctx, given, corpus.documents, corpus.near, corpus.holdout, sets)


def test_planted_cases_are_found_and_innocent_text_is_not(tiny: Any, planted: dict[str, Any]) -> None:
    docs = [tiny.Doc(text, name=f"{kind}-{n}-{i}") for i, (kind, n, text) in enumerate(planted["docs"])]
    corpus, made = run(tiny, docs, planted["items"])
    rows = corpus.rows(made)
    held = corpus.rows(corpus.holdout)
    found: dict[str, list[bool]] = {}
    right = wrong = 0
    for doc, (kind, number, _) in zip(docs, planted["docs"], strict=True):
        row = rows[doc.id]
        if held[doc.id]["held_out"]:
            continue
        leaked = row["reason"] == "leaked"
        found.setdefault(kind, []).append(leaked)
        if leaked:
            hit = kind != "innocent" and row["item"] == f"q{number}"
            right, wrong = right + hit, wrong + (not hit)
    recall = {kind: sum(own) / len(own) for kind, own in found.items()}
    precision = right / (right + wrong)
    print({kind: round(share, 3) for kind, share in recall.items()}, f"precision {precision:.3f}")
    assert recall["innocent"] == 0.0
    assert precision == 1.0
    assert recall["copy"] == recall["mirror"] == 1.0
    assert recall["insertion"] >= 0.95
    assert recall["deletion"] >= 0.95
    assert recall["paraphrase"] >= 0.8
    assert made.stats["sets"]["quiz"]["contaminated"] > 50


def test_the_longest_run_is_exact(tiny: Any) -> None:
    item = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    words = item.split()
    texts = [
        "x y " + " ".join(words[:13]) + " z",
        "x y " + " ".join(words[:12]) + " z",
        "x " + " ".join(words[2:9]) + " gap " + " ".join(words[9:14]),
        " ".join(reversed(words)),
    ]
    index = protected_index.build(pa.array([item], pa.large_string()), Protected())
    found = find(pa.array(texts, pa.large_string()), 3, index, index.lookups())
    pairs = zip(found.documents.tolist(), found.longest.tolist(), found.first.tolist(), strict=True)
    assert sorted(pairs) == [(0, 13, 2), (1, 12, 2), (2, 7, 1)]
    assert set(found.items.tolist()) == {0}


@given(st.lists(st.sampled_from("abcdefg"), min_size=8, max_size=14), st.lists(st.sampled_from("abcdefg"), max_size=40))
@settings(max_examples=150, deadline=None)
def test_runs_equal_a_slow_reference(item: list[str], text: list[str]) -> None:
    index = protected_index.build(pa.array([" ".join(item)], pa.large_string()), Protected(candidate_words=2))
    _, _, longest, first, share = find(pa.array([" ".join(text)], pa.large_string()), 2, index, index.lookups())
    runs = [
        n
        for n in range(1, len(item) + 1)
        for i in range(len(item) - n + 1)
        for k in range(len(text) - n + 1)
        if item[i : i + n] == text[k : k + n]
    ]
    if longest.size:
        assert longest[0] <= max(runs, default=0)
        assert longest[0] == 0 or longest[0] >= SEED
        run = text[first[0] : first[0] + longest[0]]
        assert any(item[i : i + len(run)] == run for i in range(len(item)))
        if len(text) <= 1.5 * len(item):  # the stretch is the whole text
            assert longest[0] == (max(runs, default=0) if max(runs, default=0) >= SEED else 0)  # shorter: not measured
            assert share[0] == pytest.approx(len(set(item) & set(text)) / len(set(item)))


def test_sources_of_a_family_are_denied_and_suspects_are_thinned(tiny: Any, planted: dict[str, Any]) -> None:
    rng, language = random.Random(5), Language(1)
    half = [
        changed(rng, changed(rng, text, "paraphrase", language), "paraphrase", language) for text in planted["items"]
    ]
    docs = [tiny.Doc(text, name=f"half-{i}") for i, text in enumerate(half)]
    docs += [tiny.Doc(language.text(10, language.words[:30]), name=f"gsm8k-mirror/{i}") for i in range(5)]
    families = {"quiz": Family(deny=("GSM8K-mirror",))}
    limits = {"fuzzy": 0.98, "suspect": 0.5, "longest_words": 60}
    corpus, made = run(tiny, docs, planted["items"], families=families, suspect_weight=0.25, **limits)
    reasons = [row["reason"] for row in corpus.rows(made).values()]
    assert reasons.count("benchmark_source") >= 4
    assert made.stats["suspects"] > 60
    kept = made.stats["suspects"] - made.stats["downweighted"]
    assert 0.1 < kept / made.stats["suspects"] < 0.45
    _, every = run(tiny, docs, planted["items"], families=families, suspect_weight=1.0, **limits)
    assert every.stats["downweighted"] == 0


def test_a_run_of_stock_words_is_no_leak(tiny: Any) -> None:
    stock = "it was the best of times and it was the worst of times for all of us"
    rare = [f"{stock} {word} alpha{word} beta{word} gamma{word} delta{word}" for word in ("ruby", "opal", "jade")]
    language = Language(3)
    docs = [tiny.Doc(f"{stock} {language.text(4, language.words[n : n + 40])}", name=str(n)) for n in range(40)]
    items = [f"{text} {language.text(3, language.words[900:950])}" for text in rare]
    for limit in (10, None):
        _, made = run(tiny, docs, items, boilerplate_documents=limit)
        assert made.stats["leaked"] == 0
    _, strict = run(tiny, docs, items, longest_share=0.0, boilerplate_documents=None)
    assert strict.stats["leaked"] > 30


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"text": "fine"}\n{"text"', "line 2"),
        ("[1]\n", "line 1"),
        ('{"other": "x"}\n', "has no text"),
        ("", "no text"),
    ],
)
def test_an_item_that_cannot_be_read_is_a_failure(tiny: Any, text: str, said: str) -> None:
    (tiny.ctx.workspace.input / "bad.jsonl").write_text(text)
    with pytest.raises(SourceError, match=said):
        protected.read_set(tiny.ctx, "bad", ProtectedSet(path="bad.jsonl"))


def test_the_items_found_are_listed_for_evaluation(tiny: Any, planted: dict[str, Any]) -> None:
    docs = [tiny.Doc(text, name=f"{kind}-{i}") for i, (kind, _, text) in enumerate(planted["docs"][:200])]
    _, made = run(tiny, docs, planted["items"])
    (part,) = made.named("items")
    rows = read_table(tiny.ctx.store, part).to_pylist()
    assert [(row["set"], row["item"]) for row in rows] == [("quiz", f"q{i}") for i in range(ITEMS)]
    for row in rows:
        found = "contaminated" if row["leaked"] else "suspected" if row["documents"] else "clean"
        assert (row["status"], row["why"], row["common"]) == (found, None, 0.0)
    statuses = [row["status"] for row in rows]
    assert {name: made.stats["sets"]["quiz"][name] for name in comparison.STATUSES} == {
        name: statuses.count(name) for name in comparison.STATUSES
    }


def test_verdicts_take_its_reasons_and_the_funnel_counts_them(tiny: Any, planted: dict[str, Any]) -> None:
    docs = [tiny.Doc(text, name=f"{kind}-{i}") for i, (kind, _, text) in enumerate(planted["docs"][:200])]
    corpus, made = run(tiny, docs, planted["items"], families={"quiz": Family(deny=("innocent-1",))})
    corpus.contamination = contamination.run(
        tiny.ctx, corpus.contamination_params, corpus.documents, corpus.near, corpus.holdout
    )
    shared = (corpus.exact, corpus.near, corpus.holdout, corpus.contamination)
    judged = verdicts.run(tiny.ctx, "web", corpus.documents["web"], corpus.policies["web"], *shared, protected=made)
    rows = corpus.rows(judged)
    assert {row["reason"] for row in rows.values()} >= {"leaked", "benchmark_source"}
    taken = judged.stats["stages"]["protected"]
    assert taken == sum(row["reason"] in protected.REASONS for row in rows.values())
    found = funnel.run(tiny.ctx, corpus.documents, {"web": judged}).stats["total"]["stages"]
    stage = next(row for row in found if row["stage"] == "protected")
    assert stage["removed"] == taken == sum(reason["documents"] for reason in stage["reasons"].values())
