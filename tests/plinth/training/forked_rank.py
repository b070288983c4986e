"""Process that is forked like a rank, for tests: `python -m forked_rank CONFIG WORD`, or `--standby`.
Without the variable LOADS, nothing is loaded before the fork.

It writes what it has inherited to the file CONFIG, as JSON, and ends as WORD says.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from plinth.training.recovery import standby
from plinth.training.supervise import rank_watch

arguments = sys.argv[1:]
if standby.OPTION in arguments:
    arguments = standby.wait() if "LOADS" in os.environ else standby.fork_ranks()
rank_watch.die_with_supervisor()
path, word = Path(arguments[0]), arguments[1]
inherited = {
    "pid": os.getpid(),
    "loaded": "deepspeed" in sys.modules,
    "threads": [Path(f"/proc/self/task/{one}/comm").read_text().strip() for one in os.listdir("/proc/self/task")],
    "input": os.readlink("/proc/self/fd/0"),
    "files": sorted(os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.exists()),
    "variables": {name: os.environ.get(name) for name in ("RANK", "LOADS")},
}
path.with_suffix(".part").write_text(json.dumps(inherited))
path.with_suffix(".part").rename(path)
match word:
    case "sleep":
        time.sleep(60)
    case "signal":
        os.kill(os.getpid(), signal.SIGABRT)
    case _:
        sys.exit(int(word))
