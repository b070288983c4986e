"""Near duplicates: hand-worked similarities, what goes wrong in the peers, independence of order and workers."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.engine import LocalEngine
from plinth.corpus.dedup.near import minhash
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.errors import IntegrityError
from plinth.records import Part
from plinth.storage.parts import read_table, write_table
from plinth_text.words import jaccard, ngram_sets

WORDS = [f"word{i}" for i in range(2000)]


def text(*numbers: int) -> str:
    return " ".join(WORDS[i] for i in numbers)


def near(threshold: float = 0.8, keep: Any = "longest", **shape: int) -> Dedup:
    return Dedup(minhash=MinHash(threshold=threshold, **shape), keep=keep)


def clusters(corpus: Any, made: Any) -> dict[bytes, tuple[bytes | None, int, bool]]:
    rows = corpus.rows(made)
    return {identity: (row["cluster"], row["size"], row["survivor"]) for identity, row in rows.items()}


def test_hand_worked_similarity_at_the_threshold(tiny: Any) -> None:
    # 9 and 9 shingles of 2 words, 8 in common: 8 / 10. With one row per band every candidate is found.
    left, right = tiny.Doc(text(*range(10))), tiny.Doc(text(*range(9), 99))
    shape = {"shingle_words": 2, "bands": 20, "rows": 1}
    for threshold, size in ((0.8, 2), (0.81, 1)):
        corpus = tiny.corpus({"a": [[left, right]]}, dedup=near(threshold, **shape))
        made = corpus.through_near()
        assert {row[1] for row in clusters(corpus, made).values()} == {size}
        assert made.stats["survivors"] == 3 - size
        assert made.stats["candidates"] == 2


def test_a_crowd_under_one_key_is_not_merged_without_proof(tiny: Any) -> None:
    # more than ALL_PAIRS documents with the same boilerplate, and among them true copies but for one word
    picks = random.Random(4)
    docs = [tiny.Doc(text(*range(40), *picks.sample(range(50, 2000), 100))) for _ in range(60)]
    base = picks.sample(range(50, 2000), 100)
    docs += [tiny.Doc(text(*range(40), *base[:-1], 1000 + i)) for i in range(40)]
    corpus = tiny.corpus({"a": [docs[:50], docs[50:]]}, dedup=near(bands=112, rows=1))
    made = corpus.through_near()
    sizes = sorted(row[1] for row in clusters(corpus, made).values())
    assert sizes == [1] * 60 + [40] * 40
    assert made.stats["survivors"] == 61


def test_short_texts_merge_only_when_their_words_are_equal_and_empty_ones_never(tiny: Any) -> None:
    texts = ["hello world", "Hello, world!", "world hello", "hello", "hello world again", "", "...", "—", "?!"]
    docs = [tiny.Doc(text, name=str(i)) for i, text in enumerate(texts)]
    corpus = tiny.corpus({"a": [docs]})
    rows = clusters(corpus, corpus.through_near())
    assert rows[docs[0].id][:2] == rows[docs[1].id][:2] == (min(docs[0].id, docs[1].id), 2)
    assert [rows[doc.id][1:] for doc in docs[2:]] == [(1, True)] * 7


def test_giant_documents_do_not_swallow_others(tiny: Any) -> None:
    picks = random.Random(6)
    giants = [tiny.Doc(" ".join(str(picks.randrange(10**6)) for _ in range(60_000))) for _ in range(3)]
    small = [tiny.Doc(text(*picks.sample(range(2000), 50))) for _ in range(30)]
    corpus = tiny.corpus({"a": [giants + small]})
    assert corpus.through_near().stats["survivors"] == 33


def test_clusters_agree_with_all_pairs_in_python(tiny: Any) -> None:
    picks = random.Random(8)
    bases = [picks.sample(range(2000), 80) for _ in range(12)]
    docs = []
    for base in bases:
        for _ in range(4):
            changed = list(base)
            for position in picks.sample(range(80), picks.randrange(3)):
                changed[position] = picks.randrange(2000)
            docs.append(tiny.Doc(text(*changed), name=str(len(docs))))
    corpus = tiny.corpus({"a": [docs]}, dedup=near(bands=112, rows=1))
    rows = clusters(corpus, corpus.through_near())
    alive = [doc for doc in docs if rows[doc.id][0] is not None]
    sets = ngram_sets(pa.array([doc.text for doc in alive], pa.large_string()), 5)
    root = {doc.id: doc.id for doc in alive}
    for i, left in enumerate(alive):
        for j in range(i):
            if jaccard(sets[i], sets[j]) >= 0.8:
                old, new = sorted((root[left.id], root[alive[j].id]), reverse=True)
                root = {key: new if value == old else value for key, value in root.items()}
    assert {doc.id: rows[doc.id][0] for doc in alive} == root
    assert len(set(root.values())) < len(root)


def mixed_corpus(tiny: Any, seed: int) -> list[Any]:
    picks = random.Random(seed)
    docs = []
    for i in range(40):
        base = picks.sample(range(2000), 90)
        docs += [tiny.Doc(text(*base[: 90 - 3 * copy]), name=f"{i}-{copy}") for copy in range(picks.randrange(1, 4))]
    return docs


def test_order_of_parts_and_ranges_do_not_matter(tiny: Any) -> None:
    docs, results = mixed_corpus(tiny, 9), []
    for seed, range_rows in ((1, 10_000), (2, 100), (3, 37)):
        random.Random(seed).shuffle(docs)
        cut = 20 * seed
        buckets = {"a": [docs[:cut], docs[cut : cut + 3]], "b": [[], docs[cut + 3 :]]}
        corpus = tiny.corpus(buckets, range_rows=range_rows)
        results.append(clusters(corpus, corpus.through_near()))
    assert results[0] == results[1] == results[2]
    assert {row[1] for row in results[0].values()} >= {1, 2, 3}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_digests(tiny: Any, tmp_path: Any) -> None:
    from plinth.compute.context import Context
    from plinth.storage.workspace import Workspace

    docs, digests = mixed_corpus(tiny, 10), []
    for workers in (1, 2):
        with LocalEngine(workers) as engine:
            tiny.ctx = Context(Workspace(tmp_path / str(workers)).ensure(), engine=engine)
            corpus = tiny.corpus({"a": [docs[:30], docs[30:60]], "b": [docs[60:]]}, range_rows=200)
            curated = corpus.through_curated()
            made = [corpus.exact, *corpus.signatures.values(), corpus.near, corpus.holdout, corpus.contamination]
            digests.append([one.digest for one in (*made, *corpus.verdicts.values(), *curated.values())])
    assert digests[0] == digests[1]


def test_nothing_is_done_twice(tiny: Any) -> None:
    docs = mixed_corpus(tiny, 11)
    corpus = tiny.corpus({"a": [docs[:40]], "b": [docs[40:]]})
    first = corpus.through_near().digest
    tiny.ctx.engine.map = None  # any work would fail
    assert corpus.through_near().digest == first


@pytest.mark.parametrize(("by", "compared_again"), [("text", True), ("signature", False)])
def test_by_signature_documents_are_no_input(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, by: Any, compared_again: bool
) -> None:
    dedup = Dedup(minhash=MinHash(verify=by))
    corpus = tiny.corpus({"a": [[tiny.Doc(text(*range(100 + i))) for i in range(3)]]}, dedup=dedup)
    first = corpus.through_near()
    assert first.stats["survivors"] == 1
    table = read_table(tiny.ctx.store, corpus.documents["a"].parts[0])
    field = table.schema.get_field_index("licence")
    table = table.set_column(field, table.schema.field(field), pa.array(["none"] * 3))
    part = write_table(tiny.ctx.store, corpus.documents["a"].parts[0].name, table)
    documents = {"a": corpus.documents["a"].model_copy(update={"parts": (part,)})}
    compared, original = [], minhash._link
    monkeypatch.setattr(minhash, "_link", lambda *task: compared.append(task) or original(*task))
    again = minhash.run(tiny.ctx, dedup, documents, corpus.signatures, corpus.exact)
    assert again.parts == first.parts
    assert bool(compared) == compared_again


def test_rows_of_a_part_that_is_short_are_refused(tiny: Any) -> None:
    from plinth.corpus.dedup.sorted_runs import iter_rows

    good = write_table(tiny.ctx.store, "good", pa.table({"key": pa.array(range(9000), pa.uint64())}))
    rows = np.array([4000, 8999])
    assert [batch.column("key").to_pylist() for batch in iter_rows(tiny.ctx.store, good, ["key"], rows)] == [
        [4000],
        [8999],
    ]
    with pytest.raises(IntegrityError, match="cannot be trusted"):
        list(iter_rows(tiny.ctx.store, Part(name="short", blob=good.blob, rows=9001), ["key"], rows))


def test_truncated_signatures_are_refused(tiny: Any) -> None:
    docs = mixed_corpus(tiny, 12)
    corpus = tiny.corpus({"a": [docs]})
    corpus.through_near()
    part = corpus.signatures["a"].parts[0]
    short = write_table(tiny.ctx.store, part.name, read_table(tiny.ctx.store, part).slice(1))
    for rows, what in ((short.rows, "signatures of bucket a"), (part.rows, "is short|differ in their rows")):
        lying = short.model_copy(update={"rows": rows})
        signed = {"a": corpus.signatures["a"].model_copy(update={"parts": (lying,)})}
        with pytest.raises(IntegrityError, match=what):
            minhash.run(tiny.ctx, corpus.dedup, corpus.documents, signed, corpus.exact)


def test_threshold_does_not_sign_again(tiny: Any) -> None:
    corpus = tiny.corpus({"a": [[tiny.Doc("x y z")]]})
    one, two = (
        minhash.signatures(tiny.ctx, "a", MinHash(threshold=threshold), corpus.documents["a"]).digest
        for threshold in (0.7, 0.9)
    )
    assert one == two
    other = minhash.signatures(tiny.ctx, "a", MinHash(seed=2), corpus.documents["a"])
    assert other.digest != one
    assert read_table(tiny.ctx.store, other.parts[0]).schema == minhash.signature_schema(MinHash())
