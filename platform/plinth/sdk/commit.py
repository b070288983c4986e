"""Commit of a trainer's folder as a checkpoint, by all ranks together.

    trainer/        the folder as the trainer wrote it: safetensors, torch DCP, Megatron's files, anything
    model/          config.json and safetensors in Hugging Face's layout, if the trainer wrote or converted them
    state.json      step, identity, loss, digest of the parameters, and the trainer's statement
    config.json     the run's configuration;  attempts.json  every start of the ranks

The statement identifies the code that wrote the files: command, versions, commit of the script. The trainer's process
reports it and the commit record signs it, so it is as reliable as that machine. Does not belong here: order and format
of a commit (training.checkpoint).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from plinth.errors import CheckpointError, PlinthError
from plinth.model.division import file_tensors, state
from plinth.model.folder import SavedWeights, described_model, read_config
from plinth.model.hugging_face import CONFIG, INDEX, hf_config, hf_name, model_of
from plinth.storage.atomic import named_failures, write_bytes
from plinth.training import attempts
from plinth.training import config as configuration
from plinth.training.checkpoint import checkpoint, digest_tree, selection
from plinth.training.checkpoint.rank_part import digest_of_lines
from plinth.training.checkpoint.staging import line_of
from plinth.training.parameters import trainer
from plinth.training.telemetry.timeline import Pulse, RankFailure

if TYPE_CHECKING:
    from plinth.sdk.rank_run import Run

T = TypeVar("T")

MODEL = digest_tree.MODEL.rstrip("/")


def commit(run: Run, folder: Path, model: Path | None) -> int:
    """Commit the folder of the run's current step, and return the size of the checkpoint in bytes.

    Raises: the errors of `Run.commit`, on every rank.
    """
    staged = run.directory.staging / checkpoint.name(run.done)
    beat = Pulse(run.directory.events)
    together(run, lambda: _stage(run, folder, model))  # every rank has written its files when the first one begins
    names = digest_tree.listed(staged)[run.rank :: run.world]
    own = together(run, lambda: digest_tree.hash_files(staged, names, flush=True, beat=beat))
    files = [file for share in _gathered(run, own) for file in share]
    done = together(run, lambda: checkpoint.commit(run.directory, run.done, files) if run.leads else None)
    return done.bytes if done is not None else 0


def retire(run: Run) -> None:
    """Delete the checkpoints that neither the recipe's retention nor the replay of sampled steps needs."""
    always = {run.config.total_steps, *run.config.sampled_steps}
    removed = selection.retain(run.directory, run.config.checkpoints, always)
    if removed:
        run.events.append("retired", steps=removed, reason="retention")


def together(run: Run, work: Callable[[], T]) -> T:
    """Do work on every rank, and wait until all have finished. An error of one rank is raised on all."""
    error, made = None, None
    try:
        made = work()
    except PlinthError as raised:
        error = raised
    failures = _gathered(run, None if error is None else RankFailure.of(error))
    if error is not None:
        raise error
    for failure in failures:
        if failure is not None:
            raise failure.error()
    return made  # type: ignore[return-value]


def device_of_group() -> torch.device:
    """Return the device for collectives of the trainer's process group."""
    on_host = "gloo" in dist.get_backend() or not torch.cuda.is_available()
    return torch.device("cpu") if on_host else torch.device("cuda", torch.cuda.current_device())


def _gathered(run: Run, own: T) -> list[T]:
    """Return a value of every rank."""
    if run.world == 1:
        return [own]
    found: list[Any] = [None] * run.world
    dist.all_gather_object(found, own)
    return found


def _stage(run: Run, folder: Path, model: Path | None) -> None:
    """Move the trainer's files into an empty staging folder, and describe them. Other ranks do nothing.

    They enter this only after a barrier, because the trainer's ranks finish writing at different times.
    """
    _gathered(run, None)
    if not run.leads:
        return
    for one in (folder, *([] if model is None else [model])):
        _require_plain(one)
        _require_uncommitted(run, one)
    staged = checkpoint.stage(run.directory, run.done)
    apart = model is not None and not model.resolve().is_relative_to(folder.resolve())
    within = Path() if model is None or apart else model.resolve().relative_to(folder.resolve())
    with named_failures(staged):
        shutil.move(folder, staged / trainer.FOLDER)
        source = model if model is not None and apart else staged / trainer.FOLDER / within
        target = staged / MODEL
        if model is not None or (source / CONFIG).exists():
            target.mkdir()
            for path in _of_model(source):
                (shutil.move if apart else _link)(path, target / path.name)
        digest = _parameters_sha256(run, target) if target.exists() else ""
        if not digest and run.final:
            raise CheckpointError(
                "the last checkpoint has no model in Hugging Face's layout",
                found=", ".join(sorted(path.name for path in (staged / trainer.FOLDER).iterdir())[:8]),
                expected=f"{CONFIG} and safetensors in the committed folder, or in `model`",
                remedy="convert the model with the trainer's script and pass its folder: run.commit(…, model=FOLDER)",
            )
        write_bytes(staged / checkpoint.STATE, _json(_state(run, digest)))
        write_bytes(
            staged / "config.json", _json(run.config.model_dump(mode="json", exclude={"workspace", "identity"}))
        )


