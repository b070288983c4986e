"""`plinth corpus near`: exact and near duplicates of a text, what became of them, and what is refused."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from plinth.corpus.dedup.near import index
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.errors import IntegrityError, MissingError
from plinth.records import Manifest
from plinth_text.words import jaccard, ngram_sets

WORDS = [f"word{i}" for i in range(3000)]


def indexed(tiny: Any, **params: Any) -> tuple[Any, list[Any]]:
    picks = random.Random(5)
    docs = [tiny.Doc(" ".join(picks.choice(WORDS) for _ in range(150)), name=f"doc{i}") for i in range(40)]
    docs += [tiny.Doc(docs[0].text.replace(" word1", " other", 1) + " tail", name="close")]
    docs += [tiny.Doc(docs[0].text.upper(), name="same", fired=("dropped_by_policy",))]
    docs += [tiny.Doc("", name="empty"), tiny.Doc("two words", name="short")]
    dedup = Dedup(minhash=MinHash(**params))
    corpus = tiny.corpus({"a": [docs[:20], docs[20:]], "b": [[tiny.Doc("unrelated text of b")]]}, dedup=dedup)
    corpus.through_near()
    made = index.run(tiny.ctx, dedup.minhash, corpus.documents, corpus.signatures)
    for one in (*corpus.documents.values(), *corpus.signatures.values(), corpus.exact, corpus.near, made):
        tiny.ctx.refs.publish(one, "test")
    return corpus, docs


@pytest.mark.parametrize("params", [{}, {"shingle_characters": 20, "max_characters": None}])
def test_duplicates_of_a_text_nearest_first(shared_tiny: Any, params: dict[str, Any]) -> None:
    _, docs = indexed(shared_tiny, **params)
    with index.open_published(shared_tiny.ctx) as opened:
        found = opened.near(docs[0].text)
    assert {match.id for match in found[:2]} == {docs[0].id.hex(), docs[41].id.hex()}  # a dropped one is found too
    assert [match.exact for match in found] == [True, True, False]
    assert found[2].uri == "test:close"
    assert [match.similarity for match in found[:2]] == [1.0, 1.0]
    assert found[2].estimated == pytest.approx(found[2].similarity, abs=0.15)
    if not params:
        sets = ngram_sets(pa.array([docs[0].text, docs[40].text], pa.large_string()), 5)
        assert found[2].similarity == pytest.approx(jaccard(*sets))


def test_threshold_limit_strangers_short_and_empty_texts(shared_tiny: Any) -> None:
    _, docs = indexed(shared_tiny)
    with index.open_published(shared_tiny.ctx) as opened:
        assert len(opened.near(docs[0].text, threshold=0.999)) == 2
        assert len(opened.near(docs[0].text, limit=1)) == 1
        assert opened.near("nothing that is in this corpus at all, I am sure of it") == []
        assert [match.uri for match in opened.near("Two  words")] == ["test:short"]
        empty = opened.near("  ")
        assert [(match.uri, match.exact, match.estimated) for match in empty] == [("test:empty", True, None)]


def test_texts_that_are_gone_leave_their_estimates(tiny: Any) -> None:
    corpus, docs = indexed(tiny)
    for part in corpus.documents["a"].parts:
        tiny.ctx.store.path(part.blob).unlink()
    with index.open_published(tiny.ctx) as opened:
        found = opened.near(docs[0].text)
    assert [match.exact for match in found] == [True, True, False]
    assert {match.similarity for match in found} == {match.id for match in found} == {None}
    assert found[2].estimated == pytest.approx(0.93, abs=0.07)


def test_what_became_of_a_match(shared_tiny: Any) -> None:
    _, docs = indexed(shared_tiny)
    with index.open_published(shared_tiny.ctx) as opened:
        matches = opened.near(docs[0].text)
        fates = {match.uri: index.fate(shared_tiny.ctx, match) for match in matches}
    assert fates["test:same"] == {"exact_survivor": False, "near_survivor": False}
    assert fates["test:doc0"]["exact_survivor"] is True
    assert {fates["test:doc0"]["near_survivor"], fates["test:close"]["near_survivor"]} == {True, False}


def test_an_index_of_other_parameters_or_another_version_is_refused_by_name(tiny: Any) -> None:
    indexed(tiny)
    with pytest.raises(IntegrityError, match="built by another version or with other parameters") as caught:
        index.open_published(tiny.ctx, MinHash(seed=2))
    assert "seed 1" in str(caught.value.found)
    assert "seed 2" in str(caught.value.expected)
    made = tiny.ctx.refs.current("dedup/index")
    tiny.ctx.refs.publish(Manifest.model_validate(made.model_dump() | {"version": "0"}), "test")
    with pytest.raises(IntegrityError, match="built by another version or with other parameters"):
        index.open_published(tiny.ctx)


def test_a_damaged_index_is_refused(tiny: Any) -> None:
    _, docs = indexed(tiny)
    part = tiny.ctx.refs.current("dedup/index").named("bands-")[0]
    path = tiny.ctx.store.path(part.blob)
    path.chmod(0o644)
    data = np.frombuffer(path.read_bytes(), dtype=np.uint8).copy()
    data[100] ^= 1
    path.write_bytes(data.tobytes())
    with pytest.raises(IntegrityError, match="has changed since"), index.open_published(tiny.ctx) as opened:
        opened.near(docs[0].text)


def test_no_index_is_named(tiny: Any) -> None:
    with pytest.raises(MissingError, match="dedup/index"):
        index.open_published(tiny.ctx)


def test_the_command(shared_tiny: Any, tmp_path: Path, capsys: Any) -> None:
    from plinth_jobs.cli import call

    _, docs = indexed(shared_tiny)
    page = tmp_path / "page.txt"
    page.write_text(docs[0].text)
    base = ["corpus", "near", "--workspace", str(shared_tiny.ctx.workspace.root)]
    assert call([*base, str(page), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [match["exact"] for match in found] == [True, True, False]
    assert call([*base, docs[0].text, "--limit", "1"]) == 0
    assert "exact" in capsys.readouterr().out
    assert call([*base, "no such text anywhere"]) == 0
    assert "No similar documents." in capsys.readouterr().out
