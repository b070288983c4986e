"""Recall and precision on planted pairs, giant and skewed inputs, partitions, and a run that is killed."""

import random
from typing import Any

import pytest

from plinth.corpus.dedup.near import minhash, payloads
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.errors import IntegrityError
from plinth.storage.state import StepCache
from plinth_text.similarity import recall

SHINGLES = {0.7: (85, 15), 0.8: (90, 10), 0.85: (111, 9), 0.9: (95, 5)}  # of each text, and of it not shared


def pair(picks: random.Random, similarity: float) -> tuple[str, str]:
    """Two texts whose sets of word 5-grams have exactly this similarity: (m - k) / (m + k)."""
    count, changed = SHINGLES[similarity]
    words = [f"{picks.getrandbits(48):x}" for _ in range(count + 4)]
    other = words[: count + 4 - changed] + [f"{picks.getrandbits(48):x}" for _ in range(changed)]
    return " ".join(words), " ".join(other)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("shape", [(14, 8), (9, 13)])
def test_recall_is_that_of_the_bands_and_nothing_false_passes(tiny: Any, shape: tuple[int, int]) -> None:
    picks, wanted = random.Random(4), {0.7: 1500, 0.8: 9000, 0.85: 6000, 0.9: 3000}
    pairs = [(similarity, *pair(picks, similarity)) for similarity, count in wanted.items() for _ in range(count)]
    left, right = ([tiny.Doc(one[side]) for one in pairs] for side in (1, 2))
    picks.shuffle(parts := [left[:6000], left[6000:], right[:4000], right[4000:]])
    bands, rows = shape
    corpus = tiny.corpus({"a": parts[:3], "b": parts[3:]}, dedup=Dedup(minhash=MinHash(bands=bands, rows=rows)))
    found = corpus.rows(corpus.through_near())
    merged = dict.fromkeys(wanted, 0)
    for (similarity, _, _), one, other in zip(pairs, left, right, strict=True):
        assert {found[one.id]["size"], found[other.id]["size"]} <= {1, 2}
        merged[similarity] += found[one.id]["cluster"] == found[other.id]["cluster"]
    assert merged[0.7] == 0  # though bands share a key for one or two in five of them
    for similarity in (0.8, 0.85, 0.9):
        assert merged[similarity] / wanted[similarity] == pytest.approx(recall(similarity, bands, rows), abs=0.01)


def test_precision_by_signature_alone_is_what_its_error_allows(tiny: Any) -> None:
    picks = random.Random(5)
    pairs = [(similarity, *pair(picks, similarity)) for similarity in (0.7, 0.9) for _ in range(300)]
    docs = [tiny.Doc(text) for _, *texts in pairs for text in texts]
    corpus = tiny.corpus({"a": [docs]}, dedup=Dedup(minhash=MinHash(verify="signature")))
    found = corpus.rows(corpus.through_near())
    merged = {0.7: 0, 0.9: 0}
    for i, (similarity, _, _) in enumerate(pairs):
        merged[similarity] += found[docs[2 * i].id]["size"] == 2
    assert merged[0.9] > 295
    assert merged[0.7] < 6  # three standard errors of 0.043 away


def crowd(tiny: Any, count: int) -> list[Any]:
    """Pages of one template, every one with a tail of its own; some with the same tail."""
    picks = random.Random(6)
    template = [f"template{i}" for i in range(60)]
    return [
        tiny.Doc(" ".join([*template, *(f"{i // 3 if i < 30 else i}-{j}" for j in range(40)), str(picks.random())]))
        for i in range(count)
    ]


