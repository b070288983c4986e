"""The tables of docs/parallel.md: which combinations train, why others are refused, differences from one process."""

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
    return "\n\n".join((_pairs(), _refusals(), _measured(record)))


def write() -> None:
    """Put the tables into the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}")


def written() -> str:
    """Return the current text between the markers of the page."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0].strip()


def _pairs() -> str:
    values = [(axis, value) for axis, choices in parallel_cases.AXES.items() for value in choices]
    usual = parallel_cases.Case()._asdict()
    shown = [(axis, value) for axis, value in values if axis == "zero_stage" or value != usual[axis]]
    no = {frozenset(pair) for pair in parallel_cases.refused(2)}
    columns = [one for one in shown if any(one in pair for pair in no)]
    always = [parallel_cases.word(*one) for one in shown if one not in columns]
    head = "| | " + " | ".join(parallel_cases.word(*one) for one in columns) + " |"
    rows = [
        f"| **{parallel_cases.word(*row)}** | " + " | ".join(_cell(row, column, no) for column in columns) + " |"
        for row in columns
    ]
    rule = "|---" * (len(columns) + 1) + "|"
    table = "\n".join((head, rule, *rows))
    return f"{table}\n\nThese work with every setting above and together: {', '.join(always)}."


def _cell(row: tuple[str, Any], column: tuple[str, Any], no: set[frozenset[tuple[str, Any]]]) -> str:
    if row[0] == column[0]:
        return ""
    return "no" if frozenset((row, column)) in no else "yes"


def _refusals() -> str:
    lines = ["| refused | why, and what would do |", "|---|---|"]
    for strength in (2, 3):
        for interaction, reason in parallel_cases.refused(strength).items():
            lines.append(f"| {parallel_cases.phrase(interaction)} | {reason} |")
    return "\n".join(lines)


def _measured(record: dict[str, Any]) -> str:
    lines = ["| precision | cases trained | loss off by at most | gradient norm, relative |", "|---|---|---|---|"]
    for precision, (count, loss, norm) in record["worst"].items():
        lines.append(f"| {precision.upper()} | {count} | {loss:.1e} nats | {norm:.1e} |")
    return "\n".join(lines) + f"\n\nCompiled cases used PyTorch's backend `{record['backend']}`."
