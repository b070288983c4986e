"""`plinth model compare`: two models side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.evaluation.comparison.differences import Difference
    from plinth.records import Manifest

#: Lines shown in the terminal; page and JSON have all.
SHOWN = 30


@click.command(
    epilog=examples(
        "plinth model compare latest release",
        "plinth model compare demo-3fa9c1d2e0b4:400 latest",
        "plinth model compare demo/2 ./models/another-model -o comparison.html",
        "plinth model compare latest release --json | jq '.lines[] | {measure, slice, better}'",
    )
)
@click.argument("a")
@click.argument("b")
@shared
@recipe_option
@click.option("-o", "--output", "target", type=click.Path(dir_okay=False, path_type=Path), help="Page to write.")
@json_option
def compare(settings: Settings, a: str, b: str, target: Path | None, as_json: bool) -> None:
    """Compare models A and B on held-out text, protected items, probes, tasks, memorisation and bias; write the page.

    A and B are `release`, `canary`, a version NAME/VERSION or NAME@ALIAS, a run (`latest`, an id or a prefix of it),
    a checkpoint RUN:STEP, the digest of a checkpoint, or a folder of weights with config.json and tokenizer.json. Each
    is measured as the recipe says, unless it was before. Differences are of pairs, with 95% intervals.
    """
    from plinth_assets import comparison
    from plinth_jobs.cli import output

    ctx = settings.context()
    made = _compared(settings, ctx, a, b, as_json)
    path = target or ctx.workspace.reports / f"comparison-{made.digest[:12]}.html"
    comparison.show(ctx, made, a, b, path)
    if as_json:
        output.emit_json({"digest": made.digest, "page": str(path), **made.stats})
        return
    _show(made)
    output.say(f"comparison {made.digest[:12]}, page {path}")


def _compared(settings: Settings, ctx: Context, a: str, b: str, as_json: bool) -> Manifest:
    """Measure both where need be, compare, and keep the manifests."""
    from plinth.evaluation.comparison import job
    from plinth_assets import comparison
    from plinth_jobs import targets
    from plinth_jobs.cli import output

    recipe = settings.load_recipe()
    stages = comparison.measuring(recipe)
    found = {name: ctx.refs.published(name) for stage in stages for name in stage.deps if name != "checkpoint"}
    given = {name: made for name, made in found.items() if made}
    for stage in stages:
        lacking = sorted(comparison.reads(stage) - set(given))
        if lacking and not as_json:
            output.say(f"without {stage.asset}: {', '.join(lacking)} not made yet")
    models = [targets.model(ctx, one, lambda: recipe.required_release().name) for one in (a, b)]
    say = (lambda line: None) if as_json else output.say
    ours, theirs = (comparison.measure(recipe, ctx, one, given, say) for one in models)
    made = job.run(ctx, ours, theirs)
    ctx.refs.save(made)
    return made


def _show(made: Manifest) -> None:
    from plinth.evaluation.comparison.differences import in_order, joined
    from plinth.report.comparison import same_model
    from plinth_jobs.cli import output

    lines = in_order(made.stats)
    if same_model(made):
        output.say(f"A and B are one model, checkpoint {made.inputs['a/checkpoint'][:12]}: no difference can be found")
    columns = ("measure", "slice", "items", "A", "B", "A - B", "finding")
    output.table(columns, [_row(line) for line in lines[:SHOWN]], right=columns[2:6])
    _say_rest(len(lines), "line")
    for measures, text in joined(made.stats["reasons"]):
        output.say(output.plain_markup(f"{measures}: {text}"))
    if made.stats["changes"]:
        output.heading("What differs")
        rows = [(one["sort"], one["where"], one["a"], one["b"]) for one in made.stats["changes"][:SHOWN]]
        output.table(("", "where", "A", "B"), rows)
        _say_rest(len(made.stats["changes"]), "difference")


def _say_rest(count: int, what: str) -> None:
    from plinth_jobs.cli import output

    if count > SHOWN:
        output.say(f"{counted(count - SHOWN, f'more {what}')} on the page")


def _row(line: Difference) -> tuple[object, ...]:
    from plinth.evaluation.comparison.differences import said
    from plinth.report.comparison import interval, number

    gap = line.difference
    values = number(line.a.value), number(line.b.value), interval(gap, True)
    return (line.measure, line.slice, gap.n, *values, said(line))
