"""The data card of a corpus: its text by bucket, and what it was screened for, in Markdown.

A subject that nothing screens says so in these words, however many other filters there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from plinth.text import markdown_code, markdown_text

NOT_SCREENED = "not screened"
TEST = "**This is a test recipe**: labelled sets may be generated, and gates may be without evidence."


@dataclass(frozen=True)
class CardBucket:
    """Text of a bucket.

    Args:
        licences: those of its sources, as the recipe declares them.
        documents, curated: before and after all stages.
        text_bytes: of curated text.
    """

    name: str
    description: str
    licences: tuple[str, ...]
    documents: int
    curated: int
    text_bytes: int


@dataclass(frozen=True)
class Screening:
    """What text is screened for: the rules by bucket, and what is known of how often they are right."""

    subject: str
    rules: Mapping[str, tuple[str, ...]]
    evidence: tuple[str, ...] = ()

    def state(self, buckets: Sequence[str]) -> str:
        """`screened`, `not screened`, or in which buckets it is not."""
        missing = [name for name in buckets if not self.rules.get(name)]
        if not missing:
            return "screened"
        return NOT_SCREENED if len(missing) == len(buckets) else f"{NOT_SCREENED} in {', '.join(missing)}"


def card(
    name: str, description: str, buckets: Sequence[CardBucket], screenings: Sequence[Screening], test: bool = False
) -> str:
    """The page, in Markdown; the same facts give the same bytes."""
    names = [bucket.name for bucket in buckets]
    lines = [f"# Data card: {markdown_text(name)}", "", *([markdown_text(description), ""] if description else [])]
    lines += [TEST, ""] if test else []
    lines += ["## Text", "", *_table(("bucket", "what", "licences", "documents", "curated", "curated text, bytes"))]
    for one in buckets:
        counts = (one.documents, one.curated, one.text_bytes)
        lines.append(_row((*map(markdown_text, (one.name, one.description, ", ".join(one.licences))), *counts)))
    lines += ["", "## Screening", "", *_table(("subject", "state", "rules", "how often they are right"))]
    for screening in screenings:
        rules = dict.fromkeys(rule for own in screening.rules.values() for rule in own)
        shown = "; ".join(map(markdown_code, rules)) or "-"
        evidence = markdown_text("; ".join(screening.evidence)) or "-"
        subject, state = markdown_text(screening.subject), f"**{markdown_text(screening.state(names))}**"
        lines.append(_row((subject, state, shown, evidence)))
    return "\n".join([*lines, ""])


def _table(header: Sequence[str]) -> list[str]:
    return [_row(header), "|---" * len(header) + "|"]


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells) + " |"
