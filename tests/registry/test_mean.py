"""A mean of checkpoints as a candidate: registered through its parents, frozen with them, refused when forged."""

from __future__ import annotations

import json
import shutil
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from plinth.compute.context import Context
from plinth.errors import GateError, LineageError, SignatureError
from plinth.records import Manifest
from plinth.training.checkpoint import checkpoint as checkpoints
from plinth.training.checkpoint import mean_record
from plinth_audit.papers.gather import PaperSubject, gather
from plinth_registry import evidence, policy, taint, trained
from plinth_registry.gates import blocking, evaluate
from plinth_registry.registration import _tags, version_text
from plinth_registry.verified import verify_model
from tests.registry.conftest import PARAMETERS, Line, resume_evidence, sign_candidate

STEPS = (5, 6)


def parts(ctx: Context, files: dict[str, bytes]) -> list[dict[str, Any]]:
    return [{"name": name, "blob": ctx.store.put_bytes(data)} for name, data in files.items()]


def mean_of(ctx: Context, line: Line) -> Manifest:
    """Return a mean of steps 5, the last of the run, and 6, which continues it; it is unsigned."""
    line.commit({}, step=6)
    run = Manifest.model_validate(line.run_manifest.model_dump() | {"params": {"step": 6}})
    ctx.refs.save(run)
    later = Manifest.model_validate(
        line.checkpoint.model_dump() | {"inputs": {**line.checkpoint.inputs, "run": run.digest}, "stats": {"step": 6}}
    )
    ctx.refs.save(later)
    weights = save({"w": np.arange(64, dtype=np.float32) / 3})
    proof = json.dumps(resume_evidence()).encode()
    files = line.model_files() | {"model.safetensors": weights, "resume.json": proof}
    made = Manifest.model_validate(
        {
            "asset": "checkpoint",
            "step": mean_record.AVERAGE,
            "version": "1",
            "params": {"steps": list(STEPS), "weights": [1.0, 3.0], "of": "weights"},
            "inputs": {**line.checkpoint.inputs, "checkpoint/5": line.checkpoint.digest, "checkpoint/6": later.digest},
            "parts": parts(ctx, files),
            "stats": {"run_id": line.run.id, "step": 6, "resume": {"step": 5, "parameters_sha256": PARAMETERS}},
        }
    )
    ctx.refs.save(made)
    return made


@pytest.fixture
def mean(ctx: Context, line: Line) -> Manifest:
    """The mean, signed, as the checkpoint of its line."""
    made = mean_of(ctx, line)
    mean_record.state(line.directory, made)
    line.checkpoint = made
    line.evaluation = line.evaluate(model=2.0)
    return made


def test_a_mean_passes_every_gate_and_is_called_what_it_is(ctx: Context, line: Line, mean: Manifest) -> None:
    found = sign_candidate(ctx, line)
    gathered = evidence.gather(ctx, line.recipe, found, {})
    results = evaluate(policy.current(ctx, line.recipe.required_release().name).policy, gathered)
    assert {one.name for one in blocking(results)} <= {"approvals"}
    said = next(one.reason for one in results if one.name == "lineage")
    assert "a mean of the weights of steps 5, 6, weighted 1, 3, trained in 2 attempts" in said
    assert gathered.resume is not None
    assert gathered.resume.bit_exact
    proved = verify_model(ctx, str(found.directory), deep=False)
    assert proved.mean == "mean of the weights of steps 5, 6, weighted 1, 3"
    assert "mean" not in sign_plain(ctx, line).model_dump(mode="json")


def sign_plain(ctx: Context, line: Line) -> Any:
    """The last checkpoint of the same line, proved as such."""
    line.checkpoint = ctx.refs.load(line.checkpoint.inputs["checkpoint/5"])
    line.evaluation = line.evaluate(model=2.0)
    return verify_model(ctx, str(sign_candidate(ctx, line).directory))


def test_papers_and_tags_name_it(ctx: Context, line: Line, mean: Manifest) -> None:
    provenance = line.provenance()
    subject = PaperSubject(name="x", released=None, provenance=provenance, provenance_sha256="", evaluation=None)
    facts = gather(ctx, subject)
    (weights,) = [one for one in facts.run if one.name == "weights"]
    assert (weights.value, weights.evidence) == (mean_record.in_words(mean), mean.digest)
    assert facts.chain["run"] == mean.inputs["run"]  # of several, the one that it names
    chain = trained_chain(ctx, line)
    tags = _tags(line.recipe, "k" * 64, chain, mean, line.evaluation, line.run, line.facts())
    assert "mean of the weights of steps 5, 6" in version_text("", tags)
    assert {line.checkpoint.digest, *mean.inputs.values()} <= chain.digests
    assert chain.data_versions["checkpoint"] == mean.digest


