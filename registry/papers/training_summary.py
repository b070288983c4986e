"""The public summary of training content that the European Union asks of providers of general-purpose models.

Sections and their order are those of the template of the European Commission (C(2025) 8311, 24 July 2025; Regulation
(EU) 2024/1689, article 53(1)(d)). Where no evidence speaks, the summary says so: whoever publishes the model adds who
they are, and signs that (`SignedText`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from registry.papers.data_card import domain_table, source
from registry.papers.facts import NOT_STATED, BucketRule, PaperFacts, SourceTerms, StatedFact
from registry.papers.gather import ILLEGAL
from registry.papers.markdown import PaperPage, plain

FILE = "TRAINING_SUMMARY.md"
#: Ranges of the template for text, in tokens.
_RANGES = ((10**9, "less than 1 billion tokens"), (10**13, "1 billion to 10 trillion tokens"))
_MORE = "more than 10 trillion tokens"
#: Subjects of `SignedText` that fill in the first section.
PROVIDER = ("provider", "contact", "authorised representative", "date of placement on the market")
OPT_OUT = "opt_out"


def training_summary(facts: PaperFacts) -> str:
    """The page."""
    page = PaperPage(facts)
    page.say(f"# Public summary of training content: {plain(facts.name)}")
    _general(page, facts)
    _sources(page, facts)
    _processing(page, facts)
    return page.finished()


def size_range(tokens: int) -> str:
    """The range of the template that a number of tokens is in."""
    return next((words for bound, words in _RANGES if tokens < bound), _MORE)


def _general(page: PaperPage, facts: PaperFacts) -> None:
    page.say("## 1. General information", "", "### 1.1 Provider")
    said = {one.subject: one for one in facts.said}
    known = [said[subject] for subject in PROVIDER if subject in said]
    page.table(("field", "statement", "by"), ((one.subject, one.text, one.by, one.evidence) for one in known))
    page.say(*(f"- {subject}: {NOT_STATED}" for subject in PROVIDER if subject not in said))
    page.say("### 1.2 Model", "", f"- model: {plain(facts.name)}", f"- checkpoint: `{facts.checkpoint}`")
    page.say("### 1.3 Modalities and size", "", "- modality: text")
    page.table(("fact", "value"), _size(facts))


def _size(facts: PaperFacts) -> Iterator[tuple[object, ...]]:
    found = facts.trained
    if found is None:
        return
    yield "size", size_range(found.tokens), found.evidence
    yield "documents", found.documents, found.evidence
    yield "latest capture", found.latest, found.evidence
    yield "languages", ", ".join(found.languages) or None, found.evidence


def _sources(page: PaperPage, facts: PaperFacts) -> None:
    page.say("## 2. List of data sources")
    page.say("Plinth knows how each source was read and under which terms, not how its owner obtained it: sources are")
    page.say("listed by the terms that were declared, and crawled archives apart.")
    sections: tuple[tuple[str, Callable[[SourceTerms], bool]], ...] = (
        ("2.1 Data sets that may be passed on", lambda one: not _crawled(one) and one.terms.get("redistribute", False)),
        ("2.2 Other data sets", lambda one: not _crawled(one) and not one.terms.get("redistribute", False)),
        ("2.3 Data crawled from the web", _crawled),
    )
    for title, chosen in sections:
        page.say(f"### {title}")
        rows = (source(one) for one in facts.sources if chosen(one))
        page.table(("bucket", "source", "snapshot", "kind", "licence", "permitted"), rows)
    page.say("### Most relevant domains")
    if facts.trained:
        domain_table(page, facts.trained)
    else:
        page.say(NOT_STATED.capitalize() + ".")
    page.say("### 2.4 User data", "", NOT_STATED.capitalize() + ".", "", "### 2.5 Synthetic data", "")
    page.say(NOT_STATED.capitalize() + ".")


def _crawled(one: SourceTerms) -> bool:
    return one.kind in ("warc", "html")


def _processing(page: PaperPage, facts: PaperFacts) -> None:
    page.say("## 3. Data processing aspects", "", "### 3.1 Reservations of rights")
    _rules(page, [one for one in facts.rules if OPT_OUT in one.rule or "licence" in one.rule])
    page.say("### 3.2 Removal of illegal content")
    page.stated(one for one in facts.processing if _is_gate(one))
    page.say("### 3.3 Other information")
    page.stated(one for one in facts.processing if not _is_gate(one))
    _rules(page, [one for one in facts.rules if OPT_OUT not in one.rule and "licence" not in one.rule])


def _is_gate(one: StatedFact) -> bool:
    return one.name.startswith(ILLEGAL)


def _rules(page: PaperPage, rules: list[BucketRule]) -> None:
    page.table(("bucket", "reason", "rule"), ((one.bucket, one.reason, one.rule, one.evidence) for one in rules))
