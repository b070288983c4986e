"""`ModelEngine`: a checkpoint in a child process. The caller never imports torch and survives crashes of the child.

    with ModelEngine.of(ctx, checkpoint) as engine:
        scores = engine.documents(texts)
        answers = engine.likelihoods([Request("The capital of France is", " Paris")])

The `with` statement starts the child, or takes over the idle child of an earlier engine (`SPARE`). The child loads the
model while the caller prepares. Requests and answers are files in the workspace's `tmp`; commands, progress and errors
are lines over pipes. Calls are independent of each other: if a reused idle child dies, the call is repeated once in a
new child.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple, TypeVar

from plinth import errors, processes
from plinth.compute.context import Context
from plinth.compute.engine import cores
from plinth.errors import CheckpointError, PlinthError, TrainingError
from plinth.evaluation.engine import records
from plinth.evaluation.engine.records import Generated, Likelihoods, Prompt, Request, Sampling, Scores
from plinth.model.hugging_face import TOKENIZER, required_files
from plinth.records import Manifest, Part
from plinth.storage.atomic import named_failures
from plinth.storage.state import checkout

Answer = TypeVar("Answer")


class ModelEngine:
    """Client of a model in a child process, as a context manager. Calls run one after the other.

    Args:
        ctx: workspace and progress display.
        name: name of the model in error messages.
        files: parts of the model, or its folder.
        tokenizer: tokenizer for a folder without one, such as a run's checkpoint.
        digests: SHA-256 of a folder's files by name, if known; not needed for parts, which have digests.
        label: label of the progress display.
        workers: threads of the child, by default one per core; results do not depend on the number of threads.
        batch_tokens: tokens per batch; by default the child process chooses the number.
    """

    def __init__(
        self,
        ctx: Context,
        name: str,
        files: Sequence[Part] | Path,
        *,
        tokenizer: Path | None = None,
        digests: Mapping[str, str] | None = None,
        label: str = "evaluation",
        workers: int | None = None,
        batch_tokens: int | None = None,
    ) -> None:
        self.ctx, self.name, self.label = ctx, name, label
        self._files, self._tokenizer, self._workers = files, tokenizer, workers or cores()
        self._options = {"batch_tokens": batch_tokens} if batch_tokens else {}
        self._digests = digests if isinstance(files, Path) else {part.name: part.blob.sha256 for part in files}
        blobs = None if isinstance(files, Path) else tuple(f"{part.name} {part.blob}" for part in files)
        #: Key under which the child can be reused; None for a folder, whose files may change between two engines.
        self._key = None if blobs is None else ModelKey(ctx.workspace.tmp, blobs, self._workers)

    @classmethod
    def of(cls, ctx: Context, checkpoint: Manifest, **options: Any) -> ModelEngine:
        """Return the engine of a checkpoint.

        Raises:
            CheckpointError: the checkpoint lacks a required file.
        """
        return cls(ctx, f"checkpoint {checkpoint.digest[:12]}", _needed(checkpoint), **options)

    @classmethod
    def of_folder(cls, ctx: Context, folder: Path, **options: Any) -> ModelEngine:
        """Return the engine for a model folder, in Plinth's or Hugging Face's layout."""
        return cls(ctx, str(folder), Path(folder).absolute(), **options)  # its process has another working directory

    def __enter__(self) -> ModelEngine:
        spare = SPARE.take(self._key)
        self._inherited = spare is not None
        self._child = spare or self._start()
        return self

    def __exit__(self, *error: object) -> None:
        SPARE.keep(self._key, self._child)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the model, reported by the child process: `device`, `sequence_tokens`. Waits until the model is
        loaded."""
        while self._child.ready is None:
            try:
                self._next()
            except EOFError:
                raise self._gone() from None
        return self._child.ready

    def documents(self, texts: Sequence[str], *, per_token: bool = False) -> Scores:
        """Return tokens and bits of whole documents, in windows of the training length (`engine.batches.windows`).

        Raises:
            TrainingError: the model could not be evaluated; the error contains the end of the child's log.
            CheckpointError: the model could not be loaded.
        """
        options = {"per_token": per_token, **self._options}
        found = self._call("documents", records.write_texts, records.read_scores, texts, **options)
        self._require(len(found.tokens), len(texts))
        return found

    def likelihoods(self, requests: Sequence[Request]) -> Likelihoods:
        """Return the bits (-log2 p) of continuations after their prompts.

        Raises:
            TrainingError, CheckpointError: raised under the same conditions as by `documents`.
        """
        write, read = records.write_requests, records.read_likelihoods
        found = self._call("likelihoods", write, read, requests, **self._options)
        self._require(len(found.tokens), len(requests))
        return found

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, *, spread: bool = False) -> list[Generated]:
        """Generate text after prompts.

        Args:
            prompts: text, or tokens that are used unchanged.
            sampling: sampling parameters.
            spread: use all cores for a single batch; this is faster, but rounding may differ.

        Raises:
            TrainingError, CheckpointError: raised under the same conditions as by `documents`.
        """
        options = {"sampling": sampling.model_dump(mode="json"), "spread": spread}
        found = self._call("generate", records.write_prompts, records.read_generated, prompts, **options)
        self._require(len(found), len(prompts))
        return found

    def serving(self) -> dict[str, Any]:
        """Return speed and memory of the model on this machine.

        Raises:
            TrainingError, CheckpointError: raised under the same conditions as by `documents`.
        """

        def read(path: Path) -> dict[str, Any]:
            found: dict[str, Any] = json.loads(path.read_text())
            return found

        return self._call("serving", records.write_texts, read, [])

    def _start(self) -> ModelChild:
        return ModelChild(self.ctx.workspace.tmp, self._model, self._workers, self._digests)

    def _model(self, folder: Path) -> Path:
        """Return a folder that contains weights, configuration and tokenizer of the model."""
        made = folder / "model"
        if not isinstance(self._files, Path):
            checkout(self.ctx.store, self._files, made)
            return made
        if self._tokenizer is None:
            return self._files
        made.mkdir()
        for path in (*self._files.iterdir(), self._tokenizer):
            (made / (TOKENIZER if path == self._tokenizer else path.name)).symlink_to(path.absolute())
        return made

    def _call(
        self, kind: str, write: Callable[[Path, Any], None], read: Callable[[Path], Answer], asked: Any, **options: Any
    ) -> Answer:
        """Send a request, relay progress, and read the answer."""
        try:
            return self._asked(kind, write, read, asked, options)
        except EOFError:
            if not self._inherited:
                raise self._gone() from None
        self._child.end()
        self._child, self._inherited = self._start(), False
        return self._call(kind, write, read, asked, **options)

    def _asked(
        self,
        kind: str,
        write: Callable[[Path, Any], None],
        read: Callable[[Path], Answer],
        asked: Any,
        options: dict[str, Any],
    ) -> Answer:
        child = self._child
        number = next(child.calls)
        question, answer = child.folder / f"{number}.asked", child.folder / f"{number}.answer"
        write(question, asked)
        self.facts  # noqa: B018 - waits for the model
        child.send({"call": kind, "asked": str(question), "answer": str(answer), **options})
        self._follow({"generate": "prompts", "documents": "tokens", "likelihoods": "tokens"}.get(kind, ""))
        found = read(answer)
        for path in (question, answer):
            path.unlink()
        return found

    def _follow(self, unit: str) -> None:
        """Show the child's progress, in tokens or prompts, until the child has answered."""
        lines = iter(self._next, None)
        first = next(lines)
        if "answered" in first:
            return
        with self.ctx.progress.meter(self.label, first["total"], unit) as meter:
            done = first["done"]
            meter.advance(done)
            for line in lines:
                if "answered" in line:
                    return
                meter.advance(line["done"] - done)
                done = line["done"]

    def _next(self) -> dict[str, Any]:
        """Read the child's next line.

        Raises:
            PlinthError: the child reported an error.
            EOFError: the child has exited.
        """
        content = self._child.receive()
        if "error" in content:
            raise self._named(**content["error"])
        return content

    def _named(self, kind: str, what: str, found: str | None, expected: str | None, remedy: str | None) -> PlinthError:
        """Return the error that the child reported, in its original class."""
        cause = PlinthError(what, found=found, expected=expected)
        known = getattr(errors, kind, TrainingError)
        made: PlinthError = known(f"{self.name} could not be evaluated", found=cause, remedy=remedy)
        return made

    def _gone(self) -> TrainingError:
        return TrainingError(
            f"{self.name} could not be evaluated",
            found=self._child.ended(),
            expected="an answer to every call",
            remedy="correct the cause above and run the same command again",
        )

    def _require(self, found: int, asked: int) -> None:
        if found != asked:
            raise TrainingError(f"{self.name} returned too few answers", found=f"{found} answers", expected=f"{asked}")


