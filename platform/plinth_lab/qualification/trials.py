"""Trials of training speed: which ones suit the devices of this machine, and how the ranks of one are started.

A trial trains a preset on documents drawn at random: their content does not affect the time. The largest micro batch
that fits in memory is used, with ZeRO-1, ZeRO-2 or recomputed blocks as needed.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa

from plinth import processes
from plinth.compute.context import Context
from plinth.errors import RequestError, TrainingError
from plinth.launch.devices import USABLE, called
from plinth.launch.parameters import Launch, Supervision
from plinth.model import architectures
from plinth.model.parameters import PRESETS, Model
from plinth.operation import memory
from plinth.records import Frozen, Manifest, Part
from plinth.tokens.mixture import mixture
from plinth.tokens.mixture.parameters import Mixture, Phase
from plinth.tokens.shards.index import write_index
from plinth.training import preparation
from plinth.training.config import RunConfig
from plinth.training.parameters.optimizers import Float8
from plinth.training.parameters.parallel import Parallel
from plinth.training.parameters.run import Checkpoints, Training
from plinth.training.telemetry.machine_speed import DeviceSpeed

#: Mean document length in tokens; lengths are log-normal.
MEAN_DOCUMENT: Final = 1000
#: Seconds until the ranks of a measurement are killed.
LIMIT_S: Final = 1800.0
#: Devices in `plinth.launch.devices` that compute FP8 by rows (compute capability 9.0).
FLOAT8: Final = ("h100", "h200", "b200")
_POLL_S = 0.2


class SpeedTrial(Frozen):
    """One measurement of training speed on all devices of this machine."""

    preset: str
    sequence_tokens: int
    precision: Literal["fp32", "bf16"] = "bf16"
    float8: Float8 = "none"
    compile: bool = False
    deterministic: bool = True
    accumulation: int = 2
    steps: int = 20
    warmup: int = 5

    @property
    def kind(self) -> str:
        """Precision, as published figures name it."""
        return self.precision if self.float8 == "none" else "fp8"

    @property
    def name(self) -> str:
        """Name of the trial's figures."""
        how = ("compiled" if self.compile else "eager", "" if self.deterministic else "not deterministic")
        return ", ".join(filter(None, (self.preset, self.kind, *how)))


class TrialPlacement(Frozen):
    """Micro batch and division of a trial."""

    micro: int
    zero_stage: Literal[0, 1, 2, 3]
    recompute: int


def trials_for(devices: Sequence[DeviceSpeed]) -> tuple[SpeedTrial, ...]:
    """Return the trials for the devices of this machine; a CPU takes the same path with tiny sizes."""
    if devices[0].kind == "cpu":
        small = SpeedTrial(preset="1m", sequence_tokens=128, precision="fp32", steps=8, warmup=2)
        return small, small.model_copy(update={"deterministic": False})
    eager, eight = (
        SpeedTrial(preset="1b", sequence_tokens=4096),
        SpeedTrial(preset="8b", sequence_tokens=8192, compile=True),
    )
    compiled = eager.model_copy(update={"compile": True})
    found = [
        SpeedTrial(preset="150m", sequence_tokens=2048, compile=True),
        eager,
        compiled,
        compiled.model_copy(update={"deterministic": False}),
        eight,
    ]
    float8 = called(devices[0].name) in FLOAT8
    return (*found, *(trial.model_copy(update={"float8": "rowwise"}) for trial in (compiled, eight) if float8))


def placement(trial: SpeedTrial, ranks: int, memory_bytes: float | None) -> TrialPlacement:
    """Return the placement with the largest micro batch, of 8 sequences at most, that fits in the memory of a device.

    Recomputation is used only if not even one sequence fits without it. Without a limit of memory, as on a CPU, the
    micro batch is 2.

    Raises:
        RequestError: nothing fits.
    """
    if memory_bytes is None:
        return TrialPlacement(micro=2, zero_stage=1, recompute=0)
    model = Model(preset=trial.preset)
    least = float("inf")
    for recompute in (0, 1):
        for micro in (8, 4, 2, 1):
            for stage in (1, 2):
                used = memory.per_device(
                    model,
                    Parallel(zero_stage=stage, compile=trial.compile, activation_checkpointing=recompute),
                    vocab_size=PRESETS[trial.preset].vocab_size,
                    sequence_tokens=trial.sequence_tokens,
                    micro_batch=micro,
                    accumulation=trial.accumulation,
                    ranks=ranks,
                    precision=trial.precision,
                ).total
                if used <= USABLE * memory_bytes:
                    return TrialPlacement(micro=micro, zero_stage=stage, recompute=recompute)
                least = min(least, used)
    raise RequestError(
        f"preset {trial.preset} does not fit on {ranks} devices",
        found=f"{least / 1e9:.0f} GB per device with recomputed blocks and ZeRO-2",
        expected=f"at most {USABLE:.0%} of {memory_bytes / 1e9:.0f} GB",
        remedy="measure it on a machine with more devices",
    )


