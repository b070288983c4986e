"""Text that a model reproduces after learning documents by heart, and text that the same model does not know."""

from __future__ import annotations

import hashlib
import random
import string
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer

from plinth.compute.context import Context
from plinth.errors import RecipeError
from plinth.model.decoder import Decoder
from plinth.records import Manifest, Part
from plinth.storage.parts import read_table, write_table
from plinth.tokens import packing
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.order import Order
from plinth.tokens.order.steps import Steps, constant
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.shards.reader import ShardReader
from plinth_audit.extraction import ExtractionTest, job
from plinth_audit.extraction.job import edits
from plinth_audit.extraction.windows import Taken, candidates
from tests.peers import Peer

scipy_stats = Peer("scipy.stats")

BATCH = 4
PARAMS = ExtractionTest(
    prefix_tokens=12, suffix_tokens=12, near_edits=0.2, documents_per_slice=30, slices={"late": "web.number >= 12"}
)


def _texts(seed: int, count: int) -> list[str]:
    chooser = random.Random(seed)
    return ["".join(chooser.choices(string.printable[:94], k=chooser.randint(26, 30))) for _ in range(count)]


TRAIN, HELDOUT = _texts(1, 24), _texts(2, 16)


@dataclass(frozen=True)
class Corpus:
    trained: Manifest
    curated: dict[str, Manifest]
    shards: dict[str, Manifest]
    ledger: Manifest
    taken: Taken


@pytest.fixture
def corpus(ctx: Context, curated: Callable[..., Manifest], tokenizer: Tokenizer) -> Corpus:
    """24 documents that are trained on once or twice, and 16 that are held out; the ledger knows their numbers."""
    text = curated("web", TRAIN, HELDOUT)
    file = Part(name="tokenizer.json", blob=ctx.store.put_bytes(tokenizer.to_str().encode()))
    stats = {"vocab_size": tokenizer.get_vocab_size(), "end_of_text": tokenizer.token_to_id("<|endoftext|>")}
    base = {"step": "made", "version": "1", "params": {}, "inputs": {}}
    trained = Manifest(asset="tokenizer", parts=(file,), stats=stats, **base)
    cut = shards.run(ctx, "web", Shards(tokens_per_shard=200), trained, text)
    index = packing.run(ctx, "web", 32, cut)
    ctx.refs.save(index)
    phases = (Phase(name="main", fraction=1.0, weights={"web": 1.0}),)
    wanted = Mixture(sequence_tokens=32, total_tokens=32 * 32, phases=phases, block_sequences=8, packing="best-fit")
    mixed = mixture.run(ctx, wanted, {"web": cut}, {"web": index})
    steps = constant(Order(mixed).sequences, 32, BATCH)
    ledger = Manifest(asset="ledger", parts=(_ledger(ctx, text, cut),), **base)
    return Corpus(trained, {"web": text}, {"web": cut}, ledger, Taken(mixed, steps, steps.total))


def _ledger(ctx: Context, text: Manifest, cut: Manifest) -> Part:
    reader = ShardReader(ctx.store, cut)
    spans = {span.id: span for batch in reader.index.batches() for span in batch.records()}
    rows = []
    for part in text.parts:
        table = read_table(ctx.store, part, ["id", "uri"])
        for number, row in enumerate(table.to_pylist()):
            span = spans.get(row["id"].hex())
            shard = int(np.searchsorted(reader.shard_starts, span.start, side="right")) - 1 if span else None
            rows.append(
                {
                    "id": row["id"].hex(),
                    "uri": row["uri"],
                    "bucket": "web",
                    "decision": "train" if span else "heldout",
                    "shard": None if shard is None else reader.shards[shard].name,
                    "position": None if shard is None else span.start - reader.shard_starts[shard],
                    "tokens": span.tokens if span else None,
                    "cluster_size": 1 + number % 2,
                    "web__number": number,
                }
            )
    return write_table(ctx.store, "web/part-00000.parquet", pa.Table.from_pylist(rows))


def _learn(tokenizer: Tokenizer, texts: list[str]) -> Callable[[Decoder], None]:
    """Trains a model on the texts until it knows them by heart, also from their middle on."""

    def learn(model: Decoder) -> None:
        ids = [[0, *tokenizer.encode(text).ids, 0][skipped:] for text in texts for skipped in (0, 1, 3, 6)]
        longest = max(map(len, ids))
        tokens = torch.tensor([[*one, *[0] * (longest - len(one))] for one in ids])
        model.embed_tokens.div_(20)  # the fixture's factor
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        with torch.enable_grad():
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
            for _ in range(90):
                logits = model(tokens[:, :-1])
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    return learn


def _run(
    ctx: Context, checkpoint: Manifest, own: Corpus, params: ExtractionTest = PARAMS, **changes: object
) -> Manifest:
    given = replace(own, **changes)
    listed = (_id(TRAIN[3]), "file:///web/5")
    return job.run(
        ctx, params, checkpoint, given.trained, given.ledger, given.curated, given.shards, given.taken, listed
    )


