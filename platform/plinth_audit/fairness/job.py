"""Asset `fairness`: likelihoods of text pairs and sampled continuations of a checkpoint, computed by one engine.

Continuations are sampled with a seed and scored by the corpus's toxicity annotator, with the same lexicon, classifier
and thresholds. Continuations are not corpus documents, so no other annotator runs on them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plinth import fingerprint, sections
from plinth.compute import context
from plinth.compute.context import Context
from plinth.corpus import annotate
from plinth.errors import SourceError
from plinth.evaluation import pii, statistics
from plinth.evaluation.comparison.pairs import Pairs, align, chosen, labelled, part_table
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Request, Sampling
from plinth.evaluation.measurement import Figures, Stats
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Part, Step
from plinth.report.evaluation import Section, group, measure
from plinth.storage import listing
from plinth.storage.files import opened
from plinth.storage.parts import named_table, read_table, write_table
from plinth.storage.store import Store
from plinth.text import counted
from plinth_assets.annotate import annotator_parameters
from plinth_assets.framework import Inputs, Say, Stage, Suite, between, present, shared_owner
from plinth_assets.framework.present import markdown
from plinth_audit.fairness.measurement import Fairness
from plinth_audit.fairness.pairs import (
    PROMPTS,
    Pair,
    RejectedLine,
    built_in,
    by_attribute,
    read_pairs,
    requests,
    values,
)

ASSET = "fairness"
VERSION = "3"
#: Corpus annotator that scores continuations, and their bucket name there.
ANNOTATOR, BUCKET = "toxicity", "fairness"
PAIRS, CONTINUATIONS, REJECTS = "pairs.parquet", "continuations.parquet", "rejects.parquet"
#: Maximum size of a file of pairs.
MAX_BYTES = 64 * 2**20

SCHEMA = pa.schema(
    [
        pa.field("set", pa.string(), nullable=False),  # built_in, or a file of the recipe
        pa.field("item", pa.string(), nullable=False),
        pa.field("attribute", pa.string(), nullable=False),
        pa.field("template", pa.string(), nullable=False),
        pa.field("favourable", pa.bool_(), nullable=False),
        pa.field("tokens_a", pa.int64(), nullable=False),
        pa.field("tokens_b", pa.int64(), nullable=False),
        pa.field("bits_a", pa.float64(), nullable=False),
        pa.field("bits_b", pa.float64(), nullable=False),
        pa.field("favoured", pa.float64(), nullable=False),  # bits by which group a is favored
    ]
)
REJECT_SCHEMA = pa.schema(
    [
        pa.field("set", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)


class ToxicityJudge(NamedTuple):
    """The recipe's toxicity annotator: its parameters, and the manifests of the resources that it reads."""

    params: Mapping[str, Any]
    resources: Mapping[str, Manifest]


class WrittenText(NamedTuple):
    """Continuation of a prompt, sampled from the model."""

    prompt: str
    draw: int
    text: str


def run(ctx: Context, params: Fairness, checkpoint: Manifest, judge: ToxicityJudge | None = None) -> Manifest:
    """Measure the bias of a checkpoint on counterfactual pairs, and the toxicity of its continuations.

    Args:
        judge: the recipe's toxicity annotator; if None, no continuations are generated.

    Returns:
        Manifest of `pairs.parquet` (`SCHEMA`), `rejects.parquet` (invalid lines) and, with a judge,
        `continuations.parquet`. Stats: `attributes` (`pairs.by_attribute`), `toxicity` (`toxicity`) or None,
        `pairs`, `rejects`, `seed` of the continuations.

    Raises:
        SourceError, RejectRateError: a file is missing or has no valid pairs. TrainingError: scoring fails.
    """
    known, rejects, files = load(ctx, params)
    facts = params.model_dump(mode="json") | ({"judge": dict(judge.params)} if judge else {})
    libraries = annotate.libraries(ANNOTATOR, judge.params) if judge else {}
    step = Step(name=ASSET, version=VERSION, params=facts, libraries=libraries)
    inputs: dict[str, Manifest | str] = {"checkpoint": checkpoint, **files}
    inputs |= dict(judge.resources) if judge else {}
    parts = context.cached(
        ctx, step, inputs.values(), lambda: _measured(ctx, params, checkpoint, judge, known, rejects)
    )
    scored = read_table(ctx.store, parts[0])
    stats: dict[str, Any] = {
        "attributes": by_attribute(known, scored["favoured"].to_numpy()),
        "toxicity": toxicity(read_table(ctx.store, parts[2])) if judge else None,
        "pairs": len(known),
        "rejects": len(rejects),
        "seed": 0,
    }
    return context.manifest(ASSET, step, inputs, parts, stats)


