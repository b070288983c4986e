"""A recipe learns the model of its extraction on its own pages, and says why where it cannot."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from plinth.compute.context import Context
from plinth.errors import RecipeError
from plinth.recipe.load import load
from plinth.storage.workspace import Workspace
from plinth_assets.catalog import stages
from plinth_assets.framework import decide
from tests.jobs.conftest import ROOT, plinth
from tests.plinth.corpus.documents.test_extraction_model import article

PAGES = {
    "description": "Articles of many sites.",
    "owner": "tests@example.org",
    "sources": [
        {"kind": "html", "path": "pages", "licence": "CC0-1.0", "domain": "pages.example", "snapshot": "2026-46",
         "terms": {"train": True, "redistribute": True, "commercial": True}}
    ],
}  # fmt: skip
PACKAGED = ROOT / "jobs" / "plinth_jobs" / "recipes"


def recipe(folder: Path, *buckets: str, **fields: object) -> Path:
    learned = {"buckets": buckets or ["pages"], **fields}
    corpus = {"buckets": {"pages": PAGES}, "documents": {"extraction_model": learned}}
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump({"extends": "base.yaml", "name": "own", "corpus": corpus}))
    return path


@pytest.mark.exhaustive
@pytest.mark.slow
def test_documents_are_extracted_with_the_learned_model(tmp_path: Path) -> None:
    draw = random.Random(5)
    for number in range(480):
        file = tmp_path / "input" / "pages" / f"site{number % 20}.example" / f"{number}.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(article(draw))
    chosen = recipe(tmp_path)
    plinth(tmp_path, "run", "-r", chosen, "--select", "pages/documents")
    ctx = Context(Workspace(tmp_path))
    refs = ctx.refs
    model, documents = refs.current("models/main_content"), refs.current("pages/documents")
    assert model.inputs == {"pages/sources": refs.current("pages/sources").digest}
    assert documents.inputs["models/main_content"] == model.digest
    assert documents.params["sources"][0]["extraction_model"] == model.parts[0].blob.sha256
    assert model.stats["agreement"] > model.stats["default_agreement"]
    made = {"pages/sources", "models/main_content", "pages/documents"}
    assert not made & set(decide(ctx, stages(load(chosen, PACKAGED))).stale)
    few = recipe(tmp_path, pages=20)
    failed = plinth(tmp_path, "run", "-r", few, "--select", "pages/documents", check=False)
    assert failed.returncode == 6
    assert "too few articles are learned" in failed.stdout + failed.stderr
    assert refs.current("pages/documents") == documents


def test_buckets_without_pages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="there is no bucket 'page'"):
        load(recipe(tmp_path, "page"), PACKAGED)
    path = recipe(tmp_path)
    path.write_text(path.read_text().replace("kind: html", "kind: teacher"))
    with pytest.raises(RecipeError, match="pages has no pages, because a model writes it"):
        load(path, PACKAGED)
    path = recipe(tmp_path)
    path.write_text(path.read_text().replace("corpus:\n", "corpus:\n  models: {main_content: {kind: ngram}}\n", 1))
    with pytest.raises(RecipeError, match="has the name of the asset models/main_content"):
        load(path, PACKAGED)
