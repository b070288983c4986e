"""Signed declaration of the provider of a release, and the European Union's public summary of training content.

    providers/00001.json     numbered, chained; the newest declaration of a release applies

The fields follow the European Commission's template for the summary of training content (C(2025) 8311) and the Model
Documentation Form (`documentation`). If a field is missing, the documents show "not stated".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import Field, ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.errors import SignatureError
from plinth.records import Frozen
from plinth.text import markdown_text
from plinth.trust import dsse
from plinth.trust.dsse import COMPLIANCE
from plinth.trust.log_record import LogRecord
from plinth_audit.papers.cards import PaperPage, domain_table, source
from plinth_audit.papers.facts import NOT_STATED, BucketRule, PaperFacts, SignedText, SourceTerms
from plinth_audit.papers.gather import ILLEGAL, KEPT, PERMITTED
from plinth_registry import audit_log, policy, releases
from plinth_registry.audit_log import PROVIDERS, AuditedAction

Text = Field(None, min_length=1, max_length=10_000)


class ProviderStatement(Frozen):
    """Declaration about a release, in the words of its provider."""

    release: str = Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=64, description="Name of the release.")
    provider: str | None = Text
    contact: str | None = Text
    authorised_representative: str | None = Text
    placed_on_the_market: Mapping[str, date] = Field(default_factory=dict, description="Date by version.")
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
    distribution_channels: str | None = Text
    model_licence: str | None = Text
    acceptable_use_policy: str | None = Text
    intended_uses: str | None = Text
    integrating_systems: str | None = Text
    technical_means: str | None = Text
    required_hardware: str | None = Text
    required_software: str | None = Text
    design_rationale: str | None = Text
    data_selection: str | None = Text
    unsuitable_data: str | None = Text
    bias_detection: str | None = Text
    energy: str | None = Text


#: Subjects of signed text in the documents, by field.
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
    "distribution_channels": "distribution channels",
    "model_licence": "license of the model and of additional assets",
    "acceptable_use_policy": "acceptable use policy",
    "intended_uses": "intended or restricted uses",
    "integrating_systems": "systems that can integrate the model",
    "technical_means": "technical means for integration",
    "required_hardware": "required hardware",
    "required_software": "required software",
    "design_rationale": "rationale and assumptions of the design",
    "data_selection": "how data was obtained and selected",
    "unsuitable_data": "measures to detect unsuitable sources",
    "bias_detection": "measures to detect biases",
    "energy": "energy used for training, and how it was measured",
}


class SignedProvider(NamedTuple):
    """Newest signed declaration about a release, and the declaration's file."""

    statement: ProviderStatement
    by: str
    at: str
    path: Path

    @property
    def envelope(self) -> bytes:
        """Signed bytes of the provider declaration, as written to an export."""
        return json.dumps(dsse.envelope_of(self.path), indent=1, sort_keys=True).encode()


def load(path: Path) -> ProviderStatement:
    """Read a provider declaration from a YAML file.

    Raises:
        RecipeError: the file is invalid; the message lists every problem with its line and key.
    """
    return policy.load_signed(path, ProviderStatement, "provider declaration", "docs/papers.md")


def sign(ctx: Context, stated: ProviderStatement, owner: str | None = None) -> SignedProvider:
    """Sign a provider declaration with the compliance key. Do nothing if it equals the newest signed declaration.

    Raises:
        SignatureError: this machine has no compliance key, or an earlier declaration was changed or removed.
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
    """Return the newest provider declaration about a release, or None if there is no declaration.

    Raises:
        SignatureError: a declaration was edited, removed, moved or forged.
    """
    found = (_signed(ctx, record) for record in reversed(releases.log_records(ctx, PROVIDERS)))
    return next((one for one in found if one.statement.release == release), None)


def said(found: SignedProvider, version: str | None) -> Iterator[SignedText]:
    """Yield the provider's signed texts for the documents of a release version.

    If `version` is None, the documents are for an unreleased model.
    """
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
        raise SignatureError(f"{path} is not a provider declaration", found=error) from error
    return SignedProvider(stated, ", ".join(record.owners), record.at, path)


# Public summary of training content, which the European Union requires from providers of general-purpose models.
#
# Sections and order follow the template of the European Commission (C(2025) 8311, 24 July 2025; Regulation (EU)
# 2024/1689, article 53(1)(d)). Information without evidence comes from the signed provider declaration; missing
# information is "not stated".

TRAINING_SUMMARY = "TRAINING_SUMMARY.md"
#: Size ranges of the template for text, in tokens.
_RANGES = ((10**9, "less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))
_MORE = "more than 10 trillion tokens"
#: Subjects of the declaration that the first section always lists.
PROVIDER = ("provider", "contact", "authorised_representative", "placed_on_the_market")
OPT_OUT = "opt_out"


def training_summary(facts: PaperFacts) -> str:
    """Return the public summary of training content in Markdown."""
    page = PaperPage(facts)
    page.say(f"# Public summary of training content: {markdown_text(facts.name)}")
    _general(page, facts)
    _sources(page, facts)
    _processing(page, facts)
    return page.finished()


def size_range(tokens: int) -> str:
    """Return the size range of the Commission's template that contains the number of tokens."""
    return next((words for bound, words in _RANGES if tokens < bound), _MORE)


