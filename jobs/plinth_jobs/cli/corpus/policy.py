"""`plinth corpus policy try | removal`: another policy compared with the published verdicts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth.text.plural import counted
from plinth_jobs.cli.corpus.removal import removal
from plinth_jobs.cli.options import Settings, examples, group, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe


@group(epilog=examples("plinth corpus policy try stricter.yaml", "plinth corpus policy removal --reason toxic"))
def policy() -> None:
    """Try policies on stored annotations."""


policy.add_command(removal)


@policy.command(
    "try",
    epilog=examples(
        "plinth corpus policy try stricter.yaml",
        "plinth corpus policy try stricter.yaml --bucket web --samples 10",
        "plinth corpus policy try other.yaml --policy prose --json | jq .total.newly_dropped",
    ),
)
@click.argument("new", metavar="NEW.yaml", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@shared
@recipe_option
@click.option("-b", "--bucket", help="Only this bucket.")
@click.option("-p", "--policy", "named", help="Only buckets under this policy of NEW.yaml.")
@click.option("-n", "--samples", type=click.IntRange(0, 1000), default=5, show_default=True, help="Per direction.")
@click.option("--seed", type=int, default=1, show_default=True, help="Key of the hash that chooses the samples.")
@json_option
def try_(
    settings: Settings, new: Path, bucket: str | None, named: str | None, samples: int, seed: int, as_json: bool
) -> None:
    """Evaluate policies and permitted licences of NEW.yaml over every document and show what would change.

    NEW.yaml is a whole recipe, or only `policies:` (and `buckets:`), laid over the present recipe. Only stored
    columns are read, so it takes seconds; text is read for the samples. A newly kept document may still be a
    duplicate: only `plinth run` decides that.
    """
    from plinth.compute.threads import Threads, cores
    from plinth.corpus.policy import whatif
    from plinth.recipe.load import load_tried
    from plinth_jobs.cli import output
    from plinth_jobs.recipes import FOLDER

    ctx, recipe = settings.context(), load_tried(new, settings.recipe_path(), FOLDER)
    chosen = _buckets({name: one.policy for name, one in recipe.corpus.buckets.items()}, bucket, named)
    policies = {name: recipe.corpus.policies[own] for name, own in chosen.items()}
    published = {name: whatif.published_bucket(ctx, name) for name in policies}
    ctx.engine = Threads(cores())
    started = time.perf_counter()
    rights = recipe.corpus.rights()
    found, flips = whatif.compare(ctx, published, policies, rights, samples, seed)
    judged = time.perf_counter() - started
    for name in sorted(_unused(recipe, settings.load_recipe())):
        have = ", ".join(f"{bucket} ({own.policy})" for bucket, own in recipe.corpus.buckets.items())
        output.line(f"note: no bucket has the policy {name}, so its change changes nothing: {have}", err=True)
    shown = whatif.shown(ctx, published, policies, rights, flips)
    if as_json:
        output.emit_json({**found, "samples": shown, "seconds": round(judged, 3)})
    else:
        _show(found, shown, chosen, judged)


def _unused(tried: Recipe, present: Recipe) -> set[str]:
    """Policies that differ from those in force, and that no bucket has."""
    before = present.corpus.policies
    changed = {name for name, one in tried.corpus.policies.items() if one != before.get(name)}
    return changed - {bucket.policy for bucket in tried.corpus.buckets.values()}


def _buckets(policies: Mapping[str, str], bucket: str | None, named: str | None) -> dict[str, str]:
    from plinth.errors import MissingError

    found = {name: own for name, own in policies.items() if bucket in (None, name) and named in (None, own)}
    if not found:
        wanted = " and ".join([f"bucket {bucket}"] * bool(bucket) + [f"policy {named}"] * bool(named))
        have = ", ".join(f"{name} ({own})" for name, own in policies.items())
        raise MissingError(f"no bucket fits {wanted}", expected=f"one of {have}")
    return found


def _show(found: dict[str, Any], samples: list[dict[str, Any]], policies: Mapping[str, str], seconds: float) -> None:
    from plinth_jobs.cli import output

    columns = ("bucket", "documents", "kept", "+ kept", "+ text", "- dropped", "- text")
    rows: list[tuple[object, ...] | None] = [
        (f"{name} ({policies[name]})", *_changes(one)) for name, one in found["buckets"].items()
    ]
    output.table(columns, [*rows, None, ("all", *_changes(found["total"]))], right=columns[1:])
    for name, one in found["buckets"].items():
        _show_bucket(name, one)
    for direction in ("newly_dropped", "newly_kept"):
        _show_samples(direction, [row for row in samples if row["direction"] == direction])
    documents = found["total"]["documents"]
    output.say(f"\n{counted(documents, 'document')} judged in {seconds:.2f} s ({documents / seconds:,.0f} a second).")


def _changes(one: Mapping[str, Any]) -> tuple[object, ...]:
    from plinth_jobs.cli import output

    dropped, kept = one["newly_dropped"], one["newly_kept"]
    share = f"{one['kept'] / one['documents']:.1%}" if one["documents"] else "-"
    lost, won = output.size(dropped["bytes"]), output.size(kept["bytes"])
    return one["documents"], share, kept["documents"], won, dropped["documents"], lost


def _show_bucket(name: str, one: Mapping[str, Any]) -> None:
    """Changes of a bucket and of its rules; nothing for an unchanged bucket."""
    from plinth_jobs.cli import output

    dropped, kept = one["newly_dropped"], one["newly_kept"]
    rules = [row for row in _rules(one) if any(row[1:])]
    changed = dropped["documents"] or kept["documents"] or one["other_reason"]
    if not changed:
        return
    output.heading(f"{name}: changes")
    flips = [
        *(("dropped by", reason, own["documents"], output.size(own["bytes"])) for reason, own in _most(dropped)),
        *(("kept, was", reason, own["documents"], output.size(own["bytes"])) for reason, own in _most(kept)),
    ]
    output.table(("now", "reason", "documents", "text"), flips, right=("documents", "text"))
    trained = dropped["decisions"].get("train", 0)
    output.say(
        f"Of the newly dropped, {trained:,} are trained on today; {dropped['survivors']:,} stand for a cluster of "
        f"duplicates, where another member would take the place. {one['other_reason']:,} stay out for another reason."
    )
    output.heading(f"{name}: rules")
    columns = ("rule", "fires", "first", "alone", "fired", "was first", "was alone")
    output.table(columns, rules, right=columns[1:])


def _most(flip: Mapping[str, Any]) -> list[tuple[str, Mapping[str, int]]]:
    return sorted(flip["reasons"].items(), key=lambda item: (-item[1]["documents"], item[0]))


def _rules(one: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """New counts beside the published ones, by rule."""
    keys = ("fires", "marginal", "unique")
    names = [*one["rules"], *(reason for reason in one["rules_before"] if reason not in one["rules"])]
    nothing: dict[str, int] = dict.fromkeys(keys, 0)
    now, before = one["rules"], one["rules_before"]
    return [
        (name, *(now.get(name, nothing)[k] for k in keys), *(before.get(name, nothing)[k] for k in keys))
        for name in names
    ]


def _show_samples(direction: str, rows: list[dict[str, Any]]) -> None:
    from plinth_jobs.cli import output

    if not rows:
        return
    output.heading(f"samples: {direction.replace('_', ' ')}")
    for row in rows:
        values = ", ".join(f"{column} = {_short(value)}" for column, value in row["values"].items())
        output.say(f"  {output.plain_markup(row['uri'])}  [dim]{row['bucket']} {row['id']}[/dim]")
        why = output.plain_markup(f"{values}  ({row['rule']})")
        output.say(f"    [bold]{row['reason']}[/bold]  {why}")
        output.say(f"    [dim]{output.plain_markup(row['excerpt'])}[/dim]")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
