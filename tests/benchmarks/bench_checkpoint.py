"""What a checkpoint costs training: the stall of an asynchronous save beside a synchronous one, tokens/s while a
process writes, and the time from loading to the first step.

One run of two ranks does all of it on the same engine: steps without a save, synchronous saves, asynchronous
saves. Steps during which a write is under way are compared with those of the same run in which none is; the two
kinds take turns, so that whatever else the machine does meets both alike. Medians. Then the newest checkpoint is
verified and loaded into a fresh engine, and one step is taken, at several positions.

    python tests/benchmarks/bench_checkpoint.py [--dim 256] [--layers 6] [--saves 5] [--steps 12]
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
RESULTS = Path(__file__).parent / "results" / "checkpoint.json"
sys.path[:0] = [str(ROOT / "platform"), str(ROOT), str(ROOT / "tests" / "plinth" / "training")]


def measure(config: Any, saves: int, steps: int) -> dict[str, Any]:
    """On one rank: stalls, step times with and without a write under way, resume times."""
    import synthetic

    from plinth.training import engine as engines
    from plinth.training.saving import Saver
    from plinth.training.telemetry import Timeline

    rank = engines.join(config)
    engine = engines.open_engine(config, rank)
    batch = synthetic.batch_at(config, 1, rank.index)
    step_number, stalls, quiet, writing = 0, {"sync": [], "async": []}, [], []

    def step() -> float:
        begun = time.perf_counter()
        engine.train_step(batch, 1e-4)
        return time.perf_counter() - begun

    saver = Saver(engine, Timeline(config.directory.events))
    for _ in range(3):
        step()
    for number in range(saves + 1):  # the first of each kind reserves memory and starts the writer: not counted
        for mode in ("sync", "async"):
            saver.mode, step_number = mode, step_number + 1
            begun = time.perf_counter()
            saver.save(step_number, {"loss_ema": 1.0})
            if number:
                stalls[mode].append(time.perf_counter() - begun)
            if mode == "sync":
                continue
            for _ in range(steps):
                seconds = step()
                saver.poll()
                (writing if saver._waiting else []).append(seconds)
            saver.settle()
            quiet += [step() for _ in range(steps)]
    saver.close()
    resumed = [_resume(config, rank, batch, at) for at in (step_number - 1, step_number)]
    engines.leave()
    return {"stalls": stalls, "quiet": quiet, "writing": writing, "resumed": resumed}


def _resume(config: Any, rank: Any, batch: Any, at: int) -> dict[str, float]:
    from plinth.training import checkpoint, engine, snapshot

    began = time.perf_counter()
    checkpoint.verify(config.directory, at)
    verified = time.perf_counter()
    fresh = engine.open_engine(config, rank)
    opened = time.perf_counter()
    snapshot.load(fresh, at)
    loaded = time.perf_counter()
    fresh.train_step(batch, 1e-4)
    done = time.perf_counter()
    return {
        "verify_s": verified - began,
        "open_engine_s": opened - verified,
        "load_and_compare_s": loaded - opened,
        "first_step_s": done - loaded,
    }


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("dim", 256), ("layers", 6), ("saves", 5), ("steps", 12)):
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    from conftest import tiny

    from plinth.recipe.training import Checkpoints, Model
    from plinth.training import checkpoint
    from tests.ranks import run_ranks

    dim = arguments.dim
    model = Model(layers=arguments.layers, dim=dim, heads=8, kv_heads=4, ffn_dim=3 * dim)
    with tempfile.TemporaryDirectory(prefix="plinth-bench-") as folder:
        config = tiny(
            Path(folder), model=model, vocab_size=8192, sequence_tokens=128, checkpoints=Checkpoints(keep_last=3)
        )
        config.directory.root.mkdir(parents=True)
        load = os.getloadavg()[0]
        found = run_ranks(2, measure, config, arguments.saves, arguments.steps, timeout_s=540)[0]
        size = checkpoint.size_of_last(config.directory)
    stall = {mode: statistics.median(values) for mode, values in found["stalls"].items()}
    quiet = statistics.median(found["quiet"])
    writing = statistics.median(found["writing"]) if found["writing"] else None
    result = {
        "checkpoint_bytes": size,
        "ranks": 2,
        "load_average_at_start": round(load, 1),
        "sync_save_s": round(stall["sync"], 4),
        "async_stall_s": round(stall["async"], 4),
        "stall_share": round(stall["async"] / stall["sync"], 4),
        "step_s": round(quiet, 4),
        "step_while_writing_s": None if writing is None else round(writing, 4),
        "throughput_while_writing": None if writing is None else round(quiet / writing, 4),
        "steps_while_writing": len(found["writing"]),
        "resume": [{name: round(value, 3) for name, value in one.items()} for one in found["resumed"]],
    }
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
