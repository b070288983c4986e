"""`harvest`: all buckets and a set of tasks into one folder, taken once and kept until a new one is requested."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plinth import fingerprint
from plinth.compute.progress import Meter, Progress, Silent
from plinth.storage.atomic import named_failures, write_bytes
from plinth_jobs.harvest.manuals import write_manuals
from plinth_jobs.harvest.output import Caps, HarvestSummary, Output
from plinth_jobs.harvest.packages import packages, write_code, write_prose
from plinth_jobs.harvest.web import write_web

#: Two small tasks in lm-evaluation-harness's form, written for the text that the demo trains on.
TASKS = Path(__file__).parent / "task_files"
RECORD = ".harvest.json"
#: The buckets in the order in which they are taken: web pages list manual pages only where there are none.
BUCKETS = ("manuals", "web", "code", "prose", "tasks")


def harvest(
    target: Path, caps: Caps | None = None, *, again: bool = False, progress: Progress | None = None
) -> HarvestSummary:
    """Write `web/`, `code/`, `prose/`, `manuals/` and `tasks/` under `target`, unless an earlier harvest is there.

    An earlier harvest is kept while all its files are present, whatever was installed since: otherwise every package
    installed would retrain the demo. The same state of the machine gives the same bytes. Files that others put
    there are left alone.

    Args:
        again: take a new harvest in place of the one kept.

    Raises:
        WorkspaceError, DiskFullError: `target` cannot be written.
    """
    caps = caps or Caps()
    last = _recorded(target)
    if last and not again and _present(target, last["files"]):
        return HarvestSummary.model_validate(last["summary"]).model_copy(update={"fresh": False})
    installed = packages()
    with (progress or Silent()).meter("harvest", len(BUCKETS)) as meter:
        outputs = {name: Output(target / name, _told(meter, name)) for name in BUCKETS}
        writers: dict[str, Callable[[Output], None]] = {
            "manuals": lambda output: write_manuals(output, caps),
            "web": lambda output: write_web(output, caps, topics=not outputs["manuals"].note),
            "code": lambda output: write_code(output, caps, installed),
            "prose": lambda output: write_prose(output, caps, installed),
            "tasks": write_tasks,
        }
        for name in BUCKETS:
            meter.tell(name)
            writers[name](outputs[name])
            meter.advance()
    files = {f"{bucket}/{name}": size for bucket, output in outputs.items() for name, size in output.files.items()}
    for name in set(last.get("files", {})) - set(files):
        with named_failures(target / name):
            (target / name).unlink(missing_ok=True)
    buckets = {name: output.summary() for name, output in outputs.items() if output.counts or output.note}
    summary = HarvestSummary(buckets=buckets)
    record = {"files": files, "summary": summary.model_dump(mode="json")}
    write_bytes(target / RECORD, fingerprint.canonical(record))
    return summary


def write_tasks(output: Output) -> None:
    """Write the task files and their data."""
    for path in sorted(TASKS.rglob("*")):
        if path.is_file():
            output.write(path.relative_to(TASKS).as_posix(), path.read_bytes())


def _told(meter: Meter, bucket: str) -> Callable[[int], None]:
    return lambda documents: meter.advance(0, f"{bucket}: {documents} documents")


def _recorded(target: Path) -> dict[str, Any]:
    try:
        record = json.loads((target / RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) and record.keys() >= {"files", "summary"} else {}


def _present(target: Path, files: dict[str, int]) -> bool:
    try:
        return all(os.path.getsize(target / name) == size for name, size in files.items())
    except OSError:
        return False
