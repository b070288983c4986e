"""Small models that are trained, measured, registered, approved and released as any model is, in a scratch workspace.

    maker = ModelMaker(folder, name)      text, a recipe, a signed policy that asks little
    model = maker.train(weights, seed)    a run with its proof of resume, as manifests
    maker.measure(model)                  bits per byte on held-out text, signed by the evaluator
    maker.release(model)                  candidate, approval, champion

The slices of an evaluation come from a corpus's ledger, which generated text has none of: documents are labelled here.
Does not belong here: what becomes of a release (`release_day`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from plinth.compute import stage
from plinth.evaluation import job as evaluations
from plinth.evaluation.comparison import job as comparisons
from plinth.evaluation.comparison.job import MeasuredModel
from plinth.evaluation.engine.child import SPARE
from plinth.evaluation.slices import tables, totals
from plinth.model.parameters import Model
from plinth.operation.gamedays import rehearsal
from plinth.operation.gamedays.days import data_days
from plinth.operation.gamedays.scratch import PERSON
from plinth.operation.gamedays.warm_job import WarmJob
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Step
from plinth.storage.parts import read_table, write_table
from plinth.tokens.mixture.parameters import Phase
from plinth.training import manifests
from plinth.training.config import RunConfig
from plinth.training.parameters.checkpoints import Checkpoints
from plinth.training.parameters.engine import Optimizer
from plinth_registry import api, attestations, gates, policy
from plinth_registry.candidate import CandidateRun, Facts
from plinth_registry.gates.settings import GatePolicy, always, gate_policy, release_gates
from plinth_registry.history import ReleaseRecord

#: Buckets of text that a model should learn, and of letters without order.
GOOD, BAD = ("web", "code"), "dump"

#: Gates that the first policy asks beside those that no policy leaves out.
ASKED: Final = ("resume",)

STEPS, TEXTS, HELD_OUT = 40, 200, 60


@dataclass(frozen=True)
class SmallModel:
    """A trained model, and its evaluation once it was measured."""

    config: RunConfig
    run: Manifest
    checkpoint: Manifest
    evaluation: Manifest | None = None

    @property
    def measured(self) -> MeasuredModel:
        """As a comparison reads it."""
        assert self.evaluation is not None
        return MeasuredModel(self.checkpoint, {self.evaluation.asset: self.evaluation})


class ModelMaker:
    """Makes models of one release in one workspace.

    Args:
        folder: of the workspace.
        name: of the release.
        chooser: draws the text.
    """

    def __init__(self, folder: Path, name: str, chooser: Random) -> None:
        texts = {bucket: data_days.sentences(chooser, TEXTS) for bucket in GOOD}
        good = rehearsal.make_data(folder, texts, heldout=HELD_OUT)
        self.data = rehearsal.with_bucket(good, BAD, data_days.noise(chooser, HELD_OUT))
        self.ctx, self.heldout = good.ctx, good.curated
        self.recipe = _recipe(name)
        self.policy = policy.sign(self.ctx, _policy(name)).policy

    def train(self, weights: Mapping[str, float]) -> SmallModel:
        """Train on buckets by weight; its run names the data of these alone."""
        read = replace(self.data, shards={bucket: self.data.shards[bucket] for bucket in weights})
        config = rehearsal.configured(
            read,
            (Phase(name="all", fraction=1.0, weights=dict(weights)),),
            STEPS,
            model=Model(layers=2, dim=48, heads=4, kv_heads=2, ffn_dim=96),
            optimizer=Optimizer(lr=1e-2, warmup_fraction=0.05, decay_fraction=0.5),
            checkpoints=Checkpoints(every_steps=STEPS // 2, keep_last=2, audit_steps=4, mode="sync"),
        )
        WarmJob(config).require_finished()
        run = manifests.run_manifest(self.ctx, config)
        self.ctx.refs.save(run)
        checkpoint = manifests.checkpoint_manifest(self.ctx, config, run)
        self.ctx.refs.save(checkpoint)
        return SmallModel(config, run, checkpoint)

    def measure(self, model: SmallModel) -> SmallModel:
        """Bits per byte on held-out text of the good buckets, signed by the evaluator."""
        scored = evaluations.of_parent(self.ctx, self.recipe.evaluation, model.checkpoint, self.heldout)
        SPARE.end()  # the next model is another one, and no process may be left over
        rows = read_table(self.ctx.store, scored.parts[0])
        labelled = tables.with_labels(rows, _labels(rows["bucket"].to_pylist()))
        parts = [write_table(self.ctx.store, tables.DOCUMENTS, labelled), *scored.parts[1:]]
        stats = {"overall": totals.row(labelled), "slices": totals.by_axis(labelled)["bucket"]}
        inputs = {"checkpoint": model.checkpoint} | {f"{name}/curated": one for name, one in self.heldout.items()}
        step = Step(name=evaluations.ASSET, version=evaluations.VERSION)
        made = stage.manifest(evaluations.ASSET, step, inputs, parts, stats)
        return replace(model, evaluation=self._attested(model, made))

    def compare(self, model: SmallModel, other: SmallModel) -> Manifest:
        """The comparison of two measured models, signed by the evaluator as one about the first."""
        return self._attested(model, comparisons.run(self.ctx, model.measured, other.measured))

    def release(self, model: SmallModel) -> ReleaseRecord:
        """Register, approve and promote; the checkpoint is champion then."""
        assert model.evaluation is not None
        run = CandidateRun(id=model.config.run_id, key=model.config.key)
        made, _ = api.register_candidate(self.ctx, self.recipe, model.checkpoint, model.evaluation, run, Facts())
        api.approve(self.ctx, self.recipe, made.version, PERSON, "a game day")
        return api.promote(self.ctx, self.recipe, made.version, PERSON, "a game day")

    def ask(self, *names: str) -> GatePolicy:
        """Sign the next policy, which asks these gates too."""
        without = {name: reason for name, reason in self.policy.without.items() if name not in names}
        given = self.policy.model_dump(mode="json") | {"version": self.policy.version + 1, "without": without}
        self.policy = policy.sign(self.ctx, gate_policy(given)).policy
        return self.policy

    def judged(self, record: ReleaseRecord) -> dict[str, gates.GateResult]:
        """The gates of a released candidate as they are now, by name."""
        return {one.name: one for one in api.status(self.ctx, self.recipe, record.candidate_version).gates}

    def _attested(self, model: SmallModel, made: Manifest) -> Manifest:
        self.ctx.refs.save(made)
        attestations.attest_measurement(self.ctx, self.recipe, model.checkpoint.digest, made)
        return made


def _labels(buckets: list[str]) -> dict[str, list[str]]:
    return {
        "uri": [f"https://{bucket}.example/{number}" for number, bucket in enumerate(buckets)],
        "bucket": buckets,
        "language": ["en"] * len(buckets),
        "domain": [f"{bucket}.example" for bucket in buckets],
        "length": ["short"] * len(buckets),
    }


def _policy(release: str) -> GatePolicy:
    left_out = [name for name in release_gates() if name not in (*always(), *ASKED)]
    reasons = dict.fromkeys(left_out, "a game day begins with a policy that asks too little")
    return gate_policy({"release": release, "version": 1, "without": reasons})


def _recipe(name: str) -> Recipe:
    terms = {"train": True, "redistribute": True, "commercial": True}
    buckets: dict[str, Any] = {}
    for bucket in (*GOOD, BAD):
        source = {"kind": "jsonl", "path": f"{bucket}.jsonl", "licence": "CC0-1.0", "terms": terms}
        source |= {"domain": f"{bucket}.example", "snapshot": "game day"}
        buckets[bucket] = {"description": "Generated.", "owner": PERSON, "sources": [source]}
    return Recipe.model_validate(
        {
            "name": name,
            "corpus": {
                "buckets": buckets,
                "annotate": {},
                "policies": {"default": {}},
                "permitted_licences": ["CC0-1.0"],
            },
            "mixture": {
                "total_tokens": 2**20,
                "phases": [{"name": "all", "fraction": 1, "weights": dict.fromkeys(GOOD, 1)}],
            },
            "release": {"name": name},
        }
    )
