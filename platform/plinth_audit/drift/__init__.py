"""Data drift: a released model on newer held-out documents, compared with the held-out documents of its own run.

    judge        anytime-valid test for slices that drift; recipe that continues training on the buckets that drift
    job          the asset, its stage and chart; its daily job and the sensor in Dagster

New text arrives snapshot by snapshot and is evaluated after each snapshot. The test is valid over all interim analyses
(`statistics.exchangeable`), with a Bonferroni correction over the slices of the first analysis. Documents are not
paired: newer documents are ranked among the reference documents.

The choice of the champion does not belong here (see `plinth_registry`).

This package also defines the command `plinth model drift`, which imports the other modules when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.records import Manifest


@click.command(
    short_help="Show slices on which the champion drifted; propose a recipe.",
    epilog=examples("plinth model drift", "plinth model drift --score", "plinth model drift --propose continued.yaml"),
)
@click.option("--score", is_flag=True, help="Score new held-out documents first.")
@click.option("--propose", type=click.Path(dir_okay=False, path_type=Path), help="Output file for the proposed recipe.")
@shared
@recipe_option
@json_option
def drift(settings: Settings, score: bool, propose: Path | None, as_json: bool) -> None:
    """Show slices of held-out text on which the champion drifted, and the documents that changed most.

    The test is valid over all interim analyses. --propose writes a recipe that starts from the champion and doubles the
    weight of the buckets that drift. --propose does not start a run.
    """
    from plinth_audit.drift import job
    from plinth_audit.drift.judge import in_words
    from plinth_jobs.cli import output

    made = _made(settings, score)
    found = job.slices(made)
    if as_json:
        output.emit_json({"digest": made.digest, **made.stats})
    else:
        columns = ("slice", "reference", "newer", "reference bits per byte", "now", "p", "")
        rows = [
            (one.label, one.documents, one.later, one.reference[0], one.latest and one.latest[0], one.adjusted,
             f"drifts since analysis {one.look}" if one.drifts else "")
            for one in found
        ]  # fmt: skip
        output.table(columns, rows, right=columns[1:6])
        for one in found:
            if one.drifts:
                output.line(in_words(one))
        if not any(one.drifts for one in found):
            output.say("No slice drifts." if found else "No result: there is no champion, or too little held-out text.")
    if propose is not None:
        _propose(settings, made, propose)


def _made(settings: Settings, score: bool) -> Manifest:
    from plinth.errors import MissingError, RecipeError
    from plinth_assets.framework import data_docs
    from plinth_assets.framework.build import bring, publish
    from plinth_audit.drift import job as drift
    from plinth_jobs.cli import output

    ctx, recipe = settings.context(), settings.load_recipe()
    stages = drift.stages(recipe)
    if not stages:
        raise RecipeError(f"recipe {recipe.name} has no release", expected="the sections `mixture` and `release`")
    if not score:
        found = ctx.refs.published(drift.ASSET)
        if found is None:
            raise MissingError("drift was never measured in this workspace", remedy="run `plinth model drift --score`")
        return found

    def say(line: str) -> None:
        output.line(line, err=True)

    made = publish(stages[0], ctx, bring(stages[0], ctx, say))
    for line in data_docs.finish():
        say(line)
    return made


def _propose(settings: Settings, made: Manifest, target: Path) -> None:
    from plinth.errors import MissingError
    from plinth.storage.atomic import write_bytes
    from plinth_audit.drift import job
    from plinth_audit.drift.judge import overlay
    from plinth_jobs.cli import output

    found = job.slices(made)
    if not any(one.drifts for one in found):
        raise MissingError(
            "no slice drifts, so there is no recipe to propose", remedy="score new text: `plinth model drift --score`"
        )
    base = settings.recipe_path()
    write_bytes(
        target, overlay(settings.load_recipe(), str(base.absolute()) if base.is_file() else str(base), found).encode()
    )
    output.line(f"Wrote {target}, which starts from the champion. Next: `plinth recipe check {target}`", err=True)
