"""What the process that runs lm-evaluation-harness and the one that has the model exchange: questions, answers,
scores of items.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa

from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Request, Sampling
from plinth.evaluation.statistics import Estimate, from_replicates, mean, ratio, share_with_missing
from plinth.storage.safe_path import join

# Questions and answers between the process that runs lm-evaluation-harness and the one that has the model.
#
# A line of JSON on a pipe says what happened, or names a file of JSON with a question; the parent answers in kind. What
# libraries print goes to standard error, so that nothing but these lines is on the pipe.

Text = str | Sequence[int]


class Answerer(Protocol):
    """What `CheckpointLM` asks of a model; tokens are taken as they are, text follows the start of a document."""

    def likelihoods(self, pairs: Sequence[tuple[Text, Text]]) -> list[tuple[float, bool]]:
        """Total -log2 p of each continuation after its prompt, and whether greedy decoding gives it."""
        ...

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]) -> list[str]:
        """The text that follows each prompt; `sampling` has the fields of `Sampling`."""
        ...


class EngineAnswerer:
    """A model in an engine's process."""

    def __init__(self, engine: ModelEngine) -> None:
        self._engine = engine

    def likelihoods(self, pairs: Sequence[tuple[Text, Text]]) -> list[tuple[float, bool]]:
        """As `Answerer.likelihoods`."""
        found = self._engine.likelihoods([Request(_side(prompt), _side(rest)) for prompt, rest in pairs])
        return list(zip(found.bits.tolist(), found.greedy.tolist(), strict=True))

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]) -> list[str]:
        """As `Answerer.generate`."""
        found = self._engine.generate([tuple(one) for one in prompts], Sampling(**sampling))
        return [one.text for one in found]


class Channel:
    """The child's end; as a `Answerer` it asks the parent."""

    def __init__(self, folder: Path, answers: IO[str], lines: IO[str]) -> None:
        self._folder, self._answers, self._lines, self._asked = folder, answers, lines, 0

    @classmethod
    def standard(cls, folder: Path) -> Channel:
        """Over standard input and output; what anybody prints from here on goes to standard error."""
        lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        return cls(folder, sys.stdin, lines)

    def emit(self, **event: Any) -> None:
        """Send an event."""
        self._lines.write(json.dumps(event) + "\n")
        self._lines.flush()

    def ask(self, kind: str, **question: Any) -> Any:
        """Send a question; returns the answer.

        Raises:
            EOFError: the parent is gone.
        """
        self._asked += 1
        path = self._folder / f"question-{self._asked}.json"
        path.write_text(json.dumps(question))
        self.emit(ask=kind, file=path.name)
        line = self._answers.readline()
        if not line:
            raise EOFError("the process that asked for tasks is gone")
        answer = join(self._folder, json.loads(line)["file"], "an answer")
        content = json.loads(answer.read_text())
        answer.unlink()
        return content

    def likelihoods(self, pairs: Sequence[tuple[Text, Text]]) -> list[tuple[float, bool]]:
        """As `Answerer.likelihoods`."""
        return [(bits, greedy) for bits, greedy in self.ask("likelihoods", pairs=pairs)]

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Mapping[str, Any]) -> list[str]:
        """As `Answerer.generate`."""
        found: list[str] = self.ask("generate", prompts=prompts, sampling=dict(sampling))
        return found


def question(folder: Path, event: Mapping[str, Any]) -> dict[str, Any]:
    """The parent's end: the content of a question."""
    path = join(folder, event["file"], "a question of the task process")
    found: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    return found


def answer(folder: Path, event: Mapping[str, Any], content: Any) -> str:
    """The parent's end: write an answer; returns the line that announces it."""
    name = f"answer-{event['file']}"
    join(folder, name, "a question of the task process").write_text(json.dumps(content))
    return json.dumps({"file": name}) + "\n"


def _side(value: Text) -> str | tuple[int, ...]:
    return value if isinstance(value, str) else tuple(value)


#: A row per document, filter and metric. `hash` is of the document as lm-evaluation-harness hashes it, `bits` the
#: -log2 p of the right answer, `bytes` its UTF-8 length. A ratio of sums has numerator and denominator in `score` and
#: `weight`; a metric that only a whole set has (F1, BLEU) no score. A damaged item has a `reason`.
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

#: Metrics that are means or ratios of sums; intervals of others come from values over bootstrap samples.
LINEAR = ("mean", "perplexity", "bits_per_byte", "weighted_perplexity")

#: Nothing is known of the spread: the metric has no value for some samples.
WITHOUT_INTERVAL = "without_interval"


def estimates(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Every metric of a task: its value as lm-evaluation-harness aggregates it, with our interval.

    Args:
        rows: of `ITEMS`.
        facts: of the task, as `harness.run` gives them.
        seed: of the bootstrap.
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
    """Of a mean or a ratio of sums; damaged items may have been right or wrong."""
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
    """The estimate of a falling function of a rate of log-likelihood, which is never above 0."""
    low, high = through(min(found.high, 0.0)), through(found.low)
    return found.model_copy(update={"value": through(found.value), "low": low, "high": high})
