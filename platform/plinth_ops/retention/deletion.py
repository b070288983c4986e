"""Delete what two surveys found unneeded, in an order that leaves a whole workspace wherever it ends.

    retention/unneeded.json    since when each object is unneeded, under the seal of the workspace's workers

A reader may still have open what a reference named a moment ago. So an object is deleted only when an earlier survey,
at least `GRACE_S` ago, found it unneeded and nothing has needed it at any survey since. A person who edits the note can
shorten the pause where there is no seal, and never make a needed thing unneeded.

Records are deleted first, then manifests, each before those that it was made of, then blobs: what is still there has
all that it names. Each is looked at again when its turn comes. One that was written again meanwhile stays, with all
that it names; so does all that a newer manifest or record names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from plinth import fingerprint
from plinth.compute.progress import SILENT, Progress, metered
from plinth.storage.seal import Seal, load
from plinth.storage.state import State
from plinth_ops.retention import roots
from plinth_ops.retention.survey import StoredObject, Survey, record_names

FOLDER: Final = "retention"
NOTE: Final = "unneeded.json"
#: Longer than anything reads what is no longer published, but for runs, which are roots.
GRACE_S: Final = 24 * 3600.0
_FACT: Final = "unneeded"


def read(state: State) -> dict[str, float]:
    """When each object was found unneeded first (Unix time), by place; nothing where no worker wrote the note."""
    found = state.workspace.objects(FOLDER).get(NOTE)
    try:
        content = json.loads(found.data) if found else {"since": {}}
        since: Mapping[str, float] = content["since"]
        known = {str(place): float(at) for place, at in since.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return known if found and _seal(state).holds(content.get("seal"), _FACT, NOTE, fingerprint.digest(known)) else {}


def note(state: State, looked: Survey) -> dict[str, float]:
    """Add a look; what is needed again is forgotten. Returns since when each unneeded object is."""
    before = read(state)
    since = {one.place: min(before.get(one.place, looked.at), looked.at) for one in looked.unneeded}
    write(state, since)
    return since


def write(state: State, since: Mapping[str, float]) -> None:
    """Replace the note."""
    objects, known = state.workspace.objects(FOLDER), dict(sorted(since.items()))
    seal = _seal(state).of(_FACT, NOTE, fingerprint.digest(known))
    found = objects.get(NOTE)
    objects.put(NOTE, json.dumps({"since": known, "seal": seal}).encode(), found.tag if found else None)


def _seal(state: State) -> Seal:
    return load(state.workspace.trust_folder)


@dataclass
class Deleted:
    """What was deleted, what waits for its pause to pass, and what somebody needed again meanwhile."""

    gone: list[StoredObject] = field(default_factory=list)
    waiting: list[StoredObject] = field(default_factory=list)
    needed: list[StoredObject] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes that were freed."""
        return sum(one.bytes for one in self.gone)


def due(looked: Survey, since: Mapping[str, float], grace_s: float = GRACE_S) -> set[str]:
    """Places of what was found unneeded long enough ago."""
    return {one.place for one in looked.unneeded if since.get(one.place, looked.at) <= looked.at - grace_s}


def delete(
    state: State,
    looked: Survey,
    ready: set[str],
    done: Callable[[StoredObject], object] = lambda _: None,
    progress: Progress = SILENT,
) -> Deleted:
    """Delete.

    Args:
        looked: a look of a moment ago.
        ready: places that may be deleted (`due`); a record or manifest that is not keeps all that it names.
        done: called after each deletion.

    Raises:
        StorageError: something cannot be deleted; the same command goes on.
    """
    found, needed = Deleted(), set[str]()
    for group in ("record", "manifest", "blob"):
        needed |= _since(state, looked)
        unneeded = [one for one in looked.unneeded if one.kind == group]
        for one in metered(progress, f"deleting {group}s", unneeded, len(unneeded)):
            if one.name in needed or one.place not in ready:
                (found.needed if one.name in needed else found.waiting).append(one)
            elif _remove(state, one, looked.before):
                found.gone.append(one)
                done(one)
                continue
            else:
                found.needed.append(one)
            needed |= looked.names.get(one.place, frozenset())
    return found


def _remove(state: State, one: StoredObject, before: float) -> bool:
    if one.kind == "record":
        return state.cache.records.remove_old(one.name, before)
    if one.kind == "manifest":
        return state.refs.remove_old(one.name, before)
    return state.store.remove_old(one.name, before)


def _since(state: State, looked: Survey) -> set[str]:
    """What manifests and records name that came, or were written again, since the look."""
    saved = state.refs.facts()
    manifests = {one.name for one in saved if one.modified >= looked.at or one.name not in looked.manifests}
    names = {one for _, data in state.refs.raw(sorted(manifests)) for one in roots.digests(data)}
    facts = state.cache.records.facts()
    records = [one.name for one in facts if one.modified >= looked.at or one.name not in looked.records]
    return manifests | names.union(*(own for _, own in record_names(state, records)))
