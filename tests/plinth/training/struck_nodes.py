"""Supervisor of a node that is killed at calls of its own, for tests: `python -m struck_nodes CONFIG`.

The plan is that of `struck_ranks`; the faults of a spare have `spare` in the place of a rank. They strike one of the
spares, with all processes of its node.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import struck_ranks

from plinth.errors import PlinthError
from plinth.training import config as configuration
from plinth.training.supervise import supervisor

if __name__ == "__main__":
    plan = json.loads(os.environ["FAULTS"])
    spare = int(os.environ["PLINTH_NODE"]) >= configuration.load(Path(sys.argv[1])).launch.nodes
    struck_ranks.arm_all(plan, "spare" if spare else "")
    try:
        status = supervisor.main()
    except PlinthError as error:
        print(error, file=sys.stderr, flush=True)
        status = error.exit_code
    sys.exit(status)
