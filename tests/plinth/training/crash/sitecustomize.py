"""Faults inside the writers of checkpoints, for tests: Python imports this in every process whose path has the folder.

CRASH is a JSON object {"marks": folder, "faults": [[kind, step, rank, value], …]}; each fault strikes once, ever:

    kill    SIGKILL at boundary `value` of the writer's work on the step
    slow    the writer waits `value` seconds before its work on the step
    full    the disk is full at boundary `value`
"""

from __future__ import annotations

import json
import os
import sys


def _arm(plan: dict[str, object]) -> None:
    import errno
    import time
    from pathlib import Path
    from typing import Any

    from plinth.storage import boundaries
    from plinth.training.checkpoint import rank_part

    whole = rank_part.write
    rank = int(sys.orig_argv[sys.orig_argv.index("plinth.training.checkpoint.writer") + 2])

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(made: Any, block: Any, do: Any) -> Any:
        for kind, step, where, value in plan["faults"]:  # type: ignore[attr-defined]
            if (step, where) != (made.step, rank):
                continue
            try:
                Path(f"{plan['marks']}/{kind}-{step}-{rank}").touch(exist_ok=False)
            except FileExistsError:
                continue
            if kind == "slow":
                time.sleep(value)
            else:
                boundaries.install(value, full if kind == "full" else None)
        return whole(made, block, do)

    rank_part.write = write


if "CRASH" in os.environ and "plinth.training.checkpoint.writer" in sys.orig_argv:
    _arm(json.loads(os.environ["CRASH"]))
