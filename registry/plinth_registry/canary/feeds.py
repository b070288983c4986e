"""Pairs from the metrics of the release owner: JSON lines, or two Prometheus queries. Pairs are unsigned.

A line is `{"time": …, "canary": 0.21, "champion": 0.2}`. The time is in ISO 8601 or Unix seconds; `key` is needed if
several lines have the same time. Lines are only ever appended, so each file is read from the last position, or from the
start if the file became shorter. Lines from before the trial are skipped. Other unusable lines are counted as rejects,
by reason. If a source cannot be reached, this is reported as a fault, and the trial continues without the source.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.records import Frozen
from plinth.storage import atomic
from plinth.storage.atomic import write_bytes
from plinth_registry.gates.settings import FeedPolicy, PrometheusPolicy

#: Maximum bytes per line, pairs per feed, and bytes read per tick. The rest is read in the next tick.
LONGEST, MOST, AT_ONCE = 4096, 100_000, 2**26
#: Limit of values, whose squares must not overflow.
LARGEST: Final = 1e15
NO_NUMBER, ONE_SIDED = "no finite number below 1e15", "only one of the two has a value"


class FeedState(Frozen):
    """Observations of one feed: pairs (key, canary, champion) in order, rejects by reason, and the number of lines
    `earlier` than the trial. `read` is the position in each file in bytes. For Prometheus, it is a time in seconds
    after 1970."""

    pairs: tuple[tuple[str, float, float], ...] = ()
    rejects: Mapping[str, int] = {}
    earlier: int = 0
    read: Mapping[str, int] = {}
    fault: str = ""


def take(feed: FeedPolicy, state: FeedState, folder: Path, since: datetime, now: datetime) -> FeedState:
    """Read new observations of the feed, and return the feed's state including these observations.

    Args:
        folder: base of relative paths.
        since: start of the trial.
    """
    try:
        if feed.prometheus is not None:
            return _queried(feed.prometheus, state, since, now)
        return _read(folder / str(feed.lines), state, since)
    except (OSError, ValueError) as error:
        return state.model_copy(update={"fault": " ".join(str(error).split())})


def _read(place: Path, state: FeedState, since: datetime) -> FeedState:
    files = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    taking, read = _Taking(state), dict(state.read)
    for path in files:
        begin = read.get(path.name, 0)
        read[path.name] = begin if path.stat().st_size >= begin else 0
        for line, end in _lines(path, read[path.name]):
            taking.line(line, since)
            read[path.name] = end
    return taking.state(read)


def _lines(path: Path, begin: int) -> Iterator[tuple[bytes | None, int]]:
    """Yield each complete line with its end position in the file. If a line is too long, yield None instead of it."""
    with path.open("rb") as stream:
        stream.seek(begin)
        long = False
        while stream.tell() - begin < AT_ONCE and (line := stream.readline(LONGEST + 1)):
            whole = line.endswith(b"\n")
            if not whole and len(line) <= LONGEST:
                return  # the line is still being written
            if not long:
                yield (line if whole else None), stream.tell()
            elif whole:
                yield b"", stream.tell()
            long = not whole


class _Taking:
    """Collected pairs and counts of a feed while it is read."""

    def __init__(self, state: FeedState) -> None:
        self.pairs, self.keys = list(state.pairs), {key for key, _, _ in state.pairs}
        self.rejects, self.earlier = Counter(state.rejects), state.earlier

    def line(self, line: bytes | None, since: datetime) -> None:
        """Add the pair in one line. An empty line is ignored."""
        if line is None:
            self.rejects[f"longer than {LONGEST} bytes"] += 1
        elif line.strip():
            self._object(_parsed(line), since)

    def pair(self, key: str, canary: object, champion: object) -> None:
        """Add one pair, unless a pair with the same key was added before."""
        values = [_number(value) for value in (canary, champion)]
        if values[0] is None or values[1] is None:
            self.rejects[NO_NUMBER] += 1
        elif key in self.keys:
            self.rejects["a key that came before"] += 1
        elif len(self.pairs) >= MOST:
            self.rejects[f"beyond {MOST:,} pairs"] += 1
        else:
            self.keys.add(key)
            self.pairs.append((key, values[0], values[1]))

    def state(self, read: Mapping[str, int]) -> FeedState:
        """Return the feed's state with all pairs collected so far and without a fault."""
        return FeedState(
            pairs=tuple(self.pairs), rejects=dict(sorted(self.rejects.items())), earlier=self.earlier, read=read
        )

    def _object(self, said: Mapping[str, object] | None, since: datetime) -> None:
        if said is None:
            self.rejects["no JSON object"] += 1
            return
        at = _time(said.get("time"))
        if at is None:
            self.rejects["no time"] += 1
        elif at < since:
            self.earlier += 1
        else:
            self.pair(str(said.get("key", at.isoformat())), said.get("canary"), said.get("champion"))


