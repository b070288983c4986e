"""Machines that a run may not be placed on again, in its folder: `excluded_hosts`, one name a line.

Launchers read it: Slurm's script gives it to the job that it requeues, and Ray's entry point of several nodes leaves
those out; the job goes on elsewhere. Others have no way to do that with a job that runs: it fails by name, and the same
command submits one that Kubernetes places elsewhere. On one machine (`local`) there is no other. Delete a line, or the
file, once a machine is mended. The events `node_excluded` of the timeline say why.
"""

from __future__ import annotations

from plinth.launch.base import EXCLUDED, excluded_hosts
from plinth.launch.parameters import Launch
from plinth.storage.atomic import write_bytes
from plinth.training.directory import RunDirectory
from plinth.training.supervise.host_checks import HostReport
from plinth.training.telemetry.timeline import Timeline


def replaces(launch: Launch) -> bool:
    """Whether the launcher itself starts the job again without the excluded machines."""
    return launch.kind == "slurm" or (launch.kind == "ray" and launch.nodes > 1)


def exclude(run: RunDirectory, reports: list[HostReport]) -> str:
    """Write down machines with the evidence of each; returns it in a line."""
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
