"""The answer of an experiment about a source, from the manifests of its sample and its runs, and its wiring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from plinth.compute.context import Context
from plinth.corpus.sources.parameters import Bucket
from plinth.errors import MissingError, RequestError
from plinth.records import Manifest
from plinth.storage.parts import write_table
from plinth.storage.workspace import Workspace
from plinth_jobs.recipes import FOLDER
from plinth_lab.experiments import answer, arms, measure
from plinth_lab.experiments import stages as wiring
from plinth_lab.experiments.arms import Arm, Experiment
from plinth_lab.source_value import question as source_question
from plinth_lab.source_value.question import WITH
from plinth_lab.source_value.verdict import BUY, DO_NOT_BUY, SourceVerdict
from tests.plinth_lab.source_value.test_question import FILE
from tests.plinth_lab.source_value.test_value_page import FOUND

ALL = {**FOUND, "sample": {"documents": 200, "source_bytes": 10, "of_bytes": 10}}
DOCUMENTS = 30


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


@pytest.fixture
def asked(tmp_path: Path) -> tuple[Experiment, tuple[Arm, ...]]:
    path = tmp_path / "forum.yaml"
    path.write_text(FILE.replace("seeds: [3]", "seeds: [1, 2, 3]"))
    return arms.load(path, FOLDER)


def run(ctx: Context, arm: Arm, inputs: dict[str, Manifest]) -> Manifest:
    """A run that finished: the source helps by half a bit per byte from new weights, and not in annealing."""
    picks = np.random.default_rng(arm.seed)
    plain = 2.5 + picks.normal(0, 0.1, DOCUMENTS)
    gain = (0.5 if arm.size == "proxy" else 0.0) * (arm.arm == WITH)
    bits = plain - gain - (arm.arm == WITH) * np.random.default_rng([arm.seed, 7]).normal(0, 0.01, DOCUMENTS)
    rows = {
        "document": [f"{at:032x}" for at in range(DOCUMENTS)], "slice": ["prose"] * DOCUMENTS,
        "item": [str(at) for at in range(DOCUMENTS)], "bytes": [100] * DOCUMENTS, "bits": (100 * bits).tolist(),
    }  # fmt: skip
    part = write_table(ctx.store, measure.SCORES, pa.table(rows, schema=measure.COLUMNS))
    made = measure.kept(arm, "finished", "", inputs, [part], tokens=arm.tokens, curve=[], unsure=[])
    ctx.refs.save(made)
    return made


def test_the_sample_has_what_each_use_needs(asked: tuple[Experiment, tuple[Arm, ...]]) -> None:
    made = answer.sample_of(*asked, ALL)
    assert made.asset == "experiment/forum/sample"
    assert made.stats["needs"] == {"proxy": 512, "anneal": 640}  # 20% of 10,240 and 50% of 5,120 in four passes
    assert made.stats["refusal"] == ""
    cheaper = asked[0].model_copy(update={"source": asked[0].source.model_copy(update={"price": 1.0})})
    assert answer.sample_of(cheaper, asked[1], ALL).digest == made.digest
    with pytest.raises(RequestError, match="too small"):
        answer.sample_of(*asked, {**ALL, "effective": {**ALL["effective"], "factors": {"nominal_tokens": 639.0}}})


def test_runs_and_sample_make_the_verdict_and_the_page(ctx: Context, asked: tuple[Experiment, tuple[Arm, ...]]) -> None:
    experiment, runs = asked
    sample = answer.sample_of(experiment, runs, ALL)
    ctx.refs.save(sample)
    made = answer.of(ctx, experiment, runs, [run(ctx, one, {}) for one in runs], sample=sample)
    found = SourceVerdict.model_validate(made.stats["value"])
    assert (found.verdict, [one.use for one in found.gains]) == (BUY, ["proxy", "anneal"])
    assert found.gains[0].gain is not None
    assert found.gains[0].gain.value == pytest.approx(0.5, abs=0.02)
    assert found.unmeasured == tuple(
        f"{name}: not enabled in the recipe"
        for name in ("probes", "fairness", "memorisation/canaries", "memorisation/extraction", "pii/outputs")
    )
    assert made.inputs[sample.asset] == sample.digest
    page = answer.page(ctx, experiment, runs, made)
    assert 'Verdict: <span class="better">buy</span>' in page
    assert "sample_weights" in page  # the overlay of the arm with the source


def test_a_sample_that_answers_stops_every_run(ctx: Context, asked: tuple[Experiment, tuple[Arm, ...]]) -> None:
    experiment, runs = asked
    nothing = {**ALL, "effective": {**ALL["effective"], "tokens": {}}}
    sample = answer.sample_of(experiment, runs, nothing)
    assert sample.stats["refusal"].startswith("at most 0 of the source's 1,000,000 tokens ")
    ctx.refs.save(sample)
    stages = wiring.of(experiment, runs)
    assert [stages[0].asset, stages[-1].asset] == ["experiment/forum/sample", "experiment/forum/effects"]
    assert all(sample.asset in one.deps for one in stages[1:])
    stopped = [one.make(ctx, {sample.asset: sample}, print) for one in stages[1:-1]]
    assert {one.stats["status"] for one in stopped} == {"stopped"}
    for one in stopped:
        ctx.refs.save(one)
    made = stages[-1].make(ctx, {sample.asset: sample, **{one.asset: one for one in stopped}}, print)
    assert made.stats["value"]["verdict"] == DO_NOT_BUY
    assert made.stats["value"]["reason"] == sample.stats["refusal"]
    assert "do not buy" in answer.page(ctx, experiment, runs, made)


def test_the_command_line_writes_an_experiment(tmp_path: Path) -> None:
    terms = {"train": True, "redistribute": True, "commercial": True}
    source = {"kind": "jsonl", "path": "/data/My Forum.2026.jsonl", "licence": "MIT", "terms": terms, "domain": "d",
              "snapshot": "new", "fields": {"text": "body"}}  # fmt: skip
    bucket = Bucket.model_validate({"description": "d", "owner": "o", "sources": [source]})
    given = {"price": 20000.0, "share": 0.2, "currency": "EUR", "least_gain": None, "anneal": None}
    name = "/data/My Forum.2026.jsonl"
    where = (tmp_path, name, bucket, FOLDER / "tiny.yaml")
    path = source_question.write(*where, "test/prose.jsonl", given, 2)
    assert path == source_question.asked(tmp_path, name)
    asked, runs = arms.load(path, FOLDER)
    assert (asked.name, asked.seeds, len(runs)) == ("value-my-forum", (1, 2), 4)
    assert asked.source is not None
    assert (asked.source.price, asked.source.currency, asked.source.text_field) == (20000, "EUR", "body")
    assert runs[1].recipe.corpus.buckets["new"].sources[0].text_field == "body"
    with pytest.raises(RequestError, match="requires --price and --share and --test"):
        source_question.write(*where, None, {}, 2)
    with pytest.raises(MissingError, match="no training run has evaluated the source other"):
        source_question.asked(tmp_path, "other")