def _general(page: PaperPage, facts: PaperFacts) -> None:
    page.say("## 1. General information", "", "### 1.1 Provider")
    _said(page, facts, *PROVIDER)
    page.say("### 1.2 Model", "", f"- model: {markdown_text(facts.name)}", f"- checkpoint: `{facts.checkpoint}`")
    page.say("### 1.3 Modalities and size", "", "- modality: text; no other is read or trained on")
    page.table(("fact", "value"), _size(facts))
    texts = ((one.name, one.curated, one.tokens, one.evidence) for one in facts.buckets)
    page.table(("bucket", "documents", "tokens"), texts)
    page.replayed()
    _said(page, facts, "content")


def _said(page: PaperPage, facts: PaperFacts, *fields: str) -> None:
    """Write the provider's statements on some fields, then list the fields that the provider did not state."""
    said = {one.subject: one for one in facts.said if one.role == COMPLIANCE}
    known = [said[SUBJECTS[field]] for field in fields if SUBJECTS[field] in said]
    if known:
        page.table(("field", "statement", "by"), ((one.subject, one.text, one.by, one.evidence) for one in known))
    if absent := [f"- {SUBJECTS[field]}: {NOT_STATED}" for field in fields if SUBJECTS[field] not in said]:
        page.say(*absent)


def _size(facts: PaperFacts) -> Iterator[tuple[object, ...]]:
    found = facts.trained
    if found is None:
        return
    yield "size", size_range(found.all.tokens + sum(one.tokens for one in facts.replayed)), found.evidence
    yield "documents", found.all.documents, found.evidence
    yield "latest capture", found.all.latest, found.evidence
    yield "languages", ", ".join(found.languages) or None, found.evidence


def _sources(page: PaperPage, facts: PaperFacts) -> None:
    page.say(
        "## 2. List of data sources",
        "",
        "Plinth knows how each source was read and under which terms, not how its owner obtained it: sources are",
        "listed by the terms that were declared, and crawled archives apart.",
    )
    page.say("### 2.1 Data sets that may be passed on")
    _listed(page, facts, lambda one: not one.crawled and _public(one))
    page.say("### 2.2 Other data sets")
    _listed(page, facts, lambda one: not one.crawled and not _public(one))
    _said(page, facts, "licensed_data", "other_private_data")
    page.say("### 2.3 Data crawled from the web")
    _listed(page, facts, lambda one: one.crawled)
    _crawled(page, facts)
    _said(page, facts, "crawlers")
    for title, field in (("2.4 User data", "user_data"), ("2.5 Synthetic data", "synthetic_data")):
        page.say(f"### {title}")
        _said(page, facts, field)
    page.say("### 2.6 Other sources of data")
    _said(page, facts, "other_data")


def _listed(page: PaperPage, facts: PaperFacts, chosen: Callable[[SourceTerms], bool]) -> None:
    rows = [source(one) for one in facts.sources if chosen(one)]
    if facts.sources and not rows:
        page.say("None of the declared sources.")
        return
    page.table(("bucket", "source", "snapshot", "kind", "licence", "permitted"), rows)


def _public(one: SourceTerms) -> bool:
    return one.terms.get("redistribute", False)


def _crawled(page: PaperPage, facts: PaperFacts) -> None:
    """Write the days of capture and the largest domains of crawled text."""
    found = facts.trained
    if found is None:
        page.say(f"Domains: {NOT_STATED}.")
    elif found.crawled.documents:
        known = found.crawled
        counts = (("documents", known.documents), ("tokens", known.tokens))
        days = (("first capture", known.first), ("latest capture", known.latest))
        page.table(("fact", "value"), ((name, value, found.evidence) for name, value in (*counts, *days)))
        domain_table(page, known, found.evidence)


def _processing(page: PaperPage, facts: PaperFacts) -> None:
    page.say("## 3. Data processing aspects", "", "### 3.1 Reservations of rights")
    page.stated(one for one in facts.processing if one.name.startswith((PERMITTED, KEPT)))
    if rules := [one for one in facts.rules if _is_right(one)]:
        _rules(page, rules)
    _said(page, facts, "rights_reservations")
    page.say("### 3.2 Removal of illegal content")
    page.stated(one for one in facts.processing if one.name.startswith(ILLEGAL))
    _said(page, facts, "illegal_content")
    page.say("### 3.3 Other information")
    page.stated(one for one in facts.processing if not one.name.startswith((ILLEGAL, PERMITTED, KEPT)))
    _rules(page, [one for one in facts.rules if not _is_right(one)])
    _said(page, facts, "other")


def _is_right(one: BucketRule) -> bool:
    return OPT_OUT in one.rule or "licence" in one.rule


def _rules(page: PaperPage, rules: list[BucketRule]) -> None:
    page.table(("bucket", "reason", "rule"), ((one.bucket, one.reason, one.rule, one.evidence) for one in rules))