def test_a_partition_is_of_any_size_and_scratch_files_change_nothing(tiny: Any, monkeypatch: Any) -> None:
    docs = crowd(tiny, 120)
    dedup = Dedup(minhash=MinHash(bands=56, rows=2))
    corpus = tiny.corpus({"a": [docs[:50], docs[50:]]}, dedup=dedup)
    first = corpus.through_near()
    assert first.stats["clusters"] == 10
    for rows, ranges, span in ((1, 700, 50), (7, 3000, 13), (10_000, 100_000, 1000)):
        with monkeypatch.context() as patch:
            patch.setattr(payloads, "IN_MEMORY", 0)
            patch.setattr(StepCache, "get", lambda cache, key: None)
            made = minhash.run(
                tiny.ctx,
                dedup,
                corpus.documents,
                corpus.signatures,
                corpus.exact,
                range_rows=ranges,
                partition_rows=rows,
                span=span,
            )
        assert made.digest == first.digest


def test_texts_longer_than_the_limit_are_compared_by_their_beginning(tiny: Any) -> None:
    same = " ".join(f"w{i}" for i in range(400))
    docs = [tiny.Doc(same + " " + " ".join(f"{side}{i}" for i in range(4000))) for side in "ab"]
    for limit, size in ((1500, 2), (None, 1)):
        dedup = Dedup(minhash=MinHash(max_characters=limit, bands=112, rows=1))
        corpus = tiny.corpus({"a": [docs]}, dedup=dedup)
        assert {row["size"] for row in corpus.rows(corpus.through_near()).values()} == {size}


def test_characters_find_what_words_do_not(tiny: Any) -> None:
    text = "pneumonoultramicroscopicsilicovolcanoconiosis" * 5
    docs = [tiny.Doc(text + "A"), tiny.Doc(text + "b"), tiny.Doc("ab"), tiny.Doc("x"), tiny.Doc("")]
    for params, size in (({"shingle_characters": 5}, 2), ({}, 1)):
        corpus = tiny.corpus({"a": [docs]}, dedup=Dedup(minhash=MinHash(bands=112, rows=1, **params)))
        found = corpus.rows(corpus.through_near())
        assert [found[doc.id]["size"] for doc in docs] == [size, size, 1, 1, 1]


def test_a_killed_run_goes_on_where_it_was(tiny: Any, monkeypatch: Any) -> None:
    picks = random.Random(8)
    docs = [tiny.Doc(text) for _ in range(10) for text in pair(picks, 0.9)]
    corpus = tiny.corpus({"a": [docs[:7], docs[7:12]], "b": [docs[12:]]})
    corpus.through_exact()
    signed = {b: minhash.signatures(tiny.ctx, b, corpus.dedup.minhash, one) for b, one in corpus.documents.items()}
    arguments = (tiny.ctx, corpus.dedup, corpus.documents, signed, corpus.exact)
    original = minhash._link
    ran: list[str] = []

    def dies(store: Any, task: Any) -> Any:
        ran.append(task.compared.piece.name)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return original(store, task)

    monkeypatch.setattr(minhash, "_link", dies)
    with pytest.raises(KeyboardInterrupt):
        minhash.run(*arguments, partition_rows=1)
    finished = ran[0]
    made = minhash.run(*arguments, partition_rows=1)
    assert ran.count(finished) == 1
    monkeypatch.undo()
    assert made.stats["clusters"] >= 8
    monkeypatch.setattr(StepCache, "get", lambda cache, key: None)
    assert minhash.run(*arguments).digest == made.digest


def test_a_flipped_byte_in_what_is_compared_is_refused(tiny: Any, monkeypatch: Any) -> None:
    docs = crowd(tiny, 40)
    corpus = tiny.corpus({"a": [docs]}, dedup=Dedup(minhash=MinHash(rows=2)))
    original = payloads._carry

    def spoil(store: Any, task: Any) -> Any:
        places, values = original(store, task)
        path = store.path(values.blob)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.chmod(0o644)
        path.write_bytes(bytes(data))
        return places, values

    monkeypatch.setattr(payloads, "_carry", spoil)
    with pytest.raises(IntegrityError, match="has changed since it was written"):
        corpus.through_near()
