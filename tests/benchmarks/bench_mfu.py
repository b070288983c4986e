"""Model FLOPs utilization: a dense 1B decoder, sequence 4,096, BF16, on one GPU, through `Trainer`.

A step is a step of a run: the loader reads shards and finds the documents, attention stays within them, the guard
judges the update on the device and the numbers afterward, the next step is launched before the last one is read. Text
is drawn at random: its content does not affect the time. Steps after the warm-up are launched under CUDA's sync debug
mode "error": a wait for the device ends the benchmark, so every step it counts is free of waits.

MFU = FLOPs of the model per token x tokens/s / peak of the device (Chowdhery et al. 2022, "PaLM", appendix B):
6 per parameter of every matrix product, and 12 L H Q S for attention over the whole square, forward and backward,
nothing for recomputation. Peaks are the data sheets', BF16, dense (`plinth.launch.devices`), with FP8 layers
too. "causal" is the share if attention counts only the half that a causal mask leaves.

Without a GPU there is nothing to measure. `--tiny` takes the same path on a CPU with a model of a million parameters
and, for the peak, what a large matrix product reaches there; that figure is not a benchmark and is not recorded.

    python tests/benchmarks/bench_mfu.py [--preset 1b] [--sequence 4096] [--micro 4] [--steps 30] [--compile]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "mfu.json"
sys.path[:0] = [str(ROOT / "platform"), str(Path(__file__).parent)]

WARMUP_STEPS = 5
LIBRARIES = ("torch", "deepspeed", "torchao", "numpy")


def prepared(workspace: Path, arguments: argparse.Namespace) -> Any:
    """A run of one rank over drawn documents, as its asset would prepare it."""
    from bench_loader import drawn_bucket

    from plinth.compute.context import Context
    from plinth.launch.parameters import Launch
    from plinth.model.parameters import PRESETS, Model
    from plinth.records import Manifest
    from plinth.storage.workspace import Workspace
    from plinth.tokens.mixture import mixture
    from plinth.tokens.mixture.parameters import Mixture, Phase
    from plinth.training import preparation
    from plinth.training.parameters.parallel import Parallel
    from plinth.training.parameters.run import Training

    ctx = Context(Workspace(workspace).ensure())
    vocab_size, rows = PRESETS[arguments.preset].vocab_size, arguments.micro * arguments.accumulation
    tokens = (arguments.steps + WARMUP_STEPS) * rows * arguments.sequence
    shards = {"text": drawn_bucket(ctx, "text", tokens + arguments.sequence, 1, vocab_size)}
    phase = Phase(name="all", fraction=1.0, weights={"text": 1.0})
    mixed = mixture.run(ctx, Mixture(sequence_tokens=arguments.sequence, total_tokens=tokens, phases=(phase,)), shards)
    facts = {"vocab_size": vocab_size, "end_of_text": 0}
    tokenizer = Manifest(asset="tokenizer", step="drawn", version="1", params={}, inputs={}, parts=(), stats=facts)
    training = Training(
        model=Model(preset=arguments.preset),
        precision="fp32" if arguments.tiny else "bf16",
        float8=arguments.float8,
        micro_batch_sequences=arguments.micro,
        global_batch_sequences=rows,
        launch=Launch(ranks=1),
        parallel=Parallel(zero_stage=1, compile=arguments.compile, activation_checkpointing=arguments.recompute),
    )
    return preparation.prepare(ctx, "mfu", training, mixed, shards, tokenizer)


def peak_of(device: Any) -> tuple[str, float]:
    """The device's name and peak; on a CPU, the best of several products of 1,024 x 1,024 matrices.

    Raises:
        SystemExit: a GPU whose peak is not known.
    """
    import torch

    from plinth.launch.devices import DEVICES

    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        words = name.lower().replace("-", " ").split()
        found = [made.bf16_flops for key, made in DEVICES.items() if key.partition("-")[0] in words]
        if not found:
            raise SystemExit(f"no peak of {name} is known: add it to plinth.launch.devices")
        return name, found[-1]
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = float("inf")
    for _ in range(8):
        begun = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - begun)
    return f"cpu, {torch.get_num_threads()} threads", 2 * 1024**3 / best


def trained(config: Any, rank: Any) -> dict[str, Any]:
    """Seconds of all steps after the warm-up together, the median of single ones, and how many waited for nothing."""
    import torch

    from plinth.training.trainer import Trainer

    cuda = rank.device.type == "cuda"
    trainer = Trainer(config, rank)
    trainer.begin()
    stream, before, steps, strict = trainer.batches(1), None, [], 0
    for step in range(1, config.total_steps + 1):
        if step == WARMUP_STEPS + 1:
            trainer.record(before.read())
            before, begun = None, time.perf_counter()
        strict += cuda and step > WARMUP_STEPS
        if cuda:
            torch.cuda.set_sync_debug_mode("error" if step > WARMUP_STEPS else "default")
        launched = trainer.launch(stream, step)
        if cuda:
            torch.cuda.set_sync_debug_mode("default")
        if before is not None:
            steps.append(before.read())
            trainer.record(steps[-1])
        before = launched
    steps.append(before.read())
    elapsed = time.perf_counter() - begun
    timed = [one.time.seconds for one in steps if one.step > WARMUP_STEPS]
    if any(one.vetoed or one.loss != one.loss for one in steps):
        raise SystemExit("an update was not made, or a loss is no number: the measurement means nothing")
    count = config.total_steps - WARMUP_STEPS
    memory = torch.cuda.max_memory_allocated() if cuda else 0
    facts = {"guard": config.guard.enabled, "document_mask": config.model.document_mask, "memory_bytes": memory}
    return {"elapsed_s": elapsed, "steps": count, "median_s": statistics.median(timed), "strict": strict, **facts}


def versions(cuda: bool) -> dict[str, str]:
    """Return the versions of the software and the device."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    found = {"python": platform.python_version(), "kernel": platform.release()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    if cuda:
        import pynvml

        pynvml.nvmlInit()
        found |= {"cuda": str(torch.version.cuda), "driver": str(pynvml.nvmlSystemGetDriverVersion())}
    return found


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train on the one device there is, and put the numbers together."""
    import torch

    from plinth.model import architectures as counts
    from plinth.processes import free_port
    from plinth.training.engine import engine as engines

    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ.update({**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
    with tempfile.TemporaryDirectory() as folder:
        config = prepared(Path(folder), arguments)
        rank = engines.join(config)
        name, peak = peak_of(rank.device)
        found = trained(config, rank)
        engines.leave()
    exact = counts.flops_exact(config.model, config.vocab_size, config.sequence_tokens)
    squares = 12 * config.model.layers * config.model.heads * config.model.head_width * config.sequence_tokens
    speed = config.step_tokens() * found["steps"] / found["elapsed_s"]
    return {
        "device": name,
        "peak_flops": peak,
        "parameters": counts.parameters(config.model, config.vocab_size).total,
        "sequence_tokens": config.sequence_tokens,
        "micro_batch": config.micro_batch_sequences,
        "accumulation": config.accumulation(),
        "precision": config.precision,
        "float8": config.float8,
        "compile": config.parallel.compile,
        "guard": found["guard"],
        "document_mask": found["document_mask"],
        "steps": found["steps"],
        "steps_without_a_wait": found["strict"],
        "step_s": found["median_s"],
        "tokens_per_s": speed,
        "flops_per_token": exact,
        "mfu": speed * exact / peak,
        "mfu_causal": speed * (exact - squares // 2) / peak,
        "memory_bytes": found["memory_bytes"],
        "versions": versions(torch.cuda.is_available()),
    }


def main() -> None:
    """Measure, print a table; on a GPU, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="1b")
    parser.add_argument("--sequence", type=int, default=4096)
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--float8", default="none", choices=["none", "tensorwise", "rowwise", "rowwise_with_gw_hp"])
    parser.add_argument("--recompute", type=int, default=0, help="every n-th block in the backward pass")
    parser.add_argument("--tiny", action="store_true", help="the same path on a CPU; nothing is recorded")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if arguments.tiny:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        arguments.preset, arguments.sequence, arguments.micro, arguments.accumulation = "1m", 128, 2, 2

    import torch

    if not arguments.tiny and not torch.cuda.is_available():
        raise SystemExit("no GPU here, so nothing to measure; --tiny takes the same path on a CPU")
    result = measure(arguments)
    print(json.dumps(result) if arguments.json else "\n".join(f"{name:<22} {value}" for name, value in result.items()))
    if arguments.tiny:
        return
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[f"{result['device']}, {arguments.preset}, float8 {arguments.float8}"] = result
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
