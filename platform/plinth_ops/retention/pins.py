"""Pins: manifests that people keep although nothing else needs them, with their ancestry.

Anybody who can write the workspace can set or remove one. A pin adds to what is kept and takes nothing from it.
"""

from __future__ import annotations

import json

from plinth import fingerprint
from plinth.errors import MissingError, RequestError
from plinth.records import Frozen, Manifest
from plinth.storage.state import State

#: Folder of a workspace, or of its prefix.
FOLDER = "pins"


class Pin(Frozen):
    """One pin. `at` is a time in UTC, ISO 8601."""

    digest: str
    asset: str
    by: str
    reason: str
    at: str


def put(state: State, manifest: Manifest, by: str, reason: str, at: str) -> Pin:
    """Pin a manifest; a pin that it has already stays as it is.

    Raises:
        RequestError: no reason.
    """
    if not reason.strip():
        raise RequestError("a pin needs a reason", expected="what it is kept for, and until when")
    pin = Pin(digest=manifest.digest, asset=manifest.asset, by=by, reason=reason, at=at)
    state.workspace.objects(FOLDER).put(_name(pin.digest), fingerprint.canonical(pin), None)
    return next(one for one in every(state) if one.digest == manifest.digest)


def lift(state: State, digest: str) -> Pin:
    """Remove the pin whose digest begins so.

    Raises:
        MissingError: none does, or several do.
    """
    found = [one for one in every(state) if one.digest.startswith(digest)]
    if len(found) != 1:
        raise MissingError(f"{len(found)} pins begin with {digest!r}", expected="one", remedy="`plinth ops gc pins`")
    state.workspace.objects(FOLDER).remove_old(_name(found[0].digest), float("inf"))
    return found[0]


def every(state: State) -> list[Pin]:
    """All pins, by digest; a file that is none is left out here, and what it names is kept all the same."""
    objects, found = state.workspace.objects(FOLDER), []
    for name in objects.names():
        version = objects.get(name)
        try:
            found += [Pin.model_validate(json.loads(version.data))] if version else []
        except ValueError:
            continue
    return found


def _name(digest: str) -> str:
    return f"{digest}.json"
