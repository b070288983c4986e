"""The signed chain of exclusions in a workspace: only ever added to.

    exclusions/00001.json    a DSSE envelope by `compliance`; each names the SHA-256 of the file before it

An entry that was edited, replaced or taken out is refused by name, and with it every build that would have read the
list: text that somebody had removed must not come back because a file is gone. The newest number that was verified here
is kept beside the root of trust, so that a list cut short is noticed too.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.exclusions.entries import Exclusion
from plinth.errors import ConflictError, SignatureError
from plinth.storage.objects import Objects
from plinth.trust import dsse
from plinth.trust.authority import COMPLIANCE
from plinth.trust.pin import Trust

FOLDER = "exclusions"
PREDICATE = "urn:plinth:exclusion:v1"
_NAME = re.compile(r"\d{5}\.json")
_RESTORE = "restore the file from a backup; the list is only ever added to, by `plinth takedown exclude`"


def read(ctx: Context) -> tuple[Exclusion, ...]:
    """All entries, oldest first; none where nothing was ever taken down.

    Raises:
        SignatureError: an entry was changed, is missing, or was not signed by `compliance`.
    """
    objects = _objects(ctx)
    names = _names(objects)
    if not names and not (ctx.workspace.trust_folder / "seen.json").exists():
        return ()
    trust = Trust.of(ctx.workspace)
    entries, prior = list[Exclusion](), None
    for number, name in enumerate(names, start=1):
        data, where = _bytes(objects, name), objects.where(name)
        entry = _opened(data, trust, where)
        if (name, entry.number, entry.prior) != (_file(number), number, prior):
            raise SignatureError(
                f"the exclusion list is broken at {where}",
                found=f"entry {entry.number} after {entry.prior}",
                expected=f"{_file(number)}, entry {number} after {prior}",
                remedy=_RESTORE,
            )
        entries.append(entry)
        prior = hashlib.sha256(data).hexdigest()
    seen = trust.seen(_counter(ctx))
    if len(entries) < seen:
        raise SignatureError(
            "entries of the exclusion list are gone",
            found=f"{len(entries)} in {objects.where('')}",
            expected=f"{seen}, which were verified here before",
            remedy=_RESTORE,
        )
    trust.remember(_counter(ctx), len(entries))
    return tuple(entries)


def append(ctx: Context, **fields: Any) -> Exclusion:
    """Sign and write the next entry. `number`, `prior`, `by` and `at` are set here.

    Raises:
        SignatureError: an earlier entry does not verify, or there is no key of `compliance` on this machine.
        ConflictError: another process added an entry meanwhile.
    """
    earlier, objects = read(ctx), _objects(ctx)
    trust = Trust.of(ctx.workspace)
    signer = trust.signer(COMPLIANCE)
    prior = hashlib.sha256(_bytes(objects, _file(len(earlier)))).hexdigest() if earlier else None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    entry = Exclusion(number=len(earlier) + 1, prior=prior, by=signer.owner, at=now, **fields)
    content = dsse.statement(PREDICATE, {f"exclusion-{entry.number}": entry.digest}, entry.model_dump(mode="json"))
    data = json.dumps(dsse.seal(content, signer), indent=1, sort_keys=True).encode()
    if not objects.put(_file(entry.number), data, None):
        raise ConflictError(
            f"another process added entry {entry.number} to the exclusion list", remedy="run the same command again"
        )
    trust.remember(_counter(ctx), entry.number)
    return entry


def digest(ctx: Context) -> str | None:
    """Identity of the list as it lies there, unverified; None where there is none."""
    objects = _objects(ctx)
    files = [hashlib.sha256(_bytes(objects, name)).hexdigest() for name in _names(objects)]
    return fingerprint.digest(files) if files else None


def _opened(data: bytes, trust: Trust, where: str) -> Exclusion:
    try:
        envelope = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SignatureError(f"{where} is not a DSSE envelope", found=error, remedy=_RESTORE) from error
    content = dsse.opened(envelope, trust.authority(COMPLIANCE), PREDICATE, where)
    try:
        entry = Exclusion.model_validate(content["predicate"])
    except ValidationError as error:
        raise SignatureError(f"{where} is not an entry of the exclusion list", found=error) from error
    if entry.digest not in dsse.subjects(content).values():
        raise SignatureError(f"{where} is about another rule", found=dsse.subjects(content), expected=entry.digest)
    return entry


def _objects(ctx: Context) -> Objects:
    return ctx.workspace.objects(FOLDER)


def _names(objects: Objects) -> list[str]:
    return [name for name in objects.names() if _NAME.fullmatch(name)]


def _bytes(objects: Objects, name: str) -> bytes:
    found = objects.get(name)
    if found is None:
        raise SignatureError(f"{objects.where(name)} is gone", remedy=_RESTORE)
    return found.data


def _file(number: int) -> str:
    return f"{number:05d}.json"


def _counter(ctx: Context) -> str:
    """The list's own counter: one folder of trust may serve several workspaces."""
    place = ctx.workspace.uri or str(ctx.workspace.root)
    return f"exclusions {hashlib.sha256(place.encode()).hexdigest()[:12]}"
