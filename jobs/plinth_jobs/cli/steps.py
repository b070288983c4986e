"""Commands about steps of a training run: `plinth run batch | replay | blame | checkpoint`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from plinth import processes
from plinth.errors import CheckpointError, MissingError, TrainingError
from plinth.text import counted
from plinth_jobs.cli import output
from plinth_jobs.cli.options import Settings, examples, group, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.records import Manifest
    from plinth.tokens.order.batch import BatchSequence
    from plinth.training.config import RunConfig
    from plinth.training.directory import RunDirectory

#: Maximum number of documents in the table; JSON has all.
SHOWN = 60


@click.command(
    epilog=examples(
        "plinth run batch latest 100", "plinth run batch latest 100 --json | jq -r '.sequences[].documents[].uri'"
    )
)
@click.argument("run")
@click.argument("step", type=click.IntRange(min=1))
@shared
@json_option
def batch(settings: Settings, run: str, step: int, as_json: bool) -> None:
    """List the documents, buckets and token spans in STEP of RUN (`latest`, a run ID or a prefix of it).

    Steps count from 1, as in the run's timeline. The data order is deterministic, so the batch is recomputed from the
    run's mixture.
    """
    found = describe(settings.context(), run, step)
    if as_json:
        output.emit_json(found)
    else:
        _show(found)


def describe(ctx: Context, run: str, step: int) -> dict[str, Any]:
    """Return the sequences of a step with the document spans in each sequence, as JSON.

    Raises:
        MissingError: the run or step does not exist.
    """
    from plinth.records import bucket_of
    from plinth.tokens.order.batch import documents_of_step
    from plinth_jobs.targets import find_run

    config = find_run(ctx, run)
    if not 1 <= step <= config.total_steps:
        raise MissingError(f"run {config.run_id} has no step {step}", expected=f"a step from 1 to {config.total_steps}")
    shards = {bucket: ctx.refs.load(digest) for bucket, digest in config.shards.items()}
    mixture = ctx.refs.load(config.mixture)
    sequences = documents_of_step(ctx, mixture, shards, step - 1, config.draws)
    uris = _uris(ctx, shards, sequences)
    return {
        "run": config.run_id,
        "step": step,
        "tokens": len(sequences) * config.sequence_tokens,
        "sequences": [
            {
                "row": each.row,
                "bucket": bucket_of(each.sequence.stream),
                "stream": each.sequence.stream,
                "epoch": each.sequence.epoch,
                "sequence": each.sequence.index,
                "documents": [
                    {
                        "id": piece.document.id,
                        "uri": uris[bucket_of(each.sequence.stream), piece.document.part, piece.document.row],
                        "first": piece.first,
                        "tokens": piece.tokens,
                        "document_tokens": piece.document.tokens,
                    }
                    for piece in each.documents
                ],
            }
            for each in sequences
        ],
    }


def _uris(
    ctx: Context, shards: Mapping[str, Manifest], sequences: list[BatchSequence]
) -> dict[tuple[str, int, int], str]:
    """Return document URIs by bucket, curated file and row. The URI column of each file is read once."""
    from plinth.records import bucket_of
    from plinth.storage.parts import read_table

    wanted: dict[tuple[str, int], set[int]] = defaultdict(set)
    for each in sequences:
        for piece in each.documents:
            wanted[bucket_of(each.sequence.stream), piece.document.part].add(piece.document.row)
    found = {}
    for (bucket, part), rows in wanted.items():
        curated = ctx.refs.load(shards[bucket].inputs[f"{bucket}/curated"])
        column = read_table(ctx.store, curated.named("part-")[part], ["uri"]).column("uri")
        found.update({(bucket, part, row): column[row].as_py() for row in rows})
    return found


def _show(found: Mapping[str, Any]) -> None:
    counts: dict[str, int] = defaultdict(int)
    rows = []
    for sequence in found["sequences"]:
        counts[sequence["stream"]] += 1
        for document in sequence["documents"]:
            span = f"{document['first']}+{document['tokens']}"
            rows.append((sequence["row"], sequence["stream"], span, document["id"][:12], document["uri"]))
    shares = ", ".join(f"{stream} {count}" for stream, count in sorted(counts.items()))
    output.heading(f"{found['run']} step {found['step']}: {counted(len(found['sequences']), 'sequence')} ({shares})")
    output.table(("row", "stream", "tokens", "document", "uri"), rows[:SHOWN], right=("row", "tokens"))
    if len(rows) > SHOWN:
        output.say(f"and {counted(len(rows) - SHOWN, 'more document')}; --json lists all")


#: Maximum number of documents in the table; JSON has all.
FORENSICS_SHOWN = 15

#: Maximum number of characters shown per span.
SPAN_CHARACTERS = 48

_checkpoint = click.option(
    "--checkpoint",
    type=click.IntRange(min=1),
    metavar="STEP",
    help="Step of the checkpoint that scores the batch; default: the newest checkpoint before STEP.",
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
    """Rescore the batch of STEP of RUN offline, and show the loss and the worst spans of every document.

    The newest committed checkpoint before STEP is used, unless --checkpoint is given. The batch is recomputed from the
    mixture, even if the run skipped the step.
    """
    found = _forensics(settings.run_config(run), "replay", step, checkpoint)
    if as_json:
        output.emit_json(found)
        return
    _head(found)
    rows = [
        (f"{row['loss']:.3f}", row["bucket"], row["source"], row["id"][:12], _span(row)) for row in found["documents"]
    ]
    output.table(("loss", "bucket", "source", "document", "worst span"), rows[:FORENSICS_SHOWN], right=("loss",))
    _rest(len(rows))


@click.command(epilog=examples("plinth run blame latest 100", "plinth run blame latest 100 --json | jq '.sources'"))
@click.argument("run")
@click.argument("step", type=click.IntRange(min=1))
@_checkpoint
@click.option(
    "--baseline",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Number of earlier steps to compare with.",
)
@shared
@json_option
def blame(settings: Settings, run: str, step: int, checkpoint: int | None, baseline: int, as_json: bool) -> None:
    """Attribute the loss of STEP of RUN to documents, sources and buckets.

    Earlier steps are scored with the same checkpoint. The excess of a document is its loss above the typical loss of
    its bucket, weighted by its fraction of the batch. The excesses of all documents add up to the excess of the batch.
    """
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
        for row in found["documents"][:FORENSICS_SHOWN]
    ]
    output.table(("excess", "loss", "source", "document", "uri", "worst span"), rows, right=("excess", "loss"))
    _rest(found["documents_count"])


def _forensics(
    config: RunConfig, what: str, step: int, checkpoint: int | None, baseline: int | None = None
) -> dict[str, Any]:
    """Run `plinth.training.forensics.replay` as a child process and return its result.

    Raises:
        MissingError: the run has no such step, checkpoint or manifest.
        TrainingError: the child process failed.
    """
    if step > config.total_steps:
        raise MissingError(f"run {config.run_id} has no step {step}", expected=f"a step from 1 to {config.total_steps}")
    command = processes.python("plinth.training.forensics.replay", what, str(config.directory.config), str(step))
    for option, value in (("--checkpoint", checkpoint), ("--baseline", baseline)):
        command += [option, str(value)] if value is not None else []
    done = processes.run(command, *processes.STORES, *processes.KEYS, capture_output=True, text=True)
    if done.returncode == MissingError.exit_code:
        raise MissingError(done.stderr.strip())  # the child's message: what, found, expected, remedy
    if done.returncode:
        raise TrainingError(f"`{what}` of step {step} failed", found=done.stderr.strip()[-2000:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _head(found: dict[str, Any]) -> None:
    trained = "trained" if found["trained"] else "not trained"
    output.heading(f"{found['run']} step {found['step']} ({trained}) with checkpoint {found['checkpoint']}")
    output.facts(
        {"loss now": found["loss"], "loss in training": found["seen_loss"], "gradient norm": found["seen_grad_norm"]}
    )


def _span(row: dict[str, Any]) -> str:
    if not row.get("spans"):
        return ""
    worst = row["spans"][0]
    return f"{worst['loss']:.1f} {worst.get('text', '')!r}"[:SPAN_CHARACTERS]


def _rest(documents: int) -> None:
    if documents > FORENSICS_SHOWN:
        output.say(f"and {counted(documents - FORENSICS_SHOWN, 'more document')}; --json has more")


#: Degrees of a rank layout, which are shown if they are not 1.
_DEGREES = ("tensor", "pipeline", "sequence")

CHANGED = 1


@group(epilog=examples("plinth run checkpoint list latest", "plinth run checkpoint verify latest"))
def checkpoint() -> None:
    """List, verify and average the checkpoints of a run. Training can resume from a checkpoint on any rank layout that
    the recipe accepts."""


@checkpoint.command(
    "list", epilog=examples("plinth run checkpoint list latest", "plinth run checkpoint list latest --json")
)
@click.argument("run")
@shared
@json_option
def list_(settings: Settings, run: str, as_json: bool) -> None:
    """List the committed checkpoints of RUN with step, tokens, rank layout and size."""
    from plinth.training.checkpoint import checkpoint as files
    from plinth.training.checkpoint.shares import fetch_whole

    config = settings.run_config(run)
    directory, steps = config.directory, files.committed(config.directory)
    for step in steps:
        fetch_whole(config, step, state_only=True)
    rows = [_row(directory, step) for step in steps]
    if as_json:
        output.emit_json(rows)
        return
    columns = ("step", "tokens", "written by", "precision", "GB", "remote")
    table = [
        (
            row["step"],
            f"{row['tokens']:,}",
            in_words(row["layout"]),
            row["precision"],
            f"{row['bytes'] / 1e9:.3f}",
            "yes" if row["uploaded"] else "",
        )
        for row in rows
    ]
    output.table(columns, table, right=("step", "tokens", "GB"))


@checkpoint.command(
    epilog=examples("plinth run checkpoint verify latest", "plinth run checkpoint verify latest 5000 --json")
)
@click.argument("run")
@click.argument("step", type=click.IntRange(min=1), required=False)
@shared
@json_option
def verify(settings: Settings, run: str, step: int | None, as_json: bool) -> None:
    """Verify the hashes of all checkpoints of RUN, or of the checkpoint at STEP. The exit code is 1 on a mismatch."""
    from plinth.training.checkpoint import checkpoint as files
    from plinth.training.checkpoint.shares import fetch_whole

    config, rows = settings.run_config(run), []
    directory = config.directory
    for number in files.committed(directory) if step is None else [step]:
        try:
            fetch_whole(config, number)
            files.verify(directory, number)
        except CheckpointError as error:
            rows.append({"step": number, "intact": False, "reason": error.what})
        else:
            rows.append({"step": number, "intact": True, "reason": ""})
    if as_json:
        output.emit_json(rows)
    else:
        for row in rows:
            output.say(f"step {row['step']}: " + ("intact" if row["intact"] else f"corrupt: {row['reason']}"))
    if not all(row["intact"] for row in rows):
        raise click.exceptions.Exit(CHANGED)


@checkpoint.command(
    epilog=examples(
        "plinth run checkpoint average latest --steps 900,950,1000",
        "plinth run checkpoint average latest --steps 900,1000 --weights 1,3 --json",
        "plinth run checkpoint average latest --steps 1000 --ema",
    )
)
@click.argument("run")
@click.option("--steps", required=True, help="Steps of the checkpoints, such as `900,950,1000`.")
@click.option("--weights", default="", help="Positive weight per checkpoint; default: equal weights.")
@click.option("--ema", is_flag=True, help="Average the EMA weights (training.optimizer.ema_decay).")
@shared
@json_option
def average(settings: Settings, run: str, steps: str, weights: str, ema: bool, as_json: bool) -> None:
    """Average committed checkpoints of RUN in FP32 into a new checkpoint, identified by its digest.

    Commands that take a model accept the digest. Every parent is verified first and recorded by digest; the average is
    signed with the trainer key. To evaluate and release it, use training.checkpoints.average in the recipe.
    """
    from plinth.training.averaging import average as averaged
    from plinth.training.checkpoint.mean_record import in_words as mean_in_words
    from plinth_jobs.targets import find_run

    ctx = settings.context()
    config, chosen = find_run(ctx, run), _numbers(steps, int, "--steps")
    shares = _numbers(weights, float, "--weights") or [1.0] * len(chosen)
    made = averaged(ctx, config, chosen, shares, ema=ema)
    parents = {name: digest for name, digest in made.inputs.items() if name.startswith("checkpoint/")}
    if as_json:
        output.emit_json({"digest": made.digest, "parents": parents, **made.params})
        return
    output.say(f"checkpoint {made.digest}: {mean_in_words(made)}")
    output.table(("parent", "digest"), list(parents.items()))


def _numbers(text: str, kind: Any, option: str) -> list[Any]:
    try:
        return [kind(one) for one in text.split(",") if one]
    except ValueError as error:
        raise click.BadParameter(f"{error}; expected numbers separated by commas", param_hint=option) from error


def in_words(layout: dict[str, int]) -> str:
    """Format a rank layout: `4 ranks, ZeRO 1, tensor 2`."""
    ranks = layout["ranks"]
    if "zero_stage" not in layout:  # of an external trainer
        return counted(ranks, "rank")
    divided = [f"{name} {layout[name]}" for name in _DEGREES if layout[name] > 1]
    return ", ".join([counted(ranks, "rank"), f"ZeRO {layout['zero_stage']}", *divided])


def _row(directory: RunDirectory, step: int) -> dict[str, Any]:
    from plinth.training.checkpoint import checkpoint as files

    state = files.read_state(directory, step)
    return {
        **{name: state[name] for name in ("step", "tokens", "layout", "precision", "parameters_sha256")},
        "bytes": files.stated_bytes(directory, step),
        "uploaded": files.is_uploaded(directory, step),
    }
