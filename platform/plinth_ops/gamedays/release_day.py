"""Game day of releases: a bad model becomes champion, is detected, tainted and rolled back, and a gate then blocks it.

    maker = ModelMaker(folder, name)      text, a recipe and a signed policy with few gates, in a scratch workspace
    model = maker.train(weights, seed)    a run with its resume audit, as manifests
    maker.measure(model)                  bits per byte on held-out text, signed by the evaluator
    maker.release(model)                  candidate, approval, champion

The models are small, but are trained, measured, registered, approved and released like any other model. Evaluation
slices normally come from a corpus's ledger. Generated text has no ledger, therefore its documents are labeled here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from plinth.compute import context
from plinth.errors import GateError
from plinth.evaluation.comparison import job as comparisons
from plinth.evaluation.comparison.job import MeasuredModel
from plinth.evaluation.engine.client import SPARE
from plinth.evaluation.slices import job, tables
from plinth.evaluation.slices import job as evaluations
from plinth.model.parameters import Model
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest, Step
from plinth.storage.parts import read_table, write_table
from plinth.storage.workspace import Workspace
from plinth.tokens.mixture.parameters import Phase
from plinth.training import manifests
from plinth.training.config import RunConfig
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.run import Checkpoints
from plinth.training.step_documents import StepDocuments
from plinth_ops.gamedays import data_days, gameday, rehearsal
from plinth_ops.gamedays.gameday import OWN, GameDay, Outcome, Struck, finding
from plinth_ops.gamedays.play import PERSON, variables
from plinth_ops.gamedays.warm_job import WarmJob
from plinth_ops.metrics import signed as metrics
from plinth_registry import api, attestations, decisions, freeze, policy, releases, verified
from plinth_registry.canary import judge
from plinth_registry.canary.watch import measured_pairs
from plinth_registry.candidate import CandidateRun, Facts
from plinth_registry.consumers import impact
from plinth_registry.gates import GateResult
from plinth_registry.gates.settings import GatePolicy, TrialPolicy, always, gate_policy, release_gates
from plinth_registry.mlflow.server import ensure_server, stop_server
from plinth_registry.releases import ReleaseRecord

#: Buckets of good text and of random letters.
GOOD, BAD = ("web", "code"), "dump"

#: Gates of the first policy, in addition to the mandatory ones.
ASKED: Final = ("resume",)

STEPS, TEXTS, HELD_OUT = 40, 200, 60


@dataclass(frozen=True)
class SmallModel:
    """Trained model. `evaluation` is set once the model is measured."""

    config: RunConfig
    run: Manifest
    checkpoint: Manifest
    evaluation: Manifest | None = None

    @property
    def measured(self) -> MeasuredModel:
        """The model and its evaluation, in the form that a comparison reads."""
        assert self.evaluation is not None
        return MeasuredModel(self.checkpoint, {self.evaluation.asset: self.evaluation})


class ModelMaker:
    """Maker of models for one release in one workspace.

    Args:
        folder: folder of the workspace.
        name: name of the release.
        chooser: random generator of the text.
    """

    def __init__(self, folder: Path, name: str, chooser: Random) -> None:
        texts = {bucket: data_days.sentences(chooser, TEXTS) for bucket in GOOD}
        good = rehearsal.make_data(folder, texts, heldout=HELD_OUT)
        self.data = rehearsal.with_bucket(good, BAD, data_days.noise(chooser, HELD_OUT))
        self.ctx, self.heldout = good.ctx, good.curated
        self.recipe = _recipe(name)
        self.policy = policy.sign(self.ctx, _policy(name)).policy

    def train(self, weights: Mapping[str, float]) -> SmallModel:
        """Train a model on the buckets in `weights`. The run's lineage names only the data of these buckets."""
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
        """Measure bits per byte on held-out text of the good buckets. The evaluator signs the result."""
        scored = evaluations.of_parent(self.ctx, self.recipe.evaluation, model.checkpoint, self.heldout)
        SPARE.end()  # the next model needs another process
        rows = read_table(self.ctx.store, scored.parts[0])
        labelled = tables.with_labels(rows, _labels(rows["bucket"].to_pylist()))
        parts = [write_table(self.ctx.store, tables.DOCUMENTS, labelled), *scored.parts[1:]]
        stats = {"overall": job.row(labelled), "slices": job.axis_totals(labelled)["bucket"]}
        inputs = {"checkpoint": model.checkpoint} | {f"{name}/curated": one for name, one in self.heldout.items()}
        step = Step(name=evaluations.ASSET, version=evaluations.VERSION)
        made = context.manifest(evaluations.ASSET, step, inputs, parts, stats)
        return replace(model, evaluation=self._attested(model, made))

    def compare(self, model: SmallModel, other: SmallModel) -> Manifest:
        """Compare two measured models. The evaluator signs the comparison as evidence for the first model."""
        return self._attested(model, comparisons.run(self.ctx, model.measured, other.measured))

    def release(self, model: SmallModel) -> ReleaseRecord:
        """Register, approve and promote a model, which then becomes champion."""
        assert model.evaluation is not None
        run = CandidateRun(id=model.config.run_id, key=model.config.key)
        made, _ = api.register_candidate(self.ctx, self.recipe, model.checkpoint, model.evaluation, run, Facts())
        decisions.approve(self.ctx, self.recipe, made.version, PERSON, "a game day")
        return decisions.promote(self.ctx, self.recipe, made.version, PERSON, "a game day")

    def ask(self, *names: str) -> GatePolicy:
        """Sign the next version of the gate policy, which additionally requires the gates `names`."""
        without = {name: reason for name, reason in self.policy.without.items() if name not in names}
        given = self.policy.model_dump(mode="json") | {"version": self.policy.version + 1, "without": without}
        self.policy = policy.sign(self.ctx, gate_policy(given)).policy
        return self.policy

    def judged(self, record: ReleaseRecord) -> dict[str, GateResult]:
        """Return the current gate results of a released candidate, by gate name."""
        return {one.name: one for one in decisions.status(self.ctx, self.recipe, record.candidate_version).gates}

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
    reasons = dict.fromkeys(left_out, "the first policy of this game day omits the gate")
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


