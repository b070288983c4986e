"""All facts about one document as a nested dict, from its source to the checkpoints that read it.

Only published assets are read. A section is present if its asset is published. An asset that was not derived from the
published documents is listed under `stale` instead.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from typing import Any

import pyarrow.compute as pc
from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.corpus import verdicts
from plinth.corpus.canaries import BUCKET as CANARIES
from plinth.corpus.llm.rewriting import SOURCES
from plinth.corpus.policy.compiled_policy import COLUMNS, TEXTS
from plinth.corpus.policy.expressions import column_name, syntax
from plinth.corpus.policy.parameters import Policy
from plinth.corpus.policy.policy import published
from plinth.corpus.protected import protected
from plinth.corpus.sources.files import REWRITE
from plinth.corpus.sources.parameters import source_of
from plinth.errors import MissingError
from plinth.provenance import document_rows
from plinth.provenance.document_rows import DocumentPlace
from plinth.records import Part
from plinth.storage.parts import read_row, read_table

PREVIEW_CHARACTERS = 240
#: Maximum number of characters shown of removed text, of a protected item, and of the text shared with it.
CUT_CHARACTERS = 120
MOST_EDITS = 100
LEFT_OUT = "left out at random: no copy was planted, and no step read it"

#: Assets of a bucket that are not scores. They have their own sections, or no readable row per document.
NO_SCORES = frozenset(
    {"documents", "sources", "minhash", "policy", "verdicts", "curated", "lines", "substring", "semantic"}
    | {"shards", "packed", "trace_index", "teacher", "sampled"}
)
#: Stages with a section of their own, in addition to the duplicates.
_OWN_SECTION = frozenset({"holdout", "contamination", "protected"})


def explain_document(ctx: Context, target: str) -> dict[str, Any]:
    """Return all facts about a document, by id (32 hexadecimal digits), URI, or the beginning of its text.

    Keys: `id`, `uri`, `bucket`, `status` (`train`, `heldout`, `drop`, `reject`, `canary` or `undecided`), `reason`,
    `source` (facts and terms of its source), `derived_from` (for a rewritten document, its sources with their address,
    license and verdict), `document`, `scores` (annotator -> column -> value), `policy`, `rules`
    (every rule that fired: its expression, and the values that it read), `dedup` (stages by name, with members of
    clusters), `holdout`, `contamination`, `protected` (set and item, and the words that item and document share),
    `verdict`, `edits` (removed text and reason; for personal data only the length), `curated`, `tokens`, `training`
    (run -> steps and checkpoints), `stale`, `also` (other rows with the same URI or text).

    Raises:
        MissingError: no document, reject or canary has this id, URI or beginning. The error names similar URIs.
    """
    planted = document_rows.planted(ctx, target)
    if planted is not None:
        return _canary(ctx, planted)
    out = document_rows.left_out(ctx, target)
    if out is not None:
        return _left_out(target, out)
    place, *others = _places(ctx, target)
    trace = _reject(ctx, place) if place.rejected else _document(ctx, place)
    if others:
        trace["also"] = [_name(ctx, other) for other in others]
    return trace


def _places(ctx: Context, target: str) -> list[DocumentPlace]:
    try:
        return document_rows.locate(ctx, target)
    except MissingError:
        found = document_rows.by_text(ctx, target) if len(target.split()) > 1 else []
        if not found:
            raise
        return found


def _reject(ctx: Context, place: DocumentPlace) -> dict[str, Any]:
    row = document_rows.plain(read_row(ctx.store, place.source, place.row))
    return {
        "uri": row["uri"],
        "bucket": place.bucket,
        "status": "reject",
        "reason": row["reason"],
        "reject": row | {"part": place.source.name, "row": place.row},
    }


def _canary(ctx: Context, place: DocumentPlace) -> dict[str, Any]:
    """Return the facts about a planted canary copy. It has no verdict, because no pipeline stage judged it."""
    facts, _ = _facts(ctx, place)
    trace = {"id": facts.pop("id"), "uri": facts.pop("uri"), "bucket": place.bucket, "status": "canary", "reason": None}
    trace["document"] = facts | {"part": place.source.name, "row": place.row}
    _after(ctx, trace)
    return trace


def _left_out(uri: str, canary: dict[str, Any]) -> dict[str, Any]:
    """Return the facts about a canary that was not planted. Its loss is the baseline for text that the model never
    read."""
    text = canary.pop("text")
    trace: dict[str, Any] = {"uri": uri, "bucket": CANARIES, "status": "canary", "reason": LEFT_OUT, "training": []}
    return trace | {"document": canary | {"characters": len(text), "preview": text[:PREVIEW_CHARACTERS]}}


def _facts(ctx: Context, place: DocumentPlace) -> tuple[dict[str, Any], str]:
    """Return the columns of a document, and its text."""
    row = read_row(ctx.store, place.source, place.row)
    text: str = row.pop("text")
    facts: dict[str, Any] = document_rows.plain(row)
    facts |= {"extra": json.loads(row["extra"]), "characters": len(text), "preview": text[:PREVIEW_CHARACTERS]}
    return facts, text


def _document(ctx: Context, place: DocumentPlace) -> dict[str, Any]:
    facts, text = _facts(ctx, place)
    trace: dict[str, Any] = {"id": facts.pop("id"), "uri": facts.pop("uri"), "bucket": place.bucket}
    trace |= {"status": "undecided", "reason": None}
    origin = _source(place, facts)
    trace |= {"source": origin} if origin else {}
    named = facts["extra"].get(SOURCES) if origin.get("kind") == REWRITE else ()
    derived_from = [_origin(ctx, one) for one in named or ()]
    trace |= {"derived_from": derived_from} if derived_from else {}
    trace["document"] = facts | {"part": place.source.name, "row": place.row}
    stale: list[str] = []
    trace["scores"] = _scores(ctx, place, stale)
    _judgements(ctx, place, trace, stale)
    _shared(ctx, trace, text)
    _reasons(ctx, place, trace, text)
    _after(ctx, trace)
    return trace | ({"stale": sorted(stale)} if stale else {})


def _origin(ctx: Context, named: dict[str, Any]) -> dict[str, Any]:
    """Return the source of a rewritten document as it is published now; only its id and digest if it was removed."""
    try:
        (place, *_) = document_rows.locate(ctx, named["id"])
    except MissingError:
        return dict(named)
    row = document_rows.plain(read_row(ctx.store, place.source, place.row, ["uri", "licence"]))
    judged = _row(ctx, place, f"{place.bucket}/verdicts", "part-", []) or {}
    return {**named, **row} | {name: judged.get(name) for name in ("decision", "reason")}


def _scores(ctx: Context, place: DocumentPlace, stale: list[str]) -> dict[str, Any]:
    """Return the document's row in every annotator's sidecar, by annotator name."""
    scores: dict[str, Any] = {}
    for ref in ctx.refs.all():
        bucket, _, kind = ref.asset.partition("/")
        if bucket != place.bucket or not kind or kind in NO_SCORES:
            continue
        row = document_rows.sidecar(ctx, place, ctx.refs.load(ref.digest))
        if row is None:
            stale.append(ref.asset)
        else:
            scores[kind] = row
    return scores


def _judgements(ctx: Context, place: DocumentPlace, trace: dict[str, Any], stale: list[str]) -> None:
    """Add the document's policy decision, duplicates, holdout, contamination and the resulting verdict to its trace."""
    for key in ("policy", "verdicts"):
        row = _row(ctx, place, f"{place.bucket}/{key}", "part-", stale)
        if row is not None:
            trace["verdict" if key == "verdicts" else key] = row
    trace["dedup"] = {}
    for key, asset in verdicts.ASSETS.items():
        row = _row(ctx, place, asset, f"{place.bucket}/part-", stale)
        if row is None:
            continue
        if row.get("cluster") and "survivor" in row:
            clusters = ctx.refs.current(asset)
            row["members"] = document_rows.members(ctx, clusters, row["cluster"]) if row.get("size", 1) > 1 else []
        (trace if key in _OWN_SECTION else trace["dedup"])[key] = row
    if "verdict" in trace:
        trace["status"], trace["reason"] = trace["verdict"]["decision"], trace["verdict"]["reason"]


