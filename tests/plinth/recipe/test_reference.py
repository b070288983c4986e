"""docs/recipe.md is what the models say."""

from __future__ import annotations

import json
import re
from pathlib import Path

from plinth.corpus.annotate.base import ANNOTATORS
from plinth.recipe.recipe import Recipe
from plinth.recipe.reference import _fields, _models, document, keys, schema

PAGE = Path(__file__).resolve().parents[3] / "docs" / "recipe.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(), "stale: run `make docs`"


def test_every_key_is_described() -> None:
    silent = [
        f"{path}.{name}".lstrip(".")
        for path, model in _models(Recipe, "")
        for name, field in _fields(model)
        if not field.description and not hasattr(field.annotation, "model_fields")
    ]
    assert silent == []


def test_every_section_and_annotator_is_there() -> None:
    page = document()
    headings = set(re.findall(r"^#+ `(.+)`$", page, flags=re.MULTILINE))
    assert {"corpus.buckets.NAME.sources[].terms", "mixture.phases[]", "training.checkpoints"} <= headings
    assert {annotator.name for annotator in ANNOTATORS.values()} <= headings
    for annotator in ANNOTATORS.values():
        assert f"`{annotator.name}.{annotator.schema.names[0]}`" in page


def test_links_lead_to_headings() -> None:
    page = document()
    anchors = {re.sub(r"[^a-z0-9_-]", "", title.lower()) for title in re.findall(r"^##+ (.+)$", page, re.MULTILINE)}
    links = re.findall(r"\]\(#([^)]+)\)", page)
    assert len(links) > 15
    assert set(links) <= anchors


def test_the_list_of_keys_does_not_grow_unseen() -> None:
    """Release 0.3 had 476 keys. Raise the number deliberately when you add a key."""
    assert len(keys()) <= 457
    assert len(set(keys())) == len(keys())


def test_the_page_begins_with_the_keys_that_most_recipes_set() -> None:
    first = document().split("\n## ")[1]
    assert first.startswith("20 keys")
    assert set(re.findall(r"^\| `([^`]+)`", first, re.MULTILINE)) <= set(keys())


def test_schema_and_page_know_no_internal_parameter() -> None:
    text = json.dumps(schema())
    assert '"internal"' not in text
    assert "warmup_tokens" not in text
    assert "LossScale" not in schema()["$defs"]
    assert "warmup_tokens" not in document()
    named = set(re.findall(r'"#/\$defs/([^"]+)"', text))
    assert named == set(schema()["$defs"])
