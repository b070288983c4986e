"""A workspace with a complete small line up to an evaluation, and one real MLflow server for all tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import save as save_safetensors

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.evaluation.slices.tables import DOCUMENTS
from plinth.provenance import statements
from plinth.recipe.recipe import Recipe
from plinth.records import Manifest
from plinth.storage.parts import write_table
from plinth.storage.workspace import Workspace
from plinth.training.attempts import AttemptRecord, state
from plinth.training.checkpoint import checkpoint as checkpoints
from plinth.training.directory import RunDirectory
from plinth.training.forensics.proof import COMPARED
from plinth.training.forensics.proof import PARAMETERS as PARAMETERS_KEY
from plinth.trust.dsse import now
from plinth_registry import attestations, candidate, policy, releases, signing, trained
from plinth_registry.candidate import Candidate, CandidateRun, Facts
from plinth_registry.gates.settings import GatePolicy, gate_policy
from plinth_registry.mlflow import server
from plinth_registry.releases import ReleaseRecord
from tests import document_rows
from tests.training_host import HOST


def document_table(*texts: str) -> pa.Table:
    """Documents whose ids are the first 16 bytes of SHA-256 of their text."""
    rows = (
        {"id": bytes.fromhex(fingerprint.digest(text))[:16], "text": text, "uri": f"test://{text}",
         "snapshot": "2026-01", "extra": '{"domain": "test"}'}
        for text in texts
    )  # fmt: skip
    return document_rows.document_table(rows)


#: Digest of the parameters of every checkpoint here.
PARAMETERS = fingerprint.digest("parameters")


def resume_evidence(**changes: Any) -> dict[str, Any]:
    """Return the evidence of an audit of steps 3 to 5 whose replay is equal."""
    same = {name: {"original": 1.5, "replayed": 1.5} for name in COMPARED}
    state = {PARAMETERS_KEY: {"original": PARAMETERS, "replayed": PARAMETERS}, "monitor": {"equal": True}}
    nothing: dict[str, Any] = {"original": [], "replayed": []}
    return {
        "bit_exact": True,
        "from_step": 2,
        "to_step": 5,
        "skipped_steps": nothing,
        "interventions": nothing,
        "steps": [{"step": step, **same} for step in (3, 4, 5)],
        "commits": [{"step": 5, "parts": state}],
    } | changes


STATE = b'{"step":5}'
#: Terms under which the text is read.
TERMS = {"train": True, "redistribute": True, "commercial": True}
SOURCE = {"domain": "test", "snapshot": "2026-01", "terms": TERMS}


class Line:
    """Manifests of a line, saved, with real parts where something reads them."""

    def __init__(
        self, ctx: Context, recipe: Recipe, seed: int = 1, parent: Manifest | None = None, use: str = "initial"
    ) -> None:
        self.ctx, self.recipe, self.seed = ctx, recipe, seed
        self.documents = self.made("web/documents", {"web/sources": fingerprint.digest("inventory")}, sources=[SOURCE])
        table = document_table("kept", f"also kept {seed}")
        self.curated = self.made("web/curated", {"web/documents": self.documents}, table=table)
        self.tokenizer = self.made("tokenizer", {"web/curated": self.curated})
        shards = self.made("web/shards", {"tokenizer": self.tokenizer, "web/curated": self.curated})
        mixture = self.made("mixture", {"web/shards": shards})
        begun = {} if parent is None else {use: self.made(use, {parent.asset: parent})}
        if use == "teacher" and parent is not None:
            begun["teacher_logits"] = self.made("teacher_logits", {"mixture": mixture, **begun})
        self.run_manifest = self.made("run", {"mixture": mixture, "tokenizer": self.tokenizer, **begun})
        self.run = CandidateRun(id=f"{recipe.name}-{seed:012x}", key=fingerprint.digest(seed))
        self.checkpoint = self._checkpoint()
        self.commit()
        self.evaluation = self.evaluate(model=2.0)

    @property
    def materials(self) -> dict[str, str]:
        """Return the materials of the claims about training text, as the asset of a candidate lists them."""
        decided, marked = pa.table({"decision": ["train"] * 2}), pa.table({"contaminated": [False] * 2})
        made = [self.documents, self.curated, self.made("web/verdicts", {}, table=decided)]
        made.append(self.made("contamination", {}, table=marked, folder="web/"))
        return {one.asset: one.digest for one in made}

    def made(
        self,
        asset: str,
        inputs: dict[str, Manifest | str],
        table: pa.Table | None = None,
        folder: str = "",
        **params: object,
    ) -> Manifest:
        parts = () if table is None else (write_table(self.ctx.store, f"{folder}part-00000.parquet", table),)
        digests = {key: value if isinstance(value, str) else value.digest for key, value in inputs.items()}
        made = Manifest(
            asset=asset,
            step=asset.split("/")[-1],
            version="1",
            params={"seed": self.seed, "recipe": self.recipe.name, **params},
            inputs=digests,
            parts=parts,
        )
        self.ctx.refs.save(made)
        return made

    def evaluate(self, model: float, stated: float | None = None) -> Manifest:
        """An evaluation in which the model reaches `model` bits per byte, and that is `stated` to be another figure."""
        inputs = {"checkpoint": self.checkpoint.digest, "web/curated": self.curated.digest}
        slices = {"web": {"bytes": 1000, "model": model, "gzip": 3.5, "trigram": 2.5}}
        bits = {f"{name}_bits": [1000 * slices["web"][name]] for name in ("model", "gzip", "trigram")}
        part = write_table(self.ctx.store, DOCUMENTS, pa.table({"bucket": ["web"], "bytes": [1000], **bits}))
        stats = {"slices": {"web": slices["web"] | {"model": model if stated is None else stated}}}
        made = Manifest(
            asset="evaluation", step="bpb", version="1", params={}, inputs=inputs, parts=(part,), stats=stats
        )
        self.ctx.refs.save(made)
        attestations.attest_measurement(self.ctx, self.recipe, self.checkpoint.digest, made)
        return made

    def facts(self, **changes: object) -> Facts:
        known = {
            "contaminated_documents": 0,
            "licences": {"MIT": 2},
            "sources": {"test 2026-01": {"documents": 2, "train": True, "redistribute": True, "commercial": True}},
            "stability": {"restart": 1},
            "cost": {"wall_s": 9},
        }
        return Facts.model_validate(known | changes)

    def model_files(self) -> dict[str, bytes]:
        """Weights, configuration and tokenizer."""
        weights = save_safetensors({"w": np.arange(self.seed, self.seed + 64, dtype=np.float32)})
        return {"model.safetensors": weights, "config.json": b'{"layers":1}', "tokenizer.json": b"{}"}

    @property
    def directory(self) -> RunDirectory:
        """The folder of the run that trained the checkpoint."""
        return RunDirectory(self.ctx.workspace.runs / self.run.id)

    def attempt(self, **changes: object) -> AttemptRecord:
        """Record the trainer's statement that it starts, on a test machine; `changes` apply to that machine."""
        host = HOST.model_copy(update=changes)
        return state(self.directory, b"{}", self.run.key, ranks=1, nodes=1, hosts=[host], audit=False)

    def commit(self, *attempts: dict[str, object], step: int = 5) -> None:
        """The trainer begins once for each of these (by default once), and commits the checkpoint's files."""
        for changes in attempts or ({},):
            self.attempt(**changes)
        staged = checkpoints.stage(self.directory, step)
        (staged / "model").mkdir()
        for name, data in self.model_files().items():
            if name != "tokenizer.json":
                (staged / "model" / name).write_bytes(data)
        (staged / "state.json").write_bytes(STATE)
        checkpoints.commit(self.directory, step)

    def look(self, *looks: dict[str, float]) -> None:
        """The timeline of the run, with looks at one probe after steps 1, 2, …"""
        events = [
            {"event": "evaluated", "step": at, "tokens": at * 1000, "probes": {"maths": one}, "probe_set": "set"}
            for at, one in enumerate(looks, 1)
        ]
        self.directory.root.mkdir(parents=True, exist_ok=True)
        self.directory.events.write_text("".join(f"{json.dumps(event)}\n" for event in events))

    def provenance(self) -> dict[str, Any]:
        """The content of `provenance.json`, as registering makes it."""
        chain = candidate.ancestry(self.ctx, self.checkpoint.digest, self.evaluation.digest)
        training = trained.gathered(self.ctx, self.checkpoint, self.run.id)
        run = {"run_id": self.run.id, "run_key": self.run.key}
        return statements.provenance(self.recipe, self.checkpoint, chain, **run, training=training)

    def _checkpoint(self) -> Manifest:
        files = self.model_files() | {
            "state.json": STATE,
            "resume.json": json.dumps(resume_evidence()).encode(),
        }
        parts = [{"name": name, "blob": self.ctx.store.put_bytes(data)} for name, data in files.items()]
        inputs = {"run": self.run_manifest.digest, "tokenizer": self.tokenizer.digest}
        made = Manifest.model_validate(
            {
                "asset": "checkpoint",
                "step": "checkpoint",
                "version": "1",
                "params": {},
                "inputs": inputs,
                "parts": parts,
                "stats": {"step": 5, "parameters_sha256": PARAMETERS},
            }
        )
        self.ctx.refs.save(made)
        return made


