"""Checks of a machine before ranks start: disk, memory, clock and GPUs of each node; connections between nodes.

    of_this_node(config)    checks of this node alone, within seconds
    asked_gpus(launch)      GPUs per node requested by the launch
    judged(reports)         the nodes to exclude

If only some nodes fail a check, they are excluded. If every node fails it, the job fails. Missing evidence (no NVML, no
sensor) is reported and excludes no node. Does not belong here: checks between nodes (`peer_checks`).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from plinth.launch.base import EXCLUDED, excluded_hosts
from plinth.launch.parameters import HostChecks, Launch
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory
from plinth.training.telemetry.devices import chosen, is_hardware_error
from plinth.training.telemetry.timeline import Timeline, read_events

HostOutcome = Literal["pass", "fail", "undetermined", "not applicable"]

#: `PLINTH_HOST`: the scheduler's name for this machine, used to exclude it.
HOST_VARIABLE: Final = "PLINTH_HOST"

#: Reasons for slow clocks that are faults (nvml.h): hardware slowdown, thermal by hardware, power brake.
_SLOWED: Final = {0x08: "hardware slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}
_GPU_OPTION = re.compile(r"--(?:gpus-per-node|gres|gpus-per-task)[= ](?:gpu:)?(?:[\w.-]+:)?(\d+)")
_BLOCK: Final = 1 << 20

#: The check in which nodes wait for each other.
SUM: Final = "all_reduce"


class HostCheck(Frozen):
    """Outcome of one check of a node, with its evidence."""

    name: str
    outcome: HostOutcome
    evidence: str


class HostReport(Frozen):
    """Outcomes of all checks of a node.

    `host` is the scheduler's name for the node. `offset_s` is the offset of node 0's clock, in seconds; it is positive
    if node 0's clock is ahead.
    """

    node: int
    host: str
    checks: tuple[HostCheck, ...] = ()
    offset_s: float | None = None

    def also(self, check: HostCheck) -> HostReport:
        """Return a copy of the report with one additional check."""
        return self.model_copy(update={"checks": (*self.checks, check)})

    @property
    def failed(self) -> tuple[HostCheck, ...]:
        """Checks that the node failed."""
        return tuple(check for check in self.checks if check.outcome == "fail")


def this_host() -> str:
    """Return the scheduler's name for this machine, or its host name if the scheduler sets none."""
    import socket

    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


def of_this_node(config: RunConfig) -> Iterator[HostCheck]:
    """Yield the checks of disk, memory, clock and GPUs of this machine."""
    wanted = config.supervision.host_checks
    yield disk(config.directory.root, wanted)
    yield memory(wanted)
    yield clock(config.directory.root, wanted)
    yield gpus(config, wanted)


