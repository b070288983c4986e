"""Compiled policies: parsed and checked rules, the columns that they read, and the license gate that runs first."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plinth.compute.context import Context
from plinth.corpus.annotate.base import ANNOTATORS, Available, annotator
from plinth.corpus.annotate.licence import LicenceParams, is_permitted
from plinth.corpus.policy.expressions import Expression, StatedRule, parse, shared_comparisons
from plinth.corpus.policy.parameters import Policy
from plinth.errors import RecipeError
from plinth.records import Frozen, Manifest
from plinth.storage.parts import DOCUMENT_SCHEMA, EDIT_TYPE, read_row
from plinth.storage.store import Store
from plinth_text.arrays import Bools

# License gate: required for every document in addition to its policy.
#
# A document is curated only where its license is permitted for training and every use that the recipe declares, and
# where the terms of its source allow these uses. Both are read from the document's own columns, never from a sidecar:
# the policy stage gives the reason, and the curate stage raises an error if such text still reaches it.

#: Reasons of the gate. A policy's rule of the same name adds to it and takes nothing away.
GATE_REASONS = LICENCE, TERMS = "licence", "terms"
#: Columns behind each reason, and the reason in words.
COLUMNS = {LICENCE: ("documents.licence",), TERMS: ("documents.extra", "documents.snapshot")}
TEXTS = {
    LICENCE: "the license is not in corpus.permitted_licences and corpus.licences_by_use",
    TERMS: "the source's terms forbid training or a use in corpus.uses",
}



class Rights(Frozen):
    """License gate of a recipe: the licenses that are permitted for each use, and the sources of a bucket whose terms
    forbid a required use.

    Args:
        licences: permitted lists and required uses, from the recipe.
        withheld: domain and snapshot of the sources whose terms forbid a required use.
    """

    licences: LicenceParams
    withheld: tuple[tuple[str, str], ...] = ()

    def within(self, documents: Manifest) -> Rights:
        """Return this license gate with the sources of the given documents whose terms forbid a required use. If two
        sources have the same domain and snapshot, their documents cannot be distinguished, so the stricter terms apply
        to both."""
        uses = ("train", *self.licences.uses)
        withheld = {
            (str(source.get("domain")), str(source.get("snapshot")))
            for source in documents.params.get("sources", ())
            if any(source.get("terms", {}).get(use) is not True for use in uses)
        }
        return Rights(licences=self.licences, withheld=tuple(sorted(withheld)))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons for which the license gate may drop a document."""
        return (LICENCE, TERMS) if self.withheld else (LICENCE,)

    @property
    def columns(self) -> frozenset[str]:
        """Document columns that the license gate reads."""
        return frozenset(column for reason in self.reasons for column in COLUMNS[reason])

    def stops(self, columns: Mapping[str, Any]) -> dict[str, Bools]:
        """Return, for each reason, a mask [rows] of the documents that the license gate drops. String columns may be
        dictionary-encoded."""
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
        """Return the license gate's rule for a reason as readable text, with the columns that the rule reads."""
        if reason not in self.reasons:
            return None
        return StatedRule(TEXTS[reason], frozenset(COLUMNS[reason]))


def _by_value(column: pa.Array, holds: Any) -> Bools:
    """Return a mask of the rows whose string satisfies a condition. The condition is evaluated once per distinct
    string."""
    if not pa.types.is_dictionary(column.type):
        column = pc.dictionary_encode(column)
    values = np.array([bool(holds(one)) for one in column.dictionary.to_pylist()], dtype=np.bool_)
    found: Bools = values[column.indices.to_numpy()] if len(values) else np.zeros(len(column), dtype=np.bool_)
    return found


# A policy ready to be evaluated: rules parsed and checked, and the columns that they read.
#
# The one place where rules meet columns: the policy stage, what-if, reviews and the measurement of gates all use it.

DOCUMENTS = "documents"
#: Document columns that a policy may read; never text.
DOCUMENT_COLUMNS = ("uri", "captured_at", "snapshot", "licence", "mime", "source_bytes")



