"""One rank of a measurement. Imports torch.

    python -m plinth_lab.qualification.rank train OUTPUT CONFIG WARMUP STRICT    steps of a run, through `Trainer`
    python -m plinth_lab.qualification.rank links OUTPUT                         all-reduce between the ranks

Rank 0 writes its result to OUTPUT as JSON, because libraries print to standard output.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from plinth.errors import TrainingError
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.engine import engine as engines
from plinth.training.engine.engine import Rank

#: Message sizes of the all-reduce in bytes, by kind of device, and repetitions of each.
MESSAGES = {"cpu": (2**20, 2**24), "cuda": (2**20, 2**25, 2**28)}
REPEATS = 10


def trained(config: RunConfig, rank: Rank, warmup: int, strict: bool) -> dict[str, Any]:
    """Train all steps of a run; return figures of the steps after the warm-up.

    A step is a step of a run: the loader reads shards and finds the documents, attention stays within them, the guard
    judges the update on the device and the numbers afterward, and the next step is launched before the last one is
    read.

    Args:
        strict: launch the counted steps under CUDA's sync debug mode "error", in which a step that waits for the
            device raises an error. Without a GPU there is no such mode.

    Returns:
        elapsed_s: seconds of all counted steps together; steps: their number; median_s: median of one step.
        sync_free: counted steps that were proved not to wait for the device; 0 unless `strict` on a GPU.
        memory_bytes: peak of allocated device memory of this rank; 0 on a CPU.

    Raises:
        TrainingError: an update was vetoed, or a loss is not a number.
    """
    from plinth.training.trainer import Trainer

    cuda = rank.device.type == "cuda"
    strict = strict and cuda
    trainer = Trainer(config, rank)
    trainer.begin()
    stream, before, steps = trainer.batches(1), None, []
    begun = time.perf_counter()
    for step in range(1, config.total_steps + 1):
        if step == warmup + 1:
            if before is not None:
                trainer.record(before.read())
            before, begun = None, time.perf_counter()
        if strict and step > warmup:
            torch.cuda.set_sync_debug_mode("error")
        launched = trainer.launch(stream, step)
        if strict:
            torch.cuda.set_sync_debug_mode("default")
        if before is not None:
            steps.append(before.read())
            trainer.record(steps[-1])
        before = launched
    if before is not None:
        steps.append(before.read())
    elapsed = time.perf_counter() - begun
    counted = [one for one in steps if one.step > warmup]
    if any(one.vetoed or one.loss != one.loss for one in steps):
        raise TrainingError(
            "the measurement is invalid", found="a vetoed update, or a loss that is not a number",
            expected="an ordinary step", remedy="measure again; if it fails again, the device computes wrong results",
        )  # fmt: skip
    return {
        "elapsed_s": elapsed,
        "steps": len(counted),
        "median_s": statistics.median(one.time.seconds for one in counted),
        "sync_free": len(counted) if strict else 0,
        "memory_bytes": torch.cuda.max_memory_allocated() if cuda else 0,
    }


def linked(index: int, world: int) -> dict[str, float]:
    """Return the bus bandwidth of an all-reduce in bytes/s, by message size: 2 (n - 1) / n times the message's bytes
    per second, as `nccl-tests` counts it; the median of all repetitions."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if kind == "cuda" else "gloo", rank=index, world_size=world)
    found = {}
    for size in MESSAGES[kind]:
        message, times = torch.ones(size // 4, dtype=torch.float32, device=device), []
        for _ in range(REPEATS + 1):  # the first one connects
            message.fill_(1.0)
            distributed.barrier()
            begun = time.perf_counter()
            distributed.all_reduce(message)
            if kind == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - begun)
        if not bool((message == world).all()):
            raise TrainingError(
                "an all-reduce returned wrong sums", found=f"{size} bytes over {world} ranks", expected=world,
                remedy="check the links of this machine: `nvidia-smi topo -m`, `nvidia-smi nvlink -s`",
            )  # fmt: skip
        found[str(size)] = 2 * (world - 1) / world * size / statistics.median(times[1:])
    distributed.destroy_process_group()
    return found


def main() -> None:
    what, output = sys.argv[1], Path(sys.argv[2])
    if what == "links":
        found: dict[str, Any] = linked(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        config = configuration.load(Path(sys.argv[3]))
        rank = engines.join(config)
        found = trained(config, rank, int(sys.argv[4]), sys.argv[5] == "strict")
        engines.leave()
    if os.environ["RANK"] == "0":
        output.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
