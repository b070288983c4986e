"""Survey of the workspace (kept objects with reasons, unreferenced objects, monthly cost), and deletion of objects
that two surveys found unreferenced. The order of deletion makes an interruption safe.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from plinth import fingerprint
from plinth.compute.progress import SILENT, Progress, metered
from plinth.errors import RequestError
from plinth.records import Frozen
from plinth.storage.dvc import MANIFEST_NAME
from plinth.storage.objects import RENEW_AFTER_S, ObjectFacts, at_once
from plinth.storage.seal import Seal, load
from plinth.storage.state import State
from plinth_ops.retention import roots
from plinth_ops.retention.roots import YOUNG, Reachable, named, reach

# Survey: roots are read first, then manifests, records and blobs are listed. Writers write content before the pointers
# to it, so everything that a root references meanwhile is recent when it is listed. Recent objects are always kept:
# manifests before publication, blobs before their record, records in use (`state.StepCache.get`).

Kind = Literal["record", "manifest", "blob"]
DAY_S: Final = 86400.0
#: Minimum age of deletable objects in days. At least twice `RENEW_AFTER_S` is safe with concurrent writers.
KEEP_DAYS: Final = 30.0
LEAST_DAYS: Final = 2 * RENEW_AFTER_S / DAY_S
#: Reason for records of the step cache, which are kept if everything they reference is kept.
CACHE: Final = "step cache"


class StoredObject(NamedTuple):
    """Object of the workspace. `name` is a key, a digest or an MD5; `modified` is a Unix time."""

    kind: Kind
    name: str
    bytes: int
    modified: float

    @property
    def place(self) -> str:
        """Name of the object, unique among all objects of the workspace."""
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True)
class Survey:
    """Result of a survey of all objects in a workspace.

    Args:
        at: start of the survey (Unix time).
        before: objects written after this time are kept.
        kept: kept objects, each with the reason.
        unneeded: unreferenced objects in the order of deletion, each before the objects that it references.
        names: references of each unreferenced record or manifest, by its `place`.
        manifests, records: names of all listed manifests and records, to detect objects written later.
    """

    at: float
    before: float
    kept: tuple[tuple[StoredObject, str], ...]
    unneeded: tuple[StoredObject, ...]
    names: Mapping[str, frozenset[str]]
    manifests: frozenset[str]
    records: frozenset[str]


def survey(state: State, now: float, keep_days: float = KEEP_DAYS, progress: Progress = SILENT) -> Survey:
    """Find the kept and the unreferenced objects of a workspace. Every manifest and record is read once; blobs are not
    read.

    Args:
        now: current time (Unix time).

    Raises:
        RequestError: `keep_days` is too small.
        StorageError: an object cannot be read; its references are then unknown.
    """
    if keep_days < LEAST_DAYS:
        raise RequestError(f"--keep-days {keep_days:g} is too low", expected=f"at least {LEAST_DAYS:g}")
    before = now - keep_days * DAY_S
    roots = named(state)
    manifests = {one.name: one for one in state.refs.facts()}
    young = {digest for digest, one in manifests.items() if one.modified >= before}
    reachable = reach(state, manifests.keys(), young, roots, progress)
    records = list(state.cache.records.facts())
    kept, cache, names = _records(state, records, reachable, before, progress)
    kept += [(_found("manifest", manifests[digest]), reason) for digest, reason in reachable.manifests.items()]
    blobs, unneeded = _blobs(state, reachable, before, progress)
    names |= {f"manifest/{digest}": frozenset(made.names) for digest, made in reachable.others.items()}
    others = [_found("manifest", manifests[digest]) for digest in _consumers_first(reachable)]
    return Survey(
        at=now,
        before=before,
        kept=(*kept, *blobs),
        unneeded=(*cache, *others, *unneeded),
        names=names,
        manifests=frozenset(manifests),
        records=frozenset(one.name for one in records),
    )


def record_names(state: State, names: Iterable[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each record's name with the MD5s of the blobs that the record names. If the record was deleted, the set is
    empty."""
    objects, wanted = state.cache.records, list(names)
    for name, found in zip(wanted, at_once(objects, objects.get, wanted), strict=True):
        yield name, frozenset(roots.blobs(found.data) if found else ())