def _needed(checkpoint: Manifest) -> tuple[Part, ...]:
    """Return the files of the model, with the weight index file if the weights are split into several files."""
    found = {part.name: part for part in checkpoint.parts}
    required = required_files(found)
    lacking = [name for name in required if name not in found]
    if lacking:
        raise CheckpointError(
            f"checkpoint {checkpoint.digest[:12]} cannot be evaluated",
            found=f"no {', '.join(lacking)} among {sorted(found)}",
            expected=", ".join(required),
            remedy="recreate the checkpoint: `plinth run --select checkpoint`",
        )
    return tuple(found[name] for name in required)


# The child process as the engine sees it: protocol lines over its pipes, and files in its folder. No torch.
#
# An idle process is kept for the next engine of the same checkpoint, so that the stages of an evaluation import torch
# and load the model once. At most one is kept; it ends before another model is loaded, with the run (`SPARE.end`), and
# with this process, because its input closes.

TAIL_LINES = 25


class ModelKey(NamedTuple):
    """Key of interchangeable child processes: location of the files, content of the model, and number of threads."""

    tmp: Path
    blobs: tuple[str, ...]
    workers: int


class ModelChild:
    """A child process of the engine, and the folder with its files.

    Args:
        tmp: parent of the new folder.
        model: function that copies the model into the folder and returns its path.
        workers: number of threads.
        digests: SHA-256 of the model's files by name, if known.
    """

    def __init__(
        self, tmp: Path, model: Callable[[Path], Path], workers: int, digests: Mapping[str, str] | None = None
    ) -> None:
        with named_failures(tmp):
            tmp.mkdir(parents=True, exist_ok=True)
        self.folder = Path(mkdtemp(prefix="evaluation-", dir=tmp))
        self._log = self.folder / "log"
        try:
            self.process = _started(model(self.folder), workers, self._log)
        except BaseException:
            shutil.rmtree(self.folder)
            raise
        with suppress(OSError):  # the process has exited; the next request reports it
            self._write(digests)
        self.ready: dict[str, Any] | None = None  # facts about the model, once loaded
        self._owes = True  # True while a line is due: the first, or an answer
        self.calls = count()

    @property
    def idle(self) -> bool:
        """True if the process is alive and has answered all requests."""
        return not self._owes and self.process.poll() is None

    def send(self, content: dict[str, Any]) -> None:
        """Send a request.

        Raises:
            EOFError: the process is gone.
        """
        self._owes = True
        try:
            self._write(content)
        except OSError:
            raise EOFError from None

    def _write(self, content: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(content) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        """Return the next line from the process.

        Raises:
            EOFError: the process is gone.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError
        content: dict[str, Any] = json.loads(line)
        if "ready" in content:
            self.ready = content["ready"]
        if self.ready is not None and content.keys() & {"ready", "answered", "error"}:
            self._owes = False
        return content

    def ended(self) -> str:
        """Describe how the process ended, and quote the end of its log."""
        code = self.process.wait()
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"the child process ended with {ended}\n{tail}".rstrip()

    def end(self) -> None:
        """Kill the process. It has no state to save."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class SpareChild:
    """Holder of the idle child process, if there is one. After a fork, the child process belongs to the parent
    process."""

    def __init__(self) -> None:
        self._kept: tuple[int, ModelKey, ModelChild] | None = None
        atexit.register(self.end)

    def take(self, key: ModelKey | None) -> ModelChild | None:
        """Return the idle process if it has loaded this model; otherwise end it to free its memory."""
        kept, self._kept = self._kept, None
        if kept is None or kept[0] != os.getpid():
            return None
        if kept[1] == key and kept[2].idle:
            return kept[2]
        kept[2].end()
        return None

    def keep(self, key: ModelKey | None, child: ModelChild) -> None:
        """Keep a process for the next engine with this key, replacing the previous one."""
        if key is None or not child.idle:
            child.end()
            return
        self.end()
        self._kept = (os.getpid(), key, child)

    def end(self) -> None:
        """End the idle process."""
        self.take(None)


SPARE = SpareChild()


def _started(model: Path, workers: int, log: Path) -> subprocess.Popen[str]:
    command = processes.python("plinth.evaluation.engine", str(model), str(workers))
    with log.open("wb") as output:
        process: subprocess.Popen[str] = processes.start(
            command,
            own=processes.heap(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    return process
