"""Runs of a ladder as a table: columns `params`, `tokens`, `loss`, if one likes `trunk`, and any number of probes."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass

import numpy as np

from plinth.errors import RequestError
from plinth.experiment.scaling.fit import ScalingRun
from plinth.experiment.scaling.law import CORRECTED

COLUMNS = ("params", "tokens", "loss")
#: Names the training that a line is a horizon of; lines of one training are not independent.
TRUNK = "trunk"


@dataclass(frozen=True)
class RunTable:
    """Runs that ended with a loss, and lines of runs that did not, with their loss as it was written."""

    runs: tuple[ScalingRun, ...]
    failed: tuple[tuple[int, str], ...]


def read_table(text: str) -> RunTable:
    """The runs of a CSV. A loss that is empty or not finite is a failed run; an empty probe was not scored.

    Raises:
        RequestError: a column is missing, or a line has what is no number; with its line.
    """
    reader = csv.DictReader(io.StringIO(text))
    names = [name.strip() for name in reader.fieldnames or ()]
    lacking = [name for name in COLUMNS if name not in names]
    if lacking:
        found, expected = ", ".join(names), ", ".join(COLUMNS)
        raise RequestError(f"the table has no column {lacking[0]!r}", found=found, expected=expected)
    runs, failed = [], []
    for row in reader:
        cells = {str(name).strip(): str(value or "").strip() for name, value in row.items()}
        line = reader.line_num
        loss = _number(cells["loss"] or "nan", "loss", line)
        if not math.isfinite(loss):
            failed.append((line, cells["loss"] or "no loss"))
            continue
        scored = [name for name in names if name not in (*COLUMNS, TRUNK) and cells[name]]
        probes = {name: _number(cells[name], name, line) for name in scored}
        sizes = {name: _number(cells[name], name, line) for name in ("params", "tokens")}
        wrong = [name for name, value in (*sizes.items(), ("loss", loss)) if not 0 < value < math.inf]
        wrong += [name for name, value in probes.items() if not math.isfinite(value)]
        if wrong:
            found = cells[wrong[0]]
            raise RequestError(f"line {line} of the table: {wrong[0]}", found=found, expected="a number above 0")
        runs.append(ScalingRun(**sizes, loss=loss, probes=probes, trunk=cells.get(TRUNK, "")))
    return RunTable(tuple(runs), tuple(failed))


def example() -> str:
    """A table drawn from the corrected Chinchilla law with noise of 0.2%: five sizes, four horizons, one probe."""
    draw = np.random.default_rng(0)
    lines = ["params,tokens,loss,probe"]
    for params in (30e6, 60e6, 120e6, 250e6, 500e6):
        for multiple in (10, 20, 40, 80):
            loss = CORRECTED.loss(params, params * multiple) * math.exp(0.002 * draw.standard_normal())
            probe = 0.25 + 0.7 / (1 + math.exp(3 * (loss - 2.8))) + 0.005 * draw.standard_normal()
            lines.append(f"{params:.0f},{params * multiple:.0f},{loss:.4f},{probe:.4f}")
    return "\n".join(lines) + "\n"


def _number(text: str, name: str, line: int) -> float:
    try:
        return float(text)
    except ValueError:
        raise RequestError(f"line {line} of the table: {name} is no number", found=text) from None
