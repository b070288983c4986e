"""Keys, shares, curricula and bounds, by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from pydantic import ValidationError

from plinth.errors import RecipeError
from plinth.tokens.mixture import mixture, parameters
from plinth.tokens.mixture.parameters import Curriculum, Mixture, Phase
from plinth.tokens.mixture.weights import legs, shares_at_ends, streams_by_key, used_streams

TEXT = {
    "code": 100,
    "web/language=de,tier=high": 50,
    "web/language=de,tier=low": 150,
    "web/language=en,tier=high": 100,
    "web/language=en,tier=low": 600,
    "web/other": 0,
}
F = Fraction


def phase(**fields: Any) -> Phase:
    return Phase(**{"name": "p", "fraction": 1.0, **fields})


def shares(text: dict[str, int] = TEXT, size: int = 1000, **fields: Any) -> dict[str, Fraction]:
    start, end = shares_at_ends(phase(**fields), text, size, 8)
    assert sum(start.values()) == sum(end.values()) == 1
    return {name: share for name, share in start.items() if share}


def test_a_stream_takes_the_most_precise_key() -> None:
    listed = ["web", "web/language=de", "web/language=de,tier=high", "tier=low", "web/other", "code"]
    assert streams_by_key("w", listed, sorted(TEXT)) == {
        "web": ["web/language=en,tier=high"],
        "web/language=de": ["web/language=de,tier=low"],
        "web/language=de,tier=high": ["web/language=de,tier=high"],
        "tier=low": ["web/language=en,tier=low"],
        "web/other": ["web/other"],
        "code": ["code"],
    }


def test_a_key_is_divided_by_text() -> None:
    found = shares(weights={"web/language=de": 1.0, "tier=low": 2.0, "code": 1.0})
    # `web/language=de` and `tier=low` name the same stream; the one with the bucket is more precise
    assert found == {
        "code": F(1, 4),
        "web/language=de,tier=high": F(1, 4) * F(50, 200),
        "web/language=de,tier=low": F(1, 4) * F(150, 200),
        "web/language=en,tier=low": F(1, 2),
    }


def test_natural_is_everything_by_text_and_zero_leaves_out() -> None:
    assert shares(weights="natural") == {name: F(count, 1000) for name, count in TEXT.items() if count}
    assert shares(weights={"*": 1.0, "web": 0.0}) == {"code": 1}


def test_upsampling_multiplies() -> None:
    assert shares({"code": 100, "web": 300}, weights="natural", upsample={"code": 3.0}) == {
        "code": F(1, 2),
        "web": F(1, 2),
    }


def test_temperature_over_streams_and_over_languages() -> None:
    found = shares({"a": 100, "b": 900}, weights="natural", temperature=0.5)
    assert float(found["a"]) == pytest.approx(0.1**0.5 / (0.1**0.5 + 0.9**0.5), rel=1e-11)
    assert set(shares({"a": 100, "b": 900}, weights="natural", temperature=0.0).values()) == {F(1, 2)}
    by_language = shares(weights={"web": 1.0}, temperature=0.0, temperature_over="language")
    german = by_language["web/language=de,tier=high"] + by_language["web/language=de,tier=low"]
    assert german == F(1, 2)
    assert by_language["web/language=de,tier=low"] == F(3, 4) * F(1, 2)  # within a language nothing changes


def test_epochs_and_tokens_come_first() -> None:
    found = shares(
        {"code": 100, "books": 40, "web": 10_000}, epochs={"code": 2.0}, tokens={"books": 80.0}, weights={"web": 1.0}
    )
    assert found == {"code": F(200, 1000), "books": F(10, 1000), "web": F(790, 1000)}
    alone = shares({"code": 100, "web": 805}, size=1000, epochs={"code": 2.0, "web": 1.0})
    assert alone == {"code": F(200, 1005), "web": F(805, 1005)}


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"epochs": {"code": 2.0, "web": 1.0}}, "8,800 tokens requested"),
        ({"epochs": {"code": 50.0}, "weights": {"web": 1.0}}, "40,000 tokens requested"),
        ({"weights": {"wbe": 1.0}}, "did you mean `web`"),
        ({"weights": {"tier=hihg": 1.0}}, "did you mean `tier=high`"),
        ({"weights": {"language=de": 1.0, "tier=low": 1.0}}, "both name web/language=de,tier=low"),
        ({"weights": {"web/": 1.0}}, "is neither a bucket, nor"),
        ({"weights": "natural", "upsample": {"math": 2.0}}, "upsample: no stream is named math"),
    ],
    ids=["short", "long", "bucket", "value", "ambiguous", "malformed", "upsample"],
)  # fmt: skip
def test_what_does_not_fit_is_named(fields: dict[str, Any], what: str) -> None:
    asked = phase(**fields)
    with pytest.raises(RecipeError) as caught:
        used_streams([asked], sorted(TEXT)) and shares_at_ends(asked, TEXT, 1000, 8)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"to_weights": {"web": 1.0}},
        {"weights": {"web": 1.0}, "epochs": {"web": 1.0}},
        {"weights": {"web": 1.0}, "to_weights": {"web": 1.0}, "curriculum": {"by": "tier", "order": ("a", "b")}},
        {"weights": {"web": 1.0}, "temperature": 5.0},
    ],
    ids=["nothing", "end only", "twice", "ramp and curriculum", "temperature"],
)
def test_phases_that_say_nothing_or_too_much_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        phase(**fields)


def test_keys_of_a_recipe() -> None:
    buckets, axes = ["web", "code"], ["language", "tier"]
    assert list(parameters.problems("web/language=de", buckets, axes)) == []
    assert list(parameters.problems("*", buckets, axes)) == []
    assert list(parameters.problems("cod", buckets, axes)) == ["no bucket 'cod'; did you mean `code`?"]
    assert list(parameters.problems("langage=de", buckets, axes)) == [
        "shards.axes has no axis 'langage'; did you mean `language`?"
    ]


def test_quality_first_moves_text_and_keeps_amounts() -> None:
    plan = Curriculum(by="tier", order=("high", "low"))
    (leg,) = legs(phase(weights="natural", curriculum=plan), 0, 1000, TEXT, 8)
    assert leg.middle == {name: F(count, 1000) for name, count in TEXT.items()}
    high = [name for name in TEXT if "tier=high" in name]
    assert sum(leg.end[name] for name in high) == 0  # strength 1: all of the best comes first
    assert sum(leg.start[name] for name in high) == F(300, 1000)
    assert leg.start["code"] == leg.end["code"] == F(100, 1000)  # it has no tier


def test_a_curriculum_of_unknown_values_is_refused() -> None:
    plan = Curriculum(by="tier", order=("hgih", "low"))
    with pytest.raises(RecipeError, match="did you mean `high`"):
        legs(phase(weights="natural", curriculum=plan), 0, 1000, TEXT, 8)


def _plan(available: dict[str, int], **fields: Any) -> dict[str, Any]:
    phases = fields.pop("phases", None) or (phase(weights={"a": 2.0, "b": 1.0, "c": 1.0}),)
    params = Mixture(
        **{"sequence_tokens": 8, "total_tokens": 8 * 400, "phases": phases, "block_sequences": 20, **fields}
    )
    return mixture.plan(params, available)


def test_a_cap_gives_the_rest_to_the_others_by_weight() -> None:
    made = _plan({"a": 50, "b": 900, "c": 900}, max_epochs=2.0, over_cap="redistribute")
    assert {name: own["needed"] for name, own in made["buckets"].items()} == {"a": 100, "b": 150, "c": 150}
    assert made["capped"] == {"a": 100.0}
    assert made["buckets"]["a"]["epochs"] == 2.0


def test_water_rises_until_every_stream_is_within_its_own_bound() -> None:
    made = _plan({"a": 50, "b": 60, "c": 900}, max_epochs=9.0, epoch_caps={"a": 1.0, "b": 2.0}, over_cap="redistribute")
    assert {name: own["needed"] for name, own in made["buckets"].items()} == {"a": 50, "b": 120, "c": 230}
    assert [own["max_epochs"] for own in made["buckets"].values()] == [1.0, 2.0, 9.0]


def test_a_capped_stream_keeps_its_course_over_phases() -> None:
    phases = (
        phase(name="main", fraction=0.75, weights={"a": 1.0, "b": 3.0}),
        phase(name="anneal", fraction=0.25, weights={"a": 3.0, "b": 1.0}),
    )
    made = _plan({"a": 75, "b": 999}, phases=phases, max_epochs=1.0, over_cap="redistribute")
    main, anneal = made["phases"]
    # Asked were 75 and 75, halved in both; whole counts stay below the bound.
    assert (main["counts"]["a"], anneal["counts"]["a"]) == (37, 37)


def test_without_text_anywhere_it_is_refused_and_says_what_would_do() -> None:
    with pytest.raises(RecipeError, match="reach their epoch limits") as caught:
        _plan({"a": 50, "b": 60, "c": 70}, max_epochs=1.0, over_cap="redistribute")
    assert "about 1,760 tokens are missing" in str(caught.value)
    with pytest.raises(RecipeError, match="repeats a more often") as caught:
        _plan({"a": 50, "b": 900, "c": 900}, max_epochs=2.0)
    assert "add 400 tokens of text, multiply its weights by 0.5" in str(caught.value)
    assert "mixture.total_tokens to 1,600" in str(caught.value)
