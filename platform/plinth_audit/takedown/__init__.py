"""Takedown: everything that holds a document, its removal, and the proof of it.

    index         the stage of the pipeline: sorted keys of ledgers, by id, address, domain, license and cluster
    search        a request to documents; a request to an entry of the exclusion list, with the number of documents it
                  takes
    exposed_runs  documents to runs, steps, and checkpoints wherever they are; extraction and exposure of removed text
                  under one
    remaining     what still holds it, where, and until when; copies next to the content store; candidates, releases,
                  exports
    report        the signed proof that the corpus is free of it and everything downstream rebuilt, with what still
                  holds it
    page          the report for a person: Markdown and HTML

Does not belong here: the list and the removal itself (`plinth.corpus.exclusions`), releases (`plinth_registry`).

Also here: the command `plinth corpus takedown`, which loads the other modules when it runs.
"""

from __future__ import annotations

import getpass
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from plinth.text import counted
from plinth_jobs.cli.options import Settings, examples, group, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.corpus.exclusions import Exclusion, Kind
    from plinth.records import Manifest
    from plinth_audit.takedown.exposed_runs import ExposedRun, Holdings, TakedownMeasure
    from plinth_audit.takedown.remaining import HeldModel
    from plinth_audit.takedown.report import RemovalProof

F = TypeVar("F", bound=Callable[..., Any])

#: Documents shown; --json has more.
SHOWN = 10


@group(
    short_help="Find everything that holds a text; remove it and prove it.",
    epilog=examples("plinth corpus takedown find --url https://example.org/page"),
)
def takedown() -> None:
    """Find what holds a document, keep it out of every later snapshot, and prove it."""


def target(function: F) -> F:
    """One of `--url`, `--domain`, `--licence`, `--document`, `--text`."""
    for name, about in (
        ("text", "A text, the file of that name, or `-` for standard input: near duplicates and verbatim spans."),
        ("document", "An id of 32 hexadecimal digits."),
        ("licence", "An SPDX identifier, or `unknown`; takes every expression that names it."),
        ("domain", "A host, and every host below it."),
        ("url", "An address, or a name as its source gives it."),
    ):
        function = click.option(f"--{name}", help=about)(function)
    return function


@takedown.command(
    epilog=examples(
        "plinth corpus takedown find --url https://example.org/page",
        "plinth corpus takedown find --domain example.org --json | jq '.runs[].checkpoints'",
        "plinth corpus takedown find --text letter.txt",
    )
)
@target
@shared
@json_option
def find(settings: Settings, as_json: bool, **given: str | None) -> None:
    """Show what holds a URL, a domain, a license, a document or a text: parts, shards, runs, steps, checkpoints.

    Near duplicates count, and documents that left the corpus but were read by a run. Every checkpoint after the first
    step that read one is shown with where it is: here, retired, uploaded, published; then candidates and releases.
    """
    from plinth_audit.takedown import search
    from plinth_audit.takedown.exposed_runs import holdings
    from plinth_jobs.cli import output

    kind, value = chosen(given)
    ctx = settings.context()
    held = holdings(ctx, search.find(ctx, kind, value))
    models, notes = _models(ctx, held)
    notes = [*held.found.notes, *notes]
    if as_json:
        output.emit_json({**asdict(held), "models": [one.model_dump() for one in models], "notes": notes})
    else:
        show(held, models, notes)


def chosen(given: Mapping[str, str | None]) -> tuple[Kind, str]:
    """The one target that was given.

    Raises:
        UsageError: none, or several.
    """
    from plinth.corpus.exclusions import KINDS

    named = [(kind, value) for kind in KINDS if (value := given.get(kind)) is not None]
    if len(named) != 1:
        raise click.UsageError(f"give one of {', '.join(f'--{kind}' for kind in KINDS)}; found {len(named)}")
    kind, value = named[0]
    return kind, _text(value) if kind == "text" else value


def _text(value: str) -> str:
    from plinth.errors import RequestError

    try:
        if value == "-":
            return sys.stdin.buffer.read().decode()
        path = Path(value)
        return path.read_bytes().decode() if len(value) < 4096 and path.is_file() else value
    except UnicodeDecodeError as error:
        raise RequestError(f"{value} holds no text", found=error, expected="UTF-8") from error
    except (OSError, ValueError):  # no such name is possible: a text
        return value


def _models(ctx: Context, held: Holdings) -> tuple[list[HeldModel], list[str]]:
    """Candidates, releases and exports of the checkpoints, and why they are unknown where they are."""
    from plinth.errors import PlinthError
    from plinth_audit.takedown.remaining import derived_from, models_of

    try:
        return models_of(ctx, held.runs, derived_from(ctx, held.found)), []
    except PlinthError as error:
        return [], [f"candidates, releases and exports are unknown: {error.what}"]


