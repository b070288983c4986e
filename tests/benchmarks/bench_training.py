"""Training throughput: compare our loop with a bare DeepSpeed loop of the same model, optimizer and ZeRO stage.

Both have an engine of their own on the same two ranks. Ours is the whole loop of a run, from batch to batch. Whenever
it takes a batch, the bare loop first calls forward, backward and step on tensors of the same rows that are ready, so
that other load on the machine affects both alike. Reported are the median of the pairs, which other work on the machine
disturbs and in which a step with statistics counts as any other; the ratios of a rank's CPU seconds and of the sums
over all steps; the operations and collectives that one step dispatches; and start-up, commit and restore.

With `--everything`, each rank copies its state to two keepers every ten steps, sends heartbeats to the hub of the
supervisor, and steps are replayed. Replays are more frequent than by default, so that some take place; a sampled step
counts as often as by default. CPU seconds then include those of keepers and hub.

    python tests/benchmarks/bench_training.py [--steps 40] [--zero 1] [--ranks 2] [--precision fp32] [--everything]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "training.json"
sys.path[:0] = [str(ROOT / "platform"), str(ROOT)]

from cpu import of_process  # noqa: E402

TEXT_BYTES = 6_000_000
WARMUP_STEPS = 4

#: Steps after the last one that is measured: a checkpoint is saved before them.
AUDIT_STEPS = 2

#: With `--everything`: steps between two copies, and the share of replays.
COPIES_EVERY, SHARE = 10, 0.3


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
    from plinth.training.parameters.run import Checkpoints, Recovery, ReplayChecks, Training

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
    steps = arguments.steps + WARMUP_STEPS + AUDIT_STEPS
    phase = Phase(name="all", fraction=1.0, weights={"code": 1.0})
    mixed = mixture.run(ctx, Mixture(sequence_tokens=512, total_tokens=512 * 16 * steps, phases=(phase,)), sharded)
    placed = {"launch": Launch(ranks=arguments.ranks), "parallel": Parallel(zero_stage=arguments.zero)}
    saves = Checkpoints(every_steps=10 * steps, audit_steps=AUDIT_STEPS, keep_last=2)
    more: dict[str, Any] = {}
    if arguments.everything:
        more = {"recovery": Recovery(copies_every=COPIES_EVERY), "replay_checks": ReplayChecks(share=SHARE)}
    training = Training(**placed, precision=arguments.precision, checkpoints=saves, **more)
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


class Turns:
    """Batches of a run. Each is preceded by a step of the bare loop on the same rows, and ends a step of ours.

    Attributes:
        spent: seconds of the clock and of the rank's threads, of each step, by loop.
        counts: operations and collectives that a step dispatches, by loop.
    """

    def __init__(self, batches: Any) -> None:
        self.batches, self.bare = batches, None
        self.spent: dict[str, list[tuple[float, float]]] = {"ours": [], "bare": []}
        self.counts: dict[str, dict[str, int]] = {}
        self._beside = 0.0  # CPU seconds of our other threads during the last step of the bare loop

    def begin(self, run: Any) -> None:
        """Open the bare loop's engine."""
        self.run, self.bare = run, Bare(run.config, run.rank, run.trainer.engine.precision)

    def __call__(self, first: int) -> Iterator[Any]:
        from plinth.training.telemetry import communication
        from plinth.training.telemetry.step_clock import StepClock

        engine, idle = self.run.trainer.engine, StepClock.of(self.run.rank.device)
        for step, batch in enumerate(self.batches(first), first):
            micro = [engine._on_device(rows, batch.length) for rows in batch.micro]
            communication.measure(idle)
            with self._measured("bare", step):
                self.bare.step(micro)
            communication.measure(engine.clock)
            with self._measured("ours", step):
                yield batch  # until the loop asks for the next one

    @contextmanager
    def _measured(self, loop: str, step: int) -> Iterator[None]:
        counting = ExitStack()
        if step == WARMUP_STEPS and self.run.replays is None:  # else it may be replayed
            counting.enter_context(_counted(self.counts.setdefault(loop, {})))
        begun = time.perf_counter(), time.process_time(), _beside_s()
        with counting:
            yield
        clock, processor, beside = (
            after - before
            for before, after in zip(begun, (time.perf_counter(), time.process_time(), _beside_s()), strict=True)
        )
        if loop == "bare":  # our threads run during its steps, too
            processor, self._beside = processor - beside, beside
        else:
            processor += self._beside
        self.spent[loop].append((clock, processor))


def _beside_s() -> float:
    """Return the CPU seconds of the threads that load batches, copy states and send heartbeats."""
    others = [one for one in threading.enumerate() if one is not threading.main_thread() and one.ident]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(one.ident)) for one in others)


