"""Checkpoints to what the registry made of them: signed directories of candidates, releases, and exports.

Reads the workspace alone: the signed history says what was released, whatever MLflow shows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from plinth.compute.context import Context
from plinth.errors import IntegrityError
from plinth.records import Frozen
from plinth_audit.takedown.exposed_runs import ExposedRun
from plinth_audit.takedown.remaining import HOLDS_TEXT, Remaining, taint_state
from plinth_registry import releases
from plinth_registry.exports.sealed import EXPORT_NOTES
from plinth_registry.signing import directory_of


class HeldModel(Frozen):
    """A candidate's directory, a version of a release, or an export, derived from one of the checkpoints.

    Args:
        now: of a release, its place (`champion`, `canary`, `superseded`, `rolled back`); of an export, its folder.
        text: True for an export of text or tokens.
    """

    kind: str
    name: str
    checkpoint: str
    now: str = ""
    text: bool = False


def models_of(ctx: Context, runs: Sequence[ExposedRun], manifests: Iterable[str] = ()) -> list[HeldModel]:
    """Candidates, releases and exports of the checkpoints of these runs; exports of text or tokens of these manifests.

    Raises:
        SignatureError: the history of releases cannot be trusted.
        IntegrityError: a note of an export cannot be read.
    """
    digests = {digest for run in runs for digest in run.digests}
    steps = {f"{run.run}:{one.step}" for run in runs for one in run.checkpoints}
    candidates = [
        HeldModel(kind="candidate", name=path.name, checkpoint=digest)
        for digest in sorted(digests)
        if (path := directory_of(ctx, digest)).is_dir()
    ]
    released = _releases(ctx, digests) if digests else ()
    return [*candidates, *released, *_exports(ctx, digests, steps, {*manifests})]


def remaining_models(models: Sequence[HeldModel], tainted: Collection[str] = ()) -> list[Remaining]:
    """The same, as a report on a removal lists them.

    Args:
        tainted: digests that a mark freezes.
    """
    return [
        Remaining(
            what=f"{one.kind} {one.name}",
            where=_where(one),
            until=_until(one),
            state=HOLDS_TEXT if one.text else taint_state([one.checkpoint], tainted),
            model=not one.text,
        )
        for one in models
    ]


def _releases(ctx: Context, digests: set[str]) -> Iterator[HeldModel]:
    history = releases.history(ctx)
    versions = {
        (record.model, record.version): record.candidate["checkpoint"]
        for record in history
        if record.version is not None and record.candidate.get("checkpoint") in digests
    }
    for (model, version), digest in versions.items():
        place = history.of(model).standing.place(version)
        yield HeldModel(kind="release", name=f"{model}/{version}", checkpoint=digest, now=place or "never released")


def _exports(ctx: Context, digests: set[str], steps: set[str], manifests: set[str]) -> Iterator[HeldModel]:
    for path in sorted((ctx.workspace.root / EXPORT_NOTES).glob("*.json")):
        try:
            note = json.loads(path.read_bytes())
            name, checkpoint, to = str(note["name"]), str(note["subject"]), str(note["to"])
        except (ValueError, KeyError, TypeError) as error:
            raise IntegrityError(f"{path} is no note of an export", found=repr(error)) from error
        text = note.get("status") == "data"
        if checkpoint in digests or name in steps or (text and checkpoint in manifests):
            yield HeldModel(kind="export", name=name, checkpoint=checkpoint, now=to, text=text)


def _where(one: HeldModel) -> str:
    if one.kind == "candidate":
        return f"models/{one.name} of this workspace, and wherever it was registered from there"
    if one.kind == "export":
        return f"{one.now}, and copies of it" if _is_there(one) else f"copies of {one.now}, which is not there any more"
    return f"{one.now}; wherever it was loaded"


def _is_there(one: HeldModel) -> bool:
    """True if an export is still in its folder, or in a bucket, of which nothing is known."""
    return "://" in one.now or Path(one.now).exists()


def _until(one: HeldModel) -> str:
    if one.kind == "release" and one.now == "rolled back":
        return "until consumers that loaded it before delete it: loading it is refused"
    if one.kind == "release":
        return "until consumers stop using it: promote a successor, or mark it tainted (`plinth release taint`)"
    if one.kind == "export" and not _is_there(one):
        return "unknown: ask the people who received it"
    return "until you delete it"
