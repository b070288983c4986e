from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.errors import RecipeError
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.order.order import Order


def _params(total: int = 8 * 100, **changes: object) -> Mixture:
    phases = (
        Phase(name="main", fraction=0.8, weights={"web": 3.0, "code": 1.0}),
        Phase(name="anneal", fraction=0.2, weights={"web": 0.5, "code": 0.5}),
    )
    base = Mixture(sequence_tokens=8, total_tokens=total, phases=phases, block_sequences=20)
    return base.model_copy(update=changes)


def test_counts_by_hand() -> None:
    # 100 sequences: 80 in four blocks of 15 web + 5 code, then 20 in one block of 10 + 10.
    stats = mixture.plan(_params(), {"web": 50, "code": 40})
    main, anneal = stats["phases"]
    assert (main["first"], main["sequences"], main["blocks"]) == (0, 80, 4)
    assert main["block_totals"] == {"code": 20, "web": 60}
    assert (anneal["first"], anneal["counts"]) == (80, {"code": 10, "web": 10})
    assert stats["buckets"]["web"] == {"sequences": 50, "needed": 70, "epochs": 1.4, "max_epochs": 4.0}
    assert stats["buckets"]["code"] == {"sequences": 40, "needed": 30, "epochs": 0.75, "max_epochs": 4.0}


def test_what_does_not_divide_is_rounded_and_adds_up() -> None:
    # 103 sequences of 8 (and 5 tokens that fill none): 82 and 21; tails of 2 and 1.
    stats = mixture.plan(_params(total=8 * 103 + 5), {"web": 50, "code": 40})
    main, anneal = stats["phases"]
    assert (main["sequences"], anneal["sequences"]) == (82, 21)
    assert (main["tail"], anneal["tail"]) == ({"code": 1, "web": 1}, {"code": 1, "web": 0})
    assert stats["tokens"] == 824


@given(
    weights=st.lists(st.integers(0, 50).map(float), min_size=1, max_size=5).filter(any),
    sequences=st.integers(1, 400),
    block=st.integers(1, 64),
)
def test_phases_realise_their_weights(weights: list[float], sequences: int, block: int) -> None:
    phase = Phase(name="p", fraction=1.0, weights={f"b{i}": weight for i, weight in enumerate(weights)})
    params = Mixture(
        sequence_tokens=8, total_tokens=8 * sequences, phases=(phase,), block_sequences=block, max_epochs=1e9
    )
    (made,) = mixture.plan(params, dict.fromkeys(phase.weights, 10))["phases"]
    assert sum(made["counts"].values()) == sequences
    assert sum(made["tail"].values()) == sequences % block
    assert min(made["tail"].values()) >= 0
    exact = {name: sequences * weight / sum(weights) for name, weight in phase.weights.items()}
    errors = [abs(made["counts"][name] - exact[name]) for name in exact]
    assert max(errors) < 2
    if all(sequences % block * weight / sum(weights) >= 2 for weight in weights):
        assert max(errors) < 1


def test_too_many_epochs_names_every_bucket_with_its_numbers() -> None:
    with pytest.raises(RecipeError) as caught:
        mixture.plan(_params(max_epochs=1.0), {"web": 50, "code": 7})
    assert "code, web" in caught.value.what
    assert caught.value.found == (
        "code: 30 sequences needed, 7 available = 4.29 epochs; web: 70 sequences needed, 50 available = 1.40 epochs"
    )


def test_epochs_may_reach_the_bound() -> None:
    assert mixture.plan(_params(max_epochs=1.4), {"web": 50, "code": 40})["buckets"]["web"]["epochs"] == 1.4


def test_a_weighted_bucket_without_sequences_is_refused() -> None:
    with pytest.raises(RecipeError, match="repeats code"):
        mixture.plan(_params(), {"web": 50, "code": 0})


def test_a_phase_without_sequences_is_refused() -> None:
    with pytest.raises(RecipeError, match="anneal would have no sequence"):
        mixture.plan(_params(total=8 * 2), {"web": 50, "code": 40})


def test_run_measures_and_order_obeys(ctx: Context, made: SimpleNamespace) -> None:
    _, _, shards = made.pipeline(
        ctx, {"web": [made.texts(1, 60)], "code": [made.texts(2, 40)], "spare": [made.texts(3, 9)]}
    )
    result = mixture.run(ctx, _params(), shards)
    assert list(result.inputs) == ["code/shards", "web/shards"]  # a bucket without weight is not an input
    assert result.inputs["web/shards"] == shards["web"].digest
    order = Order(result)
    window = order.window(0, 80)
    assert [(window.streams == number).sum() for number in range(2)] == [20, 60]
    rows = {(row["phase"], row["bucket"]): row for row in mixture.rows(result)}
    assert rows["main", "web"]["share"] == rows["main", "web"]["weight"] == 0.75
    assert rows["main", "web"]["share_error"] == 0
    packing = result.stats["buckets"]["web"]["packing"]
    assert (
        packing["sequences"] == result.stats["buckets"]["web"]["sequences"] == (shards["web"].stats["tokens"] - 1) // 8
    )
    overall = result.stats["packing"]
    own = {b: result.stats["buckets"][b] for b in ("web", "code")}
    starts = sum(b["needed"] / 100 * b["packing"]["starts"] / b["packing"]["targets"] for b in own.values())
    assert overall["start_share"] == pytest.approx(starts)
    assert overall["dropped_tokens"] == sum(b["packing"]["dropped"] for b in own.values())
    assert (overall["r_pad"], overall["padding_share"], overall["masked_share"]) == (0, 0, 0)


def test_a_weight_of_zero_leaves_a_bucket_unused(ctx: Context, made: SimpleNamespace) -> None:
    _, _, shards = made.pipeline(ctx, {"web": [made.texts(1, 60)], "code": [made.texts(2, 40)]})
    phase = Phase(name="main", fraction=1.0, weights={"web": 1.0, "code": 0.0})
    result = mixture.run(ctx, _params(phases=(phase,), total_tokens=8 * 50), shards)
    assert list(result.stats["buckets"]) == ["web"]


def test_the_weight_of_a_bucket_that_ended_empty_goes_to_the_others(ctx: Context, made: SimpleNamespace) -> None:
    _, _, shards = made.pipeline(ctx, {"web": [made.texts(1, 60)], "code": [[]]})
    result = mixture.run(ctx, _params(total_tokens=8 * 50), shards)
    assert result.stats["empty"] == ["code"]
    assert list(result.inputs) == ["code/shards", "web/shards"]  # text in it would change the mixture
    assert {name: own["needed"] for name, own in result.stats["buckets"].items()} == {"web": 50}
    alone = Phase(name="anneal", fraction=1.0, weights={"code": 1.0})
    with pytest.raises(RecipeError, match=r"phases.anneal has no text[\s\S]*code have no tokens"):
        mixture.run(ctx, _params(phases=(alone,)), shards)


def test_a_bucket_without_shards_is_named(ctx: Context, made: SimpleNamespace) -> None:
    _, _, shards = made.pipeline(ctx, {"web": [made.texts(1, 60)]})
    with pytest.raises(RecipeError, match=r"\['code'\] have weights but no shards"):
        mixture.run(ctx, _params(), shards)


@pytest.mark.parametrize("weights", [{}, {"web": 0.0}, {"web": -1.0}, {"web": float("nan")}, {"web": float("inf")}])
def test_weights_that_are_no_weights_are_refused(weights: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        Phase(name="p", fraction=1.0, weights=weights)
