"""`plinth model generate`: text after prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from plinth_jobs.cli.options import Settings, Utf8Text, examples, json_option, shared


@click.command(
    epilog=examples(
        'plinth model generate latest "The capital of France is"',
        'plinth model generate demo/1 "Once upon a time" --temperature 0.8 --seed 3 --stop END',
        "plinth model generate latest --file prompts.jsonl --max-tokens 64 --json | jq -r '.[].text'",
    )
)
@click.argument("model")
@click.argument("prompts", type=Utf8Text(), nargs=-1)
@click.option(
    "--file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help='Prompts as JSON lines: {"prompt": "…"}.',
)
@click.option("--max-tokens", type=click.IntRange(min=1), default=128, show_default=True, help="Tokens at most.")
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    help="0: the most probable token; 1: as probable as the model says.",
)
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=1.0,
    show_default=True,
    help="Draw from the fewest tokens that are together so probable.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draws.")
@click.option("--stop", type=Utf8Text(), multiple=True, help="Text that ends the writing; left out; may be repeated.")
@shared
@json_option
def generate(
    settings: Settings,
    model: str,
    prompts: tuple[str, ...],
    file: Path | None,
    max_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    stop: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write what MODEL says after PROMPTS.

    MODEL is `latest`, a run or RUN:STEP, a checkpoint's digest, a version NAME/VERSION or NAME@ALIAS, or a folder of
    anybody's weights in Hugging Face's layout. Prompt and text are together at most as long as the model was trained
    on; a longer prompt loses its beginning.
    """
    from plinth.evaluation.engine.records import Sampling
    from plinth_jobs.cli import models, output

    lines, rejects = _read(file) if file else ([], 0)
    asked = [*prompts, *lines]
    if not asked:
        raise click.UsageError("no prompt: give one after the model, or a file with --file")
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed, stop=stop)
    with models.engine(settings.context(), model, label="generate") as engine:
        found = engine.generate(asked, sampling, spread=True)
    if rejects:
        output.line(f"{file}: {rejects} line{'s are' if rejects > 1 else ' is'} no JSON object with a prompt", err=True)
    if as_json:
        rows: list[dict[str, Any]] = [
            {"prompt": prompt, "text": one.text, "tokens": len(one.tokens), "ended": one.ended, "cut": one.cut}
            for prompt, one in zip(asked, found, strict=True)
        ]
        output.emit_json(rows)
        return
    for prompt, one in zip(asked, found, strict=True):
        if len(asked) > 1:
            output.heading(prompt)
        output.say(output.plain_markup(one.text))


def _read(file: Path) -> tuple[list[str], int]:
    """The prompts of a file, and how many lines hold none."""
    prompts, rejects = [], 0
    for line in file.read_bytes().splitlines():
        try:
            prompt = json.loads(line)["prompt"]
            prompt.encode()  # half of a surrogate pair is no text: UnicodeEncodeError is a ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            prompt = None
        if isinstance(prompt, str):
            prompts.append(prompt)
        elif line.strip():
            rejects += 1
    return prompts, rejects
