"""Which held-out documents are measured."""

from collections.abc import Callable

import pytest

from plinth.compute.context import Context
from plinth.errors import StageError
from plinth.evaluation.slices.choice import choose_documents
from plinth.records import Manifest

Curated = Callable[..., Manifest]


def test_takes_all_by_id_when_they_fit(ctx: Context, curated: Curated) -> None:
    made = {"b": curated("b", ["never this"], ["one", "two"], ["three"]), "a": curated("a", [], ["vier"])}
    found = choose_documents(ctx.store, made, 1000)
    assert [each.bucket for each in found] == ["a", "b", "b", "b"]
    assert sorted(each.text for each in found) == ["one", "three", "two", "vier"]
    assert [each.id for each in found[1:]] == sorted(each.id for each in found[1:])


@pytest.mark.parametrize("limit", range(4, 40))
def test_holds_exactly_the_limit_up_to_one_character(ctx: Context, curated: Curated, limit: int) -> None:
    texts = ["äöü", "12345", "größe", "x", "日本語"]
    found = choose_documents(ctx.store, {"b": curated("b", [], texts)}, limit)
    whole = sorted(choose_documents(ctx.store, {"b": curated("b", [], texts)}, 10**6), key=lambda each: each.id)
    joined, kept = "".join(each.text for each in whole), "".join(each.text for each in found)
    assert joined.startswith(kept)
    assert limit - 3 < len(kept.encode()) <= limit or kept == joined


def test_does_not_depend_on_how_parts_are_cut(ctx: Context, curated: Curated) -> None:
    texts = [f"document {i}" for i in range(30)]
    one = choose_documents(ctx.store, {"b": curated("b", [], texts)}, 100)
    many = choose_documents(ctx.store, {"b": curated("b", [], texts[20:], texts[:3], texts[3:20])}, 100)
    assert one == many


def test_a_bucket_without_held_out_text_is_named(ctx: Context, curated: Curated) -> None:
    with pytest.raises(StageError, match="bucket empty has no held-out text"):
        choose_documents(ctx.store, {"empty": curated("empty", ["train"]), "b": curated("b", [], ["x"])}, 100)
