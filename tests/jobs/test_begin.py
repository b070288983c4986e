"""`training.initial` from the command line: a run goes on from another, and a mark on that one stops the next."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
import yaml

from plinth.storage.state import Refs
from plinth.storage.workspace import Workspace
from plinth_registry.judgement import GATES
from plinth_registry.mlflow.server import stop_server
from tests.jobs.conftest import RECIPE, answer, digests, plinth, variant
from tests.shared import copied

pytestmark = pytest.mark.exhaustive

CHILD = """
name: child
tokenizer: {{kind: initial}}
training:
  initial: {{checkpoint: {run}}}
  model: {{layers: 2, dim: 64, heads: 2, kv_heads: 1, ffn_dim: 176, rope_theta: 40000}}
"""


def losses(run: Path) -> list[float]:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if event["event"] == "step"]


def test_a_run_goes_on_from_a_checkpoint(trained: Path, tmp_path: Path) -> None:
    workspace = copied(trained, tmp_path / "workspace")
    try:
        _follow(workspace, tmp_path)
    finally:
        stop_server(Workspace(workspace))


def _follow(workspace: Path, tmp_path: Path) -> None:
    (parent,) = (workspace / "runs").glob("tiny-*")
    known, recipe = digests(workspace), variant(tmp_path, CHILD.format(run=parent.name[:10]))
    plinth(workspace, "run", "-r", recipe, "--select", "checkpoint")
    (child,) = (workspace / "runs").glob("child-*")
    first, last = losses(parent)[0], losses(parent)[-1]
    assert abs(losses(child)[0] - last) < 0.25 * (first - last)  # not where random weights begin
    made = digests(workspace)
    assert made["checkpoint"] in json.dumps(answer(workspace, "impact", known["checkpoint"][:16]))

    plinth(workspace, "release", "taint", known["tokenizer"][:16], "--by", "ada@example.org", "--reason", "wrong text")
    again = plinth(workspace, "run", "-r", recipe, "--select", "initial", check=False)
    assert again.returncode != 0
    assert "tainted" in again.stderr + again.stdout


MEAN = """
training:
  checkpoints: {average: {last: 2}}
"""
RELEASED = """
name: child
tokenizer: {kind: initial}
training:
  initial: {release: tiny@champion}
  model: {layers: 2, dim: 64, heads: 2, kv_heads: 1, ffn_dim: 176}
"""


def test_a_mean_is_released_and_a_run_begins_from_the_release(trained: Path, tmp_path: Path) -> None:
    """The run is the one that is there: only its last checkpoint gives way to the mean of the last two."""
    workspace = copied(trained, tmp_path / "workspace")
    known = digests(workspace)
    try:
        plinth(workspace, "run", "-r", variant(tmp_path, MEAN))
        made, (folder,) = digests(workspace), (workspace / "models").glob("[0-9a-f]" * 12)
        assert made["run"] == known["run"]
        assert made["checkpoint"] != known["checkpoint"]
        proved = answer(workspace, "verify", "tiny@champion")
        assert (proved["checkpoint"], proved["mean"]) == (made["checkpoint"], "mean of the weights of steps 32, 40")
        assert json.loads((folder / "resume.json").read_bytes())["bit_exact"]
        assert "mean of the weights of steps 32, 40" in plinth(workspace, "verify", "tiny@champion").stdout
        plinth(workspace, "run", "-r", variant(tmp_path, RELEASED), "--select", "checkpoint")
        (child,), (parent,) = (workspace / "runs").glob("child-*"), (workspace / "runs").glob("tiny-*")
        assert abs(losses(child)[0] - losses(parent)[-1]) < 0.25 * (losses(parent)[0] - losses(parent)[-1])
        assert digests(workspace)["checkpoint"] in json.dumps(answer(workspace, "impact", made["checkpoint"][:16]))
    finally:
        stop_server(Workspace(workspace))


EMA = """
training:
  optimizer: {ema_decay: 0.9}
  checkpoints: {average: {ema: true}}
"""


def test_the_mean_that_a_run_keeps_is_released(trained: Path, tmp_path: Path) -> None:
    """Registered, judged, approved and verified as what it is: neither the weights of its step, nor another mean."""
    workspace = copied(trained, tmp_path / "workspace")
    try:
        plinth(workspace, "run", "-r", variant(tmp_path, EMA))
        made, refs = digests(workspace), Refs(Workspace(workspace))
        mean = refs.load(made["checkpoint"])
        (parent,) = [refs.load(digest) for name, digest in mean.inputs.items() if name.startswith("checkpoint/")]
        (kept,), (trained_on,) = (one.named("model.safetensors") for one in (mean, parent))
        assert (mean.params["of"], kept.blob == trained_on.blob) == ("ema", False)
        proved = answer(workspace, "verify", "tiny@champion")
        assert (proved["checkpoint"], proved["run"]) == (made["checkpoint"], parent.stats["run_id"])
        assert proved["mean"] == "exponential moving average (EMA) of the weights at step 40"
        (folder,) = (workspace / "models").glob(made["checkpoint"][:12])
        assert (folder / "model.safetensors").stat().st_size == kept.blob.bytes
        assert json.loads((folder / "resume.json").read_bytes())["bit_exact"]
        card = plinth(workspace, "release", "papers", "champion", "--show", "model-card").stdout
        assert f"| weights | {proved['mean']} |" in card
    finally:
        stop_server(Workspace(workspace))


REPLAY = """
name: child
tokenizer: {{kind: initial}}
mixture: {{total_tokens: 10240, packing: {packing}}}
evaluation: {{against: initial}}
training:
  initial: {{checkpoint: {run}, replay: 0.25}}
  model: {{layers: 2, dim: 64, heads: 2, kv_heads: 1, ffn_dim: 176}}
