"""A checkpoint that no signed history released: marks on it, and a card that says what it is not."""

from __future__ import annotations

from pathlib import Path

from plinth.compute.context import Context
from plinth.errors import GateError, PlinthError
from plinth.provenance.statements import chain
from plinth_registry import taint

#: Marks the papers and the card of a model that no signed history released.
UNRELEASED = "UNRELEASED"
CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- plinth
- {status}
---

# {name}

**{status}**: no signed history released this model. It passed no gate and nobody approved it. It has no papers: nothing
about its text, its scores or its licences is stated here.
"""


def require_untainted(ctx: Context, run_id: str, inputs: tuple[str, ...]) -> None:
    """Refuse the checkpoint of a run that is marked, or made of what is.

    Args:
        inputs: digests of the manifests that the run reads.

    Raises:
        GateError: it is tainted.
        LineageError: a manifest of the ancestry is absent or has changed, so that nobody can tell.
    """
    found = [mark for digest in inputs for mark in taint.marks_on(ctx, chain(ctx.refs, ctx.refs.load(digest)))]
    own = (one for one in taint.records(ctx) if _is_of(ctx, one, run_id))
    found += [f"{one.target[:12]} is marked by {one.by}: {one.reason}" for one in own]
    if found:
        raise GateError(
            f"run {run_id} is tainted",
            found="; ".join(dict.fromkeys(found)),
            remedy="export another run: no option exports what is tainted",
        )


def add_card(directory: Path, name: str) -> None:
    """Write the card of an unreleased model."""
    (directory / "README.md").write_text(CARD.format(name=name, status=UNRELEASED))


def _is_of(ctx: Context, mark: taint.Taint, run_id: str) -> bool:
    """Whether a mark is on a manifest of this run or of one of its checkpoints."""
    try:
        return mark.kind == "manifest" and ctx.refs.load(mark.target).stats.get("run_id") == run_id
    except PlinthError:
        return False

