"""Gates that can be measured: the annotator behind each, and how documents of known truth are made for it.

A new gate is a generator and a line here; or a line alone, for a gate that only lists and reviewers label.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plinth.corpus.slices import generate, illegal
from plinth.corpus.slices.generate import Labelled, Term
from plinth.errors import RecipeError
from plinth.extensions import nearest

#: Of a seed, documents of each truth in every slice, and terms that may be planted.
Generate = Callable[[int, int, Sequence[Term]], list[Labelled]]
#: What may be planted, out of the files of the annotator's lists.
Plants = Callable[[Mapping[str, Mapping[str, Path]]], tuple[Term, ...]]


@dataclass(frozen=True)
class MeasuredGate:
    """A gate: the annotator whose columns its rules read, its generator, and whether that plants terms of the lists
    that the annotator reads, which then are lexicons; `plants` reads lists of another form."""

    name: str
    annotator: str
    generate: Generate | None = None
    plants_terms: bool = False
    plants: Plants | None = None


MEASURED_GATES = {
    gate.name: gate
    for gate in (
        MeasuredGate("quality", "quality_classifier", generate.quality),
        MeasuredGate("toxicity", "toxicity", generate.toxicity, plants_terms=True),
        MeasuredGate("pii", "pii"),
        MeasuredGate("domain", "domain"),
        MeasuredGate("illegal", "illegal", illegal.generate, plants=illegal.plants),
    )
}


def measured_gate(name: str) -> MeasuredGate:
    """A gate by name.

    Raises:
        RecipeError: no such gate; the nearest name is given.
    """
    if name not in MEASURED_GATES:
        remedy = nearest(name, MEASURED_GATES)
        raise RecipeError(f"corpus.slices: no gate {name!r}", expected=", ".join(MEASURED_GATES), remedy=remedy)
    return MEASURED_GATES[name]
