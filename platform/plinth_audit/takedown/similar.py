"""Documents that hold a text: the same text, near duplicates, excerpts, and verbatim spans of it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from plinth.compute.context import Context
from plinth.corpus.dedup.near import minhash
from plinth.corpus.dedup.near.index import Match, open_published
from plinth.corpus.exclusions.exclusion_list import Alike, TextSignature, sign_texts
from plinth.corpus.exclusions.rules import TextRules
from plinth.errors import MissingError
from plinth.storage.parts import read_row
from plinth_audit.trace.tracer import SUFFIX as TRACE_INDEX
from plinth_audit.trace.tracer import Tracer

#: Candidates of the near index whose texts are compared.
CANDIDATES = 1000
SAME, NEAR, SPAN = "same text", "near duplicate", "verbatim span"


def alike_of(ctx: Context) -> Alike:
    """What deduplication of the published corpus calls alike; defaults where there was none."""
    made = ctx.refs.published(minhash.ASSET)
    params = made.params.get("minhash", {}) if made else {}
    return Alike(**{name: value for name, value in params.items() if name in Alike.model_fields and value is not None})


def documents(ctx: Context, text: str, alike: Alike | None = None) -> tuple[dict[str, str], tuple[str, ...]]:
    """Ids of documents that hold a text, with how they do; and what could not be searched.

    A span alone (32 or more tokens) says that a document quotes the text, not that it is a copy of it.
    """
    rule = alike or alike_of(ctx)
    found, notes = dict[str, str](), list[str]()
    for what, search in (("near duplicates", _near), ("verbatim spans", _spans)):
        try:
            for id_, how in search(ctx, text, rule):
                found.setdefault(id_, how)
        except MissingError as error:
            notes.append(f"{what} were not searched: {error.what}")
    return found, tuple(notes)


def _near(ctx: Context, text: str, alike: Alike) -> Iterator[tuple[str, str]]:
    rules = _rules(text, alike)
    with open_published(ctx) as opened:
        for match in opened.near(text, 0.0, CANDIDATES):
            if match.id is not None and (match.exact or _is_alike(ctx, match, rules)):
                yield match.id, SAME if match.exact else NEAR


def _spans(ctx: Context, text: str, alike: Alike) -> Iterator[tuple[str, str]]:
    rules = _rules(text, alike)
    quoting = Tracer(ctx).quoting(text)
    for (bucket, id_), (tokens, span) in sorted(quoting.items(), key=lambda each: (-each[1][0], each[0])):
        curated = ctx.refs.load(ctx.refs.current(f"{bucket}{TRACE_INDEX}").inputs[f"{bucket}/curated"])
        part = curated.named("part-")[span.part]
        whole = read_row(ctx.store, part, span.row, ["text"])["text"]
        yield id_, NEAR if _hits(rules, whole) else f"{SPAN} of {tokens:,} tokens"


def _is_alike(ctx: Context, match: Match, rules: TextRules) -> bool:
    parts = ctx.refs.current(f"{match.bucket}/documents").parts
    part = next((one for one in parts if one.name == match.part), None)
    return part is not None and _hits(rules, read_row(ctx.store, part, match.row, ["text"])["text"])


def _rules(text: str, alike: Alike) -> TextRules:
    signed: list[tuple[TextSignature, int]] = [(one, 0) for one in sign_texts([text], alike)]
    return TextRules(((alike, tuple(signed)),))


def _hits(rules: TextRules, text: str) -> bool:
    return any(rules.look(pa.array([text], pa.large_string())))
