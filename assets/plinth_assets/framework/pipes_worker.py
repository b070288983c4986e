"""Program for Pipes clients: run an installed annotator in another environment or on another machine.

    command: [/envs/gpu/bin/python, -m, plinth_assets.framework.pipes_worker]
"""

from __future__ import annotations

import json
from pathlib import Path

from dagster_pipes import open_dagster_pipes

from plinth.corpus.annotate import external
from plinth_assets.framework.pipes import EXTRA


def main() -> None:
    """Annotate the files that the Pipes context names, and log each finished file."""
    with open_dagster_pipes() as pipes:
        work = json.loads(Path(pipes.get_extra(EXTRA)).read_bytes())
        external.compute(work, lambda file: pipes.log.info(f"{work['annotator']}: {file['rows']} rows annotated"))


if __name__ == "__main__":
    main()
