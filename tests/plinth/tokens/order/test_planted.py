"""Planted copies through tokens, packing, mixture and order, against the batches that a run reads."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.compute.engine import InlineEngine
from plinth.corpus import planted_canaries
from plinth.corpus.canaries import BUCKET, Canaries
from plinth.errors import RecipeError, TrainingError
from plinth.model.parameters import Model
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace
from plinth.tokens import packing as packed
from plinth.tokens.mixture import apportion, mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.batch import DrawnCopy, draws, require_drawn, seen_through
from plinth.tokens.order.order import Order
from plinth.tokens.order.steps import LengthChange, constant, schedule
from plinth.tokens.packing_layout import open_layouts
from plinth.tokens.reading.loader import Loader
from plinth.tokens.shards import shards
from plinth.tokens.shards.parameters import Shards
from plinth.tokens.shards.reader import open_streams
from plinth.tokens.tokenizer import encode, tokenizer
from plinth.tokens.tokenizer.parameters import TokenizerParameters
from plinth.tokens.tokenizer.vocabulary import lexis_of
from plinth.training import preparation
from plinth.training.parameters.run import Training
from tests.document_rows import document_part

SEQUENCE, SEQUENCES, BATCH = 64, 1600, 8
Packing = Literal["concatenate", "best-fit"]


class Planted(NamedTuple):
    ctx: Context
    canaries: Manifest
    shards: dict[str, Manifest]
    packed: dict[str, Manifest]
    tokenizer: Manifest
    packing: Packing

    def mixed(self, **fields: Any) -> Manifest:
        weights = {"web": 2.0, "code": 1.0}
        phases = fields.pop("phases", (Phase(name="first", fraction=0.6, weights={"*": 1}),
                                       Phase(name="last", fraction=0.4, weights=weights)))  # fmt: skip
        params = Mixture(
            sequence_tokens=SEQUENCE, total_tokens=SEQUENCE * SEQUENCES, packing=self.packing, phases=phases,
            block_sequences=32, max_epochs=1e6, **fields,
        )  # fmt: skip
        index = self.packed if self.packing == "best-fit" else None
        made = mixture.run(self.ctx, params, self.shards, index, [BUCKET])
        self.ctx.refs.save(made)
        return made


def _curated(ctx: Context, bucket: str) -> Manifest:
    rng, syllables = random.Random(bucket), [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    texts = (" ".join("".join(rng.choices(syllables, k=3)) for _ in range(40)) for _ in range(40))
    part = document_part(ctx, ({"text": text, "uri": f"{bucket}/{n}"} for n, text in enumerate(texts)))
    made = Manifest(asset=f"{bucket}/curated", step="made", version="1", params={}, inputs={}, parts=(part,))
    ctx.refs.save(made)
    return made


@pytest.fixture(scope="module", params=["concatenate", "best-fit"])
def planted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Two buckets and eight canaries in shards, under a real tokenizer."""
    packing: Packing = request.param
    ctx = Context(Workspace(tmp_path_factory.mktemp("planted") / "workspace").ensure(), InlineEngine())
    texts = {bucket: _curated(ctx, bucket) for bucket in ("web", "code")}
    trained = tokenizer.run(ctx, TokenizerParameters(vocab_size=320), texts)
    lexis = lexis_of(ctx.store, trained)
    params, concatenated = Canaries(count=8, references=128), packing == "concatenate"
    canaries = planted_canaries.run(ctx, params, trained, lexis, sequence_tokens=SEQUENCE, concatenated=concatenated)
    cut = {
        name: shards.run(ctx, name, Shards(tokens_per_shard=3000), trained, made)
        for name, made in (texts | {BUCKET: canaries}).items()
    }
    index = {} if concatenated else {name: packed.run(ctx, name, SEQUENCE, made) for name, made in cut.items()}
    for made in (trained, canaries, *cut.values(), *index.values()):
        ctx.refs.save(made)
    return Planted(ctx, canaries, cut, index, trained, packing)


def test_every_copy_is_drawn_once_and_whole(planted: Planted) -> None:
    mixed = planted.mixed()
    own = mixed.stats["buckets"][BUCKET]
    assert own["needed"] == own["sequences"]
    assert own["max_epochs"] == 1.0
    assert mixed.stats["planted"] == [BUCKET]
    copies = draws(planted.ctx, mixed, planted.shards[BUCKET], planted.canaries, constant(SEQUENCES, SEQUENCE, BATCH))
    require_drawn(copies)
    assert len(copies) == planted.canaries.stats["copies"]
    assert {len(one.steps) for one in copies} == {1}
    counts = Counter(one.canary for one in copies)
    table = planted_canaries.table(planted.ctx.store, planted.canaries).to_pylist()
    assert counts == {row["number"]: row["repetitions"] for row in table if row["planted"]}