"""


@pytest.mark.parametrize("packing", ["concatenate", "best-fit"])
def test_a_run_replays_its_parents_text(trained: Path, tmp_path: Path, packing: str) -> None:
    """A quarter of the sequences are the parent's, and what every step trained on is listed."""
    workspace = copied(trained, tmp_path / "workspace")
    (parent,) = (workspace / "runs").glob("tiny-*")
    recipe = variant(tmp_path, REPLAY.format(run=parent.name[:10], packing=packing))
    plinth(workspace, "run", "-r", recipe, "--select", "comparison")
    (child,) = (workspace / "runs").glob("child-*")
    config = json.loads((child / "config.json").read_text())
    assert {"replay-web", "replay-prose", "replay-code", "web"} <= set(config["shards"])
    rows = [one for step in (1, 2, 20) for one in answer(workspace, "batch", child.name, step)["sequences"]]
    assert {one["bucket"].startswith("replay-") for one in rows} == {True, False}
    assert all(one["documents"] for one in rows)
    made = json.loads((workspace / "refs" / "comparison.json").read_text())["digest"]
    compared = Refs(Workspace(workspace)).load(made)
    theirs = {one["slice"]: one["difference"] for one in compared.stats["lines"] if one["kind"] == "parent slices"}
    assert {"all", "bucket web", "bucket prose"} <= set(theirs)
    assert all(one["low"] <= one["value"] <= one["high"] for one in theirs.values())


FORGETTING = """
name: {name}
tokenizer: {{kind: initial}}
mixture: {{total_tokens: 5120, phases: [{{name: one, fraction: 1, weights: {{code: 1}}}}]}}
evaluation: {{against: initial}}
training:
  initial: {{checkpoint: {run}{replay}}}
  model: {{layers: 2, dim: 64, heads: 2, kv_heads: 1, ffn_dim: 176}}
  optimizer: {{lr: {lr}}}
release: {{name: child}}
"""


def test_a_child_that_forgets_is_refused_and_one_within_the_bound_is_released(trained: Path, tmp_path: Path) -> None:
    """Both on code alone: at thrice the parent's rate, then at a hundredth of it with half of the parent's text."""
    workspace = copied(trained, tmp_path / "workspace")
    (parent,) = (workspace / "runs").glob("tiny-*")
    bounds = yaml.safe_load((RECIPE.parents[1] / "policies" / "tiny.yaml").read_text())
    bounds |= {"release": "child", "extensions": {"forgetting": {"margin": 0.2, "min_documents": 2}}}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(bounds))
    try:
        plinth(workspace, "gates", "sign", tmp_path / "policy.yaml", "--yes")
        given = {"name": "forgets", "lr": 3e-2, "replay": "", "run": parent.name}
        refused = plinth(workspace, "run", "-r", variant(tmp_path, FORGETTING.format(**given)))
        said = r"forgetting failed \(.*overall of the parent's text \+[\d.]+ \(95% upper bound [\d.]+\), limit 0.2"
        assert re.search(said, refused.stdout), refused.stdout
        assert plinth(workspace, "verify", "child@champion", check=False).returncode != 0

        given |= {"name": "keeps", "lr": 1e-4, "replay": ", replay: 0.5"}
        plinth(workspace, "run", "-r", variant(tmp_path, FORGETTING.format(**given)))
        proved = answer(workspace, "verify", "child@champion")
        assert proved["checkpoint"] == digests(workspace)["checkpoint"]
        (verdict,) = (workspace / "models").glob(f"{proved['checkpoint'][:12]}.*.verdict.json")
        payload = json.loads(base64.b64decode(json.loads(verdict.read_bytes())["payload"]))
        (gate,) = [one for one in payload["predicate"][GATES]["results"] if one["gate"] == "forgetting"]
        assert gate["result"] == "passed"
        assert re.match(r"\d+ differences from the parent within the limit; worst: ", gate["reason"])
        card = plinth(workspace, "release", "papers", "child@champion", "--show", "model-card").stdout
        assert f"| replay-prose | {digests(trained)['checkpoint']} |" in card
    finally:
        stop_server(Workspace(workspace))
