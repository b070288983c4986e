"""Search over a stream of proposals from people or agents, with one error budget for all tries.

    question   the loop file and its proposals; the experiment that a try becomes
    decision   the decision about a try: scores per seed and document in, verdict out
    tries      the signed log of tries and interim analyses, and the state that follows from it
    run        the loop: what comes next, and the scores of real runs
    page       the page and the JSON summary

This module has the command `plinth experiment loop`, which loads the other modules when it runs.
"""

from __future__ import annotations

from pathlib import Path

import click

from plinth.compute.engine import cores
from plinth.text import counted
from plinth_jobs.cli.options import Settings, examples, json_option, shared


@click.command(
    "loop",
    short_help="Try proposals one after the other; only an always-valid test accepts.",
    epilog=examples("plinth experiment loop nightly.yaml", "plinth experiment loop nightly.yaml --show --json"),
)
@click.argument("file", type=click.Path(path_type=Path))
@shared
@click.option("--show", "only_show", is_flag=True, help="Verify the log and write the page, without any run.")
@click.option(
    "--side-by-side", type=click.IntRange(1, 256), default=1, show_default=True, help="Number of concurrent runs."
)
@click.option("-n", "--workers", type=click.IntRange(1, 1024), help="Worker processes; one per core by default.")
@json_option
def loop(
    settings: Settings, file: Path, only_show: bool, side_by_side: int, workers: int | None, as_json: bool
) -> None:
    """Try every new proposal of a loop file against the current base, and stop when the budget is spent.

    Every try and every interim analysis is signed into a log. An accepted proposal becomes the new base if new runs
    confirm it. If the command is interrupted, run it again to continue.
    """
    from plinth.compute.select_engine import Compute
    from plinth_jobs.cli import output
    from plinth_lab.loop import page, run

    if only_show:
        found = run.shown(settings.context(), file)
    else:
        compute = Compute("local", workers or cores())
        found = run.run(
            settings.workspace, file, compute=compute, side_by_side=side_by_side,
            say=lambda sentence: output.line(sentence, err=True),
        )  # fmt: skip
    target = page.show(settings.context(), *found)
    summary = page.summary(*found)
    if as_json:
        output.emit_json({**summary, "page": str(target)})
        return
    output.heading(f"{counted(summary['tries'], 'try')}, {summary['analyses']} interim analyses: {summary['stopped']}")
    rows = [(str(one["number"]), one["name"], one["verdict"], one["reason"]) for one in summary["results"]]
    output.table(("try", "proposal", "verdict", "reason"), rows, right=("try",))
    cost = summary["multiplicity"]
    output.say(f"error budget spent: {summary['spent_alpha']:.3f} of {summary['alpha']:g}; base: {summary['base']}")
    output.say(f"level of the next try: {cost['next_level']:.2g}; without correction: {cost['uncorrected_level']:.2g}")
    output.facts({"page": target.absolute().as_uri()})
