"""Managed jobs of SkyPilot: a job's life with a `sky` program that plays SkyPilot, and the task in SkyPilot itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from plinth.errors import LaunchError
from plinth.launch.base import Handle, given, write_handle
from plinth.launch.conformance import SeveralNodes
from plinth.launch.parameters import Launch
from plinth.recipe.extension_checks import problems_of_extensions
from plinth_extras.skypilot.launcher import SkyPilotLauncher, task
from tests import sky_program

COMMAND = ["/opt/venv/bin/python", "-m", "it", "a b"]

OPTIONS: dict[str, Any] = {
    "resources": {"accelerators": "H100:8", "infra": "k8s", "use_spot": True, "job_recovery": "FAILOVER"},
    "volumes": {"/mnt/workspace": "plinth"},
    "setup": "pip install 'plinth[train]'",
    "envs": {"NCCL_DEBUG": "WARN"},
}


def launch(nodes: int = 1, **options: Any) -> Launch:
    return Launch(kind="skypilot", ranks=nodes, nodes=nodes, python=sys.executable, options=options)


def launcher(nodes: int = 1) -> SkyPilotLauncher:
    return SkyPilotLauncher(launch(nodes), 60.0, every_s=0.0)


@pytest.fixture
def sky(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("sky")
    sky_program.sky(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    yield folder
    sky_program.stop(folder)


@pytest.mark.usefixtures("sky")
@pytest.mark.exhaustive
@pytest.mark.slow
class TestConformance(SeveralNodes):
    kind = "skypilot"

    def launcher(self, nodes: int = 1) -> SkyPilotLauncher:
        return launcher(nodes)


def test_task_asks_for_what_the_recipe_says(tmp_path: Path) -> None:
    made = task(launch(2, **OPTIONS), COMMAND, tmp_path / "run", tmp_path / "job.log", "plinth-run-1")
    assert (made["name"], made["num_nodes"], made["volumes"]) == ("plinth-run-1", 2, {"/mnt/workspace": "plinth"})
    assert made["resources"] == {
        "accelerators": "H100:8",
        "infra": "k8s",
        "use_spot": True,
        "job_recovery": {"strategy": "FAILOVER", "recover_on_exit_codes": [75]},
    }
    assert (made["setup"], made["envs"]) == (OPTIONS["setup"], OPTIONS["envs"])
    subprocess.run(["bash", "-n"], input=made["run"], text=True, check=True)
    shown = yaml.safe_load(given(launch(2, **OPTIONS), 60.0, COMMAND, tmp_path / "run", tmp_path / "job.log"))
    assert shown["resources"] == made["resources"]


@pytest.mark.parametrize(("own", "kept"), [([29, 75], [75, 29]), (29, [75, 29]), ([], [75])])
def test_exit_codes_of_the_recipe_are_recovered_too(tmp_path: Path, own: object, kept: list[int]) -> None:
    asked = launch(resources={"job_recovery": {"strategy": "FAILOVER", "recover_on_exit_codes": own}})
    made = task(asked, COMMAND, tmp_path / "run", tmp_path / "job.log", "plinth-run-1")
    assert made["resources"]["job_recovery"] == {"strategy": "FAILOVER", "recover_on_exit_codes": kept}


def test_a_handle_adds_no_option_to_sky(sky: Path, tmp_path: Path) -> None:
    """A writer of the workspace can write handle.json."""
    (sky / "sky").write_text(f"#!/bin/bash\ntouch {tmp_path}/called\n")
    write_handle(tmp_path, Handle(launcher="skypilot", id="--config=x", started="a b", host="skypilot"))
    assert launcher().logs(tmp_path / "job.log", 1) == ""
    assert not (tmp_path / "called").exists()


def test_unknown_options_are_refused_by_a_recipe() -> None:
    wrong = {"training": {"launch": {"kind": "skypilot", "options": {"volume": {}}}}}
    ((key, problem, _),) = problems_of_extensions(wrong)
    assert (key[-1], problem) == ("volume", "unknown parameter")


def test_output_before_the_run_has_a_log_is_skypilots(sky: Path, tmp_path: Path) -> None:
    handle = launcher().submit(COMMAND, tmp_path, tmp_path / "job.log")
    while launcher().poll(handle).alive:
        pass
    (tmp_path / "job.log").unlink()
    assert "No module named it" in launcher().logs(tmp_path / "job.log", 1)


def test_errors_name_the_program_and_what_it_said(sky: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = launcher().submit(COMMAND, tmp_path, tmp_path / "job.log")
    for said, why in (("echo nothing is enabled >&2; exit 1", "nothing is enabled"), ("echo '[\n{'", "print JSON")):
        (sky / "sky").write_text(f"#!/bin/bash\n{said}\n")
        with pytest.raises(LaunchError, match=why):
            launcher().poll(handle)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="SkyPilot is not installed"):
        launcher().poll(handle)


@pytest.mark.exhaustive
@pytest.mark.needs("SkyPilot")
@pytest.mark.parametrize("options", [{}, OPTIONS])
def test_skypilot_reads_the_task(options: dict[str, Any], tmp_path: Path) -> None:
    """The released package, in its own environment, validates the task and keeps its fields."""
    path = tmp_path / "task.yaml"
    path.write_text(given(launch(2, **options), 60.0, COMMAND, tmp_path / "run", tmp_path / "job.log"))
    program = Path(shutil.which("sky") or "")
    python = program.read_text().splitlines()[0].removeprefix("#!")
    code = "import sky, sys, yaml; task = sky.Task.from_yaml(sys.argv[1]); print(yaml.safe_dump(task.to_yaml_config()))"
    done = subprocess.run([python, "-c", code, str(path)], capture_output=True, text=True, check=True, timeout=300)
    kept, asked = yaml.safe_load(done.stdout), yaml.safe_load(path.read_text())
    assert (kept["num_nodes"], kept["run"].strip()) == (2, asked["run"].strip())
    recovery = kept["resources"]["job_recovery"]
    assert recovery["recover_on_exit_codes"] == [75]
