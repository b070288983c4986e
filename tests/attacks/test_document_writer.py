"""Someone who can add documents to a source: what near duplicates push out of the corpus, and what they bring in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.corpus.dedup.parameters import Dedup
from plinth.storage.workspace import Workspace
from tests.plinth.corpus.conftest import Corpus, Doc

WORDS = [f"{a}{b}" for a in ("river", "stone", "cloud", "field") for b in ("song", "side", "work", "light", "bird")]


def text(seed: int) -> list[str]:
    return random.Random(seed).choices(WORDS, k=120)


def doc(words: Sequence[str], name: str, **more: Any) -> Doc:
    return Doc(" ".join(words), name=name, **more)


VICTIM = doc(text(0), "victim")
#: The same text with words added at its end: the longest member of a cluster survives by default.
COPY = [*text(0), "and", "more"]


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


def kept(ctx: Context, dedup: Dedup | None = None, **buckets: list[list[Doc]]) -> set[bytes]:
    """Ids of the documents that survive both deduplications."""
    corpus = Corpus(ctx, buckets, dedup=dedup or Dedup())
    return corpus.survivors(corpus.through_near())


@pytest.mark.parametrize("words", [text(0), COPY], ids=["exact", "near"])
def test_a_copy_that_the_licence_gate_drops_pushes_nothing_out(ctx: Context, words: list[str]) -> None:
    """Only documents that their policy keeps are compared: a forbidden copy, however long, wins no cluster."""
    forbidden = doc(words, "forbidden", fired=("licence",))
    assert kept(ctx, trusted=[[VICTIM]], open=[[forbidden]]) == {VICTIM.id}


def test_a_longer_copy_wins_by_rule_and_never_over_a_preferred_bucket(ctx: Context) -> None:
    """The survivor follows from the rule and the members alone; `prefer` protects the buckets that you trust."""
    longer = doc(COPY, "longer")
    assert kept(ctx, trusted=[[VICTIM]], open=[[longer]]) == {longer.id}
    assert kept(ctx, open=[[longer]], trusted=[[], [VICTIM]]) == {longer.id}
    assert kept(ctx, Dedup(prefer=("trusted",)), open=[[longer]], trusted=[[VICTIM]]) == {VICTIM.id}


def test_the_document_that_was_pushed_out_is_named_with_its_reason_and_cluster(ctx: Context) -> None:
    longer = doc(COPY, "longer")
    corpus = Corpus(ctx, {"trusted": [[VICTIM]], "open": [[longer]]})
    corpus.through_curated()
    lost, won = (corpus.rows(corpus.verdicts[b])[one.id] for b, one in (("trusted", VICTIM), ("open", longer)))
    assert (lost["decision"], lost["reason"], lost["cluster"]) == ("drop", "near_duplicate", won["cluster"])
    assert corpus.verdicts["trusted"].stats["reasons"] == {"near_duplicate": 1}


def test_a_chain_of_copies_joins_texts_that_are_not_alike(ctx: Context) -> None:
    """A known limit: merging is transitive. The cluster's size shows it, and `prefer` picks who stays."""
    first, last = text(1), text(2)
    chain = [doc([*last[:cut], *first[cut:]], f"step {cut}") for cut in range(0, 121, 8)]
    ends = [chain[0], chain[-1]]
    assert kept(ctx, trusted=[ends]) == {one.id for one in ends}
    corpus = Corpus(ctx, {"trusted": [ends], "open": [chain[1:-1]]}, dedup=Dedup(prefer=("trusted",)))
    found = corpus.through_near()
    assert found.stats["largest_cluster"] == len(chain)
    assert len(corpus.survivors(found) & {one.id for one in ends}) == 1


def test_a_permitted_licence_of_a_copy_frees_no_other_document(ctx: Context) -> None:
    """A known limit: a copy that claims a permitted license trains under it; what was dropped for its own stays out."""
    forbidden, claimed = doc(text(0), "forbidden", fired=("licence",)), doc(COPY, "claims MIT")
    corpus = Corpus(ctx, {"owner": [[forbidden]], "open": [[claimed]]})
    corpus.through_curated()
    decisions = [corpus.rows(corpus.verdicts[b])[one.id] for b, one in (("owner", forbidden), ("open", claimed))]
    assert [(one["decision"] == "drop", one["reason"]) for one in decisions] == [(True, "licence"), (False, None)]
