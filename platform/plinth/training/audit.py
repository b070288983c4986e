"""The proof that a resume is exact: replay the end of a run from an earlier checkpoint and compare.

A fresh process per rank loads the checkpoint kept for this purpose, trains to the last step without
writing into the run, and compares every step's loss, gradient norm and batch with the timeline, and
parameters, optimizer state and generators with the final checkpoint. The result is evidence, not an
assertion: differences are recorded as they are, and a gate decides. It holds no time and no path.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from safetensors.torch import load_file

from plinth.storage.atomic import write_bytes
from plinth.training import checkpoint, snapshot
from plinth.training.config import RunConfig
from plinth.training.data import batches_of
from plinth.training.engine import Engine, Rank, open_engine
from plinth.training.export import WEIGHTS, hf_name
from plinth.training.loop import Measured, train_step
from plinth.training.telemetry import Timeline, timeline


def replay(config: RunConfig, rank: Rank) -> None:
    """Replay from `config.audit_step` to the end; the leading rank writes `resume.json`.

    Raises:
        CheckpointError, ResumeError: one of the two checkpoints cannot be trusted.
    """
    run, start = config.directory, config.audit_step
    if rank.leads:
        for step in (start, config.total_steps):
            checkpoint.verify(run, step)
    torch.distributed.barrier()
    engine = open_engine(config, rank)
    snapshot.load(engine, start)
    stream = batches_of(config, rank.index)(start + 1)
    replayed = {step: train_step(engine, stream, step, 0) for step in range(start + 1, config.total_steps + 1)}
    found = snapshot.digests(engine)
    difference = _parameter_difference(engine)
    if rank.leads:
        evidence = _compare(config, replayed, found, difference)
        write_bytes(run.evidence, json.dumps(evidence, indent=1, sort_keys=True).encode() + b"\n")
        Timeline(run.events).append(
            "audited",
            bit_exact=evidence["bit_exact"],
            from_step=start,
            compared_steps=len(replayed),
            durable=True,
        )


def _compare(
    config: RunConfig, replayed: dict[int, Measured], found: dict[str, Any], difference: float
) -> dict[str, Any]:
    original = timeline(config.directory.events).steps
    expected = snapshot.recorded_digests(config.directory, config.total_steps)
    steps: list[dict[str, Any]] = [
        {
            "step": step,
            "loss": {"original": original[step]["loss"], "replayed": again.loss},
            "grad_norm": {"original": original[step]["grad_norm"], "replayed": again.grad_norm},
            "batch": {"original": original[step]["batch"], "replayed": again.batch},
        }
        for step, again in replayed.items()
    ]
    same_steps = all(_equal(row[name]) for row in steps for name in ("loss", "grad_norm", "batch"))
    return {
        "claim": "a run resumed from `from_step` equals the uninterrupted one",
        "bit_exact": same_steps and found == expected,
        "from_step": config.audit_step,
        "to_step": config.total_steps,
        "compared_steps": len(steps),
        "ranks": config.ranks,
        "zero_stage": config.parallel.zero_stage,
        "max_abs_difference": {
            "loss": _widest(steps, "loss"),
            "grad_norm": _widest(steps, "grad_norm"),
            "parameters": difference,
        },
        "same_batches": all(_equal(row["batch"]) for row in steps),
        "digests": {
            part: {"original": expected[part], "replayed": found[part], "equal": expected[part] == found[part]}
            for part in sorted(expected)
        },
        "steps": steps,
    }


def _equal(pair: dict[str, Any]) -> bool:
    return bool(pair["original"] == pair["replayed"])


def _widest(steps: list[dict[str, Any]], name: str) -> float:
    """Largest absolute difference of a number over all compared steps."""
    return max(float(abs(row[name]["original"] - row[name]["replayed"])) for row in steps)


def _parameter_difference(engine: Engine) -> float:
    """Largest absolute difference to the parameters of the final checkpoint; a collective."""
    folder = checkpoint.path(engine.config.directory, engine.config.total_steps)
    original = load_file(folder / "model" / WEIGHTS)
    return max(
        float((tensor.float() - original[hf_name(name)].float()).abs().max()) for name, tensor in engine.parameters()
    )
