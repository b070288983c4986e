"""docs/examples/plinth-example, installed by pip into a fresh environment and used there, as its reader would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_corpus
from tests.shared import once

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "plinth-example"

RECIPE = """
name: letters
corpus:
  buckets:
    mail:
      description: A mailing list.
      owner: team@example.org
      sources:
        - kind: mbox
          path: list.mbox
          licence: CC0-1.0
          terms: {train: true, redistribute: true, commercial: true}
          domain: list.example
          snapshot: 2026-46
          options: {subject: true}
  documents: {max_reject_rate: 0.5}
  annotate:
    language: {}
    licence: {}
    quotes: {markers: [">"]}
  policies:
    default:
      rules:
        - {reason: licence, drop: not licence.permitted}
        - {reason: quoted, drop: quotes.quoted_lines >= 0.5}
  permitted_licences: [CC0-1.0]
mixture:
  sequence_tokens: 64
  total_tokens: 20480
  phases:
    - {name: all, fraction: 1.0, weights: {mail: 1}}
evaluation:
  probes: {families: [maths, riddles]}
training:
  global_batch_sequences: 8
  launch:
    kind: sagemaker
    ranks: 1
    options:
      role: arn:aws:iam::123456789012:role/training
      image: registry.example/plinth:1
      instance: ml.g5.xlarge
      output: s3://bucket/plinth
      file_system: fs-0123456789abcdef0
      directory: /abcdefgh
      subnets: [subnet-0123456789abcdef0]
      security_groups: [sg-0123456789abcdef0]
release:
  name: letters
"""

POLICY = """release: letters
slices: {max_bits_per_byte: 4}
extensions:
  margin: {bits_per_byte: 0.05}
"""

MAIL = """From a Mon Nov 16 10:00:00 2026
Subject: Bridges
Message-ID: <1@list.example>

The old bridge over the river was measured in spring, and repaired before the storm.

From b Mon Nov 16 11:00:00 2026
Subject: Re: Bridges
Message-ID: <2@list.example>

> The old bridge over the river was measured in spring,
> and repaired before the storm.
Yes.

From c Mon Nov 16 12:00:00 2026
Message-ID: <3@list.example>
Content-Type: image/png

