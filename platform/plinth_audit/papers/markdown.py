"""Tables in Markdown whose rows name their evidence, and the list of it at the end of a paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from plinth.text.markdown import plain
from plinth_audit.papers.facts import NOT_STATED, EvidenceItem, PaperFacts, StatedFact

#: Digits of a digest in a row; the list at the end has all 64.
SHORT = 12


class PaperPage:
    """A page in Markdown that is written from above to below, and remembers the evidence its rows name."""

    def __init__(self, facts: PaperFacts) -> None:
        self._facts, self._lines, self._named = facts, list[str](), set[str]()

    def say(self, *lines: str) -> None:
        """Lines of Markdown, then an empty one. Text from outside goes through `plain` first."""
        self._lines += [*lines, ""]

    def table(self, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table whose rows end in the digest of their evidence, or `not stated` where there is no row.

        Args:
            header: of all columns but the last.
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
        """A table of facts."""
        self.table(("fact", "value"), ((one.name, one.value, one.evidence) for one in facts))

    def replayed(self) -> None:
        """Text of the model that the run began from, where the run read it again."""
        if found := self._facts.replayed:
            self.say("Replayed: text of the model that the run began from, as the mixture of that model had it.")
            rows = ((o.name, o.parent, o.tokens, o.seen_tokens, o.share, o.epochs, o.evidence) for o in found)
            self.table(("bucket", "of checkpoint", "tokens", "tokens seen", "share of the run", "epochs"), rows)

    def finished(self) -> str:
        """The page, with the list of the evidence that it names."""
        items = self._facts.evidence_of(self._named)
        self.say("## Evidence", "", *[_item(one) for one in items])
        return "\n".join(self._lines)


def shown(value: object) -> str:
    """A cell: numbers as people read them, text made plain."""
    if value is None:
        return NOT_STATED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else plain(value)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _item(one: EvidenceItem) -> str:
    return f"- `{one.sha256}` {one.kind}: {plain(one.name)}"
