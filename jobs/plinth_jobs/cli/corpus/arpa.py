"""`plinth corpus arpa`: an n-gram model as ARPA."""

from __future__ import annotations

from pathlib import Path

import click

from plinth_jobs.cli.options import Settings, examples, shared


@click.command(epilog=examples("plinth corpus arpa perplexity model.arpa"))
@shared
@click.argument("name")
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
def arpa(settings: Settings, name: str, target: Path) -> None:
    """Write the n-gram model NAME to TARGET in ARPA format, as read by KenLM.

    Tokenise text for it as Plinth does: lower case, digits as 0, punctuation marks separate.
    """
    from plinth.corpus.models.ngram import ngram_file
    from plinth.storage.atomic import replacing
    from plinth_jobs.cli import output

    ctx = settings.context()
    made = ctx.refs.current(f"models/{name}")
    files = {part.name: ctx.store.open_path(part.blob) for part in made.parts}
    model = ngram_file.read(files, f"models/{name}")
    with replacing(target) as stream:
        stream.writelines(f"{line}\n".encode() for line in ngram_file.arpa(model))
    output.facts({"n-grams": sum(keys.size for keys in model.keys), "written": target})