def _require_plain(folder: Path) -> None:
    """Check that a folder has files, and no links or devices, whose bytes could be elsewhere or change by another
    name."""
    entries = list(folder.rglob("*")) if folder.is_dir() and not folder.is_symlink() else []
    odd = [path for path in entries if not (path.is_dir() or _is_regular(path)) or path.is_symlink()]
    if odd or not any(path.is_file() for path in entries):
        raise CheckpointError(
            f"{folder} cannot be committed",
            found=f"{odd[0].relative_to(folder)} is a link or not a regular file" if odd else "no files",
            expected="a folder of regular files with one name each, written on all ranks",
        )


def _is_regular(path: Path) -> bool:
    """Return True for a file with a single name."""
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _require_uncommitted(run: Run, folder: Path) -> None:
    """Check that moving a folder leaves the run as it is: its checkpoints are never changed after their commit."""
    own, known = folder.resolve(), run.directory.checkpoints.resolve()
    if own.is_relative_to(known) or run.directory.root.resolve().is_relative_to(own):
        raise CheckpointError(
            f"{folder} cannot be committed",
            found="a committed checkpoint, or a folder around the run",
            expected="a new folder, for example in `run.scratch`; `run.checkpoint` is only for reading",
        )


def _of_model(folder: Path) -> Iterator[Path]:
    """Yield the files of a Hugging Face folder that are released: configuration, weights and their index."""
    yield from (path for path in sorted(folder.iterdir()) if path.name in (CONFIG, INDEX))
    yield from sorted(folder.glob("model*.safetensors"))


def _link(path: Path, target: Path) -> None:
    """Give a file a second name, or copy it if the file system has no links: the same bytes are on the disk once."""
    try:
        os.link(path, target)
    except OSError:
        shutil.copyfile(path, target)


def _parameters_sha256(run: Run, folder: Path) -> str:
    """Return the digest of the model's parameters, as of Plinth's own checkpoints, after checking that the folder has
    the recipe's model."""
    config = run.config
    found = described_model(written := read_config(folder), folder)
    planned = hf_config(config.model, config.vocab_size, config.sequence_tokens, "float32", config.end_of_text)
    ours, theirs = (model_of(one).model_dump(exclude={"init_std"}) for one in (planned, written))
    ours["vocab_size"], theirs["vocab_size"] = config.vocab_size, int(written["vocab_size"])
    if wrong := sorted(name for name in ours if ours[name] != theirs[name]):
        raise CheckpointError(
            "the trainer's model is not the recipe's model",
            found=", ".join(f"{name} {theirs[name]}" for name in wrong),
            expected=", ".join(f"{name} {ours[name]}" for name in wrong),
            remedy="build the model from `run.model`, or change training.model",
        )
    with SavedWeights(folder) as saved:
        saved.require(found)
        names = sorted(name for name, _ in file_tensors(state(found)))
        beat = Pulse(run.directory.events)
        return digest_of_lines(line_of(name, saved.tensor(hf_name(name)), beat) for name in names)


def _state(run: Run, parameters_sha256: str) -> dict[str, Any]:
    """Return the content of `state.json`."""
    config, step = run.config, run.done
    return {
        "identity": configuration.identity(config, step),
        "step": step,
        "tokens": config.tokens_through(step),
        "ranks": run.world,
        "layout": {"ranks": run.world},
        "precision": "",  # the trainer's
        "monitor": {"loss_ema": run.loss_ema, "guard": {"rollbacks": []}},
        "parameters_sha256": parameters_sha256,
        "trainer": statement(run),
    }


def statement(run: Run) -> dict[str, Any]:
    """Return what the trainer's process reports about its code, and what no replay has proved."""
    script = Path(sys.argv[0]).absolute()
    return {
        "command": list(run.config.trainer.command) if run.config.trainer else [],
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in sorted({"torch", "plinth", *run.packages})},
        "script_sha256": attempts.file_digest(script),
        "code": attempts.commit_of(script.parent, script.name),
        "resume": trainer.UNPROVED,
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"
