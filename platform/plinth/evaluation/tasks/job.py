"""The asset `tasks/{name}`: scores of a set of tasks, item by item, with an interval for every metric. Also the
protocol between the two processes: questions, answers, scores of items.

There are two child processes. The first runs lm-evaluation-harness on a copy of the task files, without a model or
network access. The second has the model (`evaluation.engine`) and is started at the first question. Each finished task
is a record in the step cache. After an interruption, a new run continues with the first unfinished task.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa

from plinth import fingerprint, processes
from plinth.compute import context
from plinth.compute.context import Context
from plinth.corpus import lists
from plinth.errors import SourceError, StageError
from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Request, Sampling
from plinth.evaluation.parameters import TaskSet
from plinth.evaluation.statistics import Estimate, from_replicates, mean, ratio, share_with_missing
from plinth.model.hugging_face import CONFIG, TOKENIZER
from plinth.records import Manifest, Part, Step
from plinth.storage.atomic import join, named_failures
from plinth.storage.parts import write_table
from plinth.storage.state import checkout

# Protocol between the process that runs lm-evaluation-harness and the process that has the model.
#
# A line of JSON on a pipe reports an event, or names a JSON file with a question; the parent answers in the same form.
# Output of libraries goes to standard error, so the pipe has protocol lines only.

Text = str | Sequence[int]


class Answerer(Protocol):
    """Interface through which `CheckpointLM` queries a model. Token prompts are used unchanged; text prompts follow the
    start-of-document token."""

    def likelihoods(self, pairs: Sequence[tuple[Text, Text]]) -> list[tuple[float, bool]]:
        """Return the total -log2 p of each continuation after its prompt, and a flag that greedy decoding yields the
        continuation."""
        ...

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]) -> list[str]:
        """Return the text that follows each prompt; `sampling` has the fields of `Sampling`."""
        ...


class EngineAnswerer:
    """Answerer that passes requests to a `ModelEngine`."""

    def __init__(self, engine: ModelEngine) -> None:
        self._engine = engine

    def likelihoods(self, pairs: Sequence[tuple[Text, Text]]) -> list[tuple[float, bool]]:
        """Implement `Answerer.likelihoods` with the engine."""
        found = self._engine.likelihoods([Request(_side(prompt), _side(rest)) for prompt, rest in pairs])
        return list(zip(found.bits.tolist(), found.greedy.tolist(), strict=True))

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]) -> list[str]:
        """Implement `Answerer.generate` with the engine."""
        found = self._engine.generate([tuple(one) for one in prompts], Sampling(**sampling))
        return [one.text for one in found]


class Channel:
    """The child process's end of the protocol. As an `Answerer`, it passes requests to the parent process."""

    def __init__(self, folder: Path, answers: IO[str], lines: IO[str]) -> None:
        self._folder, self._answers, self._lines, self._asked = folder, answers, lines, 0

    @classmethod
    def standard(cls, folder: Path) -> Channel:
        """Connect to standard input and output. Anything printed later goes to standard error."""
        lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        return cls(folder, sys.stdin, lines)

    def emit(self, **event: Any) -> None:
        """Send an event to the parent process."""
        self._lines.write(json.dumps(event) + "\n")
        self._lines.flush()

    def ask(self, kind: str, **question: Any) -> Any:
        """Send a question to the parent process and return the answer.

        Raises:
            EOFError: the parent has exited.
        """
        self._asked += 1
        path = self._folder / f"question-{self._asked}.json"
        path.write_text(json.dumps(question))
        self.emit(ask=kind, file=path.name)
        line = self._answers.readline()
        if not line:
            raise EOFError("the parent process has exited")
        answer = join(self._folder, json.loads(line)["file"], "an answer")
        content = json.loads(answer.read_text())
        answer.unlink()
        return content

    def likelihoods(self, pairs: Sequence[tuple[Text, Text]]) -> list[tuple[float, bool]]:
        """Implement `Answerer.likelihoods` by asking the parent process."""
        return [(bits, greedy) for bits, greedy in self.ask("likelihoods", pairs=pairs)]

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]) -> list[str]:
        """Implement `Answerer.generate` by asking the parent process."""
        found: list[str] = self.ask("generate", prompts=prompts, sampling=dict(sampling))
        return found


