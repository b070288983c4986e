"""A request for a trace of chosen steps, in the run's directory: `profiles/0001.json`.

    plinth run profile ──▶ request ──▶ leading rank, looks once a second ──▶ with the numbers of a step ──▶ every rank
    recipe: telemetry.profile_steps ───────────────────────────────────────────────────────────────────▶ every rank

Needs no torch. Does not belong here: the trace (profiler).
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from plinth.errors import MissingError, TrainingError
from plinth.records import Frozen
from plinth.storage.atomic import write_bytes
from plinth.training.config import RunConfig
from plinth.training.directory import RunDirectory

_REQUEST = re.compile(r"(\d{4,})\.json")


class ProfileRequest(Frozen):
    """Steps to trace, on some ranks. Number 0 is that of the recipe."""

    number: int
    first: int
    last: int
    ranks: tuple[int, ...] = (0,)

    def trace(self, run: RunDirectory, rank: int) -> Path:
        """Where the trace of a rank lies."""
        return run.profiles / f"{self.number:04d}-steps-{self.first}-{self.last}-rank-{rank:04d}.json.gz"


def submit(config: RunConfig, done: int, first: int, last: int, ranks: tuple[int, ...] = (0,)) -> ProfileRequest:
    """Ask a run, whether its ranks are up or not, for a trace of steps that it has not taken yet.

    Args:
        done: the last step that it has taken (`amendments.reached`).

    Raises:
        MissingError: the run has no such steps or ranks, or has taken them.
    """
    run = config.directory
    _require(config, first, last, ranks)
    if first <= done:
        raise MissingError(
            f"steps {first} to {last} of run {config.run_id} cannot be traced any more",
            found=f"{done} steps that are taken, of {config.total_steps}",
            expected=f"steps from {done + 1} on",
            remedy="a trace is taken while a step is trained; `plinth run replay RUN STEP` scores a step's batch "
            "without training on it"
            + ("" if done < config.total_steps else "; set training.telemetry.profile_steps for the next run"),
        )
    number = latest(run)
    while True:  # another may ask at the same moment
        number += 1
        request = ProfileRequest(number=number, first=first, last=last, ranks=ranks)
        run.profiles.mkdir(exist_ok=True)
        try:
            os.close(os.open(run.profiles / f"{number:04d}.asked", os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            continue
        write_bytes(run.profiles / f"{number:04d}.json", request.model_dump_json().encode())
        return request


def latest(run: RunDirectory) -> int:
    """The number of the newest request, 0 where there is none."""
    try:
        names = os.listdir(run.profiles)
    except FileNotFoundError:
        return 0
    return max((int(found[1]) for name in names if (found := _REQUEST.fullmatch(name))), default=0)


def load(config: RunConfig, number: int) -> ProfileRequest | None:
    """A request by its number, or None where there is none.

    Raises:
        TrainingError: the file is no request.
    """
    if number == 0:
        steps = config.telemetry.profile_steps
        return None if steps is None else ProfileRequest(number=0, first=steps[0], last=steps[1])
    path = config.directory.profiles / f"{number:04d}.json"
    try:
        return ProfileRequest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise TrainingError(f"{path} is no request for a trace", found=error) from error


def _require(config: RunConfig, first: int, last: int, ranks: tuple[int, ...]) -> None:
    if not 1 <= first <= last <= config.total_steps:
        raise MissingError(
            f"run {config.run_id} has no steps {first} to {last}", expected=f"steps from 1 to {config.total_steps}"
        )
    unknown = [rank for rank in ranks if not 0 <= rank < config.ranks]
    if unknown:
        last_rank = config.ranks - 1
        raise MissingError(f"run {config.run_id} has no rank {unknown[0]}", expected=f"ranks from 0 to {last_rank}")