def trained_chain(ctx: Context, line: Line) -> Any:
    from plinth_registry import candidate

    return candidate.ancestry(ctx, line.checkpoint.digest, line.evaluation.digest)


@pytest.mark.parametrize("step", STEPS)
def test_a_mark_on_any_parent_freezes_it(ctx: Context, line: Line, mean: Manifest, step: int) -> None:
    directory = str(sign_candidate(ctx, line).directory)
    taint.mark(ctx, mean.inputs[f"checkpoint/{step}"], "ada", "diverged")
    with pytest.raises(GateError, match="is tainted by ada: diverged"):
        verify_model(ctx, directory)


def test_a_mean_that_nobody_signed(ctx: Context, line: Line) -> None:
    line.checkpoint = mean_of(ctx, line)
    line.evaluation = line.evaluate(model=2.0)
    with pytest.raises(LineageError, match="no training statement for"):
        line.provenance()


def forged(ctx: Context, line: Line, mean: Manifest, **changes: Any) -> None:
    """Another manifest in the place of the mean, with the statement of the mean."""
    other = Manifest.model_validate(mean.model_dump() | changes)
    ctx.refs.save(other)
    shutil.copyfile(mean_record.path(line.directory, mean.digest), mean_record.path(line.directory, other.digest))
    line.checkpoint = other
    line.evaluation = line.evaluate(model=2.0)


def refused(ctx: Context, line: Line, match: str, error: type[Exception] = LineageError) -> None:
    provenance = line.provenance()
    with pytest.raises(error, match=match):
        trained.proved(ctx, line.checkpoint, provenance)


def test_the_statement_of_another_mean(ctx: Context, line: Line, mean: Manifest) -> None:
    worse = parts(ctx, line.model_files() | {"model.safetensors": save({"w": np.zeros(64, np.float32)})})
    forged(ctx, line, mean, parts=worse)
    refused(ctx, line, "is not verified as an average")


def test_a_parent_left_out(ctx: Context, line: Line, mean: Manifest) -> None:
    forged(ctx, line, mean, params={**mean.params, "steps": [6], "weights": [3.0]})
    refused(ctx, line, "is not verified as an average")


def test_foreign_weights_called_a_checkpoint(ctx: Context, line: Line, mean: Manifest) -> None:
    inputs = {name: own for name, own in mean.inputs.items() if not name.startswith(mean_record.PARENT)}
    forged(ctx, line, mean, step="checkpoint", inputs=inputs)
    refused(ctx, line, "the registered files differ from the files that the trainer committed")


def test_a_statement_by_no_trainer(ctx: Context, line: Line, mean: Manifest) -> None:
    path = mean_record.path(line.directory, mean.digest)
    envelope = json.loads(path.read_bytes())
    envelope["signatures"][0]["sig"] = "AAAA" + envelope["signatures"][0]["sig"][4:]
    path.write_text(json.dumps(envelope))
    refused(ctx, line, "is invalid", SignatureError)


def test_a_parent_that_was_committed_again(ctx: Context, line: Line, mean: Manifest) -> None:
    """The run went back and repeated step 5: the mean uses a checkpoint that is no longer committed."""
    staged = checkpoints.stage(line.directory, 5)
    (staged / "model").mkdir()
    (staged / "model" / "model.safetensors").write_bytes(b"other")
    checkpoints.commit(line.directory, 5)
    refused(ctx, line, "the average used checkpoints other than the committed checkpoints")


def test_a_parent_whose_record_is_gone_or_anothers(ctx: Context, line: Line, mean: Manifest) -> None:
    provenance = line.provenance()
    commits = provenance["training"]["mean"]["commits"]
    for wrong in ({"6": commits["6"]}, {"5": commits["6"], "6": commits["6"]}):
        changed = {**provenance, "training": provenance["training"] | {"mean": {
            **provenance["training"]["mean"], "commits": wrong}}}  # fmt: skip
        with pytest.raises(LineageError):
            trained.proved(ctx, mean, changed)
    with pytest.raises(LineageError, match="no statement about this averaged"):
        trained.proved(ctx, mean, {**provenance, "training": provenance["training"] | {"mean": {}}})
    with pytest.raises(LineageError, match="differ from the averaged"):
        trained.proved(ctx, mean, provenance | {"files": {"model.safetensors": {"sha256": "0" * 64}}})