def load(ctx: Context, params: Fairness) -> tuple[list[Pair], list[RejectedLine], dict[str, str]]:
    """Return all counterfactual pairs, all rejected lines, and the digests of the user's pair files.

    Raises:
        SourceError, RejectRateError: a file is missing, has no valid pairs, or has too many invalid lines.
    """
    known, rejects, digests = built_in() if params.built_in else [], list[RejectedLine](), dict[str, str]()
    for name, path in sorted(params.pairs.items()):
        digests[f"file:{name}"], data = _file(ctx, name, path)
        found, bad = read_pairs(name, data, params.max_rejected)
        known, rejects = [*known, *found], [*rejects, *bad]
    if not known:
        raise SourceError(
            "evaluation.fairness has no pairs", expected="`built_in: true`, or your own text pairs in `pairs`"
        )
    return known, rejects, digests


def outside(params: Fairness, ctx: Context) -> str:
    """Return a digest of the user's pair files."""
    return fingerprint.digest([[name, _file(ctx, name, path)[0]] for name, path in sorted(params.pairs.items())])


def _file(ctx: Context, name: str, path: str) -> tuple[str, bytes]:
    found = listing.inventory(path, ctx.workspace.input)
    if len(found) != 1 or found[0].bytes > MAX_BYTES:
        raise SourceError(
            f"evaluation.fairness.pairs.{name}: {path} is not a single file with text pairs",
            found=f"{len(found)} files, {sum(one.bytes for one in found):,} bytes",
            expected=f"one JSONL file of at most {MAX_BYTES:,} bytes in {ctx.workspace.input}",
        )
    with opened(found[0]) as stream:
        return found[0].sha256, stream.read()


def _measured(
    ctx: Context,
    params: Fairness,
    checkpoint: Manifest,
    judge: ToxicityJudge | None,
    known: Sequence[Pair],
    rejects: Sequence[RejectedLine],
) -> tuple[Part, ...]:
    with ModelEngine.of(ctx, checkpoint, label=ASSET) as engine:
        answers = engine.likelihoods(requests(known))
        written = write(engine, params) if judge else []
    refused = pa.Table.from_pylist([one._asdict() for one in rejects], schema=REJECT_SCHEMA)
    made = [
        write_table(ctx.store, PAIRS, table(known, answers.tokens, answers.bits)),
        write_table(ctx.store, REJECTS, refused),
    ]
    if judge:
        made.append(write_table(ctx.store, CONTINUATIONS, judged(ctx, judge, written)))
    return tuple(made)


def table(known: Sequence[Pair], tokens: NDArray[np.int64], bits: NDArray[np.float64]) -> pa.Table:
    """Return rows of `SCHEMA`, one per counterfactual pair.

    Args:
        tokens, bits: token counts and losses of both sides of every pair, [2 N].
    """
    columns: dict[str, Any] = {name: [getattr(pair, name) for pair in known] for name in SCHEMA.names[:5]}
    columns |= {"tokens_a": tokens[::2], "tokens_b": tokens[1::2], "bits_a": bits[::2], "bits_b": bits[1::2]}
    return pa.table(columns | {"favoured": values(known, bits)}, schema=SCHEMA)


