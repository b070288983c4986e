"""The folder of task files, as parts by content: what a set of tasks reads, and all that it can read."""

from __future__ import annotations

from plinth.compute.context import Context
from plinth.corpus.lists import lists
from plinth.errors import SourceError
from plinth.records import Manifest

VERSION = "1"


def task_files(ctx: Context, name: str, location: str) -> Manifest:
    """Copy the folder into the store.

    Returns:
        Manifest of one part per file, under its path in the folder. Statistics: `files`, `bytes`.

    Raises:
        SourceError: nothing is there, or a file cannot be read, is a link that leads out, or a special file.
    """
    made = lists.run(ctx, name, location)
    if not any(part.name.endswith((".yaml", ".yml", ".jsonl", ".json", ".parquet", ".csv")) for part in made.parts):
        raise SourceError(
            f"task set {name} has no task files",
            found=", ".join(part.name for part in made.parts[:5]),
            expected=f"YAML files of lm-evaluation-harness, or data of its own tasks, in {location}",
            remedy=f"correct evaluation.tasks.{name}.include",
        )
    return made.model_copy(update={"asset": f"task_files/{name}", "step": "task_files", "version": VERSION})
