"""The value of a source: planted duplicates, novelty and language are found, with intervals that hold the truth."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.context import Context, manifest
from plinth.corpus import lists
from plinth.corpus.dedup.parameters import MinHash
from plinth.corpus.extract.content.learner import model_bytes
from plinth.corpus.sources.parameters import Bucket, Documents, Illegal
from plinth.errors import MissingError, SourceError
from plinth.recipe.recipe import Corpus
from plinth.records import Part, Step
from plinth.storage.parts import read_table, write_table
from plinth.storage.workspace import Workspace
from plinth_lab.source_value import assessment as value
from plinth_lab.source_value import proxy, sample
from plinth_lab.source_value.proxy import ORDER, ByteModel
from tests import judged_corpus
from tests.judged_corpus import ANNOTATORS, POLICY, texts
from tests.plinth.corpus.extract.test_content import ALL


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return judged_corpus.copy(tmp_path_factory, tmp_path_factory.mktemp("judged"))


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    terms = {"train": True, "redistribute": True, "commercial": True}
    source = {"kind": "jsonl", "path": "x", "licence": "MIT", "terms": terms, "domain": "d", "snapshot": "s"}
    bucket = {"description": "d", "owner": "o", "sources": [source]}
    return Corpus.model_validate(
        {"buckets": {"web": bucket}, "annotate": ANNOTATORS, "policies": {"default": POLICY.model_dump()},
         "permitted_licences": ["MIT"]}
    )  # fmt: skip


def written(folder: Path, files: dict[str, list[str]]) -> Bucket:
    """Write a source of JSONL files with these documents; a document that is not a JSON object is a broken line."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, documents in files.items():
        lines = [
            json.dumps({"text": text, "url": f"https://new.example/{name}/{i}"}) for i, text in enumerate(documents)
        ]
        (folder / name).write_text("\n".join(lines) + "\n")
    source = {
        "kind": "jsonl", "path": str(folder), "licence": "MIT", "domain": "new.example", "snapshot": "new",
        "terms": {"train": True, "redistribute": False, "commercial": False},
    }  # fmt: skip
    return Bucket.model_validate({"description": "new", "owner": "o", "sources": [source]})


def fresh(count: int, words: int = 30, seed: int = 7) -> list[str]:
    picks = random.Random(seed)
    return [judged_corpus._prose(picks, words) for _ in range(count)]


def assessed(ctx: Context, corpus: Corpus, bucket: Bucket, **options: Any) -> dict[str, Any]:
    return value.assess(ctx, bucket, corpus, ANNOTATORS, value.known(ctx), **options)


def test_acceptance_duplicates_and_novelty(ctx: Context, corpus: Corpus, tmp_path: Path) -> None:
    """20 new documents, 10 that the corpus has, 5 twice, 5 too short, one broken line."""
    ours = [text for text, _ in texts("web")[4:14]]
    new = fresh(20)
    bucket = written(tmp_path / "new", {"a.jsonl": new + ours + new[:5] + fresh(5, words=8, seed=8)})
    with (tmp_path / "new" / "a.jsonl").open("a") as stream:
        stream.write('{"text": "cut o\n')
    found = assessed(ctx, corpus, bucket)
    accepted = found["acceptance"]
    assert found["sample"]["documents"] == 40
    assert accepted["parsed"] == 40 / 41
    assert accepted["kept"]["value"] == 35 / 40
    assert accepted["duplicates_of_corpus"]["value"] == 10 / 35
    assert accepted["duplicates_in_itself"]["value"] == 5 / 35
    assert accepted["accepted"]["value"] == 20 / 40
    for measure in ("kept", "accepted", "accepted_bytes", "duplicates_of_corpus"):
        assert accepted[measure]["low"] < accepted[measure]["value"] < accepted[measure]["high"]
    assert {row["reason"]: row["documents"] for row in found["reasons"]} == {
        "too_few_words": 5, "broken_record (not parsed)": 1
    }  # fmt: skip
    assert found["density"]["unique_text"]["value"] == pytest.approx(20 / 35, abs=0.02)
    assert found["density"]["new_ngrams"] == {"value": 1.0, "low": 1.0, "high": 1.0}


def test_a_sample_without_documents_is_counted(ctx: Context, corpus: Corpus, tmp_path: Path) -> None:
    bucket = written(tmp_path / "broken", {"a.jsonl": []})
    (tmp_path / "broken" / "a.jsonl").write_text('{"text": "cut o\n{"te\n')
    found = assessed(ctx, corpus, bucket)
    assert found["sample"]["documents"] == found["acceptance"]["parsed"] == found["effective"]["bytes"]["value"] == 0
    assert found["reasons"] == [{"reason": "broken_record (not parsed)", "documents": 2}]


