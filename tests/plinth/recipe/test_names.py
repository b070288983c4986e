"""Names that Dagster and MLflow would refuse later are refused by the recipe; their own validators are the oracle."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.utils import is_valid_owner
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from plinth.corpus.canaries import Canaries
from plinth.corpus.sources.parameters import Bucket
from plinth.recipe.load import check
from plinth.recipe.recipe import RESERVED, ReleaseParameters
from plinth.records import Name
from plinth_assets.catalog import stages
from plinth_jobs.recipes import FOLDER
from plinth_lab.experiments.arms import PREFIX
from tests.peers import Peer

mlflow_exceptions = Peer("mlflow.exceptions")
validation = Peer("mlflow.utils.validation")

TINY = yaml.safe_load((FOLDER / "tiny.yaml").read_text())


def accepted(owner: str) -> bool:
    """Return True if a bucket takes this owner."""
    sources = TINY["corpus"]["buckets"]["web"]["sources"]
    try:
        Bucket.model_validate({"description": "d", "owner": owner, "sources": sources})
    except ValidationError:
        return False
    return True


def as_dagster_has_it(owner: str) -> str:
    """The owner of an asset, as `plinth_assets.framework.build` gives it."""
    return owner if "@" in owner else f"team:{owner}"


@given(
    st.one_of(st.text(max_size=12), st.from_regex(r"[a-zA-Z.%+-]{1,3}@[a-z.@-]{1,4}\.[a-zA-Z|]{1,8}", fullmatch=True))
)
@example("a@b.c")
@example("a@b.museum")
@example("a@b.photography")
@example(".a@example.org")
@example("")
@example("corpus team")
def test_an_owner_that_the_recipe_accepts_is_one_for_dagster(owner: str) -> None:
    if accepted(owner):
        assert is_valid_owner(as_dagster_has_it(owner)), owner


@pytest.mark.parametrize("owner", ["corpus@example.org", "a.b+c@x-y.example", "search", "Data team"])
def test_ordinary_owners_are_accepted(owner: str) -> None:
    assert accepted(owner)
    assert is_valid_owner(as_dagster_has_it(owner))


@given(st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z"))
def test_a_name_is_one_for_asset_keys_and_metrics(name: str) -> None:
    assert TypeAdapter(Name).validate_python(name) == name
    assert dg.AssetKey([name, "documents"]).to_python_identifier().replace("_", "").isalnum()
    assert validation.validate_param_and_metric_name(f"bits_per_byte/{name}/model")
    assert len(f"bits_per_byte/{name}/trigram") <= validation.MAX_ENTITY_KEY_LENGTH


@pytest.mark.parametrize("name", ["a b", "a/b", "..", "", "-a", "ä", "a" * 65, "a.b", "a\n"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Name).validate_python(name)


@given(st.text(max_size=300))
@example("a/b")
@example("a:b")
@example("a" * 300)
def test_a_release_is_a_model_for_mlflow(name: str) -> None:
    try:
        ReleaseParameters(name=name)
    except ValidationError:
        return
    try:
        validation._validate_model_name(f"{name}-candidate")
        validation._validate_experiment_name(name)
    except mlflow_exceptions.MlflowException:
        pytest.fail(name)


def test_a_release_may_not_take_the_name_of_candidates() -> None:
    with pytest.raises(ValidationError, match="reserved for unreleased"):
        ReleaseParameters(name="small-candidate")


def problems(tmp_path: Path, old: str, new: str) -> list[tuple[str, str]]:
    """Problems of the tiny recipe with one piece of its text replaced."""
    path = tmp_path / "own.yaml"
    text = (FOLDER / "tiny.yaml").read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    return [(problem.key, problem.message) for problem in check(path, FOLDER)[1]]


@pytest.mark.parametrize(
    ("old", "new", "key", "message"),
    [
        ("    prose:\n", "    pro se:\n", "corpus.buckets.pro se", "expected letters, digits, `_` and `-`"),
        ("    prose:\n", "    dedup:\n", "corpus.buckets.dedup", "dedup is reserved"),
        ("  holdout:", "  lists: {a-b: x, a_b: y}\n  holdout:", "corpus.lists.a_b", "collides with 'a-b'"),
        ("  holdout:", "  lists: {a/b: x}\n  holdout:", "corpus.lists.a/b", "expected letters"),
        (
            "Generated articles.\n      owner: tests@example.org",
            "x\n      owner: a@b.c",
            "corpus.buckets.prose.owner",
            "Dagster",
        ),
    ],
)
def test_each_rule_is_named_by_key(tmp_path: Path, old: str, new: str, key: str, message: str) -> None:
    found = problems(tmp_path, old, new)
    assert any(where == key and message in said for where, said in found), found


def test_reserved_names_are_the_first_parts_of_the_pipelines_own_assets() -> None:
    recipe = check(FOLDER.parents[2] / "tests" / "web.yaml", FOLDER)[0]
    assert recipe is not None
    recipe = recipe.model_copy(update={"corpus": recipe.corpus.model_copy(update={"canaries": Canaries()})})
    own = {stage.asset.partition("/")[0] for stage in stages(recipe) if "/" in stage.asset}
    assert own - set(recipe.corpus.buckets) | {PREFIX} == RESERVED
