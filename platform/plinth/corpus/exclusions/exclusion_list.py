"""The exclusion list: a signed log of `compliance` (`plinth.trust.signed_log`), only ever added to.

    exclusions/00001.json    a DSSE envelope whose predicate is the entry

An entry that was edited, replaced or taken out is refused by name, and with it every build that would have read the
list: text that somebody had removed must not come back because a file is gone.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from pydantic import ValidationError

from plinth import fingerprint
from plinth.compute.context import Context
from plinth.corpus.exclusions.entries import Exclusion
from plinth.errors import SignatureError
from plinth.trust.authority import COMPLIANCE
from plinth.trust.clock import now
from plinth.trust.log_record import LogRecord
from plinth.trust.root import Trust
from plinth.trust.signed_log import SignedLog

EXCLUSIONS: Final = SignedLog(
    "exclusions",
    (COMPLIANCE,),
    kind="urn:plinth:exclusion:v1",
    title="entries of the exclusion list",
    flat=True,
    shared=True,
)


def read(ctx: Context) -> tuple[Exclusion, ...]:
    """All entries, oldest first; none where nothing was ever taken down.

    Raises:
        SignatureError: an entry was changed, is missing, or was not signed by `compliance`.
    """
    return tuple(_entry(record) for record in EXCLUSIONS.records(ctx))


def append(ctx: Context, **fields: Any) -> Exclusion:
    """Sign and write the next entry. `number`, `prior`, `by` and `at` are set here.

    Raises:
        SignatureError: an earlier entry does not verify, or there is no key of `compliance` on this machine.
        ConflictError: another process added an entry meanwhile.
    """
    earlier, by = EXCLUSIONS.records(ctx), Trust.of(ctx.workspace).signer(COMPLIANCE).owner
    prior = earlier[-1].sha256 if earlier else None
    entry = Exclusion(number=len(earlier) + 1, prior=prior, by=by, at=now(), **fields)
    body = entry.model_dump(mode="json", exclude={"number", "prior", "at"})
    about = {f"exclusion-{entry.number}": entry.digest}
    return _entry(EXCLUSIONS.append(ctx, body, about, COMPLIANCE, at=entry.at, number=entry.number))


def digest(ctx: Context) -> str | None:
    """Identity of the list as it lies there, unverified; None where there is none."""
    objects = ctx.workspace.objects(EXCLUSIONS.name)
    files = [hashlib.sha256(found.data).hexdigest() for name in objects.names() if (found := objects.get(name))]
    return fingerprint.digest(files) if files else None


def _entry(record: LogRecord) -> Exclusion:
    where = f"{EXCLUSIONS.name}/{record.number:05d}.json"
    try:
        entry = Exclusion(number=record.number, prior=record.prior, at=record.at, **record.body)
    except (TypeError, ValidationError) as error:
        raise SignatureError(f"{where} cannot be read", found=error) from error
    if entry.digest not in record.subjects.values():
        raise SignatureError(f"{where} is about another rule", found=record.subjects, expected=entry.digest)
    return entry
