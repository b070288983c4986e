"""Verdicts: one decision and one reason per document, hand-worked through the whole cascade."""

import random
from itertools import pairwise
from typing import Any

import pytest

from plinth.corpus import curate, verdicts
from plinth.corpus.curate import apply_edits
from plinth.corpus.dedup import lines, semantic, substring
from plinth.corpus.dedup.parameters import LineParameters, Semantic, Substring
from plinth.corpus.protected import contamination, holdout
from plinth.corpus.protected.holdout import rank
from plinth.corpus.protected.parameters import Holdout
from plinth.errors import IntegrityError
from plinth.storage.parts import read_table
from tests.rights import MIT


@pytest.fixture(scope="module")
def tiny(shared_tiny: Any) -> Any:
    return shared_tiny


def words(picks: random.Random, count: int) -> list[str]:
    return [f"w{picks.randrange(10**9)}" for _ in range(count)]


@pytest.fixture(scope="module")
def cascade(tiny: Any) -> tuple[Any, dict[str, Any]]:
    """A corpus with one document for every way out of training."""
    picks = random.Random(1)
    body, secret = words(picks, 60), words(picks, 60)
    docs = {
        "bad": tiny.Doc("bad text", fired=("too_short", "profane")),
        "short": tiny.Doc("short", fired=("too_short",)),
        "twin": tiny.Doc(" ".join(body)),
        "copy": tiny.Doc(" ".join(body).upper() + "  "),
        "near": tiny.Doc(" ".join(body[:-1])),
        "leak": tiny.Doc(" ".join([*words(picks, 5), *secret[:20]])),  # nothing is left once the match is cut
        "edited": tiny.Doc("mail me at me@example.org now", edits=((11, 25, "<email>"),)),
    }
    lowest = min(rank(1, doc.id) for doc in docs.values())
    docs["held"] = next(
        doc for i in range(10_000) if rank(1, (doc := tiny.Doc(" ".join(secret), name=str(i))).id) < lowest
    )
    listed = list(docs.values())
    corpus = tiny.corpus({"a": [listed[:3], listed[3:]]}, holdout_params=Holdout(fraction=1e-9, min_documents=1))
    corpus.through_curated()
    return corpus, docs


def test_every_way_out_hand_worked(cascade: Any) -> None:
    corpus, docs = cascade
    rows = corpus.rows(corpus.verdicts["a"])
    assert {name: (rows[doc.id]["decision"], rows[doc.id]["reason"]) for name, doc in docs.items()} == {
        "bad": ("drop", "too_short"),
        "short": ("drop", "too_short"),
        "twin": ("drop", "exact_duplicate"),  # its copy has two more spaces: the longest stays
        "copy": ("train", None),
        "near": ("drop", "near_duplicate"),
        "leak": ("drop", "contaminated"),
        "edited": ("train", None),
        "held": ("heldout", None),
    }
    assert all(rows[doc.id]["id"] == doc.id for doc in docs.values())


def test_clusters_are_the_near_ones_where_there_are_any(cascade: Any) -> None:
    corpus, docs = cascade
    rows = corpus.rows(corpus.verdicts["a"])
    both = (min(docs["copy"].id, docs["near"].id), 2)
    assert (rows[docs["copy"].id]["cluster"], rows[docs["copy"].id]["cluster_size"]) == both
    assert (rows[docs["near"].id]["cluster"], rows[docs["near"].id]["cluster_size"]) == both
    assert rows[docs["twin"].id]["cluster"] == min(docs["twin"].id, docs["copy"].id)
    assert (rows[docs["bad"].id]["cluster"], rows[docs["bad"].id]["cluster_size"]) == (None, 0)
    assert (rows[docs["leak"].id]["cluster"], rows[docs["leak"].id]["cluster_size"]) == (docs["leak"].id, 1)


def test_statistics_hand_worked(cascade: Any) -> None:
    corpus, docs = cascade
    size = {name: len(doc.text.encode()) for name, doc in docs.items()}
    stats = corpus.verdicts["a"].stats
    assert (stats["documents"], stats["bytes"]) == (8, sum(size.values()))
    assert stats["decisions"] == {"train": 2, "heldout": 1, "drop": 5}
    assert stats["decision_bytes"]["train"] == size["copy"] + size["edited"]
    assert stats["reasons"] == {"too_short": 2, "exact_duplicate": 1, "near_duplicate": 1, "contaminated": 1}
    assert stats["reason_bytes"]["contaminated"] == size["leak"]
    assert stats["policy_reasons"] == {"too_short": 2}
    assert stats["stages"] == {"policy": 2, "exact": 1, "near": 1, "holdout": 1, "contamination": 1}
    assert stats["stage_bytes"]["holdout"] == size["held"]
    assert stats["rules"] == {
        "profane": {"fired": 1, "only": 0, "only_bytes": 0},
        "too_short": {"fired": 2, "only": 1, "only_bytes": size["short"]},
    }


