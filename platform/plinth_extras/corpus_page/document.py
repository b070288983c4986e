"""One document: a window of its text with the spans that were cut, its rules, columns, duplicates, and training steps.

A document is named by its place in the ledger (bucket, part, row), so that only its row groups are read. Personal data
is never part of the page: its spans show only the length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.corpus import verdicts
from plinth.corpus.annotate.base import ANNOTATORS
from plinth.corpus.annotate.pii import pii
from plinth.corpus.dedup.sorted_runs import iter_rows
from plinth.corpus.policy.compiled_policy import COLUMNS, TEXTS, compile_policy
from plinth.corpus.policy.parameters import EditRule, Policy
from plinth.corpus.policy.policy import published
from plinth.errors import IntegrityError, MissingError, RecipeError
from plinth.provenance import document_rows
from plinth.provenance.ledger_columns import BASE, JOIN
from plinth.records import Manifest, Part
from plinth.storage.parts import read_row
from plinth_extras.corpus_page.ledger import ROW_COLUMNS, OpenLedger
from plinth_extras.corpus_page.view import quoted
from plinth_extras.corpus_page.whatif import annotators, ledger_column

#: Characters of text on one page, and of a preview.
WINDOW, PREVIEW = 60_000, 6_000
MAX_DUPLICATES: Final = 50
#: Stages whose edits a document has even if it was dropped before they applied.
_EDITING: Final = ("lines", "substring", "contamination")

Place = tuple[str, int, int]  # bucket, number of the part, row


@dataclass(frozen=True)
class Segment:
    """Piece of a text. `reason` is the edit that cuts it, or empty; the text of personal data is not included."""

    text: str
    reason: str = ""
    replacement: str = ""


@dataclass(frozen=True)
class DocumentWindow:
    """Window of a document's text, and the characters cut in the whole document by reason."""

    segments: tuple[Segment, ...]
    start: int
    stop: int
    characters: int
    cut: Mapping[str, int]


@dataclass(frozen=True)
class FiredRule:
    """Rule that fired on a document, with the values that it read."""

    reason: str
    text: str
    values: Mapping[str, Any]


