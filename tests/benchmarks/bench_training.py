"""Training throughput: compare our loop with a bare DeepSpeed loop of the same model, optimizer and ZeRO stage.

Both have an engine of their own on the same two ranks and take every step one after the other, in turns first, so that
other load on the machine affects both alike. Ours reads batches through the loader, agrees on loss, batch and signals
over all ranks, judges the update, gathers statistics in every tenth step and writes the timeline; the bare one calls
forward, backward and step on tensors of the same rows that are ready. Then the full state is committed once, and
start-up and restore are timed. Reported are the median of the pairs, which other work on the machine disturbs and in
which a step with statistics counts as any other; the ratios of a rank's CPU seconds and of the sums over all steps; and
the operations and collectives that one step dispatches.

    python tests/benchmarks/bench_training.py [--steps 40] [--zero 1] [--ranks 2] [--precision fp32]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "training.json"
sys.path[:0] = [str(ROOT / "platform")]

TEXT_BYTES = 6_000_000
WARMUP_STEPS = 4


def prepared(workspace: Path, arguments: argparse.Namespace) -> Any:
    """A run of the demo's size over this machine's Python sources."""
    import pyarrow as pa

    from plinth.compute.context import Context
    from plinth.launch.parameters import Launch
    from plinth.records import Manifest
    from plinth.storage.parts import DOCUMENT_SCHEMA, write_table
    from plinth.storage.workspace import Workspace
    from plinth.tokens.mixture import mixture
    from plinth.tokens.mixture.parameters import Mixture, Phase
    from plinth.tokens.shards import shards
    from plinth.tokens.shards.parameters import Shards
    from plinth.tokens.tokenizer import tokenizer
    from plinth.tokens.tokenizer.parameters import TokenizerParameters
    from plinth.training import preparation
    from plinth.training.parameters.parallel import Parallel
    from plinth.training.parameters.run import Training

    ctx = Context(Workspace(workspace).ensure())
    rows, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*/*.py")):
        text = path.read_text(errors="replace")
        size += len(text)
        row = {"id": len(rows).to_bytes(16, "big"), "text": text, "uri": path.name, "captured_at": None}
        rows.append({**row, "snapshot": "s", "licence": "PSF-2.0", "mime": "t", "source_bytes": 1, "extra": "{}"})
        if size > TEXT_BYTES:
            break
    part = write_table(ctx.store, "part-00000.parquet", pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA))
    curated = {"code": Manifest(asset="code/curated", step="x", version="1", params={}, inputs={}, parts=(part,))}
    trained = tokenizer.run(ctx, TokenizerParameters(sample_bytes=TEXT_BYTES), curated)
    sharded = {"code": shards.run(ctx, "code", Shards(), trained, curated["code"])}
    steps = arguments.steps + WARMUP_STEPS
    phase = Phase(name="all", fraction=1.0, weights={"code": 1.0})
    mixed = mixture.run(ctx, Mixture(sequence_tokens=512, total_tokens=512 * 16 * steps, phases=(phase,)), sharded)
    placed = {"launch": Launch(ranks=arguments.ranks), "parallel": Parallel(zero_stage=arguments.zero)}
    training = Training(**placed, precision=arguments.precision)
    return preparation.prepare(ctx, "bench", training, mixed, sharded, trained)


class Bare:
    """DeepSpeed as its manual shows it: the same model, optimizer and configuration, tensors that are ready."""

    def __init__(self, config: Any, rank: Any, precision: str) -> None:
        import deepspeed
        import torch

        from plinth.model.decoder import build
        from plinth.training.engine.deepspeed_engine import deepspeed_config
        from plinth.training.engine.optimization import parameter_groups

        model = build(config.model, config.vocab_size, config.seed).to(rank.device)
        settings = deepspeed_config(config, precision, sum(p.numel() for p in model.parameters()))
        settings["zero_optimization"].pop("compute_grad_norm", None)  # our engine takes the norm itself
        groups = parameter_groups(config.optimizer, config.model, model.named_parameters())
        optimizer = torch.optim.AdamW(groups, fused=True)
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, config=settings, dist_init_required=False
        )

    def step(self, micro: list[Any]) -> None:
        for one in micro:
            self.engine.backward(self.engine(*one))
            self.engine.step()


class _Kept:
    """Batches that keep the last one available."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> _Kept:
        return self

    def __next__(self) -> Any:
        self.last = next(self._batches)
        return self.last