def test_what_protected_sets_dropped_is_not_new_and_what_a_policy_dropped_is(ctx: Context) -> None:
    have = value.known(ctx)
    (rows, *_) = (read_table(ctx.store, part) for part in have.verdicts["web"].parts)
    documents = read_table(ctx.store, have.documents["web"].named("part-")[0], ["text"]).column("text")
    marks = sample.signed([documents.combine_chunks().slice(0, 3)], MinHash())
    verdicts = {"drop": ["downweighted", "leaked", "too_few_words"], "train": [None] * 3}
    found = {}
    for decision, reasons in verdicts.items():
        own = rows.to_pydict()
        own["decision"][:3], own["reason"][:3] = [decision] * 3, reasons
        part = write_table(ctx.store, have.verdicts["web"].parts[0].name, pa.table(own, schema=rows.schema))
        judged = have.verdicts["web"].model_copy(update={"parts": (part, *have.verdicts["web"].parts[1:])})
        sides = [{"web": one["web"]} for one in (have.documents, have.signatures)]
        found[decision] = sample.against(ctx, marks, MinHash(), *sides, {"web": judged}).tolist()
    assert found["train"] == [1.0, 1.0, 1.0]
    assert found["drop"][:2] == [1.0, 1.0]
    assert found["drop"][2] < 0.5


