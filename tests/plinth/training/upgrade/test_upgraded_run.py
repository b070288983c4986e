"""Other code takes over a real run, or is refused and the run goes on with the code that it had."""

from __future__ import annotations

import contextlib
import shutil
import site
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import held_ranks
import pytest
from click.testing import CliRunner
from tiny_mixture import made_mixture

import plinth
from plinth.compute.context import Context
from plinth.errors import MissingError, RequestError
from plinth.launch.parameters import Launch, Supervision
from plinth.model.parameters import Model
from plinth.storage.workspace import Workspace
from plinth.training import attempts, config, job, preparation
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.forensics.proof import audit
from plinth.training.parameters.run import Checkpoints, Training
from plinth.training.telemetry.timeline import timeline
from plinth.training.upgrade import environment
from plinth.training.upgrade.record import UpgradeRequest, ask
from plinth_jobs.cli import cli
from plinth_jobs.cli.upgrade import _require_compared, _require_span
from plinth_registry import trained

HERE = Path(__file__).parents[1]
ROOTS = [Path(plinth.__file__).parents[2] / name for name in ("platform", "registry", "assets", "jobs")]
TRAINING = Training(
    model=Model(layers=1, dim=32, heads=2, kv_heads=1, ffn_dim=48),
    micro_batch_sequences=2,
    global_batch_sequences=4,
    checkpoints=Checkpoints(every_steps=2, audit_steps=3, keep_last=4),
    supervision=Supervision(backoff_s=0.1, grace_s=300.0, hang_s=1800.0),
    launch=Launch(ranks=1),
)


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


@pytest.fixture
def stopped(
    ctx: Context,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job_environment: Callable[..., dict[str, str]],
) -> Iterator[RunConfig]:
    """A run with commits after steps 2, 4, 6 and 7, whose job was stopped."""
    monkeypatch.setenv("PYTHONPATH", job_environment()["PYTHONPATH"])
    mixed, sharded, trained_tokenizer = made_mixture(ctx)
    found = preparation.prepare(ctx, "demo", TRAINING, mixed, sharded, trained_tokenizer)
    launch = found.launch.model_copy(update={"environment": {"HELD": str(tmp_path)}})
    found = found.model_copy(update={"batches": "held_ranks:open_batches", "launch": launch})
    config.write(found)
    held_ranks.hold(tmp_path, 6)
    job.submit_or_find(ctx, found)
    until = time.monotonic() + 240.0
    while not held_ranks.waiting(tmp_path, 1):
        assert time.monotonic() < until, found.directory.log.read_text()[-2000:]
        time.sleep(0.05)
    job.cancel(ctx, found)
    held_ranks.let_go(tmp_path)
    assert checkpoint.committed(found.directory) == [2, 4, 6, 7]
    yield found
    job.cancel(ctx, found)


def other_code(folder: Path, file: str, before: str, after: str) -> Path:
    """An interpreter whose Plinth differs in one file."""
    shutil.copytree(ROOTS[0], folder / "platform", ignore=shutil.ignore_patterns("__pycache__"))
    changed = folder / "platform" / file
    text = changed.read_text()
    assert text.count(before) == 1
    changed.write_text(text.replace(before, after))
    venv.create(folder / "venv")
    (own,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (own / "a.pth").write_text("\n".join(map(str, [folder / "platform", *ROOTS[1:], HERE])))
    packages = [path for path in sys.path if path.endswith("-packages") and path not in site.PREFIXES]
    (own / "z.pth").write_text("import site; " + "; ".join(f"site.addsitedir({path!r})" for path in packages) + "\n")
    return folder / "venv" / "bin" / "python"


def upgrade(run: RunConfig, *options: str) -> str:
    root = run.directory.workspace
    with contextlib.chdir(root.parent):  # the default is a relative path too
        done = CliRunner().invoke(cli, ["run", "upgrade", run.run_id, "--workspace", root.name, *options])
    return f"{done.output}{done.exception or ''}"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_code_that_repeats_the_steps_bit_for_bit_takes_over(ctx: Context, stopped: RunConfig, tmp_path: Path) -> None:
    python = other_code(tmp_path / "new", "plinth/training/loop.py", "from __future__", "# other code\nfrom __future__")
    assert "accepted: bit-equal over 5 steps" in upgrade(stopped, "--python", str(python), "--from", "2")
    assert job.follow(ctx, stopped).status == "finished"
    story = timeline(stopped.directory.events)
    assert list(story.steps) == list(range(1, 13))
    assert [event["verdict"] for event in story.of("upgraded")] == ["bit-equal"]
    records = tuple(attempts.stated(one, "") for one in attempts.known(stopped.directory))
    assert [(one.audit, one.upgrade is not None) for one in records] == [
        (False, False), (True, False), (False, True), (True, False),
    ]  # fmt: skip
    assert [one.increase for one in trained.code(records).changes] == [0.0]
    assert not stopped.directory.upgrade.exists()

    assert "trained by this code already" in upgrade(stopped, "--python", str(python))
    assert "has taken its last step, 12" in upgrade(stopped, "--python", sys.executable)
    assert not stopped.directory.upgrade.exists()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("file", "before", "after", "reason"),
    [
        ("model/blocks.py", "(functional.silu(", "(functional.gelu(", "refused: undecided over 5 steps: loss"),
        (
            "training/engine/optimization.py",
            "    return optimizer.weight_decay\n",
            "    return 0.0\n",
            "the job ended: CheckpointError: optimizer_sha256 differs after loading step-00000002",
        ),
    ],
    ids=["activation", "decay"],
)
def test_code_that_computes_otherwise_is_refused_and_the_old_code_goes_on(
    ctx: Context, stopped: RunConfig, tmp_path: Path, file: str, before: str, after: str, reason: str
) -> None:
    python = other_code(tmp_path / "new", f"plinth/{file}", before, after)
    assert reason in upgrade(stopped, "--python", str(python), "--from", "2")
    story = timeline(stopped.directory.events)
    assert story.of("upgraded") == story.of("audited") == []  # the replay says nothing about a resume
    assert not stopped.directory.evidence.exists()
    job.submit_or_find(ctx, stopped)
    assert job.follow(ctx, stopped).status == "finished"
    records = tuple(attempts.stated(one, "") for one in attempts.known(stopped.directory))
    assert trained.code(records).changes == ()  # the code that was refused took no step of the run
    assert not stopped.directory.upgrade.exists()


def test_steps_to_repeat_must_exist_before_the_job_is_stopped(make: Callable[..., RunConfig]) -> None:
    run = make()
    with pytest.raises(RequestError, match="has not started"):
        _require_compared(run)
    run.directory.checkpoints.mkdir(parents=True)
    (run.directory.checkpoints / "step-00000004.json").touch()
    with pytest.raises(MissingError, match="nothing to replay"):
        _require_span(run, None)
    (run.directory.checkpoints / "step-00000002.json").touch()
    _require_span(run, None)
    with pytest.raises(MissingError, match="nothing to replay from step 1"):
        _require_span(run, 1)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_change_of_code_without_a_comparison_is_named(ctx: Context, stopped: RunConfig, tmp_path: Path) -> None:
    python = other_code(tmp_path / "new", "plinth/training/loop.py", "from __future__", "# other code\nfrom __future__")
    environment.submitted(python, stopped, "--workspace", str(stopped.directory.workspace))
    assert job.follow(ctx, stopped).status == "finished"
    records = tuple(attempts.stated(one, "") for one in attempts.known(stopped.directory))
    (change,) = trained.code(records).changes
    assert (change.text, change.increase) == ("attempt 2 has other code from step 8: not compared", None)
    ask(stopped.directory, UpgradeRequest(from_step=10))  # left by a command that was killed
    assert audit(stopped, 8)["from_step"] == 8


@pytest.mark.slow
@pytest.mark.exhaustive
def test_an_interpreter_with_the_code_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLINTH_PRIVATE", str(tmp_path))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python = environment.of_commit("HEAD")
    asked = [str(python), "-P", "-c", "import plinth_jobs, plinth; print(plinth_jobs.__file__, plinth.__file__)"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert [Path(path).is_relative_to(tmp_path) for path in done.stdout.split()] == [True, True]
    assert environment.of_commit("HEAD") == python
    code = "from plinth.training.attempts import this_host; host = this_host(); print(host.commit, host.dirty)"
    done = subprocess.run([str(python), "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [python.parents[2].name, "False"]
    with pytest.raises(RequestError, match="commit 0000000 is unknown"):
        environment.of_commit("0000000")
