"""Look-alikes: planted rewordings that MinHash misses are found, strangers of the same topic are not."""

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.context import manifest
from plinth.corpus.dedup import run_tree, semantic, sorted_runs
from plinth.corpus.dedup import semantic as semantic_pairs
from plinth.corpus.dedup import vectors as semantic_given
from plinth.corpus.dedup.parameters import Dedup, Semantic
from plinth.corpus.sidecars import slots
from plinth.errors import RecipeError, SourceError
from plinth.records import Manifest, Part, Step
from plinth.storage.state import StepCache
from plinth_text import similarity
from plinth_text.words import jaccard, ngram_sets

VOCABULARY, TOPICS = 4000, 8


class Writer:
    """Sentences over a vocabulary with frequent words and topics, and rewordings of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.common = [f"c{i}" for i in range(60)]
        self.topics = [[f"t{t}x{i}" for i in range(VOCABULARY // TOPICS)] for t in range(TOPICS)]

    def document(self, topic: int) -> list[list[str]]:
        def word() -> str:
            if self.rng.random() < 0.4:
                return self.rng.choice(self.common)
            return self.topics[topic][min(int(self.rng.paretovariate(0.6)) - 1, VOCABULARY // TOPICS - 1)]

        return [[word() for _ in range(self.rng.randint(8, 20))] for _ in range(self.rng.randint(12, 30))]

    def reworded(self, sentences: list[list[str]], replaced: float) -> list[list[str]]:
        """Sentences shuffled, words moved within each, some replaced by words that occur nowhere else."""
        new = [list(sentence) for sentence in self.rng.sample(sentences, len(sentences))]
        for sentence in new:
            at = self.rng.randrange(1, len(sentence))
            sentence[:] = sentence[at:] + sentence[:at]
            for i in range(len(sentence)):
                if self.rng.random() < replaced:
                    sentence[i] = f"synonym{self.rng.randrange(10**9)}"
        return new


def text(sentences: list[list[str]]) -> str:
    return " ".join(" ".join(sentence) + "." for sentence in sentences)


def planted(tiny: Any, replaced: float, count: int = 60) -> tuple[list[Any], set[frozenset[str]]]:
    """Documents of a few topics, a third of them with one rewording; and the pairs to find."""
    writer = Writer(3)
    docs, pairs = [], set()
    for n in range(count):
        sentences = writer.document(n % TOPICS)
        docs.append(tiny.Doc(text(sentences), f"{n}"))
        if n % 3 == 0:
            docs.append(tiny.Doc(text(writer.reworded(sentences, replaced)), f"{n}r"))
            pairs.add(frozenset((f"{n}", f"{n}r")))
    writer.rng.shuffle(docs)
    return docs, pairs


def made(tiny: Any, sources: dict[str, list[list[Any]]], range_rows: int = 4_000_000, **params: Any) -> Any:
    corpus = tiny.corpus(sources)
    corpus.through_exact()
    vectors = params.pop("given", None)
    chosen = Semantic(**{"buckets": tuple(sources), **params})
    corpus.semantic = semantic.run(
        corpus.ctx, chosen, corpus.documents, corpus.exact, vectors=vectors, range_rows=range_rows
    )
    return corpus


def clusters(corpus: Any) -> set[frozenset[str]]:
    """The names in every cluster of two or more."""
    rows = corpus.rows(corpus.semantic)
    found: dict[bytes, set[str]] = {}
    for parts in corpus.buckets.values():
        for doc in (doc for docs in parts for doc in docs):
            if rows[doc.id]["size"] > 1:
                found.setdefault(rows[doc.id]["cluster"], set()).add(doc.name)
    return {frozenset(names) for names in found.values()}


def test_rewordings_that_minhash_misses_are_found(tiny: Any) -> None:
    docs, pairs = planted(tiny, replaced=0.03)
    corpus = made(tiny, {"a": [docs]}, threshold=0.9)
    assert clusters(corpus) == pairs  # recall and precision of 1 on these
    by_name = {doc.name: doc.text for doc in docs}
    threshold = Dedup().minhash.threshold
    for one, other in pairs:
        grams = ngram_sets(pa.array([by_name[one], by_name[other]], pa.large_string()), 5)
        assert jaccard(*grams) < threshold - 0.1
    assert corpus.semantic.stats["removed"] == len(pairs)


def test_what_bags_of_words_cannot_see(tiny: Any) -> None:
    docs, pairs = planted(tiny, replaced=0.4)
    assert clusters(made(tiny, {"a": [docs]}, threshold=0.9)) == set() != pairs


def test_one_of_each_cluster_survives_the_longest(tiny: Any) -> None:
    docs, pairs = planted(tiny, replaced=0.0)
    corpus = made(tiny, {"a": [docs[:20], docs[20:50]], "b": [docs[50:]]}, range_rows=500)
    rows = corpus.rows(corpus.semantic)
    assert clusters(corpus) == pairs
    by_name = {doc.name: doc for doc in docs}
    for names in pairs:
        best = max(names, key=lambda name: (len(by_name[name].text), [255 - byte for byte in by_name[name].id]))
        assert {name for name in names if rows[by_name[name].id]["survivor"]} == {best}
        assert {rows[by_name[name].id]["cluster"] for name in names} == {min(by_name[name].id for name in names)}
    alone = [doc for doc in docs if not any(doc.name in names for names in pairs)]
    assert all(rows[doc.id]["survivor"] and rows[doc.id]["cluster"] == doc.id for doc in alone)


def test_only_chosen_buckets_are_compared(tiny: Any) -> None:
    docs, pairs = planted(tiny, replaced=0.0, count=12)
    buckets = {"a": [docs], "b": [[tiny.Doc(doc.text + " b", f"{doc.name}b") for doc in docs]]}
    corpus = made(tiny, buckets, buckets=("a",))
    assert clusters(corpus) == pairs
    assert corpus.semantic.stats["buckets"]["b"]["considered"] == 0
    assert corpus.semantic.stats["buckets"]["b"]["survivors"] == len(docs)
    with pytest.raises(RecipeError, match="no bucket c"):
        made(tiny, buckets, buckets=("c",))


def test_short_documents_are_not_compared(tiny: Any) -> None:
    docs = [tiny.Doc("the same nine words, in another order than before", "1")]
    docs.append(tiny.Doc("in another order than before, the same nine words", "2"))
    assert clusters(made(tiny, {"a": [docs]}, min_words=10)) == set()
    assert clusters(made(tiny, {"a": [docs]}, min_words=9)) == {frozenset("12")}
    assert made(tiny, {"a": [[tiny.Doc("", "3")]]}).semantic.stats["considered"] == 0


# ---- vectors of the user --------------------------------------------------------------------------


def given_vectors(tiny: Any, folder: Path, vectors: dict[str, list[float]]) -> Manifest:
    table = pa.table({"uri": [f"test:{name}" for name in vectors], "embedding": list(vectors.values())})
    pq.write_table(table, folder / "v.parquet")
    part = Part(name="v.parquet", blob=tiny.ctx.store.put_bytes((folder / "v.parquet").read_bytes()))
    return manifest("lists/mine", Step(name="lists", version="1"), {}, [part])


def test_vectors_of_the_user(tiny: Any, tmp_path: Path) -> None:
    docs = [tiny.Doc(f"text {n}", str(n)) for n in range(5)]
    vectors = {
        "0": [1.0, 0.0, 0.2],
        "1": [2.0, 0.1, 0.4],
        "2": [0.0, 1.0, 0.0],
        "3": [0.0, 0.0, 0.0],
        "other": [1, 1, 1],
    }
    corpus = made(tiny, {"a": [docs]}, given=given_vectors(tiny, tmp_path, vectors))
    assert clusters(corpus) == {frozenset("01")}
    assert corpus.semantic.stats["considered"] == 3  # one is all zeros, one is missing
    assert corpus.semantic.inputs["lists/mine"]


def test_of_several_vectors_of_an_address_the_last_counts_for_all_its_documents(tiny: Any, tmp_path: Path) -> None:
    docs = [[tiny.Doc(f"text {n}", f"{n}") for n in range(3)] for _ in range(2)]
    files = [{"0": [1.0, 0.0], "1": [0.0, 1.0]}, {"1": [1.0, 0.1], "2": [-1.0, 0.0]}]
    parts = [part for one in files for part in given_vectors(tiny, tmp_path, one).parts]
    listed = manifest("lists/mine", Step(name="lists", version="1"), {}, parts)
    corpus = tiny.corpus({"a": docs})
    found = semantic_given.find(corpus.ctx, slots(corpus.documents), listed.parts, 2)
    for one, part in zip(found, docs, strict=True):
        vectors, places = semantic_given.read(corpus.ctx.store, one)
        assert vectors[places].tolist() == [[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0]]
        assert one.documents.rows == len(part)
        assert [file.blob for file in one.files] == [file.blob for file in parts]


@pytest.mark.parametrize(
    "vectors", [{"0": [1.0, 2.0], "1": [1.0]}, {"0": [1.0, float("nan")], "1": [1.0, 2.0]}, {"0": [None], "1": [1.0]}]
)
def test_vectors_that_cannot_be_used(tiny: Any, tmp_path: Path, vectors: dict[str, Any]) -> None:
    docs = [tiny.Doc(f"text {n}", str(n)) for n in range(2)]
    with pytest.raises(SourceError, match="vectors"):
        made(tiny, {"a": [docs]}, given=given_vectors(tiny, tmp_path, vectors))


def test_a_file_that_has_no_vectors(tiny: Any, tmp_path: Path) -> None:
    part = Part(name="v.txt", blob=tiny.ctx.store.put_bytes(b"no parquet"))
    listed = manifest("lists/mine", Step(name="lists", version="1"), {}, [part])
    with pytest.raises(SourceError, match=r"v\.txt"):
        made(tiny, {"a": [[tiny.Doc("text", "1")]]}, given=listed)


# ---- the parts ------------------------------------------------------------------------------------


def test_vectors_hand_worked() -> None:
    texts = pa.array(["a a b", "b c", "x"], pa.large_string())
    df, count = similarity.frequencies(texts, 2)
    assert (int(df.sum()), count) == (4, 2)
    found, has = similarity.vectors(texts, df, count, 4096, 2)
    assert has.tolist() == [True, True, False]
    a, b, c = ((1 + np.log(tf)) * (1 + np.log(3 / (1 + n))) for tf, n in ((2, 1), (1, 2), (1, 1)))
    expected = sorted(float(np.rint(v / np.hypot(a, b) * similarity.SCALE)) for v in (a, b))
    assert sorted(np.abs(found[0][found[0] != 0]).tolist()) == expected
    cosine = b * b / np.hypot(a, b) / np.hypot(b, c)
    assert found[0].astype(int) @ found[1] == pytest.approx(cosine * similarity.SCALE**2, rel=1e-3)


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-9, 9), min_size=3, max_size=3), min_size=2, max_size=6), st.floats(0.1, 1.0))
def test_cosines_are_exact(rows: list[list[float]], threshold: float) -> None:
    vectors = similarity.quantised(np.array(rows))
    for one, other in itertools.combinations(vectors, 2):
        x, y = one.tolist(), other.tolist()
        dot, length = (
            sum(a * b for a, b in zip(x, y, strict=True)),
            (sum(a * a for a in x) * sum(b * b for b in y)) ** 0.5,
        )
        if abs(dot - threshold * length) > 20:
            assert (similarity.cosine(one, other) >= np.float32(threshold)) == (dot > 0 and dot >= threshold * length)


def test_recall_of_the_search_is_what_its_theory_says() -> None:
    rng = np.random.default_rng(1)
    count, cosine = 3000, 0.95
    base = rng.standard_normal((count, 128))
    base /= np.linalg.norm(base, axis=1, keepdims=True)
    noise = rng.standard_normal((count, 128))
    noise -= (noise * base).sum(axis=1, keepdims=True) * base
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    common = np.ones(128) / np.sqrt(128)  # what all texts share
    pairs = np.concatenate([base, cosine * base + np.sqrt(1 - cosine**2) * noise]) + common
    vectors = similarity.quantised(pairs)
    for recall in (0.5, 0.9, 0.99):
        shape = semantic_pairs.search(vectors.sum(axis=0, dtype=np.int64), 2 * count, cosine, recall)
        keys = semantic_pairs.simhash(vectors, shape)
        found = (keys[:count] == keys[count:]).any(axis=1).mean()
        assert recall - 0.03 < found
        sketches = semantic_pairs.sketched(vectors, shape)
        numbers = np.arange(count, dtype=np.uint64)
        differing = semantic_pairs._differing(sketches, np.stack([numbers, numbers + np.uint64(count)], axis=1))
        assert (differing <= shape.differing).all()  # a true pair stays
        strangers = semantic_pairs._differing(sketches, np.stack([numbers[1:], numbers[:-1]], axis=1))
        assert (strangers <= shape.differing).sum() < 3  # chance does not
        flat = keys.reshape(-1)
        order = np.argsort(flat, kind="stable")
        at = np.repeat(np.arange(2 * count, dtype=np.uint64), shape.tables)[order]
        left, _ = semantic_pairs.nominate(flat[order], at)
        assert left.size < 0.00125 * shape.tables * (2 * count) ** 2 / 2  # through the origin: five times that


def test_crowds_are_paired_with_neighbours_and_the_first() -> None:
    at = np.arange(1000, dtype=np.uint64)
    left, right = semantic_pairs.nominate(np.zeros(1000, dtype=np.uint64), at)
    assert left.size < 1000 * (semantic_pairs.NEIGHBOURS + 1)
    assert set(right[left == 0].tolist()) == set(range(1, 1000))
    assert (left < right).all()


# ---- keys of many vectors -------------------------------------------------------------------------


def test_the_largest_key_does_not_decide_how_many_pairs_a_task_holds(
    tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of one bit, which half of the documents share, in pieces: the pairs and the bytes of one task."""
    monkeypatch.setattr(sorted_runs, "BLOCK_ROWS", 4)
    held, search, original = list[set[tuple[int, int]]](), semantic.search, semantic._near_pairs

    def watched(store: Any, task: Any, differing: int, left: Any, right: Any) -> Any:
        held.append(set(zip(left.tolist(), right.tolist(), strict=True)))
        return original(store, task, differing, left, right)

    monkeypatch.setattr(semantic, "search", lambda *given: replace(search(*given), bits=1, tables=3))
    monkeypatch.setattr(semantic, "_near_pairs", watched)
    for count in (180, 600):
        docs, _ = planted(tiny, replaced=0.0, count=count)
        whole = made(tiny, {"a": [docs[:50], docs[50:]]})
        expected = set().union(*held)
        held.clear()
        with monkeypatch.context() as patch:
            patch.setattr(StepCache, "get", lambda cache, key: None)
            patch.setattr(run_tree, "CHUNK_ROWS", 16)
            patch.setattr(run_tree, "MOST_RUNS", 2)
            patch.setattr(semantic, "HELD_ROWS", 80)
            pieces = made(tiny, {"a": [docs[:50], docs[50:]]})
        assert set().union(*held) == expected
        assert pieces.semantic.digest == whole.semantic.digest
        assert max(map(len, held)) < 80 * (semantic.NEIGHBOURS + 1) < len(expected)
        held.clear()
