"""The data card: the text that trained the model, by bucket and source, with its terms, rules and domains.

Front matter in the form of the Hugging Face Hub's dataset cards (https://huggingface.co/docs/hub/datasets-cards).
"""

from __future__ import annotations

from typing import Any

from plinth.text.markdown import plain
from plinth_audit.papers.facts import DomainTable, PaperFacts, SourceTerms, TrainedText
from plinth_audit.papers.hub_card import licence_keys, size_category
from plinth_audit.papers.markdown import PaperPage
from plinth_audit.papers.model_card import languages

FILE = "DATA_CARD.md"


def data_card(facts: PaperFacts) -> str:
    """Front matter and page."""
    page = PaperPage(facts)
    page.say(f"# Data card: {plain(facts.name)}", "", f"The text that trained checkpoint `{facts.checkpoint}`.")
    page.say("## Text")
    texts = ((o.name, o.documents, o.curated, o.text_bytes, o.tokens, o.epochs, o.evidence) for o in facts.buckets)
    page.table(("bucket", "documents", "kept", "bytes kept", "tokens", "epochs"), texts)
    page.replayed()
    page.say("## Sources")
    page.table(("bucket", "source", "snapshot", "kind", "licence", "permitted"), map(source, facts.sources))
    page.say("## Rules", "", "A document that meets a rule is dropped, or the span is replaced.")
    page.table(("bucket", "reason", "rule"), ((one.bucket, one.reason, one.rule, one.evidence) for one in facts.rules))
    page.say("## Processing")
    page.stated(facts.processing)
    if facts.trained:
        _trained(page, facts.trained)
    return f"---\n{_front(facts)}\n---\n\n{page.finished()}"


def source(one: SourceTerms) -> tuple[object, ...]:
    """A row of the table of sources."""
    allowed = ", ".join(use for use, permitted in sorted(one.terms.items()) if permitted) or "nothing"
    return one.bucket, one.domain, one.snapshot, one.kind, one.licence, allowed, one.evidence


def domain_table(page: PaperPage, found: DomainTable, evidence: str) -> None:
    """The largest domains."""
    page.say(f"The {len(found.domains):,} largest of {found.count:,} domains, by tokens of training text.")
    rows = ((one.domain, one.documents, one.tokens, evidence) for one in found.domains)
    page.table(("domain", "documents", "tokens"), rows)


def _trained(page: PaperPage, found: TrainedText) -> None:
    page.say("## Licences of documents")
    page.table(("licence", "documents"), ((name, n, found.evidence) for name, n in found.licences.items()))
    page.say("## Languages of documents")
    page.table(("language", "documents"), ((name, n, found.evidence) for name, n in found.languages.items()))
    page.say("## Domains")
    domain_table(page, found.all, found.evidence)


def _front(facts: PaperFacts) -> str:
    from huggingface_hub import DatasetCardData

    found = facts.trained
    more: dict[str, Any] = licence_keys(found.licences) if found else {}
    sizes = [size_category(found.all.documents)] if found else None
    data = DatasetCardData(
        pretty_name=f"Training text of {facts.name}",
        language=languages(facts),
        size_categories=sizes,
        task_categories=["text-generation"],
        **more,
    )
    return data.to_yaml().rstrip()
