"""Memory of a rank when a run starts, compared with its share of the model; and the speed of initial weights.

    python tests/benchmarks/bench_start.py [--out FILE]

Every engine is opened on ranks of its own, in one machine's memory, and trains a step on request. `made`
is the growth of the peak of resident memory (VmHWM) until DeepSpeed begins, of the rank that grows most; `open` until
the engine is there, with what DeepSpeed flattens and reserves; `step` after one step; `resume` after the state of that
step has been put into it again, by itself. Seconds are a process's own on one thread, which other work on the machine
does not disturb; seconds per GB are compared with `torch.Tensor.normal_` on the same amount of memory, in turns.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plinth.launch.parameters import Launch, Supervision
from plinth.model.decoder import Decoder
from plinth.model.division import Initial, Placement
from plinth.model.parameters import PRESETS, Model
from plinth.training.config import RunConfig
from plinth.training.parameters.optimizers import Optimizer
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints
from tests.ranks import run_ranks

RESULTS = Path(__file__).parent / "results" / "start.json"
LENGTH = 32

#: Layout -> ranks and parallel block.
LAYOUTS: dict[str, tuple[int, Parallel]] = {
    "1 rank": (1, Parallel(zero_stage=1)),
    "ZeRO-3, 2 ranks": (2, Parallel(zero_stage=3)),
    "tensor 2": (2, Parallel(zero_stage=1, tensor=2)),
    "pipeline 2": (2, Parallel(zero_stage=1, pipeline=2)),
}


class _Enough(Exception):
    """Raised when the weights exist, before DeepSpeed starts."""


def run_config(preset: str, precision: str, ranks: int, parallel: Parallel) -> RunConfig:
    return RunConfig(
        run_id="start-000000000000",
        key="0" * 64,
        recipe="start",
        workspace=tempfile.gettempdir(),
        model=Model(preset=preset),
        vocab_size=PRESETS[preset].vocab_size,
        end_of_text=0,
        optimizer=Optimizer(),
        precision=precision,  # type: ignore[arg-type]
        parallel=parallel,
        seed=1,
        launch=Launch(ranks=ranks),
        sequence_tokens=LENGTH,
        micro_batch_sequences=1,
        global_batch_sequences=4,
        total_steps=12,
        mixture="m" * 64,
        shards={},
        tokenizer="t" * 64,
        checkpoints=Checkpoints(),
        supervision=Supervision(),
    )


def memory(field: str) -> int:
    """`VmHWM` or `VmRSS` of this process, bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def begin_anew() -> int:
    """Forget the peak; the resident memory now."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def start(config: RunConfig, through: str, folder: Path) -> dict[str, float]:
    """On one rank: growth of the peak, bytes, at each point through the last."""
    import deepspeed

    from plinth.training.checkpoint import sharded_state, universal
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine

    torch.set_num_threads(1)
    rank, take, grown = engines.join(config), deepspeed.initialize, {}
    before = begin_anew()

    def observed(**given: Any) -> Any:
        grown["made"] = float(memory("VmHWM") - before)
        grown["seconds"] = time.process_time() - begun
        if through == "made":
            raise _Enough
        return take(**given)

    deepspeed.initialize = observed
    begun = time.process_time()
    try:
        engine = open_engine(config, rank)
        grown["open"] = float(memory("VmHWM") - before)
        engine.train_step(_batch(config, rank.index), 1e-3)
        grown["step"] = float(memory("VmHWM") - before)
        sharded_state.write(universal.capture(engine), folder, rank.index)
        torch.distributed.barrier()
        held = begin_anew()
        universal.restore(engine, folder)
        grown["resume"] = float(memory("VmHWM") - held)
    except _Enough:
        pass
    torch.distributed.barrier()
    engines.leave()
    return grown


def _batch(config: RunConfig, rank: int) -> Any:
    """Any tokens, as the engine takes them."""
    from plinth.training.data import StepBatch

    shape = (4 // config.data_ranks, 1, LENGTH + 1)
    return StepBatch.of(np.random.default_rng(rank).integers(0, config.vocab_size, shape).astype(np.int32))


def rows(preset: str, precision: str, through: str) -> list[dict[str, Any]]:
    found = []
    width = 4 if precision == "fp32" else 2
    for name, (ranks, parallel) in LAYOUTS.items():
        config = run_config(preset, precision, ranks, parallel)
        with tempfile.TemporaryDirectory() as folder:
            grown = run_ranks(ranks, start, config, through, Path(folder), timeout_s=900)
        with torch.device("meta"):
            total = sum(p.numel() for p in Decoder(config.model, config.vocab_size).parameters()) * width
        for point in ("made", "open", "step", "resume"):
            if point in grown[0]:
                most = max(one[point] for one in grown)
                what = f"{preset}, {precision}, {name}: {point}; the model is {total / 1e9:.2f} GB"
                found.append({"measure": what, "value": round(most / 1e9, 3), "unit": "GB"})
        seconds = max(one["seconds"] for one in grown)
        found.append({"measure": f"{preset}, {precision}, {name}: until made", "value": seconds, "unit": "s"})
        print(json.dumps(found[-5:], indent=1), flush=True)
    return found


def speed() -> list[dict[str, Any]]:
    """Seconds per GB of FP32, best of three turns."""
    torch.set_num_threads(1)
    target = torch.zeros(4096, 4096)
    generator = torch.Generator()
    best = {"ours": 1e9, "ours, trunc-normal": 1e9, "torch.Tensor.normal_": 1e9, "torch.nn.init.trunc_normal_": 1e9}
    plain, cut = (Initial(Model(preset="1m", init=kind), 1) for kind in ("gpt2", "trunc-normal"))
    work = {
        "ours": lambda: plain.fill(target, "w", "matrix", Placement((4096, 4096))),
        "torch.Tensor.normal_": lambda: target.normal_(0.0, 0.02, generator=generator.manual_seed(1)),
        "ours, trunc-normal": lambda: cut.fill(target, "w", "matrix", Placement((4096, 4096))),
        "torch.nn.init.trunc_normal_": lambda: torch.nn.init.trunc_normal_(target, 0.0, 0.02, -0.06, 0.06),
    }
    for _ in range(3):
        for name, do in work.items():
            begun = time.process_time()
            do()
            best[name] = min(best[name], time.process_time() - begun)
    size = target.numel() * 4 / 1e9
    return [{"measure": f"initial weights, {name}", "value": s / size, "unit": "s/GB"} for name, s in best.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--preset", default="150m", help="trained a step, FP32")
    parser.add_argument("--largest", default="1b", help="made only, BF16")
    arguments = parser.parse_args()
    found = [*speed(), *rows(arguments.largest, "bf16", "made"), *rows(arguments.preset, "fp32", "resume")]
    arguments.out.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
