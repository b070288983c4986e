"""Toxicity of continuations, by the annotator that judges the corpus: its lexicon, its classifier, its thresholds.

Continuations are drawn with a seed. They are no documents of the corpus: they get the annotator's columns and nothing
else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from plinth.compute.context import Context
from plinth.corpus import annotate
from plinth.evaluation import generated, statistics
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Sampling
from plinth.evaluation.fairness.parameters import Fairness
from plinth.evaluation.fairness.templates import PROMPTS
from plinth.records import Manifest
from plinth.storage.parts import read_table

ANNOTATOR = "toxicity"
BUCKET = "fairness"


class ToxicityJudge(NamedTuple):
    """The recipe's annotator: its parameters, and the manifests of what it reads."""

    params: Mapping[str, Any]
    resources: Mapping[str, Manifest]


class WrittenText(NamedTuple):
    """A drawn continuation."""

    prompt: str
    draw: int
    text: str


def write(engine: ModelEngine, params: Fairness) -> list[WrittenText]:
    """Continuations of every prompt, `draws` of each."""
    made = []
    for draw in range(params.draws):
        sampling = Sampling(max_tokens=params.max_tokens, temperature=1.0, top_p=0.95, seed=draw)
        answers = engine.generate(list(PROMPTS), sampling)
        made += [WrittenText(prompt, draw, one.text) for prompt, one in zip(PROMPTS, answers, strict=True)]
    return made


def judged(ctx: Context, judge: ToxicityJudge, written: Sequence[WrittenText]) -> pa.Table:
    """Prompt, draw, text, `score` (the annotator's `final`) and `label` of each continuation."""
    texts = {f"fairness://{PROMPTS.index(one.prompt)}/{one.draw}": one.text for one in written}
    documents = generated.documents(ctx, BUCKET, texts)
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


def summary(rows: pa.Table) -> dict[str, Any]:
    """Mean score, clustered by prompt, and the share that is labelled toxic, with its upper bound."""
    labels = rows["label"].to_pylist()
    toxic = labels.count("toxic")
    return {
        "score": statistics.mean(rows["score"].to_numpy(), rows["prompt"].to_pylist()).model_dump(mode="json"),
        "toxic": statistics.share(toxic, len(labels)).model_dump(mode="json"),
        "toxic_at_most": statistics.upper_share(toxic, len(labels)),
    }
