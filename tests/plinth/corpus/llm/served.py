"""A model that Plinth exported, behind `transformers serve` on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
import torch
from tokenizers import AddedToken

from plinth.model.decoder import build
from plinth.model.export import export_model
from plinth.model.parameters import Model
from tests.model_folder import END, byte_level, save_folder

MODEL = Model(layers=1, dim=64, heads=2, kv_heads=1, ffn_dim=48, tied_embeddings=False)
LENGTH = 512
#: The model answers LOW after a full stop, and HIGH after any other token; then it ends.
LOW, HIGH = '{"score": 1}', '{"score": 4}'


def export(folder: Path) -> Path:
    """A model whose next token depends on the last token only, exported with a chat template that adds nothing."""
    cutter = byte_level(["a small text that is merged"] * 3, 300)
    cutter.add_tokens([AddedToken(text, normalized=False) for text in (LOW, HIGH)])
    ids = cutter.get_vocab()
    model = build(MODEL, len(ids), 3)
    following = {".": LOW, LOW: END, HIGH: END}
    embeddings, head = torch.zeros(len(ids), 64), torch.zeros(len(ids), 64)
    embeddings[:, 0], head[ids[HIGH], 0] = 1.0, 40.0
    for axis, (last, answer) in enumerate(following.items(), 1):
        embeddings[ids[last]] = torch.nn.functional.one_hot(torch.tensor(axis), 64).float()
        head[ids[answer], axis] = 40.0
    state = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in state.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
        state["embed_tokens"].copy_(embeddings)
        state["lm_head"].copy_(head)
    save_folder(folder / "source", model, MODEL, cutter, LENGTH)
    export_model(folder / "source", folder / "source" / "tokenizer.json", folder / "out")
    (folder / "out" / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder / "out"


@contextmanager
def served(model: Path, log: Path) -> Iterator[str]:
    """Start the server, and yield the base URL of its API."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", "import sys; from transformers.cli.transformers import main; sys.exit(main())",
               "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]  # fmt: skip
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(log.parent / "hub")}
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        for _ in range(600):
            with contextlib.suppress(requests.RequestException):
                if requests.get(f"http://127.0.0.1:{port}/health", timeout=1).ok:
                    break
            if server.poll() is not None:
                raise RuntimeError(log.read_text(errors="replace"))
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()
