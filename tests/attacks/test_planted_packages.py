"""Attack: code planted in the workspace that a process of Plinth would import or run.

Cases: a package in the folder in which a process starts, a module next to
it, a program on the path, settings that a library reads from its working directory. Nothing planted runs, and keys
reach only the processes that sign.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plinth import processes
from plinth.errors import PlinthError, WorkspaceError
from plinth.launch.parameters import Launch
from plinth.storage.workspace import Workspace
from plinth.training import config as configuration
from plinth_jobs.cli import call
from plinth_registry.mlflow import server
from tests.jobs.conftest import variant
from tests.plinth.training.conftest import tiny

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "jobs"

#: Calls that start a process, by module.
STARTERS = {
    "subprocess": {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
    "os": {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile"},
    "pty": {"spawn", "fork"},
    "multiprocessing": {"Process", "Pool", "get_context", "set_start_method", "Manager"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
}
#: Places that start processes in another way, and why.
APART = {
    "platform/plinth/processes.py": "the one place",
    "platform/plinth/launch/ray_nodes.py": "its class runs in Ray's workers, which may lack Plinth",
    "platform/plinth_ops/gamedays/warm_job.py": "forks of a process that was started with PYTHONSAFEPATH",
    "platform/plinth/training/recovery/standby.py": "forks ranks from a process that was started in the one place",
    "platform/plinth/launch/conformance.py": "tests of launchers: forks a submitter, and runs no program",
    "platform/plinth_text/compiled/build.py": "runs gcc, with few variables and no relative entry of PATH",
    "infra/images/lock.py": "builds images, in no workspace",
}


def sources(words: str, *tops: str) -> Iterator[tuple[str, ast.AST]]:
    """Every node of the files of ours that have one of some words."""
    for path in (path for top in tops for path in (ROOT / top).rglob("*.py")):
        if re.search(words, text := path.read_text()):
            yield from ((str(path.relative_to(ROOT)), node) for node in ast.walk(ast.parse(text)))


def starts(node: ast.AST) -> bool:
    """True if a node is or imports a call that starts a process. `Popen` as an annotation is harmless."""
    if isinstance(node, ast.ImportFrom):
        return any(alias.name in STARTERS.get(node.module or "", ()) for alias in node.names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "Popen":
        return True
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module, name = node.value.id, node.attr
        spawns = module == "os" and name.startswith(("exec", "spawn"))
        return spawns or (name != "Popen" and name in STARTERS.get(module, ()))
    return isinstance(node, ast.Name) and node.id == "ProcessPoolExecutor"


def test_every_process_is_started_in_one_place() -> None:
    """A new one elsewhere fails here: its folder, path and environment would be its own."""
    words = r"subprocess|multiprocessing|ProcessPool|psutil|\bpty\b|asyncio|\bos\.(system|popen|fork|exec|spawn|posix)"
    nodes = sources(words, "platform", "registry", "assets", "jobs", "infra")
    assert {path for path, node in nodes if starts(node)} == set(APART)


def test_every_module_is_started_without_the_working_directory() -> None:
    """`-m` without `-P` would import from the folder that the process starts in."""
    lists = [
        ast.unparse(node)
        for _, node in sources(r"[\"']-m[\"']", "platform", "registry", "assets", "jobs")
        if isinstance(node, ast.List | ast.Tuple) and "'-m'" in ast.unparse(node)
    ]
    assert len(lists) >= 3
    assert [words for words in lists if "'-P'" not in words and "sys.executable" in words] == []


#: Shown by a child: what it imports, and where it is.
SHOW = "import json, os, sys; print(json.dumps([json.__file__, sys.path, os.getcwd(), dict(os.environ)]))"
#: A child that starts another one, as Dagster and MLflow do: without `-P`.
GRANDCHILD = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {SHOW!r}]))"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a workspace with planted modules and programs; it is the working directory and on the paths."""
    root = Workspace(tmp_path / "workspace").ensure().root
    for name in ("dagster", "mlflow/registry", "json", "plinth", "plinth_jobs", "cffi", "bin"):
        (root / name).mkdir(parents=True, exist_ok=True)
        for file in ("__init__.py", "__main__.py"):
            (root / name / file).write_text(f"raise SystemExit('planted: {name}')\n")
    (root / "sitecustomize.py").write_text("raise SystemExit('planted')\n")
    (root / "usercustomize.py").write_text("raise SystemExit('planted')\n")
    program = root / "bin" / "git"
    program.write_text("#!/bin/sh\necho planted\n")
    program.chmod(0o755)
    monkeypatch.chdir(root)
    monkeypatch.setenv("PATH", os.pathsep.join(("bin", "", str(root / "bin"), os.environ["PATH"])))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(("", ".", str(root), str(tmp_path / "plugins"))))
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.setenv("PLINTH_TRUST", str(tmp_path / "trust"))
    monkeypatch.setattr(processes, "_SHUT_OUT", set())
    before = list(sys.path)
    sys.path.insert(0, str(root))
    yield root
    sys.path[:] = before


