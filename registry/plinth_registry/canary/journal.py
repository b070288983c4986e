"""What was taken in of the feeds of one trial, kept between ticks.

    trials/<release>/00007-3.json     the canary of release record 7 beside champion 3

Whoever can write a feed or this file can give a canary back, and can hide what the feed would have said; never make it
champion: that needs what the evaluator has signed for, which is read again at every tick and never kept here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from plinth.compute.context import Context
from plinth.records import Frozen
from plinth.storage import locks
from plinth.storage.atomic import write_bytes
from plinth_registry.canary import feeds
from plinth_registry.canary.feeds import FeedState
from plinth_registry.gates.settings import FeedPolicy


class Journal(Frozen):
    """What is known of each feed, by name."""

    feeds: Mapping[str, FeedState] = {}


def path_of(ctx: Context, release: str, number: int, champion: str) -> Path:
    """The file of a trial: release record that began it, and the version that is champion."""
    return ctx.workspace.root / "trials" / release / f"{number:05d}-{champion}.json"


def load(path: Path) -> Journal:
    """What was kept; nothing where the file is absent or damaged: then feeds are read from the trial's beginning."""
    try:
        return Journal.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return Journal()


def take(path: Path, root: Path, asked: Mapping[str, FeedPolicy], since: datetime) -> Journal:
    """Take in what the feeds say now, and keep it.

    Args:
        root: what relative paths of feeds are relative to.
        since: when the trial began.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locks.locked(path.parent / ".lock"):
        known, now = load(path), datetime.now(UTC)
        found = {
            name: feeds.take(feed, known.feeds.get(name, FeedState()), root, since, now)
            for name, feed in sorted(asked.items())
        }
        made = Journal(feeds=found)
        if made != known:
            write_bytes(path, made.model_dump_json().encode())
        return made
