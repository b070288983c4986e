"""`plinth model probes`: the probes of a recipe with their scores, one item with what a model makes of it, a file's
lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.evaluation.probes.base import ProbeItem

WRONG = 2


@group(
    epilog=examples(
        "plinth model probes list", "plinth model probes explain code/brackets/03", "plinth model probes check my.jsonl"
    )
)
def probes() -> None:
    """Small sets of questions with one right answer, scored while a run trains and on its checkpoints."""


@probes.command(
    "list", epilog=examples("plinth model probes list", "plinth model probes list --json | jq '.probes.code.signal'")
)
@shared
@json_option
def list_(settings: Settings, as_json: bool) -> None:
    """List the probes of the workspace: items, and the scores of the checkpoint with 95% intervals."""
    from plinth_jobs.cli import output

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
    """Show an item: what a model is asked, its control, whether training text held it, and the checkpoint's score.

    Text begins after the bar of each line, white space included: an answer begins with what divides it from the prompt.
    """
    from plinth.errors import MissingError
    from plinth.evaluation.probes import probe_sets
    from plinth_jobs.cli import output

    ctx = settings.context()
    items = probe_sets.load(ctx.store, ctx.refs.current("probe_sets"))
    item = next((one for one in items if f"{one.probe}/{one.item}" == name), None)
    if item is None:
        known = "PROBE/ITEM, as in code/brackets/03"
        raise MissingError(f"no item {name}", expected=known, remedy="`plinth model probes list` has the probes")
    score = _score(ctx, item)
    if as_json:
        output.emit_json(item._asdict() | score)
        return
    output.heading(output.visible(name))
    output.facts({"family": item.family, "template": output.visible(item.template)} | score)
    _show_text("examples", item.examples)
    _show_text("prompt", item.prompt)
    _show_text("right answer", item.gold)
    for answer in item.wrong:
        _show_text("wrong answer", answer)
    _show_text("control: a prompt that does not lead to the right answer", item.control)


@probes.command(
    epilog=examples("plinth model probes check my.jsonl", "plinth model probes check my.jsonl --examples 2")
)
@click.argument("path", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--examples", "shots", type=click.IntRange(min=0), default=0, help="First lines that are examples.")
@shared
@json_option
def check(settings: Settings, path: Path, shots: int, as_json: bool) -> int:
    """Check a probe of your own: every line that is no item, by number and reason. Exit code 2 when there are any."""
    from plinth.evaluation.probes import user_set
    from plinth.evaluation.probes.parameters import UserProbe
    from plinth_jobs.cli import output

    given = UserProbe(path=str(path), examples=shots)
    found = user_set.read_lines(path.stem, given, path.read_bytes())
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
    """Each line of a text after a bar; nothing where there is none."""
    from plinth_jobs.cli import output

    if text:
        output.heading(title)
    for line in output.visible(text).split("\n") if text else ():
        output.say(f"    |{output.plain_markup(line)}")


def _scores(row: dict[str, Any]) -> tuple[object, ...]:
    found = (row.get(name) for name in ("bits_per_byte", "signal", "accuracy"))
    shown = ("" if one is None else f"{one['value']:.3f} ({one['low']:.3f} … {one['high']:.3f})" for one in found)
    return row.get("items", ""), *shown


def _score(ctx: Context, item: ProbeItem) -> dict[str, Any]:
    """The row of an item under the checkpoint, if there is one."""
    from plinth.storage.parts import read_table

    if ctx.refs.ref("probes") is None:
        return {}
    for row in read_table(ctx.store, ctx.refs.current("probes").parts[0]).to_pylist():
        if (row["probe"], row["item"]) == (item.probe, item.item):
            return {name: row[name] for name in ("status", "bits", "control_bits", "margin", "correct")}
    return {}
