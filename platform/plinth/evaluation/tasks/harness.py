"""lm-evaluation-harness in the child process: loading of tasks, detection of damaged documents, evaluation of one
task.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lm_eval.api.registry import AGGREGATION_REGISTRY
from lm_eval.api.task import Task
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager

from plinth.errors import MissingError, StageError
from plinth.evaluation.tasks.job import LINEAR
from plinth.evaluation.tasks.lm import CheckpointLM

#: Seeds of lm-evaluation-harness' command, set before every task so that tasks are independent.
PYTHON_SEED, NUMPY_SEED = 0, 1234

#: Maximum number of documents dropped from the start of a file while the task cannot be constructed from its first
#: document.
FIRST = 8

OUTPUT_CHARACTERS = 4000

#: Bootstrap samples of a metric that is not a mean; fewer for many documents, whose metric takes long.
DRAWS, FEW_DRAWS, MANY = 1000, 200, 1000


def load(folder: Path, names: Sequence[str], damaged: list[DamagedLine]) -> dict[str, Task]:
    """Return the tasks with these names, by task name. A group or tag stands for its members; without names, all tasks
    in the folder are returned.

    If the task cannot be constructed from the first document of a file, that document counts as damaged.

    Raises:
        MissingError: neither the folder nor lm-evaluation-harness has a task of this name.
        StageError: a task cannot be loaded, usually because its data is not in the folder.
    """
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    wanted = list(names) or manager.all_subtasks
    if not wanted or set(wanted) - set(manager.all_tasks):
        manager = TaskManager(include_path=str(folder))  # also indexes its 15,000 built-in tasks, in about 10 s
    unknown = sorted(set(wanted) - set(manager.all_tasks))
    if unknown or not wanted:
        raise MissingError(
            f"unknown tasks: {', '.join(unknown)}" if unknown else "the folder has no tasks",
            expected="`task:` in a YAML file of the folder, or a task, group or tag of lm-evaluation-harness",
            remedy="`lm-eval ls tasks` lists the built-in tasks",
        )
    found: dict[str, Task] = {}
    for name in wanted:
        found |= _load(manager, name, folder, damaged)
    return dict(sorted(found.items()))


def _load(manager: TaskManager, name: str, folder: Path, damaged: list[DamagedLine]) -> dict[str, Task]:
    entry = manager.task_index.get(name)
    config = (entry.cfg if entry else None) or {}
    _require_inside(name, config.get("dataset_kwargs"), folder)
    data = _data_file(config, folder)
    kept = data.read_bytes() if data else b""
    dropped: list[DamagedLine] = []
    while True:
        try:
            made: dict[str, Task] = manager.load([name])["tasks"]
            for member, task in made.items():
                _require_inside(member, task.config.dataset_kwargs, folder)
            damaged += dropped
            return made
        except StageError:
            raise
        except Exception as error:  # from a library, `datasets`, or the task's own functions
            if data is None or len(dropped) == FIRST or not _without_first(data, dropped, folder, error):
                if data:
                    data.write_bytes(kept)
                raise StageError(
                    f"task {name} cannot be loaded",
                    found=f"{type(error).__name__}: {error}"[:2000],
                    expected="data in the folder of the task files: `data_files` relative to it, or a copy of the hub "
                    "dataset under its name; nothing is downloaded",
                    remedy="put the data there, or correct the task's YAML",
                ) from error


def _require_inside(name: str, given: Mapping[str, Any] | None, folder: Path) -> None:
    """Reject data outside the task folder, because its digest would not be part of the task's digest."""
    files = (given or {}).get("data_files") or []
    flat = list(files.values()) if isinstance(files, Mapping) else [files]
    named = [one for some in flat for one in ([some] if isinstance(some, str) else some)]
    outside = [one for one in named if "://" in one or not (folder / one).resolve().is_relative_to(folder.resolve())]
    if outside:
        raise StageError(
            f"task {name} has data outside its folder",
            found=", ".join(outside),
            expected="`data_files` relative to the folder of the task files",
            remedy="copy the data into the folder",
        )


