"""Likelihood requests per second compared with lm-evaluation-harness's own `HFLM`, on the same weights, in one run.

    python tests/benchmarks/bench_likelihood.py

Needs the extras `tasks` and `dev`. Two workloads of tokens of Python's standard library: questions with four answers
each (the shape of most of its tasks), and pairs that share nothing, of 16 to 384 tokens. `HFLM` runs with several batch
sizes, of which the best counts. Requests per second of one core's work (CPU time, one thread), so that other load on
the machine matters little; both get tokens, so that encoding is not included. The numbers of both are compared. Writes
tests/benchmarks/results/likelihood.json.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plinth.evaluation.engine.checkpoint import Checkpoint, load
from plinth.evaluation.engine.records import Request
from plinth.model.parameters import Model
from tests.benchmarks import model_text
from tests.model_folder import END

SHAPE = Model(layers=4, dim=256, heads=4, kv_heads=2, ffn_dim=704)
SEQUENCE, VOCABULARY = 512, 8192
BATCHES = (1, 8, 32)
TARGET = Path(__file__).parent / "results" / "likelihood.json"


def questions(ids: list[int], picks: random.Random, count: int = 40) -> list[Request]:
    """Each with four answers of 1 to 8 tokens after the same 80 to 300."""
    found = []
    for _ in range(count):
        at, size = picks.randrange(len(ids) - 400), picks.randint(80, 300)
        for _ in range(4):
            other, length = picks.randrange(len(ids) - 400), picks.randint(1, 8)
            found.append(Request((0, *ids[at : at + size]), tuple(ids[other : other + length])))
    return found


def pairs(ids: list[int], picks: random.Random, count: int = 160) -> list[Request]:
    """16 to 384 tokens, of which the last 4 to 64 are scored."""
    found = []
    for _ in range(count):
        size = picks.randint(16, 384)
        at, last = picks.randrange(len(ids) - 400), picks.randint(4, min(64, size - 4))
        found.append(Request((0, *ids[at : at + size - last]), tuple(ids[at + size - last : at + size])))
    return found


def ours(checkpoint: Checkpoint, requests: list[Request]) -> tuple[float, np.ndarray[Any, Any]]:
    """Seconds, and bits."""
    started = time.process_time()
    bits = checkpoint.likelihoods(requests).bits
    return time.process_time() - started, bits


def theirs(model: Any, requests: list[Request]) -> tuple[float, np.ndarray[Any, Any]]:
    """Seconds, and bits."""
    asked = [(("", str(number)), list(one.prompt), list(one.continuation)) for number, one in enumerate(requests)]
    started = time.process_time()
    found = model._loglikelihood_tokens(asked, disable_tqdm=True)
    return time.process_time() - started, np.array([-value for value, _ in found]) / np.log(2)


def compare(folder: Path, requests: list[Request]) -> dict[str, Any]:
    """Both on one workload, twice, turn by turn; the better time of each counts."""
    from lm_eval.models.huggingface import HFLM

    checkpoint, spent = load(folder), {}
    models = {
        size: HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=size, max_length=SEQUENCE)
        for size in BATCHES
    }
    for _ in range(2):
        seconds, bits = ours(checkpoint, requests)
        spent.setdefault("ours", []).append(seconds)
        for size, model in models.items():
            seconds, expected = theirs(model, requests)
            spent.setdefault(f"HFLM, batch {size}", []).append(seconds)
    difference = float(np.max(np.abs(bits - expected) / expected))
    speeds = {name: round(len(requests) / min(times), 1) for name, times in spent.items()}
    best = max(speed for name, speed in speeds.items() if name != "ours")
    return {
        "requests": len(requests),
        "requests_per_second": speeds,
        "times_as_fast": round(speeds["ours"] / best, 2),
        "largest_relative_difference": float(f"{difference:.1e}"),
    }


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, tokenizer = model_text.folder(folder, SHAPE, vocabulary=VOCABULARY, sequence_tokens=SEQUENCE)
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END})
        )
        ids, picks = tokenizer.encode(model_text.text(400_000)).ids, random.Random(7)
        found = {"four answers": compare(folder, questions(ids, picks)), "pairs": compare(folder, pairs(ids, picks))}
    machine = {"threads": 1, "torch": torch.__version__, "lm_eval": version("lm_eval")}
    print(json.dumps(found, indent=2))
    recorded = {"machine": machine, "model": SHAPE.model_dump(mode="json"), **found}
    TARGET.write_text(json.dumps(recorded, indent=2) + "\n")


if __name__ == "__main__":
    main()