def question(folder: Path, event: Mapping[str, Any]) -> dict[str, Any]:
    """Read the content of a child's question. Called by the parent process."""
    path = join(folder, event["file"], "a question of the task process")
    found: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    return found


def answer(folder: Path, event: Mapping[str, Any], content: Any) -> str:
    """Write the answer to a child's question and return the line that announces it. Called by the parent process."""
    name = f"answer-{event['file']}"
    join(folder, name, "a question of the task process").write_text(json.dumps(content))
    return json.dumps({"file": name}) + "\n"


def _side(value: Text) -> str | tuple[int, ...]:
    return value if isinstance(value, str) else tuple(value)


#: A row per document, filter and metric. `hash` is lm-evaluation-harness' hash of the document, `bits` -log2 p of the
#: correct answer, `bytes` its UTF-8 length. A ratio of sums has numerator and denominator in `score` and `weight`; a
#: metric of a whole set (F1, BLEU) has no score. A damaged item has a `reason`.
ITEMS = pa.schema(
    [
        pa.field("document", pa.int64()),
        pa.field("hash", pa.string(), nullable=False),
        pa.field("filter", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("score", pa.float64()),
        pa.field("weight", pa.float64()),
        pa.field("bits", pa.float64()),
        pa.field("bytes", pa.int64()),
        pa.field("output", pa.string()),
        pa.field("reason", pa.string()),
    ]
)

#: Metrics that are means or ratios of sums. Intervals of other metrics come from their values over bootstrap samples.
LINEAR = ("mean", "perplexity", "bits_per_byte", "weighted_perplexity")

#: Flag: the metric has no value for some bootstrap samples, so its spread is unknown.
WITHOUT_INTERVAL = "without_interval"


def estimates(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return every metric of a task: the value as aggregated by lm-evaluation-harness, with Plinth's interval.

    Args:
        rows: rows of `ITEMS`.
        facts: facts about the task from `harness.run`.
        seed: seed of the bootstrap.
    """
    found: dict[str, Any] = {}
    for key, value in sorted(facts["values"].items()):
        metric, _, filtered = key.partition(",")
        own = [row for row in rows if (row["metric"], row["filter"]) == (metric, filtered)]
        estimate = _linear(own, facts["aggregations"][metric], facts["damaged"], seed)
        drawn = facts["replicates"].get(key)
        if estimate is None and drawn and value is not None and None not in drawn:
            estimate = from_replicates(value, drawn, n=len(own), seed=seed)
        shown = estimate.model_dump(mode="json") if estimate else {"n": len(own), "flags": [WITHOUT_INTERVAL]}
        name = metric if filtered == "none" else key
        found[name] = shown | {"value": value, "higher_is_better": facts["higher_is_better"][metric]}
    return found


def _linear(rows: Sequence[Mapping[str, Any]], aggregation: str, damaged: int, seed: int) -> Estimate | None:
    """Estimate a mean or a ratio of sums. The interval allows for damaged items being either correct or wrong."""
    scores, weights = [row["score"] for row in rows], [row["weight"] for row in rows]
    if not rows or None in scores or aggregation not in LINEAR:
        return None
    if None in weights:
        if aggregation == "mean" and set(scores) <= {0.0, 1.0}:
            return share_with_missing(int(sum(scores)), len(scores), damaged)
        found = mean(scores)
        return found if aggregation == "mean" else _falling(found, lambda nats: math.exp(-nats))
    found = ratio(scores, weights, seed=seed)
    if aggregation == "bits_per_byte":
        return _falling(found, lambda rate: -rate / math.log(2))
    return _falling(found, lambda rate: math.exp(-rate))


def _falling(found: Estimate, through: Callable[[float], float]) -> Estimate:
    """Transform the estimate of a mean log-likelihood (at most 0) by a decreasing function, such as perplexity."""
    low, high = through(min(found.high, 0.0)), through(found.low)
    return found.model_copy(update={"value": through(found.value), "low": low, "high": high})


# The asset.

STEP = "tasks"
VERSION = "2"
TAIL_LINES = 25

#: Distributions that affect prompts and scores.
LIBRARIES = ("lm_eval", "datasets", "evaluate", "jinja2", "sacrebleu", "rouge_score", "nltk")

#: Environment variables of the child, so that libraries stay offline and read nothing outside its folder.
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
    """Evaluate a checkpoint on a set of tasks.

    The manifest has one part per task, with one row per document and metric (`exchange.ITEMS`). Statistics: `tasks`
    (task -> `metrics` with value, interval, n and seed; `documents`, `damaged`, `fewshot`, `version`, `output_type`),
    `damaged`, `seed`.

    Raises:
        CheckpointError, TrainingError: the checkpoint cannot be loaded or evaluated.
        StageError: a task cannot be loaded or judged; the error contains the end of the child's log.
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
    """One run of the child process with lm-evaluation-harness, and the model engine, which is started at the first
    request."""

    def __init__(self, ctx: Context, name: str, params: TaskSet, checkpoint: Manifest, files: Manifest) -> None:
        self.ctx, self.name, self.params, self.checkpoint, self.files = ctx, name, params, checkpoint, files
        self._model = ModelEngine.of(ctx, checkpoint, label=f"tasks/{name}: model")
        self._engine: ModelEngine | None = None  # started at the first question
        self._found: dict[str, tuple[Part, ...]] = {}

    def parts(self) -> tuple[Part, ...]:
        """Return the part with the results of every task, sorted by task name."""
        with named_failures(self.ctx.workspace.tmp):
            self.ctx.workspace.tmp.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(prefix="tasks-", dir=self.ctx.workspace.tmp) as folder,
            ExitStack() as self._stack,
        ):
            self._converse(Path(folder))
        return tuple(part for _, parts in sorted(self._found.items()) for part in parts)

    def _converse(self, folder: Path) -> None:
        """Start the child process and answer its questions until it ends."""
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
            asked = question(folder, event)
            content = getattr(self, f"_on_{event['ask']}")(**asked)
            try:
                answers.write(answer(folder, event, content))
                answers.flush()
            except BrokenPipeError:
                return  # it has exited: exit code and log give the reason

    def _on_loaded(self, tasks: list[str]) -> list[str]:
        """Return the tasks that have no record in the step cache and must run."""
        found = self.ctx.cache.get_many([self._key(task) for task in tasks])
        self._found = {task: parts for task, parts in zip(tasks, found, strict=True) if parts is not None}
        missing = [task for task in tasks if task not in self._found]
        self._meter = self._stack.enter_context(self.ctx.progress.meter(f"tasks/{self.name}", len(missing)))
        return missing

    def _on_likelihoods(self, pairs: list[Any]) -> list[tuple[float, bool]]:
        return EngineAnswerer(self._started()).likelihoods([(prompt, rest) for prompt, rest in pairs])

    def _on_generate(self, prompts: list[list[int]], sampling: dict[str, Any]) -> list[str]:
        return EngineAnswerer(self._started()).generate(prompts, sampling)

    def _on_done(self, task: str, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
        kept = {name: facts[name] for name in ("version", "output_type", "fewshot", "documents", "damaged")}
        stats = kept | {"metrics": estimates(rows, facts, self.params.seed)}
        table = pa.Table.from_pylist(rows, schema=ITEMS)
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
        cwd=folder / "files",  # paths of task files are relative
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
    """Copy the folder of task files into the store.

    Returns:
        Manifest of one part per file, under its path in the folder. Statistics: `files`, `bytes`.

    Raises:
        SourceError: the folder is missing, or a file is unreadable, a link that leaves the folder, or a special file.
    """
    made = lists.run(ctx, name, location)
    if not any(part.name.endswith((".yaml", ".yml", ".jsonl", ".json", ".parquet", ".csv")) for part in made.parts):
        raise SourceError(
            f"task set {name} has no task files",
            found=", ".join(part.name for part in made.parts[:5]),
            expected=f"YAML files of lm-evaluation-harness, or data of its built-in tasks, in {location}",
            remedy=f"correct evaluation.tasks.{name}.include",
        )
    return made.model_copy(update={"asset": f"task_files/{name}", "step": "task_files", "version": FILES_VERSION})
