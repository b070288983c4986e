"""Costs of tasks are measured where they run and are returned with their results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from plinth.compute import context
from plinth.compute.context import AssetCost, Context, Item, StepCost, run_items
from plinth.compute.engine import Engine, InlineEngine, LocalEngine
from plinth.records import Part, Step
from plinth.storage.store import Store
from plinth.storage.workspace import Workspace

BURN = "import time\nwhile time.process_time() < 0.4: pass"


def doubled(store: Store, part: Part) -> tuple[Part, ...]:
    data = store.open_path(part.blob).read_bytes()
    return (Part(name="twice", blob=store.put_bytes(2 * data), rows=1),)


@pytest.mark.parametrize("workers", [0, 2])
def test_tasks_operations_and_bytes_are_counted_on_any_engine(tmp_path: Path, workers: int) -> None:
    engine: Engine = LocalEngine(workers) if workers else InlineEngine()
    ctx = Context(Workspace(tmp_path).ensure(), engine=engine)
    parts = [Part(name=str(i), blob=ctx.store.put_bytes(bytes([i]) * 1000), rows=1) for i in range(5)]
    step = Step(name="doubled", version="1")

    def run(many: list[Part]) -> StepCost:
        ctx.costs.clear()
        run_items(ctx, step, doubled, [Item((part.blob.sha256,), part) for part in many], label="test")
        return ctx.costs["doubled"]

    made = run(parts[:4])
    assert (made.tasks, made.spared, made.opened, made.written, made.written_bytes) == (4, 0, 4, 4, 8000)
    assert made.read_bytes >= 4000
    again = run(parts)
    assert (again.tasks, again.spared, again.operations) == (1, 4, 2)
    engine.close()


def test_the_time_of_processes_that_a_task_starts_counts(tmp_path: Path) -> None:
    def waits(store: Store, task: None) -> None:
        subprocess.run([sys.executable, "-c", BURN], check=True)

    def leaves_running(store: Store, task: None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", f"{BURN}\nprint(1, flush=True)\ninput()"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout
        child.stdout.readline()
        return child

    _, cost = context.measured(waits, Store(tmp_path), None)
    assert cost.cpu_s >= 0.35  # counted in hundredths
    child, cost = context.measured(leaves_running, Store(tmp_path), None)
    assert cost.cpu_s >= 0.35
    child.communicate(b"\n")


def test_a_process_without_children_searches_for_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*given: object) -> None:
        raise ChildProcessError

    monkeypatch.setattr(context.os, "waitid", none)
    monkeypatch.delattr(context, "_children")
    assert context.measured(lambda store, task: task, Store(tmp_path), 1)[0] == 1


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    space, one = Workspace(tmp_path), StepCost(tasks=2, cpu_s=1.5, opened=3, written=4)
    assert context.load(space, "web/c4") is None
    kept = AssetCost(asset="web/c4", steps={"a": one, "b": one}, driver_cpu_s=0.5, wall_s=2.0)
    context.save(space, kept)
    assert context.load(space, "web/c4") == kept
    assert kept.tasks == StepCost(tasks=4, cpu_s=3.0, opened=6, written=8)
