"""The tile of the index page about values of sources."""

from __future__ import annotations

from plinth.compute.context import Context
from plinth.report.workspace_index import StateTile
from plinth_jobs.index_tiles import AddedTile, beside, some


def _tile(ctx: Context) -> StateTile:
    """The verdicts on sources that were trained with and without (`plinth corpus source value … --train`)."""
    from plinth_lab.experiments.arms import PREFIX
    from plinth_lab.source_value.verdict import NOT_DECIDED

    published = [ref for ref in ctx.refs.all(PREFIX) if ref.asset.endswith("/effects")]
    stats = {ref.asset.split("/")[1]: ctx.refs.load(ref.digest).stats for ref in published}
    found = {name: str(own["value"]["verdict"]) for name, own in stats.items() if "value" in own}
    if not found:
        return StateTile(label="Source values", value="none", note="plinth corpus source value PATH")
    undecided = sorted(name for name, verdict in found.items() if verdict == NOT_DECIDED)
    shown = undecided[0] if undecided else sorted(found)[-1]
    return StateTile(
        label="Source values",
        value=f"{len(found) - len(undecided)} of {len(found)} decided",
        note=some([f"{name}: {verdict}" for name, verdict in sorted(found.items())]),
        standing="attention" if undecided else "good",
        href=beside(ctx, f"experiment-{shown}.html"),
    )


TILE = AddedTile("source_values", _tile)
