"""Questions and answers between the process that runs lm-evaluation-harness and the one that has the model.

A line of JSON on a pipe says what happened, or names a file of JSON with a question; the parent answers in kind. What
libraries print goes to standard error, so that nothing but these lines is on the pipe.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from plinth.evaluation.engine.client import ModelEngine
from plinth.evaluation.engine.records import Request, Sampling
from plinth.storage.safe_path import join

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
