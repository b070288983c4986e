"""Claims of a release about its text are counted from the text: declared terms of every source that entered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.corpus import curate
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from tests.document_rows import document_part

GRANTED = {"train": True, "redistribute": True, "commercial": True}


def source(domain: str, **refused: bool) -> dict[str, Any]:
    return {"domain": domain, "snapshot": "2026-46", "terms": GRANTED | refused}


def curated(ctx: Context, *domains: str) -> Manifest:
    origins = ({"snapshot": "2026-46", "extra": json.dumps({"domain": domain})} for domain in domains)
    part = document_part(ctx, ({"text": "x", **origin} for origin in origins))
    return Manifest(asset="b/curated", step="s", version="1", params={}, inputs={}, parts=(part,))


def documents(*sources: dict[str, Any]) -> Manifest:
    return Manifest(asset="b/documents", step="s", version="1", params={"sources": list(sources)}, inputs={}, parts=())


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path).ensure())


def test_every_declared_term_of_every_source_with_what_entered(ctx: Context) -> None:
    read = {"a": documents(source("x.example"), source("y.example", commercial=False)), "b": documents(source("z"))}
    text = {"a": curated(ctx, "x.example", "y.example", "x.example"), "b": curated(ctx)}
    assert curate.terms(ctx.store, read, text) == {
        "x.example 2026-46": {"documents": 2, **GRANTED},
        "y.example 2026-46": {"documents": 1, **GRANTED, "commercial": False},
        "z 2026-46": {"documents": 0, **GRANTED},
    }


def test_of_two_sources_that_cannot_be_told_apart_the_stricter_terms_hold(ctx: Context) -> None:
    read = {"a": documents(source("x", redistribute=False), source("x", commercial=False), source("x"))}
    assert curate.terms(ctx.store, read, {"a": curated(ctx, "x")}) == {
        "x 2026-46": {"documents": 1, "train": True, "redistribute": False, "commercial": False}
    }


def test_text_of_a_source_that_nobody_declared_grants_nothing(ctx: Context) -> None:
    found = curate.terms(ctx.store, {"a": documents(source("x"))}, {"a": curated(ctx, "x", "stranger")})
    assert found["stranger 2026-46"] == {"documents": 1, "train": False, "redistribute": False, "commercial": False}


@pytest.mark.parametrize("terms", [{}, {"train": None}, {"train": "yes"}, {"train": 1}])
def test_terms_that_are_not_declared_as_true_are_not_granted(ctx: Context, terms: dict[str, Any]) -> None:
    read = {"a": documents({"domain": "x", "snapshot": "2026-46", "terms": terms})}
    assert curate.terms(ctx.store, read, {"a": curated(ctx, "x")})["x 2026-46"]["train"] is False