def _data_file(config: Mapping[str, Any], folder: Path) -> Path | None:
    """Return the JSONL file with a task's documents, or None if the task has no such file."""
    files = (config.get("dataset_kwargs") or {}).get("data_files")
    split = config.get("test_split") or config.get("validation_split")
    file = files.get(split) if isinstance(files, Mapping) else files
    path = folder / file if isinstance(file, str) else None
    return path if path and path.suffix in SUFFIXES and path.is_file() else None


def _without_first(data: Path, dropped: list[DamagedLine], folder: Path, error: Exception) -> bool:
    """Remove the first line of a task's data file, and return False if there is none."""
    line, _, rest = data.read_bytes().lstrip(b"\n").partition(b"\n")
    reason = f"{type(error).__name__}: {error}"[:200]
    dropped.append(DamagedLine(data.relative_to(folder).as_posix(), len(dropped) + 1, reason))
    data.write_bytes(rest)
    return bool(line)


def local(task: Task) -> list[str]:
    """Return the data files of a task's evaluated split, as named in its YAML. Damaged lines are counted in these
    files."""
    files = (task.config.dataset_kwargs or {}).get("data_files") or []
    split = task.config.test_split or task.config.validation_split
    found = files.get(split, []) if isinstance(files, Mapping) else files
    return [found] if isinstance(found, str) else list(found)


