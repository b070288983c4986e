"""The n-gram model: hand-worked and slow references, agreement with kenlm, bands, faults."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.corpus import models
from plinth.corpus.annotate.stage import run as annotate
from plinth.corpus.models import ngram
from plinth.corpus.models.ngram_counts import FALLBACK, estimate
from plinth.errors import IntegrityError, RecipeError, StageError
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace
from plinth_jobs.cli import call
from plinth_text.scoring import BEGIN, BOUNDARY, normalised_token, tokens

RAW = {"kind": "ngram", "reference": ["web"], "vocabulary": 2000, "prune": [0, 0, 0, 0]}


NOUNS = ["dog", "cat", "bird", "fish", *(f"{a}{b}{c}" for a in "bdk" for b in "aeo" for c in ("rel", "mun", "tip"))]


def prose(rng: random.Random, sentences: int) -> str:
    """Sentences of a small grammar, so that longer contexts tell more."""
    nouns, verbs = NOUNS, ["sees", "likes", "finds", "carries"]
    made = [
        f"The {rng.choice(nouns)} {rng.choice(verbs)} the {rng.choice(nouns)}{rng.choice(['.', '!', ', 12 times.'])}"
        for _ in range(sentences)
    ]
    return "\n".join(made)


@pytest.fixture
def trained(tiny: Any) -> tuple[Context, Any, Manifest]:
    rng = random.Random(1)
    parts = [[tiny.Doc(prose(rng, 20), name=f"{p}-{d}") for d in range(40)] for p in range(3)]
    corpus = tiny.corpus({"web": parts})
    return tiny.ctx, corpus, models.train(tiny.ctx, "perplexity", RAW, corpus.documents, {})


def files(ctx: Context, made: Manifest) -> dict[str, Path]:
    return {part.name: ctx.store.open_path(part.blob) for part in made.parts}


def loaded(ctx: Context, made: Manifest) -> ngram.NgramModel:
    return ngram.read(files(ctx, made), "models/perplexity")


# ---- tokens ---------------------------------------------------------------------------------------


def slow_tokens(text: str) -> list[list[str]]:
    """Words of letters and digits, marks alone, by line."""
    lines: list[list[str]] = [[]]
    word = ""
    for char in text + "\n":
        if char.isascii() and char.isalnum():
            word += normalised_token(char)
            continue
        lines[-1] += [word] if word else []
        word = ""
        if char in "\r\n":
            lines.append([])
        elif char > " " and char != "\x7f":
            lines[-1].append(char)
    return [line for line in lines if line]


@given(st.lists(st.text(st.characters(max_codepoint=127), max_size=60), max_size=5))
@settings(max_examples=200, deadline=None)
def test_tokens_of_ascii_equal_a_slow_reference(texts: list[str]) -> None:
    hashes, places, offsets = tokens(pa.array(texts, pa.large_string()))
    names: dict[str, int] = {}
    for i, text in enumerate(texts):
        raw = text.encode()
        base = sum(len(one.encode()) for one in texts[:i])
        lines: list[list[str]] = [[]]
        for k in range(offsets[i], offsets[i + 1]):
            if hashes[k] == BOUNDARY:
                lines.append([])
                continue
            word = normalised_token(raw[places[k, 0] - base : places[k, 1] - base].decode())
            assert names.setdefault(word, int(hashes[k])) == int(hashes[k])
            lines[-1].append(word)
        assert [line for line in lines if line] == slow_tokens(text)
        assert lines[-1] == []


@given(st.lists(st.text(max_size=40), max_size=5))
@settings(deadline=None)
def test_any_unicode_is_cut_without_loss(texts: list[str]) -> None:
    hashes, places, offsets = tokens(pa.array(texts, pa.large_string()))
    data = "".join(texts).encode()
    assert offsets[0] == 0
    assert offsets[-1] == hashes.size == len(places)
    covered = b"".join(data[a:b] for a, b in places.tolist()).decode()
    left = [char for char in "".join(texts) if char not in covered]
    assert all(char.isspace() or char < " " or char == "\x7f" for char in left)


# ---- estimation -----------------------------------------------------------------------------------


def slow_model(sentences: list[list[int]], order: int, words: int) -> dict[tuple[int, ...], tuple[float, float]]:
    """Interpolated modified Kneser-Ney by dictionaries: n-gram -> (probability, back-off)."""
    raw: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        stream = (BEGIN, *sentence, 2)
        for n in range(order):
            raw[n].update(stream[i : i + n + 1] for i in range(len(stream) - n))
    del raw[0][(BEGIN,)]
    adjusted: list[dict[tuple[int, ...], int]] = []
    for n in range(order):
        left: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
        for gram in raw[n + 1] if n + 1 < order else ():
            left[gram[1:]].add(gram[0])
        keep_raw = n + 1 == order
        adjusted.append({g: c if keep_raw or g[0] == BEGIN else len(left[g]) for g, c in raw[n].items()})
    prob: dict[tuple[int, ...], float] = {}
    backoff: dict[tuple[int, ...], float] = {}
    for n in range(order):
        t = [sum(1 for c in adjusted[n].values() if c == k) for k in (1, 2, 3, 4)]
        d = FALLBACK
        if all(t):
            y = t[0] / (t[0] + 2 * t[1])
            found = tuple(k - (k + 1) * y * t[k] / t[k - 1] for k in (1, 2, 3))
            d = found if all(0 <= x <= k for k, x in enumerate(found, 1)) else FALLBACK  # type: ignore[assignment]
        total: Counter[tuple[int, ...]] = Counter()
        mass: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for gram, count in adjusted[n].items():
            total[gram[:-1]] += count
            mass[gram[:-1]] += d[min(count, 3) - 1] if count else 0
        backoff |= {context: mass[context] / total[context] for context in total}
        if n == 0:
            for word in range(words):
                count = adjusted[0].get((word,), 0)
                less = count - d[min(count, 3) - 1] if count else 0
                prob[(word,)] = less / total[()] + backoff[()] / (words - 1)
            continue
        for gram, count in adjusted[n].items():
            share = (count - d[min(count, 3) - 1]) / total[gram[:-1]]
            prob[gram] = share + backoff[gram[:-1]] * prob[gram[1:]]
    return {gram: (p, backoff.get(gram, 1.0)) for gram, p in prob.items()}


@pytest.mark.parametrize("order", [2, 3, 4])
def test_estimates_equal_a_slow_reference(order: int) -> None:
    rng = random.Random(order)
    words = 9
    sentences = [[rng.choice([3, 4, 4, 5, 5, 5, 6, 7, 8]) for _ in range(rng.randint(1, 7))] for _ in range(60)]
    keys, counts = _counts(sentences, order, words)
    made = estimate(keys, counts, (0,) * order)
    expected = slow_model(sentences, order, words)
    found = {
        tuple((int(key) >> (16 * k)) & 0xFFFF for k in range(n)): (10**logp, 10**backoff)
        for n, one in enumerate(made, start=1)
        for key, logp, backoff in zip(one.keys, one.logp, one.backoff, strict=True)
    }
    assert found.keys() == expected.keys()
    for gram, (p, backoff) in expected.items():
        assert found[gram][0] == pytest.approx(p, rel=1e-9)
        if len(gram) < order:
            assert found[gram][1] == pytest.approx(backoff, rel=1e-6)


def _counts(sentences: list[list[int]], order: int, words: int) -> tuple[list[Any], list[Any]]:
    from plinth.corpus.models.ngram_counts import windows, with_begins

    stream = with_begins(np.array([w for s in sentences for w in (*s, 2)], dtype=np.uint16))
    keys, counts = [np.arange(words, dtype=np.uint64)], [np.zeros(words, dtype=np.int64)]
    np.add.at(counts[0], windows(stream, 1).astype(np.int64), 1)
    for n in range(2, order + 1):
        distinct, times = np.unique(windows(stream, n), return_counts=True)
        keys.append(distinct)
        counts.append(times)
    return keys, counts


@pytest.mark.parametrize("prune", [(0, 0, 0), (0, 1, 1), (0, 2, 3)])
def test_what_follows_a_context_sums_to_one(prune: tuple[int, ...]) -> None:
    rng = random.Random(3)
    words = 12
    sentences = [[rng.randint(3, words - 1) for _ in range(rng.randint(1, 9))] for _ in range(80)]
    made = estimate(*_counts(sentences, 3, words), prune)
    table = {
        tuple((int(key) >> (16 * k)) & 0xFFFF for k in range(n)): (10**logp, 10**backoff)
        for n, one in enumerate(made, start=1)
        for key, logp, backoff in zip(one.keys, one.logp, one.backoff, strict=True)
    }

    def p(gram: tuple[int, ...]) -> float:
        if gram in table:
            return table[gram][0]
        return (table[gram[:-1]][1] if gram[:-1] in table else 1.0) * p(gram[1:])

    contexts = [gram for gram in table if len(gram) < 3]
    for context in [(), *contexts]:
        total = sum(p((*context, word)) for word in range(words) if word != BEGIN)
        assert total == pytest.approx(1.0, abs=1e-6)


# ---- the whole ------------------------------------------------------------------------------------


def test_scores_equal_those_of_kenlm(trained: tuple[Context, Any, Manifest], tmp_path: Path) -> None:
    import kenlm

    ctx, _, made = trained
    model = loaded(ctx, made)
    path = tmp_path / "model.arpa"
    ctx.refs.publish(made, "key")
    assert call(["-w", str(ctx.workspace.root), "corpus", "arpa", "perplexity", str(path)]) == 0
    peer = kenlm.Model(str(path))
    rng = random.Random(9)
    lines = [*prose(rng, 200).split("\n"), "A stranger walks in.", "the the the", "fish", "12 !"]
    total, counts = model.score(pa.array(lines, pa.large_string()))
    for line, ours, count in zip(lines, total, counts, strict=True):
        words = " ".join(slow_tokens(line)[0])
        assert ours == pytest.approx(peer.score(words, bos=True, eos=True), abs=1e-4)
        assert count[0] == len(words.split())


@pytest.mark.parametrize("prune", [[0, 0, 1, 1], [0, 1, 2, 3]])
def test_a_pruned_model_is_smaller_and_kenlm_agrees(tiny: Any, tmp_path: Path, prune: list[int]) -> None:
    import kenlm

    rng = random.Random(4)
    corpus = tiny.corpus({"web": [[tiny.Doc(prose(rng, 30), name=str(d)) for d in range(80)]]})
    made = models.train(tiny.ctx, "perplexity", RAW | {"prune": prune}, corpus.documents, {})
    whole = models.train(tiny.ctx, "perplexity", RAW, corpus.documents, {})
    assert made.stats["ngrams_4"] < whole.stats["ngrams_4"]
    model = loaded(tiny.ctx, made)
    (tmp_path / "model.arpa").write_text("\n".join(ngram.arpa(model)) + "\n")
    peer = kenlm.Model(str(tmp_path / "model.arpa"))
    lines = prose(random.Random(5), 100).split("\n")
    total, _ = model.score(pa.array(lines, pa.large_string()))
    theirs = [peer.score(" ".join(slow_tokens(line)[0]), bos=True, eos=True) for line in lines]
    assert total == pytest.approx(theirs, abs=1e-4)


@pytest.mark.exhaustive
def test_parts_and_workers_do_not_show(tiny: Any, tmp_path: Path) -> None:
    rng = random.Random(1)
    docs = [tiny.Doc(prose(rng, 20), name=str(d)) for d in range(60)]
    cuts = {"one": [docs], "many": [docs[:7], docs[7:30], docs[30:]]}
    found = []
    for workers, parts in ((1, cuts["one"]), (2, cuts["many"])):
        with LocalEngine(workers) as engine:
            tiny.ctx = Context(Workspace(tmp_path / str(workers)).ensure(), engine)
            corpus = tiny.corpus({"web": parts})
            made = models.train(tiny.ctx, "perplexity", RAW, corpus.documents, {})
            found.append([part.blob.sha256 for part in made.parts])
    assert found[0] == found[1]


def test_text_of_its_kind_is_in_the_head_and_noise_in_the_tail(
    trained: tuple[Context, Any, Manifest], tiny: Any
) -> None:
    ctx, _, made = trained
    rng = random.Random(8)
    noise = " ".join("".join(rng.choice("qwxzjk") for _ in range(6)) for _ in range(60))
    shuffled = prose(rng, 20).split()
    rng.shuffle(shuffled)
    docs = [tiny.Doc(prose(random.Random(s), 20), name=f"own-{s}") for s in range(30)]
    docs += [tiny.Doc(noise), tiny.Doc(" ".join(shuffled)), tiny.Doc("", name="empty")]
    corpus = tiny.corpus({"other": [docs]})
    sidecar = annotate(ctx, "other", "perplexity", {}, corpus.documents["other"], {"models/perplexity": made})
    rows = read_table(ctx.store, sidecar.parts[0]).to_pylist()
    own, (bad, mixed, empty) = rows[:30], rows[30:]
    assert {row["band"] for row in own} >= {"head", "tail"}  # the percentiles of their own kind
    assert max(row["perplexity"] for row in own) < mixed["perplexity"] < bad["perplexity"]
    assert bad["band"] == mixed["band"] == "tail"
    assert bad["unknown"] == 1.0
    assert empty["perplexity"] is None
    assert empty["band"] is None


def test_too_little_to_learn_from(tiny: Any) -> None:
    corpus = tiny.corpus({"web": [[tiny.Doc("one word")]]})
    with pytest.raises(StageError, match="too little training text"):
        models.train(tiny.ctx, "perplexity", RAW, corpus.documents, {})


def test_a_wrong_parameter_is_refused() -> None:
    with pytest.raises(RecipeError, match="order"):
        models.parameters("perplexity", RAW | {"order": 7})
    with pytest.raises(RecipeError, match="did you mean 'ngram'"):
        models.trainer("perplexity", {"kind": "ngrams"})


@pytest.mark.parametrize("fault", ["version", "missing", "torn", "mixed"])
def test_files_that_cannot_be_trusted_are_refused(
    trained: tuple[Context, Any, Manifest], tmp_path: Path, fault: str
) -> None:
    ctx, _, made = trained
    found = files(ctx, made)
    if fault == "missing":
        del found["keys-2.npy"]
    else:
        name = {"version": "model.json", "torn": "values-3.npy", "mixed": "values-3.npy"}[fault]
        changed = tmp_path / name
        data = found[name].read_bytes()
        if fault == "version":
            data = json.dumps({**json.loads(data), "format": "plinth-ngram/0"}).encode()
        changed.write_bytes(
            data[:-8] if fault == "torn" else found["values-2.npy"].read_bytes() if fault == "mixed" else data
        )
        found[name] = changed
    with pytest.raises(IntegrityError, match="models/perplexity cannot be used"):
        ngram.read(found, "models/perplexity")


def test_a_model_of_more_orders_than_kernels_hold_is_refused() -> None:
    keys, values = np.zeros(3, np.uint64), np.zeros((3, 2), np.float32)
    with pytest.raises(IntegrityError, match="models/perplexity cannot be used"):
        ngram._require("models/perplexity", {"words": []}, keys[:0], (keys,) * 5, (values,) * 5)
    ngram._require("models/perplexity", {"words": []}, keys[:0], (keys,) * 4, (values,) * 4)


def test_statistics_say_what_was_learnt(trained: tuple[Context, Any, Manifest]) -> None:
    _, _, made = trained
    assert made.stats["tokens"] > 10_000
    assert 1 < made.stats["perplexity"] < 20
    assert made.stats["head_below"] < made.stats["tail_above"]
    assert all(math.isfinite(d) for own in made.stats["discounts"] for d in own)
