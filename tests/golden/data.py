"""Stages of the recipes, and data versions of what they make."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.recipe.load import load
from plinth.recipe.recipe import Recipe
from plinth.storage.workspace import Workspace
from plinth_assets.catalog import selected, stages
from tests import web_corpus, wide_recipe
from tests.golden import commands, training
from tests.golden.recorded import compare, recorded, renewing
from tests.jobs.conftest import RECIPE, ROOT

#: Recipes by name; the wide one, of six buckets, is written where it is needed.
RECIPES = {
    "tiny": RECIPE,
    "web": ROOT / "tests" / "web.yaml",
    "story": ROOT / "tests" / "story.yaml",
    "demo": RECIPE.with_name("demo.yaml"),
}
WIDE_BUCKETS = 6
#: Assets whose content depends on the moment or on keys: compared without values.
VOLATILE = ("serving", "evaluation_page", "candidate", "release")
#: The first asset of those whose last bits depend on the kind of CPU.
RUN = "run"


def recipes(folder: Path) -> dict[str, Recipe]:
    """The recipes, the wide one written below an empty folder."""
    wide = load(wide_recipe.write(folder, WIDE_BUCKETS), RECIPE.parent)
    return {**{name: load(path) for name, path in RECIPES.items()}, "wide": wide}


def keys(recipe: Recipe) -> dict[str, str]:
    """Version and key of each stage, from its asset, version, parameters and inputs, for libraries of one version."""
    found = dict[str, str]()
    for stage in stages(recipe):
        bare = replace(stage, outside=None, libraries=dict.fromkeys(stage.libraries, "any"))
        key = bare.key(None, {name: fingerprint.digest(name) for name in stage.deps})  # type: ignore[arg-type]
        found[stage.asset] = f"{stage.version} {key[:12]}"
    return found


def columns(recipe: Recipe) -> dict[str, str]:
    """Columns of the tables that a recipe makes; those of all buckets by the kind of the asset alone."""
    found = dict[str, str]()
    for stage in stages(recipe):
        if stage.schema is not None:
            bucket, _, kind = stage.asset.partition("/")
            name = f"*/{kind}" if bucket in recipe.corpus.buckets else stage.asset
            written = ", ".join(f"{column.name}: {column.type}" for column in stage.schema)
            assert found.setdefault(name, written) == written, stage.asset
    return found


def made_web(folder: Path) -> dict[str, str]:
    """Data versions of the corpus of the web recipe, made in this process."""
    web_corpus.write(folder / "input")
    return _made(load(RECIPES["web"]), folder, ("funnel", "dedup/index", "ledger", "data_card", "mixture"))


def made_wide(folder: Path) -> dict[str, str]:
    """Return the data versions of everything derived from each bucket of the wide recipe."""
    path = wide_recipe.write(folder, WIDE_BUCKETS)
    return _made(load(path, RECIPE.parent), folder, ("*/policy", "dedup/*"))


def _made(recipe: Recipe, folder: Path, names: tuple[str, ...]) -> dict[str, str]:
    ctx = Context(Workspace(folder).ensure())
    made = dict[str, Any]()
    for stage in selected(stages(recipe), names):
        made[stage.asset] = stage.make(ctx, {name: made[name] for name in stage.deps}, lambda line: None)
        ctx.refs.publish(made[stage.asset], stage.key(ctx, {name: made[name].digest for name in stage.deps}))
    return {asset: manifest.digest[:16] for asset, manifest in made.items()}


def published(workspace: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Data versions of a workspace, and versions of the libraries that its manifests name.

    Of a volatile asset: of its manifest with the keys and types of its statistics in place of values.
    """
    refs = Context(Workspace(workspace)).refs
    versions, libraries = dict[str, str](), dict[str, str]()
    for asset in sorted(ref.asset for ref in refs.all()):
        manifest = refs.current(asset)
        libraries |= manifest.libraries
        if asset not in VOLATILE:
            versions[asset] = manifest.digest[:16]
            continue
        facts = {"step": manifest.step, "version": manifest.version, "inputs": sorted(manifest.inputs)}
        shape = sorted(commands.paths(commands.shape(json.loads(fingerprint.canonical(manifest.stats)))))
        versions[asset] = fingerprint.digest({**facts, "stats": shape})[:16]
    return versions, libraries


def require_versions(workspace: Path) -> None:
    """Compare the data versions of a workspace of the tiny recipe; on another kind of CPU, of what comes before a run.

    Versions of libraries are in the identity of what they make, and Unicode's is Python's own.
    """
    found, libraries = published(workspace)
    recipe = load(RECIPE)
    assert set(found) == {stage.asset for stage in stages(recipe)}
    known, cpu = recorded("versions_tiny"), f"{training.cpu()}, {os.cpu_count()} cores"
    if not renewing():
        if known["libraries"]["unicode"] != libraries["unicode"]:
            pytest.skip(f"recorded with another Python, whose Unicode is not {libraries['unicode']}")
        if known["cpu"] != cpu:
            cpu, found = known["cpu"], found | {asset: known[asset] for asset in after(recipe, RUN) & known.keys()}
    compare("versions_tiny", found | {"libraries": libraries, "cpu": cpu})


def after(recipe: Recipe, first: str) -> set[str]:
    """An asset and all that reads it, directly or not."""
    found = {first}
    for stage in stages(recipe):
        if found & set(stage.deps):
            found.add(stage.asset)
    return found