def test_edits_pass_through_and_rows_align(cascade: Any, tiny: Any) -> None:
    corpus, docs = cascade
    edits = corpus.rows(corpus.verdicts["a"])[docs["edited"].id]["edits"]
    assert edits == [{"start_cp": 11, "end_cp": 25, "replacement": "<email>", "reason": "pii"}]
    for part, judged in zip(corpus.documents["a"].parts, corpus.verdicts["a"].parts, strict=True):
        assert read_table(tiny.ctx.store, judged).schema == verdicts.SCHEMA
        ids = [read_table(tiny.ctx.store, one, ["id"]).column("id").to_pylist() for one in (part, judged)]
        assert ids[0] == ids[1]


def test_a_sidecar_of_another_bucket_is_refused(cascade: Any, tiny: Any) -> None:
    corpus, _ = cascade
    other = tiny.corpus({"b": [[tiny.Doc("alone")]]})
    shared = (corpus.exact, corpus.near, corpus.holdout, corpus.contamination)
    with pytest.raises(IntegrityError, match="exact of bucket b"):
        verdicts.run(tiny.ctx, "b", other.documents["b"], other.policies["b"], *shared)


# ---- stages that a recipe may switch on -----------------------------------------------------------


HELD = Holdout(fraction=1e-9, min_documents=1)


def held_out(tiny: Any, docs: list[Any], text: str) -> Any:
    """A document that the holdout takes before any of these."""
    lowest = min(rank(1, doc.id) for doc in docs)
    return next(doc for i in range(10_000) if rank(1, (doc := tiny.Doc(text, str(i))).id) < lowest)


@pytest.fixture(scope="module")
def whole_cascade(tiny: Any) -> tuple[Any, dict[str, Any]]:
    """A corpus with a document for what each of the later stages does; all stages on."""
    picks = random.Random(2)
    line, passage, body = " ".join(words(picks, 12)), " ".join(words(picks, 60)), words(picks, 60)
    docs = {
        "first": tiny.Doc(f"{' '.join(words(picks, 30))}\n{line}\n{passage}", "first"),
        "line": tiny.Doc(f"{' '.join(words(picks, 30))}\n{line}\nend of line", "line"),
        "only lines": tiny.Doc(f"{line}\nlittle else", "only lines"),
        "passage": tiny.Doc(
            f"Ünïcode {' '.join(words(picks, 30))} {passage} 😀 me@example.org {line}\n{line}\nend", "passage"
        ),
        "only passage": tiny.Doc(f"some {passage} words", "only passage"),
        "plain": tiny.Doc(" ".join(body), "plain"),
        "reordered": tiny.Doc(" ".join(body[::-1][1:]), "reordered"),
    }
    at = docs["passage"].text.index("me@")
    docs["passage"] = tiny.Doc(docs["passage"].text, "passage", edits=((at, at + 14, "<email>"),))
    docs["held"] = held_out(tiny, list(docs.values()), "set aside")
    corpus = tiny.corpus({"a": [list(docs.values())[:4], list(docs.values())[4:]]})
    near, documents = corpus.through_near(), corpus.documents
    looks = Semantic(buckets=("a",), threshold=0.9, min_words=50)
    corpus.semantic = semantic.run(tiny.ctx, looks, documents, near)
    few = {"min_words": 10, "min_share": 0.0}
    corpus.lines = lines.run(tiny.ctx, LineParameters(boilerplate_documents=None, **few), documents, corpus.semantic)
    corpus.substring = substring.run(tiny.ctx, Substring(**few), documents, corpus.lines)
    corpus.holdout = holdout.run(tiny.ctx, HELD, documents, corpus.substring)
    last = (corpus.substring, corpus.holdout)
    corpus.contamination = contamination.run(tiny.ctx, corpus.contamination_params, documents, *last)
    shared = (corpus.exact, near, corpus.holdout, corpus.contamination)
    on = {"semantic": corpus.semantic, "lines": corpus.lines, "substring": corpus.substring}
    corpus.verdicts = {"a": verdicts.run(tiny.ctx, "a", documents["a"], corpus.policies["a"], *shared, **on)}
    corpus.curated = {"a": curate.run(tiny.ctx, "a", documents["a"], corpus.verdicts["a"], MIT)}
    return corpus, docs