def _records(
    state: State, records: list[ObjectFacts], reachable: Reachable, before: float, progress: Progress
) -> tuple[list[tuple[StoredObject, str]], list[StoredObject], dict[str, frozenset[str]]]:
    """Return kept records, unreferenced records, and the references of each unreferenced record.

    Blobs that a recent record names are marked as kept.
    """
    names = record_names(state, (one.name for one in records))
    read = dict(metered(progress, "reading records", names, len(records)))
    for one in records:
        if one.modified >= before:
            for md5 in read[one.name]:
                reachable.blobs.setdefault(md5, YOUNG)
    kept, unneeded = [], []
    for one in records:
        if one.modified >= before:
            kept.append((_found("record", one), YOUNG))
        elif all(md5 in reachable.blobs for md5 in read[one.name]):
            kept.append((_found("record", one), CACHE))
        else:
            unneeded.append(_found("record", one))
    return kept, unneeded, {one.place: read[one.name] for one in unneeded}


def _blobs(
    state: State, reachable: Reachable, before: float, progress: Progress
) -> tuple[list[tuple[StoredObject, str]], list[StoredObject]]:
    kept, unneeded = [], []
    for one in metered(progress, "listing blobs", state.store.facts(), 0):
        reason = reachable.blobs.get(one.name, "")
        if one.name.endswith(".dir") and one.modified < before:
            reason = reachable.blobs.get(_listed_manifest(state.store.directory(one.name)), "")
        if reason or one.modified >= before:
            kept.append((_found("blob", one), reason or YOUNG))
        else:
            unneeded.append(_found("blob", one))
    return kept, sorted(unneeded, key=lambda one: not one.name.endswith(".dir"))  # a directory before its files


def _listed_manifest(directory: bytes) -> str:
    """Return the MD5 of the manifest listed in a DVC directory object (`plinth.storage.dvc`)."""
    try:
        return next(str(one["md5"]) for one in json.loads(directory) if one["relpath"] == MANIFEST_NAME)
    except (ValueError, KeyError, TypeError, StopIteration):
        return ""


def _consumers_first(reachable: Reachable) -> list[str]:
    """Return unreferenced manifests, each before its inputs."""
    others = reachable.others
    consumers = dict.fromkeys(others, 0)
    for made in others.values():
        for digest in set(made.inputs) & others.keys():
            consumers[digest] += 1
    waiting = sorted(digest for digest, count in consumers.items() if not count)
    order = []
    while waiting:
        digest = waiting.pop()
        order.append(digest)
        for own in sorted(set(others[digest].inputs) & others.keys()):
            consumers[own] -= 1
            if not consumers[own]:
                waiting.append(own)
    return order


def _found(kind: Kind, one: ObjectFacts) -> StoredObject:
    return StoredObject(kind, one.name, one.bytes, one.modified)


#: Upper ends of the age ranges, in days.
AGES: Final = ((7.0, "under 7 days"), (30.0, "7 to 30 days"), (90.0, "30 to 90 days"), (365.0, "90 days to a year"))
OLDER: Final = "over a year"
UNNEEDED: Final = "nothing needs it"


class StorageRow(Frozen):
    """Total bytes, unreferenced bytes and monthly cost of the objects with one age or reason."""

    name: str
    objects: int
    bytes: int
    unneeded_bytes: int
    month: float
    unneeded_month: float


def by_age(looked: Survey, gigabyte_month: float) -> list[StorageRow]:
    """Return storage rows by the age of the objects, youngest first. Age is the time since the last write or use."""
    order = [name for _, name in AGES] + [OLDER]
    rows = _rows(looked, gigabyte_month, lambda modified, _: _age(looked.at - modified))
    return [rows[name] for name in order if name in rows]


def by_reason(looked: Survey, gigabyte_month: float) -> list[StorageRow]:
    """Return storage rows by the reason for keeping objects, largest first.

    An object with several reasons counts under the first reason.
    """
    rows = _rows(looked, gigabyte_month, lambda _, reason: reason)
    return sorted(rows.values(), key=lambda row: (-row.bytes, row.name))


def _rows(looked: Survey, price: float, name: Callable[[float, str], str]) -> dict[str, StorageRow]:
    objects, size, unneeded = defaultdict[str, int](int), defaultdict[str, int](int), defaultdict[str, int](int)
    everything = [*looked.kept, *((one, UNNEEDED) for one in looked.unneeded)]
    for one, reason in everything:
        row = name(one.modified, reason)
        objects[row] += 1
        size[row] += one.bytes
        unneeded[row] += one.bytes if reason == UNNEEDED else 0
    return {
        row: StorageRow(
            name=row,
            objects=objects[row],
            bytes=size[row],
            unneeded_bytes=unneeded[row],
            month=size[row] / 1e9 * price,
            unneeded_month=unneeded[row] / 1e9 * price,
        )
        for row in objects
    }