def _id(text: str) -> str:
    return hashlib.sha256(f"web:{text}".encode()).digest()[:16].hex()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_was_learnt_by_heart_is_extracted_and_what_was_held_out_is_not(
    ctx: Context,
    corpus: Corpus,
    tokenizer: Tokenizer,
    model_directory: Callable[..., Path],
    checkpoint: Callable[[Path], Manifest],
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a model so small gains nothing from more
    made = _run(ctx, checkpoint(model_directory(_learn(tokenizer, TRAIN))), corpus)
    torch.set_num_threads(threads)
    every = made.stats["slices"]["all"]
    rows = read_table(ctx.store, made.parts[0]).to_pylist()
    own = [row for row in rows if row["slice"] == "all" and not row["heldout"]]
    assert every["n"] == len(own) == 24
    assert every["exact"]["count"] >= 20
    assert every["control"]["n"] == 16
    assert every["control"]["either"]["count"] <= 1
    assert every["excess_at_least"] > 0.4
    assert every["excess"]["low"] > 0.5
    assert made.stats["upper"] == max(one["either"]["upper"] for one in made.stats["slices"].values())
    count, n = every["either"]["count"], every["n"]
    expected = 1.0 if count == n else scipy_stats.beta.ppf(0.95, count + 1, n - count)
    assert every["either"]["upper"] == pytest.approx(expected)
    assert made.stats["absent"] == ["personal_data", "restricted_licence"]
    assert made.stats["slices"]["duplicated"]["n"] == 12
    assert made.stats["slices"]["late"]["n"] == 12
    assert {row["id"] for row in rows if row["slice"] == "listed" and not row["heldout"]} == {
        _id(TRAIN[3]),
        _id(TRAIN[5]),
    }
    for row in rows:
        text = next(one for one in [*TRAIN, *HELDOUT] if _id(one) == row["id"])
        ids = [*tokenizer.encode(text).ids]
        assert row["prefix"] + row["suffix"] == ids[row["offset"] :][:24]
        assert row["seen"] >= (not row["heldout"])
        assert row["edits"] == edits(row["suffix"], row["completion"])


def test_windows_are_those_that_a_step_took_whole(ctx: Context, corpus: Corpus) -> None:
    from plinth.tokens.order.batch import documents_of_step
    from plinth_audit.extraction.windows import TrainedWindows

    few = replace(corpus.taken, last=3, left_out=frozenset({2}))
    table, *_ = candidates(ctx, PARAMS, corpus.ledger, ["web"])
    rows = [row for row in table.to_pylist() if (row["slice"], row["decision"]) == ("all", "train")]
    windows = TrainedWindows(ctx, PARAMS, corpus.shards, few)
    found = {row["id"] for row in rows if windows.of(row)}
    steps = corpus.taken.steps
    assert isinstance(steps, Steps)
    read = {
        piece.document.id
        for step in (0, 2)
        for sequence in documents_of_step(ctx, corpus.taken.mixture, None, step, steps)
        for piece in sequence.documents
        if piece.tokens >= piece.document.tokens
    }
    assert 0 < len(found) < 24
    assert found == read


def test_the_sample_does_not_depend_on_parts_or_their_order(ctx: Context, corpus: Corpus) -> None:
    table = read_table(ctx.store, corpus.ledger.parts[0])
    order = np.random.default_rng(0).permutation(table.num_rows)
    cut = [order[:7], order[7:30], order[30:]]
    parts = tuple(
        write_table(ctx.store, f"web/part-{i:05d}.parquet", table.take(pa.array(own))) for i, own in enumerate(cut)
    )
    shuffled = Manifest(**{**corpus.ledger.model_dump(), "parts": parts})
    few = PARAMS.model_copy(update={"documents_per_slice": 2})
    whole, again = (candidates(ctx, few, one, ["web"])[0] for one in (corpus.ledger, shuffled))
    assert whole.equals(again)
    assert whole.filter(pa.compute.equal(whole["slice"], "all")).num_rows == 16
    other = candidates(ctx, few.model_copy(update={"seed": 1}), corpus.ledger, ["web"])[0]
    assert other["id"].to_pylist() != whole["id"].to_pylist()
    assert not candidates(ctx, few, corpus.ledger, ["code"])[0].num_rows


def test_a_slice_that_cannot_be_read_and_sequences_too_short_are_named(ctx: Context, corpus: Corpus) -> None:
    unknown = PARAMS.model_copy(update={"slices": {"secret": "pii.total > 0"}})
    with pytest.raises(RecipeError, match=r"evaluation\.extraction\.slices\.secret"):
        candidates(ctx, unknown, corpus.ledger, ["web"])
    with pytest.raises(RecipeError, match="longer than the training sequences"):
        _run(ctx, corpus.trained, corpus, ExtractionTest())
    with pytest.raises(ValueError, match="the slice name duplicated is reserved"):
        ExtractionTest(slices={"duplicated": "documents.tokens > 9"})


def test_edits_are_those_of_the_definition() -> None:
    """Against the recursion itself, on random sequences."""

    def slow(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(slow(a[1:], b[1:]) + (a[0] != b[0]), slow(a[1:], b) + 1, slow(a, b[1:]) + 1)

    chooser = random.Random(3)
    for _ in range(60):
        a, b = (tuple(chooser.choices((1, 2, 3), k=chooser.randint(0, 5))) for _ in range(2))
        assert edits(a, b) == slow(a, b)
    fifty = list(range(50))
    assert job.outcome(fifty, fifty, 0.1) == (0, "exact")
    assert job.outcome(fifty, [*fifty[5:]], 0.1) == (5, "near")
    assert job.outcome(fifty, [*fifty[6:]], 0.1) == (6, "other")
    assert job.outcome(fifty, [], 0.1) == (50, "other")


def test_no_document_of_a_slice_is_no_evidence() -> None:
    rows = [{"slice": "a", "heldout": True, "outcome": "other"}] * 3 + [
        {"slice": "b", "heldout": False, "outcome": "other"}
    ] * 200
    found = job.summary(pa.Table.from_pylist(rows))
    assert found["slices"]["a"]["n"] == 0
    assert found["slices"]["b"]["control"] is None
    assert found["upper"] == pytest.approx(0.01487, abs=1e-5)  # 1 - 0.05 ** (1 / 200)
    found = job.summary(pa.Table.from_pylist(rows[:3]), ["a", "c"])
    assert (found["upper"], found["slices"]["c"]) == (None, {"n": 0, "control": None})
