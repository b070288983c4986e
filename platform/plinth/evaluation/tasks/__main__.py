"""Child process for lm-evaluation-harness: `python -m plinth.evaluation.tasks CONFIG`, in the folder of task files.

CONFIG is a JSON file: `exchange` (folder for questions and answers), `model` (folder with the checkpoint's
`tokenizer.json` and `config.json`), `tasks`, `fewshot`, `limit`, `seed`. Events on standard output: `loaded` (names all
tasks; the parent process answers with the tasks to run), `ask`, `done` (a task with its facts and rows). This module
neither imports torch nor opens a connection.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plinth.evaluation.tasks.harness import DamagedLine

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


def main(path: str) -> int:
    """Run the tasks in the configuration file and return the exit status."""
    isolate()  # call before imports that start threads, because a process with threads cannot enter a new namespace
    config = json.loads(Path(path).read_text())
    from plinth.evaluation.tasks.job import Channel

    channel = Channel.standard(Path(config["exchange"]))  # before importing libraries that may print
    from plinth.errors import PlinthError
    from plinth.evaluation.tasks import harness
    from plinth.evaluation.tasks.lm import CheckpointLM

    try:
        folder = Path.cwd()
        damaged = harness.set_aside(folder)
        tasks = harness.load(folder, config["tasks"], damaged)
        lm = CheckpointLM(channel, Path(config["model"]), config["seed"])
        for name in channel.ask("loaded", tasks=list(tasks)):
            facts, rows = harness.run(name, tasks[name], lm, config)
            lost = _lost(damaged, harness.local(tasks[name]))
            facts["damaged"] += len(lost)
            channel.ask("done", task=name, facts=facts, rows=[*rows, *map(harness.damaged_row, lost)])
    except PlinthError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def isolate() -> bool:
    """Move the process into its own network namespace, which has no network, if the system permits.

    Otherwise, the libraries are set to offline mode, and a task with data outside the folder is rejected.
    """
    import ctypes

    user, group = os.getuid(), os.getgid()
    if not sys.platform.startswith("linux") or ctypes.CDLL(None).unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        return False
    for name, text in (("uid_map", f"{user} {user} 1"), ("setgroups", "deny"), ("gid_map", f"{group} {group} 1")):
        with suppress(OSError):
            Path("/proc/self", name).write_text(text)
    return True


def _lost(damaged: Sequence[DamagedLine], files: Sequence[str]) -> list[str]:
    """Return a reason for each damaged line in the data files of a task."""
    names = {Path(file).as_posix() for file in files}
    return [f"{one.file}, line {one.line}: {one.reason}" for one in damaged if one.file in names]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
