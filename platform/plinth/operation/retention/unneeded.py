"""Since when nothing needs what a look found: noted by every look, so that only what two looks found is deleted.

A reader may still have open what a reference named a moment ago. So an object goes only when an earlier look, at least
`GRACE_S` ago, found it unneeded and nothing has needed it at any look since.

    retention/unneeded.json    in the workspace or its prefix, under the seal of its workers

Whoever edits the note can shorten the pause where there is no seal, and never make a needed thing unneeded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from plinth import fingerprint
from plinth.operation.retention.survey import Survey
from plinth.storage.seal import Seal, load
from plinth.storage.state import State

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
