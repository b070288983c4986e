"""`plinth run batch`: the documents of one training step, computed from the manifests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.records import Manifest
    from plinth.tokens.order.batch import BatchSequence

#: Documents shown in the table; JSON has all.
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
    """List the documents, buckets and token spans of STEP of RUN (`latest`, a run id or a prefix of it).

    Steps count from 1, as in the run's timeline. Nothing was logged: the data order is arithmetic, and is computed
    again from the run's mixture.
    """
    from plinth_jobs.cli import output

    found = describe(settings.context(), run, step)
    if as_json:
        output.emit_json(found)
    else:
        _show(found)


def describe(ctx: Context, run: str, step: int) -> dict[str, Any]:
    """A step's sequences with the spans of their documents, as JSON.

    Raises:
        MissingError: no such run or step.
    """
    from plinth.errors import MissingError
    from plinth.records import bucket_of
    from plinth.tokens.order.batch import documents_of_step
    from plinth_jobs.runs import find_run

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
    """URI of each document by bucket, curated part and row; each part's column is read once."""
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
    from plinth_jobs.cli import output

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