def test_the_whole_cascade_hand_worked(whole_cascade: Any) -> None:
    corpus, docs = whole_cascade
    rows = corpus.rows(corpus.verdicts["a"])
    assert {name: (rows[doc.id]["decision"], rows[doc.id]["reason"]) for name, doc in docs.items()} == {
        "first": ("train", None),
        "line": ("train", None),
        "only lines": ("drop", "mostly_repeated_lines"),
        "passage": ("train", None),
        "only passage": ("drop", "mostly_repeated"),
        "plain": ("train", None),
        "reordered": ("drop", "semantic_duplicate"),
        "held": ("heldout", None),
    }
    stats = corpus.verdicts["a"].stats
    assert stats["stages"] == {
        "policy": 0, "exact": 0, "near": 0, "semantic": 1, "lines": 1, "substring": 1, "holdout": 1, "contamination": 0,
    }  # fmt: skip
    assert stats["stage_bytes"]["substring"] == len(docs["only passage"].text.encode())
    assert rows[docs["plain"].id]["cluster_size"] == rows[docs["reordered"].id]["cluster_size"] == 2
    assert set(verdicts.STAGES) <= set(stats["stages"]) == {*verdicts.CASCADE} - {"protected", "source"}
    assert corpus.holdout.inputs["dedup/substring"] == corpus.substring.digest


def test_edits_of_all_stages_are_one_sorted_list(whole_cascade: Any) -> None:
    corpus, docs = whole_cascade
    text, edits = docs["passage"].text, corpus.rows(corpus.verdicts["a"])[docs["passage"].id]["edits"]
    assert [edit["reason"] for edit in edits] == ["repeated_passage", "pii", "repeated_line"]
    assert all(a["end_cp"] <= b["start_cp"] for a, b in pairwise(edits))
    kept = " ".join(text.split(" ")[:31])
    line = docs["line"].text.split("\n")[1]
    assert apply_edits(text, edits) == f"{kept} 😀 <email> {line}\nend"


def test_removed_bytes_are_those_of_the_edits(whole_cascade: Any) -> None:
    corpus, docs = whole_cascade
    rows = corpus.rows(corpus.verdicts["a"])
    kept = [doc for doc in docs.values() if rows[doc.id]["decision"] == "train"]
    left = sum(len(apply_edits(doc.text, rows[doc.id]["edits"]).encode()) for doc in kept)
    stats = corpus.curated["a"].stats
    assert stats["heldout_bytes"] == len("set aside")
    assert stats["text_bytes"] == left
    assert (
        stats["edited_away_bytes"]
        == sum(stats["edit_bytes"].values())
        == sum(len(d.text.encode()) for d in kept) - left
    )
    assert stats["edit_counts"] == {"pii": 1, "repeated_line": 2, "repeated_passage": 1}
    cut = corpus.lines.stats["removed_bytes"] + corpus.substring.stats["removed_bytes"]
    assert cut == stats["edit_bytes"]["repeated_line"] + stats["edit_bytes"]["repeated_passage"]


def test_overlapping_edits_become_one(tiny: Any) -> None:
    picks = random.Random(3)
    passage = " ".join(words(picks, 50))
    after = " ".join(words(picks, 60))  # else it were a near duplicate
    doc = tiny.Doc(f"before it. {passage} {after}", "2", edits=((20, 30, "<x>"), (7, 13, "<y>"), (0, 2, "")))
    one = tiny.Doc(passage, "1")
    corpus = tiny.corpus({"a": [[one, doc, held_out(tiny, [one, doc], "aside")]]}, holdout_params=HELD)
    near = corpus.through_near()
    cut = substring.run(tiny.ctx, Substring(min_words=0, min_share=0), corpus.documents, near)
    held = holdout.run(tiny.ctx, corpus.holdout_params, corpus.documents, cut)
    clean = contamination.run(tiny.ctx, corpus.contamination_params, corpus.documents, cut, held)
    shared = (corpus.exact, near, held, clean)
    made = verdicts.run(tiny.ctx, "a", corpus.documents["a"], corpus.policies["a"], *shared, substring=cut)
    edits = corpus.rows(made)[doc.id]["edits"]
    assert [(edit["start_cp"], edit["reason"]) for edit in edits] == [(0, "pii"), (7, "repeated_passage")]
    assert apply_edits(doc.text, edits) == f"fore {after}"


def test_parts_are_named_by_their_places_also_where_an_earlier_run_made_them(tiny: Any) -> None:
    """A file that sorts before the others moves all parts on; what the step cache returns has the names of before."""
    picks = random.Random(3)
    old, new = ([[tiny.Doc(" ".join(words(picks, 60)))] for _ in range(count)] for count in (2, 1))
    before, after = tiny.corpus({"a": old}), tiny.corpus({"a": [*new, *old]})
    for corpus in (before, after):
        corpus.through_curated()
    for kind in ("signatures", "verdicts", "curated"):
        was, now = getattr(before, kind)["a"], getattr(after, kind)["a"]
        assert [part.blob for part in now.named("part-")][1:] == [part.blob for part in was.named("part-")]
        assert [part.name for part in now.named("part-")] == [f"part-{at:05}.parquet" for at in range(3)]
    assert [part.name for part in after.curated["a"].named("held")] == [f"heldout-{at:05}.parquet" for at in range(3)]
