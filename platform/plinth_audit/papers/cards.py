"""Model card and data card in Markdown, with the evidence of every row listed at the end.

    README.md      front matter for the Hugging Face Hub (https://huggingface.co/docs/hub/model-cards) with results;
                   then the model and its scores. The model's license is not recorded yet, so the card omits it
    DATA_CARD.md   the text that trained the model, by bucket and source, with its terms, rules and domains; front
                   matter of dataset cards (https://huggingface.co/docs/hub/datasets-cards)

Does not belong here: the bill of materials (bom, spdx).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from plinth.text import markdown_text
from plinth_audit.papers.facts import (
    NOT_STATED,
    ROLLED_BACK,
    DomainTable,
    PaperFacts,
    SliceResult,
    SourceTerms,
    StatedFact,
    TrainedText,
)
from plinth_audit.text_export.manifest import language_codes, licence_keys, size_category
from plinth_registry.exports.models import UNRELEASED

#: Digits of a digest in a row; the list at the end has all 64.
SHORT = 12
MODEL_CARD, DATA_CARD = "README.md", "DATA_CARD.md"
_WARNINGS = {
    UNRELEASED: "no signed history released this model.",
    ROLLED_BACK: "the signed history released this model and has taken it back.",
}


class PaperPage:
    """Markdown page that is written from top to bottom and collects the evidence digests of its table rows."""

    def __init__(self, facts: PaperFacts) -> None:
        self._facts, self._lines, self._named = facts, list[str](), set[str]()

    def say(self, *lines: str) -> None:
        """Write lines of Markdown, then an empty line. Text from outside must be escaped with `markdown_text` first."""
        self._lines += [*lines, ""]

    def table(self, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write a table whose rows end with the digest of their evidence. If there are no rows, write `not stated`.

        Args:
            header: names of all columns except the last.
        """
        found = list(rows)
        if not found:
            self.say(NOT_STATED.capitalize() + ".")
            return
        lines = [_row((*header, "evidence")), "|---" * (len(header) + 1) + "|"]
        for *cells, evidence in found:
            self._named.add(str(evidence))
            lines.append(_row((*map(shown, cells), f"`{str(evidence)[:SHORT]}`")))
        self.say(*lines)

    def stated(self, facts: Iterable[StatedFact]) -> None:
        """Write a table of facts with the columns name, value and evidence."""
        self.table(("fact", "value"), ((one.name, one.value, one.evidence) for one in facts))

    def replayed(self) -> None:
        """Write a table of replayed text, which comes from the training mixture of the parent model."""
        if found := self._facts.replayed:
            self.say("Replayed: text of the model that the run began from, as the mixture of that model had it.")
            rows = ((o.name, o.parent, o.tokens, o.seen_tokens, o.share, o.epochs, o.evidence) for o in found)
            self.table(("bucket", "of checkpoint", "tokens", "tokens seen", "share of the run", "epochs"), rows)

    def finished(self) -> str:
        """Return the page in Markdown. The last section lists the evidence of all table rows."""
        items = self._facts.evidence_of(self._named)
        self.say("## Evidence", "", *[f"- `{one.sha256}` {one.kind}: {markdown_text(one.name)}" for one in items])
        return "\n".join(self._lines)


def shown(value: object) -> str:
    """Format a value for a table cell: round numbers and escape Markdown."""
    if value is None:
        return NOT_STATED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else markdown_text(value)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def model_card(facts: PaperFacts) -> str:
    """Return the model card in Markdown: front matter for the Hugging Face Hub, then the page."""
    page = PaperPage(facts)
    page.say(f"# Model card: {markdown_text(facts.name)}")
    if facts.state in _WARNINGS:
        page.say(f"**{facts.state}**: {_WARNINGS[facts.state]}")
    page.say(
        f"Checkpoint `{facts.checkpoint}`, recipe `{facts.recipe}`, code "
        f"{markdown_text(facts.code.get('version', ''))} `{facts.code.get('sha256', '')}`. A row's evidence is the "
        "beginning of a SHA-256 of the last section."
    )
    page.say("## Model")
    page.stated(facts.model)
    page.say("## Training")
    page.stated(facts.run)
    page.say("## Training text", "", "`DATA_CARD.md` has sources, terms and rules.")
    texts = ((one.name, one.curated, one.tokens, one.seen_tokens, one.epochs, one.evidence) for one in facts.buckets)
    page.table(("bucket", "documents", "tokens", "tokens seen", "epochs"), texts)
    page.replayed()
    page.say("## Evaluation", "", "Bits per byte of held-out text (lower is better); 95% intervals over documents.")
    page.table(("text", "bits per byte", "interval", "documents"), map(_score, facts.scores))
    page.say("## Attested facts")
    page.stated(facts.attested)
    page.say("## Statements of people")
    said = ((one.subject, one.text, one.by, one.role, one.evidence) for one in facts.said)
    page.table(("about", "statement", "by", "role"), said)
    return f"---\n{_front(facts)}\n---\n\n{page.finished()}"


def _score(one: SliceResult) -> tuple[object, ...]:
    interval = None if one.low is None or one.high is None else f"{one.low:.4f} to {one.high:.4f}"
    return one.slice, one.value, interval, one.n, one.evidence


def _front(facts: PaperFacts) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type="held-out",
            dataset_name=f"held-out text: {one.slice}",
            dataset_config=one.slice,
            dataset_revision=one.evidence,
            metric_type=one.metric,
            metric_value=one.value,
            metric_args={key: value for key in ("low", "high", "n") if (value := getattr(one, key)) is not None},
        )
        for one in facts.scores
    ]
    data = ModelCardData(
        model_name=facts.name,
        library_name="transformers",
        pipeline_tag="text-generation",
        language=languages(facts),
        tags=["plinth", facts.state],
        eval_results=results or None,
    )
    return data.to_yaml().rstrip()


def languages(facts: PaperFacts) -> list[str] | None:
    """Return the language codes for the cards, most frequent first, or None if the ledger has no language column."""
    found = facts.trained
    return language_codes(found.languages, found.all.documents) or None if found else None


def data_card(facts: PaperFacts) -> str:
    """Return the data card in Markdown: front matter for the Hugging Face Hub, then the page."""
    page = PaperPage(facts)
    page.say(f"# Data card: {markdown_text(facts.name)}", "", f"The text that trained checkpoint `{facts.checkpoint}`.")
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
    return f"---\n{_dataset_front(facts)}\n---\n\n{page.finished()}"


def source(one: SourceTerms) -> tuple[object, ...]:
    """Return a source's row for the table of sources in the data card."""
    allowed = ", ".join(use for use, permitted in sorted(one.terms.items()) if permitted) or "nothing"
    return one.bucket, one.domain, one.snapshot, one.kind, one.licence, allowed, one.evidence


def domain_table(page: PaperPage, found: DomainTable, evidence: str) -> None:
    """Write the table of the domains with the most training text."""
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


def _dataset_front(facts: PaperFacts) -> str:
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