@pytest.mark.parametrize("code", [SHOW, GRANDCHILD])
def test_a_child_and_what_it_starts_import_nothing_of_the_workspace(workspace: Path, code: str) -> None:
    processes.shut_out(Path("."))
    done = processes.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    imported, path, folder, environment = json.loads(done.stdout)
    assert not imported.startswith(str(workspace))
    assert [place for place in path if not os.path.isabs(place) or Path(place).is_relative_to(workspace)] == []
    assert str(workspace.parent / "plugins") in path  # the operator's own, elsewhere
    assert Path(folder) == processes.elsewhere()
    assert not Path(folder).is_relative_to(workspace)
    assert not list(Path(folder).iterdir())
    searched = environment["PATH"].split(os.pathsep)
    assert [place for place in searched if not os.path.isabs(place) or Path(place).is_relative_to(workspace)] == []
    assert "PLINTH_TRUST" not in environment


def test_a_program_by_name_is_not_the_planted_one(workspace: Path) -> None:
    processes.shut_out(workspace)
    assert "git version" in processes.run(["git", "--version"], capture_output=True, text=True).stdout


def test_this_process_imports_nothing_of_the_workspace(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    processes.shut_out(workspace)
    assert str(workspace) not in sys.path
    assert f"nothing is imported from {workspace}, because it is in the workspace" in capsys.readouterr().err
    assert os.environ["PYTHONPATH"] == str(workspace.parent / "plugins")
    assert os.environ["PYTHONSAFEPATH"] == "1"


@pytest.mark.parametrize("place", [ROOT, ROOT / "platform", Path(sys.prefix)])
def test_a_workspace_that_holds_the_code_is_refused(place: Path) -> None:
    with pytest.raises(WorkspaceError, match="contains the running code"):
        processes.shut_out(place)


def test_the_command_line_imports_nothing_of_the_folder_in_which_it_runs(workspace: Path) -> None:
    """Also where it was started as a module, which puts that folder first."""
    (workspace / "plinth_jobs" / "cli").mkdir()
    code = "import runpy, sys; sys.argv = ['plinth', '--version']; runpy.run_module(MODULE, run_name='__main__')"
    own = {"PYTHONPATH": str(JOBS), "PYTHONSAFEPATH": ""}
    path = f"sys.path.insert(0, {str(JOBS)!r}); import plinth_jobs.cli; sys.path[0] = {str(workspace)!r}"
    start = f"import sys; {path}; {code.replace('MODULE', repr('plinth_jobs.cli'))}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", start], cwd=workspace, env={**os.environ, **own}, capture_output=True, text=True
    )
    assert done.stdout.startswith("plinth "), done.stderr


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "PATH", "BASH_ENV", "NCCL_NET_PLUGIN", "CC"])
def test_a_run_whose_configuration_was_edited_loads_no_code(name: str, tmp_path: Path) -> None:
    """`launch.environment` of a run is stored in the workspace, and its ranks restart after a failure."""
    config = tiny(tmp_path, run_id="r1")
    configuration.write(config)
    edited = json.loads(config.directory.config.read_bytes())
    edited["launch"]["environment"] = {"NCCL_DEBUG": "INFO"}
    config.directory.config.write_text(json.dumps(edited))
    assert configuration.load(config.directory.config).launch.environment == {"NCCL_DEBUG": "INFO"}
    edited["launch"]["environment"] = {name: "/tmp/planted.so"}
    config.directory.config.write_text(json.dumps(edited))
    with pytest.raises(PlinthError, match="controls which code runs"):
        configuration.load(config.directory.config)


