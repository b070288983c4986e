"""The exporter of a workspace: all parts of its metrics, those of releases too."""

from __future__ import annotations

import sys
from collections.abc import Callable

from plinth.compute.context import Context
from plinth.operation.metrics.exporter import Exporter, ExportPart
from plinth.operation.metrics.runs import RunsCollector
from plinth.operation.metrics.workspace import CorpusState, WorkspaceState, budget
from plinth.recipe.recipe import Recipe
from registry.metrics import canary_samples, level_samples, release_samples

#: Seconds between two collections of what is read whole each time.
SELDOM_S = 300.0


def exporter(ctx: Context, recipe: Callable[[], Recipe | None], say: Callable[[str], None] | None = None) -> Exporter:
    """All parts, each at its pace.

    Args:
        recipe: gives the recipe whose release's canary is watched, once a canary stands; None: of no release.
        say: takes a sentence about a part that begins to fail; by default it is printed as an error.
    """
    runs = RunsCollector(ctx.workspace.runs)
    parts = (
        ExportPart("runs", 0.0, runs.collect),
        ExportPart("workspace", 0.0, WorkspaceState(ctx.workspace).collect),
        ExportPart("corpus", 60.0, CorpusState(ctx).collect),
        ExportPart("budget", 60.0, lambda: budget(ctx)),
        ExportPart("registry", 60.0, lambda: release_samples(ctx)),
        ExportPart("canary", SELDOM_S, lambda: canary_samples(ctx, recipe)),
        ExportPart("service levels", SELDOM_S, lambda: level_samples(ctx)),
    )
    return Exporter(parts, lambda: runs.read_bytes, say or _printed)


def _printed(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
