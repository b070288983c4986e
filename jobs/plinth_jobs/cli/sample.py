"""`plinth corpus sample`, `plinth corpus review`, `plinth corpus label`: human review of removed documents."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plinth.errors import MissingError, RecipeError
from plinth.text import visible
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.corpus.slices.reviews import Review

WORDS = {"g": "good", "b": "bad", "s": None, "good": "good", "bad": "bad"}

reviewer_option = click.option(
    "--reviewer",
    envvar="PLINTH_REVIEWER",
    metavar="NAME",
    help="Name of the reviewer; default: the user of this machine.",
)


@click.command(
    epilog=examples(
        "plinth corpus sample --reason too_few_words",
        "plinth corpus sample --reason near_duplicate --bucket web -n 100 --out near.jsonl",
        "plinth corpus sample --reason extract_timeout --json | jq -r '.[].uri'",
    )
)
@click.option("--reason", required=True, help="Removal reason, as listed by `plinth corpus funnel`.")
@shared
@click.option("-b", "--bucket", help="Only this bucket.")
@click.option("-n", "--count", type=click.IntRange(1, 100_000), default=20, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed for sampling.")
@click.option("--fired", is_flag=True, help="Include documents that the rule matched but another rule removed first.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write the sample to, for `plinth corpus review`.",
)
@json_option
def sample(
    settings: Settings,
    reason: str,
    bucket: str | None,
    count: int,
    seed: int,
    fired: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Draw a random sample of documents or records that were removed for a reason. One seed always draws one sample."""
    from plinth.corpus.slices import reviews
    from plinth.storage.atomic import write_bytes

    ctx = settings.context(waits=not (out or as_json))
    rows = reviews.sample(ctx, reason, _buckets(ctx, bucket), count, seed, fired=fired)
    if out:
        write_bytes(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
        output.say(
            f"Wrote {len(rows)} documents with the reason {reason} to {out}. Fill in `label` (good or bad), then run "
            f"`plinth corpus review {out}`"
        )
    elif as_json:
        output.emit_json(rows)
    else:
        click.echo_via_pager(_pages(rows)) if sys.stdout.isatty() else click.echo("".join(_pages(rows)), nl=False)


@click.command(
    epilog=examples(
        "plinth corpus sample --reason too_few_words --out a.jsonl && plinth corpus review a.jsonl",
        "plinth corpus review summary",
    )
)
@click.argument("what", metavar="FILE.jsonl|summary")
@shared
@reviewer_option
@json_option
def review(settings: Settings, what: str, reviewer: str | None, as_json: bool) -> None:
    """Store the labels of a sample, and prompt for missing labels. `summary` shows the precision of every removal
    reason.

    The label `bad` means that the document was rightly removed, and `good` that it should have been kept.
    """
    from plinth.corpus.slices import reviews

    ctx = settings.context(waits=True)
    if what == "summary":
        return _show_summary(ctx, as_json)
    rows = list(_rows(Path(what)))
    given = [row for row in rows if row.get("label")]
    asked = [] if as_json or not sys.stdin.isatty() else list(_asked([row for row in rows if not row.get("label")]))
    labels = [_label(row["id"], row["reason"], row["label"], reviewer, row.get("note") or "") for row in given + asked]
    if labels:
        reviews.append(ctx.workspace, labels)
    left = len(rows) - len(labels)
    if as_json:
        output.emit_json({"kept": len(labels), "without_label": left})
    else:
        output.say(
            f"{len(labels)} labels stored; {left} rows of {what} are unlabeled. Next, run `plinth corpus review "
            "summary`."
        )
    return None


@click.command(
    epilog=examples('plinth corpus label 9f86d081884c7d659a2feaa0c55ad015 good --reason too_few_words --note "a poem"')
)
@click.argument("document", metavar="ID")
@click.argument("word", metavar="good|bad", type=click.Choice(["good", "bad"]))
@shared
@click.option("--reason", help="Removal reason; default: the reason in the verdict.")
@click.option("--note", default="", help="Comment on the label.")
@reviewer_option
@json_option
def label(
    settings: Settings, document: str, word: str, reason: str | None, note: str, reviewer: str | None, as_json: bool
) -> None:
    """Label one removed document: rightly removed (bad) or wrongly removed (good)."""
    from plinth.corpus.slices import reviews

    ctx = settings.context()
    made = _label(document, reason or _reason(ctx, document), word, reviewer, note)
    path = reviews.append(ctx.workspace, [made])
    if as_json:
        output.emit_json(made)
    else:
        output.say(f"{made.id} labeled {made.label} for {made.reason} by {made.reviewer}; stored in {path}")


def _buckets(ctx: Context, bucket: str | None) -> list[str]:
    have = [ref.asset.removesuffix("/documents") for ref in ctx.refs.all() if ref.asset.endswith("/documents")]
    if bucket is not None and bucket not in have:
        raise MissingError(f"no bucket {bucket}", expected=f"one of {', '.join(have)}" if have else "documents")
    return have if bucket is None else [bucket]


def _reason(ctx: Context, document: str) -> str:
    from plinth.provenance.explain import explain_document

    found = explain_document(ctx, document)
    if not found["reason"]:
        raise MissingError(
            f"{document} was not removed ({found['status']})", remedy="set the removal reason with --reason"
        )
    return str(found["reason"])


def _label(document: str, reason: str, word: str, reviewer: str | None, note: str) -> Review:
    from pydantic import ValidationError

    from plinth.corpus.slices.reviews import Review

    moment = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    given = {"id": document, "reason": reason, "label": word, "reviewer": reviewer or getpass.getuser()}
    try:
        return Review.model_validate({**given, "time": moment, "note": note})
    except ValidationError as error:
        first = error.errors()[0]
        raise RecipeError(
            f"invalid label: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            found=first.get("input"),
            expected="an ID of 32 hexadecimal digits, a reason, and good or bad",
        ) from error


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MissingError(
            f"cannot read {path}",
            found=error,
            remedy="create a sample with `plinth corpus sample --reason REASON --out FILE.jsonl`",
        ) from error
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line.strip() else None
        except ValueError as error:
            raise RecipeError(f"{path}:{number} is not JSON", found=error, remedy="correct the line") from error
        if row is None:
            continue
        if not isinstance(row, dict) or not {"id", "reason"} <= row.keys():
            raise RecipeError(f"{path}:{number} is not a sample row", expected="an object with id, reason and label")
        yield row


def _asked(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Prompt for the label of one document at a time until the reviewer quits, and yield the labeled rows."""
    for row in rows:
        click.echo(_page(row))
        word = click.prompt("[g]ood, [b]ad, [s]kip, [q]uit", type=click.Choice([*WORDS, "q"]), show_choices=False)
        if word == "q":
            return
        if WORDS[word]:
            yield {**row, "label": WORDS[word]}


def _pages(rows: list[dict[str, Any]]) -> Iterator[str]:
    for number, row in enumerate(rows, start=1):
        yield f"{number}/{len(rows)}  {_page(row)}\n"


def _page(row: dict[str, Any]) -> str:
    """Format one document of a sample for the terminal."""
    values = ", ".join(f"{name} = {value}" for name, value in (row.get("values") or {}).items())
    kept = row.get("survivor")
    other = f"of {kept['uri']}  {kept['bucket']} {kept['id']}" if kept else row.get("where", "")
    why = f"  {values}  ({row['rule']})" if row.get("rule") else f"  {other}"
    text = visible(f"  {row['bucket']} {row['id']}\n  {row['reason']}{why}\n  {row['excerpt']}\n")
    return f"{click.style(visible(row['uri']), bold=True)}{text}"


def _show_summary(ctx: Context, as_json: bool) -> None:
    from plinth.corpus.slices import reviews
    from plinth.corpus.slices.reviews import summary

    rows = summary(reviews.read(ctx.workspace))
    if as_json:
        output.emit_json(rows)
        return
    columns = ("reason", "labels", "right", "wrong", "precision", "from", "to")
    shown = (
        (
            row["reason"],
            row["labels"],
            row["rightly_removed"],
            row["wrongly_removed"],
            f"{row['precision']:.1%}",
            f"{row['low']:.1%}",
            f"{row['high']:.1%}",
        )
        for row in rows
    )
    output.table(columns, shown, right=columns[1:])
    if rows:
        output.say("Precision is the share of labeled documents that were rightly removed, with 95% Wilson intervals.")
    else:
        output.say(
            "No labels yet. Create a sample with `plinth corpus sample --reason R --out FILE.jsonl`, label it, then "
            "run `plinth corpus review FILE.jsonl`."
        )
