"""One process for the stages of an evaluation: the same numbers, one load, and nothing of it is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from plinth.compute.context import Context
from plinth.errors import TrainingError
from plinth.evaluation.engine.checkpoint import load
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Sampling
from plinth.records import Manifest

TEXTS = ["the fox jumps", "", "größte", "the lazy dog runs away " * 8]
HOLDER = """
import sys, time
from pathlib import Path
from plinth.compute.context import Context
from plinth.evaluation.engine.client import ModelEngine
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
checkpoint = Manifest.model_validate_json(Path(sys.argv[2]).read_bytes())
with ModelEngine.of(Context(Workspace(Path(sys.argv[1]))), checkpoint) as engine:
    engine.facts
print(engine._child.process.pid, flush=True)
time.sleep(3600)
"""


def folders(ctx: Context) -> int:
    return len(list(ctx.workspace.tmp.iterdir()))


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.exhaustive
@pytest.mark.slow
def test_engines_of_one_checkpoint_share_a_process_and_its_numbers_are_those_of_a_fresh_one(
    ctx: Context, model_directory: Callable[..., Path], checkpoint: Callable[[Path], Manifest]
) -> None:
    folder = model_directory()
    made, here = checkpoint(folder), load(folder).documents(TEXTS, per_token=True)

    def same() -> None:
        for there, own in zip(engine.documents(TEXTS, per_token=True), here, strict=True):
            assert np.array_equal(there, own)

    with ModelEngine.of(ctx, made, workers=2) as engine:
        same()
        engine.serving()
        engine.generate(["the fox"], Sampling(max_tokens=4), spread=True)
    first = engine._child.process.pid
    with ModelEngine.of(ctx, made, workers=2) as engine:
        same()
        assert engine._child.process.pid == first
        assert len(list(engine._child.folder.glob("*.a*"))) == 0  # requests and answers
        os.kill(first, signal.SIGKILL)
        same()  # of a new one
        assert (engine._child.process.pid == first, folders(ctx)) == (False, 1)
        os.kill(engine._child.process.pid, signal.SIGKILL)
        with pytest.raises(TrainingError, match="ended with signal 9"):  # a call that kills does so once
            engine.documents(TEXTS)
    assert folders(ctx) == 0
    with ModelEngine.of(ctx, made) as engine:
        engine.facts  # noqa: B018 - loads
    kept = engine._child.process
    with ModelEngine.of_folder(ctx, folder):
        assert kept.poll() is not None  # two models would need twice the memory
    with ModelEngine.of(ctx, made):
        pass  # ended before it was loaded: the answer is unknown
    assert folders(ctx) == 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_end_of_the_parent_is_the_end_of_an_idle_process(
    ctx: Context, model_directory: Callable[..., Path], checkpoint: Callable[[Path], Manifest], tmp_path: Path
) -> None:
    made = checkpoint(model_directory())
    (tmp_path / "manifest.json").write_text(made.model_dump_json())
    command = [sys.executable, "-c", HOLDER, str(ctx.workspace.root), str(tmp_path / "manifest.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not gone(pid)
        parent.kill()
    while not gone(pid):  # it reads the end of its input
        time.sleep(0.01)