@contextmanager
def _counted(counts: dict[str, int]) -> Iterator[None]:
    """Count the operations and collectives that are dispatched within."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        yield
    for name, kind in {"operations": "aten::", "collectives": "c10d::"}.items():
        counts[name] = sum(one.count for one in seen.key_averages() if one.key.startswith(kind))


def rank_main(path: str) -> None:
    """One rank: the whole loop, with a step of the bare loop before each of its steps; rank 0 writes `bench.json`."""
    started = time.perf_counter()
    from plinth.training import config as configuration
    from plinth.training.data import batches_of
    from plinth.training.engine import engine as engines
    from plinth.training.loop import TrainingRun
    from plinth.training.recovery.agent import recovery_agent
    from plinth.training.recovery.copies import Copier

    config = configuration.load(path)
    rank = engines.join(config)
    agent = recovery_agent(rank)
    turns = Turns(batches_of(config, rank.index))
    run = TrainingRun(config, rank, opened=lambda: turns)
    if agent is not None:
        run.copier = Copier(run.trainer.engine, agent.next(), agent.secret)
        agent.restored(run.copier.order, 0, "")
    ready_s = time.perf_counter() - started
    turns.begin(run)
    run.finish(0)
    begun = time.perf_counter()
    run.trainer.load(config.total_steps)
    loaded_s = time.perf_counter() - begun
    if rank.leads:
        parameters = sum(tensor.numel() for tensor in run.trainer.engine.module.parameters())
        facts = {"spent": turns.spent, "counts": turns.counts, "ready_s": ready_s, "loaded_s": loaded_s}
        found = {**facts, "precision": run.trainer.engine.precision, "parameters": parameters}
        (config.directory.root / "bench.json").write_text(json.dumps(found))
    engines.leave()


class Surroundings:
    """The keepers of two nodes and the supervisor's hub, if the run has them, and their CPU seconds."""

    def __init__(self, config: Any) -> None:
        from plinth.training.peers import Peers
        from plinth.training.recovery.keeper import KeeperProcess
        from plinth.training.recovery.orders import JoinOrder, RankState, RecoveryLink

        self.environment: dict[str, str] = {}
        self._keepers = [KeeperProcess("secret") for _ in range(config.ranks if config.recovery.enabled else 0)]
        if self._keepers:
            hub = Peers("secret", RankState(), range(config.ranks), everywhere=False)
            first = JoinOrder(keepers=tuple(one.address for one in self._keepers))
            self.environment = RecoveryLink(hub=f"127.0.0.1:{hub.port}", secret="secret", first=first).environment()
        self._begun = self._used()

    def close(self) -> float:
        """End the keepers. Return the CPU seconds of all."""
        spent = self._used() - self._begun
        for keeper in self._keepers:
            keeper.close()
        return spent

    def _used(self) -> float:
        return time.process_time() + sum(of_process(one._process.pid) for one in self._keepers)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run both ranks and put the numbers together."""
    with tempfile.TemporaryDirectory() as folder:
        from plinth.processes import free_port, heap
        from plinth.storage.workspace import TRUST_VARIABLE, Workspace
        from plinth.trust import enrolment

        os.environ[TRUST_VARIABLE] = f"{folder}/trust"
        enrolment.initialise(Workspace(folder), "bench", ["bench"], demo=True)
        config = prepared(Path(folder), arguments)

        around = Surroundings(config)
        port = str(free_port())
        common = {
            **os.environ,
            **heap(),
            **around.environment,
            "WORLD_SIZE": str(config.ranks),
            "LOCAL_WORLD_SIZE": "1",
        }
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = [
            subprocess.Popen(
                [sys.executable, __file__, "--rank-config", str(config.directory.config)],
                env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(config.ranks)
        ]
        if max([process.wait() for process in ranks]):
            raise SystemExit("a rank failed")
        surrounding_s = around.close() / config.total_steps / config.ranks
        found = json.loads((config.directory.root / "bench.json").read_text())
        events = [json.loads(line) for line in config.directory.events.read_text().splitlines()]
    return {**figures(config, found, surrounding_s), "commit_s": [one["seconds"] for one in events if "stall_s" in one]}


def figures(config: Any, found: dict[str, Any], surrounding_s: float) -> dict[str, Any]:
    """Compare the measured steps.

    Args:
        surrounding_s: CPU seconds of keepers and hub per step and rank.
    """
    from plinth.training.corruption.sampling import interval, is_sampled
    from plinth.training.parameters.run import ReplayChecks

    steps = range(WARMUP_STEPS + 1, config.total_steps - AUDIT_STEPS + 1)
    spent = {kind: [tuple(each[step - 1]) for step in steps] for kind, each in found["spent"].items()}
    sampled = [config.replay_checks is not None and is_sampled(config.key, SHARE, step) for step in steps]
    plain = {kind: list(itertools.compress(each, [not one for one in sampled])) for kind, each in spent.items()}
    (ours, ours_processor), (bare, bare_processor) = (list(zip(*plain[kind], strict=True)) for kind in ("ours", "bare"))
    pairs = [theirs / own for own, theirs in zip(ours, bare, strict=True)]
    processor = [theirs / own for own, theirs in zip(ours_processor, bare_processor, strict=True)]
    step_s = statistics.mean(ours_processor) + surrounding_s
    replayed: dict[str, Any] = {}
    if any(sampled):
        replay_s = statistics.mean(one[1] for one in itertools.compress(spent["ours"], sampled)) - step_s
        replayed = {"replay_steps": round(replay_s / step_s, 3), "replays": sum(sampled)}
        replayed |= {"surrounding_share": round(surrounding_s / step_s, 5)}
        step_s += replay_s / interval(ReplayChecks().share)
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
        "ours_over_bare_processor": round(statistics.mean(bare_processor) / step_s, 4),
        "ours_over_bare_processor_quartiles": [round(value, 4) for value in statistics.quantiles(processor, n=4)],
        **replayed,
        "cpu_s_of_each_step": {kind: [round(one[1], 3) for one in each] for kind, each in spent.items()},
        **({"dispatched_in_a_step": found["counts"]} if found["counts"] else {}),
        "start_up_s": round(found["ready_s"], 2),
        "load_s": round(found["loaded_s"], 3),
    }


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--zero", type=int, default=1, choices=range(4))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--everything", action="store_true", help="with copies, heartbeats and sampled replays")
    parser.add_argument("--rank-config", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_config:
        rank_main(arguments.rank_config)
        return
    result = measure(arguments)
    for name, value in result.items():
        print(f"{name:<36} {value!s:>26}")
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    name = f"zero-{arguments.zero}, {arguments.ranks} ranks, {result['precision']}"
    known[name + ", everything on" * arguments.everything] = result
    RESULTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
