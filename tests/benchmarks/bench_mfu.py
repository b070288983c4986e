"""Model FLOPs utilisation: a dense 1B decoder, sequence 4,096, BF16, on one GPU, through our engine.

MFU = FLOPs of the model per token x tokens/s / peak of the device (Chowdhery et al. 2022, "PaLM", appendix B):
6 per parameter of every matrix product, and 12 L H Q S for attention over the whole square, forward and backward,
nothing for what is computed again. Peaks are the data sheets', dense, without sparsity. Beside it the share when
attention counts the half that a causal mask leaves ("causal"), for comparison with those who count so.

Without a GPU it says so, runs a tiny model on the CPU, and takes what a large matrix product reaches there for the
peak, so that the arithmetic is seen to work; that figure is no benchmark.

    python tests/benchmarks/bench_mfu.py [--preset 1b] [--sequence 4096] [--micro 4] [--steps 20] [--compile]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "mfu.json"
sys.path[:0] = [str(ROOT / "platform")]

WARMUP_STEPS = 3

#: Dense BF16 FLOP/s of the data sheets, by what the device's name holds.
PEAKS = {"B200": 2.25e15, "H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}


def configured(workspace: str, arguments: argparse.Namespace, cuda: bool) -> Any:
    """A run of one rank; on a CPU the smallest preset over short sequences."""
    from plinth.launch.parameters import Launch, Supervision
    from plinth.model.parameters import Model
    from plinth.model.presets import PRESETS
    from plinth.training.checkpoint.parameters import Checkpoints
    from plinth.training.config import RunConfig
    from plinth.training.engine.parameters import Optimizer
    from plinth.training.parallel.parameters import Parallel

    preset, sequence, micro = arguments.preset, arguments.sequence, arguments.micro
    if not cuda:
        preset, sequence, micro = "1m", 256, 4
    rows = micro * arguments.accumulation
    block = Parallel(zero_stage=1, compile=arguments.compile, activation_checkpointing=arguments.recompute)
    return RunConfig(
        run_id="mfu-000000000000",
        key="0" * 64,
        recipe="mfu",
        workspace=workspace,
        model=Model(preset=preset, document_mask=False),
        vocab_size=PRESETS[preset].vocab_size,
        end_of_text=0,
        optimizer=Optimizer(),
        precision="bf16" if cuda else "fp32",
        parallel=block,
        seed=1,
        launch=Launch(ranks=1),
        sequence_tokens=sequence,
        micro_batch_sequences=micro,
        global_batch_sequences=rows,
        total_steps=arguments.steps + WARMUP_STEPS,
        mixture="m" * 64,
        shards={},
        tokenizer="t" * 64,
        checkpoints=Checkpoints(),
        supervision=Supervision(),
    )


def peak_of(device: Any) -> tuple[str, float]:
    """The device's name and peak; on a CPU, the best of several products of 1,024 x 1,024 matrices."""
    import torch

    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return name, next((peak for part, peak in PEAKS.items() if part in name), float("nan"))
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = float("inf")
    for _ in range(8):
        begun = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - begun)
    return "cpu", 2 * 1024**3 / best


def seconds_of(config: Any, rank: Any) -> list[float]:
    """Seconds of each step after the warm-up, on batches of random tokens."""
    import numpy as np
    import torch

    from plinth.training.data import StepBatch
    from plinth.training.engine.engine import open_engine

    engine, random = open_engine(config, rank), np.random.default_rng(1)
    shape = (config.accumulation(), config.micro_batch_sequences, config.sequence_tokens + 1)
    seconds = []
    for _ in range(config.total_steps):
        tokens = random.integers(0, config.vocab_size, shape, dtype=np.int32)
        batch = StepBatch.of(tokens)
        begun = time.perf_counter()
        loss, _ = engine.train_step(batch, 1e-4)
        if rank.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    if not bool(torch.isfinite(loss)):
        raise SystemExit("the loss is not finite: the measurement means nothing")
    return seconds[WARMUP_STEPS:]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train on the one device there is, and put the numbers together."""
    import torch

    from plinth.model import flops as counts
    from plinth.training.engine import engine as engines
    from plinth.training.supervise.supervisor import free_port

    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ.update({**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
    with tempfile.TemporaryDirectory() as folder:
        config = configured(folder, arguments, torch.cuda.is_available())
        rank = engines.join(config)
        seconds = seconds_of(config, rank)
        name, peak = peak_of(rank.device)
        memory = torch.cuda.max_memory_allocated() if rank.device.type == "cuda" else 0
        engines.leave()
    exact = counts.flops_exact(config.model, config.vocab_size, config.sequence_tokens)
    squares = 12 * config.model.layers * config.model.heads * config.model.head_width * config.sequence_tokens
    speed = config.step_tokens() / statistics.median(seconds)
    return {
        "device": name,
        "peak_flops": peak,
        "parameters": counts.parameters(config.model, config.vocab_size).total,
        "sequence_tokens": config.sequence_tokens,
        "micro_batch": config.micro_batch_sequences,
        "accumulation": config.accumulation(),
        "precision": config.precision,
        "compile": config.parallel.compile,
        "steps": len(seconds),
        "step_s": round(statistics.median(seconds), 4),
        "tokens_per_s": round(speed, 1),
        "flops_per_token": exact,
        "mfu": round(speed * exact / peak, 4),
        "mfu_causal": round(speed * (exact - squares // 2) / peak, 4),
        "memory_bytes": memory,
    }


def main() -> None:
    """Measure, print a table; on a GPU, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="1b")
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--recompute", type=int, default=0, help="every n-th block in the backward pass")
    result = measure(arguments := parser.parse_args())
    for name, value in result.items():
        print(f"{name:<16} {value!s:>24}")
    if result["device"] == "cpu":
        print("no GPU here: a tiny model on the CPU, against the speed of its matrix product; nothing is recorded")
        return
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[f"{result['device']}, {arguments.preset}"] = result
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
