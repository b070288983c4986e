"""Dagster's launcher of runs, which knows whether a run's process is still there.

Dagster's own launcher cannot say: a run whose process was killed with its code server, or with `plinth run`, stayed
"started" for ever, and everything that is queued behind it waited. `dagster.yaml` names this one.
"""

from __future__ import annotations

import json
import socket
from typing import Final

import dagster as dg
import psutil
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, LaunchRunContext, WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG

#: Tag of a run: the machine of its process. Of runs elsewhere nothing can be said from here; machines and containers
#: that share a workspace need names of their own.
HOST: Final = "plinth/host"
#: Clocks of the machine and of its processes are rounded.
ROUNDED_S = 1.0


def host() -> str:
    """This machine, as runs are tagged."""
    return socket.gethostname()


class WatchedRunLauncher(DefaultRunLauncher):
    """Finds runs of this machine whose process has ended without a word."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def launch_run(self, context: LaunchRunContext) -> None:
        super().launch_run(context)
        run = self._instance.get_run_by_id(context.dagster_run.run_id)
        # A code server that this process started has a socket; one behind a port may be a machine or pod of its own.
        if run and "socket" in json.loads(run.tags.get(GRPC_INFO_TAG, "{}")):
            self._instance.add_run_tags(run.run_id, {HOST: host()})

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Whether the process that reported the run's start is there; one that began later has only its number."""
        if run.tags.get(HOST) != host():
            return CheckRunHealthResult(WorkerStatus.RUNNING, "of another machine: not checked")
        found = self._instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.RUN_START, limit=1).records
        started = found[0].event_log_entry if found else None
        if started is None or started.dagster_event is None or started.dagster_event.pid is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING, "no process has reported its start: not checked")
        pid = started.dagster_event.pid
        try:
            process = psutil.Process(pid)
            if process.create_time() <= started.timestamp + ROUNDED_S and process.status() != psutil.STATUS_ZOMBIE:
                return CheckRunHealthResult(WorkerStatus.RUNNING)
        except psutil.NoSuchProcess:
            pass
        return CheckRunHealthResult(WorkerStatus.FAILED, f"process {pid} of {host()} has ended")
