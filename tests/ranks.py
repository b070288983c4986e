"""Ranks that are forked from a process in which torch and DeepSpeed are loaded already: a second instead of eight.

A test names a module-level function and gets what it returned on every rank:

    losses = run_ranks(2, train_a_little, config)

Does not belong here: whole jobs with supervisor and signals; they need processes of their own.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from plinth.processes import free_port

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["tests.loaded_ranks"])


class RankFailed(AssertionError):
    """A rank raised; its traceback is the message, the exception itself is `error`."""

    def __init__(self, rank: int, error: BaseException | None, text: str) -> None:
        super().__init__(f"rank {rank}:\n{text}")
        self.rank, self.error = rank, error


def run_ranks(world: int, function: Callable[..., Any], *arguments: Any, timeout_s: float = 600.0) -> list[Any]:
    """Call `function(*arguments)` on `world` processes with the environment of ranks; their results in rank order.

    Raises:
        RankFailed: the first rank that raised, ended without an answer, or took too long.
    """
    port, processes, ends = free_port(), [], []
    for rank in range(world):
        ours, theirs = _SERVER.Pipe(duplex=False)
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        # All of it: the server was started when this process had another environment.
        environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
        process = _SERVER.Process(target=_serve, args=(theirs, environment, function, arguments), daemon=True)
        process.start()
        theirs.close()
        processes.append(process)
        ends.append(ours)
    try:
        return _collect(ends, timeout_s)
    finally:
        for process in processes:
            process.join(2.0)
            process.kill()


def _collect(ends: list[Connection], timeout_s: float) -> list[Any]:
    answers: dict[int, Any] = {}
    while len(answers) < len(ends):
        ready = wait([end for rank, end in enumerate(ends) if rank not in answers], timeout_s)
        if not ready:
            raise RankFailed(min(set(range(len(ends))) - set(answers)), None, f"no answer within {timeout_s:g} s")
        for end in ready:
            rank = ends.index(end)  # type: ignore[arg-type]
            try:
                good, value, text = pickle.loads(end.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                raise RankFailed(rank, None, "ended without an answer") from None
            if not good:
                raise RankFailed(rank, value, text)
            answers[rank] = value
    return [answers[rank] for rank in range(len(ends))]


def _serve(end: Connection, environment: dict[str, str], function: Callable[..., Any], arguments: Any) -> None:
    os.environ.update(environment)
    try:
        answer = (True, function(*arguments), "")
    except BaseException as error:
        answer = (False, error, traceback.format_exc())
    try:
        data = pickle.dumps(answer)
    except Exception:
        data = pickle.dumps((answer[0], None, answer[2] or "the answer cannot be pickled"))
    end.send_bytes(data)
    end.close()
