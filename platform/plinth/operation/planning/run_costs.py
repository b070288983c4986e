"""What a finished run cost by stage, and what a corpus of another size would cost at the same rates.

Tasks and operations of the store grow with parts, CPU time and bytes with text. One run gives rates in proportion; of
several of different sizes a line is fitted, so that what every run costs once is not taken for a cost of its text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from plinth.compute import costs
from plinth.errors import MissingError
from plinth.records import Frozen
from plinth.storage.state import State

#: Stages of an estimate by the assets that make them; an asset's last piece where it is one of a bucket. Annotators are
#: known by their steps, for one reading serves all.
STAGES = {
    "sources": "documents",
    "documents": "documents",
    "policy": "policy and verdicts",
    "verdicts": "policy and verdicts",
    "dedup/exact": "exact duplicates",
    "minhash": "MinHash signatures",
    "dedup/index": "near duplicates",
    "dedup/minhash": "near duplicates",
    "dedup/semantic": "look-alikes",
    "dedup/lines": "lines",
    "dedup/substring": "substring",
    "holdout": "held out, curated",
    "contamination": "held out, curated",
    "protected": "protected",
    "curated": "held out, curated",
}
ANNOTATE = "annotate"


class Amount(NamedTuple):
    """What a stage costs."""

    cpu_s: float = 0.0
    tasks: float = 0.0
    operations: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    wall_s: float = 0.0


def sum_amounts(many: Iterable[Amount]) -> Amount:
    """Their sum, name by name."""
    return Amount(*map(sum, zip(Amount(), *many, strict=True)))


#: Amounts that grow with parts; the others grow with text.
BY_PARTS = {"tasks", "operations"}


class RunCosts(Frozen):
    """A finished run.

    Args:
        annotators: those that it has.
        spared: share of its items that an earlier run had done.
    """

    text_bytes: float
    documents: int
    parts: int
    annotators: tuple[str, ...]
    stages: Mapping[str, Amount]
    spared: float


def of_run(state: State) -> RunCosts:
    """The recorded costs of what is published in a workspace.

    Raises:
        MissingError: nothing was recorded, or there are no documents.
    """
    amounts, annotators, spared, items = dict[str, Amount](), set[str](), 0, 0
    text_bytes, documents, parts = 0, 0, 0
    for ref in state.refs.all():
        kind = _kind(ref.asset)
        if kind == "documents":
            made = state.refs.load(ref.digest)
            text_bytes, parts = text_bytes + made.stats["text_bytes"], parts + len(made.named("part-"))
            documents += made.stats["documents"]
        cost = costs.load(state.workspace, ref.asset)
        if cost is None:
            continue
        stage, tasks = STAGES.get(kind, kind), cost.tasks
        if any(step.startswith("annotate/") for step in cost.steps):
            stage = ANNOTATE
            annotators.add(kind)
        else:  # other annotators find their items done by the first, and a stage those of the one before it
            spared, items = spared + tasks.spared, items + tasks.spared + tasks.tasks
        cpu_s = tasks.cpu_s + cost.driver_cpu_s
        mine = Amount(cpu_s, tasks.tasks, tasks.operations, tasks.read_bytes, tasks.written_bytes, cost.wall_s)
        amounts[stage] = sum_amounts([amounts.get(stage, Amount()), mine])
    if not amounts or not text_bytes:
        raise MissingError(
            f"no costs of a run in {state.workspace.root}",
            found="no documents" if amounts else "no records of costs",
            expected="a workspace in which `plinth run` has made documents and what follows",
            remedy="run the pipeline there; what a version before this one made has no record",
        )
    return RunCosts(
        text_bytes=text_bytes,
        documents=documents,
        parts=parts,
        annotators=tuple(sorted(annotators)),
        stages=amounts,
        spared=spared / max(1, items),
    )


def _kind(asset: str) -> str:
    first, _, rest = asset.partition("/")
    return asset if first == "dedup" or not rest else first if first in ("models", "lists") else rest


def predict(runs: Sequence[RunCosts], text_bytes: float, parts: int) -> dict[str, Amount]:
    """What every stage of these runs would cost for so much text in so many parts."""
    found = {}
    for stage in dict.fromkeys(stage for run in runs for stage in run.stages):
        mine = [run for run in runs if stage in run.stages]
        values = []
        for name in Amount._fields:
            by_parts = name in BY_PARTS
            sizes = [run.parts if by_parts else run.text_bytes for run in mine]
            fixed, slope = line(sizes, [getattr(run.stages[stage], name) for run in mine])
            values.append(fixed + slope * (parts if by_parts else text_bytes))
        found[stage] = Amount(*values)
    return found


def line(sizes: Sequence[float], amounts: Sequence[float]) -> tuple[float, float]:
    """Fixed amount and amount per size, neither below 0: the line of least squares."""
    x, y = np.array(sizes, dtype=np.float64), np.array(amounts, dtype=np.float64)
    if np.unique(x).size > 1:
        slope, fixed = np.polyfit(x, y, 1)
        if slope >= 0 and fixed >= 0:
            return float(fixed), float(slope)
        if slope < 0:
            return float(y.mean()), 0.0
    return 0.0, float((x * y).sum() / (x * x).sum())
