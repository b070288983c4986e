"""The page of an impact: the graph leads to the right, nothing is loaded, foreign names stay text."""

from __future__ import annotations

from typing import Any

import pytest

from plinth.provenance.impact import AssetLink, Descendant, ImpactOrigin
from plinth_registry import impact_page as page
from plinth_registry.consumers import ConsumerRow, Impact, VersionRow
from plinth_registry.impact_page import ImpactBox, columns, grouped, impact_page


def impact(target: str, assets: tuple[str, ...] = ("a",), **more: Any) -> Impact:
    """An impact of a source with one manifest of each asset."""
    manifests = tuple(Descendant(name, "d" * 64, steps, "published") for steps, name in enumerate(assets))
    given = {"links": (), "runs": (), "versions": (), **more}
    return Impact(origin=ImpactOrigin(kind="source", target=target, digests=()), manifests=manifests, **given)


def boxes(*names: str) -> list[ImpactBox]:
    return [ImpactBox(name=name, manifests=2, published=1, origin=name == names[0]) for name in names]


def arrows(*pairs: str) -> list[AssetLink]:
    return [AssetLink(*pair.rsplit(">", 1), 3) for pair in pairs]


def test_a_box_stands_right_of_all_that_it_was_made_of() -> None:
    links = arrows("a>b", "a>c", "b>c", "c>d", "a>d")
    assert columns(boxes("a", "b", "c", "d"), links) == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_a_circle_of_versions_ends() -> None:
    assert set(columns(boxes("a", "b"), arrows("a>b", "b>a", "b>b"))) == {"a", "b"}


def test_many_assets_are_one_box_by_stage() -> None:
    names = [f"b{n}/{stage}" for n in range(3) for stage in ("curated", "shards")] + ["mixture"]
    links = arrows(*(f"b{n}/curated>b{n}/shards" for n in range(3)), *(f"b{n}/shards>mixture" for n in range(3)))
    assert grouped(boxes(*names), links, most=7) == (boxes(*names), links)
    drawn, joined = grouped(boxes(*names), links, most=6)
    assert {box.name: (box.manifests, box.published, box.origin) for box in drawn} == {
        "*/curated": (6, 3, True), "*/shards": (6, 3, False), "mixture": (2, 1, False)
    }  # fmt: skip
    assert [(arrow.source, arrow.target, arrow.manifests) for arrow in joined] == [
        ("*/curated", "*/shards", 9), ("*/shards", "mixture", 9)
    ]  # fmt: skip


def test_the_page_names_versions_consumers_and_gaps_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "<script>alert(1)</script>$x$"
    found = impact(
        hostile,
        (hostile, "b"),
        marks=("web is marked by ada: withdrawn",),
        gaps=("MLflow does not run",),
        links=tuple(arrows(f"{hostile}>b")),
        versions=(VersionRow(model="demo", version="3", checkpoint="c" * 64, aliases=("champion",)),),
        consumers=(ConsumerRow(name="search", owner="ops@example.org", uses="demo@champion"),),
    )
    monkeypatch.setattr(page, "LISTED", 1)
    made = impact_page(found)
    assert made == impact_page(found)
    assert "<script" not in made
    for text in ("withdrawn", "MLflow does not run", "champion", "ops@example.org", "1 more manifests are", "<svg"):
        assert text in made
    assert not any(text in made.replace("http://www.w3.org", "") for text in ("http://", "https://", "src=", "@import"))
