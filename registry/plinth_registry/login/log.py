"""Tags of approvals that logged-in people wrote, each in a statement of the server that asked them for their login.

    logins/00001.json    person, candidate, tag, value; signed by the server, numbered and chained

A person's decision is what their own tags say, the newest of each: somebody else who writes over a tag, or removes it,
changes nothing. A rejection in any of them outweighs an approval. What a statement is worth is the gate's affair: the
policy names the servers and the people who count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from plinth.compute.context import Context
from plinth.trust.authority import APPROVER
from plinth.trust.log_record import LogRecord
from plinth_registry import releases
from plinth_registry.candidate import Candidate
from plinth_registry.gates import Approval
from plinth_registry.signed_log import LOGINS

#: A tag that decides, with the number of the person in it; its reason and name are tags beside it.
TAG: Final = re.compile(r"approval(\.\d+)?")
#: Whatever speaks of a decision.
WRITTEN: Final = re.compile(r"(approval(?:\.\d+)?)(\.by|\.reason)?")


def write(ctx: Context, candidate: Candidate, server: str, person: str, tag: str, value: str, policy: str) -> None:
    """State that a person, logged in here, set a tag of a candidate; an empty value removes it.

    Args:
        server: owner of the key that signs.
        policy: digest of the gate policy that governs.

    Raises:
        SignatureError: the log does not hold, or the key is not here.
    """
    body: dict[str, Any] = {"person": person, "candidate": candidate.key, "tag": tag, "value": value, "policy": policy}
    after = releases.ended_by(ctx, candidate.release, candidate.subjects)
    body |= {"model": candidate.model, "version": candidate.version, "after": after}
    LOGINS.append(ctx, body, candidate.subjects, APPROVER, server)


def about(ctx: Context, candidate: Candidate) -> tuple[LogRecord, ...]:
    """Statements about a candidate, oldest first.

    Raises:
        SignatureError: a statement was edited, removed, moved, or signed by somebody who is no approver.
    """
    # Also the version: whoever can write its tags may have put another candidate's key there while somebody decided.
    wanted = {"candidate": candidate.key, "model": candidate.model, "version": candidate.version}
    return tuple(one for one in LOGINS.records(ctx) if wanted.items() <= one.body.items())


def decisions(ctx: Context, candidate: Candidate) -> tuple[Approval, ...]:
    """Each person's decision about a candidate, through each server, as far as one is complete.

    Raises:
        SignatureError: as `about`.
    """
    written: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for record in about(ctx, candidate):
        for server in record.owners:
            tags = written.setdefault((str(record.body.get("person")), server), {})
            tags[str(record.body.get("tag"))] = record.body
    found = (_decision(person, server, tags) for (person, server), tags in sorted(written.items()))
    return tuple(one for one in found if one is not None)


def _decision(person: str, server: str, tags: Mapping[str, Mapping[str, Any]]) -> Approval | None:
    said = {tag: str(body.get("value")).strip().lower() for tag, body in tags.items() if TAG.fullmatch(tag)}
    for tag in sorted(tag for tag, value in said.items() if value == "rejected"):
        reason = _reason(tags, tag) or "no reason given"
        return Approval(by=person, decision="rejected", reason=reason, how="tag", proxy=server)
    for tag in sorted(tag for tag, value in said.items() if value == "approved"):
        if reason := _reason(tags, tag):
            given = {"policy": str(tags[tag].get("policy", "")), "after": int(tags[tag].get("after", 0))}
            return Approval(by=person, decision="approved", reason=reason, how="tag", proxy=server, **given)
    return None


def _reason(tags: Mapping[str, Mapping[str, Any]], tag: str) -> str:
    return str(tags.get(f"{tag}.reason", {}).get("value", "")).strip()
