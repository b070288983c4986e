"""`plinth release canary`: what is known of the canary beside the champion; give it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared
from plinth_jobs.cli.release.release import person

if TYPE_CHECKING:
    from plinth_registry.canary import CanaryStatus, StreamTrial
    from plinth_registry.history import ReleaseRecord


@click.command(
    epilog=examples(
        "plinth release canary",
        "plinth release canary --json",
        "plinth release canary --judge               one look of the sensor, without `plinth up`",
        "plinth release canary --return --by ops@example.org --reason 'slower answers on code'",
    )
)
@shared
@recipe_option
@click.option("--judge", is_flag=True, help="Take in what was observed since, and act as the sensor does.")
@click.option("--return", "back", is_flag=True, help="Take the canary's place away.")
@person(required=False)
@json_option
def canary(settings: Settings, judge: bool, back: bool, by: str | None, reason: str | None, as_json: bool) -> None:
    """Show what was observed of the canary beside the champion, what follows from it now, and what decides next.

    Every interval holds at all looks together, so looking often changes nothing. `plinth up` looks every minute, gives
    a canary back that is worse, and makes it champion where the policy lets that happen without a person. With
    --return it is given back at once: the champion stays, and the version does not verify any more. `plinth release
    promote --stage canary` puts a version on trial. Repeat --return after a crash: it completes it.
    """
    from plinth_jobs.cli import output
    from plinth_registry import decisions

    if judge and back:
        raise click.UsageError("--judge decides by what was observed, --return without it: give one of them")
    if back and not (by and reason):
        raise click.UsageError("--return needs --by and --reason")
    ctx, recipe = settings.context(), settings.load_recipe()
    if back:
        made = decisions.return_canary(ctx, recipe, str(by), str(reason))
        return output.emit_json(made) if as_json else _moved(made)
    if not judge and decisions.history(ctx, recipe).standing.canary is None:
        return output.emit_json(None) if as_json else _show(None)
    from plinth_registry import api  # measures pairs of documents

    tick = api.watch_canary(ctx, recipe, by or api.CANARY_SENSOR) if judge else None
    status = tick.status if tick else api.canary_status(ctx, recipe)
    promoted = api.promote_if_proved(ctx, recipe, by or api.CANARY_SENSOR) if judge else ()
    moved = [record for record in (tick and tick.returned, *promoted) if record is not None]
    if as_json:
        return output.emit_json({"status": status, "moved": moved} if judge else status)
    _show(status)
    for record in moved:
        _moved(record)
    return None


def _moved(record: ReleaseRecord) -> None:
    from plinth_jobs.cli import output

    back = record.action == "returned"
    what = f"{record.previous} was given back" if back else f"{record.version} is {record.action}"
    output.say(f"{record.model} version {what}; champion: {record.version or 'none'}")


def _show(status: CanaryStatus | None) -> None:
    from plinth_jobs.cli import output

    if status is None:
        output.say("No canary is on trial.")
        return
    output.heading(f"{status.release} version {status.canary} beside champion {status.champion or 'none'}")
    shown = {"return": "worse", "promote": "within", "continue": "undecided"}
    output.table(
        ("stream", "role", "pairs", "beyond the margin", "interval", "champion", "p", "finding"),
        [(one.name, one.role, *_numbers(one), shown[one.decision]) for one in status.trial.streams],
        right=("pairs", "beyond the margin", "champion", "p"),
    )
    for name, feed in status.feeds.items():
        rejects = (f"{count} rejected: {why}" for why, count in feed.rejects.items())
        said = [f"{name}: {counted(feed.pairs, 'pair')}", f"{feed.earlier} from before the trial", *rejects, feed.fault]
        output.say(output.plain_markup("; ".join(filter(None, said))))
    for name in status.small:
        output.say(f"too small to judge: {output.plain_markup(name)}")
    if status.missing:
        output.say(output.plain_markup(f"not paired: {status.missing}"))
    output.say(f"On trial since {status.since}. {output.plain_markup(status.next)}.")


def _numbers(stream: StreamTrial) -> tuple[object, ...]:
    if stream.worse is None:
        return 0, None, None, None, None
    found = stream.worse
    interval = f"[{found.low:+.4g}, {found.high:+.4g}]"
    return found.n, f"{found.value:+.4g}", interval, f"{stream.champion:.4g}", f"{found.p:.2g}"
