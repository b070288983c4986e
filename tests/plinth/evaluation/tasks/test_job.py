"""The asset: twelve tasks without a network, as lm-evaluation-harness' own `HFLM` has them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plinth.compute.context import Context
from plinth.corpus import lists
from plinth.errors import CheckpointError, SourceError, StageError, TrainingError
from plinth.evaluation.parameters import TaskSet
from plinth.evaluation.tasks import job
from plinth.evaluation.tasks.job import ITEMS
from plinth.model.export import export_model
from plinth.records import Manifest
from plinth.storage.parts import read_table
from plinth.storage.workspace import Workspace
from tests.services import missing

HERE = Path(__file__).parent
FILES = HERE / "files"
ROOT = HERE.parents[3]
PATHS = os.pathsep.join((str(ROOT / "platform"), str(ROOT)))

pytestmark = pytest.mark.slow

Ours = tuple[Context, Manifest]


def start(*arguments: object, out: Path, **variables: str) -> subprocess.Popen[bytes]:
    """`measure.py` in a network namespace of its own, where this machine lets us: there is no network in it."""
    cut = [] if missing("network namespace") else ["unshare", "--map-root-user", "--net"]
    command = [*cut, sys.executable, "-m", "tests.plinth.evaluation.tasks.measure", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": PATHS, **variables}
    with out.open("wb") as output:
        return subprocess.Popen(command, env=environment, stdout=output, start_new_session=True, cwd=ROOT)


@pytest.fixture(scope="module")
def ours(trained_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Ours:
    """All twelve, measured in a process that has no network."""
    folder = tmp_path_factory.mktemp("ours")
    assert start(folder / "workspace", trained_folder, FILES, out=folder / "said").wait() == 0
    made = Manifest.model_validate_json((folder / "workspace" / "measured.json").read_text())
    return Context(Workspace(folder / "workspace")), made


@pytest.fixture(scope="module")
def theirs(trained_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """lm-evaluation-harness' numbers, from a process of its own."""
    folder = tmp_path_factory.mktemp("theirs")
    export_model(trained_folder, trained_folder / "tokenizer.json", folder / "model")
    environment = {**os.environ, **job.OFFLINE, "USE_TORCH": "1", "HF_HOME": str(folder / "hub")}
    environment["OMP_NUM_THREADS"] = "1"  # as ours: by two threads, near ties of an untrained model end otherwise
    command = [sys.executable, str(HERE / "hflm.py"), str(folder / "model"), str(FILES), str(folder / "out.json")]
    subprocess.run(command, check=True, env=environment, capture_output=True, cwd=folder)
    found: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return found


@pytest.mark.exhaustive
def test_every_metric_is_that_of_hflm(ours: Ours, theirs: dict[str, Any]) -> None:
    tasks = ours[1].stats["tasks"]
    assert len(tasks) == 12
    for task, facts in tasks.items():
        expected = {
            key.removesuffix(",none"): value
            for key, value in theirs["results"][task].items()
            if "," in key and "_stderr," not in key
        }
        found = {metric: one["value"] for metric, one in facts["metrics"].items()}
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9), task


@pytest.mark.exhaustive
def test_every_generated_answer_is_that_of_hflm(ours: Ours, theirs: dict[str, Any]) -> None:
    ctx, made = ours
    answers: set[str] = set()
    for task in ("copies", "years"):
        (part,) = [part for part in made.parts if part.name == f"{task}.parquet"]
        expected = {(digest, name): answer[0] for digest, name, answer in theirs["samples"][task]}
        rows = read_table(ctx.store, part).to_pylist()
        assert {(row["hash"], row["filter"]): row["output"] for row in rows} == expected
        answers |= set(expected.values())
    assert len(answers) > 3


@pytest.mark.exhaustive
def test_every_number_has_its_interval_and_its_n(ours: Ours) -> None:
    ctx, made = ours
    for task, facts in made.stats["tasks"].items():
        assert facts["documents"] >= 4
        for metric, found in facts["metrics"].items():
            assert found["low"] <= found["value"] <= found["high"], (task, metric)
            assert (found["n"], facts["damaged"]) == (facts["documents"], 0)
    table = read_table(ctx.store, made.parts[0])
    assert table.schema == ITEMS
    (part,) = [part for part in made.parts if part.name == "sentences.parquet"]
    rows = [row for row in read_table(ctx.store, part).to_pylist() if row["metric"] == "bits_per_byte"]
    rate = sum(row["bits"] for row in rows) / sum(row["bytes"] for row in rows)
    assert rate == pytest.approx(made.stats["tasks"]["sentences"]["metrics"]["bits_per_byte"]["value"], rel=1e-9)