x
"""


class Environment:
    """A virtual environment that sees the packages of this one and the repository, and has the example installed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.python = folder, folder / "bin" / "python"
        self.packages = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def make(self) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.folder)], check=True, timeout=600)
        roots = [ROOT / name for name in ("platform", "registry", "assets", "jobs")]
        seen = [*roots, ROOT, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
        (self.packages / "project.pth").write_text("".join(f"{path}\n" for path in seen))
        source = shutil.copytree(EXAMPLE, self.folder / "source")
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(self.python)]
        self._run(*pip, "install", "--no-deps", "--no-build-isolation", "--no-index", str(source))

    def plinth(self, workspace: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self._run(str(self.python), "-m", "plinth_jobs.cli", "-w", str(workspace), *words, check=check)

    def _run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PLINTH_WORKSPACE")}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=self.folder, timeout=1800)
        assert not check or done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Made once; nothing in it is changed."""
    return Environment(once(tmp_path_factory, "example", lambda folder: Environment(folder).make()))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace" / "input").mkdir(parents=True)
    (tmp_path / "workspace" / "input" / "list.mbox").write_text(MAIL)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return tmp_path / "workspace"


def recipe(workspace: Path) -> str:
    return str(workspace.parent / "recipe.yaml")


def manifest(workspace: Path, asset: str) -> dict[str, Any]:
    ref = json.loads((workspace / "refs" / f"{asset}.json").read_text())
    found: dict[str, Any] = json.loads((workspace / "manifests" / f"{ref['digest']}.json").read_text())
    return found | {"digest": ref["digest"]}


def made(environment: Environment, workspace: Path) -> dict[str, str]:
    """State of the assets of a pipeline, as `plinth status` shows them."""
    rows = json.loads(environment.plinth(workspace, "status", "-r", recipe(workspace), "--json").stdout)
    return {row["asset"]: row["state"] for row in (rows if isinstance(rows, list) else rows["assets"])}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_its_own_tests_pass_where_it_is_installed(shared: Environment) -> None:
    done = shared._run(str(shared.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "source/tests", check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "skipped" not in done.stdout


@pytest.mark.exhaustive
@pytest.mark.slow
def test_doctor_lists_what_is_installed(shared: Environment, tmp_path: Path) -> None:
    findings = json.loads(shared.plinth(tmp_path, "doctor", "--json", check=False).stdout)
    found = {finding["name"]: (finding["state"], finding["found"]) for finding in findings}
    for name, value in (
        ("annotator quotes", "plinth_example.quotes:ANNOTATOR"),
        ("reader mbox", "plinth_example.mbox:READER"),
        ("gate margin", "plinth_example.margin:GATE"),
        ("measurement typos", "plinth_example.typos:MEASUREMENT"),
        ("probe riddles", "plinth_example.riddles:PROBE"),
        ("launcher sagemaker", "plinth_example.sagemaker:KIND"),
        ("command corpus.quotes", "plinth_example.command:quotes"),
    ):
        assert found[name] == ("ok", f"plinth-example 0.1.0: {value}")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_what_it_does_not_take_is_refused_by_key_and_line(shared: Environment, workspace: Path) -> None:
    path = workspace.parent / "recipe.yaml"
    faults = (
        ("options: {subject: true}", "options: {subjects: true}", "options.subjects", "unknown parameter"),
        ('quotes: {markers: [">"]}', "quotes: {marker: x}", "corpus.annotate.quotes.marker", "unknown parameter"),
        ("role: arn", "rolle: arn", "training.launch.options.rolle", "unknown parameter"),
        ("riddles]", "ridles]", "evaluation.probes.families[1]", 'found "ridles", no such probe'),
    )
    text = RECIPE
    for old, new, *_ in faults:
        text = text.replace(old, new)
    path.write_text(text)
    done = shared.plinth(workspace, "recipe", "check", str(path), check=False)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    for _, new, key, message in faults:
        line = next(number for number, row in enumerate(text.splitlines(), 1) if new in row)
        assert f"recipe.yaml:{line}" in said
        assert f"{key}: {message}" in said or f"{key}: input should be {message}" in said


@pytest.mark.exhaustive
@pytest.mark.slow
def test_its_gate_stands_in_a_policy(shared: Environment, workspace: Path) -> None:
    path = workspace.parent / "policy.yaml"
    path.write_text(POLICY)
    assert "24 gates" in shared.plinth(workspace, "gates", "check", str(path)).stdout
    path.write_text(POLICY.replace("0.05", "-1"))
    done = shared.plinth(workspace, "gates", "check", str(path), check=False)
    assert done.returncode == 2
    assert "extensions.margin.bits_per_byte" in done.stdout + done.stderr


@pytest.mark.exhaustive
@pytest.mark.slow
def test_its_measurement_gates_a_release(shared: Environment, tmp_path: Path) -> None:
    own = Environment(Path(shutil.copytree(shared.folder, tmp_path / "own", symlinks=True)))
    workspace, path, policy = tmp_path / "workspace", tmp_path / "recipe.yaml", tmp_path / "policy.yaml"
    tiny_corpus.write(workspace / "input")
    path.write_text("extends: tiny.yaml\nevaluation: {extensions: {typos: {every: 3}}}\n")
    asked = (ROOT / "jobs" / "plinth_jobs" / "policies" / "tiny.yaml").read_text()
    policy.write_text(f"{asked}\nextensions: {{typos: {{max_bits: 0.001}}}}\n")
    own.plinth(workspace, "run", "-r", str(path), "--select", "typos")
    own.plinth(workspace, "gates", "sign", str(policy), "--yes")
    try:
        held = own.plinth(workspace, "run", "-r", str(path))
        assert "typing errors cost up to" in (workspace / "reports" / "tiny-candidate-1.html").read_text(), held.stdout
        assert "champion" not in held.stdout.partition("Next:")[0]
        policy.write_text(f"{asked}\nextensions: {{typos: {{max_bits: 1000}}}}\n".replace("version: 1", "version: 2"))
        own.plinth(workspace, "gates", "sign", str(policy), "--yes")
        assert "champion" in own.plinth(workspace, "run", "-r", str(path)).stdout.partition("Next:")[0]
    finally:
        own.plinth(workspace, "down")
    with (own.packages / "plinth_example" / "typos.py").open("a") as stream:
        stream.write("\n# changed\n")
    after = json.loads(own.plinth(workspace, "status", "-r", str(path), "--json").stdout)
    rows = after if isinstance(after, list) else after["assets"]
    stale = {row["asset"] for row in rows if row["state"] != "up to date"}
    assert stale >= {"typos"} > {"checkpoint", "evaluation"} & stale


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_recipe_uses_it_and_a_change_of_its_source_makes_again_what_it_made(
    shared: Environment, workspace: Path, tmp_path: Path
) -> None:
    own = Environment(Path(shutil.copytree(shared.folder, tmp_path / "own", symlinks=True)))
    own.plinth(workspace, "run", "-r", recipe(workspace), "--select", "mail/policy")
    documents, quotes = manifest(workspace, "mail/documents"), manifest(workspace, "mail/quotes")
    judged = manifest(workspace, "mail/policy")
    assert (documents["stats"]["documents"], documents["stats"]["rejects"]) == (2, {"missing_field": 1})
    assert documents["params"]["sources"][0]["reader"].startswith("plinth-example 0.1.0 sha256:")
    assert documents["params"]["sources"][0]["options"] == {"subject": True}
    assert quotes["version"].startswith("1 (plinth-example 0.1.0 sha256:")
    assert quotes["stats"]["columns"]["quoted_lines"]["max"] == 0.5  # the subject, two quoted lines, one of its own
    assert judged["stats"]["dropped"] == {"quoted": 1}
    assert json.loads(own.plinth(workspace, "corpus", "quotes", "--json").stdout) == {"mail": 0.25}
    before = made(own, workspace)

    with (own.packages / "plinth_example" / "quotes.py").open("a") as stream:
        stream.write("\n# changed\n")
    after = made(own, workspace)
    stale = {asset for asset in before if before[asset] == "up to date" and after[asset] != "up to date"}
    assert stale == {"mail/quotes", "mail/policy"}
    own.plinth(workspace, "run", "-r", recipe(workspace), "--select", "mail/policy")
    assert manifest(workspace, "mail/documents")["digest"] == documents["digest"]
    again = manifest(workspace, "mail/quotes")
    assert again["version"] != quotes["version"]
    assert again["parts"] == quotes["parts"]  # the same values, by other code

    with (own.packages / "plinth_example" / "mbox.py").open("a") as stream:
        stream.write("\n# changed\n")
    assert made(own, workspace)["mail/documents"] == "stale"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_its_probe_is_items_of_the_run_and_made_again_where_its_source_changes(
    shared: Environment, workspace: Path, tmp_path: Path
) -> None:
    own = Environment(Path(shutil.copytree(shared.folder, tmp_path / "own", symlinks=True)))
    own.plinth(workspace, "run", "-r", recipe(workspace), "--select", "probe_sets")
    found = manifest(workspace, "probe_sets")
    assert list(found["stats"]["sets"]) == ["maths", "riddles"]
    assert found["stats"]["sets"]["riddles"]["items"] == 6
    assert found["params"]["packages"]["riddles"].startswith("1 (plinth-example 0.1.0 sha256:")
    shown = json.loads(own.plinth(workspace, "model", "probes", "explain", "riddles/clock", "--json").stdout)
    assert (shown["gold"], shown["wrong"]) == (" clock", [" comb", " bottle", " needle"])
    before = made(own, workspace)
    with (own.packages / "plinth_example" / "riddles.py").open("a") as stream:
        stream.write("\n# changed\n")
    assert (before["probe_sets"], made(own, workspace)["probe_sets"]) == ("up to date", "stale")
