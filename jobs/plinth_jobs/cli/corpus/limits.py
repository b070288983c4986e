"""`plinth corpus limits`: limits and stop words by language, fitted from a reference bucket."""

from __future__ import annotations

from pathlib import Path

import click

from plinth_jobs.cli.options import Settings, examples, shared


@click.command(
    epilog=examples(
        "plinth corpus limits --bucket books --language sw --language yo --out input/limits.jsonl",
        "plinth corpus limits --bucket wikipedia --removed 0.1 --out input/limits.jsonl",
    )
)
@click.option("-b", "--bucket", required=True, help="Bucket of text that is trusted as good, with its languages.")
@click.option("-l", "--language", "languages", multiple=True, help="Only these; by default all with enough text.")
@click.option("--removed", type=click.FloatRange(0, 0.5), default=0.05, show_default=True, help="Share beyond a limit.")
@click.option("-n", "--documents", type=click.IntRange(100), default=20_000, show_default=True, help="Of a language.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File of the list.")
@shared
def limits(
    settings: Settings, bucket: str, languages: tuple[str, ...], removed: float, documents: int, out: Path
) -> None:
    """Fit the limits of `fineweb2` by language from a bucket, as a list for `corpus.lists`."""
    from plinth.corpus.annotate.rules import language_limits
    from plinth.storage.atomic import write_bytes
    from plinth_jobs.cli import output

    made = language_limits.fitted(settings.context(), bucket, languages, removed, documents)
    lines = [one.model_dump_json() + "\n" for one in made]
    write_bytes(out, "".join(lines).encode())
    output.say(f"limits of {', '.join(one.label for one in made)} in {out}; name it in corpus.lists and in")
    output.say("corpus.annotate.fineweb2.limits")
