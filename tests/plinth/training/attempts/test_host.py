"""Description of a machine: the commit of its code only if git tracks it, and no value that it does not know."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from plinth.training import attempts
from plinth.training.attempts import IMAGE_VARIABLE, HostFacts, commit_of, this_host


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *who, "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a repository with one commit."""
    folder = tmp_path / "repository" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("ONE = 1\n")
    git(folder.parent, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "One")
    return folder


def test_a_commit_and_whether_anything_differs_from_it(package: Path) -> None:
    commit = git(package, "rev-parse", "HEAD")
    assert commit_of(package) == {"commit": commit, "dirty": False}
    (package / "__init__.py").write_text("ONE = 2\n")
    assert commit_of(package) == {"commit": commit, "dirty": True}
    git(package, "checkout", "-q", ".")
    (package / "untracked.py").write_text("")
    assert commit_of(package) == {"commit": commit, "dirty": True}


def test_an_environment_inside_a_repository_is_not_of_it(package: Path) -> None:
    installed = package.parent / ".venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert commit_of(installed) == {"no_commit": "the code of package is not tracked by git"}


def test_without_a_repository_or_without_git_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not a git repository" in str(commit_of(tmp_path)["no_commit"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(tmp_path) == {"no_commit": "there is no git on this machine"}


def test_nothing_that_the_repository_names_is_started(package: Path) -> None:
    planted = package.parent / "planted.sh"
    planted.write_text(f"#!/bin/sh\ntouch {package.parent.parent}/ran\n")
    planted.chmod(0o755)
    git(package, "config", "core.fsmonitor", str(planted))
    commit_of(package)
    assert not (package.parent.parent / "ran").exists()


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    image = f"registry.example/plinth:1@sha256:{'ab' * 32}"
    monkeypatch.setenv(IMAGE_VARIABLE, image)
    found = this_host()
    assert (found.image, found.image_digest, found.cpus) == (image, "ab" * 32, os.cpu_count())
    assert list(found.code) == ["plinth", "plinth_registry", "plinth_assets", "plinth_jobs"]
    assert len(found.distributions) == 64
    assert found.libraries["numpy"]
    assert HostFacts.model_validate_json(found.model_dump_json()) == found
    assert found.model_copy(update={"image": "plinth:latest"}).image_digest == ""


def test_the_digest_of_code_follows_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(name: str, content: str) -> str:
        (tmp_path / "plinth_copy" / "inner").mkdir(parents=True, exist_ok=True)
        (tmp_path / "plinth_copy" / "__init__.py").write_text("")
        (tmp_path / "plinth_copy" / "inner" / "one.py").write_text("")
        (tmp_path / "plinth_copy" / name).write_text(content)
        return attempts.code_digests()["plinth_copy"]

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(attempts, "PACKAGES", ("plinth_copy", "no_such_package"))
    found = [digest("a.txt", "not code"), digest("inner/one.py", "1"), digest("inner/two.py", "")]
    assert len(set(found)) == 3
    assert digest("a.txt", "changed") == found[2]
