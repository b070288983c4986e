"""From what is asked to be taken down to an entry of the exclusion list, with the number of documents it will take.

A URL, a document or a text brings the signatures of the texts found, so that a changed copy under another address stays
out too. A domain or a licence is a rule on the columns alone, unless the texts are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from plinth.compute.context import Context
from plinth.corpus import exclusions
from plinth.corpus.documents.removal import look, taken_rows
from plinth.corpus.exclusions import Alike, Exclusion, Kind, TextSignature, sign_texts
from plinth.errors import MissingError, RequestError
from plinth.provenance.document_rows import DOCUMENTS, published
from plinth_audit.takedown.search import LISTED, NEAR, SPAN, FoundDocuments, HeldDocument, alike_of, find, text_of

#: An entry that takes more of the corpus needs a confirmation with the count.
MOST_SHARE = 0.05
#: Kinds that bring the texts of what they find.
WITH_TEXTS: tuple[Kind, ...] = ("url", "document", "text")


@dataclass(frozen=True)
class Proposal:
    """An entry before it is signed.

    Args:
        fields: of the entry, but number, person and time.
        found: what was found, before rules are applied.
        takes: documents of the published corpus that it will take, by bucket.
        parts: parts of documents that will be written anew.
        of_parts: all parts.
        documents: of the whole corpus.
    """

    fields: Mapping[str, Any]
    found: FoundDocuments
    takes: Mapping[str, int] = field(default_factory=dict)
    parts: int = 0
    of_parts: int = 0
    documents: int = 0

    @property
    def count(self) -> int:
        return sum(self.takes.values())

    @property
    def share(self) -> float:
        """Of the published documents."""
        return self.count / self.documents if self.documents else 0.0

    @property
    def needs_confirmation(self) -> bool:
        return self.count > 1 and self.share > MOST_SHARE


def propose(
    ctx: Context, kind: Kind, value: str, reason: str, *, texts: bool | None = None, spans: bool = False
) -> Proposal:
    """What an exclusion would take.

    Args:
        texts: recognise the texts of what is found, wherever they come again; by default of `WITH_TEXTS`.
        spans: of a text, also take documents that only quote 32 or more tokens of it.

    Raises:
        RequestError: the value means nothing, or too many texts are to be recognised.
        MissingError: no document has this id, or no ledger has been made.
        SignatureError: the list does not verify.
    """
    if not reason.strip():
        raise RequestError("an exclusion needs a reason", expected="who asked for it, and why")
    alike = alike_of(ctx)
    found = find(ctx, kind, value, alike)
    if kind == "document" and not found.documents:
        raise MissingError(
            f"no document {value} in any ledger", remedy="`plinth corpus takedown find --url URL` shows ids"
        )
    chosen = [one for one in found.documents if spans or not one.how.startswith(SPAN)]
    wants = kind in WITH_TEXTS if texts is None else texts
    signed = _signed(ctx, found, chosen, alike) if wants else ()
    named = tuple(sorted(one.id for one in chosen)) if kind == "text" else ()
    rule = sign_texts([found.value], alike)[0].digest if kind == "text" else found.value
    fields = {"kind": kind, "value": rule, "alike": alike, "texts": signed, "documents": named}
    return _counted(ctx, Proposal({**fields, "found": found.count, "reason": reason}, found))


def _signed(
    ctx: Context, found: FoundDocuments, chosen: Sequence[HeldDocument], alike: Alike
) -> tuple[TextSignature, ...]:
    """The signatures of the text itself, or of what a rule found; near duplicates are recognised by these."""
    if found.count + found.earlier > len(found.documents) >= LISTED:
        raise RequestError(
            f"more than {LISTED:,} texts are too many to recognise",
            found=f"{found.count + found.earlier:,} documents",
            remedy="leave the texts out: the rule alone takes them",
        )
    own = [one for one in chosen if found.kind == "text" or one.how != NEAR]
    texts = [text for one in own if (text := text_of(ctx, one)) is not None]
    texts += [found.value] if found.kind == "text" else []
    return sign_texts(texts, alike) if texts else ()


def _counted(ctx: Context, proposal: Proposal) -> Proposal:
    """With the number of published documents that the rule takes, by the look that the next build begins with."""
    earlier = exclusions.read(ctx)
    number = len(earlier) + 1
    entry = Exclusion(number=number, prior=None, by="-", at="-", **proposal.fields)
    takes, parts, of_parts, documents = dict[str, int](), 0, 0, 0
    for bucket, counts in hits(ctx, (*earlier, entry), number).items():
        takes |= {bucket: sum(counts)} if sum(counts) else {}
        parts, of_parts = parts + sum(map(bool, counts)), of_parts + len(counts)
        documents += ctx.refs.current(f"{bucket}{DOCUMENTS}").stats["documents"]
    return Proposal(proposal.fields, proposal.found, takes, parts, of_parts, documents)


def hits(ctx: Context, entries: Sequence[Exclusion], only: int | None = None) -> dict[str, list[int]]:
    """Documents of each part of each published bucket that an entry takes; of one entry, if `only` is its number."""
    found = {}
    for bucket, manifest in published(ctx, DOCUMENTS):
        looks = look(ctx, f"{bucket}{DOCUMENTS} (takedown)", manifest.named("part-"), entries)
        rows = [taken_rows(ctx.store, one).values() for one in looks]
        found[bucket] = [sum(only in (None, number) for number in own) for own in rows]
    return found
