"""Commands about the measured quality of a model: `plinth model evaluation | probes | compare`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth.errors import MissingError
from plinth.text import counted, visible
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, group, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.evaluation.comparison.differences import Difference
    from plinth.evaluation.probes.base import ProbeItem
    from plinth.records import Manifest


@click.command(
    epilog=examples(
        "plinth model evaluation",
        "plinth model evaluation language length",
        "plinth model evaluation --worst 10",
        "plinth model evaluation --against 3fa9c1d2e0b4 --spans 20",
        "plinth model evaluation --json | jq '.axes.language.en.model'",
    )
)
@shared
@click.argument("axes", nargs=-1)
@click.option(
    "--worst",
    type=click.IntRange(min=0),
    default=5,
    show_default=True,
    help="Number of worst documents to show, by bits in excess of their bucket's average.",
)
@click.option(
    "--against", metavar="DIGEST", help="Digest of another evaluation of the same held-out text to compare with."
)
@click.option(
    "--spans",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Number of spans to show with --against.",
)
@json_option
def evaluation(
    settings: Settings, axes: tuple[str, ...], worst: int, against: str | None, spans: int, as_json: bool
) -> None:
    """Show bits per byte by slice of held-out text, with 95% intervals.

    AXES are bucket, language, domain, length, and the recipe's `evaluation.slices`. The default is all axes. With
    --against, show the text spans where two checkpoints differ most; their tokenizers may differ.
    """
    ctx = settings.context()
    made = ctx.refs.current("evaluation")
    if against:
        _show_spans(ctx, made, against, spans, as_json)
        return
    if as_json:
        output.emit_json({"digest": made.digest, **made.stats})
        return
    every = {"bucket": made.stats["slices"], **made.stats["axes"]}
    unknown = [name for name in axes if name not in every]
    if unknown:
        raise MissingError(f"no axis {unknown[0]}", expected=f"one of {', '.join(every)}")
    _show_slices("all", {"all": made.stats["overall"]})
    for axis in axes or every:
        _show_slices(axis, every[axis])
    _show_worst(made.stats["worst"][:worst])
    output.say(f"evaluation {made.digest[:12]}")


def _show_slices(axis: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    from plinth.evaluation.slices.job import in_order, interval

    columns = (axis, "text", "documents", "bits per byte", "95% interval", "trigram", "gzip")
    cells = (
        (name, output.size(row["bytes"]), row["n"], f"{row['model']:.4f}", interval(row),
         f"{row['trigram']:.3f}", f"{row['gzip']:.3f}")
        for name in in_order(axis, rows)
        for row in [rows[name]]
    )  # fmt: skip
    output.table(columns, cells, right=columns[1:])


def _show_worst(rows: list[Mapping[str, Any]]) -> None:
    if rows:
        output.heading("worst documents (bits in excess of the bucket's average)")
    for row in rows:
        output.say(f"  {row['excess_bits']:,.0f} bits, {row['model']:.3f} per byte  {output.plain_markup(row['uri'])}")
        output.say(f"    [dim]`plinth explain {row['id']}`[/dim]")


def _show_spans(ctx: Context, made: Manifest, against: str, most: int, as_json: bool) -> None:
    from dataclasses import asdict

    from plinth.evaluation.slices.tables import largest

    found = largest(ctx.store, ctx.refs, made, _other(ctx, against), most)
    if as_json:
        output.emit_json([{**asdict(one), "difference": one.difference} for one in found])
        return
    for one in found:
        more = "more" if one.difference > 0 else "fewer"
        output.say(
            f"  {abs(one.difference):,.1f} bits {more}: {one.a_bits:,.1f} instead of {one.b_bits:,.1f}"
            f"  [dim]{output.plain_markup(one.uri)} bytes {one.start} to {one.end}; `plinth explain {one.id}`[/dim]"
        )
        output.say(f"    {output.plain_markup(' '.join(one.text.split()))}")


def _other(ctx: Context, prefix: str) -> Manifest:
    """Return the evaluation with a digest that starts with this prefix.

    Raises:
        MissingError: the prefix matches no evaluation, or several evaluations.
    """
    found = [ctx.refs.load(path.stem) for path in ctx.refs.saved(prefix)]
    evaluations = [one for one in found if one.asset == "evaluation"]
    if len(evaluations) != 1:
        raise MissingError(
            f"{len(evaluations)} evaluations begin with {prefix}",
            expected="a unique digest, as shown by `plinth model evaluation` and Dagster",
        )
    return evaluations[0]


WRONG = 2


@group(
    epilog=examples(
        "plinth model probes list", "plinth model probes explain code/brackets/03", "plinth model probes check my.jsonl"
    )
)
def probes() -> None:
    """List, explain and check probes: questions with one correct answer, scored during training and on checkpoints."""


@probes.command(
    "list", epilog=examples("plinth model probes list", "plinth model probes list --json | jq '.probes.code.signal'")
)
@shared
@json_option
def list_(settings: Settings, as_json: bool) -> None:
    """List the workspace's probes with the checkpoint's scores and 95% intervals."""
    ctx = settings.context()
    sets = ctx.refs.current("probe_sets").stats["sets"]
    published = ctx.refs.published("probes")
    scores = published.stats["probes"] if published else {}
    if as_json:
        output.emit_json({"sets": sets, "probes": scores})
        return
    columns = ("probe", "family", "items", "scored", "bits per byte", "signal", "accuracy")
    rows = [(name, own["family"], own["items"], *_scores(scores.get(name, {}))) for name, own in sets.items()]
    output.table(columns, rows, right=("items", "scored"))


@probes.command(
    epilog=examples("plinth model probes explain code/brackets/03", "plinth model probes explain mine/wales --json")
)
@click.argument("name", metavar="PROBE/ITEM")
@shared
@json_option
def explain(settings: Settings, name: str, as_json: bool) -> None:
    """Show a probe item: its prompt, answers, control and contamination, and the checkpoint's score.

    The text of each line starts after the bar, including white space that separates an answer from the prompt.
    """
    from plinth.evaluation.probes import probe_sets

    ctx = settings.context()
    items = probe_sets.load(ctx.store, ctx.refs.current("probe_sets"))
    item = next((one for one in items if f"{one.probe}/{one.item}" == name), None)
    if item is None:
        known = "PROBE/ITEM, as in code/brackets/03"
        raise MissingError(f"no item {name}", expected=known, remedy="list probes with `plinth model probes list`")
    score = _score(ctx, item)
    if as_json:
        output.emit_json(item._asdict() | score)
        return
    output.heading(visible(name))
    output.facts({"family": item.family, "template": visible(item.template)} | score)
    _show_text("examples", item.examples)
    _show_text("prompt", item.prompt)
    _show_text("correct answer", item.gold)
    for answer in item.wrong:
        _show_text("wrong answer", answer)
    _show_text("control: a prompt that does not imply the correct answer", item.control)


@probes.command(
    epilog=examples("plinth model probes check my.jsonl", "plinth model probes check my.jsonl --examples 2")
)
@click.argument("path", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--examples",
    "shots",
    type=click.IntRange(min=0),
    default=0,
    help="Number of leading lines used as few-shot examples.",
)
@shared
@json_option
def check(settings: Settings, path: Path, shots: int, as_json: bool) -> int:
    """Check a probe file; list invalid lines by number and reason. The exit code is 2 if there are invalid lines."""
    from plinth.evaluation.parameters import UserProbe
    from plinth.evaluation.probes import probe_sets

    given = UserProbe(path=str(path), examples=shots)
    found = probe_sets.read_lines(path.stem, given, path.read_bytes())
    left = max(0, len(found.items) - shots)
    wrong = bool(found.rejects) or not left
    if as_json:
        rejects = [one._asdict() for one in found.rejects]
        output.emit_json({"path": str(path), "right": not wrong, "scored": left, "rejects": rejects})
        return WRONG if wrong else 0
    for one in found.rejects:
        output.say(f"{output.plain_markup(str(path))}:{one.line}: {output.plain_markup(one.reason)}")
    counts = f"{counted(left, 'item')} to score, {counted(min(shots, len(found.items)), 'example')}"
    output.say(f"{counts}; {counted(len(found.rejects), 'line')} rejected")
    return WRONG if wrong else 0


def _show_text(title: str, text: str) -> None:
    """Print a title and each line of a text after a bar."""
    if text:
        output.heading(title)
    for line in visible(text).split("\n") if text else ():
        output.say(f"    |{output.plain_markup(line)}")


def _scores(row: dict[str, Any]) -> tuple[object, ...]:
    found = (row.get(name) for name in ("bits_per_byte", "signal", "accuracy"))
    shown = ("" if one is None else f"{one['value']:.3f} ({one['low']:.3f} … {one['high']:.3f})" for one in found)
    return row.get("items", ""), *shown


def _score(ctx: Context, item: ProbeItem) -> dict[str, Any]:
    """Return the checkpoint's score on a probe item, or an empty dictionary if the item was not scored."""
    from plinth.storage.parts import read_table

    if ctx.refs.ref("probes") is None:
        return {}
    for row in read_table(ctx.store, ctx.refs.current("probes").parts[0]).to_pylist():
        if (row["probe"], row["item"]) == (item.probe, item.item):
            return {name: row[name] for name in ("status", "bits", "control_bits", "margin", "correct")}
    return {}


