"""Commands that show what policies and learned gates remove: `plinth corpus policy try | removal`, `plinth corpus
slices`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth.errors import MissingError
from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, group, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.recipe.recipe import Recipe


@group(epilog=examples("plinth corpus policy try stricter.yaml", "plinth corpus policy removal --reason toxic"))
def policy() -> None:
    """Try policies on stored annotations, without a run."""


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
@click.option("-p", "--policy", "named", help="Preview only buckets that use this policy of NEW.yaml.")
@click.option(
    "-n",
    "--samples",
    type=click.IntRange(0, 1000),
    default=5,
    show_default=True,
    help="Number of newly kept and of newly dropped documents to show.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed for sampling.")
@json_option
def try_(
    settings: Settings, new: Path, bucket: str | None, named: str | None, samples: int, seed: int, as_json: bool
) -> None:
    """Preview the policies and permitted licenses of NEW.yaml on every document.

    NEW.yaml is a whole recipe, or only `policies:` (and `buckets:`), merged over the current recipe. The preview reads
    stored columns, and text only for samples, so it takes seconds. A newly kept document may still be a duplicate; only
    `plinth run` decides whether it is.
    """
    from plinth.compute.engine import Threads, cores
    from plinth.corpus.policy import whatif
    from plinth.recipe.load import load_tried
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
        output.line(f"note: no bucket uses the policy {name}, so changing it has no effect; buckets: {have}", err=True)
    shown = whatif.shown(ctx, published, policies, rights, flips)
    if as_json:
        output.emit_json({**found, "samples": shown, "seconds": round(judged, 3)})
    else:
        _show(found, shown, chosen, judged)


def _unused(tried: Recipe, present: Recipe) -> set[str]:
    """Return the changed policies that no bucket uses."""
    before = present.corpus.policies
    changed = {name for name, one in tried.corpus.policies.items() if one != before.get(name)}
    return changed - {bucket.policy for bucket in tried.corpus.buckets.values()}


def _buckets(policies: Mapping[str, str], bucket: str | None, named: str | None) -> dict[str, str]:
    found = {name: own for name, own in policies.items() if bucket in (None, name) and named in (None, own)}
    if not found:
        wanted = " and ".join([f"bucket {bucket}"] * bool(bucket) + [f"policy {named}"] * bool(named))
        have = ", ".join(f"{name} ({own})" for name, own in policies.items())
        raise MissingError(f"no bucket matches {wanted}", expected=f"one of {have}")
    return found


def _show(found: dict[str, Any], samples: list[dict[str, Any]], policies: Mapping[str, str], seconds: float) -> None:
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
    output.say(
        f"\n{counted(documents, 'document')} evaluated in {seconds:.2f} s ({documents / seconds:,.0f} per second)."
    )


def _changes(one: Mapping[str, Any]) -> tuple[object, ...]:
    dropped, kept = one["newly_dropped"], one["newly_kept"]
    share = f"{one['kept'] / one['documents']:.1%}" if one["documents"] else "-"
    lost, won = output.size(dropped["bytes"]), output.size(kept["bytes"])
    return one["documents"], share, kept["documents"], won, dropped["documents"], lost


def _show_bucket(name: str, one: Mapping[str, Any]) -> None:
    """Print the changes in a bucket and its rules. Print nothing if nothing changes."""
    dropped, kept = one["newly_dropped"], one["newly_kept"]
    rules = [row for row in _rules(one) if any(row[1:])]
    changed = dropped["documents"] or kept["documents"] or one["other_reason"]
    if not changed:
        return
    output.heading(f"{name}: changes")
    flips = [
        *(("dropped by", reason, own["documents"], output.size(own["bytes"])) for reason, own in _most(dropped)),
        *(("kept, before", reason, own["documents"], output.size(own["bytes"])) for reason, own in _most(kept)),
    ]
    output.table(("now", "reason", "documents", "text"), flips, right=("documents", "text"))
    trained = dropped["decisions"].get("train", 0)
    output.say(
        f"Of the newly dropped documents, {trained:,} are in the training set; {dropped['survivors']:,} represent a "
        f"cluster of duplicates, so another member replaces them. {one['other_reason']:,} other documents stay "
        "dropped, but for a different reason."
    )
    output.heading(f"{name}: rules")
    columns = ("rule", "matched", "first match", "sole match", "matched before", "first before", "sole before")
    output.table(columns, rules, right=columns[1:])


def _most(flip: Mapping[str, Any]) -> list[tuple[str, Mapping[str, int]]]:
    return sorted(flip["reasons"].items(), key=lambda item: (-item[1]["documents"], item[0]))


def _rules(one: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Return table rows with the new and the published number of documents for each rule."""
    keys = ("fires", "marginal", "unique")
    names = [*one["rules"], *(reason for reason in one["rules_before"] if reason not in one["rules"])]
    nothing: dict[str, int] = dict.fromkeys(keys, 0)
    now, before = one["rules"], one["rules_before"]
    return [
        (name, *(now.get(name, nothing)[k] for k in keys), *(before.get(name, nothing)[k] for k in keys))
        for name in names
    ]


