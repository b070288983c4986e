"""Large components in pieces: the bytes of one task, whatever the pieces; bounded memory; a run that is killed."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plinth.compute.context import Context
from plinth.compute.engine import LocalEngine
from plinth.corpus.dedup import run_tree, sorted_runs
from plinth.corpus.dedup.near import candidates, components, crowds, large, minhash, sample
from plinth.corpus.dedup.parameters import Dedup, MinHash
from plinth.storage.state import StepCache
from plinth.storage.workspace import Workspace

from ...conftest import Corpus, Tools

#: Many bands of few rows: documents that share a template share keys.
DEDUP = Dedup(minhash=MinHash(bands=30, rows=2, threshold=0.7))


def linked(tools: Tools, picks: random.Random, documents: int, verify: Any = "text") -> Corpus:
    """A corpus that is nearly one component: pages of a template, chains of pages, and pages with one word changed."""
    template = [f"template{i}" for i in range(40)]
    texts = [" ".join([*template * 3, str(i)]) for i in range(documents // 4)]
    while len(texts) < documents:
        words = [f"{picks.getrandbits(40):x}" for _ in range(50)]
        for link in range(picks.choice([1, 1, 1, 3, 8])):
            texts.append(" ".join([*template, *words]))
            words[4 * link : 4 * link + 3] = [f"{picks.getrandbits(40):x}" for _ in range(3)]
    picks.shuffle(texts)
    docs, cuts = [tools.Doc(text) for text in texts], sorted(picks.choices(range(len(texts)), k=2))
    dedup = DEDUP.model_copy(update={"minhash": DEDUP.minhash.model_copy(update={"verify": verify})})
    return tools.corpus({"a": [docs[: cuts[0]], docs[cuts[0] : cuts[1]]], "b": [docs[cuts[1] :]]}, dedup=dedup)


def compared(corpus: Corpus, partition_rows: int, **given: Any) -> Any:
    inputs = (corpus.dedup, corpus.documents, corpus.signatures, corpus.exact)
    return minhash.run(corpus.ctx, *inputs, partition_rows=partition_rows, **given)


def tiny_limits(patch: pytest.MonkeyPatch) -> None:
    """Limits at which a corpus of a test has many pieces, crowds, runs and heavy keys."""
    patch.setattr(sorted_runs, "BLOCK_ROWS", 4)
    patch.setattr(run_tree, "MOST_RUNS", 3)
    patch.setattr(run_tree, "MERGE_ROWS", 16)
    patch.setattr(run_tree, "CHUNK_ROWS", 16)
    patch.setattr(components, "CHUNK_ROWS", 64)
    patch.setattr(crowds, "CHUNK_ROWS", 16)
    patch.setattr(large, "CHUNK_ROWS", 16)
    patch.setattr(candidates, "ROUTE_ROWS", 200)
    patch.setattr(large, "CLUSTER_ROWS", 16)
    patch.setattr(sample, "POOL", 40)


def watch(patch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """Tasks of a function in this process."""
    tasks, original = list[Any](), getattr(module, name)
    patch.setattr(module, name, lambda store, task: tasks.append(task) or original(store, task))
    return tasks


@settings(deadline=None, max_examples=8)
@given(
    st.integers(0, 2**32),
    st.integers(1, 90),
    st.sampled_from([7, 40, 1000]),
    st.sampled_from(["text", "signature"]),
    st.sampled_from([0, 20]),
    st.booleans(),
)
def test_pieces_give_the_bytes_of_one_task(
    tmp_path_factory: Any, seed: int, partition_rows: int, span: int, verify: Any, key_bits: int, known: bool
) -> None:
    tools = Tools(Context(Workspace(tmp_path_factory.mktemp("pieces")).ensure()))
    with pytest.MonkeyPatch.context() as patch:
        tiny_limits(patch)
        corpus = linked(tools, random.Random(seed), 120, verify)
        whole = corpus.through_near()
        patch.setattr(candidates, "KEY_BITS", key_bits)
        if not known:  # or else the similarities of the first run are looked up
            patch.setattr(StepCache, "get", lambda cache, key: None)
        assert compared(corpus, partition_rows, span=span).digest == whole.digest