#: Gate that the first policy omits and the bad release fails.
GATE: Final = "slices"

#: Minimum and maximum share of noise in the text of the bad release. With one half, one model of three was better than
#: its predecessor.
SHARES = (0.8, 0.95)

#: Minimum number of document pairs for detection.
LEAST = 40


@dataclass
class _Rehearsed:
    """State of one fault injection of the game day: models, release records, findings, times."""

    maker: ModelMaker
    good: SmallModel
    bad: SmallModel
    first: ReleaseRecord
    second: ReleaseRecord
    found: list[Outcome] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)
    alert_s: float | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the time that the block takes as a phase."""
        begun = time.monotonic()
        yield
        self.phases[name] = round(time.monotonic() - begun, 3)

    def see(self, what: str, seen: object, expected: object) -> None:
        """Add a finding that passes if `seen` equals `expected`."""
        self.found.append(finding(what, seen, expected))


@dataclass(frozen=True)
class ReleaseServer:
    """MLflow server that all instants share."""

    workspace: Workspace
    uri: str


def serve(folder: Path) -> ReleaseServer:
    """Start the MLflow server of all instants."""
    workspace = Workspace(folder / "mlflow").ensure()
    return ReleaseServer(workspace, ensure_server(workspace))


def bad_release(made: ReleaseServer, folder: Path, chooser: Random) -> Struck:
    """Release a good model, then a bad model under a policy that omits a gate; respond to the bad release."""
    share = round(chooser.uniform(*SHARES), 2)
    with variables({"MLFLOW_TRACKING_URI": made.uri}):
        rehearsed = _released(ModelMaker(folder / "workspace", f"gameday-{folder.name}", chooser), share)
        _detect(rehearsed)
        _taint(rehearsed)
        _roll_back(rehearsed)
        _find_cause(rehearsed)
        _close_gate(rehearsed)
    where = f"champion trained on text with {share:.0%} random letters"
    return Struck(where, tuple(rehearsed.found), rehearsed.alert_s, rehearsed.phases)


def _released(maker: ModelMaker, share: float) -> _Rehearsed:
    begun = time.monotonic()
    good = maker.measure(maker.train(dict.fromkeys(GOOD, 1.0)))
    first = maker.release(good)
    bad = maker.measure(maker.train({**dict.fromkeys(GOOD, 1 - share), BAD: len(GOOD) * share}))
    made = _Rehearsed(maker, good, bad, first, maker.release(bad))
    made.phases["release"] = round(time.monotonic() - begun, 3)
    name = made.second.model
    made.see("the bad model is champion under a policy without comparison", _champion(made), made.second.version)
    made.see("the bad model verifies", verified.verify_release(maker.ctx, name, str(made.second.version))[0].key,
             made.second.candidate["candidate"])  # fmt: skip
    return made


def _detect(made: _Rehearsed) -> None:
    """Compare the signed evaluations of the champion and its predecessor with the sequential test that trials use."""
    with made.phase("detect"):
        ours, theirs = made.bad.checkpoint.digest, made.good.checkpoint.digest
        policy = TrialPolicy(least=LEAST)
        worse = judge(policy, measured_pairs(made.maker.ctx, ours, theirs, LEAST).streams)
        back = judge(policy, measured_pairs(made.maker.ctx, theirs, ours, LEAST).streams)
    made.found.append(
        Outcome(what="measurements show that the model is worse", passed=worse.decision == "return", seen=worse.reason)
    )
    made.see("measurements do not show that the predecessor is worse", back.decision == "return", False)


def _taint(made: _Rehearsed) -> None:
    """Taint the bad checkpoint; check that the taint covers the bad release and that the alert fires."""
    begun, maker = time.time(), made.maker
    with made.phase("taint"):
        done = freeze.mark_tainted(maker.ctx, made.bad.checkpoint.digest, PERSON, "worse than the champion before it")
    made.see("the taint lists the release and its alias", (any(made.second.model in one for one in done.versions),
             any("champion" in one for one in done.aliases)), (True, True))  # fmt: skip
    sampled = [
        (one.name, dict(zip(("model",), one.labels, strict=True)), one.value)
        for one in metrics.release_samples(maker.ctx)
        if one.name == "plinth_champion_tainted"
    ]
    alert, made.alert_s = gameday.fires(RELEASE.alerts, begun, sampled)
    made.found += alert
    made.see("the bad model no longer verifies", _refused(made, made.second), "tainted")


def _roll_back(made: _Rehearsed) -> None:
    with made.phase("roll back"):
        back = decisions.rollback(made.maker.ctx, made.maker.recipe, PERSON, "the champion is tainted")
    made.see("the predecessor is champion again", (back.version, _champion(made)), (made.first.version,) * 2)
    key = verified.verify_release(made.maker.ctx, made.first.model, str(made.first.version))[0].key
    made.see("the predecessor verifies", key, made.first.candidate["candidate"])
    made.see("the bad model is rolled back", _refused(made, made.second), "rolled back")


def _find_cause(made: _Rehearsed) -> None:
    """Find the data that only the bad run read, and everything derived from it."""
    ctx = made.maker.ctx
    with made.phase("forensics"):
        compared = made.maker.compare(made.bad, made.good)
        named = {one["where"] for one in compared.stats["changes"] if one["sort"] == "data"}
        sources = _sources(made.bad.config) - _sources(made.good.config)
        found = impact(ctx, BAD)
        freeze.mark_tainted(ctx, f"{BAD}/curated", PERSON, "letters without order")
    made.see("the comparison lists the data that differ", f"{BAD}/curated" in named, True)
    made.see("all data that only the bad run read is from the bad source", sources, {f"{BAD}.example"})
    runs = {run.run_id for run in found.runs}
    versions = {row.version for row in found.versions if row.model == made.first.model}
    made.see("exactly the bad run is derived from the bad source", runs, {made.bad.config.run_id})
    made.see("exactly the bad release is derived from the bad source", versions, {made.second.version})


def _close_gate(made: _Rehearsed) -> None:
    """Sign a policy that requires the omitted gate; check that it blocks only the bad candidate."""
    maker = made.maker
    with made.phase("gate"):
        asked = maker.ask(GATE)
        bad, good = maker.judged(made.second), maker.judged(made.first)
        refused = _promoted(made)
    closed = {name for name, one in bad.items() if one.blocks} - {"approvals"}
    made.see("the new gate and the taint block the bad candidate", closed, {GATE, "taint"})
    made.see("the current policy requires the omitted gate", (GATE in asked.asked, asked.version), (True, 2))
    reason = bad[GATE].reason
    made.found.append(Outcome(what="the gate's reason lists the slices that became worse",
                              passed=all(f"{one} +" in reason for one in GOOD), seen=reason))  # fmt: skip
    blocking = {name for name, one in good.items() if one.blocks} - {"approvals"}
    made.see("no gate blocks the good candidate", blocking, set())
    made.found.append(Outcome(what="the bad candidate cannot be promoted again", passed=GATE in refused, seen=refused))


def _promoted(made: _Rehearsed) -> str:
    """Try to promote the bad candidate again; return the reason of the rejection, or an empty string if promoted."""
    try:
        decisions.promote(made.maker.ctx, made.maker.recipe, made.second.candidate_version, PERSON, "once more")
    except GateError as error:
        return str(error.found)
    return ""


def _champion(made: _Rehearsed) -> str | None:
    return releases.history(made.maker.ctx, made.first.model).standing.champion


def _refused(made: _Rehearsed, record: ReleaseRecord) -> str:
    """Return the reason why a release is rejected (`tainted`, `rolled back` or another reason), or `verifies`."""
    try:
        verified.verify_release(made.maker.ctx, record.model, str(record.version))
    except GateError as error:
        return next((word for word in ("rolled back", "tainted") if word in error.what), error.what)
    return "verifies"


def _sources(config: RunConfig) -> set[str]:
    """Return the sources of all documents that a run read."""
    listed = StepDocuments(config)
    return {one.source for step in range(1, config.total_steps + 1) for one in listed.of_step(step)}


RELEASE: Final = GameDay(
    name="bad-release",
    hypothesis="Signed measurements show that a bad champion is worse than its predecessor. This champion is "
    "tainted and rolled back, and the cause is traced to the bad source. If the omitted gate is applied, it blocks the "
    "bad model, but no good model.",
    fault="A release under a policy without comparison; its training run read random letters together with its text.",
    blast_radius=f"{OWN} It also starts a separate MLflow server on loopback.",
    protection="signed measurements, taints, the signed history, lineage, and gates of a signed policy",
    abort_s=1800.0,
    prepare=serve,
    play=bad_release,
    alerts=("ChampionTainted",),
    end=lambda made: stop_server(made.workspace),
)
