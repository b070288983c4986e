"""`ModelEngine`: a checkpoint in a child process, so that the caller never imports torch and no crash takes it along.

    with ModelEngine.of(ctx, checkpoint) as engine:
        scores = engine.documents(texts)
        answers = engine.likelihoods([Request("The capital of France is", " Paris")])

The child is started with the `with`, or is the idle one of an engine before (`child.SPARE`); it loads the model while
the caller prepares. What is asked goes through files in the workspace's `tmp`; lines over pipes say what to do, how far
it is, and what went wrong. Calls depend on nothing that was asked before: one that an idle child died of, by what
others had left there, is asked once more of a new one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from plinth import errors
from plinth.compute.context import Context
from plinth.compute.threads import cores
from plinth.errors import CheckpointError, PlinthError, TrainingError
from plinth.evaluation.engine import exchange
from plinth.evaluation.engine.child import SPARE, ModelChild, ModelKey
from plinth.evaluation.engine.records import Generated, Likelihoods, Prompt, Request, Sampling, Scores
from plinth.model.hugging_face import TOKENIZER, required_files
from plinth.records import Manifest, Part
from plinth.storage.state import checkout

Answer = TypeVar("Answer")


class ModelEngine:
    """A context manager; calls are answered one after the other.

    Args:
        ctx: workspace, and where progress is shown.
        name: the model, in errors.
        files: parts to check out, or a folder.
        tokenizer: of a folder that has none, as a run's checkpoints.
        digests: SHA-256 of a folder's files by name, where they are known; of parts they are.
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
        #: A folder may change between two engines; parts are their content.
        self._key = None if blobs is None else ModelKey(ctx.workspace.tmp, blobs, self._workers)

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
        """What the child says of the model: `device`, `sequence_tokens`. Waits until it is loaded."""
        while self._child.ready is None:
            try:
                self._next()
            except EOFError:
                raise self._gone() from None
        return self._child.ready

    def documents(self, texts: Sequence[str], *, per_token: bool = False) -> Scores:
        """Tokens and bits of whole documents, in windows of the training length (`evaluation.windows`).

        Raises:
            TrainingError: the model could not be evaluated, with the end of its log.
            CheckpointError: it could not be loaded.
        """
        options = {"per_token": per_token, **self._options}
        found = self._call("documents", exchange.write_texts, exchange.read_scores, texts, **options)
        self._require(len(found.tokens), len(texts))
        return found

    def likelihoods(self, requests: Sequence[Request]) -> Likelihoods:
        """Bits of continuations after their prompts.

        Raises:
            TrainingError, CheckpointError: as `documents`.
        """
        write, read = exchange.write_requests, exchange.read_likelihoods
        found = self._call("likelihoods", write, read, requests, **self._options)
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
        found = self._call("generate", exchange.write_prompts, exchange.read_generated, prompts, **options)
        self._require(len(found), len(prompts))
        return found

    def serving(self) -> dict[str, Any]:
        """Speed and memory of the model on this machine (`engine.speed`).

        Raises:
            TrainingError, CheckpointError: as `documents`.
        """

        def read(path: Path) -> dict[str, Any]:
            found: dict[str, Any] = json.loads(path.read_text())
            return found

        return self._call("serving", exchange.write_texts, read, [])

    def _start(self) -> ModelChild:
        return ModelChild(self.ctx.workspace.tmp, self._model, self._workers, self._digests)

    def _model(self, folder: Path) -> Path:
        """A folder with weights, configuration and tokenizer."""
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
        """Ask, relay progress, and read the answer."""
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
        self._follow()
        found = read(answer)
        for path in (question, answer):
            path.unlink()
        return found

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
            PlinthError: what went wrong there.
            EOFError: it is gone.
        """
        content = self._child.receive()
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
        return TrainingError(
            f"{self.name} could not be evaluated",
            found=self._child.ended(),
            expected="an answer to every call",
            remedy="correct the cause above and run the same command again",
        )

    def _require(self, found: int, asked: int) -> None:
        if found != asked:
            raise TrainingError(f"{self.name} answered in part", found=f"{found} answers", expected=f"{asked}")


def _needed(checkpoint: Manifest) -> tuple[Part, ...]:
    """The files of the model; of one in several files, the index and all of them."""
    found = {part.name: part for part in checkpoint.parts}
    required = required_files(found)
    lacking = [name for name in required if name not in found]
    if lacking:
        raise CheckpointError(
            f"checkpoint {checkpoint.digest[:12]} cannot be evaluated",
            found=f"no {', '.join(lacking)} among {sorted(found)}",
            expected=", ".join(required),
            remedy="make the checkpoint again: `plinth run --select checkpoint`",
        )
    return tuple(found[name] for name in required)
