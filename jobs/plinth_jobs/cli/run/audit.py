"""`plinth run audit resume`: proof that a resumed run equals the uninterrupted one."""

from __future__ import annotations

import json
from typing import Any

import click

from plinth_jobs.cli.options import Settings, examples, group, json_option, shared


@group(epilog=examples("plinth run audit resume latest", "plinth run audit resume latest --from 100"))
def audit() -> None:
    """Audits of a run."""


@audit.command(
    epilog=examples("plinth run audit resume latest", "plinth run audit resume latest --from 100 --json | jq .equal")
)
@click.argument("run")
@click.option("--from", "start", type=click.IntRange(min=1), metavar="STEP", help="Replay from the checkpoint at STEP.")
@shared
@json_option
def resume(settings: Settings, run: str, start: int | None, as_json: bool) -> int:
    """Replay RUN from a committed checkpoint to its newest one and compare every step and commit.

    Compared are loss, gradient norm, learning rate, batches, skipped steps and interventions; parameters, optimizer
    state, random generators, monitor and guard. The evidence replaces resume.json, which the gate reads; earlier
    evidence stays in the folder audits/ of the run. Exit code 6 when anything differs; the same steps are then replayed
    once more, to measure how far kernels are apart on this hardware.
    """
    from plinth.training.forensics.offline_audit import audit as run_audit
    from plinth_jobs.cli import output

    config = settings.run_config(run)
    found = run_audit(config, start)
    if as_json:
        output.emit_json(found)
    else:
        _show(config.run_id, found)
    return 0 if found["bit_exact"] else 6


def _show(run: str, found: dict[str, Any]) -> None:
    from plinth.training.forensics.proof import PARAMETERS, examined
    from plinth_jobs.cli import output

    original = found["commits"][-1]["parts"][PARAMETERS]["original"]
    measured = examined(found, step=found["to_step"], parameters_sha256=original).tolerance
    verdict = "bit for bit equal" if found["bit_exact"] else "NOT equal"
    output.heading(f"{run}: steps {found['from_step'] + 1} to {found['to_step']} replayed, {verdict}")
    largest = found["max_abs_difference"]
    output.facts(
        {
            "steps compared": found["compared_steps"],
            "skipped steps": len(found["skipped_steps"]["replayed"]),
            "ranks": f"{found['ranks']}, ZeRO-{found['zero_stage']}",
            **{f"equal {name}": equal for name, equal in found["equal"].items()},
            **{f"largest difference, {name}": value for name, value in largest.items()},
        }
    )
    if measured is not None:
        within = "; ".join(measured.faults) or "within the tolerance that two replays show"
        output.heading(f"measured on {measured.hardware[0]}: {within}")
        bounds = [(name, f"{one.difference:.3g}", f"{one.bound:.3g}") for name, one in measured.bounds.items()]
        output.table(("quantity", "relative difference", "bound"), bounds, right=("relative difference", "bound"))
    rows = [
        (commit["step"], part, "yes" if value["equal"] else "no", json.dumps(value.get("replayed", ""))[:40])
        for commit in found["commits"]
        for part, value in commit["parts"].items()
    ]
    output.table(("checkpoint", "part", "equal", "replayed"), rows, right=("checkpoint",))
