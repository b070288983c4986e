"""Why a rule fired on one document: the values that it read, from stored sidecars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plinth.compute.context import Context
from plinth.corpus.annotate.registry import ANNOTATORS
from plinth.corpus.policy.compiled_policy import DOCUMENTS, by_sidecar
from plinth.corpus.policy.expressions import StatedRule
from plinth.records import Manifest
from plinth.storage.parts import read_row
from plinth.storage.store import Store


def annotations_of(ctx: Context, bucket: str, documents: Manifest) -> dict[str, Manifest]:
    """Sidecars of annotators that belong to these documents, by annotator."""
    named = ((ref.asset.removeprefix(f"{bucket}/"), ref.digest) for ref in ctx.refs.all(bucket))
    found = {annotator: ctx.refs.load(digest) for annotator, digest in named if annotator in ANNOTATORS}
    return {one: made for one, made in found.items() if made.inputs.get(f"{bucket}/documents") == documents.digest}


def rule_values(
    store: Store, rule: StatedRule, documents: Manifest, annotations: Mapping[str, Manifest], part: int, row: int
) -> dict[str, Any]:
    """The values of the columns that a rule reads, of one row of a part."""
    found: dict[str, Any] = {}
    for sidecar, columns in by_sidecar(rule.columns).items():
        made = documents if sidecar == DOCUMENTS else annotations[sidecar]
        values = read_row(store, made.named("part-")[part], row, columns)
        found |= {f"{sidecar}.{column}": values[column] for column in columns}
    return found
