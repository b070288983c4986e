"""Tracing of a text to training data: verbatim spans, their documents, and the steps and checkpoints that read them.

    trace_index  the pipeline stage; sorted hashes of every 17th 16-gram in a range of tokens
    matches      occurrences of 32 or more tokens of a text in the shards, merged to maximal spans with counts
    tracer       spans in a text or token sequence, with documents, shards, steps and checkpoints of runs

The index takes half a byte per token. A query looks up all of its 16-grams, so it is enough to index n-grams at fixed
distances (anchors). The size of the index does not depend on the content of the text. All repetitions are found.

Tracing one document by its ID does not belong here (see `plinth.provenance.explain`).

This package also defines the command `plinth corpus trace`, which imports the other modules when it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from plinth.text import counted
from plinth_jobs.cli.options import Settings, Utf8Text, examples, json_option, shared

#: Maximum characters shown of a span; --json has all.
SHOWN_CHARACTERS = 240
#: Maximum length of a path; a longer target is a text.
MOST_PATH = 4096


@click.command(
    short_help="Find verbatim spans of a text in the training data.",
    epilog=examples(
        'plinth corpus trace "It was the best of times, it was the worst of times, …"',
        "plinth corpus trace answer.txt --documents 100",
        "plinth corpus trace latest",
        "plinth corpus trace - --json < answer.txt | jq '.spans[].found[].training'",
    ),
)
@click.argument("target", type=Utf8Text(), metavar="TEXT|FILE|-|latest")
@click.option(
    "--least", type=click.IntRange(min=32), default=32, show_default=True, help="Minimum length of a span, in tokens."
)
@click.option(
    "--documents",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Maximum number of documents to list per span.",
)
@shared
@json_option
def trace(settings: Settings, target: str, least: int, documents: int, as_json: bool) -> None:
    """Find verbatim spans of a text in the training data, and the steps and checkpoints that read these spans.

    The command shows every span of 32 or more tokens with its number of occurrences and documents. For the first
    documents, it shows shards, training steps and checkpoints. TARGET is a text, a file, or `-` for stdin. If TARGET is
    `latest`, the completions of the latest extraction test are traced.
    """
    from plinth_audit.trace.tracer import Tracer
    from plinth_jobs.cli import output

    if target == "latest":
        return _latest(settings, least, documents, as_json)
    found = Tracer(settings.context()).text(_text(target), least=least, listed=documents)
    if as_json:
        output.emit_json(found)
    else:
        _show(found)
    return None


def _latest(settings: Settings, least: int, documents: int, as_json: bool) -> None:
    from plinth_audit.trace import tracer
    from plinth_jobs.cli import output

    said = tracer.latest(settings.context(), least=least, listed=documents)
    if as_json:
        return output.emit_json(said)
    count = len(said["found"])
    output.heading(
        f"run {said['run']}, step {said['step']}: {count} of {said['completions']} completions contain verbatim spans "
        "of training text"
    )
    for one in said["found"]:
        held = ", held out" if one["heldout"] else ""
        output.heading(f"{one['outcome']}: prompt from {one['id']} in {one['bucket']}{held}")
        for span in one["trace"]["spans"]:
            _show_span(span)
    return None


def _text(target: str) -> str:
    """Return the text to trace: the content if the target is a file or `-`, otherwise the target itself."""
    from plinth.errors import MissingError

    try:
        if target == "-":
            return sys.stdin.buffer.read().decode()
        path = Path(target)
        if target and len(target) < MOST_PATH and path.is_dir():
            raise MissingError(
                f"{target} is a folder", expected="a text, the path of a text file, `-` for stdin, or `latest`"
            )
        return path.read_bytes().decode() if len(target) < MOST_PATH and path.is_file() else target
    except UnicodeDecodeError as error:
        raise MissingError(f"{target} is not a text file", found=error, expected="UTF-8") from error
    except (OSError, ValueError):  # not a possible file name, so a text
        return target


def _show(found: Mapping[str, Any]) -> None:
    from plinth_jobs.cli import output

    output.heading(
        f"{counted(len(found['spans']), 'span')} of {found['least']} or more tokens; "
        f"they cover {found['covered']:,} of {counted(found['tokens'], 'token')}"
    )
    if found["tokens"] < found["least"]:
        output.say("The text is shorter than the minimum span. If you meant a file, check the file name.")
    for span in found["spans"]:
        _show_span(span)


def _show_span(span: Mapping[str, Any]) -> None:
    from plinth_jobs.cli import output

    text, most = span["text"], ""
    shown = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
    if span["most"] > span["occurrences"]:
        most = f"; its most frequent 32 tokens occur {span['most']:,} times"
    output.heading(
        f"tokens {span['begin']:,} to {span['begin'] + span['tokens']:,} ({span['tokens']:,}): "
        f"{counted(span['occurrences'], 'time')} in {counted(span['documents'], 'document')}{most}"
    )
    output.say(f"    | {output.plain_markup(shown)}")
    for one in span["found"]:
        place = ", ".join(f"{piece['shard']} at {piece['position']:,}" for piece in one["shards"])
        output.say(
            f"  {one['id']}  {output.plain_markup(one['uri'])}  [dim]{one['licence']}, {one['stream']}: {place}[/dim]"
        )
        for run in one["training"]:
            output.say(f"    {_run(run)}")
    if span["documents"] > len(span["found"]):
        output.say(f"  [dim]and {span['documents'] - len(span['found']):,} more (--documents)[/dim]")


def _run(run: Mapping[str, Any]) -> str:

    if "unknown" in run:
        return f"run {run['run']}: {run['unknown']}"
    return (
        f"run {run['run']}: steps {_numbers(run['steps'])} ({counted(run['times_seen'], 'time')}); "
        f"checkpoints {_numbers(run['checkpoints']) or 'none yet'}"
        + (f"; exported to {', '.join(run['exports'])}" if run["exports"] else "")
    )


def _numbers(values: list[int]) -> str:
    shown = ", ".join(f"{value:,}" for value in values[:8])
    return f"{shown}, … ({len(values):,})" if len(values) > 8 else shown
