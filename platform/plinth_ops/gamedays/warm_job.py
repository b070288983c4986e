"""Jobs forked from a process that has loaded torch, which start in one second instead of eight.

    job = WarmJob(config)          start the job of node 0, or of another node
    job.wait() -> exit status      wait as a launcher does
    job.send_signal(SIGTERM)       signal the job as a scheduler does

Supervisor, ranks and writers run the same code as in any job, starting at `main`; only the start of the interpreter is
skipped. The environment of a process defines its faults (`faults`), which are installed before `main`.

Does not belong here: the faults; the expected behavior of the job.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from plinth.errors import PlinthError, TrainingError
from plinth.processes import free_port
from plinth.training import config as configuration
from plinth.training.config import RunConfig
from plinth.training.recovery.standby import ForkedProcess
from plinth_ops.gamedays import faults

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["plinth_ops.gamedays.loaded"])


class WarmJob:
    """Job of a run. The constructor starts the job.

    Args:
        environment: variables of this job, in addition to the variables of this process.
    """

    def __init__(self, config: RunConfig, **environment: str) -> None:
        self.config, path = config, configuration.write(config)
        given = {**os.environ, **environment, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        arguments = str(path), str(config.directory.log), given
        self.process: BaseProcess = _SERVER.Process(target=_supervise, args=arguments, daemon=True)
        self.process.start()

    def wait(self) -> int:
        """Wait for the job; return its exit status, which is negative if a signal ended the job."""
        self.process.join()
        status = self.process.exitcode
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal to the supervisor if it is alive."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    @property
    def pid(self) -> int:
        """Process ID of the supervisor, which leads its own process group."""
        assert self.process.pid is not None
        return self.process.pid

    def require_finished(self) -> None:
        """Wait for the job, and check that the run reached its last step.

        Raises:
            TrainingError: the job failed; the error contains the end of the job's log.
        """
        status = self.wait()
        if status != 0:
            log = self.config.directory.log
            said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
            raise TrainingError(f"the rehearsal of {self.config.run_id} failed with status {status}", found=said)


def run(config: RunConfig, **environment: str) -> int:
    """Run one job of a run to its end; return the job's exit status."""
    return WarmJob(config, **environment).wait()


def call(function: Callable[..., Any], config: RunConfig, *arguments: Any) -> Any:
    """Call a function in a forked process, as the only rank of a run; return its result, which is passed as JSON.

    Raises:
        TrainingError: the function failed.
    """
    place = config.directory.root / "called"
    process = _SERVER.Process(target=_called, args=(function, config, arguments, str(place)), daemon=True)
    process.start()
    process.join()
    if process.exitcode != 0:
        raise TrainingError(f"{function.__name__} failed in a rehearsal", found=f"status {process.exitcode}")
    return json.loads(place.read_bytes())


def _called(function: Callable[..., Any], config: RunConfig, arguments: Sequence[Any], place: str) -> None:
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({**alone, "MASTER_PORT": f"{free_port()}"})
    Path(place).write_text(json.dumps(function(config, *arguments)))


def _fork_rank(command: list[str], environment: dict[str, str], locks: tuple[int, ...]) -> ForkedProcess:
    """Run `python -m plinth.training` in a fork of this supervisor."""
    child = os.fork()
    if child:
        return ForkedProcess(child)
    status = 1
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = command[command.index("-m") + 1 :]
        faults.arm(int(environment["RANK"]))
        import torch

        torch.set_num_threads(1)
        from plinth.training.__main__ import main

        status = main()
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)


def _supervise(place: str, log: str, environment: dict[str, str]) -> None:
    """Run `python -m plinth.training.supervise.supervisor` in a fork of the process that has loaded torch."""
    from plinth.training.supervise import nodes, supervisor

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    nodes.start_ranks_by(_fork_rank)
    faults.arm(None)
    sys.argv = ["supervisor", place]
    try:
        status = supervisor.main()
    except PlinthError as error:
        print(error, file=sys.stderr)
        status = error.exit_code
    sys.stdout.flush()
    os._exit(status)
