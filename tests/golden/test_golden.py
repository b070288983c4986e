"""Golden values that a refactoring must keep: digests, identities, parameters, keys of answers; old releases stay
valid."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from plinth.recipe.recipe import Recipe
from tests.golden import archive, commands, data, runs, training
from tests.golden.recorded import compare, recorded, renewing
from tests.jobs.conftest import here
from tests.ranks import run_ranks


@pytest.fixture(scope="module")
def recipes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recipe]:
    return data.recipes(tmp_path_factory.mktemp("wide"))


def test_keys_of_stages(recipes: dict[str, Recipe]) -> None:
    compare("keys", {name: data.keys(recipe) for name, recipe in recipes.items()})


def test_columns_of_tables(recipes: dict[str, Recipe]) -> None:
    compare("columns", {name: line for recipe in recipes.values() for name, line in data.columns(recipe).items()})


def test_identities_of_runs() -> None:
    given = [entry["given"] for entry in recorded("runs").values()]
    if renewing():
        given = runs.renewed(given)
    entries = {f"{n:03}": {"given": one, "identities": runs.identities(one)} for n, one in enumerate(given)}
    compare("runs", entries)
    assert len(given) >= runs.COUNT


def test_every_key_of_a_run_is_in_one_of_the_runs() -> None:
    assert set(runs.lacking([entry["given"] for entry in recorded("runs").values()])) <= runs.REFUSED


def test_every_command_is_called_or_listed() -> None:
    called = {*commands.calls(commands.CALLS), *commands.calls(commands.MODEL_CALLS)}
    assert called | set(commands.NOT_CALLED) == set(commands.with_json())
    assert not called & set(commands.NOT_CALLED)


@pytest.mark.slow
def test_parameters_after_twenty_steps() -> None:
    found = run_ranks(1, training.train_all)[0]
    if not found.keys() & set(training.RUNS):
        pytest.skip("parameters are recorded of CPUs")
    known = recorded("parameters")
    if renewing() or known["cpu"] == found["cpu"]:
        compare("parameters", found)
        return
    for name in training.RUNS:  # the last bits are those of another kind of CPU
        numbers = {key: value for key, value in known[name].items() if key != "sha256"}
        near = pytest.approx(numbers, rel=training.TOLERANCES.get(name, 1e-4))
        assert {key: found[name][key] for key in found[name] if key != "sha256"} == near, name


def test_versions_of_the_wide_recipe(tmp_path: Path) -> None:
    compare("versions_wide", data.made_wide(tmp_path))


@pytest.mark.slow
def test_versions_of_the_web_recipe(tmp_path: Path) -> None:
    compare("versions_web", data.made_web(tmp_path))


@pytest.fixture
def archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The workspace of the archive, on a machine without network that has only its root."""
    workspace, trust = archive.unpack(tmp_path)
    monkeypatch.setenv("PLINTH_TRUST", str(trust))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("verification used the network"))
    return workspace


def verify(workspace: Path) -> Any:
    return here(workspace, "verify", "release", "-r", archive.RECIPE, "--json")


def test_an_archived_release_verifies(archived: Path) -> None:
    done = verify(archived)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["release"], answer["manifests"], answer["sources"], answer["blobs"]) == archive.EXTENT


@pytest.mark.parametrize("pattern", archive.PROVED)
def test_one_changed_byte_of_an_archived_release_is_found(archived: Path, pattern: str) -> None:
    path = max(archived.glob(pattern), key=lambda one: one.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    done = verify(archived)
    assert (done.returncode, done.stdout) == (8, ""), pattern
