"""Experiments that compare variants (arms) of a recipe over sizes and seeds, with intervals.

    arms        the experiment file and its runs: overlays over one recipe, fixed keys, the budget
    pipeline    the pipeline of one run: its stages and sources, executed with its own references
    measure     scores of the test text under a model; the manifest of a finished or failed run; the critical batch
    effects     scores of a run; each arm against the base with intervals; arms that can no longer win
    answer      the manifest of the effects, the page's contents, the arms to stop
    page        the page: question, arms, effects with intervals, decisions, failures, cost; its figures
    stages      the assets of an experiment
    run         run an experiment in this process; packaged experiments (`packaged/`), and experiments of a workspace

This package defines the command `plinth experiment`, which imports the other modules when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from plinth.compute.engine import cores
from plinth.text import counted
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared
from plinth_lab.source_value import say_verdict

file_argument = click.argument("file", type=click.Path(path_type=Path))


@group(
    epilog=examples(
        "plinth experiment check filters",
        "plinth experiment run filters",
        "plinth experiment list",
        "plinth experiment show filters --json | jq '.effects[] | {arm, finding}'",
        "plinth experiment propose swarm.yaml --write better.yaml --confirm confirm.yaml",
    )
)
def experiment() -> None:
    """Compare variants (arms) of a recipe over sizes and seeds. Show paired effects with intervals on a page."""


@experiment.command()
@file_argument
@shared
@json_option
def check(settings: Settings, file: Path, as_json: bool) -> None:
    """Validate an experiment and list its runs with tokens and FLOPs, without starting the runs.

    FILE is a YAML file, or the name of a packaged experiment.
    """
    from plinth_jobs.cli import output
    from plinth_lab.experiments import run as experiments

    loaded, arms = experiments.load(file)
    tokens, flops = sum(one.tokens for one in arms), sum(one.flops for one in arms)
    if as_json:
        runs = [{"asset": one.asset, "tokens": one.tokens, "flops": one.flops} for one in arms]
        output.emit_json({"name": loaded.name, "runs": runs, "tokens": tokens, "flops": flops})
        return
    output.heading(loaded.question)
    rows = [
        (one.arm, one.size, one.seed, f"{one.tokens:,}", f"{one.flops:.3g}", "base" if one.arm == loaded.base else "")
        for one in arms
    ]
    output.table(("arm", "size", "seed", "tokens", "FLOPs", ""), rows, right=("seed", "tokens", "FLOPs"))
    output.say(f"{counted(len(arms), 'run')}, {tokens:,} tokens, {flops:.3g} FLOPs")


@experiment.command("run")
@file_argument
@shared
@click.option(
    "--side-by-side", type=click.IntRange(1, 256), default=1, show_default=True, help="Number of concurrent runs."
)
@click.option("--again", is_flag=True, help="Retry failed runs.")
@click.option("-n", "--workers", type=click.IntRange(1, 1024), help="Worker processes (default: one per core).")
@json_option
def run_command(
    settings: Settings, file: Path, side_by_side: int, again: bool, workers: int | None, as_json: bool
) -> None:
    """Start the missing runs of an experiment, compare the arms, and write the page.

    A pipeline step that several arms or the workspace share runs only once. If the command is interrupted, run it again
    to continue. A failed arm is reported as a result.
    """
    from plinth.compute.select_engine import Compute
    from plinth_jobs.cli import output
    from plinth_lab.experiments import run as work

    summary = work.run(
        settings.workspace,
        file,
        compute=Compute("local", workers or cores()),
        side_by_side=side_by_side,
        again=again,
        say=lambda sentence: output.line(sentence, err=True),
    )
    if as_json:
        output.emit_json(summary)
        return
    output.heading(f"made {counted(len(summary.made), 'asset')}, {len(summary.fresh)} up to date")
    _effects(summary.effects)
    for asset in summary.failed:
        output.say(f"failed: {asset}")
    if summary.verdict is not None:
        say_verdict(summary.verdict)
    _confirmation(summary.confirmation)
    output.facts({"page": summary.page.absolute().as_uri()})


@experiment.command()
@file_argument
@shared
@json_option
def show(settings: Settings, file: Path, as_json: bool) -> None:
    """Show the effects of an experiment, and rewrite its page."""
    from plinth_jobs.cli import output
    from plinth_lab.experiments import run as experiments
    from plinth_lab.experiments import stages as wiring
    from plinth_lab.experiments.run import answer_of

    ctx = settings.context()
    loaded, arms = experiments.load(file)
    made = answer_of(ctx, loaded, arms)
    page = wiring.show(ctx, loaded, arms, made)
    if as_json:
        output.emit_json({"digest": made.digest, "page": str(page), **made.stats})
        return
    output.heading(loaded.question)
    _effects(made.stats["effects"])
    if "value" in made.stats:
        say_verdict(made.stats["value"])
    _confirmation(made.stats.get("confirmation"))
    for one in made.stats.get("optima", ()):
        best = one["optimum"]
        found = f"{best['value']:.3g} ({best['low']:.3g} to {best['high']:.3g})" if best else one["why"]
        output.say(f"{one['key']}, size {one['size']}: {found}; lowest arm {one['best']}")
    for one in made.stats.get("outcomes", ()):
        own = one["outcome"]
        told, side = own["predicted"], "inside" if own["inside"] else "outside"
        ends = f"{told['value']:.4f} ({told['low']:.4f} to {told['high']:.4f})"
        output.say(f"{one['run']['tokens']:,.0f} tokens: predicted {ends}, measured {own['truth']:.4f}, {side}")
    output.facts({"page": page.absolute().as_uri()})


@experiment.command("list")
@shared
@json_option
def list_(settings: Settings, as_json: bool) -> None:
    """List the experiments of the workspace that have results, with the published effects; nothing is recomputed."""
    from plinth_jobs.cli import output
    from plinth_lab.experiments.answer import published

    found = published(settings.context())
    if as_json:
        output.emit_json(found)
        return
    for one in found:
        output.heading(one["name"])
        _effects(one["effects"])
    if not found:
        output.say("No experiments have results.")


@experiment.command()
@file_argument
@click.option("--write", type=click.Path(path_type=Path), help="Write a recipe with the proposed mixture to this file.")
@click.option(
    "--confirm",
    type=click.Path(path_type=Path),
    help="Output file for an experiment that compares the proposal with the prior.",
)
@shared
@json_option
def propose(settings: Settings, file: Path, write: Path | None, confirm: Path | None, as_json: bool) -> None:
    """Show the mixture that a swarm experiment proposes, with the interval of its gain, and write the mixture as a
    recipe.

    If the gain is not significant, or new runs did not confirm the proposal, no recipe is written and the exit code is
    6.
    """
    from plinth.storage.atomic import write_bytes
    from plinth_jobs.cli import output
    from plinth_lab.experiments import run as experiments
    from plinth_lab.experiments.answer import confirmation_of
    from plinth_lab.experiments.run import answer_of
    from plinth_lab.mixture import proposals
    from plinth_lab.mixture.proposals import MixtureProposal

    ctx, (loaded, arms) = settings.context(), experiments.load(file)
    made = answer_of(ctx, loaded, arms)
    found, outcome = made.stats.get("proposal"), confirmation_of(ctx, loaded, made)
    proposal = proposals.required(loaded.name, MixtureProposal.model_validate(found) if found else None)
    if confirm is not None:
        write_bytes(confirm, proposals.confirmation(loaded, file, proposal, made.digest).encode())
    if write is not None:
        write_bytes(write, proposals.recipe(loaded, file, proposal, outcome).encode())
    if as_json:
        told = outcome.model_dump(mode="json") if outcome else None
        return output.emit_json({**proposal.model_dump(mode="json"), "confirmation": told})
    rows = [
        (name, f"{share:.1%}", f"{proposal.shares[name]:.1%}", f"{proposal.caps[name]:.1%}")
        for name, share in proposal.prior.items()
    ]
    output.table(("stream", "prior", "proposed", "maximum"), rows, right=("prior", "proposed", "maximum"))
    output.say(
        f"the proposal is predicted to save {proposal.gain:.3g} bits per byte against the prior (95%: "
        f"{proposal.low:.3g} to {proposal.high:.3g}), by a {proposal.family} surrogate fitted to "
        f"{counted(len(proposal.runs), 'run')}"
    )
    _confirmation(outcome.model_dump(mode="json") if outcome else None)
    return None


def _confirmation(found: dict[str, Any] | None) -> None:
    from plinth_jobs.cli import output

    if found is not None:
        output.heading(f"proposal: {found['status']}")
        output.say(found["reason"])


def _effects(effects: Sequence[dict[str, Any]]) -> None:
    from plinth_jobs.cli import output

    rows = [(one["arm"], one["size"], one["slice"], one["finding"]) for one in effects]
    output.table(("arm", "size", "slice", "finding"), rows)
