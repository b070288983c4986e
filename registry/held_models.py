"""Checkpoints to what the registry made of them: signed directories of candidates, releases, and exports.

Reads the workspace alone: the signed history says what was released, whatever MLflow shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from plinth.compute.context import Context
from plinth.errors import IntegrityError
from plinth.provenance.takedown.exposed_runs import ExposedRun
from plinth.provenance.takedown.remaining import Remaining
from plinth.records import Frozen
from registry import releases
from registry.exports.sealed import EXPORT_NOTES
from registry.materialise import path_of
from registry.standing import standing


class HeldModel(Frozen):
    """A candidate's directory, a version of a release, or an export, that came of one of the checkpoints.

    `now` is what a version of a release is now (`champion`, `canary`, `superseded`, …); of an export, where it went.
    """

    kind: str
    name: str
    checkpoint: str
    now: str = ""


def models_of(ctx: Context, runs: Sequence[ExposedRun], manifests: Iterable[str] = ()) -> list[HeldModel]:
    """Candidates, releases and exports of the checkpoints of these runs; exports of these manifests too.

    Raises:
        SignatureError: the history of releases cannot be trusted.
        IntegrityError: a note of an export cannot be read.
    """
    digests = {digest for run in runs for one in run.checkpoints for digest in one.digests}
    steps = {f"{run.run}:{one.step}" for run in runs for one in run.checkpoints}
    candidates = [
        HeldModel(kind="candidate", name=path.name, checkpoint=digest)
        for digest in sorted(digests)
        if (path := path_of(ctx, digest)).is_dir()
    ]
    released = _releases(ctx, digests) if digests else ()
    return [*candidates, *released, *_exports(ctx, digests | {*manifests}, steps)]


def remaining_models(models: Sequence[HeldModel]) -> list[Remaining]:
    """The same, as a report on a removal lists them."""
    return [
        Remaining(what=f"{one.kind} {one.name}", where=_where(one), until=_until(one), model=True) for one in models
    ]


def _releases(ctx: Context, digests: set[str]) -> Iterator[HeldModel]:
    history = releases.history(ctx)
    versions = {
        (record.model, record.version): record.candidate["checkpoint"]
        for record in history
        if record.version is not None and record.candidate.get("checkpoint") in digests
    }
    for (model, version), digest in versions.items():
        place = standing(record for record in history if record.model == model).place(version)
        yield HeldModel(kind="release", name=f"{model}/{version}", checkpoint=digest, now=place or "never released")


def _exports(ctx: Context, digests: set[str], steps: set[str]) -> Iterator[HeldModel]:
    for path in sorted((ctx.workspace.root / EXPORT_NOTES).glob("*.json")):
        try:
            note = json.loads(path.read_bytes())
            name, checkpoint, to = str(note["name"]), str(note["subject"]), str(note["to"])
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(f"{path} is no note of an export", found=repr(error)) from error
        if checkpoint in digests or name in steps:
            yield HeldModel(kind="export", name=name, checkpoint=checkpoint, now=to)


def _where(one: HeldModel) -> str:
    if one.kind == "candidate":
        return f"models/{one.name} of this workspace, and wherever it was registered from there"
    return f"{one.now}, and copies of it" if one.kind == "export" else f"{one.now}; wherever it was loaded"


def _until(one: HeldModel) -> str:
    if one.kind == "release":
        return "until consumers stop using it: promote a successor, or mark it tainted (`plinth taint`)"
    return "until somebody deletes it"
