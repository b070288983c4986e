"""`plinth run replay` and `plinth run blame`: the loss of a step by document and source. Torch runs in a child
process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from plinth import processes
from plinth.text.plural import counted
from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.training.config import RunConfig

#: Documents shown in the table; JSON has all.
SHOWN = 15

#: Characters of a span's text that are shown.
SPAN_CHARACTERS = 48

_checkpoint = click.option(
    "--checkpoint",
    type=click.IntRange(min=1),
    metavar="STEP",
    help="Checkpoint to score with; the newest before STEP by default.",
)


@click.command(
    epilog=examples("plinth run replay latest 100", "plinth run replay latest 100 --json | jq '.documents[0].spans'")
)
@click.argument("run")
@click.argument("step", type=click.IntRange(min=1))
@_checkpoint
@shared
@json_option
def replay(settings: Settings, run: str, step: int, checkpoint: int | None, as_json: bool) -> None:
    """Score the batch of STEP of RUN again, offline: the loss of every document, and its worst spans.

    The parameters are those of the newest committed checkpoint before the batch; the batch is computed from the
    mixture, whether or not the run trained on it.
    """
    from plinth_jobs.cli import output

    found = _forensics(settings.run_config(run), "replay", step, checkpoint)
    if as_json:
        output.emit_json(found)
        return
    _head(found)
    rows = [
        (f"{row['loss']:.3f}", row["bucket"], row["source"], row["id"][:12], _span(row)) for row in found["documents"]
    ]
    output.table(("loss", "bucket", "source", "document", "worst span"), rows[:SHOWN], right=("loss",))
    _rest(len(rows))


@click.command(epilog=examples("plinth run blame latest 100", "plinth run blame latest 100 --json | jq '.sources'"))
@click.argument("run")
@click.argument("step", type=click.IntRange(min=1))
@_checkpoint
@click.option(
    "--baseline", type=click.IntRange(1, 64), default=4, show_default=True, help="Number of earlier steps to compare."
)
@shared
@json_option
def blame(settings: Settings, run: str, step: int, checkpoint: int | None, baseline: int, as_json: bool) -> None:
    """Attribute the loss of STEP of RUN to documents, sources and buckets.

    Earlier steps are scored under the same parameters. The excess of a document is its loss above the typical loss
    of its bucket, weighted by its share of the batch; excesses add up to that of the batch.
    """
    from plinth_jobs.cli import output

    found = _forensics(settings.run_config(run), "blame", step, checkpoint, baseline)
    if as_json:
        output.emit_json(found)
        return
    _head(found)
    output.say(f"  excess {found['excess']:+.3f} nats over steps {', '.join(map(str, found['baseline_steps']))}")
    sources = [
        (f"{row['excess']:+.3f}", f"{row['loss']:.3f}", row["bucket"], row["source"], row["documents"], row["tokens"])
        for row in found["sources"]
    ]
    columns = ("excess", "loss", "bucket", "source", "documents", "tokens")
    output.table(columns, sources, right=("excess", "loss", "documents", "tokens"))
    rows = [
        (f"{row['excess']:+.3f}", f"{row['loss']:.3f}", row["source"], row["id"][:12], row["uri"], _span(row))
        for row in found["documents"][:SHOWN]
    ]
    output.table(("excess", "loss", "source", "document", "uri", "worst span"), rows, right=("excess", "loss"))
    _rest(found["documents_count"])


def _forensics(
    config: RunConfig, what: str, step: int, checkpoint: int | None, baseline: int | None = None
) -> dict[str, Any]:
    """The result of `plinth.training.forensics.replay`, run as a child process.

    Raises:
        MissingError: the run has no such step, or no checkpoint or manifest to score it with.
        TrainingError: the child process failed.
    """
    from plinth.errors import MissingError, TrainingError

    if step > config.total_steps:
        raise MissingError(f"run {config.run_id} has no step {step}", expected=f"a step from 1 to {config.total_steps}")
    command = processes.python("plinth.training.forensics.replay", what, str(config.directory.config), str(step))
    for option, value in (("--checkpoint", checkpoint), ("--baseline", baseline)):
        command += [option, str(value)] if value is not None else []
    done = processes.run(command, *processes.STORES, *processes.KEYS, capture_output=True, text=True)
    if done.returncode == MissingError.exit_code:
        raise MissingError(done.stderr.strip())  # as the child puts it: what, found, expected, remedy
    if done.returncode:
        raise TrainingError(f"`{what}` of step {step} failed", found=done.stderr.strip()[-2000:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _head(found: dict[str, Any]) -> None:
    from plinth_jobs.cli import output

    trained = "trained" if found["trained"] else "not trained"
    output.heading(f"{found['run']} step {found['step']} ({trained}) under checkpoint {found['checkpoint']}")
    output.facts(
        {"loss now": found["loss"], "loss in training": found["seen_loss"], "gradient norm": found["seen_grad_norm"]}
    )


def _span(row: dict[str, Any]) -> str:
    if not row.get("spans"):
        return ""
    worst = row["spans"][0]
    return f"{worst['loss']:.1f} {worst.get('text', '')!r}"[:SPAN_CHARACTERS]


def _rest(documents: int) -> None:
    from plinth_jobs.cli import output

    if documents > SHOWN:
        output.say(f"and {counted(documents - SHOWN, 'more document')}; --json has more")
