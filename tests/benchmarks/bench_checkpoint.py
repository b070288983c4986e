"""Cost of checkpoints for training: the stall of an asynchronous save compared with a synchronous one, tokens/s while a
process writes; and the verification and restore of a rank compared with bare hashes of the same bytes.

One run of two ranks saves, on the same engine, in rounds: a synchronous save, steps without one, an asynchronous save,
steps until it is committed. Values are compared within a round, so that other load
on the machine affects both alike; then quartiles over rounds. The stall is read from the timeline: the save
itself, and an update that waited for the copy. Copy, hashes and files grow with the checkpoint, agreements of ranks do
not: by default it is large enough for the bytes to decide.

Verification and restore are measured in CPU seconds of a rank's thread, since ranks share cores here, of models of
several widths in FP32 and BF16: a signature, the root and what ranks agree on take 4 to 8 ms of any. `of_bare` is the
time of the bare hashes over it, in the same repetition; then quartiles: of the same bytes, in memory, by the same kinds
(verification: SHA-256 of the model's files, BLAKE3 of the others; restore: BLAKE3 of all). A restore moves its bytes
too, so it is also compared with a program that reads the files and hashes them (`of_read_and_hashed`). `metadata` is a
simulated checkpoint of 1,024 ranks of ZeRO-3 and 723 parameters: the CPU seconds in which one rank opens it.

    python tests/benchmarks/bench_checkpoint.py [--dim 512] [--layers 6] [--rounds 9] [--steps 5] [--restores 9]
        [--only saves|restores]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from blake3 import blake3
from cpu import of_process

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "checkpoint.json"
sys.path[:0] = [str(ROOT / "platform"), str(ROOT), str(ROOT / "tests" / "plinth" / "training")]


def measure(config: Any, rounds: int, steps: int) -> list[dict[str, Any]]:
    """On one rank: seconds of each round's synchronous save, of its steps without and with a write under way, and of
    the writer's processor time."""
    import synthetic

    from plinth.training.checkpoint.saving import Saver
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine
    from plinth.training.telemetry.timeline import Timeline

    rank = engines.join(config)
    engine = open_engine(config, rank)
    batch = synthetic.batch_at(config, 1, rank.index)
    saver, number, found = Saver(engine, Timeline(config.directory.events)), 0, []

    def step() -> float:
        begun = time.perf_counter()
        engine.train_step(batch, 1e-4)
        saver.poll()
        saver._on_any_rank(False)
        return time.perf_counter() - begun

    def save(mode: str) -> float:
        nonlocal number
        saver.mode, number, begun = mode, number + 1, time.perf_counter()
        saver.save(number, {"loss_ema": 1.0})
        return time.perf_counter() - begun

    for _ in range(rounds + 1):
        sync_s, before_s = save("sync"), of_process(saver._writer._process.pid)
        quiet = [step() for _ in range(steps)]
        save("async")
        writing = []
        while saver._on_any_rank(saver._waiting):
            writing.append(step())
        spent_s = of_process(saver._writer._process.pid) - before_s
        found.append({"sync_s": sync_s, "quiet": quiet, "writing": writing, "processor_s": spent_s})
    saver.drain()
    saver.close()
    engines.leave()
    return found[1:]  # the first reserves memory


def measure_restores(config: Any, times: int) -> list[dict[str, float]]:
    """On one rank: a step and a save, then what verification, restore and bare hashes take, again and again."""
    import synthetic

    from plinth.training.checkpoint.saving import Saver
    from plinth.training.engine import engine as engines
    from plinth.training.engine.pipeline import open_engine
    from plinth.training.telemetry.timeline import Timeline

    rank = engines.join(config)
    engine = open_engine(config, rank)
    engine.train_step(synthetic.batch_at(config, 1, rank.index), 1e-4)
    saver = Saver(engine, Timeline(config.directory.events))
    saver.save(1, {"loss_ema": 1.0})
    saver.close()
    found = [share_costs(config, engine, 1) for _ in range(times + 1)]
    engines.leave()
    return found[1:]