def run(
    name: str, task: Task, lm: CheckpointLM, params: Mapping[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Score the first `limit` valid documents of a task.

    Returns:
        Facts (`values` by `metric,filter`, as lm-evaluation-harness aggregates them; `replicates` over bootstrap
        samples for values that are not means; `aggregations`, `higher_is_better`, `version`, `output_type`, `fewshot`,
        `documents`, `damaged`), and rows of `exchange.ITEMS`.
    """
    _configure(task, params)
    good, bad = _documents(task, params["limit"])
    if not good:
        raise StageError(f"task {name} has no valid documents", found=bad[0]["reason"] if bad else "none")
    random.seed(PYTHON_SEED)
    np.random.seed(NUMPY_SEED)
    chosen = {"samples": {name: good}} if bad else {"limit": len(good)}
    made = evaluate(lm, {"tasks": {name: task}}, bootstrap_iters=0, log_samples=True, **chosen)
    values = {key: value for key, value in made["results"][name].items() if "," in key and "_stderr," not in key}
    metrics = {key.partition(",")[0] for key in values}
    aggregations = {metric: _aggregation(task, metric) for metric in metrics}
    drawn = [key for key in values if aggregations[key.partition(",")[0]] not in LINEAR]
    facts = {
        "version": str(task.VERSION),
        "output_type": task.OUTPUT_TYPE,
        "fewshot": task.config.num_fewshot,
        "documents": len(good),
        "damaged": len(bad),
        "values": {key: _number(value) for key, value in values.items()},
        "aggregations": aggregations,
        "replicates": {key: _replicates(task, made["samples"][name], key, params["seed"]) for key in drawn},
        "higher_is_better": {metric: task.higher_is_better().get(metric) for metric in metrics},
    }
    return facts, [*(row for sample in made["samples"][name] for row in _rows(task, sample)), *bad]


def _configure(task: Task, params: Mapping[str, Any]) -> None:
    """Set the few-shot examples in the same way as the lm-evaluation-harness command."""
    fixed = task.get_config("num_fewshot")
    asked = params["fewshot"] if params["fewshot"] is not None and fixed != 0 else fixed
    task.set_config(key="num_fewshot", value=asked or 0)
    task.set_fewshot_seed(seed=params["seed"])


def _documents(task: Task, limit: int | None) -> tuple[list[int], list[dict[str, Any]]]:
    """Return the indices of the first `limit` valid documents, and one row for each invalid document before the last
    valid one."""
    good: list[int] = []
    bad: list[dict[str, Any]] = []
    for index, document in enumerate(task.eval_docs):
        if limit is not None and len(good) == limit:
            break
        reason = _refused(task, document)
        if reason is None:
            good.append(index)
        else:
            bad.append(damaged_row(reason, index))
    return good, bad


def _refused(task: Task, document: Mapping[str, Any]) -> str | None:
    """Return the reason why a document cannot be scored, or None if it is valid. The test uses placeholder answers."""
    try:
        context = task.fewshot_context(document, num_fewshot=0, gen_prefix=task.doc_to_prefix(document))
        asked = task.construct_requests(document, context, metadata=(task.config.task, 0, 1))
        requests = asked if isinstance(asked, list) else [asked]
        answers = {"loglikelihood": (-1.0, False), "loglikelihood_rolling": -1.0, "generate_until": "answer"}
        if any(not isinstance(argument, str) for one in requests for argument in one.args[:1]):
            return "the prompt is no text"
        task.process_results(document, [answers[one.request_type] for one in requests])
        return _label(task, document) if task.OUTPUT_TYPE == "multiple_choice" else None
    except Exception as error:  # from a template, or the task's own functions
        return f"{type(error).__name__}: {error}"[:200]


def _label(task: Task, document: Mapping[str, Any]) -> str | None:
    """Return a reason if no choice is correct, else None. lm-evaluation-harness would count the document as wrong."""
    right, choices = _right(task, document), task.doc_to_choice(document)
    if right is None or all(isinstance(one, int) and 0 <= one < len(choices) for one in right):
        return None
    return f"the right answer is none of {len(choices)} choices"


def _right(task: Task, document: Mapping[str, Any]) -> list[Any] | None:
    """Return the indices of the correct choices, or None if the choices are contexts."""
    if task.multiple_input:
        return None
    found, choices = task.doc_to_target(document), task.doc_to_choice(document)
    several = found if isinstance(found, list) else [found]
    return [choices.index(one) if one in choices else one for one in several]


def _rows(task: Task, sample: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one document under one filter, one row per metric."""
    bits, size, output = _answer(task, sample)
    for metric in sample["metrics"]:
        score, weight = _score(sample[metric])
        yield {
            "document": sample["doc_id"],
            "hash": sample["doc_hash"],
            "filter": sample["filter"],
            "metric": metric,
            "score": score,
            "weight": weight,
            "bits": bits,
            "bytes": size,
            "output": None if output is None else output[:OUTPUT_CHARACTERS],
            "reason": None,
        }


def damaged_row(reason: str, document: int | None = None) -> dict[str, Any]:
    """Return the row for an item without a score."""
    empty = dict.fromkeys(("score", "weight", "bits", "bytes", "output"))
    return {"document": document, "hash": "", "filter": "", "metric": "", **empty, "reason": reason}


def _answer(task: Task, sample: Mapping[str, Any]) -> tuple[float | None, int | None, str | None]:
    """Return -log2 p of the correct answer, the number of its bytes, and the model's answer."""
    arguments, answers = sample["arguments"], sample["filtered_resps"]
    match task.OUTPUT_TYPE:
        case "multiple_choice":
            right = _right(task, sample["doc"])
            choices = task.doc_to_choice(sample["doc"])
            best = int(np.argmax([answer[0] for answer in answers[: len(choices)]]))
            if right is None or len(right) != 1:
                return None, None, choices[best]
            (only,) = right
            return -answers[only][0] / math.log(2), len(arguments[only][1].encode()), choices[best]
        case "loglikelihood":
            return -answers[0][0] / math.log(2), len(arguments[0][1].encode()), None
        case "loglikelihood_rolling":
            return -answers[0] / math.log(2), len(arguments[0][0].encode()), None
    text = answers[0]
    return None, None, text if isinstance(text, str) else str(text)


def _score(value: Any) -> tuple[float | None, float | None]:
    """Return score and weight of a metric's value. A plain number has no weight; a fraction's weight is its
    denominator. Other values give None for both."""
    if isinstance(value, bool | int | float | np.number):
        return _number(value), None
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(one, int | float | np.number) for one in value):
        return _number(value[0]), _number(value[1])
    return None, None


def _number(value: Any) -> float | None:
    """Return an aggregation's result if it is a finite number, otherwise None."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _replicates(task: Task, samples: Sequence[Mapping[str, Any]], key: str, seed: int) -> list[float | None]:
    """Return a metric's values over bootstrap samples of the documents."""
    metric, _, filtered = key.partition(",")
    scores = [one[metric] for one in samples if one["filter"] == filtered and metric in one]
    draws = np.random.default_rng(seed).integers(
        0, len(scores), (DRAWS if len(scores) <= MANY else FEW_DRAWS, len(scores))
    )
    return [_number(task.aggregation()[metric]([scores[index] for index in draw])) for draw in draws]


def _aggregation(task: Task, metric: str) -> str:
    function = task.aggregation().get(metric)
    names = {made: name for name, made in AGGREGATION_REGISTRY.items()}
    return names.get(function, getattr(function, "__name__", "mean")) if function else "mean"


# Lines of a data file that are not valid items. They are removed and counted.
#
# `datasets` rejects a whole file for one line that is not JSON, or has a field of a different type than earlier lines.
# Here such a line costs one item. A damaged line is not UTF-8, is not a JSON object, lacks a field that most lines
# have, or has a field of a different type than in most lines; null matches every type.

#: File formats with one item per line.
SUFFIXES = (".jsonl", ".ndjson")


class DamagedLine(NamedTuple):
    """A damaged line: its file, its number from 1, and the reason."""

    file: str
    line: int
    reason: str


def set_aside(folder: Path) -> list[DamagedLine]:
    """Remove the damaged lines from every JSONL file below a folder, and return the damaged lines."""
    found: list[DamagedLine] = []
    for path in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file()):
        lines = path.read_bytes().split(b"\n")
        reasons = damaged(lines)
        if reasons:
            path.write_bytes(b"\n".join(line for number, line in enumerate(lines, 1) if number not in reasons))
        name = path.relative_to(folder).as_posix()
        found += [DamagedLine(name, number, reason) for number, reason in sorted(reasons.items())]
    return found


