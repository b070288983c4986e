"""Each check of a machine sees its fault; nodes are judged apart; a bad one is written down, left out, and reported."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plinth.launch.base import EXCLUDED, excluded_hosts
from plinth.launch.parameters import HostChecks, Kubernetes, Launch, Ray, Slurm, Supervision
from plinth.processes import free_port
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.supervise import host_checks, leader, peer_checks
from plinth.training.supervise.host_checks import HostCheck, HostReport, judged, with_clocks
from plinth.training.supervise.nodes import CheckProcess
from plinth.training.telemetry.timeline import Timeline, timeline
from tests.ranks import run_ranks

Make = Callable[..., RunConfig]


def report(node: int, offset_s: float | None = None, **outcomes: Any) -> HostReport:
    checks = tuple(HostCheck(name=name, outcome=outcome, evidence="seen") for name, outcome in outcomes.items())
    return HostReport(node=node, host=f"h{node}", checks=checks, offset_s=offset_s)


def test_a_disk_without_room_that_cannot_be_written_or_is_slow(tmp_path: Path) -> None:
    assert host_checks.disk(tmp_path, HostChecks(disk_bytes=3)).outcome == "pass"
    assert host_checks.disk(tmp_path, HostChecks(free_bytes=2**62)).outcome == "fail"
    assert host_checks.disk(tmp_path, HostChecks(disk_bytes_per_s=2**62)).outcome == "fail"
    # a file may not grow past the limit: the write fails as on a quota
    code = f"""
import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
from pathlib import Path
from plinth.launch.parameters import HostChecks
from plinth.training.supervise.host_checks import disk
print(disk(Path({str(tmp_path)!r}), HostChecks()).outcome)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "fail"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096


def test_bytes_that_come_back_others_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: os.pwrite(fd, b"x", 5))  # the disk changes one byte
    assert "bytes read back" in host_checks.disk(tmp_path, HostChecks(disk_bytes=100)).evidence


def test_too_little_memory(tmp_path: Path) -> None:
    assert host_checks.memory(HostChecks(memory_bytes=1)).outcome == "pass"
    assert host_checks.memory(HostChecks(memory_bytes=2**62)).outcome == "fail"


def test_a_clock_that_differs_from_the_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_checks.clock(tmp_path, HostChecks()).outcome == "pass"
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 5)
    assert host_checks.clock(tmp_path, HostChecks()).outcome == "fail"


@pytest.mark.parametrize(
    ("launch", "count"),
    [
        (Launch(), 0),
        (Launch(kind="slurm", slurm=Slurm(sbatch=("--gpus-per-node=8",)), ranks=8), 8),
        (Launch(kind="slurm", slurm=Slurm(sbatch=("--gres=gpu:a100:4", "--qos=high")), ranks=4), 4),
        (Launch(kind="slurm", slurm=Slurm(sbatch=("--qos=8",)), ranks=8), 0),
        (Launch(kind="ray", ray=Ray(resources={"GPU": 2.0})), 2),
        (
            Launch(
                kind="kubernetes",
                kubernetes=Kubernetes(image="i", claim="c", resources={"nvidia.com/gpu": "2"}),
            ),
            2,
        ),
    ],
)
def test_gpus_that_a_launch_asks_for(launch: Launch, count: int) -> None:
    assert host_checks.asked_gpus(launch) == count


class FakeError(Exception):
    pass


def nvml(**changes: Any) -> Any:
    """Return the results of NVML's functions for a healthy GPU, or with changes."""
    said = {"ecc": 0, "rows": (0, 0, 0, 0), "degrees": 50, "slowed": 0, "count": 1, **changes}

    def answer(name: str) -> Callable[..., Any]:
        def function(*_: Any) -> Any:
            if isinstance(said[name], Exception):
                raise said[name]
            return said[name]

        return function

    return SimpleNamespace(
        NVMLError=FakeError, NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1, NVML_VOLATILE_ECC=0, NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetTotalEccErrors=answer("ecc"),
        nvmlDeviceGetRemappedRows=answer("rows"), nvmlDeviceGetTemperature=answer("degrees"),
        nvmlDeviceGetCurrentClocksThrottleReasons=answer("slowed"), nvmlDeviceGetCount=answer("count"),
        nvmlInit=lambda: None, nvmlDeviceGetUUID=lambda gpu: f"GPU-{gpu}",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"ecc": 3}, ["3 uncorrected ECC errors since the last reset"]),
        ({"rows": (0, 1, 0, 1)}, ["a memory row could not be remapped"]),
        ({"rows": (0, 1, 1, 0)}, ["a memory remapping is pending until a reset"]),
        ({"degrees": 95}, ["95 degrees Celsius, at most 88 allowed"]),
        ({"slowed": 0x48}, ["hardware slowdown", "hardware thermal slowdown"]),
        ({"slowed": 0x04}, []),  # its power cap: as it should be
        ({"ecc": FakeError(), "rows": FakeError(), "degrees": FakeError(), "slowed": FakeError()}, []),
    ],
)
def test_faults_of_a_gpu(changes: dict[str, Any], words: list[str]) -> None:
    assert list(host_checks.faults(nvml(**changes), 0, 88)) == words


