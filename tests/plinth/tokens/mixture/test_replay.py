"""The parent's text among a run's own: by lineage, in exact counts, refused by name where it is gone or another."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.errors import MissingError, RecipeError
from plinth.provenance.statements import chain
from plinth.records import Manifest
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.batch import documents_of_step
from plinth.tokens.order.steps import schedule
from plinth.training import initial as beginning
from plinth.training.parameters.initial import InitialWeights

SEQUENCES = 200


def recipe(**weights: float) -> Mixture:
    phases = (Phase(name="early", fraction=0.5, weights=weights), Phase(name="late", fraction=0.5, weights=weights))
    return Mixture(sequence_tokens=8, total_tokens=8 * SEQUENCES, phases=phases, block_sequences=20, max_epochs=50.0)


def saved(ctx: Context, asset: str, **inputs: Manifest | str) -> Manifest:
    digests = {name: one if isinstance(one, str) else one.digest for name, one in inputs.items()}
    made = Manifest(asset=asset, step=asset, version="1", params={}, inputs=digests, parts=())
    ctx.refs.save(made)
    return made


@pytest.fixture
def parent(ctx: Context, made: SimpleNamespace) -> SimpleNamespace:
    """A parent on two buckets, three parts to one, and what began from it."""
    trained, curated, shards = made.pipeline(ctx, {"web": [made.texts(1, 40)], "code": [made.texts(2, 40)]})
    own = mixture.run(ctx, recipe(web=3, code=1), shards)
    for one in (trained, own, *curated.values(), *shards.values()):
        ctx.refs.save(one)
    checkpoint = saved(ctx, "checkpoint", run=saved(ctx, "run", mixture=own, tokenizer=trained))
    initial = saved(ctx, "initial", checkpoint=checkpoint)
    return SimpleNamespace(tokenizer=trained, shards=shards, mixture=own, initial=initial, checkpoint=checkpoint)


def test_the_share_is_exact_along_the_run_and_as_the_parent_had_it(ctx: Context, parent: Any) -> None:
    found = beginning.of_parent(ctx, parent.initial, parent.tokenizer)
    asked = found.sequences(0.2, SEQUENCES)
    assert asked == {"replay-code": 10, "replay-web": 30}
    child = mixture.run(ctx, recipe(web=1), parent.shards | found.shards, None, (), asked)
    assert [row["counts"] for row in child.stats["phases"]] == [{"replay-code": 5, "replay-web": 15, "web": 80}] * 2
    for block in (row["block_totals"] for row in child.stats["phases"]):
        assert block == {"replay-code": 5, "replay-web": 15, "web": 80}
    assert beginning.shards_of(ctx, saved_all(ctx, child, found)) == found.shards
    steps = schedule(SEQUENCES, 8, 20)
    seen = [documents_of_step(ctx, child, parent.shards | found.shards, step, steps) for step in range(10)]
    drawn = Counter(one.sequence.stream for step in seen for one in step)
    assert drawn == {"replay-code": 10, "replay-web": 30, "web": 160}
    assert all(one.documents for step in seen for one in step)


def saved_all(ctx: Context, child: Manifest, found: beginning.ReplayedText) -> Manifest:
    for one in (child, *found.shards.values()):
        ctx.refs.save(one)
    return child


def test_a_mixture_without_replay_is_what_it_was(ctx: Context, parent: Any) -> None:
    assert mixture.run(ctx, recipe(web=3, code=1), parent.shards, None, (), {}).digest == parent.mixture.digest
    assert "replay" not in InitialWeights(checkpoint="x").model_dump()


def test_the_chain_has_the_parents_shards_and_calls_them_the_parents(ctx: Context, parent: Any) -> None:
    found = beginning.of_parent(ctx, parent.initial, parent.tokenizer)
    child = saved_all(
        ctx,
        mixture.run(ctx, recipe(web=1), parent.shards | found.shards, None, (), found.sequences(0.1, SEQUENCES)),
        found,
    )
    outside = Manifest(asset="weights", step="weights", version="1", params={}, inputs={}, parts=())  # a source
    ctx.refs.save(outside)
    run = saved(ctx, "run", mixture=child, initial=parent.initial, teacher=saved(ctx, "teacher", weights=outside))
    links = chain(ctx.refs, run)
    assert {parent.shards["code"].digest, parent.checkpoint.digest} <= links.digests
    own = {link.asset for link in links.own}
    assert {"replay-web/shards", "replay-code/shards", "web/shards"} <= own
    assert "code/shards" not in own  # the parent's, behind what is replayed


def test_what_cannot_be_replayed_is_refused_by_name(ctx: Context, parent: Any, made: SimpleNamespace) -> None:
    other, _, _ = made.pipeline(ctx, {"web": [made.texts(9, 60)]})
    with pytest.raises(RecipeError, match="code was encoded with another tokenizer"):
        beginning.of_parent(ctx, parent.initial, other)
    outside = saved(ctx, "initial", weights=saved(ctx, "weights"))
    with pytest.raises(RecipeError, match="needs initial weights that were trained by a run"):
        beginning.of_parent(ctx, outside, parent.tokenizer)
    few = recipe(web=1).model_copy(update={"max_epochs": 0.001})
    found = beginning.of_parent(ctx, parent.initial, parent.tokenizer)
    asked = found.sequences(0.5, SEQUENCES)
    with pytest.raises(RecipeError, match="replay-code"):
        mixture.run(ctx, few, parent.shards | found.shards, None, (), asked)
    blob = parent.shards["web"].parts[0].blob
    ctx.store.path(blob).unlink()
    with pytest.raises(MissingError, match=r"web/shards of the parent run no longer exists"):
        beginning.of_parent(Context(ctx.workspace), parent.initial, parent.tokenizer)
    (kept,) = ctx.refs.saved(parent.shards["code"].digest)
    (ctx.workspace.manifests / kept.name).unlink()
    with pytest.raises(MissingError, match="code/shards"):
        beginning.of_parent(Context(ctx.workspace), parent.initial, parent.tokenizer)
    with pytest.raises(ValueError, match="with known training text"):
        InitialWeights(folder="x", licence="MIT", replay=0.1)