def damaged(lines: Sequence[bytes]) -> dict[int, str]:
    """Return the reason for each damaged line, by line number (from 1). Blank lines are not damaged."""
    reasons: dict[int, str] = {}
    records: dict[int, dict[str, str]] = {}  # type of each field, by line
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line.decode())
            if not isinstance(record, dict):
                raise ValueError(f"{_kind(record)}, not an object")
            records[number] = {name: _kind(value) for name, value in record.items()}
        except (ValueError, RecursionError) as error:
            reasons[number] = f"{type(error).__name__}: {error}"[:200]
    usual = _usual(list(records.values()))
    for number, fields in records.items():
        wrong = [
            f"field {name!r} is {fields.get(name, 'absent')}, elsewhere {kind}"
            for name, kind in usual.items()
            if not _fits(fields.get(name, "absent"), kind)
        ]
        if wrong:
            reasons[number] = "; ".join(wrong)[:200]
    return reasons


def _usual(records: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return the most frequent type of each field that occurs in most lines."""
    kinds: dict[str, Counter[str]] = {}
    for fields in records:
        for name, kind in fields.items():
            kinds.setdefault(name, Counter())[kind] += 1
    found = {}
    for name, counts in kinds.items():
        if 2 * counts.total() > len(records):
            found[name] = max(
                (kind for kind in counts if kind != "null"), key=lambda kind: counts[kind], default="null"
            )
    return found


def _fits(kind: str, usual: str) -> bool:
    return (
        kind in (usual, "null")
        or usual == "null"
        or ("empty list" in (kind, usual) and "list" in kind and "list" in usual)
    )


def _kind(value: Any) -> str:
    """Return the type of a JSON value. In a table, all rows must have the same type in a column."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            kinds = sorted({_kind(one) for one in value} - {"null"})
            return f"list of {' and '.join(kinds)}" if kinds else "empty list"
    return "object"