def _age(age_s: float) -> str:
    return next((name for days, name in AGES if age_s < days * DAY_S), OLDER)


# Deletion:
#
#     retention/unneeded.json    time since which each object is unreferenced, sealed by the workspace's workers
#
# A reader may still use an object that a reference named a moment ago. So an object is deleted only if a survey at
# least `GRACE_S` ago and all later surveys found it unreferenced. Without a seal, editing the file can shorten the
# pause, but can never make a referenced object deletable.
#
# Records are deleted first, then manifests, each before its inputs, then blobs, so remaining objects never have
# dangling references. Each object is checked again before its deletion: it stays, with its references, if it was
# written again or if a newer manifest or record references it.

FOLDER: Final = "retention"
NOTE: Final = "unneeded.json"
#: Default pause, longer than any reader uses an unpublished object, except runs, which are roots.
GRACE_S: Final = 24 * 3600.0
_FACT: Final = "unneeded"


def read(state: State) -> dict[str, float]:
    """Read the Unix time from which on each object has been unreferenced.

    The result is empty if the record of unreferenced objects or its seal is invalid.
    """
    found = state.workspace.objects(FOLDER).get(NOTE)
    try:
        content = json.loads(found.data) if found else {"since": {}}
        since: Mapping[str, float] = content["since"]
        known = {str(place): float(at) for place, at in since.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
    return known if found and _seal(state).holds(content.get("seal"), _FACT, NOTE, fingerprint.digest(known)) else {}


def note(state: State, looked: Survey) -> dict[str, float]:
    """Record the unreferenced objects of a survey. Return the Unix time from which on each object has been
    unreferenced.

    Objects that are referenced again are removed from the record.
    """
    before = read(state)
    since = {one.place: min(before.get(one.place, looked.at), looked.at) for one in looked.unneeded}
    write(state, since)
    return since


def write(state: State, since: Mapping[str, float]) -> None:
    """Replace the record of unreferenced objects."""
    objects, known = state.workspace.objects(FOLDER), dict(sorted(since.items()))
    seal = _seal(state).of(_FACT, NOTE, fingerprint.digest(known))
    found = objects.get(NOTE)
    objects.put(NOTE, json.dumps({"since": known, "seal": seal}).encode(), found.tag if found else None)


def _seal(state: State) -> Seal:
    return load(state.workspace.trust_folder)


@dataclass
class Deleted:
    """Result of a deletion: deleted objects, objects that must wait longer, and objects that are referenced again."""

    gone: list[StoredObject] = field(default_factory=list)
    waiting: list[StoredObject] = field(default_factory=list)
    needed: list[StoredObject] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Number of freed bytes."""
        return sum(one.bytes for one in self.gone)


def due(looked: Survey, since: Mapping[str, float], grace_s: float = GRACE_S) -> set[str]:
    """Return the `place` of each object that has been unreferenced for at least `grace_s` seconds."""
    return {one.place for one in looked.unneeded if since.get(one.place, looked.at) <= looked.at - grace_s}


def delete(
    state: State,
    looked: Survey,
    ready: set[str],
    done: Callable[[StoredObject], object] = lambda _: None,
    progress: Progress = SILENT,
) -> Deleted:
    """Delete unreferenced objects.

    Args:
        looked: recent survey.
        ready: `place` of each object that may be deleted (`due`). Objects that remaining objects reference are kept.
        done: called after each deletion.

    Raises:
        StorageError: an object cannot be deleted. Run the same command again to continue.
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
    """Return the references of manifests and records that were written after the survey."""
    saved = state.refs.facts()
    manifests = {one.name for one in saved if one.modified >= looked.at or one.name not in looked.manifests}
    names = {one for _, data in state.refs.raw(sorted(manifests)) for one in roots.digests(data)}
    facts = state.cache.records.facts()
    records = [one.name for one in facts if one.modified >= looked.at or one.name not in looked.records]
    return manifests | names.union(*(own for _, own in record_names(state, records)))