@dataclass(frozen=True)
class CompiledPolicy:
    """Compiled policy: parsed rules, edits, and the license gate that runs before the rules.

    Args:
        rules: reason and expression of each rule, in order.
        edits: reason and span column of each edit.
        labels: string columns that the rules read.
        stored: reasons of rules whose results are published; the columns of these rules need not be read.
        rights: the license gate; None only if no document is judged.
        shared: comparisons that occur in several rules; each is evaluated once per batch.
    """

    rules: tuple[tuple[str, Expression], ...]
    edits: tuple[tuple[str, str], ...] = ()
    labels: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    rights: Rights | None = None
    shared: frozenset[ast.expr] = frozenset()

    @property
    def reasons(self) -> list[str]:
        """Return the names of the license gate's rules, followed by the names of the policy's rules in order. A name
        that occurs in both is listed once."""
        own = [reason for reason, _ in self.rules]
        gate = self.rights.reasons if self.rights else ()
        return [*(reason for reason in gate if reason not in own), *own]

    @property
    def sidecars(self) -> dict[str, list[str]]:
        """Columns to read from each sidecar, by sidecar name; the name `documents` is included."""
        names = {column for reason, rule in self.rules if reason not in self.stored for column in rule.columns}
        gate = self.rights.columns if self.rights else frozenset()
        return by_sidecar(names | gate | {column for _, column in self.edits})

    def fires(self, columns: Mapping[str, Any], rows: int, published: pa.Array | None = None) -> Bools:
        """Return a mask [rules, rows] of the documents that each rule matches.

        Args:
            columns: arrays of the columns in `sidecars`, by `sidecar.column`; strings may be dictionary-encoded.
            published: for each row, the names of the rules that matched in the published run; used for `stored`.
        """
        lines_of = {reason: index for index, reason in enumerate(self.reasons)}
        out = np.zeros((len(lines_of), rows), dtype=np.bool_)
        known: dict[ast.expr, Bools | None] = dict.fromkeys(self.shared)
        for reason, rule in self.rules:
            if reason not in self.stored:
                out[lines_of[reason]] = rule.evaluate(columns, rows, known)
        for reason, stopped in (self.rights.stops(columns) if self.rights else {}).items():
            out[lines_of[reason]] |= stopped
        if published is not None and self.stored:
            places = {reason: index for reason, index in lines_of.items() if reason in self.stored}
            names = published.flatten().dictionary_encode()
            lines = np.array([places.get(name, -1) for name in names.dictionary.to_pylist()], dtype=np.int64)
            at = lines[names.indices.to_numpy()] if len(lines) else np.empty(0, np.int64)
            parents = pc.list_parent_indices(published).to_numpy()
            out[at[at >= 0], parents[at >= 0]] = True
        return out

    def reusing(self, before: Policy) -> CompiledPolicy:
        """Return a copy of this policy that reuses the published results of rules that are the same in `before`. A rule
        whose reason is also a reason of the license gate is not reused, because the gate's lists may have changed."""
        have = {rule.reason: rule.drop for rule in before.rules if rule.reason not in GATE_REASONS}
        stored = frozenset(reason for reason, rule in self.rules if have.get(reason) == rule.text)
        same = self.edits == tuple((rule.reason, rule.spans) for rule in before.edits)
        return replace(self, stored=stored, edits=() if same else self.edits)

    def rule(self, reason: str) -> StatedRule | None:
        """Return the rule with the given reason, or None. If both the license gate and the policy have a rule with this
        reason, return the gate's rule."""
        stated = self.rights.rule(reason) if self.rights else None
        return stated or dict(self.rules).get(reason)


@lru_cache(maxsize=64)
def compile_policy(
    policy: Policy, annotators: tuple[Available, ...], where: str = "policy", rights: Rights | None = None
) -> CompiledPolicy:
    """Parse and check a policy. Results are cached, so a worker compiles a policy once.

    Args:
        annotators: annotators whose columns are available (`annotate.base.available`).
        where: name of the policy in error messages.
        rights: the license gate, evaluated before the rules.

    Raises:
        RecipeError: a rule cannot be parsed, a name is used twice, or a column does not exist.
    """
    schema = columns_of(annotators)
    names = [rule.reason for rule in policy.rules]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecipeError(f"{where}: more than one rule has the reason {twice[0]}", remedy="use unique reasons")
    parsed = [parse(rule.drop, schema, f"{where}.rules.{rule.reason}") for rule in policy.rules]
    trees, shared = shared_comparisons([rule.tree for rule in parsed])
    rules = tuple((name, replace(rule, tree=tree)) for name, rule, tree in zip(names, parsed, trees, strict=True))
    for edit in policy.edits:
        if schema.get(edit.spans) != EDIT_TYPE:
            spans = ", ".join(name for name, kind in schema.items() if kind == EDIT_TYPE) or "none"
            raise RecipeError(f"{where}.edits.{edit.reason}: {edit.spans!r} is not a span column", expected=spans)
    labels = {name for _, rule in rules for name in rule.columns if pa.types.is_string(schema[name])}
    labels |= {column for column in (rights.columns if rights else ()) if column != "documents.extra"}
    edits = tuple((edit.reason, edit.spans) for edit in policy.edits)
    return CompiledPolicy(rules, edits, frozenset(labels), rights=rights, shared=shared)


def columns_of(annotators: tuple[Available, ...]) -> dict[str, pa.DataType]:
    """Return all columns that a policy may use, with their Arrow types."""
    found = {f"{DOCUMENTS}.{name}": DOCUMENT_SCHEMA.field(name).type for name in DOCUMENT_COLUMNS}
    for one in annotators:
        name, schema = (one, annotator(one).schema) if isinstance(one, str) else one
        found |= {f"{name}.{field.name}": field.type for field in schema}
    return found


def by_sidecar(columns: frozenset[str] | set[str]) -> dict[str, list[str]]:
    """Group columns of the form `sidecar.column` by sidecar. Return the sorted column names of each sidecar."""
    found: dict[str, list[str]] = {}
    for name in sorted(columns):
        sidecar, _, column = name.partition(".")
        found.setdefault(sidecar, []).append(column)
    return found


def annotations_of(ctx: Context, bucket: str, documents: Manifest) -> dict[str, Manifest]:
    """Return the sidecars that annotators wrote for these documents, by annotator."""
    named = ((ref.asset.removeprefix(f"{bucket}/"), ref.digest) for ref in ctx.refs.all(bucket))
    found = {annotator: ctx.refs.load(digest) for annotator, digest in named if annotator in ANNOTATORS}
    return {one: made for one, made in found.items() if made.inputs.get(f"{bucket}/documents") == documents.digest}


def rule_values(
    store: Store, rule: StatedRule, documents: Manifest, annotations: Mapping[str, Manifest], part: int, row: int
) -> dict[str, Any]:
    """Return the values of the columns that a rule reads, for one row of a part of documents."""
    found: dict[str, Any] = {}
    for sidecar, columns in by_sidecar(rule.columns).items():
        made = documents if sidecar == DOCUMENTS else annotations[sidecar]
        values = read_row(store, made.named("part-")[part], row, columns)
        found |= {f"{sidecar}.{column}": values[column] for column in columns}
    return found