def _queried(feed: PrometheusPolicy, state: FeedState, since: datetime, now: datetime) -> FeedState:
    """Return the feed's state with the pairs at the query steps after the last read. The newest step is read only once
    it is complete."""
    first = int(since.timestamp())
    begin = state.read.get(feed.url, first - feed.step_s) + feed.step_s
    steps = min((int(now.timestamp()) - feed.step_s - begin) // feed.step_s, MOST_POINTS - 1)
    if steps < 0:
        return state.model_copy(update={"fault": ""})
    end = begin + steps * feed.step_s
    ours, theirs = (query(feed.url, each, begin, end, feed.step_s) for each in (feed.canary, feed.champion))
    taking = _Taking(state)
    for at in sorted(set(ours) | set(theirs)):
        if at in ours and at in theirs:
            taking.pair(str(at), ours[at], theirs[at])
        else:
            taking.rejects[ONE_SIDED] += 1
    return taking.state({feed.url: end})


def _parsed(line: bytes) -> Mapping[str, object] | None:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _time(said: object) -> datetime | None:
    try:
        if isinstance(said, str):
            at = datetime.fromisoformat(said)
            return at if at.tzinfo else at.replace(tzinfo=UTC)
        number = _number(said)
        return None if number is None else datetime.fromtimestamp(number, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _number(said: object) -> float | None:
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    return float(said) if abs(said) < LARGEST else None  # the comparison is False for NaN


TIMEOUT_S = 10.0
#: Points per query; Prometheus returns at most 11,000.
MOST_POINTS = 10_000
MOST_BYTES = 2**24


def query(url: str, expression: str, begin: int, end: int, step_s: int) -> dict[int, float]:
    """Return the values of a Prometheus expression at `begin`, `begin + step_s`, … up to `end` (seconds after 1970).
    Times without a value are left out.

    Raises:
        OSError: Prometheus does not respond.
        ValueError: Prometheus rejects the expression, or returns several series.
    """
    import requests

    asked: dict[str, str] = {"query": expression, "start": str(begin), "end": str(end), "step": str(step_s)}
    place = f"{url.rstrip('/')}/api/v1/query_range"
    try:
        with requests.get(place, params=asked, timeout=TIMEOUT_S, allow_redirects=False, stream=True) as answer:
            body = _body(url, answer)
    except requests.RequestException as error:
        # The same fault must give the same message, so messages have no timestamps.
        raise OSError(f"{url} does not respond: {type(error).__name__}") from error
    return _values(body, f"{url} (status {answer.status_code})")


def _body(url: str, answer: Any) -> bytes:
    """Return the body of a response from Prometheus.

    Raises:
        ValueError: the body is too long.
    """
    body = bytearray()
    for piece in answer.iter_content(2**16):
        body += piece
        if len(body) > MOST_BYTES:
            raise ValueError(f"{url} answered with more than {MOST_BYTES:,} bytes")
    return bytes(body)


def _values(body: bytes, who: str) -> dict[int, float]:
    try:
        said: dict[str, Any] = json.loads(body)
        if said["status"] != "success":
            raise ValueError(f"{who} refused the expression: {said.get('error')}")
        found = said["data"]["result"]
        if len(found) > 1:
            raise ValueError(
                f"the query of {who} returned {len(found)} series; aggregate them to one, for example with sum(…)"
            )
        return {round(at): float(value) for at, value in (found[0]["values"] if found else ())}
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{who} returned an invalid response") from error


# Stored observations of the feeds of one trial.
#
#     trials/<release>/00007-3.json     the canary of release record 7 against champion 3
#
# Anyone who can write a feed or this file can cause a withdrawal or hide observations, but cannot make a canary
# champion. Promotion requires evidence signed by the evaluator, which is read again at every tick and never stored
# here.


class Journal(Frozen):
    """Stored observations of each feed, by the feed's name."""

    feeds: Mapping[str, FeedState] = {}


def journal_path(ctx: Context, release: str, number: int, champion: str) -> Path:
    """Return the path of the file with a trial's observations. The file name contains the number of the release record
    that started the trial, and the champion's version."""
    return ctx.workspace.root / "trials" / release / f"{number:05d}-{champion}.json"


def load_journal(path: Path) -> Journal:
    """Return the stored observations of a trial. If the file is absent or damaged, the result is empty and the feeds
    are read from the start."""
    try:
        return Journal.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return Journal()


def take_all(path: Path, root: Path, asked: Mapping[str, FeedPolicy], since: datetime) -> Journal:
    """Read new observations from all feeds, and store them in the trial's file.

    Args:
        root: base of relative feed paths.
        since: start of the trial.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.locked(path.parent / ".lock"):
        known, now = load_journal(path), datetime.now(UTC)
        found = {
            name: take(feed, known.feeds.get(name, FeedState()), root, since, now)
            for name, feed in sorted(asked.items())
        }
        made = Journal(feeds=found)
        if made != known:
            write_bytes(path, made.model_dump_json().encode())
        return made
