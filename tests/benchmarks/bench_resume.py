"""Time that a resumed run takes to its first step, at several positions of its order.

A corpus of small documents, packed best-fit, is trained on for more than three epochs; the global batch grows in the
second and the rows lengthen in the third. A checkpoint is committed at each position; then two fresh ranks verify
it, build the engine, open the data, load, and take the step that follows. Ranks are forked from a process that has
loaded torch and DeepSpeed: start-up of Python is not included. Positions take turns; the slowest of the rounds counts.

    python tests/benchmarks/bench_resume.py [--documents 30000] [--rounds 2]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "resume.json"
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]

EPOCHS = 3.5
SEQUENCE_TOKENS = 128


def corpus(ctx: Any, documents: int) -> tuple[Any, Any]:
    """Tokenizer and shards of documents of 5 to 60 words; there is nothing to learn from them."""
    import pyarrow as pa

    from plinth.records import Manifest
    from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
    from plinth.tokens.shards import shards
    from plinth.tokens.shards.parameters import Shards
    from plinth.tokens.tokenizer import tokenizer
    from plinth.tokens.tokenizer.parameters import TokenizerParameters

    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnopqrst", k=draw.randint(2, 9))) for _ in range(2000)]
    fixed = {"captured_at": None, "snapshot": "s", "licence": "CC0-1.0", "mime": "t", "source_bytes": 1, "extra": "{}"}
    texts = (" ".join(draw.choices(words, k=draw.randint(5, 60))) for _ in range(documents))
    rows = [{"id": i.to_bytes(16, "big"), "text": text, "uri": str(i), **fixed} for i, text in enumerate(texts)]
    part = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))
    curated = {"web": Manifest(asset="web/curated", step="x", version="1", params={}, inputs={}, parts=(part,))}
    trained = tokenizer.run(ctx, TokenizerParameters(vocab_size=4096, sample_bytes=2_000_000), curated)
    return trained, {"web": shards.run(ctx, "web", Shards(), trained, curated["web"])}


def prepared(workspace: Path, documents: int) -> tuple[Any, dict[str, int]]:
    """The run, and its positions by what they are: the number of steps that have been trained."""
    from plinth.compute.context import Context
    from plinth.launch.parameters import Launch
    from plinth.storage.workspace import Workspace
    from plinth.tokens import packing as packing_index
    from plinth.tokens.mixture import mixture
    from plinth.tokens.mixture.parameters import Mixture, Phase
    from plinth.tokens.order.steps import BatchChange, LengthChange
    from plinth.training import preparation
    from plinth.training.parameters.parallel import Parallel
    from plinth.training.parameters.run import Training

    ctx = Context(Workspace(workspace).ensure())
    trained, sharded = corpus(ctx, documents)
    phase = Phase(name="all", fraction=1.0, weights={"web": 1.0})

    def mixed(sequences: int) -> Any:
        tokens = sequences * SEQUENCE_TOKENS
        params = Mixture(sequence_tokens=SEQUENCE_TOKENS, total_tokens=tokens, phases=(phase,), packing="best-fit")
        packed = packing_index.run(ctx, "web", params.sequence_tokens, sharded["web"])
        ctx.refs.save(packed)
        return mixture.run(ctx, params, sharded, {"web": packed})

    epoch = int(mixed(512).stats["buckets"]["web"]["sequences"])
    grows, lengthens = epoch * 3 // 2 // 16, epoch * 3 // 2 // 16 + epoch // 32
    training = Training(
        launch=Launch(ranks=2),
        parallel=Parallel(zero_stage=1),
        precision="fp32",
        global_batch_sequences=16,
        batch_schedule=(BatchChange(from_step=grows, global_batch_sequences=32),),
        length_schedule=(
            LengthChange(from_tokens=0, sequence_tokens=SEQUENCE_TOKENS // 2),
            LengthChange(from_step=lengthens, sequence_tokens=SEQUENCE_TOKENS),
        ),
    )
    run = preparation.prepare(ctx, "bench", training, mixed(int(EPOCHS * epoch)), sharded, trained)
    run.directory.root.mkdir(parents=True, exist_ok=True)

    def last_of(number: int) -> int:
        found = run.steps.step_of(number * epoch - 1)
        assert found is not None
        return found[0] + 1  # the step that takes the last sequence of that epoch, counted from 1

    return run, {
        "first step of the run": 1,
        "middle of the first epoch": last_of(1) // 2,
        "before the last step of the first epoch": last_of(1) - 1,
        "first step of the second epoch": last_of(1),
        "where the batch grows": grows - 1,
        "where the rows lengthen": lengthens - 1,
        "first step of the third epoch": last_of(2),
        "middle of the fourth epoch": (last_of(3) + run.total_steps) // 2,
        "before the last step of the run": run.total_steps - 1,
    }


def save(config: Any, steps: list[int]) -> None:
    """On one rank: a checkpoint at each of these steps. Only their positions differ."""
    from plinth.training.checkpoint.saving import Saver
    from plinth.training.engine import engine as engines
    from plinth.training.telemetry.timeline import Timeline
    from plinth.training.trainer import Trainer

    rank = engines.join(config)
    trainer = Trainer(config, rank)
    saver = Saver(trainer.engine, Timeline(config.directory.events))
    trainer.record(trainer.launch(trainer.batches(1), 1).read())
    for step in steps:
        saver.save(step, trainer.state())
        saver.drain()
    saver.close()
    engines.leave()


def resume(config: Any, step: int) -> dict[str, float]:
    """On one rank: seconds of everything from the verification to the end of the first step."""
    from plinth.training.checkpoint import checkpoint
    from plinth.training.engine import engine as engines
    from plinth.training.trainer import Trainer

    rank = engines.join(config)
    marks = [time.perf_counter()]
    checkpoint.verify(config.directory, step)
    marks.append(time.perf_counter())
    trainer = Trainer(config, rank)
    marks.append(time.perf_counter())
    trainer.load(step)
    marks.append(time.perf_counter())
    trainer.launch(trainer.batches(step + 1), step + 1).read()
    marks.append(time.perf_counter())
    engines.leave()
    names = ("verify_s", "open_s", "load_s", "first_step_s")
    return {name: after - before for name, before, after in zip(names, marks, marks[1:], strict=False)}


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("documents", 30_000), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    arguments = parser.parse_args()
    from plinth.training.checkpoint import checkpoint
    from plinth.training.parameters.run import Checkpoints
    from tests.ranks import run_ranks

    slowest: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="plinth-bench-") as folder:
        config, positions = prepared(Path(folder), arguments.documents)
        config = config.model_copy(update={"checkpoints": Checkpoints(keep_last=len(positions))})
        load = os.getloadavg()[0]
        run_ranks(2, save, config, sorted(set(positions.values())), timeout_s=540)
        size = checkpoint.size_of_last(config.directory)
        for _ in range(arguments.rounds):
            for name, step in positions.items():
                for found in run_ranks(2, resume, config, step, timeout_s=540):
                    known = slowest.setdefault(name, {})
                    slowest[name] = {key: max(value, known.get(key, 0.0)) for key, value in found.items()}
    result = {
        "documents": arguments.documents,
        "ranks": 2,
        "rounds": arguments.rounds,
        "checkpoint_bytes": size,
        "total_steps": config.total_steps,
        "load_average_at_start": round(load, 1),
        "slowest_load_s": round(max(sum(one.values()) - one["first_step_s"] for one in slowest.values()), 3),
        "slowest_first_step_s": round(max(one["first_step_s"] for one in slowest.values()), 3),
        "positions": {
            name: {"step": positions[name], **{key: round(value, 3) for key, value in one.items()}}
            for name, one in slowest.items()
        },
    }
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
