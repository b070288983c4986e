"""Delete what two looks found unneeded, in an order that leaves a whole workspace wherever it ends.

Records go first, then manifests, each before those that it was made of, then blobs: what is still there has all that it
names. Each is looked at again when its turn comes. One that was written again meanwhile stays, with all that it names;
so does all that a manifest or record names which came since the look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from plinth.compute.progress import SILENT, Progress, metered
from plinth.operation.retention import naming
from plinth.operation.retention.survey import StoredObject, Survey, record_names
from plinth.operation.retention.unneeded import GRACE_S
from plinth.storage.state import State


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
    names = {one for _, data in state.refs.raw(sorted(manifests)) for one in naming.digests(data)}
    facts = state.cache.records.facts()
    records = [one.name for one in facts if one.modified >= looked.at or one.name not in looked.records]
    return manifests | names.union(*(own for _, own in record_names(state, records)))