#: Maximum number of lines shown in the terminal. The page and JSON have all lines.
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
    """Compare models A and B on held-out text, protected items, probes, tasks, memorization and bias; write a page.

    A and B are `release`, `canary`, a version NAME/VERSION or NAME@ALIAS, a run (`latest`, a run ID or a prefix of it),
    a checkpoint RUN:STEP, the digest of a checkpoint, or a folder of weights with config.json and tokenizer.json. Each
    model is evaluated as the recipe defines, unless its results are cached. Differences are paired, with 95% intervals.
    """
    from plinth_assets.measurements import comparison_stage

    ctx = settings.context()
    made = _compared(settings, ctx, a, b, as_json)
    path = target or ctx.workspace.reports / f"comparison-{made.digest[:12]}.html"
    comparison_stage.show(ctx, made, a, b, path)
    if as_json:
        output.emit_json({"digest": made.digest, "page": str(path), **made.stats})
        return
    _show(made)
    output.say(f"comparison {made.digest[:12]}, page {path}")


def _compared(settings: Settings, ctx: Context, a: str, b: str, as_json: bool) -> Manifest:
    """Measure both models unless their results are cached, compare them, and store the manifests."""
    from plinth.evaluation.comparison import job
    from plinth_assets.measurements import comparison_stage
    from plinth_jobs import targets

    recipe = settings.load_recipe()
    stages = comparison_stage.measuring(recipe)
    found = {name: ctx.refs.published(name) for stage in stages for name in stage.deps if name != "checkpoint"}
    given = {name: made for name, made in found.items() if made}
    for stage in stages:
        lacking = sorted(comparison_stage.reads(stage) - set(given))
        if lacking and not as_json:
            output.say(f"skipped {stage.asset}: {', '.join(lacking)} never materialized")
    models = [targets.model(ctx, one, lambda: recipe.required_release().name) for one in (a, b)]
    say = (lambda line: None) if as_json else output.say
    ours, theirs = (comparison_stage.measure(recipe, ctx, one, given, say) for one in models)
    made = job.run(ctx, ours, theirs)
    ctx.refs.save(made)
    return made


