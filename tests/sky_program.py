"""A `sky` program for tests: managed jobs of SkyPilot 0.14 whose clusters are processes of this machine.

    sky(folder)          # writes folder/sky, to be put on the PATH

It understands the four commands that the launcher calls, and prints what SkyPilot 0.14.1 prints for them: the fields of
`sky.schemas.api.responses.ManagedJobRecord` after a notice, and the error of a user without a controller. A job is
recovered after the exit statuses in `recover_on_exit_codes`; a canceled job gets SIGTERM, and soon loses its machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

#: Fields of a record in the output of `sky jobs queue --output json` that this program does not set.
FIELDS = (
    "task_job_id task_name job_duration workspace schedule_state resources cluster_resources cluster_resources_full "
    "cloud region zone infra details failure_reason user_name user_hash submitted_at start_at end_at user_yaml "
    "entrypoint metadata controller_pid dag_yaml_path env_file_path last_recovered_at run_timestamp priority "
    "priority_class original_user_yaml_path pool pool_hash current_cluster_name accelerators labels links execution"
)
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


def sky(folder: Path) -> Path:
    """Write the program, with its state in the same folder; return its path."""
    path = folder / "sky"
    path.write_text(f'#!/bin/bash\nexec {sys.executable} {__file__} {folder}/state "$@"\n')
    path.chmod(0o755)
    (folder / "state").mkdir()
    return path


def stop(folder: Path) -> None:
    """End all jobs."""
    for path in (folder / "state").glob("*.json"):
        if json.loads(path.read_text())["status"] not in ENDED:
            _cancel(folder / "state", path.stem)


def main(state: Path, words: list[str]) -> int:
    """Run one command."""
    command, options = words[:2], words[2:]
    if command == ["jobs", "launch"]:
        name, path = options[options.index("--name") + 1], Path(options[-1])
        assert {"--yes", "--detach-run"} <= set(options), options
        return _launch(state, name, yaml.safe_load(path.read_text()))
    records = {path.stem: json.loads(path.read_text()) for path in sorted(state.glob("*.json"))}
    if command == ["jobs", "queue"]:
        assert options == ["--all", "--output", "json"], options
        if not records:
            print("sky.exceptions.ClusterNotUpError: No in-progress managed jobs.", file=sys.stderr)
            return 1
        print("Using SkyPilot API server: http://127.0.0.1:46580")
        print(json.dumps(list(reversed(records.values())), indent=2))
        return 0
    if command == ["jobs", "cancel"]:
        assert options[0] == "--yes", options
        _cancel(state, options[1])
        return 0
    if command == ["jobs", "logs"]:
        assert options[0] == "--no-follow", options
        print((state / f"{options[1]}.log").read_text(), end="")
        return 0
    if command == ["controller", "run"]:
        _control(state, options[0])
        return 0
    print(f"Error: No such command {words}", file=sys.stderr)
    return 2


def _launch(state: Path, name: str, task: dict[str, Any]) -> int:
    number = str(len(list(state.glob("*.json"))) + 1)
    (state / f"{number}.yaml").write_text(yaml.safe_dump(task))
    unset: dict[str, Any] = dict.fromkeys(FIELDS.split())
    _set(state, number, {**unset, "job_id": int(number), "task_id": 0, "job_name": name, "recovery_count": 0})
    _set(state, number, {"status": "PENDING"})
    words = [sys.executable, __file__, str(state), "controller", "run", number]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.Popen(words, start_new_session=True, **quiet)
    print(f"Managed job ID: {number}")
    return 0


def _control(state: Path, number: str) -> None:
    """Run a job until it ends by itself or is canceled."""
    task = yaml.safe_load((state / f"{number}.yaml").read_text())
    while True:
        codes = _run(state, number, task)
        if _record(state, number)["status"] in ("CANCELLING", "CANCELLED"):
            return
        recovered = set(codes) & set(task["resources"]["job_recovery"]["recover_on_exit_codes"])
        _set(state, number, {"status": "RECOVERING" if recovered else "FAILED" if any(codes) else "SUCCEEDED"})
        if not recovered:
            return


def _run(state: Path, number: str, task: dict[str, Any]) -> list[int]:
    """Run the script of each node; return their exit statuses."""
    script = state / f"{number}.sh"
    script.write_text(f"#!/bin/bash\n{task['run']}")
    nodes = task["num_nodes"]
    addresses = "\n".join(f"127.0.0.{node + 1}" for node in range(nodes))
    common = {"SKYPILOT_NODE_IPS": addresses, "SKYPILOT_NUM_NODES": str(nodes), **task.get("envs", {})}
    with (state / f"{number}.log").open("ab") as log:
        ranks = [{**os.environ, **common, "SKYPILOT_NODE_RANK": str(node)} for node in range(nodes)]
        processes = [
            subprocess.Popen(
                ["bash", script], env=rank, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            for rank in ranks
        ]
    _set(state, number, {"status": "RUNNING", "pids": [process.pid for process in processes]})
    codes = [process.wait() for process in processes]
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return [code if code >= 0 else 128 - code for code in codes]


def _cancel(state: Path, number: str) -> None:
    record = _record(state, number)
    if record["status"] in ENDED:
        return
    _set(state, number, {"status": "CANCELLING"})
    for number_of_signal in (signal.SIGTERM, signal.SIGKILL):
        for pid in record.get("pids", ()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, number_of_signal)
        time.sleep(0.2)
    _set(state, number, {"status": "CANCELLED"})


def _record(state: Path, number: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((state / f"{number}.json").read_text())
    return found


def _set(state: Path, number: str, change: dict[str, Any]) -> None:
    path = state / f"{number}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(record | change))
    temporary.rename(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
