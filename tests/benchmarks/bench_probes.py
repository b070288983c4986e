"""Cost of the built-in probes in the training loop, relative to the steps of a run of the demo's model.

The plan of a run counts a scored token as a third of a trained one (`validation.probe_plan.COST`). Here both are timed
on the same ranks: `factor` is the real cost of a scored token, padding, small batches and the exchange of answers
included, and `share` is the time of the planned evaluations relative to the run's steps.
Evaluations and steps alternate, so that other load on the machine affects both alike.

    python tests/benchmarks/bench_probes.py [--ranks 2] [--steps 30] [--share 0.02] [--run-tokens 100000000]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "probes.json"
sys.path[:0] = [str(ROOT / "platform"), str(Path(__file__).parent)]

WARMUP_STEPS = 3


def prepared(workspace: Path, arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Return the run of `bench_training`, and probes planned for a run of `run_tokens`, evaluated every 100 steps."""
    import bench_training

    from plinth.compute.context import Context
    from plinth.evaluation.parameters import FAMILIES
    from plinth.evaluation.probes.base import PROBES
    from plinth.storage.workspace import Workspace
    from plinth.training.validation import probe_plan

    arguments.zero, arguments.precision = 1, "auto"
    config = bench_training.prepared(workspace, arguments)
    ctx = Context(Workspace(workspace).ensure())
    items = [one for family in FAMILIES for one in PROBES[family].build()]
    looks = max(1, arguments.run_tokens // (100 * config.step_tokens()))
    budget = probe_plan.Budget(arguments.share, arguments.run_tokens, looks, config.sequence_tokens)
    made = probe_plan.prepare(ctx, budget, items, {}, ctx.refs.load(config.tokenizer))
    from plinth.training.config import write

    config = config.model_copy(update={"probes": made.digest})
    write(config)
    return config, dict(made.stats)


def rank_main(path: str) -> None:
    """One rank: steps, with a look after every third; rank 0 writes `bench.json`."""
    from plinth.training import config as configuration
    from plinth.training.engine import engine as engines
    from plinth.training.trainer import Trainer
    from plinth.training.validation.validation import ProbeScorer

    config = configuration.load(path)
    rank = engines.join(config)
    trainer, scorer = Trainer(config, rank), ProbeScorer(config)
    stream, steps, looks = trainer.batches(1), list[float](), list[float]()
    for step in range(1, config.total_steps + 1):
        begun = time.perf_counter()
        trainer.launch(stream, step).read()
        if step > WARMUP_STEPS:
            steps.append(time.perf_counter() - begun)
        if step % 3 == 0:
            looks.append(scorer.score(trainer.engine).seconds)
    if rank.leads:
        found = {"step_s": steps, "look_s": looks[1:], "precision": trainer.engine.precision}
        (config.directory.root / "bench.json").write_text(json.dumps(found))
    engines.leave()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the ranks and put the numbers together."""
    from plinth.processes import free_port

    with tempfile.TemporaryDirectory() as folder:
        config, planned = prepared(Path(folder), arguments)
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(config.ranks)}
        command = [sys.executable, __file__, "--rank-of", str(config.directory.config)]
        ranks = [
            subprocess.Popen(command, env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(config.ranks)
        ]
        if max([process.wait(timeout=3600) for process in ranks]):
            raise SystemExit("a rank failed")
        found = json.loads((config.directory.root / "bench.json").read_text())
    step_s, look_s = statistics.median(found["step_s"]), statistics.median(found["look_s"])
    steps = arguments.run_tokens / config.step_tokens()
    return {
        "ranks": config.ranks,
        "precision": found["precision"],
        "trained_tokens_per_s": round(config.step_tokens() / step_s),
        "scored_tokens_per_s": round(planned["tokens"] / look_s),
        "factor": round(look_s / planned["tokens"] / (step_s / config.step_tokens()), 4),
        "look_s": round(look_s, 4),
        "step_s": round(step_s, 4),
        "run_tokens": arguments.run_tokens,
        "planned": planned,
        "share": round(planned["looks"] * look_s / (steps * step_s), 5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.02)
    parser.add_argument("--run-tokens", type=int, default=100_000_000)
    parser.add_argument("--rank-of", default="")
    arguments = parser.parse_args()
    if arguments.rank_of:
        rank_main(arguments.rank_of)
        return
    found = measure(arguments)
    print(json.dumps(found, indent=2))
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