SETTINGS: list[dict[str, Any]] = [
    {"kind": "slurm", "slurm": {"sbatch": [], "setup": ["touch planted"]}},
    {"kind": "slurm", "python": "/planted/python"},
    {"kind": "ray", "ray": {"address": "http://planted:8265"}},
    {"kind": "skypilot", "options": {"setup": "touch planted"}},
    {"kind": "skypilot", "options": {"envs": {"LD_PRELOAD": "/planted.so"}}},
]


@pytest.mark.parametrize("planted", SETTINGS, ids=lambda one: one["kind"])
def test_a_job_whose_launcher_settings_were_edited_is_not_submitted(
    planted: dict[str, Any], workspace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`plinth run job submit` reads the run's folder, which writers of the workspace can change."""
    config = tiny(workspace, run_id="r1")
    configuration.write(config)
    edited = json.loads(config.directory.config.read_bytes())
    edited["launch"] |= planted
    config.directory.config.write_text(json.dumps(edited))
    words = ["-w", str(workspace), "run", "job", "submit", "latest"]
    assert call([*words, "-r", "tiny"]) == 2
    said = capfd.readouterr().err
    assert "other launcher settings than the recipe" in said
    assert f"training.launch.{list(planted)[-1]}" in said
    assert call(words) == 3  # this user ran no recipe here
    assert not config.directory.handle.exists()


def test_a_job_with_the_launcher_settings_of_the_recipe_is_submitted(
    workspace: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tiny(workspace, run_id="r1", launch=Launch(kind="skypilot", options={"setup": "true"}))
    configuration.write(config)
    own = variant(tmp_path, "training: {launch: {kind: skypilot, options: {setup: 'true'}}}\n")
    call(["-w", str(workspace), "run", "job", "submit", "latest", "-r", str(own)])
    assert "SkyPilot is not installed" in capfd.readouterr().err  # the launcher was asked


def test_the_server_of_mlflow_has_no_keys_and_starts_outside(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLINTH_KEY_PROMOTER", "env:SECRET")
    monkeypatch.setenv("SECRET", "a key")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the artifacts")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    asked: list[tuple[list[str], dict[str, Any]]] = []

    def popen(command: list[str], **options: Any) -> Any:
        asked.append((command, options))
        raise OSError("not started")

    processes.shut_out(workspace)
    monkeypatch.setattr(processes.subprocess, "Popen", popen)
    with pytest.raises(OSError, match="not started"):
        server.ensure_server(Workspace(workspace))
    ((command, options),) = asked
    assert command[:4] == [sys.executable, "-P", "-m", "plinth_registry.mlflow.server"]
    assert options["cwd"] == processes.elsewhere()
    environment = options["env"]
    assert {"PLINTH_TRUST", "PLINTH_KEY_PROMOTER", "SECRET"}.isdisjoint(environment)
    assert environment["AWS_ACCESS_KEY_ID"] == "of the artifacts"
    assert environment["PYTHONSAFEPATH"] == "1"


def test_keys_reach_those_who_sign_and_variables_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLINTH_TRUST", "trust")
    monkeypatch.setenv("PLINTH_PIN", "1234")
    monkeypatch.setenv("MY_TOKEN", "token")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.delenv("PLINTH_PASS_ENVIRONMENT", raising=False)
    assert {"PLINTH_TRUST", "PLINTH_PIN", "MY_TOKEN"}.isdisjoint(processes.environment())
    assert processes.environment()["PYTHONSAFEPATH"] == "1"  # for what the child starts, without `-P`
    signing = processes.environment(*processes.KEYS)
    assert signing["PLINTH_TRUST"] == os.path.abspath("trust")  # the child starts elsewhere
    assert "MY_TOKEN" not in signing
    monkeypatch.setenv("PLINTH_PASS_ENVIRONMENT", "OTHER MY_*")
    assert processes.environment()["MY_TOKEN"] == "token"
    assert processes.environment(*processes.ALL)["PLINTH_PIN"] == "1234"  # the operator's own signing command