def share_costs(config: Any, engine: Any, step: int) -> dict[str, float]:
    """Processor seconds of this rank's verification, restore, and bare hashes of the bytes that it verifies."""
    from plinth.training.checkpoint import checkpoint, digest_tree, snapshot

    rank, folder = engine.rank, checkpoint.path(config.directory, step)
    root = checkpoint.read_root(config.directory, step)
    files = digest_tree.manifest_in(folder, root.ranks[rank.index], "it").files
    paths = {file: folder / file.path for file in files}
    data = [(file.hasher(), memoryview(path.read_bytes())) for file, path in paths.items()]
    bare = {"verify": _hashing_s(data), "load": _hashing_s([(blake3(), content) for _, content in data])}
    read = _reading_s(list(paths.values()))
    del data
    begun = time.thread_time()
    checkpoint.verify_share(config.directory, step, rank.index, rank.world)
    verified = time.thread_time()
    snapshot.load(engine, step)
    loaded = time.thread_time()
    size = sum(file.bytes for file in files)
    seconds = {"verify": verified - begun, "load": loaded - verified}
    found = {"bytes": float(size)}
    for what, taken in seconds.items():
        found |= {f"{what}_bare_s": bare[what], f"{what}_s": taken, f"{what}_of_bare": bare[what] / taken}
    return found | {"load_of_read_and_hashed": read / seconds["load"]}


def _hashing_s(data: list[tuple[Any, memoryview]]) -> float:
    """Processor seconds of this thread for bare hashes of contents in memory."""
    begun = time.thread_time()
    for digest, content in data:
        for at in range(0, len(content), 1 << 19):
            digest.update(content[at : at + (1 << 19)])
    return time.thread_time() - begun


def _reading_s(paths: list[Path]) -> float:
    """Processor seconds of this thread for reading files and hashing them by BLAKE3, and nothing else."""
    begun, buffer = time.thread_time(), memoryview(bytearray(1 << 19))
    for path in paths:
        digest = blake3()
        with path.open("rb", buffering=0) as stream:
            while size := stream.readinto(buffer):
                digest.update(buffer[:size])
    return time.thread_time() - begun


def metadata_costs(folder: Path) -> dict[str, Any]:
    """Measure one of 1,024 ranks that opens its part, on the same layout and on another: CPU seconds and bytes of
    memory."""
    import tracemalloc

    import wide_metadata

    from plinth.training.checkpoint import checkpoint, digest_tree, sharded_state
    from plinth.training.directory import RunDirectory

    run, found = RunDirectory(folder / "runs" / "wide"), {}
    wide_metadata.simulate(run, {0, 700})
    for kind in ("same layout", "another layout"):
        tracemalloc.start()
        begun = time.process_time()
        root = checkpoint.read_root(run, 1)
        ranks = checkpoint.rank_manifests(run, 1, digest_tree.share(root, 700, wide_metadata.RANKS))
        wanted = {name: sharded_state.Piece(*piece) for name, piece in ranks[0].pieces.items()}
        if kind == "same layout":
            assert sharded_state.covers(ranks[0].pieces, wanted)
        else:
            table = wide_metadata.every_piece(sharded_state.table_of(ranks))
            assert sharded_state.ranks_for(table, wanted) == [700]
        seconds, peak = time.process_time() - begun, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        found[kind] = {"seconds": round(seconds, 3), "memory_bytes": peak}
    return found


def spread(values: list[float]) -> list[float]:
    """First quartile, median, third."""
    return [round(value, 4) for value in statistics.quantiles(values, n=4)]