@pytest.mark.exhaustive
@pytest.mark.parametrize("tasks", [0, 1, 6])
def test_what_was_killed_goes_on_where_it_was(ours: Ours, trained_folder: Path, tmp_path: Path, tasks: int) -> None:
    """Kill the job with all its processes when `tasks` tasks are recorded: it waits there."""
    workspace, said = tmp_path / "workspace", tmp_path / "said"
    first = start(workspace, trained_folder, FILES, out=said, HOLD_AFTER=str(tasks))
    while first.poll() is None and "held" not in said.read_text():
        time.sleep(0.02)
    assert first.poll() is None, "ended before it could be killed"
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert start(workspace, trained_folder, FILES, out=said).wait() == 0
    assert said.read_text().split() == ["left", str(12 - tasks)]
    assert Manifest.model_validate_json((workspace / "measured.json").read_text()) == ours[1]


@pytest.mark.needs("network namespace")
def test_a_namespace_of_ones_own_has_no_network() -> None:
    """That of the two runs above. A connection to this very machine fails in it."""
    asked = "import socket; socket.create_connection(('127.0.0.1', 9), 1)"
    done = subprocess.run(
        ["unshare", "--map-root-user", "--net", sys.executable, "-c", asked], capture_output=True, text=True
    )
    assert "Network is unreachable" in done.stderr


@pytest.mark.exhaustive
def test_a_rerun_starts_nothing(ours: Ours, trained_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.plinth.evaluation.tasks.measure import measure

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", never)
    ctx, made = ours
    assert measure(ctx, trained_folder, FILES) == made
    assert list(ctx.workspace.tmp.iterdir()) == []


def test_what_python_leaves_beside_a_module_is_no_task_file(ctx: Context, tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    shutil.copytree(FILES, folder, ignore=shutil.ignore_patterns("__pycache__"))
    before = lists.digest(ctx, str(folder)), job.task_files(ctx, "small", str(folder)).digest
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "functions.cpython-311.pyc").write_bytes(b"compiled")
    assert (lists.digest(ctx, str(folder)), job.task_files(ctx, "small", str(folder)).digest) == before


@pytest.mark.parametrize("data", [b"", pytest.param(b"not tensors", marks=pytest.mark.exhaustive)])
def test_a_model_that_does_not_load_is_an_error(
    ctx: Context, model_folder: Path, all_files: Manifest, tmp_path: Path, data: bytes
) -> None:
    from tests.plinth.evaluation.tasks.measure import put

    spoilt = tmp_path / "model"
    shutil.copytree(model_folder, spoilt)
    if data:
        (spoilt / "model.safetensors").write_bytes(data)
        with pytest.raises((CheckpointError, TrainingError), match="could not be evaluated"):
            job.run(ctx, "small", TaskSet(include="small", tasks=("reviews",)), put(ctx, spoilt), all_files)
    (spoilt / "model.safetensors").unlink()  # is seen before anything is started
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        job.run(ctx, "small", TaskSet(include="small", tasks=("reviews",)), put(ctx, spoilt), all_files)


@pytest.mark.exhaustive
def test_what_cannot_be_run_says_so(ctx: Context, checkpoint: Manifest, task_files: Callable[..., Manifest]) -> None:
    def spoil(folder: Path) -> None:
        (folder / "functions.py").write_text("import nothing_of_this_name\n")

    with pytest.raises(StageError, match=r"(?s)task set small could not be run.*nothing_of_this_name"):
        job.run(ctx, "small", TaskSet(include="small", tasks=("pronouns",)), checkpoint, task_files(spoil))


@pytest.mark.needs("network namespace")
def test_functions_of_tasks_reach_no_network(
    ctx: Context, checkpoint: Manifest, task_files: Callable[..., Manifest]
) -> None:
    """In an ordinary run too: what a YAML names runs where not even this machine can be reached."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"import socket\n\nsocket.create_connection({server.getsockname()!r}, 5)\n"

        def spoil(folder: Path) -> None:
            (folder / "functions.py").write_text(connect)

        exec(connect)
        with pytest.raises(StageError, match=r"(?s)task pronouns cannot be loaded.*Network is unreachable"):
            job.run(ctx, "small", TaskSet(include="small", tasks=("pronouns",)), checkpoint, task_files(spoil))


def test_a_folder_without_task_files_is_no_source(ctx: Context, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("nothing here")
    with pytest.raises(SourceError, match=r"evaluation\.tasks\.small\.include"):
        job.task_files(ctx, "small", str(tmp_path))