def show(held: Holdings, models: list[HeldModel], notes: list[str]) -> None:
    """The holdings for a person."""
    from plinth_jobs.cli import output

    found = held.found
    parts = ", ".join(f"{part} {count:,}" for part, count in list(found.published.items())[:SHOWN])
    output.heading(
        f"{counted(found.count, 'document')} in the corpus, {counted(found.earlier, 'row')} of earlier snapshots"
        + (f"; parts: {parts}" if parts else "")
    )
    rows = [(one.id, one.how, one.decision, one.reason, one.shard, one.position, one.uri) for one in found.documents]
    if rows:
        columns = ("document", "found as", "decision", "reason", "shard", "position", "uri")
        output.table(columns, rows[:SHOWN], right=("position",))
    if len(found.documents) > SHOWN:
        output.say(f"[dim]and more: --json lists {len(found.documents):,}[/dim]")
    for run in held.runs:
        output.say(_run(run))
    for model in models:
        now = f" ({model.now})" if model.now else ""
        output.say(output.plain_markup(f"{model.kind} {model.name}{now} of checkpoint {model.checkpoint[:12]}"))
    for note in notes:
        output.say(f"[yellow]{output.plain_markup(note)}[/yellow]")


def _run(run: ExposedRun) -> str:
    if run.unknown:
        return f"run {run.run}: {run.unknown}"
    steps = ", ".join(f"{step:,}" for step in run.steps[:8])
    steps += f", … ({len(run.steps):,})" if len(run.steps) > 8 else ""
    held = "; ".join(f"{one.step:,} ({', '.join(one.places)})" for one in run.checkpoints) or "none yet"
    least = "" if run.exact else " at least"
    read = counted(run.documents, "document") + least
    if run.inherits:
        return f"run {run.run}: starts or learns from {run.inherits[:12]}, which read it; checkpoints {held}"
    return f"run {run.run}: {read} in steps {steps or 'not computed'}; checkpoints {held}"


@takedown.command(
    epilog=examples(
        "plinth corpus takedown exclude --url https://example.org/page --reason 'letter of 3 March'",
        "plinth corpus takedown exclude --licence CC-BY-NC-4.0 --reason 'not for this use' --yes",
        "plinth corpus takedown exclude --text letter.txt --spans --reason 'court order 17/26'",
    )
)
@target
@click.option("--reason", required=True, help="Who asked for it, and why; it is signed.")
@click.option(
    "--texts/--no-texts",
    default=None,
    help="Recognise the texts found, wherever they come again (default: not for a domain or a licence).",
)
@click.option("--spans", is_flag=True, help="Of a text: take documents that only quote 32 or more tokens of it too.")
@click.option("--yes", is_flag=True, help="Confirm an exclusion that takes more than a twentieth of the corpus.")
@click.option("--dry-run", is_flag=True, help="Count only.")
@shared
@json_option
def exclude(
    settings: Settings,
    reason: str,
    texts: bool | None,
    spans: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **given: str | None,
) -> None:
    """Add to the exclusion list, which every later snapshot leaves out; signed by `compliance`.

    Shows how many documents it takes, and how many parts the next `plinth run` writes anew; all others are kept as they
    are. What is taken becomes a counted reject with the reason `takedown`.
    """
    from plinth.errors import RequestError
    from plinth_audit.takedown.search import propose
    from plinth_jobs.cli import output

    kind, value = chosen(given)
    ctx = settings.context()
    proposed = propose(ctx, kind, value, reason, texts=texts, spans=spans)
    counts = {"takes": proposed.count, "buckets": dict(proposed.takes), "parts": proposed.parts}
    counts |= {"of_parts": proposed.of_parts, "share": proposed.share}
    took = f"{proposed.count:,} of {proposed.documents:,} documents ({proposed.share:.1%})"
    if proposed.needs_confirmation and not (yes or dry_run):
        raise RequestError(
            f"this exclusion takes {took}",
            expected="a confirmation",
            remedy=f"look at it with `plinth corpus takedown find --{kind} {shlex.quote(value)}`; then give --yes",
        )
    entry = None if dry_run else _appended(ctx, proposed.fields)
    if as_json:
        output.emit_json({**counts, "entry": entry.number if entry else None, "notes": list(proposed.found.notes)})
        return
    for note in proposed.found.notes:
        output.say(f"[yellow]{output.plain_markup(note)}[/yellow]")
    done = f"entry {entry.number} takes" if entry else "this would take"
    output.say(f"{done} {took}; {proposed.parts:,} of {proposed.of_parts:,} parts are written anew by `plinth run`")


def _appended(ctx: Context, fields: Mapping[str, Any]) -> Exclusion:
    """The new entry of the list; that it was added, or refused, is in the log of decisions."""
    from plinth.corpus import exclusions
    from plinth_registry.audit_log import AuditedAction, audited

    subject = f"{fields['kind']} {fields['value']}"
    with audited(ctx, AuditedAction("exclude", subject, getpass.getuser(), fields["reason"])):
        return exclusions.append(ctx, **fields)


