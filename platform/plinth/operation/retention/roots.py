"""What must be kept for its own sake: every digest that a record, a model, a run, a pin or a reference names.

All folders of a workspace are read but those that are named here, so that a kind of record that comes later protects
what it names. Of a shared workspace each machine has records of its own; every look leaves their digests in the bucket
(`holds`), and manifests of trained models are kept there whoever trained them.

Does not belong here: what the roots are made of (reachable).
"""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from plinth.errors import StorageError
from plinth.operation.retention import naming, pins
from plinth.storage.atomic import write_bytes
from plinth.storage.objects import S3Objects, at_once, files_below
from plinth.storage.state import State

#: Why something is kept; what is needed for several reasons counts under the first.
RECORD, CANDIDATE, RUN, PIN, PUBLISHED = "signed record", "candidate", "run", "pin", "published"
NAMED: Final = (RECORD, CANDIDATE, RUN, PIN, PUBLISHED)
#: Under this name, manifests of published assets: unlike other digests, none of them may be missing.
MANIFESTS: Final = "manifest"

#: Folders that need nothing: content itself, what is made again, databases, notes that list all that ever was.
_NO_ROOTS: Final = frozenset(
    (
        *("store", "records", "manifests", "input", "dagster", "mlflow", "reports", "impact", "costs", "tmp"),
        *("launch", "budget", "gx", "retention", "refs", pins.FOLDER),
    )
)
_REASONS: Final = {"models": CANDIDATE, "runs": RUN, "experiments": PUBLISHED}
#: Reports on removals name, beside what they prove, snapshots that are to go.
_REMOVALS: Final = "takedown"
#: Of runs and models only texts are read; their weights name nothing.
_WEIGHTY: Final = frozenset(("runs", "models"))
_TEXTS: Final = frozenset((".json", ".jsonl", ".yaml", ".yml", ".sig", ".txt", ".md"))
_IN_BUCKET: Final = ("exclusions", "experiments")
HOLDS: Final = "retention/holds"


def named(state: State) -> dict[str, set[str]]:
    """The digests that must be kept, by reason.

    Raises:
        StorageError: something cannot be read, so that what it names is not known.
    """
    found = defaultdict[str, set[str]](set, own(state))
    found[MANIFESTS] = {one.digest for one in state.refs.all()}
    for folder, reason in (("refs", PUBLISHED), (pins.FOLDER, PIN)):
        objects = state.workspace.objects(folder)
        for version in at_once(objects, objects.get, list(objects.names())):
            found[reason] |= naming.digests(version.data) if version else set()
    if uri := state.workspace.uri:
        for folder in _IN_BUCKET:
            objects = S3Objects(f"{uri}/{folder}")
            for version in at_once(objects, objects.get, list(objects.names())):
                found[_REASONS.get(folder, RECORD)] |= naming.digests(version.data) if version else set()
        for reason, digests in _held(state):
            found[reason] |= digests
    return found


def own(state: State) -> dict[str, set[str]]:
    """What the files of this machine's folder name, by reason.

    Raises:
        StorageError: one cannot be read.
    """
    root, found = state.workspace.root, defaultdict[str, set[str]](set)
    for path, top in _files(root):
        try:
            found[_REASONS.get(top, RECORD)] |= naming.of_file(
                path, naming.subjects if top == _REMOVALS else naming.digests
            )
        except OSError as error:
            raise StorageError(
                f"cannot read {path}",
                found=error,
                expected="every record, so that nothing is deleted that one of them names",
                remedy="make it readable for whoever deletes, then run the same command again",
            ) from error
    return found


def hold(state: State) -> None:
    """Leave in the bucket of a shared workspace what this machine's own records name; nothing where it is a folder."""
    if not state.workspace.uri:
        return
    content = {reason: sorted(digests) for reason, digests in own(state).items()}
    objects, name = S3Objects(f"{state.workspace.uri}/{HOLDS}"), f"{_machine(state.workspace.root)}.json"
    data = json.dumps(content, sort_keys=True).encode()
    before = objects.get(name)
    objects.put(name, data, before.tag if before else None)


def _held(state: State) -> Iterator[tuple[str, set[str]]]:
    objects = S3Objects(f"{state.workspace.uri}/{HOLDS}")
    for name in objects.names():
        version = objects.get(name)
        try:
            content: Mapping[str, list[str]] = json.loads(version.data) if version else {}
            yield from ((reason if reason in NAMED else RECORD, set(map(str, own))) for reason, own in content.items())
        except (ValueError, AttributeError, TypeError) as error:
            raise StorageError(
                f"{objects.where(name)} is not what a machine's records name",
                found=error,
                remedy="`plinth ops gc` on that machine writes it again; delete it where the machine is no more",
            ) from error


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    """Files that may name something, each with the folder of the workspace it lies in."""
    for folder in sorted(path for path in root.glob("*") if path.is_dir() and path.name not in _NO_ROOTS):
        for name, _ in files_below(folder):
            if folder.name == _REMOVALS and not name.endswith(".json"):
                continue
            if folder.name not in _WEIGHTY or Path(name).suffix in _TEXTS:
                yield folder / name, folder.name


def _machine(root: Path) -> str:
    """This machine's name among those that share a workspace."""
    path = root / "retention" / "machine"
    if not path.exists():
        write_bytes(path, uuid.uuid4().hex[:16].encode())
    return path.read_text()
