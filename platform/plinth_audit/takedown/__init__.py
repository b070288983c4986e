"""Takedown: search for a document in all artifacts, removal of the document, and the signed report.

    index         the pipeline stage: sorted keys of ledgers by ID, address, domain, license and cluster
    search        documents in a request; exclusion entry for a request, with the number of documents it removes
    exposed_runs  runs, steps and checkpoints that read a document; extraction and exposure of removed text
    remaining     artifacts that still contain the text, with place and expiry: copies outside the content store,
                  candidates, releases, exports
    report        signed report that the corpus is free of the text and downstream assets are rebuilt
    removal_statement  content of the report
    page          the report in Markdown and HTML

The exclusion list and the removal itself do not belong here (see `plinth.corpus.exclusions`), nor do releases
(`plinth_registry`).

This package also defines the command `plinth corpus takedown`, which imports the other modules when it runs.
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

#: Maximum documents shown; --json has more.
SHOWN = 10


@group(
    short_help="Find all copies of a text, exclude it, and report its removal.",
    epilog=examples("plinth corpus takedown find --url https://example.org/page"),
)
def takedown() -> None:
    """Find all artifacts that contain a document, exclude the document from later snapshots, and sign a report."""


def target(function: F) -> F:
    """Add the options `--url`, `--domain`, `--licence`, `--document` and `--text`, of which a user must give exactly
    one."""
    for name, about in (
        ("text", "Text, name of a text file, or `-` for stdin; finds near duplicates and verbatim spans."),
        ("document", "Document ID of 32 hexadecimal digits."),
        ("licence", "SPDX identifier, or `unknown`; matches every license expression that contains it."),
        ("domain", "Host name; also matches subdomains."),
        ("url", "URL, or the document's name in its source."),
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
    """Find a URL, a domain, a license, a document or a text in parts, shards, runs, steps and checkpoints.

    The search includes near duplicates, and documents that were removed from the corpus after a run read them. The
    output lists every checkpoint that may have read a match. For each checkpoint it lists the places of its copies
    (here, retired, uploaded, published). It also lists all candidates and releases that contain such a checkpoint.
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
    """Return the kind and the value of the only search option that the user gave.

    Raises:
        UsageError: the user gave no search option, or more than one.
    """
    from plinth.corpus.exclusions import KINDS

    named = [(kind, value) for kind in KINDS if (value := given.get(kind)) is not None]
    if len(named) != 1:
        raise click.UsageError(f"expected one of {', '.join(f'--{kind}' for kind in KINDS)}; found {len(named)}")
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
        raise RequestError(f"{value} is not a text file", found=error, expected="UTF-8") from error
    except (OSError, ValueError):  # not a possible file name, so a text
        return value


def _models(ctx: Context, held: Holdings) -> tuple[list[HeldModel], list[str]]:
    """Return the candidates, releases and exports of the exposed checkpoints.

    If they cannot be determined, return no models and the error as a note.
    """
    from plinth.errors import PlinthError
    from plinth_audit.takedown.remaining import derived_from, models_of

    try:
        return models_of(ctx, held.runs, derived_from(ctx, held.found)), []
    except PlinthError as error:
        return [], [f"the affected candidates, releases and exports are unknown: {error.what}"]


def show(held: Holdings, models: list[HeldModel], notes: list[str]) -> None:
    """Print the result of a takedown search: documents, runs, models and notes."""
    from plinth_jobs.cli import output

    found = held.found
    parts = ", ".join(f"{part} {count:,}" for part, count in list(found.published.items())[:SHOWN])
    output.heading(
        f"{counted(found.count, 'document')} in the corpus, {counted(found.earlier, 'row')} in earlier snapshots"
        + (f"; parts: {parts}" if parts else "")
    )
    rows = [(one.id, one.how, one.decision, one.reason, one.shard, one.position, one.uri) for one in found.documents]
    if rows:
        columns = ("document", "found as", "decision", "reason", "shard", "position", "uri")
        output.table(columns, rows[:SHOWN], right=("position",))
    if len(found.documents) > SHOWN:
        output.say(f"[dim]--json lists {len(found.documents):,} documents[/dim]")
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
        return (
            f"run {run.run}: starts or learns from the model {run.inherits[:12]}, which was trained on the text; "
            f"checkpoints: {held}"
        )
    return f"run {run.run}: {read} in steps {steps or 'not computed'}; checkpoints {held}"