@takedown.command("list", epilog=examples("plinth corpus takedown list", "plinth corpus takedown list --json"))
@shared
@json_option
def listed(settings: Settings, as_json: bool) -> None:
    """List the exclusions, their signatures verified."""
    from plinth.corpus import exclusions
    from plinth_jobs.cli import output

    entries = exclusions.read(settings.context())
    if as_json:
        output.emit_json([entry.model_dump(mode="json", exclude={"texts"}) for entry in entries])
        return
    columns = ("entry", "kind", "value", "texts", "found", "by", "at", "reason")
    rows = [(one.number, one.kind, one.value, len(one.texts), one.found, one.by, one.at, one.reason) for one in entries]
    output.table(columns, rows, right=("entry", "texts", "found"))


@takedown.command(
    "report",
    epilog=examples(
        "plinth corpus takedown report",
        "plinth corpus takedown report 3 --checkpoint 8f3a91c2 --checkpoint 51d0e7aa",
        "plinth corpus takedown report 3 --json | jq '.remains'",
    )
)
@click.argument("entries", nargs=-1, type=click.IntRange(min=1))
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    help="Digest of a checkpoint to measure extraction and exposure of the removed text on; may be given again.",
)
@click.option(
    "--without-retraining",
    is_flag=True,
    help="Sign although trained models are stale or a run is unknown; each is listed as holding it.",
)
@shared
@recipe_option
@json_option
def report_command(
    settings: Settings, entries: tuple[int, ...], checkpoints: tuple[str, ...], without_retraining: bool, as_json: bool
) -> None:
    """Prove that the corpus is free of what ENTRIES took (default: all), and list what still holds it.

    Every published document is checked against every rule, near duplicates included. When there is no hit, and
    `plinth status` shows everything that reads documents up to date, the report is signed by `compliance` and written
    with its pages below the workspace's `takedown/`. Until then the command names all that is stale or unknown.
    """
    from plinth_audit.takedown import report as reports
    from plinth_audit.takedown import report as takedown
    from plinth_audit.takedown.remaining import models_of, remaining_models
    from plinth_jobs.cli import output
    from plinth_registry import taint

    ctx = settings.context()
    downstream, tainted = takedown.downstream(ctx, settings.recipe_path()), taint.frozen(ctx)
    proof = reports.prove(ctx, entries, downstream, tainted, models=not without_retraining)
    models = remaining_models(models_of(ctx, proof.runs, proof.held_by), tainted)
    content = reports.facts(ctx, proof, models, _measured(ctx, proof, checkpoints))
    folder = reports.write(ctx, proof, content)
    if as_json:
        output.emit_json({**content, "folder": str(folder)})
        return
    checked, hits = (sum(one[name] for one in content["corpus"]) for name in ("documents", "hits"))
    what = f"{counted(checked, 'published document')} checked, {counted(hits, 'hit')}"
    output.heading(f"{what}; {counted(len(content['rebuilt']), 'asset')} rebuilt without it; signed in {folder}")
    rows = [(one["what"], one["state"], one["where"], one["until"]) for one in content["remains"]]
    output.table(("what still holds it", "state", "where", "until"), rows)
    for one in content["measured"]:
        output.say(output.plain_markup(_line(one)))


def _measured(ctx: Context, proof: RemovalProof, checkpoints: tuple[str, ...]) -> list[TakedownMeasure]:
    """The checkpoints on the removed text.

    Raises:
        MissingError: no such checkpoint, or the text is no longer in the store.
    """
    from plinth.errors import MissingError
    from plinth_audit.takedown import exposed_runs

    if not checkpoints:
        return []
    texts, heldout = exposed_runs.texts_of(ctx, proof.found), exposed_runs.heldout_texts(ctx)
    if not texts:
        raise MissingError(
            "the removed text is no longer in the store",
            expected="an earlier snapshot that holds it",
            remedy="ask for the report without --checkpoint",
        )
    found = [_checkpoint(ctx, digest) for digest in checkpoints]
    return [exposed_runs.measure(ctx, made, texts, heldout, read_it=_read(proof, made)) for made in found]


def _checkpoint(ctx: Context, digest: str) -> Manifest:
    from plinth.errors import MissingError
    from plinth.storage.state import resolve

    made = resolve(ctx.refs, digest)
    if made.asset != "checkpoint":
        raise MissingError(f"{digest} is no checkpoint", found=made.asset, remedy="`plinth status` lists digests")
    return made


def _read(proof: RemovalProof, made: Manifest) -> bool:
    return any(made.digest in run.digests for run in proof.runs)


def _line(one: dict[str, Any]) -> str:
    from plinth_audit.takedown.page import model_cells

    checkpoint, step, read_it, documents, extracted, control, exposure, p = model_cells(one)
    return (
        f"checkpoint {checkpoint} ({step}; read it: {read_it}): of {documents} documents extracted {extracted} "
        f"(held out {control}); exposure {exposure} bits, p {p}"
    )
