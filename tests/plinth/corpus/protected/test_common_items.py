"""Items whose n-grams many training documents have: no evidence alone, undecided where nothing else is left."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.corpus.dedup import run_tree
from plinth.corpus.protected import comparison, protected, protected_index
from plinth.corpus.protected.parameters import Family, Protected, ProtectedSet
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace

TEMPLATE = (
    "Read the passage below with care and then choose the one answer that follows from it without any outside "
    "knowledge at all"
)


def words(picks: random.Random, count: int) -> str:
    return " ".join(f"w{picks.randrange(10**9)}" for _ in range(count))


def compare(
    tiny: Any, docs: list[Any], given: dict[str, Sequence[str]], parts: int = 3, **params: Any
) -> tuple[Any, Manifest]:
    """The comparison of documents with sets of items; nothing is held out of the documents given."""
    ctx: Context = tiny.ctx
    corpus = tiny.corpus({"web": [docs[i::parts] for i in range(parts)], "zz": [[tiny.Doc("held out")]]})
    corpus.through_holdout()
    made = {}
    for name, items in given.items():
        lines = (json.dumps({"id": f"{name}{i}", "text": text}) + "\n" for i, text in enumerate(items))
        (ctx.workspace.input / f"{name}.jsonl").write_text("".join(lines))
        made[name] = protected.read_set(ctx, name, ProtectedSet(path=f"{name}.jsonl"))
    named = {name: ProtectedSet(path=f"{name}.jsonl") for name in given}
    held = {identity for identity, row in corpus.rows(corpus.holdout).items() if row["held_out"]}
    corpus.held = held
    wanted = Protected(sets=named, **params)
    return corpus, protected.run(ctx, wanted, corpus.documents, corpus.near, corpus.holdout, made)


def statuses(tiny: Any, made: Manifest) -> dict[str, str]:
    (part,) = made.named(comparison.FILE)
    return {row["item"]: row["status"] for row in read_table(tiny.ctx.store, part).to_pylist()}


def leaked(corpus: Any, made: Manifest) -> set[bytes]:
    return {identity for identity, row in corpus.rows(made).items() if row["reason"] == "leaked"}


def copies(tiny: Any, item: str, count: int, seed: int = 1) -> list[Any]:
    """Documents that hold an item, each with text of its own around it; with one more that is held out."""
    picks = random.Random(seed)
    return [tiny.Doc(f"{words(picks, 60)}\n\n{item}\n\n{words(picks, 60)}") for _ in range(count)]


def considered(corpus: Any, docs: list[Any]) -> list[Any]:
    return [doc for doc in docs if doc.id not in corpus.held]


def test_ten_documents_are_leaks_and_eleven_make_an_item_undecided(tiny: Any) -> None:
    item = words(random.Random(7), 40)
    docs = copies(tiny, item, 13)
    found, limits = {}, (10, 13)
    for limit in limits:
        corpus, made = compare(tiny, docs, {"quiz": [item]}, boilerplate_documents=limit)
        holders = considered(corpus, docs)
        (status,) = statuses(tiny, made).values()
        found[limit] = status
        if len(holders) > limit:
            assert leaked(corpus, made) == set()
            assert made.stats["sets"]["quiz"]["common"] == ["quiz0"]
            assert status == "undecided"
        else:
            assert leaked(corpus, made) == {doc.id for doc in holders}
            assert status == "contaminated"
    assert set(found.values()) == {"undecided", "contaminated"}
    corpus, made = compare(tiny, docs, {"quiz": [item]}, boilerplate_documents=None)
    assert leaked(corpus, made) == {doc.id for doc in considered(corpus, docs)}


def test_a_template_is_no_evidence_and_the_rest_of_the_item_is(tiny: Any) -> None:
    picks = random.Random(3)
    own = [words(picks, 20) for _ in range(3)]
    short = words(picks, 2)
    items = [f"{TEMPLATE} {text}" for text in own] + [f"{TEMPLATE} {short}", TEMPLATE]
    strangers = [tiny.Doc(f"{TEMPLATE} {words(picks, 50)}") for _ in range(30)]
    leaks = copies(tiny, items[0], 2) + copies(tiny, own[1], 2, seed=102) + copies(tiny, items[3], 2, seed=103)
    corpus, made = compare(tiny, strangers + leaks, {"quiz": items})
    assert leaked(corpus, made) == {doc.id for doc in considered(corpus, leaks)}
    found = statuses(tiny, made)
    assert found == {"quiz0": "contaminated", "quiz1": "contaminated", "quiz2": "clean", "quiz3": "contaminated",
                     "quiz4": "undecided"}  # fmt: skip
    (part,) = made.named(comparison.FILE)
    rows = {row["item"]: row for row in read_table(tiny.ctx.store, part).to_pylist()}
    assert rows["quiz4"]["why"] == "common"
    assert rows["quiz4"]["common"] == 1.0
    assert rows["quiz0"]["common"] == pytest.approx(len(TEMPLATE.split()) / (len(TEMPLATE.split()) + 20))
    _, without = compare(tiny, strangers + leaks, {"quiz": items}, boilerplate_documents=None)
    assert len(leaked(corpus, without)) > len(strangers)  # the template alone takes everything that has it


def test_addresses_are_denied_whatever_is_common_and_their_pages_are_not_counted(tiny: Any) -> None:
    item = words(random.Random(9), 40)
    mirror = [tiny.Doc(doc.text, name=f"mirror.example/{i}") for i, doc in enumerate(copies(tiny, item, 30))]
    held_by = copies(tiny, item, 3, seed=8)
    families = {"quiz": Family(deny=("MIRROR.example",))}
    corpus, made = compare(tiny, mirror + held_by, {"quiz": [item]}, families=families)
    assert statuses(tiny, made) == {"quiz0": "contaminated"}
    rows = corpus.rows(made)
    assert {rows[doc.id]["reason"] for doc in considered(corpus, held_by)} == {"leaked"}
    assert all(rows[doc.id]["reason"] for doc in considered(corpus, mirror))
    # common by others: undecided, and the mirror is denied as before
    corpus, made = compare(tiny, mirror + copies(tiny, item, 14, seed=8), {"quiz": [item]}, families=families)
    assert statuses(tiny, made) == {"quiz0": "undecided"}
    reasons = [corpus.rows(made)[doc.id]["reason"] for doc in considered(corpus, mirror)]
    assert set(reasons) == {"benchmark_source"}
    assert made.stats["benchmark_source"] == len(reasons)


def test_what_a_later_snapshot_makes_common_is_no_evidence_for_earlier_text_either(tiny: Any) -> None:
    """The stated rule of growth: from decided to undecided only, and for all text at once."""
    picks = random.Random(11)
    items = [words(picks, 30) for _ in range(12)]
    snapshots = [
        [tiny.Doc(f"{words(picks, 40)} {item} {words(picks, 40)}") for item in items for _ in range(picks.randrange(7))]
        for _ in range(3)
    ]
    undecided: set[str] = set()
    docs: list[Any] = []
    for snapshot in snapshots:
        docs += snapshot
        corpus, made = compare(tiny, docs, {"quiz": items})
        found = statuses(tiny, made)
        now = {item for item, status in found.items() if status == "undecided"}
        counts = {f"quiz{i}": sum(item in doc.text for doc in considered(corpus, docs)) for i, item in enumerate(items)}
        assert now == {item for item, count in counts.items() if count > 10}
        assert now >= undecided
        held = {item for item, status in found.items() if status == "contaminated"}
        assert held == {item for item, count in counts.items() if 0 < count <= 10}
        undecided = now
    assert 0 < len(undecided) < len(items)


def test_forms_filled_in_with_other_words_are_no_evidence(tiny: Any) -> None:
    """No n-gram of 13 words is common, because a slot interrupts each; all the rest of the words are everywhere."""
    picks = random.Random(13)
    form = [words(picks, 9) for _ in range(5)]
    filled = [" ".join(f"{piece} slot{number}" for piece in form) for number in range(30)]
    docs = [tiny.Doc(f"{words(picks, 40)} {text} {words(picks, 40)}") for text in filled[1:]]
    docs += [tiny.Doc(words(picks, 80)) for _ in range(100)]
    corpus, made = compare(tiny, docs, {"forms": filled[:1]})
    (part,) = made.named(comparison.FILE)
    (row,) = read_table(tiny.ctx.store, part).to_pylist()
    assert (row["status"], row["why"], row["common"], row["leaked"]) == ("undecided", "common", 0.0, 0)
    assert row["alike"] > 10
    assert leaked(corpus, made) == set()
    # of the one that has the same words in the slot, 13 words in a row are found nowhere else
    copy = tiny.Doc(f"{words(picks, 40)} {filled[0]} {words(picks, 40)}")
    corpus, made = compare(tiny, [*docs, copy], {"forms": filled[:1]})
    assert leaked(corpus, made) == {copy.id} - corpus.held
    _, without = compare(tiny, docs, {"forms": filled[:1]}, boilerplate_documents=None)
    assert without.stats["leaked"] > 20


@pytest.mark.exhaustive
def test_parts_workers_and_merges_do_not_show(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picks = random.Random(5)
    items = [f"{TEMPLATE} {words(picks, 20)}" for _ in range(4)] + [words(picks, 30)]
    docs = [doc for i, item in enumerate(items) for doc in copies(tiny, item, 4 + 3 * i, seed=i)]
    found = []
    for parts, workers, runs in ((1, 1, 64), (9, 2, 2)):
        monkeypatch.setattr(run_tree, "MOST_RUNS", runs)
        monkeypatch.setattr(run_tree, "LEVEL_FAN", 2)
        with LocalEngine(workers) as engine:
            tiny.ctx = Context(Workspace(tmp_path / f"{parts}-{workers}-{runs}").ensure(), engine)
            corpus, made = compare(tiny, docs, {"quiz": items}, parts=parts)
        found.append((corpus.rows(made), made.stats, made.named(comparison.FILE)[0].blob.sha256))
    assert found[0] == found[1]
    assert {"undecided", "contaminated"} == set(statuses(tiny, made).values())


@given(
    st.lists(st.dictionaries(st.integers(0, 6), st.integers(1, 30)), min_size=1, max_size=9),
    st.one_of(st.none(), st.integers(1, 20)),
    st.integers(1, 8),
)
@settings(max_examples=60, deadline=None)
def test_tallies_merge_in_any_grouping(counts: list[dict[int, int]], bound: int | None, cut: int) -> None:
    tables = [
        pa.table({"key": pa.array(list(one), pa.int64()), "documents": pa.array(list(one.values()), pa.int64())})
        for one in counts
    ]
    whole = protected_index.merge(tables, bound=bound)
    halves = [protected_index.merge(some, bound=bound) for some in (tables[:cut], tables[cut:]) if some]
    assert protected_index.merge(halves, bound=bound).equals(whole)
    expected = {key: sum(one.get(key, 0) for one in counts) for one in counts for key in one}
    assert dict(zip(*whole.to_pydict().values(), strict=True)) == {
        key: value if bound is None else min(value, bound) for key, value in expected.items()
    }


# Chinese, Japanese and Thai write no spaces: every character is a word. Sentences of the Universal Declaration of Human
# Rights, articles 1 and 2, as the United Nations publish them.
UNSPACED = {
    "chinese": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
    "japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "thai": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม",
    "arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. وقد وهبوا عقلًا وضميرًا",
    "hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है",
    "vietnamese": "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi",
}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_items_of_other_scripts_are_found_in_either_normal_form(tiny: Any, form: str) -> None:
    items = [unicodedata.normalize(form, text) for text in UNSPACED.values()]
    picks = random.Random(1)
    docs = [
        tiny.Doc(f"{words(picks, 30)} {unicodedata.normalize('NFC', text)} {words(picks, 30)}", name=f"{name}{i}")
        for name, text in UNSPACED.items()
        for i in range(2)
    ]
    other = [tiny.Doc(f"{words(picks, 30)} 人人有资格享有本宣言所载的一切权利和自由 {words(picks, 30)}")]
    corpus, made = compare(tiny, docs + other, {"udhr": items})
    assert leaked(corpus, made) == {doc.id for doc in considered(corpus, docs)}
    assert set(statuses(tiny, made).values()) == {"contaminated"}


def test_odd_items_are_listed_and_never_match(tiny: Any) -> None:
    picks = random.Random(2)
    item, nothing = words(picks, 30), "?!"
    given = {"quiz": [item, "yes", nothing, "a a a a a a a a a"], "copy": [item]}
    docs = copies(tiny, item, 2) + [tiny.Doc(f"yes a a a {words(picks, 30)} ?!", name=str(i)) for i in range(3)]
    corpus, made = compare(tiny, docs, given)
    assert statuses(tiny, made) == {"copy0": "contaminated", "quiz0": "contaminated", "quiz1": "undecided",
                                    "quiz2": "undecided", "quiz3": "clean"}  # fmt: skip
    assert made.stats["sets"]["quiz"]["too_short"] == 2
    rows = corpus.rows(made)
    assert {(rows[doc.id]["set"], rows[doc.id]["item"]) for doc in considered(corpus, docs[:2])} == {("copy", "copy0")}


def test_an_item_that_too_many_items_share_is_undecided() -> None:
    params = Protected()
    item = words(random.Random(4), 20)
    texts = pa.array([item] * (protected_index.MAX_ITEMS + 1) + [words(random.Random(5), 20)], pa.large_string())
    index = protected_index.build(texts, params)
    assert index.without_evidence().tolist() == [True] * (protected_index.MAX_ITEMS + 1) + [False]


@given(st.lists(st.sampled_from("abc"), min_size=8, max_size=30), st.integers(4, 9), st.data())
@settings(max_examples=60, deadline=None)
def test_evident_words_are_those_that_no_common_ngram_covers(item: list[str], longest: int, data: Any) -> None:
    params = Protected(longest_words=longest)
    index = protected_index.build(pa.array([" ".join(item)], pa.large_string()), params)
    n = min(longest, len(item))
    grams = [tuple(item[i : i + n]) for i in range(len(item) - n + 1)]
    chosen = data.draw(st.sets(st.sampled_from(sorted(set(grams)))))
    hashes = protected_index.ngrams_of(index.words, index.starts, n)[1]
    where = {gram: int(np.searchsorted(index.evidence, value)) for gram, value in zip(grams, hashes, strict=True)}
    common = np.zeros(index.evidence.size, dtype=np.bool_)
    common[[where[gram] for gram in chosen]] = True
    made = protected_index.weighed(index, params, 0, np.zeros(index.vocabulary.size, np.int64), common)
    covered = {i + k for i, gram in enumerate(grams) if gram in chosen for k in range(n)}
    assert np.diff(made.evident).tolist() == [int(i not in covered) for i in range(len(item))]
    assert made.without_evidence().tolist() == [len(covered) == len(item)]