@takedown.command(
    epilog=examples(
        "plinth corpus takedown exclude --url https://example.org/page --reason 'letter of 3 March'",
        "plinth corpus takedown exclude --licence CC-BY-NC-4.0 --reason 'not for this use' --yes",
        "plinth corpus takedown exclude --text letter.txt --spans --reason 'court order 17/26'",
    )
)
@target
@click.option("--reason", required=True, help="Name of the requester and reason for the exclusion. The text is signed.")
@click.option(
    "--texts/--no-texts",
    default=None,
    help="Also exclude the same texts under other addresses (default: yes, except for --domain and --licence).",
)
@click.option("--spans", is_flag=True, help="With --text: also exclude documents that quote 32 or more of its tokens.")
@click.option("--yes", is_flag=True, help="Confirm that more than 5% of the corpus is excluded.")
@click.option("--dry-run", is_flag=True, help="Count the documents without excluding them.")
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
    """Add an entry to the signed exclusion list, which applies to all later snapshots.

    The command shows the number of excluded documents, and the number of corpus parts that the next `plinth run`
    rewrites. Other parts stay unchanged. Excluded documents are counted as rejects with the reason `takedown`. The role
    `compliance` signs the entry.
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
            f"this exclusion removes {took}",
            expected="a confirmation",
            remedy=f"check the result of `plinth corpus takedown find --{kind} {shlex.quote(value)}`, then add --yes",
        )
    entry = None if dry_run else _appended(ctx, proposed.fields)
    if as_json:
        output.emit_json({**counts, "entry": entry.number if entry else None, "notes": list(proposed.found.notes)})
        return
    for note in proposed.found.notes:
        output.say(f"[yellow]{output.plain_markup(note)}[/yellow]")
    done = f"Entry {entry.number} removes" if entry else "This would remove"
    output.say(f"{done} {took}; `plinth run` rewrites {proposed.parts:,} of {proposed.of_parts:,} parts.")


def _appended(ctx: Context, fields: Mapping[str, Any]) -> Exclusion:
    """Append an entry to the exclusion list, and record success or failure in the audit log."""
    from plinth.corpus import exclusions
    from plinth_registry.audit_log import AuditedAction, audited

    subject = f"{fields['kind']} {fields['value']}"
    with audited(ctx, AuditedAction("exclude", subject, getpass.getuser(), fields["reason"])):
        return exclusions.append(ctx, **fields)


@takedown.command("list", epilog=examples("plinth corpus takedown list", "plinth corpus takedown list --json"))
@shared
@json_option
def listed(settings: Settings, as_json: bool) -> None:
    """Verify the signatures of the exclusion list, then print all its entries."""
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
    ),
)
@click.argument("entries", nargs=-1, type=click.IntRange(min=1))
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    help="Measure extraction and exposure of the removed text on the checkpoint with this digest. Repeatable.",
)
@click.option(
    "--without-retraining",
    is_flag=True,
    help="Sign the report even if trained models are stale, or if the data of a run is unknown. The report lists both.",
)
@shared
@recipe_option
@json_option
def report_command(
    settings: Settings, entries: tuple[int, ...], checkpoints: tuple[str, ...], without_retraining: bool, as_json: bool
) -> None:
    """Check that the corpus is free of the documents of ENTRIES (default: all), and sign a report on remaining copies.

    Every published document is checked against every exclusion rule, including near duplicates. The role `compliance`
    signs the report if nothing matches and `plinth status` shows all assets that read documents as up to date. The
    report and its pages are written to the workspace's `takedown/`. Otherwise, the command lists everything that is
    stale or unknown.
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
    output.heading(
        f"{what}; {counted(len(content['rebuilt']), 'asset')} rebuilt without the text; report signed in {folder}"
    )
    rows = [(one["what"], one["state"], one["where"], one["until"]) for one in content["remains"]]
    output.table(("remaining copy", "state", "place", "until"), rows)
    for one in content["measured"]:
        output.say(output.plain_markup(_line(one)))


def _measured(ctx: Context, proof: RemovalProof, checkpoints: tuple[str, ...]) -> list[TakedownMeasure]:
    """Measure extraction and exposure of the removed text on the named checkpoints.

    Raises:
        MissingError: there is no such checkpoint, or the text is no longer in the store.
    """
    from plinth.errors import MissingError
    from plinth_audit.takedown import exposed_runs

    if not checkpoints:
        return []
    texts, heldout = exposed_runs.texts_of(ctx, proof.found), exposed_runs.heldout_texts(ctx)
    if not texts:
        raise MissingError(
            "the removed text is no longer in the store",
            expected="an earlier snapshot that contains the text",
            remedy="create the takedown report without --checkpoint",
        )
    found = [_checkpoint(ctx, digest) for digest in checkpoints]
    return [exposed_runs.measure(ctx, made, texts, heldout, read_it=_read(proof, made)) for made in found]


def _checkpoint(ctx: Context, digest: str) -> Manifest:
    from plinth.errors import MissingError
    from plinth.storage.state import resolve

    made = resolve(ctx.refs, digest)
    if made.asset != "checkpoint":
        raise MissingError(f"{digest} is not a checkpoint", found=made.asset, remedy="`plinth status` lists digests")
    return made


def _read(proof: RemovalProof, made: Manifest) -> bool:
    return any(made.digest in run.digests for run in proof.runs)


def _line(one: dict[str, Any]) -> str:
    from plinth_audit.takedown.page import model_cells

    checkpoint, step, read_it, documents, extracted, control, exposure, p = model_cells(one)
    return (
        f"checkpoint {checkpoint} ({step}; trained on the text: {read_it}): {documents} documents; extraction rate "
        f"{extracted} (held-out text {control}); exposure {exposure} bits, p-value {p}"
    )