def _counted(step: Callable[[], object]) -> dict[str, int]:
    """Operations and collectives that a step dispatches."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        step()
    kinds = {"operations": "aten::", "collectives": "c10d::"}
    every = seen.key_averages()
    return {name: sum(one.count for one in every if one.key.startswith(kind)) for name, kind in kinds.items()}


def rank_main(path: str) -> None:
    """One rank: every step by our loop, and by the bare loop with the rows of our step before; rank 0 writes
    `bench.json`."""
    started = time.perf_counter()
    from plinth.training import config as configuration
    from plinth.training.engine import engine as engines
    from plinth.training.loop import TrainingRun

    config = configuration.load(path)
    rank = engines.join(config)
    run = TrainingRun(config, rank)
    ready_s = time.perf_counter() - started
    engine = run.trainer.engine
    bare = Bare(config, rank, engine.precision)
    stream = _Kept(run.trainer.batches(1))
    spent: dict[str, list[tuple[float, float]]] = {"ours": [], "bare": []}  # of the clock; of the rank's threads
    counts: dict[str, dict[str, int]] = {}
    micro: list[Any] = []
    for step in range(1, config.total_steps + 1):

        def ours(step: int = step) -> None:
            run._in_flight.append(run.trainer.launch(stream, step, run._pending))
            run.saver.poll()
            run._drain(run._lag)

        turns = {"ours": ours, "bare": lambda micro=micro: bare.step(micro)}
        for kind in ("ours", "bare") if step % 4 < 2 else ("bare", "ours"):
            begun = time.perf_counter(), time.process_time()
            if step == WARMUP_STEPS:
                counts[kind] = _counted(turns[kind])
                continue
            turns[kind]()
            ended = time.perf_counter(), time.process_time()
            if step > WARMUP_STEPS:
                spent[kind].append((ended[0] - begun[0], ended[1] - begun[1]))
        micro = [engine._on_device(rows, stream.last.length) for rows in stream.last.micro]
    run._drain(0)
    begun = time.perf_counter()
    run._save(config.total_steps)
    run.saver.drain()
    saved_s = time.perf_counter() - begun
    begun = time.perf_counter()
    run.trainer.load(config.total_steps)
    loaded_s = time.perf_counter() - begun
    run.saver.close()
    run.reporter.close()
    if rank.leads:
        parameters = sum(tensor.numel() for tensor in engine.module.parameters())
        facts = {"spent": spent, "counts": counts, "ready_s": ready_s, "saved_s": saved_s, "loaded_s": loaded_s}
        found = {**facts, "precision": engine.precision, "parameters": parameters}
        (config.directory.root / "bench.json").write_text(json.dumps(found))
    engines.leave()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run both ranks and put the numbers together."""
    with tempfile.TemporaryDirectory() as folder:
        from plinth.processes import free_port
        from plinth.storage.workspace import TRUST_VARIABLE, Workspace
        from plinth.trust import enrolment

        os.environ[TRUST_VARIABLE] = f"{folder}/trust"
        enrolment.initialise(Workspace(folder), "bench", ["bench"], demo=True)
        config = prepared(Path(folder), arguments)

        port = str(free_port())
        common = {**os.environ, "WORLD_SIZE": str(config.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank-config", str(config.directory.config)],
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(config.ranks)
        ]
        if max([process.wait() for process in ranks]):
            raise SystemExit("a rank failed")
        found = json.loads((config.directory.root / "bench.json").read_text())
        events = [json.loads(line) for line in config.directory.events.read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"][WARMUP_STEPS:]
    share = sum(event["data_wait_s"] for event in steps) / sum(event["step_s"] for event in steps)
    (ours, ours_processor), (bare, bare_processor) = (
        list(zip(*found["spent"][kind], strict=True)) for kind in ("ours", "bare")
    )
    pairs = [theirs / own for own, theirs in zip(ours, bare, strict=True)]
    processor = [theirs / own for own, theirs in zip(ours_processor, bare_processor, strict=True)]
    return {
        "parameters": found["parameters"],
        "ranks": config.ranks,
        "cores": os.cpu_count(),
        "zero_stage": config.parallel.zero_stage,
        "precision": found["precision"],
        "steps_each": len(pairs),
        "ours_tokens_per_s": round(config.step_tokens() / statistics.median(ours), 1),
        "bare_tokens_per_s": round(config.step_tokens() / statistics.median(bare), 1),
        "load_average": round(os.getloadavg()[0], 1),
        "ours_over_bare": round(statistics.median(pairs), 4),
        "ours_over_bare_quartiles": [round(value, 4) for value in statistics.quantiles(pairs, n=4)],
        "ours_over_bare_all_steps": round(sum(bare) / sum(ours), 4),
        "ours_over_bare_processor": round(sum(bare_processor) / sum(ours_processor), 4),
        "ours_over_bare_processor_quartiles": [round(value, 4) for value in statistics.quantiles(processor, n=4)],
        "dispatched_in_a_step": found["counts"],
        "data_wait_share": round(share, 5),
        "start_up_s": round(found["ready_s"], 2),
        "commit_s": round(found["saved_s"], 3),
        "load_s": round(found["loaded_s"], 3),
    }


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--zero", type=int, default=1, choices=range(4))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--rank-config", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_config:
        rank_main(arguments.rank_config)
        return
    result = measure(arguments)
    for name, value in result.items():
        print(f"{name:<36} {value!s:>26}")
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[f"zero-{arguments.zero}, {arguments.ranks} ranks, {result['precision']}"] = result
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
