"""The child process: the numbers of this one, one load for many calls, and every failure by name."""

import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from plinth.compute.context import Context
from plinth.compute.engine import torch_threads
from plinth.errors import CheckpointError, TrainingError
from plinth.evaluation.engine.checkpoint import load
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Request, Sampling

TEXTS = ["the fox jumps", "", "größte", "the lazy dog runs away " * 8]
REQUESTS = [Request("the fox", " jumps"), Request((0, 4), (7, 8)), Request("the", ""), Request("", "the lazy dog")]
ModelDirectory = Callable[..., Path]


@pytest.mark.slow
def test_answers_are_those_of_this_process_and_a_killed_child_is_named(
    ctx: Context, model_directory: ModelDirectory
) -> None:
    folder = model_directory()
    here = load(folder)
    with torch_threads(), ModelEngine.of_folder(ctx, folder, workers=2) as engine:
        scores, answers = engine.documents(TEXTS, per_token=True), engine.likelihoods(REQUESTS)
        for there, own in ((scores, here.documents(TEXTS, per_token=True)), (answers, here.likelihoods(REQUESTS))):
            for column, expected in zip(there, own, strict=True):
                assert np.array_equal(column, expected)
        sampling = Sampling(max_tokens=5, temperature=1.0, stop=("z",))
        prompts = ["the fox", (0, 7)]
        assert engine.generate(prompts, sampling) == here.generate(prompts, sampling)
        assert engine.generate([], sampling) == []
        assert engine.documents([]).bits.size == engine.likelihoods([]).bits.size == 0
        assert engine.facts == {"device": here.device.type, "sequence_tokens": 32}
        speeds = engine.serving()
        assert speeds["kv_bytes_per_token"] == 2 * 2 * 1 * 16 * 4  # keys and values, layers, heads, width, FP32
        assert (speeds["dtype"], speeds["prompt_tokens"], sorted(speeds["tokens_per_s"])) == ("float32", 16, ["1", "8"])
        assert min(speeds["first_token_s"], *speeds["tokens_per_s"].values()) > 0
        assert speeds["peak_memory_bytes"] > 10**7
        os.kill(engine._child.process.pid, signal.SIGKILL)
        with pytest.raises(TrainingError, match=r"could not be evaluated[\s\S]*ended with signal 9"):
            engine.documents(TEXTS)
    assert list(ctx.workspace.tmp.iterdir()) == []


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_model_that_does_not_load_is_named(ctx: Context, model_directory: ModelDirectory) -> None:
    folder = model_directory()
    (folder / "model.safetensors").write_bytes(b"not tensors")
    with (
        ModelEngine.of_folder(ctx, folder) as engine,
        pytest.raises(CheckpointError, match=r"could not be evaluated[\s\S]*is not a loadable model folder"),
    ):
        engine.likelihoods(REQUESTS)
    assert list(ctx.workspace.tmp.iterdir()) == []


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_child_hashes_what_it_loads(ctx: Context, model_directory: ModelDirectory) -> None:
    """A file that is exchanged between the verification of a folder and its load is refused."""
    folder = model_directory()
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    with ModelEngine.of_folder(ctx, folder, digests=digests) as engine:
        assert engine.likelihoods(REQUESTS).bits.shape == (4,)
    other = folder.with_name("other")
    other.write_bytes((folder / "tokenizer.json").read_bytes() + b" ")
    other.replace(folder / "tokenizer.json")
    with (
        ModelEngine.of_folder(ctx, folder, digests=digests) as engine,
        pytest.raises(CheckpointError, match="differs from the verified file"),
    ):
        engine.likelihoods(REQUESTS)
