"""Runs on a real Slurm cluster of two nodes: submitted once, found again, requeued, canceled."""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from plinth.compute.context import Context
from plinth.errors import LaunchError, TrainingError
from plinth.launch.base import EXCLUDED, Handle, JobStatus
from plinth.launch.conformance import SeveralNodes
from plinth.launch.parameters import Launch, Slurm, Supervision
from plinth.launch.slurm import SCRIPT, SlurmLauncher, sbatch_script
from plinth.storage.workspace import CACHE_VARIABLE, Workspace, folder_of
from plinth.training import job
from plinth.training.checkpoint import checkpoint
from plinth.training.config import RunConfig
from plinth.training.supervise.result import JobResult
from plinth.training.telemetry.timeline import timeline
from tests.plinth.training import held_ranks
from tests.plinth.training.conftest import environment, tiny
from tests.slurm_cluster import slurm_cluster

#: Prints what a process on another machine would see.
LOOK = """
import sys
from plinth.training import config, job, run_state
loaded = config.load(sys.argv[1])
launcher = run_state.launcher_of(loaded)
handle = launcher.find(loaded.directory.root)
print(handle.id, launcher.poll(handle).alive)
"""


def wait_for(condition: Callable[[], object], what: str, log: Path, seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        said = log.read_text()[-3000:] if log.exists() else "no log"
        assert time.monotonic() < until, f"waited in vain: {what}\n{said}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
def on_cluster(cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(SLURM_CONF=cluster["SLURM_CONF"]).items():
        monkeypatch.setenv(name, value)


def call(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout.strip()


# ---- the script -----------------------------------------------------------------------------------


def test_script_asks_for_what_the_recipe_says(tmp_path: Path) -> None:
    asked = Slurm(sbatch=("--partition=gpu", "--time=2-12:00:00", "--qos=high"))
    launch = Launch(kind="slurm", ranks=4, nodes=2, slurm=asked.model_copy(update={"setup": ("module load cuda",)}))
    text = sbatch_script(launch, 90.0, ["python", "-m", "it", "a b"], tmp_path / "run-1", tmp_path / "100%.log")
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert {line for line in lines if line.startswith("#SBATCH")} == {
        "#SBATCH --requeue",
        "#SBATCH --job-name=plinth-run-1",
        f"#SBATCH --comment={tmp_path}/run-1",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --output={tmp_path}/100%%.log",
        "#SBATCH --open-mode=append",
        "#SBATCH --signal=B:TERM@150",
        "#SBATCH --partition=gpu",
        "#SBATCH --time=2-12:00:00",
        "#SBATCH --qos=high",
    }
    assert "module load cuda" in lines
    assert any(line.lstrip().startswith("srun --nodes=2 ") and line.endswith("python -m it 'a b' &") for line in lines)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_in_a_bucket_each_node_keeps_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor writes it where nothing else does: srun must not give it a pipe."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    run = Workspace(folder_of("s3://bucket/ws")).ensure().runs / "r1"
    text = sbatch_script(Launch(kind="slurm", ranks=4, nodes=2), 90.0, ["python"], run, run / "job.log")
    assert "#SBATCH --output=/dev/null\n" in text
    command = next(line.strip() for line in text.splitlines() if line.lstrip().startswith("srun "))
    wrapper = ["bash", *shlex.split(command)[shlex.split(command).index("bash") + 1 : -2]]
    looks = "import os; raise SystemExit(not os.path.samestat(os.fstat(1), os.stat('/dev/null')))"
    assert subprocess.run([*wrapper, sys.executable, "-c", looks], stdout=subprocess.PIPE, check=False).returncode == 0
    assert "/dev/null" not in sbatch_script(Launch(kind="slurm", ranks=4, nodes=2), 90.0, ["x"], tmp_path, run).replace(
        "2>/dev/null", ""
    )


@pytest.mark.parametrize(
    ("recorded", "status", "leaves"),
    [("finished", 137, 0), ("finished", 75, 0), ("stopped", 137, 75), ("stopped", 0, 0), ("failed", 7, 7), ("", 9, 9)],
)
def test_with_spares_a_lost_node_ends_neither_the_job_nor_decides_its_status(
    tmp_path: Path, recorded: str, status: int, leaves: int
) -> None:
    """Slurm keeps the allocation. The outcome that node 0 has recorded counts, not the status of srun, unless an
    earlier job has recorded it: a job that cannot start would be requeued forever."""
    launch, run = Launch(kind="slurm", ranks=4, nodes=2, spares=1), tmp_path / "a run"
    run.mkdir()
    text = sbatch_script(launch, 90.0, ["python"], run, tmp_path / "log")
    assert "#SBATCH --nodes=3\n" in text
    assert "#SBATCH --no-kill\n" in text
    assert "srun --nodes=3 --ntasks=3 " in text
    assert " --input=none --no-kill " in text
    assert "export PLINTH_NODES=3\n" in text
    before = next(line for line in text.splitlines() if line.startswith("before="))
    after = text[text.index('[ "$(stat') : text.index("esac") + 4]
    made = JobResult(status=recorded or "stopped", step=1, restarts=0, lost_steps=0, lost_s=0.0)
    given = {"made": made.model_dump_json(indent=1), "result": str(run / "result.json")}
    record = 'rm -f "$result"\necho "$made" > "$result"' if recorded else ":"
    for _ in range(2):  # also after a job with the same outcome
        words = f"{before}\n{record}\nstatus={status}\n{after}\nexit $status"
        assert subprocess.run(["bash", "-c", words], env={**os.environ, **given}, check=False).returncode == leaves
        (run / "result.json").touch()
    Path(given["result"]).write_text(given["made"])
    words = f"{before}\nstatus=9\n{after}\nexit $status"
    assert subprocess.run(["bash", "-c", words], env={**os.environ, **given}, check=False).returncode == 9
    assert "--no-kill" not in sbatch_script(launch.model_copy(update={"spares": 0}), 90.0, ["python"], run, run)


@pytest.mark.parametrize(
    ("queueing", "sbatch", "asked"),
    [
        ({}, (), []),
        ({"team": "web"}, (), ["--account=web"]),
        ({"team": "web", "priority": "high"}, (), ["--account=web", "--qos=high"]),
        ({"team": "web", "priority": "low"}, ("--qos=scavenge",), ["--account=web", "--qos=scavenge"]),
        ({"team": "web", "priority": "low"}, ("-A other", "-q x"), ["-A other", "-q x"]),
    ],
)
def test_a_team_is_an_account_and_a_priority_a_quality_of_service(
    tmp_path: Path, queueing: dict[str, str], sbatch: tuple[str, ...], asked: list[str]
) -> None:
    launch = Launch.model_validate({"kind": "slurm", "queueing": queueing, "slurm": {"sbatch": sbatch}})
    text = sbatch_script(launch, 90.0, ["it"], tmp_path / "run-1", tmp_path / "log")
    found = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert [line for line in found if line.startswith(("--account", "--qos", "-A", "-q"))] == asked


@pytest.mark.parametrize(
    ("status", "requeued"),
    [("exit 0", False), ("exit 7", False), ("exit 75", True), ("kill -9 $BASHPID", False)],
)
def test_only_a_job_that_left_in_order_is_requeued(tmp_path: Path, status: str, requeued: bool) -> None:
    """Run the script itself, with a stand-in for scontrol that records its calls."""
    tool = tmp_path / "scontrol"
    tool.write_text(f'#!/bin/bash\necho "$@" >> {tmp_path}/asked\n')
    tool.chmod(tool.stat().st_mode | stat.S_IEXEC)
    text = sbatch_script(Launch(kind="slurm"), 1.0, ["bash", "-c", status], tmp_path, tmp_path / "log")
    paths = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "5"}
    done = subprocess.run(["bash"], input=text, text=True, env=paths, timeout=300, check=False, capture_output=True)
    assert done.returncode == {"exit 0": 0, "exit 7": 7, "exit 75": 75}.get(status, 128 + signal.SIGKILL)
    assert (tmp_path / "asked").exists() is requeued
    if requeued:
        assert (tmp_path / "asked").read_text() == "requeue 5\n"


def test_script_hands_the_signal_on_and_waits(tmp_path: Path) -> None:
    leaves = "import signal, sys, time; signal.signal(15, lambda *_: (time.sleep(0.3), sys.exit(3)));"
    leaves += "print('up', flush=True); time.sleep(600)"
    text = sbatch_script(Launch(kind="slurm"), 1.0, [sys.executable, "-c", leaves], tmp_path, tmp_path / "log")
    (tmp_path / "it").write_text(text)
    shell = subprocess.Popen(["bash", tmp_path / "it"], stdout=subprocess.PIPE)
    assert shell.stdout is not None
    assert shell.stdout.readline() == b"up\n"
    for _ in range(2):
        shell.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    assert shell.wait(300) == 3
    shell.stdout.close()


def test_no_slurm_on_this_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="no squeue on this machine"):
        SlurmLauncher(Launch(kind="slurm"), 1.0).submit(["true"], tmp_path / "run", tmp_path / "log")


# ---- the cluster ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("on_cluster")
class TestConformance(SeveralNodes):
    kind = "slurm"

    def launcher(self, nodes: int = 1) -> SlurmLauncher:
        return SlurmLauncher(Launch(kind="slurm", ranks=nodes, nodes=nodes), 1.0, every_s=0.0)

    @pytest.mark.exhaustive
    def test_cancel_ends_a_job_that_ignores_it_with_its_children(self, tmp_path: Path) -> None:
        """Takes two minutes: Slurm kills what ignores it only after its KillWait."""
        super().test_cancel_ends_a_job_that_ignores_it_with_its_children(tmp_path)


@pytest.mark.usefixtures("on_cluster")
def test_names_and_refusals_of_the_cluster(tmp_path: Path) -> None:
    launcher, log = SlurmLauncher(Launch(kind="slurm", ranks=1), 1.0, every_s=0.0), tmp_path / "job.log"
    handle = launcher.submit(["sleep", "600"], tmp_path, log)
    assert (handle.launcher, handle.host, handle.started) == ("slurm", "plinth", f"plinth-{tmp_path.name}")
    assert call("squeue", "--noheader", "--format=%i").split() == [handle.id]
    launcher.cancel(handle, 5.0)
    wait_for(lambda: launcher.poll(handle) is JobStatus.GONE, "the job is gone", log)
    assert launcher.poll(Handle(launcher="slurm", id="99999", started="x", host="plinth")) is JobStatus.GONE
    greedy = SlurmLauncher(Launch(kind="slurm", slurm=Slurm(sbatch=("--partition=nowhere",))), 1.0)
    with pytest.raises(LaunchError, match="sbatch failed") as refused:
        greedy.submit(["true"], tmp_path / "greedy", log)
    assert "invalid partition" in str(refused.value)


@pytest.mark.usefixtures("on_cluster")
def test_a_silent_controller_is_no_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, log = SlurmLauncher(Launch(kind="slurm", ranks=1), 1.0, every_s=0.0), tmp_path / "job.log"
    handle = launcher.submit(["sleep", "600"], tmp_path, log)
    wait_for(lambda: launcher.poll(handle) is JobStatus.RUNNING, "the job runs", log)
    config = tmp_path / "slurm.conf"
    text = Path(os.environ["SLURM_CONF"]).read_text()
    with monkeypatch.context() as away:
        away.setenv("SLURM_CONF", str(config))
        config.write_text(text + "MessageTimeout=2\n")
        config.write_text(config.read_text().replace("SlurmctldPort=", "SlurmctldPort=1 #"))
        assert launcher.poll(handle) is JobStatus.RUNNING
        with pytest.raises(LaunchError, match="squeue failed"):
            SlurmLauncher(Launch(kind="slurm", ranks=1), 1.0).poll(handle)
    launcher.cancel(handle, 0.0)
    wait_for(lambda: launcher.poll(handle) is JobStatus.GONE, "the job is gone", log)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.usefixtures("on_cluster")
def test_two_nodes_crash_preempted_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank on each node: pending, a rank away is killed, an urgent job takes a node, finished bit for bit."""
    (tmp_path / "marks").mkdir()
    held_ranks.hold(tmp_path / "marks", 6)
    faults = {"marks": str(tmp_path / "marks"), "faults": [["kill", 5, 1]]}
    monkeypatch.setenv("FAULTS", json.dumps(faults))
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    config = tiny(
        ctx.workspace.root,
        launch=Launch(kind="slurm", ranks=2, nodes=2),
        supervision=Supervision(backoff_s=0.1, grace_s=300.0, hang_s=1800.0),
        batches="faulty_ranks:open_batches",
    )
    run = config.directory
    blocker = call("sbatch", "--parsable", "--nodes=2", "--output=/dev/null", "--wrap=sleep 300")
    handle = job.submit_or_find(ctx, config)
    launcher = SlurmLauncher(config.launch, 20.0, every_s=0.0)
    assert (run.root / SCRIPT).exists()
    assert launcher.poll(handle) is JobStatus.PENDING
    assert job.submit_or_find(ctx, config) == handle
    call("scancel", blocker)

    wait_for(lambda: held_ranks.waiting(tmp_path / "marks", 2), "step 5", run.log)
    (restart,) = timeline(run.events).of("restart")
    assert "rank 1 was killed by SIGKILL" in restart["reason"]
    call("sbatch", "--partition=urgent", "--nodes=1", "--output=/dev/null", "--wrap=true")
    wait_for(lambda: timeline(run.events).of("stopped"), "the supervisor leaves in order", run.log)
    assert max(checkpoint.committed(run)) == 7
    assert [event["signal"] for event in timeline(run.events).of("signal")] == ["SIGTERM"]
    assert timeline(run.events).of("lost") == []
    held_ranks.let_go(tmp_path / "marks")
    seen = subprocess.run(
        [sys.executable, "-c", LOOK, str(run.config)], capture_output=True, text=True, timeout=300, check=True
    )
    assert seen.stdout.split() == [handle.id, "True"]

    assert job.follow(ctx, config).status == "finished"
    story = timeline(run.events)
    assert [event["step"] for event in story.of("resumed")] == [3, 7]
    assert list(story.steps) == list(range(1, 13))
    assert story.diverged == []
    assert json.loads(run.evidence.read_bytes())["bit_exact"] is True
    assert "finished at step 12" in launcher.logs(run.log, 20)
    assert job.submit_or_find(ctx, config) == handle  # nothing is left to do


def cancelled(ctx: Context, config: RunConfig) -> None:
    """A job that is canceled saves, leaves, and does not come back."""
    job.submit_or_find(ctx, config)
    wait_for(lambda: timeline(config.directory.events).steps, "a step", config.directory.log)
    job.cancel(ctx, config)
    with pytest.raises(TrainingError, match="stopped at step"):
        job.follow(ctx, config)
    assert call("squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%i") == ""


@pytest.mark.slow
@pytest.mark.usefixtures("on_cluster")
def test_cancel_saves_and_is_not_requeued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "marks").mkdir()
    monkeypatch.setenv("FAULTS", json.dumps({"marks": str(tmp_path / "marks"), "faults": []}))
    held_ranks.hold(tmp_path / "marks", 2)
    ctx = Context(Workspace(tmp_path / "workspace").ensure())
    launch = Launch(kind="slurm", ranks=1)
    cancelled(ctx, tiny(ctx.workspace.root, launch=launch, batches="faulty_ranks:open_batches"))


@pytest.mark.usefixtures("on_cluster")
def test_a_job_goes_on_without_a_node_that_was_excluded(tmp_path: Path) -> None:
    """The first machine is written down as one that is not fit; the job comes back on the other, and on no other."""
    seen, excluded = tmp_path / "seen", tmp_path / EXCLUDED
    words = f'echo "$PLINTH_HOST" >> {seen}; [ -e {excluded} ] && exit 0; echo "$PLINTH_HOST" > {excluded}; exit 75'
    launcher = SlurmLauncher(Launch(kind="slurm", ranks=1), 20.0, every_s=0.0)
    log = tmp_path / "job.log"
    handle = launcher.submit(["bash", "-c", words], tmp_path, log)
    wait_for(lambda: not launcher.poll(handle).alive, "the job ends on another node", log)
    hosts = seen.read_text().split()
    assert sorted(hosts) == ["n1", "n2"], log.read_text()
    assert excluded.read_text().split() == hosts[:1]
