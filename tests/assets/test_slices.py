"""The asset of a gate's slices: what its models learn from is looked up where they were made."""

from pathlib import Path

from plinth.compute.context import Context, manifest
from plinth.corpus import lists
from plinth.records import Step
from plinth.storage.workspace import Workspace
from plinth_assets import annotate
from plinth_jobs.recipes import load

WEB = Path(__file__).parents[1] / "web.yaml"


def test_sets_that_the_models_of_a_gate_learn_from(tmp_path: Path) -> None:
    ctx = Context(Workspace(tmp_path).ensure())
    (ctx.workspace.input / "set").write_text('{"text": "a", "label": "good"}')
    learnt = lists.run(ctx, "toxic_set", "set")
    ctx.refs.publish(learnt, "key")
    step = Step(name="models/classifier", version="1")
    model = manifest("models/toxicity", step, {"lists/toxic_set": learnt, "lists/toxic": "0" * 64}, [])
    keys = ("lists/toxic", "models/toxicity")
    assert annotate._learnt(load(WEB), ctx, keys, {"models/toxicity": model}) == {"lists/toxic_set": learnt}
