"""`plinth corpus takedown report`: the signed proof of a removal, and what still holds what was removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from plinth.text.plural import counted
from plinth_jobs.cli.options import Settings, examples, json_option, recipe_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.records import Manifest
    from plinth_audit.takedown.measured import TakedownMeasure
    from plinth_audit.takedown.report import RemovalProof


@click.command(
    epilog=examples(
        "plinth corpus takedown report",
        "plinth corpus takedown report 3 --checkpoint 8f3a91c2 --checkpoint 51d0e7aa",
        "plinth corpus takedown report 3 --json | jq '.remains'",
    )
)
@click.argument("entries", nargs=-1, type=click.IntRange(min=1))
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    help="Digest of a checkpoint to measure extraction and exposure of the removed text on; may be given again.",
)
@click.option(
    "--without-retraining",
    is_flag=True,
    help="Sign although trained models are stale or a run is unknown; each is listed as holding it.",
)
@shared
@recipe_option
@json_option
def report(
    settings: Settings, entries: tuple[int, ...], checkpoints: tuple[str, ...], without_retraining: bool, as_json: bool
) -> None:
    """Prove that the corpus is free of what ENTRIES took (default: all), and list what still holds it.

    Every published document is checked against every rule, near duplicates included. When there is no hit, and
    `plinth status` shows everything that reads documents up to date, the report is signed by `compliance` and written
    with its pages below the workspace's `takedown/`. Until then the command names all that is stale or unknown.
    """
    from plinth_audit.takedown import report as reports
    from plinth_audit.takedown import states as takedown
    from plinth_audit.takedown.held_models import models_of, remaining_models
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
    output.heading(f"{what}; {counted(len(content['rebuilt']), 'asset')} rebuilt without it; signed in {folder}")
    rows = [(one["what"], one["state"], one["where"], one["until"]) for one in content["remains"]]
    output.table(("what still holds it", "state", "where", "until"), rows)
    for one in content["measured"]:
        output.say(output.plain_markup(_line(one)))


def _measured(ctx: Context, proof: RemovalProof, checkpoints: tuple[str, ...]) -> list[TakedownMeasure]:
    """The checkpoints on the removed text.

    Raises:
        MissingError: no such checkpoint, or the text is no longer in the store.
    """
    from plinth.errors import MissingError
    from plinth_audit.takedown import measured

    if not checkpoints:
        return []
    texts, heldout = measured.texts_of(ctx, proof.found), measured.heldout_texts(ctx)
    if not texts:
        raise MissingError(
            "the removed text is no longer in the store",
            expected="an earlier snapshot that holds it",
            remedy="ask for the report without --checkpoint",
        )
    found = [_checkpoint(ctx, digest) for digest in checkpoints]
    return [measured.measure(ctx, made, texts, heldout, read_it=_read(proof, made)) for made in found]


def _checkpoint(ctx: Context, digest: str) -> Manifest:
    from plinth.errors import MissingError
    from plinth.storage.state import resolve

    made = resolve(ctx.refs, digest)
    if made.asset != "checkpoint":
        raise MissingError(f"{digest} is no checkpoint", found=made.asset, remedy="`plinth status` lists digests")
    return made


def _read(proof: RemovalProof, made: Manifest) -> bool:
    return any(made.digest in run.digests for run in proof.runs)


def _line(one: dict[str, Any]) -> str:
    from plinth_audit.takedown.page import model_cells

    checkpoint, step, read_it, documents, extracted, control, exposure, p = model_cells(one)
    return (
        f"checkpoint {checkpoint} ({step}; read it: {read_it}): of {documents} documents extracted {extracted} "
        f"(held out {control}); exposure {exposure} bits, p {p}"
    )
