"""Checkpoints to what the registry made of them: signed directories of candidates, and releases.

Reads the workspace alone: the signed history says what was released, whatever MLflow shows.
"""

from __future__ import annotations

from collections.abc import Iterable

from plinth.compute.context import Context
from plinth.records import Frozen
from registry import releases
from registry.materialise import path_of


class HeldModel(Frozen):
    """A candidate's directory, or a movement of a release, that came of one of the checkpoints.

    `now` says whether the last movement of this release still points to it.
    """

    kind: str
    name: str
    checkpoint: str
    at: str | None = None
    now: bool = True


def models_of(ctx: Context, checkpoints: Iterable[str]) -> list[HeldModel]:
    """Candidates, then releases, of checkpoint manifests given by digest.

    Raises:
        SignatureError: the history of releases cannot be trusted.
    """
    wanted = set(checkpoints)
    if not wanted:
        return []
    found = [
        HeldModel(kind="candidate", name=path.name, checkpoint=digest)
        for digest in sorted(wanted)
        if (path := path_of(ctx, digest)).is_dir()
    ]
    history = releases.history(ctx)
    last = {record.model: record.number for record in history}
    for record in history:
        digest = record.candidate.get("checkpoint", "")
        if digest in wanted and record.version is not None:
            name, now = f"{record.model}/{record.version} ({record.action})", last[record.model] == record.number
            found.append(HeldModel(kind="release", name=name, checkpoint=digest, at=record.at, now=now))
    return found
