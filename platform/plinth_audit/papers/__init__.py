"""Papers of a model: projections of signed evidence, byte for byte the same whenever they are made.

    facts             statements of papers, each with the digest of its evidence
    gather            the facts out of a verified provenance, the manifests it names, and attestations; text by domain
    cards             the model card and the data card in Markdown; the bill of materials, CycloneDX 1.6
    provider          what the provider states, signed; the European Union's public summary of training content
    signed            papers of a candidate or release, signed by compliance, and as they leave with an export

No clock, no path, no recipe and no text but what a person signed enters a paper.

Also here: the commands `plinth release papers` and `plinth release provider`, which load the other modules when
they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from plinth_jobs.cli.gates import owner_option
from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth_audit.papers.signed import MadePapers

#: Names of papers on the command line.
SHOWN = {
    "model-card": "README.md",
    "data-card": "papers/DATA_CARD.md",
    "bom": "papers/bom.cdx.json",
    "summary": "papers/TRAINING_SUMMARY.md",
}


@click.command(
    short_help="Show, write or sign the papers of a candidate or release.",
    epilog=examples(
        "plinth release papers                                 the newest candidate's",
        "plinth release papers champion --show summary",
        "plinth release papers demo/2 --to papers",
        "plinth release papers demo/2 --sign --reason 'read against the contracts'",
    )
)
@click.argument("target", default="candidate")
@click.option("--show", type=click.Choice(list(SHOWN)), help="Print one paper.")
@click.option("--to", type=click.Path(path_type=Path, file_okay=False), help="Write them below a new or empty folder.")
@click.option("--sign", is_flag=True, help="Sign these papers as compliance.")
@click.option("--reason", default="", metavar="TEXT", help="With --sign: the reason, in a sentence.")
@owner_option
@shared
@recipe_option
@json_option
def papers(
    settings: Settings,
    target: str,
    show: str | None,
    to: Path | None,
    sign: bool,
    reason: str,
    owner: str | None,
    as_json: bool,
) -> None:
    """Make the papers of TARGET: model card, data card, bill of materials, summary of training content.

    TARGET is `candidate` (the newest), the version of a candidate, `champion`, `canary`, NAME/VERSION or NAME@PLACE.
    It is verified first, as an export does, and the papers are those that an export of it would have. With --sign the
    key of compliance signs them; the gate policy may ask for that (`papers: signed`) before a release is exported.
    """
    from plinth_audit.papers import signed
    from plinth_jobs.cli import output

    ctx = settings.context()
    made = _made(settings, ctx, target)
    if sign:
        signed.sign(ctx, made, reason, owner)
    if to is not None:
        _write(ctx, made, to)
    if show is not None:
        output.line(made.files[SHOWN[show]].decode(), end="")
        return
    known = {"name": made.subject.name, "checkpoint": made.checkpoint, "released": made.subject.released is not None}
    known["rolled back"] = made.subject.rolled_back
    by = signed.signed_by(ctx, made)
    if as_json:
        output.emit_json({**known, "signed_by": by, "papers": made.digests, "to": to and str(to)})
        return
    output.facts({**known, "signed as compliance": ", ".join(by) or "by nobody"})
    sizes = ((name, output.size(len(made.files[name])), digest) for name, digest in made.digests.items())
    output.table(("paper", "size", "SHA-256"), sizes)


@click.command(
    "provider",
    short_help="Sign what the provider of a release states of itself.",
    epilog=examples("plinth release provider provider.yaml", "plinth release provider"),
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True), required=False)
@owner_option
@shared
@recipe_option
@json_option
def provider_command(settings: Settings, file: Path | None, owner: str | None, as_json: bool) -> None:
    """Sign what the provider in FILE states of itself and its data; without FILE, show what it states now.

    The key of compliance signs. The papers of the release have it from then on: who the provider is, when a version was
    placed on the market, and what no evidence can say of the data.
    """
    from plinth_audit.papers import provider as statements
    from plinth_jobs.cli import output

    ctx = settings.context()
    if file is not None:
        found = statements.sign(ctx, statements.load(file), owner)
    else:
        release = settings.load_recipe().required_release().name
        known = statements.current(ctx, release)
        if known is None:
            return output.emit_json(None) if as_json else output.say(f"no provider of {release} has stated anything")
        found = known
    stated = found.statement.model_dump(mode="json", exclude_defaults=True)
    if as_json:
        return output.emit_json({**stated, "by": found.by, "at": found.at})
    output.facts({**{name: str(value) for name, value in stated.items()}, "signed": f"{found.at} by {found.by}"})
    return None


def _made(settings: Settings, ctx: Context, target: str) -> MadePapers:
    """Papers of a release by the signed history, or of a candidate by MLflow's list of them: those of its release, if
    the signed history has released it."""
    from plinth_audit.papers import signed
    from plinth_jobs.targets import ALIASES
    from plinth_registry import decisions
    from plinth_registry.exports import models

    if target in ALIASES:
        target = f"{settings.load_recipe().required_release().name}@{ALIASES[target]}"
    if "/" in target or "@" in target:
        return signed.papers_of(ctx, models.find(ctx, target))
    found = decisions.find_candidate(ctx, settings.load_recipe(), None if target in ("candidate", "latest") else target)
    return signed.papers_of_candidate(ctx, found)


def _write(ctx: Context, made: MadePapers, to: Path) -> None:
    """A folder that appears when it is whole; with the statement over the papers, where there is one.

    Raises:
        WorkspaceError: the folder has something else in it.
    """
    import tempfile

    from plinth.errors import WorkspaceError
    from plinth.storage.atomic import named_failures
    from plinth_audit.papers import signed

    if to.exists() and any(to.iterdir()):
        raise WorkspaceError(f"{to} is not empty", expected="a new or empty folder", remedy="name another")
    files = dict(made.files)
    if signed.signed_by(ctx, made):
        files["evidence/papers.json"] = signed.path_of(ctx, made).read_bytes()
    with named_failures(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{to.name}.", suffix=".tmp", dir=to.parent) as staging:
            for name, content in files.items():
                path = Path(staging) / "papers" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            (Path(staging) / "papers").replace(to)
