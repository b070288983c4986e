"""The asset `tasks/{name}`: scores of a set of tasks, item by item, with an interval for every metric.

Two children: one runs lm-evaluation-harness on a copy of the task files, with no model and no way to a network; the
other has the model (`evaluation.engine`), and is started when the first question comes. A task that is finished is a
record of the step cache, so that a run that was killed goes on at the task it was at.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from plinth import fingerprint, processes
from plinth.compute import context
from plinth.compute.context import Context
from plinth.corpus import lists
from plinth.errors import SourceError, StageError
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.parameters import TaskSet
from plinth.evaluation.tasks import exchange
from plinth.model.hugging_face import CONFIG, TOKENIZER
from plinth.records import Manifest, Part, Step
from plinth.storage.atomic import named_failures
from plinth.storage.parts import write_table
from plinth.storage.state import checkout

STEP = "tasks"
VERSION = "2"
TAIL_LINES = 25

#: Distributions that decide prompts and scores.
LIBRARIES = ("lm_eval", "datasets", "evaluate", "jinja2", "sacrebleu", "rouge_score", "nltk")

#: No library of the child looks for anything outside its folder, nor asks a hub.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "USE_TORCH": "0",
    "PYTHONHASHSEED": "0",
}


def run(ctx: Context, name: str, params: TaskSet, checkpoint: Manifest, files: Manifest) -> Manifest:
    """Measure a checkpoint on a set of tasks; a part per task with a row per document and metric (`exchange.ITEMS`).

    Stats: `tasks` (task -> `metrics` with value, interval, n and seed; `documents`, `damaged`, `fewshot`, `version`,
    `output_type`), `damaged`, `seed`.

    Raises:
        CheckpointError, TrainingError: the checkpoint cannot be loaded or evaluated.
        StageError: a task cannot be made or judged, with the end of the child's log.
    """
    step = _step(params, {"tasks": list(params.tasks)})
    inputs = {"checkpoint": checkpoint, f"task_files/{name}": files}
    parts = context.cached(ctx, step, inputs.values(), _Harness(ctx, name, params, checkpoint, files).parts)
    tasks = {part.name.removesuffix(".parquet"): dict(part.stats) for part in parts}
    stats = {"tasks": tasks, "damaged": sum(one["damaged"] for one in tasks.values()), "seed": params.seed}
    return context.manifest(f"tasks/{name}", step, inputs, parts, stats)


def _step(params: TaskSet, more: Mapping[str, Any]) -> Step:
    own = {"fewshot": params.fewshot, "limit": params.limit, "seed": params.seed}
    return Step(name=STEP, version=VERSION, params=own | dict(more), libraries=fingerprint.libraries(*LIBRARIES))


class _Harness:
    """One run of the child, and of the engine if anything is asked."""

    def __init__(self, ctx: Context, name: str, params: TaskSet, checkpoint: Manifest, files: Manifest) -> None:
        self.ctx, self.name, self.params, self.checkpoint, self.files = ctx, name, params, checkpoint, files
        self._model = ModelEngine.of(ctx, checkpoint, label=f"tasks/{name}: model")
        self._engine: ModelEngine | None = None  # started when the first question comes
        self._found: dict[str, tuple[Part, ...]] = {}

    def parts(self) -> tuple[Part, ...]:
        """The part of every task, by name."""
        with named_failures(self.ctx.workspace.tmp):
            self.ctx.workspace.tmp.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="tasks-", dir=self.ctx.workspace.tmp) as folder,
            ExitStack() as self._stack,
        ):
            self._converse(Path(folder))
        return tuple(part for _, parts in sorted(self._found.items()) for part in parts)

    def _converse(self, folder: Path) -> None:
        """Start the child and answer until it ends."""
        checkout(self.ctx.store, self.files.parts, folder / "files")
        wanted = [part for part in self.checkpoint.parts if part.name in (CONFIG, TOKENIZER)]
        checkout(self.ctx.store, wanted, folder / "model")
        (folder / "exchange").mkdir()
        config = self.params.model_dump(mode="json", exclude={"include"})
        config |= {"exchange": str(folder / "exchange"), "model": str(folder / "model")}
        (folder / "config.json").write_text(json.dumps(config))
        with (folder / "log").open("wb") as log:
            child = _start(folder, log)
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            self._answer(folder / "exchange", child.stdout, child.stdin)
            code = child.wait()
        finally:
            child.kill()
            child.wait()
        if code:
            raise _failed(self.name, code, folder / "log")

    def _answer(self, folder: Path, events: IO[str], answers: IO[str]) -> None:
        for line in events:
            event = json.loads(line)
            asked = exchange.question(folder, event)
            content = getattr(self, f"_on_{event['ask']}")(**asked)
            try:
                answers.write(exchange.answer(folder, event, content))
                answers.flush()
            except BrokenPipeError:
                return  # it is gone: its exit code and its log say why

    def _on_loaded(self, tasks: list[str]) -> list[str]:
        """Tasks without a record."""
        found = self.ctx.cache.get_many([self._key(task) for task in tasks])
        self._found = {task: parts for task, parts in zip(tasks, found, strict=True) if parts is not None}
        missing = [task for task in tasks if task not in self._found]
        self._meter = self._stack.enter_context(self.ctx.progress.meter(f"tasks/{self.name}", len(missing)))
        return missing

    def _on_likelihoods(self, pairs: list[Any]) -> list[tuple[float, bool]]:
        return exchange.EngineAnswerer(self._started()).likelihoods([(prompt, rest) for prompt, rest in pairs])

    def _on_generate(self, prompts: list[list[int]], sampling: dict[str, Any]) -> list[str]:
        return exchange.EngineAnswerer(self._started()).generate(prompts, sampling)

    def _on_done(self, task: str, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        kept = {name: facts[name] for name in ("version", "output_type", "fewshot", "documents", "damaged")}
        stats = kept | {"metrics": exchange.estimates(rows, facts, self.params.seed)}
        table = pa.Table.from_pylist(rows, schema=exchange.ITEMS)
        part = write_table(self.ctx.store, f"{task.replace('/', '-')}.parquet", table, stats=stats)
        self._found[task] = self.ctx.cache.put(self._key(task), (part,))
        self._meter.advance(1)

    def _key(self, task: str) -> str:
        return _step(self.params, {"task": task}).key([self.checkpoint.digest, self.files.digest])

    def _started(self) -> ModelEngine:
        if self._engine is None:
            self._engine = self._stack.enter_context(self._model)
        return self._engine


def _start(folder: Path, log: IO[bytes]) -> subprocess.Popen[str]:
    caches = {"HF_HOME": "hub", "HF_DATASETS_CACHE": "datasets", "HF_MODULES_CACHE": "modules"}
    process: subprocess.Popen[str] = processes.start(
        processes.python("plinth.evaluation.tasks", str(folder / "config.json")),
        own={**OFFLINE, **{name: str(folder / place) for name, place in caches.items()}},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        cwd=folder / "files",  # its tasks name their files by relative paths
    )  # fmt: skip
    return process


def _failed(name: str, code: int, log: Path) -> StageError:
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
    return StageError(
        f"task set {name} could not be run",
        found=f"exit code {code}\n{tail}",
        expected="a score for every document",
        remedy="correct the cause above and run the same command again",
    )


FILES_VERSION = "1"


def task_files(ctx: Context, name: str, location: str) -> Manifest:
    """Copy the folder into the store.

    Returns:
        Manifest of one part per file, under its path in the folder. Statistics: `files`, `bytes`.

    Raises:
        SourceError: nothing is there, or a file cannot be read, is a link that leads out, or a special file.
    """
    made = lists.run(ctx, name, location)
    if not any(part.name.endswith((".yaml", ".yml", ".jsonl", ".json", ".parquet", ".csv")) for part in made.parts):
        raise SourceError(
            f"task set {name} has no task files",
            found=", ".join(part.name for part in made.parts[:5]),
            expected=f"YAML files of lm-evaluation-harness, or data of its own tasks, in {location}",
            remedy=f"correct evaluation.tasks.{name}.include",
        )
    return made.model_copy(update={"asset": f"task_files/{name}", "step": "task_files", "version": FILES_VERSION})
