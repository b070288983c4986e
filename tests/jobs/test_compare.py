"""Two checkpoints of a run, and a folder of weights, side by side through the command line and as an asset."""

import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from plinth.compute.context import Context
from plinth.storage.workspace import Workspace
from plinth_assets.measurements import comparison_stage
from plinth_jobs.recipes import load, remember
from tests.jobs.conftest import RECIPE, answer, plinth, variant
from tests.peers import Peer
from tests.shared import copied

transformers = Peer("transformers")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_checkpoints_of_a_run(trained: Path, tmp_path: Path) -> None:
    workspace = copied(trained, tmp_path / "workspace")
    remember(workspace, RECIPE)
    (run,) = (path.name for path in (workspace / "runs").iterdir())
    early = min(path.stem for path in (workspace / "runs" / run / "checkpoints").glob("step-*.json"))
    step = int(early.removeprefix("step-"))
    page = tmp_path / "page.html"
    found = answer(workspace, "compare", f"{run}:{step}", "latest", "-o", page)
    assert [found["models"][side]["step"] for side in "ab"] == [step, 40]
    whole = found["lines"][0]
    assert (whole["measure"], whole["slice"], whole["difference"]["seed"]) == ("bits per byte", "all", 0)
    assert whole["difference"]["value"] == pytest.approx(whole["a"]["value"] - whole["b"]["value"])
    changed = {row["where"]: (row["a"], row["b"]) for row in found["changes"]}
    assert changed["step"] == (str(step), "40")
    assert "bits per byte" in page.read_text()
    # spans of held-out text, whose bits are sums of tokens; their text is on the page and in no manifest
    span = found["spans"][0]
    assert abs(span["a_bits"] - span["b_bits"]) == max(abs(one["a_bits"] - one["b_bits"]) for one in found["spans"])
    assert span["end"] - span["start"] >= 64
    assert "text" not in span
    assert page.read_text().count("plinth explain") >= len(found["spans"])
    # a folder of weights, which nothing is known of, is measured alike: these are the newest checkpoint's own
    folder = tmp_path / "weights"
    shutil.copytree(workspace / "runs" / run / "checkpoints" / "step-00000040" / "model", folder)
    ctx = Context(Workspace(workspace))
    (tokenizer,) = ctx.refs.current("tokenizer").named("tokenizer.json")
    shutil.copyfile(ctx.store.open_path(tokenizer.blob), folder / "tokenizer.json")
    same = answer(workspace, "compare", folder, "latest")
    assert same["lines"][0]["difference"]["value"] == 0.0
    assert {line["better"] for line in same["lines"]} == {""}
    assert "weights from elsewhere" in same["changes"][0]["a"]
    others_weights(workspace, tmp_path)
    as_an_asset(ctx, tmp_path, found["models"]["a"]["checkpoint"], found["digest"])
    refused = plinth(workspace, "model", "compare", "latest", "nobody", check=False)
    assert refused.returncode
    assert "nobody" in refused.stderr


def others_weights(workspace: Path, folder: Path) -> None:
    """Write a Llama with its own tokenizer, in several files, as `transformers` does; compare it with ours span by
    span."""
    cutter = Tokenizer(models.BPE())
    cutter.pre_tokenizer, cutter.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<end>"])
    cutter.train_from_iterator(["another corpus, another tokenizer; other words altogether"], trainer)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "max_position_embeddings": 64, "vocab_size": cutter.get_vocab_size()}
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **ends))
    made.save_pretrained(folder / "llama", max_shard_size="50KB")
    cutter.save(str(folder / "llama" / "tokenizer.json"))
    assert len(list((folder / "llama").glob("*.safetensors"))) > 1
    found = answer(workspace, "compare", "latest", folder / "llama", "-o", folder / "others.html")
    assert not found["same_tokenizer"]
    whole = found["lines"][0]
    assert (whole["measure"], whole["better"]) == ("bits per byte", "a")  # ours was trained
    assert all(span["end"] - span["start"] >= 64 for span in found["spans"])
    text = (folder / "others.html").read_text()
    assert "The tokenizers differ" in text
    assert "Spans of held-out text" in text
    assert "weights from elsewhere, of unknown data" in text


def as_an_asset(ctx: Context, folder: Path, early: str, compared: str) -> None:
    """Compare the new checkpoint with the other model that the recipe names, as an asset with the same measurements."""
    recipe = load(variant(folder, f"evaluation: {{against: {early}}}\n"))
    (stage,) = comparison_stage.stages(recipe)
    assert {"evaluation", "probes"} <= set(stage.deps)
    inputs = {name: ctx.refs.load(ref.digest) for name in stage.deps if (ref := ctx.refs.ref(name))}
    made = stage.make(ctx, inputs, print)
    assert made.inputs["b/checkpoint"] == early
    assert made.inputs["a/checkpoint"] == ctx.refs.current("checkpoint").digest
    assert made.digest != compared
    assert stage.outside is not None
    assert stage.outside(ctx) == early
    assert stage.present is not None
    shown = stage.present(ctx, made)
    assert {"page", "differences", "lines"} <= set(shown)
    assert "Spans of held-out text" in comparison_stage.path(ctx, recipe, made.inputs["a/checkpoint"]).read_text()


@pytest.mark.exhaustive
def test_a_release_by_its_names(released: Path, tmp_path: Path) -> None:
    """The champion, its version, the candidate's, its directory and its run are one model; it is verified first."""
    names = ("release", "tiny/1", "tiny@champion", "tiny-candidate/1", "latest")
    first = answer(released, "compare", *names[:2], "-o", tmp_path / "page.html")
    assert first["models"]["a"] == first["models"]["b"]
    assert first["models"]["a"]["step"] == 40
    assert {line["better"] for line in first["lines"]} == {""}
    for name in names[2:]:
        found = answer(released, "compare", "release", name, "-o", tmp_path / "page.html")
        assert found["digest"] == first["digest"]  # the same two checkpoints: made once
    (directory,) = (path for path in (released / "models").iterdir() if path.is_dir())
    assert answer(released, "compare", directory, "release", "-o", tmp_path / "page.html")["digest"] == first["digest"]
    for name, words in (("tiny/7", "tiny"), ("tiny@canary", "has no canary"), ("canary", "has no canary")):
        refused = plinth(released, "model", "compare", name, "latest", check=False)
        assert refused.returncode
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr
