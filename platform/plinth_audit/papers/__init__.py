"""Release documents (model card, data card and others), computed deterministically from signed evidence.

    facts             statements in the documents, each with the digest of its evidence
    gather            facts from verified provenance, its manifests and attestations; text by domain
    cards             model card and data card in Markdown
    elements          minimum elements of a bill of materials for AI, with their evidence
    bom               bill of materials in CycloneDX 1.7
    spdx              bill of materials in SPDX 3.0.1
    provider          signed declaration of the provider; the European Union's public summary of training content
    documentation     the European Union's Model Documentation Form for general-purpose AI models
    signed            documents of a candidate or release, signed by compliance, and their copy in an export

The documents contain no paths and no free text, except text that a person signed. Their only times are those of signed
statements. Of the recipe, they contain the parameters of the model and of its training.

This package also defines the commands `plinth release papers` and `plinth release provider`, which import the other
modules when they run.
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

#: Names of the documents on the command line.
SHOWN = {
    "model-card": "README.md",
    "data-card": "papers/DATA_CARD.md",
    "bom": "papers/bom.cdx.json",
    "spdx": "papers/sbom.spdx.json",
    "summary": "papers/TRAINING_SUMMARY.md",
    "documentation": "papers/MODEL_DOCUMENTATION.md",
}


@click.command(
    short_help="Show, write or sign the cards of a candidate or release.",
    epilog=examples(
        "plinth release papers                                 for the newest candidate",
        "plinth release papers champion --show summary",
        "plinth release papers demo/2 --to papers",
        "plinth release papers demo/2 --sign --reason 'read against the contracts'",
    ),
)
@click.argument("target", default="candidate")
@click.option("--show", type=click.Choice(list(SHOWN)), help="Print one document.")
@click.option(
    "--to", type=click.Path(path_type=Path, file_okay=False), help="Write all documents to a new or empty folder."
)
@click.option("--sign", is_flag=True, help="Sign the documents with the compliance key.")
@click.option("--reason", default="", metavar="TEXT", help="Reason for signing, as a sentence.")
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
    """Create the documents of TARGET: cards, bill of materials, summary of training content, model documentation.

    TARGET is `candidate` (the newest), the version of a candidate, `champion`, `canary`, NAME/VERSION or NAME@PLACE.
    The model is verified first. An export of the model contains the same documents. --sign signs the documents with the
    compliance key, which the gate policy can require before an export (`papers: signed`).
    """
    from plinth.errors import MissingError
    from plinth_audit.papers import signed
    from plinth_jobs.cli import output

    ctx = settings.context()
    made = _made(settings, ctx, target)
    if sign:
        signed.sign(ctx, made, reason, owner)
    if to is not None:
        _write(ctx, made, to)
    if show is not None:
        if SHOWN[show] not in made.files:
            raise MissingError(f"no document {show}", found="no signed evidence with a time, which SPDX requires")
        output.line(made.files[SHOWN[show]].decode(), end="")
        return
    known = {"name": made.subject.name, "checkpoint": made.checkpoint, "released": made.subject.released is not None}
    known["rolled back"] = made.subject.rolled_back
    by = signed.signed_by(ctx, made)
    if as_json:
        output.emit_json({**known, "signed_by": by, "papers": made.digests, "to": to and str(to)})
        return
    output.facts({**known, "signed as compliance": ", ".join(by) or "not signed"})
    sizes = ((name, output.size(len(made.files[name])), digest) for name, digest in made.digests.items())
    output.table(("paper", "size", "SHA-256"), sizes)


@click.command(
    "provider",
    short_help="Sign the provider declaration of a release.",
    epilog=examples("plinth release provider provider.yaml", "plinth release provider"),
)
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True), required=False)
@owner_option
@shared
@recipe_option
@json_option
def provider_command(settings: Settings, file: Path | None, owner: str | None, as_json: bool) -> None:
    """Sign the provider declaration in FILE; without FILE, show the current declaration.

    The compliance key signs the declaration. From then on, the documents of the release state the provider, the dates
    of placement on the market, and information on the training data that evidence cannot show.
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
            return output.emit_json(None) if as_json else output.say(f"{release} has no provider declaration.")
        found = known
    stated = found.statement.model_dump(mode="json", exclude_defaults=True)
    if as_json:
        return output.emit_json({**stated, "by": found.by, "at": found.at})
    output.facts({**{name: str(value) for name, value in stated.items()}, "signed": f"{found.at} by {found.by}"})
    return None


def _made(settings: Settings, ctx: Context, target: str) -> MadePapers:
    """Return the documents of a release (read from the signed history) or of a candidate (read from MLflow).

    If a candidate was released, the documents are those of its release.
    """
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
    """Write the release documents to a folder atomically, and the signed statement about them if it exists.

    Raises:
        WorkspaceError: the folder is not empty.
    """
    import tempfile

    from plinth.errors import WorkspaceError
    from plinth.storage.atomic import named_failures
    from plinth_audit.papers import signed

    if to.exists() and any(to.iterdir()):
        raise WorkspaceError(f"{to} is not empty", expected="a new or empty folder", remedy="choose another one")
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
