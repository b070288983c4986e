"""`plinth run goodput`: every rank-second of a run by its cause."""

from __future__ import annotations

import click

from plinth_jobs.cli.options import Settings, examples, json_option, shared


@click.command(epilog=examples("plinth run goodput latest", "plinth run goodput latest --json | jq .rank_s"))
@click.argument("run")
@shared
@json_option
def goodput(settings: Settings, run: str, as_json: bool) -> None:
    """Show where every rank-second of RUN (`latest`, a run id or a prefix of it) went, and of each of its attempts.

    Shares are of all rank-seconds, with those in a queue, and add up to 100.0; goodput is of those that were held.
    """
    from plinth.operation import goodput as operation
    from plinth_jobs.cli import output

    config = settings.run_config(run)
    ledger = operation.of_run(config)
    shares = ledger.percentages()
    if as_json:
        output.emit_json(
            {
                "run": config.run_id,
                "goodput": ledger.goodput,
                "total_rank_s": ledger.total_rank_s,
                "held_rank_s": ledger.held_rank_s,
                "lost_steps": ledger.lost_steps,
                "rank_s": ledger.rank_s,
                "percent": shares,
                "attempts": [one.model_dump(mode="json") for one in ledger.attempts],
            }
        )
        return
    level = f"goodput {100 * ledger.goodput:.1f}% of {ledger.held_rank_s:,.1f} rank-seconds held (the service level)"
    queued = f"; {shares.get('goodput', 0):.1f}% with those in a queue" if "queue" in shares else ""
    output.line(f"{config.run_id}: {level}{queued}")
    for cause, share in shares.items():
        output.line(f"  {cause:<18}{ledger.rank_s[cause]:>14,.1f} rank-s{share:>7.1f}%")
    output.line(f"  {'together':<18}{ledger.total_rank_s:>14,.1f} rank-s{sum(shares.values()):>7.1f}%")
