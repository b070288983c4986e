"""Waivers: the owner of a release lets one candidate pass one gate all the same, until a date, for a reason.

    policies/<release>/waivers/<candidate 12>.<gate>.json    DSSE envelope, signed as `policy`

A waiver names the candidate, the gate and the policy under which it was given. After its date, under another policy, or
for a gate that none lifts (`gates.settings.always`) it is none; nor is one that was put back over a later one which
this machine has seen, expired or not. What it lets through stays visible as failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import Field, ValidationError, field_validator

from plinth.compute.context import Context
from plinth.errors import GateError, SignatureError
from plinth.records import Frozen
from plinth.trust import dsse
from plinth.trust.authority import POLICY, now, time_of
from plinth.trust.root import Trust
from plinth_registry.gates.settings import SHORTEST_REASON, always
from plinth_registry.policy import SignedPolicy

PREDICATE: Final = "urn:plinth:gate-waiver:v1"


class Waiver(Frozen):
    """What is let through, for whom, why, and until when (UTC, ISO 8601)."""

    release: str
    gate: str
    candidate: str = Field(pattern=r"^[0-9a-f]{64}$")
    policy: str = Field(pattern=r"^[0-9a-f]{64}$")
    reason: str = Field(min_length=SHORTEST_REASON)
    expires: str
    by: str
    at: str

    @field_validator("expires", "at")
    @classmethod
    def _with_a_zone(cls, given: str) -> str:
        _ = time_of(given)
        return given

    @property
    def said(self) -> str:
        """The waiver in words, for the result of its gate."""
        return f"waived by {self.by} until {self.expires}: {self.reason}"


class Waivers(NamedTuple):
    """Waivers of a candidate that count, by gate; and why others do not."""

    valid: Mapping[str, Waiver]
    faults: tuple[str, ...]

    @property
    def said(self) -> dict[str, str]:
        """As `gates.evaluate` takes them."""
        return {gate: waiver.said for gate, waiver in self.valid.items()}


def sign(
    ctx: Context, policy: SignedPolicy, gate: str, candidate: str, reason: str, expires: str, owner: str | None = None
) -> Waiver:
    """Sign a waiver; a later one of the same gate and candidate replaces it.

    Raises:
        GateError: the policy does not ask this gate, or none lifts it; or it has no reason or no date to come.
        SignatureError: no key as `policy` on this machine.
    """
    name = policy.policy.release
    asked = (*policy.policy.asked, *policy.policy.extensions)
    if gate in always() or gate not in asked:
        open_to = [one for one in asked if one not in always()]
        raise GateError(f"the gate {gate} cannot be waived for {name}", expected=f"one of {', '.join(open_to)}")
    trust = Trust.of(ctx.workspace)
    signer = trust.signer(POLICY, owner)
    facts: dict[str, Any] = {"release": name, "gate": gate, "candidate": candidate, "policy": policy.digest}
    try:
        made = Waiver(**facts, reason=reason.strip(), expires=expires, by=signer.owner, at=now())
        past = time_of(expires) <= datetime.now(UTC)
    except (ValidationError, ValueError) as error:
        raise GateError(
            f"no waiver of {gate}",
            found=error,
            expected="a reason in a sentence, a candidate's digest, and a time with its zone",
        ) from error
    if past:
        raise GateError(f"a waiver of {gate} that has expired already", found=expires, expected="a time to come")
    content = dsse.statement(PREDICATE, {"candidate": candidate, "policy": policy.digest}, made.model_dump(mode="json"))
    dsse.write(_folder(ctx, name) / f"{candidate[:12]}.{gate}.json", content, signer)
    trust.remember(_counted(ctx, made)[0], _second(made))
    return made


def of(ctx: Context, policy: SignedPolicy, candidate: str, at: datetime | None = None) -> Waivers:
    """The waivers of a candidate under the policy that governs.

    Args:
        at: the time of the verdict; now where it is not given.
    """
    trust = Trust.of(ctx.workspace)
    valid: dict[str, Waiver] = {}
    faults: list[str] = []
    for path in paths(ctx, policy.policy.release, candidate):
        try:
            found = _read(ctx, path)
        except SignatureError as error:
            faults.append(f"waiver {path.name}: {error.what}")
            continue
        why = _replaced(ctx, trust, found) or _unfit(found, policy, candidate, at or datetime.now(UTC))
        if why:
            faults.append(f"waiver of {found.gate} by {found.by}: {why}")
        else:
            valid[found.gate] = found
    return Waivers(valid, tuple(faults))


def paths(ctx: Context, release: str, candidate: str) -> tuple[Path, ...]:
    """The files of a candidate's waivers, valid or not."""
    return tuple(sorted(_folder(ctx, release).glob(f"{candidate[:12]}.*.json")))


def _read(ctx: Context, path: Path) -> Waiver:
    content = dsse.read(path, Trust.of(ctx.workspace).authority(POLICY), PREDICATE)
    try:
        return Waiver.model_validate(content["predicate"])
    except (KeyError, ValidationError) as error:
        raise SignatureError(f"{path} is not a waiver", found=error) from error


def _unfit(found: Waiver, policy: SignedPolicy, candidate: str, at: datetime) -> str:
    """Why a waiver does not count; empty where it does."""
    if (found.release, found.candidate) != (policy.policy.release, candidate):
        return "it is of another candidate"
    if found.policy != policy.digest:
        return "it was given under another policy"
    if found.gate in always():
        return "no waiver lifts this gate"
    return f"it expired {found.expires}" if time_of(found.expires) <= at else ""


def _replaced(ctx: Context, trust: Trust, found: Waiver) -> str:
    """Whether this machine has seen a later waiver of the same gate and candidate, in words: that one replaced this."""
    if _second(found) < trust.seen(*_counted(ctx, found)):
        return "a later one replaced it"
    trust.remember(_counted(ctx, found)[0], _second(found))
    return ""


def _counted(ctx: Context, one: Waiver) -> tuple[str, ...]:
    return tuple(f"{place} waivers/{one.release}/{one.candidate}/{one.gate}" for place in ctx.workspace.places)


def _second(one: Waiver) -> int:
    return int(time_of(one.at).timestamp())


def _folder(ctx: Context, release: str) -> Path:
    return ctx.workspace.policies / release / "waivers"
