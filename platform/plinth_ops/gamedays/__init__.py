"""Game days: one injected fault in a rehearsal, with a verdict on the expected behavior.

    gameday ──► *_days ──► play ──► scratch folder, root of trust, watch over everything outside
                  │          └────► signed record
                  └──► rehearsal ──► warm_job ──► supervisor ──► ranks: faults

    gameday        game days by name; their records (hypothesis, findings, verdict)
    play           preparation, fault injections, verdict; the scratch folder and its limits; the signed log of
                   game days, and the page of a record
    rehearsal      a small run, its undisturbed end state, and the comparison with it
    warm_job       jobs forked from a process that has loaded torch (`loaded`)
    faults         faults inside these processes, by step and rank

    checkpoint_days   a corrupted checkpoint, a partial write, a full disk
    data_days         a bad shard, a poisoned batch, stalled storage
    run_days          a preemption, a clock jump, a revoked key, an MLflow outage
    recovery_day      lost ranks, nodes, copies and spares while others keep running
    device_days       a flipped bit in a rank's memory
    upgrade_day       worse code, equal code, and kills while the equal code takes over
    contract_day      a run that leaves the predicted loss curve of its launch contract
    orchestrator_day  Dagster is killed
    release_day       a bad release: detect it, taint it, roll back, find the cause, require the missing gate

This package does not import torch before a rehearsal trains.

Also here: the command `plinth ops gameday`, which loads the other modules when it runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from plinth.errors import CheckFailedError
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, json_option, shared, unsigned_option

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth_ops.gamedays.gameday import GameDay, GameDayRecord, Instant


@click.command(
    "gameday",
    short_help="Inject a fault in a sandbox; write a verdict, a signed record and a page.",
    epilog=examples(
        "plinth ops gameday list",
        "plinth ops gameday corrupted-checkpoint",
        "plinth ops gameday partial-write --seed 7 --instants 20 --json",
        "plinth ops gameday partial-write --seed 7 --first 12 --instants 1     repeat one instant",
    ),
)
@click.argument("name")
@click.option("--seed", default=0, show_default=True, help="Seed of the random choices in all fault injections.")
@click.option("--instants", default=3, show_default=True, type=click.IntRange(1), help="Number of fault injections.")
@click.option(
    "--first",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Number of the first fault injection to run.",
)
@unsigned_option
@shared
@json_option
def gameday_command(
    settings: Settings, name: str, seed: int, instants: int, first: int, unsigned: bool, as_json: bool
) -> None:
    """Run the game day NAME. With `list` as NAME, list all game days and their last verdicts.

    A game day injects one fault into a small run in a scratch folder, at several instants that the seed determines. It
    compares the end state of each run with a hypothesis. The signed record is appended to the workspace, and its page
    is written. The exit code is 6 if the hypothesis fails at an instant.
    """
    from plinth_ops.gamedays.gameday import find

    if name == "list":
        return _list(settings.context(), as_json)
    day, ctx = find(name), settings.context()
    return _play(ctx, day, seed, instants, first, unsigned, as_json)


def _list(ctx: Context, as_json: bool) -> None:
    from plinth_ops.gamedays.gameday import TABLE, find
    from plinth_ops.gamedays.play import records

    last = {record.name: (one.at, record) for one, record in records(ctx)}
    days = [find(name) for name in TABLE]
    if as_json:
        rows = [
            {
                "name": day.name,
                "hypothesis": day.hypothesis,
                "missing": day.missing(),
                "alerts": day.alerts,
                "last": None if day.name not in last else {"at": last[day.name][0], "passed": last[day.name][1].passed},
            }
            for day in days
        ]
        return output.emit_json(rows)
    shown = []
    for day in days:
        at, record = last.get(day.name, ("", None))
        verdict = "never run" if record is None else "passed" if record.passed else "failed"
        count = "" if record is None else len(record.instants)
        shown.append([day.name, " or ".join(day.alerts) or "-", verdict, count, at, day.missing() or ""])
    output.table(["game day", "alert", "last verdict", "instants", "at", "cannot run here"], shown, right=["instants"])
    return None


def _play(ctx: Context, day: GameDay, seed: int, instants: int, first: int, unsigned: bool, as_json: bool) -> None:
    from plinth_ops.gamedays.play import play, require_playable, require_signer, untouched, write

    require_playable(day, instants)
    if not unsigned:
        require_signer(ctx)
    if not as_json:
        _state(day)

    def shown(instant: Instant) -> None:
        meter.advance()
        if not as_json:
            verdict = "passed" if instant.passed else "FAILED"
            output.line(f"  {instant.number:>3}  {verdict}  {instant.seconds:>6.1f} s  {instant.struck}")
            for failure in instant.failures:
                output.line(f"       {failure}")

    outside = untouched(ctx)
    with ctx.progress.meter("instants", instants) as meter:
        record = play(day, seed=seed, instants=instants, first=first, outside=outside, on_instant=shown)
    signed = "not signed: --unsigned" if unsigned else _signed(ctx, record)
    written = write(ctx, record, signed)
    if as_json:
        output.emit_json({**record.model_dump(mode="json"), "passed": record.passed, "record": signed,
                          "page": str(written)})  # fmt: skip
    else:
        output.line(f"{day.name}: {'passed' if record.passed else 'FAILED'} in {record.seconds:.0f} s; {signed}")
        output.line(f"page: {written}")
    failed = [one for one in record.instants if not one.passed]
    if failed:
        raise CheckFailedError(
            f"game day {day.name} failed in {len(failed)} of {len(record.instants)} fault injections",
            found=f"instant {failed[0].number}: {'; '.join(failed[0].failures)}",
            expected=day.hypothesis,
            remedy="repeat the first failed fault injection: "
            f"`plinth ops gameday {day.name} --seed {seed} --first {failed[0].number} --instants 1`",
        )


def _state(day: GameDay) -> None:
    output.line(f"hypothesis    {day.hypothesis}")
    output.line(f"fault         {day.fault}")
    output.line(f"blast radius  {day.blast_radius}")
    output.line(f"abort         {day.abort}")


def _signed(ctx: Context, record: GameDayRecord) -> str:
    from plinth_ops.gamedays.play import append

    made = append(ctx, record)
    return f"record {made.number} of gamedays/, SHA-256 {made.sha256}, signed by {', '.join(made.owners)}"
