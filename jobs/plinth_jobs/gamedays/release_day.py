"""Game day of releases: a bad model is champion; detect, taint, roll back, find the cause, close the gate.

Does not belong here: how the models are made (`scratch_models`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from plinth.errors import GateError
from plinth.operation.gamedays import alerting
from plinth.operation.gamedays.gameday import OWN, GameDay, Outcome, Struck, finding
from plinth.operation.gamedays.scratch import PERSON
from plinth.storage.workspace import Workspace
from plinth.training.config import RunConfig
from plinth.training.step_documents import StepDocuments
from plinth_jobs.gamedays.scratch_models import BAD, GOOD, ModelMaker, SmallModel
from plinth_jobs.gamedays.variables import variables
from plinth_registry import api, canary, metrics, released, releases
from plinth_registry.canary.measured_pairs import measured_pairs
from plinth_registry.gates.settings import TrialPolicy
from plinth_registry.history import ReleaseRecord
from plinth_registry.impact import impact
from plinth_registry.server import ensure_server, stop_server

#: The gate that the first policy leaves out, and that the bad release does not pass.
GATE: Final = "slices"

#: Of the bad release: the share of its text that is noise, at least and at most. With half, one model of three
#: came out better than the one before it.
SHARES = (0.8, 0.95)

#: Pairs of documents that detection needs at least.
LEAST = 40


@dataclass
class _Rehearsed:
    """What one instant has done so far."""

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
        """Take the time of a phase."""
        begun = time.monotonic()
        yield
        self.phases[name] = round(time.monotonic() - begun, 3)

    def see(self, what: str, seen: object, expected: object) -> None:
        """Compare."""
        self.found.append(finding(what, seen, expected))


@dataclass(frozen=True)
class ReleaseServer:
    """A server of MLflow for all instants."""

    workspace: Workspace
    uri: str


def serve(folder: Path) -> ReleaseServer:
    """A server of MLflow."""
    workspace = Workspace(folder / "mlflow").ensure()
    return ReleaseServer(workspace, ensure_server(workspace))


def bad_release(made: ReleaseServer, folder: Path, chooser: Random) -> Struck:
    """Release a good model, then one that noise has spoilt, under a policy that compares neither; then react."""
    share = round(chooser.uniform(*SHARES), 2)
    with variables({"MLFLOW_TRACKING_URI": made.uri}):
        rehearsed = _released(ModelMaker(folder / "workspace", f"gameday-{folder.name}", chooser), share)
        _detect(rehearsed)
        _taint(rehearsed)
        _roll_back(rehearsed)
        _find_cause(rehearsed)
        _close_gate(rehearsed)
    where = f"champion with {share:.0%} of letters without order in its text"
    return Struck(where, tuple(rehearsed.found), rehearsed.alert_s, rehearsed.phases)


def _released(maker: ModelMaker, share: float) -> _Rehearsed:
    begun = time.monotonic()
    good = maker.measure(maker.train(dict.fromkeys(GOOD, 1.0)))
    first = maker.release(good)
    bad = maker.measure(maker.train({**dict.fromkeys(GOOD, 1 - share), BAD: len(GOOD) * share}))
    made = _Rehearsed(maker, good, bad, first, maker.release(bad))
    made.phases["release"] = round(time.monotonic() - begun, 3)
    name = made.second.model
    made.see("the bad model is champion: its policy asked too little", _champion(made), made.second.version)
    made.see("it verifies", released.verify_release(maker.ctx, name, str(made.second.version))[0].key,
             made.second.candidate["candidate"])  # fmt: skip
    return made


def _detect(made: _Rehearsed) -> None:
    """The sequential test of a trial, over what the evaluator has signed of the champion and the one before."""
    with made.phase("detect"):
        ours, theirs = made.bad.checkpoint.digest, made.good.checkpoint.digest
        policy = TrialPolicy(least=LEAST)
        worse = canary.judge(policy, measured_pairs(made.maker.ctx, ours, theirs, LEAST).streams)
        back = canary.judge(policy, measured_pairs(made.maker.ctx, theirs, ours, LEAST).streams)
    made.found.append(
        Outcome(what="signed measurements say it is worse", passed=worse.decision == "return", seen=worse.reason)
    )
    made.see("and do not say so of the one before", back.decision == "return", False)


def _taint(made: _Rehearsed) -> None:
    """Mark the checkpoint: the release is frozen, and the page fires."""
    begun, maker = time.time(), made.maker
    with made.phase("taint"):
        done = api.mark_tainted(maker.ctx, made.bad.checkpoint.digest, PERSON, "worse than the champion before it")
    made.see("the mark names the release and its alias", (any(made.second.model in one for one in done.versions),
             any("champion" in one for one in done.aliases)), (True, True))  # fmt: skip
    sampled = [
        (one.name, dict(zip(("model",), one.labels, strict=True)), one.value)
        for one in metrics.release_samples(maker.ctx)
        if one.name == "plinth_champion_tainted"
    ]
    alert, made.alert_s = alerting.fires(RELEASE.alerts, begun, sampled)
    made.found += alert
    made.see("it verifies no longer", _refused(made, made.second), "tainted")


def _roll_back(made: _Rehearsed) -> None:
    with made.phase("roll back"):
        back = api.rollback(made.maker.ctx, made.maker.recipe, PERSON, "the champion is tainted")
    made.see("the one before is champion again", (back.version, _champion(made)), (made.first.version,) * 2)
    key = released.verify_release(made.maker.ctx, made.first.model, str(made.first.version))[0].key
    made.see("and verifies", key, made.first.candidate["candidate"])
    made.see("the bad one was taken back", _refused(made, made.second), "rolled back")


def _find_cause(made: _Rehearsed) -> None:
    """What the bad run read and the good one did not, and everything that came of it."""
    ctx = made.maker.ctx
    with made.phase("forensics"):
        compared = made.maker.compare(made.bad, made.good)
        named = {one["where"] for one in compared.stats["changes"] if one["sort"] == "data"}
        sources = _sources(made.bad.config) - _sources(made.good.config)
        found = impact(ctx, BAD)
        api.mark_tainted(ctx, f"{BAD}/curated", PERSON, "letters without order")
    made.see("the comparison names the data that differ", f"{BAD}/curated" in named, True)
    made.see("what only the bad run read is of the bad source", sources, {f"{BAD}.example"})
    runs = {run.run_id for run in found.runs}
    versions = {row.version for row in found.versions if row.model == made.first.model}
    made.see("exactly the bad run came of it", runs, {made.bad.config.run_id})
    made.see("and exactly the bad release", versions, {made.second.version})


def _close_gate(made: _Rehearsed) -> None:
    """The next policy asks the gate: the same candidate is refused by it, the good one is not."""
    maker = made.maker
    with made.phase("gate"):
        asked = maker.ask(GATE)
        bad, good = maker.judged(made.second), maker.judged(made.first)
        refused = _promoted(made)
    closed = {name for name, one in bad.items() if one.blocks} - {"approvals"}
    made.see("the gate would have caught it: it and the mark are closed", closed, {GATE, "taint"})
    made.see("it is asked by the policy that governs", (GATE in asked.asked, asked.version), (True, 2))
    reason = bad[GATE].reason
    made.found.append(Outcome(what="its reason names the slices", passed=all(f"{one} +" in reason for one in GOOD),
                              seen=reason))  # fmt: skip
    made.see("it keeps back no good one", {name for name, one in good.items() if one.blocks} - {"approvals"}, set())
    made.found.append(Outcome(what="it cannot be promoted again", passed=GATE in refused, seen=refused))


def _promoted(made: _Rehearsed) -> str:
    """Why the bad candidate is not promoted again; empty where it is."""
    try:
        api.promote(made.maker.ctx, made.maker.recipe, made.second.candidate_version, PERSON, "once more")
    except GateError as error:
        return str(error.found)
    return ""


def _champion(made: _Rehearsed) -> str | None:
    return releases.history(made.maker.ctx, made.first.model).standing.champion


def _refused(made: _Rehearsed, record: ReleaseRecord) -> str:
    """`tainted` or `rolled back`, as the refusal of a release says; else what it says."""
    try:
        released.verify_release(made.maker.ctx, record.model, str(record.version))
    except GateError as error:
        return next((word for word in ("rolled back", "tainted") if word in error.what), error.what)
    return "verifies"


def _sources(config: RunConfig) -> set[str]:
    """The sources of all documents that the steps of a run read."""
    listed = StepDocuments(config)
    return {one.source for step in range(1, config.total_steps + 1) for one in listed.of_step(step)}


def _end(made: ReleaseServer) -> None:
    stop_server(made.workspace)


RELEASE: Final = GameDay(
    name="bad-release",
    hypothesis="A bad champion is told from the one before by signed measurements, is frozen, gives way, and is traced "
    "to its source; the gate that the policy left out refuses it, and no good one.",
    fault="A release under a policy without comparison: its run read letters without order beside its text.",
    blast_radius=f"{OWN} A server of MLflow of its own, on loopback.",
    protection="signed measurements, marks that freeze, the signed history, lineage, and gates of a signed policy",
    abort_s=1800.0,
    prepare=serve,
    play=bad_release,
    alerts=("ChampionTainted",),
    end=_end,
)