def write(engine: ModelEngine, params: Fairness) -> list[WrittenText]:
    """Generate `draws` continuations of every prompt."""
    made = []
    for draw in range(params.draws):
        sampling = Sampling(max_tokens=params.max_tokens, temperature=1.0, top_p=0.95, seed=draw)
        answers = engine.generate(list(PROMPTS), sampling)
        made += [WrittenText(prompt, draw, one.text) for prompt, one in zip(PROMPTS, answers, strict=True)]
    return made


def judged(ctx: Context, judge: ToxicityJudge, written: Sequence[WrittenText]) -> pa.Table:
    """Return a table of continuations: prompt, draw, text, `score` (the annotator's `final`) and `label`."""
    texts = {f"fairness://{PROMPTS.index(one.prompt)}/{one.draw}": one.text for one in written}
    documents = pii.documents(ctx, BUCKET, texts)
    scored = annotate.run(ctx, BUCKET, ANNOTATOR, judge.params, documents, judge.resources)
    columns = read_table(ctx.store, scored.named("part-")[0], ["final", "label"])
    return pa.table(
        {
            "prompt": [one.prompt for one in written],
            "draw": pa.array([one.draw for one in written], pa.int32()),
            "text": [one.text for one in written],
            "score": columns["final"],
            "label": columns["label"],
        }
    )


def toxicity(rows: pa.Table) -> dict[str, Any]:
    """Return the mean toxicity score of continuations, clustered by prompt, and the share of toxic texts with its upper
    bound."""
    labels = rows["label"].to_pylist()
    toxic = labels.count("toxic")
    return {
        "score": statistics.mean(rows["score"].to_numpy(), rows["prompt"].to_pylist()).model_dump(mode="json"),
        "toxic": statistics.share(toxic, len(labels)).model_dump(mode="json"),
        "toxic_at_most": statistics.upper_share(toxic, len(labels)),
    }


def stages(recipe: Recipe) -> list[Stage]:
    """Return the stage that measures fairness, or no stage if the recipe does not enable the measurement."""
    params = sections.of(recipe.evaluation, "fairness", Fairness)
    if params is None:
        return []
    return [
        Stage(
            asset=ASSET,
            deps=("checkpoint", *_resources(recipe)),
            make=partial(_make, recipe, params),
            outside=partial(outside, params) if params.pairs else None,
            version=VERSION,
            params=params.model_dump(mode="json") | {"judge": annotator_parameters(recipe).get(ANNOTATOR)},
            group="evaluation",
            description="Bias by attribute, measured on counterfactual text pairs, and toxicity of continuations.",
            owner=shared_owner(recipe),
            kinds=("pytorch", "parquet"),
            schema=SCHEMA,
            suite=_suite,
            present=_present,
            pool="training",
        )
    ]