def test_gain_of_the_whole_source(ctx: Context, corpus: Corpus, tmp_path: Path) -> None:
    """Half of the files are read; the gain is that of all of them."""
    files = {f"{i:02}.jsonl": fresh(6, seed=i) for i in range(20)}
    bucket = written(tmp_path / "new", files)
    size = sum(path.stat().st_size for path in (tmp_path / "new").iterdir())
    found = assessed(ctx, corpus, bucket, sample_bytes=size // 2)
    assert found["sample"]["of_files"] == 20
    assert 10 <= found["sample"]["files"] <= 11
    truth = sum(len(text.encode()) for documents in files.values() for text in documents)
    effective = found["effective"]
    assert effective["bytes"]["value"] == pytest.approx(truth, rel=0.03)
    now = ctx.refs.current("funnel").stats["total"]["effective"]["effective_bytes"]
    assert effective["gain"]["value"] == pytest.approx(truth / now, rel=0.03)
    rate = found["tokenizer"]["bytes_per_token"]["value"]
    assert effective["tokens"]["value"] == pytest.approx(effective["bytes"]["value"] / rate)
    again = assessed(ctx, corpus, bucket, sample_bytes=size // 2)
    assert again == found
    other = assessed(ctx, corpus, bucket, sample_bytes=size // 2, seed=2)
    assert other["effective"]["bytes"]["value"] == pytest.approx(truth, rel=0.03)
    assert other["density"] != found["density"] or other["sample"] != found["sample"]


def test_nothing_of_it_stays(ctx: Context, corpus: Corpus, tmp_path: Path) -> None:
    def held() -> set[Path]:
        return {path for path in ctx.workspace.root.rglob("*") if path.is_file()}

    before = held()
    assessed(ctx, corpus, written(tmp_path / "new", {"a.jsonl": fresh(5)}))
    assert held() == before


def test_the_gate_of_the_line_holds_for_samples(ctx: Context, corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "stop").mkdir()
    (tmp_path / "stop" / "keywords.txt").write_text("flobrik\ttrade\n")
    gated = corpus.model_copy(update={"illegal": Illegal(lists="stop")})
    bucket = written(tmp_path / "new", {"a.jsonl": [*fresh(5), f"flobrik {fresh(1)[0]}"]})
    with pytest.raises(MissingError, match="lists/stop"):
        assessed(ctx, gated, bucket)
    ctx.refs.publish(lists.run(ctx, "stop", str(tmp_path / "stop")), "key")
    found = assessed(ctx, gated, bucket)
    assert found["sample"]["documents"] == 5
    assert found["acceptance"]["parsed"] == 1.0
    assert {row["reason"]: row["documents"] for row in found["reasons"]} == {"illegal_content": 1}


def test_samples_are_extracted_with_the_learned_model(ctx: Context, corpus: Corpus, tmp_path: Path) -> None:
    models = {}, {"extraction_model": {"buckets": ["web"]}}
    params = [Documents.model_validate({"extraction": "blocks", **model}) for model in models]
    default, learned = (corpus.model_copy(update={"documents": one}) for one in params)
    bucket = written(tmp_path / "new", {"a.html": []})
    bucket = bucket.model_copy(update={"sources": (bucket.sources[0].model_copy(update={"kind": "html"}),)})
    (tmp_path / "new" / "a.html").write_text(f"<nav>Home</nav><article><p>{fresh(1, words=300)[0]}</p></article>")
    with pytest.raises(MissingError, match="models/main_content"):
        assessed(ctx, learned, bucket)
    part = Part(name="main_content.npz", blob=ctx.store.put_bytes(model_bytes(ALL)))
    ctx.refs.publish(manifest("models/main_content", Step(name="m", version="1"), {}, [part]), "key")
    sizes = [assessed(ctx, one, bucket)["sample"]["text_bytes"] for one in (default, learned)]
    assert sizes[1] == sizes[0] + len("Home\n\n")


def test_a_source_that_is_not_there(ctx: Context, corpus: Corpus, tmp_path: Path) -> None:
    bucket = written(tmp_path / "new", {"a.jsonl": ["x"]})
    (tmp_path / "new" / "a.jsonl").unlink()
    with pytest.raises(SourceError):
        assessed(ctx, corpus, bucket)
    assert not list(ctx.workspace.tmp.glob("value-*"))


def test_without_a_corpus(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no corpus"):
        value.known(Context(Workspace(tmp_path / "w").ensure()))


def test_a_bucket_is_not_measured_against_itself(ctx: Context) -> None:
    assert set(value.known(ctx).documents) == {"prose", "web"}
    assert set(value.known(ctx, without="web").shards) == {"prose"}


def test_everything_is_refused(ctx: Context, corpus: Corpus, tmp_path: Path) -> None:
    found = assessed(ctx, corpus, written(tmp_path / "new", {"a.jsonl": fresh(6, words=5)}))
    assert found["acceptance"]["accepted"]["value"] == 0.0
    assert found["effective"]["bytes"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert found["proxy"] == {}


# ---- overlap ------------------------------------------------------------------------------------------


def test_near_duplicates_within_a_sample_are_all_but_the_first() -> None:
    base = " ".join(f"w{i}" for i in range(200))
    column = pa.array([base, "", base.upper(), f"{base} end", "other words entirely here", ""], pa.large_string())
    marks = sample.signed([column.slice(0, 2), column.slice(2)], MinHash())
    assert sample.inside(marks, 0.8).tolist() == [False, False, True, True, False, False]


def test_ngrams_that_the_corpus_never_had() -> None:
    known = sample.known_ngrams([pa.array(["a b c d e f"], pa.large_string())])
    total, new = sample.new_ngrams([pa.array(["a b c d e g", "", "a b c d e f"], pa.large_string())], known)
    assert (total.tolist(), new.tolist()) == ([2.0, 0.0, 2.0], [1.0, 0.0, 0.0])
    assert sample.new_ngrams([pa.array(["a b c d e"], pa.large_string())], known[:0])[1].tolist() == [1.0]


# ---- the proxy ----------------------------------------------------------------------------------------


def test_other_words_teach_and_more_of_the_same_do_not(ctx: Context) -> None:
    """The source itself is learned; the corpus's own slices prefer more of the corpus."""
    curated = {b: ctx.refs.current(f"{b}/curated") for b in ("web", "prose")}
    picks = random.Random(5)
    other = ["".join(picks.choice("0123456789 +-*/=") for _ in range(180)) for _ in range(60)]
    found = proxy.deltas(ctx, other, curated, limit=6_000, seed=1)
    own = found["slices"][proxy.OWN_SLICE]
    assert own["with"] < own["instead"] - 0.5
    assert own["beats_more_of_the_same"]["high"] < 0
    assert own["beats_more_of_the_same"]["value"] == pytest.approx(own["with"] - own["instead"])
    assert found["slices"]["web"]["beats_more_of_the_same"]["low"] > 0
    assert proxy.deltas(ctx, other, curated, limit=6_000, seed=1) == found
    assert proxy.deltas(ctx, [], curated, limit=6_000, seed=1) == {}


@pytest.fixture(scope="module")
def model() -> ByteModel:
    """Return a model of 240 MiB, so the tests that make their own come first; each test leaves it empty."""
    return ByteModel()


@settings(deadline=None, max_examples=12)
@given(train=st.lists(st.binary(max_size=40), max_size=4), context=st.binary(min_size=1, max_size=3))
def test_the_model_is_a_probability(model: ByteModel, train: list[bytes], context: bytes) -> None:
    """Over all 256 next bytes the probabilities add up to one, up to what collisions take or add."""
    before = model.train(train).bits(context)
    total = sum(2 ** -(model.bits(context + bytes([byte])) - before) for byte in range(256))
    model.forget(train)
    assert total == pytest.approx(1.0, abs=1e-3)


def test_a_model_forgets_exactly(model: ByteModel) -> None:
    """20,000 random bytes have some 50 collisions per order, whose counts go back in the reverse order only."""
    picks = random.Random(3)
    texts = [picks.randbytes(17_000), b"", b"ab", picks.randbytes(3_000)]
    assert model.train(texts).trained_bytes == 20_002
    assert model.counts.any(axis=1).all()
    assert model.forget(texts).trained_bytes == 0
    assert not model.counts.any()
    assert not model.contexts.any()


def reference(train: list[bytes], text: bytes) -> float:
    """Witten-Bell over exact counts, a dictionary per order."""
    bits = 0.0
    for at, byte in enumerate(text):
        p = 1 / 256
        for order in range(min(ORDER, at + 1)):
            context = text[at - order : at]
            after = [
                one[i] for one in train for i in range(order, len(one)) if one[i - order : i] == context
            ]  # fmt: skip
            if after:
                p = (after.count(byte) + len(set(after)) * p) / (len(after) + len(set(after)))
        bits -= math.log2(p)
    return bits


def test_the_model_is_witten_bell(model: ByteModel) -> None:
    train = [b"the cat sat on the mat", b"the dog ate the cat"]
    model.train(train)
    for text in (b"the cat ate", b"zzz", b"", b"on the dog", train[0]):
        assert model.bits(text) == pytest.approx(reference(train, text))
    assert model.trained_bytes == sum(map(len, train))
    model.forget(train)
