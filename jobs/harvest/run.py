"""`harvest`: all buckets into one folder, once per state of the machine."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from jobs.harvest import manuals
from jobs.harvest.code import write_code
from jobs.harvest.manuals import write_manuals
from jobs.harvest.output import Output
from jobs.harvest.packages import packages, site_folders
from jobs.harvest.prose import write_prose
from jobs.harvest.summary import Caps, HarvestSummary
from jobs.harvest.web import write_web
from plinth import fingerprint
from plinth.storage.atomic import named_failures, write_bytes

VERSION = "1"
RECORD = ".harvest.json"


def harvest(target: Path, caps: Caps | None = None) -> HarvestSummary:
    """Write `web/`, `code/`, `prose/` and `manuals/` under `target`.

    The same state of the machine gives the same bytes; when nothing has changed since the last harvest into
    `target`, nothing is read but names and dates. Files that others put there are left alone.

    Raises:
        WorkspaceError, DiskFullError: `target` cannot be written.
    """
    caps = caps or Caps()
    state = machine_state(caps)
    last = _recorded(target)
    if last.get("state") == state and _present(target, last["files"]):
        return HarvestSummary.model_validate(last["summary"]).model_copy(update={"fresh": False})
    installed = packages()
    outputs = {name: Output(target / name) for name in ("web", "code", "prose", "manuals")}
    write_manuals(outputs["manuals"], caps)
    write_web(outputs["web"], caps, topics=not outputs["manuals"].note)
    write_code(outputs["code"], caps, installed)
    write_prose(outputs["prose"], caps, installed)
    files = {f"{bucket}/{name}": size for bucket, output in outputs.items() for name, size in output.files.items()}
    for name in set(last.get("files", {})) - set(files):
        with named_failures(target / name):
            (target / name).unlink(missing_ok=True)
    summary = HarvestSummary(buckets={name: output.summary() for name, output in outputs.items()})
    record = {"state": state, "files": files, "summary": summary.model_dump(mode="json")}
    write_bytes(target / RECORD, fingerprint.canonical(record))
    return summary


def machine_state(caps: Caps) -> str:
    """Digest of what a harvest depends on: the interpreter, installed distributions, manual pages, the bounds."""
    folders = [*site_folders(), Path(sysconfig.get_paths()["stdlib"])]
    marks = hashlib.sha256()
    for folder in folders:
        for name in sorted(os.listdir(folder) if folder.is_dir() else ()):
            # Installing and upgrading renames or rewrites these; compiled caches come and go with use.
            if name != "__pycache__":
                marks.update(f"{name}\0".encode("utf-8", "surrogateescape"))
    for name, size in manuals.pages(manuals.ROOT):
        marks.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
    return fingerprint.digest({"version": VERSION, "python": sys.version, "caps": caps, "listing": marks.hexdigest()})


def _recorded(target: Path) -> dict[str, Any]:
    try:
        record = json.loads((target / RECORD).read_bytes())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) and record.keys() >= {"state", "files", "summary"} else {}


def _present(target: Path, files: dict[str, int]) -> bool:
    try:
        return all(os.path.getsize(target / name) == size for name, size in files.items())
    except OSError:
        return False
