"""Rate limit of submissions: a token bucket and a pause after refusals, for each launcher of a workspace.

The limit protects a shared scheduler from submission loops, sensors and runs that fail at once. All processes of the
workspace share the state, which is a file changed under a lock. Times are wall-clock times, because they must be
comparable between processes. A clock that was set back removes no tokens; a clock that was set forward adds at most a
burst.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from plinth.errors import LaunchError
from plinth.launch.base import Handle
from plinth.launch.parameters import SubmissionRate
from plinth.records import Frozen
from plinth.storage.atomic import locked, write_bytes

#: Folder of a workspace with one file per launcher.
FOLDER = "launch"
#: Maximum pause after refusals.
LONGEST_PAUSE_S = 900.0


class RateState(Frozen):
    """State of the rate limit: available submissions and when they were counted; consecutive refusals and the time of
    the last refusal."""

    tokens: float
    at: float
    refusals: int = 0
    refused_at: float = 0.0


def taken(state: RateState, rate: SubmissionRate, now: float) -> tuple[RateState, float]:
    """Take a token; return the new state and 0.

    If there is no token, return the state with its tokens unchanged, and the seconds to wait.
    """
    elapsed = max(0.0, now - state.at)
    tokens = min(float(rate.burst), state.tokens + elapsed * rate.per_hour / 3600.0)
    filled = state.model_copy(update={"tokens": tokens, "at": now})
    since = now - state.refused_at
    pause = _pause(state, rate)
    if 0.0 <= since < pause:
        return filled, pause - since
    # rounding of many small refills may miss a whole token
    if tokens >= 1.0 - 1e-9:
        return filled.model_copy(update={"tokens": max(0.0, tokens - 1.0)}), 0.0
    return filled, (1.0 - tokens) * 3600.0 / rate.per_hour


def answered(state: RateState, now: float, *, refused: bool) -> RateState:
    """Return the state after the scheduler's answer: a refusal lengthens the pause, a submission ends it."""
    refusals = state.refusals + 1 if refused else 0
    return state.model_copy(update={"refusals": refusals, "refused_at": now if refused else 0.0})


def submit_within(
    workspace: Path,
    kind: str,
    rate: SubmissionRate,
    submit: Callable[[], Handle],
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], object] = time.sleep,
) -> Handle:
    """Submit as soon as the launcher's rate limit permits.

    Raises:
        LaunchError: the wait would exceed `rate.wait_s`, or the submission fails.
    """
    path, waited = workspace / FOLDER / f"{kind}.json", 0.0
    while (wait := _step(path, rate, lambda state: taken(state, rate, clock()), clock)) > 0.0:
        if waited + wait > rate.wait_s:
            raise LaunchError(
                f"submissions to {kind} exceed the rate limit",
                found=f"next submission possible in {wait:,.0f} s, after waiting {waited:,.0f} s",
                expected=f"{rate.per_hour:g} per hour, {rate.burst} at once, and a pause after each refusal",
                remedy="run the command again later; training.launch.rate of the recipe sets the limit",
            )
        sleep(wait)
        waited += wait
    try:
        handle = submit()
    except LaunchError:
        _step(path, rate, lambda state: (answered(state, clock(), refused=True), 0.0), clock)
        raise
    _step(path, rate, lambda state: (answered(state, clock(), refused=False), 0.0), clock)
    return handle


def _pause(state: RateState, rate: SubmissionRate) -> float:
    if state.refusals == 0:
        return 0.0
    return float(min(LONGEST_PAUSE_S, rate.backoff_s * 2.0 ** min(state.refusals - 1, 32)))


def _step(
    path: Path, rate: SubmissionRate, change: Callable[[RateState], tuple[RateState, float]], clock: Callable[[], float]
) -> float:
    """Update the state file under its lock, resetting it if damaged. Return the seconds to wait."""
    with locked(path.with_suffix(".lock")):
        try:
            state = RateState.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValueError):
            state = RateState(tokens=rate.burst, at=clock())
        state, wait = change(state)
        write_bytes(path, state.model_dump_json().encode())
    return wait
