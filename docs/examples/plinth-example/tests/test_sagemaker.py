"""The launcher against SageMaker's API over HTTP: moto behind a proxy that plays the instances."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import boto3
import pytest
from plinth_example.request import HOSTS, job_script, request
from plinth_example.sagemaker import SageMaker
from pydantic import ValidationError

from plinth.errors import LaunchError, RecipeError
from plinth.launch.base import HANDLE, LAUNCHERS, Handle, JobStatus, choose
from plinth.launch.parameters import Launch

OPTIONS: dict[str, Any] = {
    "role": "arn:aws:iam::123456789012:role/training",
    "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/plinth:1",
    "instance": "ml.g5.12xlarge",
    "output": "s3://bucket/plinth",
    "file_system": "fs-0123456789abcdef0",
    "directory": "/abcdefgh/workspace",
    "subnets": ["subnet-0123456789abcdef0"],
    "security_groups": ["sg-0123456789abcdef0"],
    "python": sys.executable,
}

#: Counts its starts, then waits; at SIGTERM it reports so and exits with the status of a supervisor that saved.
COUNTING = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("saved", flush=True), sys.exit(75)))
starts = pathlib.Path(sys.argv[1])
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
print("started", flush=True)
while not starts.with_name("finish").exists():
    time.sleep(0.05)
print("finished", flush=True)
"""


def launch(nodes: int = 1, **changes: Any) -> Launch:
    return Launch(kind="sagemaker", ranks=nodes, nodes=nodes, options={**OPTIONS, **changes})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "work space" / "runs" / "demo-0123456789ab"
    folder.mkdir(parents=True)
    return folder


def command(run: Path) -> list[str]:
    return ["python-of-the-submitter", "-c", COUNTING, str(run / "starts")]


def sagemaker(**changes: Any) -> SageMaker:
    return SageMaker(launch(**changes), 60.0, every_s=0.0)


def until(path: Path, text: str) -> None:
    deadline = time.monotonic() + 120
    while not (path.exists() and text in path.read_text()):
        assert time.monotonic() < deadline, f"no {text!r} in {path}"
        time.sleep(0.05)


def test_it_is_found_by_its_entry_point() -> None:
    assert isinstance(choose("sagemaker", launch(), 60.0), SageMaker)
    origin = LAUNCHERS.origin("sagemaker")
    assert origin is not None
    assert (origin.distribution, origin.version, len(origin.sha256)) == ("plinth-example", "0.1.0", 64)


def test_submitted_twice_is_one_job_and_a_new_process_finds_it(server: Any, run: Path) -> None:
    first = sagemaker().submit(command(run), run, run / "job.log")
    again = sagemaker().submit(command(run), run, run / "job.log")
    assert first == again == sagemaker().find(run)
    assert server.names() == [first.id]
    assert first.id.startswith("plinth-demo-0123456789ab-")
    assert first.id.endswith("-1")
    assert first.host == "arn:aws:sagemaker:us-east-1:123456789012"
    assert sagemaker().poll(first) is JobStatus.PENDING


def test_a_lost_handle_costs_nothing(server: Any, run: Path) -> None:
    first = sagemaker().submit(command(run), run, run / "job.log")
    (run / HANDLE).unlink()
    assert sagemaker().find(run) == first
    assert sagemaker().submit(command(run), run, run / "job.log") == first
    assert server.names() == [first.id]