def _show(made: Manifest) -> None:
    from plinth.evaluation.comparison.differences import in_order, joined
    from plinth.report.evaluation import same_model

    lines = in_order(made.stats)
    if same_model(made):
        output.say(f"A and B are the same model, checkpoint {made.inputs['a/checkpoint'][:12]}")
    columns = ("measure", "slice", "items", "A", "B", "A - B", "finding")
    output.table(columns, [_row(line) for line in lines[:SHOWN]], right=columns[2:6])
    _say_rest(len(lines), "line")
    for measures, text in joined(made.stats["reasons"]):
        output.say(output.plain_markup(f"{measures}: {text}"))
    if made.stats["changes"]:
        output.heading("Differences")
        rows = [(one["sort"], one["where"], one["a"], one["b"]) for one in made.stats["changes"][:SHOWN]]
        output.table(("", "where", "A", "B"), rows)
        _say_rest(len(made.stats["changes"]), "difference")


def _say_rest(count: int, what: str) -> None:
    if count > SHOWN:
        output.say(f"{counted(count - SHOWN, f'more {what}')} on the page")


def _row(line: Difference) -> tuple[object, ...]:
    from plinth.evaluation.comparison.differences import result_text
    from plinth.report.evaluation import interval, number

    gap = line.difference
    values = number(line.a.value), number(line.b.value), interval(gap, True)
    return (line.measure, line.slice, gap.n, *values, result_text(line))
