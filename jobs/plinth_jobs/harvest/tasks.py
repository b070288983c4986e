"""The demo's set of tasks: two small ones in lm-evaluation-harness's form, written for the text that it trains on."""

from __future__ import annotations

from pathlib import Path

from plinth_jobs.harvest.output import Output

FILES = Path(__file__).parent / "task_files"


def write_tasks(output: Output) -> None:
    """Write the task files and their data."""
    for path in sorted(FILES.rglob("*")):
        if path.is_file():
            output.write(path.relative_to(FILES).as_posix(), path.read_bytes())
