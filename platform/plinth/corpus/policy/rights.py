"""The licence gate: what a document needs beside its policy, whatever the policy's rules say.

A document is curated only where its licence is permitted for training and every use that the recipe declares, and
where the terms of its source allow these uses. Both are read from the document's own columns, never from a sidecar:
the policy stage gives the reason, and the curate stage refuses text that reaches it all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.corpus.annotate.licence import LicenceParams, is_permitted
from plinth.corpus.policy.expressions import StatedRule
from plinth.records import Frozen, Manifest
from plinth_text.arrays import Bools

#: Reasons of the gate. A policy's rule of the same name adds to it and takes nothing away.
GATE_REASONS = LICENCE, TERMS = "licence", "terms"
#: Columns behind each reason, and the reason in words.
COLUMNS = {LICENCE: ("documents.licence",), TERMS: ("documents.extra", "documents.snapshot")}
TEXTS = {
    LICENCE: "the licence is not among corpus.permitted_licences and corpus.licences_by_use",
    TERMS: "the source's terms forbid training or a use in corpus.uses",
}



class Rights(Frozen):
    """Licences that are permitted by use, and sources of a bucket whose terms forbid a use.

    Args:
        licences: the permitted lists and the uses, as the recipe has them.
        withheld: domain and snapshot of the sources whose terms forbid one of them.
    """

    licences: LicenceParams
    withheld: tuple[tuple[str, str], ...] = ()

    def within(self, documents: Manifest) -> Rights:
        """The same, with the sources of these documents whose terms forbid a use. Documents of two sources that share
        domain and snapshot cannot be told apart: the stricter terms hold for both."""
        uses = ("train", *self.licences.uses)
        withheld = {
            (str(source.get("domain")), str(source.get("snapshot")))
            for source in documents.params.get("sources", ())
            if any(source.get("terms", {}).get(use) is not True for use in uses)
        }
        return Rights(licences=self.licences, withheld=tuple(sorted(withheld)))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons that it may give."""
        return (LICENCE, TERMS) if self.withheld else (LICENCE,)

    @property
    def columns(self) -> frozenset[str]:
        """Columns that it reads."""
        return frozenset(column for reason in self.reasons for column in COLUMNS[reason])

    def stops(self, columns: Mapping[str, Any]) -> dict[str, Bools]:
        """By reason, the documents that may not be curated, [rows] each; strings may be dictionaries."""
        found = {LICENCE: _by_value(columns["documents.licence"], lambda one: not is_permitted(one, self.licences))}
        if self.withheld:
            found[TERMS] = self._withheld(columns)
        return found

    def _withheld(self, columns: Mapping[str, Any]) -> Bools:
        snapshots = {snapshot for _, snapshot in self.withheld}
        mask = _by_value(columns["documents.snapshot"], lambda one: one in snapshots)
        at = np.flatnonzero(mask)
        some = [columns[name].take(pa.array(at)).to_pylist() for name in COLUMNS[TERMS]]
        pairs = set(self.withheld)
        mask[at] = [(json.loads(extra).get("domain"), snapshot) in pairs for extra, snapshot in zip(*some, strict=True)]
        return mask

    def rule(self, reason: str) -> StatedRule | None:
        """The gate's part of a reason as a rule that people read: its text, and the columns behind it."""
        if reason not in self.reasons:
            return None
        return StatedRule(TEXTS[reason], frozenset(COLUMNS[reason]))


def _by_value(column: pa.Array, holds: Any) -> Bools:
    """Where a condition on a string holds, [rows]; asked once for each distinct value."""
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    values = np.array([bool(holds(one)) for one in column.dictionary.to_pylist()], dtype=np.bool_)
    found: Bools = values[column.indices.to_numpy()] if len(values) else np.zeros(len(column), dtype=np.bool_)
    return found