def test_two_submitters_at_once_make_one_job(server: Any, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second saw no job when it looked, and meets the first's when it creates its own."""
    first = sagemaker().submit(command(run), run, run / "job.log")
    (run / HANDLE).unlink()
    monkeypatch.setattr(SageMaker, "_last", lambda self, directory: 0)
    assert sagemaker().submit(command(run), run, run / "job.log") == first
    assert server.calls["CreateTrainingJob"] == 2
    assert server.names() == [first.id]


def test_a_job_runs_is_interrupted_by_spot_and_goes_on(server: Any, run: Path) -> None:
    launcher, log = sagemaker(spot=True), run / "job.log"
    handle = launcher.submit(command(run), run, log)
    workspace = run.parent.parent
    server.run(handle.id, workspace)
    until(log, "started")
    assert launcher.poll(handle) is JobStatus.RUNNING
    server.interrupt(handle.id)
    assert launcher.poll(handle) is JobStatus.PENDING  # not submitted again
    assert launcher.submit(command(run), run, log) == handle
    process = server.run(handle.id, workspace)  # SageMaker has an instance again
    until(run / "starts", "xx")
    (run / "finish").touch()
    process.communicate(timeout=120)
    assert process.returncode == 0
    server.set(handle.id, "Completed", "Completed")
    assert launcher.poll(handle) is JobStatus.GONE
    assert launcher.logs(log).splitlines() == ["started", "saved", "started", "finished"]


def test_a_job_that_has_ended_is_followed_by_the_next_attempt(server: Any, run: Path) -> None:
    first = sagemaker().submit(command(run), run, run / "job.log")
    server.set(first.id, "Stopped", "MaxWaitTimeExceeded")
    second = sagemaker().submit(command(run), run, run / "job.log")
    assert [name.rpartition("-")[2] for name in server.names()] == ["1", "2"]
    assert second.id == f"{first.id.rpartition('-')[0]}-2"
    assert sagemaker().poll(first) is JobStatus.GONE


def test_cancel_stops_it_and_may_be_repeated(server: Any, run: Path) -> None:
    launcher, log = sagemaker(), run / "job.log"
    handle = launcher.submit(command(run), run, log)
    server.run(handle.id, run.parent.parent)
    until(log, "started")
    launcher.cancel(handle, 30.0)
    assert "saved" in log.read_text()
    assert launcher.poll(handle) is JobStatus.GONE
    launcher.cancel(handle, 30.0)
    assert server.calls["StopTrainingJob"] == 2


def test_a_recycled_name_is_another_job(server: Any, run: Path) -> None:
    handle = sagemaker().submit(command(run), run, run / "job.log")
    other = Handle(launcher="sagemaker", id=handle.id, started="2020-01-01T00:00:00+00:00", host=handle.host)
    assert sagemaker().poll(other) is JobStatus.GONE
    assert sagemaker().poll(other.model_copy(update={"id": "plinth-nothing-1"})) is JobStatus.GONE


def test_throttling_is_waited_out_and_silence_is_no_end(
    server: Any, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plinth_example.sagemaker._RETRIES", {"mode": "standard", "max_attempts": 2})
    launcher = sagemaker()
    handle = launcher.submit(command(run), run, run / "job.log")
    assert launcher.poll(handle) is JobStatus.PENDING
    before = server.calls["DescribeTrainingJob"]
    server.throttle["DescribeTrainingJob"] = 1
    assert launcher.poll(handle) is JobStatus.PENDING  # the second try was answered
    assert server.calls["DescribeTrainingJob"] == before + 2
    server.throttle["DescribeTrainingJob"] = 99
    assert launcher.poll(handle) is JobStatus.PENDING  # no response: last known state
    with pytest.raises(LaunchError, match="AWS refused describe_training_job") as refused:
        sagemaker().poll(handle)
    assert "Rate exceeded" in str(refused.value)


def test_polling_asks_seldom(server: Any, run: Path) -> None:
    launcher = SageMaker(launch(), 60.0, every_s=3600.0)
    handle = launcher.submit(command(run), run, run / "job.log")
    before = server.calls["DescribeTrainingJob"]
    assert {launcher.poll(handle) for _ in range(50)} == {JobStatus.PENDING}
    assert server.calls["DescribeTrainingJob"] == before + 1


def test_logs_come_from_cloudwatch_before_there_is_a_file(server: Any, run: Path) -> None:
    launcher = sagemaker()
    handle = launcher.submit(command(run), run, run / "job.log")
    assert launcher.logs(run / "job.log") == ""
    client, group = boto3.client("logs"), "/aws/sagemaker/TrainingJobs"
    client.create_log_group(logGroupName=group)
    for host, text in (("algo-1", "pulling"), ("algo-2", "other")):
        stream = f"{handle.id}/{host}-1700000000"
        client.create_log_stream(logGroupName=group, logStreamName=stream)
        now = int(time.time() * 1000)  # CloudWatch takes no event of long ago
        events = [{"timestamp": now + at, "message": f"{text} {at}"} for at in range(3)]
        client.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)
    assert launcher.logs(run / "job.log", 2).splitlines() == ["pulling 1", "pulling 2"]


def test_the_request_is_what_was_asked_for(run: Path) -> None:
    asked = SageMaker(launch(2, spot=True, checkpoints="s3://bucket/kept", max_runtime_s=3600), 60.0)
    made = request(launch(2), asked._options, run, 3)
    assert made["EnableManagedSpotTraining"] is True
    assert made["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 7200}
    assert made["CheckpointConfig"] == {"S3Uri": "s3://bucket/kept", "LocalPath": "/opt/ml/checkpoints"}
    assert made["ResourceConfig"]["InstanceCount"] == 2
    channel = made["InputDataConfig"][0]["DataSource"]["FileSystemDataSource"]
    assert (channel["FileSystemAccessMode"], channel["DirectoryPath"]) == ("rw", "/abcdefgh/workspace")
    path = "/opt/ml/input/data/workspace/runs/demo-0123456789ab/sagemaker.sh"
    assert made["AlgorithmSpecification"]["ContainerArguments"] == [path]
    kind = LAUNCHERS["sagemaker"]
    assert kind.preview is not None
    shown = json.loads(kind.preview(launch(2), 60.0, ["python"], run, run / "job.log"))
    assert shown["TrainingJobName"].endswith("-1")


def test_hosts_of_several_find_their_place(run: Path, tmp_path: Path) -> None:
    text = job_script(
        launch(12), SageMaker(launch(12), 60.0)._options, ["x", "-c", "import os; print(os.environ)"], run, run / "log"
    )
    hosts = [f"algo-{number}" for number in range(1, 13)]
    for host, node in (("algo-1", 0), ("algo-10", 9)):
        config = tmp_path / "resourceconfig.json"
        config.write_text(json.dumps({"current_host": host, "hosts": sorted(hosts)}))
        script = tmp_path / "script.sh"
        script.write_text(text.replace(HOSTS, str(config)))
        (run / "log").unlink(missing_ok=True)
        subprocess.run(["bash", str(script)], check=True, capture_output=True, timeout=60)
        said = (run / "log").read_text()
        assert f"'PLINTH_NODE': '{node}'" in said
        assert "'PLINTH_NODES': '12'" in said
        assert "'PLINTH_ADDRESS': 'algo-1'" in said


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"role": "training"}, "role"),
        ({"max_wait_s": 60}, "expected spot: true"),
        ({"checkpoints": "s3://bucket/kept"}, "expected spot: true"),
        ({"spot": True, "max_runtime_s": 100, "max_wait_s": 60}, "max_wait_s is 60, expected at least"),
        ({"subnets": []}, "subnets"),
        ({"instances": 2}, "instances"),
    ],
)
def test_options_that_cannot_be_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises((ValidationError, RecipeError), match=says):
        SageMaker(launch(**changes), 60.0)


def test_more_grace_than_sagemaker_gives_is_refused() -> None:
    with pytest.raises(LaunchError, match="kills a job 120 s after"):
        SageMaker(launch(), 300.0)


def test_the_proxy_itself_refuses(server: Any, run: Path) -> None:
    client = boto3.client("sagemaker")
    made = request(launch(), SageMaker(launch(), 60.0)._options, run, 1)
    with pytest.raises(client.exceptions.ClientError, match="does not match"):
        client.create_training_job(**{**made, "TrainingJobName": "a_b"})
    long = {**made["AlgorithmSpecification"], "ContainerArguments": ["x" * 257]}
    with pytest.raises(client.exceptions.ClientError, match="has a size of 257"):
        client.create_training_job(**{**made, "AlgorithmSpecification": long})
    client.create_training_job(**made)
    with pytest.raises(client.exceptions.ClientError, match="already exists"):
        client.create_training_job(**made)