def _show_samples(direction: str, rows: list[dict[str, Any]]) -> None:
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


@policy.command(
    epilog=examples(
        "plinth corpus policy removal",
        "plinth corpus policy removal --reason toxic --bucket books --samples 20",
        "plinth corpus policy removal --reason toxic --samples 100 --out toxic.jsonl",
        "plinth corpus review toxic.jsonl",
    )
)
@shared
@recipe_option
@click.option("--reason", help="Only this rule.")
@click.option("-b", "--bucket", help="Only this bucket.")
@click.option(
    "-n",
    "--samples",
    type=click.IntRange(0, 1000),
    default=5,
    show_default=True,
    help="Number of removed documents to show for each rule.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write the documents to, for `plinth corpus review`.",
)
@json_option
def removal(
    settings: Settings, reason: str | None, bucket: str | None, samples: int, out: Path | None, as_json: bool
) -> None:
    """Show the fraction of each bucket that model-based rules remove, with samples.

    The command reads only annotations. The command therefore works before verdicts exist, and after a run that stopped
    because too much reference text was removed.
    """
    from plinth.storage.atomic import write_bytes

    found, rows = _measured(settings, reason, bucket, samples)
    if out:
        write_bytes(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
        documents = counted(len(rows), "document")
        output.say(f"Wrote {documents} to {out}. Fill in `label` (good or bad), then run `plinth corpus review {out}`")
    elif as_json:
        output.emit_json({"rules": found, "samples": rows})
    else:
        _show_removal(found, rows)


def _measured(
    settings: Settings, reason: str | None, bucket: str | None, samples: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    from plinth.compute.engine import Threads, cores
    from plinth.corpus.slices import removal_rates
    from plinth_assets.verdicts import reference_of, rules_in_use, sidecars

    ctx, recipe = settings.context(), settings.load_recipe()
    rules, trusted = rules_in_use(recipe), reference_of(recipe)
    chosen = tuple(rule for rule in rules if reason in (None, rule.reason))
    buckets = [name for name in recipe.corpus.buckets if bucket in (None, name)]
    if not chosen or not buckets:
        have = f"rules {', '.join(rule.reason for rule in rules) or 'none'}; buckets {', '.join(recipe.corpus.buckets)}"
        raise MissingError("no model-based rule matches the options", expected=have)
    ctx.engine = Threads(cores())
    documents = {name: ctx.refs.current(f"{name}/documents") for name in buckets}
    annotations = {side: {name: ctx.refs.current(f"{name}/{side}") for name in buckets} for side in sidecars(chosen)}
    made = removal_rates.run(ctx, chosen, documents, annotations)
    found, rows = list(made.stats["rules"]), []
    for number, row in enumerate(found):
        row["reference"] = [name for name in trusted if name in buckets]
        rows += removal_rates.samples(ctx, made, documents, annotations, number, buckets, samples)
    return found, rows


def _show_removal(found: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> None:
    from plinth.corpus.slices.removal_rates import in_words

    for row in found:
        output.heading(f"{row['reason']}: {row['rule']}")
        buckets = row["buckets"].items()
        shown = [(name, "yes" if name in row["reference"] else "", in_words(one)) for name, one in buckets]
        output.table(("bucket", "reference", "removed"), shown)
        for one in rows:
            if one["rule"] == row["rule"]:
                values = ", ".join(f"{name} = {value}" for name, value in one["values"].items())
                output.say(f"  {output.plain_markup(one['uri'])}  [dim]{one['bucket']} {one['id']}[/dim]")
                output.say(f"    {output.plain_markup(values)}")
                output.say(f"    [dim]{output.plain_markup(one['excerpt'])}[/dim]")


@click.command(
    epilog=examples(
        "plinth corpus slices",
        "plinth corpus slices toxicity --misses 5",
        "plinth corpus slices --json | jq '.toxicity.slices.all.recall'",
        "plinth corpus slices --write input/generated",
    )
)
@shared
@click.argument("gates", nargs=-1)
@click.option("--misses", type=click.IntRange(min=0), default=0, help="Number of misclassified documents to show.")
@click.option(
    "--write",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to which generated test sets are written: labeled sets, invented words, illegal-content lists.",
)
@json_option
def slices(settings: Settings, gates: tuple[str, ...], misses: int, folder: Path | None, as_json: bool) -> None:
    """Show error rates of learned gates by slice, with 95% intervals.

    The numbers come from the assets `slices/…`, defined by `corpus.slices` in the recipe.
    """
    if folder is not None:
        for path in _write(folder):
            output.say(str(path))
        return
    ctx = settings.context()
    made = {name: ctx.refs.current(f"slices/{name}") for name in gates or _published(ctx)}
    if as_json:
        output.emit_json({name: one.stats for name, one in made.items()})
        return
    from plinth.corpus.slices.rates import HEADER, table

    for name, one in made.items():
        output.heading(f"{name}: {' or '.join(one.stats['rule'])}")
        output.table(HEADER, table(one.stats), right=HEADER[1:])
        bounds = {key: value for key, value in one.stats["bounds"].items() if key != "min_documents"}
        output.say("bounds: " + ", ".join(f"{key} {value:g}" for key, value in bounds.items()))
        _show_origin(one.stats)
        for row in _wrong(ctx, one, misses):
            output.say(f"  {output.plain_markup(row)}")


def _published(ctx: Any) -> list[str]:
    """Return the names of the gates with measured error rates.

    Raises:
        MissingError: the workspace has no measured gate.
    """
    found = [ref.asset.removeprefix("slices/") for ref in ctx.refs.all() if ref.asset.startswith("slices/")]
    if not found:
        raise MissingError(
            "no gate was measured in this workspace",
            expected="gates under `corpus.slices` in the recipe",
            remedy="add gates under `corpus.slices`, then run `plinth run --select 'slices/*'`",
        )
    return sorted(found)


def _show_origin(stats: Mapping[str, Any]) -> None:
    kinds = ((name, row["documents"], row["removed"]) for name, row in stats["made_as"].items())
    output.table(("generated as", "documents", "removed"), kinds, right=("documents", "removed"))
    output.say("documents: " + ", ".join(f"{count} {origin}" for origin, count in stats["origins"].items()))


def _wrong(ctx: Any, made: Any, count: int) -> list[str]:
    """Return one line for each of the first documents that the gate misclassified."""
    from plinth.corpus.sidecars import excerpt
    from plinth.storage.parts import iter_batches

    lines: list[str] = []
    for batch in iter_batches(ctx.store, made.parts[0]) if count else ():
        for row in batch.to_pylist():
            if row["bad"] != row["removed"] and len(lines) < count:
                what = "missed" if row["bad"] else "lost"
                lines.append(f"{what}, {row['slice']}, {row['made_as']}: {excerpt(row['text'])}")
    return lines


def _write(folder: Path) -> list[Path]:
    from plinth.corpus.models.examples import line
    from plinth.corpus.slices import generate, measured_gates

    terms = generate.invented(0)
    sets = {
        "toxicity.jsonl": generate.toxicity(1, 400, terms, "train"),
        "quality.jsonl": generate.quality(1, 400, (), "train"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lexicon.tsv").write_text(generate.lexicon_file(terms), encoding="utf-8")
    for name, rows in sets.items():
        lines = (line(row.text, "bad" if row.bad else "good", row.slice) for row in rows)
        (folder / name).write_text("".join(lines), encoding="utf-8")
    (folder / "illegal").mkdir(exist_ok=True)
    for name, text in measured_gates.lists().items():
        (folder / "illegal" / name).write_text(text, encoding="utf-8")
    return [folder / name for name in ("lexicon.tsv", *sets, "illegal")]
