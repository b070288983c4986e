"""`takedown/index`: the rows of the ledger by id, address, domain, licence and cluster."""

from __future__ import annotations

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.provenance.ledger.ledger import ASSET as LEDGER
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth_assets.framework.expectations import Suite, equal_columns, rows_between
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.stage import Inputs, Say, Stage, Stages
from plinth_audit.takedown import index


def stages(recipe: Recipe) -> list[Stage]:
    """One index over the whole ledger."""
    return [
        Stage(
            asset=index.ASSET,
            deps=(LEDGER,),
            make=_make,
            version=index.VERSION,
            params={},
            libraries=fingerprint.UNICODE,
            group="report",
            description="Finds the documents of an address, a domain, a licence or an id (`plinth corpus takedown "
            "find`).",
            owner=shared_owner(recipe),
            kinds=("arrow",),
            schema=index.KEYS,
            suite=_suite,
        )
    ]


def _make(ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return index.run(ctx, inputs[LEDGER])


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    """Every document of the ledger has its keys."""
    planted = int(inputs[LEDGER].stats.get("planted", 0))
    row = {"documents": made.stats["documents"], "ledger": inputs[LEDGER].stats["documents"] + planted}
    return Suite("takedown-index", [row], [rows_between(1), equal_columns("documents", "ledger")])


STAGES = Stages(name="takedown", stages=stages)
