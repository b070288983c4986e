"""Verdicts: one decision and one reason per document, hand-worked through the whole cascade."""

import random
from typing import Any

import pytest

from plinth.corpus import verdicts
from plinth.corpus.holdout import rank
from plinth.errors import IntegrityError
from plinth.recipe.heldout import Holdout
from plinth.storage.parts import read_table


def words(picks: random.Random, count: int) -> list[str]:
    return [f"w{picks.randrange(10**9)}" for _ in range(count)]


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
        "leak": tiny.Doc(" ".join([*words(picks, 60), *secret[:20]])),
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


def test_every_way_out_hand_worked(tiny: Any) -> None:
    corpus, docs = cascade(tiny)
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


def test_clusters_are_the_near_ones_where_there_are_any(tiny: Any) -> None:
    corpus, docs = cascade(tiny)
    rows = corpus.rows(corpus.verdicts["a"])
    both = (min(docs["copy"].id, docs["near"].id), 2)
    assert (rows[docs["copy"].id]["cluster"], rows[docs["copy"].id]["cluster_size"]) == both
    assert (rows[docs["near"].id]["cluster"], rows[docs["near"].id]["cluster_size"]) == both
    assert rows[docs["twin"].id]["cluster"] == min(docs["twin"].id, docs["copy"].id)
    assert (rows[docs["bad"].id]["cluster"], rows[docs["bad"].id]["cluster_size"]) == (None, 0)
    assert (rows[docs["leak"].id]["cluster"], rows[docs["leak"].id]["cluster_size"]) == (docs["leak"].id, 1)


def test_statistics_hand_worked(tiny: Any) -> None:
    corpus, docs = cascade(tiny)
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


def test_edits_pass_through_and_rows_align(tiny: Any) -> None:
    corpus, docs = cascade(tiny)
    edits = corpus.rows(corpus.verdicts["a"])[docs["edited"].id]["edits"]
    assert edits == [{"start_cp": 11, "end_cp": 25, "replacement": "<email>", "reason": "pii"}]
    for part, judged in zip(corpus.documents["a"].parts, corpus.verdicts["a"].parts, strict=True):
        assert read_table(tiny.ctx.store, judged).schema == verdicts.SCHEMA
        ids = [read_table(tiny.ctx.store, one, ["id"]).column("id").to_pylist() for one in (part, judged)]
        assert ids[0] == ids[1]


def test_a_sidecar_of_another_bucket_is_refused(tiny: Any) -> None:
    corpus, _ = cascade(tiny)
    other = tiny.corpus({"b": [[tiny.Doc("alone")]]})
    shared = (corpus.exact, corpus.near, corpus.holdout, corpus.contamination)
    with pytest.raises(IntegrityError, match="exact of bucket b"):
        verdicts.run(tiny.ctx, "b", other.documents["b"], other.policies["b"], *shared)
