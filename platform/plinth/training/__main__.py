"""One rank of a run: `python -m plinth.training CONFIG --attempt N [--audit]`, started by the supervisor.

Exit status: 0 means done, 75 means stopped by a signal after a commit, 77 means that another rank has exited. An
error that a retry would not fix exits with the status of its PlinthError. Any other status is a crash.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys

from plinth import private
from plinth.errors import PlinthError
from plinth.training import config as configuration
from plinth.training.supervise import rank_watch
from plinth.training.supervise.rank_watch import EXIT_PARTNER_LOST, EXIT_PREEMPTED
from plinth.training.telemetry.timeline import RankFailure, Timeline


def main() -> int:
    """Parse the arguments, join the ranks, train or audit, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m plinth.training", description=__doc__)
    parser.add_argument("config", help="runs/<run_id>/config.json")
    parser.add_argument("--attempt", type=int, default=0, help="number of the attestation of this start")
    parser.add_argument("--audit", action="store_true", help="replay from an earlier checkpoint and compare results")
    parser.add_argument("--standby", action="store_true", help="fork ranks for a supervisor on standard input")
    parser.add_argument("--start", type=int, help="with --audit: the step to replay from")
    parser.add_argument("--other-code", action="store_true", help="with --audit: this code has not trained the run")
    arguments = parser.parse_args()
    if arguments.standby:
        from plinth.training.recovery import standby

        arguments = parser.parse_args(standby.wait())
    rank_watch.die_with_supervisor()
    private.for_torch()
    config = configuration.load(arguments.config)
    rank = int(os.environ["RANK"])
    rank_watch.install(config.directory, rank)
    try:
        return _run(config, arguments)
    except PlinthError as error:
        print(f"rank {rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(PlinthError):  # the disk may be what failed
            failure = RankFailure.of(error).model_dump()
            Timeline(config.directory.events).append("rank_failed", rank=rank, attempt=arguments.attempt, **failure)
        return error.exit_code
    except RuntimeError as error:
        if "gloo/transport" not in str(error):  # gloo's error when a peer has closed the connection
            raise
        print(f"rank {rank}: another rank has exited, so this rank cannot continue", file=sys.stderr, flush=True)
        return EXIT_PARTNER_LOST


def _run(config: configuration.RunConfig, given: argparse.Namespace) -> int:
    if config.trainer is not None:  # Plinth's ranks of its run replay only, with torch alone
        from plinth.training.forensics.sampled import replay as replay_sampled

        replay_sampled(config)
        return 0
    gc.disable()  # imported modules stay
    from plinth.training.engine import engine
    from plinth.training.recovery.agent import recovery_agent

    rank = engine.prepare(config)
    agent = recovery_agent(rank)
    if agent is None:
        engine.connect(config, rank)
    gc.freeze()  # DeepSpeed collects garbage often while it starts, and would scan all imported modules
    gc.enable()
    if given.audit:
        from plinth.training.forensics.audit import replay

        replay(config, rank, given.start, other_code=given.other_code)
        finished = True
    elif agent is not None:
        from plinth.training.recovery import survival

        finished = survival.train(config, rank, agent)
    else:
        from plinth.training.loop import train

        finished = train(config, rank, given.attempt)
    engine.leave()
    if agent is not None:
        agent.done()
    return 0 if finished else EXIT_PREEMPTED


if __name__ == "__main__":
    status = main()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # All files are written. Skip the normal interpreter exit: it stops background threads, and a thread in C++ code
    # would then abort the process, so a rank that has finished its work would count as crashed.
    os._exit(status)