def make_recipe(name: str) -> Recipe:
    terms = {"train": True, "redistribute": True, "commercial": True}
    source = {
        "kind": "jsonl",
        "path": "a.jsonl",
        "licence": "MIT",
        "terms": terms,
        "domain": "test",
        "snapshot": "2026-01",
    }
    return Recipe.model_validate(
        {
            "name": name,
            "corpus": {
                "buckets": {"web": {"description": "Web.", "owner": "web@example.org", "sources": [source]}},
                "annotate": {},
                "policies": {"default": {}},
                "permitted_licences": ["MIT"],
            },
            "mixture": {
                "total_tokens": 2**20,
                "phases": [{"name": "main", "fraction": 1, "weights": {"web": 1}}],
            },
            "release": {"name": name},
        }
    )


#: Gates that a `Line` has no evidence for.
NOT_MEASURED = (
    *("max_bits_per_byte", "slices", "probes", "tasks", "extraction", "canaries", "pii_data", "pii_outputs"),
    *("bias", "toxicity", "error_budget"),
)


def small_policy(release: str, version: int = 1, **approvals: object) -> GatePolicy:
    """Return a policy that a `Line` can be judged by; tags count as approvals."""
    given = {
        "release": release,
        "version": version,
        "approvals": {"accepted": ["statement", "tag"], **approvals},
        "cost": {"amounts": ["wall_s"]},
        "without": dict.fromkeys(NOT_MEASURED, "a line of the tests measures none of it"),
    }
    return gate_policy(given)


