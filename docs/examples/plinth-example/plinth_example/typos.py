"""A measurement with a gate: how many bits more a model needs where a text has typing errors.

One module has all of it: parameters, stage, facts for gates, the figures again from the rows, pairs for comparisons, a
section of the page, the gate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pydantic import Field

from plinth.compute.context import Context, cached, manifest
from plinth.evaluation import statistics
from plinth.evaluation.comparison.pairs import Pairs, align, chosen
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.measurement import MEASUREMENTS, Figures, Gate, GateVerdict, Measurement, Stats, single
from plinth.recipe.recipe import Recipe
from plinth.records import Frozen, Manifest, Part, Step
from plinth.report.evaluation import Section, group, measure
from plinth.storage.parts import named_table, read_table, write_table
from plinth.storage.store import Store
from plinth_assets.framework import Inputs, Say, Stage, shared_owner
from plinth_registry.gates.facts import Evidence

NAME, TABLE = "typos", "sentences.parquet"
SENTENCES = (
    "The committee will publish the report before the end of the month.",
    "She closed the window because the rain had started again.",
    "Most of the water in the river comes from melting snow.",
    "He asked the driver to wait in front of the station.",
    "The new bridge is longer than every other one in the country.",
    "They sold the old house and moved to a village near the coast.",
    "A good teacher explains the same thing in more than one way.",
    "The children found a small boat between the stones.",
)


class Typos(Frozen):
    """Which typing errors are made."""

    every: int = Field(4, ge=2, description="In every how-manyth word two neighboring letters are swapped.")


class TypoFacts(Frozen):
    """Facts for gates."""

    sentences: int
    at_most: float = Field(description="Upper end of the 95% interval of the mean, in bits of a sentence.")


def with_typos(text: str, every: int) -> str:
    """Swap the second and third letter of every n-th word with at least four letters."""
    words = text.split(" ")
    long = [at for at, word in enumerate(words) if len(word) >= 4][::every]
    for at in long:
        word = words[at]
        words[at] = word[0] + word[2] + word[1] + word[3:]
    return " ".join(words)


def stages(recipe: Recipe) -> list[Stage]:
    """One measurement per checkpoint, where the recipe names it under `evaluation.extensions`."""
    given = recipe.evaluation.extensions.get(NAME)
    if given is None:
        return []
    params = Typos.model_validate(given)
    return [
        Stage(
            asset=NAME,
            deps=("checkpoint",),
            make=partial(_make, params),
            version=MEASUREMENTS[NAME].version,
            params=params.model_dump(mode="json"),
            group="evaluation",
            description="Bits that a typing error costs the model.",
            owner=shared_owner(recipe),
            kinds=("pytorch", "parquet"),
            pool="training",
        )
    ]


def _make(params: Typos, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    step = Step(name=NAME, version=MEASUREMENTS[NAME].version, params=params.model_dump(mode="json"))

    def measured() -> list[Part]:
        texts = [text for one in SENTENCES for text in (one, with_typos(one, params.every))]
        with ModelEngine.of(ctx, inputs["checkpoint"], label=NAME) as engine:
            bits = engine.documents(texts).bits
        table = pa.table({"item": SENTENCES, "more": bits[1::2] - bits[::2]})
        return [write_table(ctx.store, TABLE, table)]

    parts = cached(ctx, step, [inputs["checkpoint"]], measured)
    return manifest(NAME, step, dict(inputs), parts, summary(read_table(ctx.store, parts[0])))


def summary(table: pa.Table) -> dict[str, Any]:
    """Return the mean of the additional bits, with its interval."""
    return {"more": statistics.mean(table["more"].to_numpy(), table["item"].to_pylist()).model_dump(mode="json")}


def read(stats: Stats) -> TypoFacts:
    """Facts from the statistics of a manifest."""
    return TypoFacts(sentences=stats["more"]["n"], at_most=stats["more"]["high"])


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    """Stated statistics, and those of the rows."""
    return dict(made.stats), summary(named_table(ctx.store, made, TABLE))


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Sentence by sentence, of two models."""
    sides = [chosen(named_table(store, made, TABLE), "more") for made in (a, b)]
    yield align(NAME, "bits more with typing errors", *sides, fewer_is_better=True, ratio=False)


def section(_: str, stats: Stats) -> Section:
    """Its part of the page of the evaluation."""
    cost = group(
        "Bits more of a sentence", "bits", "lower", "no cost", [measure("typos", stats["more"], reference=0.0)]
    )
    return Section(key=NAME, title="Typing errors", lead="Two letters are swapped in some words.", groups=(cost,))


MEASUREMENT = Measurement(
    name=NAME,
    description="Bits that a typing error costs the model.",
    asset=NAME,
    stages=stages,
    version="1",
    params=Typos,
    facts=TypoFacts,
    read=single(read),
    recount=recount,
    pairs=pairs,
    section=section,
)


class TypoBound(Frozen):
    """Limits of a release."""

    max_bits: float = Field(gt=0, description="Bits more of a sentence, as an upper bound.")


def judge(asked: TypoBound, evidence: Evidence) -> GateVerdict:
    """Pass where the upper bound is below the limit."""
    known = evidence.of(NAME, TypoFacts)
    assert known is not None  # it is among `needs`
    reason = f"typing errors cost up to {known.at_most:.1f} bits a sentence, limit {asked.max_bits:g}"
    return GateVerdict(passed=known.at_most < asked.max_bits, reason=f"{reason}, n {known.sentences}")


GATE = Gate(name=NAME, description="Typing errors cost few bits.", needs=(NAME,), judge=judge, params=TypoBound)
