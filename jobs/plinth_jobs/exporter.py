"""The exporter of a workspace: all parts of its metrics, those of releases too.

It holds what it needs every few seconds and little more. What reads signatures, lineage and whole timelines is loaded
by a process that ends with the collection (`plinth_jobs.exporter_parts`), so none of it is imported here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from plinth import processes
from plinth.compute.context import Context
from plinth.compute.worker import Program
from plinth.operation.metrics.exporter import Exporter, ExportPart
from plinth.operation.metrics.part_process import PartProcess
from plinth.operation.metrics.runs import RunsCollector
from plinth.operation.metrics.workspace import CorpusState, WorkspaceState, budget

#: Seconds between two collections of releases where none of their files changed: a head expires without a change, and
#: the pages of a release are promised within three minutes. Each takes a process and a second of the processor.
RELEASES_S = 120.0
#: Of what is read whole each time; a multiple of the other, so that one process serves both.
SELDOM_S = 3 * RELEASES_S


def exporter(ctx: Context, recipe: Path | None = None, say: Callable[[str], None] | None = None) -> Exporter:
    """All parts, each at its pace.

    Args:
        recipe: whose release's canary is watched; None: that of the last run of the workspace, if there was one.
        say: takes a sentence about a part that begins to fail; by default it is printed as an error.
    """
    space = ctx.workspace
    runs = RunsCollector(space.runs)
    arguments = (str(space.root), *([str(recipe.absolute())] if recipe else []))
    needs = (*processes.STORES, *processes.SERVICES, *processes.KEYS)
    apart = PartProcess(Program("plinth_jobs.exporter_parts:serve", arguments, needs=needs))
    signed = (space.releases, space.taint, space.trust, space.policies)
    parts = (
        ExportPart("runs", 0.0, runs.collect),
        ExportPart("workspace", 0.0, WorkspaceState(space).collect),
        ExportPart("corpus", 60.0, CorpusState(ctx).collect),
        ExportPart("budget", 60.0, lambda: budget(ctx)),
        ExportPart("registry", RELEASES_S, lambda: apart.collect("registry"), lambda: _states(signed)),
        ExportPart("canary", SELDOM_S, lambda: apart.collect("canary")),
        ExportPart("service levels", SELDOM_S, lambda: apart.collect("service levels")),
    )
    return Exporter(parts, lambda: runs.read_bytes, say or _printed, apart.end)


def _states(folders: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Path, size and time of change of every file: another answer means that something was signed, or tampered with."""
    found = []
    for folder in folders:
        for above, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(above, name)
                with suppress(FileNotFoundError):  # replaced just now
                    state = os.lstat(path)
                    found.append((path, state.st_size, state.st_mtime_ns))
    return found


def _printed(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
