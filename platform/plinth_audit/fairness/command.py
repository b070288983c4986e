"""Command `plinth model fairness`, which imports the other modules of the package when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from plinth_jobs.cli.options import Settings, examples, json_option, shared

if TYPE_CHECKING:
    from plinth.compute.context import Context
    from plinth.records import Manifest


@click.command(
    short_help="Show a model's bias between groups, its toxicity, and how both changed since an earlier measurement.",
    epilog=examples(
        "plinth model fairness",
        "plinth model fairness --against 3fa9c1d2e0b4",
        "plinth model fairness --json | jq '.attributes | map_values(.p_adjusted)'",
    ),
)
@shared
@click.option("--against", metavar="DIGEST", help="Digest of an earlier measurement on the same text pairs.")
@json_option
def fairness(settings: Settings, against: str | None, as_json: bool) -> None:
    """Show the checkpoint's bias by attribute, in bits, with 95% intervals.

    With --against, show the change of bias since an earlier measurement, with its upper bound.
    """
    from plinth_audit.fairness import job
    from plinth_jobs.cli import output

    ctx = settings.context()
    made = ctx.refs.current(job.ASSET)
    found = _drift(ctx, made, against) if against else made.stats
    if as_json:
        output.emit_json({"digest": made.digest, **found})
        return
    if against:
        rows = {name: one["bias"] | one for name, one in found["drift"].items()}
        _show("drift: increase of the bias toward group a, in bits", rows)
    else:
        _show("bias toward group a, bits", found["attributes"])
    _show_groups(made.stats["attributes"])
    if found["toxicity"]:
        output.facts({"toxicity": _line(found["toxicity"] if against else found["toxicity"]["score"])})
    elif against:
        output.say("Toxicity is not compared, because one of the measurements has no judged continuations.")
    since = f" against {found['against'][:12]}" if against else ""
    output.say(f"fairness {made.digest[:12]}{since}")


def _drift(ctx: Context, made: Manifest, against: str) -> dict[str, Any]:
    """Return the change of bias by attribute between two measurements.

    The change of toxicity is included if both measurements scored toxicity.

    Raises:
        MissingError: the digest does not belong to a measurement.
    """
    from plinth.errors import MissingError
    from plinth.storage.parts import read_table
    from plinth.storage.state import resolve
    from plinth_audit.fairness import job, pairs

    earlier = resolve(ctx.refs, against)
    if earlier.asset != job.ASSET:
        raise MissingError(
            f"{against} is not a bias measurement",
            found=f"the asset {earlier.asset}",
            expected=f"a manifest of {job.ASSET}",
            remedy="use the digest that `plinth model fairness` shows, or a digest from the asset's history",
        )

    def tables(name: str) -> list[Any]:
        return [read_table(ctx.store, part) for one in (made, earlier) for part in one.named(name)]

    judged = tables(job.CONTINUATIONS)
    return {
        "against": earlier.digest,
        "drift": pairs.drift(*tables(job.PAIRS)),
        "toxicity": pairs.toxicity_drift(*judged) if len(judged) == 2 else None,
    }


def _show(title: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    from plinth_jobs.cli import output

    output.heading(title)
    columns = ("attribute", "mean", "95% interval", "corrected p", "found", "smallest effect", "pairs", "templates")
    cells = (
        (name, f"{one['value']:+.3f}", f"{one['low']:+.3f} to {one['high']:+.3f}",
         f"{one['p_adjusted']:.3g}", "yes" if one["found"] else "no",
         "-" if one["smallest_effect"] is None else f"{one['smallest_effect']:.3f}", one["n"], one["clusters"])
        for name, one in rows.items()
    )  # fmt: skip
    output.table(columns, cells, right=columns[1:])


def _show_groups(attributes: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the names of the groups a and b of each attribute. Measurements by earlier versions do not record these
    names."""
    from plinth_jobs.cli import output

    output.facts(
        {name: f"a: {one['group_a']}; b: {one['group_b']}" for name, one in attributes.items() if "group_a" in one}
    )


def _line(one: Mapping[str, Any]) -> str:
    return f"{one['value']:+.4f}, {one['low']:+.4f} to {one['high']:+.4f}, n {one['n']}"
