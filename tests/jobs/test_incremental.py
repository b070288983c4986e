"""Same inputs, same bytes; and only what changed is made again."""

import pytest
import yaml

from plinth.compute.context import Context
from plinth.corpus import annotate
from plinth.recipe.load import load
from plinth.storage.workspace import Workspace
from plinth_assets.catalog import stages
from plinth_assets.framework import decide
from tests import tiny_corpus
from tests.catalogues import Including
from tests.jobs.conftest import RECIPE, plinth, variant

pytestmark = pytest.mark.slow


def _stale(workspace, recipe):
    return set(decide(Context(Workspace(workspace)), stages(load(recipe))).stale)


def test_a_changed_threshold_judges_again_and_annotates_nothing(pending, tmp_path):
    policies = load(RECIPE).corpus.policies["default"].model_dump(mode="json")
    for rule in policies["rules"]:
        if rule["reason"] == "too_few_words":
            rule["drop"] = "gopher_quality.word_count < 51"
    recipe = variant(tmp_path, yaml.safe_dump({"corpus": {"policies": {"default": policies}}}))
    stale = _stale(pending, recipe)
    assert {"web/policy", "prose/policy", "dedup/exact", "mixture", "run"} <= stale
    assert "code/policy" not in stale
    kept = {"documents", "minhash", *load(RECIPE).corpus.annotate}
    assert not {asset for asset in stale if asset.split("/")[-1] in kept and asset != "dedup/minhash"}


def test_a_bumped_annotator_is_run_again_alone(pending, monkeypatch):
    from dataclasses import replace

    from plinth.corpus.annotate import base

    before = _stale(pending, RECIPE)
    bumped = replace(annotate.annotator("fineweb"), version="next")
    monkeypatch.setattr(base, "ANNOTATORS", Including(base.ANNOTATORS, bumped))
    stale = _stale(pending, RECIPE) - before
    assert {f"{bucket}/fineweb" for bucket in ("web", "prose", "code")} <= stale
    assert {f"{bucket}/policy" for bucket in ("web", "prose")} <= stale
    assert not {asset for asset in stale if asset.endswith(("/documents", "/gopher_quality", "/language", "/pii"))}


@pytest.mark.exhaustive
def test_a_new_file_costs_its_own_part(tmp_path):
    """With small parts, all parts but the one that the file lands in keep their digests."""
    tiny_corpus.write(tmp_path / "input")
    recipe = variant(tmp_path, "corpus: {documents: {part_bytes: 2048}}\n")
    plinth(tmp_path, "run", "-r", recipe, "--select", "code/c4")
    before = _parts(tmp_path, "code/documents")
    package = next(path for path in (tmp_path / "input" / "tiny" / "code").iterdir() if path.is_dir())
    (package / "added.py").write_text("def added(value):\n    return value + 1\n\n" * 3)
    plinth(tmp_path, "run", "-r", recipe, "--select", "code/c4")
    after = _parts(tmp_path, "code/documents")
    assert len(before) > 5
    assert len(set(after) - set(before)) == 1
    assert len(_parts(tmp_path, "code/c4")) == len(after)


def _parts(workspace, asset):
    ctx = Context(Workspace(workspace))
    return [part.blob.sha256 for part in ctx.refs.current(asset).named("part-")]