def test_the_loss_sees_the_tokens_at_those_steps(planted: Planted) -> None:
    """The batches that a rank reads hold each copy as scored targets, at the step that was worked out."""
    mixed, ctx = planted.mixed(), planted.ctx
    steps = constant(SEQUENCES, SEQUENCE, BATCH)
    copies = draws(ctx, mixed, planted.shards[BUCKET], planted.canaries, steps)
    (part,) = planted.canaries.named("part-")
    readers = open_streams(ctx.store, planted.shards)
    layouts = open_layouts(ctx.store, ctx.refs.load, mixed, {name: one.tokens for name, one in readers.items()})
    loader = Loader(Order(mixed), readers, layouts, global_batch=steps, micro_batch=BATCH, rank=0, world=1)
    targets = {}
    for share in loader.batches(0, steps.total):
        expanded = share.micro_batch(0, BATCH).expanded()
        tokens = expanded.tokens[:, 1:].astype(np.int64)
        targets[share.step + 1] = np.where(expanded.scored, tokens, -1) if expanded.scored is not None else tokens
    texts = dict(zip(planted_canaries.planted_documents(ctx.store, planted.canaries),
                     read_table(ctx.store, part, ["text"])["text"].to_pylist(), strict=True))  # fmt: skip
    file = encode.load(ctx.store, planted.tokenizer.named("tokenizer.json")[0].blob)
    for one in copies:
        wanted = np.array(next(encode.encode_texts(file, [texts[one.canary, one.copy]], "<u4")), np.int64)
        found = [
            int((np.lib.stride_tricks.sliding_window_view(targets[step], len(wanted), axis=1) == wanted).all(-1).sum())
            for step in one.steps
        ]
        assert min(found) >= 1


def test_text_keeps_the_shares_of_a_run_without_canaries(planted: Planted) -> None:
    mixed = planted.mixed()
    plain = {name: made for name, made in planted.shards.items() if name != BUCKET}
    index = {name: made for name, made in planted.packed.items() if name != BUCKET} or None
    params = Mixture.model_validate(mixed.params)
    alone = mixture.run(planted.ctx, params, plain, index)
    assert alone == mixture.run(planted.ctx, params, plain, index, [])
    assert "planted" not in alone.stats
    text = SEQUENCES - mixed.stats["buckets"][BUCKET]["needed"]
    for name in ("web", "code"):
        rate = mixed.stats["buckets"][name]["needed"] / text
        assert rate == pytest.approx(alone.stats["buckets"][name]["needed"] / SEQUENCES, abs=3 / SEQUENCES)
    assert mixed.stats["realised"]["within"]
    assert mixed.stats["packing"]["r_pad"] == pytest.approx(alone.stats["packing"]["r_pad"], abs=0.01)


def test_canaries_are_spread_over_the_run(planted: Planted) -> None:
    order = Order(planted.mixed())
    own = order.streams.index(BUCKET)
    where = np.flatnonzero(order.drawn(np.arange(SEQUENCES))[0] == own)
    halves = np.histogram(where, bins=4, range=(0, SEQUENCES))[0]
    assert halves.min() >= len(where) / 4 - 3


def test_a_ramp_draws_all_of_them_too(planted: Planted) -> None:
    phases = (
        Phase(name="ramp", fraction=0.5, weights={"web": 1, "code": 3}, to_weights={"web": 3, "code": 1}),
        Phase(name="rest", fraction=0.5, weights={"web": 1}),
    )
    mixed = planted.mixed(phases=phases)
    copies = draws(planted.ctx, mixed, planted.shards[BUCKET], planted.canaries, constant(SEQUENCES, SEQUENCE, BATCH))
    require_drawn(copies)
    assert sum(leg["counts"][BUCKET] for leg in mixed.stats["phases"]) == mixed.stats["buckets"][BUCKET]["needed"]
    assert apportion.shares_over_run(mixed.stats)


def test_what_gets_no_loss_is_refused_by_name(planted: Planted) -> None:
    mixed = planted.mixed()
    short = constant(SEQUENCES, SEQUENCE, 1100)  # the last 500 sequences fill no step
    with pytest.raises(TrainingError, match="would receive no loss") as refused:
        require_drawn(draws(planted.ctx, mixed, planted.shards[BUCKET], planted.canaries, short))
    assert "its sequence is not part of a whole step" in str(refused.value)
    assert "canary " in str(refused.value)


def test_rows_that_cut_copies_are_refused(planted: Planted) -> None:
    mixed = planted.mixed()
    halved = schedule(SEQUENCES, SEQUENCE, BATCH, (), (LengthChange(from_step=1, sequence_tokens=8),))
    copies = draws(planted.ctx, mixed, planted.shards[BUCKET], planted.canaries, halved)
    with pytest.raises(TrainingError, match=f"{len(copies)} canary copies") as refused:
        require_drawn(copies)
    assert "a row ends in the middle of the copy" in str(refused.value)


def test_a_run_starts_only_when_all_are_drawn(planted: Planted) -> None:
    shape = Model(layers=1, dim=16, heads=2, kv_heads=1, ffn_dim=16)
    args = (planted.mixed(), planted.shards, planted.tokenizer, None, planted.canaries)
    made = preparation.prepare(planted.ctx, "good", Training(model=shape, global_batch_sequences=BATCH), *args)
    assert made.provenance["canaries"]["manifest"] == planted.canaries.digest
    with pytest.raises(TrainingError, match="would receive no loss"):
        preparation.prepare(planted.ctx, "bad", Training(model=shape, global_batch_sequences=748), *args)
    assert not any(run.name.startswith("bad") for run in planted.ctx.workspace.runs.iterdir())


def test_canaries_that_would_take_the_run_over_are_refused(planted: Planted) -> None:
    params = Mixture.model_validate(planted.mixed().params)
    short = params.model_copy(update={"total_tokens": SEQUENCE * 100})
    with pytest.raises(RecipeError, match="would take"):
        mixture.run(planted.ctx, short, planted.shards, planted.packed or None, [BUCKET])


def test_seen_copies_end_at_the_step_and_leave_out_skipped_ones() -> None:
    copies = [DrawnCopy(3, 0, (5,)), DrawnCopy(3, 1, (9,)), DrawnCopy(4, 0, (2, 7))]
    assert seen_through(copies, 7) == {3: 1, 4: 2}
    assert seen_through(copies, 9, [5, 2]) == {3: 1, 4: 1}