def run_of(folder: str, name: str, steps: int, *, dim: int, layers: int, precision: str = "fp32") -> Any:
    """The configuration of a run."""
    from conftest import tiny

    from plinth.model.parameters import Model
    from plinth.training.parameters.run import Checkpoints

    config = tiny(
        Path(folder),
        run_id=f"{name}-{dim:012x}",
        model=Model(layers=layers, dim=dim, heads=8, kv_heads=4, ffn_dim=3 * dim),
        precision=precision,
        vocab_size=8192,
        sequence_tokens=128,
        checkpoints=Checkpoints(keep_last=3, mode="async" if name == "saves" else "sync"),
        total_steps=steps,
    )
    config.directory.root.mkdir(parents=True)
    return config


def saves(folder: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the cost of a save for training."""
    from plinth.training.checkpoint import checkpoint
    from plinth.training.telemetry.timeline import timeline
    from tests.ranks import run_ranks

    number = 2 * arguments.rounds + 2  # as many steps as there are saves
    config, load = run_of(folder, "saves", number, dim=arguments.dim, layers=arguments.layers), os.getloadavg()[0]
    found = run_ranks(2, measure, config, arguments.rounds, arguments.steps, timeout_s=1800)[0]
    told = [one for one in timeline(config.directory.events).of("checkpoint") if one["mode"] == "async"][1:]
    stalls = [one["stall_s"] for one in told]
    quiet = [statistics.mean(one["quiet"]) for one in found]  # a mean, as speed over the steps while writing is one
    wholly = [one["writing"][:-1] or one["writing"] for one in found]  # in the last step, the commit
    return {
        "checkpoint_bytes": checkpoint.size_of_last(config.directory),
        "ranks": 2,
        "rounds": len(found),
        "load_average_at_start": round(load, 1),
        "sync_save_s": spread([one["sync_s"] for one in found]),
        "async_stall_s": spread(stalls),
        "stall_share": spread([stall / one["sync_s"] for stall, one in zip(stalls, found, strict=True)]),
        "seconds_to_commit": spread([one["seconds"] for one in told]),
        "step_s": spread(quiet),
        "steps_while_writing": sum(map(len, wholly)),
        "throughput_while_writing": spread(
            [len(whole) * usual / sum(whole) for whole, usual in zip(wholly, quiet, strict=True)]
        ),
        "throughput_while_writing_all_rounds": round(
            statistics.mean(itertools.chain.from_iterable(one["quiet"] for one in found))
            / statistics.mean(itertools.chain.from_iterable(wholly)),
            4,
        ),
        "processor_s_of_a_writer": round(statistics.mean(one["processor_s"] for one in found), 3),
    }


def restores(folder: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure verification and restore of a rank, and the metadata that one of 1,024 ranks opens."""
    from tests.ranks import run_ranks

    found: dict[str, Any] = {"load_average_at_start": round(os.getloadavg()[0], 1)}
    for precision, dim in itertools.product(("fp32", "bf16"), (256, 512, 1024)):
        config = run_of(folder, precision, 3, dim=dim, layers=arguments.layers, precision=precision)
        costs = run_ranks(2, measure_restores, config, arguments.restores)[0]
        spreads = {name: spread([one[name] for one in costs]) for name in costs[0] if name != "bytes"}
        found[f"{precision}, dim {dim}"] = {"bytes": int(costs[0]["bytes"]), **spreads}
        shutil.rmtree(config.directory.root)
    return {"restore": found, "metadata": metadata_costs(Path(folder))}


def main() -> None:
    """Measure, print, record; what is not measured stays as it is recorded."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("dim", 512), ("layers", 6), ("rounds", 9), ("steps", 5), ("restores", 9)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--only", choices=("saves", "restores"))
    arguments = parser.parse_args()
    from plinth.storage.workspace import TRUST_VARIABLE, Workspace
    from plinth.trust import enrolment

    result = json.loads(RESULTS.read_bytes())
    with tempfile.TemporaryDirectory(prefix="plinth-bench-") as folder:
        os.environ[TRUST_VARIABLE] = f"{folder}/trust"
        enrolment.initialise(Workspace(folder), "bench", ["bench"], demo=True)
        for part in (saves, restores):
            if arguments.only in (None, part.__name__):
                result |= part(folder, arguments)
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
