"""Qualification of a machine before a cluster is booked: what its devices, links, checkpoints and restarts reach, next
to published figures.

    work      the measurements, in order: devices, links, speed, recovery, tests
    trials    trials of training speed, placed by memory; the start of their ranks
    rank      one rank of a measurement (torch)
    record    figures with their references; the signed record and its page

Also here: the command `plinth qualify`, which loads the other modules when it runs.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth.errors import CheckFailedError
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth_lab.qualification.record import Figure, Qualification

NAMES = ("devices", "links", "speed", "recovery", "tests")


@click.command(
    epilog=examples(
        "plinth qualify", "plinth qualify --only devices --only links", "plinth qualify --json | jq .figures"
    )
)
@click.option("--only", multiple=True, type=click.Choice(NAMES), help="Make this measurement only; repeatable.")
@click.option("--keep", is_flag=True, help="Keep the scratch folder with the output of all ranks.")
@click.option("--unsigned", is_flag=True, help="Do not sign the record. No evaluator key is needed.")
@shared
@json_option
def qualify(settings: Settings, only: tuple[str, ...], keep: bool, unsigned: bool, as_json: bool) -> None:
    """Measure what this machine reaches in training, next to published figures.

    Measures the devices, the links between them, the speed of preset models with eager, compiled, deterministic and FP8
    kernels, checkpoints, and the recovery from a killed rank. A machine without GPUs takes the same path with tiny
    models. The record is signed, and its page is written. The exit code is 6 if a measurement fails.
    """
    from plinth.storage.workspace import Workspace
    from plinth.trust.dsse import EVALUATOR
    from plinth.trust.root import Trust
    from plinth_lab.qualification import record, work

    Workspace(settings.workspace).ensure()  # a new machine has no workspace yet
    ctx = settings.context()
    if not unsigned:
        Trust.of(ctx.workspace).signer(EVALUATOR)  # before minutes of measurement
    scratch, ends = Path(tempfile.mkdtemp(prefix="plinth-qualify-")), (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in ends}
    try:
        for number in (one for one in ends if before[one] is signal.SIG_DFL):  # `nohup` ignores SIGHUP
            signal.signal(number, signal.default_int_handler)  # else ranks would keep the devices

        def tell(name: str, done: int, total: int) -> None:
            output.line(f"{done + 1} of {total}: {name}", err=True)

        made = work.qualify(scratch, only, tell)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)
    signed = "not signed: --unsigned"
    if not unsigned:
        entry = record.append(ctx, made)
        signed = f"record {entry.number} of qualifications/, signed by {', '.join(entry.owners)}"
    page = record.write(ctx, made, signed)
    if as_json:
        output.emit_json({**made.model_dump(mode="json"), "record": signed, "page": page})
    else:
        _show(made)
        output.line(f"{signed}\npage: {page}" + (f"\nkept: {scratch}" if keep else ""))
    if made.failed:
        first = made.failed[0]
        raise CheckFailedError(
            f"{len(made.failed)} of {len(made.figures)} measurements failed",
            found=f"{first.name}: {first.note}",
            remedy="measure again with `plinth qualify --keep`, and read the output of the ranks",
        )


def _show(made: Qualification) -> None:
    output.heading(f"{made.count} x {made.device}")
    rows = [[one.section, one.name, *_cells(one)] for one in made.figures]
    output.table(["section", "figure", "measured", "reference", "state"], rows, right=["measured"])


def _cells(one: Figure) -> list[str]:
    value = "-" if one.value is None else f"{one.value:,.4g} {one.unit}"
    against = one.note if one.reference is None else f"{one.share:.0%} of {one.reference:,.4g} ({one.source})"
    return [value, against, one.state]
