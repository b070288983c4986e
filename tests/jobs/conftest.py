"""The tiny pipeline, run once for the tests of its results."""

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.storage.workspace import Workspace
from plinth_jobs.cli import call
from plinth_registry.mlflow.server import stop_server
from tests import tiny_corpus
from tests.shared import copied, once

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "jobs" / "plinth_jobs" / "recipes" / "tiny.yaml"


def plinth(workspace: Path, *words: object, check: bool = True, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command line on a workspace."""
    command = [sys.executable, "-m", "plinth_jobs.cli", "-w", str(workspace), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=3600, **options)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def here(workspace: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, which spares the seconds of its imports."""
    out, err = io.StringIO(), io.StringIO()
    arguments = ["-w", str(workspace), *map(str, words)]
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = call(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def answer(workspace: Path, *words: object, run: Callable[..., Any] = plinth) -> Any:
    """Return the JSON output of a command; `run` is `plinth` or `here`."""
    done = run(workspace, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def digests(workspace: Path) -> dict[str, str]:
    """Data version of every published asset."""
    refs = (workspace / "refs").rglob("*.json")
    found = [json.loads(path.read_bytes()) for path in refs]
    return {ref["asset"]: ref["digest"] for ref in found}


def variant(folder: Path, change: str) -> Path:
    """A recipe that differs from the tiny one by some YAML."""
    path = folder / "variant.yaml"
    relative = os.path.relpath(RECIPE, folder)
    path.write_text(f"extends: {relative}\n{change}")
    return path


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A workspace in which the pipeline was run up to its mixture, by two workers; only to be read, or copied."""

    def run(workspace: Path) -> None:
        tiny_corpus.write(workspace / "input")
        plinth(workspace, "run", "-r", RECIPE, "--select", "funnel", "--workers", 2)

    return once(tmp_path_factory, "corpus", run)


@pytest.fixture(scope="session")
def trained(corpus, tmp_path_factory) -> Path:
    """The same, run on to its evaluation: for runs that go on from here (`pending` is the whole pipeline, in one)."""

    def run(workspace: Path) -> None:
        copied(corpus, workspace)
        try:
            plinth(workspace, "run", "-r", RECIPE, "--select", "evaluation", "--workers", 2)
        finally:
            stop_server(Workspace(workspace))

    return once(tmp_path_factory, "trained", run)


#: A recipe with it leaves its candidate to a person.
UNAPPROVED = "release: {auto_approve_as: null}\n"


@pytest.fixture(scope="session")
def pending(tmp_path_factory) -> Path:
    """A workspace in which the pipeline was run once, to a candidate that waits for approval; only to be read, or
    copied."""

    def run(workspace: Path) -> None:
        tiny_corpus.write(workspace / "input")
        try:
            plinth(workspace, "run", "-r", variant(workspace, UNAPPROVED), "--workers", 2)
        finally:
            stop_server(Workspace(workspace))

    return once(tmp_path_factory, "pending", run)


@pytest.fixture(scope="session")
def released(pending, tmp_path_factory) -> Path:
    """The same, run on to a release."""
    workspace = copied(pending, tmp_path_factory.mktemp("released") / "workspace")
    plinth(workspace, "run", "-r", RECIPE)
    yield workspace
    stop_server(Workspace(workspace))
