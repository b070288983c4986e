"""A tiny model, untrained and trained, the twelve task files, and their manifests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from plinth.compute.context import Context
from plinth.evaluation.tasks import job
from plinth.model.decoder import Decoder, build
from plinth.model.parameters import Model
from plinth.records import Manifest
from plinth.storage.workspace import Workspace
from tests.model_folder import byte_level, save_folder
from tests.plinth.evaluation.tasks.measure import put
from tests.shared import once

FILES = Path(__file__).parent / "files"
S = 128  # tokens of a training sequence; the prompts of `long_prompt` and the texts of `pages` are longer


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained model and tokenizer as a checkpoint has them; only to be read, or copied."""
    return once(tmp_path_factory, "model-of-tasks", partial(make_model, steps=0))


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model trained on the data of the tasks, so that its answers differ and are not all right."""
    return once(tmp_path_factory, "trained-model-of-tasks", partial(make_model, steps=400))


def make_model(folder: Path, steps: int) -> None:
    data = (path.read_text() for path in sorted((FILES / "data").iterdir()))
    tokenizer = byte_level((line for text in data for line in text.splitlines(keepends=True)), 512)
    config = Model(layers=2, dim=64, heads=4, kv_heads=2, ffn_dim=96)
    model = build(config, tokenizer.get_vocab_size(), seed=3)
    learn(model, tokenizer, steps)
    save_folder(folder, model, config, tokenizer, S)


def learn(model: Decoder, tokenizer: Tokenizer, steps: int) -> None:
    """Train on the data of the tasks."""
    records = [json.loads(line) for path in sorted((FILES / "data").iterdir()) for line in path.open()]
    words = [one["source"] for one in records if "source" in one]
    text = "\n\n".join(" ".join(map(str, one.values())) for one in records)
    text += "".join(f"\n\nCopy: {word}\nCopied: {word}" for _ in range(8) for word in words)
    ids = torch.tensor(tokenizer.encode(text).ids)
    rows = ids[: len(ids) // S * S].view(-1, S)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        batch = torch.cat([torch.zeros(8, 1, dtype=torch.int64), rows[(torch.arange(8) + 8 * step) % len(rows)]], 1)
        logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return Context(Workspace(tmp_path_factory.mktemp("tasks") / "workspace").ensure())


@pytest.fixture(scope="module")
def checkpoint(ctx: Context, model_folder: Path) -> Manifest:
    return put(ctx, model_folder)


@pytest.fixture(scope="module")
def all_files(ctx: Context) -> Manifest:
    """The twelve task files, as they are."""
    return job.task_files(ctx, "small", str(FILES))


@pytest.fixture
def task_files(ctx: Context, tmp_path: Path) -> Callable[..., Manifest]:
    """The manifest of a copy of the task files; `change` may spoil the copy first."""

    def made(change: Callable[[Path], object] = lambda folder: None) -> Manifest:
        folder = tmp_path / "task_files"
        shutil.copytree(FILES, folder, ignore=shutil.ignore_patterns("__pycache__"))
        change(folder)
        return job.task_files(ctx, "small", str(folder))

    return made