def disk(folder: Path, wanted: HostChecks) -> HostCheck:
    """Check that the run's folder has free space, and that bytes written to it are read back unchanged and fast."""
    free = shutil.disk_usage(folder).free
    if free < wanted.free_bytes:
        return _check("disk", "fail", f"{free:,} bytes free in {folder}, at least {wanted.free_bytes:,} required")
    begun, count = time.monotonic(), min(wanted.disk_bytes, free // 4)
    try:
        same = _comes_back(folder, count)
    except OSError as error:
        return _check("disk", "fail", f"{folder}: {error}")
    rate = count / max(time.monotonic() - begun, 1e-9)
    found = f"{count:,} bytes written and read at {rate:,.0f} bytes/s, {free:,} free"
    if not same:
        return _check("disk", "fail", f"the bytes read back from {folder} differ from the bytes written")
    slow = rate < wanted.disk_bytes_per_s
    found += f", {wanted.disk_bytes_per_s:,} required" if slow else ""
    return _check("disk", "fail" if slow else "pass", found)


def memory(wanted: HostChecks) -> HostCheck:
    """Check that enough memory is available on this machine."""
    import psutil

    free = int(psutil.virtual_memory().available)
    return _check("memory", "pass" if free >= wanted.memory_bytes else "fail", f"{free:,} bytes free")


def clock(folder: Path, wanted: HostChecks) -> HostCheck:
    """Compare this machine's clock with the clock of the file system that all nodes share."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            before = time.time()
            os.utime(file.fileno())
            skew = os.fstat(file.fileno()).st_mtime - (before + time.time()) / 2
    except OSError as error:
        return _check("clock", "undetermined", str(error))
    return _check("clock", "fail" if abs(skew) > wanted.clock_s else "pass", f"file system {skew:+.3f} s")


def gpus(config: RunConfig, wanted: HostChecks) -> HostCheck:
    """Check that the requested number of GPUs is present, and that they are cool, at full clocks and without errors.

    GPUs of other jobs are ignored.
    """
    asked = asked_gpus(config.launch)
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return _without_gpus(asked, "nvidia-ml-py is not installed (extra `gpu`)", "undetermined")
    except Exception as error:  # NVMLError: no driver, no device
        return _without_gpus(asked, f"NVML: {error}", "fail")
    found = dict(chosen(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES")))
    found = found or dict(chosen(pynvml, None))  # MIG devices
    if asked and len(found) < asked:
        return _check("gpu", "fail", f"{len(found)} visible, {asked} requested")
    if not found:
        return _without_gpus(asked, "none visible", "fail")
    errors = list(_noted(config))
    errors += [f"GPU {n}: {fault}" for n, gpu in found.items() for fault in faults(pynvml, gpu, wanted.temperature_c)]
    return _check("gpu", "fail" if errors else "pass", "; ".join(errors) or f"{len(found)} healthy")


def faults(nvml: Any, gpu: Any, temperature_c: float) -> Iterator[str]:
    """Yield the faults that NVML reports for a GPU, given by its handle. Missing sensors are ignored."""

    def asked(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except nvml.NVMLError:
            return None

    kind, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    ecc = asked(lambda: nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, counter))
    if ecc:
        yield f"{ecc} uncorrected ECC errors since the last reset"
    rows = asked(lambda: nvml.nvmlDeviceGetRemappedRows(gpu))
    if rows and rows[3]:
        yield "a memory row could not be remapped"
    elif rows and rows[2]:
        yield "a memory remapping is pending until a reset"
    degrees = asked(lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))
    if degrees is not None and degrees > temperature_c:
        yield f"{degrees} degrees Celsius, at most {temperature_c:g} allowed"
    slowed = asked(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)) or 0
    yield from (words for bit, words in _SLOWED.items() if slowed & bit)


def asked_gpus(launch: Launch) -> int:
    """Return the number of GPUs per node that the launch requests, or 0 if it requests none. The local launcher never
    requests GPUs."""
    if launch.kind == "ray":
        return int(launch.ray.resources.get("GPU", 0))
    if launch.kind == "kubernetes":
        given = launch.kubernetes.resources.get("nvidia.com/gpu", "0")
        return int(given) if given.isdigit() else 0
    matches = [match for line in launch.slurm.sbatch if (match := _GPU_OPTION.search(line))]
    return max((int(match[1]) for match in matches), default=0) if launch.kind == "slurm" else 0


def with_clocks(reports: Sequence[HostReport], clock_s: float) -> list[HostReport]:
    """Return the reports, each with a check of the node's clock against the median of all nodes.

    If there are two nodes, the second node's clock is compared with the first node's clock.

    Args:
        clock_s: maximum difference, in seconds.
    """
    known = [one.offset_s for one in reports if one.offset_s is not None]
    if len(known) < 2:
        return list(reports)
    middle = statistics.median(known) if len(known) > 2 else 0.0
    found = []
    for one in reports:
        if one.offset_s is not None:
            ahead = middle - one.offset_s
            outcome: HostOutcome = "fail" if abs(ahead) > clock_s else "pass"
            one = one.also(_check("clocks", outcome, f"{ahead:+.3f} s against {len(known)} nodes"))
        found.append(one)
    return found


def judged(reports: Sequence[HostReport]) -> tuple[list[HostReport], str]:
    """Return the nodes to exclude and an empty text. If every node fails the same check, return no nodes and the reason
    why the job fails.

    If all of several nodes fail a check, it excludes none of them, because another node would fail it too. A missing
    sum is ignored if another node has failed another check or has not started, because the sum waited for that node.
    """
    known = [one for one in reports if one.host]
    if len(known) < len(reports) or any(check.name != SUM for one in known for check in one.failed):
        reports = [one.model_copy(update={"checks": tuple(c for c in one.checks if c.name != SUM)}) for one in reports]
    names = {check.name for one in reports for check in one.failed}
    common = {name for name in names if all(any(c.name == name for c in one.failed) for one in reports)}
    if len(reports) == 1:
        common = set()
    bad = [one for one in reports if any(check.name not in common for check in one.failed)]
    if bad:
        return bad, ""
    shown = reports[0].failed if reports else ()
    words = [f"{check.name}: {check.evidence}" for check in shown if check.name in common]
    return [], f"every node fails {'; '.join(words)}" if words else ""


def _comes_back(folder: Path, count: int) -> bool:
    """Write random bytes to disk, drop their pages from the cache, and return True if they are read back unchanged."""
    sent, got = hashlib.sha256(), hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for begin in range(0, count, _BLOCK):
            block = os.urandom(min(_BLOCK, count - begin))
            sent.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        while block := file.read(_BLOCK):
            got.update(block)
    return sent.digest() == got.digest()


def _noted(config: RunConfig) -> Iterator[str]:
    """Yield the GPU errors of this machine since its boot that earlier jobs of the run have logged."""
    import psutil

    host, begun = {this_host(), os.uname().nodename}, psutil.boot_time()
    for event in read_events(config.directory.events):
        of_gpu = event["event"] == "device_error" and is_hardware_error(event)
        if of_gpu and event.get("host") in host and float(event["time"]) >= begun:
            yield f"GPU {event.get('gpu')} in an earlier attempt: {event.get('kind')} {event.get('xid', '')}".rstrip()


def _without_gpus(asked: int, why: str, outcome: HostOutcome) -> HostCheck:
    if not asked:
        return _check("gpu", "not applicable", f"none requested; {why}")
    return _check("gpu", outcome, f"{asked} requested; {why}")


def _check(name: str, outcome: HostOutcome, evidence: str) -> HostCheck:
    return HostCheck(name=name, outcome=outcome, evidence=evidence)


# Machines excluded from a run, in its folder: `excluded_hosts`, one name per line.
#
# Launchers read the file: Slurm's script passes it to the requeued job, and Ray's entry point of several nodes skips
# those machines; the job continues elsewhere. Other launchers cannot move a running job: it fails with an error that
# names the machines, and the same command submits a job that Kubernetes places elsewhere. `local` has one machine only.
# Delete a line, or the file, once a machine is fixed. The timeline has the reasons in events `node_excluded`.


def replaces(launch: Launch) -> bool:
    """Return True if the launcher itself restarts the job without the excluded machines."""
    return launch.kind == "slurm" or (launch.kind == "ray" and launch.nodes > 1)


def exclude(run: RunDirectory, reports: list[HostReport]) -> str:
    """Record the machines to exclude, with the evidence for each, and return a one-line summary."""
    events, path = Timeline(run.events), run.root / EXCLUDED
    known = excluded_hosts(run.root)
    for one in reports:
        checks = [{"check": check.name, "evidence": check.evidence} for check in one.failed]
        events.append("node_excluded", node=one.node, host=one.host, checks=checks, durable=True)
    names = [*known, *(one.host for one in reports if one.host not in known)]
    write_bytes(path, "".join(f"{name}\n" for name in names).encode())
    return "; ".join(
        f"node {one.node} ({one.host}): {', '.join(f'{c.name}: {c.evidence}' for c in one.failed)}" for one in reports
    )
