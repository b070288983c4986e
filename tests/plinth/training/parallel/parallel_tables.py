"""The tables of docs/parallel.md: which combinations train, and differences from one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import parallel_cases

RECORD = Path(__file__).with_name("parallel_cases.json")
PAGE = Path(__file__).parents[4] / "docs" / "parallel.md"
BEGIN = "<!-- Written by tests/plinth/training/parallel/train_parallel_cases.py. -->"
END = "<!-- To here. -->"


def tables() -> str:
    """Return the new text between the two markers of the page."""
    record = json.loads(RECORD.read_text())
    return "\n\n".join((_refused(), _measured(record)))


def write() -> None:
    """Put the tables into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}")


def written() -> str:
    """Return the current text between the markers of the page."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def _refused() -> str:
    """Return the pairs and triples that are refused; all other pairs and triples work together."""
    partners: dict[tuple[str, Any], set[tuple[str, Any]]] = {}
    for one, other in parallel_cases.refused(2):
        partners.setdefault(one, set()).add(other)
        partners.setdefault(other, set()).add(one)
    order = [(axis, value) for axis, choices in parallel_cases.AXES.items() for value in choices]
    lines = ["| setting | does not work with |", "|---|---|"]
    for one in filter(partners.get, order):
        names = [parallel_cases.word(*other) for other in order if other in partners[one]]
        lines.append(f"| {parallel_cases.word(*one)} | {', '.join(names)} |")
    lines += [f"| all three | {parallel_cases.phrase(triple)} |" for triple in parallel_cases.refused(3)]
    return "\n".join(lines)


def _measured(record: dict[str, Any]) -> str:
    lines = ["| precision | cases trained | loss off by at most | gradient norm, relative |", "|---|---|---|---|"]
    for precision, (count, loss, norm) in record["worst"].items():
        lines.append(f"| {precision.upper()} | {count} | {loss:.1e} nats | {norm:.1e} |")
    return "\n".join(lines) + f"\n\nCompiled cases used PyTorch's backend `{record['backend']}`."