def _shared(ctx: Context, trace: dict[str, Any], text: str) -> None:
    """Add to the trace the protected item that the document contains, and the consecutive words that item and document
    share."""
    row = trace.get("protected")
    if not row or row["item"] is None:
        return
    if row["word"] is not None:
        from plinth_text.similarity import word_positions  # compiled

        places = word_positions(text)
        start, end = places.start_cp[row["word"]], places.end_cp[row["word"] + row["longest"] - 1]
        row |= {"start_cp": int(start), "end_cp": int(end), "shared": _beginning(text[start:end])}
    part = _protected_set(ctx, row["set"])
    if part is not None:
        table = read_table(ctx.store, part, ["item", "text"])
        held = table.filter(pc.equal(table["item"], row["item"]))["text"].to_pylist()
        row |= {"item_text": _beginning(held[0])} if held else {}


def _protected_set(ctx: Context, name: str) -> Part | None:
    """Return the part with the current items of a protected set or of a probe, or None if there is no such part."""
    probes, own = ctx.refs.published(protected.PROBES), ctx.refs.published(f"protected/{name}")
    return own.parts[0] if own is not None else protected.probe_parts(probes).get(name)


def _source(place: DocumentPlace, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the terms that the recipe declares for the document's source, if exactly one source matches."""
    sources = place.manifest.params.get("sources", ())
    at = source_of(sources, facts["extra"].get("domain"), facts["snapshot"])
    return {} if at is None else {"index": at, **sources[at]}


def _reasons(ctx: Context, place: DocumentPlace, trace: dict[str, Any], text: str) -> None:
    """Add to the trace the rules that fired with the values that they read, and the edits with the removed text."""
    manifest = ctx.refs.published(f"{place.bucket}/policy")
    if manifest is None or "policy" not in trace:
        return
    try:
        policy, rights = published(manifest)
    except ValidationError:  # from another version: the reason is shown without its expression
        policy, rights = Policy(), None
    stated = {rule.reason: (rule.drop, _columns(rule.drop)) for rule in policy.rules}
    for reason in rights.reasons if rights else ():
        stated[reason] = (TEXTS[reason], COLUMNS[reason])
    scores = {**trace["scores"], "documents": trace["document"] | {"uri": trace["uri"]}}
    trace["rules"] = [
        {"reason": reason, "rule": rule, "values": _values(columns, scores)}
        for reason in trace["policy"].get("fired") or ()
        for rule, columns in [stated.get(reason, (None, ()))]
    ]
    personal = {rule.reason for rule in policy.edits if rule.spans.startswith("pii")}
    edits = trace.get("verdict", {}).get("edits") or ()
    trace["edits"] = [_edit(edit, text, edit["reason"] in personal) for edit in edits[:MOST_EDITS]]


def _columns(expression: str) -> tuple[str, ...]:
    """Return the columns that an expression reads, as `sidecar.column`."""
    nodes = ast.walk(syntax(expression))
    named = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return tuple(sorted({column_name(node) for node in named}))


def _values(columns: Iterable[str], scores: dict[str, Any]) -> dict[str, Any]:
    """Return the document's values in the columns `columns`."""
    places = ((name, *name.split(".", 1)) for name in columns)
    return {name: scores.get(sidecar, {}).get(column) for name, sidecar, column in places}


def _edit(edit: dict[str, Any], text: str, personal: bool) -> dict[str, Any]:
    """Return an edit with the text that it replaces. For personal data, only the length of this text is returned."""
    cut = text[edit["start_cp"] : edit["end_cp"]]
    return {**edit, "characters": len(cut), **({} if personal else {"cut": _beginning(cut)})}


def _beginning(text: str) -> str:
    return text if len(text) <= CUT_CHARACTERS else f"{text[:CUT_CHARACTERS]}…"


def _after(ctx: Context, trace: dict[str, Any]) -> None:
    """Add curated text, tokens and training to the document's trace."""
    bucket, id_ = trace["bucket"], trace["id"]
    for key, find in (("curated", document_rows.curated), ("shards", document_rows.tokens)):
        manifest = ctx.refs.published(f"{bucket}/{key}")
        found = find(ctx, manifest, id_) if manifest else None
        if found:
            trace["tokens" if key == "shards" else key] = found
    trace["training"] = document_rows.runs(ctx, bucket, id_)


def _row(ctx: Context, place: DocumentPlace, asset: str, stem: str, stale: list[str]) -> dict[str, Any] | None:
    manifest = ctx.refs.published(asset)
    if manifest is None:
        return None
    row = document_rows.sidecar(ctx, place, manifest, stem)
    if row is None:
        stale.append(asset)
    return row


def _name(ctx: Context, place: DocumentPlace) -> dict[str, Any]:
    columns = ["uri", "reason"] if place.rejected else ["id", "uri"]
    row = document_rows.plain(read_row(ctx.store, place.source, place.row, columns))
    return {"bucket": place.bucket, **row, "rejected": place.rejected}