def _resources(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of the word lists and models that the recipe's toxicity annotator needs."""
    params = annotator_parameters(recipe).get(ANNOTATOR)
    if params is None:
        return ()
    return annotate.annotator(ANNOTATOR).needs(annotate.parameters(ANNOTATOR, params))


def _make(recipe: Recipe, params: Fairness, ctx: Context, inputs: Inputs, say: Say) -> Manifest:
    given = annotator_parameters(recipe).get(ANNOTATOR)
    judge = None if given is None else ToxicityJudge(given, {key: inputs[key] for key in _resources(recipe)})
    return run(ctx, params, inputs["checkpoint"], judge)


def _suite(made: Manifest, inputs: Inputs) -> Suite:
    rows = [{"pairs": one["n"], "templates": one["clusters"]} for one in made.stats["attributes"].values()]
    return Suite(ASSET, rows, [between("pairs", 1, None), between("templates", 2, None, "warning")])


def _present(ctx: Context, made: Manifest) -> dict[str, Any]:
    header = ["attribute", "bias toward a (bits)", "from", "to", "corrected p", "found", "smallest effect", "pairs"]
    names = ("value", "low", "high", "p_adjusted", "found", "smallest_effect", "n")
    rows = [[name, *(_cell(one[key]) for key in names)] for name, one in made.stats["attributes"].items()]
    shown: dict[str, Any] = {"attributes": markdown(present.table(header, rows))}
    if made.stats["toxicity"] is not None:
        shown["toxic_share"] = float(made.stats["toxicity"]["toxic"]["value"])
        shown["toxic_share_at_most"] = float(made.stats["toxicity"]["toxic_at_most"])
    return shown


def _cell(value: Any) -> Any:
    return "-" if value is None else ("yes" if value else "no") if isinstance(value, bool) else value


def recount(ctx: Context, made: Manifest, _: Mapping[str, Manifest]) -> Figures:
    rows = named_table(ctx.store, made, PAIRS).to_pylist()
    names = ("set", "item", "attribute", "template", "favourable")
    texts = [Pair(**{name: row[name] for name in names}, a=Request("", ""), b=Request("", "")) for row in rows]
    bits = np.array([row[side] for row in rows for side in ("bits_a", "bits_b")])
    attributes, judged = by_attribute(texts, values(texts, bits)), made.stats["toxicity"]
    counted = {"attributes": _ends(attributes)}
    stated = {"attributes": _ends(made.stats["attributes"])}
    if judged is not None:
        stated["toxicity"] = _toxic(judged)
        counted["toxicity"] = _toxic(toxicity(named_table(ctx.store, made, CONTINUATIONS)))
    return stated, counted


def _ends(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: {key: one[key] for key in ("n", "low", "high")} for name, one in attributes.items()}


def _toxic(stats: Mapping[str, Any]) -> dict[str, Any]:
    return {"n": stats["toxic"]["n"], "toxic_at_most": stats["toxic_at_most"]}


def pairs(store: Store, a: Manifest, b: Manifest) -> Iterator[Pairs]:
    """Yield paired values of two models: the absolute group difference of each pair in bits, and the toxicity of each
    continuation."""
    sides = [_counterfactuals(part_table(store, made, "pairs.parquet")) for made in (a, b)]
    yield align("fairness", "bits between groups", *sides, fewer_is_better=True, ratio=False)
    written = [part_table(store, made, "continuations.parquet") for made in (a, b)]
    if known := [side for side in written if len(side)]:
        scores = [_continuations(side if len(side) else known[0].slice(0, 0)) for side in written]
        yield align("fairness", "toxicity of continuations", *scores, fewer_is_better=True, ratio=False)


def _counterfactuals(table: pa.Table) -> pa.Table:
    own = pc.binary_join_element_wise(table["set"], table["attribute"], "/")
    attribute = pc.if_else(pc.equal(table["set"], "built_in"), table["attribute"], own)
    named = pa.table({"item": pc.binary_join_element_wise(table["set"], table["item"], "/"), "attribute": attribute,
                      "apart": pc.abs(table["favoured"]), "template": table["template"]})  # fmt: skip
    return chosen(named, "apart", cluster="template", slices=labelled(named, {"attribute": "attribute"}))


def _continuations(table: pa.Table) -> pa.Table:
    item = pc.binary_join_element_wise(table["prompt"], pc.cast(table["draw"], pa.string()), " #")
    return chosen(table.append_column("item", item), "score", cluster="prompt")


def section(_: str, stats: Stats) -> Section:
    """Return the page section on bias by attribute and on toxicity of continuations."""
    found = [name for name, row in stats["attributes"].items() if row["found"]]
    measures = [measure(name, row, reference=0.0) for name, row in stats["attributes"].items()]
    bias = f"The model favors a group in {', '.join(found)}" if found else "No significant bias was detected"
    toxic = stats["toxicity"]
    judged = "" if toxic is None else f" Toxic continuations: ≤ {toxic['toxic_at_most']:.1%} (95% upper bound)."
    return Section(
        key="fairness",
        title="Bias and safety",
        lead=f"{counted(stats['pairs'], 'pair')} of texts that differ only in the group. {bias} after correction for "
        f"testing all attributes.{judged}",
        groups=(group("Bias toward the first group", "bits", "lower", "no bias", measures),),
    )
