"""Alarms of a workspace: a line each in `alerts.jsonl`, for a pager to read."""

import json
import time
from pathlib import Path

from plinth.storage.atomic import append_to

#: Failed jobs and findings of sensors, one line each, and the jobs among them that watch releases.
ALARMS = "alerts.jsonl"
RELEASE_JOBS = frozenset({"mirror", "canary", "feed"})

#: A file in `dagster/` that a sensor touches at every tick.
HEARTBEAT = "heartbeat"


def record_failure(workspace: Path, run_id: str, job: str, message: str | None) -> None:
    """Append one line to the alerts of a workspace."""
    line = json.dumps({"time": time.time(), "run": run_id, "job": job, "message": message})
    with append_to(workspace / ALARMS) as stream:
        stream.write(f"{line}\n".encode())