def prepared(ctx: Context, trial: SpeedTrial, placed: TrialPlacement, ranks: int, **changes: Any) -> RunConfig:
    """Return the configuration of a trial's run, as its asset would prepare it, over drawn documents.

    Args:
        changes: overrides of the recipe's training section.
    """
    rows = placed.micro * trial.accumulation * ranks
    tokens = (trial.steps + trial.warmup) * rows * trial.sequence_tokens
    vocab_size = PRESETS[trial.preset].vocab_size
    shards = {"text": drawn_bucket(ctx, "text", tokens + trial.sequence_tokens, 1, vocab_size)}
    phase = Phase(name="all", fraction=1.0, weights={"text": 1.0})
    drawn = Mixture(sequence_tokens=trial.sequence_tokens, total_tokens=tokens, phases=(phase,))
    mixed = mixture.run(ctx, drawn, shards)
    facts = {"vocab_size": vocab_size, "end_of_text": 0}
    tokenizer = Manifest(asset="tokenizer", step="drawn", version="1", params={}, inputs={}, parts=(), stats=facts)
    fields: dict[str, Any] = {
        "model": Model(preset=trial.preset),
        "precision": trial.precision,
        "float8": trial.float8,
        "deterministic": trial.deterministic,
        "micro_batch_sequences": placed.micro,
        "global_batch_sequences": rows,
        "launch": Launch(ranks=ranks),
        "parallel": Parallel(
            zero_stage=placed.zero_stage, compile=trial.compile, activation_checkpointing=placed.recompute
        ),
        "checkpoints": Checkpoints(),
        "supervision": Supervision(),
    }
    return preparation.prepare(ctx, "qualify", Training(**{**fields, **changes}), mixed, shards, tokenizer)


def drawn_bucket(
    ctx: Context, name: str, tokens: int, seed: int, vocab_size: int = 8192, part_tokens: int = 2**25
) -> Manifest:
    """Return shards of documents drawn at random, in the form that the stage `shards` writes.

    Args:
        part_tokens: tokens per shard.
    """
    random = np.random.default_rng(seed)
    shards, indexes = list[Part](), list[Part]()
    dtype = np.dtype(np.uint16 if vocab_size <= 2**16 else np.uint32)
    for number, start in enumerate(range(0, tokens, part_tokens)):
        size = min(part_tokens, tokens - start)
        lengths = random.lognormal(np.log(MEAN_DOCUMENT) - 0.5, 1.0, 2 * size // MEAN_DOCUMENT).astype(np.int64) + 2
        ends = np.cumsum(lengths)
        ends = np.append(ends[ends < size], size)
        values = random.integers(1, vocab_size, size, dtype=dtype)
        values[ends - 1] = 0
        facts = {"start": start, "tokens": size}
        shards.append(Part(name=f"shard-{number:05d}.bin", blob=ctx.store.put_bytes(values.tobytes()), stats=facts))
        indexes.append(_index(ctx, number, start, ends, facts, random))
    documents, parts = sum(part.rows for part in indexes), (*shards, *indexes)
    stats = {"documents": documents, "tokens": tokens, "end_of_text": 0, "dtype": dtype.str}
    return Manifest(asset=f"{name}/shards", step="drawn", version="1", params={}, inputs={}, parts=parts, stats=stats)


def _index(
    ctx: Context, number: int, start: int, ends: np.ndarray, facts: dict[str, int], random: np.random.Generator
) -> Part:
    starts, count = np.concatenate([[0], ends[:-1]]), len(ends)
    ids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), count, [None, pa.py_buffer(random.bytes(16 * count))])
    columns = [ids, pa.array(start + starts), pa.array(ends - starts)]
    columns += [pa.array(np.full(count, number, np.int32)), pa.array(np.arange(count, dtype=np.int32))]
    return write_index(ctx.store, f"index-{number:05d}.arrow", columns, {**facts, "parts": [number, number]})


def on_ranks(ranks: int, folder: Path, *words: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Run `rank` with `words` on `ranks` processes of this machine, and return the result of rank 0.

    Args:
        folder: folder for the result and the ranks' output.

    Raises:
        TrainingError: a rank failed, with the last lines of its output, or the time limit was exceeded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    result, port = folder / "result.json", str(processes.free_port())
    command = processes.python("plinth_lab.qualification.rank", words[0], str(result), *words[1:])
    started = []
    try:
        for index in range(ranks):
            place = {"RANK": index, "LOCAL_RANK": index, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            own = {**{name: str(value) for name, value in place.items()}, "MASTER_ADDR": "127.0.0.1"}
            with (folder / f"rank-{index}.log").open("wb") as log:
                started.append(
                    processes.start(command, own={**own, "MASTER_PORT": port}, stdout=log, stderr=subprocess.STDOUT)
                )
        _wait(started, folder, limit_s)
    finally:
        for process in started:
            process.kill()
            process.wait()
    return dict(json.loads(result.read_text()))


def _wait(started: Sequence[Any], folder: Path, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while any(process.poll() is None for process in started):
        ended = [index for index, process in enumerate(started) if process.poll() not in (None, 0)]
        if ended or time.monotonic() > until:
            break
        time.sleep(_POLL_S)
    failed = [index for index, process in enumerate(started) if process.poll() != 0]
    if not failed:
        return
    first = next((index for index in failed if started[index].poll() is not None), failed[0])
    status = started[first].poll()
    lines = _said(folder / f"rank-{first}.log")
    raise TrainingError(
        f"rank {first} {'took too long' if status is None else f'ended with status {status}'}",
        found=lines or "no output",
        expected=f"a result within {limit_s:g} s",
        remedy=f"read the whole output with --keep: rank-{first}.log",
    )


def _said(log: Path) -> str:
    """Return the last error message in a rank's output."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line or "error:" in line]
    return (named or lines or [""])[-1][:500]


def flops_per_token(config: RunConfig) -> int:
    """Return the model's FLOPs per token, with attention over the whole square, without recomputation."""
    return architectures.flops_exact(config.model, config.vocab_size, config.sequence_tokens)


def smaller(placed: TrialPlacement) -> Iterator[TrialPlacement]:
    """Yield placements that need less memory, to try after an out-of-memory error."""
    for micro in (placed.micro // 2, placed.micro // 4):
        if micro:
            yield placed.model_copy(update={"micro": micro})
    if not placed.recompute:
        yield placed.model_copy(update={"micro": 1, "recompute": 1})
