"""Without the ring, the core runs up to a release, and features that need the ring report it by name."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests import tiny_corpus, without_ring

CORE = ("platform/plinth", "platform/plinth_text", "registry", "assets", "jobs")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment without the ring."""
    return without_ring.make(tmp_path_factory.mktemp("alone"))


def run(python: Path, *words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [python, *map(str, words)]
    return subprocess.run(
        command, cwd=folder, env=without_ring.environment(), capture_output=True, text=True, timeout=1200
    )


def test_no_module_of_the_core_names_the_ring() -> None:
    ring = re.compile(rf"\b({'|'.join(without_ring.RING)})\b")
    files = [path for folder in CORE for path in (without_ring.ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    assert [str(path) for path in files if ring.search(path.read_text())] == []


def test_every_module_of_the_core_is_imported_without_the_ring(alone: Path, tmp_path: Path) -> None:
    code = """
import importlib, pkgutil, plinth_jobs, plinth_assets, plinth_registry
for package in (plinth_registry, plinth_assets, plinth_jobs):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""
    done = run(alone, "-c", code, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    helped = run(alone, "-m", "plinth_jobs.cli", "--help", folder=tmp_path)
    assert (helped.returncode, helped.stderr) == (0, "")


def test_what_needs_the_ring_names_the_package(alone: Path, tmp_path: Path) -> None:
    command = run(alone, "-m", "plinth_jobs.cli", "model", "fairness", folder=tmp_path)
    assert (command.returncode, "plinth_audit" in command.stderr) == (2, True), command.stderr
    (tmp_path / "own.yaml").write_text("extends: tiny\nname: own\nevaluation: {fairness: {}}\n")
    recipe = run(alone, "-m", "plinth_jobs.cli", "recipe", "check", "own.yaml", folder=tmp_path)
    told = "`evaluation.fairness` needs the package plinth_audit, which is not installed"
    assert (recipe.returncode, told in recipe.stdout + recipe.stderr) == (2, True), recipe.stdout + recipe.stderr
    policy = "bias: {max_bits: 1}\nrelease: own\nslices: {max_bits_per_byte: 4}\n"
    (tmp_path / "policy.yaml").write_text(policy)
    gates = run(alone, "-m", "plinth_jobs.cli", "gates", "check", "policy.yaml", folder=tmp_path)
    told = gates.stdout + gates.stderr
    assert (gates.returncode, "bias: `bias` needs the package plinth_audit" in told) == (2, True), told


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_tiny_recipe_is_released_without_the_ring(alone: Path, tmp_path: Path) -> None:
    tiny_corpus.write(tmp_path / "workspace" / "input")
    done = run(alone, "-m", "plinth_jobs.cli", "run", "-r", "tiny", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["release"]["alias"] == "champion"
    run(alone, "-m", "plinth_jobs.cli", "down", folder=tmp_path)
