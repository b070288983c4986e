"""What the provider of a release states of itself and its data: text that no evidence can say, signed as compliance.

    providers/00001.json     numbered, chained; the newest statement about a release counts

Fields are those of the European Commission's template for the summary of training content (C(2025) 8311). One that is
absent is "not stated" in the papers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.records import Frozen
from plinth.trust import dsse
from plinth.trust.authority import COMPLIANCE
from plinth.trust.log_record import LogRecord
from plinth_audit.papers.facts import SignedText
from plinth_registry import audit_log, policy, releases
from plinth_registry.audit_log import AuditedAction
from plinth_registry.signed_log import PROVIDERS

Text = Field(None, min_length=1, max_length=10_000)


class ProviderStatement(Frozen):
    """A statement about a release, in the words of its provider."""

    release: str = Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=64, description="Name of the release.")
    provider: str | None = Text
    contact: str | None = Text
    authorised_representative: str | None = Text
    placed_on_the_market: Mapping[str, date] = Field(default_factory=dict, description="Day by version.")
    content: str | None = Text
    licensed_data: str | None = Text
    other_private_data: str | None = Text
    crawlers: str | None = Text
    user_data: str | None = Text
    synthetic_data: str | None = Text
    other_data: str | None = Text
    rights_reservations: str | None = Text
    illegal_content: str | None = Text
    other: str | None = Text


#: Subjects of signed text in the papers, by field.
SUBJECTS: Final[Mapping[str, str]] = {
    "provider": "provider",
    "contact": "contact",
    "authorised_representative": "authorised representative",
    "placed_on_the_market": "date of placement on the market",
    "content": "types of content",
    "licensed_data": "data licensed by rightsholders",
    "other_private_data": "data obtained from third parties",
    "crawlers": "crawlers, their purposes and behaviour",
    "user_data": "user data",
    "synthetic_data": "synthetic data",
    "other_data": "other sources of data",
    "rights_reservations": "measures to respect reservations of rights",
    "illegal_content": "measures against illegal content",
    "other": "other information",
}


class SignedProvider(NamedTuple):
    """The newest statement about a release, and the file that has it."""

    statement: ProviderStatement
    by: str
    at: str
    path: Path

    @property
    def envelope(self) -> bytes:
        """The signed bytes, as an export has them."""
        return json.dumps(dsse.envelope_of(self.path), indent=1, sort_keys=True).encode()


def load(path: Path) -> ProviderStatement:
    """The statement in a YAML file.

    Raises:
        RecipeError: it is wrong; lists every problem with its line and key.
    """
    return policy.load_signed(path, ProviderStatement, "statement of a provider", "docs/papers.md")


def sign(ctx: Context, stated: ProviderStatement, owner: str | None = None) -> SignedProvider:
    """Sign a statement as compliance; the newest one signed again changes nothing.

    Raises:
        SignatureError: no compliance key on this machine, or an earlier statement was changed or removed.
    """
    body = {"provider": stated.model_dump(mode="json")}
    digest = fingerprint.digest(body)
    asked = AuditedAction("provider", f"{stated.release} {digest[:12]}", owner or "", owner=owner)
    with audit_log.audited(ctx, asked, once=True):
        known = current(ctx, stated.release)
        if known is not None and known.statement == stated:
            return known
        return _signed(ctx, PROVIDERS.append(ctx, body, {stated.release: digest}, COMPLIANCE, owner))


def current(ctx: Context, release: str) -> SignedProvider | None:
    """The newest statement about a release.

    Raises:
        SignatureError: a statement was edited, removed, moved or forged.
    """
    found = (_signed(ctx, record) for record in reversed(releases.log_records(ctx, PROVIDERS)))
    return next((one for one in found if one.statement.release == release), None)


def said(found: SignedProvider, version: str | None) -> Iterator[SignedText]:
    """What it says in the papers of a version; None: of what was not released."""
    evidence, own = hashlib.sha256(found.envelope).hexdigest(), found.statement
    texts: dict[str, Any] = {field: getattr(own, field) for field in SUBJECTS}
    texts["placed_on_the_market"] = own.placed_on_the_market.get(version or "")
    for field, text in texts.items():
        if text is not None:
            yield SignedText(subject=SUBJECTS[field], text=str(text), by=found.by, role=COMPLIANCE, evidence=evidence)


def _signed(ctx: Context, record: LogRecord) -> SignedProvider:
    path = PROVIDERS.path(ctx, record.number)
    try:
        stated = ProviderStatement.model_validate(record.body["provider"])
    except (KeyError, TypeError, ValidationError) as error:
        raise SignatureError(f"{path} is no statement of a provider", found=error) from error
    return SignedProvider(stated, ", ".join(record.owners), record.at, path)