class DocumentReader:
    """Documents of an open ledger. The manifests are those from which the ledger was derived."""

    def __init__(self, ctx: Context, ledger: OpenLedger) -> None:
        self.ctx, self.ledger = ctx, ledger

    def place(self, id_: str, hint: str) -> Place:
        """Return the place of a document. `hint` is its place in the address, which may be out of date.

        Raises:
            MissingError: no document has this id.
        """
        bucket, _, rest = hint.partition(":")
        part, _, row = rest.partition(":")
        if part.isdecimal() and row.isdecimal() and len(part) < 9 and len(row) < 12:
            at = next(
                (i for i, one in enumerate(self.ledger.parts) if (one.bucket, one.number) == (bucket, int(part))), -1
            )
            if at >= 0 and self.ledger.whole(at, int(row)).get("id") == id_:
                return bucket, int(part), int(row)
        found = self.ledger.find([id_]).get(id_)
        if found is None:
            raise MissingError(
                f"no document {id_!r}", expected="the id of a document in the published ledger",
                remedy="search for the document by its address or its text",
            )  # fmt: skip
        place: Place = found["at"]
        return place

    def manifest(self, asset: str) -> Manifest | None:
        """Return the manifest of an asset from which the ledger was derived, or None."""
        digest = self.ledger.made.inputs.get(asset)
        return self.ctx.refs.load(digest) if digest else None

    def part(self, bucket: str, number: int) -> Part:
        """Return a bucket's part with documents."""
        made = self.manifest(f"{bucket}/documents")
        parts = made.named("part-") if made else ()
        if number >= len(parts):
            raise IntegrityError(
                f"the ledger does not match the documents of {bucket}", remedy="plinth run --select ledger"
            )
        return parts[number]

    def policy(self, bucket: str) -> Policy:
        """Return the policy of a bucket's verdicts; empty if another version of Plinth wrote it."""
        made = self.manifest(f"{bucket}/policy")
        try:
            return published(made)[0] if made else Policy()
        except ValidationError:
            return Policy()

    def window(self, place: Place, start: int, length: int) -> DocumentWindow:
        """Return a window of a document's text, in code points, with its edits.

        Raises:
            MissingError, IntegrityError: the part with the text is missing or damaged.
        """
        bucket, number, row = place
        (batch,) = iter_rows(self.ctx.store, self.part(bucket, number), ["text"], np.array([row]))
        column = batch.column("text")
        characters = int(pc.utf8_length(column)[0].as_py())
        start = min(start, max(0, characters - 1))
        text: str = pc.utf8_slice_codeunits(column, start, start + length)[0].as_py()
        edits, personal = self.edits(place), {rule.reason for rule in self.personal_edits(bucket)}
        cut: dict[str, int] = {}
        for edit in edits:
            cut[edit["reason"]] = cut.get(edit["reason"], 0) + edit["end_cp"] - edit["start_cp"]
        return DocumentWindow(tuple(segments(text, start, edits, personal)), start, start + len(text), characters, cut)

    def personal_edits(self, bucket: str) -> list[EditRule]:
        """Return the edits that remove personal data: those of a bucket's policy, and for every annotation of personal
        data without such an edit, one with the annotation's name. So text is hidden even if the policy only counts
        personal data, or another version of Plinth wrote it."""
        found = [rule for rule in self.policy(bucket).edits if rule.spans.startswith("pii")]
        sidecars = (name.partition("/")[2] for name in self.ledger.made.inputs if name.startswith(f"{bucket}/pii"))
        spans = sorted({f"{name}.spans" for name in sidecars if _finds_personal_data(name)})
        edited = {rule.spans for rule in found}
        return found + [EditRule(reason=one.partition(".")[0], spans=one) for one in spans if one not in edited]

    def personal(self, bucket: str, number: int, rows: Sequence[int]) -> dict[int, list[dict[str, Any]]]:
        """Return the spans of personal data in documents of a part, by row, whether a document was kept or not."""
        ordered = sorted(set(rows))
        found: dict[int, list[dict[str, Any]]] = {row: [] for row in ordered}
        for rule in self.personal_edits(bucket):
            sidecar, _, column = rule.spans.partition(".")
            made = self.manifest(f"{bucket}/{sidecar}")
            if made is None:
                continue
            batches = iter_rows(self.ctx.store, made.named("part-")[number], [column], np.array(ordered))
            spans = (one for batch in batches for one in batch.column(column).to_pylist())
            for row, own in zip(ordered, spans, strict=True):
                found[row] += [{**span, "reason": rule.reason} for span in own or ()]
        return found

    def edits(self, place: Place) -> list[dict[str, Any]]:
        """Return the edits of a document in order: those of its verdict, or of a dropped document those that each stage
        found. Personal data has spans of its own, which no other edit overlaps."""
        bucket, number, row = place
        hidden, rules = self.personal(bucket, number, [row])[row], self.policy(bucket).edits
        found = self._row(f"{bucket}/verdicts", "part-", place, "edits")
        if not found:
            found = list[dict[str, Any]]()
            for stage in _EDITING:
                found += self._row(verdicts.ASSETS[stage], f"{bucket}/part-", place, "edits") or []
            for rule in rules:
                sidecar, _, column = rule.spans.partition(".")
                spans = self._row(f"{bucket}/{sidecar}", "part-", place, column) or []
                found += [{**span, "reason": rule.reason} for span in spans]
        personal = {rule.reason for rule in self.personal_edits(bucket)}
        others = [one for edit in found if edit["reason"] not in personal for one in _outside(edit, hidden)]
        return sorted([*hidden, *others], key=lambda edit: (edit["start_cp"], edit["end_cp"]))

    def _row(self, asset: str, stem: str, place: Place, column: str) -> Any:
        made = self.manifest(asset)
        parts = made.named(stem) if made else ()
        return read_row(self.ctx.store, parts[place[1]], place[2], [column])[column] if place[1] < len(parts) else None

    def columns(self, place: Place) -> dict[str, Any]:
        """Return the document's row in the ledger."""
        return self.ledger.whole(self.ledger.number(*place[:2]), place[2])

    def rules(self, place: Place, row: Mapping[str, Any]) -> list[FiredRule]:
        """Return the rules that fired on a document, in order."""
        policy = self.policy(place[0])
        stated = {rule.reason: rule.drop for rule in policy.rules}
        found = []
        for reason in row["fired"]:
            text, names = stated.get(reason, ""), tuple[str, ...]()
            if reason in TEXTS and reason not in stated:
                text, names = TEXTS[reason], COLUMNS[reason]
            elif text:
                names = self._read(place[0], policy, reason)
            values = {name: row.get(ledger_column(name)) for name in names if ledger_column(name) in row}
            found.append(FiredRule(reason, text, values))
        return found

    def _read(self, bucket: str, policy: Policy, reason: str) -> tuple[str, ...]:
        """Return the columns that a rule reads; none if this version cannot parse the policy."""
        try:
            rule = compile_policy(policy, annotators(self.ledger, (bucket,))).rule(reason)
        except RecipeError:
            return ()
        return tuple(sorted(rule.columns)) if rule else ()

    def duplicates(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return other documents of a document's cluster, at most `MAX_DUPLICATES`."""
        if not row["cluster"] or (row["cluster_size"] or 0) < 2:
            return []
        wanted = [name for name in ROW_COLUMNS if name in self.ledger.columns]
        sql = f"select {', '.join(map(quoted, wanted))} from {self.ledger.source} where cluster = ? and id <> ? limit ?"
        rows = self.ledger.query(sql, [row["cluster"], row["id"], MAX_DUPLICATES])
        return [dict(zip(wanted, one, strict=True)) for one in rows]

    def training(self, row: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the document's spans in the shards, and the runs whose steps read it."""
        shards = self.manifest(f"{row['bucket']}/shards")
        if shards is None or row["decision"] != "train":
            return [], []
        tokens = document_rows.tokens(self.ctx, shards, row["id"])
        return tokens, document_rows.runs(self.ctx, row["bucket"], row["id"])


def segments(text: str, start: int, edits: Sequence[Mapping[str, Any]], personal: set[str]) -> Iterator[Segment]:
    """Yield the pieces of a window of text that begins at code point `start`, cut at the edits. Overlapping edits are
    drawn once, the first in full."""
    at, stop = start, start + len(text)
    for edit in edits:
        first, last = max(edit["start_cp"], at), min(edit["end_cp"], stop)
        if last <= first:
            continue
        if first > at:
            yield Segment(text[at - start : first - start])
        hidden = f"{last - first} characters of personal data"
        shown = hidden if edit["reason"] in personal else text[first - start : last - start]
        yield Segment(shown, edit["reason"], edit["replacement"])
        at = last
    if at < stop:
        yield Segment(text[at - start :])


def _finds_personal_data(name: str) -> bool:
    return name in ANNOTATORS and ANNOTATORS[name].schema.equals(pii.SCHEMA)


def _outside(edit: Mapping[str, Any], hidden: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the pieces of an edit that do not overlap hidden spans."""
    pieces = [(edit["start_cp"], edit["end_cp"])]
    for span in hidden:
        halves = (
            half
            for start, end in pieces
            for half in ((start, min(end, span["start_cp"])), (max(start, span["end_cp"]), end))
        )
        pieces = [(start, end) for start, end in halves if start < end]
    yield from ({**edit, "start_cp": start, "end_cp": end} for start, end in pieces)


def grouped(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the columns of a ledger row by the sidecar that they come from; the fixed columns are under `document`."""
    found: dict[str, dict[str, Any]] = {"document": {}}
    for name, value in row.items():
        sidecar, separator, column = name.partition(JOIN)
        if name in BASE.names or not separator:
            found["document"][name] = value
        else:
            found.setdefault(sidecar, {})[column] = value
    return found