def test_missing_and_noted_gpus(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Launch(kind="slurm", slurm=Slurm(sbatch=("--gpus-per-node=2",)))
    monkeypatch.setitem(sys.modules, "pynvml", nvml(count=1))
    assert host_checks.gpus(make(launch=asked), HostChecks()).outcome == "fail"
    monkeypatch.setitem(sys.modules, "pynvml", nvml(count=2))
    config = make(launch=asked)
    assert host_checks.gpus(config, HostChecks()).outcome == "pass"
    Timeline(config.directory.events).append("device_error", kind="xid", xid=79, gpu=1, host=socket.gethostname())
    assert "xid 79" in host_checks.gpus(config, HostChecks()).evidence
    assert host_checks.gpus(config, HostChecks()).outcome == "fail"
    monkeypatch.setattr("psutil.boot_time", lambda: time.time() + 1)
    assert host_checks.gpus(config, HostChecks()).outcome == "pass"  # fixed and started again
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert host_checks.gpus(make(launch=asked), HostChecks()).outcome == "undetermined"
    assert host_checks.gpus(make(), HostChecks()).outcome == "not applicable"


@pytest.mark.parametrize(("kind", "xid", "outcome"), [
    ("xid", 45, "pass"),  # the process was killed
    ("xid", 31, "pass"),  # its program read beyond an array
    ("xid", 95, "fail"), ("ecc_uncorrected", None, "fail"),
])  # fmt: skip
def test_errors_of_programs_are_no_faults_of_a_gpu(
    kind: str, xid: int | None, outcome: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    config = make(launch=Launch(kind="slurm", ranks=1, slurm=Slurm(sbatch=("--gpus-per-node=1",))))
    code = {} if xid is None else {"xid": xid}
    Timeline(config.directory.events).append("device_error", kind=kind, **code, gpu=0, host=socket.gethostname())
    assert host_checks.gpus(config, HostChecks()).outcome == outcome


def test_gpus_of_other_jobs_are_not_judged(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    said = nvml(count=4)
    said.nvmlDeviceGetTemperature = lambda gpu, _: 99 if gpu == 2 else 50
    monkeypatch.setitem(sys.modules, "pynvml", said)
    config = make(launch=Launch(kind="slurm", slurm=Slurm(sbatch=("--gpus-per-node=2",))))
    for visible, outcome in (("0,1", "pass"), ("GPU-1, GPU-3", "pass"), ("1,2", "fail"), ("1", "fail"), ("", "fail")):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert host_checks.gpus(config, HostChecks()).outcome == outcome, visible
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-4711,MIG-4712")
    assert "GPU 2: 99 degrees" in host_checks.gpus(config, HostChecks()).evidence


def test_a_process_that_dies_in_the_sum_leaves_a_failed_sum(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """As NCCL's watchdog ends it."""
    config, (receive, send) = make(), os.pipe()
    words = [str(configuration.write(config)), "1", "2", "127.0.0.1", str(free_port()), str(send)]
    monkeypatch.setattr(sys, "argv", ["peer_checks", *words])
    monkeypatch.setattr(peer_checks, "_between", lambda *_: sys.exit(134))
    with pytest.raises(SystemExit, match="134"):
        peer_checks.main()
    os.close(send)
    with open(receive) as lines:
        *_, left = map(HostReport.model_validate_json, lines)
    assert [check.name for check in left.failed] == ["all_reduce"]
    assert left.checks[0].name == "disk"


def test_what_one_node_fails_excludes_it_and_what_all_fail_is_no_nodes_fault() -> None:
    good, bad = report(0, disk="pass", memory="pass"), report(1, disk="fail", memory="pass")
    assert judged([good, bad]) == ([bad], "")
    assert judged([bad]) == ([bad], "")  # alone: nothing to compare with
    full = report(0, disk="fail"), report(1, disk="fail")
    assert judged(full) == ([], "every node fails disk: seen")
    both = report(0, disk="fail", memory="pass"), report(1, disk="fail", memory="fail")
    assert judged(both) == ([both[1]], "")
    assert judged([report(0, gpu="undetermined"), report(1, gpu="not applicable")]) == ([], "")


def test_a_sum_that_waited_for_another_node_is_no_fault() -> None:
    waited, unreachable = report(0, all_reduce="fail"), report(1, network="fail")
    assert [one.node for one in judged([waited, unreachable])[0]] == [1]
    never = HostReport(node=1, host="", checks=(HostCheck(name="report", outcome="undetermined", evidence="none"),))
    assert judged([waited, never]) == ([], "")
    assert judged([waited, report(1, all_reduce="pass")])[0] == [waited]
    assert judged([waited, report(1, all_reduce="fail")]) == ([], "every node fails all_reduce: seen")


def test_the_clock_that_differs_from_most_is_named() -> None:
    late = with_clocks([report(0, 0.0), report(1, 0.01), report(2, 30.0), report(3, -0.02)], 1.0)
    assert [one.failed != () for one in late] == [False, False, True, False]
    first = with_clocks([report(0, 0.0), report(1, 30.0), report(2, 30.01), report(3, 29.99)], 1.0)
    assert [one.failed != () for one in first] == [True, False, False, False]  # node 0 itself
    assert [one.failed != () for one in with_clocks([report(0, 0.0), report(1, 5.0)], 1.0)] == [False, True]
    assert with_clocks([report(0)], 1.0) == [report(0)]


def test_offsets_are_those_of_the_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    peer_checks.TimeExchange(port, 4711)
    offset, trip, rendezvous = peer_checks.exchanged("127.0.0.1", port, time.monotonic() + 300)
    assert (abs(offset) <= trip / 2 + 0.001, rendezvous) == (True, 4711)
    with pytest.raises(OSError, match="refused"):
        peer_checks.exchanged("127.0.0.1", free_port(), time.monotonic() + 0.5)


def test_a_clock_that_is_set_back_shows_in_the_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    now, port, own = time.time, free_port(), threading.current_thread()
    peer_checks.TimeExchange(port, 1)
    # this thread's clock is 40 s behind that of the thread which answers
    monkeypatch.setattr(time, "time", lambda: now() - 40 * (threading.current_thread() is own))
    offset, trip, _ = peer_checks.exchanged("127.0.0.1", port, time.monotonic() + 300)
    assert abs(offset - 40) <= trip / 2 + 0.001


def test_a_node_that_hangs_has_failed_and_one_that_never_began_is_not_known() -> None:
    found = [leader.completed(node, one) for node, one in enumerate([None, report(1), report(2, disk="pass")])]
    assert [one.checks[0].outcome for one in found] == ["undetermined", "fail", "pass"]
    assert judged(found)[0] == [found[1]]


def check_peers(path: str, port: str) -> None:
    node = int(os.environ["RANK"])
    process = CheckProcess(configuration.load(path), Path(path), node, "127.0.0.1", int(port))
    process.wait()
    assert process.report is not None
    Path(path).with_name(f"report-{node}").write_text(process.report.model_dump_json())


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_nodes_check_each_other(make: Make, tmp_path: Path) -> None:
    """Two processes, as two supervisors start them: a report of each, with a sum by gloo."""
    config = make(
        launch=Launch(kind="slurm", ranks=2, nodes=2), supervision=Supervision(host_checks=HostChecks(bound_s=600))
    )
    run_ranks(2, check_peers, str(configuration.write(config)), str(free_port()))
    for node in range(2):
        one = HostReport.model_validate_json((config.directory.root / f"report-{node}").read_bytes())
        found = {check.name: check for check in one.checks}
        assert found["all_reduce"].outcome == "pass", found["all_reduce"].evidence
        assert "3, expected 3" in found["all_reduce"].evidence
        assert not one.failed


def test_a_machine_that_is_not_fit_starts_no_rank(
    make: Make, job: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One machine: the job fails with an error that names the finding."""
    config = make(supervision=Supervision(host_checks=HostChecks(memory_bytes=2**62)))
    assert job(config) == 7
    events = timeline(config.directory.events)
    assert [event["node"] for event in events.of("node_excluded")] == [0]
    assert events.of("node_excluded")[0]["checks"][0]["check"] == "memory"
    assert not events.of("run_started")
    result = json.loads(config.directory.result.read_bytes())
    assert (result["status"], "memory" in result["reason"]) == ("failed", True)
    assert excluded_hosts(config.directory.root) == [socket.gethostname()]
    assert (config.directory.root / EXCLUDED).read_text().endswith("\n")
