"""`plinth run contract`: the launch contract of a run, signed by its owner before the run starts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth.errors import MissingError, RequestError
from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth.operation.contracts import ContractOutcome
    from plinth.training.contract import LaunchContract


@group(
    epilog=examples(
        "plinth run contract sign big-3569 --curve curve.json --rank-hours 5000",
        "plinth run contract show latest",
        "plinth run contract sign latest --amend 'two nodes less' --yes",
    )
)
def contract() -> None:
    """Sign or show what a run may spend and must reach.

    A run with a contract starts only with the settings that its contract has. `training.contract: required` requires
    one.
    """


@contract.command(epilog=examples("plinth run contract sign big-3569 --curve curve.json --rank-hours 5000"))
@click.argument("run")
@click.option(
    "--curve", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Predicted loss curve: a file of `plinth experiment scaling curve`.",
)  # fmt: skip
@click.option(
    "--rank-hours", type=click.FloatRange(min=0, min_open=True), show_default="expected maximum",
    help="Budget of all jobs of the run together.",
)  # fmt: skip
@click.option("--amend", default="", metavar="REASON", help="Replace the contract in force.")
@click.option("--owner", help="Owner of the signing key, if this machine has several signing keys.")
@click.option("--yes", is_flag=True, help="Sign without confirmation.")
@shared
@json_option
def sign(
    settings: Settings, run: str, curve: Path | None, rank_hours: float | None, amend: str, owner: str | None,
    yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Sign the launch contract of RUN as it is configured now, with the role `owner`.

    `plinth run` prepares the run, and stops before the start if the recipe requires a contract. The contract has the
    settings of the run with the digests of its data, topology, budget, mixture, predicted loss curve and retention. The
    run ends when the budget is spent.
    """
    from plinth.operation import contracts
    from plinth.training import predicted_curve
    from plinth.training.contract import differences
    from plinth_registry import audit_log
    from plinth_registry.audit_log import AuditedAction

    config, ctx = contracts.amended(settings.run_config(run)), settings.context()
    given = predicted_curve.read(curve) if curve else None
    before = contracts.current(ctx, config)
    drafted = contracts.draft(ctx, config, before, curve=given, rank_hours=rank_hours, amend=amend)
    if not as_json:
        _show(drafted, None)
        for change in differences(before.contract, config) if before else ():
            output.say(f"changed: {change}")
    if not yes and not (not as_json and sys.stdin.isatty() and click.confirm("Sign it?")):
        remedy = "review it, then pass --yes"
        raise RequestError("the contract was not signed", expected="a confirmation", remedy=remedy)
    asked = AuditedAction("contract", f"{drafted.run} number {drafted.number}", owner or "", amend, owner)
    with audit_log.audited(ctx, asked):
        made = contracts.sign(ctx, drafted, owner)
    if as_json:
        output.emit_json(made)
    else:
        output.say(f"contract {made.number} of {made.run} is signed by {made.owner}")


@contract.command(epilog=examples("plinth run contract show latest --json | jq .missed"))
@click.argument("run")
@shared
@json_option
def show(settings: Settings, run: str, as_json: bool) -> int:
    """Show the newest launch contract of RUN, and what the run has spent and reached. The exit code is 6 if the budget
    is exceeded or a loss is outside the band."""
    from plinth.operation import contracts

    config, ctx = settings.run_config(run), settings.context()
    signed = contracts.current(ctx, config)
    if signed is None:
        raise MissingError(
            f"run {config.run_id} has no launch contract", remedy=f"`plinth run contract sign {config.run_id}`"
        )
    own = signed.contract
    found = contracts.outcome(config, own)
    kept = found.rank_hours <= own.budget.rank_hours and not found.missed
    if as_json:
        missed = [{"tokens": one.predicted.tokens, "loss": one.loss} for one in found.missed]
        spent = {"rank_hours": found.rank_hours, "segments": len(found.segments), "missed": missed, "kept": kept}
        output.emit_json({"sha256": signed.sha256, "contract": own.model_dump(mode="json"), **spent})
    else:
        _show(own, found)
    return 0 if kept else 6


def _show(own: LaunchContract, found: ContractOutcome | None) -> None:
    budget, price = own.budget, f", {own.budget.money:,.2f}" if own.budget.money else ""
    spent = f"; spent so far: {found.rank_hours:,.3g}" if found else ""
    output.heading(f"contract {own.number} of {own.run}" + (f", signed by {own.owner} on {own.at}" if found else ""))
    mixed = (f"{name} {one.share:.1%} ({one.epochs:.2g} epochs)" for name, one in sorted(own.mixture.items()))
    output.facts(
        {
            **({"replaces": f"{own.previous[:12]}: {own.reason}"} if own.previous else {}),
            "recipe": f"{own.settings['recipe']}, run key {own.key[:12]}",
            "data": ", ".join(f"{name} {digest[:12]}" for name, digest in own.data.items()),
            "topology": own.topology,
            "budget": f"{budget.rank_hours:,.4g} rank-hours{price} ({budget.reason}){spent}",
            "mixture": ", ".join(mixed),
            "retention": own.retention,
        }
    )
    if own.curve is None:
        output.facts({"loss": "no predicted curve: the contract promises no loss"})
        return
    last, curve = own.curve.points[-1], own.curve
    loss = f"{last.value:.4f} ({last.low:.4f} to {last.high:.4f}) after {last.tokens:,} tokens"
    output.facts({"loss": f"{loss}; {curve.level:.0%} for {counted(len(curve.points), 'segment')} together"})
    reached = {one.predicted.tokens: one for one in found.segments} if found else {}
    rows = [
        (f"{one.tokens:,}", f"{one.value:.4f}", f"{one.low:.4f} to {one.high:.4f}",
         "" if one.tokens not in reached else _loss(reached[one.tokens].loss),
         "" if one.tokens not in reached else "inside" if reached[one.tokens].inside else "OUTSIDE")
        for one in curve.points
    ]  # fmt: skip
    output.table(("tokens", "predicted", "band", "measured", ""), rows, right=("tokens", "predicted", "measured"))


def _loss(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.4f}"
