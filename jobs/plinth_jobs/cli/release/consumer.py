"""`plinth release consumer`: services that use a release, models made of one, and the feed that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from plinth_jobs.cli.options import examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth_jobs.cli.options import Settings


@group(
    epilog=examples(
        "plinth release consumer add search --owner search@example.org --model demo@champion --canary",
        "plinth release consumer add web --owner web@example.org --model demo --webhook https://a.example",
        "plinth release consumer add chat --owner chat@example.org --child chat/3",
        "plinth release consumer list",
        "plinth release consumer feed --after 12",
    )
)
def consumer() -> None:
    """Enrol services that use a release and models made of one; show what they must learn.

    `plinth release impact` and `plinth release taint` name those that are concerned, with their owners. A canary serves
    only services that were added with --canary.
    """


@consumer.command()
@click.argument("name")
@shared
@click.option("--owner", required=True, metavar="MAIL", help="Who answers for it.")
@click.option("--model", metavar="NAME@PLACE", help="The release that a service uses; by default its champion.")
@click.option("--child", metavar="MODEL/VERSION", help="A model in MLflow whose tag `parent` is a released checkpoint.")
@click.option("--webhook", metavar="URL", help="Where the feed is sent; prints the secret of its HMAC once.")
@click.option("--canary", is_flag=True, help="Canaries of the release may serve it.")
@json_option
def add(
    settings: Settings,
    name: str,
    owner: str,
    model: str | None,
    child: str | None,
    webhook: str | None,
    canary: bool,
    as_json: bool,
) -> None:
    """Enrol NAME, or change its enrolment."""
    from pydantic import ValidationError

    from plinth_jobs.cli import output
    from plinth_registry import consumers
    from plinth_registry import feed as webhooks

    ctx = settings.context()
    try:
        made = consumers.enrol(ctx, name, owner, model=model, child=child, webhook=webhook, canary=canary)
    except ValidationError as error:
        wrong = "; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors())
        raise click.UsageError(f"no consumer can be enrolled so: {wrong}") from error
    secret = webhooks.make_secret(ctx, made.name) if webhook else None
    if as_json:
        return output.emit_json(made.model_dump(mode="json") | ({"secret": secret} if secret else {}))
    output.say(f"{made.name} is enrolled: {output.plain_markup(made.uses)}, {output.plain_markup(made.owner)}")
    if secret:
        output.say(f"The secret of its webhook, shown once: {secret}")
    return None


@consumer.command()
@click.argument("name")
@shared
def remove(settings: Settings, name: str) -> None:
    """Remove NAME; its enrolment stays in the history."""
    from plinth_jobs.cli import output
    from plinth_registry import consumers

    output.say(f"{consumers.leave(settings.context(), name).name} is no longer enrolled")


@consumer.command("list")
@shared
@json_option
def list_consumers(settings: Settings, as_json: bool) -> None:
    """List consumers, and for models made of a release the time from its release to their registration."""
    from plinth_jobs.cli import output
    from plinth_registry import consumers

    ctx = settings.context()
    known = consumers.enrolled(ctx)
    rows = [(one, _first(consumers.versions_now(ctx, one)), consumers.seconds_after_release(ctx, one)) for one in known]
    if as_json:
        return output.emit_json(
            [one.model_dump(mode="json") | {"version": held, "after_release_s": after} for one, held, after in rows]
        )
    output.table(
        ("name", "owner", "uses", "version", "canaries", "after release", "since"),
        [
            (one.name, output.visible(one.owner), output.visible(one.uses), held, one.canary,
             None if after is None else output.duration(after), one.since)
            for one, held, after in rows
        ],
    )  # fmt: skip
    return None


@consumer.command()
@shared
@click.option("--after", default=0, type=click.IntRange(min=0), help="Number of the last entry that is known.")
@json_option
def feed(settings: Settings, after: int, as_json: bool) -> None:
    """Show verified entries of the feed: marks, lifts and movements of releases."""
    from plinth_jobs.cli import output
    from plinth_registry import feed as feeds

    found = feeds.entries(settings.context(), after)
    if as_json:
        return output.emit_json(found)
    output.table(
        ("number", "at", "what", "signed by"),
        [(each.number, each.at, output.visible(each.sentence), ", ".join(each.signed_by)) for each in found],
        right=("number",),
    )
    return None


def _first(versions: tuple[str, ...]) -> str | None:
    return versions[0] if versions else None
