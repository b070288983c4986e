"""One round of host checks, led by node 0: all nodes check themselves and each other, and report in time or fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from plinth.training.config import RunConfig
from plinth.training.supervise.host_checks import HostCheck, HostReport, of_this_node, this_host, with_clocks
from plinth.training.supervise.node_roles import Leader
from plinth.training.supervise.nodes import NodeFiles, NodePlace, read, start_checks
from plinth.training.supervise.watch import POLL_S, Process
from plinth.training.telemetry.timeline import Timeline

#: Seconds beyond the bound in which processes start, import torch, and reports are seen by other nodes.
SLACK_S = 90.0


def checked_hosts(
    config: RunConfig, config_path: Path, place: NodePlace, leader: Leader, stop: Callable[[], bool]
) -> list[HostReport]:
    """The reports of all nodes, in their order; put on the timeline as `hosts_checked`.

    Args:
        stop: called while waiting; True ends it, and then reports may be missing.
    """
    wanted = config.supervision.host_checks
    begun = time.monotonic()
    if place.nodes == 1:
        reports = [HostReport(node=0, host=this_host(), checks=tuple(of_this_node(config)))]
    else:
        reports = _together(config, config_path, place, leader, stop)
    reports = with_clocks(reports, wanted.clock_s)
    hosts = [
        {"node": one.node, "host": one.host, **{check.name: check.outcome for check in one.checks}} for one in reports
    ]
    Timeline(config.directory.events).append("hosts_checked", hosts=hosts, seconds=round(time.monotonic() - begun, 3))
    return reports


def _together(
    config: RunConfig, config_path: Path, place: NodePlace, leader: Leader, stop: Callable[[], bool]
) -> list[HostReport]:
    from plinth.processes import free_port

    files, port = NodeFiles(config.directory), free_port()
    for node in range(place.nodes):
        files.host_checks(node).unlink(missing_ok=True)
    own = start_checks(config_path, place, place.address, port)
    processes: list[Process] = [own, *leader.check(port)]
    until = time.monotonic() + config.supervision.host_checks.bound_s + SLACK_S
    while any(process.poll() is None for process in processes) and time.monotonic() < until and not stop():
        time.sleep(POLL_S)
    if own.poll() is None:
        own.kill()
        own.wait()
    return [_report(files, node) for node in range(place.nodes)]


def _report(files: NodeFiles, node: int) -> HostReport:
    """What a node has written. One that began and found nothing within the bound has failed: its disk or a GPU hangs.

    Of one that never began nothing is known, not even its name: whether it is lost, its heartbeat says.
    """
    found = read(files.host_checks(node), HostReport)
    if found is None:
        never = HostCheck(name="report", outcome="undetermined", evidence="the node has not begun its checks")
        return HostReport(node=node, host="", checks=(never,))
    if not found.checks:
        return found.also(HostCheck(name="report", outcome="fail", evidence="no check has ended within the bound"))
    return found
