"""A run whose timeline a test writes has a job, too: a process that lives."""

from __future__ import annotations

import psutil

from plinth.launch.files import write_handle
from plinth.launch.local import handle_of
from plinth.training.config import RunConfig


def give_job(config: RunConfig, process: psutil.Process | None = None) -> None:
    """Name a process as the job of a run: that of the test, unless another one is given."""
    write_handle(config.directory.root, handle_of(process or psutil.Process()))
