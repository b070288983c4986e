"""The asset `proxies`: the output of a checkpoint for generated items, and the probability of right and broken answers;
its stage, its items compared between two models, its scores in MLflow, its section of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from plinth import fingerprint
from plinth.compute import context
from plinth.compute.context import Context
from plinth.evaluation.comparison.pairs import Pairs, by_name, part_table
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Request, Sampling
from plinth.evaluation.measurement import ModelScores, Stats
from plinth.evaluation.statistics import Estimate, mean, ratio, share
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Part, Step
from plinth.report.evaluation import BITS, Section, group, measure
from plinth.sections import of
from plinth.storage.parts import write_table
from plinth.storage.store import Store
from plinth_assets.framework.inputs import shared_owner
from plinth_assets.framework.present import interval, markdown, table
from plinth_assets.framework.stage import Inputs, Say, Stage
from plinth_extras.proxies.families import END, Proxy, passes, proxies
from plinth_extras.proxies.parameters import Proxies

ASSET = "proxies"
VERSION = "2"
FILE = "items.parquet"

#: A row per item: `passed` says whether the model's own answer passes, `bits` and `broken_bits` are the -log2 p of the
#: right and of the broken answer, which have `bytes` each.
ITEMS = pa.schema(
    [
        pa.field("family", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("prompt", pa.string(), nullable=False),
        pa.field("answer", pa.string(), nullable=False),
        pa.field("output", pa.string(), nullable=False),
        pa.field("passed", pa.bool_(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("bits", pa.float64(), nullable=False),
        pa.field("broken_bits", pa.float64(), nullable=False),
    ]
)

Rows = Sequence[Mapping[str, Any]]


def stages(recipe: Recipe) -> list[Stage]:
    """One asset, where the recipe asks for it."""
    given = of(recipe.evaluation, "proxies", Proxies)
    if given is None:
        return []
    return [
        Stage(
            asset=ASSET,
            deps=("checkpoint",),
            make=partial(_make, given),
            version=VERSION,
            params=given.model_dump(mode="json"),
            libraries=fingerprint.libraries("jsonschema"),
            group="evaluation",
            description="Product proxies, checked by code: JSON to a schema, formats, tool calls, instructions.",
            owner=shared_owner(recipe),
            kinds=("pytorch",),
            schema=ITEMS,
            present=_present,
            pool="training",
        )
    ]


def _make(given: Proxies, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    return run(ctx, given, inputs["checkpoint"])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    families = made.stats["families"] | {"all": made.stats["overall"]}
    rows = [
        [family, name, found["value"], interval(found), found["n"]]
        for family, own in families.items()
        for name, found in own.items()
    ]
    return {"scores": markdown(table(["family", "score", "value", "95% interval", "items"], rows))}


def run(ctx: Context, params: Proxies, checkpoint: Manifest) -> Manifest:
    """Ask a checkpoint every item; one part with `ITEMS`.

    Stats: `families` (family -> `passed`, `prefers`, `margin` in bits, `bits_per_byte`, each with interval and n),
    `overall` (the same), `seed`.

    Raises:
        CheckpointError, TrainingError: the checkpoint cannot be loaded or evaluated.
    """
    libraries = fingerprint.libraries("jsonschema")
    step = Step(name=ASSET, version=VERSION, params=params.model_dump(mode="json"), libraries=libraries)

    def made() -> list[Part]:
        asked = proxies(params.items, params.seed)
        with ModelEngine.of(ctx, checkpoint, label=ASSET) as engine:
            rows = answered(engine, asked, params.max_tokens)
        table = pa.Table.from_pylist(rows, schema=ITEMS)
        return [write_table(ctx.store, FILE, table, stats=summary(rows, params.seed))]

    parts = context.cached(ctx, step, [checkpoint], made)
    return context.manifest(ASSET, step, {"checkpoint": checkpoint}, parts, parts[0].stats)


def answered(engine: ModelEngine, asked: Sequence[Proxy], max_tokens: int) -> list[dict[str, Any]]:
    """Rows of `ITEMS`, in the order of the items."""
    pairs = [Request(one.prompt, answer) for one in asked for answer in (one.answer + END, one.broken + END)]
    bits = engine.likelihoods(pairs).bits.reshape(-1, 2)
    written = engine.generate([one.prompt for one in asked], Sampling(max_tokens=max_tokens, stop=(END,)))
    return [
        {
            "family": one.family,
            "number": one.number,
            "prompt": one.prompt,
            "answer": one.answer,
            "output": found.text,
            "passed": passes(one.check, one.asked, found.text),
            "bytes": len((one.answer + END).encode()),
            "bits": float(right),
            "broken_bits": float(broken),
        }
        for one, found, (right, broken) in zip(asked, written, bits, strict=True)
    ]


def summary(rows: Rows, seed: int) -> dict[str, Any]:
    """Estimates by family and of all."""
    families = sorted({row["family"] for row in rows})
    found = {family: _estimates([row for row in rows if row["family"] == family], seed) for family in families}
    return {"families": found, "overall": _estimates(rows, seed), "seed": seed}


def _estimates(rows: Rows, seed: int) -> dict[str, Any]:
    margins = [row["broken_bits"] - row["bits"] for row in rows]
    made: dict[str, Callable[[], Estimate]] = {
        "passed": lambda: share(sum(row["passed"] for row in rows), len(rows)),
        "prefers": lambda: share(sum(margin > 0 for margin in margins), len(rows)),
        "margin": lambda: mean(margins),
        "bits_per_byte": lambda: ratio([row["bits"] for row in rows], [row["bytes"] for row in rows], seed=seed),
    }
    return {name: make().model_dump(mode="json") for name, make in made.items()}


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Of every family of proxies the items that pass, and the bits of right answers."""
    sides = [part_table(store, made, FILE) for made in (a, b)]
    for what, value, weight in (("passed", "passed", None), (BITS, "bits", "bytes")):
        yield from by_name(ASSET, "family", what, sides, value, weight, item="number", text="prompt")


def scores(made: Manifest) -> ModelScores:
    """The estimates of every family."""
    groups = {f"{ASSET}/{family}": found for family, found in made.stats["families"].items()}
    return ModelScores(dataset=ASSET, digest=fingerprint.digest(made.params), groups=groups)


def section(_: str, stats: Stats) -> Section:
    """What the checkpoint writes where a product wants a form."""
    families = stats["families"] | {"all": stats["overall"]}
    passed = [measure(name, own["passed"]) for name, own in families.items()]
    prefers = [measure(name, own["prefers"], reference=0.5) for name, own in families.items()]
    return Section(
        key=ASSET,
        title="Product proxies",
        lead="Generated items, checked by code: does the answer pass, and is the right one likelier than a broken one?",
        groups=(
            group("Answers that pass", "share", "higher", "", passed),
            group("Right answer likelier than a broken one", "share", "higher", "chance", prefers),
        ),
    )
