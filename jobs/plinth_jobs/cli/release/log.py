"""`plinth release log`: every decision and every refused one, and the proof that none is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import examples, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth_jobs.cli.options import Settings


@click.command(
    epilog=examples(
        "plinth release log",
        "plinth release log --json | jq '.[] | select(.outcome == \"refused\")'",
        "plinth release log --verify           exit status 8 where an entry was edited, moved or removed",
    )
)
@shared
@click.option("--verify", "proof", is_flag=True, help="Also compare the log with what every release record names.")
@json_option
def log(settings: Settings, proof: bool, as_json: bool) -> None:
    """List approvals, promotions, rollbacks, marks, waivers, policies, exports, changes of keys and exclusions.

    Refused ones too, each with its actor: the owner of the key that signed the entry, or `unauthenticated NAME`; and
    for whom, as the caller stated it.
    """
    from plinth_jobs.cli import output
    from plinth_registry import audit_log

    ctx = settings.context()
    if proof:
        return _prove(ctx, as_json)
    found = audit_log.entries(ctx)
    if as_json:
        return output.emit_json(found)
    rows = [
        (
            each.number,
            each.at,
            f"{each.action} {each.outcome}",
            output.visible(each.who) + ("" if each.signed_by else " (key revoked)"),
            output.visible(each.subject),
            output.visible("; ".join(part for part in (each.reason, each.refusal) if part)),
        )
        for each in found
    ]
    output.table(("number", "at", "action", "actor", "subject", "reason"), rows, right=("number",))
    return None


def _prove(ctx: Context, as_json: bool) -> None:
    from plinth_jobs.cli import output
    from plinth_registry import releases

    proof = releases.prove_log(ctx)
    if as_json:
        return output.emit_json(proof)
    anchors = counted(len(proof.anchors), "release record", "name")
    newest = f", the newest {proof.sha256[:16]}" if proof.sha256 else ""
    output.say(f"{counted(proof.entries, 'entry', 'hold')}{newest}; {anchors} one of them")
    return None