@pytest.fixture
def ctx(tmp_path: Path) -> Context:
    return Context(Workspace(tmp_path / "workspace").ensure())


@pytest.fixture
def make_line(ctx: Context, request: pytest.FixtureRequest) -> Callable[..., Line]:
    """Make lines of one recipe named after the test, so that tests can share a server; its policy is signed once."""
    name = f"t-{fingerprint.digest(request.node.nodeid)[:10]}"

    def make(seed: int = 1, parent: Manifest | None = None, use: str = "initial", **approvals: object) -> Line:
        policy.sign(ctx, small_policy(name, **approvals))
        return Line(ctx, make_recipe(name), seed, parent, use)

    return make


@pytest.fixture
def line(make_line: Callable[..., Line]) -> Line:
    return make_line()


@pytest.fixture(scope="session")
def mlflow_workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """A workspace whose MLflow server runs while the tests do."""
    workspace = Workspace(tmp_path_factory.mktemp("mlflow") / "workspace").ensure()
    server.ensure_server(workspace)
    yield workspace
    server.stop_server(workspace)


@pytest.fixture
def mlflow_uri(mlflow_workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> str:
    """One server for every test's workspace, which counts as the workspace's own."""
    uri = server.ensure_server(mlflow_workspace)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setattr("plinth_registry.mlflow.connection.is_own", lambda *_: True)
    return uri


@pytest.fixture
def unregistered(ctx: Context, line: Line) -> Candidate:
    """A candidate that MLflow has not heard of: signed directory, signed facts."""
    return sign_candidate(ctx, line)


def moved(
    ctx: Context, action: Any, version: str | None, candidate: dict[str, str], previous: str | None = None, **other: Any
) -> ReleaseRecord:
    """Return a release record, of `demo` unless `other` names another release."""
    known = {"goal": action, "model": "demo", "candidate_version": "1", "by": "ada", "reason": "good", "at": now()}
    facts = known | other
    return releases.append(ctx, action=action, version=version, previous=previous, candidate=candidate, **facts)


def sign_candidate(ctx: Context, line: Line) -> Candidate:
    checkpoint, evaluation, facts = line.checkpoint.digest, line.evaluation.digest, line.facts()
    directory = signing.materialise(ctx, line.checkpoint, line.provenance())
    key = candidate.state_facts(ctx, directory, checkpoint, evaluation, line.run, facts)
    candidate.attest(ctx, line.recipe, line.checkpoint, directory, facts, line.materials)
    return Candidate(
        model=candidate.model_name(line.recipe),
        version="1",
        key=key,
        checkpoint=checkpoint,
        evaluation=evaluation,
        run=line.run,
        facts=facts,
        directory=directory,
    )
