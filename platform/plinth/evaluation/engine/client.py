"""`ModelEngine`: a checkpoint in a child process, so that the caller never imports torch and no crash takes it along.

    with ModelEngine.of(ctx, checkpoint) as engine:
        scores = engine.documents(texts)
        answers = engine.likelihoods([Request("The capital of France is", " Paris")])

The child is started with the `with`, loads the model while the caller prepares, and ends with it. What is asked goes
through files in the workspace's `tmp`; lines over pipes say what to do, how far it is, and what went wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import plinth
from plinth import errors
from plinth.compute.context import Context
from plinth.compute.threads import cores
from plinth.errors import CheckpointError, PlinthError, TrainingError
from plinth.evaluation.engine import exchange
from plinth.evaluation.engine.records import Generated, Likelihoods, Prompt, Request, Sampling, Scores
from plinth.model.hugging_face import CONFIG, INDEX, REQUIRED_FILES, TOKENIZER
from plinth.records import Manifest, Part
from plinth.storage.atomic import named_failures
from plinth.storage.checkout import checkout

TAIL_LINES = 25


class ModelEngine:
    """A context manager; calls are answered one after the other.

    Args:
        ctx: workspace, and where progress is shown.
        name: the model, in errors.
        files: parts to check out, or a folder.
        tokenizer: of a folder that has none, as a run's checkpoints.
        label: of progress.
        workers: threads of the child; by default the cores. They change no number.
        batch_tokens: tokens of a batch; by default the child's own.
    """

    def __init__(
        self,
        ctx: Context,
        name: str,
        files: Sequence[Part] | Path,
        *,
        tokenizer: Path | None = None,
        label: str = "evaluation",
        workers: int | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.ctx, self.name, self.label = ctx, name, label
        self._files, self._tokenizer, self._workers = files, tokenizer, workers or cores()
        self._options = {"batch_tokens": batch_tokens} if batch_tokens else {}
        self._ready: dict[str, Any] | None = None
        self._calls = count()

    @classmethod
    def of(cls, ctx: Context, checkpoint: Manifest, **options: Any) -> ModelEngine:
        """The engine of a checkpoint.

        Raises:
            CheckpointError: the checkpoint lacks a file that is needed.
        """
        return cls(ctx, f"checkpoint {checkpoint.digest[:12]}", _needed(checkpoint), **options)

    @classmethod
    def of_folder(cls, ctx: Context, folder: Path, **options: Any) -> ModelEngine:
        """The engine of a model folder, ours or Hugging Face's."""
        return cls(ctx, str(folder), Path(folder), **options)

    def __enter__(self) -> ModelEngine:
        with ExitStack() as stack:
            with named_failures(self.ctx.workspace.tmp):
                self.ctx.workspace.tmp.mkdir(parents=True, exist_ok=True)
            made = TemporaryDirectory(prefix="evaluation-", dir=self.ctx.workspace.tmp)
            self._folder = Path(stack.enter_context(made))
            self._log = self._folder / "log"
            self._child = _started(self._model(), self._workers, self._log)
            stack.callback(_end, self._child)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def facts(self) -> dict[str, Any]:
        """What the child says of the model: `device`, `sequence_tokens`. Waits until it is loaded."""
        if self._ready is None:
            self._ready = self._next()["ready"]
        return self._ready

    def documents(self, texts: Sequence[str], *, per_token: bool = False) -> Scores:
        """Tokens and bits of whole documents, in windows of the training length (`evaluation.windows`).

        Raises:
            TrainingError: the model could not be evaluated, with the end of its log.
            CheckpointError: it could not be loaded.
        """
        write = exchange.write_texts
        found = exchange.read_scores(self._call("documents", write, texts, per_token=per_token, **self._options))
        self._require(len(found.tokens), len(texts))
        return found

    def likelihoods(self, requests: Sequence[Request]) -> Likelihoods:
        """Bits of continuations after their prompts.

        Raises:
            TrainingError, CheckpointError: as `documents`.
        """
        found = exchange.read_likelihoods(self._call("likelihoods", exchange.write_requests, requests, **self._options))
        self._require(len(found.tokens), len(requests))
        return found

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, *, spread: bool = False) -> list[Generated]:
        """Text after prompts.

        Args:
            prompts: text, or tokens that are taken as they are.
            sampling: how tokens are chosen.
            spread: all cores work on one batch where there is only one, which is quicker and may round otherwise.

        Raises:
            TrainingError, CheckpointError: as `documents`.
        """
        options = {"sampling": sampling.model_dump(mode="json"), "spread": spread}
        found = exchange.read_generated(self._call("generate", exchange.write_prompts, prompts, **options))
        self._require(len(found), len(prompts))
        return found

    def serving(self) -> dict[str, Any]:
        """Speed and memory of the model on this machine (`engine.speed`).

        Raises:
            TrainingError, CheckpointError: as `documents`.
        """
        answer = self._call("serving", exchange.write_texts, [])
        found: dict[str, Any] = json.loads(answer.read_text())
        return found

    def _model(self) -> Path:
        """A folder with weights, configuration and tokenizer."""
        made = self._folder / "model"
        if not isinstance(self._files, Path):
            checkout(self.ctx.store, self._files, made)
            return made
        if self._tokenizer is None:
            return self._files
        made.mkdir()
        for path in (*self._files.iterdir(), self._tokenizer):
            (made / (TOKENIZER if path == self._tokenizer else path.name)).symlink_to(path.absolute())
        return made

    def _call(self, kind: str, write: Callable[[Path, Any], None], asked: Any, **options: Any) -> Path:
        """Ask, relay progress, and return the file with the answer."""
        number = next(self._calls)
        question, answer = self._folder / f"{number}.asked", self._folder / f"{number}.answer"
        write(question, asked)
        self.facts  # noqa: B018 - waits for the model
        call = {"call": kind, "asked": str(question), "answer": str(answer), **options}
        try:
            assert self._child.stdin is not None
            self._child.stdin.write(json.dumps(call) + "\n")
            self._child.stdin.flush()
        except OSError:
            raise self._gone() from None
        self._follow()
        return answer

    def _follow(self) -> None:
        """Progress of the child, in tokens or prompts, until it has answered."""
        lines = iter(self._next, None)
        first = next(lines)
        if "answered" in first:
            return
        with self.ctx.progress.meter(self.label, first["total"]) as meter:
            done = first["done"]
            meter.advance(done)
            for line in lines:
                if "answered" in line:
                    return
                meter.advance(line["done"] - done)
                done = line["done"]

    def _next(self) -> dict[str, Any]:
        """The child's next line.

        Raises:
            PlinthError: what went wrong there, or that it is gone.
        """
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise self._gone()
        content: dict[str, Any] = json.loads(line)
        if "error" in content:
            raise self._named(**content["error"])
        return content

    def _named(self, kind: str, what: str, found: str | None, expected: str | None, remedy: str | None) -> PlinthError:
        """The child's error, of its own class."""
        cause = PlinthError(what, found=found, expected=expected)
        known = getattr(errors, kind, TrainingError)
        made: PlinthError = known(f"{self.name} could not be evaluated", found=cause, remedy=remedy)
        return made

    def _gone(self) -> TrainingError:
        code = self._child.wait()
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return TrainingError(
            f"{self.name} could not be evaluated",
            found=f"the child process ended with {ended}\n{tail}".rstrip(),
            expected="an answer to every call",
            remedy="correct the cause above and run the same command again",
        )

    def _require(self, found: int, asked: int) -> None:
        if found != asked:
            raise TrainingError(f"{self.name} answered in part", found=f"{found} answers", expected=f"{asked}")


def _needed(checkpoint: Manifest) -> tuple[Part, ...]:
    """The files of the model; of one in several files, the index and all of them."""
    found = {part.name: part for part in checkpoint.parts}
    required: tuple[str, ...] = REQUIRED_FILES
    if INDEX in found:
        required = (INDEX, CONFIG, TOKENIZER, *sorted(name for name in found if name.endswith(".safetensors")))
    lacking = [name for name in required if name not in found]
    if lacking:
        raise CheckpointError(
            f"checkpoint {checkpoint.digest[:12]} cannot be evaluated",
            found=f"no {', '.join(lacking)} among {sorted(found)}",
            expected=", ".join(required),
            remedy="make the checkpoint again: `plinth run --select checkpoint`",
        )
    return tuple(found[name] for name in required)


def _started(model: Path, workers: int, log: Path) -> subprocess.Popen[str]:
    root = str(Path(plinth.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "plinth.evaluation.engine", str(model), str(workers)]
    environment = {**os.environ, "PYTHONPATH": path}
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, env=environment
        )


def _end(child: subprocess.Popen[str]) -> None:
    """It holds nothing that would be lost."""
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        with suppress(OSError):
            assert stream is not None
            stream.close()
