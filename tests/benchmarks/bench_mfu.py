"""Model FLOPs utilization: a dense 1B decoder, sequence 4,096, BF16, on one GPU, through `Trainer`.

A step is a step of a run, as `plinth qualify` measures it (`plinth_lab.qualification`). Steps after the warm-up are
launched under CUDA's sync debug mode "error": a wait for the device ends the benchmark, so every step it counts is free
of waits.

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
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "mfu.json"
sys.path[:0] = [str(ROOT / name) for name in ("platform", "registry", "assets", "jobs")]
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:4])  # ranks find the library too

WARMUP_STEPS = 5


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train on the one device there is, and put the numbers together."""
    from plinth.compute.context import Context
    from plinth.model import architectures as counts
    from plinth.storage.workspace import Workspace
    from plinth.training.attempts import this_host
    from plinth.training.telemetry import machine_speed
    from plinth_lab.qualification import trials, work
    from plinth_lab.qualification.record import sheet_of

    trial = trials.SpeedTrial(
        preset=arguments.preset, sequence_tokens=arguments.sequence, precision="fp32" if arguments.tiny else "bf16",
        float8=arguments.float8, compile=arguments.compile, accumulation=arguments.accumulation,
        steps=arguments.steps, warmup=WARMUP_STEPS,
    )  # fmt: skip
    placed = trials.TrialPlacement(micro=arguments.micro, zero_stage=1, recompute=arguments.recompute)
    with tempfile.TemporaryDirectory() as folder:
        ctx = Context(Workspace(folder).ensure())
        device = machine_speed.measure(ctx.workspace).devices[0 if arguments.tiny else 1]
        sheet = sheet_of(device.name)
        if sheet is None and not arguments.tiny:
            raise SystemExit(f"no peak of {device.name} is known: add it to plinth.launch.devices")
        peak = sheet[1].bf16_flops if sheet else device.flops["fp32"]
        config = trials.prepared(ctx, trial, placed, 1)
        words = ("train", str(config.directory.config), str(trial.warmup), "strict")
        found = trials.on_ranks(1, ctx.workspace.root / "ranks", *words)
    exact = trials.flops_per_token(config)
    squares = 12 * config.model.layers * config.model.heads * config.model.head_width * config.sequence_tokens
    speed = config.step_tokens() * found["steps"] / found["elapsed_s"]
    return {
        "device": device.name,
        "peak_flops": peak,
        "parameters": counts.parameters(config.model, config.vocab_size).total,
        "trial": trial.model_dump(),
        "placement": placed.model_dump(),
        "guard": config.guard.enabled,
        "document_mask": config.model.document_mask,
        "steps": found["steps"],
        "steps_without_a_wait": found["sync_free"],
        "step_s": found["median_s"],
        "tokens_per_s": speed,
        "flops_per_token": exact,
        "mfu": speed * exact / peak,
        "mfu_causal": speed * (exact - squares // 2) / peak,
        "memory_bytes": found["memory_bytes"],
        "driver": work.driver(),
        "versions": this_host().libraries,
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
