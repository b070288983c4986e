"""Commands for decisions about models. Each decision is signed or recorded in the log.

`plinth approve`, `plinth release promote | rollback | mirror | canary | log | anchor`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from plinth.errors import RegistryError
from plinth.text import counted, visible
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth_registry.canary import CanaryStatus, StreamTrial
    from plinth_registry.decisions import CandidateStatus
    from plinth_registry.releases import ReleaseRecord

F = TypeVar("F", bound=Callable[..., Any])

_COLORS = {
    "passed": "green",
    "waived": "yellow",
    "skipped": "yellow",
    "not applicable": "yellow",
    "pending": "red",
    "failed": "red",
}

version_argument = click.argument("version", default="latest")


def person(required: bool = True) -> Callable[[F], F]:
    """Add the options `--by` and `--reason` to a command: the person who decides, and the reason for the decision."""

    def decorate(function: F) -> F:
        function = click.option("--reason", required=required, metavar="TEXT", help="Reason for the decision.")(
            function
        )
        return click.option(
            "--by", required=required, metavar="PERSON", help="Name or e-mail address of the person who decides."
        )(function)

    return decorate


@click.command(
    epilog=examples(
        "plinth approve                      list pending candidates with their gates",
        "plinth approve --by ada@example.org --reason 'beats the baseline on every slice'",
        "plinth approve 3 --reject --by ada@example.org --reason 'worse on code'",
    )
)
@version_argument
@shared
@recipe_option
@person(required=False)
@click.option("--reject", is_flag=True, help="Sign a rejection, which overrides any approval.")
@json_option
def approve(settings: Settings, version: str, by: str | None, reason: str | None, reject: bool, as_json: bool) -> None:
    """Sign an approval of candidate VERSION (default: the newest) with your own key.

    Without --by, list the pending candidates with every gate and its reason. If MLflow requires a login (`plinth ops
    people`) and the policy accepts tags, setting the version's `approval` tags in MLflow has the same effect.
    """
    from plinth_registry import decisions
    from plinth_registry.decisions import next_step
    from plinth_registry.gates import blocking, summary

    ctx, recipe = settings.context(), settings.load_recipe()
    if by is None:
        waiting = decisions.pending(ctx, recipe)
        return output.emit_json(waiting) if as_json else show_candidates(waiting)
    decision: Literal["approved", "rejected"] = "rejected" if reject else "approved"
    path = decisions.approve(ctx, recipe, _version(version), by, reason or "", decision)
    status = decisions.status(ctx, recipe, _version(version))
    if as_json:
        held = {gate.name: gate.state for gate in blocking(status.gates)}
        made = {"decision": decision, "by": by, "statement": str(path), "version": status.version, "blocked_by": held}
        return output.emit_json(made)
    output.say(f"{decision} by {by}: {path}")
    gates = f"gates {summary(status.gates)}" if status.gates else status.refusal
    output.say(f"{status.model} version {status.version}: {gates}")
    output.say(f"Next: {next_step(ctx, recipe, status)}")
    return None


@click.command(
    epilog=examples(
        "plinth release promote --by ops@example.org --reason 'weekly release'",
        "plinth release promote 3 --stage canary --by ops@example.org --reason 'trial, 10% of traffic'",
    )
)
@version_argument
@shared
@recipe_option
@person()
@click.option("--stage", type=click.Choice(["canary", "champion"]), default="champion", show_default=True)
@json_option
def promote(
    settings: Settings, version: str, by: str, reason: str, stage: Literal["canary", "champion"], as_json: bool
) -> None:
    """Promote candidate VERSION (default: the newest): verify it, evaluate every gate, and move the alias to it."""
    from plinth_registry import decisions

    made = decisions.promote(settings.context(), settings.load_recipe(), _version(version), by, reason, stage)
    if as_json:
        output.emit_json(made)
    else:
        output.say(f"{made.model} version {made.version} is {made.action} (record {made.number}, signed)")


@click.command(epilog=examples("plinth release mirror"))
@shared
@recipe_option
def mirror(settings: Settings) -> None:
    """Sync MLflow aliases from the signed release history, and re-sign the head of the history if it is a day old.

    `plinth up` syncs every few seconds, but never re-signs an expired head. Before you re-sign an expired head, compare
    `releases/` with a backup, because a restored older history looks the same. The exit code is 8 if the history does
    not verify, and 9 if MLflow lost a released version.
    """
    from plinth_registry import decisions

    ctx, recipe = settings.context(), settings.load_recipe()
    differed, missing = decisions.repair(ctx, recipe, expired=True), decisions.missing_in_mlflow(ctx, recipe)
    for sentence in differed or (() if missing else ("MLflow matches the signed release history",)):
        output.say(sentence)
    if missing:
        raise RegistryError(
            "MLflow lost released versions, which cannot be recreated",
            found=f"missing in MLflow: {', '.join(missing)}",
            expected="every released version in MLflow under its alias",
            remedy="restore MLflow's database from a backup, or promote again: `plinth release promote VERSION --by "
            "PERSON --reason TEXT`; consumers that read the signed history are not affected",
        )


@click.command(
    epilog=examples("plinth release rollback --by ops@example.org --reason 'answers got worse in production'")
)
@shared
@recipe_option
@person()
@click.option("--withdraw", is_flag=True, help="Remove the alias if there is no earlier good version.")
@json_option
def rollback(settings: Settings, by: str, reason: str, withdraw: bool, as_json: bool) -> None:
    """Roll back to the most recent champion that verifies and is not tainted."""
    from plinth_registry import decisions

    made = decisions.rollback(settings.context(), settings.load_recipe(), by, reason, withdraw)
    if as_json:
        output.emit_json(made)
    elif made.version is None:
        output.say(f"{made.model} is withdrawn: no version has the alias (before: version {made.previous})")
    else:
        output.say(f"{made.model} is rolled back to version {made.version} (before: version {made.previous})")


def show_candidates(candidates: tuple[CandidateStatus, ...]) -> None:
    """Print candidates with the state and reason of every gate."""
    from plinth_registry.gates import summary

    if not candidates:
        output.say("No pending candidates.")
    for status in candidates:
        output.heading(f"{status.model} version {status.version}: {summary(status.gates)}")
        rows = [(gate.name, output.coloured(gate.state, _COLORS[gate.state]), gate.detail) for gate in status.gates]
        output.table(("gate", "state", "reason"), rows)
        if status.error:
            output.say(status.error)


def _version(given: str) -> str | None:
    return None if given == "latest" else given


@click.command(
    epilog=examples(
        "plinth release canary",
        "plinth release canary --json",
        "plinth release canary --judge               run the sensor once, without `plinth up`",
        "plinth release canary --return --by ops@example.org --reason 'slower answers on code'",
    )
)
@shared
@recipe_option
@click.option("--judge", is_flag=True, help="Evaluate new observations and act on them, as the canary sensor does.")
@click.option("--return", "back", is_flag=True, help="Withdraw the canary.")
@person(required=False)
@json_option
def canary(settings: Settings, judge: bool, back: bool, by: str | None, reason: str | None, as_json: bool) -> None:
    """Compare the canary with the champion: observations, current decision, and the condition for the next decision.

    Intervals are valid at any stopping time, so frequent checks do no harm. `plinth up` checks every minute, withdraws
    a worse canary, and promotes a good canary if the policy does not require a person. --return withdraws the canary at
    once: the champion stays, and the withdrawn version no longer verifies. Repeat --return after a crash to complete
    the withdrawal. To start a canary, use `plinth release promote --stage canary`.
    """
    from plinth_registry import decisions

    if judge and back:
        raise click.UsageError("--judge and --return are mutually exclusive")
    if back and not (by and reason):
        raise click.UsageError("--return needs --by and --reason")
    ctx, recipe = settings.context(), settings.load_recipe()
    if back:
        made = decisions.return_canary(ctx, recipe, str(by), str(reason))
        return output.emit_json(made) if as_json else _moved(made)
    if not judge and decisions.history(ctx, recipe).standing.canary is None:
        return output.emit_json(None) if as_json else _show_canary(None)
    from plinth_registry import api  # measures pairs of documents

    tick = api.watch_canary(ctx, recipe, by or api.CANARY_SENSOR) if judge else None
    status = tick.status if tick else api.canary_status(ctx, recipe)
    promoted = api.promote_if_proved(ctx, recipe, by or api.CANARY_SENSOR) if judge else ()
    moved = [record for record in (tick and tick.returned, *promoted) if record is not None]
    if as_json:
        return output.emit_json({"status": status, "moved": moved} if judge else status)
    _show_canary(status)
    for record in moved:
        _moved(record)
    return None


def _moved(record: ReleaseRecord) -> None:
    back = record.action == "returned"
    what = f"{record.previous} was withdrawn" if back else f"{record.version} is {record.action}"
    output.say(f"{record.model} version {what}; champion: {record.version or 'none'}")


def _show_canary(status: CanaryStatus | None) -> None:
    if status is None:
        output.say("No canary is running.")
        return
    output.heading(f"{status.release} version {status.canary}, champion {status.champion or 'none'}")
    shown = {"return": "worse", "promote": "within", "continue": "undecided"}
    output.table(
        ("stream", "role", "pairs", "beyond the margin", "interval", "champion", "p", "finding"),
        [(one.name, one.role, *_numbers(one), shown[one.decision]) for one in status.trial.streams],
        right=("pairs", "beyond the margin", "champion", "p"),
    )
    for name, feed in status.feeds.items():
        rejects = (f"{count} rejected: {why}" for why, count in feed.rejects.items())
        said = [
            f"{name}: {counted(feed.pairs, 'pair')}",
            f"{feed.earlier} lines recorded before the canary started",
            *rejects,
            feed.fault,
        ]
        output.say(output.plain_markup("; ".join(filter(None, said))))
    for name in status.small:
        output.say(f"skipped (n too small): {output.plain_markup(name)}")
    if status.missing:
        output.say(output.plain_markup(f"not paired: {status.missing}"))
    output.say(f"Canary since {status.since}. {output.plain_markup(status.next)}.")


def _numbers(stream: StreamTrial) -> tuple[object, ...]:
    if stream.worse is None:
        return 0, None, None, None, None
    found = stream.worse
    interval = f"[{found.low:+.4g}, {found.high:+.4g}]"
    return found.n, f"{found.value:+.4g}", interval, f"{stream.champion:.4g}", f"{found.p:.2g}"


@click.command(
    epilog=examples(
        "plinth release log",
        "plinth release log --json | jq '.[] | select(.outcome == \"refused\")'",
        "plinth release log --verify           exit code 8 if an entry was edited, moved or removed",
    )
)
@shared
@click.option("--verify", "proof", is_flag=True, help="Verify the log against every release record and anchor.")
@json_option
def log(settings: Settings, proof: bool, as_json: bool) -> None:
    """List decisions: approvals, promotions, rollbacks, taints, waivers, policies, exports, key changes, exclusions.

    Refused decisions are included. The actor is the owner of the key that signed the entry, or `unauthenticated NAME`.
    The person is the name given in the command.
    """
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
            visible(each.who) + ("" if each.signed_by else " (key revoked)"),
            visible(each.subject),
            visible("; ".join(part for part in (each.reason, each.refusal) if part)),
        )
        for each in found
    ]
    output.table(("number", "at", "action", "actor", "subject", "reason"), rows, right=("number",))
    return None


def _prove(ctx: Context, as_json: bool) -> None:
    from plinth_registry import releases

    proof, anchored = releases.prove_log(ctx), releases.verify_anchors(ctx)
    if as_json:
        return output.emit_json(proof)
    anchors = counted(len(proof.anchors), "release record", "name")
    newest = f", the newest {proof.sha256[:16]}" if proof.sha256 else ""
    output.say(f"{counted(proof.entries, 'entry', 'hold')}{newest}; {anchors} one of them")
    if anchored:
        output.say(f"{counted(len(anchored), 'anchored head', 'lie')} on the history")
    return None


@click.command(
    epilog=examples(
        "plinth release anchor --rekor https://rekor.example --log-key log.pub  pin the key, submit",
        "plinth release anchor --rekor https://rekor.example                    from a daily job",
        "plinth release anchor                                                  verify every anchor",
        "plinth release anchor --entry kept/00003.json                          verify a copy, too",
    )
)
@shared
@click.option("--rekor", metavar="URL", help="Submit the head to this Rekor server. Without it, nothing is contacted.")
@click.option("--log-key", type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Pin this public key (PEM) of a transparency log on this machine.")  # fmt: skip
@click.option("--entry", "entries", multiple=True, type=click.Path(path_type=Path, exists=True, dir_okay=False),
              help="Also verify this copy of an anchor; repeatable.")  # fmt: skip
@json_option
def anchor(
    settings: Settings, rekor: str | None, log_key: Path | None, entries: tuple[Path, ...], as_json: bool
) -> None:
    """Record the signed head of the release history in a transparency log, and verify all earlier anchors.

    The server gets the SHA-256, the signature and the public key of the head. Its entry is verified with the pinned key
    and stored in releases/anchors/. Later, a history that was rewritten or truncated before an anchored head is
    refused (exit code 8), also on machines that have never read the log. Keep copies of the anchors outside the
    workspace.
    """
    from plinth.trust import transparency
    from plinth_registry import releases

    ctx = settings.context()
    if log_key is not None:
        transparency.pin(ctx.workspace.trust_folder, log_key)
    if rekor is not None:
        releases.anchor_head(ctx, rekor)
    found = releases.verify_anchors(ctx, entries)
    if as_json:
        return output.emit_json(found)
    if not found:
        output.say("No anchors. Submit the head with --rekor URL.")
        return None
    rows = [(each.number, each.logged_at, each.name, each.log_index, each.log[:16], each.file) for each in found]
    output.table(("record", "logged at", "log", "index", "log id", "file"), rows, right=("record", "index"))
    return None
